"""How one file gets into a hosted repository: what the upstream has and the repository has not is published, by the rules of its format.

What somebody else published stays: only what the mirror itself brought is replaced by what the upstream has instead of it.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from sqlalchemy import Connection

from app.access.identity import Caller
from app.cache.snapshots import Snapshot, read_snapshot
from app.database.engines import Database
from app.database.statements import text
from app.errors import AlreadyExists, Invalid, NotAllowedHere, NotFound, UpstreamUnfit
from app.repository.deleting import PackageState, amend_package, find_package
from app.repository.formats import is_fixed, write_policy
from app.repository.mirrors.copying import Chosen, Here, Refused, here_at, refusing
from app.repository.mirrors.documents import Documents
from app.repository.mirrors.guides import Amendment, Guide, Index, Item
from app.repository.mirrors.rereading import Reading
from app.repository.mirrors.worklist import Copied, Work, note_brought
from app.repository.parts import Begun, Kept, Parts
from app.repository.publishing import Conditions, KnownBlob, NewFile, Publisher, Session, Target
from app.repository.reading import Brought, check_online
from app.repository.writable import settings_for_writing
from app.upload.receiving import Expected, Received
from app.upstream.breaker import Line
from app.upstream.client import Answer, Arrived, Client, Wanted
from app.upstream.upstream import Upstream

MIRROR = Caller(None, "mirror")
_PIECE = 1024 * 1024
_NOTHING = Arrived("", None, {})


class Imports(Publisher):
    """Publishes for mirrors: nobody's right is asked, since who manages the repository set it; its policies are."""

    def _check_right(self, connection: Connection, target: Target, paths: Iterable[str | None]) -> tuple[Snapshot, Mapping[str, Any]]:
        snapshot = read_snapshot(connection, target.tenant, target.repository)
        check_online(snapshot)
        settings = settings_for_writing(connection, snapshot.id)
        if write_policy(snapshot.format, settings) == "read_only":
            raise NotAllowedHere(f"repository {snapshot.name!r} is read only")
        return snapshot, settings

    def _remember(self, connection: Connection, snapshot: Snapshot, files: Sequence[NewFile]) -> None:
        """That it was the mirror who brought them, whatever becomes of its run."""
        first = files[0].received
        digests = {each.path: each.received.sha256 for each in files}
        note_brought(connection, snapshot.id, digests, first.size if isinstance(first, Received) else 0)

    def amend(self, target: Target, snapshot: Snapshot, package: str, told: Callable[[], Amendment]) -> None:
        """Where something else is said of the package than was told. Of one that is not here nothing is. Raises what publishing raises."""
        state = PackageState(package)
        with contextlib.suppress(NotFound):
            with self._database.read() as connection:
                package_id = find_package(connection, snapshot.id, state).id
            amendment = told()
            with self._database.read() as connection:
                due = amendment.is_due(connection, package_id)
            if due:
                self._amend(target, snapshot, state, amendment)

    def _amend(self, target: Target, snapshot: Snapshot, state: PackageState, amendment: Amendment) -> None:
        with self._transactions.begin(snapshot.id) as transaction:
            now, _ = self._check_right(transaction.connection, target, ())
            if now.id == snapshot.id:
                amend_package(transaction, now.id, state, amendment.make)


