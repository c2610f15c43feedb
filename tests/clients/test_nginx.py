"""The configuration of the deployment page, by a real nginx in front of two real servers of a cluster."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest
import requests

from app.database.embedded import EmbeddedPostgres
from tests.clients.conftest import Desk
from tests.conftest import NewDatabase, drop
from tests.support import clients
from tests.support.house import eventually, sha256
from tests.support.nginx import Nginx
from tests.support.server import Cluster

LARGE = 100 * 2**20
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def servers(
    postgres: EmbeddedPostgres, new_database: NewDatabase, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Two masters with two processes each, and a repository `files`."""
    trusting = {"ARKVORY_TRUSTED_PROXIES": "127.0.0.1"}
    made = Cluster(tmp_path_factory.mktemp("cluster"), new_database(template), 2, 2, **trusting)
    try:
        made.start()[0].repository("files", public=True)
        yield made
    finally:
        made.close()
        drop(postgres, made.database_url)


@pytest.fixture(scope="module")
def nginx(servers: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    clients.require_packages("nginx")
    running = Nginx(tmp_path_factory.mktemp("nginx"), servers).start()
    yield running
    running.stop()


def incoming(servers: Cluster) -> int:
    """Bytes of the uploads that are under way."""
    return sum(path.stat().st_size for path in (servers[0].data / "blobs" / "incoming").iterdir())


def test_the_configuration_is_taken_without_a_word(nginx: Nginx) -> None:
    assert "warn" not in nginx.check()


def test_an_upload_passes_through_while_it_comes_and_is_stored_nowhere_on_the_way(nginx: Nginx, servers: Cluster) -> None:
    body = os.urandom(LARGE)
    half_way, go_on = threading.Event(), threading.Event()

    def pieces() -> Iterator[bytes]:
        yield body[: LARGE // 2]
        half_way.set()
        go_on.wait(30)
        yield body[LARGE // 2 :]

    upload = gevent.spawn(nginx.request, "PUT", "/raw/files/large", data=pieces(), auth=servers[0].admin)
    assert half_way.wait(30)
    deadline = time.monotonic() + 20
    while incoming(servers) < LARGE // 2 - 4 * 2**20:
        assert time.monotonic() < deadline, f"only {incoming(servers)} bytes came through"
        gevent.sleep(0.05)
    assert list((nginx.folder / "bodies").iterdir()) == []
    go_on.set()
    answer = upload.get(timeout=60)
    assert answer.status_code == 201, answer.text
    shown = servers[0].get("/api/v1/repositories/files/artifacts/large").json()
    assert (shown["size"], shown["sha256"]) == (LARGE, sha256(body))


@pytest.mark.parametrize("version", ["--http1.1", "--http2"])
def test_large_files_go_up_and_down_whole_and_in_parts(
    nginx: Nginx, servers: Cluster, tmp_path: Path, version: str
) -> None:
    desk = Desk(servers[0], tmp_path)
    body = os.urandom(LARGE)
    path = desk.file("up", body)
    name = f"/raw/files/x%2Fy{version}"
    login = ("-u", ":".join(servers[0].admin), "--cacert", str(nginx.pair.cert), version, "-sS")
    assert desk.run("curl", *login, "-w", "%{http_code}", "-o", "answer", "-T", path, nginx.url + name).stdout == "201"
    desk.run("curl", *login, "-f", "-o", "down", nginx.url + name)
    assert sha256((tmp_path / "down").read_bytes()) == sha256(body)
    desk.run("curl", *login, "-f", "-o", "part", "-r", "104857000-", nginx.url + name)
    assert (tmp_path / "part").read_bytes() == body[104857000:]
    (tmp_path / "down").write_bytes(body[:1000])
    desk.run("curl", *login, "-f", "-C", "-", "-o", "down", nginx.url + name)
    assert (tmp_path / "down").read_bytes() == body
    assert list((nginx.folder / "answers").iterdir()) == []


def test_a_refusal_of_a_large_upload_reaches_the_client_as_it_is(nginx: Nginx, servers: Cluster, tmp_path: Path) -> None:
    desk = Desk(servers[0], tmp_path)
    path = desk.file("up", bytes(LARGE))
    options = ("-sS", "--cacert", str(nginx.pair.cert), "-o", "answer", "-w", "%{http_code}", "-T", path)
    assert desk.run("curl", *options, "-u", "admin:wrong", f"{nginx.url}/raw/files/x").stdout == "401"
    assert desk.run("curl", *options, "-u", ":".join(servers[0].admin), f"{nginx.url}/raw/none/x").stdout == "404"


def test_the_servers_see_the_client_and_the_address_by_which_it_came(nginx: Nginx, servers: Cluster) -> None:
    """What a client claims of itself in X-Forwarded-* does not pass."""
    claims = {"X-Forwarded-For": "6.6.6.6", "X-Forwarded-Host": "evil.example", "X-Forwarded-Port": "1", "X-Forwarded-Prefix": "/evil"}
    shown = nginx.request("GET", "/api/v1/repositories/files", auth=servers[0].admin, headers=claims).json()
    assert shown["url"] == f"{nginx.url}/raw/files/"
    assert not any("6.6.6.6" in each.log() for each in servers)
    plain = requests.get(f"http://127.0.0.1:{nginx.http_port}/raw/files/a%2Fb?x=1", allow_redirects=False, timeout=10)
    assert (plain.status_code, plain.headers["Location"]) == (308, "https://127.0.0.1/raw/files/a%2Fb?x=1")


def test_a_repository_that_is_offline_does_not_take_the_servers_out(nginx: Nginx, servers: Cluster) -> None:
    servers[0].repository("away", status="offline")
    servers[0].put("/raw/files/small", b"1")
    for _ in range(8):
        assert nginx.request("GET", "/raw/away/x", auth=servers[0].admin).status_code == 503
        assert nginx.request("GET", "/raw/files/small").status_code == 200


GOOD = {"read 200 2000000", "write 201", "change 201"}


class Load:
    """Clients that read and write through nginx until they are told to stop; `answers` counts what they got."""

    def __init__(self, nginx: Nginx, login: tuple[str, str]) -> None:
        self._nginx, self._login = nginx, login
        self._names = f"load{next(_numbers)}"
        self.stopped = False
        self.answers: Counter[str] = Counter()
        self._running = [gevent.spawn(self._run, kind, number) for kind in ("read", "write", "change") for number in range(4)]

    @property
    def clients(self) -> int:
        return len(self._running)

    def _run(self, kind: str, number: int) -> None:
        with requests.Session() as session:
            session.trust_env = False
            session.verify = str(self._nginx.pair.cert)
            session.auth = self._login
            count = 0
            while not self.stopped:
                count += 1
                self.answers[f"{kind} {self._once(session, kind, f'{self._names}-{kind}-{number}-{count}')}"] += 1

    def _once(self, session: requests.Session, kind: str, name: str) -> str:
        base = f"{self._nginx.url}/raw/files"
        try:
            if kind == "read":
                answer = session.get(f"{base}/here", timeout=60)
                return f"{answer.status_code} {len(answer.content)}"
            if kind == "write":
                return str(session.put(f"{base}/{name}", data=os.urandom(300_000), timeout=60).status_code)
            return str(session.post(f"{self._nginx.url}/api/v1/groups", json={"name": name}, timeout=60).status_code)
        except requests.RequestException as error:
            return repr(error)

    def stop(self) -> None:
        self.stopped = True
        gevent.joinall(self._running, timeout=90)


@pytest.mark.soak
def test_a_rolling_restart_under_load_loses_no_request(nginx: Nginx, servers: Cluster) -> None:
    """Each server in turn is stopped as systemd stops it, and started again, while clients read, upload and change things."""
    servers[0].put("/raw/files/here", bytes(2_000_000))
    load = Load(nginx, servers[0].admin)
    gevent.sleep(2)
    for each in servers:
        each.restart()
        gevent.sleep(4)
    load.stop()
    assert set(load.answers) == GOOD, (load.answers, nginx.errors()[-20:])
    for each in servers:
        assert each.get("/api/v1/repositories/files/usage").json()["artifacts"] >= load.answers["write 201"]


def test_a_killed_server_costs_what_it_was_at_and_no_more(nginx: Nginx, servers: Cluster) -> None:
    """Each client has one request under way: at most that one breaks off, and the next ones go elsewhere."""
    servers[0].put("/raw/files/here", bytes(2_000_000))
    load = Load(nginx, servers[0].admin)
    gevent.sleep(1)
    before = Counter(load.answers)
    servers[1].kill9()
    eventually(lambda: all(load.answers[kind] - before[kind] > 10 for kind in GOOD), 60)
    load.stop()
    lost = sum(count for kind, count in load.answers.items() if kind not in GOOD)
    assert lost <= load.clients, load.answers
    servers[1].start()
