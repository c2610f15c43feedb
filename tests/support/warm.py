"""Servers that begin in a warm interpreter: starting one takes a third of the time, of which the tests' servers spend most.

A process of its own has imported what comes from elsewhere (gunicorn, SQLAlchemy, Flask...) under the patches that `config/gunicorn.py`
makes, and nothing of Arkvory. For each server it forks a child, which becomes what `python -m gunicorn` is: a session of its own, its
environment, its log; then gunicorn runs, and everything of Arkvory is imported where it always is.

    python -m tests.support.warm gunicorn    the process; asked over the socket that is its standard input
"""

from __future__ import annotations

import array
import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[2]
IMPORTED = (
    "alembic.command", "apispec.ext.marshmallow", "cryptography.fernet", "cryptography.x509", "flask", "flask_smorest", "gevent.pywsgi",
    "gunicorn.app.wsgiapp", "gunicorn.workers.ggevent", "marshmallow", "packaging.metadata", "packaging.specifiers", "psycogreen.gevent",
    "psycopg2", "sqlalchemy", "sqlalchemy.dialects.postgresql", "urllib3", "werkzeug.serving",
)  # fmt: skip
POLL_SECONDS = 0.02


class Started:
    """A server's process, as `subprocess.Popen` shows one."""

    def __init__(self, news: int) -> None:
        """`news` is a pipe that tells its process id, and then how it ended."""
        self._news = os.fdopen(news, "rb")
        self.pid = int(self._news.readline())
        self.returncode: int | None = None
        os.set_blocking(news, False)

    def poll(self) -> int | None:
        if self.returncode is None and (told := self._news.readline()):
            self.returncode = os.waitstatus_to_exitcode(int(told))
            self._news.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired("gunicorn", timeout or 0.0)
            time.sleep(POLL_SECONDS)
        return int(self.returncode or 0)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Warm:
    """The process that they come from, started with the first of them."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._line: Any = None

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], output: int, errors: int | None = None) -> Started:
        """gunicorn with these arguments; what it prints goes to these descriptors, which are closed here."""
        if self._process is None or self._process.poll() is not None:
            self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            command = [sys.executable, "-m", "tests.support.warm", "gunicorn"]
            # Nothing of the tests' environment but what a server is given too.
            given = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "COVERAGE_PROCESS_START") if name in os.environ}
            self._process = subprocess.Popen(command, cwd=ROOT, env=given, stdin=theirs.fileno(), start_new_session=True)
            theirs.close()
        ours, theirs_news = os.pipe()
        request = json.dumps({"arguments": list(arguments), "environment": dict(environment)}).encode()
        given_away = [output, output if errors is None else errors, theirs_news]
        socket.send_fds(self._line, [request], given_away)
        for each in set(given_away):
            os.close(each)
        return Started(ours)


warm = Warm()


# In the process that they come from


def main() -> None:
    from gevent import monkey

    monkey.patch_all(subprocess=False, os=False, signal=False)
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    _serve(monkey)


def _serve(monkey: Any) -> None:
    """Until whoever asks is gone. No greenlet runs here: a child that inherited gevent's loop would share it."""
    raw, select = monkey.get_original("socket", "socket"), monkey.get_original("select", "select")
    line = raw(fileno=os.dup(0))
    news: dict[int, int] = {}
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    while True:
        ready, _, _ = select([line, reader], [], [])
        if reader in ready:
            os.read(reader, 4096)
            _tell(news)
        if line in ready:
            request, descriptors = _received(line)
            if not request:
                return
            output, errors, told = descriptors
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for each in (line.detach(), reader, writer, told, *news.values()):
                    os.close(each)
                _become(json.loads(request), output, errors)
            os.close(output)
            os.close(errors)
            os.write(told, b"%d\n" % pid)
            news[pid] = told


def _received(line: Any) -> tuple[bytes, list[int]]:
    size = array.array("i").itemsize
    request, beside, _, _ = line.recvmsg(1024 * 1024, socket.CMSG_SPACE(3 * size))
    descriptors = array.array("i")
    for _, _, data in beside:
        descriptors.frombytes(data)
    return request, list(descriptors)


def _tell(news: dict[int, int]) -> None:
    """How those ended that did."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            told = news.pop(pid)
            with contextlib.suppress(BrokenPipeError):
                os.write(told, b"%d\n" % status)
            os.close(told)


def _become(request: Mapping[str, Any], output: int, errors: int) -> NoReturn:
    """A gunicorn that was just started."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, descriptor in enumerate((nothing, output, errors)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["environment"])
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # text streams
    sys.argv = ["gunicorn", *request["arguments"]]
    run = importlib.import_module("gunicorn.app.wsgiapp").run
    # From here on everything ends as it does there, by the interpreter's own end.
    run(prog="gunicorn")
    sys.exit()


if __name__ == "__main__":
    main()
