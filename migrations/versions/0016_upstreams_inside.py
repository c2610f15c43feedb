"""upstreams that may lie inside: those that an administrator named"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("arkvory_upstreams", sa.Column("may_lie_inside", sa.Boolean(), server_default=sa.text("true"), nullable=False))


def downgrade() -> None:
    op.drop_column("arkvory_upstreams", "may_lie_inside")
