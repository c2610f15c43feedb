"""W3 and HO-X-6: what manifests name is kept, what nothing names goes after its grace, and no race loses a part."""

from __future__ import annotations

import random

import gevent
import pytest
from sqlalchemy import text

from app.errors import MissingParts, NotFound, StillNeeded, TooManyUploads, UploadGivenUp, UploadUnknown, WrongOffset
from app.protocols.oci.names import blob_path, manifest_path, parse_digest
from app.protocols.oci.uploads import BLOB_TYPE, ManifestPush, address_of, chunk, finish_blob, owner_of, store_manifest, take_chunk
from app.repository.publishing import Conditions, NewFile, Target
from app.repository.reading import Ask
from app.upload.receiving import Expected
from app.upload.sessions import Address
from tests.conftest import MakeHouse, MakePause
from tests.protocols.oci.conftest import MANIFEST, digest_of, manifest_of
from tests.support import pace
from tests.support.house import ADMIN, House

TARGET = Target("oci", "oci", ADMIN)
LONG_GRACE = {"ARKVORY_BLOB_GRACE_SECONDS": "3600"}


def push_blob(house: House, body: bytes, image: str = "app") -> str:
    path = blob_path(image, digest_of(body))
    with house.parts.publisher.begin(TARGET, path) as session:
        receiver = session.receiver(Expected(size=len(body)))
        receiver.feed(body)
        session.publish([NewFile(path, receiver.finish(), BLOB_TYPE, is_part=True)])
    return path


def push_manifest(house: House, body: bytes, tag: str = "latest", image: str = "app") -> None:
    with house.parts.publisher.begin(TARGET, manifest_path(image, tag)) as session:
        store_manifest(session, ManifestPush(image, tag, (), MANIFEST, body), Conditions())


def push_image(house: House, *layers: bytes, tag: str = "latest") -> bytes:
    for each in (b"{}", *layers):
        push_blob(house, each)
    push_manifest(house, manifest_of(*layers), tag)
    return manifest_of(*layers)


def head(house: House, path: str) -> None:
    """What HEAD of a blob does."""
    reader, ask = house.parts.reader, Ask("oci", "oci", path, ADMIN)
    reader.renew(ask, reader.find(ask))


def there(house: House, path: str) -> bool:
    try:
        house.parts.reader.find(Ask("oci", "oci", path, ADMIN))
    except NotFound:
        return False
    return True


def clean(house: House) -> None:
    """Until nothing changes any more."""
    for _ in range(3):
        gevent.sleep(0.01)
        house.clean()


def grow_old(house: House, seconds: float = 7200) -> None:
    house.rows("update arkvory_artifacts set candidate_at = candidate_at - make_interval(secs => :s)", s=seconds)
    # What memory knows grows old with the clock; here only the rows do.
    house.parts.cache.drop_repository(int(house.value("select id from arkvory_repositories where name = 'oci'")))
    house.rows("update arkvory_blobs set candidate_at = candidate_at - make_interval(secs => :s), last_used_at = last_used_at - "
               "make_interval(secs => :s)", s=seconds)


@pytest.fixture
def patient(make_house: MakeHouse) -> House:
    """A house with the usual grace."""
    house = make_house(**LONG_GRACE)
    house.repository("oci", format="oci")
    return house


def test_parts_that_nothing_names_go_and_those_of_a_manifest_stay(house: House) -> None:
    house.repository("oci", format="oci")
    push_image(house, b"kept")
    orphan = push_blob(house, b"orphan")
    before = house.epochs("oci")
    clean(house)
    assert not there(house, orphan)
    assert there(house, blob_path("app", digest_of(b"kept")))
    assert house.epochs("oci")[2] > before[2]
    assert len(list(house.files())) == 3
    house.parts.editor.delete(TARGET, [manifest_path("app", digest_of(manifest_of(b"kept")))])
    clean(house)
    assert list(house.files()) == []
    assert house.counters() == {}
    house.assert_no_strays()


