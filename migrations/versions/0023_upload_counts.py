"""counters of uploads beside those of their bytes

A published upload is an artifact, so how many a repository has is read from the counter. The uploads are locked against writers while
they are counted once, as when the counters were made; old code does not read the new column, and its changes are counted by the trigger.
"""

from __future__ import annotations

from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

# As before: sums by key, skips what comes to nothing, and updates in the order of the key.
COUNTED = """
create or replace function arkvory_count_upload_bytes() returns trigger language plpgsql as $$
begin
    if tg_op = 'TRUNCATE' then
        delete from arkvory_upload_bytes;
    elsif tg_op = 'INSERT' then
        insert into arkvory_upload_bytes as counter (repository_id, status, bytes, uploads)
        select repository_id, status, sum(bytes), count(*) from arrived where status <> 'released'
        group by repository_id, status order by repository_id, status
        on conflict (repository_id, status) do update
        set bytes = counter.bytes + excluded.bytes, uploads = counter.uploads + excluded.uploads;
    elsif tg_op = 'DELETE' then
        insert into arkvory_upload_bytes as counter (repository_id, status, bytes, uploads)
        select repository_id, status, -sum(bytes), -count(*) from gone where status <> 'released'
        group by repository_id, status order by repository_id, status
        on conflict (repository_id, status) do update
        set bytes = counter.bytes + excluded.bytes, uploads = counter.uploads + excluded.uploads;
    else
        insert into arkvory_upload_bytes as counter (repository_id, status, bytes, uploads)
        select repository_id, status, sum(bytes), sum(uploads) from (
            select repository_id, status, bytes, 1 as uploads from arrived where status <> 'released'
            union all
            select repository_id, status, -bytes, -1 from gone where status <> 'released'
        ) as moved
        group by repository_id, status having sum(bytes) <> 0 or sum(uploads) <> 0 order by repository_id, status
        on conflict (repository_id, status) do update
        set bytes = counter.bytes + excluded.bytes, uploads = counter.uploads + excluded.uploads;
    end if;
    return null;
end
$$
"""
BYTES_ALONE = """
create or replace function arkvory_count_upload_bytes() returns trigger language plpgsql as $$
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
    op.execute(
        "insert into arkvory_upload_bytes as counter (repository_id, status, bytes, uploads) "
        "select repository_id, status, 0, count(*) from arkvory_uploads where status <> 'released' "
        "group by repository_id, status order by repository_id, status "
        "on conflict (repository_id, status) do update set uploads = excluded.uploads"
    )
    op.execute(COUNTED)


def downgrade() -> None:
    op.execute("lock table arkvory_uploads in share row exclusive mode")
    op.execute(BYTES_ALONE)
    op.execute("update arkvory_upload_bytes set uploads = 0")
