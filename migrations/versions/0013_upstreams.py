"""upstreams of proxies, freshness of their copies"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "arkvory_upstreams",
        sa.Column("repository_id", sa.BigInteger(), nullable=False),
        sa.Column("shown", postgresql.JSONB(), nullable=False),
        sa.Column("secret", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["repository_id"], ["arkvory_repositories.id"], name=op.f("fk_arkvory_upstreams_repository_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("repository_id", name=op.f("pk_arkvory_upstreams")),
    )
    op.create_table(
        "arkvory_freshness",
        sa.Column("artifact_id", sa.BigInteger(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("spelling", sa.Text(), nullable=False),
        sa.Column("etag", sa.Text(), nullable=True),
        sa.Column("last_modified", sa.Text(), nullable=True),
        sa.Column("immutable", sa.Boolean(), nullable=False),
        sa.Column("checked_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("next_check_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["artifact_id"], ["arkvory_artifacts.id"], name=op.f("fk_arkvory_freshness_artifact_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("artifact_id", name=op.f("pk_arkvory_freshness")),
    )


def downgrade() -> None:
    op.drop_table("arkvory_freshness")
    op.drop_table("arkvory_upstreams")