def test_a_tag_that_moves_on_leaves_the_former_manifest_and_its_parts(house: House) -> None:
    house.repository("oci", format="oci")
    push_image(house, b"old")
    push_image(house, b"new")
    clean(house)
    assert there(house, blob_path("app", digest_of(b"old")))
    assert there(house, blob_path("app", digest_of(b"new")))


def test_a_part_lives_for_the_grace_from_its_upload_and_from_each_head(patient: House) -> None:
    path = push_blob(patient, b"young")
    patient.clean()
    assert there(patient, path)
    grow_old(patient)
    head(patient, path)
    patient.clean()
    assert there(patient, path), "an old part is renewed at once"
    grow_old(patient, 600)
    head(patient, path)
    patient.parts.uses.flush()
    assert patient.value("select candidate_at > now() - interval '1 minute' from arkvory_artifacts"), "a young one with the next batch"
    grow_old(patient)
    patient.clean()
    assert not there(patient, path)


def test_a_mount_renews_and_a_part_that_is_pushed_again_too(patient: House) -> None:
    path = push_blob(patient, b"again")
    grow_old(patient)
    push_blob(patient, b"again")
    patient.clean()
    assert there(patient, path)


def test_a_head_that_cleanup_outran_is_told_so(patient: House) -> None:
    path = push_blob(patient, b"late")
    reader, ask = patient.parts.reader, Ask("oci", "oci", path, ADMIN)
    grow_old(patient)
    found = reader.find(ask)
    patient.clean()
    with pytest.raises(NotFound):
        reader.renew(ask, found)


def test_renewals_and_pushes_never_wait_for_each_other_in_a_circle(make_house: MakeHouse) -> None:
    """W3: PostgreSQL would end one of them, and a push would be refused. What is renewed later is renewed all the same."""
    house = make_house(**LONG_GRACE)
    house.repository("oci", format="oci")
    layers = [f"layer {number}".encode() for number in range(40)]
    for each in (b"{}", *layers):
        push_blob(house, each)
    chance, ended = random.Random(4), [False]

    def renew() -> None:
        while not ended[0]:
            for each in layers:
                head(house, blob_path("app", digest_of(each)))
            house.parts.uses.flush()
            gevent.sleep(0)

    def push(tag: str) -> None:
        for _ in range(8):
            order = chance.sample(layers, len(layers))
            push_manifest(house, manifest_of(*order), tag)
            house.parts.editor.delete(TARGET, [manifest_path("app", digest_of(manifest_of(*order)))])

    renewing = [gevent.spawn(renew) for _ in range(3)]
    gevent.joinall([gevent.spawn(push, tag) for tag in ("a", "b")], raise_error=True)
    ended[0] = True
    gevent.joinall(renewing, raise_error=True)
    path = blob_path("app", digest_of(layers[0]))
    before = house.value("select candidate_at from arkvory_artifacts where path = :path", path=path)
    with house.parts.transactions.begin() as holding:
        holding.connection.execute(text("select 1 from arkvory_artifacts where path = :path for update"), {"path": path})
        head(house, path)
        house.parts.uses.flush()
    assert house.value("select candidate_at from arkvory_artifacts where path = :path", path=path) == before
    house.parts.uses.flush()
    assert house.value("select candidate_at from arkvory_artifacts where path = :path", path=path) > before


def test_x_6_cleanup_that_began_before_a_manifest_was_pushed_spares_its_parts(house: House, pause: MakePause) -> None:
    """Candidates were listed, then the push commits, then cleanup looks again under the lock."""
    house.repository("oci", format="oci")
    for each in (b"{}", b"layer"):
        push_blob(house, each)
    gevent.sleep(0.01)
    held = pause(house.parts.cleanup, "_delete_parts_of", before=True)
    running = gevent.spawn(house.clean)
    held.reached()
    push_manifest(house, manifest_of(b"layer"))
    held.go()
    running.get()
    assert there(house, blob_path("app", digest_of(b"layer")))
    assert house.value("select count(*) from arkvory_artifacts where candidate_at is not null") == 0


