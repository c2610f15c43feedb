"""200 clients of the library against 8 places of a real server: all finish, none starves, and the server's memory is flat."""

from __future__ import annotations

import io
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
import pytest

from arkvory import Client, Event
from tests.conftest import MakeServer
from tests.support.server import Server
from tests.support.storm import MemoryWatch

pytestmark = pytest.mark.soak

CLIENTS, PLACES = 200, 8
SIZE, PIECE, PAUSE = 4 * 2**20, 256 * 1024, 0.06
# What one round takes when every place is always taken.
ROUND_SECONDS = CLIENTS / PLACES * SIZE / PIECE * PAUSE
ROUNDS = max(2, int(float(os.environ.get("ARKVORY_SOAK_SECONDS", "60")) * 0.1 / ROUND_SECONDS))
END_SECONDS = 900.0
MOST_GROWTH, MOST_GROWTH_BYTES = 1.10, 10_000_000


class Slow(io.BytesIO):
    """Bytes that come as over a line: the place is held for as long as they take."""

    def read(self, size: int | None = -1, /) -> bytes:
        gevent.sleep(PAUSE)
        return super().read(PIECE)


def test_200_clients_at_8_places_all_finish_and_none_starves(
    make_server: MakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = make_server(ARKVORY_MAX_UPLOADS=str(PLACES))
    server.repository("files")
    tokens = [server.post("/api/v1/tokens", json={"name": str(n), "permissions": ["write"]}).json()["token"] for n in range(CLIENTS)]
    refusals: list[str] = []

    def hear(event: Event) -> None:
        if event.state == "waiting":
            refusals.append(event.words)

    clients = [Client(server.url, token=token, progress=hear, cache=tmp_path) for token in tokens]
    memory = MemoryWatch(server)
    watch = gevent.spawn(memory.run)
    together = crowd(lambda number: upload(clients[number], number, 0))
    first_refusals = len(refusals)
    going_on = crowd(lambda number: [upload(clients[number], number, each) for each in range(1, ROUNDS)])
    watch.kill()
    before, after = memory.last(ROUND_SECONDS / 2)
    with capsys.disabled():
        told(f"{CLIENTS} clients at once, one file each", together, first_refusals)
        told(f"{CLIENTS} clients, {ROUNDS - 1} files each, one after the other", going_on, len(refusals) - first_refusals)
        print(f"  memory of the worker: {before / 1e6:.0f} MB in the first quarter, {after / 1e6:.0f} MB in the last")
    for times in (together, going_on):
        assert len(times) == CLIENTS and max(times) <= 3 * statistics.median(times)
    assert first_refusals > 0, "nobody was refused: that shows nothing"
    assert after <= before * MOST_GROWTH + MOST_GROWTH_BYTES
    assert stored(server) == CLIENTS


def crowd(work: Callable[[int], Any]) -> list[float]:
    """Seconds that each client took, all begun at the same moment. Fails where one does."""
    began = time.monotonic()

    def one(number: int) -> float:
        work(number)
        return time.monotonic() - began

    working = [gevent.spawn(one, number) for number in range(CLIENTS)]
    gevent.joinall(working, timeout=END_SECONDS, raise_error=True)
    assert all(each.ready() for each in working), "clients do not end"
    return [float(each.value) for each in working]


def upload(client: Client, number: int, round: int) -> None:
    client.upload_stream(Slow((f"{number} {round} ".encode() * (SIZE // 4))[:SIZE]), "files", f"{number}")


def stored(server: Server) -> int:
    return int(server.get("/api/v1/repositories/files/usage").json()["artifacts"])


def told(title: str, times: list[float], refusals: int) -> None:
    quarters = statistics.quantiles(times, n=4)
    print(f"\n{title}: all through after {max(times):.1f} s, {refusals} refusals")
    print(f"  quickest {min(times):.1f} s, quarters {quarters[0]:.1f} {quarters[1]:.1f} {quarters[2]:.1f} s, slowest {max(times):.1f} s")
    print(f"  slowest against median: {max(times) / statistics.median(times):.2f}")
