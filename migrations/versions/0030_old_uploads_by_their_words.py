"""the same for uploads that have ended, by age"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

STATUSES = ("garbage", "released")


def upgrade() -> None:
    for status in STATUSES:
        op.create_index(
            f"ix_arkvory_uploads_{status}_by_age",
            "arkvory_uploads",
            ["changed_at"],
            postgresql_where=sa.text(f"status || ' by age' = '{status} by age'"),
        )


def downgrade() -> None:
    for status in STATUSES:
        op.drop_index(f"ix_arkvory_uploads_{status}_by_age", table_name="arkvory_uploads")
