"""Reading (DESIGN 3). The order, always: snapshot, online?, may this identity read?, gate, then document or file.

A warm read asks no database: every step is answered by a region. A cold one reads, in the statement that
loads the gate or the document, the epochs too; when these say that the decision was made with older
numbers, everything is decided again, once, in one repeatable-read transaction (C8).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple, NoReturn, Protocol

import gevent
from sqlalchemy import Connection, Row, text

from app.access.decision import READ, Access, find_repository, needs_login
from app.access.identity import Caller
from app.cache import keys
from app.cache.single import Interrupted, SingleFlight
from app.cache.snapshots import Snapshot, Snapshots, unknown_repository
from app.cache.store import DOCUMENT_BYTES, Cache
from app.cache.view import Epochs, Seen
from app.database.engines import Database
from app.errors import IsFolder, NotFound, Quarantined, RepositoryMaintenance, RepositoryOffline, Unauthenticated, Unavailable
from app.repository.uses import Uses
from app.repository.withholding import Judge, release_of, require_path, restrictions_of, until_of
from app.storage import BlobStore, OpenBlob
from app.upstream.freshness import COLUMNS as FRESHNESS
from app.upstream.freshness import Freshness, freshness_of

log = logging.getLogger(__name__)

_MOST_BOUNDARIES = 8192


@dataclass(frozen=True, slots=True)
class Ask:
    """What a client wants to read: a path of a repository, by an identity."""

    format: str
    repository: str
    path: str
    caller: Caller
    tenant: str = "default"
    # The path as the client encoded it; empty: it needed no encoding.
    spelling: str = ""
    # The path that must be readable, where it is another one than that which is read.
    of: str | None = None


# Compared by identity, so that what is made of one can be kept beside it.
@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Gate:
    """What a path points at: blob, size in bytes, checksums (hex by algorithm) and the artifact's own metadata."""

    path: str
    blob_id: int
    digest: str
    size: int
    checksums: Mapping[str, str]
    content_type: str
    metadata: Mapping[str, Any]
    created_at: datetime
    # What Last-Modified says: for other bytes always another second.
    updated_at: datetime
    # Why it is withheld, and what is thought of it; null when it is not.
    held: str | None = None
    trust: str | None = None
    # Of a part (`references.py`): since when nothing keeps it. Null: something does, or it needs nothing.
    candidate_at: datetime | None = None
    # Of a proxy's copy.
    freshness: Freshness | None = None


class Told(NamedTuple):
    """How a proxy answers: `hit`, `miss`, `revalidated` or `stale`, and how many seconds ago the upstream vouched for the bytes."""

    how: str
    age: int


class Coming(Protocol):
    """Bytes that are on their way; `size` null: it is not known how many."""

    @property
    def size(self) -> int | None: ...

    def pieces(self, start: int, stop: int | None) -> Iterator[bytes]:
        """From `start` on, the last of them only when all are known to be good. Raises Later when they are not."""

    def close(self) -> None: ...


Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Found:
    """An artifact that the caller may have; `open_blob` it to send its bytes. While these are `coming`, only path and type are known."""

    snapshot: Snapshot
    gate: Gate
    told: Told | None = None
    coming: Coming | None = None


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Document:
    """A derived document: equal `etag`s mean equal bytes (C9). `headers` belong to it, such as the link to its next page."""

    body: bytes
    etag: str
    content_type: str
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class Draft:
    """What was read of a document. `write` makes the bytes and needs no database; when it is `long`, it runs in a thread.

    `judges` are those that `write` asks what is to be left out of it: one for each proxy that it is made from.
    """

    write: Callable[[], bytes]
    long: bool
    headers: Headers = ()
    judges: Sequence[Judge] = ()


