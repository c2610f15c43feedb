"""a token made with another one ends with it"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("arkvory_tokens", sa.Column("parent_id", sa.BigInteger(), nullable=True))
    op.create_foreign_key(
        op.f("fk_arkvory_tokens_parent_id"), "arkvory_tokens", "arkvory_tokens", ["parent_id"], ["id"], ondelete="CASCADE"
    )
    op.create_index(op.f("ix_arkvory_tokens_parent_id"), "arkvory_tokens", ["parent_id"], unique=False)


def downgrade() -> None:
    op.drop_index(op.f("ix_arkvory_tokens_parent_id"), table_name="arkvory_tokens")
    op.drop_constraint(op.f("fk_arkvory_tokens_parent_id"), "arkvory_tokens", type_="foreignkey")
    op.drop_column("arkvory_tokens", "parent_id")
