"""Files down: ranges in parallel, breaks, replacements, damage; a name only for what is whole."""

from __future__ import annotations

import hashlib
import io
import json
import random
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from arkvory import Client, Retry, paths
from arkvory.errors import Damaged, Incomplete, LocalFile, NoAnswer, NotArkvory, NotFound
from arkvory.transport import Asked
from tests.sdk.conftest import NewClient, noise
from tests.support.road import Fate, Passed, Road, refusal
from tests.support.server import ROOT, Server
from tests.support.upstreams import FakeUpstream

MIB = 1024 * 1024
LARGE = noise(20 * MIB + 12345)


Large = tuple[str, str]


@pytest.fixture(scope="session")
def large(server: Server) -> tuple[str, str]:
    """Repository and path of a file of three pieces."""
    server.repository("large")
    assert server.put("/raw/large/a/large.bin", LARGE).status_code == 201
    return "large", "a/large.bin"


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def left(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir() if each.name != "cache"}


def test_a_file_comes_whole_in_ranges_side_by_side(new_client: NewClient, road: Road, large: Large, tmp_path: Path) -> None:
    done = new_client(road.url).download(*large, tmp_path)
    assert (done.file, done.size, done.verified, done.resumed) == (str(tmp_path / "large.bin"), len(LARGE), True, 0)
    assert (tmp_path / "large.bin").read_bytes() == LARGE and left(tmp_path) == {"large.bin"}
    ranges = [each.headers["range"] for each in road.passed if each.method == "GET"]
    assert sorted(ranges) == sorted(["bytes=0-8388607", "bytes=8388608-16777215", f"bytes=16777216-{len(LARGE) - 1}"])
    assert all("if-match" in each.headers for each in road.passed if each.method == "GET")


@pytest.mark.parametrize("size", [0, 1, 8 * MIB, 8 * MIB + 1])
def test_files_of_any_length_come_whole(client: Client, server: Server, repository: str, tmp_path: Path, size: int) -> None:
    assert server.put(f"/raw/{repository}/f", LARGE[:size]).status_code == 201
    done = client.download(repository, "f", tmp_path / "deep" / "er" / "g")
    assert (tmp_path / "deep" / "er" / "g").read_bytes() == LARGE[:size] and done.verified


def test_a_broken_connection_goes_on_behind_its_last_byte(new_client: NewClient, road: Road, large: Large, tmp_path: Path) -> None:
    chance = random.Random(3)
    road.fate = lambda asked: Fate(cut=chance.randrange(MIB, 5 * MIB)) if asked.method == "GET" else None
    new_client(road.url).download(*large, tmp_path)
    assert digest(tmp_path / "large.bin") == hashlib.sha256(LARGE).hexdigest()
    asked = [each.headers["range"] for each in road.passed if each.method == "GET"]
    assert len(asked) > 4 and len(set(asked)) == len(asked), "nothing is fetched twice"


def test_a_client_that_gives_up_leaves_what_the_next_one_goes_on_with(
    new_client: NewClient, road: Road, large: Large, tmp_path: Path
) -> None:
    target = tmp_path / "large.bin"
    broken = [0]

    def fate(asked: Passed) -> Fate | None:
        broken[0] += asked.method == "GET"
        return Fate(cut=6 * MIB) if broken[0] == 1 else Fate(answer=b"") if asked.method == "GET" else None

    road.fate = fate
    with pytest.raises(NoAnswer):
        new_client(road.url, parallel=1, retry=Retry(attempts=2, first_wait=0.01)).download(*large, target)
    assert not target.exists() and left(tmp_path) == {paths.part_of(target).name, paths.state_of(target).name}
    road.fate = lambda asked: None
    done = new_client(road.url).download(*large, target)
    assert 5 * MIB < done.resumed <= 6 * MIB
    assert target.read_bytes() == LARGE and left(tmp_path) == {"large.bin"}


def test_a_download_that_is_killed_is_gone_on_with(server: Server, road: Road, large: Large, tmp_path: Path, client: Client) -> None:
    """kill -9: no state file is half written, and the next one trusts only what the digest confirms."""
    target = tmp_path / "large.bin"
    code = f"import arkvory; arkvory.Client({road.url!r}, user='admin', password={server.password!r}).download(*{large!r}, {str(target)!r})"
    seen = threading.Event()

    def fate(asked: Passed) -> Fate | None:
        if asked.headers.get("range", "").startswith("bytes=16777216"):
            seen.set()
            time.sleep(60)
        return None

    road.fate = fate
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT / "sdk")
    try:
        assert seen.wait(60)
        state = paths.state_of(target)
        deadline = time.monotonic() + 60
        while not state.exists() or sum(json.loads(state.read_bytes())["got"]) < 16 * MIB:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()
    assert not target.exists()
    done = client.download(*large, target)
    assert done.resumed == 16 * MIB and target.read_bytes() == LARGE


