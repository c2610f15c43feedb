"""Publishing: one order, all or nothing, and never a byte lost to the cleanup (W1 to W4)."""

from __future__ import annotations

import os
import time
from typing import Any

import gevent
import pytest
from sqlalchemy import text

from app.errors import AlreadyExists, ArkvoryError, NotFound, PreconditionFailed, UploadGivenUp
from app.repository.publishing import Conditions, NewFile, Target
from app.repository.reading import Ask
from app.upload.receiving import Expected, Receiver
from tests.conftest import MakeHouse, MakePause
from tests.support.house import ADMIN, House, sha256


@pytest.fixture
def files(house: House) -> int:
    return house.repository(public=True)


def test_w2_two_publishes_of_one_path_leave_one_of_them_whole_and_the_other_as_garbage(make_house: MakeHouse) -> None:
    house = make_house(ARKVORY_BLOB_GRACE_SECONDS="3600")
    files = house.repository()
    bodies = [bytes([65 + number]) * 100_000 for number in range(4)]
    results = [gevent.spawn(house.publish, "a", body) for body in bodies]
    gevent.joinall(results, raise_error=True)
    assert sum(each.get().created for each in results) == 1
    assert house.read("a") in bodies
    assert house.counters() == {(files, "published"): 100_000, (files, "garbage"): 300_000}
    house.assert_counted()
    house.assert_published_is_there()


def test_w2_a_reader_never_sees_a_mix_nor_a_gap_while_a_path_is_overwritten(house: House, files: int) -> None:
    house.publish("a", b"0" * 50_000)
    stop = gevent.event.Event()

    def overwrite() -> None:
        for number in range(1, 25):
            house.publish("a", str(number % 10).encode() * (50_000 + number))
        stop.set()

    def read() -> int:
        count = 0
        while not stop.is_set():
            body = house.read("a")
            assert len(set(body)) == 1
            count += 1
            gevent.sleep(0.002)
        return count

    def clean() -> None:
        while not stop.is_set():
            house.clean()
            gevent.sleep(0.01)

    work = [gevent.spawn(each) for each in (overwrite, read, read, clean)]
    gevent.joinall(work, raise_error=True)
    assert work[1].get() > 10


def test_w2_who_opened_the_old_bytes_reads_them_to_the_end_after_they_left_the_disk(house: House, files: int) -> None:
    house.publish("a", b"old" * 10_000)
    ask = Ask("raw", "files", "a", ADMIN)
    found, blob = house.parts.reader.open_blob(ask, house.parts.reader.find(ask))
    house.publish("a", b"new")
    gevent.sleep(0.01)
    house.clean()
    assert [path.stat().st_size for path in house.files()] == [3]
    assert os.read(blob.fd, 100_000) == b"old" * 10_000
    blob.close()
    # Its gate may still be held by a request that has not opened the file yet.
    again, blob = house.parts.reader.open_blob(ask, found)
    assert os.read(blob.fd, 10) == b"new"
    assert again.gate.digest == sha256(b"new")
    blob.close()


def test_w3_hundreds_of_publishes_race_the_cleanup_of_the_same_blobs_and_lose_no_byte(house: House, files: int) -> None:
    """With a grace of nearly nothing, on paths that come and go."""
    finished = gevent.event.Event()

    def come_and_go(name: str) -> None:
        for number in range(25):
            body = f"shared {number % 2}".encode()
            house.publish(name, body)
            assert house.read(name) == body
            if number % 3:
                house.delete(name)

    def clean() -> int:
        rounds = 0
        while not finished.is_set():
            house.clean()
            rounds += 1
            gevent.sleep(0)
        return rounds

    cleaners = [gevent.spawn(clean) for _ in range(2)]
    gevent.joinall([gevent.spawn(come_and_go, f"f{number}") for number in range(6)], raise_error=True)
    finished.set()
    gevent.joinall(cleaners, raise_error=True)
    assert sum(each.get() for each in cleaners) > 20
    gevent.sleep(0.01)
    house.clean()
    house.assert_counted()
    house.assert_published_is_there()
    house.assert_no_strays()
    for number in range(6):
        house.outcome(f"f{number}")


def test_w3_a_cleanup_does_what_was_due_and_ends_however_much_falls_due_meanwhile(house: House) -> None:
    house.repository()
    house.publish("a", b"at first")
    batches: list[int] = []

    def meanwhile() -> None:
        """An overwrite before each batch, past its grace before the next one."""
        batches.append(len(batches))
        assert len(batches) < 60, "it comes to no end"
        house.publish("a", f"overwritten {len(batches)} times".encode())
        gevent.sleep(0.005)

    for _ in range(2):
        house.parts.cleanup.run(meanwhile)
    gevent.sleep(0.01)
    house.assert_nothing_is_left()


