"""Reading an archive in another process: `server`, started when it is first needed and again when it is gone."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import gevent

from app.errors import Unavailable
from app.upload.archives import server
from app.upload.archives.tars import Unreadable

# A little longer than the child may take, so that its own end comes first.
ANSWER_SECONDS = 310
# From here on an answer takes longer to parse than the loop may be kept from others.
LONG_ANSWER = 64 * 1024
# Of an answer that is handed on as it comes: what says whether it is whole.
TAIL = 1024
# Metadata in base64 and its fields, with room.
MOST_ANSWER_BYTES = 16 * 1024 * 1024

_KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ")
# Without `site`, whose start costs more than the rest: the folders of what is needed are enough.
_PROGRAM = f"import sys; sys.path += sys.argv[2:]; from {server.__name__} import main; main(sys.argv[1])"
_OURS = os.fspath(Path(__file__).resolve().parents[3])
_PIECE = 64 * 1024


class Died(Exception):
    """The child that read the archive ended without an answer; `status` as that of a process, negative for a signal."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Readers:
    """The server's end of it; the loop goes on while others read.

    `module` is where the program finds what children do (its function `answer`), `libraries` are the packages that this imports.
    """

    def __init__(self, module: str, *libraries: ModuleType, most_bytes: int = MOST_ANSWER_BYTES) -> None:
        """`most_bytes` are those of an answer."""
        self._module = module
        self._most_bytes = most_bytes
        self._folders = [_OURS, *(os.fspath(Path(str(each.__file__)).resolve().parents[1]) for each in libraries)]
        self._owner = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None

    def document(self, file: Path | int, kind: str) -> Any:
        """What `answer` says of the file, parsed. Raises Unreadable where that is `{"unreadable": clause}`, and Unavailable."""
        answer = self.answer(file, kind)
        document = json.loads(answer) if len(answer) < LONG_ANSWER else gevent.get_hub().threadpool.apply(json.loads, (answer,))
        if "unreadable" in document:
            raise Unreadable(document["unreadable"])
        return document

    def pour(self, path: Path, kind: str, take: Callable[[bytes], object]) -> bytes:
        """Hand on what `answer` says of the file, as it comes; its last `TAIL` bytes are kept back and returned.

        For answers of any length. Raises Died and Unavailable; by then a part may have been handed on.
        """
        request = json.dumps([os.fspath(path.absolute()), kind]).encode()
        tail = b""
        try:
            with gevent.Timeout(ANSWER_SECONDS, TimeoutError()), self._send(request) as answer:
                while piece := answer.recv(_PIECE):
                    tail += piece
                    if len(tail) > _PIECE:
                        take(tail[:-TAIL])
                        tail = tail[-TAIL:]
        except OSError:
            raise _not_now() from None
        body, _, status = tail.rpartition(b"\n")
        if status or not body:
            raise Died(int(status) if status.lstrip(b"-").isdigit() else 1)
        if len(body) > TAIL:
            take(body[:-TAIL])
        return body[-TAIL:]

    def answer(self, file: Path | int, kind: str) -> bytes:
        """As `read`. Raises Unreadable where that takes too long, and Unavailable."""
        try:
            return self.read(file, kind)
        except Died as died:
            if died.status == -signal.SIGXCPU:
                raise Unreadable(f"takes more than {server.CPU_SECONDS} seconds to be read") from None
            raise _not_now() from None

    def read(self, file: Path | int, kind: str) -> bytes:
        """What `answer` says of the file, which may be an open one. Raises Died, and Unavailable when no process answers in time."""
        path, opened = ("", [file]) if isinstance(file, int) else (os.fspath(file.absolute()), [])
        request = json.dumps([path, kind]).encode()
        try:
            # Without any answer the process itself went, perhaps with our request unread.
            data = self._ask(request, opened) or self._ask(request, opened)
        except OSError:
            raise _not_now() from None
        body, _, status = data.rpartition(b"\n")
        if status or not body:
            raise Died(int(status or 1))
        return body

    def _ask(self, request: bytes, opened: Sequence[int]) -> bytes:
        with gevent.Timeout(ANSWER_SECONDS, TimeoutError()), self._send(request, opened) as answer:
            return _all_of(answer, self._most_bytes)

    def spill(self, file: int, kind: str) -> IO[bytes]:
        """What `answer` says of an open file, in a file without a name, at its beginning: for answers of any length.

        Raises Died, and Unavailable.
        """
        kept = tempfile.TemporaryFile()  # noqa: SIM115  # the caller's
        try:
            with gevent.Timeout(ANSWER_SECONDS, TimeoutError()), self._send(json.dumps(["", kind]).encode(), [file]) as answer:
                while piece := answer.recv(_PIECE):
                    kept.write(piece)
            status = _cut_status(kept)
        except OSError:
            kept.close()
            raise _not_now() from None
        if status is not None:
            kept.close()
            raise Died(status)
        return kept

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

    def _send(self, request: bytes, opened: Sequence[int] = ()) -> socket.socket:
        """Once more with another process when the one that was there is gone."""
        for last in (False, True):
            answer, theirs = socket.socketpair()
            try:
                with theirs:
                    socket.send_fds(self._server(), [request], [theirs.fileno(), *opened])
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
                [sys.executable, "-I", "-S", "-c", _PROGRAM, self._module, *self._folders],
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


def _all_of(answer: socket.socket, most_bytes: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while piece := answer.recv(_PIECE):
        pieces.append(piece)
        size += len(piece)
        if size > most_bytes:
            raise OSError("the answer does not end")
    return b"".join(pieces)


def _cut_status(kept: IO[bytes]) -> int | None:
    """Take what the server says behind an answer off its end: how the child ended where it did not answer, null where it did."""
    size = kept.tell()
    kept.seek(max(0, size - TAIL))
    body, _, status = kept.read().rpartition(b"\n")
    if status or size < 2 or not body:
        return int(status) if status.lstrip(b"-").isdigit() else 1
    kept.truncate(size - 1)
    kept.seek(0)
    return None


def _not_now() -> Unavailable:
    return Unavailable("the file could not be looked into, please send it again", retry_after=30)
