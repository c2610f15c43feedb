"""Files up, as a whole: what the server gets, and what a client does when it is refused or cut off."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from pathlib import Path

import gevent
import pytest

from arkvory import Client, Event, Retry, Timeouts
from arkvory.errors import (
    CapacitySpent,
    Incomplete,
    LocalFile,
    NoAnswer,
    NotFound,
    PreconditionFailed,
    TimedOut,
    TooManyUploads,
    Unauthenticated,
    Unavailable,
)
from tests.sdk.conftest import QUICK, NewClient, noise
from tests.support.road import Fate, Passed, Road, refusal
from tests.support.server import Server

MIB = 1024 * 1024


def once(fate: Fate, method: str = "PUT", times: int = 1) -> Callable[[Passed], Fate | None]:
    """The fate of the first requests with this method."""
    left = [times]

    def decide(asked: Passed) -> Fate | None:
        if asked.method != method or not left[0]:
            return None
        left[0] -= 1
        return fate

    return decide


def file(folder: Path, name: str, data: bytes) -> Path:
    made = folder / name
    made.parent.mkdir(parents=True, exist_ok=True)
    made.write_bytes(data)
    return made


@pytest.mark.parametrize("size", [0, 1, 300_000])
def test_what_is_uploaded_is_there_with_its_digest(client: Client, server: Server, repository: str, tmp_path: Path, size: int) -> None:
    data = noise(size)
    done = client.upload(file(tmp_path, "a b+ä%.txt", data), repository, "2026/")
    assert (done.path, done.size, done.sha256) == ("2026/a b+ä%.txt", size, hashlib.sha256(data).hexdigest())
    assert client.read(repository, "2026/a b+ä%.txt") == data
    assert client.artifact(repository, "2026/a b+ä%.txt").content_type == "text/plain"


def test_progress_ends_at_the_size_and_says_so(new_client: NewClient, repository: str, tmp_path: Path, heard: list[Event]) -> None:
    new_client(progress=heard.append).upload(file(tmp_path, "a", noise(MIB)), repository, "a")
    assert [heard[0].state, heard[-1].state] == ["started", "done"]
    assert heard[-1].done == heard[-1].size == MIB and all(each.name == "a" for each in heard)


def test_conditions_are_the_servers_to_judge(client: Client, repository: str, tmp_path: Path) -> None:
    old, new = file(tmp_path, "old", b"old"), file(tmp_path, "new", b"new")
    digest = client.upload(old, repository, "a", only_new=True).sha256
    with pytest.raises(PreconditionFailed):
        client.upload(new, repository, "a", only_new=True)
    client.upload(new, repository, "a", replaces=digest)
    with pytest.raises(PreconditionFailed):
        client.upload(old, repository, "a", replaces=digest)
    assert client.read(repository, "a") == b"new"


def test_a_refused_upload_is_sent_again_from_its_first_byte(
    new_client: NewClient, road: Road, repository: str, tmp_path: Path, heard: list[Event]
) -> None:
    road.fate = once(Fate(answer=refusal(429, retry_after="1")), times=2)
    new_client(road.url, progress=heard.append).upload(file(tmp_path, "a", noise(3 * MIB)), repository, "a")
    assert new_client().read(repository, "a") == noise(3 * MIB)
    assert road.count("PUT") == 3
    assert [each.words.startswith("later; trying again in") for each in heard if each.state == "waiting"] == [True, True]


def test_an_upload_whose_answer_is_lost_is_done_and_done_again(new_client: NewClient, road: Road, repository: str, tmp_path: Path) -> None:
    """W4: the second one is harmless."""
    road.fate = once(Fate(cut=0))
    new_client(road.url).upload(file(tmp_path, "a", b"once"), repository, "a")
    assert road.count("PUT") == 2 and new_client().read(repository, "a") == b"once"


def test_a_lost_answer_does_not_make_an_only_new_upload_fail(new_client: NewClient, road: Road, repository: str, tmp_path: Path) -> None:
    road.fate = once(Fate(cut=0))
    client = new_client(road.url)
    assert client.upload(file(tmp_path, "a", b"mine"), repository, "a", only_new=True).sha256 == hashlib.sha256(b"mine").hexdigest()
    road.fate = once(Fate(answer=refusal(503)))
    with pytest.raises(PreconditionFailed):
        client.upload(file(tmp_path, "b", b"another's"), repository, "a", only_new=True)


def test_a_wrong_login_is_told_at_once_and_asked_once(new_client: NewClient, road: Road, repository: str, tmp_path: Path) -> None:
    with pytest.raises(Unauthenticated) as told:
        new_client(road.url, user="admin", password="wrong").upload(file(tmp_path, "a", noise(20 * MIB)), repository, "a")
    assert (told.value.status, told.value.attempts, len(road.passed)) == (401, 1, 1)


def test_a_repository_that_is_not_there_is_told(client: Client, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="nowhere"):
        client.upload(file(tmp_path, "a", b"a"), "nowhere", "a")


def test_a_quota_is_told_and_not_tried_again(client: Client, road: Road, server: Server, new_client: NewClient, tmp_path: Path) -> None:
    server.repository("narrow", quota_bytes=10)
    with pytest.raises(CapacitySpent):
        new_client(road.url).upload(file(tmp_path, "a", b"more than ten bytes"), "narrow", "a")
    assert road.count("PUT") == 1


def test_the_policy_ends_the_attempts_and_the_error_counts_them(new_client: NewClient, road: Road, repository: str, tmp_path: Path) -> None:
    road.fate = lambda asked: Fate(answer=refusal(503))
    with pytest.raises(Unavailable, match="after 3 attempts"):
        new_client(road.url, retry=Retry(attempts=3, first_wait=0.01)).upload(file(tmp_path, "a", b"a"), repository, "a")
    road.fate = lambda asked: Fate(answer=refusal(429, retry_after="3600", body=b'{"code": "too_many_uploads"}'))
    with pytest.raises(TooManyUploads) as told:
        new_client(road.url).upload(file(tmp_path, "a", b"a"), repository, "a")
    assert told.value.attempts == 1 and told.value.retry_after == 3600


def test_nobody_there_is_told_when_the_attempts_are_over(new_client: NewClient, repository: str, tmp_path: Path) -> None:
    with pytest.raises(NoAnswer, match=r"refused.*after 2 attempts"):
        new_client("http://127.0.0.1:9", retry=Retry(attempts=2, first_wait=0.01)).upload(file(tmp_path, "a", b"a"), repository, "a")


def test_a_server_that_says_nothing_is_a_time_out(new_client: NewClient, repository: str, tmp_path: Path) -> None:
    silent = Road(9, fate=lambda asked: gevent.sleep(5))
    try:
        with pytest.raises(TimedOut):
            new_client(silent.url, timeouts=Timeouts(read=0.2), retry=Retry(attempts=1)).whoami()
    finally:
        silent.stop()


def test_a_post_is_not_sent_twice_without_a_key(new_client: NewClient, road: Road, server: Server) -> None:
    road.fate = once(Fate(cut=0), method="POST")
    with pytest.raises(NoAnswer):
        new_client(road.url).create_repository("posted")
    assert road.count("POST") == 1 and server.get("/api/v1/repositories/posted").status_code == 200


def test_a_deletion_whose_answer_was_lost_is_done(new_client: NewClient, road: Road, repository: str, tmp_path: Path) -> None:
    client = new_client(road.url)
    client.upload(file(tmp_path, "a", b"a"), repository, "a")
    road.fate = once(Fate(cut=0), method="DELETE")
    client.delete(repository, "a")
    with pytest.raises(NotFound):
        client.delete(repository, "a")


def test_a_stream_that_can_be_wound_back_is_sent_again(new_client: NewClient, road: Road, repository: str) -> None:
    road.fate = once(Fate(answer=refusal(503)))
    stream = io.BytesIO(b"skipped" + noise(MIB))
    stream.seek(7)
    done = new_client(road.url).upload_stream(stream, repository, "a")
    assert (done.size, done.sha256) == (MIB, hashlib.sha256(noise(MIB)).hexdigest())
    assert new_client().read(repository, "a") == noise(MIB)


def test_a_stream_that_cannot_be_wound_back_is_sent_once(new_client: NewClient, road: Road, repository: str) -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    road.fate = once(Fate(answer=refusal(503)))
    with pytest.raises(Unavailable):
        new_client(road.url).upload_stream(Pipe(b"gone"), repository, "a")
    assert road.count("PUT") == 1


def test_a_file_that_is_written_while_it_is_sent_is_not_stored(client: Client, repository: str, tmp_path: Path) -> None:
    """W1: what nobody meant does not become an artifact."""
    from arkvory import files

    source = file(tmp_path, "log", noise(MIB))
    looked = files.Source.of(source)
    source.write_bytes(noise(MIB // 2, seed=2))
    with pytest.raises(LocalFile, match="changed while it was sent"):
        list(files.Section(looked, 0, looked.size, files.Stop(), lambda count: None))
    with pytest.raises(LocalFile, match="changed while it was sent"):
        files.hashed(looked, 0, files.Stop())


def test_a_folder_goes_up_and_what_is_there_does_not_go_again(
    new_client: NewClient, client: Client, repository: str, tmp_path: Path, road: Road
) -> None:
    contents = {"a": b"1", "sub/b.txt": b"22", "sub/deep/c": b"", "sub/ü": b"4"}
    for name, data in contents.items():
        file(tmp_path / "build", name, data)
    done = client.upload_folder(tmp_path / "build", repository, "app/1.0")
    assert [(each.path, each.unchanged) for each in done] == [(f"app/1.0/{name}", False) for name in sorted(contents, key=order)]
    assert {each.path: each.size for each in client.list(repository)} == {f"app/1.0/{name}": len(data) for name, data in contents.items()}
    file(tmp_path / "build", "a", b"9")
    again = new_client(road.url).upload_folder(tmp_path / "build", repository, "app/1.0/")
    assert [each.path for each in again if not each.unchanged] == ["app/1.0/a"]
    assert road.count("PUT") == 1 and client.read(repository, "app/1.0/a") == b"9"


def order(name: str) -> tuple[int, str]:
    """Files of a folder before those of the folders in it."""
    return name.count("/"), name


def test_one_file_that_fails_keeps_no_other_from_going(new_client: NewClient, repository: str, tmp_path: Path, road: Road) -> None:
    for name in ("a", "b", "c"):
        file(tmp_path / "build", name, name.encode())
    road.fate = lambda asked: Fate(answer=refusal(413)) if asked.target.endswith("/b") and asked.method == "PUT" else None
    with pytest.raises(Incomplete, match="1 of 3 files failed, the first of them 'b'") as told:
        new_client(road.url).upload_folder(tmp_path / "build", repository)
    assert list(told.value.failures) == ["b"]
    assert [each.path for each in new_client().list(repository)] == ["a", "c"]


def test_what_would_fail_for_every_file_is_not_tried_with_each(new_client: NewClient, repository: str, tmp_path: Path, road: Road) -> None:
    for number in range(30):
        file(tmp_path / "build", str(number), b"x")
    road.fate = lambda asked: Fate(answer=refusal(507)) if asked.method == "PUT" else None
    with pytest.raises(Incomplete):
        new_client(road.url, retry=QUICK, parallel=2).upload_folder(tmp_path / "build", repository)
    assert road.count("PUT") <= 4


def test_paths_that_no_artifact_can_have_are_refused_before_anything_is_sent(new_client: NewClient, road: Road, tmp_path: Path) -> None:
    source = file(tmp_path, "a", b"a")
    for path in ("a//b", "../a", "a/./b", "/a", "a\0"):
        with pytest.raises(ValueError, match="no path of an artifact"):
            new_client(road.url).upload(source, "files", path)
    assert road.passed == []
