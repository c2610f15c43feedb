"""Bodies on their way in: whole or not at all, `100 Continue` late, refusals that the client gets to see (W1)."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import threading
import time

import pytest

from tests.http.edge import Edge, Wire, until

MIB = 1024 * 1024
CHUNKED = "Transfer-Encoding: chunked"


def chunks(data: bytes, size: int) -> bytes:
    pieces = [data[start:start + size] for start in range(0, len(data), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def told(size: int, data: bytes) -> dict[str, object]:
    return {"size": size, "sha256": hashlib.sha256(data).hexdigest()}


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 65537, MIB - 1, MIB, MIB + 1, 5 * MIB + 3])
def test_a_body_of_any_length_arrives_whole(edge: Edge, size: int) -> None:
    data = os.urandom(size)
    with edge.wire() as wire:
        wire.request("PUT", "/upload", f"Content-Length: {size}", body=data)
        assert json.loads(wire.answer().body) == told(size, data)
        wire.request("PUT", "/upload", CHUNKED, body=chunks(data, 8192) if size else b"0\r\n\r\n")
        assert json.loads(wire.answer().body) == told(size, data)
        assert wire.ask("GET", "/ping").status == 200


@pytest.mark.parametrize("size", [1, 15, 16, 255, 65536, 256 * 1024, 256 * 1024 + 1, 3 * MIB])
def test_chunks_of_any_size_are_put_together(edge: Edge, size: int) -> None:
    data = os.urandom(max(2 * size, 1000) + 7)
    with edge.wire() as wire:
        wire.request("PUT", "/upload", CHUNKED, body=chunks(data, size))
        assert json.loads(wire.answer().body) == told(len(data), data)


def test_chunk_extensions_trailers_and_leading_zeros_are_accepted_and_ignored(edge: Edge) -> None:
    with edge.wire() as wire:
        body = b"0003;name=\"value\"\r\nabc\r\n2 ; x\r\nde\r\n000\r\nX-Trailer: y\r\nContent-Length: 9\r\n\r\n"
        wire.request("PUT", "/upload", CHUNKED, body=body)
        assert json.loads(wire.answer().body) == told(5, b"abcde")
        assert wire.ask("GET", "/ping").status == 200


def test_a_chunked_body_sent_byte_by_byte_is_the_same(edge: Edge) -> None:
    with edge.wire() as wire:
        wire.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wire.request("PUT", "/upload", CHUNKED)
        for byte in b"3\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\nA: b\r\n\r\n":
            wire.send(bytes([byte]))
        assert json.loads(wire.answer().body) == told(19, b"abc0123456789abcdef")


@pytest.mark.parametrize("body", [
    b"\r\n", b"x\r\n", b"-1\r\na\r\n", b"0x1\r\na\r\n", b"1 \r\na\r\n", b" 1\r\na\r\n", b"1_0\r\na\r\n", b"1" * 17 + b"\r\n",
    b"1\na\n0\n\n", b"1\r\nab\r\n0\r\n\r\n", b"1\r\na0\r\n\r\n", b"1;\0\r\na\r\n0\r\n\r\n", b"1;" + b"e" * 2000 + b"\r\na\r\n0\r\n\r\n",
    b"1\r\na\r\n0\r\nno colon\r\n\r\n", b"1\r\na\r\n0\r\n" + b"T: y\r\n" * 3000 + b"\r\n",
])
def test_malformed_chunks_are_400_and_end_the_connection(edge: Edge, body: bytes) -> None:
    with edge.wire() as wire:
        wire.request("POST", "/swallow", CHUNKED, body=body)
        answer = wire.answer()
        assert (answer.status, answer.headers["connection"]) == (400, "close")
        assert wire.is_closed()


@pytest.mark.parametrize(("lines", "body"), [
    (["Content-Length: 10"], b"only5"),
    ([f"Content-Length: {3 * MIB}"], b"x" * 2 * MIB),
    ([CHUNKED], b"5\r\nonly"),
    ([CHUNKED], b"5\r\nonly5"),
    ([CHUNKED], b"5\r\nonly5\r\n"),
    ([CHUNKED], b"5\r\nonly5\r\n0\r\n"),
    ([CHUNKED], b""),
])
def test_a_body_cut_short_is_never_taken_for_complete(edge: Edge, lines: list[str], body: bytes) -> None:
    (edge.folder / "cut").unlink(missing_ok=True)
    with edge.wire() as wire:
        wire.request("PUT", "/swallow", *lines, body=body)
        wire.socket.shutdown(socket.SHUT_WR)
        answer = wire.answer()
        assert (answer.status, answer.body.split(b":")[0]) == (400, b"body_cut_short")
        assert wire.is_closed()
    assert (edge.folder / "cut").read_text() == "cut short"


def test_a_client_that_resets_in_mid_body_leaves_no_traceback(edge: Edge) -> None:
    before = edge.errors.read_text()
    (edge.folder / "cut").unlink(missing_ok=True)
    with edge.wire() as wire:
        wire.request("PUT", "/swallow", "Content-Length: 100", body=b"x" * 50)
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    until(lambda: (edge.folder / "cut").exists() and (edge.folder / "cut").read_text() == "cut short")
    assert edge.errors.read_text() == before


def test_continue_is_said_when_the_body_is_first_read(edge: Edge) -> None:
    with edge.wire() as wire:
        wire.request("PUT", "/upload", "Content-Length: 3", "Expect: 100-continue")
        assert wire.answer().status == 100
        wire.send(b"abc")
        assert json.loads(wire.answer().body) == told(3, b"abc")
        wire.request("PUT", "/upload", CHUNKED, "Expect: 100-Continue")
        assert wire.answer().status == 100
        wire.send(chunks(b"abc", 2))
        assert json.loads(wire.answer().body) == told(3, b"abc")


@pytest.mark.parametrize("status", [401, 403, 413, 429, 507])
def test_a_refusal_comes_instead_of_continue(edge: Edge, status: int) -> None:
    with edge.wire() as wire:
        wire.request("PUT", f"/refuse/{status}", "Content-Length: 1000000", "Expect: 100-continue")
        answer = wire.answer()
        assert (answer.status, answer.headers["connection"]) == (status, "close")
        assert wire.is_closed()


def test_a_client_that_does_not_wait_for_continue_is_not_told_it(edge: Edge) -> None:
    with edge.wire() as wire:
        wire.request("PUT", "/upload", "Content-Length: 3", "Expect: 100-continue", body=b"abc")
        first = wire.answer()
        assert first.status == 200 or wire.answer().status == 200
        assert wire.ask("PUT", "/upload", "Expect: 100-continue").status == 200


@pytest.mark.parametrize("size", [1, 1000, 65536])
def test_a_small_body_that_nobody_read_does_not_cost_the_connection(edge: Edge, size: int) -> None:
    with edge.wire() as wire:
        answer = wire.ask("PUT", "/refuse/401", f"Content-Length: {size}", body=b"x" * size)
        assert (answer.status, answer.headers.get("connection")) == (401, None)
        assert wire.ask("GET", "/ping").body == b"pong"


def test_the_rest_of_a_body_is_never_read_as_a_request(edge: Edge) -> None:
    smuggled = b"GET /ping HTTP/1.1\r\nHost: a\r\n\r\n"
    with edge.wire() as wire:
        assert wire.ask("PUT", "/refuse/401", f"Content-Length: {len(smuggled)}", body=smuggled).status == 401
        assert wire.ask("GET", "/nothing").status == 404
    with edge.wire() as wire:
        assert wire.ask("PUT", "/refuse/401", CHUNKED, body=chunks(smuggled, 100)).status == 401
        assert wire.is_closed()


@pytest.mark.parametrize("lines", [["Content-Length: 33554432"], [CHUNKED]])
def test_a_client_still_sending_a_large_body_gets_to_see_the_refusal(edge: Edge, lines: list[str]) -> None:
    body = bytes(32 * MIB) if CHUNKED not in lines else chunks(bytes(32 * MIB), MIB)
    with edge.wire() as wire:
        # A client that sends everything before it reads anything; a reset would fail the send or the read.
        answer = wire.ask("PUT", "/refuse/413", *lines, body=body)
        assert (answer.status, answer.body) == (413, b"no\n")
        assert wire.rest() == b""


def test_lines_can_be_read_from_a_body(edge: Edge) -> None:
    answer = edge.ask("POST", "/lines", CHUNKED, body=chunks(b"one\ntwo\n\nthree", 5))
    assert json.loads(answer.body) == {"lines": ["one\n", "two\n", "\n", "three"]}


def test_a_fast_uploader_starves_nobody_and_costs_no_memory(edge: Edge) -> None:
    size, piece = 256 * MIB, bytes(MIB)
    before, waits = edge.worker.memory_info().rss, []
    with edge.wire() as uploader, edge.wire() as other:
        uploader.request("PUT", "/upload", f"Content-Length: {size}")
        sending = threading.Thread(target=_send, args=(uploader, piece, size // MIB))
        sending.start()
        while sending.is_alive():
            began = time.monotonic()
            assert other.ask("GET", "/ping").body == b"pong"
            waits.append(time.monotonic() - began)
        assert json.loads(uploader.answer().body)["size"] == size
    assert edge.worker.memory_info().rss - before < 32 * MIB
    # Starved, the other client would get about one answer, after seconds.
    assert len(waits) > 20


def _send(wire: Wire, piece: bytes, count: int) -> None:
    for _ in range(count):
        wire.send(piece)
