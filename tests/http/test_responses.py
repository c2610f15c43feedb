"""Conditional requests, ranges and HEAD of files and documents (RFC 9110, 13 and 14)."""

from __future__ import annotations

import subprocess

import pytest

from app.http.responses import content_disposition
from tests.http.edge import Answer, Edge

MODIFIED = "Thu, 29 Feb 2024 12:30:45 GMT"
EARLIER = "Thu, 29 Feb 2024 12:30:44 GMT"
LATER = "Thu, 29 Feb 2024 12:30:46 GMT"
FILE = b"hello world"
DOCUMENT = b"0123456789"


@pytest.fixture(scope="module", params=["/file/hello.txt", "/document"])
def thing(request: pytest.FixtureRequest) -> tuple[str, str, bytes]:
    """A path, its ETag and its bytes: what holds for a file holds for a document."""
    return {"/file/hello.txt": ("/file/hello.txt", '"v1"', FILE), "/document": ("/document", '"d1"', DOCUMENT)}[request.param]


def pair(edge: Edge, target: str, *lines: str) -> Answer:
    """The answer to GET, after HEAD was seen to give the same without its body."""
    with edge.wire() as wire:
        got, head = wire.ask("GET", target, *lines), wire.ask("HEAD", target, *lines)
    assert head.body == b""
    assert head.status == got.status
    ignored = {"date", "x-request-id"}
    assert {k: v for k, v in head.headers.items() if k not in ignored} == {k: v for k, v in got.headers.items() if k not in ignored}
    return got


def test_the_whole_thing(edge: Edge, thing: tuple[str, str, bytes]) -> None:
    target, etag, data = thing
    answer = pair(edge, target)
    assert (answer.status, answer.body) == (200, data)
    assert answer.headers["etag"] == etag
    assert answer.headers["last-modified"] == MODIFIED
    assert answer.headers["accept-ranges"] == "bytes"
    assert answer.headers["content-length"] == str(len(data))


@pytest.mark.parametrize(("lines", "status"), [
    (['If-None-Match: {etag}'], 304),
    (['If-None-Match: W/{etag}'], 304),
    (['If-None-Match: "x", {etag}'], 304),
    (['If-None-Match: *'], 304),
    (['If-None-Match: "x"'], 200),
    (['If-None-Match: '], 200),
    ([f"If-Modified-Since: {MODIFIED}"], 304),
    ([f"If-Modified-Since: {LATER}"], 304),
    ([f"If-Modified-Since: {EARLIER}"], 200),
    (["If-Modified-Since: nonsense"], 200),
    (['If-None-Match: "x"', f"If-Modified-Since: {LATER}"], 200),
    (['If-None-Match: {etag}', f"If-Modified-Since: {EARLIER}"], 304),
    (['If-Match: {etag}'], 200),
    (['If-Match: "x", {etag}'], 200),
    (['If-Match: *'], 200),
    (['If-Match: W/{etag}'], 412),
    (['If-Match: "x"'], 412),
    ([f"If-Unmodified-Since: {MODIFIED}"], 200),
    ([f"If-Unmodified-Since: {EARLIER}"], 412),
    (["If-Unmodified-Since: nonsense"], 200),
    (['If-Match: {etag}', f"If-Unmodified-Since: {EARLIER}"], 200),
    (['If-Match: "x"', 'If-None-Match: {etag}'], 412),
    (['If-Match: {etag}', 'If-None-Match: {etag}'], 304),
    (['If-None-Match: {etag}', "Range: bytes=0-1"], 304),
])
def test_conditions_decide(edge: Edge, thing: tuple[str, str, bytes], lines: list[str], status: int) -> None:
    target, etag, _ = thing
    answer = pair(edge, target, *(line.format(etag=etag) for line in lines))
    assert answer.status == status
    assert answer.headers["etag"] == etag
    if status == 304:
        assert not {"content-type", "content-length", "content-range"} & answer.headers.keys()


def test_not_modified_keeps_what_a_cache_needs(edge: Edge) -> None:
    headers = edge.ask("GET", "/file/hello.txt", 'If-None-Match: "v1"').headers
    assert (headers["cache-control"], headers["vary"]) == ("no-cache", "Accept")
    assert "x-checksum-sha256" not in headers


@pytest.mark.parametrize(("asked", "start", "stop"), [
    ("bytes=0-0", 0, 1), ("bytes=0-3", 0, 4), ("bytes=4-6", 4, 7), ("bytes=4-", 4, None), ("bytes=-3", -3, None), ("bytes=-500", 0, None),
    ("bytes=9-99999999999999999999999", 9, None), ("bytes= 4-6 ", 4, 7), ("Bytes=4-6", 4, 7),
])
def test_one_range_is_206(edge: Edge, thing: tuple[str, str, bytes], asked: str, start: int, stop: int | None) -> None:
    target, _, data = thing
    part = data[start:stop]
    first = data.index(part)
    answer = pair(edge, target, f"Range: {asked}")
    assert (answer.status, answer.body) == (206, part)
    assert answer.headers["content-range"] == f"bytes {first}-{first + len(part) - 1}/{len(data)}"
    assert answer.headers["content-length"] == str(len(part))


