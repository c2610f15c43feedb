"""Uploads in parts: any order, any process, nothing half, nothing twice (DESIGN 5; W1 to W4)."""

from __future__ import annotations

import gevent
import pytest

from app.errors import (
    AlreadyExists,
    ArkvoryError,
    BodyCutShort,
    CapacitySpent,
    DigestMismatch,
    Forbidden,
    Invalid,
    KeyReused,
    NotAllowedHere,
    PreconditionFailed,
    TooLarge,
    UploadClosed,
    UploadIncomplete,
    UploadUnknown,
)
from app.jobs.catalog import families_of
from app.jobs.running import JobRunner
from app.repository import completing
from app.repository.publishing import Conditions
from tests.conftest import MakeHouse, MakePause
from tests.support.house import ADMIN, House, eventually, sha256
from tests.support.multipart import SMALL_PARTS, Client, filler, never

BODY = bytes(range(100))


def counted(house: House) -> dict[str, int]:
    """Bytes by status."""
    return {status: size for (_, status), size in house.counters().items()}


def whole(house: House) -> None:
    """What holds after each of these tests."""
    house.assert_counted()
    house.assert_published_is_there()
    assert house.parts.places.used == 0
    assert not house.parts.admission.open_uploads


@pytest.mark.parametrize("size", [len(BODY), None])
def test_parts_in_any_order_make_up_the_file(client: Client, size: int | None) -> None:
    upload = client.create(size=size, part_size=30, sha256=sha256(BODY))
    assert (upload.state, upload.received, upload.plan.part_size) == ("open", 0, 30)
    for number in (4, 1, 3, 2):
        part = client.send(upload, number, BODY[(number - 1) * 30 : number * 30])
        assert (part.number, part.sha256) == (number, sha256(BODY[(number - 1) * 30 : number * 30]))
    assert client.show(upload).received == len(BODY)
    done = client.complete(upload)
    assert (done.state, done.received, done.error) == ("published", len(BODY), None)
    assert client.house.read("big.bin") == BODY
    whole(client.house)
    client.house.assert_no_strays()


def test_an_upload_is_counted_from_its_beginning_and_as_one(client: Client) -> None:
    upload = client.create(size=len(BODY), part_size=30)
    assert counted(client.house) == {"open": 100}
    client.send_all(upload, BODY)
    assert counted(client.house) == {"open": 100}
    client.complete(upload)
    assert counted(client.house) == {"published": 100}


def test_an_upload_of_unknown_size_is_counted_part_by_part_and_keeps_no_more_than_it_has(client: Client) -> None:
    upload = client.create(part_size=30)
    assert counted(client.house) == {}
    client.send(upload, 2, BODY[:30])
    assert counted(client.house) == {"open": 30}
    client.send(upload, 3, BODY[:7], told=False)
    assert counted(client.house) == {"open": 37}
    client.send(upload, 2, BODY[1:31])
    assert counted(client.house) == {"open": 37}


@pytest.mark.parametrize("size", [0, None])
def test_an_empty_file_has_no_parts(client: Client, size: int | None) -> None:
    done = client.complete(client.create(size=size))
    assert done.state == "published"
    assert client.house.read("big.bin") == b""


def test_the_same_part_again_is_answered_without_reading_it(client: Client) -> None:
    """W4."""
    upload = client.create(size=len(BODY), part_size=30)
    first = client.send(upload, 1, BODY[:30])
    assert client.send(upload, 1, BODY[:30], fill=never) == first


def test_other_bytes_for_a_part_replace_it(client: Client) -> None:
    upload = client.create(size=len(BODY), part_size=30)
    client.send_all(upload, bytes(100))
    client.send_all(upload, BODY)
    assert client.show(upload).received == 100
    client.complete(upload)
    assert client.house.read("big.bin") == BODY


