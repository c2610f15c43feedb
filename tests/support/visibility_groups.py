"""The rows of DESIGN 3's table that groups and proxies have; see `visibility.py`.

A proxy is asked directly and through a group of it alone: only when both say the same is it an answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

from tests.support.house import eventually
from tests.support.lines import Line
from tests.support.upstreams import FakeUpstream
from tests.support.visibility import GONE, HELD, LOGIN, NEW, OLD, Act, Change, Seen, Stage, api, both, get, patch, store

UNSETTLED: Seen = (0, None)


@dataclass
class SharedStage(Stage):
    """With `first` and `second`, which are private, and public groups: `alone` of the first and `pair` of both.

    Proxies of the upstream are `there`, where copies last, and `soon`, where they are compared each second. Each has a group that leads
    to it: `to-there` and `to-soon`.
    """

    upstream: FakeUpstream | None = None

    @property
    def elsewhere(self) -> FakeUpstream:
        assert self.upstream is not None
        return self.upstream

    def prepare(self) -> SharedStage:
        for name in ("first", "second"):
            self._repository(name)
        for name, seconds in (("there", 3600), ("soon", 1)):
            settings = {"mutable_ttl": seconds, "miss_ttl": 3600}
            self._repository(name, kind="proxy", public=True, upstream_url=self.elsewhere.url, settings=settings)
        for name, members in {"alone": ["first"], "pair": ["first", "second"], "to-there": ["there"], "to-soon": ["soon"]}.items():
            self._repository(name, kind="group", public=True, members=members)
        _fill_second(self, self.lines[0])
        self.put(self.lines[0], "/raw/first/both", b"old")
        new = {"Last-Modified": format_datetime(datetime.now(UTC) - timedelta(hours=1), usegmt=True)}
        for path, body in (("/a", b"old"), ("/moved/a", b"new"), ("/young", b"old"), ("/soon", b"old")):
            self.elsewhere.put(path, body, headers=new)
        return self

    def _repository(self, name: str, **fields: Any) -> None:
        self.call(self.lines[0], "POST", "/repositories", {"name": name, "format": "raw", **fields})


def _fill_second(stage: Stage, line: Line) -> None:
    for name in ("both", "own"):
        stage.put(line, f"/raw/second/{name}", b"new")


def _everywhere(path: str, name: str = "there") -> Callable[[Stage, Line], Seen]:
    """`{n}` in the path is a number that the stage remembers."""

    def ask(stage: Stage, line: Line) -> Seen:
        told = path.format(n=stage.memory.get("number", 0))
        found = get(f"/raw/{name}/{told}")(stage, line)
        return found if get(f"/raw/to-{name}/{told}")(stage, line) == found else UNSETTLED

    return ask


def _names(stage: Stage, line: Line) -> Seen:
    """Of the group's folder."""
    answer = line.get("/raw/pair/?format=json")
    return answer.status, " ".join(each["name"] for each in json.loads(answer.body)["items"]).encode()


def _fetched(body: bytes) -> Act:
    """The upstream has other bytes; the process asks as soon as its copy is due."""

    def act(stage: Stage, line: Line) -> None:
        assert isinstance(stage, SharedStage)
        stage.elsewhere.put("/soon", body)
        eventually(lambda: line.get("/raw/soon/soon").body == body)

    return act


def _asked_by_another_spelling(stage: Stage, line: Line) -> None:
    """What was a miss by one spelling is stored by the other."""
    assert isinstance(stage, SharedStage)
    number = stage.memory.get("number", 0)
    stage.elsewhere.put(f"/a%2Bb{number}", b"new")
    assert line.get(f"/raw/there/a%2Bb{number}").body == b"new"


def _another_number(stage: Stage, line: Line) -> None:
    stage.memory["number"] = stage.memory.get("number", 0) + 1


def _upstream(folder: str) -> Act:
    def act(stage: Stage, line: Line) -> None:
        assert isinstance(stage, SharedStage)
        stage.call(line, "PATCH", "/repositories/there", {"upstream_url": stage.elsewhere.url + folder})

    return act


def _pair(*names: str) -> Act:
    return patch("pair", members=list(names))


def _restricted(**settings: Any) -> Act:
    return patch("there", settings=settings)


_BOTH, _PAIRED = _pair("first", "second"), get("/raw/pair/both")
_HOLD = api("PUT", "/repositories/first/artifacts/both/quarantine", {"reason": "looks wrong"})
_RELEASE = api("DELETE", "/repositories/first/artifacts/both/quarantine")

GROUP_CHANGES: tuple[Change, ...] = (
    Change(
        "group member added", patch("alone", members=["first", "second"]), patch("alone", members=["first"]), get("/raw/alone/own"),
        GONE, NEW,
    ),
    Change("group member removed", _pair("first"), _BOTH, get("/raw/pair/own"), NEW, GONE),
    Change("group members reordered", _pair("second", "first"), _BOTH, _PAIRED, OLD, NEW),
    Change(
        "group member deleted", api("DELETE", "/repositories/second"),
        both(api("POST", "/repositories", {"name": "second", "format": "raw"}), _fill_second, _BOTH), get("/raw/pair/own"), NEW, GONE,
    ),
    Change("group member's file", store("/raw/first/both", b"new"), store("/raw/first/both", b"old"), _PAIRED, OLD, NEW),
    Change(
        "group's folder", store("/raw/second/x", b"new"), api("DELETE", "/repositories/second/artifacts/x"), _names,
        (200, b"both own"), (200, b"both own x"),
    ),
    Change("group member's quarantine", _HOLD, _RELEASE, _PAIRED, OLD, HELD),
    Change("group member's status", patch("first", status="offline"), patch("first", status="online"), _PAIRED, OLD, NEW),
    Change("group's public flag", patch("pair", public=False), patch("pair", public=True), _PAIRED, OLD, LOGIN),
    Change("proxy fetch", _fetched(b"new"), _fetched(b"old"), _everywhere("soon", "soon"), OLD, NEW),
    Change("proxy miss", _asked_by_another_spelling, _another_number, _everywhere("a+b{n}"), GONE, NEW),
    Change("upstream address", _upstream("/moved"), _upstream(""), _everywhere("a"), OLD, NEW),
    Change("minimum age", _restricted(minimum_age=2), _restricted(minimum_age=None), _everywhere("young"), OLD, HELD),
    Change("path rules", _restricted(block=["a"]), _restricted(block=None), _everywhere("a"), OLD, GONE),
)  # fmt: skip
