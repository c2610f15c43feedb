"""Processes that begin in a warm interpreter: servers, workers and commands spend most of their start on what they import.

Two processes import it once, and fork a child for each that is asked for. The child has a session and an environment of its own, its
descriptors are those that it was given, and from there on it runs and ends as the program that it is:

- `server`   under the patches that `config/gunicorn.py` makes, all of the application but its metrics, which are made for the process that
             imports them. Its children are gunicorn, a worker (`python -m app.jobs`), and commands that are the application themselves
- `command`  without patches, what each command imports. Its children are commands beside a server

That programs start from nothing is seen where they do: `arkvory serve` and `worker`, gunicorn with wrong options, the upgrades of `kills`.

    python -m tests.support.warm server    one of them; asked over the socket that is its standard input
"""

from __future__ import annotations

import array
import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[2]
OF_OTHERS = (
    "alembic.command", "apispec.ext.marshmallow", "cryptography.fernet", "cryptography.x509", "encodings.idna", "flask", "flask_smorest",
    "gevent.pywsgi", "gevent.threadpool", "gunicorn.app.wsgiapp", "gunicorn.workers.ggevent", "marshmallow", "packaging.metadata",
    "packaging.specifiers", "psycogreen.gevent", "psycopg2", "psycopg2.extras", "sqlalchemy", "sqlalchemy.dialects.postgresql", "urllib3",
    "werkzeug.serving", "wsgiref.simple_server",
)  # fmt: skip
OF_OURS = (
    "app.api.artifacts", "app.api.cluster", "app.api.explain", "app.api.jobs", "app.api.mirrors", "app.api.operations", "app.api.people",
    "app.api.problems", "app.api.quarantine", "app.api.repositories", "app.api.roles", "app.api.upkeep", "app.api.uploads", "app.cli",
    "app.cluster.localserver", "app.cluster.master", "app.database.embedded", "app.database.migrate", "app.http.health", "app.http.hosts",
    "app.http.numbers", "app.http.parts", "app.http.shortpath", "app.http.worker", "app.jobs.periodic", "app.jobs.running",
    "app.protocols.maven.mirroring", "app.protocols.maven.routes", "app.protocols.npm.mirroring", "app.protocols.npm.routes",
    "app.protocols.oci.mirroring", "app.protocols.oci.routes", "app.protocols.pypi.mirroring", "app.protocols.pypi.routes",
    "app.protocols.raw.mirroring", "app.protocols.raw.routes",
)  # fmt: skip
IMPORTED = {"server": OF_OTHERS + OF_OURS, "command": ("app.cli", "app.cluster.localserver", "config", "urllib.request")}
# Looks at the environment when it is imported.
NOT_IMPORTED = "prometheus_client"
POLL_SECONDS = 0.02


class Started:
    """A process, as `subprocess.Popen` shows one."""

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
                raise subprocess.TimeoutExpired("a warm process", timeout or 0.0)
            time.sleep(POLL_SECONDS)
        return int(self.returncode or 0)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@dataclass(frozen=True)
class Wanted:
    """A program (`gunicorn`, `arkvory`, or a module as after `python -m`) with its arguments, and all that it sees of an environment."""

    program: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    folder: Path = ROOT


class Warm:
    """The process that they come from, started with the first of them."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._process: subprocess.Popen[bytes] | None = None
        self._line: Any = None

    def start(self, wanted: Wanted, output: int, errors: int | None = None, stdin: int | None = None) -> Started:
        """Standard output, error and input are these descriptors, which are closed here; without an input there is nothing to read."""
        if self._process is None or self._process.poll() is not None:
            self._begin()
        ours, news = os.pipe()
        request = {"program": wanted.program, "arguments": [*wanted.arguments], "environment": {**wanted.environment}}
        given = [
            os.open(os.devnull, os.O_RDONLY) if stdin is None else stdin, output, os.dup(output) if errors is None else errors, news
        ]
        socket.send_fds(self._line, [json.dumps(request | {"folder": str(wanted.folder)}).encode()], given)
        for each in given:
            os.close(each)
        return Started(ours)

    def _begin(self) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.support.warm", self._kind]
        # Nothing of the tests' environment but what a server is given too.
        given = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "COVERAGE_PROCESS_START") if name in os.environ}
        self._process = subprocess.Popen(command, cwd=ROOT, env=given, stdin=theirs.fileno(), start_new_session=True)
        theirs.close()

    def run(self, wanted: Wanted, text: str, seconds: float) -> subprocess.CompletedProcess[str]:
        """Wait for its end; what it printed, and its exit code. `text` is what it reads."""
        stdin, output, errors = (os.memfd_create(name) for name in ("stdin", "stdout", "stderr"))
        os.write(stdin, text.encode())
        os.lseek(stdin, 0, os.SEEK_SET)
        with open(os.dup(output), "rb") as printed, open(os.dup(errors), "rb") as said:
            started = self.start(wanted, output, errors, stdin)
            try:
                code = started.wait(seconds)
            finally:
                started.kill()
            return subprocess.CompletedProcess(wanted.arguments, code, _all_of(printed), _all_of(said))


def _all_of(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode())


servers, commands = Warm("server"), Warm("command")


# In the process that they come from


def main(kind: str) -> None:
    monkey = importlib.import_module("gevent.monkey") if kind == "server" else None
    if monkey is not None:
        monkey.patch_all(subprocess=False, os=False, signal=False)
        # Some of the children are programs that do that themselves.
        warnings.filterwarnings("ignore", "Patching more than once")
    for name in IMPORTED[kind]:
        importlib.import_module(name)
    assert NOT_IMPORTED not in sys.modules
    if kind == "server":
        # Reads all migrations, which each server looks through.
        importlib.import_module("app.database.migrate").newest()
    gc.collect()
    gc.freeze()
    _serve(monkey)


def _serve(monkey: Any) -> None:
    """Until whoever asks is gone. No greenlet runs here; the loop that urllib3's look for IPv6 made notices a fork by itself."""
    if monkey is None:
        raw, select = socket.socket, importlib.import_module("select").select
    else:
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
            *given, told = descriptors
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for each in (line.detach(), reader, writer, told, *news.values()):
                    os.close(each)
                _become(json.loads(request), given)
            for each in given:
                os.close(each)
            os.write(told, b"%d\n" % pid)
            news[pid] = told


def _received(line: Any) -> tuple[bytes, list[int]]:
    size = array.array("i").itemsize
    request, beside, _, _ = line.recvmsg(1024 * 1024, socket.CMSG_SPACE(4 * size))
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


def _become(request: Mapping[str, Any], given: Sequence[int]) -> NoReturn:
    """What was just started by somebody. From the last lines on everything ends as it does there, by the interpreter's own end."""
    os.setsid()
    for number, descriptor in enumerate(given):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # text streams
    program, arguments = request["program"], request["arguments"]
    sys.argv = [program, *arguments]
    if program == "gunicorn":
        importlib.import_module("gunicorn.app.wsgiapp").run(prog=program)
    elif program == "arkvory":
        importlib.import_module("app.cli").main(arguments)
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    sys.exit()


if __name__ == "__main__":
    main(sys.argv[1])
