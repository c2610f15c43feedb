"""npm: versions, tags and owners of packages; when a package was made and changed; logins by a browser"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    now = sa.text("now()")
    for name in ("created_at", "changed_at"):
        op.add_column("arkvory_packages", sa.Column(name, sa.DateTime(timezone=True), server_default=now, nullable=False))
    op.execute(_CHANGED)
    op.execute(_TRIGGER)
    op.create_table(
        "arkvory_npm_versions",
        sa.Column("artifact_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("fragment", sa.Text(), nullable=False),
        sa.Column("abbreviated", sa.Text(), nullable=False),
        sa.Column("words", sa.Text(), nullable=False),
        sa.Column("readme", sa.Text(), nullable=True),
        sa.Column("deprecated", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["artifact_id"], ["arkvory_artifacts.id"], name=op.f("fk_arkvory_npm_versions_artifact_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("artifact_id", name=op.f("pk_arkvory_npm_versions")),
    )
    # Fragments of some kilobytes stay in their rows, where reading two thousand of them looks nothing else up.
    op.execute("alter table arkvory_npm_versions set (toast_tuple_target = 8160)")
    op.create_table(
        "arkvory_npm_tags",
        sa.Column("package_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("tag", sa.Text(collation="C"), nullable=False),
        sa.Column("artifact_id", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["package_id"], ["arkvory_packages.id"], name=op.f("fk_arkvory_npm_tags_package_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["artifact_id"], ["arkvory_artifacts.id"], name=op.f("fk_arkvory_npm_tags_artifact_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("package_id", "tag", name=op.f("pk_arkvory_npm_tags")),
    )
    op.create_index(op.f("ix_arkvory_npm_tags_artifact_id"), "arkvory_npm_tags", ["artifact_id"])
    op.create_table(
        "arkvory_npm_packages",
        sa.Column("package_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("maintainers", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["package_id"], ["arkvory_packages.id"], name=op.f("fk_arkvory_npm_packages_package_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("package_id", name=op.f("pk_arkvory_npm_packages")),
    )
    op.create_table(
        "arkvory_logins",
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("user_id", sa.BigInteger(), nullable=True),
        sa.Column("revision", sa.BigInteger(), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), server_default=now, nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["arkvory_users.id"], name=op.f("fk_arkvory_logins_user_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_arkvory_logins")),
    )
    op.create_index(op.f("ix_arkvory_logins_user_id"), "arkvory_logins", ["user_id"])
    op.create_index(op.f("ix_arkvory_logins_expires_at"), "arkvory_logins", ["expires_at"])


_CHANGED = """
create function arkvory_package_changed() returns trigger language plpgsql as $$
begin
    new.changed_at := clock_timestamp();
    return new;
end
$$
"""
_TRIGGER = """
create trigger arkvory_package_changed before update of revision on arkvory_packages
for each row when (old.revision is distinct from new.revision) execute function arkvory_package_changed()
"""


def downgrade() -> None:
    op.drop_table("arkvory_logins")
    op.drop_table("arkvory_npm_packages")
    op.drop_table("arkvory_npm_tags")
    op.drop_table("arkvory_npm_versions")
    op.execute("drop trigger arkvory_package_changed on arkvory_packages")
    op.execute("drop function arkvory_package_changed()")
    op.drop_column("arkvory_packages", "changed_at")
    op.drop_column("arkvory_packages", "created_at")
