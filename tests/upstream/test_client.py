"""DESIGN 6: what the client makes of whatever an upstream does, over real sockets."""

from __future__ import annotations

import base64
import contextlib
import gzip
import socket as std_socket
import tracemalloc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from gevent import socket

from app.errors import UpstreamBusy, UpstreamFailed, UpstreamTimedOut
from app.upstream.breaker import FAILURES, OPEN_SECONDS, Line
from app.upstream.client import Client, Wanted
from app.upstream.outward import is_inside, names_inside
from app.upstream.upstream import Upstream
from tests.support.upstreams import FakeUpstream, noise

BODY = noise(300_000)


@pytest.fixture
def other() -> Iterator[FakeUpstream]:
    running = FakeUpstream().start()
    yield running
    running.stop()


def fetch(upstream: FakeUpstream | str, path: str = "file", line: Line | None = None, **fields: object) -> bytes:
    wanted = Wanted(path, etag=fields.pop("etag", None))  # type: ignore[arg-type]
    address = upstream if isinstance(upstream, str) else upstream.url
    quick = {"connect_seconds": 2.0, "read_seconds": 1.0} | fields
    with Client().get(Upstream(address, **quick), wanted, line or Line("it", 8)) as answer:  # type: ignore[arg-type]
        if answer.unchanged or answer.absent:
            return b"unchanged" if answer.unchanged else b"absent"
        found = b""
        while piece := answer.read():
            found += piece
        return found


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_arrives_whole(upstream: FakeUpstream, chunked: bool) -> None:
    upstream.put("/file", BODY, chunked=chunked)
    assert fetch(upstream) == BODY
    assert upstream.asked[0].headers["accept-encoding"] == "identity"


