"""Large files up: in parts side by side, gone on with after whatever ended the client before."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from arkvory import Client, Event, Retry
from arkvory.errors import LocalFile, NoAnswer, PreconditionFailed, TooManyUploads, Unauthenticated
from tests.sdk.conftest import NewClient, noise
from tests.support.road import Fate, Passed, Road, refusal
from tests.support.server import ROOT, Server

KIB = 1024
PART = 128 * KIB
# Two sizes: the smaller is put together while the client waits, the larger by the server afterwards.
SMALL, LARGE = noise(5 * PART + 77, seed=5), noise(11 * PART, seed=6)
PARTS = {"part_size": PART, "parts_from": PART}


def source(folder: Path, data: bytes) -> Path:
    (folder / "large.bin").write_bytes(data)
    return folder / "large.bin"


def parts_sent(road: Road) -> list[int]:
    """Numbers of the parts that passed, in order."""
    found = (re.search(r"/uploads/[^/]+/parts/(\d+)$", each.target) for each in road.passed if each.method == "PUT")
    return [int(match[1]) for match in found if match]


def remembered(folder: Path) -> list[Path]:
    return list((folder / "cache" / "uploads").glob("*"))


def is_completion(asked: Passed) -> bool:
    return asked.method == "POST" and asked.target.endswith("/complete")


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["put together at once", "put together afterwards"])
def test_a_large_file_goes_in_parts_and_nothing_is_remembered_of_it(
    new_client: NewClient, road: Road, server: Server, repository: str, tmp_path: Path, data: bytes
) -> None:
    done = new_client(road.url, **PARTS).upload(source(tmp_path, data), repository, "a/")
    assert (done.path, done.sha256) == ("a/large.bin", hashlib.sha256(data).hexdigest())
    assert server.get(f"/raw/{repository}/a/large.bin").content == data
    assert sorted(parts_sent(road)) == list(range(1, done.parts + 1)) and done.parts == -(-len(data) // PART)
    assert all("x-checksum-sha256" in each.headers for each in road.passed if each.method == "PUT")
    assert remembered(tmp_path) == []


def test_a_killed_client_leaves_what_the_next_one_goes_on_with(
    new_client: NewClient, road: Road, server: Server, repository: str, tmp_path: Path
) -> None:
    """kill -9 with parts under way: only those that were not whole are sent again, under the same upload."""
    file = source(tmp_path, LARGE)
    stuck = threading.Event()

    def fate(asked: Passed) -> Fate | None:
        if re.search(r"/parts/(7|9|10|11)$", asked.target) and not killed:
            stuck.set()
            time.sleep(60)
        return None

    killed: list[bool] = []
    road.fate = fate
    login = f"user='admin', password={server.password!r}, cache={str(tmp_path / 'cache')!r}"
    options = f"{login}, parallel=3, part_size={PART}, parts_from={PART}"
    code = f"import arkvory; arkvory.Client({road.url!r}, {options}).upload({str(file)!r}, {repository!r})"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT / "sdk")
    try:
        assert stuck.wait(60)
        deadline = time.monotonic() + 60
        while not {1, 2, 3, 4, 5, 6, 8} <= set(whole(server, repository, road)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        process.kill()
        process.wait()
        killed.append(True)
    assert len(remembered(tmp_path)) == 1
    before = len(parts_sent(road))
    heard: list[Event] = []
    done = new_client(road.url, progress=heard.append, **PARTS).upload(file, repository)
    assert server.get(f"/raw/{repository}/large.bin").content == LARGE
    assert sorted(parts_sent(road)[before:]) == [7, 9, 10, 11] and done.parts == 4
    assert (heard[-1].state, heard[-1].resumed) == ("done", 7 * PART)
    assert sum(each.method == "POST" and each.target.endswith("/uploads") for each in road.passed) == 1
    assert remembered(tmp_path) == []


def whole(server: Server, repository: str, road: Road) -> list[int]:
    """Numbers of the parts that the server has."""
    ids = {match[1] for each in road.passed if (match := re.search(r"/uploads/([^/]+)/parts", each.target))}
    return [
        part["number"] for id in ids for part in server.get(f"/api/v1/repositories/{repository}/uploads/{id}/parts").json().get("items", [])
    ]


@pytest.mark.parametrize("lost", ["/uploads", "/complete"])
def test_a_lost_answer_makes_no_second_upload(
    new_client: NewClient, road: Road, server: Server, repository: str, tmp_path: Path, lost: str
) -> None:
    """W4: the key is the same, and what was done is found."""
    left = [1]

    def fate(asked: Passed) -> Fate | None:
        if asked.method == "POST" and asked.target.endswith(lost) and left:
            left.pop()
            return Fate(cut=0)
        return None

    road.fate = fate
    new_client(road.url, **PARTS).upload(source(tmp_path, SMALL), repository)
    assert server.get(f"/raw/{repository}/large.bin").content == SMALL
    posts = [each for each in road.passed if each.method == "POST" and each.target.endswith(lost)]
    assert len(posts) == 2 and len({each.headers["idempotency-key"] for each in posts}) == 1
    assert len({match[1] for each in road.passed if (match := re.search(r"/uploads/([^/]+)", each.target))}) == 1
    assert len(parts_sent(road)) == 6


def test_a_client_that_dies_before_it_hears_of_its_upload_finds_it_again(
    new_client: NewClient, road: Road, server: Server, repository: str, tmp_path: Path
) -> None:
    road.fate = lambda asked: Fate(cut=0) if asked.method == "POST" else None
    client = new_client(road.url, retry=Retry(attempts=1), **PARTS)
    with pytest.raises(NoAnswer):
        client.upload(source(tmp_path, SMALL), repository)
    road.fate = lambda asked: None
    client.upload(tmp_path / "large.bin", repository)
    keys = {each.headers["idempotency-key"] for each in road.passed if each.target.endswith("/uploads")}
    assert len(keys) == 1 and server.get(f"/raw/{repository}/large.bin").content == SMALL


def test_an_upload_that_is_gone_meanwhile_is_begun_anew(
    new_client: NewClient, road: Road, server: Server, repository: str, tmp_path: Path
) -> None:
    cancelled: list[str] = []

    def fate(asked: Passed) -> Fate | None:
        if asked.target.endswith("/parts/3") and not cancelled:
            cancelled.append(asked.target.removesuffix("/parts/3"))
            assert server.delete(cancelled[0]).status_code == 204
        return None

    road.fate = fate
    new_client(road.url, parallel=1, **PARTS).upload(source(tmp_path, SMALL), repository)
    assert server.get(f"/raw/{repository}/large.bin").content == SMALL and remembered(tmp_path) == []
    assert sum(each.target.endswith("/uploads") for each in road.passed) == 2


def test_a_refused_or_broken_part_is_sent_again_and_no_other(
    new_client: NewClient, road: Road, server: Server, repository: str, tmp_path: Path
) -> None:
    fates = {2: [Fate(answer=refusal(429, retry_after="1")), Fate(cut=0)], 4: [Fate(answer=refusal(503))]}

    def fate(asked: Passed) -> Fate | None:
        number = re.search(r"/parts/(\d+)$", asked.target)
        waiting = fates.get(int(number[1])) if number else None
        return waiting.pop(0) if waiting else None

    road.fate = fate
    new_client(road.url, **PARTS).upload(source(tmp_path, SMALL), repository)
    assert server.get(f"/raw/{repository}/large.bin").content == SMALL
    assert sorted(parts_sent(road)) == [1, 2, 2, 2, 3, 4, 4, 5, 6]


def test_a_file_that_changed_since_is_another_upload(
    new_client: NewClient, road: Road, server: Server, repository: str, tmp_path: Path
) -> None:
    road.fate = lambda asked: Fate(answer=refusal(503)) if is_completion(asked) else None
    with pytest.raises(Exception, match="later"):
        new_client(road.url, retry=Retry(attempts=1), **PARTS).upload(source(tmp_path, SMALL), repository)
    road.fate = lambda asked: None
    changed = SMALL[::-1]
    done = new_client(road.url, **PARTS).upload(source(tmp_path, changed), repository)
    assert done.parts == 6 and server.get(f"/raw/{repository}/large.bin").content == changed


def test_a_file_that_is_written_meanwhile_is_not_published(
    new_client: NewClient, road: Road, server: Server, repository: str, tmp_path: Path
) -> None:
    file = source(tmp_path, SMALL)

    def fate(asked: Passed) -> Fate | None:
        if asked.target.endswith("/parts/6"):
            file.write_bytes(SMALL + b"more")
        return None

    road.fate = fate
    with pytest.raises(LocalFile, match="changed while it was sent"):
        new_client(road.url, parallel=1, **PARTS).upload(file, repository)
    assert server.get(f"/raw/{repository}/large.bin").status_code == 404
    assert server.get(road.passed[-1].target).status_code == 404, "its room is given back"
    assert road.passed[-1].method == "DELETE" and remembered(tmp_path) == []


def test_what_the_server_finds_afterwards_is_the_error_that_it_would_have_been(
    new_client: NewClient, road: Road, server: Server, repository: str, tmp_path: Path
) -> None:
    """The answer was 202; somebody else was faster."""

    def fate(asked: Passed) -> Fate | None:
        if is_completion(asked):
            server.put(f"/raw/{repository}/large.bin", b"another's")
        return None

    road.fate = fate
    with pytest.raises(PreconditionFailed) as told:
        new_client(road.url, **PARTS).upload(source(tmp_path, LARGE), repository, only_new=True)
    assert told.value.status == 412 and server.get(f"/raw/{repository}/large.bin").content == b"another's"
    assert remembered(tmp_path) == []


def test_what_was_published_before_and_replaced_since_is_sent_again(
    new_client: NewClient, road: Road, server: Server, repository: str, tmp_path: Path
) -> None:
    """A client that died after the publish left its memory; somebody else published meanwhile."""
    file, client = source(tmp_path, SMALL), new_client(road.url, retry=Retry(attempts=1), **PARTS)
    published: list[Passed] = []

    def fate(asked: Passed) -> Fate | None:
        if published:
            return Fate(answer=b"")
        if is_completion(asked):
            published.append(asked)
            return Fate(cut=0)
        return None

    road.fate = fate
    with pytest.raises(NoAnswer):
        client.upload(file, repository)
    assert server.get(f"/raw/{repository}/large.bin").content == SMALL
    road.fate = lambda asked: None
    assert client.upload(file, repository).parts == 0
    published.clear()
    road.fate = fate
    with pytest.raises(NoAnswer):
        client.upload(file, repository)
    road.fate = lambda asked: None
    server.put(f"/raw/{repository}/large.bin", b"another's")
    client.upload(file, repository)
    assert server.get(f"/raw/{repository}/large.bin").content == SMALL


def test_only_new_is_kept_in_parts_too(new_client: NewClient, server: Server, repository: str, tmp_path: Path) -> None:
    client = new_client(**PARTS)
    client.upload(source(tmp_path, SMALL), repository, only_new=True)
    with pytest.raises(PreconditionFailed):
        client.upload(source(tmp_path, LARGE), repository, only_new=True)
    assert server.get(f"/raw/{repository}/large.bin").content == SMALL


@pytest.mark.parametrize("status", [404, 405])
def test_a_server_that_takes_no_parts_gets_a_whole_one(
    new_client: NewClient, road: Road, server: Server, repository: str, tmp_path: Path, status: int
) -> None:
    road.fate = lambda asked: Fate(answer=refusal(status)) if asked.method == "POST" else None
    done = new_client(road.url, **PARTS).upload(source(tmp_path, SMALL), repository)
    assert server.get(f"/raw/{repository}/large.bin").content == SMALL and done.parts == 0 and remembered(tmp_path) == []


def test_parts_go_through_a_group_too(new_client: NewClient, server: Server, repository: str, tmp_path: Path) -> None:
    server.repository(f"{repository}-group", kind="group", members=[repository], settings={"write_member": repository})
    new_client(**PARTS).upload(source(tmp_path, SMALL), f"{repository}-group")
    assert server.get(f"/raw/{repository}/large.bin").content == SMALL


def test_a_wrong_login_is_told_before_any_part_goes(new_client: NewClient, road: Road, repository: str, tmp_path: Path) -> None:
    with pytest.raises(Unauthenticated):
        new_client(road.url, user="admin", password="wrong", **PARTS).upload(source(tmp_path, SMALL), repository)
    assert len(road.passed) == 1


def test_two_clients_with_the_same_file_send_one_upload_between_them(
    new_client: NewClient, server: Server, repository: str, tmp_path: Path
) -> None:
    """Both end well, whoever completes it."""
    file = source(tmp_path, LARGE)
    clients = [new_client(**PARTS) for _ in range(2)]
    errors: list[BaseException] = []

    def run(client: Client) -> None:
        try:
            client.upload(file, repository)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(each,)) for each in clients]
    for each in threads:
        each.start()
    for each in threads:
        each.join(120)
    assert errors == [] and server.get(f"/raw/{repository}/large.bin").content == LARGE


def test_who_has_too_many_uploads_open_waits_until_others_have_ended(
    new_client: NewClient, road: Road, server: Server, repository: str, tmp_path: Path
) -> None:
    """Or until the server wants more patience than the client has."""
    answers = ["1", "3600"]
    body = b'{"code": "too_many_uploads", "detail": "1000 uploads of one user are open"}'

    def fate(asked: Passed) -> Fate | None:
        begins = asked.method == "POST" and asked.target.endswith("/uploads") and answers
        return Fate(answer=refusal(429, retry_after=answers.pop(0), body=body)) if begins else None

    road.fate = fate
    client = new_client(road.url, **PARTS)
    file = source(tmp_path, SMALL)
    with pytest.raises(TooManyUploads, match="1000 uploads of one user are open") as told:
        client.upload(file, repository)
    assert told.value.attempts == 2 and told.value.retry_after == 3600
    answers.append("1")
    client.upload(file, repository)
    assert server.get(f"/raw/{repository}/large.bin").content == SMALL
