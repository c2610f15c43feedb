"""quarantine: holds by path, rules that make them, and a mark on the artifacts that they withhold"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "arkvory_holds",
        sa.Column("repository_id", sa.BigInteger(), nullable=False),
        sa.Column("path", sa.Text(collation="C"), nullable=False),
        sa.Column("main_path", sa.Text(collation="C"), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("trust", sa.Text(), nullable=False),
        sa.Column("held_by", sa.BigInteger(), nullable=True),
        sa.Column("held_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["repository_id"], ["arkvory_repositories.id"], name=op.f("fk_arkvory_holds_repository_id")),
        sa.PrimaryKeyConstraint("repository_id", "path", name=op.f("pk_arkvory_holds")),
    )
    op.create_table(
        "arkvory_hold_rules",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("repository_id", sa.BigInteger(), nullable=False),
        sa.Column("pattern", sa.Text(collation="C"), nullable=False),
        sa.Column("publisher", sa.Text(collation="C"), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["repository_id"], ["arkvory_repositories.id"], name=op.f("fk_arkvory_hold_rules_repository_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_arkvory_hold_rules")),
    )
    op.create_index(op.f("ix_arkvory_hold_rules_repository_id"), "arkvory_hold_rules", ["repository_id"])
    op.add_column("arkvory_artifacts", sa.Column("withheld", sa.Boolean(), server_default=sa.text("false"), nullable=False))


def downgrade() -> None:
    op.drop_column("arkvory_artifacts", "withheld")
    op.drop_table("arkvory_hold_rules")
    op.drop_table("arkvory_holds")