def test_why_an_upstream_cannot_be_reached_is_told_and_is_no_matter_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever answers for names where the tests run, or nobody."""
    look_up = std_socket.getaddrinfo

    def unknown(host: Any, *arguments: Any, **named: Any) -> Any:
        if host in ("nowhere.invalid", b"nowhere.invalid"):
            raise std_socket.gaierror(std_socket.EAI_NONAME, "Name or service not known")
        return look_up(host, *arguments, **named)

    monkeypatch.setattr(std_socket, "getaddrinfo", unknown)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    line = Line("it", 8)
    for address, words in ((f"http://127.0.0.1:{port}", "refuses the connection"), ("http://nowhere.invalid", "host is not known")):
        with pytest.raises(UpstreamFailed, match=words) as failed:
            fetch(address, line=line)
        assert not isinstance(failed.value, UpstreamTimedOut)
    assert line.breaker.failures == 2


@pytest.mark.parametrize("chunked", [False, True])
def test_a_short_body_is_an_error_and_not_a_file(upstream: FakeUpstream, chunked: bool) -> None:
    upstream.put("/file", BODY, chunked=chunked, truncate=70_000)
    with pytest.raises(UpstreamFailed):
        fetch(upstream)


@pytest.mark.parametrize("size", [1, 5000, len(BODY)])
@pytest.mark.parametrize("behind", [b"x", b"HTTP/1.1 200 Fine\r\nContent-Length: 4\r\n\r\nevil"])
def test_a_body_longer_than_announced_is_no_file_and_what_is_behind_it_no_answer(upstream: FakeUpstream, size: int, behind: bytes) -> None:
    upstream.put("/file", BODY[:size] + behind, length=size)
    upstream.put("/next", b"good")
    client, line = Client(), Line("it", 8)

    def get(path: str) -> bytes:
        with client.get(Upstream(upstream.url), Wanted(path), line) as answer:
            return b"".join(iter(answer.read, b""))

    with pytest.raises(UpstreamFailed, match="sent more"):
        get("file")
    assert get("next") == b"good"
    assert upstream.connections == 2


def test_the_path_goes_out_as_it_was_spelled(upstream: FakeUpstream) -> None:
    for path in ("a%2Bb.whl", "a+b.whl", "a%20b/%C3%9C%5B1%5D", "x%2Fy", "a~b!$&'()*,;=:@"):
        upstream.put(f"/{path}", path.encode())
        assert fetch(upstream, path) == path.encode()
        assert upstream.asked[-1].target == f"/{path}"


def test_the_same_as_before_and_absence_are_told_apart(upstream: FakeUpstream) -> None:
    upstream.put("/file", BODY, etag='"v1"')
    assert fetch(upstream, etag='"v1"') == b"unchanged"
    assert fetch(upstream, etag='"v0"') == BODY
    for status in (404, 410):
        upstream.put("/file", status=status)
        assert fetch(upstream) == b"absent"


@pytest.mark.parametrize("status", [204, 206, 304, 400, 401, 403, 407, 418, 500, 502, 504, 302])
def test_every_other_status_is_a_failure_and_never_absence(upstream: FakeUpstream, status: int) -> None:
    upstream.put("/file", b"text", status=status)
    with pytest.raises(UpstreamFailed):
        fetch(upstream)


@pytest.mark.parametrize("status", [429, 503])
def test_a_pause_that_the_upstream_asks_for_is_kept(upstream: FakeUpstream, status: int) -> None:
    upstream.put("/file", BODY)
    upstream.put("/file", status=status, headers={"Retry-After": "60"}, times=1)
    line = Line("it", 8)
    for _ in range(2):
        with pytest.raises(UpstreamBusy) as raised:
            fetch(upstream, line=line)
        assert 55 <= raised.value.retry_after <= 60
    assert len(upstream.asked) == 1
    assert line.breaker.state == "paused"


def test_a_short_pause_is_waited_for(upstream: FakeUpstream) -> None:
    upstream.put("/file", BODY)
    upstream.put("/file", status=429, headers={"Retry-After": "1"}, times=1)
    line = Line("it", 8)
    with pytest.raises(UpstreamBusy):
        fetch(upstream, line=line)
    assert fetch(upstream, line=line) == BODY


def test_a_spent_rate_limit_is_a_pause(upstream: FakeUpstream) -> None:
    upstream.put("/file", BODY, headers={"RateLimit-Remaining": "0", "RateLimit-Reset": "30"})
    line = Line("it", 8)
    assert fetch(upstream, line=line) == BODY
    with pytest.raises(UpstreamBusy):
        fetch(upstream, line=line)


def test_silence_has_an_end(upstream: FakeUpstream) -> None:
    upstream.put("/file", BODY, delay=30)
    with gevent.Timeout(20), pytest.raises(UpstreamTimedOut):
        fetch(upstream)
    upstream.put("/file", BODY, pause=30)
    with gevent.Timeout(20), pytest.raises(UpstreamTimedOut):
        fetch(upstream)


def test_a_head_that_never_ends_has_an_end() -> None:
    def drip(client: socket.socket, _address: object) -> None:
        client.sendall(b"HTTP/1.1 200 Fine\r\n")
        while True:
            client.sendall(b"X-More: 1\r\n")
            gevent.sleep(0.3)

    server = gevent.server.StreamServer(("127.0.0.1", 0), drip)
    server.start()
    try:
        with gevent.Timeout(20), pytest.raises(UpstreamFailed):
            fetch(f"http://127.0.0.1:{server.server_port}")
    finally:
        server.stop(timeout=0.1)


def test_a_trickle_has_an_end(upstream: FakeUpstream) -> None:
    upstream.put("/file", BODY, piece=10, pause=0.2)
    with gevent.Timeout(30), pytest.raises(UpstreamTimedOut):
        fetch(upstream)


def test_nobody_there_is_a_failure_at_once(upstream: FakeUpstream) -> None:
    upstream.stop()
    with gevent.Timeout(15), pytest.raises(UpstreamFailed):
        fetch(upstream)
    upstream.start()


def test_after_some_failures_in_a_row_it_is_left_alone(upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch) -> None:
    passed = [1000.0]
    monkeypatch.setattr("app.upstream.breaker.time", SimpleNamespace(monotonic=lambda: passed[0]))
    upstream.put("/file", status=500)
    line = Line("it", 8)
    for _ in range(FAILURES):
        with pytest.raises(UpstreamFailed):
            fetch(upstream, line=line)
    with pytest.raises(UpstreamBusy):
        fetch(upstream, line=line)
    assert (len(upstream.asked), line.breaker.state) == (FAILURES, "open")
    passed[0] += OPEN_SECONDS - 0.1
    assert line.breaker.state == "open"
    passed[0] += 0.2
    assert line.breaker.state == "half-open"
    with pytest.raises(UpstreamFailed):
        fetch(upstream, line=line)
    assert line.breaker.state == "open"
    upstream.put("/file", BODY)
    passed[0] += OPEN_SECONDS + 0.1
    assert (fetch(upstream, line=line), line.breaker.state) == (BODY, "closed")


def test_credentials_and_headers_go_to_the_upstream_and_to_no_other_host(upstream: FakeUpstream, other: FakeUpstream) -> None:
    """HO-X-9."""
    basic = "Basic " + base64.b64encode(b"u:p").decode()
    upstream.put("/file", status=307, headers={"Location": "/second"}, auth=basic)
    upstream.put("/second", status=302, headers={"Location": f"{other.url}/x?sig=1"}, auth=basic)
    other.put("/x?sig=1", BODY)
    assert fetch(upstream, username="u", password="p", headers={"X-Key": "k"}) == BODY
    assert [each.headers.get("authorization") for each in upstream.asked] == [basic, basic]
    assert [each.headers.get("x-key") for each in upstream.asked] == ["k", "k"]
    assert {"authorization", "x-key"}.isdisjoint(other.asked[0].headers)


def test_a_login_may_be_written_in_any_letters(upstream: FakeUpstream) -> None:
    """RFC 7617: in UTF-8."""
    upstream.put("/file", BODY, auth="Basic " + base64.b64encode("jürgen:пароль".encode()).decode())
    assert fetch(upstream, username="jürgen", password="пароль") == BODY


def test_a_loop_of_redirects_ends(upstream: FakeUpstream) -> None:
    upstream.put("/file", status=302, headers={"Location": "/file"})
    with pytest.raises(UpstreamFailed):
        fetch(upstream)
    assert len(upstream.asked) == 6


@pytest.mark.parametrize("target", ["file:///etc/passwd", "http://", "//[", "ftp://127.0.0.1/x"])
def test_a_redirect_to_no_address_is_refused(upstream: FakeUpstream, target: str) -> None:
    upstream.put("/file", status=302, headers={"Location": target})
    with pytest.raises(UpstreamFailed):
        fetch(upstream)


def test_what_is_encoded_all_the_same_is_decoded(upstream: FakeUpstream) -> None:
    upstream.put("/file", gzip.compress(BODY), headers={"Content-Encoding": "gzip"})
    assert fetch(upstream) == BODY
    upstream.put("/file", gzip.compress(BODY)[:-9], headers={"Content-Encoding": "gzip"})
    with pytest.raises(UpstreamFailed):
        fetch(upstream)
    upstream.put("/file", BODY, headers={"Content-Encoding": "br"})
    with pytest.raises(UpstreamFailed):
        fetch(upstream)


def test_a_bomb_is_refused_in_flat_memory(upstream: FakeUpstream) -> None:
    upstream.put("/file", gzip.compress(bytes(200 * 1024 * 1024), 9), headers={"Content-Encoding": "gzip"})
    taken = 0

    def read() -> None:
        nonlocal taken
        with Client().get(Upstream(upstream.url), Wanted("file"), Line("it", 1)) as answer:
            while piece := answer.read():
                taken += len(piece)

    tracemalloc.start()
    try:
        with pytest.raises(UpstreamFailed):
            read()
        assert tracemalloc.get_traced_memory()[1] < 16 * 1024 * 1024
    finally:
        tracemalloc.stop()
    assert taken <= 32 * 1024 * 1024


def test_no_more_connections_than_the_upstream_may_get(upstream: FakeUpstream) -> None:
    upstream.put("/file", BODY, pause=0.02)
    line, at_once, most = Line("it", 2), 0, 0

    def get() -> None:
        nonlocal at_once, most
        with Client().get(Upstream(upstream.url), Wanted("file"), line) as answer:
            at_once += 1
            most = max(most, at_once)
            while answer.read():
                pass
            at_once -= 1

    gevent.joinall([gevent.spawn(get) for _ in range(10)], raise_error=True)
    assert most == 2


def test_a_connection_is_used_again_also_after_an_absence_and_no_change(upstream: FakeUpstream) -> None:
    upstream.put("/file", BODY, etag='"v1"')
    client, line = Client(), Line("it", 8)
    for wanted in (Wanted("file"), Wanted("file", etag='"v1"'), Wanted("none"), Wanted("file")):
        with client.get(Upstream(upstream.url), wanted, line) as answer:
            while not answer.unchanged and not answer.absent and answer.read():
                pass
    assert (len(upstream.asked), upstream.connections) == (4, 1)


@pytest.mark.parametrize("told", ["300000, 5", "5, 300000", "none", "-5", "+5", "9" * 40, "9" * 5000, "\xb2"])
def test_a_length_that_is_none_is_no_length(upstream: FakeUpstream, told: str) -> None:
    """RFC 9112, 6.3: nobody can say where such a body ends."""
    upstream.put("/file", BODY, endless=True, headers={"Content-Length": told})
    with gevent.Timeout(20), pytest.raises(UpstreamFailed):
        fetch(upstream)
    upstream.put("/file", BODY, endless=True, headers={"Content-Length": f"{len(BODY)}, {len(BODY)}"})
    assert fetch(upstream) == BODY


def test_a_coding_of_several_parts_is_decoded_whole(upstream: FakeUpstream) -> None:
    """RFC 1952, 2.2: what follows the first part is no rest to be dropped."""
    parts = [BODY[start : start + 1000] for start in range(0, 100_000, 1000)]
    upstream.put("/file", b"".join(map(gzip.compress, parts)), headers={"Content-Encoding": "gzip"}, piece=777)
    assert fetch(upstream) == BODY[:100_000]
    for wrong in (gzip.compress(BODY) + b"no part of it", gzip.compress(BODY) + gzip.compress(BODY)[:-9]):
        upstream.put("/file", wrong, headers={"Content-Encoding": "gzip"})
        with pytest.raises(UpstreamFailed):
            fetch(upstream)


@pytest.mark.parametrize("told", ["9" * 30, "9" * 1000, "Fri, 31 Dec 9999 23:59:59 GMT", "Fri, 31 Dec 99999999999999999999 23:59:59 GMT"])
def test_no_upstream_keeps_anybody_waiting_for_ever(upstream: FakeUpstream, told: str) -> None:
    upstream.put("/file", status=503, headers={"Retry-After": told})
    with pytest.raises(UpstreamFailed) as refused:
        fetch(upstream)
    assert refused.value.retry_after <= 300


def test_a_client_that_reads_slowly_is_not_the_upstreams_fault(upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is handed on without being stored is read at the client's own speed."""
    monkeypatch.setattr("app.upstream.client.PIECE", 300)
    upstream.put("/file", BODY[:1000])
    line, found = Line("it", 1), b""
    with Client().get(Upstream(upstream.url, connect_seconds=5.0, read_seconds=1.0), Wanted("file"), line) as answer:
        while piece := answer.read():
            found += piece
            gevent.sleep(1.5)
    assert found == BODY[:1000]
    assert line.breaker.failures == 0