@pytest.mark.parametrize("step", ["row", "address", "file"])
def test_w3_cleanup_leaves_alone_what_is_being_placed_however_long_it_takes(
    house: House, files: int, pause: MakePause, step: str
) -> None:
    """`row`: the file is still to come to its address; `address`: the same for the row of a blob that nothing refers to."""
    if step == "address":
        house.publish("a", b"precious")
        house.delete("a")
        gevent.sleep(0.01)
    stopped = pause(house.parts.publisher, "_publish", before=True) if step == "file" else pause(house.parts.blobs, "_make_or_find")
    publishing = gevent.spawn(house.publish, "b", b"precious")
    stopped.reached()
    gevent.sleep(0.01)
    house.clean()
    assert house.value("select count(*) from arkvory_blobs") == 1
    stopped.go()
    publishing.get(timeout=10)
    assert house.read("b") == b"precious"
    house.assert_no_strays()


@pytest.mark.parametrize("moment", ["row", "file"])
def test_w1_w3_a_publisher_that_was_given_up_and_goes_on_leaves_no_file_without_a_row(
    house: House, files: int, pause: MakePause, moment: str
) -> None:
    """As after a long suspension: its lease ran out, others cleaned up after it, and it may end at any moment from then on."""
    stopped = pause(house.parts.publisher, "_publish", before=True) if moment == "file" else pause(house.parts.blobs, "_make_or_find")
    publishing = gevent.spawn(house.publish, "a", b"precious")
    stopped.reached()
    house.parts.admission.open_uploads.clear()
    house.rows("update arkvory_uploads set lease_until = now() - interval '1 s'")
    gevent.sleep(0.01)
    house.clean()
    assert house.value("select count(*) from arkvory_blobs") == 0
    # Nothing tidies up after it: what it does from here on is all that there is.
    house.parts.blobs.finish_deleting = house.parts.store.remove = None  # type: ignore[assignment, method-assign]
    stopped.go()
    with pytest.raises(UploadGivenUp):
        publishing.get(timeout=10)
    assert house.outcome("a") == "not_found"
    house.assert_counted()
    house.assert_no_strays()


def test_w3_a_blob_found_and_left_by_a_publisher_keeps_its_grace(make_house: MakeHouse, pause: MakePause) -> None:
    """Cleanup read the row, then somebody touched it and went: what was read no longer says that nobody needs it."""
    house = make_house()
    house.repository()
    house.publish("a", b"precious")
    house.delete("a")
    gevent.sleep(0.01)
    stopped = pause(house.parts.cleanup, "_mark_deleting", before=True)
    cleaning = gevent.spawn(house.clean)
    stopped.reached()
    used = house.value("update arkvory_blobs set last_used_at = last_used_at + interval '1 microsecond' returning id")
    stopped.go()
    cleaning.get(timeout=10)
    assert house.value("select id from arkvory_blobs where status = 'live'") == used


def test_w3_a_publisher_that_meets_a_dead_deletion_finishes_it(house: House, files: int) -> None:
    house.publish("a", b"precious")
    house.delete("a")
    first = house.value("update arkvory_blobs set status = 'deleting' returning id")
    house.publish("b", b"precious")
    assert house.value("select id from arkvory_blobs") > first
    assert house.read("b") == b"precious"
    house.assert_no_strays()


def test_w3_a_late_unlink_of_a_former_row_does_not_touch_its_successor_s_bytes(house: House, files: int, pause: MakePause) -> None:
    house.publish("a", b"precious")
    house.delete("a")
    gevent.sleep(0.01)
    stopped = pause(house.parts.blobs, "finish_deleting", before=True)
    cleaning = gevent.spawn(house.clean)
    stopped.reached()
    house.publish("b", b"precious")
    stopped.go()
    cleaning.get(timeout=10)
    assert house.read("b") == b"precious"
    house.assert_no_strays()


def test_w3_within_its_grace_an_unreferenced_blob_stays_and_using_it_renews_the_grace(make_house: MakeHouse) -> None:
    house = make_house(ARKVORY_BLOB_GRACE_SECONDS="100")
    house.repository()
    house.publish("a", b"kept")
    house.delete("a")
    house.clean()
    assert len(list(house.files())) == 1
    house.rows("update arkvory_blobs set candidate_at = now() - interval '200 s', last_used_at = now() - interval '50 s'")
    house.clean()
    assert len(list(house.files())) == 1
    house.rows("update arkvory_blobs set last_used_at = now() - interval '200 s'")
    house.clean()
    assert not list(house.files())


