"""a column for counters of uploads

By itself: who admits an upload reads the counters and then writes uploads, who publishes one writes both the other way round. A transaction that
locked both tables could wait for one of them in a circle.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("arkvory_upload_bytes", sa.Column("uploads", sa.BigInteger(), server_default="0", nullable=False))


def downgrade() -> None:
    op.drop_column("arkvory_upload_bytes", "uploads")
