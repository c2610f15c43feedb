"""A raw proxy through a real server (PROTOCOLS, "All of them"; DESIGN 6), before an upstream that does what the test says."""

from __future__ import annotations

import http.client
from collections.abc import Iterator

import gevent
import pytest
import requests
from gevent.event import Event

from tests.support.house import eventually, sha256
from tests.support.server import Server
from tests.support.upstreams import FakeUpstream, noise

BODY = noise(200_000)
LARGE = noise(4_000_000, 2)


@pytest.fixture
def proxy(server: Server, upstream: FakeUpstream) -> Iterator[str]:
    """The address of a proxy of the upstream."""
    address = server.repository("there", kind="proxy", upstream_url=upstream.url, public=True)
    yield address.removeprefix(server.url)
    assert server.delete("/api/v1/repositories/there").status_code == 204


@pytest.mark.parametrize("body", [b"", BODY, LARGE])
@pytest.mark.parametrize("chunked", [False, True])
def test_cold_and_warm_the_file_is_the_same(server: Server, proxy: str, upstream: FakeUpstream, body: bytes, chunked: bool) -> None:
    upstream.put("/a/file.txt", body, chunked=chunked, headers={"Content-Type": "text/plain"})
    cold = server.get(f"{proxy}/a/file.txt")
    assert (cold.status_code, cold.content, cold.headers["X-Arkvory-Cache"]) == (200, body, "miss")
    eventually(lambda: server.get(f"{proxy}/a/file.txt").headers["X-Arkvory-Cache"] == "hit")
    warm = server.get(f"{proxy}/a/file.txt")
    assert (warm.content, warm.headers["ETag"], warm.headers["Content-Type"]) == (body, f'"{sha256(body)}"', "text/plain")
    assert int(warm.headers["Age"]) >= 0
    assert upstream.count("/a/file.txt") == 1


@pytest.mark.parametrize("body", [BODY, LARGE])
def test_head_says_what_get_says_also_cold(server: Server, proxy: str, upstream: FakeUpstream, body: bytes) -> None:
    for path in ("one", "two"):
        upstream.put(f"/{path}", body)
    head, get = server.head(f"{proxy}/one"), server.get(f"{proxy}/two")
    assert (head.status_code, get.status_code, head.content) == (200, 200, b"")
    assert head.headers["Content-Length"] == get.headers["Content-Length"] == str(len(body))
    assert set(head.headers) - {"Transfer-Encoding"} == set(get.headers)
    for method in (server.head, server.get):
        missing = method(f"{proxy}/none")
        assert missing.status_code == 404
    assert (upstream.count("/one"), upstream.count("/none")) == (1, 1)


@pytest.mark.parametrize("size", [200_000, 4_000_000])
def test_a_range_of_a_cold_file_is_that_range_and_the_whole_is_stored(
    server: Server, proxy: str, upstream: FakeUpstream, size: int
) -> None:
    """HO-RAW-3."""
    body = noise(size, 3)
    upstream.put("/r.bin", body, etag='"v1"')
    first = server.get(f"{proxy}/r.bin", headers={"Range": "bytes=0-9"})
    assert (first.status_code, first.content, first.headers["Content-Range"]) == (206, body[:10], f"bytes 0-9/{size}")
    assert server.get(f"{proxy}/r.bin").content == body
    last = server.get(f"{proxy}/r.bin", headers={"Range": "bytes=-10"})
    assert (last.status_code, last.content) == (206, body[-10:])
    beyond = server.get(f"{proxy}/r.bin", headers={"Range": f"bytes={size}-"})
    assert (beyond.status_code, beyond.headers["Content-Range"]) == (416, f"bytes */{size}")
    eventually(lambda: server.get(f"{proxy}/r.bin").headers["X-Arkvory-Cache"] == "hit")
    assert upstream.count("/r.bin") == 1


def test_a_range_beyond_what_is_coming_is_416(server: Server, proxy: str, upstream: FakeUpstream) -> None:
    upstream.put("/r.bin", LARGE)
    beyond = server.get(f"{proxy}/r.bin", headers={"Range": f"bytes={len(LARGE)}-"})
    assert (beyond.status_code, beyond.headers["Content-Range"]) == (416, f"bytes */{len(LARGE)}")


