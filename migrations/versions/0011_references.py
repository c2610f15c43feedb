"""references between artifacts, uploads that take several requests, host names of repositories"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "arkvory_references",
        sa.Column("artifact_id", sa.BigInteger(), nullable=False),
        sa.Column("repository_id", sa.BigInteger(), nullable=False),
        sa.Column("path", sa.Text(collation="C"), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.CheckConstraint("kind in ('part', 'member', 'same', 'subject')", name=op.f("ck_arkvory_references_kind")),
        sa.ForeignKeyConstraint(
            ["artifact_id"], ["arkvory_artifacts.id"], name=op.f("fk_arkvory_references_artifact_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("artifact_id", "path", "kind", name=op.f("pk_arkvory_references")),
    )
    op.create_index(op.f("ix_arkvory_references_repository_id_path"), "arkvory_references", ["repository_id", "path"])
    op.add_column("arkvory_artifacts", sa.Column("candidate_at", sa.DateTime(timezone=True), nullable=True))
    op.create_index(
        "ix_arkvory_artifacts_candidates", "arkvory_artifacts", ["candidate_at"], postgresql_where=sa.text("candidate_at is not null")
    )
    op.add_column("arkvory_uploads", sa.Column("target", sa.Text(collation="C"), nullable=True))
    op.add_column("arkvory_uploads", sa.Column("owner", sa.Text(), nullable=True))
    op.add_column("arkvory_uploads", sa.Column("received", sa.BigInteger(), nullable=True))
    op.add_column("arkvory_uploads", sa.Column("holder", sa.UUID(), nullable=True))
    op.add_column("arkvory_uploads", sa.Column("held_until", sa.DateTime(timezone=True), nullable=True))
    op.add_column("arkvory_repositories", sa.Column("host", sa.Text(collation="C"), nullable=True))
    op.create_index(
        "uq_arkvory_repositories_live_host",
        "arkvory_repositories",
        ["host"],
        unique=True,
        postgresql_where=sa.text("deleted_at is null and host is not null"),
    )


def downgrade() -> None:
    op.drop_index("uq_arkvory_repositories_live_host", "arkvory_repositories")
    op.drop_column("arkvory_repositories", "host")
    for column in ("held_until", "holder", "received", "owner", "target"):
        op.drop_column("arkvory_uploads", column)
    op.drop_index("ix_arkvory_artifacts_candidates", "arkvory_artifacts")
    op.drop_column("arkvory_artifacts", "candidate_at")
    op.drop_table("arkvory_references")
