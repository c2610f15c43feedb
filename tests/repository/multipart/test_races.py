"""Uploads in parts where somebody dies, lingers, or is faster (W1 to W4): nothing that was not whole is ever published."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import gevent
import pytest

from app.errors import (
    ArkvoryError,
    CapacitySpent,
    DatabaseAway,
    DigestMismatch,
    TooManyUploads,
    Unavailable,
    UploadClosed,
    UploadGivenUp,
    UploadIncomplete,
    UploadUnknown,
)
from app.repository import completing
from app.storage import Incoming
from app.storage.gathered import GatheredFile
from app.upload import multipart, parts
from app.upload.gathering import Passage
from app.upload.multipart import Upload
from app.upload.parts import Attempt, PartHolds
from tests.conftest import MakeHouse, MakePause
from tests.support.house import House, eventually, sha256
from tests.support.multipart import SMALL_PARTS, Client
from tests.support.pauses import Pause

BODY = bytes(range(100))
PART = BODY[30:60]


@pytest.fixture
def upload(client: Client) -> Upload:
    """All of it but part 2."""
    begun = client.create(size=len(BODY), part_size=30)
    client.send_all(begun, BODY, [1, 3, 4])
    return begun


@contextlib.contextmanager
def lingering(house: House, upload: Upload, number: int = 2) -> Iterator[tuple[Attempt, Incoming]]:
    """A request that sends a part and was taken for dead: it writes as long as it likes, and ends with the block."""
    with contextlib.suppress(UploadGivenUp), house.parts.part_holds.hold(upload, number, 30) as (attempt, range):
        range.write(b"one ")
        take_for_dead(house)
        yield attempt, range
        range.discard()


def take_for_dead(house: House) -> None:
    house.rows("update arkvory_parts set held_until = now() - interval '1 second' where holder is not null")
    house.rows("update arkvory_uploads set held_until = now() - interval '1 second' where holder is not null")


def go_on(house: House) -> None:
    """As the job does."""
    with house.parts.database.read() as connection:
        for upload_id in multipart.due(connection, 10):
            house.parts.completions.begin(upload_id)


def blob(house: House) -> Path:
    (path,) = house.files()
    return path


def temporary(house: House, upload: Upload) -> Path:
    return house.folder / "blobs" / "incoming" / str(upload.id)


STEPS: dict[str, Callable[[House, MakePause], Pause]] = {
    "gathered": lambda house, pause: pause(house.parts.completions, "_read", before=True),
    "staged": lambda house, pause: pause(house.parts.blobs, "_make_or_find", before=True),
    "placed": lambda house, pause: pause(house.parts.blobs, "place"),
}


def there(house: House) -> None:
    assert house.read("big.bin") == BODY
    house.assert_counted()
    house.assert_published_is_there()
    house.assert_no_strays()


# -- who lingers


def test_what_a_lingering_request_writes_before_the_end_is_found(client: Client, upload: Upload) -> None:
    with lingering(client.house, upload) as (_, late):
        client.send(upload, 2, PART)
        late.write(b"never mine")
        with pytest.raises(UploadIncomplete, match="part 2 "):
            client.complete(upload)
        client.send(upload, 2, PART)
        client.complete(upload)
        late.write(b"too late")
        there(client.house)


def test_what_a_lingering_request_writes_after_the_end_reaches_nothing(client: Client, upload: Upload) -> None:
    """W1: the bytes were copied while it could still write."""
    with lingering(client.house, upload) as (_, late):
        client.send(upload, 2, PART)
        source = temporary(client.house, upload).stat().st_ino
        client.complete(upload)
        late.write(b"too late")
        there(client.house)
        assert blob(client.house).stat().st_ino != source


def test_what_it_writes_while_the_bytes_are_copied_is_found_or_reaches_nothing(
    client: Client, upload: Upload, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lingering(client.house, upload) as (_, late):
        client.send(upload, 2, PART)
        take = Passage._take

        def interrupted(passage: Passage, piece: memoryview, own: object) -> None:
            with contextlib.suppress(AssertionError):
                late.write(b"xy")
            take(passage, piece, own)  # type: ignore[arg-type]  # a hash

        monkeypatch.setattr(Passage, "_take", interrupted)
        with contextlib.suppress(UploadIncomplete):
            client.complete(upload)
        monkeypatch.setattr(Passage, "_take", take)
        if client.show(upload).state == "open":
            client.send(upload, 2, PART)
            client.complete(upload)
        there(client.house)


def test_bytes_are_written_once_when_the_kernel_knows_that_nobody_lingers(client: Client, upload: Upload) -> None:
    with lingering(client.house, upload):
        client.send(upload, 2, PART)
    assert client.house.value("select strays <> '{}' from arkvory_parts where number = 2")
    source = temporary(client.house, upload).stat().st_ino
    client.complete(upload)
    assert blob(client.house).stat().st_ino == source
    there(client.house)


def test_bytes_are_written_once_when_all_requests_ended_in_order(client: Client, upload: Upload, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GatheredFile, "is_sole", lambda _: pytest.fail("nobody needs to ask"))
    client.send(upload, 2, PART)
    source = temporary(client.house, upload).stat().st_ino
    client.complete(upload)
    assert blob(client.house).stat().st_ino == source


def test_of_another_machine_no_kernel_here_knows(client: Client, upload: Upload) -> None:
    with lingering(client.house, upload):
        client.house.rows("update arkvory_parts set machine = 'another'")
        client.send(upload, 2, PART)
    source = temporary(client.house, upload).stat().st_ino
    client.complete(upload)
    assert blob(client.house).stat().st_ino != source
    there(client.house)


def test_a_copy_needs_room_and_waits_for_it(client: Client, upload: Upload, monkeypatch: pytest.MonkeyPatch) -> None:
    with lingering(client.house, upload):
        client.send(upload, 2, PART)
        monkeypatch.setattr(client.house.parts.store, "free_bytes", lambda: 99)
        with pytest.raises(CapacitySpent):
            client.complete(upload)
        waiting = client.show(upload)
        assert (waiting.state, waiting.error and waiting.error["code"]) == ("completing", "capacity_spent")
        monkeypatch.undo()
        client.complete(upload)
        there(client.house)


def test_a_lingering_request_cannot_say_that_its_part_is_there(client: Client, upload: Upload) -> None:
    holds = client.house.parts.part_holds
    with holds.hold(upload, 2, 30) as (attempt, late):
        take_for_dead(client.house)
        client.send(upload, 2, PART)
        late.discard()
        with pytest.raises(UploadGivenUp):
            holds.finish(upload, attempt, 30, sha256(bytes(30)))
    client.complete(upload)
    there(client.house)


def test_who_sees_that_it_was_taken_for_dead_stops_writing(client: Client, upload: Upload) -> None:
    with lingering(client.house, upload) as (attempt, late):
        attempt.good_until = 0
        with pytest.raises(UploadGivenUp):
            late.write(b"x")


def test_who_comes_to_the_file_when_all_is_over_finds_none(client: Client, upload: Upload, pause: MakePause) -> None:
    opening = pause(client.house.parts.part_holds, "_take")
    late = gevent.spawn(client.send, upload, 2, bytes(30))
    opening.reached()
    take_for_dead(client.house)
    client.send(upload, 2, PART)
    client.complete(upload)
    opening.go()
    with pytest.raises(UploadUnknown):
        late.get()
    there(client.house)


def test_behind_the_end_nobody_makes_a_file_longer(client: Client) -> None:
    """An upload of unknown size, whose last part was begun by mistake and never ended."""
    upload = client.create(part_size=25)
    client.send_all(upload, BODY)
    with lingering(client.house, upload, 7) as (_, late):
        client.complete(upload)
        late.write(b"behind the end")
        there(client.house)


def test_behind_the_end_no_part_comes_any_more(client: Client, pause: MakePause) -> None:
    """Of an upload of unknown size: its request was taken for dead when the end was said, and was not dead."""
    upload = client.create(part_size=25)
    client.send_all(upload, BODY)
    finishing = pause(client.house.parts.part_holds, "finish", before=True)
    late = gevent.spawn(client.send, upload, 5, b"late")
    finishing.reached()
    take_for_dead(client.house)
    client.uploads._multiparts.close(upload, None, completing.reference_of(client.door.caller))
    finishing.go()
    with pytest.raises(UploadClosed):
        late.get()
    client.complete(upload)
    there(client.house)


def test_an_upload_without_room_for_its_file_is_counted_by_nobody(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: object) -> None:
        raise CapacitySpent("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(client.house.parts.store, "spread", full)
        with pytest.raises(CapacitySpent):
            client.create(size=1000, key="again")
    assert client.house.sums() == {}
    client.create(size=1000, key="again")
    assert client.house.sums() != {}


def test_a_part_whose_file_could_not_be_opened_may_come_again_at_once(
    client: Client, upload: Upload, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise Unavailable("too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(client.house.parts.store, "window", fails)
        with pytest.raises(Unavailable, match="too many open files"):
            client.send(upload, 2, PART)
    client.send(upload, 2, PART)
    assert client.house.value("select strays = '{}' from arkvory_parts where number = 2")


def test_a_part_that_is_alive_is_nobody_elses(client: Client, upload: Upload) -> None:
    with client.house.parts.part_holds.hold(upload, 2, 30) as (_, range):
        with pytest.raises(TooManyUploads):
            client.send(upload, 2, PART)
        range.discard()
    client.send(upload, 2, PART)


def test_what_is_received_for_long_is_renewed(client: Client, upload: Upload) -> None:
    with client.house.parts.part_holds.hold(upload, 2, 30) as (attempt, range):
        take_for_dead(client.house)
        client.house.rows("update arkvory_uploads set lease_until = now() + interval '1 second'")
        before = attempt.good_until
        gevent.sleep(0.01)
        client.house.parts.part_holds.renew()
        assert attempt.good_until > before
        assert client.house.value("select held_until > now() from arkvory_parts where number = 2")
        assert client.house.value("select lease_until > now() + interval '1 minute' from arkvory_uploads")
        range.discard()


def test_a_new_owner_of_the_storage_frees_what_was_held_and_remembers_who_may_linger(client: Client, upload: Upload) -> None:
    with lingering(client.house, upload) as (_, late):
        client.house.rows("update arkvory_parts set held_until = now() + interval '1 hour' where holder is not null")
        client.house.parts.part_holds.free_all()
        client.send(upload, 2, PART)
        client.complete(upload)
        late.write(b"too late")
        there(client.house)


# -- who dies


@pytest.mark.parametrize("step", ["gathered", "staged", "placed"])
def test_a_completion_goes_on_in_another_process(make_house: MakeHouse, pause: MakePause, step: str) -> None:
    """Its process dies at a step: what it held runs out, and who looks next takes it from where it stands."""
    first = make_house(**SMALL_PARTS)
    first.repository("files")
    client = Client(first)
    upload = client.create(size=len(BODY), part_size=30)
    client.send_all(upload, BODY)
    dying = STEPS[step](first, pause)
    completion = gevent.spawn(client.complete, upload)
    dying.reached()
    second = make_house(owns=False, **SMALL_PARTS)
    go_on(second)
    gevent.sleep(0.1)
    assert client.show(upload).state == "completing", "its process may be alive"
    take_for_dead(second)
    go_on(second)
    Client(second).ends(upload)
    # It was not dead after all.
    dying.go()
    with contextlib.suppress(ArkvoryError):
        completion.get()
    there(second)
    assert first.parts.admission.open_uploads == {}


def test_a_completion_is_taken_over_that_nobody_asks_for_again(make_house: MakeHouse) -> None:
    """The process died after it had said that it would, and before it began."""
    first = make_house(**SMALL_PARTS)
    first.repository("files")
    client = Client(first)
    upload = client.create(size=len(BODY), part_size=30)
    client.send_all(upload, BODY)
    first.parts.uploads._multiparts.close(upload, None, completing.reference_of(client.door.caller))
    second = make_house(owns=False, **SMALL_PARTS)
    go_on(second)
    Client(second).ends(upload)
    there(second)


def test_a_stop_leaves_a_completion_to_the_next_process(make_house: MakeHouse, pause: MakePause) -> None:
    house = make_house(**SMALL_PARTS, ARKVORY_COMPLETE_AT_ONCE_BYTES="1")
    house.repository("files")
    client = Client(house)
    upload = client.create(size=len(BODY), part_size=30)
    client.send_all(upload, BODY)
    reading = STEPS["staged"](house, pause)
    client.complete(upload)
    reading.reached()
    house.parts.completions.stop()
    reading.go()
    assert client.show(upload).state == "completing"
    eventually(lambda: house.value("select holder is null from arkvory_uploads"))
    go_on(house)
    client.ends(upload)
    there(house)


def test_whose_right_ended_meanwhile_publishes_nothing(make_house: MakeHouse) -> None:
    house = make_house(**SMALL_PARTS, ARKVORY_COMPLETE_AT_ONCE_BYTES="1")
    house.repository("files")
    house.user("ada")
    house.rule("files", "user:ada", "read", "write")
    ada = Client(house, caller=house.identify(house.token("ada")))
    upload = ada.create(size=len(BODY), part_size=30)
    ada.send_all(upload, BODY)
    house.parts.uploads._multiparts.close(upload, None, completing.reference_of(ada.door.caller))
    house.disable("ada")
    go_on(house)
    ended = Client(house).ends(upload, "failed")
    assert ended.error and ended.error["code"] == "unauthenticated"
    house.assert_nothing_is_left()


def test_an_upload_whose_file_is_gone_fails(client: Client, upload: Upload) -> None:
    client.send(upload, 2, PART)
    temporary(client.house, upload).unlink()
    with pytest.raises(ArkvoryError):
        client.complete(upload)
    assert client.show(upload).state == "failed"
    client.house.assert_nothing_is_left()


def test_bytes_that_may_be_a_blobs_are_never_written_again(client: Client, upload: Upload, pause: MakePause) -> None:
    """It was staged, then damaged: there is no way back for it."""
    client.send(upload, 2, PART)
    staged = STEPS["staged"](client.house, pause)
    completion = gevent.spawn(client.complete, upload)
    staged.reached()
    (path,) = client.house.temporary()
    damaged = bytearray(path.read_bytes())
    damaged[0] ^= 1
    path.write_bytes(damaged)
    take_for_dead(client.house)
    with pytest.raises(DigestMismatch):
        client.complete(upload)
    staged.go()
    with contextlib.suppress(ArkvoryError):
        completion.get()
    assert client.show(upload).state == "failed"
    client.house.assert_nothing_is_left()


# -- who is faster


def test_no_part_comes_while_it_is_completed(client: Client, upload: Upload, pause: MakePause) -> None:
    client.send(upload, 2, PART)
    reading = STEPS["staged"](client.house, pause)
    completion = gevent.spawn(client.complete, upload)
    reading.reached()
    for refused in (lambda: client.send(upload, 2, bytes(30)), lambda: client.cancel(upload)):
        with pytest.raises(UploadClosed):
            refused()
    assert client.complete(upload).state == "completing"
    reading.go()
    assert completion.get().state == "published"
    there(client.house)


def test_a_part_on_its_way_is_missing(client: Client, upload: Upload, pause: MakePause) -> None:
    client.send(upload, 2, PART)
    finishing = pause(client.house.parts.part_holds, "finish", before=True)
    sending = gevent.spawn(client.send, upload, 3, bytes(30))
    finishing.reached()
    with pytest.raises(UploadIncomplete, match="part 3 "):
        client.complete(upload)
    finishing.go()
    sending.get()
    client.send(upload, 3, BODY[60:90])
    client.complete(upload)
    there(client.house)


@pytest.mark.parametrize("first", ["close", "take"])
def test_a_part_and_the_end_take_turns(client: Client, upload: Upload, pause: MakePause, first: str) -> None:
    """Either the part was taken, and is missing for the end, or the end came first, and the part is refused."""
    client.send(upload, 2, PART)
    if first == "close":
        standing = pause(multipart, "_require_all")
        leader = gevent.spawn(client.complete, upload)
        standing.reached()
        follower = gevent.spawn(client.send, upload, 2, bytes(30))
        gevent.sleep(0.1)
        standing.go()
        with pytest.raises(UploadClosed):
            follower.get()
        assert leader.get().state == "published"
        there(client.house)
    else:
        standing = pause(parts, "_require_open")
        leader = gevent.spawn(client.send, upload, 2, PART[::-1])
        standing.reached()
        follower = gevent.spawn(client.complete, upload)
        gevent.sleep(0.1)
        standing.go()
        with pytest.raises(UploadIncomplete):
            follower.get()
        leader.get()
        assert client.complete(upload).state == "published"
        assert client.house.read("big.bin") == BODY[:30] + PART[::-1] + BODY[60:]


def test_a_cancelled_upload_is_not_published(client: Client, upload: Upload, pause: MakePause) -> None:
    """Nobody is at it at that moment; then whoever comes to it is too late."""
    client.send(upload, 2, PART)
    staged = STEPS["staged"](client.house, pause)
    completion = gevent.spawn(client.complete, upload)
    staged.reached()
    take_for_dead(client.house)
    client.cancel(upload)
    staged.go()
    with pytest.raises(ArkvoryError):
        completion.get()
    client.house.assert_nothing_is_left()
    assert client.house.sums() == {}


def test_a_part_whose_upload_is_cancelled_ends_in_vain(client: Client, upload: Upload, pause: MakePause) -> None:
    finishing = pause(client.house.parts.part_holds, "finish", before=True)
    sending = gevent.spawn(client.send, upload, 2, PART)
    finishing.reached()
    client.cancel(upload)
    finishing.go()
    with pytest.raises(ArkvoryError):
        sending.get()
    client.house.assert_nothing_is_left()


def test_what_cannot_be_told_to_the_database_is_left_to_the_lease(client: Client, upload: Upload, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise DatabaseAway("away")

    with monkeypatch.context() as patched:
        patched.setattr(client.house.parts.part_holds, "finish", away)
        patched.setattr(PartHolds, "_give_up", lambda *_: None)
        with pytest.raises(DatabaseAway):
            client.send(upload, 2, PART)
    with pytest.raises(TooManyUploads):
        client.send(upload, 2, PART)
    take_for_dead(client.house)
    client.send(upload, 2, PART)
    client.complete(upload)
    there(client.house)


def test_ten_thousand_parts(make_house: MakeHouse) -> None:
    """Sent by hand into the table; what is asked about them stays a few statements."""
    house = make_house(**SMALL_PARTS)
    house.repository("files")
    client = Client(house)
    body = os.urandom(40_000)
    upload = client.create(size=len(body), part_size=4)
    client.send(upload, 10_000, body[-4:])
    house.rows(
        "insert into arkvory_parts (upload_id, number, size, sha256) select cast(:id as uuid), n, 4, "
        "encode(sha256(substr(cast(:body as bytea), (n - 1) * 4 + 1, 4)), 'hex') from generate_series(1, 9999) n",
        id=str(upload.id), body=body,
    )  # fmt: skip
    temporary(house, upload).write_bytes(body)
    client.complete(upload)
    assert house.read("big.bin") == body
    assert house.value("select count(*) from arkvory_parts") == 0
