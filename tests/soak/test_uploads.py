"""A large upload in parts whose server and clients are killed at random moments ends whole, for as long as it is given (`make soak`)."""

from __future__ import annotations

import base64
import hashlib
import os
import random
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest
import requests

from tests.conftest import MakeCluster, MakeServer
from tests.support.house import House, eventually
from tests.support.sender import MIB, Source
from tests.support.server import ROOT, Server

pytestmark = pytest.mark.soak
SECONDS = float(os.environ.get("ARKVORY_SOAK_SECONDS", "60")) * 0.3
# 5 GiB where there is time for it.
SOURCE = Source(min(5 * 1024, int(SECONDS * 20)) * MIB - 12345, 8 * MIB)
SENDERS = 3
# Of the server's memory, above what it had at rest: pieces in flight, whatever the number of parts.
MOST_MEMORY = 150 * MIB
UPLOADS = "/api/v1/repositories/files/uploads"


class Clients:
    """Programs that send the parts; each may be killed."""

    def __init__(self, server: Server, id: str) -> None:
        self._server = server
        self._id = id
        self._running = [self._start(number) for number in range(SENDERS)]

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        address = f"{self._server.url}{UPLOADS}/{self._id}"
        numbers = [str(each) for each in (SOURCE.size, SOURCE.part, number, SENDERS)]
        return subprocess.Popen([sys.executable, "-m", "tests.support.sender", address, self._server.password, *numbers], cwd=ROOT)

    @property
    def sending(self) -> bool:
        return any(each.poll() is None for each in self._running)

    def kill(self, number: int) -> None:
        """And start it again."""
        self._running[number].kill()
        self._running[number].wait()
        self._running[number] = self._start(number)


def restart(server: Server) -> None:
    server.kill9()
    server.start()


def memory(server: Server) -> int:
    """Of the workers, in bytes."""
    return sum(psutil.Process(pid).memory_info().rss for pid in server.workers())


def test_an_upload_ends_whole_however_often_its_server_and_its_clients_are_killed(make_server: MakeServer) -> None:
    """W1, W4, ADR 12; and the server's memory is flat."""
    server = make_server()
    server.repository("files")
    chance = random.Random(7)
    wanted = {"path": "large.bin", "size": SOURCE.size, "part_size": SOURCE.part}
    id = server.post(UPLOADS, json=wanted).json()["id"]
    began, kills, at_rest = time.monotonic(), 0, memory(server)
    highest = at_rest
    clients = Clients(server, id)
    while clients.sending:
        time.sleep(chance.uniform(0.2, 3))
        highest = max(highest, memory(server))
        if time.monotonic() - began < SECONDS:
            if chance.random() < 0.4:
                restart(server)
                kills += 1
            if chance.random() < 0.6:
                clients.kill(chance.randrange(SENDERS))
                kills += 1
    told = server.post(f"{UPLOADS}/{id}/complete", json={"sha256": SOURCE.sha256()})
    assert told.status_code in (201, 202), told.text
    for _ in range(2):
        time.sleep(chance.uniform(0.05, 0.5))
        restart(server)
        kills += 1
    eventually(lambda: server.get(f"{UPLOADS}/{id}").json()["state"] == "published", 300)
    highest = max(highest, memory(server))
    took = time.monotonic() - began
    print(f"\n{SOURCE.size >> 20} MiB, {kills} kills, {took:.0f} s, memory {at_rest >> 20} to {highest >> 20} MiB")
    assert digest_of(server) == SOURCE.sha256()
    assert highest - at_rest < MOST_MEMORY
    assert server.post("/api/v1/cleanup").status_code == 200
    house = House(str(server.database_url), server.data, owns=False)
    house.assert_counted()
    house.assert_published_is_there()
    house.assert_no_strays()
    house.close()


def begin_part(server: Server, id: str, half: bytes) -> socket.socket:
    """A client that has sent half of a part, and does not go on."""
    login = base64.b64encode(":".join(server.admin).encode()).decode()
    head = f"PUT {UPLOADS}/{id}/parts/1 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {login}\r\nContent-Length: {8 * MIB}\r\n\r\n"
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    connection.sendall(head.encode() + half)
    return connection


def pids(server: Server) -> list[int]:
    return [server.pid, *server.workers()]


def test_a_process_that_stood_still_in_the_midst_of_a_part_harms_nothing(make_cluster: MakeCluster) -> None:
    """W1, ADR 12: its part was taken from it, and what it had open is copied before it is published."""
    cluster = make_cluster(masters=2, workers=1)
    stopped, other = cluster
    stopped.repository("files")
    body = os.urandom(12 * MIB)
    wanted = {"path": "large.bin", "size": len(body), "part_size": 8 * MIB}
    id = stopped.post(UPLOADS, json=wanted).json()["id"]
    connection = begin_part(stopped, id, bytes(4 * MIB))
    house = House(str(other.database_url), other.data, owns=False)
    eventually(lambda: house.rows("select 1 from arkvory_parts where holder is not null"))
    frozen = pids(stopped)
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        assert other.put(f"{UPLOADS}/{id}/parts/2", body[8 * MIB :]).status_code == 200
        assert other.put(f"{UPLOADS}/{id}/parts/1", body[: 8 * MIB]).status_code == 429, "it may be alive"
        eventually(lambda: other.put(f"{UPLOADS}/{id}/parts/1", body[: 8 * MIB]).status_code == 200, 60)
        assert other.post(f"{UPLOADS}/{id}/complete").status_code == 201
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
    connection.sendall(bytes(4 * MIB))
    answer = connection.recv(65536)
    assert not answer.startswith(b"HTTP/1.1 200"), answer
    assert f"upload {id} is copied" in other.log()
    assert digest_of(other) == hashlib.sha256(body).hexdigest()
    house.assert_counted()
    house.assert_published_is_there()
    house.close()


def digest_of(server: Server) -> str:
    got = hashlib.sha256()
    with requests.get(f"{server.url}/raw/files/large.bin", auth=server.admin, stream=True, timeout=60) as download:
        for piece in download.iter_content(MIB):
            got.update(piece)
    return got.hexdigest()
