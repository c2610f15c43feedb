"""What leaves the server: framing, request ids, the access log, mistakes of the application."""

from __future__ import annotations

import json
import os
import re

import gevent
import pytest

from app.http.accesslog import AccessLog, loggable_path, request_ids
from tests.http.edge import Edge, until


def test_an_answer_has_a_date_a_request_id_and_a_length(edge: Edge) -> None:
    answer = edge.ask("GET", "/ping")
    assert (answer.status, answer.body, answer.headers["content-length"]) == (200, b"pong", "4")
    assert answer.headers["date"].endswith(" GMT")
    assert re.fullmatch(r"[0-9a-f]{12}-[0-9a-f]{6,}", answer.headers["x-request-id"])


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_stream_is_chunked_and_keeps_the_connection(edge: Edge, method: str) -> None:
    with edge.wire() as wire:
        answer = wire.ask(method, "/stream")
        assert answer.body == (b"0\n1\n2\n" if method == "GET" else b"")
        assert (answer.headers.get("transfer-encoding") == "chunked") == (method == "GET")
        assert wire.ask("GET", "/ping").status == 200


def test_http_1_0_gets_neither_chunks_nor_a_kept_connection(edge: Edge) -> None:
    with edge.wire() as wire:
        wire.send(b"GET /stream HTTP/1.0\r\n\r\n")
        answer = wire.answer()
        assert (answer.body, answer.headers["connection"]) == (b"0\n1\n2\n", "close")


