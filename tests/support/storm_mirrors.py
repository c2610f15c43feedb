"""Another Arkvory whose files change all the time, and repositories of the stormed one that follow it (ADR 13)."""

from __future__ import annotations

import json
import os
import random
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import gevent

from tests.support.server import Server
from tests.support.storm import SIZES, Line, World, sha256

PATHS = 60
# Longer than the parts of 8 MiB in which a mirror asks for it.
LONG = 20_000_000
REPOSITORY = "origin"


@dataclass
class Origin:
    """What is followed: nobody kills it. `known` are all digests that a path ever had, `now` those that it has."""

    server: Server
    known: dict[str, set[str]] = field(default_factory=dict)
    now: dict[str, str] = field(default_factory=dict)

    def open(self) -> Origin:
        self.server.repository(REPOSITORY, public=True)
        for _ in range(PATHS // 2):
            self.change()
        return self

    @property
    def url(self) -> str:
        return f"{self.server.url}/raw/{REPOSITORY}"

    def run(self, world: World) -> None:
        while not world.is_over:
            self.change(LONG if random.random() < 0.02 else random.choice(SIZES))
            world.done["upstream changed"] += 1
            gevent.sleep(random.uniform(0.3, 2.0))

    def change(self, size: int = 5_000) -> None:
        """One path, which may be new."""
        path, body = f"folder {random.randrange(4)}/file-{random.randrange(PATHS)}", os.urandom(size)
        self.known.setdefault(path, set()).add(sha256(body))
        answer = self.server.put(f"/raw/{REPOSITORY}/{quote(path)}", body)
        assert answer.status_code in (201, 204), answer.text
        self.now[path] = sha256(body)


class Follower:
    """A repository of the stormed server that follows the origin, and whoever reads it and lets it run often."""

    def __init__(self, world: World, origin: Origin, kind: str) -> None:
        self.world, self.origin, self.kind = world, origin, kind
        self.repository = f"storm-mirror-{kind}"
        self.line = Line(world)

    @property
    def _mirror(self) -> str:
        return f"/api/v1/repositories/{self.repository}/mirror"

    def open(self) -> None:
        server = self.world.server
        follow: dict[str, object] = {"source": "arkvory", "every_seconds": 60, "concurrency": 3}
        if self.kind == "proxy":
            settings = {"mutable_ttl": 1, "miss_ttl": 0}
            server.repository(self.repository, kind="proxy", public=True, upstream_url=self.origin.url, settings=settings)
        else:
            server.repository(self.repository, public=True)
            follow |= {"upstream_url": self.origin.url}
        answer = server.request("PUT", self._mirror, json=follow)
        assert answer.status_code == 201, answer.text

    def run(self) -> None:
        asked_at = time.monotonic()
        while not self.world.is_over:
            with self.world.busily():
                self.look_at(random.choice(list(self.origin.now)))
                if time.monotonic() > asked_at + 5:
                    asked_at = time.monotonic()
                    self._begin()
            gevent.sleep(random.random() * 0.3)

    def look_at(self, path: str, *, exactly: bool = False) -> bool:
        """What is served is what the upstream had at some time, or has now. False when nobody could tell."""
        there = path in self.origin.now
        answer = self.line.ask("GET", f"/raw/{self.repository}/{quote(path)}")
        self.world.done[f"mirror {self.kind} get"] += 1
        if answer is None or answer.is_later:
            return False
        right = {self.origin.now[path]} if exactly else self.origin.known[path]
        if answer.status == 200 and sha256(answer.body) in right:
            return True
        # A hosted one has what was copied.
        if answer.status != 404 or exactly or (there and self.kind == "proxy"):
            self.world.fault(f"mirror {self.kind}: {path} is answered by {answer.status} with {sha256(answer.body)[:8]}, not {right}")
        return True

    def _begin(self) -> bool:
        answer = self.line.ask("POST", f"{self._mirror}/run")
        if answer is not None and not answer.is_later and answer.status != 202:
            self.world.fault(f"mirror {self.kind}: a run was answered by {answer.status} {answer.body[:200]!r}")
        self.world.done[f"mirror {self.kind} asked to run"] += 1
        return answer is not None and answer.status == 202

    def is_through(self) -> bool:
        """Whether it has all that there is, after one more run; to be asked once nothing changes any more."""
        before = self._told()["round"]
        if not self._begin():
            return False
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            now = self._told()
            if now["state"] == "complete" and now["round"] > before:
                return True
            gevent.sleep(0.3)
        return False

    def _told(self) -> Any:
        return json.loads(self.world.server.get(self._mirror).text)

    def figures(self) -> str:
        told = self._told()
        return f"mirror {self.kind}: {told['round']} rounds, {told['files']} files copied with {told['bytes']} bytes, {told['counts']}"
