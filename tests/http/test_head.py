"""Heads that pass and heads that never reach the application (RFC 9112)."""

from __future__ import annotations

import re
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.http.head import BadHead, is_text, parse_head, split_host
from tests.http.edge import Edge

GOOD = b"GET / HTTP/1.1\r\nHost: a"


def status_of(head: bytes) -> int:
    with pytest.raises(BadHead) as refused:
        parse_head(head, 100)
    return refused.value.status


def post(*lines: bytes, version: bytes = b"1.1") -> bytes:
    return b"\r\n".join([b"POST /upload HTTP/" + version, b"Host: a", *lines])


@pytest.mark.parametrize("head", [
    b"GET /\r\nHost: a",
    b"GET / \r\nHost: a",
    b"GET  / HTTP/1.1\r\nHost: a",
    b"GET / HTTP/1.1 \r\nHost: a",
    b" GET / HTTP/1.1\r\nHost: a",
    b"GET\t/\tHTTP/1.1\r\nHost: a",
    b"GE(T / HTTP/1.1\r\nHost: a",
    b"GET a HTTP/1.1\r\nHost: a",
    b"GET * HTTP/1.1\r\nHost: a",
    b"CONNECT a:80 HTTP/1.1\r\nHost: a",
    b"GET /a#b HTTP/1.1\r\nHost: a",
    b"GET / http/1.1\r\nHost: a",
    b"GET / HTTP/1\r\nHost: a",
    b"GET / HTTP/1.1\r\nHost : a",
    b"GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n folded",
    b"GET / HTTP/1.1\r\nHost: a\r\n\tfolded: b",
    b"GET / HTTP/1.1\r\nHost: a\r\nno colon",
    b"GET / HTTP/1.1\r\nHost: a\r\n: no name",
    b"GET / HTTP/1.1\r\nHost: a\r\nX\xe4: b",
    b"GET / HTTP/1.1\r\nHost: a\r\nX: b\rc",
    b"GET / HTTP/1.1\r\nHost: a\r\nX: b\nc",
    b"GET / HTTP/1.1\nHost: a",
    b"GET / HTTP/1.1\r\nHost: a\r\nX: b\0c",
    b"GET / HTTP/1.1\r\nHost: a\r\nX: b\x0bc",
    b"GET / HTTP/1.1\r\nHost: a\r\nX: b\x7fc",
    b"GET /\0 HTTP/1.1\r\nHost: a",
])
def test_a_malformed_head_is_400(head: bytes) -> None:
    assert status_of(head) == 400


NOT_TEXT = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\r(?!\n)|(?<!\r)\n")


@given(st.text("ab\r\n\t\0\x7f", max_size=9).map(str.encode), st.integers(0, 9))
def test_text_is_what_holds_no_control_character_and_no_half_line_end(data: bytes, start: int) -> None:
    for given_as in (data, bytearray(data)):
        assert is_text(given_as, min(start, len(data))) is (NOT_TEXT.search(data, start) is None)


@pytest.mark.parametrize("lines", [
    [b"Content-Length: 5", b"Transfer-Encoding: chunked"],
    [b"Transfer-Encoding: chunked", b"Content-Length: 5"],
    [b"Content-Length: 5", b"Content-Length: 5"],
    [b"Content-Length: 5", b"content-length: 6"],
    [b"Content-Length: 5, 5"],
    [b"Content-Length: -1"],
    [b"Content-Length: +1"],
    [b"Content-Length: 0x10"],
    [b"Content-Length: 1_0"],
    [b"Content-Length: 5 5"],
    [b"Content-Length: "],
    [b"Content-Length: " + b"9" * 19],
    [b"Content-Length: \xb2"],
    [b"Authorization: Basic YTph", b"Authorization: Basic Yjpi"],
])
def test_a_length_that_could_be_read_in_two_ways_is_400(lines: list[bytes]) -> None:
    assert status_of(post(*lines)) == 400


@pytest.mark.parametrize("coding", [b"gzip, chunked", b"chunked, chunked", b"identity", b"xchunked", b"chunked, gzip", b"\"chunked\"", b""])
def test_a_transfer_coding_other_than_chunked_is_501(coding: bytes) -> None:
    assert status_of(post(b"Transfer-Encoding: " + coding)) == 501