@pytest.mark.parametrize(
    ("number", "body", "options", "error"),
    [
        (1, BODY[:30], {"digest": "0" * 64}, DigestMismatch),
        (1, BODY[:29], {}, Invalid),
        (1, BODY[:31], {}, Invalid),
        (1, BODY[:29], {"told": False}, Invalid),
        (1, BODY[:31], {"told": False}, Invalid),
        (4, BODY[:30], {}, Invalid),
        (0, BODY[:30], {}, Invalid),
        (5, BODY[:10], {}, Invalid),
        (1, BODY[:30], {"fill": filler(BODY[:20], cut=True)}, BodyCutShort),
    ],
)
def test_a_part_that_is_wrong_or_cut_off_is_not_there(
    client: Client, number: int, body: bytes, options: dict[str, object], error: type[Exception]
) -> None:
    """W1."""
    upload = client.create(size=len(BODY), part_size=30)
    with pytest.raises(error):
        client.send(upload, number, body, **options)  # type: ignore[arg-type]  # some of its keywords
    assert client.numbers(upload) == []
    assert client.show(upload).received == 0
    whole(client.house)
    client.send_all(upload, BODY)
    client.complete(upload)
    assert client.house.read("big.bin") == BODY


def test_a_part_that_comes_anew_and_breaks_off_is_missing(client: Client) -> None:
    upload = client.create(size=len(BODY), part_size=30)
    client.send_all(upload, BODY)
    with pytest.raises(BodyCutShort):
        client.send(upload, 2, bytes(30), fill=filler(bytes(10), cut=True))
    with pytest.raises(UploadIncomplete, match="part 2 "):
        client.complete(upload)
    assert client.show(upload).received == 70
    client.send(upload, 2, BODY[30:60])
    client.complete(upload)
    assert client.house.read("big.bin") == BODY


def test_what_is_missing_is_told(client: Client) -> None:
    upload = client.create(size=len(BODY), part_size=4)
    client.send(upload, 3, BODY[8:12])
    with pytest.raises(UploadIncomplete, match=r"parts 1, 2, 4, .*20, 21, \.\.\. "):
        client.complete(upload)
    assert client.show(upload).state == "open"


def test_of_unknown_size_every_part_but_the_last_is_whole(client: Client) -> None:
    upload = client.create(part_size=30)
    client.send(upload, 1, BODY[:20])
    with pytest.raises(Invalid, match="part 1 is there with 20 bytes: fewer than the 30 of a part, so it is the last one"):
        client.send(upload, 2, BODY[30:60])
    client.send(upload, 1, BODY[:30])
    client.send(upload, 2, BODY[30:60])
    with pytest.raises(Invalid, match="part 2 is there, so part 1 is not the last, and has 30 bytes; these are 20"):
        client.send(upload, 1, BODY[:20])
    with pytest.raises(Invalid, match="these are 20"):
        client.send(upload, 1, BODY[:20], told=False)
    with pytest.raises(UploadIncomplete, match=r"^part 1 of this upload is missing; "):
        client.complete(upload)
    client.send(upload, 1, BODY[:30])
    # As two requests may, that end at the same moment.
    client.house.rows("update arkvory_parts set size = 20 where number = 1")
    with pytest.raises(UploadIncomplete, match=r"^part 1 has 20 bytes, where all but the last have 30; "):
        client.complete(upload)
    client.house.rows("update arkvory_parts set size = 30 where number = 1")
    client.send(upload, 2, BODY[30:50])
    client.complete(upload)
    assert client.house.read("big.bin") == BODY[:50]
    whole(client.house)


def test_a_wrong_digest_of_the_whole_ends_the_upload_and_gives_its_bytes_back(client: Client) -> None:
    upload = client.create(size=len(BODY), part_size=30)
    client.send_all(upload, BODY)
    with pytest.raises(DigestMismatch):
        client.complete(upload, "0" * 64)
    ended = client.show(upload)
    assert (ended.state, ended.error and ended.error["code"]) == ("failed", "digest_mismatch")
    assert counted(client.house) == {}
    assert client.house.temporary() == []
    with pytest.raises(UploadClosed):
        client.send(upload, 1, BODY[:30])
    client.cancel(upload)
    with pytest.raises(UploadUnknown):
        client.show(upload)


