"""Every change of DESIGN 3's table that hosted repositories and people have: made through one process, looked for in the others.

A row knows how to make its change and undo it by the management API, what a client asks, and the answers before and after. The delay is
from the answer to the change to the beginning of the first request that another process answers right; the process that wrote must
be right at once.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import gevent

from tests.support import pace
from tests.support.lines import Answer, Auth, Line

PATIENCE_SECONDS = 20.0
PASSWORDS = ("the first password", "the second password")


@dataclass
class Stage:
    """What the rows act on: a line to each process, and things with names of their own."""

    admin: tuple[str, str]
    lines: list[Line]
    memory: dict[str, Any] = field(default_factory=dict)

    def call(self, line: Line, method: str, path: str, body: Any = None, *, expect: Sequence[int] = (200, 201, 204)) -> Answer:
        """The management API, as the administrator."""
        answer = line.ask(method, f"/api/v1{path}", body, self.admin)
        assert answer.status in expect, f"{method} {path}: {answer.status} {answer.body!r}"
        return answer

    def put(self, line: Line, path: str, body: bytes) -> None:
        answer = line.ask("PUT", path, body, self.admin)
        assert answer.status in {201, 204}, f"{path}: {answer.status} {answer.body!r}"

    def prepare(self) -> Stage:
        line = self.lines[0]
        for name in ("open", "closed", "away"):
            self.call(line, "POST", "/repositories", {"name": name, "format": "raw", "public": name != "closed"})
        for name in ("open", "closed", "away"):
            self.put(line, f"/raw/{name}/a", b"old")
        for name in ("ann", "bob"):
            self.call(line, "POST", "/users", {"name": name, "password": PASSWORDS[0]})
            token = {"name": f"of {name}", "permissions": ["read"]}
            answer = line.ask("POST", "/api/v1/tokens", token, (name, PASSWORDS[0]))
            assert answer.status == 201, answer.body
            self.memory[name] = answer.json()["token"]
        self.call(line, "POST", "/repositories/closed/rules", {"subject": "user:bob", "permissions": ["read"]})
        self.call(line, "POST", "/groups", {"name": "team"})
        self.call(line, "POST", "/repositories/closed/rules", {"subject": "group:team", "permissions": ["read"]})
        self.call(line, "POST", "/roles", {"name": "readers"})
        self.call(line, "POST", "/roles/readers/rules", {"permissions": ["read"]})
        return self


Act = Callable[[Stage, Line], Any]
Seen = tuple[int, bytes | None]


@dataclass(frozen=True)
class Change:
    """`ask` gets what a client sees: status and, where it counts, the body; `before` and `after` are what it must be."""

    name: str
    make: Act
    undo: Act
    ask: Callable[[Stage, Line], Seen]
    before: Seen
    after: Seen


def get(path: str, who: str | None = None, *, password: bool = False) -> Callable[[Stage, Line], Seen]:
    def ask(stage: Stage, line: Line) -> Seen:
        auth: Auth = None if who is None else (who, stage.memory.get("password", PASSWORDS[0])) if password else stage.memory[who]
        answer = line.get(path, auth)
        return answer.status, answer.body if answer.status == 200 else None

    return ask


def _put(path: str) -> Callable[[Stage, Line], Seen]:
    def ask(stage: Stage, line: Line) -> Seen:
        return line.ask("PUT", path, b"old", stage.admin).status, None

    return ask


def api(method: str, path: str, body: Any = None) -> Act:
    return lambda stage, line: stage.call(line, method, path, body)


def patch(repository: str, **values: Any) -> Act:
    return api("PATCH", f"/repositories/{repository}", values)


def store(path: str, body: bytes) -> Act:
    return lambda stage, line: stage.put(line, path, body)


def _made(key: str, method: str, path: str, body: Any) -> Act:
    """Keeps the id of what is made, and a token that comes with it."""

    def act(stage: Stage, line: Line) -> None:
        made = stage.call(line, method, path, body).json()
        stage.memory[f"{key} id"] = made["id"]
        stage.memory[key] = made.get("token")

    return act


def _gone(key: str, path: str) -> Act:
    return lambda stage, line: stage.call(line, "DELETE", f"{path}/{stage.memory[f'{key} id']}")


def both(*acts: Act) -> Act:
    def act(stage: Stage, line: Line) -> None:
        for each in acts:
            each(stage, line)

    return act


def _set_password(number: int) -> Act:
    def act(stage: Stage, line: Line) -> None:
        # What clients know stays the first one.
        stage.call(line, "PATCH", "/users/bob", {"password": PASSWORDS[number]})

    return act


OLD, NEW, GONE = (200, b"old"), (200, b"new"), (404, None)
STORED, LOGIN, HELD, REFUSED = (204, None), (401, None), (403, None), (503, None)
_NEW_TOKEN = {"name": "of ann for now", "permissions": ["read"], "user": "ann"}
_HOLD = api("PUT", "/repositories/open/artifacts/a/quarantine", {"reason": "looks wrong", "trust": "suspicious"})
_RELEASE = api("DELETE", "/repositories/open/artifacts/a/quarantine")
_ANN_MAY_NOT = api("PATCH", "/users/ann", {"administrator": False})

CHANGES: tuple[Change, ...] = (
    Change("rename", patch("open", name="other"), patch("other", name="open"), get("/raw/open/a"), OLD, LOGIN),
    Change("status", patch("open", status="offline"), patch("open", status="online"), get("/raw/open/a"), OLD, REFUSED),
    Change(
        "settings", patch("open", settings={"write_policy": "once"}), patch("open", settings={"write_policy": "replace"}),
        _put("/raw/open/a"), STORED, (409, None),
    ),
    Change("public flag", patch("open", public=False), patch("open", public=True), get("/raw/open/a"), OLD, LOGIN),
    Change(
        "access rule added", _made("rule", "POST", "/repositories/closed/rules", {"subject": "user:ann", "permissions": ["read"]}),
        _gone("rule", "/repositories/closed/rules"), get("/raw/closed/a", "ann"), GONE, OLD,
    ),
    Change(
        "access rule removed", _gone("rule", "/repositories/closed/rules"),
        _made("rule", "POST", "/repositories/closed/rules", {"subject": "user:ann", "permissions": ["read"]}),
        get("/raw/closed/a", "ann"), OLD, GONE,
    ),
    Change(
        "deploy token", _gone("deploy", "/repositories/closed/deploy-tokens"),
        _made("deploy", "POST", "/repositories/closed/deploy-tokens", {"name": "d", "permissions": ["read"]}),
        get("/raw/closed/a", "deploy"), OLD, LOGIN,
    ),
    Change(
        "repository deletion", api("DELETE", "/repositories/away"),
        both(api("POST", "/repositories", {"name": "away", "format": "raw", "public": True}), store("/raw/away/a", b"old")),
        get("/raw/away/a"), OLD, LOGIN,
    ),
    Change(
        "publish", store("/raw/open/b", b"new"), api("DELETE", "/repositories/open/artifacts/b"), get("/raw/open/b"), GONE, NEW,
    ),
    Change("overwrite", store("/raw/open/a", b"new"), store("/raw/open/a", b"old"), get("/raw/open/a"), OLD, NEW),
    Change(
        "delete", api("DELETE", "/repositories/open/artifacts/a"), store("/raw/open/a", b"old"), get("/raw/open/a"), OLD, GONE,
    ),
    Change("quarantine", _HOLD, _RELEASE, get("/raw/open/a"), OLD, HELD),
    Change("release", _RELEASE, _HOLD, get("/raw/open/a"), HELD, OLD),
    Change(
        "hold rule", both(_made("hold", "POST", "/repositories/open/hold-rules", {"pattern": "a", "reason": "all of them"}),
                           store("/raw/open/a", b"old")),
        both(_gone("hold", "/repositories/open/hold-rules"), _RELEASE), get("/raw/open/a"), OLD, HELD,
    ),
    Change(
        "token revoked", _gone("token", "/tokens"), _made("token", "POST", "/tokens", _NEW_TOKEN), get("/raw/open/a", "token"), OLD, LOGIN,
    ),
    Change(
        "user disabled", api("PATCH", "/users/bob", {"disabled": True}), api("PATCH", "/users/bob", {"disabled": False}),
        get("/raw/closed/a", "bob"), OLD, LOGIN,
    ),
    Change("password", _set_password(1), _set_password(0), get("/raw/closed/a", "bob", password=True), OLD, LOGIN),
    Change(
        "administrator's right", _ANN_MAY_NOT, api("PATCH", "/users/ann", {"administrator": True}),
        get("/raw/closed/a", "ann"), OLD, GONE,
    ),
    Change(
        "group membership", api("DELETE", "/groups/team/members/ann"), both(_ANN_MAY_NOT, api("PUT", "/groups/team/members/ann")),
        get("/raw/closed/a", "ann"), OLD, GONE,
    ),
    Change(
        "role", api("DELETE", "/roles/readers/holders/user:ann"), api("PUT", "/roles/readers/holders/user:ann"),
        get("/raw/closed/a", "ann"), OLD, GONE,
    ),
    Change(
        "anonymous switch", api("PATCH", "/installation", {"anonymous": False}), api("PATCH", "/installation", {"anonymous": True}),
        get("/raw/open/a"), OLD, LOGIN,
    ),
    Change(
        "read-only switch", api("PATCH", "/installation", {"read_only": True}), api("PATCH", "/installation", {"read_only": False}),
        _put("/raw/open/a"), STORED, REFUSED,
    ),
)  # fmt: skip
# Their first state is what the undoing makes.
UNDONE_FIRST = {"access rule removed", "deploy token", "release", "token revoked", "administrator's right",
                "group membership", "role"}  # fmt: skip


@dataclass
class Figures:
    """Delays in seconds of one row, of every other process and repetition."""

    name: str
    delays: list[float] = field(default_factory=list)
    # What the machine took of each of them (tests.support.pace).
    lost: list[float] = field(default_factory=list)

    @property
    def latest(self) -> float:
        """The longest, but for what was lost."""
        return max(delay - lost for delay, lost in zip(self.delays, self.lost, strict=True))

    @property
    def median(self) -> float:
        return statistics.median(self.delays)

    @property
    def slowest(self) -> float:
        """99 of 100 are below."""
        ordered = sorted(self.delays)
        return ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]

    @property
    def cells(self) -> list[str]:
        """Of a row of docs/consistency.md: the median and what 99 of 100 are below, in milliseconds."""
        return [f"{each * 1000:.0f}" for each in (self.median, self.slowest)]


def measure(stage: Stage, change: Change, times: int) -> Figures:
    """Through each process in turn, read through all the others; the one that wrote must be right at once."""
    figures = Figures(change.name)
    if change.name in UNDONE_FIRST:
        change.undo(stage, stage.lines[0])
    for number in range(times):
        writer = stage.lines[number % len(stage.lines)]
        others = [each for each in stage.lines if each is not writer]
        _await_all(stage, change, stage.lines, change.before)
        # Polls have no fixed place between two changes.
        gevent.sleep(0.037 * (number % 6))
        change.make(stage, writer)
        changed = pace.now()
        readers = [gevent.spawn(_await, stage, change, each, change.after, changed) for each in others]
        got = change.ask(stage, writer)
        assert got == change.after, f"{change.name}: {got} in the process that wrote"
        gevent.joinall(readers, raise_error=True)
        for each in readers:
            figures.delays.append(each.value - changed)
            figures.lost.append(pace.lost(changed, each.value))
        change.undo(stage, writer)
    _await_all(stage, change, stage.lines, change.before)
    if change.name in UNDONE_FIRST:
        change.make(stage, stage.lines[0])
        _await_all(stage, change, stage.lines, change.after)
    return figures


def _await_all(stage: Stage, change: Change, at: Sequence[Line], wanted: Seen) -> None:
    gevent.joinall([gevent.spawn(_await, stage, change, each, wanted, pace.now()) for each in at], raise_error=True)


def _await(stage: Stage, change: Change, line: Line, wanted: Seen, since: float) -> float:
    """When the first request begins that is answered right."""
    while True:
        asked = pace.now()
        got = change.ask(stage, line)
        if got == wanted:
            return asked
        assert pace.within(PATIENCE_SECONDS, since, asked), f"{change.name}: still {got} at {line.label}"
        gevent.sleep(0.003)
