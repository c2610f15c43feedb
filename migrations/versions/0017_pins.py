"""pins of blobs that long downloads read"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "arkvory_pin_sessions",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_arkvory_pin_sessions")),
    )
    op.create_table(
        "arkvory_pins",
        sa.Column("blob_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("session_id", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["session_id"], ["arkvory_pin_sessions.id"], name=op.f("fk_arkvory_pins_session_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("blob_id", "session_id", name=op.f("pk_arkvory_pins")),
    )
    op.create_index(op.f("ix_arkvory_pins_session_id"), "arkvory_pins", ["session_id"])


def downgrade() -> None:
    op.drop_table("arkvory_pins")
    op.drop_table("arkvory_pin_sessions")
