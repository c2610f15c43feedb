"""Reading an archive in another process: `archive_server`, started when it is first needed and again when it is gone."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import gevent
import packaging

from app.errors import Unavailable
from app.protocols.pypi import archives

# A little longer than the child may take, so that its own end comes first.
ANSWER_SECONDS = 310
# Metadata in base64 and its fields, with room.
MOST_ANSWER_BYTES = 16 * 1024 * 1024

_KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ")
# Without `site`, whose start costs more than the rest: two folders are enough.
_PROGRAM = "import sys; sys.path += sys.argv[1:]; import archive_server; archive_server.main()"
_FOLDERS = [os.fspath(Path(module).resolve().parents[up]) for module, up in ((packaging.__file__, 1), (archives.__file__, 0))]
_PIECE = 64 * 1024


class Died(Exception):
    """The child that read the archive ended without an answer; `status` as that of a process, negative for a signal."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Readers:
    """The server's end of it; the loop goes on while others read."""

    def __init__(self) -> None:
        self._owner = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None

    def read(self, path: Path, kind: str) -> bytes:
        """What `archives.answer` says of the file. Raises Died, and Unavailable when no process can be had or none answers in time."""
        request = json.dumps([os.fspath(path.absolute()), kind]).encode()
        try:
            # Without any answer the process itself went, perhaps with our request unread.
            data = self._ask(request) or self._ask(request)
        except OSError:
            raise Unavailable("the file could not be looked into, please send it again", retry_after=30) from None
        body, _, status = data.rpartition(b"\n")
        if status or not body:
            raise Died(int(status or 1))
        return body

    def _ask(self, request: bytes) -> bytes:
        with gevent.Timeout(ANSWER_SECONDS, TimeoutError()), self._send(request) as answer:
            return _all_of(answer)

    @property
    def pid(self) -> int | None:
        """Of the process that forks the children; null while there is none."""
        return self._process.pid if self._process is not None and self._owner == os.getpid() else None

    def close(self) -> None:
        """End the process and wait for it."""
        process = self._process if self._owner == os.getpid() else None
        self._forget()
        if process is not None:
            process.wait()

    def _send(self, request: bytes) -> socket.socket:
        """Once more with another process when the one that was there is gone."""
        for last in (False, True):
            answer, theirs = socket.socketpair()
            try:
                with theirs:
                    socket.send_fds(self._server(), [request], [theirs.fileno()])
                return answer
            except OSError:
                answer.close()
                self._forget()
                if last:
                    raise
        raise AssertionError

    def _server(self) -> socket.socket:
        if self._requests is None or self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
            self._forget()
            self._start()
        assert self._requests is not None
        return self._requests

    def _start(self) -> None:
        """It gets no credential of ours in its environment, nothing of it reaches the log, and no signal of a terminal reaches it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._owner, self._requests = os.getpid(), ours
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PROGRAM, *_FOLDERS],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ},
                start_new_session=True,
            )

    def _forget(self) -> None:
        if self._requests is not None:
            with contextlib.suppress(OSError):
                self._requests.close()
        self._requests = self._process = None


def _all_of(answer: socket.socket) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while piece := answer.recv(_PIECE):
        pieces.append(piece)
        size += len(piece)
        if size > MOST_ANSWER_BYTES:
            raise OSError("the answer does not end")
    return b"".join(pieces)


readers = Readers()