def test_x_6_a_push_that_comes_after_cleanup_is_refused_and_stores_nothing(house: House) -> None:
    house.repository("oci", format="oci")
    push_blob(house, b"{}")
    clean(house)
    with pytest.raises(MissingParts):
        push_manifest(house, manifest_of())
    assert house.value("select count(*) from arkvory_artifacts") == 0
    house.assert_counted()


def test_x_6_pushes_of_fresh_layers_beside_a_cleanup_that_never_rests(make_house: MakeHouse) -> None:
    house = make_house(ARKVORY_BLOB_GRACE_SECONDS="2", ARKVORY_MAX_UPLOADS="8", ARKVORY_MAX_UPLOADS_PER_KEY="8")
    house.repository("oci", format="oci")
    done = []

    def push(number: int, turn: int) -> None:
        layer = f"{number} {turn}".encode() * 1000
        push_blob(house, b"{}")
        push_blob(house, layer)
        gevent.sleep(0.1 * (number % 4))
        head(house, blob_path("app", digest_of(layer)))
        push_manifest(house, manifest_of(layer), tag=f"t{number}-{turn}")
        done.append(layer)

    def pusher(number: int) -> None:
        for turn in range(4):
            # What nothing names is kept for two seconds, and the machine may stand still for longer.
            pace.again(lambda turn=turn: push(number, turn), lost=0.8)

    def cleaner() -> None:
        while True:
            house.clean()
            gevent.sleep(0.05)

    cleaning = gevent.spawn(cleaner)
    try:
        gevent.joinall([gevent.spawn(pusher, number) for number in range(6)], raise_error=True)
    finally:
        cleaning.kill()
    gevent.sleep(2.1)
    house.clean()
    assert len(done) == 24
    for layer in done:
        ask = Ask("oci", "oci", blob_path("app", digest_of(layer)), ADMIN)
        found, blob = house.parts.reader.open_blob(ask, house.parts.reader.find(ask))
        blob.close()
        assert found.gate.size == len(layer)
    house.assert_counted()
    house.assert_published_is_there()


def test_a_part_that_is_still_needed_cannot_be_deleted(house: House) -> None:
    house.repository("oci", format="oci")
    body = push_image(house, b"layer")
    path = blob_path("app", digest_of(b"layer"))
    with pytest.raises(StillNeeded):
        house.parts.editor.delete(TARGET, [path])
    house.parts.editor.delete(TARGET, [manifest_path("app", digest_of(body)), path])
    assert not there(house, path)


def test_fifty_pushes_at_once_of_images_that_share_layers(make_house: MakeHouse) -> None:
    house = make_house(ARKVORY_MAX_UPLOADS="16", ARKVORY_MAX_UPLOADS_PER_KEY="16", ARKVORY_PLACE_WAIT_SECONDS="120", **LONG_GRACE)
    house.repository("oci", format="oci")
    shared = [f"shared {number}".encode() * 3000 for number in range(3)]

    def push(number: int) -> None:
        own = f"own {number}".encode() * 500
        for each in (b"{}", *shared, own):
            push_blob(house, each)
        push_manifest(house, manifest_of(*shared, own), tag=f"t{number}")

    gevent.joinall([gevent.spawn(push, number) for number in range(50)], raise_error=True)
    assert house.value("select count(*) from arkvory_artifacts where version is not null") == 50
    assert house.value("select count(*) from arkvory_references where kind = 'part'") == 50 * 5
    # A configuration, three shared layers, and of each image a layer and a manifest.
    assert len(list(house.files())) == 1 + 3 + 2 * 50
    assert house.value("select artifacts from arkvory_packages") == 100
    house.clean()
    house.assert_counted()
    house.assert_published_is_there()
    house.assert_no_strays()


# Uploads that take several requests


