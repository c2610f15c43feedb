"""How many uploads that take several requests one user may have open: never more than the setting says (DESIGN 5, Admission)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import gevent
import pytest

from app.access.deploying import DeployTokens, NewDeployToken
from app.access.identity import Caller, Credential
from app.errors import CapacitySpent, DigestMismatch, TooManyUploads
from app.protocols.oci.uploads import owner_of
from app.upload.multipart import Upload
from app.upload.sessions import Address
from tests.conftest import MakeHouse
from tests.support.house import ADMIN, House
from tests.support.multipart import SMALL_PARTS, Client

BODY = bytes(range(100))
MOST = 3
BOUND: dict[str, Any] = SMALL_PARTS | {"ARKVORY_MAX_OPEN_UPLOADS_PER_USER": str(MOST)}
SIZES: dict[str, Any] = {"size": len(BODY), "part_size": 30}


@pytest.fixture
def house(make_house: MakeHouse) -> House:
    made = make_house(**BOUND)
    made.repository("files", public=True)
    return made


@pytest.fixture
def client(house: House) -> Client:
    return Client(house)


def fill(client: Client) -> list[Upload]:
    """As many as there may be."""
    return [client.create(f"{number}.bin", **SIZES) for number in range(MOST)]


def begin_layer(house: House, repository: int, caller: Caller = ADMIN) -> UUID:
    return house.parts.sessions.begin(repository, "image", owner_of(caller), caller.upload_key)


def may_begin(client: Client) -> bool:
    try:
        client.create("one more.bin", **SIZES)
    except TooManyUploads:
        return False
    return True


def open_now(house: House) -> int:
    return int(house.value("select count(*) from arkvory_uploads where status = 'open'"))


# -- whose


def test_one_more_than_there_may_be_is_refused_and_leaves_nothing(client: Client) -> None:
    """W1."""
    fill(client)
    with pytest.raises(TooManyUploads, match=f"{MOST} uploads of one user are open, of at most {MOST}; complete or cancel") as refused:
        client.create(**SIZES)
    assert refused.value.retry_after == 30
    assert open_now(client.house) == MOST == client.house.value("select count(*) from arkvory_multiparts")
    assert client.house.parts.admission.refused == 1
    client.house.publish("in one request", BODY)
    client.house.assert_counted()


def test_each_user_has_as_many_and_no_more_by_another_token(client: Client) -> None:
    house = client.house
    fill(client)
    for name in ("ada", "ben"):
        house.user(name, administrator=True)
        first, second = (Client(house, caller=house.identify(house.token(name))) for _ in range(2))
        first.create(**SIZES)
        second.create(**SIZES)
        first.create(**SIZES)
        assert not may_begin(first) and not may_begin(second)


def test_each_deploy_token_has_as_many(house: House) -> None:
    deploying = DeployTokens(house.parts.database, house.parts.transactions, house.parts.access)
    for name in ("one", "two"):
        secret = deploying.create(ADMIN, "files", NewDeployToken(name, ("read", "write")))[1]
        caller = Caller(house.parts.identities.identify(Credential("", secret)), "127.0.0.1")
        fill(Client(house, caller=caller))
        assert not may_begin(Client(house, caller=caller))


def test_clients_without_a_login_have_as_many_by_network(house: House) -> None:
    house.rule("files", "anonymous", "read", "write")
    fill(Client(house, caller=Caller(None, "192.0.2.1")))
    assert not may_begin(Client(house, caller=Caller(None, "192.0.2.1")))
    fill(Client(house, caller=Caller(None, "192.0.2.2")))
    fill(Client(house, caller=Caller(None, "2001:db8::1")))
    assert not may_begin(Client(house, caller=Caller(None, "2001:db8::ffff:2")))
    assert may_begin(Client(house, caller=Caller(None, "2001:db8:0:1::1")))


def test_uploads_of_layers_are_counted_along(client: Client) -> None:
    house = client.house
    repository = house.repository("images", format="oci")
    address = Address(repository, "image", owner_of(ADMIN), begin_layer(house, repository))
    client.create(**SIZES)
    begin_layer(house, repository)
    assert not may_begin(client)
    with pytest.raises(TooManyUploads):
        begin_layer(house, repository)
    assert len(house.temporary()) == MOST
    house.parts.sessions.cancel(address)
    assert may_begin(client)


# -- what gives one back


def complete(client: Client, upload: Upload) -> None:
    client.send_all(upload, BODY)
    client.complete(upload)


def fail(client: Client, upload: Upload) -> None:
    client.send_all(upload, BODY)
    with pytest.raises(DigestMismatch):
        client.complete(upload, "0" * 64)


def expire(client: Client, upload: Upload) -> None:
    """Whoever began it was killed, or the server was while it received a part."""
    with client.house.parts.part_holds.hold(upload, 1, 30) as (_, range):
        client.house.rows("update arkvory_uploads set lease_until = now() - interval '1 second' where id = :id", id=upload.id)
        range.discard()
    assert not may_begin(client)
    client.house.clean()


def delete(client: Client, _: Upload) -> None:
    client.house.registry.delete(ADMIN, "files")
    client.house.clean()
    client.house.repository("files")


@pytest.mark.parametrize("end", [complete, fail, Client.cancel, expire, delete], ids=["complete", "fail", "cancel", "expire", "delete"])
def test_one_that_has_ended_is_not_counted(client: Client, end: Callable[[Client, Upload], None]) -> None:
    first = fill(client)[0]
    assert not may_begin(client)
    end(client, first)
    assert may_begin(client)
    if end is not delete:
        assert not may_begin(client)
    client.house.assert_counted()


def test_layers_of_a_repository_that_is_gone_are_not_counted(house: House) -> None:
    repository = house.repository("images", format="oci")
    for _ in range(MOST):
        begin_layer(house, repository)
    house.registry.delete(ADMIN, "images")
    assert not may_begin(Client(house))
    house.clean()
    assert fill(Client(house))
    house.assert_counted()
    house.assert_rows_and_files()
    assert len(house.temporary()) == MOST


def test_layers_that_could_not_be_begun_are_not_counted(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """W1."""
    repository = house.repository("images", format="oci")

    def full(_: UUID) -> None:
        raise CapacitySpent("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(house.parts.store, "create", full)
        for _ in range(MOST + 1):
            with pytest.raises(CapacitySpent):
                begin_layer(house, repository)
    assert (open_now(house), house.counters()) == (0, {})


def test_one_that_is_being_completed_is_counted(client: Client) -> None:
    """It takes room until it is published."""
    first = fill(client)[0]
    client.send_all(first, BODY)
    client.house.parts.completions._multiparts.close(first, None, {"kind": "user", "id": 0, "proof": ""})
    assert not may_begin(client)


# -- requests that come twice


def test_a_request_that_comes_again_under_its_key_is_the_same_upload(client: Client) -> None:
    """W4."""
    upload = client.create(**SIZES, key="k")
    fill_rest = [client.create(f"{number}.bin", **SIZES) for number in range(MOST - 1)]
    assert len(fill_rest) == MOST - 1 and not may_begin(client)
    assert client.create(**SIZES, key="k").id == upload.id
    with pytest.raises(TooManyUploads):
        client.create(**SIZES, key="another")
    client.cancel(fill_rest[0])
    assert client.create(**SIZES, key="another").id != upload.id


@pytest.mark.parametrize("quota", [None, MOST * len(BODY)], ids=["no quota", "no room for a second one"])
def test_a_crowd_with_one_key_gets_the_last_one_that_there_may_be(client: Client, quota: int | None) -> None:
    """W4: each of them looks before any has begun it."""
    client.house.change("files", quota_bytes=quota)
    for number in range(MOST - 1):
        client.create(f"{number}.bin", **SIZES)
    crowd = [gevent.spawn(client.create, **SIZES, key="k") for _ in range(8)]
    gevent.joinall(crowd, raise_error=True)
    assert len({each.value.id for each in crowd}) == 1
    assert open_now(client.house) == MOST


def test_no_room_is_said_where_there_may_be_one_more(client: Client) -> None:
    client.house.change("files", quota_bytes=len(BODY))
    client.create(**SIZES)
    with pytest.raises(CapacitySpent):
        client.create("other.bin", **SIZES)


# -- many at once


def test_no_race_of_two_processes_lets_one_more_in(make_house: MakeHouse) -> None:
    """Uploads in parts and of layers, begun and cancelled by all of them at once: there are never more than there may be."""
    most = 4
    bound = SMALL_PARTS | {"ARKVORY_MAX_OPEN_UPLOADS_PER_USER": str(most)}
    houses = make_house(**bound), make_house(owns=False, **bound)
    houses[0].repository("files")
    images = houses[0].repository("images", format="oci")
    done = {"begun": 0, "refused": 0}
    seen: list[int] = []

    def press(house: House, layers: bool) -> None:
        client = Client(house)
        for _ in range(4):
            try:
                if layers:
                    address = Address(images, "image", owner_of(ADMIN), begin_layer(house, images))
                    gevent.sleep(0.1)
                    house.parts.sessions.cancel(address)
                else:
                    upload = client.create(**SIZES)
                    gevent.sleep(0.1)
                    client.cancel(upload)
                done["begun"] += 1
            except TooManyUploads:
                done["refused"] += 1

    def watch() -> None:
        while True:
            seen.append(open_now(houses[0]))
            gevent.sleep(0.005)

    watcher = gevent.spawn(watch)
    pressing = [gevent.spawn(press, house, layers) for house in houses for layers in (True, False) for _ in range(10)]
    gevent.joinall(pressing, raise_error=True)
    watcher.kill()
    assert max(seen) <= most
    assert done["begun"] and done["refused"], done
    crowd = [gevent.spawn(may_begin, Client(houses[number % 2])) for number in range(30)]
    gevent.joinall(crowd, raise_error=True)
    assert sum(each.value for each in crowd) == open_now(houses[0]) == most
    houses[0].assert_counted()


def test_a_bound_that_is_lowered_ends_nothing_that_is_open(make_house: MakeHouse) -> None:
    house = make_house(**BOUND)
    house.repository("files")
    uploads = fill(Client(house))
    lower = Client(make_house(owns=False, **BOUND | {"ARKVORY_MAX_OPEN_UPLOADS_PER_USER": "1"}))
    assert not may_begin(lower)
    for upload in uploads:
        complete(lower, upload)
    assert may_begin(lower) and not may_begin(lower)
