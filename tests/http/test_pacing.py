"""The pace of downloads under a budget: clients take turns, and what one cannot take the others have."""

from __future__ import annotations

import base64
import contextlib
import socket
import tempfile
import time
from collections import Counter

import gevent
import gevent.socket
import pytest

from app.http.connection import ClientGone, Connection
from app.http.pacing import LARGEST_TURN, Pacing
from tests.conftest import MakeServer
from tests.support import pace
from tests.support.server import Server

MIB = 1024 * 1024


def send(pacing: Pacing, key: str, sent: Counter[str]) -> None:
    """A download without an end, over a fast line."""
    lane = pacing.lane(key)
    while True:
        # Two lines: others add to it while this one waits.
        count = lane.take(MIB)
        sent[key] += count


def after(seconds: float, *downloads: gevent.Greenlet) -> None:
    gevent.sleep(seconds)
    gevent.killall(list(downloads))


def test_two_clients_get_the_same_however_many_connections_each_has() -> None:
    def share() -> None:
        pacing, sent = Pacing(lambda: 4.0 * MIB), Counter[str]()
        after(0.6, *(gevent.spawn(send, pacing, key, sent) for key in ("one", *["many"] * 9)))
        assert sent["one"] == pytest.approx(sent["many"], rel=0.25)

    pace.again(share, lost=0.05)


def test_the_sum_keeps_to_the_rate() -> None:
    """Whatever time has passed; a little lies in the bucket."""
    rate = 4.0 * MIB
    pacing, sent = Pacing(lambda: rate), Counter[str]()
    began = time.monotonic()
    after(0.5, *(gevent.spawn(send, pacing, key, sent) for key in "abc"))
    assert sent.total() <= (time.monotonic() - began + 0.1) * rate + LARGEST_TURN


def test_what_a_slow_client_gives_back_is_for_the_others() -> None:
    pacing, sent = Pacing(lambda: 4.0 * MIB), Counter[str]()

    def slowly() -> None:
        lane = pacing.lane("slow")
        while True:
            count = lane.take(MIB)
            lane.give_back(count - 100)
            sent["slow"] += 100
            gevent.sleep(0.02)

    after(0.6, gevent.spawn(slowly), gevent.spawn(send, pacing, "fast", sent))
    assert sent["fast"] > 20 * sent["slow"] > 0


def test_whoever_leaves_while_it_waits_leaves_nothing_behind() -> None:
    pacing, sent = Pacing(lambda: 0.0), Counter[str]()
    waiting = [gevent.spawn(send, pacing, key, sent) for key in "aab"]
    gevent.sleep(0.1)
    assert sorted(pacing._queues) == ["a", "b"]
    gevent.killall(waiting)
    assert (dict(pacing._queues), sent.total()) == ({}, 0)


def test_a_report_tells_who_had_to_wait_and_what_the_others_sent() -> None:
    pacing, sent = Pacing(lambda: 1.0 * MIB), Counter[str]()
    pacing.take("calm", 1000)
    gevent.sleep(0.1)
    calm = pacing.report()
    assert (calm.hungry, calm.calm > 0) == (frozenset(), True)
    after(0.2, *(gevent.spawn(send, pacing, key, sent) for key in "ab"))
    assert pacing.report().hungry == {"a", "b"}
    assert pacing.report().hungry == frozenset()


def test_what_is_given_back_later_than_it_was_taken_makes_no_report_say_less_than_nothing() -> None:
    pacing = Pacing(lambda: 1.0 * MIB)
    taken = pacing.take("slow", 10_000)
    assert pacing.report().calm > 0
    pacing.give_back("slow", taken)
    assert pacing.report().calm == 0


def test_what_did_not_go_out_because_the_client_went_is_given_back() -> None:
    pacing = Pacing(lambda: 1.0 * MIB)
    ours, theirs = gevent.socket.socketpair()
    theirs.close()
    connection = Connection(ours, idle_seconds=1)
    connection.lane = pacing.lane("gone")
    with contextlib.closing(ours), tempfile.TemporaryFile() as file:
        file.truncate(MIB)
        for _ in range(50):
            with pytest.raises(ClientGone):
                connection.send(bytes(MIB))
            with pytest.raises(ClientGone):
                connection._send_pieces(file.fileno(), 0, MIB, None)
    assert pacing.report().calm == 0, "nothing was sent"
    assert pacing._tokens >= 0


# A whole server


def read_for(server: Server, path: str, seconds: float, auth: tuple[str, str] | None) -> int:
    """Bytes that come within the time."""
    with contextlib.closing(socket.create_connection(("127.0.0.1", server.port), timeout=30)) as line:
        secret = "" if auth is None else f"Authorization: Basic {base64.b64encode(':'.join(auth).encode()).decode()}\r\n"
        line.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{secret}\r\n".encode())
        deadline, count = time.monotonic() + seconds, 0
        while time.monotonic() < deadline:
            count += len(line.recv(64 * 1024))
        return count


def test_clients_of_a_server_share_its_budget(make_server: MakeServer) -> None:
    """One over four connections and one over one, of a large file; and small ones go through in between."""
    rate = 8 * MIB
    server = make_server(ARKVORY_DOWNLOAD_BYTES_PER_SECOND="8M")
    server.repository("files", public=True)
    body = bytes(16 * MIB)
    assert server.put("/raw/files/big", body).status_code == 201
    assert server.put("/raw/files/small", b"x" * 1000).status_code == 201
    pace.again(lambda: share(server, rate), lost=0.3)
    assert server.get("/raw/files/big").content == body, "and all of it comes"


def share(server: Server, rate: float) -> None:
    seconds = 1.8
    began = time.monotonic()
    many = [gevent.spawn(read_for, server, "/raw/files/big", seconds, server.admin) for _ in range(4)]
    one = gevent.spawn(read_for, server, "/raw/files/big", seconds, None)
    gevent.sleep(0.5)
    assert server.get("/raw/files/small").content == b"x" * 1000
    gevent.joinall([*many, one], raise_error=True)
    elapsed = time.monotonic() - began
    got = sum(each.value for each in many), one.value
    assert got[0] == pytest.approx(got[1], rel=0.35)
    assert sum(got) <= rate * (elapsed + 1)