def filler(body: bytes):  # type: ignore[no-untyped-def]  # what a request's body looks like
    rest = [body]

    def fill(buffer: bytearray) -> int:
        count = min(len(buffer), len(rest[0]))
        buffer[:count], rest[0] = rest[0][:count], rest[0][count:]
        return count

    return fill


def begin(house: House) -> Address:
    snapshot = house.parts.publisher.may_publish(TARGET, "app")
    upload_id = house.parts.sessions.begin(snapshot.id, "app", owner_of(ADMIN), "key")
    return address_of(snapshot.id, "app", ADMIN, str(upload_id))


def patch(house: House, address: Address, body: bytes, offset: int | None = None) -> int:
    with house.parts.publisher.begin(TARGET, "app") as session:
        span = None if offset is None else f"{offset}-{offset + len(body) - 1}"
        return take_chunk(session, address, chunk(span, len(body)), filler(body))


def finish(house: House, address: Address, body: bytes) -> None:
    digest = parse_digest(digest_of(body))
    with house.parts.publisher.begin(TARGET, blob_path("app", digest)) as session:
        finish_blob(session, address, digest, chunk(None, None), filler(b""))


def test_an_upload_hops_between_processes_and_ends_in_a_third(make_house: MakeHouse) -> None:
    first = make_house(**LONG_GRACE)
    others = [make_house(owns=False, **LONG_GRACE) for _ in range(2)]
    first.repository("oci", format="oci")
    body = bytes(range(256)) * 20_000
    step = len(body) // 5
    address = begin(first)
    for turn, start in enumerate(range(0, len(body), step)):
        house = (first, *others)[turn % 3]
        assert patch(house, address, body[start : start + step], start) == start + step
    finish(others[1], address, body)
    assert there(first, blob_path("app", digest_of(body)))
    first.assert_counted()
    first.assert_no_strays()


def test_an_upload_goes_on_after_a_crash_with_what_was_acknowledged(make_house: MakeHouse) -> None:
    first = make_house(**LONG_GRACE)
    first.repository("oci", format="oci")
    body = b"0123456789" * 100_000
    address = begin(first)
    patch(first, address, body[:400_000])
    # The process dies while it moves more bytes: they are in the file, and nobody was told.
    held = first.parts.sessions.hold(address)
    held.incoming.write(b"never acknowledged" * 1000)
    held.incoming.close()
    first.close()
    second = make_house(owns=False, **LONG_GRACE)
    with pytest.raises(TooManyUploads):
        patch(second, address, b"x")
    second.parts.sessions.free_all()
    assert second.parts.sessions.received(address) == 400_000
    with pytest.raises(WrongOffset) as told:
        patch(second, address, b"x", 418_000)
    assert told.value.received == 400_000
    patch(second, address, body[400_000:], 400_000)
    finish(second, address, body)
    assert there(second, blob_path("app", digest_of(body)))


def test_a_client_that_breaks_off_goes_on_where_it_was(house: House) -> None:
    from app.errors import BodyCutShort

    house.repository("oci", format="oci")
    address = begin(house)
    body = b"x" * 3_000_000

    def cut(buffer: bytearray, given: list[int] = []) -> int:  # noqa: B006
        if given:
            raise BodyCutShort("gone")
        given.append(1)
        buffer[:] = body[: len(buffer)]
        return len(buffer)

    with pytest.raises(BodyCutShort), house.parts.publisher.begin(TARGET, "app") as session:
        take_chunk(session, address, chunk(None, None), cut)
    received = house.parts.sessions.received(address)
    assert received == 1024 * 1024
    patch(house, address, body[received:], received)
    finish(house, address, body)
    house.assert_counted()


def test_one_request_at_a_time_moves_bytes_of_an_upload(house: House) -> None:
    house.repository("oci", format="oci")
    address = begin(house)
    held = house.parts.sessions.hold(address)
    with pytest.raises(TooManyUploads):
        house.parts.sessions.hold(address)
    house.parts.sessions.pause(held.reservation, held.progress)
    held.incoming.close()
    house.parts.sessions.cancel(address)
    with pytest.raises(UploadUnknown):
        house.parts.sessions.received(address)