def test_w3_a_blob_that_a_publish_placed_and_never_published_goes_after_its_grace(house: House, files: int) -> None:
    with pytest.raises(PreconditionFailed):
        house.parts.publisher.commit(
            *_received(house, b"lost"), Conditions(if_match=frozenset({"other"})), None,
        )  # fmt: skip
    assert len(list(house.files())) == 1
    house.parts.admission.release(list(house.parts.admission.open_uploads))
    gevent.sleep(0.01)
    house.clean()
    house.assert_no_strays()
    assert not list(house.files())


def _received(house: House, body: bytes) -> tuple[Target, Any, list[NewFile]]:
    target = Target("raw", "files", ADMIN)
    with house.parts.publisher.begin(target, "a") as session:
        receiver = session.receiver(Expected())
        receiver.feed(body)
        file = NewFile("a", receiver.finish(), "text/plain")
        session._receivers.clear()
        session._reservations.clear()
    return target, session.snapshot, [file]


def test_w1_a_publish_of_several_files_is_seen_as_a_whole_or_not_at_all(house: House, files: int) -> None:
    house.change("files", settings={"write_policy": "once"})
    house.publish("b", b"there")
    with pytest.raises(AlreadyExists), house.parts.publisher.begin(Target("raw", "files", ADMIN), None) as session:
        session.publish([NewFile(path, session.store(path.encode()), "text/plain") for path in ("a", "b", "c")])
    assert [house.outcome(path) for path in ("a", "b", "c")] == ["not_found", b"there", "not_found"]
    house.assert_counted()
    house.assert_published_is_there()


