"""mirrors and their work"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def _number(name: str, default: str | None = "0") -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), server_default=None if default is None else sa.text(default), nullable=False)


def _moment(name: str, *, nullable: bool = True) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), server_default=None if nullable else sa.text("now()"), nullable=nullable)


def _document(name: str, default: str | None = None, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, postgresql.JSONB(), server_default=None if default is None else sa.text(default), nullable=nullable)


def upgrade() -> None:
    op.create_table(
        "arkvory_mirrors",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("repository_id", sa.BigInteger(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        *map(_document, ("names", "include", "exclude")),
        sa.Column("every_seconds", sa.Integer(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("concurrency", sa.Integer(), nullable=False),
        sa.Column("upstream_url", sa.Text(), nullable=True),
        _document("shown", nullable=True),
        sa.Column("secret", sa.Text(), nullable=True),
        sa.Column("may_lie_inside", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        _number("revision", "1"),
        _number("walked"),
        _number("round"),
        sa.Column("whole", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("state", sa.Text(), server_default=sa.text("'new'"), nullable=False),
        sa.Column("runner", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("cursor", sa.Text(), server_default=sa.text("''"), nullable=False),
        _document("counts", "'{}'"),
        _document("errors", "'[]'"),
        _number("files"),
        _number("bytes"),
        *map(_moment, ("not_before", "seen_at", "started_at", "ended_at", "succeeded_at", "round_at", "current_at")),
        _moment("created_at", nullable=False),
        sa.ForeignKeyConstraint(
            ["repository_id"], ["arkvory_repositories.id"], name=op.f("fk_arkvory_mirrors_repository_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_arkvory_mirrors")),
        sa.UniqueConstraint("repository_id", name=op.f("uq_arkvory_mirrors_repository_id")),
    )
    op.create_table(
        "arkvory_mirror_items",
        sa.Column("mirror_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(collation="C"), nullable=False),
        sa.Column("path", sa.Text(collation="C"), nullable=False),
        _number("round", None),
        sa.Column("state", sa.Text(), server_default=sa.text("'todo'"), nullable=False),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        _moment("next_try_at", nullable=False),
        sa.Column("address", sa.Text(), nullable=True),
        sa.Column("size", sa.BigInteger(), nullable=True),
        sa.Column("digest", sa.Text(), nullable=True),
        sa.Column("lasting", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=True) for name in ("sha256", "etag", "last_modified")),
        sa.Column("upload_id", postgresql.UUID(as_uuid=True), nullable=True),
        *(sa.Column(name, sa.Text(), nullable=True) for name in ("validator", "error")),
        sa.CheckConstraint("kind in ('file', 'list')", name=op.f("ck_arkvory_mirror_items_kind")),
        sa.CheckConstraint("state in ('todo', 'done', 'skipped', 'gone', 'failed')", name=op.f("ck_arkvory_mirror_items_state")),
        sa.PrimaryKeyConstraint("mirror_id", "kind", "path", name=op.f("pk_arkvory_mirror_items")),
    )
    op.create_index(
        "ix_arkvory_mirror_items_todo", "arkvory_mirror_items", ["mirror_id", "kind", "next_try_at", "path"],
        postgresql_where=sa.text("state = 'todo'"),
    )  # fmt: skip


def downgrade() -> None:
    op.drop_table("arkvory_mirror_items")
    op.drop_table("arkvory_mirrors")