def test_bytes_that_were_damaged_on_the_disk_are_asked_for_again(client: Client) -> None:
    for digest in (None, sha256(BODY)):
        upload = client.create(size=len(BODY), part_size=30)
        client.send_all(upload, BODY)
        (path,) = client.house.temporary()
        damaged = bytearray(path.read_bytes())
        damaged[35] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(UploadIncomplete, match="part 2 "):
            client.complete(upload, digest)
        back = client.show(upload)
        assert (back.state, back.received, client.numbers(upload)) == ("open", 70, [1, 3, 4])
        assert back.error and back.error["code"] == "upload_incomplete"
        client.send(upload, 2, BODY[30:60])
        assert client.complete(upload, digest).error is None
        assert client.house.read("big.bin") == BODY
    whole(client.house)


def test_complete_twice_is_harmless(client: Client) -> None:
    """W4."""
    upload = client.create(size=len(BODY), part_size=30)
    client.send_all(upload, BODY)
    first = client.complete(upload)
    epochs = client.house.epochs()
    assert client.complete(upload) == first
    assert client.house.epochs() == epochs


def test_two_completes_at_once_publish_once(client: Client) -> None:
    upload = client.create(size=len(BODY), part_size=30)
    client.send_all(upload, BODY)
    epoch = client.house.epochs()[2]
    gevent.joinall([gevent.spawn(client.complete, upload) for _ in range(4)], raise_error=True)
    assert client.ends(upload).state == "published"
    assert client.house.epochs()[2] == epoch + 1
    whole(client.house)


def test_a_large_one_goes_on_by_itself(make_house: MakeHouse) -> None:
    house = make_house(**SMALL_PARTS, ARKVORY_COMPLETE_AT_ONCE_BYTES="50")
    house.repository("files")
    client = Client(house)
    upload = client.create(size=len(BODY), part_size=30)
    client.send_all(upload, BODY)
    assert client.complete(upload).state == "completing"
    client.ends(upload)
    assert house.read("big.bin") == BODY