def test_an_artifact_that_is_replaced_meanwhile_is_fetched_anew_and_never_mixed(
    new_client: NewClient, road: Road, server: Server, repository: str, tmp_path: Path
) -> None:
    """W2: one complete file, old or new."""
    server.put(f"/raw/{repository}/f", LARGE)
    new = LARGE[::-1]

    def fate(asked: Passed) -> Fate | None:
        if asked.method == "GET" and sum(each.method == "GET" for each in road.passed) == 2:
            server.put(f"/raw/{repository}/f", new)
        return None

    road.fate = fate
    done = new_client(road.url, parallel=1).download(repository, "f", tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == new and done.sha256 == hashlib.sha256(new).hexdigest()


def test_an_old_part_of_a_replaced_artifact_is_not_used(client: Client, server: Server, repository: str, tmp_path: Path) -> None:
    server.put(f"/raw/{repository}/f", LARGE)
    target = tmp_path / "f"
    paths.part_of(target).write_bytes(b"x" * len(LARGE))
    state = {"etag": '"' + "0" * 64 + '"', "size": len(LARGE), "piece": 8 * MIB, "got": [8 * MIB, 8 * MIB, 0]}
    paths.state_of(target).write_text(json.dumps(state))
    assert client.download(repository, "f", target).resumed == 0
    assert target.read_bytes() == LARGE


@pytest.mark.parametrize("broken", ["", "{", "[]", '{"got": 1}', '{"got": [-1, 0, 0]}'])
def test_a_state_file_that_makes_no_sense_is_not_believed(client: Client, large: Large, tmp_path: Path, broken: str) -> None:
    target = tmp_path / "f"
    paths.part_of(target).write_bytes(b"x" * 100)
    paths.state_of(target).write_text(broken)
    client.download(*large, target)
    assert target.read_bytes() == LARGE and left(tmp_path) == {"f"}


def test_bytes_that_were_damaged_here_are_found_by_the_digest_and_fetched_again(
    new_client: NewClient, server: Server, large: Large, tmp_path: Path
) -> None:
    target = tmp_path / "f"
    etag = server.head("/raw/large/a/large.bin").headers["ETag"]
    paths.part_of(target).write_bytes(b"x" * len(LARGE))
    paths.state_of(target).write_text(json.dumps({"etag": etag, "size": len(LARGE), "piece": 8 * MIB, "got": [8 * MIB, 8 * MIB, 0]}))
    done = new_client().download(*large, target)
    assert target.read_bytes() == LARGE and done.resumed == 0


def test_what_comes_damaged_twice_gets_no_name(upstream: FakeUpstream, new_client: NewClient, tmp_path: Path) -> None:
    wrong = hashlib.sha256(b"another").hexdigest()
    upstream.put("/raw/files/f", b"this one", headers={"X-Checksum-Sha256": wrong})
    with pytest.raises(Damaged, match="came damaged"):
        new_client(upstream.url).download("files", "f", tmp_path / "f")
    assert not (tmp_path / "f").exists()


def test_an_existing_file_is_replaced_only_by_a_whole_one(new_client: NewClient, road: Road, large: Large, tmp_path: Path) -> None:
    target = tmp_path / "f"
    target.write_bytes(b"old")
    road.fate = lambda asked: Fate(cut=MIB) if asked.method == "GET" else None
    with pytest.raises(NoAnswer):
        new_client(road.url, retry=Retry(attempts=1)).download(*large, target)
    assert target.read_bytes() == b"old"


def test_the_same_file_is_not_fetched_again(new_client: NewClient, road: Road, large: Large, tmp_path: Path) -> None:
    (tmp_path / "large.bin").write_bytes(LARGE)
    done = new_client(road.url).download(*large, tmp_path)
    assert done.unchanged and road.count("GET") == 0 and left(tmp_path) == {"large.bin"}


def test_something_on_the_way_that_knows_no_ranges_sends_the_whole(new_client: NewClient, upstream: FakeUpstream, tmp_path: Path) -> None:
    told = {"X-Checksum-Sha256": hashlib.sha256(LARGE).hexdigest()}
    upstream.put("/raw/files/f", LARGE, etag='"e"', headers=told)
    upstream.put("/raw/files/f", LARGE, etag='"e"', headers=told, method="GET", times=1, truncate=5 * MIB)
    done = new_client(upstream.url).download("files", "f", tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == LARGE and done.verified


def test_a_file_that_a_proxy_is_just_fetching_comes_too(
    client: Client, server: Server, upstream: FakeUpstream, tmp_path: Path
) -> None:
    upstream.put("/tool/f.bin", LARGE)
    server.repository("sdkproxy", kind="proxy", upstream_url=upstream.url)
    done = client.download("sdkproxy", "tool/f.bin", tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == LARGE and done.verified


def test_two_downloads_to_one_file_do_not_write_over_each_other(client: Client, road: Road, large: Large, tmp_path: Path) -> None:
    from arkvory import downloads

    target = tmp_path / "f"
    with downloads._locked(paths.part_of(target)), pytest.raises(LocalFile, match="another download"):
        client.download(*large, target)
    client.download(*large, target)
    assert target.read_bytes() == LARGE


def test_what_is_not_there_leaves_no_file(client: Client, repository: str, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        client.download(repository, "nothing", tmp_path / "f")
    assert left(tmp_path) == set()


def test_a_package_of_another_format_comes_by_its_own_address(client: Client, server: Server, tmp_path: Path) -> None:
    server.repository("jars", format="maven")
    assert server.put("/maven/jars/com/acme/a/1/a-1.jar", b"jar").status_code == 201
    client.download("jars", "com/acme/a/1/a-1.jar", tmp_path)
    assert (tmp_path / "a-1.jar").read_bytes() == b"jar"


def test_a_folder_comes_and_what_is_here_does_not_come_again(
    client: Client, new_client: NewClient, road: Road, server: Server, repository: str, tmp_path: Path
) -> None:
    contents = {"top": b"0", "app/a": b"1", "app/sub/b": b"22", "app/sub/ü ?#": b"", "app2/c": b"no"}
    for name, data in contents.items():
        client.upload_stream(io.BytesIO(data), repository, name)
    done = client.download_folder(repository, "app", tmp_path / "out")
    assert [each.path for each in done] == ["app/a", "app/sub/b", "app/sub/ü ?#"]
    found = {each.relative_to(tmp_path / "out").as_posix(): each.read_bytes() for each in (tmp_path / "out").rglob("*") if each.is_file()}
    assert found == {name.removeprefix("app/"): data for name, data in contents.items() if name.startswith("app/")}
    again = new_client(road.url).download_folder(repository, "app/", tmp_path / "out")
    assert all(each.unchanged for each in again) and road.count("GET") == 1
    assert len(client.download_folder(repository, "", tmp_path / "all")) == 5
    with pytest.raises(NotFound):
        client.download_folder(repository, "nothing", tmp_path / "none")


def test_a_file_that_is_a_folder_here_is_named_and_the_others_come(client: Client, server: Server, repository: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        server.put(f"/raw/{repository}/{name}", b"x")
    (tmp_path / "out" / "a").mkdir(parents=True)
    with pytest.raises(Incomplete, match="1 of 2 files failed"):
        client.download_folder(repository, "", tmp_path / "out")
    assert (tmp_path / "out" / "b").read_bytes() == b"x"


def test_more_bytes_than_were_asked_for_are_written_nowhere(new_client: NewClient, road: Road, large: Large, tmp_path: Path) -> None:
    """A server that does not end: nothing of it reaches other pieces, nor fills the disk."""
    etag = new_client()._transport.send(Asked("HEAD", "/raw/large/a/large.bin")).headers["ETag"]

    def fate(asked: Passed) -> Fate | None:
        if asked.method != "GET":
            return None
        told = f"Content-Range: bytes 0-{8 * MIB - 1}/{len(LARGE)}\r\nETag: {etag}\r\n"
        head = f"HTTP/1.1 206 Partial Content\r\n{told}Content-Length: {30 * MIB}\r\nConnection: close\r\n\r\n"
        return Fate(answer=head.encode() + bytes(30 * MIB))

    road.fate = fate
    with pytest.raises(Damaged, match="a part of it where the whole was asked for"):
        new_client(road.url, parallel=1).download(*large, tmp_path / "f")
    assert left(tmp_path) == set()


def test_what_comes_without_a_digest_is_compared_with_the_one_that_is_told(
    upstream: FakeUpstream, new_client: NewClient, tmp_path: Path
) -> None:
    upstream.put("/raw/files/f", b"another one")
    upstream.put("/raw/files/f", method="HEAD", headers={"X-Checksum-Sha256": hashlib.sha256(b"one").hexdigest()})
    with pytest.raises(Damaged):
        new_client(upstream.url).download("files", "f", tmp_path / "f")
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize("length", ["\xb2", "9" * 5000, "-1", "1e3"])
def test_a_length_that_is_none_is_not_believed(new_client: NewClient, road: Road, tmp_path: Path, length: str) -> None:
    def fate(asked: Passed) -> Fate:
        told, body = (length, b"") if asked.method == "HEAD" else ("1", b"x")
        return Fate(answer=f"HTTP/1.1 200 OK\r\nContent-Length: {told}\r\nConnection: close\r\n\r\n".encode("latin-1") + body)

    road.fate = fate
    assert new_client(road.url).download("files", "f", tmp_path / "f").size == 1


def test_no_link_is_followed_to_where_the_bytes_of_a_download_lie(client: Client, large: Large, tmp_path: Path) -> None:
    other, target = tmp_path / "other", tmp_path / "f"
    other.write_bytes(b"somebody's")
    paths.part_of(target).symlink_to(other)
    with pytest.raises(LocalFile):
        client.download(*large, target)
    assert other.read_bytes() == b"somebody's" and not target.exists()


def test_what_downloads_have_left_is_no_file_of_a_folder(client: Client, server: Server, repository: str, tmp_path: Path) -> None:
    """Neither sent, nor written over where an artifact has such a name."""
    target = tmp_path / "out" / "f"
    for name in ("f", "f.arkvory.part", "f.arkvory.part.json"):
        server.put(f"/raw/{repository}/{name}", name.encode())
    with pytest.raises(Incomplete, match="2 of 3 files failed") as failed:
        client.download_folder(repository, "", tmp_path / "out")
    assert all(isinstance(each, LocalFile) for each in failed.value.failures.values())
    assert left(tmp_path / "out") == {"f"} and target.read_bytes() == b"f"
    paths.part_of(target).write_bytes(b"half")
    assert [each.path for each in client.upload_folder(tmp_path / "out", repository, "again")] == ["again/f"]


def test_a_server_below_a_prefix_is_asked_below_it(new_client: NewClient, server: Server, tmp_path: Path) -> None:
    """Also where its addresses have another one, or none."""
    server.repository("prefixed", format="maven")
    server.put("/maven/prefixed/com/acme/a/1/a-1.jar", b"jar")
    client = new_client()
    (artifact,) = client.list("prefixed")
    for above, told, asked in (("", "", ""), ("/x", "/x", ""), ("/x", "", ""), ("/x", "/xy", "/xy")):
        below = new_client(f"http://there{above}")
        found = replace(artifact, url=f"http://there{told}/maven/prefixed/{artifact.path}")
        assert below._address_of("prefixed", found) == f"{asked}/maven/prefixed/{artifact.path}"
    plain = replace(artifact, url="http://elsewhere/deep/raw/files/a%20b", path="a b")
    assert client._address_of("files", plain) == "/raw/files/a%20b"
    for url in ("@elsewhere/raw/f", "", "http:@elsewhere"):
        with pytest.raises(NotArkvory):
            client._address_of("prefixed", replace(artifact, url=url))


@pytest.mark.parametrize(
    "answer", [b'{"items": 5}', b'{"next": null}', b'{"items": [5], "next": null}', b"[]", b"[" * 100_000, b'{"items": [], "next": "x"}']
)
def test_lists_that_are_none_or_never_end_are_told(new_client: NewClient, upstream: FakeUpstream, tmp_path: Path, answer: bytes) -> None:
    for target in ("/api/v1/repositories/files/artifacts?limit=1000", "/api/v1/repositories/files/artifacts?limit=1000&cursor=x"):
        upstream.put(target, answer)
    with pytest.raises(NotArkvory):
        new_client(upstream.url).download_folder("files", "", tmp_path)


@pytest.mark.parametrize("name", ["nul", "CON.txt", "com1 .x", "a:b", "a.", "a ", "a?", "a\x1f", "a\\b"])
def test_names_that_mean_something_to_windows_are_known(name: str) -> None:
    assert paths.means_something_to_windows(name)
    assert not any(map(paths.means_something_to_windows, ("console.txt", ".nul", "a b", "com10", "ü")))


@pytest.mark.parametrize("path", ["../a", "/a", "a/../../b", "a//b", "", "a/\0"])
def test_no_path_of_a_server_leads_out_of_the_folder(tmp_path: Path, path: str) -> None:
    with pytest.raises(LocalFile):
        paths.local(tmp_path, path)


def test_names_as_long_as_a_file_may_have_them_fit(client: Client, server: Server, repository: str, tmp_path: Path) -> None:
    for name in ("n" * 255, "n" * 254 + "m"):
        server.put(f"/raw/{repository}/long/{name}", name[-1].encode())
    client.download_folder(repository, "long", tmp_path / "out")
    assert {each.name[-1]: each.read_bytes() for each in (tmp_path / "out").iterdir()} == {"n": b"n", "m": b"m"}


def test_a_status_of_refusal_within_a_piece_is_waited_out(new_client: NewClient, road: Road, large: Large, tmp_path: Path) -> None:
    refused = [3]

    def fate(asked: Passed) -> Fate | None:
        refused[0] -= asked.method == "GET"
        return Fate(answer=refusal(503, retry_after="1")) if asked.method == "GET" and refused[0] >= 0 else None

    road.fate = fate
    new_client(road.url).download(*large, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == LARGE
