"""A rolling restart: two masters behind a balancer, one stopped and started after the other, and no request is lost (DESIGN 4)."""

from __future__ import annotations

import hashlib
import itertools
import os
import signal
import socket
import time
from base64 import b64encode
from collections import Counter, deque
from collections.abc import Callable
from http.client import HTTPConnection

import gevent

from tests.conftest import MakeCluster
from tests.faults.test_servers import assert_settles, until
from tests.support.server import Cluster, Server

MIB = 1024 * 1024
GRACE = 20


class Balancer:
    """A plain one: each request on a connection of its own, to the next server that lets it in. Nothing is sent twice."""

    def __init__(self, servers: list[Server]) -> None:
        self._servers = deque(servers)
        self.statuses: Counter[int] = Counter()
        self.lost: list[str] = []
        self.passed_over = 0

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        self._servers.rotate()
        for server in list(self._servers):
            connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
            try:
                connection.connect()
            except ConnectionRefusedError:
                self.passed_over += 1
                continue
            try:
                connection.request(method, path, body, headers(server))
                answer = connection.getresponse()
                self.statuses[answer.status] += 1
                return answer.status, answer.read()
            except OSError as error:
                self.lost.append(f"{method} {path}: {error!r}")
                return 0, b""
            finally:
                connection.close()
        self.lost.append(f"{method} {path}: nobody listens")
        return 0, b""


def headers(server: Server) -> dict[str, str]:
    return {"Authorization": "Basic " + b64encode(":".join(server.admin).encode()).decode()}


def clients(balancer: Balancer, stored: dict[str, bytes], done: Callable[[], bool]) -> list[gevent.Greenlet]:
    def write(name: int) -> None:
        for number in itertools.count():
            if done():
                return
            path, body = f"/raw/files/{name}/{number}", os.urandom(20_000)
            if balancer.ask("PUT", path, body)[0] == 201:
                stored[path] = body
                status, read = balancer.ask("GET", path)
                assert (status, read) in ((200, body), (0, b"")), f"{path}: {status}"
            gevent.sleep(0.02)

    return [gevent.spawn(write, name) for name in range(4)]


def upload_slowly(server: Server, path: str, body: bytes, seconds: float) -> int:
    """The status; one connection, whatever happens to the server meanwhile."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        lines = [f"PUT {path} HTTP/1.1", "Host: a", f"Content-Length: {len(body)}", *map(": ".join, headers(server).items())]
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        step = len(body) // 20
        for at in range(0, len(body), step):
            connection.sendall(body[at : at + step])
            gevent.sleep(seconds / 20)
        return int(connection.recv(4096).split()[1])


def download_slowly(server: Server, path: str, seconds: float) -> str:
    """SHA-256 of what came."""
    digest = hashlib.sha256()
    with server.get(path, stream=True) as answer:
        size = int(answer.headers["Content-Length"])
        for piece in answer.iter_content(size // 20):
            digest.update(piece)
            gevent.sleep(seconds / 20)
    return digest.hexdigest()


def restart(server: Server) -> float:
    """The seconds that its end took."""
    began = time.monotonic()
    assert server.stop() == 0
    took = time.monotonic() - began
    server.start()
    return took


def test_a_rolling_restart_loses_no_request_and_running_transfers_finish(make_cluster: MakeCluster) -> None:
    cluster: Cluster = make_cluster(ARKVORY_GRACEFUL_SECONDS=str(GRACE), ARKVORY_BLOB_GRACE_SECONDS="1", ARKVORY_CLEANUP_SECONDS="0.5")
    cluster[0].repository("files")
    large = os.urandom(24 * MIB)
    assert cluster[0].put("/raw/files/large", large).status_code == 201
    until(lambda: cluster[1].head("/raw/files/large").status_code == 200)
    balancer, stored, over = Balancer(list(cluster)), dict[str, bytes](), gevent.event.Event()
    loads = clients(balancer, stored, over.is_set)
    for server in cluster:
        upload = gevent.spawn(upload_slowly, server, f"/raw/files/slow-{server.port}", large, 5)
        download = gevent.spawn(download_slowly, server, "/raw/files/large", 5)
        gevent.sleep(1)
        assert restart(server) < GRACE + 10
        assert upload.get(timeout=30) == 201
        assert download.get(timeout=30) == hashlib.sha256(large).hexdigest()
    over.set()
    gevent.joinall(loads, timeout=60, raise_error=True)
    assert not balancer.lost
    assert set(balancer.statuses) == {200, 201}
    assert balancer.passed_over > 0, "nothing was asked while a server was away"
    assert len(stored) > 50
    for server in cluster:
        assert all(server.get(path).content == body for path, body in list(stored.items())[::7])
    assert_settles(cluster[0])
    for server in cluster:
        assert (server.stop(), "Traceback" in server.log()) == (0, False)


def test_an_upload_that_goes_on_at_a_stop_is_not_taken_for_abandoned_by_the_other_servers(make_cluster: MakeCluster) -> None:
    """However short the leases of uploads are beside the grace."""
    cluster = make_cluster(
        2, 1, ARKVORY_GRACEFUL_SECONDS=str(GRACE), ARKVORY_UPLOAD_LEASE_SECONDS="6", ARKVORY_CLEANUP_SECONDS="0.5"
    )
    cluster[0].repository("files")
    body = os.urandom(MIB)
    upload = gevent.spawn(upload_slowly, cluster[0], "/raw/files/slow", body, 12)
    gevent.sleep(1)
    assert cluster[0].stop() == 0
    assert upload.get(timeout=30) == 201
    assert cluster[1].get("/raw/files/slow").content == body


def test_a_server_whose_clients_never_finish_ends_after_its_grace(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(1, 2, ARKVORY_GRACEFUL_SECONDS="2", ARKVORY_IDLE_SECONDS="60")
    cluster[0].repository("files")
    with socket.create_connection(("127.0.0.1", cluster[0].port)) as stuck:
        lines = ["PUT /raw/files/never HTTP/1.1", "Host: a", "Content-Length: 1000", *map(": ".join, headers(cluster[0]).items())]
        stuck.sendall("\r\n".join([*lines, "", "abc"]).encode())
        gevent.sleep(0.5)
        began = time.monotonic()
        assert cluster[0].stop() == 0
        assert time.monotonic() - began < 25
    assert not list(cluster[0].data.glob("server*.json"))


def test_a_server_that_is_told_to_stop_while_a_worker_begins_stops_at_once(make_cluster: MakeCluster) -> None:
    """In the moments between its fork and its own signal handlers too: the master would else wait for its whole grace."""
    cluster = make_cluster(1, 2)
    (server,) = cluster
    for delay in (0.0, 0.05, 0.2):
        former = set(server.workers())
        os.kill(min(former), signal.SIGKILL)
        until(lambda former=former: bool(set(server.workers()) - former))
        gevent.sleep(delay)
        assert server.stop(20) == 0
        server.start()
