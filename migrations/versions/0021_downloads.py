"""downloads by artifact and by repository; how full quotas are"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "arkvory_downloads",
        sa.Column("artifact_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("last_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["artifact_id"], ["arkvory_artifacts.id"], name=op.f("fk_arkvory_downloads_artifact_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("artifact_id", name=op.f("pk_arkvory_downloads")),
    )
    op.create_table(
        "arkvory_repository_downloads",
        sa.Column("repository_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("last_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("repository_id", name=op.f("pk_arkvory_repository_downloads")),
    )
    op.create_table(
        "arkvory_quota_levels",
        sa.Column("repository_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("level", sa.Integer(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("quota_bytes", sa.BigInteger(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("repository_id", name=op.f("pk_arkvory_quota_levels")),
    )
    # Counts go up in place.
    op.execute("alter table arkvory_downloads set (fillfactor = 80)")
    op.execute("alter table arkvory_repository_downloads set (fillfactor = 50)")


def downgrade() -> None:
    for table in ("arkvory_quota_levels", "arkvory_repository_downloads", "arkvory_downloads"):
        op.drop_table(table)