def test_http_1_0_may_keep_its_connection(edge: Edge) -> None:
    with edge.wire() as wire:
        for _ in range(2):
            wire.send(b"GET /ping HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            answer = wire.answer()
            assert (answer.body, answer.headers["connection"]) == (b"pong", "keep-alive")


def test_a_client_that_asks_for_it_gets_its_connection_closed(edge: Edge) -> None:
    with edge.wire() as wire:
        assert wire.ask("GET", "/ping", "Connection: x, Close").headers["connection"] == "close"
        assert wire.rest() == b""


def test_a_sane_request_id_is_kept_and_another_replaced(edge: Edge) -> None:
    assert edge.ask("GET", "/who", "X-Request-Id: a.B_c-1").headers["x-request-id"] == "a.B_c-1"
    for bad in ("x" * 65, "a b", "a;b", "\xe4"):
        answer = edge.ask("GET", "/who", f"X-Request-Id: {bad}")
        assert answer.headers["x-request-id"] == json.loads(answer.body)["id"] != bad


def test_request_ids_never_repeat() -> None:
    one, other = request_ids(), request_ids()
    assert len({make(None) for make in (one, other) for _ in range(1000)}) == 2000


def test_the_log_has_a_line_for_each_request(edge: Edge) -> None:
    answer = edge.ask("GET", "/who?token=hidden&a=b", "X-Request-Id: logged-1", "Authorization: Bearer hidden")
    line = edge.log("logged-1")
    assert line["bytes"] == len(answer.body)
    assert (line["method"], line["path"], line["status"], line["remote"]) == ("GET", "/who?token=***&a=b", 200, "127.0.0.1")
    assert (line["user"], line["repository"]) == ("ann", "files")
    assert line["duration_ms"] > 0
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
    assert "hidden" not in edge.output.read_text() + edge.errors.read_text()


def test_the_log_counts_the_bytes_of_a_file_and_of_a_head(edge: Edge) -> None:
    edge.ask("GET", "/file/medium.bin", "X-Request-Id: bytes-1")
    edge.ask("HEAD", "/file/medium.bin", "X-Request-Id: bytes-2")
    edge.ask("PUT", "/upload", "X-Request-Id: bytes-3", "Expect: 100-continue", "Content-Length: 1", body=b"x")
    assert [edge.log(f"bytes-{number}")["bytes"] for number in (1, 2)] == [262144, 0]
    assert 50 < edge.log("bytes-3")["bytes"] < 120


@pytest.mark.parametrize(("target", "logged"), [
    ("/a%2Fb?x=1", "/a%2Fb?x=1"),
    ("/a?token=1&Password=2&b=3&access_token", "/a?token=***&Password=***&b=3&access_token"),
    ("/a?%74oken=1&api-key=2&client_secret=a=b", "/a?%74oken=***&api-key=***&client_secret=***"),
    ("http://ann:pw@host/a?b=1", "/a?b=1"),
    ("/npm/r/-/user/token/arkv_aB-_9x", "/npm/r/-/user/token/arkv_***"),
    ("/a?x=arkv_1", "/a?x=arkv_***"),
    ("/a?url=http%3A%2F%2Fann%3Apw%40host%2Fnpm%2F%40acme&b=1", "/a?url=http%3A%2F%2F***%40host%2Fnpm%2F%40acme&b=1"),
    ("/a?url=http://ann:pw@host/npm/@acme", "/a?url=http://***@host/npm/@acme"),
    ("/a?url=http://host/npm/@acme", "/a?url=http://host/npm/@acme"),
    ("*", "*"),
])
def test_a_logged_path_is_raw_and_has_no_secrets(target: str, logged: str) -> None:
    assert loggable_path(target) == logged


def test_a_reader_of_the_log_that_does_not_keep_up_stops_nobody() -> None:
    reader, writer = os.pipe()
    log = AccessLog(writer)
    for number in range(3000):
        log.write({"number": number, "filler": "x" * 50}, 1.5)
    log.flush()
    seen = b""
    while seen.count(b"\n") < 3000:
        seen += os.read(reader, 65536)
        gevent.sleep(0.06)
    lines = [json.loads(line) for line in seen.splitlines()]
    assert [line["number"] for line in lines] == list(range(3000))
    assert lines[0]["time"] == "1970-01-01T00:00:01.500Z"
    os.close(reader)
    os.close(writer)


def test_a_mistake_of_the_application_is_500_with_its_request_id_in_the_error_log(edge: Edge) -> None:
    answer = edge.ask("GET", "/mistake", "X-Request-Id: mistake-1")
    assert answer.status == 500
    assert b"RuntimeError" not in answer.body
    assert edge.log("mistake-1")["status"] == 500


def test_an_answer_that_breaks_off_is_not_taken_for_complete(edge: Edge) -> None:
    with edge.wire() as wire:
        wire.request("GET", "/breaks-off", "X-Request-Id: broken-1")
        with pytest.raises(EOFError):
            wire.answer()
    assert edge.log("broken-1")["error"] == "RuntimeError"
    with edge.wire() as wire:
        wire.send(b"GET /breaks-off HTTP/1.0\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            wire.answer()


def test_line_breaks_in_a_header_are_refused(edge: Edge) -> None:
    answer = edge.ask("GET", "/bad-header")
    assert answer.status == 500
    assert "set-cookie" not in answer.headers
    assert b"Set-Cookie" not in answer.raw_head


@pytest.mark.parametrize(("claimed", "outcome"), [("5", b"12345"), ("7", EOFError), ("3", 500)])
def test_a_length_that_is_not_kept_closes_the_connection(edge: Edge, claimed: str, outcome: object) -> None:
    with edge.wire() as wire:
        wire.request("GET", f"/wrong-length?claimed={claimed}")
        if outcome is EOFError:
            with pytest.raises(EOFError):
                wire.answer()
            return
        answer = wire.answer()
        assert outcome in (answer.body, answer.status)
        if outcome == 500:
            assert wire.is_closed()


def test_a_client_that_leaves_in_mid_answer_is_no_error(edge: Edge) -> None:
    before = edge.errors.read_text()
    for number, target in enumerate(("/file/sparse.bin", "/big-stream")):
        with edge.wire() as wire:
            wire.request("GET", target, f"X-Request-Id: left-{number}")
            wire.socket.recv(1000)
        assert edge.log(f"left-{number}")["aborted"] is True
    assert edge.errors.read_text() == before


def test_descriptors_are_given_back_whatever_happens(edge: Edge) -> None:
    edge.ask("GET", "/ping")
    before = until(lambda: edge.worker.num_fds())
    for _ in range(20):
        for target in ("/file/hello.txt", "/file/medium.bin", "/replaced/hello.txt", "/short-file/hello.txt", "/short-file/medium.bin"):
            with edge.wire() as wire:
                wire.request("GET", target)
                wire.socket.recv(100)
        edge.ask("HEAD", "/file/medium.bin")
        edge.ask("GET", "/file/hello.txt", 'If-None-Match: "v1"')
        edge.ask("GET", "/file/hello.txt", 'If-Match: "other"')
        edge.ask("GET", "/file/hello.txt", "Range: bytes=100-")
        with edge.wire() as wire:
            wire.request("GET", "/file/sparse.bin")
    until(lambda: edge.worker.num_fds() <= before)


def test_a_file_shorter_than_announced_is_never_sent_as_complete(edge: Edge) -> None:
    assert edge.ask("GET", "/short-file/hello.txt").status == 500
    with edge.wire() as wire:
        wire.request("GET", "/short-file/medium.bin")
        with pytest.raises(EOFError):
            wire.answer()
