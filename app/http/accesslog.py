"""One line of JSON for each request on standard output."""

from __future__ import annotations

import json
import os
import re
import secrets
import select
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote_plus

from gevent import get_hub, monkey

_SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SECRET_NAME = re.compile(r"token|passw|secret|signature|api.?key", re.IGNORECASE)
_TOKEN = re.compile(r"(arkv_)[A-Za-z0-9_-]+")
# A login in front of a host, in an address that is the value of an argument.
_LOGIN = re.compile(r"((?::|%3A)(?:/|%2F){2})(?:(?!%2F)[^/&])*?(@|%40)", re.IGNORECASE)
_AUTHORITY = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?]*")
_MOST_WAITING = 4 * 1024 * 1024
_encode = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), default=str).encode


def request_ids() -> Callable[[str | None], str]:
    """A function that keeps a sane inbound request id or makes a new one, unique across processes."""
    process, count = secrets.token_hex(6), 0

    def request_id(inbound: str | None) -> str:
        nonlocal count
        if inbound is not None and _SANE_ID.fullmatch(inbound):
            return inbound
        count += 1
        return f"{process}-{count:06x}"

    return request_id


def loggable_path(target: str) -> str:
    """The raw path and query without secrets: neither an authority, nor tokens, nor the values of anything named like one or a password."""
    if not target.startswith("/"):
        target = _AUTHORITY.sub("", target, count=1)
    target = _TOKEN.sub(r"\1***", target)
    path, mark, query = target.partition("?")
    if not mark:
        return path
    return f"{path}?{'&'.join(_masked(pair) for pair in query.split('&'))}"


def _masked(pair: str) -> str:
    name, sign, _ = pair.partition("=")
    return f"{name}=***" if sign and _SECRET_NAME.search(unquote_plus(name)) else _LOGIN.sub(r"\1***\2", pair)


class AccessLog:
    """Writes lines to a file descriptor, all of one turn of the loop together.

    A reader that does not keep up costs lines beyond `_MOST_WAITING` bytes, never a request.
    """

    def __init__(self, fd: int = 1) -> None:
        self._fd = fd
        # The loop's own code cannot wait, and a pipe takes this much without blocking once it says so.
        self._writable = monkey.get_original("select", "poll")()
        self._writable.register(fd, select.POLLOUT)
        self._waiting: list[bytes] = []
        self._size = 0
        self._scheduled = False
        self._second = -1
        self._stamp = ""

    def write(self, record: dict[str, Any], at: float) -> None:
        """`record` with the time `at` (seconds since the epoch) in front, written before the loop waits again."""
        if self._size > _MOST_WAITING:
            return
        line = f'{{"time":"{self._time(at)}",{_encode(record)[1:]}\n'.encode("ascii")
        self._waiting.append(line)
        self._size += len(line)
        if not self._scheduled:
            self._scheduled = True
            get_hub().loop.run_callback(self.flush)

    def flush(self) -> None:
        """Write what waits, as far as the reader takes it now."""
        self._scheduled = False
        data = b"".join(self._waiting)
        self._waiting, self._size = [], 0
        try:
            while data and self._writable.poll(0):
                data = data[os.write(self._fd, data[:select.PIPE_BUF]):]
        except BlockingIOError:
            pass
        except OSError:
            return
        if data:
            self._keep(data)

    def _keep(self, data: bytes) -> None:
        self._waiting, self._size, self._scheduled = [data], len(data), True
        timer = get_hub().loop.timer(0.05)

        def again() -> None:
            timer.close()
            self.flush()

        timer.start(again)

    def _time(self, at: float) -> str:
        second = int(at)
        if second != self._second:
            self._second, self._stamp = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._stamp}.{int((at - second) * 1000):03d}Z"
