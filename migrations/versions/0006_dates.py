"""dates that validate: other bytes at a path always get a later second, overwritten or deleted and stored again"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("arkvory_artifacts", sa.Column("dated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False))
    op.execute("update arkvory_artifacts set dated_at = updated_at")
    op.add_column("arkvory_repositories", sa.Column("last_date_deleted", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    op.drop_column("arkvory_repositories", "last_date_deleted")
    op.drop_column("arkvory_artifacts", "dated_at")
