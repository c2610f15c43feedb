"""Whole servers when things break: PostgreSQL restarted or gone, kill -9, suspension, a full disk (W1, S1; DESIGN 4: nothing hangs)."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest
import requests

from app.database import embedded
from tests.conftest import MakeServer
from tests.support.database import start, take_down
from tests.support.house import House, sha256
from tests.support.server import Server

MIB = 1024 * 1024
QUICK = {
    "ARKVORY_CLEANUP_SECONDS": "0.5",
    "ARKVORY_BLOB_GRACE_SECONDS": "1",
    "ARKVORY_UPLOAD_LEASE_SECONDS": "6",
    "ARKVORY_DISK_RESERVE_BYTES": "0",
    "ARKVORY_DATABASE_WAIT_SECONDS": "1",
}


class Observer(House):
    """Looks at a server's database and folder from outside; changes nothing."""

    def __init__(self, server: Server) -> None:
        self.url = str(server.database_url)
        self.folder = server.data


def until(condition: Callable[[], Any], seconds: float = 100) -> None:
    """Wait until it neither fails nor is false; then fails as it did last.

    Whoever stands still or is killed in the middle of a cleanup keeps the job for half a minute, and its transaction's locks for one.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            if condition() is not False:
                return
            assert time.monotonic() < deadline, f"still not so after {seconds} s"
        except (AssertionError, requests.RequestException):
            if time.monotonic() >= deadline:
                raise
        gevent.sleep(0.1)


def assert_settles(server: Server) -> None:
    """After its cleanup: counters equal sums, no temporary file, no file without a row, every artifact whole."""
    observer = Observer(server)

    def settled() -> None:
        assert observer.value("select count(*) from arkvory_uploads where status in ('open', 'garbage')") == 0
        observer.assert_no_strays()

    until(settled)
    observer.assert_counted()
    observer.assert_published_is_there()
    observer.assert_no_strays()
    for row in observer.rows(
        "select r.name, path, digest from arkvory_artifacts a join arkvory_blobs b on b.id = a.blob_id "
        "join arkvory_repositories r on r.id = a.repository_id"
    ):
        answer = server.get(f"/raw/{row.name}/{row.path}")
        assert (answer.status_code, sha256(answer.content)) == (200, row.digest)


class Load:
    """Clients that write and read all the time; what they were told is kept."""

    def __init__(self, server: Server, prefix: str = "f") -> None:
        self.server = server
        self.prefix = prefix
        self.stored: dict[str, bytes] = {}
        self.statuses: Counter[int] = Counter()
        self.faults: list[str] = []
        self._number = 0
        self._clients = [gevent.spawn(self._write) for _ in range(3)] + [gevent.spawn(self._read)]

    def _write(self) -> None:
        while True:
            self._number += 1
            path, body = f"{self.prefix}{self._number}", os.urandom(random.choice((10, 5_000, 300_000)))
            answer = self._ask("PUT", path, body)
            if answer is not None and answer.status_code == 201:
                self.stored[path] = body
            gevent.sleep(0.01)

    def _read(self) -> None:
        while True:
            path = random.choice(list(self.stored) or ["warm"])
            answer = self._ask("GET", path)
            if answer is not None and answer.status_code == 200 and path in self.stored and answer.content != self.stored[path]:
                self.faults.append(f"{path}: other bytes")
            gevent.sleep(0.01)

    def _ask(self, method: str, path: str, body: bytes = b"") -> requests.Response | None:
        try:
            answer = self.server.request(method, f"/raw/files/{path}", data=body, timeout=60)
        except requests.RequestException:
            self.statuses[0] += 1
            return None
        self.statuses[answer.status_code] += 1
        if answer.status_code >= 500 and (answer.status_code != 503 or "Retry-After" not in answer.headers):
            self.faults.append(f"{method} {path}: {answer.status_code} {answer.text}")
        return answer

    def end(self) -> None:
        """Every write that was answered with success is there."""
        gevent.killall(self._clients)
        assert not self.faults, self.faults[:5]
        for path, body in self.stored.items():
            answer = self.server.get(f"/raw/files/{path}")
            assert (answer.status_code, answer.content == body) == (200, True), path


@pytest.fixture
def quick(private_postgres: embedded.EmbeddedPostgres, make_server: MakeServer) -> Server:
    """A server over a PostgreSQL that may be broken, with a warm public file."""
    server = make_server(ARKVORY_DATABASE_URL=private_postgres.url, **QUICK)
    server.repository("files", public=True)
    # One that nobody writes to: each change of a repository makes its gates cold.
    server.repository("quiet", public=True)
    assert server.put("/raw/quiet/warm", b"warm").status_code == 201
    assert server.get("/raw/quiet/warm", auth=None).content == b"warm"
    return server


@pytest.mark.parametrize(
    ("how", "seconds"), [(signal.SIGINT, 1.0), (signal.SIGQUIT, 1.0), (signal.SIGQUIT, 13.0)], ids=["fast", "immediate", "gone for long"]
)
def test_w1_while_postgresql_is_away_nothing_hangs_or_is_lost_and_the_server_recovers_by_itself(
    quick: Server, private_postgres: embedded.EmbeddedPostgres, how: signal.Signals, seconds: float
) -> None:
    load = Load(quick)
    until(lambda: load.statuses[201] > 5)
    take_down(private_postgres, how)
    for _ in range(int(seconds * 2)):
        gevent.sleep(0.5)
        with gevent.Timeout(15):
            assert quick.get("/raw/quiet/warm", auth=None).content == b"warm", "warm reads go on from memory"
    with gevent.Timeout(30):
        refused = quick.put("/raw/files/refused", b"x")
    assert (refused.status_code, "Retry-After" in refused.headers) == (503, True)
    start(private_postgres.data)
    before = load.statuses[201]
    until(lambda: load.statuses[201] > before + 5)
    load.end()
    assert_settles(quick)


def test_w1_kill_9_in_the_middle_of_uploads_leaves_nothing_half_there(make_server: MakeServer) -> None:
    server = make_server(**QUICK)
    server.repository("files", public=True)
    stored: dict[str, bytes] = {}
    for number in range(3):
        load = Load(server, f"round {number} ")
        until(lambda load=load: load.statuses[201] > 3)
        gevent.sleep(random.random() / 2)
        server.kill9()
        gevent.sleep(0.1)
        stored |= load.stored
        load.stored = {}
        server.start()
        load.end()
    assert len(stored) > 5
    for path, body in stored.items():
        assert server.get(f"/raw/files/{path}").content == body
    assert_settles(server)


def test_w1_a_connection_cut_in_the_middle_of_a_body_leaves_nothing(make_server: MakeServer) -> None:
    server = make_server(**QUICK)
    server.repository("files")
    for head in (b"Content-Length: 9000000", b"Transfer-Encoding: chunked"):
        with contextlib.closing(gevent.socket.create_connection(("127.0.0.1", server.port))) as wire:
            login = requests.auth._basic_auth_str(*server.admin).encode()
            wire.sendall(b"PUT /raw/files/cut HTTP/1.1\r\nHost: x\r\nAuthorization: " + login + b"\r\n" + head + b"\r\n\r\n")
            wire.sendall((b"100000\r\n" if b"chunked" in head else b"") + b"x" * MIB)
            until(lambda: any(Observer(server).temporary()))
    until(lambda: not Observer(server).temporary())
    assert server.get("/raw/files/cut").status_code == 404
    assert Observer(server).epochs()[2] == 1
    until(lambda: Observer(server).counters() == {})
    assert_settles(server)


def test_s1_a_second_server_on_the_same_data_is_refused_with_the_reason(quick: Server, make_server: MakeServer) -> None:
    second = make_server(start=False, ARKVORY_DATABASE_URL=str(quick.database_url), ARKVORY_OWNERSHIP_WAIT_SECONDS="1")
    second.start(ready=False)
    assert second.process is not None
    assert gevent.get_hub().threadpool.apply(second.process.wait, (60,)) != 0
    assert "another Arkvory owns this storage (process" in second.log()
    assert quick.put("/raw/files/a", b"x").status_code == 201


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_a_second_server_that_is_told_to_stop_while_it_waits_goes_at_once_and_quietly(
    quick: Server, make_server: MakeServer, ending: signal.Signals
) -> None:
    second = make_server(start=False, ARKVORY_DATABASE_URL=str(quick.database_url))
    second.start(ready=False)
    assert second.process is not None
    until(lambda: "waiting up to 30 s" in second.log())
    os.kill(second.pid, ending)
    assert gevent.get_hub().threadpool.apply(second.process.wait, (20,)) == 0
    assert "Traceback" not in second.log()
    assert quick.put("/raw/files/a", b"x").status_code == 201


def test_s1_a_server_suspended_while_another_took_its_storage_writes_nothing_when_it_goes_on(
    quick: Server, make_server: MakeServer
) -> None:
    observer = Observer(quick)
    body = gevent.event.Event()

    def slowly() -> Iterator[bytes]:
        yield b"first half, "
        body.wait(60)
        yield b"second half"

    late = gevent.spawn(quick.put, "/raw/files/late", slowly())
    until(lambda: any(observer.temporary()))
    os.killpg(quick.pid, signal.SIGSTOP)
    try:
        # As a network that breaks: its lock comes free, and what it was writing is rolled back.
        observer.rows(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        )
        second = make_server(ARKVORY_DATABASE_URL=observer.url, ARKVORY_DATA_DIR=str(quick.data), **QUICK)
        gevent.sleep(8)
        assert second.put("/raw/files/new", b"of the successor").status_code == 201
    finally:
        os.killpg(quick.pid, signal.SIGCONT)
    body.set()
    answer = late.get(timeout=60)
    assert (answer.status_code, "Retry-After" in answer.headers) == (503, True)
    with contextlib.suppress(requests.RequestException):
        assert quick.put("/raw/files/other", b"x", timeout=20).status_code == 503
    assert {row.path for row in observer.rows("select path from arkvory_artifacts")} == {"warm", "new"}
    quick.kill9()
    observer.assert_counted()
    assert second.get("/raw/files/new").content == b"of the successor"
    second.folder = quick.folder
    assert_settles(second)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """16 MiB, where this may mount; in CI it must."""
    folder = tmp_path / "small"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        reason = f"a small file system cannot be mounted here: {made.stderr.strip()}"
        pytest.fail(reason) if os.environ.get("CI") and os.getuid() == 0 else pytest.skip(reason)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)


@pytest.mark.parametrize("told", [True, False], ids=["told", "untold"])
@pytest.mark.parametrize("filler", [0, 11 * MIB])
def test_w1_a_full_disk_is_507_and_leaves_nothing(small_disk: Path, make_server: MakeServer, told: bool, filler: int) -> None:
    server = make_server(ARKVORY_DATA_DIR=str(small_disk / "data"), **QUICK)
    server.folder = small_disk
    server.repository("files")
    (small_disk / "filler").write_bytes(bytes(filler))
    size = 20 * MIB - filler
    body: Any = bytes(size) if told else iter([bytes(MIB)] * (size // MIB))
    assert server.put("/raw/files/big", body).status_code == 507
    assert server.put("/raw/files/small", b"fits").status_code == 201
    assert server.get("/raw/files/big").status_code == 404
    assert_settles(server)


def test_w1_storage_that_cannot_be_written_is_503_and_heals(make_server: MakeServer) -> None:
    server = make_server(**QUICK)
    server.repository("files")
    assert server.put("/raw/files/a", b"x").status_code == 201
    incoming = server.data / "blobs" / "incoming"
    incoming.rename(incoming.with_name("elsewhere"))
    incoming.write_text("a file where a folder should be")
    refused = server.put("/raw/files/b", b"x")
    assert (refused.status_code, "Retry-After" in refused.headers) == (503, True)
    assert server.get("/raw/files/a").content == b"x"
    incoming.unlink()
    incoming.with_name("elsewhere").rename(incoming)
    assert server.put("/raw/files/b", b"x").status_code == 201
    assert_settles(server)
