"""What is told of a transfer: bars and lines, on terminals and elsewhere; and who waits, for how long."""

from __future__ import annotations

import io
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import gevent
import pytest

from arkvory import Bars, Client, Event, Lines, Retry, Timeouts
from arkvory.errors import TimedOut
from tests.sdk.conftest import NewClient, noise
from tests.support.road import Passed, Road
from tests.support.server import ROOT, Server

MIB = 1024 * 1024
NAME = "[red]evil\x1b[31m"
STORY = [
    Event("upload", NAME, "started", 0, MIB),
    Event("upload", NAME, "moving", MIB // 2, MIB),
    Event("request", "", "waiting", words="[b]later"),
    Event("upload", NAME, "checking", MIB, MIB),
    Event("upload", NAME, "done", MIB, MIB),
    Event("download", "b", "failed", words="no [such] thing"),
    Event("download", "c", "done", 3 * MIB, 3 * MIB, resumed=2 * MIB),
    Event("upload", "d", "skipped", words="a symbolic link, not followed"),
]


@pytest.mark.parametrize("kind", [Bars, Lines])
def test_what_is_shown_is_what_happened_and_no_name_is_obeyed(kind: type[Bars] | type[Lines]) -> None:
    shown = io.StringIO()
    with kind(shown) as progress:
        for event in STORY:
            progress(event)
    text = shown.getvalue()
    assert "\x1b" not in text
    for words in ("[b]later\n", "Uploaded [red]evil\ufffd[31m (1.0 MiB)\n", "b: no [such] thing\n"):
        assert words in text
    assert "Downloaded c (3.0 MiB, 2.0 MiB of it before)\n" in text and "d: a symbolic link, not followed\n" in text


def test_a_log_tells_every_half_a_minute_how_far_a_large_file_is() -> None:
    shown, clock = io.StringIO(), iter(range(0, 1000, 10))
    lines = Lines(shown, lambda: float(next(clock)))
    for done in range(8):
        lines(Event("upload", "a", "moving", done * MIB, 8 * MIB))
    assert shown.getvalue().splitlines() == ["a: 3.0 MiB of 8.0 MiB", "a: 6.0 MiB of 8.0 MiB"]


def test_a_slow_server_may_take_its_time_with_a_body_and_a_dead_one_may_not(
    new_client: NewClient, road: Road, repository: str, tmp_path: Path
) -> None:
    """It first waits for a place: that is no failure of the connection."""
    (tmp_path / "a").write_bytes(noise(24 * MIB))
    road.fate = lambda asked: gevent.sleep(1.5)
    new_client(road.url, timeouts=Timeouts(connect=0.3, send=30), retry=Retry(attempts=1)).upload(tmp_path / "a", repository)
    with pytest.raises(TimedOut):
        new_client(road.url, timeouts=Timeouts(connect=0.3, send=0.5), retry=Retry(attempts=1)).upload(tmp_path / "a", repository)


def test_ctrl_c_ends_a_command_that_waits_for_a_silent_server(server: Server, road: Road, repository: str, tmp_path: Path) -> None:
    server.put(f"/raw/{repository}/f", noise(20 * MIB))

    def fate(asked: Passed) -> None:
        if asked.headers.get("range", "").startswith("bytes=8388608"):
            gevent.sleep(100)

    road.fate = fate
    process = command(tmp_path, "download", f"{repository}/f", "--url", road.url, "--token", token(server))
    deadline = time.monotonic() + 60
    while sum("range" in each.headers for each in road.passed) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and b"the same command again goes on where this one was" in err
    assert not (tmp_path / "f").exists()
    with Client(server.url, token=token(server)) as client:
        client.download(repository, "f", tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == noise(20 * MIB)


def test_a_password_is_asked_for_without_an_echo_and_bars_are_for_terminals(server: Server, repository: str, tmp_path: Path) -> None:
    shown = at_terminal(tmp_path, ["login", server.url], {"User: ": "admin\n", "Password: ": f"{server.password}\n"})
    assert f"Logged in to {server.url} as admin" in shown and server.password not in shown
    (tmp_path / "f").write_bytes(noise(MIB))
    shown = at_terminal(tmp_path, ["upload", "f", repository], {})
    assert "\x1b[" in shown and "Uploaded f (1.0 MiB)" in shown


def token(server: Server) -> str:
    return str(server.post("/api/v1/tokens", json={"name": "t", "permissions": ["read", "write"]}).json()["token"])


def command(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Ctrl-C interrupts it whatever the tests themselves were started by."""
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from arkvory.ctl import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], cwd=folder, env=environment(folder), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def environment(folder: Path) -> dict[str, str]:
    return {"HOME": str(folder), "PYTHONPATH": str(ROOT / "sdk"), "PATH": os.environ["PATH"], "TERM": "xterm"}


def at_terminal(folder: Path, arguments: list[str], answers: dict[str, str]) -> str:
    """All that the terminal showed, when each question got its answer."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "arkvory", *arguments], cwd=folder, env=environment(folder), stdin=theirs, stdout=theirs, stderr=theirs,
        start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    shown, left = "", dict(answers)
    try:
        while piece := read(ours):
            shown += piece
            for question in [each for each in left if shown.endswith(each)]:
                os.write(ours, left.pop(question).encode())
        assert process.wait(60) == 0, shown
    finally:
        process.kill()
        os.close(ours)
    return shown


def read(terminal: int) -> str:
    """Empty at the end, which Linux tells by an error."""
    try:
        return gevent.get_hub().threadpool.apply(os.read, (terminal, 65536)).decode()
    except OSError:
        return ""
