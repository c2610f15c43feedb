"""members of group repositories"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "arkvory_members",
        sa.Column("group_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("member_id", sa.BigInteger(), nullable=False),
        sa.Column("written", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.ForeignKeyConstraint(["group_id"], ["arkvory_repositories.id"], name=op.f("fk_arkvory_members_group_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["member_id"], ["arkvory_repositories.id"], name=op.f("fk_arkvory_members_member_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("group_id", "position", name=op.f("pk_arkvory_members")),
        sa.UniqueConstraint("group_id", "member_id", name=op.f("uq_arkvory_members_group_id_member_id")),
    )
    op.create_index(op.f("ix_arkvory_members_member_id"), "arkvory_members", ["member_id"])


def downgrade() -> None:
    op.drop_table("arkvory_members")