class DocumentSource(Protocol):
    """How one derived document is made; `revision` and `read` see the same repeatable-read state.

    Between them they read each row once, and they leave to the draft what costs time without the database.
    """

    @property
    def key(self) -> str:
        """Which document of the repository."""

    @property
    def representation(self) -> str:
        """Type, coding and whatever else makes other bytes of the same content."""

    @property
    def content_type(self) -> str: ...

    def revision(self, connection: Connection, snapshot: Snapshot) -> int | None:
        """The number that moves with the content; null when there is no such document."""

    def read(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Draft: ...


class Shelf(Protocol):
    """Stored bytes that a document is made of: what a proxy has of its upstream's own documents."""

    def find(self, connection: Connection, snapshot: Snapshot, path: str) -> Callable[[], OpenBlob]:
        """What is stored there now; call it without the connection, and close what it gives. Raises NotFound."""


class Answered(NamedTuple):
    """A document, and how a proxy came by what it is made of."""

    document: Document
    told: Told | None


@dataclass(frozen=True, slots=True)
class Judged:
    """A decision. It was made with the snapshot's epochs and this epoch of the installation; `epochs` are the effective ones (C1)."""

    snapshot: Snapshot
    epochs: Epochs
    installation: int


class Source(Protocol):
    """Where a kind of repository has its artifacts from, when not from its own rows alone."""

    def find(self, judged: Judged, ask: Ask, *, whole: bool) -> Found:
        """As `Reader.find`, for somebody who may read."""

    def document(self, judged: Judged, ask: Ask, source: DocumentSource, known_etags: frozenset[str], made_of: str) -> Answered:
        """As `Reader.document`, for somebody who may read."""


class Reader:
    """Answers reads; the same for every format."""

    def __init__(self, database: Database, cache: Cache, snapshots: Snapshots, access: Access, store: BlobStore, uses: Uses) -> None:
        self._uses = uses
        self._database = database
        self._cache = cache
        self._snapshots = snapshots
        self._access = access
        self._store = store
        # By kind of repository: the one place where kinds are told apart.
        self.sources: dict[str, Source] = {}
        self._shelf = _Stored(store)
        self._making: SingleFlight[_Made] = SingleFlight()
        # Of documents that leave out what is too young, by what their validator is made of: until when they hold.
        self._boundaries: dict[str, datetime] = {}

    # -- artifacts

    def find(self, ask: Ask, *, whole: bool = True) -> Found:
        """Without `whole` its bytes may still be coming. Raises NotFound, Unauthenticated, Forbidden or Unavailable."""
        judged = self._judge(ask)
        source = self.sources.get(judged.snapshot.kind)
        return self.stored(judged, ask) if source is None else source.find(judged, ask, whole=whole)

    def find_stored(self, ask: Ask) -> Found:
        """What the repository's own rows have now, decided anew."""
        return self.stored(self._judge(ask), ask)

    def find_again(self, ask: Ask, known: Found) -> Found:
        """The same after something was learnt that moves no epoch: what was known is not taken from memory."""
        epochs = self._cache.effective(known.snapshot.id, known.snapshot.epochs)
        if self._cache.gates.peek(keys.for_gate(known.snapshot.id, epochs, ask.path)) is known.gate:
            self._forget_gate(known)
        return self.find_stored(ask)

    def stored(self, judged: Judged, ask: Ask) -> Found:
        """The same for a decision that was made."""
        if self._may_use_memory(judged, ask.caller):
            kept = self._kept_gate(judged, ask.path)
            if kept is not None:
                return _passed(Found(judged.snapshot, kept))
            folder = self._known_absent(judged, ask.path)
            if folder is not None:
                raise _absent(ask, folder=folder)
        return self._load_gate(judged, ask)

    def open_blob(self, ask: Ask, found: Found) -> tuple[Found, OpenBlob]:
        """Open the bytes. When they went since the gate was kept, the database is asked what the path points at now."""
        while True:
            try:
                return found, self._store.open(found.gate.digest, found.gate.blob_id)
            except FileNotFoundError:
                self._forget_gate(found)
            known, found = found, replace(self._decide_again(ask), told=found.told)
            require_path(found.snapshot, ask.path)
            if known.gate.blob_id == found.gate.blob_id:
                self._missing(ask, found)

    def renew(self, ask: Ask, found: Found) -> Found:
        """Let a part live for its grace from now on (W3). Raises what `find` raises when cleanup was faster."""
        if found.gate.candidate_at is None or self._uses.renew(found.snapshot.id, found.gate.path, found.gate.candidate_at):
            return found
        self._forget_gate(found)
        return self._decide_again(ask)

    def _missing(self, ask: Ask, found: Found) -> NoReturn:
        log.error("blob %s-%s of %s/%s is missing on the disk", found.gate.digest, found.gate.blob_id, ask.repository, ask.path)
        raise Unavailable("the bytes of this artifact are missing on the server; tell its administrator", retry_after=60)

    # -- documents

    def document(self, ask: Ask, source: DocumentSource, known_etags: frozenset[str] = frozenset(), made_of: str = "") -> Answered:
        """The document, kept or made now. When its validator is among `known_etags`, an empty body is enough and none is made.

        A proxy makes it of the upstream's document that it keeps at the path `made_of`. Raises NotFound when the repository has no such
        document, and what `find` raises.
        """
        judged = self._judge(ask)
        kind = self.sources.get(judged.snapshot.kind)
        if kind is None:
            return Answered(self.stored_document(judged, ask, source, known_etags), None)
        return kind.document(judged, ask, source, known_etags, made_of)

    def document_again(self, ask: Ask, source: DocumentSource, known_etags: frozenset[str]) -> Document:
        """Of what the repository's own rows have now, decided anew."""
        return self.stored_document(self._judge(ask), ask, source, known_etags)

    def stored_document(self, judged: Judged, ask: Ask, source: DocumentSource, known_etags: frozenset[str]) -> Document:
        """The same for a decision that was made."""
        if self._may_use_memory(judged, ask.caller):
            kept: Document | None = self._cache.documents.get(_document_key(judged.snapshot.id, judged.epochs, source))
            if kept is not None:
                return kept
        return self._make_document(judged, ask, source, known_etags)

    def passing_document(self, ask: Ask, source: DocumentSource, shelf: Shelf) -> Document:
        """One that is made of what is not stored: nothing of it is kept, and its validator is of its bytes."""
        with contextlib.ExitStack() as held:
            connection, snapshot = held.enter_context(self.look(ask))
            draft = source.read(connection, snapshot, shelf)
        body = _written(draft)
        return Document(body, hashlib.sha256(body).hexdigest()[:32], source.content_type, draft.headers)

    def _make_document(self, judged: Judged, ask: Ask, source: DocumentSource, known_etags: frozenset[str]) -> Document:
        """Greenlets that want the same bytes at once share their making, after each has decided for itself in a transaction of its own.

        Equal validators mean equal bytes (C9), so what another reads under the validator found here is this document.
        """
        while True:
            try:
                return self._make_or_share(judged, ask, source, known_etags)
            except Interrupted:
                # Whoever made it was killed.
                continue

    def _make_or_share(self, judged: Judged, ask: Ask, source: DocumentSource, known_etags: frozenset[str]) -> Document:
        with contextlib.ExitStack() as held:
            connection = held.enter_context(self._database.consistent())
            snapshot, seen, incarnation = self._decided(connection, judged, ask)
            revision = source.revision(connection, snapshot)
            require_path(snapshot, ask.path)
            content = _validator(seen, incarnation, source, revision)
            etag = self._known_validator(snapshot, content)
            made = None
            if revision is not None and etag not in known_etags:
                made = self._body(held, connection, snapshot, source, content)
        self._cache.observe(seen)
        if revision is None:
            raise _absent(ask)
        if made is None:
            assert etag is not None
            return Document(b"", etag, source.content_type)
        document = Document(made.body, self._validator_until(content, made.until), source.content_type, made.headers)
        if len(made.body) <= DOCUMENT_BYTES and self._cache.may_keep(snapshot.id):
            key, tags = _document_key(snapshot.id, seen.epochs, source), (keys.tag_of_repository(snapshot.id),)
            self._cache.documents.put(key, document, tags=tags, weight=len(made.body) + 500, lifetime=_seconds_to(made.until))
        return document

    def _known_validator(self, snapshot: Snapshot, content: str) -> str | None:
        """Where age limits what a document shows, it is known once one was made that still holds."""
        if restrictions_of(snapshot).minimum_age is None:
            return content
        until = self._boundaries.get(content)
        return None if until is None or until <= datetime.now(UTC) else _aged(content, until)

    def _validator_until(self, content: str, until: datetime | None) -> str:
        """Of the content and of the moment at which the next entry comes of age: that says which ones are left out."""
        if until is None:
            return content
        if len(self._boundaries) >= _MOST_BOUNDARIES:
            self._boundaries.clear()
        self._boundaries[content] = until
        return _aged(content, until)

    def _decided(self, connection: Connection, judged: Judged, ask: Ask) -> tuple[Snapshot, Seen, str]:
        """C8: what `connection` sees, with a decision that is not older; and the installation's incarnation."""
        seen, incarnation = _read_numbers(connection, judged.snapshot.id, ask.caller)
        if seen is not None and not self._is_outdated(judged, ask.caller, seen):
            return judged.snapshot, seen, incarnation
        if seen is not None:
            self._cache.observe(seen)
        snapshot = self._decide_in(connection, ask)
        seen, incarnation = _read_numbers(connection, snapshot.id, ask.caller)
        assert seen is not None
        return snapshot, seen, incarnation

    def _body(
        self, held: contextlib.ExitStack, connection: Connection, snapshot: Snapshot, source: DocumentSource, content: str
    ) -> _Made:
        """The connection goes back (`held` is closed) once the rows are read: neither writing nor waiting needs it."""
        shared = self._making.running(content)
        if shared is not None:
            held.close()
            return shared()

        def make() -> _Made:
            draft = source.read(connection, snapshot, self._shelf)
            held.close()
            body = _written(draft)
            return _Made(body, draft.headers, until_of(draft.judges))

        return self._making.lead(content, make)

    # -- the decision

    def may_read(self, ask: Ask) -> Snapshot:
        """The first three steps alone (C8 too)."""
        judged = self._judge(ask)
        if self._may_use_memory(judged, ask.caller):
            return judged.snapshot
        with self._looking(judged, ask) as (_, snapshot):
            return snapshot

    def look(self, ask: Ask) -> contextlib.AbstractContextManager[tuple[Connection, Snapshot]]:
        """The first three steps, and a state of the database in which they hold (C8), for what is neither artifact nor document."""
        return self._looking(self._judge(ask), ask)

    @contextlib.contextmanager
    def _looking(self, judged: Judged, ask: Ask) -> Iterator[tuple[Connection, Snapshot]]:
        with self._database.consistent() as connection:
            snapshot, seen, _ = self._decided(connection, judged, ask)
            self._cache.observe(seen)
            yield connection, snapshot

    def _judge(self, ask: Ask) -> Judged:
        self._cache.require_synced()
        # Read first: whatever is learnt on the way counts as newer than the decision.
        installation = self._access.installation.switches().epoch
        try:
            snapshot = self._snapshots.get(ask.tenant, ask.repository)
            _check_format(snapshot, ask)
        except NotFound as error:
            raise _hidden(error, ask) from None
        check_online(snapshot)
        self._access.require(ask.caller, snapshot, READ, ask.path if ask.of is None else ask.of)
        return Judged(snapshot, self._cache.effective(snapshot.id, snapshot.epochs), installation)

    def _may_use_memory(self, judged: Judged, caller: Caller) -> bool:
        """C8 without a statement: nothing that the decision rests on has moved while it was made, nor is in doubt (C2)."""
        cache, decided = self._cache, judged.snapshot.epochs
        return (
            cache.may_keep(judged.snapshot.id)
            and judged.epochs._replace(content=decided.content) == decided
            and judged.installation == cache.view.installation
            and self._access.identities.is_current(caller.identity)
            and not cache.doubts.installation
        )

    def _is_outdated(self, judged: Judged, caller: Caller, seen: Seen) -> bool:
        """C8: any number but the content epoch is larger than the one that the decision was made with, or the user is gone (0)."""
        decided = judged.snapshot.epochs
        return (
            seen.epochs.metadata > decided.metadata
            or seen.epochs.authorization > decided.authorization
            or seen.epochs.members > decided.members
            or seen.user_revision != caller.revision
            or seen.installation > judged.installation
            or not caller.holds_at(seen.repository_id, seen.epochs.authorization)
        )

    def _decide_again(self, ask: Ask) -> Found:
        with self._database.consistent() as connection:
            snapshot = self._decide_in(connection, ask)
            row = connection.execute(_GATE_QUERY, _gate_parameters(snapshot.id, ask)).one()
        return self._keep_gate(snapshot, ask, row)

    def _decide_in(self, connection: Connection, ask: Ask) -> Snapshot:
        snapshot = find_repository(connection, ask.caller, ask.repository, ask.tenant, ask.format)
        check_online(snapshot)
        self._access.require_now(connection, ask.caller, snapshot, READ, ask.path if ask.of is None else ask.of)
        return snapshot

    # -- gates

    def _kept_gate(self, judged: Judged, path: str) -> Gate | None:
        if not self._cache.may_keep(judged.snapshot.id):
            return None
        gate: Gate | None = self._cache.gates.get(keys.for_gate(judged.snapshot.id, judged.epochs, path))
        return gate

    def _known_absent(self, judged: Judged, path: str) -> bool | None:
        """Null when it is not known that nothing is there; else whether a folder is."""
        cache = self._cache
        if not cache.believes_absences or not cache.may_keep(judged.snapshot.id):
            return None
        return cache.absences.get(keys.for_gate(judged.snapshot.id, judged.epochs, path))

    def _load_gate(self, judged: Judged, ask: Ask) -> Found:
        with self._database.read() as connection:
            row = connection.execute(_GATE_QUERY, _gate_parameters(judged.snapshot.id, ask)).first()
        if row is None:
            return self._decide_again(ask)
        seen = _seen(judged.snapshot.id, row, ask.caller)
        if self._is_outdated(judged, ask.caller, seen):
            self._cache.observe(seen)
            return self._decide_again(ask)
        return self._keep_gate(judged.snapshot, ask, row)

    def _keep_gate(self, snapshot: Snapshot, ask: Ask, row: Row[Any]) -> Found:
        """C3: under the epochs that the same statement read."""
        seen = _seen(snapshot.id, row, ask.caller)
        self._cache.observe(seen)
        keep = self._cache.may_keep(snapshot.id)
        key, tags = keys.for_gate(snapshot.id, seen.epochs, ask.path), (keys.tag_of_repository(snapshot.id),)
        if row.blob_id is None:
            if keep and self._cache.believes_absences:
                self._cache.absences.put(key, row.folder, tags=tags)
            raise _absent(ask, folder=row.folder)
        gate = Gate(
            ask.path, row.blob_id, row.digest, row.size, row.checksums, row.content_type, row.metadata, row.created_at, row.updated_at,
            row.reason, row.trust, row.candidate_at, freshness_of(row),
        )  # fmt: skip
        if keep:
            self._cache.gates.put(key, gate, tags=tags)
        return _passed(Found(snapshot, gate))

    def _forget_gate(self, found: Found) -> None:
        epochs = self._cache.effective(found.snapshot.id, found.snapshot.epochs)
        self._cache.gates.drop(keys.for_gate(found.snapshot.id, epochs, found.gate.path))


class _Made(NamedTuple):
    """The bytes of a document, and until when they hold whatever happens to its content; null: for as long as it stays."""

    body: bytes
    headers: Headers
    until: datetime | None


@dataclass(frozen=True)
class _Stored:
    """See `Shelf`."""

    store: BlobStore

    def find(self, connection: Connection, snapshot: Snapshot, path: str) -> Callable[[], OpenBlob]:
        row = connection.execute(_BLOB, {"id": snapshot.id, "path": path}).first()
        if row is None:
            raise NotFound(f"there is no {path!r} in repository {snapshot.name!r}")
        return lambda: self.store.open(row.digest, row.id)


def _written(draft: Draft) -> bytes:
    return bytes(gevent.get_hub().threadpool.apply(draft.write)) if draft.long else draft.write()


_BLOB = text(
    "select b.id, b.digest from arkvory_artifacts a join arkvory_blobs b on b.id = a.blob_id "
    "where a.repository_id = :id and a.path = :path and not a.withheld"
)
_NUMBERS = (
    "r.metadata_epoch, r.authorization_epoch, r.content_epoch, r.members_epoch, i.epoch as installation, "
    "coalesce(u.revision, 0) as revision"
)
_NUMBERS_FROM = "from arkvory_repositories r cross join arkvory_installation i left join arkvory_users u on u.id = :user"
_GATE_QUERY = text(
    # `details` are for documents; gates are kept by the thousand.
    f"select {_NUMBERS}, a.content_type, a.metadata - 'details' as metadata, a.created_at, a.dated_at as updated_at, "
    "b.id as blob_id, b.digest, b.size, b.checksums, h.reason, h.trust, a.candidate_at, "
    f"{FRESHNESS}, "
    # Looked for where nothing else is found.
    "case when a.path is null then exists (select 1 from arkvory_artifacts f where f.repository_id = r.id and not f.withheld "
    f"and f.path > :folder and f.path < :folder_end) end as folder {_NUMBERS_FROM} "
    "left join arkvory_artifacts a on a.repository_id = r.id and a.path = :path left join arkvory_blobs b on b.id = a.blob_id "
    "left join arkvory_holds h on h.repository_id = r.id and h.path = :path left join arkvory_freshness f on f.artifact_id = a.id "
    "where r.id = :id and r.deleted_at is null"
)
_NUMBERS_QUERY = text(f"select {_NUMBERS}, i.incarnation {_NUMBERS_FROM} where r.id = :id and r.deleted_at is null")


def _gate_parameters(repository_id: int, ask: Ask) -> dict[str, Any]:
    return {
        "id": repository_id, "path": ask.path, "folder": ask.path + "/", "folder_end": ask.path + "0", "user": ask.caller.user_id,
    }  # fmt: skip


def _seen(repository_id: int, row: Row[Any], caller: Caller) -> Seen:
    return Seen(repository_id, Epochs._make(row[:4]), caller.user_id or None, row.revision, row.installation)


def _read_numbers(connection: Connection, repository_id: int, caller: Caller) -> tuple[Seen | None, str]:
    row = connection.execute(_NUMBERS_QUERY, {"id": repository_id, "user": caller.user_id}).first()
    return (None, "") if row is None else (_seen(repository_id, row, caller), row.incarnation)


def _document_key(repository_id: int, epochs: Epochs, source: DocumentSource) -> Any:
    return keys.for_document(repository_id, epochs, source.key, source.representation)


def _validator(seen: Seen, incarnation: str, source: DocumentSource, revision: int | None) -> str:
    parts = (incarnation, seen.repository_id, seen.epochs.metadata, revision, source.key, source.representation)
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _aged(content: str, until: datetime) -> str:
    return hashlib.sha256(f"{content} {until.timestamp()!r}".encode()).hexdigest()[:32]


def _seconds_to(until: datetime | None) -> float | None:
    return None if until is None else (until - datetime.now(UTC)).total_seconds()


def _check_format(snapshot: Snapshot, ask: Ask) -> None:
    if snapshot.format != ask.format:
        raise unknown_repository(ask.repository)


def check_online(snapshot: Snapshot) -> None:
    """Raises RepositoryOffline or RepositoryMaintenance."""
    if snapshot.status == "offline":
        raise RepositoryOffline(f"repository {snapshot.name!r} is offline", retry_after=60)
    if snapshot.status == "maintenance":
        raise RepositoryMaintenance(f"repository {snapshot.name!r} is under maintenance", retry_after=60)


def _hidden(error: NotFound, ask: Ask) -> NotFound | Unauthenticated:
    """Nobody learns which names exist, and a client gets the chance to say who it is."""
    if ask.caller.identity is None:
        return needs_login(ask.repository)
    return error


def _passed(found: Found) -> Found:
    """The gate's last word. Raises Quarantined or TooYoung, with the reason."""
    if found.gate.held is not None:
        raise Quarantined(f"{found.gate.path!r} is held in quarantine: {found.gate.held}")
    if found.snapshot.restrictions is not None:
        check_age(found)
    return found


def check_age(found: Found) -> None:
    """Raises TooYoung."""
    release = release_of(found.gate.path, found.gate.metadata)
    if release is not None:
        restrictions_of(found.snapshot).require_age(release)


def _absent(ask: Ask, *, folder: bool = False) -> NotFound:
    message = f"there is no {ask.path!r} in repository {ask.repository!r}"
    return IsFolder(message, ask.path) if folder else NotFound(message)