@dataclass(frozen=True)
class Source:
    """The upstream of a hosted repository, and how it is asked; `held`: by the connection that somebody holds already."""

    upstream: Upstream
    client: Client
    line: Line
    held: bool = False

    def get(self, wanted: Wanted) -> contextlib.AbstractContextManager[Answer]:
        return self.more(wanted) if self.held else self.client.get(self.upstream, wanted, self.line)

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
    documents: Documents
    reading: Reading | None = None

    @property
    def url(self) -> str:
        return self.source.upstream.url

    def read_by(self, reading: Reading) -> Import:
        return replace(self, reading=reading)

    def said_of(self, package: str | None) -> int:
        if package is None:
            return 0
        with self.database.read() as connection:
            return connection.execute(_REVISION, {"id": self.snapshot.id, "package": package}).scalar() or 0

    def document(self, index: Index) -> Brought:
        if self.reading is not None:
            if index.alone and not self.documents.has(index.path):
                return self._read(index, self.reading)
            self.reading.take_in()
        return self.documents.open(index.path, lambda: self._looked_up(index))

    def ask(self, wanted: Wanted, at_most: int) -> bytes | None:
        if self.reading is not None:
            self.reading.take_in()
        with self.source.get(wanted) as answer:
            return self._whole(answer, at_most)

    def ask_list(self, wanted: Wanted, at_most: int) -> bytes | None:
        if self.reading is None:
            return self.ask(wanted, at_most)
        with self.source.get(self.reading.asked(wanted)) as answer:
            self.reading.hear(answer)
            return self._whole(answer, at_most)

    def _whole(self, answer: Answer, at_most: int) -> bytes | None:
        """Null for absence. Raises UpstreamUnfit for more."""
        if answer.absent:
            return None
        if self.reading is not None:
            self.reading.watch(answer, at_most)
        body = answer.whole(at_most)
        if body is None:
            raise UpstreamUnfit(f"the upstream's answer has more than {at_most} bytes")
        return body

    def amend(self, package: str, told: Callable[[], Amendment]) -> None:
        snapshot = self.snapshot
        self.imports.amend(self._target(snapshot), snapshot, package, told)

    def require_open(self) -> None:
        check_online(self.snapshot)

    def copy(self, work: Work, kept: Kept) -> Copied:
        item, snapshot = work.item, self.snapshot
        here = here_at(self.database, snapshot.id, item.path)
        if here is not None and here.is_told(item.digest):
            return _as_it_was(work, here)
        if here is not None and here.sha256 != work.sha256:
            raise AlreadyExists(f"{item.path!r} is here already, from somebody else, and stays as it is")
        self.imports.may_publish(self._target(snapshot), item.path, _conditions(here))
        return self._linked(item, here) or self._brought(work, kept, here)

    def _target(self, snapshot: Snapshot) -> Target:
        return Target(snapshot.format, snapshot.name, MIRROR, snapshot.tenant)

    @contextlib.contextmanager
    def _session(self) -> Iterator[Session]:
        snapshot = self.snapshot
        with Session(self.imports, self._target(snapshot), snapshot, contextlib.ExitStack()) as session:
            yield session

    # -- what is at hand

    def _linked(self, item: Item, here: Here | None) -> Copied | None:
        """Null where the repository has no such bytes at another path, or has them no more."""
        by_link = self.guide.by_link(item.path)
        found = None if by_link is None else self._elsewhere(item.digest or "")
        if by_link is None or found is None:
            return None
        try:
            with self._session() as session:
                (linked,) = session.link([found])
                new = by_link(linked)
                session.publish(new.files, _conditions(here), new.package)
                return Copied(found.sha256, found.size, received=0, counted=session.published)
        except NotFound:
            return None

    def _elsewhere(self, digest: str) -> KnownBlob | None:
        with self.database.read() as connection:
            row = connection.execute(_ELSEWHERE, {"id": self.snapshot.id, "digest": digest.removeprefix("sha256:")}).first()
        return None if row is None else KnownBlob(*row)

    def _stored(self, path: str) -> Brought | None:
        """What the repository itself has at a path that names its bytes."""
        snapshot = self.snapshot
        if not is_fixed(snapshot.format, path):
            return None
        with self.database.read() as connection:
            row = connection.execute(_BLOB, {"id": snapshot.id, "path": path}).first()
        if row is None:
            return None
        try:
            blob = self.imports.store.open(row.digest, row.id)
        except FileNotFoundError:
            return None
        return Brought(blob.fd, blob.size)

    # -- documents

    def _read(self, index: Index, reading: Reading) -> Brought:
        """What the list that is read is made of; files find it at hand. Raises NotFound, and Unchanged."""
        for wanted in index.ways:
            found = self._fetched(index, reading.asked(wanted))
            if found is not None:
                self.documents.keep_too(index.path, found)
                return found
        raise NotFound(f"the upstream has no {index.path!r}")

    def _looked_up(self, index: Index) -> Brought:
        """Raises NotFound."""
        stored = self._stored(index.path)
        if stored is not None:
            return stored
        for wanted in index.ways:
            found = self._by_name(index, wanted) or self._fetched(index, wanted)
            if found is not None:
                return found
        raise NotFound(f"the upstream has no {index.path!r}")

    def _by_name(self, index: Index, wanted: Wanted) -> Brought | None:
        """What is at hand, by the path that the upstream's head tells."""
        if index.names is None:
            return None
        with self.source.get(replace(wanted, method="HEAD")) as answer:
            path = None if answer.absent or answer.unsaid else index.names(answer.head)
        return None if path is None else self.documents.known(path) or self._stored(path)

    def _fetched(self, index: Index, wanted: Wanted) -> Brought | None:
        """In a file without a name; null where the upstream has no such thing."""
        with tempfile.NamedTemporaryFile() as file:
            arrived = self._pages(index, wanted, file)
            if arrived is None:
                return None
            made = _remade(index, file)
        brought = Brought(made, os.fstat(made).st_size, arrived.url)
        path = None if index.names is None else index.names(arrived)
        if path is not None:
            self.documents.keep_too(path, brought)
        return brought

    def _pages(self, index: Index, wanted: Wanted, file: IO[bytes]) -> Arrived | None:
        """All of them, each in a line; the head of the first."""
        first: Arrived | None = None
        while True:
            with self.source.get(wanted) as answer:
                self._hear(index, answer)
                if answer.absent and first is None:
                    return None
                if answer.absent:
                    raise UpstreamUnfit(f"the upstream's list {index.path!r} leads to a page that is not there")
                if first is not None:
                    file.write(b"\n")
                _take(answer, index, file)
                head = answer.head
            first = first or head
            following = None if index.further is None else index.further(head)
            if following is None:
                file.flush()
                return first
            wanted = replace(wanted, path=following, etag=None, last_modified=None)

    def _hear(self, index: Index, answer: Answer) -> None:
        """Raises Unchanged."""
        if self.reading is not None and index.alone:
            self.reading.hear(answer)

    # -- what is fetched

    def _brought(self, work: Work, kept: Kept, here: Here | None) -> Copied:
        got = self.guide.source(self, work.item)
        if isinstance(got, Wanted):
            return self._copied(work, kept, here, got)
        with contextlib.closing(got), refusing(), self._session() as session:
            _check_length(work.item, got.size, whole=True)
            receiver = session.receiver(_expected(work.item, got.size), ("md5", "sha1"), always=self.guide.checksums)
            for at in range(0, got.size, _PIECE):
                receiver.feed(os.pread(got.fd, _PIECE, at))
            received = receiver.finish()
            if here is None or received.sha256 != here.sha256:
                self._publish(session, work.item, received, _NOTHING, here)
            counted = session.published
        return Copied(received.sha256, received.size, received.size, counted=counted)

    def _copied(self, work: Work, kept: Kept, here: Here | None, wanted: Wanted) -> Copied:
        """With the validators of what was copied, where that is still here."""
        item = work.item
        # Where the list tells other bytes than those that are here, only these are wanted.
        if work.refused or (here is not None and item.digest is None and not work.refusals):
            wanted = replace(wanted, etag=work.etag, last_modified=work.last_modified)
        parts = Parts(self.imports.sessions, kept, self.snapshot.id, item.path)
        with self._answered(parts, wanted) as arrived:
            answer = arrived.answer
            if answer.absent:
                raise NotFound(f"the upstream has no {item.path!r}")
            if answer.unchanged and work.refused:
                raise Refused("it is what was refused before", again=True)
            if answer.unchanged and here is not None:
                return _as_it_was(work, here)
            with refusing(answer), self._session() as session:
                received = self._receive(session, parts, arrived, item)
                if here is None or received.sha256 != here.sha256:
                    beside = replace(self, source=replace(self.source, held=True))
                    beside._publish(session, item, received, answer.head, here)
                told = Copied(received.sha256, received.size, received.size, answer.etag, answer.last_modified, session.published)
        return told

    def _publish(self, session: Session, item: Item, received: Received, head: Arrived, here: Here | None) -> None:
        new = self.guide.publishable(self, session, item, received, head)
        session.publish(new.files, _conditions(here), new.package)

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
        expected = _expected(item, answer.size)
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