def test_two_transfer_encodings_are_refused_and_http_1_0_has_none() -> None:
    assert status_of(post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked")) == 501
    assert status_of(post(b"Transfer-Encoding: chunked", version=b"1.0")) == 400


def test_chunked_is_known_in_any_case_and_spaces_around_values_do_not_count() -> None:
    assert parse_head(post(b"Transfer-Encoding:\t Chunked \t"), 100).chunked
    assert parse_head(post(b"Content-Length:  5  "), 100).length == 5


@pytest.mark.parametrize("head", [
    b"GET / HTTP/1.1",
    b"GET / HTTP/1.1\r\nHost: a\r\nHost: a",
    b"GET / HTTP/1.1\r\nHost: a\r\nhost: b",
    b"GET / HTTP/1.1\r\nHost: a b",
    b"GET / HTTP/1.1\r\nHost: a/b",
    b"GET / HTTP/1.1\r\nHost: a@b",
    b"GET / HTTP/1.1\r\nHost: a:b",
    b"GET / HTTP/1.1\r\nHost: a:99999",
    b"GET / HTTP/1.1\r\nHost: [::1",
    b"GET / HTTP/1.1\r\nHost: [1:2]",
    b"GET http://u@a/ HTTP/1.1\r\nHost: a",
])
def test_a_host_that_is_missing_doubled_or_malformed_is_400(head: bytes) -> None:
    assert status_of(head) == 400


def test_http_1_0_needs_no_host_and_closes_unless_asked() -> None:
    assert not parse_head(b"GET / HTTP/1.0", 100).keep_alive
    assert parse_head(b"GET / HTTP/1.0\r\nConnection: keep-alive", 100).keep_alive


def test_an_absolute_target_overrules_the_host() -> None:
    head = parse_head(b"GET http://b:81/x HTTP/1.1\r\nHost: a", 100)
    assert (head.fields["HTTP_HOST"], head.target) == ("b:81", "http://b:81/x")


def test_other_versions_are_505() -> None:
    assert status_of(b"GET / HTTP/2.0\r\nHost: a") == 505
    assert status_of(b"GET / HTTP/3.0") == 505


def test_an_unknown_expectation_is_417() -> None:
    assert status_of(GOOD + b"\r\nExpect: 200-ok") == 417


def test_names_with_an_underscore_cannot_pose_as_others() -> None:
    head = parse_head(post(b"Content_Length: 7", b"X_Forwarded_For: 1.2.3.4", b"X-Good: yes"), 100)
    assert head.length is None
    assert set(head.fields) == {"HTTP_HOST", "HTTP_X_GOOD"}


def test_repeated_fields_are_joined() -> None:
    head = parse_head(GOOD + b"\r\nAccept: a\r\nACCEPT: b\r\nCookie: c=1\r\nCookie: d=2", 100)
    assert (head.fields["HTTP_ACCEPT"], head.fields["HTTP_COOKIE"]) == ("a, b", "c=1; d=2")


def test_the_number_of_headers_is_limited() -> None:
    lines = b"".join(b"\r\nX-%d: y" % number for number in range(100))
    assert status_of(GOOD + lines) == 431
    assert parse_head(GOOD + lines[: lines.rindex(b"\r\n")], 100).method == "GET"


@pytest.mark.parametrize(("host", "parts"), [
    ("a", ("a", None)), ("A.b-c:8080", ("a.b-c", 8080)), ("[::1]", ("[::1]", None)), ("[2001:DB8::1]:81", ("[2001:db8::1]", 81)),
])
def test_a_host_splits_into_name_and_port(host: str, parts: tuple[str, int | None]) -> None:
    assert split_host(host) == parts


# On the wire


@pytest.mark.parametrize(("data", "status"), [
    (b"GET / HTTP/1.1\r\n\r\n", 400),
    (b"GET /\r\n\r\n", 400),
    (b"GET / HTTP/1.1\n\n", 400),
    (b"GET / HTTP/1.1\nHost: a\n\n", 400),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    (b"POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    (b"POST /upload HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    (b"POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400),
    (b"GET /" + b"a" * 8190 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414),
    (b"G" * 100_000, 414),
    (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 40_000 + b"\r\n\r\n", 431),
    (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431),
])
def test_a_bad_head_gets_a_clear_answer_and_a_closed_connection(edge: Edge, data: bytes, status: int) -> None:
    answer = edge.raw(data)
    assert answer.status == status
    assert answer.headers["connection"] == "close"
    assert answer.headers["content-type"].startswith("text/plain")
    assert 10 < len(answer.body) < 200
    line = edge.log(answer.headers["x-request-id"])
    assert (line["status"], line["method"], line["path"]) == (status, None, None)


def test_ten_megabytes_of_headers_are_refused_before_they_are_stored(edge: Edge) -> None:
    before = edge.worker.memory_info().rss
    with edge.wire() as wire:
        wire.send(b"GET / HTTP/1.1\r\nHost: a\r\n")
        for _ in range(160):
            wire.send(b"X: " + b"y" * 65_000 + b"\r\n")
        assert wire.answer().status == 431
    assert edge.worker.memory_info().rss - before < 8 * 1024 * 1024


def test_a_head_may_arrive_byte_by_byte_and_after_an_empty_line(edge: Edge) -> None:
    with edge.wire() as wire:
        wire.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b"\r\nGET /ping HTTP/1.1\r\nHost: a\r\nX-Long: abc\r\n\r\n":
            wire.send(bytes([byte]))
        assert wire.answer().body == b"pong"


def test_the_largest_request_line_passes(edge: Edge) -> None:
    line = b"GET /ping?" + b"q" * (8190 - len(b"GET /ping? HTTP/1.1")) + b" HTTP/1.1\r\n"
    assert len(line) == 8192
    with edge.wire() as wire:
        wire.send(line + b"Host: a\r\n\r\n")
        assert wire.answer().body == b"pong"


def test_pipelined_requests_are_answered_in_order(edge: Edge) -> None:
    with edge.wire() as wire:
        post = b"POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"
        wire.send(post + b"GET /ping HTTP/1.1\r\nHost: a\r\n\r\n" + post + b"GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n")
        assert [wire.answer().status for _ in range(4)] == [200, 200, 200, 404]


def test_a_bad_head_leaves_no_trace_in_the_error_log(edge: Edge) -> None:
    before = edge.errors.read_text()
    edge.raw(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n")
    edge.raw(b"\0\0\0\0")
    assert edge.ask("GET", "/ping").status == 200
    assert edge.errors.read_text() == before
