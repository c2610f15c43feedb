"""indexes of open uploads that only those statements go through that say so

The reasons stand in `app/database/uploads.py`. While an index is made, writers wait, and readers do not: so those of open uploads are made by
themselves, then the others. Old code goes on through the old ones meanwhile, which go last, for a transaction that makes an index and then
drops one would wait in a circle with whoever reads uploads and then writes some.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

INDEXES = (
    ("ix_arkvory_uploads_open_by_lease", ["lease_until"], "status || ' by lease' = 'open by lease'"),
    ("ix_arkvory_uploads_open_by_owner", ["owner", "key"], "status || ' by owner' = 'open by owner' and owner is not null"),
)


def upgrade() -> None:
    for name, columns, condition in INDEXES:
        op.create_index(name, "arkvory_uploads", columns, postgresql_where=sa.text(condition))


def downgrade() -> None:
    for name, _, _ in reversed(INDEXES):
        op.drop_index(name, table_name="arkvory_uploads")