@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_file_that_breaks_off_is_no_whole_answer(server: Server, proxy: str, upstream: FakeUpstream, chunked: bool) -> None:
    """HO-X-4."""
    upstream.put("/t.bin", LARGE, truncate=len(LARGE) - 10, chunked=chunked)
    with pytest.raises(requests.RequestException):
        server.get(f"{proxy}/t.bin")
    upstream.put("/t.bin", LARGE, chunked=chunked)
    assert server.get(f"{proxy}/t.bin").content == LARGE


def test_the_first_bytes_come_before_the_last(server: Server, proxy: str, upstream: FakeUpstream) -> None:
    gate = Event()
    upstream.put("/slow", LARGE, gate=gate, piece=2_000_000)
    with requests.get(server.url + f"{proxy}/slow", stream=True, timeout=20) as answer:
        pieces = answer.iter_content(100_000)
        first = next(pieces)
        gate.set()
        assert first + b"".join(pieces) == LARGE


def test_the_client_gets_the_upstreams_failures_and_can_tell_them_apart(server: Server, proxy: str, upstream: FakeUpstream) -> None:
    upstream.put("/busy", status=429, headers={"Retry-After": "1"})
    assert server.get(f"{proxy}/busy").status_code == 503
    assert int(server.get(f"{proxy}/busy").headers["Retry-After"]) >= 1
    gevent.sleep(1.1)
    for status in (401, 403, 500, 502):
        upstream.put("/bad", status=status)
        answer = server.get(f"{proxy}/bad")
        assert answer.status_code == 502
        assert int(answer.headers["Retry-After"]) >= 1


def test_a_spelling_goes_out_as_it_came(server: Server, proxy: str, upstream: FakeUpstream) -> None:
    """HO-RAW-1."""
    for spelling in ("whl/torch-1.10.2%2Brocm4.2.whl", "a+b", "%C3%9Cbung/x%20y%5B1%5D"):
        upstream.put(f"/{spelling}", spelling.encode())
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        connection.request("GET", f"{proxy}/{spelling}")
        assert connection.getresponse().read() == spelling.encode()
        connection.close()
        assert upstream.asked[-1].target == f"/{spelling}"


def test_conditions_are_about_the_stored_file(server: Server, proxy: str, upstream: FakeUpstream) -> None:
    upstream.put("/file", LARGE)
    etag = f'"{sha256(LARGE)}"'
    assert server.get(f"{proxy}/file", headers={"If-Match": '"other"'}).status_code == 412
    assert server.get(f"{proxy}/file", headers={"If-Match": etag}).status_code == 200
    not_modified = server.get(f"{proxy}/file", headers={"If-None-Match": etag})
    assert (not_modified.status_code, not_modified.headers["X-Arkvory-Cache"]) == (304, "hit")


def test_a_proxy_takes_no_uploads(server: Server, proxy: str) -> None:
    answer = server.put(f"{proxy}/file", b"x")
    assert (answer.status_code, answer.headers["Allow"]) == (405, "GET, HEAD")
    told = server.delete(f"{proxy}/file")
    assert (told.status_code, "its copies go when its upstream has them no more" in told.text) == (405, True)


def test_its_folders_list_what_is_stored(server: Server, proxy: str, upstream: FakeUpstream) -> None:
    upstream.put("/a/one", BODY)
    server.get(f"{proxy}/a/one")
    assert [each["name"] for each in server.get(f"{proxy}/a/?format=json").json()["items"]] == ["one"]


def test_who_may_not_read_learns_nothing_and_asks_nobody(server: Server, proxy: str, upstream: FakeUpstream) -> None:
    upstream.put("/file", BODY)
    assert server.patch("/api/v1/repositories/there", json={"public": False}).status_code == 200
    for path in ("file", "none"):
        assert server.get(f"{proxy}/{path}", auth=None).status_code == 401
    assert not upstream.asked


def test_the_repository_is_shown_without_its_secrets(server: Server, proxy: str, upstream: FakeUpstream) -> None:
    changed = server.patch(
        "/api/v1/repositories/there", json={"upstream": {"username": "u", "password": "pw-pw"}, "settings": {"mutable_ttl": 5}}
    ).json()
    assert changed["upstream_url"] == upstream.url
    assert (changed["upstream"], changed["settings"]) == ({"username": "u", "password": True}, {"mutable_ttl": 5})
    wrong = server.patch("/api/v1/repositories/there", json={"upstream": {"read_seconds": 0}})
    assert wrong.status_code == 422
