"""Slow clients, silent clients and too many clients."""

from __future__ import annotations

import contextlib
import select
import time
from typing import Any

import pytest

from tests.http.edge import Edge, Wire, until
from tests.support import pace


def drip(wire: Wire, data: bytes, pause: float, most: float = 20.0) -> bytes:
    """Send `data` over and over, a byte at a time, until the server ends it; all that it said."""
    deadline = time.monotonic() + most
    wire.socket.settimeout(pause)
    heard = b""
    while time.monotonic() < deadline:
        try:
            got = wire.socket.recv(65536)
            if not got:
                return heard
            heard += got
        except TimeoutError:
            with contextlib.suppress(ConnectionError):
                wire.send(data[:1])
                data = data[1:] + data[:1]
        except ConnectionError:
            return heard
    raise AssertionError("the server listened to a slow client to the end")


def test_a_head_that_drips_is_ended_at_the_deadline_whatever_it_sends(hasty: Edge) -> None:
    with hasty.wire() as wire:
        wire.send(b"GET /ping HTTP/1.1\r\nHost: a\r\n")
        heard = drip(wire, b"X: y\r\n", 0.1)
    assert heard.startswith(b"HTTP/1.1 408 ")


def test_a_connection_without_a_request_is_closed_without_a_word(hasty: Edge) -> None:
    with hasty.wire() as wire:
        assert wire.rest() == b""


def test_an_idle_connection_is_closed_after_the_pause(hasty: Edge) -> None:
    with hasty.wire() as wire:
        assert wire.ask("GET", "/ping").status == 200
        assert wire.rest() == b""


def test_a_body_that_stops_moving_is_cut_short(hasty: Edge) -> None:
    (hasty.folder / "cut").unlink(missing_ok=True)
    with hasty.wire() as wire:
        wire.request("PUT", "/swallow", "Content-Length: 100", body=b"x" * 50)
        assert wire.answer().body.startswith(b"body_cut_short")
        assert wire.is_closed()
    assert (hasty.folder / "cut").read_text() == "cut short"


def test_a_slow_body_that_moves_arrives(hasty: Edge) -> None:
    def send() -> None:
        with hasty.wire() as wire:
            wire.request("PUT", "/swallow", "Content-Length: 8")
            for _ in range(8):
                wire.send(b"x")
                time.sleep(0.3)
            assert wire.answer().body == b"8"

    pace.again(send, lost=0.3)


def test_a_reader_that_stops_reading_is_left(hasty: Edge) -> None:
    with hasty.wire() as wire:
        wire.request("GET", "/file/sparse.bin", "X-Request-Id: stalled-1")
        assert hasty.log("stalled-1")["aborted"] is True


def test_a_client_that_keeps_sending_after_a_refusal_is_not_heard_for_ever(edge: Edge) -> None:
    with edge.wire() as wire:
        wire.request("PUT", "/refuse/413", "Content-Length: 99999999999")
        heard = drip(wire, b"x", 0.2, most=25.0)
    assert heard.startswith(b"HTTP/1.1 413 ")


def test_a_small_unread_body_that_drips_is_not_waited_for_long(edge: Edge) -> None:
    with edge.wire() as wire:
        wire.request("PUT", "/refuse/401", "Content-Length: 60000")
        heard = drip(wire, b"x", 0.2, most=25.0)
    assert heard.startswith(b"HTTP/1.1 401 ")


def test_the_number_of_connections_is_limited_and_idle_ones_make_room(make_edge: Any) -> None:
    server = make_edge(ARKVORY_MAX_CONNECTIONS="8")
    until(lambda: len(server.worker.net_connections()) == 1)
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(server.wire()) for _ in range(7)]
        for wire in wires:
            assert wire.ask("GET", "/ping").status == 200
        newest = stack.enter_context(server.wire())
        assert newest.ask("GET", "/ping").status == 200
        assert wires[0].rest() == b""
        assert wires[1].ask("GET", "/ping").status == 200


def test_beyond_the_limit_a_connection_waits_for_its_turn(make_edge: Any) -> None:
    server = make_edge(ARKVORY_MAX_CONNECTIONS="8")
    with contextlib.ExitStack() as stack:
        busy = []
        for number in range(8):
            busy.append(stack.enter_context(server.wire()))
            busy[-1].request("GET", "/slow?seconds=8")
            until(lambda known=number: len(server.worker.net_connections()) >= known + 2)
        late = stack.enter_context(server.wire())
        late.request("GET", "/ping")
        late.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            late.answer()
        late.socket.settimeout(30)
        assert late.answer().body == b"pong"
        assert [wire.answer().body for wire in busy] == [b"done"] * 8


@pytest.mark.parametrize("framing", ["Content-Length: 100", "Transfer-Encoding: chunked"])
def test_a_body_that_drips_is_given_up_although_it_is_never_silent(hasty: Edge, framing: str) -> None:
    with hasty.wire() as wire:
        wire.request("PUT", "/upload", framing)
        piece = b"x" if "Length" in framing else b"1\r\nx\r\n"
        began = time.monotonic()
        with contextlib.suppress(OSError):
            for _ in range(20):
                wire.socket.sendall(piece)
                if select.select([wire.socket], [], [], 0.8)[0]:
                    break
        assert time.monotonic() - began < 10
        assert wire.answer().status == 400
