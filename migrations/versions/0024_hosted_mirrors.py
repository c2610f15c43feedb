"""what files of mirrors need; when an upstream published a version of an npm package"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("arkvory_mirror_items", sa.Column("needs", sa.Text(), nullable=True))
    op.add_column("arkvory_npm_versions", sa.Column("published_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    op.drop_column("arkvory_npm_versions", "published_at")
    op.drop_column("arkvory_mirror_items", "needs")
