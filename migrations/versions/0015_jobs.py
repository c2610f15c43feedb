"""jobs: what runs, how often, and what became of it"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "arkvory_jobs",
        sa.Column("name", sa.Text(collation="C"), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("every_seconds", sa.Double(), nullable=False),
        sa.Column("run", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("running", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("runner", sa.Text(), nullable=True),
        sa.Column("began_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("said", sa.Text(), nullable=True),
        sa.Column("failures", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("succeeded_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("asked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("next_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("outcome in ('done', 'failed', 'stopped', 'lost')", name=op.f("ck_arkvory_jobs_outcome")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_arkvory_jobs")),
    )


def downgrade() -> None:
    op.drop_table("arkvory_jobs")
