"""Boards with numbers that only rise, written and read through every process while things break: bounded staleness, and nothing lost.

A board is a file. One client writes its next number, each time through another process; others read it everywhere. Whatever number was
acknowledged before a reader's bound is the least that it may see, and no number is seen that nobody has asked to write (a bound grants what
the machine took, tests.support.pace). While something is broken, an honest 503 is right too, and so is a connection that breaks.
"""

from __future__ import annotations

import random
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException

import gevent

from tests.support import pace
from tests.support.lines import Answer, Line, headers_of
from tests.support.server import Server

BOARDS = 6
READERS = 2
PATIENCE_SECONDS = 120.0
PAUSE_SECONDS = 0.01
MOST_FAULTS = 20


@dataclass
class Board:
    """What was acknowledged, and since when; `asked` is the highest number that anybody wanted there."""

    path: str
    asked: int = 0
    numbers: list[int] = field(default_factory=list)
    moments: list[float] = field(default_factory=list)

    def least(self, moment: float) -> int:
        """The number that was acknowledged by then."""
        known = bisect_right(self.moments, moment)
        return self.numbers[known - 1] if known else 0


class Bulletin:
    """Clients of a cluster; `bound` is in seconds, for processes that did not write, and `late` instead while `trouble` is true."""

    def __init__(self, servers: Sequence[Server], repository: str, *, bound: float, late: float) -> None:
        self.boards = [Board(f"/raw/{repository}/board-{number}") for number in range(BOARDS)]
        # Something is broken: processes may refuse.
        self.trouble = False
        self.statuses: Counter[int] = Counter()
        self.faults: list[str] = []
        # The longest that an answer took, in seconds.
        self.slowest = 0.0
        self._servers = servers
        self._bounds = {False: bound, True: late}
        self._working: list[gevent.Greenlet] = []

    def start(self) -> None:
        pace.now()
        for each in self.boards:
            assert self._servers[0].put(each.path, b"0").status_code == 201
        self._working = [gevent.spawn(self._write, each) for each in self.boards]
        self._working += [gevent.spawn(self._read, server) for server in self._servers for _ in range(READERS)]

    def stop(self) -> None:
        gevent.killall(self._working)

    @property
    def acknowledged(self) -> int:
        return sum(len(each.numbers) for each in self.boards)

    def assert_nothing_is_lost(self, lines: Sequence[Line]) -> None:
        """Each board shows in every process the same: what was acknowledged last, or what was asked for after it."""
        for board in self.boards:
            shown = {int(line.get(board.path).body) for line in lines}
            assert len(shown) == 1 and board.least(time.monotonic()) <= min(shown) <= board.asked, f"{board}: {shown}"

    # -- clients

    def _write(self, board: Board) -> None:
        while True:
            with closing(_connection(random.choice(self._servers))) as connection:
                board.asked += 1
                answer = self._ask(connection, "PUT", board.path, b"%d" % board.asked)
                if answer is not None and answer.status in {201, 204}:
                    board.numbers.append(board.asked)
                    board.moments.append(time.monotonic())
                    # The process that wrote, for whom there is no bound.
                    self._look(connection, board, 0.0)
            gevent.sleep(random.random() * 0.1)

    def _read(self, server: Server) -> None:
        while True:
            with closing(_connection(server)) as connection:
                self._look(connection, random.choice(self.boards))
            gevent.sleep(PAUSE_SECONDS)

    def _look(self, connection: HTTPConnection, board: Board, bound: float | None = None) -> None:
        began, allowed = time.monotonic(), self._bounds[self.trouble]
        answer = self._ask(connection, "GET", board.path)
        if answer is None or answer.status != 200:
            return
        if bound is None:
            bound = max(allowed, self._bounds[self.trouble])
            bound += pace.lost(began - bound, began)
        number, least = int(answer.body), board.least(began - bound)
        if not least <= number <= board.asked:
            self._fault(f"{connection.port} showed {number} of {board.path}, which had {least} for more than {bound:g} s")

    def _ask(self, connection: HTTPConnection, method: str, path: str, body: bytes | None = None) -> Answer | None:
        """Null when the connection broke. What is not as it should be is noted."""
        began, troubled, what = time.monotonic(), self.trouble, f"{method} {path} through {connection.port}"
        try:
            connection.request(method, path, body, {} if method == "GET" else self._headers)
            got = connection.getresponse()
            answer = Answer(got.status, got.read(), dict(got.headers))
        except TimeoutError:
            self._fault(f"{what}: no answer within {PATIENCE_SECONDS:g} s")
            return None
        except (OSError, HTTPException) as error:
            self.statuses[0] += 1
            if not (troubled or self.trouble):
                self._fault(f"{what}: {error!r}")
            return None
        self.slowest = max(self.slowest, time.monotonic() - began)
        self.statuses[answer.status] += 1
        honest = (troubled or self.trouble) and answer.status == 503 and "Retry-After" in answer.headers
        if answer.status not in {200, 201, 204} and not honest:
            self._fault(f"{what}: {answer.status} {answer.body!r}")
        return answer

    @property
    def _headers(self) -> dict[str, str]:
        return headers_of(self._servers[0].admin)

    def _fault(self, text: str) -> None:
        if len(self.faults) < MOST_FAULTS:
            self.faults.append(f"{time.strftime('%H:%M:%S')} {text}")


def _connection(server: Server) -> HTTPConnection:
    """To whichever of its processes takes it."""
    return HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_SECONDS)
