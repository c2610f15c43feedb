"""Migrations: up, down and up again, two at once, equal to the models; 0002 counts under writers (DESIGN 5, Counters)."""

from __future__ import annotations

import contextlib
import uuid

import gevent
import psycopg2
import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.pool import NullPool

from app.database import migrate, pools
from tests.support.house import eventually
from tests.support.migrations_check import differences


def rows(url: str, statement: str) -> list[tuple[object, ...]]:
    with create_engine(url, poolclass=NullPool).connect() as connection:
        return [tuple(row) for row in connection.execute(text(statement))]


def tables(url: str) -> set[object]:
    return {row[0] for row in rows(url, "select table_name from information_schema.tables where table_name like 'arkvory%'")}


def test_the_migrations_lead_to_exactly_the_tables_of_the_models(database_url: str) -> None:
    assert differences(database_url) == []


def test_up_down_and_up_again_leaves_the_same_tables(empty_database_url: str) -> None:
    migrate.upgrade(empty_database_url)
    assert migrate.state(empty_database_url)[0] == migrate.state(empty_database_url)[1]
    there = tables(empty_database_url)
    migrate.downgrade(empty_database_url, "base")
    assert tables(empty_database_url) == set()
    assert rows(empty_database_url, "select proname from pg_proc where proname like 'arkvory%'") == []
    migrate.upgrade(empty_database_url)
    assert tables(empty_database_url) == there
    assert differences(empty_database_url) == []


def test_several_upgrades_at_once_take_turns(empty_database_url: str) -> None:
    gevent.joinall([gevent.spawn(migrate.upgrade, empty_database_url) for _ in range(3)], raise_error=True)
    assert differences(empty_database_url) == []


def test_an_upgrade_waits_longer_for_another_one_than_a_statement_of_a_request_may_take(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools._limit, "seconds", 0.3)
    other = psycopg2.connect(make_url(empty_database_url).set(drivername="postgresql").render_as_string(hide_password=False))
    with contextlib.closing(other), other.cursor() as cursor:
        cursor.execute("select pg_advisory_lock(18471, 3)")
        upgrade = gevent.spawn(migrate.upgrade, empty_database_url)
        gevent.sleep(0.8)
        assert not upgrade.ready()
        cursor.execute("select pg_advisory_unlock(18471, 3)")
        upgrade.get(timeout=30)
    assert differences(empty_database_url) == []


@pytest.mark.parametrize(("revision", "counted"), [("0002", "bytes"), ("0023", "uploads")])
def test_every_upload_is_counted_while_others_write(empty_database_url: str, revision: str, counted: str) -> None:
    migrate.upgrade(empty_database_url, f"{int(revision) - 1:04}")
    engine = create_engine(empty_database_url, pool_size=6)
    stop, counts = False, [0, 0, 0, 0]

    def write(writer: int) -> None:
        number = writer % 2
        while not stop:
            with engine.begin() as connection:
                upload = str(uuid.uuid4())
                connection.execute(
                    text(
                        "insert into arkvory_uploads (id, repository_id, status, bytes) "
                        "values (cast(:id as uuid), :repository, 'open', 10)"
                    ),
                    {"id": upload, "repository": number},
                )
                gevent.sleep(0.001)
                connection.execute(
                    text("update arkvory_uploads set status = 'published', bytes = 7 where id = cast(:id as uuid)"), {"id": upload}
                )
            counts[writer] += 1

    def wait_for_more() -> None:
        before = list(counts)
        eventually(lambda: all(now > then + 2 for now, then in zip(counts, before, strict=True)))

    writers = [gevent.spawn(write, number) for number in range(4)]
    wait_for_more()
    migrate.upgrade(empty_database_url, revision)
    wait_for_more()
    stop = True
    gevent.joinall(writers, raise_error=True)
    engine.dispose()
    counters = rows(
        empty_database_url, f"select repository_id, status, {counted} from arkvory_upload_bytes where {counted} <> 0 order by 1, 2"
    )
    summed = "sum(bytes)::bigint" if counted == "bytes" else "count(*)"
    assert counters == rows(empty_database_url, f"select repository_id, status, {summed} from arkvory_uploads group by 1, 2 order by 1, 2")


def test_0002_waits_for_a_transaction_that_has_written_and_not_ended(empty_database_url: str) -> None:
    migrate.upgrade(empty_database_url, "0001")
    engine = create_engine(empty_database_url, poolclass=NullPool)
    with engine.connect() as writer:
        writer.execute(
            text("insert into arkvory_uploads (id, repository_id, status, bytes) values (gen_random_uuid(), 1, 'published', 10)")
        )
        upgrade = gevent.spawn(migrate.upgrade, empty_database_url, "0002")
        gevent.sleep(0.3)
        assert not upgrade.ready()
        writer.commit()
    upgrade.get(timeout=20)
    assert rows(empty_database_url, "select repository_id, status, bytes::bigint from arkvory_upload_bytes") == [(1, "published", 10)]