def test_one_that_finds_no_room_is_done_at_once_by_whoever_runs_jobs(make_house: MakeHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a single node the next look is half a minute away."""
    monkeypatch.setattr(completing, "AT_ONCE", 0)
    house = make_house(**SMALL_PARTS, ARKVORY_COMPLETE_AT_ONCE_BYTES="50")
    house.repository("files")
    client = Client(house)
    upload = client.create(size=len(BODY), part_size=30)
    client.send_all(upload, BODY)
    runner = JobRunner(house.parts, "web", (), families_of(house.parts))
    runner.start()
    try:
        # It has looked, and waits.
        gevent.sleep(0.5)
        assert client.complete(upload).state == "completing"
        client.ends(upload)
    finally:
        runner.begin_nothing()
    assert house.read("big.bin") == BODY


def test_a_cancelled_upload_gives_everything_back(client: Client) -> None:
    upload = client.create(size=len(BODY), part_size=30, key="k")
    client.send_all(upload, BODY)
    client.cancel(upload)
    for gone in (lambda: client.cancel(upload), lambda: client.send(upload, 1, BODY[:30]), lambda: client.complete(upload)):
        with pytest.raises(UploadUnknown):
            gone()
    assert (counted(client.house), client.house.temporary()) == ({}, [])
    assert client.house.rows("select * from arkvory_parts") == []
    assert client.create(size=len(BODY), part_size=30, key="k").id != upload.id


def test_the_same_key_is_the_same_upload(client: Client) -> None:
    upload = client.create(size=len(BODY), part_size=30, key="k")
    assert client.create(size=len(BODY), part_size=30, key="k").id == upload.id
    with pytest.raises(KeyReused):
        client.create(size=len(BODY) + 1, part_size=30, key="k")
    assert client.create(size=len(BODY), part_size=30, key="other").id != upload.id
    client.house.user("ada", administrator=True)
    other = Client(client.house, caller=client.house.identify(client.house.token("ada")))
    assert other.create(size=len(BODY), part_size=30, key="k").id != upload.id


def test_the_same_key_from_a_crowd_is_one_upload(client: Client) -> None:
    crowd = [gevent.spawn(client.create, size=len(BODY), key="k") for _ in range(8)]
    gevent.joinall(crowd, raise_error=True)
    assert len({each.value.id for each in crowd}) == 1
    assert counted(client.house) == {"open": 100}


def test_an_upload_expires_and_cleanup_takes_it(client: Client) -> None:
    upload = client.create(size=len(BODY), part_size=30, key="k")
    client.send(upload, 1, BODY[:30])
    client.house.clean()
    assert client.show(upload).state == "open"
    client.house.rows("update arkvory_uploads set lease_until = now() - interval '1 second'")
    with pytest.raises(UploadUnknown):
        client.send(upload, 2, BODY[30:60])
    again = client.create(size=len(BODY), part_size=30, key="k")
    assert again.id != upload.id
    client.cancel(again)
    client.house.clean()
    assert (counted(client.house), client.house.temporary()) == ({}, [])
    assert client.house.rows("select 1 from arkvory_multiparts union all select 1 from arkvory_parts") == []


def test_how_an_upload_ended_can_be_read_for_a_day(client: Client) -> None:
    upload = client.create(size=len(BODY), part_size=30)
    client.send_all(upload, BODY)
    client.complete(upload)
    client.house.clean()
    assert client.show(upload).state == "published"
    client.house.rows("update arkvory_multiparts set ended_at = now() - interval '25 hours'")
    client.house.clean()
    with pytest.raises(UploadUnknown):
        client.show(upload)
    assert client.house.read("big.bin") == BODY


def test_conditions_are_asked_at_the_beginning_at_each_part_and_at_the_end(client: Client) -> None:
    absent = Conditions(if_none_match=frozenset({"*"}))
    upload = client.create(size=len(BODY), part_size=30, conditions=absent)
    client.send_all(upload, BODY)
    client.house.publish("big.bin", b"other")
    with pytest.raises(PreconditionFailed):
        client.create(size=len(BODY), conditions=absent)
    with pytest.raises(PreconditionFailed):
        client.send(upload, 1, bytes(30))
    with pytest.raises(PreconditionFailed):
        client.complete(upload)
    assert client.house.read("big.bin") == b"other"
    replacing = client.create(size=len(BODY), part_size=30, conditions=Conditions(if_match=frozenset({sha256(b"other")})))
    client.send_all(replacing, BODY)
    assert client.complete(replacing).state == "published"
    assert client.house.read("big.bin") == BODY


def test_a_condition_that_fails_at_the_commit_ends_the_upload(client: Client, pause: MakePause) -> None:
    upload = client.create(size=len(BODY), part_size=30, conditions=Conditions(if_none_match=frozenset({"*"})))
    client.send_all(upload, BODY)
    placing = pause(client.house.parts.publisher._blobs, "place")
    completing = gevent.spawn(client.complete, upload)
    placing.reached()
    client.house.publish("big.bin", b"other")
    placing.go()
    with pytest.raises(PreconditionFailed):
        completing.get()
    assert client.show(upload).state == "failed"
    assert client.house.read("big.bin") == b"other"
    client.house.assert_nothing_is_left()


def test_what_is_written_once_stays(client: Client) -> None:
    client.house.change("files", settings={"write_policy": "once"})
    client.house.publish("big.bin", b"first")
    with pytest.raises(AlreadyExists):
        client.create(size=len(BODY))
    client.house.change("files", settings={"write_policy": "read_only"})
    with pytest.raises(NotAllowedHere):
        client.create("other.bin", size=len(BODY))


@pytest.mark.parametrize("size", [len(BODY), None])
def test_quota_binds_from_the_beginning(client: Client, size: int | None) -> None:
    client.house.change("files", quota_bytes=90)
    with pytest.raises(CapacitySpent):
        client.send_all(client.create(size=size, part_size=30), BODY)
    whole(client.house)


def test_idle_uploads_count_on_the_disk(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is written yet, and it will be."""
    monkeypatch.setattr(client.house.parts.store, "free_bytes", lambda: 150)
    client.create(size=len(BODY))
    with pytest.raises(CapacitySpent):
        client.create("other.bin", size=len(BODY))
    with pytest.raises(CapacitySpent):
        client.house.publish("third.bin", BODY)
    client.house.parts.admission._looked_at = 0
    with pytest.raises(CapacitySpent):
        client.house.publish("third.bin", BODY)


def test_there_is_a_largest_upload(make_house: MakeHouse) -> None:
    house = make_house(**SMALL_PARTS, ARKVORY_MAX_UPLOAD_BYTES="90")
    house.repository("files")
    client = Client(house)
    with pytest.raises(TooLarge):
        client.create(size=len(BODY))
    upload = client.create(part_size=30)
    client.send_all(upload, BODY[:90])
    with pytest.raises(TooLarge):
        client.send(upload, 4, BODY[90:])


def test_only_who_may_write_there_uploads_there(client: Client) -> None:
    house = client.house
    house.user("ada")
    house.rule("files", "user:ada", "write", prefix="ada/")
    ada = Client(house, caller=house.identify(house.token("ada")))
    with pytest.raises(Forbidden):
        ada.create("big.bin", size=len(BODY))
    upload = ada.create("ada/big.bin", size=len(BODY), part_size=30)
    ada.send(upload, 1, BODY[:30])
    house.rows("delete from arkvory_access_rules")
    house.rule("files", "user:ada", "read")
    for refused in (lambda: ada.send(upload, 2, BODY[30:60]), lambda: ada.complete(upload)):
        with pytest.raises(ArkvoryError):
            refused()
    assert client.show(upload).state == "open", "who manages it sees all"


def test_uploads_are_their_owners(client: Client) -> None:
    house = client.house
    for name in ("ada", "ben"):
        house.user(name)
        house.rule("files", f"user:{name}", "read", "write")
    ada, ben = (Client(house, caller=house.identify(house.token(name))) for name in ("ada", "ben"))
    upload = ada.create(size=len(BODY), part_size=30)
    for foreign in (ben.show, ben.cancel, ben.complete, ben.numbers, lambda each: ben.send(each, 1, BODY[:30])):
        with pytest.raises(UploadUnknown):
            foreign(upload)
    assert ben.uploads.list(ben.door, 10, "").items == []
    assert [each.id for each in ada.uploads.list(ada.door, 10, "").items] == [upload.id]
    assert [each.id for each in client.uploads.list(client.door, 10, "").items] == [upload.id]
    with pytest.raises(UploadUnknown):
        client.send(upload, 1, BODY[:30])
    client.cancel(upload)
    with pytest.raises(UploadUnknown):
        ada.show(upload)


def test_an_upload_belongs_to_its_repository(client: Client) -> None:
    client.house.repository("second")
    upload = client.create(size=len(BODY))
    with pytest.raises(UploadUnknown):
        Client(client.house, "second").show(upload)


def test_only_what_a_put_would_store_comes_in_parts(client: Client) -> None:
    client.house.repository("java", format="maven")
    with pytest.raises(Invalid) as told:
        Client(client.house, "java").create("a/b/1/b-1.jar", size=1)
    assert told.value.field == "repository"


def test_through_a_group_it_goes_to_the_member_that_is_written(client: Client) -> None:
    client.house.repository("all", kind="group", members=("files",), settings={"write_member": "files"})
    group = Client(client.house, "all")
    upload = group.create(size=len(BODY), part_size=30)
    group.send_all(upload, BODY)
    assert client.show(upload).id == upload.id
    assert group.complete(upload).state == "published"
    assert client.house.read("big.bin") == BODY


def test_a_deleted_repository_gives_back_what_was_open(client: Client) -> None:
    upload = client.create(size=len(BODY), part_size=30)
    client.send(upload, 1, BODY[:30])
    client.house.registry.delete(ADMIN, "files")
    client.house.clean()
    assert (counted(client.house), client.house.temporary()) == ({}, [])


def test_a_deleted_repository_ends_its_uploads(make_house: MakeHouse, pause: MakePause) -> None:
    house = make_house(**SMALL_PARTS)
    house.repository("files")
    client = Client(house)
    upload = client.create(size=len(BODY), part_size=30)
    client.send_all(upload, BODY)
    placing = pause(house.parts.publisher._blobs, "place")
    completing = gevent.spawn(client.complete, upload)
    placing.reached()
    house.registry.delete(ADMIN, "files")
    placing.go()
    with pytest.raises(ArkvoryError):
        completing.get()
    eventually(lambda: not house.parts.admission.open_uploads)
    house.clean()
    assert house.sums() == {}
    assert house.temporary() == []