def test_w1_only_what_is_committed_is_answered_as_success(house: House, files: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError("the answer that never was")

    monkeypatch.setattr(house.parts.transactions, "_commit", fail)
    with pytest.raises(OSError, match="never was"):
        house.publish("a", b"x")
    monkeypatch.undo()
    assert house.outcome("a") == "not_found"


@pytest.mark.parametrize("moment", ["_make_or_find", "place", "_publish", "finish"])
def test_w1_a_publisher_killed_at_any_step_leaves_nothing_that_counts(
    house: House, files: int, pause: MakePause, moment: str
) -> None:
    owners = {"_make_or_find": house.parts.blobs, "place": house.parts.blobs, "_publish": house.parts.publisher, "finish": Receiver}
    stopped = pause(owners[moment], moment)
    publishing = gevent.spawn(house.publish, "a", b"precious")
    stopped.reached()
    publishing.kill()
    gevent.sleep(0.01)
    house.clean()
    house.assert_counted()
    house.assert_published_is_there()
    house.assert_no_strays()
    assert house.parts.places.used == 0
    assert not house.parts.admission.open_uploads
    # The one whose publishing transaction was through is there, whole.
    assert house.outcome("a") == (b"precious" if moment == "_publish" else "not_found")


def test_w1_uploads_of_a_dead_process_are_released_when_their_lease_has_run_out_and_not_before(make_house: MakeHouse) -> None:
    house = make_house()
    repository = house.repository(quota_bytes=100)
    dead = make_house(owns=False)
    reservation = dead.parts.admission.open(repository, 100, "k")
    (house.folder / "blobs" / "incoming" / str(reservation.id)).write_bytes(b"half")
    house.clean()
    assert house.counters() == {(repository, "open"): 100}
    assert len(house.temporary()) == 1
    house.rows("update arkvory_uploads set lease_until = now() - interval '1 s'")
    house.clean()
    assert house.counters() == {}
    house.assert_no_strays()
    house.publish("a", bytes(100))


def test_w1_an_upload_of_this_process_outlives_its_lease(house: House, files: int) -> None:
    """The lease could not be renewed, for instance because PostgreSQL was away."""
    with house.parts.publisher.begin(Target("raw", "files", ADMIN), "a") as session:
        receiver = session.receiver(Expected())
        receiver.feed(b"slow ")
        house.rows("update arkvory_uploads set lease_until = now() - interval '1 h'")
        house.clean()
        receiver.feed(b"client")
        session.publish([NewFile("a", receiver.finish(), "text/plain")])
    assert house.read("a") == b"slow client"
    house.assert_counted()


def test_leases_are_renewed_and_one_that_somebody_else_has_locked_is_not_waited_for(house: House, files: int) -> None:
    with house.parts.publisher.begin(Target("raw", "files", ADMIN), "a") as session:
        receiver = session.receiver(Expected())
        receiver.feed(b"x")
        house.rows("update arkvory_uploads set lease_until = now() - interval '1 h'")
        house.parts.admission.renew_leases()
        assert house.value("select lease_until > now() from arkvory_uploads")
        with house.parts.database.request.connect() as connection:
            connection.execute(text("select 1 from arkvory_uploads for update"))
            with gevent.Timeout(5):
                house.parts.admission.renew_leases()


class TestConditions:
    def test_create_only_refuses_what_exists_and_only_that(self, house: House, files: int) -> None:
        only_new = Conditions(if_none_match=frozenset({"*"}))
        house.publish("a", b"1", conditions=only_new)
        with pytest.raises(PreconditionFailed):
            house.publish("a", b"2", conditions=only_new)
        assert house.read("a") == b"1"

    def test_of_many_that_create_only_one_does(self, house: House, files: int) -> None:
        def create(body: bytes) -> str:
            try:
                house.publish("a", body, conditions=Conditions(if_none_match=frozenset({"*"})))
                return "created"
            except PreconditionFailed:
                return "refused"

        results = [gevent.spawn(create, str(number).encode()) for number in range(8)]
        gevent.joinall(results, raise_error=True)
        assert sorted(each.get() for each in results) == ["created"] + ["refused"] * 7
        house.assert_counted()

    def test_of_many_that_overwrite_the_same_state_only_one_does(self, house: House, files: int) -> None:
        house.publish("a", b"old")
        same = Conditions(if_match=frozenset({sha256(b"old")}))
        results = [gevent.spawn(lambda n=number: house.publish("a", str(n).encode(), conditions=same)) for number in range(6)]
        gevent.joinall(results)
        assert sum(each.successful() for each in results) == 1
        assert all(isinstance(each.exception, PreconditionFailed) for each in results if not each.successful())

    def test_a_deletion_may_demand_the_state_that_it_deletes(self, house: House, files: int) -> None:
        house.publish("a", b"new")
        with pytest.raises(PreconditionFailed):
            house.delete("a", conditions=Conditions(if_match=frozenset({sha256(b"old")})))
        house.delete("a", conditions=Conditions(if_match=frozenset({sha256(b"new")})))
        with pytest.raises(NotFound):
            house.delete("a")

    def test_write_once_keeps_what_was_published_whoever_races(self, house: House, files: int) -> None:
        house.change("files", settings={"write_policy": "once"})
        results = [gevent.spawn(house.publish, "a", str(number).encode()) for number in range(6)]
        gevent.joinall(results)
        assert sum(each.successful() for each in results) == 1
        assert all(isinstance(each.exception, AlreadyExists) for each in results if not each.successful())

    def test_names_of_a_format_for_which_they_are_for_ever_are_not_used_again(self, house: House) -> None:
        house.repository("py", format="pypi")
        house.publish("p/p-1.tar.gz", b"1", "py", format="pypi")
        house.parts.editor.delete(Target("pypi", "py", ADMIN), ["p/p-1.tar.gz"])
        with pytest.raises(AlreadyExists):
            house.publish("p/p-1.tar.gz", b"1", "py", format="pypi")


def test_w4_the_same_publish_twice_is_harmless(house: House, files: int) -> None:
    first, second = house.publish("a", b"same"), house.publish("a", b"same")
    assert (first.created, second.created) == (True, False)
    gevent.sleep(0.01)
    house.clean()
    assert house.read("a") == b"same"
    assert house.counters() == {(files, "published"): 4}


def test_a_change_moves_last_modified_by_a_second_at_least(house: House, files: int) -> None:
    """All that Last-Modified has are seconds: other bytes never get the same one."""
    times = set()
    for number in range(3):
        house.publish("a", str(number).encode())
        times.add(int(house.parts.reader.find(Ask("raw", "files", "a", ADMIN)).gate.updated_at.timestamp()))
    assert len(times) == 3


def test_a_repository_deleted_while_a_body_came_takes_nothing_any_more(house: House, files: int, pause: MakePause) -> None:
    stopped = pause(house.parts.publisher, "commit", before=True)
    publishing = gevent.spawn(house.publish, "a", b"late")
    stopped.reached()
    house.registry.delete(ADMIN, "files")
    house.repository(public=True)
    stopped.go()
    with pytest.raises(NotFound):
        publishing.get(timeout=10)
    assert house.outcome("a") == "not_found"
    gevent.sleep(0.01)
    house.clean()
    house.assert_counted()
    house.assert_no_strays()


def test_waiting_for_another_change_of_the_repository_ends_after_ten_seconds_at_most(
    house: House, files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.cache.changes.LOCK_WAIT_MS", 200)
    other = House(house.url, house.folder, owns=False)
    with other.parts.transactions.begin(files):
        began = time.monotonic()
        with pytest.raises(ArkvoryError, match="takes long"):
            house.publish("a", b"x")
        assert time.monotonic() - began < 8
    house.publish("a", b"x")
    other.close()
    house.assert_counted()
