"""switches of the installation, deploy tokens, robots, roles"""

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
    _create_roles()
    op.execute(_VIEW)


def _create_roles() -> None:
    op.create_table(
        "arkvory_roles",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("name", sa.Text(collation="C"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_arkvory_roles")),
        sa.UniqueConstraint("name", name=op.f("uq_arkvory_roles_name")),
    )
    op.create_table(
        "arkvory_role_rules",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("role_id", sa.BigInteger(), nullable=False),
        sa.Column("repository_id", sa.BigInteger(), nullable=True),
        sa.Column("permissions", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("path_prefix", sa.Text(collation="C"), nullable=True),
        sa.ForeignKeyConstraint(["role_id"], ["arkvory_roles.id"], name=op.f("fk_arkvory_role_rules_role_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["repository_id"], ["arkvory_repositories.id"], name=op.f("fk_arkvory_role_rules_repository_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_arkvory_role_rules")),
    )
    op.create_index(op.f("ix_arkvory_role_rules_role_id"), "arkvory_role_rules", ["role_id"])
    op.create_index(op.f("ix_arkvory_role_rules_repository_id"), "arkvory_role_rules", ["repository_id"])
    op.create_table(
        "arkvory_role_holders",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("role_id", sa.BigInteger(), nullable=False),
        sa.Column("user_id", sa.BigInteger(), nullable=True),
        sa.Column("group_id", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("(user_id is null) <> (group_id is null)", name=op.f("ck_arkvory_role_holders_holder")),
        sa.ForeignKeyConstraint(["role_id"], ["arkvory_roles.id"], name=op.f("fk_arkvory_role_holders_role_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["user_id"], ["arkvory_users.id"], name=op.f("fk_arkvory_role_holders_user_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["group_id"], ["arkvory_groups.id"], name=op.f("fk_arkvory_role_holders_group_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_arkvory_role_holders")),
        sa.UniqueConstraint("role_id", "user_id", name=op.f("uq_arkvory_role_holders_role_id_user_id")),
        sa.UniqueConstraint("role_id", "group_id", name=op.f("uq_arkvory_role_holders_role_id_group_id")),
    )
    op.create_index(op.f("ix_arkvory_role_holders_user_id"), "arkvory_role_holders", ["user_id"])
    op.create_index(op.f("ix_arkvory_role_holders_group_id"), "arkvory_role_holders", ["group_id"])


_VIEW = """
create view arkvory_rules as
select repository_id, subject, user_id, group_id, permissions, path_prefix from arkvory_access_rules
union all
select r.id, case when h.user_id is null then 'group' else 'user' end, h.user_id, h.group_id, e.permissions, e.path_prefix
from arkvory_role_rules e
join arkvory_role_holders h on h.role_id = e.role_id
join arkvory_repositories r on e.repository_id is null or r.id = e.repository_id
"""


def downgrade() -> None:
    op.execute("drop view arkvory_rules")
    op.drop_table("arkvory_role_holders")
    op.drop_table("arkvory_role_rules")
    op.drop_table("arkvory_roles")
    op.drop_table("arkvory_deploy_tokens")
    op.drop_column("arkvory_users", "robot")
    op.drop_column("arkvory_installation", "read_only")
    op.drop_column("arkvory_installation", "anonymous")
