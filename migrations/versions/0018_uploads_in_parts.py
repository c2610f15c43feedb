"""uploads in parts"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

EXACT = sa.Text(collation="C")


def upgrade() -> None:
    op.create_table(
        "arkvory_multiparts",
        sa.Column("upload_id", sa.UUID(), nullable=False),
        sa.Column("repository_id", sa.BigInteger(), nullable=False),
        sa.Column("door_id", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("path", EXACT, nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=True),
        sa.Column("sha256", EXACT, nullable=True),
        sa.Column("content_type", sa.Text(), nullable=False),
        sa.Column("part_size", sa.BigInteger(), nullable=False),
        sa.Column("if_match", postgresql.ARRAY(sa.Text()), nullable=True),
        sa.Column("if_none_match", postgresql.ARRAY(sa.Text()), nullable=True),
        sa.Column("idempotency_key", EXACT, nullable=True),
        sa.Column("request", EXACT, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("completing_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("asked_by", postgresql.JSONB(), nullable=True),
        sa.Column("not_before", sa.DateTime(timezone=True), nullable=True),
        sa.Column("error", postgresql.JSONB(), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("part_size > 0 and size >= 0", name=op.f("ck_arkvory_multiparts_sizes")),
        sa.PrimaryKeyConstraint("upload_id", name=op.f("pk_arkvory_multiparts")),
    )
    op.create_index(op.f("ix_arkvory_multiparts_repository_id_upload_id"), "arkvory_multiparts", ["repository_id", "upload_id"])
    op.create_index(
        "uq_arkvory_multiparts_key",
        "arkvory_multiparts",
        ["door_id", "owner", "idempotency_key"],
        unique=True,
        postgresql_where=sa.text("idempotency_key is not null"),
    )
    op.create_index(
        "ix_arkvory_multiparts_completing",
        "arkvory_multiparts",
        ["completing_at"],
        postgresql_where=sa.text("completing_at is not null and ended_at is null"),
    )
    op.create_table(
        "arkvory_parts",
        sa.Column("upload_id", sa.UUID(), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("bytes", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=True),
        sa.Column("sha256", EXACT, nullable=True),
        sa.Column("holder", sa.UUID(), nullable=True),
        sa.Column("held_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("machine", sa.Text(), nullable=True),
        sa.Column("strays", postgresql.ARRAY(sa.Text()), server_default=sa.text("'{}'::text[]"), nullable=False),
        sa.CheckConstraint("number > 0", name=op.f("ck_arkvory_parts_number")),
        sa.CheckConstraint("sha256 is null or (size is not null and holder is null)", name=op.f("ck_arkvory_parts_whole")),
        sa.ForeignKeyConstraint(
            ["upload_id"], ["arkvory_multiparts.upload_id"], name=op.f("fk_arkvory_parts_upload_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("upload_id", "number", name=op.f("pk_arkvory_parts")),
    )
    op.create_index("ix_arkvory_parts_held", "arkvory_parts", ["upload_id"], postgresql_where=sa.text("holder is not null"))


def downgrade() -> None:
    op.drop_table("arkvory_parts")
    op.drop_table("arkvory_multiparts")
