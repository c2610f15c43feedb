"""A process that reads archives in children of its own, one for each (a program: `readers` starts and asks it).

The module that it is started with says what a child does: its `answer(path, kind)`, which gives bytes, or pieces of them. The process has
imported that and nothing of the server, so a child costs a fork of a small process: a few milliseconds. A child has limits of time and
memory, and whatever keeps it busy keeps nobody else.

Standard input is a socket (`SOCK_SEQPACKET`). A request is one packet, the JSON `[path, kind]`, with a socket for the
answer: what `answer` gave, and a line feed; where the path is empty, the open file comes along. When a child dies its exit status
follows instead, negative for a signal. The process ends, with its children, when nobody holds the other end any more.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple, NoReturn

from app.upload.archives.tars import MIB

CHILD_SECONDS = 300
CPU_SECONDS = 120
MEMORY_BYTES = 1024 * MIB
_REQUEST_BYTES = 64 * 1024

Answer = Callable[[str, str], bytes | Iterable[bytes]]


class _Child(NamedTuple):
    answer: socket.socket
    deadline: float


class _Server:
    def __init__(self, requests: socket.socket, answer: Answer) -> None:
        self._requests = requests
        self._answer = answer
        self._children: dict[int, _Child] = {}
        # A child's end interrupts the wait for requests.
        self._woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)

    def run(self) -> None:
        more = True
        while more:
            requests = self._requests.fileno()
            ready, _, _ = select.select([requests, self._woken], [], [], self._patience())
            if self._woken in ready:
                os.read(self._woken, 4096)
            self._bury()
            self._end_late()
            if requests in ready:
                more = self._take()
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)

    def _patience(self) -> float | None:
        """Seconds until a child's time is over; null when there is none."""
        if not self._children:
            return None
        return max(0.0, min(child.deadline for child in self._children.values()) - time.monotonic())

    def _take(self) -> bool:
        """Start on a request; False when none will come any more."""
        request, descriptors, _flags, _address = socket.recv_fds(self._requests, _REQUEST_BYTES, 2)
        if not request:
            return False
        answer, opened = socket.socket(fileno=descriptors[0]), descriptors[1:]
        try:
            pid = os.fork()
            if pid == 0:
                self._become_child(request, answer, opened)
            self._children[pid] = _Child(answer, time.monotonic() + CHILD_SECONDS)
        except OSError:
            answer.close()
        for each in opened:
            os.close(each)
        return True

    def _become_child(self, request: bytes, answer: socket.socket, opened: list[int]) -> NoReturn:
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._requests.close()
            # At its other end it was made for a loop.
            answer.setblocking(True)
            for other in self._children.values():
                other.answer.close()
            _limit()
            path, kind = json.loads(request)
            for piece in _pieces(self._answer(path or f"/dev/fd/{opened[0]}", kind)):
                answer.sendall(piece)
            answer.sendall(b"\n")
            status = 0
        finally:
            os._exit(status)

    def _bury(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            answer = self._children.pop(pid).answer
            code = os.waitstatus_to_exitcode(status)
            if code != 0:
                # Who asked may be gone.
                with contextlib.suppress(OSError):
                    answer.send(b"\n%d" % code, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            answer.close()

    def _end_late(self) -> None:
        now = time.monotonic()
        for pid, child in self._children.items():
            if child.deadline <= now:
                os.kill(pid, signal.SIGKILL)


def _pieces(answered: bytes | Iterable[bytes]) -> Iterable[bytes]:
    return [answered] if isinstance(answered, bytes) else answered


def _limit() -> None:
    """Bound processor time (seconds), address space (bytes); no files written, no core left, and others go first."""
    _bound(resource.RLIMIT_CPU, CPU_SECONDS, CPU_SECONDS + 5)
    _bound(resource.RLIMIT_AS, MEMORY_BYTES, MEMORY_BYTES)
    _bound(resource.RLIMIT_FSIZE, 0, 0)
    _bound(resource.RLIMIT_CORE, 0, 0)
    os.nice(5)


def _bound(what: int, soft: int, hard: int) -> None:
    allowed = resource.getrlimit(what)[1]
    if allowed != resource.RLIM_INFINITY:
        soft, hard = min(soft, allowed), min(hard, allowed)
    resource.setrlimit(what, (soft, hard))


def main(module: str) -> None:
    """Serve by the `answer` of that module until the other end of standard input is closed."""
    answer = importlib.import_module(module).answer
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=0) as requests:
        _Server(requests, answer).run()
