"""Real processes and a model: random changes through any of them, random faults, and reads that must fit the model within the bound.

The model is a row of doors (tests.support.flips) and their histories. A state may be shown from when it was asked for until the next one
was acknowledged, and in processes that did not make the next one for the bound longer. So what is right is known for every answer by the
moments when it began and ended, whatever is broken; only refusals to answer at all need to know that something is.
"""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException

import gevent
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.faults.test_servers import Observer, until
from tests.support.flips import REFUSED
from tests.support.lines import Line, headers_of, lines
from tests.support.proxy import Wire
from tests.support.server import Cluster
from tests.support.timeline import Door
from tests.support.visibility import Stage

BOUND_SECONDS = 5.5
# How long a process may go on to refuse after something was broken.
BACK_SECONDS = 20.0
# Between two steps.
CHANGES = 3
PATIENCE_SECONDS = 20.0


@dataclass(frozen=True)
class State:
    """Of a door: made through server `by`, asked for and acknowledged then."""

    is_open: bool
    by: int
    asked: float
    known: float


@dataclass
class Known:
    door: Door
    states: list[State] = field(default_factory=list)

    def allowed(self, server: int, began: float, ended: float) -> set[bool]:
        """What that server may have said between these moments."""
        found = {self.states[-1].is_open}
        for state, following in zip(self.states, self.states[1:], strict=False):
            bound = 0.0 if following.by == server else BOUND_SECONDS
            if began <= following.known + bound and state.asked <= ended:
                found.add(state.is_open)
        return found


@dataclass
class Street:
    """The servers, each with one worker; the way of the last one to PostgreSQL can be cut."""

    cluster: Cluster
    wire: Wire
    stage: Stage
    doors: list[Door]
    observer: Observer
    changes: int = 0
    faults: int = 0
    answers: int = 0


class Tempers(RuleBasedStateMachine):
    """One example: all is well at its beginning and made well at its end."""

    street: Street

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.stopped: dict[int, int] = {}
        self.frozen = self.deaf = False
        self.troubled: dict[int, float] = {}
        self.known = [Known(each) for each in self.street.doors]
        for each in self.known:
            # Whatever it was: what is closed cannot be closed again.
            self._move(each, 0, is_open=True)
            self._move(each, 0, is_open=False)
        gevent.sleep(BOUND_SECONDS)

    @property
    def servers(self) -> range:
        return range(len(self.street.cluster))

    # -- changes

    def _change_some(self) -> None:
        """Through servers that take writes for certain; after every step, since no example is of use without."""
        well = [server for server in self.servers if self._is_well(server)]
        for known in self.chance.sample(self.known, CHANGES if well else 0):
            server, is_open = self.chance.choice(well), not known.states[-1].is_open
            self._move(known, server, is_open=is_open)
            assert self._look(known, server) == is_open, f"{known.door} in the process that made it"

    def _move(self, known: Known, server: int, *, is_open: bool) -> None:
        asked, line = time.monotonic(), self._line(server)
        (known.door.open if is_open else known.door.close)(self.street.stage, line)
        known.states.append(State(is_open, server, asked, time.monotonic()))
        self.street.changes += 1
        line.close()

    def _is_well(self, server: int) -> bool:
        """Whether it takes writes for certain."""
        return server not in self.stopped and not (self.frozen and server == self.servers[-1]) and not self._is_troubled(server)

    def _is_troubled(self, server: int) -> bool:
        return time.monotonic() < self.troubled.get(server, 0)

    def _line(self, server: int) -> Line:
        return lines(self.street.cluster[server])[0]

    # -- faults

    @rule(server=st.integers(0, 9))
    def stop(self, server: int) -> None:
        server %= len(self.servers)
        if server not in self.stopped and len(self.stopped) < len(self.servers) - 1 and self._is_well(server):
            self.stopped[server] = self.street.cluster[server].workers()[0]
            os.kill(self.stopped[server], signal.SIGSTOP)
            self.street.faults += 1

    @precondition(lambda self: self.stopped)
    @rule()
    def go_on(self) -> None:
        server, worker = self.stopped.popitem()
        os.kill(worker, signal.SIGCONT)
        self.troubled[server] = time.monotonic() + BACK_SECONDS

    @rule(server=st.integers(0, 9))
    def kill(self, server: int) -> None:
        server %= len(self.servers)
        if self._is_well(server):
            cluster = self.street.cluster
            (worker,) = cluster[server].workers()
            os.kill(worker, signal.SIGKILL)
            until(lambda: cluster[server].workers() not in ([], [worker]), BACK_SECONDS)
            cluster[server].wait_until_ready()
            self.street.faults += 1

    @precondition(lambda self: not self.frozen and self.servers[-1] not in self.stopped)
    @rule()
    def freeze(self) -> None:
        """The last server's network is gone."""
        self.street.wire.freeze()
        self.frozen = True
        self.street.faults += 1

    @precondition(lambda self: self.frozen)
    @rule()
    def thaw(self) -> None:
        self.street.wire.thaw()
        self.frozen = False
        self.troubled[self.servers[-1]] = time.monotonic() + BACK_SECONDS

    @precondition(lambda self: not self.deaf)
    @rule()
    def lose_all_mail(self) -> None:
        self.street.observer.rows("create trigger lose before insert on arkvory_mail for each row execute function lose()")
        self.deaf = True
        self.street.faults += 1

    @precondition(lambda self: self.deaf)
    @rule()
    def deliver_mail_again(self) -> None:
        self.street.observer.rows("drop trigger if exists lose on arkvory_mail")
        self.deaf = False

    @rule(seconds=st.sampled_from([0.1, 0.3, 1, 3, 6]))
    def wait(self, seconds: float) -> None:
        gevent.sleep(seconds)

    def teardown(self) -> None:
        while self.stopped:
            self.go_on()
        self.street.wire.thaw()
        self.deliver_mail_again()
        for each in self.street.cluster:
            until(lambda each=each: each.put("/raw/open/a", b"old").status_code in {201, 204}, BACK_SECONDS)

    # -- reads

    @invariant()
    def everyone_fits_the_model(self) -> None:
        if hasattr(self, "known"):
            self._change_some()
            # All at once: who is cut off takes seconds to say so.
            asked = [server for server in self.servers if server not in self.stopped]
            asking = [gevent.spawn(self._look, known, server) for known in self.known for server in asked]
            gevent.joinall(asking, raise_error=True)

    def _look(self, known: Known, server: int) -> bool | None:
        """Whether it is open, there; null when it honestly cannot say."""
        who, began = known.door.who, time.monotonic()
        may_refuse = not self._is_well(server)
        connection = HTTPConnection("127.0.0.1", self.street.cluster[server].port, timeout=PATIENCE_SECONDS)
        try:
            connection.request("GET", known.door.path, headers=headers_of(None if who is None else self.street.stage.memory[who]))
            answer = connection.getresponse()
            status = answer.status
            answer.read()
        except HTTPException as error:
            raise AssertionError(f"{known.door.path} at {server}: {error!r}") from error
        finally:
            connection.close()
        self.street.answers += 1
        if status == 503 and may_refuse and "Retry-After" in answer.headers:
            return None
        assert status == 200 or status in REFUSED, f"{known.door.path} at {server}: {status}"
        right = known.allowed(server, began, time.monotonic())
        assert (status == 200) in right, f"{known.door.name} {known.door.path} at {server}: {status}, {known.states[-3:]}, now {began}"
        return status == 200
