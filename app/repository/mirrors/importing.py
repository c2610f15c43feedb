"""How one file gets into a hosted repository: what the upstream has and the repository has not is published, by the rules of its format.

What somebody else published stays: only what the mirror itself brought is replaced by what the upstream has instead of it.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from app.access.identity import Caller
from app.cache.snapshots import Snapshot, read_snapshot
from app.database.engines import Database
from app.errors import AlreadyExists, Invalid, NotAllowedHere, NotFound, UpstreamUnfit
from app.repository.formats import write_policy
from app.repository.mirrors.copying import Chosen, copy_at
from app.repository.mirrors.guides import Guide, Item
from app.repository.mirrors.worklist import Copied, Work
from app.repository.parts import Begun, Kept, Parts
from app.repository.publishing import Conditions, Publisher, Session, Target
from app.repository.reading import Brought, check_online
from app.repository.writable import settings_for_writing
from app.upload.receiving import Expected, Received
from app.upstream.breaker import Line
from app.upstream.client import Answer, Client, Wanted
from app.upstream.upstream import Upstream

MIRROR = Caller(None, "mirror")


class Imports(Publisher):
    """Publishes for mirrors: nobody's right is asked, since who manages the repository set it; its policies are."""

    def _check_right(self, connection: Connection, target: Target, paths: Iterable[str | None]) -> tuple[Snapshot, Mapping[str, Any]]:
        snapshot = read_snapshot(connection, target.tenant, target.repository)
        check_online(snapshot)
        settings = settings_for_writing(connection, snapshot.id)
        if write_policy(snapshot.format, settings) == "read_only":
            raise NotAllowedHere(f"repository {snapshot.name!r} is read only")
        return snapshot, settings


@dataclass(frozen=True)
class Source:
    """The upstream of a hosted repository, and how it is asked."""

    upstream: Upstream
    client: Client
    line: Line

    def get(self, wanted: Wanted) -> contextlib.AbstractContextManager[Answer]:
        return self.client.get(self.upstream, wanted, self.line)

    def more(self, wanted: Wanted) -> contextlib.AbstractContextManager[Answer]:
        return self.client.more(self.upstream, wanted, self.line)


@dataclass(frozen=True)
class _Arrived:
    """An answer; `begun` null: it comes as a whole."""

    answer: Answer
    wanted: Wanted
    begun: Begun | None = None


@dataclass(frozen=True)
class Import(Chosen):
    """A hosted repository: trail and copies of one run."""

    database: Database
    imports: Imports
    source: Source
    guide: Guide

    @property
    def url(self) -> str:
        return self.source.upstream.url

    def document(self, path: str, ways: Sequence[Wanted], at_most: int) -> Brought:
        """In a file without a name."""
        for wanted in ways:
            with self.source.get(wanted) as answer:
                if not answer.absent:
                    return _taken(answer, path, at_most)
        raise NotFound(f"the upstream has no {path!r}")

    def ask(self, wanted: Wanted, at_most: int) -> bytes | None:
        with self.source.get(wanted) as answer:
            if answer.absent:
                return None
            body = answer.whole(at_most)
        if body is None:
            raise UpstreamUnfit(f"the upstream's answer has more than {at_most} bytes")
        return body

    def require_open(self) -> None:
        check_online(self.snapshot)

    def copy(self, work: Work, kept: Kept) -> Copied:
        item, snapshot = work.item, self.snapshot
        here = copy_at(self.database, snapshot.id, item.path)
        if here is not None and item.digest == f"sha256:{here[0]}":
            return Copied(*here, etag=work.etag, last_modified=work.last_modified)
        if here is not None and here[0] != work.sha256:
            raise AlreadyExists(f"{item.path!r} is here already, from somebody else, and stays as it is")
        conditions = _conditions(here)
        self.imports.may_publish(self._target(snapshot), item.path, conditions)
        parts = Parts(self.imports.sessions, kept, snapshot.id, item.path)
        with self._answered(parts, _wanted(work, again=here is not None)) as arrived:
            answer = arrived.answer
            if answer.absent:
                raise NotFound(f"the upstream has no {item.path!r}")
            if answer.unchanged and here is not None:
                return Copied(*here, etag=work.etag, last_modified=work.last_modified)
            with Session(self.imports, self._target(snapshot), snapshot, contextlib.ExitStack()) as session:
                received = self._receive(session, parts, arrived, item)
                told = Copied(received.sha256, received.size, received.size, answer.etag, answer.last_modified)
                if here is None or received.sha256 != here[0]:
                    new = self.guide.publishable(self, session, item, received, answer.head)
                    session.publish(new.files, conditions, new.package)
        return told

    def _target(self, snapshot: Snapshot) -> Target:
        return Target(snapshot.format, snapshot.name, MIRROR, snapshot.tenant)

    @contextlib.contextmanager
    def _answered(self, parts: Parts, whole: Wanted) -> Iterator[_Arrived]:
        if parts.worthwhile:
            begun = parts.begun()
            wanted = parts.wanted(whole, begun)
            with self.source.get(wanted) as answer:
                if parts.fits(answer, begun):
                    in_parts = answer.part is not None and not answer.part.is_whole
                    if not in_parts:
                        parts.give_up(begun)
                    yield _Arrived(answer, wanted, begun if in_parts else None)
                    return
            parts.give_up(begun)
        with self.source.get(whole) as answer:
            yield _Arrived(answer, whole)

    def _receive(self, session: Session, parts: Parts, arrived: _Arrived, item: Item) -> Received:
        """Raises DigestMismatch and Invalid for other bytes than the list told.

        Room is made for what the answer announces: a list that says too much takes it from nobody.
        """
        answer = arrived.answer
        _check_length(item, answer.size, whole=True)
        algorithm, _, digest = (item.digest or "").partition(":")
        expected = Expected({algorithm: digest} if digest else {}, answer.size)
        if arrived.begun is None:
            receiver = session.receiver(expected, ("md5", "sha1"), at_most=item.size or None, always=self.guide.checksums)
            pieces = iter(answer.read, b"")
        else:
            receiver = parts.receiver(session, arrived.begun, answer, expected, self.guide.checksums)
            pieces = iter(parts.pieces(answer, arrived.wanted, receiver, self.source.more))
        for piece in pieces:
            receiver.feed(piece)
            _check_length(item, receiver.size, whole=False)
        _check_length(item, receiver.size, whole=True)
        return receiver.finish()


def _check_length(item: Item, size: int | None, *, whole: bool) -> None:
    """With what the list told, so far or at the end. Raises Invalid."""
    if item.size is not None and size is not None and (size > item.size or (whole and size < item.size)):
        raise Invalid(f"the upstream's list says that {item.path!r} has {item.size} bytes, and the upstream sends {size}")


def _conditions(here: tuple[str, int] | None) -> Conditions:
    """That nobody publishes there meanwhile."""
    return Conditions(if_none_match=frozenset({"*"})) if here is None else Conditions(if_match=frozenset({here[0]}))


def _wanted(work: Work, *, again: bool) -> Wanted:
    """With the validators of what was copied, where that is still here."""
    where = work.item.address or work.item.path
    return Wanted(where, work.etag, work.last_modified) if again else Wanted(where)


def _taken(answer: Answer, path: str, at_most: int) -> Brought:
    with tempfile.TemporaryFile() as file:
        while piece := answer.read():
            file.write(piece)
            if file.tell() > at_most:
                raise UpstreamUnfit(f"the upstream's {path!r} has more than {at_most} bytes")
        file.flush()
        return Brought(os.dup(file.fileno()), file.tell(), answer.head.url)
