"""files that mirrors refused are remembered"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

_CHECK = "ck_arkvory_mirror_items_state"
_BEFORE = "state in ('todo', 'done', 'skipped', 'gone', 'failed')"
_AFTER = "state in ('todo', 'done', 'skipped', 'gone', 'failed', 'refused')"


def upgrade() -> None:
    op.add_column("arkvory_mirror_items", sa.Column("refusals", sa.Integer(), server_default=sa.text("0"), nullable=False))
    op.add_column("arkvory_mirror_items", sa.Column("refused_until", sa.DateTime(timezone=True), nullable=True))
    op.drop_constraint(op.f(_CHECK), "arkvory_mirror_items")
    op.create_check_constraint(op.f(_CHECK), "arkvory_mirror_items", _AFTER)
    op.create_index(
        "ix_arkvory_mirror_items_refused", "arkvory_mirror_items", ["mirror_id", "path"], postgresql_where=sa.text("state = 'refused'")
    )


def downgrade() -> None:
    op.drop_index("ix_arkvory_mirror_items_refused", "arkvory_mirror_items")
    op.execute("update arkvory_mirror_items set state = 'failed' where state = 'refused'")
    op.drop_constraint(op.f(_CHECK), "arkvory_mirror_items")
    op.create_check_constraint(op.f(_CHECK), "arkvory_mirror_items", _BEFORE)
    for name in ("refused_until", "refusals"):
        op.drop_column("arkvory_mirror_items", name)
