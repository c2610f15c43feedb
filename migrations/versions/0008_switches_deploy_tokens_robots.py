"""switches of the installation, deploy tokens, robots"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0008"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("arkvory_installation", sa.Column("anonymous", sa.Boolean(), server_default=sa.text("true"), nullable=False))
    op.add_column("arkvory_installation", sa.Column("read_only", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.add_column("arkvory_users", sa.Column("robot", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.create_table(
        "arkvory_deploy_tokens",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("repository_id", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("permissions", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("path_prefix", sa.Text(collation="C"), nullable=True),
        sa.Column("created_by", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["repository_id"], ["arkvory_repositories.id"], name=op.f("fk_arkvory_deploy_tokens_repository_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_arkvory_deploy_tokens")),
        sa.UniqueConstraint("digest", name=op.f("uq_arkvory_deploy_tokens_digest")),
    )
    op.create_index(op.f("ix_arkvory_deploy_tokens_repository_id"), "arkvory_deploy_tokens", ["repository_id"])


def downgrade() -> None:
    op.drop_table("arkvory_deploy_tokens")
    op.drop_column("arkvory_users", "robot")
    op.drop_column("arkvory_installation", "read_only")
    op.drop_column("arkvory_installation", "anonymous")
