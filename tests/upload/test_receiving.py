"""A body on its way in: nothing lost, nothing out of order, nothing kept of what failed (DESIGN 5, "Bytes"; W1)."""

from __future__ import annotations

import hashlib
import io
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import gevent
import pytest
from gevent.monkey import get_original

from app.errors import CapacitySpent, DigestMismatch, Invalid
from app.jobs import lifecycle
from app.storage.filesystem import FileStore
from app.upload.admission import Admission, Reservation
from app.upload.receiving import APART, PIECE, Expected, Receiver

NOBODY = cast(Admission, None)


def receiver(folder: Path, size: int, expected: Expected | None = None) -> Receiver:
    return Receiver(NOBODY, FileStore(folder), Reservation(uuid4(), 1, size, exact=True), expected or Expected(size=size))


def pieces(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    found, offset = [], 0
    while offset < len(data):
        size = sizes[len(found) % len(sizes)]
        found.append(data[offset : offset + size])
        offset += size
    return found


@pytest.mark.parametrize("sizes", [(PIECE,), (1, APART, 7), (APART - 1,), (3 * PIECE, 10, PIECE)])
def test_pieces_land_in_their_order_whatever_their_sizes(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    data = random.Random(1).randbytes(9 * PIECE + 13)
    receiving = receiver(tmp_path, len(data))
    for piece in pieces(data, sizes):
        receiving.feed(piece)
    received = receiving.finish()
    assert received.path.read_bytes() == data
    assert (received.sha256, received.size) == (hashlib.sha256(data).hexdigest(), len(data))
    assert received.reservation.written == len(data)


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 20 * PIECE + 5])
def test_buffers_that_are_used_again_lose_no_byte(tmp_path: Path, size: int) -> None:
    data = random.Random(2).randbytes(size)
    receiving = receiver(tmp_path, size)
    receiving.drain_into(io.BytesIO(data).readinto)
    received = receiving.finish()
    assert received.path.read_bytes() == data
    assert received.sha256 == hashlib.sha256(data).hexdigest()


def test_a_body_of_unknown_length_is_drained_too(tmp_path: Path) -> None:
    data = random.Random(3).randbytes(3 * PIECE + 1)
    receiving = receiver(tmp_path, len(data), Expected())
    receiving.drain_into(io.BytesIO(data).readinto)
    assert receiving.finish().path.read_bytes() == data


def test_a_disk_that_fills_up_is_told_although_more_pieces_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W1."""
    receiving = receiver(tmp_path, 10 * PIECE)
    incoming: Any = receiving._incoming

    def full(_piece: bytes) -> None:
        raise CapacitySpent("full")

    monkeypatch.setattr(incoming, "write", full)
    with pytest.raises(CapacitySpent):
        receiving.drain_into(io.BytesIO(bytes(10 * PIECE)).readinto)
    receiving.discard()
    assert list((tmp_path / "incoming").iterdir()) == []


def test_a_wrong_digest_and_a_short_body_are_refused(tmp_path: Path) -> None:
    wrong = receiver(tmp_path, 3, Expected({"sha256": "0" * 64}, 3))
    wrong.feed(b"abc")
    with pytest.raises(DigestMismatch):
        wrong.finish()
    short = receiver(tmp_path, 4)
    short.feed(b"abc")
    with pytest.raises(Invalid):
        short.finish()


def test_an_interrupted_wait_leaves_no_thread_writing_into_a_closed_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    receiving = receiver(tmp_path, 10 * PIECE)
    incoming: Any = receiving._incoming
    write, events = incoming.write, list[str]()

    def slow(piece: bytes) -> None:
        threadsafe_sleep(0.2)
        write(piece)
        events.append("written")

    def close() -> None:
        events.append("closed")

    monkeypatch.setattr(incoming, "write", slow)
    monkeypatch.setattr(incoming, "_give_back", close)
    with pytest.raises(gevent.Timeout), gevent.Timeout(0.05):
        receiving.drain_into(io.BytesIO(bytes(10 * PIECE)).readinto)
    receiving.discard()
    assert events[-1] == "closed" and "written" in events


def threadsafe_sleep(seconds: float) -> None:
    get_original("time", "sleep")(seconds)


def test_what_a_thread_raises_in_the_domains_words_is_left_to_who_waits(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A full disk fills no log; what nobody has expected is said at length."""
    hub = gevent.get_hub()
    monkeypatch.setattr(hub, "handle_error", hub.handle_error)
    lifecycle._leave_to_who_waits(hub)

    def fails(error: Exception) -> None:
        raise error

    with pytest.raises(CapacitySpent):
        hub.threadpool.apply(fails, (CapacitySpent("the disk is full"),))
    assert capfd.readouterr().err == ""
    with pytest.raises(ZeroDivisionError):
        hub.threadpool.apply(fails, (ZeroDivisionError("odd"),))
    assert "odd" in capfd.readouterr().err
