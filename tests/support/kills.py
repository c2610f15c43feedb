"""Ending a server, or its database, at a chosen step of a request, and looking at what is left (docs/kills.md)."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import gevent
import requests
from sqlalchemy import create_engine, text

from app.cluster.ownership import LOST_AFTER_SECONDS
from app.database import embedded
from app.database.locks import OWNERSHIP
from tests.support.database import start, take_down
from tests.support.house import House, sha256
from tests.support.proxy import Wire
from tests.support.server import ROOT, Server

MIB = 1024 * 1024
# Nothing happens by itself while the steps are watched: what is left is looked at before it is cleaned up.
QUIET = {
    "ARKVORY_CLEANUP_SECONDS": "100000",
    "ARKVORY_UPLOAD_LEASE_SECONDS": "400000",
    "ARKVORY_DISK_RESERVE_BYTES": "0",
    "ARKVORY_MAX_UPLOADS": "32",
    "ARKVORY_MAX_UPLOADS_PER_KEY": "32",
    "ARKVORY_ACCESS_LOG": "false",
    "ARKVORY_LEAST_PART_BYTES": "4",
}
PATH = "target"
BREAKS = "breaks"
# These may be open in one request at a time: the others would wait for it.
ALONE = "Admission."


class Stand(House):
    """A server whose steps are watched, looked at from outside over connections of its own; `wire`: what lies between it and PostgreSQL."""

    def __init__(self, folder: Path, url: str, *, through_a_wire: bool = False) -> None:
        self.url = url
        self.wire = Wire(url) if through_a_wire else None
        self.steps = folder / "steps"
        self.steps.mkdir(parents=True)
        environment = {"STEPS_FOLDER": str(self.steps), "PYTHONPATH": str(ROOT)} | QUIET
        address = self.wire.url if self.wire else url
        self.server = Server(folder, environment, database_url=address, configuration="tests/support/stepped.py")
        self.folder = self.server.data
        self._engine = create_engine(url, isolation_level="AUTOCOMMIT", pool_pre_ping=True)
        self._names = itertools.count(1)
        self._owned_at = 0.0

    def start(self) -> Stand:
        """With a token from then on: a new process would take its time for the password."""
        self.server.start()
        made = self.server.post("/api/v1/tokens", json={"name": "stand", "permissions": ["read", "write", "delete", "manage"]})
        self.server.password = made.json()["token"]
        return self

    def close(self) -> None:
        self.server.close()
        self._engine.dispose()
        if self.wire:
            self.wire.close()

    def rows(self, statement: str, **values: Any) -> list[Any]:
        with self._engine.connect() as connection:
            result = connection.execute(text(statement), values)
            return list(result) if result.returns_rows else []

    def repository(self, name: str = "", **_: Any) -> int:
        """A public one; its identifier."""
        self.server.repository(name, public=True)
        return int(self.value("select id from arkvory_repositories where name = :name and deleted_at is null", name=name))

    def new_name(self) -> str:
        return f"r{next(self._names)}"

    def kill(self, *, master: bool) -> None:
        """The worker, in whose place the master puts another, or both at once."""
        if master:
            self.server.kill9()
            self.server.start()
            return
        (worker,) = self.server.workers()
        os.kill(worker, signal.SIGKILL)
        with gevent.Timeout(60):
            while self.server.workers() in ([], [worker]):
                gevent.sleep(0.01)
        self.server.wait_until_ready()

    def crash(self, postgres: embedded.EmbeddedPostgres, how: signal.Signals) -> None:
        """PostgreSQL, and it comes back. Not so often that the server never finds it there, and gives its ownership up."""
        self._wait_for_owner()
        take_down(postgres, how)
        start(postgres.data)

    def _wait_for_owner(self) -> None:
        owned = "select 1 from pg_locks where locktype = 'advisory' and classid = :c and objid = :o and granted"
        while time.monotonic() - self._owned_at > LOST_AFTER_SECONDS / 2:
            if self.rows(owned, c=OWNERSHIP[0], o=OWNERSHIP[1]):
                self._owned_at = time.monotonic()
            gevent.sleep(0.02)

    # -- time

    def expire(self, repository_ids: Sequence[int] | None = None) -> None:
        """The lease of uploads that nobody answers for and all graces have run out."""
        which = {"ids": list(repository_ids or [])}
        of_these = "repository_id = any(:ids)" if repository_ids else "true"
        self.rows(f"update arkvory_uploads set lease_until = now() - interval '1 s' where status = 'open' and {of_these}", **which)
        self.rows(f"update arkvory_uploads set changed_at = changed_at - interval '2 h' where status = 'garbage' and {of_these}", **which)
        if not repository_ids:
            self.rows(
                "update arkvory_blobs set candidate_at = candidate_at - interval '2 h', last_used_at = last_used_at - interval '2 h' "
                "where candidate_at is not null"
            )

    def clean_up(self) -> None:
        """All that cleanup has to do, with the time in between; a second run for what the first one freed."""
        for _ in range(2):
            self.expire()
            answer = self.server.post("/api/v1/cleanup")
            assert answer.status_code == 200, answer.text

    def a_body_for_a_new_folder(self, size: int = 60) -> bytes:
        """Of whose address no folder is there yet, so that the steps are always the same."""
        while True:
            body = os.urandom(16).hex().encode().ljust(size, b".")
            if not (self.folder / "blobs" / "sha256" / sha256(body)[:2] / sha256(body)[2:4]).exists():
                return body


@dataclass
class Scene:
    """One request in a repository of its own, and what it is about; the bytes at its path before it and after it."""

    stand: Stand
    name: str = ""
    repository_id: int = 0
    old: bytes | None = None
    new: bytes | None = None
    epoch: int = 0
    answer: str = ""
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name = self.stand.new_name()
        self.repository_id = self.stand.repository(self.name)
        self.prepare()
        self.epoch = self.content_epoch()

    @property
    def url(self) -> str:
        return f"/raw/{self.name}/{PATH}"

    # -- what an operation is: overridden

    def prepare(self) -> None:
        """Make what is there before."""

    def send(self, **headers: str) -> requests.Response:
        """The request."""
        raise NotImplementedError

    known = (201, 204)

    # -- looking

    def content_epoch(self) -> int:
        return int(self.stand.value("select content_epoch from arkvory_repositories where id = :id", id=self.repository_id))

    def digest(self) -> str | None:
        found = self.stand.rows(
            "select digest from arkvory_artifacts a join arkvory_blobs b on b.id = a.blob_id where a.repository_id = :id and path = :path",
            id=self.repository_id, path=PATH,
        )  # fmt: skip
        return found[0].digest if found else None

    def content(self) -> str:
        """What the path points at, in a word; anything else than before or after is a fault."""
        words = {self._digest_of(self.old): "old", self._digest_of(self.new): "new"}
        return "none" if (digest := self.digest()) is None else words[digest]

    @staticmethod
    def _digest_of(body: bytes | None) -> str | None:
        return None if body is None else sha256(body)

    def is_through(self) -> bool:
        """Whether what was asked for is what is."""
        return self.digest() == self._digest_of(self.new)

    def left(self) -> str:
        """Letters for what a cleanup has still to do here (docs/kills.md)."""
        return "".join(sorted(set(self._letters())))

    def _letters(self) -> Iterator[str]:
        stand = self.stand
        uploads = stand.rows("select id, status from arkvory_uploads where repository_id = :id", id=self.repository_id)
        states = {each.status for each in uploads}
        yield from ("U" if "open" in states else "", "G" if "garbage" in states else "")
        mine = tuple(str(each.id) for each in uploads)
        yield "T" if any(path.name.startswith(mine) for path in stand.temporary()) else ""
        for body in self.bodies():
            yield from self._letters_of_blob(sha256(body))

    def bodies(self) -> list[bytes]:
        return [each for each in (self.old, self.new) if each is not None]

    def _letters_of_blob(self, digest: str) -> Iterator[str]:
        row = self.stand.rows("select id, status, candidate_at from arkvory_blobs where digest = :digest", digest=digest)
        if row and (row[0].status != "live" or row[0].candidate_at is not None):
            yield {"placing": "P", "live": "B", "deleting": "D"}[row[0].status]
            address = self.stand.folder / "blobs" / "sha256" / digest[:2] / digest[2:4] / f"{digest}-{row[0].id}"
            yield "F" if row[0].status != "live" and address.exists() else ""

    # -- what must be true

    def expect(self, truth: bool, words: str) -> None:
        if not truth:
            self.problems.append(words)

    def assert_whole(self) -> None:
        """W1, W2: old or new and never a mix; success means new; the epoch moved exactly when the content did."""
        content, served = self.content(), self.stand.server.get(self.url, auth=None)
        body = {"old": self.old, "new": self.new, "none": None}[content]
        self.expect((served.status_code == 200) == (body is not None), f"{content} is answered by {served.status_code}")
        self.expect(body is None or served.content == body, "other bytes are served than those that are there")
        self.expect(not self.answer.startswith("2") or self.is_through(), f"{self.answer} was answered, and {content} is there")
        self.expect(self.content_epoch() == self.epoch + self.is_through(), "the epoch moved without a change, or did not with one")

    def repeat(self) -> None:
        """W4: the same request once more is harmless, or gets the refusal that its client knows."""
        answer = self.send()
        self.expect(answer.status_code in self.known, f"the same again is answered by {answer.status_code}: {answer.text}")
        self.expect(self.is_through(), "the same again did not do it")

    def finish(self) -> None:
        """What is to be seen at the very end."""


class Publish(Scene):
    """A new path, a body whose length is not told."""

    known = (201, 204)

    def prepare(self) -> None:
        self.new = self.stand.a_body_for_a_new_folder(MIB + 100)

    def send(self, **headers: str) -> requests.Response:
        assert self.new is not None
        return self.stand.server.put(self.url, iter([self.new[:MIB], self.new[MIB:]]), headers=headers)


class Overwrite(Scene):
    """A path that is there, a body of known length."""

    known = (204,)

    def prepare(self) -> None:
        self.old, self.new = self.stand.a_body_for_a_new_folder(), self.stand.a_body_for_a_new_folder()
        assert self.stand.server.put(self.url, self.old).status_code == 201

    def send(self, **headers: str) -> requests.Response:
        return self.stand.server.put(self.url, self.new, headers=headers)


class Delete(Scene):
    """An artifact that is held (W5): it is seen through no door, and the hold is there when it comes back."""

    known = (204, 404)

    def prepare(self) -> None:
        self.old = self.stand.a_body_for_a_new_folder()
        assert self.stand.server.put(self.url, self.old).status_code == 201
        held = self.stand.server.put(f"{self._artifact}/quarantine", json={"reason": "looked at", "trust": "unknown"})
        assert held.ok, held.text

    @property
    def _artifact(self) -> str:
        return f"/api/v1/repositories/{self.name}/artifacts/{PATH}"

    def send(self, **headers: str) -> requests.Response:
        return self.stand.server.delete(self.url, headers=headers)

    def assert_whole(self) -> None:
        served = self.stand.server.get(self.url, auth=None)
        self.expect(served.status_code in {403, 404}, f"what is held is answered by {served.status_code}")
        self.expect(bool(self._holds()), "the hold is gone")
        self.expect(not self.answer.startswith("2") or self.is_through(), f"{self.answer} was answered, and it is there")
        self.expect(self.content_epoch() == self.epoch + self.is_through(), "the epoch moved without a change, or did not with one")

    def _holds(self) -> list[Any]:
        found = "select reason from arkvory_holds where repository_id = :id and path = :path"
        return self.stand.rows(found, id=self.repository_id, path=PATH)

    def finish(self) -> None:
        """W5: stored again it is still held, and whole when it is released."""
        server = self.stand.server
        self.expect(server.put(self.url, self.old).status_code == 201, "it cannot be stored again")
        self.expect(server.get(self.url, auth=None).status_code == 403, "stored again it is not held")
        self.expect(server.delete(f"{self._artifact}/quarantine").ok, "it cannot be released")
        self.expect(server.get(self.url, auth=None).content == self.old, "released it is not whole")


class Clean(Scene):
    """One of each that there is to clean up, beside a path that stays.

    An abandoned upload with its file, garbage whose blob is still in its grace, a blob that was placed and never published, a deleted
    repository.
    """

    known = (200,)
    placed = swept = b""

    def prepare(self) -> None:
        stand = self.stand
        self.old = self.new = stand.a_body_for_a_new_folder()
        assert stand.server.put(self.url, self.old).status_code == 201
        self.gone = stand.a_body_for_a_new_folder()
        other = f"/raw/{self.name}/gone"
        assert stand.server.put(other, self.gone).status_code == 201
        assert stand.server.delete(other).status_code == 204
        self._abandon()
        self._leave_placed()
        self._delete_repository()
        stand.expire([self.repository_id])
        stand.rows(
            "update arkvory_blobs set candidate_at = now() - interval '2 h', last_used_at = now() - interval '2 h' where digest = :digest",
            digest=sha256(self.placed),
        )

    def _abandon(self) -> None:
        upload = uuid4()
        self.stand.rows(
            "insert into arkvory_uploads (id, repository_id, status, bytes, lease_until) "
            "values (cast(:id as uuid), :repository, 'open', 7, now())",
            id=str(upload), repository=self.repository_id,
        )  # fmt: skip
        (self.stand.folder / "blobs" / "incoming" / str(upload)).write_bytes(b"half of")

    def _leave_placed(self) -> None:
        self.placed = self.stand.a_body_for_a_new_folder()
        digest = sha256(self.placed)
        row = self.stand.value(
            "insert into arkvory_blobs (digest, size, status, candidate_at) values (:digest, :size, 'placing', now()) returning id",
            digest=digest, size=len(self.placed),
        )  # fmt: skip
        address = self.stand.folder / "blobs" / "sha256" / digest[:2] / digest[2:4] / f"{digest}-{row}"
        address.parent.mkdir(parents=True)
        address.write_bytes(self.placed)

    def _delete_repository(self) -> None:
        self.swept = self.stand.a_body_for_a_new_folder()
        name = f"{self.name}-swept"
        self._swept_id = self.stand.repository(name)
        assert self.stand.server.put(f"/raw/{name}/file", self.swept).status_code == 201
        assert self.stand.server.delete(f"/api/v1/repositories/{name}").status_code == 204

    def bodies(self) -> list[bytes]:
        return [self.gone, self.placed, self.swept]

    def _letters(self) -> Iterator[str]:
        yield from super()._letters()
        yield "R" if self.stand.rows("select 1 from arkvory_repositories where id = :id", id=self._swept_id) else ""

    def send(self, **headers: str) -> requests.Response:
        return self.stand.server.post("/api/v1/cleanup", headers=headers)

    def assert_whole(self) -> None:
        """Whatever happens to a cleanup, what is published stays as it is."""
        self.expect(self.stand.server.get(self.url, auth=None).content == self.old, "cleanup took what is published")
        self.expect(self.content_epoch() == self.epoch, "the epoch moved without a change")


OPERATIONS: dict[str, type[Scene]] = {"publish": Publish, "overwrite": Overwrite, "delete": Delete, "cleanup": Clean}


# -- striking


@dataclass
class Stopped:
    """A scene whose request stands right before its step."""

    scene: Scene
    step: str
    file: Path
    request: gevent.Greenlet

    def go(self) -> None:
        self.file.with_suffix(".go").touch()
        answer = self.request.get(timeout=90)
        self.scene.answer = BREAKS if answer is None else str(answer.status_code)


def record(scene: Scene) -> list[str]:
    """The steps of a request, in their order."""
    stand = scene.stand
    answer = scene.send(**{"X-Steps": scene.name})
    assert answer.status_code in scene.known, answer.text
    return (stand.steps / f"{scene.name}.steps").read_text().splitlines()


def stop_at(scene: Scene, step: str) -> Stopped:
    """Send the request, and wait until it stands there. Fails when it never does."""

    def send() -> requests.Response | None:
        with contextlib.suppress(requests.ConnectionError, requests.exceptions.ChunkedEncodingError):
            return scene.send(**{"X-Steps": scene.name, "X-Stop": step})
        return None

    stopped = Stopped(scene, step, scene.stand.steps / scene.name, gevent.spawn(send))
    with gevent.Timeout(60, AssertionError(f"nobody came to: {step}")):
        while not stopped.file.with_suffix(".there").exists():
            assert not stopped.request.ready(), f"it was through before it came to: {step}"
            gevent.sleep(0.003)
    return stopped


def lose_at(scene: Scene, step: str, how: str) -> Scene:
    """Let the wire break at the COMMIT that is this step."""
    wire = scene.stand.wire
    assert wire is not None
    stopped = stop_at(scene, step)
    wire.at_commit = how
    stopped.go()
    assert wire.at_commit is None, "no COMMIT came"
    return scene


# Operations and steps.
Wave = Sequence[tuple[str, str]]


def waves(steps: dict[str, list[str]], most: int = 4) -> list[Wave]:
    """What is to be struck together, each in a repository of its own: they hold nothing that another one needs."""
    alone = [(name, step) for name in steps for step in steps[name] if step.startswith(ALONE)]
    cleanups = [("cleanup", step) for step in steps.get("cleanup", [])]
    others = [(name, step) for name in steps if name != "cleanup" for step in steps[name] if not step.startswith(ALONE)]
    count = max(len(alone), len(cleanups), -(-len(others) // most))
    made = [others[number::count] for number in range(count)]
    for number, each in enumerate(cleanups):
        made[number].append(each)
    # Last: while it stands there, no other upload begins.
    for number, each in enumerate(alone):
        made[-1 - number].append(each)
    return list(made)


def outcome(scene: Scene) -> str:
    """A cell of the table: what the client hears, what is at the path, what is left."""
    return ", ".join([scene.answer, *([] if isinstance(scene, Clean) else [scene.content()]), scene.left() or "nothing"])


def look_after(scenes: Sequence[Scene], *, clean_first: bool) -> None:
    """After the end of somebody: everything that must be true at once, after a cleanup, and after the same request again."""
    stand = scenes[0].stand
    for scene in scenes:
        scene.assert_whole()
    stand.assert_counted()
    stand.assert_published_is_there()
    stand.assert_rows_and_files()
    if clean_first:
        stand.clean_up()
        for scene in scenes:
            scene.assert_whole()
        assert_clean(stand)
    for scene in scenes:
        scene.repeat()
    stand.clean_up()
    assert_clean(stand)
    for scene in scenes:
        scene.finish()


def assert_clean(stand: Stand) -> None:
    """W1: nothing is left, and everything is counted right."""
    stand.assert_counted()
    stand.assert_published_is_there()
    stand.assert_no_strays()
    left = stand.rows("select status, count(*) from arkvory_uploads where status in ('open', 'garbage') group by 1")
    assert not left, left
    assert not stand.rows("select 1 from arkvory_blobs where status <> 'live'")


def strike(stand: Stand, wave: Wave, blow: Callable[[], None]) -> list[Scene]:
    """Bring each request to its step, strike, and let them go on."""
    scenes = [OPERATIONS[name](stand) for name, _ in wave]
    stopped = [stop_at(scene, step) for scene, (_, step) in zip(scenes, wave, strict=True)]
    blow()
    for each in stopped:
        each.go()
    stand.server.wait_until_ready()
    return scenes