@pytest.fixture
def outside() -> Iterator[FakeUpstream]:
    """An upstream that is not at an address of the loop."""
    running = FakeUpstream(host=own_address()).start()
    yield running
    running.stop()


def own_address() -> str:
    """That of this machine by which it reaches others; nothing is sent."""
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        try:
            probe.connect(("198.51.100.1", 9))
        except OSError:
            pytest.skip("this machine has no address but that of the loop")
        return str(probe.getsockname()[0])


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_an_upstream_elsewhere_leads_to_nothing_inside(outside: FakeUpstream, upstream: FakeUpstream, host: str) -> None:
    """What only this machine can reach is nobody else's to have: by a redirect, or by an address in an index."""
    upstream.put("/secret", BODY)
    secret = f"http://{host}:{upstream.url.rpartition(':')[2]}/secret"
    outside.put("/file", status=302, headers={"Location": secret})
    line = Line("it", 8)
    for path in ("file", secret):
        with pytest.raises(UpstreamFailed, match="leads to an address of this machine"):
            fetch(outside, path, line)
    assert not upstream.asked, "nothing was sent there"
    assert line.breaker.failures == 0, "its health is not in question"


def test_an_upstream_inside_may_lead_inside_and_any_to_the_outside(outside: FakeUpstream, upstream: FakeUpstream) -> None:
    outside.put("/there", BODY)
    upstream.put("/file", status=302, headers={"Location": f"{outside.url}/there"})
    assert fetch(upstream) == BODY
    other = FakeUpstream().start()
    try:
        other.put("/there", BODY)
        upstream.put("/file", status=302, headers={"Location": f"{other.url}/there"})
        assert fetch(upstream) == BODY
    finally:
        other.stop()


@pytest.mark.parametrize(
    ("address", "inside"),
    [
        ("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("169.254.169.254", True), ("fe80::1%eth0", True), ("0.0.0.0", True),
        ("::ffff:169.254.169.254", True), ("fd00:ec2::254", True), ("100.100.100.200", True), ("10.0.0.1", False), ("192.0.2.7", False),
        ("2001:db8::1", False), ("fd12::1", False),
    ],
)  # fmt: skip
def test_what_lies_inside(address: str, inside: bool) -> None:
    assert is_inside(address) is inside


def test_what_a_network_knows_this_machine_by_is_not_for_others_than_administrators_to_name(outside: FakeUpstream) -> None:
    outside.put("/file", BODY)
    assert fetch(outside) == BODY
    assert names_inside(own_address()) and not names_inside("192.0.2.77")
    with pytest.raises(UpstreamFailed, match="an administrator may name such a one"):
        fetch(outside, may_lie_inside=False)
    assert [each.target for each in outside.asked] == ["/file"]