def _expected(item: Item, size: int | None) -> Expected:
    """With the digest that the list told."""
    algorithm, _, digest = (item.digest or "").partition(":")
    return Expected({algorithm: digest} if digest else {}, size)


def _as_it_was(work: Work, here: Here) -> Copied:
    """With the validators of what was copied; others are those of what was refused."""
    if work.refusals:
        return Copied(here.sha256, here.size)
    return Copied(here.sha256, here.size, etag=work.etag, last_modified=work.last_modified)


def _conditions(here: Here | None) -> Conditions:
    """That nobody publishes there meanwhile."""
    return Conditions(if_none_match=frozenset({"*"})) if here is None else Conditions(if_match=frozenset({here.sha256}))


def _take(answer: Answer, index: Index, file: IO[bytes]) -> None:
    while piece := answer.read():
        file.write(piece)
        if file.tell() > index.at_most:
            raise UpstreamUnfit(f"the upstream's {index.path!r} has more than {index.at_most} bytes")


def _remade(index: Index, file: IO[bytes]) -> int:
    """A descriptor of what is made of it."""
    if index.remade is None:
        return os.dup(file.fileno())
    with tempfile.TemporaryFile() as made:
        index.remade(Path(file.name), made.write)
        made.flush()
        return os.dup(made.fileno())


_BLOB = text(
    "select b.digest, b.id from arkvory_artifacts a join arkvory_blobs b on b.id = a.blob_id where a.repository_id = :id and a.path = :path"
)
_REVISION = text("select p.revision from arkvory_packages p where p.repository_id = :id and p.name = :package")
# What is held stays where it is.
_ELSEWHERE = text(
    "select b.digest, b.size, b.checksums from arkvory_blobs b where b.digest = :digest and exists "
    "(select 1 from arkvory_artifacts a where a.blob_id = b.id and a.repository_id = :id and not a.withheld)"
)
