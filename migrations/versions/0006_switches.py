"""switches of the installation"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("arkvory_installation", sa.Column("anonymous", sa.Boolean(), server_default=sa.text("true"), nullable=False))
    op.add_column("arkvory_installation", sa.Column("read_only", sa.Boolean(), server_default=sa.text("false"), nullable=False))


def downgrade() -> None:
    op.drop_column("arkvory_installation", "read_only")
    op.drop_column("arkvory_installation", "anonymous")
