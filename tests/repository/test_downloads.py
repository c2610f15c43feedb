"""Downloads are counted in memory and written in batches: all of them once, whatever else happens to the rows at that moment."""

from __future__ import annotations

import gevent
import pytest
from sqlalchemy import Connection

from app.errors import DatabaseAway
from app.repository import downloads
from app.repository.downloads import Downloads
from tests.conftest import MakeHouse, MakePause
from tests.support.house import ADMIN, House


def counted(house: House, path: str, repository: str = "files") -> int:
    return house.parts.listing.artifact(ADMIN, repository, path).downloads


def in_all(house: House, repository: str = "files") -> int:
    return house.parts.listing.usage(ADMIN, repository).downloads


def note(house: House, repository_id: int, path: str, times: int = 1) -> None:
    for _ in range(times):
        house.parts.downloads.note(repository_id, path)


def test_counts_of_several_processes_add_up_and_the_last_time_is_kept(house: House, make_house: MakeHouse) -> None:
    other = make_house(owns=False)
    number = house.repository()
    for path in ("a", "b"):
        house.publish(path, path.encode())
    before = house.parts.database.statements()
    note(house, number, "a", 3)
    note(house, number, "b")
    assert house.parts.database.statements() == before, "no SQL on the way of an answer"
    note(other, number, "a", 2)
    for each in (house, other):
        each.parts.downloads.flush()
    assert (counted(house, "a"), counted(house, "b"), in_all(house)) == (5, 1, 6)
    last = house.parts.listing.artifact(ADMIN, "files", "a").last_downloaded_at
    note(house, number, "a")
    house.parts.downloads.flush()
    again = house.parts.listing.artifact(ADMIN, "files", "a")
    assert again.downloads == 6 and last is not None and again.last_downloaded_at is not None and again.last_downloaded_at > last
    assert house.parts.listing.usage(ADMIN, "files").last_downloaded_at is not None


def test_what_was_replaced_goes_on_counting_and_what_was_deleted_begins_anew(house: House) -> None:
    number = house.repository()
    house.publish("a", b"1")
    note(house, number, "a")
    house.parts.downloads.flush()
    house.publish("a", b"2")
    assert counted(house, "a") == 1
    note(house, number, "a")
    house.delete("a")
    house.parts.downloads.flush()
    assert (in_all(house), house.value("select count(*) from arkvory_downloads")) == (2, 0)
    house.publish("a", b"3")
    assert counted(house, "a") == 0


def test_counting_moves_no_epoch_and_changes_no_row_of_an_artifact(house: House) -> None:
    number = house.repository()
    house.publish("a", b"1")
    before = house.epochs(), house.value("select xmin::text || ctid::text from arkvory_artifacts")
    note(house, number, "a")
    house.parts.downloads.flush()
    assert (house.epochs(), house.value("select xmin::text || ctid::text from arkvory_artifacts")) == before


@pytest.mark.parametrize("known", [True, False])
def test_whoever_is_changing_an_artifact_is_not_waited_for_and_its_downloads_are_counted_later(house: House, known: bool) -> None:
    """A batch holds rows in the order of their ids, whoever deletes in another: were it to wait, both would wait for ever."""
    number = house.repository()
    for path in ("a", "b"):
        house.publish(path, b"1")
    if known:
        note(house, number, "a"), note(house, number, "b")
        house.parts.downloads.flush()
    before = int(known)
    note(house, number, "a"), note(house, number, "b")
    with house.parts.database.write() as deleting:
        table = "arkvory_downloads where artifact_id = (select id from arkvory_artifacts where path = 'b')"
        rows = table if known else "arkvory_artifacts where path = 'b'"
        deleting.exec_driver_sql(f"select 1 from {rows} for update")
        with gevent.Timeout(5):
            house.parts.downloads.flush()
        assert (counted(house, "a"), counted(house, "b"), in_all(house)) == (before + 1, before, 2 * before + 1)
    house.parts.downloads.flush()
    assert (counted(house, "b"), in_all(house)) == (before + 1, 2 * before + 2)


def test_what_could_not_be_written_is_noted_still_and_what_may_have_been_written_is_not_written_twice(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = house.repository()
    house.publish("a", b"1")
    note(house, number, "a", 2)
    with monkeypatch.context() as patch:
        patch.setattr(downloads, "_add", _away)
        with pytest.raises(DatabaseAway):
            house.parts.downloads.flush()
    note(house, number, "a")
    house.parts.downloads.flush()
    assert counted(house, "a") == 3
    note(house, number, "a")
    with monkeypatch.context() as patch:
        commit = Connection.commit

        def lost(connection: Connection) -> None:
            commit(connection)
            raise DatabaseAway("the answer was lost")

        patch.setattr(Connection, "commit", lost)
        house.parts.downloads.flush()
    house.parts.downloads.flush()
    assert counted(house, "a") == 4


def _away(connection: Connection, batch: object) -> object:
    raise DatabaseAway("gone")


def test_memory_is_bounded_however_long_the_database_is_away(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "MOST", 3)
    monkeypatch.setattr(downloads, "EARLY", 100)
    counting = Downloads(house.parts.database)
    number = house.repository()
    for path in "abcde":
        counting.note(number, path)
        counting.note(number, path)
    assert (len(counting._noted), counting.dropped) == (3, 4)


def test_many_paths_are_written_sooner(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "EARLY", 3)
    monkeypatch.setattr(downloads, "BATCH", 2)
    number = house.repository()
    for path in "abc":
        house.publish(path, b"1")
        note(house, number, path)
    gevent.sleep(0)
    with gevent.Timeout(5):
        while in_all(house) < 3:
            gevent.sleep(0.02)
    assert [counted(house, path) for path in "abc"] == [1, 1, 1]


def test_two_processes_that_write_the_same_first_downloads_at_once_count_both(
    house: House, make_house: MakeHouse, pause: MakePause
) -> None:
    other = make_house(owns=False)
    number = house.repository()
    for path in "abc":
        house.publish(path, b"1")
        note(house, number, path)
        note(other, number, path)
    writing = [gevent.spawn(each.parts.downloads.flush) for each in (house, other)]
    gevent.joinall(writing, timeout=10, raise_error=True)
    for each in (house, other):
        each.parts.downloads.flush()
    assert [counted(house, path) for path in "abc"] == [2, 2, 2]
    assert in_all(house) == 6


def test_a_deleted_repository_takes_its_counts_along(house: House) -> None:
    number = house.repository()
    house.publish("a", b"1")
    note(house, number, "a")
    house.parts.downloads.flush()
    house.registry.delete(ADMIN, "files")
    note(house, number, "a")
    house.clean()
    house.parts.downloads.flush()
    house.clean()
    assert house.value("select (select count(*) from arkvory_downloads) + (select count(*) from arkvory_repository_downloads)") == 0
