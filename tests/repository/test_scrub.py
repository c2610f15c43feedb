"""Scrubbing finds every kind of damage, names who needs the bytes, and changes nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from app.repository import scrub
from app.repository.scrub import Scrub, Scrubbed
from tests.cli.test_arkvory import arkvory
from tests.http.edge import until
from tests.support.house import House, sha256
from tests.support.server import Server

FAST = 2**40


@pytest.fixture
def scrubber(house: House) -> Scrub:
    house.repository("files")
    return Scrub(house.parts.database, house.parts.store)


def file_of(house: House, body: bytes) -> Path:
    return next(path for path in house.files() if path.name.startswith(sha256(body)))


def test_what_is_whole_is_read_once_and_not_reported(house: House, scrubber: Scrub) -> None:
    bodies = [b"", b"a", os.urandom(9 * 1024 * 1024 + 3)]
    for number, body in enumerate(bodies):
        house.publish(f"a/{number}", body)
        house.publish(f"b/{number}", body)
    done = scrubber.step("", FAST)
    assert done == Scrubbed(blobs=3, bytes=sum(map(len, bodies)), damages=[], next=None)


@pytest.mark.parametrize(
    ("harm", "problem"),
    [
        (lambda path: path.unlink(), "missing"),
        (lambda path: path.write_bytes(b"longer than before, by far"), "size"),
        (lambda path: path.write_bytes(b"12346"), "corrupt"),
        (lambda path: (path.unlink(), path.symlink_to(path.name)), "unreadable"),
    ],
)
def test_each_damage_is_told_from_the_others_and_named_with_its_artifacts(
    house: House, scrubber: Scrub, harm: Callable[[Path], object], problem: str
) -> None:
    for path in ("z", "a/b", "a/a"):
        house.publish(path, b"12345")
    house.publish("whole", b"whole")
    harm(file_of(house, b"12345"))
    before = house.rows("select * from arkvory_blobs order by id"), sorted(house.files())
    done = scrubber.step("", FAST)
    assert [(each.digest, each.size, each.problem, each.uses) for each in done.damages] == [(sha256(b"12345"), 5, problem, 3)]
    assert [(each.repository, each.path) for each in done.damages[0].artifacts] == [("files", "a/a"), ("files", "a/b"), ("files", "z")]
    assert done.blobs == 2
    assert (house.rows("select * from arkvory_blobs order by id"), sorted(house.files())) == before


def test_a_blob_that_cleanup_takes_meanwhile_is_no_damage(house: House, scrubber: Scrub, monkeypatch: pytest.MonkeyPatch) -> None:
    """W3: the row says that nobody needs the bytes before they go."""
    house.publish("a", b"12345")
    found = scrubber._problem

    def after_cleanup(*arguments: object) -> object:
        house.delete("a")
        house.clean()
        assert not list(house.files())
        return found(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(scrubber, "_problem", after_cleanup)
    assert scrubber.step("", FAST).damages == []


def test_steps_go_on_where_the_last_one_ended(house: House, scrubber: Scrub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub, "STEP_SECONDS", 0.0)
    monkeypatch.setattr(scrub, "BATCH", 3)
    digests = sorted(sha256(b"%d" % number) for number in range(8))
    for number in range(8):
        house.publish(str(number), b"%d" % number)
    start, begun, steps = "", [], 0
    while start is not None:
        done = scrubber.step(start, FAST)
        assert done.blobs == 1
        steps += 1
        start = done.next
        begun.append(start)
    assert (steps, begun[:-1]) == (8, digests[1:])
    monkeypatch.setattr(scrub, "STEP_SECONDS", 60.0)
    assert scrubber.step("", FAST).blobs == 8
    assert scrubber.step(digests[5], FAST).blobs == 3
    assert scrubber.step(digests[7] + "0", FAST).blobs == 0


def test_the_rate_is_kept(house: House, scrubber: Scrub) -> None:
    house.publish("a", os.urandom(12 * 1024 * 1024))
    began = time.monotonic()
    assert scrubber.step("", 8 * 1024 * 1024).bytes == 12 * 1024 * 1024
    assert 1.4 <= time.monotonic() - began < 30


# Through the API and the command


def harm_stored(server: Server, digest: str) -> None:
    next((server.data / "blobs").rglob(f"{digest}-*")).write_bytes(b"12346")


def test_the_command_reports_beside_a_running_server_and_without_one(make_server: Callable[..., Server]) -> None:
    server = make_server()
    server.repository("files")
    for path in ("good", "bad/one"):
        server.put(f"/raw/files/{path}", b"12345" if "bad" in path else b"good")
    here = {"ARKVORY_DATA_DIR": str(server.data), "ARKVORY_DATABASE_URL": str(server.database_url)}
    assert "Checked 2 blobs, 9 B: none damaged." in arkvory("scrub", **here).stdout
    harm_stored(server, sha256(b"12345"))
    for running in (True, False):
        if not running:
            server.stop()
        done = arkvory("scrub", check=False, **here)
        assert done.returncode == 1
        assert f"CORRUPT  {sha256(b'12345')}" in done.stdout
        assert "files  bad/one" in done.stdout
        document = json.loads(arkvory("scrub", "--json", check=False, **here).stdout)
        assert (document["blobs"], document["next"], len(document["damages"])) == (2, None, 1)
        beyond = f"{int(max(sha256(b'12345'), sha256(b'good'))[:8], 16) + 1:08x}"
        assert "Checked 0 blobs" in arkvory("scrub", "--from", beyond, **here).stdout
    refused = arkvory("scrub", "--from", "zz", check=False, **here)
    assert (refused.returncode, "no digest" in refused.stderr, "go on with" in refused.stderr) == (2, True, False)


def test_a_command_that_is_stopped_says_how_to_go_on(make_server: Callable[..., Server]) -> None:
    server = make_server()
    server.repository("files")
    bodies = sorted((os.urandom(10 * 1024 * 1024) for _ in range(3)), key=sha256)
    for number, body in enumerate(bodies):
        server.put(f"/raw/files/{number}", body)
    harm_stored(server, sha256(bodies[0]))
    from tests.cli.test_arkvory import ROOT, sys

    words = ("scrub", "--rate", "1M", "--json")
    command = subprocess.Popen(
        [sys.executable, "-m", "app.cli", *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "ARKVORY_DATA_DIR": str(server.data)},
        # Tests that run in the background of a shell have it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    # One step is through: its line is in the access log. The damaged blob takes it no time. The second one has begun, and takes as long.
    until(lambda: "/api/v1/scrub" in server.log())
    time.sleep(1)
    command.send_signal(signal.SIGINT)
    told, said = command.communicate(timeout=30)
    assert command.returncode == 1
    assert "go on with: arkvory scrub --from " in said
    digest = said.strip().rpartition(" ")[2]
    assert len(digest) == 64
    # What was found so far is found by no later run.
    assert (json.loads(told)["next"], [each["digest"] for each in json.loads(told)["damages"]]) == (digest, [sha256(bodies[0])])
    assert "Checked 1 blobs" in arkvory("scrub", "--from", digest, ARKVORY_DATA_DIR=str(server.data)).stdout


def test_only_administrators_may_and_nonsense_is_refused(server: Server) -> None:
    server.post("/api/v1/users", json={"name": "scrubber", "password": "a-long-password"})
    assert server.post("/api/v1/scrub", json={}, auth=None).status_code == 401
    assert server.post("/api/v1/scrub", json={}, auth=("scrubber", "a-long-password")).status_code == 403
    for digest in ("xyz", "A" * 64, "0" * 65, "0\n"):
        assert server.post("/api/v1/scrub", json={"from": digest}).status_code == 422, digest
    for rate in (0, -1, 2**64, "1M"):
        assert server.post("/api/v1/scrub", json={"bytes_per_second": rate}).status_code == 422, rate
    assert server.post("/api/v1/scrub", json={}).json()["next"] is None
