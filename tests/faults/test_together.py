"""Two deaths at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from tests.support.server import Server


def test_the_embedded_database_and_the_worker_die_together_and_both_come_back(make_server: Callable[..., Server]) -> None:
    """DESIGN 4: the process recovers by itself."""
    server = make_server(embedded=True)
    server.repository("files", public=True)
    server.put("/raw/files/x", b"kept")
    postmaster = int((server.data / "postgres/postmaster.pid").read_text().split("\n", 1)[0])
    for pid in (postmaster, *server.workers()):
        os.kill(pid, signal.SIGKILL)
    server.wait_until_ready()
    assert server.get("/raw/files/x").content == b"kept"
    assert server.put("/raw/files/y", b"new").status_code == 201


def test_a_port_in_use_is_said_before_anything_is_started(make_server: Callable[..., Server]) -> None:
    first = make_server()
    second = make_server(embedded=True, start=False, PORT=str(first.port))
    second.start(ready=False)
    assert second.process is not None
    assert second.process.wait(20) != 0
    assert "choose another, such as PORT=9000" in second.log()
    assert not (second.data / "postgres").exists()