def test_an_idle_upload_holds_its_bytes_and_no_place_and_outlives_its_process_s_lease(make_house: MakeHouse) -> None:
    house = make_house(ARKVORY_UPLOAD_LEASE_SECONDS="0.01", **LONG_GRACE)
    house.repository("oci", format="oci")
    address = begin(house)
    patch(house, address, b"x" * 2_000_000)
    gevent.sleep(0.05)
    house.clean()
    assert house.parts.places.used == 0
    assert house.counters()[1, "open"] >= 2_000_000
    finish(house, address, b"x" * 2_000_000)
    house.assert_counted()


def test_ho_x_5_thirty_uploads_never_exceed_the_quota(make_house: MakeHouse) -> None:
    from app.errors import CapacitySpent

    house = make_house(ARKVORY_MAX_UPLOADS="16", ARKVORY_MAX_UPLOADS_PER_KEY="16", ARKVORY_PLACE_WAIT_SECONDS="120", **LONG_GRACE)
    house.repository("oci", format="oci", quota_bytes=10 * 1024 * 1024)
    stored, refused = [], []

    def push(number: int) -> None:
        body = bytes([number]) * (1024 * 1024)
        try:
            address = begin(house)
            patch(house, address, body)
            finish(house, address, body)
            stored.append(number)
        except CapacitySpent:
            refused.append(number)

    gevent.joinall([gevent.spawn(push, number) for number in range(30)], raise_error=True)
    assert (len(stored), len(refused)) == (10, 20)
    house.assert_counted()
    assert house.counters()[1, "published"] == 10 * 1024 * 1024


def take_for_dead(house: House) -> None:
    house.rows("update arkvory_uploads set held_until = now() - interval '1 second' where holder is not null")


@pytest.mark.parametrize("ends", ["as it began", "by its digest"])
def test_who_was_taken_for_dead_reaches_nothing_of_an_upload_that_another_went_on_with(make_house: MakeHouse, ends: str) -> None:
    """W1, W2: two processes believe that they hold one upload; the late one writes, pauses and publishes in vain."""
    stopped = make_house(**LONG_GRACE)
    other = make_house(owns=False, **LONG_GRACE)
    stopped.repository("oci", format="oci")
    address = begin(stopped)
    patch(stopped, address, b"first ")
    begun = stopped.parts.publisher.begin(TARGET, "app")
    session = begun.__enter__()
    receiver = session.go_on(address, None, Expected())
    receiver.feed(b"late " * 20_000)
    take_for_dead(other)
    patch(other, address, b"second ")
    receiver.feed(b"later " * 20_000)
    if ends == "by its digest":
        late = receiver.finish()
        with pytest.raises(UploadGivenUp):
            session.publish([NewFile(blob_path("app", f"sha256:{late.sha256}"), late, BLOB_TYPE, is_part=True)])
        begun.__exit__(UploadGivenUp, UploadGivenUp(), None)
    else:
        with pytest.raises(UploadGivenUp):
            begun.__exit__(None, None, None)
    assert other.parts.sessions.received(address) == len(b"first second ")
    finish(stopped, address, b"first second ")
    assert stopped.parts.admission.open_uploads == {}
    other.assert_counted()
    other.assert_published_is_there()
    other.clean()
    other.assert_no_strays()


def test_what_a_killed_request_left_is_gone_on_with_by_the_next_owner(make_house: MakeHouse) -> None:
    first = make_house(**LONG_GRACE)
    first.repository("oci", format="oci")
    address = begin(first)
    patch(first, address, b"kept " * 100_000)
    held = first.parts.sessions.hold(address)
    held.incoming.write(b"never acknowledged")
    first.parts.sessions.free_all()
    patch(first, address, b"end")
    # The former request lives after all.
    held.incoming.write(b"too late")
    finish(first, address, b"kept " * 100_000 + b"end")
    first.assert_published_is_there()
    first.assert_no_strays()
