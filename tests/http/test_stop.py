"""Stopping: at once when idle, after the last request when not, never for ever."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from typing import Any

import psutil
import pytest

from tests.http.edge import PATIENCE, until


def test_a_server_without_requests_stops_although_clients_are_connected(make_edge: Any) -> None:
    # Far less than the 15 s after which idle connections are closed, and the 60 s that requests get.
    server = make_edge()
    with server.wire() as idle, server.wire() as fresh:
        assert idle.ask("GET", "/ping").status == 200
        assert server.stop() < 8
        assert idle.rest() == b""
        assert fresh.is_closed()
    assert (server.folder / "life").read_text().split() == ["start", "stopping", "stop"]
    assert server.complaints() == ""


def test_running_requests_finish_and_nobody_new_gets_in(make_edge: Any) -> None:
    server = make_edge()
    with server.wire() as busy, server.wire() as uploading:
        busy.request("GET", "/slow?seconds=4")
        uploading.request("PUT", "/upload", "Content-Length: 6", body=b"abc")
        until(lambda: len(server.worker.net_connections()) >= 3)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: (server.folder / "life").read_text().split() == ["start", "stopping"])
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port))
        uploading.send(b"def")
        for wire in (uploading, busy):
            answer = wire.answer()
            assert (answer.status, answer.headers["connection"]) == (200, "close")
            assert wire.rest() == b""
        server.process.wait(PATIENCE)
    assert (server.folder / "life").read_text().split() == ["start", "stopping", "stop"]


def test_who_connected_before_the_stop_is_still_served_although_its_request_comes_after_it(make_edge: Any) -> None:
    server = make_edge()
    with server.wire() as fresh, server.wire() as kept:
        assert kept.ask("GET", "/ping").status == 200
        until(lambda: len(server.worker.net_connections()) >= 3)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: (server.folder / "life").read_text().split() == ["start", "stopping"])
        answer = fresh.ask("GET", "/ping")
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert kept.is_closed()
        server.process.wait(PATIENCE)


def test_who_waits_in_the_kernels_queue_when_the_stop_comes_is_still_served(make_edge: Any) -> None:
    server = make_edge()
    worker = server.worker
    worker.suspend()
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(server.wire()) for _ in range(20)]
        for wire in wires:
            wire.request("GET", "/ping")
        server.process.send_signal(signal.SIGTERM)
        until(lambda: "Handling signal: term" in server.errors.read_text())
        time.sleep(0.2)
        worker.resume()
        assert [wire.answer().status for wire in wires] == [200] * 20
    server.process.wait(PATIENCE)


def test_a_request_that_does_not_finish_is_ended_after_the_grace(make_edge: Any) -> None:
    server = make_edge(ARKVORY_GRACEFUL_SECONDS="1")
    with server.wire() as stuck:
        stuck.request("GET", "/slow?seconds=1000")
        until(lambda: len(server.worker.net_connections()) >= 2)
        assert server.stop() < 20
        assert stuck.is_closed()
    assert "1 requests did not finish within 1 seconds" in server.complaints()
    assert (server.folder / "life").read_text().split()[-1] == "stop"


def test_an_interrupt_stops_at_once(make_edge: Any) -> None:
    server = make_edge()
    with server.wire() as busy:
        busy.request("GET", "/slow?seconds=1000")
        until(lambda: len(server.worker.net_connections()) >= 2)
        assert server.stop(signal.SIGINT) < 20
    assert (server.folder / "life").read_text().split()[-1] == "stop"


def test_a_worker_whose_master_was_killed_stops_by_itself(make_edge: Any) -> None:
    server = make_edge()
    worker = server.worker
    server.process.kill()
    server.process.wait(PATIENCE)
    psutil.wait_procs([worker], timeout=PATIENCE)
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE


def test_a_killed_worker_is_replaced(make_edge: Any) -> None:
    server = make_edge()
    first = server.worker.pid
    os.kill(first, signal.SIGKILL)
    master = psutil.Process(server.process.pid)
    until(lambda: [child.pid for child in master.children()] not in ([], [first]))
    assert server.ask("GET", "/ping").body == b"pong"
