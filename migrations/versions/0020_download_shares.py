"""shares of the download budget"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "arkvory_download_shares",
        sa.Column("holder", sa.Text(collation="C"), nullable=False),
        sa.Column("hungry", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("calm", sa.Double(), nullable=False),
        sa.Column("granted", sa.Double(), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("holder", name=op.f("pk_arkvory_download_shares")),
    )


def downgrade() -> None:
    op.drop_table("arkvory_download_shares")
