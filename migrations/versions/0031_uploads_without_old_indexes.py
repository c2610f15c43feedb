"""no index of uploads any more that is taken for a statement on one of them

The cleanup of a process that still runs old code finds what is due without them, only slower.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

INDEXES = (("open", "lease_until"), ("garbage", "changed_at"), ("released", "changed_at"))


def upgrade() -> None:
    for status, _ in INDEXES:
        op.drop_index(f"ix_arkvory_uploads_{status}", table_name="arkvory_uploads")


def downgrade() -> None:
    for status, column in INDEXES:
        op.create_index(f"ix_arkvory_uploads_{status}", "arkvory_uploads", [column], postgresql_where=sa.text(f"status = '{status}'"))
