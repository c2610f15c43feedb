"""lists of mirrors are asked for by their validators"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("arkvory_mirror_items", sa.Column("named_by", sa.Text(collation="C"), nullable=True))
    op.add_column("arkvory_mirror_items", sa.Column("basis", sa.Text(), nullable=True))
    op.add_column("arkvory_mirror_items", sa.Column("read_in", sa.BigInteger(), nullable=True))
    op.create_index(
        "ix_arkvory_mirror_items_named_by", "arkvory_mirror_items", ["mirror_id", "named_by"],
        postgresql_where=sa.text("named_by is not null"),
    )  # fmt: skip


def downgrade() -> None:
    op.drop_index("ix_arkvory_mirror_items_named_by", "arkvory_mirror_items")
    for name in ("read_in", "basis", "named_by"):
        op.drop_column("arkvory_mirror_items", name)
