"""processes of a cluster tell their settings"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("arkvory_instances", sa.Column("settings", postgresql.JSONB(), nullable=True))


def downgrade() -> None:
    op.drop_column("arkvory_instances", "settings")
