"""initial tables"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "arkvory_blobs",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("digest", sa.Text(collation="C"), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("checksums", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("last_used_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("candidate_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("digest ~ '^[0-9a-f]{64}$'", name=op.f("ck_arkvory_blobs_digest")),
        sa.CheckConstraint("status in ('placing', 'live', 'deleting')", name=op.f("ck_arkvory_blobs_status")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_arkvory_blobs")),
        sa.UniqueConstraint("digest", name=op.f("uq_arkvory_blobs_digest")),
    )
    op.create_index(
        "ix_arkvory_blobs_candidates", "arkvory_blobs", ["candidate_at"], unique=False, postgresql_where=sa.text("candidate_at is not null")
    )
    op.create_table(
        "arkvory_cache_rows",
        sa.Column("region", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(collation="C"), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("repository_id", sa.BigInteger(), nullable=False),
        sa.Column("metadata_epoch", sa.BigInteger(), nullable=False),
        sa.Column("authorization_epoch", sa.BigInteger(), nullable=False),
        sa.Column("members_epoch", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("region", "key", name=op.f("pk_arkvory_cache_rows")),
    )
    op.create_index(op.f("ix_arkvory_cache_rows_expires_at"), "arkvory_cache_rows", ["expires_at"], unique=False)
    op.create_index(op.f("ix_arkvory_cache_rows_repository_id"), "arkvory_cache_rows", ["repository_id"], unique=False)
    op.create_table(
        "arkvory_groups",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("name", sa.Text(collation="C"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_arkvory_groups")),
        sa.UniqueConstraint("name", name=op.f("uq_arkvory_groups_name")),
    )
    op.create_table(
        "arkvory_installation",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("incarnation", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), server_default=sa.text("1"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_arkvory_installation")),
    )
    op.create_table(
        "arkvory_owner",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("generation", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("holder", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("acquired_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_arkvory_owner")),
    )
    op.create_table(
        "arkvory_uploads",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("repository_id", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("status in ('open', 'published', 'garbage', 'released')", name=op.f("ck_arkvory_uploads_status")),
        sa.CheckConstraint("bytes >= 0", name=op.f("ck_arkvory_uploads_bytes")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_arkvory_uploads")),
    )
    op.create_index(
        "ix_arkvory_uploads_garbage", "arkvory_uploads", ["changed_at"], unique=False, postgresql_where=sa.text("status = 'garbage'")
    )
    op.create_index(
        "ix_arkvory_uploads_open", "arkvory_uploads", ["lease_until"], unique=False, postgresql_where=sa.text("status = 'open'")
    )
    op.create_index(
        "ix_arkvory_uploads_released", "arkvory_uploads", ["changed_at"], unique=False, postgresql_where=sa.text("status = 'released'")
    )
    op.create_table(
        "arkvory_users",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("name", sa.Text(collation="C"), nullable=False),
        sa.Column("password_hash", sa.Text(), nullable=True),
        sa.Column("administrator", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("disabled", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("revision", sa.BigInteger(), server_default=sa.text("1"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_arkvory_users")),
        sa.UniqueConstraint("name", name=op.f("uq_arkvory_users_name")),
    )
    op.create_table(
        "arkvory_group_members",
        sa.Column("group_id", sa.BigInteger(), nullable=False),
        sa.Column("user_id", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["group_id"], ["arkvory_groups.id"], name=op.f("fk_arkvory_group_members_group_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["user_id"], ["arkvory_users.id"], name=op.f("fk_arkvory_group_members_user_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("group_id", "user_id", name=op.f("pk_arkvory_group_members")),
    )
    op.create_index(op.f("ix_arkvory_group_members_user_id"), "arkvory_group_members", ["user_id"], unique=False)
    op.create_table(
        "arkvory_repositories",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("tenant", sa.Text(collation="C"), server_default=sa.text("'default'"), nullable=False),
        sa.Column("name", sa.Text(collation="C"), nullable=False),
        sa.Column("format", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), server_default=sa.text("'online'"), nullable=False),
        sa.Column("public", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("creator_id", sa.BigInteger(), nullable=True),
        sa.Column("upstream_url", sa.Text(), nullable=True),
        sa.Column("caching_allowed", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("quota_bytes", sa.BigInteger(), nullable=True),
        sa.Column("settings", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("metadata_epoch", sa.BigInteger(), server_default=sa.text("1"), nullable=False),
        sa.Column("authorization_epoch", sa.BigInteger(), server_default=sa.text("1"), nullable=False),
        sa.Column("content_epoch", sa.BigInteger(), server_default=sa.text("1"), nullable=False),
        sa.Column("members_epoch", sa.BigInteger(), server_default=sa.text("1"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("kind in ('hosted', 'proxy', 'group')", name=op.f("ck_arkvory_repositories_kind")),
        sa.CheckConstraint("status in ('online', 'offline', 'maintenance')", name=op.f("ck_arkvory_repositories_status")),
        sa.CheckConstraint("quota_bytes >= 0", name=op.f("ck_arkvory_repositories_quota")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_arkvory_repositories")),
    )
    op.create_index(
        "ix_arkvory_repositories_deleted", "arkvory_repositories", ["id"], unique=False, postgresql_where=sa.text("deleted_at is not null")
    )
    op.create_index(
        "uq_arkvory_repositories_live_name",
        "arkvory_repositories",
        ["tenant", "name"],
        unique=True,
        postgresql_where=sa.text("deleted_at is null"),
    )
    op.create_table(
        "arkvory_tokens",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("user_id", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("permissions", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("repositories", postgresql.ARRAY(sa.BigInteger()), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["user_id"], ["arkvory_users.id"], name=op.f("fk_arkvory_tokens_user_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_arkvory_tokens")),
        sa.UniqueConstraint("digest", name=op.f("uq_arkvory_tokens_digest")),
    )
    op.create_index(op.f("ix_arkvory_tokens_user_id"), "arkvory_tokens", ["user_id"], unique=False)
    op.create_table(
        "arkvory_access_rules",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("repository_id", sa.BigInteger(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("user_id", sa.BigInteger(), nullable=True),
        sa.Column("group_id", sa.BigInteger(), nullable=True),
        sa.Column("permissions", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("path_prefix", sa.Text(collation="C"), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("(subject = 'group') = (group_id is not null)", name=op.f("ck_arkvory_access_rules_group")),
        sa.CheckConstraint("(subject = 'user') = (user_id is not null)", name=op.f("ck_arkvory_access_rules_user")),
        sa.CheckConstraint("subject in ('user', 'group', 'signed-in', 'anonymous')", name=op.f("ck_arkvory_access_rules_subject")),
        sa.ForeignKeyConstraint(["group_id"], ["arkvory_groups.id"], name=op.f("fk_arkvory_access_rules_group_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["repository_id"], ["arkvory_repositories.id"], name=op.f("fk_arkvory_access_rules_repository_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["user_id"], ["arkvory_users.id"], name=op.f("fk_arkvory_access_rules_user_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_arkvory_access_rules")),
    )
    op.create_index(op.f("ix_arkvory_access_rules_group_id"), "arkvory_access_rules", ["group_id"], unique=False)
    op.create_index(op.f("ix_arkvory_access_rules_repository_id"), "arkvory_access_rules", ["repository_id"], unique=False)
    op.create_index(op.f("ix_arkvory_access_rules_user_id"), "arkvory_access_rules", ["user_id"], unique=False)
    op.create_table(
        "arkvory_packages",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("repository_id", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(collation="C"), nullable=False),
        sa.Column("display_name", sa.Text(), nullable=False),
        sa.Column("artifacts", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["repository_id"], ["arkvory_repositories.id"], name=op.f("fk_arkvory_packages_repository_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_arkvory_packages")),
        sa.UniqueConstraint("repository_id", "name", name=op.f("uq_arkvory_packages_repository_id_name")),
    )
    op.create_table(
        "arkvory_used_paths",
        sa.Column("repository_id", sa.BigInteger(), nullable=False),
        sa.Column("path", sa.Text(collation="C"), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["repository_id"], ["arkvory_repositories.id"], name=op.f("fk_arkvory_used_paths_repository_id")),
        sa.PrimaryKeyConstraint("repository_id", "path", name=op.f("pk_arkvory_used_paths")),
    )
    op.create_table(
        "arkvory_artifacts",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("repository_id", sa.BigInteger(), nullable=False),
        sa.Column("path", sa.Text(collation="C"), nullable=False),
        sa.Column("blob_id", sa.BigInteger(), nullable=False),
        sa.Column("upload_id", sa.UUID(), nullable=False),
        sa.Column("package_id", sa.BigInteger(), nullable=True),
        sa.Column("version", sa.Text(), nullable=True),
        sa.Column("content_type", sa.Text(), nullable=False),
        sa.Column("metadata", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("created_by", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("octet_length(path) between 1 and 1024", name=op.f("ck_arkvory_artifacts_path")),
        sa.ForeignKeyConstraint(["blob_id"], ["arkvory_blobs.id"], name=op.f("fk_arkvory_artifacts_blob_id")),
        sa.ForeignKeyConstraint(["package_id"], ["arkvory_packages.id"], name=op.f("fk_arkvory_artifacts_package_id")),
        sa.ForeignKeyConstraint(["repository_id"], ["arkvory_repositories.id"], name=op.f("fk_arkvory_artifacts_repository_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_arkvory_artifacts")),
        sa.UniqueConstraint("repository_id", "path", name=op.f("uq_arkvory_artifacts_repository_id_path")),
    )
    op.create_index(op.f("ix_arkvory_artifacts_blob_id"), "arkvory_artifacts", ["blob_id"], unique=False)
    op.create_index(
        "ix_arkvory_artifacts_package",
        "arkvory_artifacts",
        ["package_id", "path"],
        unique=False,
        postgresql_where=sa.text("package_id is not null"),
    )
    op.execute("insert into arkvory_installation (id, incarnation) values (1, gen_random_uuid()::text)")
    op.execute("insert into arkvory_owner (id) values (1)")


def downgrade() -> None:
    op.drop_index("ix_arkvory_artifacts_package", table_name="arkvory_artifacts", postgresql_where=sa.text("package_id is not null"))
    op.drop_index(op.f("ix_arkvory_artifacts_blob_id"), table_name="arkvory_artifacts")
    op.drop_table("arkvory_artifacts")
    op.drop_table("arkvory_used_paths")
    op.drop_table("arkvory_packages")
    op.drop_index(op.f("ix_arkvory_access_rules_user_id"), table_name="arkvory_access_rules")
    op.drop_index(op.f("ix_arkvory_access_rules_repository_id"), table_name="arkvory_access_rules")
    op.drop_index(op.f("ix_arkvory_access_rules_group_id"), table_name="arkvory_access_rules")
    op.drop_table("arkvory_access_rules")
    op.drop_index(op.f("ix_arkvory_tokens_user_id"), table_name="arkvory_tokens")
    op.drop_table("arkvory_tokens")
    op.drop_index("uq_arkvory_repositories_live_name", table_name="arkvory_repositories", postgresql_where=sa.text("deleted_at is null"))
    op.drop_index("ix_arkvory_repositories_deleted", table_name="arkvory_repositories", postgresql_where=sa.text("deleted_at is not null"))
    op.drop_table("arkvory_repositories")
    op.drop_index(op.f("ix_arkvory_group_members_user_id"), table_name="arkvory_group_members")
    op.drop_table("arkvory_group_members")
    op.drop_table("arkvory_users")
    op.drop_index("ix_arkvory_uploads_released", table_name="arkvory_uploads", postgresql_where=sa.text("status = 'released'"))
    op.drop_index("ix_arkvory_uploads_open", table_name="arkvory_uploads", postgresql_where=sa.text("status = 'open'"))
    op.drop_index("ix_arkvory_uploads_garbage", table_name="arkvory_uploads", postgresql_where=sa.text("status = 'garbage'"))
    op.drop_table("arkvory_uploads")
    op.drop_table("arkvory_owner")
    op.drop_table("arkvory_installation")
    op.drop_table("arkvory_groups")
    op.drop_index(op.f("ix_arkvory_cache_rows_repository_id"), table_name="arkvory_cache_rows")
    op.drop_index(op.f("ix_arkvory_cache_rows_expires_at"), table_name="arkvory_cache_rows")
    op.drop_table("arkvory_cache_rows")
    op.drop_index("ix_arkvory_blobs_candidates", table_name="arkvory_blobs", postgresql_where=sa.text("candidate_at is not null"))
    op.drop_table("arkvory_blobs")
