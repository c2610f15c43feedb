"""Pins: on a shared file system cleanup spares what is being downloaded, and a lost pin session stops its answers (W3, DESIGN 5)."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import gevent
import pytest

from app.cluster import pins
from app.cluster.pins import Pins
from app.database import writelocks
from app.database.sessions import require_sessions
from app.errors import PinLost
from app.repository.reading import Ask
from app.storage import OpenBlob, mounts
from config.settings import SettingError, Settings
from tests.cluster.conftest import Clock, MakeMember
from tests.conftest import MakeHouse, MakePause
from tests.support.house import ADMIN, House, eventually

AGE = 0.05


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """By which downloads grow old: when a test lets it, so that none is too old to be pinned because the machine stood still."""
    made = Clock(pins.now)
    made.stand_still()
    monkeypatch.setattr(pins, "now", made)
    return made


@pytest.fixture
def reader(make_house: MakeHouse, clock: Clock) -> House:
    """A process that pins, over the storage of another one, which cleans up."""
    return make_house(owns=False, ARKVORY_PINS="on", ARKVORY_PIN_SECONDS=str(AGE))


@pytest.fixture
def cleaner(house: House) -> House:
    house.repository("files", public=True)
    return house


def pins_of(house: House) -> Pins:
    assert house.parts.pins is not None
    return house.parts.pins


def begin_download(house: House, path: str = "a") -> OpenBlob:
    """Of a file as its answer sends it; as old as one that has to be pinned."""
    ask = Ask("raw", "files", path, ADMIN)
    blob = house.parts.reader.open_blob(ask, house.parts.reader.find(ask))[1]
    grow_old(1.2 * AGE)
    return blob


def grow_old(seconds: float) -> None:
    assert isinstance(pins.now, Clock)
    pins.now.let(seconds)


def check(blob: OpenBlob) -> None:
    """What is done before each piece."""
    assert blob.check is not None
    blob.check()


def stopped(blob: OpenBlob) -> bool:
    try:
        check(blob)
    except PinLost:
        return True
    return False


def replace(cleaner: House, path: str = "a") -> None:
    cleaner.publish(path, b"newer")
    gevent.sleep(2 * AGE)


def names(house: House) -> int:
    return sum(1 for _ in house.files())


def break_pin_session(house: House) -> None:
    """As soon as there is one."""
    statement = (
        "select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and classid = 18474 and granted "
        "and database = (select oid from pg_database where datname = current_database())"
    )
    eventually(lambda: house.rows(statement))


def linger_no_more(house: House) -> None:
    """The ten seconds after a session's last sign of life have passed."""
    house.rows("update arkvory_pin_sessions set seen_at = seen_at - interval '11 s'")


def test_w3_cleanup_deletes_no_pinned_blob_and_takes_it_once_the_download_has_ended(cleaner: House, reader: House) -> None:
    cleaner.publish("a", b"old")
    blob = begin_download(reader)
    pins_of(reader).pin()
    replace(cleaner)
    linger_no_more(cleaner)
    for _ in range(3):
        cleaner.clean()
        assert (names(cleaner), pins_of(reader).count) == (2, 1)
    check(blob)
    blob.close()
    pins_of(reader).pin()
    cleaner.clean()
    assert (names(cleaner), pins_of(reader).count) == (1, 0)
    assert cleaner.value("select count(*) from arkvory_pin_sessions") == 0
    cleaner.assert_nothing_is_left()


def test_a_young_download_needs_no_pin_and_one_that_could_not_be_pinned_in_time_is_stopped(cleaner: House, reader: House) -> None:
    """The grace, which is never shorter than that, covers the young one: no session is opened for it."""
    cleaner.publish("a", b"old")
    ask = Ask("raw", "files", "a", ADMIN)
    blob = reader.parts.reader.open_blob(ask, reader.parts.reader.find(ask))[1]
    pins_of(reader).pin()
    check(blob)
    assert reader.parts.database.session.connections == 0
    grow_old(2.1 * AGE)
    assert stopped(blob)
    assert pins_of(reader).stopped == 1


def test_on_a_shared_file_system_no_grace_is_shorter_than_the_time_without_a_pin(reader: House, make_house: MakeHouse) -> None:
    assert reader.parts.cleanup._blob_grace == 2 * AGE
    others = make_house(
        owns=False, ARKVORY_PINS="on", ARKVORY_DEPLOYMENT="cluster", ARKVORY_INSTANCE_ID="a", ARKVORY_UNSYNCED_READS_SECONDS="600"
    )
    assert others.parts.cleanup._blob_grace == 2 * 60 + 600


