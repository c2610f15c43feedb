"""DESIGN 2: who waits for a lock of the database waits in memory, but for a few; and for no longer than it may."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import gevent
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from app.database.locks import ADMISSION, INSTALLATION_CLASS, REPOSITORY_CLASS, repository_lock
from app.database.turns import RepositoryTurns
from app.errors import Unavailable
from app.upload import admission
from tests.conftest import MakeHouse
from tests.support import pace
from tests.support.house import House, eventually

REPOSITORIES = 6
WAITING = (
    "select objid from pg_locks where locktype = 'advisory' and not granted and classid = :c "
    "and database = (select oid from pg_database where datname = current_database())"
)


def repositories(house: House) -> list[int]:
    return [house.repository(f"r{number}") for number in range(REPOSITORIES)]


@contextmanager
def taken_elsewhere(house: House, ids: Sequence[int]) -> Iterator[None]:
    """The locks of these repositories, and the global one, are another process's meanwhile."""
    with create_engine(house.url, poolclass=NullPool).connect() as other:
        for lock in (ADMISSION, *map(repository_lock, ids)):
            other.execute(text("select pg_advisory_xact_lock(:c, :o)"), dict(zip("co", lock, strict=True)))
        yield
        other.rollback()


def change(house: House, repository_id: int) -> None:
    with house.parts.transactions.begin(repository_id):
        pass


def admit(house: House) -> None:
    with house.parts.admission.locked():
        pass


def waiting(house: House, lock_class: int) -> list[int]:
    return [row.objid for row in house.rows(WAITING, c=lock_class)]


def test_four_connections_wait_for_repositories_one_for_each_and_one_for_the_global_lock(house: House) -> None:
    ids = repositories(house)
    pool = house.parts.database.request
    with taken_elsewhere(house, ids):
        crowd = [gevent.spawn(change, house, each) for each in ids * 3] + [gevent.spawn(admit, house) for _ in range(5)]
        eventually(lambda: len(waiting(house, REPOSITORY_CLASS)) == 4 and waiting(house, INSTALLATION_CLASS))
        gevent.sleep(0.3)
        assert len(set(waiting(house, REPOSITORY_CLASS))) == 4
        assert waiting(house, INSTALLATION_CLASS) == [ADMISSION[1]]
        assert (pool.connections - pool.idle, pool.waiting) == (5, 0), "who waits in memory has no connection, and asks for none"
    gevent.joinall(crowd, timeout=20, raise_error=True)
    assert all(each.successful() for each in crowd)


def test_nobody_waits_in_memory_for_longer_than_it_may(make_house: MakeHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has the turn may itself have to wait, one after the other, for a database that says nothing."""
    monkeypatch.setattr(admission, "TURN_SECONDS", 0.3)
    house = make_house()
    house.parts.transactions.turns = RepositoryTurns(0.3)
    ids = repositories(house)
    with taken_elsewhere(house, ids), ExitStack() as ended:
        first = [gevent.spawn(change, house, each) for each in ids[:4]] + [gevent.spawn(admit, house)]
        ended.callback(gevent.killall, first)
        eventually(lambda: len(waiting(house, REPOSITORY_CLASS)) == 4 and waiting(house, INSTALLATION_CLASS))
        began = pace.now()
        # Behind one of the four, where there is no slot left, and behind who is admitted.
        late = [gevent.spawn(change, house, each) for each in (ids[0], ids[5])] + [gevent.spawn(admit, house) for _ in range(3)]
        gevent.joinall(late, timeout=30)
        assert [type(each.exception) for each in late] == [Unavailable] * 5
        assert pace.within(2, began)