@pytest.mark.parametrize("asked", ["bytes=11-", "bytes=11-20", "bytes=99999999999999999999-"])
def test_a_range_past_the_end_is_416(edge: Edge, thing: tuple[str, str, bytes], asked: str) -> None:
    target, _, data = thing
    answer = pair(edge, target, f"Range: {asked}")
    assert (answer.status, answer.headers["content-range"]) == (416, f"bytes */{len(data)}")


@pytest.mark.parametrize("asked", [
    "bytes=0-1,3-4", "bytes=5-2", "bytes=a-b", "bytes=", "bytes", "lines=0-1", "bytes=--1", "bytes=1", "bytes=-0",
    "bytes=" + "9" * 5000 + "-",
])
def test_several_ranges_and_nonsense_give_the_whole(edge: Edge, thing: tuple[str, str, bytes], asked: str) -> None:
    target, _, data = thing
    answer = pair(edge, target, f"Range: {asked}")
    assert (answer.status, answer.body) == (200, data)
    assert "content-range" not in answer.headers


@pytest.mark.parametrize(("condition", "status"), [
    ("{etag}", 206), ("W/{etag}", 200), ('"x"', 200), (MODIFIED, 206), (EARLIER, 200), (LATER, 200), ("nonsense", 200),
])
def test_if_range_wants_exactly_what_we_have(edge: Edge, thing: tuple[str, str, bytes], condition: str, status: int) -> None:
    target, etag, data = thing
    answer = pair(edge, target, "Range: bytes=4-6", f"If-Range: {condition.format(etag=etag)}")
    assert (answer.status, answer.body) == (status, data[4:7] if status == 206 else data)


def test_a_digest_of_the_content_is_not_sent_with_a_part_of_it(edge: Edge) -> None:
    assert "content-digest" in edge.ask("GET", "/file/hello.txt").headers
    assert "content-digest" not in edge.ask("GET", "/file/hello.txt", "Range: bytes=0-1").headers


@pytest.mark.parametrize(("asked", "status"), [(None, 200), ("bytes=0-", 416), ("bytes=-5", 200)])
def test_a_file_of_no_bytes(edge: Edge, asked: str | None, status: int) -> None:
    answer = pair(edge, "/file/empty", *([f"Range: {asked}"] if asked else []))
    assert answer.status == status
    if status == 200:
        assert (answer.body, answer.headers["content-length"]) == (b"", "0")


def test_a_file_larger_than_one_write_is_sent_whole_and_in_part(edge: Edge) -> None:
    data = bytes(range(256)) * 1024
    with edge.wire() as wire:
        assert wire.ask("GET", "/file/medium.bin").body == data
        assert wire.ask("GET", "/file/medium.bin", "Range: bytes=1000-199999").body == data[1000:200000]
        assert wire.ask("GET", "/file/medium.bin", "Range: bytes=-70000").body == data[-70000:]
        assert wire.ask("GET", "/ping").body == b"pong"


def test_a_download_of_a_gibibyte_takes_no_memory(edge: Edge) -> None:
    before = edge.worker.memory_info().rss
    url = f"http://127.0.0.1:{edge.port}/file/sparse.bin"
    done = subprocess.run(["curl", "-s", "-o", "/dev/null", "-w", "%{size_download}", url], capture_output=True, check=True, text=True)
    assert int(done.stdout) == 1024**3
    assert edge.worker.memory_info().rss - before < 8 * 1024 * 1024


@pytest.mark.parametrize(("name", "field"), [
    ("a.tar.gz", 'attachment; filename="a.tar.gz"'),
    ("file[a#b].log", 'attachment; filename="file[a#b].log"'),
    ('a"b\\c%.txt', "attachment; filename=\"a_b_c_.txt\"; filename*=UTF-8''a%22b%5Cc%25.txt"),
    ("\u00dcbung \u571f.txt", "attachment; filename=\"_bung _.txt\"; filename*=UTF-8''%C3%9Cbung%20%E5%9C%9F.txt"),
    ("a\r\nX: b", "attachment; filename=\"a__X: b\"; filename*=UTF-8''a%0D%0AX%3A%20b"),
])
def test_a_download_name_is_told_in_ascii_and_in_full(name: str, field: str) -> None:
    assert content_disposition(name) == field


def test_a_download_name_reaches_the_client(edge: Edge) -> None:
    assert edge.ask("GET", "/file/hello.txt?as=%C3%9C.txt").headers["content-disposition"].endswith("filename*=UTF-8''%C3%9C.txt")