def test_a_lost_session_stops_its_answers_before_cleanup_takes_what_they_read(
    cleaner: House, reader: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows count for longer than its process believes in them."""
    # Also how long a statement of the session may take.
    monkeypatch.setattr(writelocks, "CHECK_SECONDS", 1.0)
    cleaner.publish("a", b"old")
    blob, other = begin_download(reader), begin_download(reader)
    pins_of(reader).pin()
    replace(cleaner)
    break_pin_session(cleaner)
    cleaner.clean()
    assert names(cleaner) == 2, "it lingers"
    eventually(lambda: stopped(blob))
    assert stopped(other)
    assert writelocks.OLDEST_CHECK_SECONDS + writelocks.CHECK_SECONDS < pins.LINGER_SECONDS
    linger_no_more(cleaner)
    cleaner.clean()
    assert names(cleaner) == 1


def test_after_a_lost_session_the_next_downloads_are_pinned_by_a_new_one(
    cleaner: House, reader: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Also how long a statement of the session may take.
    monkeypatch.setattr(writelocks, "CHECK_SECONDS", 1.0)
    cleaner.publish("a", b"old")
    lost = begin_download(reader)
    pins_of(reader).pin()
    break_pin_session(cleaner)
    eventually(lambda: stopped(lost))
    later = begin_download(reader)
    pins_of(reader).pin()
    check(later)
    assert stopped(lost), "what was stopped stays so"
    assert pins_of(reader).count == 1


def test_a_process_that_stood_still_asks_before_it_sends_more(cleaner: House, reader: House, monkeypatch: pytest.MonkeyPatch) -> None:
    cleaner.publish("a", b"old")
    blob = begin_download(reader)
    pins_of(reader).pin()
    monkeypatch.setattr(writelocks, "OLDEST_CHECK_SECONDS", -1.0)
    check(blob)
    cleaner.rows("delete from arkvory_pin_sessions")
    assert stopped(blob), "another process took this one for dead"


def test_a_cleanup_that_has_decided_is_told_to_the_download_that_comes_to_pin(cleaner: House, reader: House, pause: MakePause) -> None:
    """Whoever has the blob's row first: here the cleanup, between its decision and the unlinking."""
    cleaner.publish("a", b"old")
    blob = begin_download(reader)
    replace(cleaner)
    deciding = pause(cleaner.parts.blobs, "finish_deleting", before=True)
    cleaning = gevent.spawn(cleaner.parts.cleanup.run)
    deciding.reached()
    pins_of(reader).pin()
    assert stopped(blob)
    deciding.go()
    cleaning.get(timeout=10)
    assert names(cleaner) == 1


def test_a_pin_that_meets_the_lock_of_a_cleanup_does_not_wait_and_comes_again(cleaner: House, reader: House, pause: MakePause) -> None:
    """And here the cleanup looked before the pin was there, under the row's lock: it has decided, and the pin's next try is told."""
    cleaner.publish("a", b"old")
    blob = begin_download(reader)
    replace(cleaner)
    looking = pause(pins, "is_pinned")
    cleaning = gevent.spawn(cleaner.parts.cleanup.run)
    looking.reached()
    pins_of(reader).pin()
    assert pins_of(reader).count == 0
    looking.go()
    cleaning.get(timeout=10)
    pins_of(reader).pin()
    assert stopped(blob)


def test_pins_of_a_process_that_died_count_no_more_and_go(cleaner: House, reader: House) -> None:
    cleaner.publish("a", b"old")
    begin_download(reader)
    pins_of(reader).pin()
    replace(cleaner)
    break_pin_session(cleaner)
    linger_no_more(cleaner)
    cleaner.clean()
    assert names(cleaner) == 1
    assert cleaner.value("select count(*) from arkvory_pins") == 1
    cleaner.rows("update arkvory_pin_sessions set seen_at = seen_at - interval '60 s'")
    cleaner.clean()
    assert cleaner.rows("select blob_id from arkvory_pins union all select id from arkvory_pin_sessions") == []


def test_the_smallest_session_pool_has_room_for_pins_too(make_member: MakeMember, clock: Clock) -> None:
    """Beside the ownership and the loop; and for whoever tries it out (DESIGN 2)."""
    with pytest.raises(SettingError, match="at least 4"):
        Settings.from_environment({"ARKVORY_SESSION_POOL_SIZE": "3"})
    house = make_member(ARKVORY_SESSION_POOL_SIZE="4", ARKVORY_PINS="on", ARKVORY_PIN_SECONDS=str(AGE))
    house.repository("files", public=True)
    house.publish("a", b"x")
    blob = begin_download(house)
    pins_of(house).pin()
    assert pins_of(house).count == 1
    require_sessions(house.parts.database.session.engine)
    blob.close()


def test_many_blobs_are_pinned_by_one_lock(cleaner: House, reader: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins, "AT_ONCE", 7)
    for number in range(20):
        cleaner.publish(f"{number}", b"%d" % number)
    blobs = [begin_download(reader, f"{number}") for number in range(20)] + [begin_download(reader, "3")]
    pins_of(reader).pin()
    assert pins_of(reader).count == cleaner.value("select count(*) from arkvory_pins") == 20
    assert cleaner.value("select count(*) from pg_locks where locktype = 'advisory' and classid = 18474") == 1
    for blob in blobs[:20]:
        blob.close()
    pins_of(reader).pin()
    assert cleaner.value("select count(*) from arkvory_pins") == 1, "somebody else still reads it"


@pytest.mark.parametrize(("kind", "shared"), [("ext4", False), ("nfs4", True), ("cifs", True), ("fuse.glusterfs", True), ("ceph", True)])
def test_whether_other_machines_may_delete_is_told_by_the_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, shared: bool
) -> None:
    table = tmp_path / "mounts"
    table.write_text(f"/dev/vda / ext4 rw 0 0\nnas:/x {tmp_path}/blobs {kind} rw 0 0\n")
    monkeypatch.setattr(mounts, "MOUNTS", table)
    assert mounts.is_shared(tmp_path / "blobs") == shared
    assert not mounts.is_shared(tmp_path)


