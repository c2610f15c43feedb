"""a deploy token made with a token ends with it"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("arkvory_deploy_tokens", sa.Column("parent_id", sa.BigInteger(), nullable=True))
    op.create_foreign_key(
        op.f("fk_arkvory_deploy_tokens_parent_id"), "arkvory_deploy_tokens", "arkvory_tokens", ["parent_id"], ["id"], ondelete="CASCADE"
    )
    op.create_index(op.f("ix_arkvory_deploy_tokens_parent_id"), "arkvory_deploy_tokens", ["parent_id"])


def downgrade() -> None:
    op.drop_index(op.f("ix_arkvory_deploy_tokens_parent_id"), table_name="arkvory_deploy_tokens")
    op.drop_constraint(op.f("fk_arkvory_deploy_tokens_parent_id"), "arkvory_deploy_tokens", type_="foreignkey")
    op.drop_column("arkvory_deploy_tokens", "parent_id")
