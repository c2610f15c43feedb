"""Mirrors in a house: what is followed, and one run of it."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import gevent
import pytest

from app.errors import ArkvoryError, Unavailable
from app.protocols.maven.mirroring import Modules
from app.protocols.maven.upstream import Upstreams
from app.protocols.npm import upstream as npm
from app.protocols.npm.mirroring import Packages
from app.protocols.oci import upstream as oci
from app.protocols.oci.mirroring import Images
from app.protocols.pypi.mirroring import Projects
from app.protocols.pypi.upstream import PythonIndexes
from app.protocols.raw.mirroring import Folders
from app.repository.mirrors import run
from app.repository.mirrors.follower import Standing
from app.repository.mirrors.settings import Mirror, MirrorSettings
from tests.conftest import MakeHouse
from tests.support.house import ADMIN, House
from tests.support.upstreams import FakeUpstream

LAST_SESSION_SECONDS = 3.0


class Nobody:
    """Takes no mirror away, and hears nothing."""

    def check(self) -> None:
        pass

    def tell(self, words: str) -> None:
        pass


class Following:
    """A house whose repositories may follow something."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.runs: list[gevent.Greenlet] = []
        self.said = ""
        house.parts.mirrors.guides |= {"raw": Folders(), "maven": Modules(), "npm": Packages(), "pypi": Projects(), "oci": Images()}
        dialects = {"maven": Upstreams(), "npm": npm.Registry(), "pypi": PythonIndexes(), "oci": oci.Registry()}
        house.parts.fetches.dialects |= dialects

    def follow(self, repository: str = "files", **settings: Any) -> Mirror:
        return self.house.parts.mirrors.put(ADMIN, repository, MirrorSettings(**settings))

    def show(self, repository: str = "files") -> Mirror:
        return self.house.parts.mirrors.show(ADMIN, repository)

    def begin(self) -> None:
        """All of them, as their jobs would."""
        with self.house.parts.database.read() as connection:
            found = self.house.parts.mirroring.look(connection)
        self.runs = [gevent.spawn(self._run, each) for each in found]

    def _run(self, mirror: Standing) -> None:
        """A job's failure is the jobs' to note, and they try again while the session of the run before is ending."""
        end = time.monotonic() + LAST_SESSION_SECONDS
        with contextlib.suppress(ArkvoryError):
            while True:
                try:
                    self.said = self.house.parts.mirroring.follow(mirror.id, mirror.repository_id, Nobody())
                    return
                except Unavailable as error:
                    if "its session ends soon" not in error.message or time.monotonic() > end:
                        raise
                    gevent.sleep(0.05)

    def run(self, repository: str = "files", seconds: float = 60.0) -> Mirror:
        """One run; the mirror after it."""
        self.begin()
        self.wait(seconds)
        return self.show(repository)

    def wait(self, seconds: float = 60.0) -> None:
        """Until nothing runs."""
        done = gevent.joinall(self.runs, timeout=seconds)
        assert len(done) == len(self.runs), f"a mirror still runs after {seconds:g} s"

    def stop(self) -> None:
        """As at the end of the process."""
        gevent.killall(self.runs)

    def states(self, repository: str = "files") -> dict[str, str]:
        """Of files, by path."""
        rows = self.house.rows(
            "select i.path, i.state from arkvory_mirror_items i join arkvory_mirrors m on m.id = i.mirror_id "
            "join arkvory_repositories r on r.id = m.repository_id where r.name = :name and i.kind = 'file' order by i.path",
            name=repository,
        )
        return {row.path: row.state for row in rows}


@pytest.fixture
def following(make_house: MakeHouse) -> Following:
    return Following(make_house())


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "FIRST_WAIT_SECONDS", 0.02)


@pytest.fixture
def proxied(following: Following, upstream: FakeUpstream) -> Following:
    following.house.repository(kind="proxy", upstream_url=upstream.url, settings={"mutable_ttl": 0})
    return following