class Town:
    """One process that does everything at once; `seen` counts what came about."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.dice = random.Random(7)
        self.paths = [f"p{number}" for number in range(4)]
        self.seen = {"pieces": 0, "stopped": 0, "spared": 0}

    def download(self) -> None:
        parts = self.house.parts
        ask = Ask("raw", "files", self.dice.choice(self.paths), ADMIN)
        found, blob = parts.reader.open_blob(ask, parts.reader.find(ask))
        file = next(self.house.folder.glob(f"blobs/sha256/*/*/*-{found.gate.blob_id}"))
        for _ in range(self.dice.randrange(1, 60)):
            gevent.sleep(self.dice.random() * 0.05)
            if stopped(blob):
                self.seen["stopped"] += 1
                break
            assert file.exists(), "a piece of a file that was deleted"
            self.seen["pieces"] += 1
        blob.close()

    def replace(self) -> None:
        self.house.publish(self.dice.choice(self.paths), self.dice.randbytes(8))
        gevent.sleep(self.dice.random() * 0.02)

    def clean(self) -> None:
        self.house.parts.cleanup.run()
        self.seen["spared"] += pins_of(self.house).count
        gevent.sleep(0.01)


def always(act: Callable[[], None]) -> None:
    while True:
        act()


def test_w3_whatever_comes_when_no_piece_is_sent_of_a_file_that_was_deleted(make_house: MakeHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Downloads of all ages, files that are replaced all the time, a cleanup without a pause, and pin sessions that break."""
    monkeypatch.setattr(writelocks, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr(writelocks, "OLDEST_CHECK_SECONDS", 0.2)
    monkeypatch.setattr(pins, "LINGER_SECONDS", 0.6)
    house = make_house(ARKVORY_PINS="on", ARKVORY_PIN_SECONDS=str(AGE))
    house.repository("files", public=True)
    town = Town(house)
    for path in town.paths:
        house.publish(path, b"first")
    pins_of(house).start()
    running = [gevent.spawn(always, act) for act in (*[town.download] * 12, town.replace, town.clean)]
    for _ in range(3):
        gevent.sleep(1)
        break_pin_session(house)
        assert [each.exception for each in running if each.ready()] == []
    # All of it came about.
    eventually(lambda: min(town.seen.values()) > 0, 60)
    assert [each.exception for each in running if each.ready()] == []
    gevent.killall(running)
