"""The download budget of a cluster over some time: its sum, what each client gets, and the share of a server that dies (`make soak`)."""

from __future__ import annotations

import base64
import socket
import time
from collections import Counter

import gevent
import pytest

from tests.conftest import MakeCluster
from tests.support.server import Server

pytestmark = pytest.mark.soak

MIB = 1024 * 1024
BUDGET = 16 * MIB
SECONDS = 10.0


class Clients:
    """Download all the time, each over some connections; `got` counts bytes by client."""

    def __init__(self) -> None:
        self.got: Counter[str] = Counter()
        self._running: list[gevent.Greenlet] = []

    def begin(self, name: str, server: Server, auth: tuple[str, str] | None, connections: int = 1) -> None:
        self._running += [gevent.spawn(self._download_on, name, server, auth) for _ in range(connections)]

    def _download_on(self, name: str, server: Server, auth: tuple[str, str] | None) -> None:
        secret = "" if auth is None else f"Authorization: Basic {base64.b64encode(':'.join(auth).encode()).decode()}\r\n"
        try:
            while True:
                with socket.create_connection(("127.0.0.1", server.port), timeout=30) as line:
                    line.sendall(f"GET /raw/files/big HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{secret}\r\n".encode())
                    while piece := line.recv(64 * 1024):
                        self.got[name] += len(piece)
        except OSError:
            # Its server died.
            return

    def measured(self, seconds: float) -> dict[str, float]:
        """Bytes per second, by client."""
        self.got.clear()
        began = time.monotonic()
        gevent.sleep(seconds)
        return {name: count / (time.monotonic() - began) for name, count in self.got.items()}

    def end(self) -> None:
        gevent.killall(self._running)


def test_the_budget_is_kept_used_fair_and_given_on(make_cluster: MakeCluster) -> None:
    first, second = make_cluster(masters=2, workers=1, ARKVORY_DOWNLOAD_BYTES_PER_SECOND=str(BUDGET))
    first.repository("files", public=True)
    assert first.post("/api/v1/users", json={"name": "ann", "password": "correct-horse-battery"}).status_code == 201
    assert first.put("/raw/files/big", bytes(64 * MIB)).status_code == 201
    clients = Clients()
    clients.begin("admin", first, first.admin, connections=5)
    clients.begin("nobody", first, None)
    clients.begin("ann", second, ("ann", "correct-horse-battery"))
    gevent.sleep(4)
    rates = clients.measured(SECONDS)
    print("both servers, MiB/s:", {name: round(rate / MIB, 2) for name, rate in rates.items()}, "of", BUDGET / MIB)
    assert 0.75 * BUDGET < sum(rates.values()) < 1.05 * BUDGET
    assert max(rates.values()) < 1.4 * min(rates.values())
    second.kill9()
    gevent.sleep(8)
    rates = clients.measured(SECONDS)
    print("after the second died, MiB/s:", {name: round(rate / MIB, 2) for name, rate in rates.items()}, "of", BUDGET / MIB)
    assert 0.75 * BUDGET < sum(rates.values()) < 1.05 * BUDGET
    clients.end()
