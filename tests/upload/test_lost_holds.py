"""Whoever does not hear whether it holds an upload lets it go: nobody waits for its lease (W1, W4, ADR 12)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.cache import changes
from app.errors import DatabaseAway
from app.upload.sessions import Address
from tests.support.house import House
from tests.support.multipart import SMALL_PARTS, Client
from tests.support.proxy import Wire

each_end = pytest.mark.parametrize("how", ["lost", "unheard"])


@pytest.fixture
def house(wire: Wire, database_url: str, tmp_path: Path) -> Iterator[House]:
    made = House(wire.url, tmp_path / "data", **SMALL_PARTS)
    made.url = database_url
    made.repository()
    yield made
    made.close()


def at_commit(house: House, wire: Wire, monkeypatch: pytest.MonkeyPatch, number: int, how: str) -> None:
    """Let the wire break at this COMMIT from now on, which is `lost`, or its answer `unheard`."""
    commit, commits = house.parts.transactions._commit, iter(range(1, 1000))

    def counted(transaction: changes.Transaction) -> None:
        if next(commits) == number:
            wire.at_commit = how
        commit(transaction)

    monkeypatch.setattr(house.parts.transactions, "_commit", counted)


@each_end
@pytest.mark.parametrize(("number", "size"), [(1, 8), (1, None), (2, 8)])
def test_a_part_can_be_sent_again_at_once(
    house: House, wire: Wire, monkeypatch: pytest.MonkeyPatch, how: str, number: int, size: int | None
) -> None:
    """When it is taken, and when it is there."""
    client = Client(house)
    upload = client.create(size=size, part_size=8)
    at_commit(house, wire, monkeypatch, number, how)
    with pytest.raises(DatabaseAway):
        client.send(upload, 1, b"8 bytes.")
    client.send(upload, 1, b"8 bytes.")
    assert client.complete(upload).state == "published"
    house.assert_nothing_is_left()


@each_end
@pytest.mark.parametrize("number", [1, 2])
def test_an_upload_can_be_completed_again_at_once(
    house: House, wire: Wire, monkeypatch: pytest.MonkeyPatch, how: str, number: int
) -> None:
    """When no part is taken any more, and when it is held for its end."""
    client = Client(house)
    upload = client.create(size=4, part_size=8)
    client.send(upload, 1, b"four")
    at_commit(house, wire, monkeypatch, number, how)
    with pytest.raises(DatabaseAway):
        client.complete(upload)
    assert client.complete(upload).state == "published"
    house.assert_nothing_is_left()


@each_end
@pytest.mark.parametrize("number", [1, 2])
def test_a_session_can_be_gone_on_with_at_once(
    house: House, wire: Wire, monkeypatch: pytest.MonkeyPatch, how: str, number: int
) -> None:
    """When a request takes it, and when it lets it go."""
    sessions, repository = house.parts.sessions, int(house.value("select id from arkvory_repositories"))
    address = Address(repository, "image", "user", sessions.begin(repository, "image", "user", "k", ()))
    at_commit(house, wire, monkeypatch, number, how)
    with pytest.raises(DatabaseAway):
        _send_nothing(house, address)
    _send_nothing(house, address)
    sessions.cancel(address)
    house.assert_nothing_is_left()


def _send_nothing(house: House, address: Address) -> None:
    held = house.parts.sessions.hold(address)
    held.incoming.close()
    house.parts.sessions.pause(held.reservation, held.progress)
