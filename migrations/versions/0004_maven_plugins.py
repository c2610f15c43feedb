"""Maven's plugins and archetypes are found without reading every artifact"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "ix_arkvory_artifacts_maven", "arkvory_artifacts", ["repository_id", "path"], postgresql_where=sa.text("metadata ? 'maven'")
    )


def downgrade() -> None:
    op.drop_index("ix_arkvory_artifacts_maven", table_name="arkvory_artifacts")
