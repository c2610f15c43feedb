"""counters of upload bytes, kept by a trigger

The first statement locks the uploads against writers, then the rows are counted once and the trigger is
enabled, all in one transaction: no change can fall between the count and the trigger. A rolling upgrade
waits for it; old code does not read the table.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# Sums by key, skips what comes to nothing, and updates in the order of the key, so that two transactions
# that each change several uploads cannot wait for each other in a circle.
FUNCTION = """
create function arkvory_count_upload_bytes() returns trigger language plpgsql as $$
begin
    if tg_op = 'TRUNCATE' then
        delete from arkvory_upload_bytes;
    elsif tg_op = 'INSERT' then
        insert into arkvory_upload_bytes as counter (repository_id, status, bytes)
        select repository_id, status, sum(bytes) from arrived where status <> 'released'
        group by repository_id, status having sum(bytes) <> 0 order by repository_id, status
        on conflict (repository_id, status) do update set bytes = counter.bytes + excluded.bytes;
    elsif tg_op = 'DELETE' then
        insert into arkvory_upload_bytes as counter (repository_id, status, bytes)
        select repository_id, status, -sum(bytes) from gone where status <> 'released'
        group by repository_id, status having sum(bytes) <> 0 order by repository_id, status
        on conflict (repository_id, status) do update set bytes = counter.bytes + excluded.bytes;
    else
        insert into arkvory_upload_bytes as counter (repository_id, status, bytes)
        select repository_id, status, sum(bytes) from (
            select repository_id, status, bytes from arrived where status <> 'released'
            union all
            select repository_id, status, -bytes from gone where status <> 'released'
        ) as moved
        group by repository_id, status having sum(bytes) <> 0 order by repository_id, status
        on conflict (repository_id, status) do update set bytes = counter.bytes + excluded.bytes;
    end if;
    return null;
end
$$
"""


def upgrade() -> None:
    op.execute("lock table arkvory_uploads in share row exclusive mode")
    op.create_table(
        "arkvory_upload_bytes",
        sa.Column("repository_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("repository_id", "status", name=op.f("pk_arkvory_upload_bytes")),
    )
    op.execute(
        "insert into arkvory_upload_bytes (repository_id, status, bytes) "
        "select repository_id, status, sum(bytes) from arkvory_uploads where status <> 'released' "
        "group by repository_id, status"
    )
    op.execute(FUNCTION)
    for event, tables in (
        ("insert", "new table as arrived"),
        ("update", "old table as gone new table as arrived"),
        ("delete", "old table as gone"),
    ):
        op.execute(
            f"create trigger arkvory_count_upload_bytes_{event} after {event} on arkvory_uploads "
            f"referencing {tables} for each statement execute function arkvory_count_upload_bytes()"
        )
    op.execute(
        "create trigger arkvory_count_upload_bytes_truncate after truncate on arkvory_uploads "
        "for each statement execute function arkvory_count_upload_bytes()"
    )


def downgrade() -> None:
    for event in ("insert", "update", "delete", "truncate"):
        op.execute(f"drop trigger arkvory_count_upload_bytes_{event} on arkvory_uploads")
    op.execute("drop function arkvory_count_upload_bytes()")
    op.drop_table("arkvory_upload_bytes")
