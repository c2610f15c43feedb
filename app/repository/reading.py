"""Reading (DESIGN 3). The order, always: snapshot, online?, may this identity read?, gate, then document or file.

A warm read asks no database: every step is answered by a region. A cold one reads, in the statement that
loads the gate or the document, the epochs too; when these say that the decision was made with older
numbers, everything is decided again, once, in one repeatable-read transaction (C8).
"""

from __future__ import annotations

import abc
import contextlib
import hashlib
import logging
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

import gevent
from sqlalchemy import Connection, Row, TextClause

from app.access.decision import READ, Access, find_repository, needs_login
from app.access.identity import Caller
from app.cache import keys
from app.cache.members import Membership, Memberships, read_membership
from app.cache.single import Interrupted, SingleFlight
from app.cache.snapshots import Snapshot, Snapshots, other_format, unknown_repository
from app.cache.store import DOCUMENT_BYTES, Cache
from app.cache.view import Epochs, Seen
from app.cluster.pins import Pins
from app.database.engines import Database
from app.database.statements import text
from app.errors import (
    ArkvoryError,
    IsFolder,
    NotFound,
    Quarantined,
    RepositoryMaintenance,
    RepositoryOffline,
    Unauthenticated,
    Unavailable,
)
from app.repository.formats import absent as absent_at
from app.repository.formats import package_of
from app.repository.members import member_now
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
    # A proxy's copy that fell due so many seconds ago will do.
    slack: float = 0.0
    # The member of the group that is asked for it; 0: it is no group, or all of them are.
    member: int = 0
    # Only what there is to be known of it, not its bytes: a proxy that has no copy may leave them where they are.
    bodiless: bool = False


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
    """How a proxy answers: `hit`, `miss`, `revalidated` or `stale`, and how many seconds ago the upstream vouched for the bytes.

    Of a group: the member that answers, and those before it that could not; `how` is then empty unless that member is a proxy.
    """

    how: str = ""
    age: int = 0
    member: str = ""
    passed_over: tuple[str, ...] = ()


class Coming(Protocol):
    """Bytes that are on their way; `size` null: it is not known how many."""

    @property
    def size(self) -> int | None: ...

    def pieces(self, start: int, stop: int | None) -> Iterator[bytes]:
        """From `start` on, the last of them only when all are known to be good. Raises Later when they are not."""

    def close(self) -> None: ...


Headers = tuple[tuple[str, str], ...]


class Absence(NamedTuple):
    """Nothing is at a path: whether something lies below it, and whether anything of its package is there, or was once."""

    folder: bool
    named: bool


class Looked(NamedTuple):
    """What a repository's own rows have at a path; the snapshot is the one that they were read with."""

    snapshot: Snapshot
    there: Gate | Absence


@dataclass(frozen=True, slots=True)
class Found:
    """An artifact that the caller may have; `open_blob` it to send its bytes. While these are `coming`, only path and type are known.

    In a group the snapshot is that of the member which has it.
    """

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

    `judges` are those that `write` asks what is to be left out of it: one for each proxy that it is made from. Where only the making tells
    the headers, they come with the bytes.
    """

    write: Callable[[], bytes | tuple[bytes, Headers]]
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

    @property
    def package(self) -> str:
        """The name of the package that it tells of; empty where it tells of several, or of none."""

    def revision(self, connection: Connection, snapshot: Snapshot) -> int | None:
        """The number that moves with the content; null when there is no such document."""

    def read(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Draft: ...


class Merged(abc.ABC):
    """A `DocumentSource` that a group makes of what several members have in it; of a repository alone it is made of one part.

    What is no `Merged` is, through a group, the document of the first member that has it. A member that shows nothing may still withhold
    something, which no later one shows then: it has a part too.
    """

    @property
    @abc.abstractmethod
    def package(self) -> str: ...

    @abc.abstractmethod
    def revision(self, connection: Connection, snapshot: Snapshot) -> int | None: ...

    @abc.abstractmethod
    def part(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Any:
        """What one repository has in it."""

    @abc.abstractmethod
    def merge(self, repository: Snapshot, parts: Sequence[Any]) -> Draft:
        """The document of `repository`, of at least one part, in the order of the members: the first that has something wins."""

    def read(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Draft:
        return self.merge(snapshot, [self.part(connection, snapshot, shelf)])

    def withheld(self, connection: Connection, snapshot: Snapshot) -> int | None:
        """The number that moves with what a repository withholds of it; null: nothing."""
        query = _WITHHELD_OF_PACKAGE if self.package else _WITHHELD
        found: int | None = connection.execute(query, {"id": snapshot.id, "package": self.package}).scalar()
        return found


# Key of a copy's metadata, where its format keeps it: see `Brought`.
ADDRESS = "address"


@dataclass
class Brought(OpenBlob):
    """Bytes that a proxy has of its upstream. `address` is where they came from in the end, empty where nobody kept it."""

    address: str = ""


class Shelf(Protocol):
    """Stored bytes that a document is made of: what a proxy has of its upstream's own documents."""

    def find(self, connection: Connection, snapshot: Snapshot, path: str) -> Callable[[], Brought]:
        """What is stored there now; call it without the connection, and close what it gives. Raises NotFound."""


class Answered(NamedTuple):
    """A document, and how a proxy came by what it is made of."""

    document: Document
    told: Told | None


@dataclass(frozen=True, slots=True)
class Judged:
    """A decision. It was made with the snapshot's epochs and this epoch of the installation; `epochs` are the effective ones (C1).

    Of a member, `entered` is the decision about the group: the one that says whether the caller may read.
    """

    snapshot: Snapshot
    epochs: Epochs
    installation: int
    entered: Judged | None = None
    # In a cluster a message may be on its way. What memory says is absent is passed over all the same, as long as something is found.
    believes_absences: bool = False


@dataclass(frozen=True, slots=True)
class Contributor:
    """A repository that may have a part in a document; `shelf` null: what is stored."""

    snapshot: Snapshot
    shelf: Shelf | None = None


class Source(Protocol):
    """Where a kind of repository has its artifacts from, when not from its own rows alone."""

    def find(self, judged: Judged, ask: Ask, *, whole: bool) -> Found:
        """As `Reader.find`, for somebody who may read."""

    def document(self, judged: Judged, ask: Ask, source: DocumentSource, known_etags: frozenset[str], made_of: str) -> Answered:
        """As `Reader.document`, for somebody who may read."""

    def restore(self, ask: Ask, lost: Found) -> Found:
        """Instead of what has no bytes on the disk any more. Raises Unavailable when there is nothing else either."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What a document is made of, as one transaction sees it: who may have a part in it, in order.

    `key` is how it is kept, null: not at all. `members`: all of a group, whose numbers were read too; null: it is no group.
    """

    contributors: Sequence[Contributor]
    key: Hashable | None
    members: Sequence[Snapshot] | None = None


Look = Callable[[Connection, Snapshot, Seen], Sight]


class Reader:
    """Answers reads; the same for every format."""

    def __init__(
        self,
        database: Database,
        cache: Cache,
        snapshots: Snapshots,
        memberships: Memberships,
        access: Access,
        store: BlobStore,
        uses: Uses,
        pins: Pins | None = None,
    ) -> None:
        """`pins` watches what is opened to be sent; null where the open descriptor keeps it."""
        self._uses = uses
        self._pins = pins
        self._database = database
        self._cache = cache
        self._snapshots = snapshots
        self._memberships = memberships
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
        judged = self.judge(ask)
        source = self.sources.get(judged.snapshot.kind)
        return self.stored(judged, ask) if source is None else source.find(judged, ask, whole=whole)

    def find_stored(self, ask: Ask) -> Found:
        """What the repository's own rows have now, decided anew."""
        return self.stored(self.judge(ask), ask)

    def find_again(self, ask: Ask, known: Found) -> Found:
        """The same after something was learnt that moves no epoch: what was known is not taken from memory."""
        epochs = self._cache.effective(known.snapshot.id, known.snapshot.epochs)
        if self._cache.gates.peek(keys.for_gate(known.snapshot.id, epochs, ask.path)) is known.gate:
            self._forget_gate(known)
        return self.find_stored(ask)

    def stored(self, judged: Judged, ask: Ask) -> Found:
        """The same for a decision that was made."""
        return self.passed(ask, self.look_up(judged, ask))

    def passed(self, ask: Ask, looked: Looked) -> Found:
        """What was found, if it may leave: the gate's last word. Raises NotFound, or Quarantined or TooYoung, with the reason."""
        there = looked.there
        if isinstance(there, Absence):
            raise _absent(ask, folder=there.folder)
        if there.held is not None:
            raise Quarantined(f"{there.path!r} is held in quarantine: {there.held}")
        found = Found(looked.snapshot, there)
        if looked.snapshot.restrictions is not None:
            check_age(found)
        return found

    def look_up(self, judged: Judged, ask: Ask) -> Looked:
        """What the repository's own rows have at the path, held or not."""
        return self.recall(judged, ask) or self._load_gate(judged, ask)

    def recall(self, judged: Judged, ask: Ask) -> Looked | None:
        """The same as far as memory tells."""
        if not self._may_use_memory(judged, ask.caller):
            return None
        there: Gate | Absence | None = self._kept_gate(judged, ask.path)
        if there is None:
            there = self._known_absent(judged, ask.path)
        return None if there is None else Looked(judged.snapshot, there)

    def may_recall(self, entered: Judged, caller: Caller) -> bool:
        """Whether memory may be used for what is in members of this group, at this moment."""
        return self._may_use_memory(entered, caller) and self._stands_still(entered.snapshot)

    def effective(self, member: Snapshot) -> Epochs | None:
        """Its epochs at this moment (C1); null where memory may not be used for it."""
        epochs = self._cache.effective(member.id, member.epochs)
        return epochs if self._stands(member, epochs) else None

    def remembered(self, member: Snapshot, epochs: Epochs, path: str) -> Gate | Absence | None:
        """What memory has of a path of a member, under `effective`, for who may recall it and if absences are believed."""
        key = keys.for_gate(member.id, epochs, path)
        return self._cache.absences.get(key) or self._cache.gates.get(key)

    def is_passed_on(self, ask: Ask) -> bool:
        """Whether the repository has its documents from an upstream, as files; false for one that is not there."""
        try:
            return self._snapshots.get(ask.tenant, ask.repository).kind == "proxy"
        except NotFound:
            return False

    def open_blob(self, ask: Ask, found: Found) -> tuple[Found, OpenBlob]:
        """Open the bytes. When they went since the gate was kept, the database is asked what the path points at now.

        Where a proxy's went from the disk, they are fetched anew.
        """
        lost: Found | None = None
        while True:
            try:
                blob = self._store.open(found.gate.digest, found.gate.blob_id)
                if self._pins is not None:
                    self._pins.watch(blob, found.gate.blob_id)
                return found, blob
            except FileNotFoundError:
                self._forget_gate(found)
            known, found = found, self._find_anew(ask, found)
            if known.gate.blob_id == found.gate.blob_id:
                lost, found = found, self._instead(ask, found, lost)

    def renew(self, ask: Ask, found: Found) -> Found:
        """Let a part live for its grace from now on (W3). Raises what `find` raises when cleanup was faster."""
        if found.gate.candidate_at is None or self._uses.renew(found.snapshot.id, found.gate.path, found.gate.candidate_at):
            return found
        self._forget_gate(found)
        return self._find_anew(ask, found)

    def _find_anew(self, ask: Ask, found: Found) -> Found:
        """Its gate is forgotten, so the database says what is there; in a group perhaps in another member."""
        if found.told is not None and found.told.member:
            return self.find(ask)
        again = replace(self.passed(ask, self._decide_again(ask)), told=found.told)
        require_path(again.snapshot, ask.path)
        return again

    def _instead(self, ask: Ask, lost: Found, before: Found | None) -> Found:
        """Once is enough: on a disk that loses what it is given, fetching does not help."""
        log.error("blob %s-%s of %s/%s is missing on the disk", lost.gate.digest, lost.gate.blob_id, ask.repository, ask.path)
        source = self.sources.get(lost.snapshot.kind)
        if source is None or before is not None:
            raise Unavailable("the bytes of this artifact are missing on the server; tell its administrator", retry_after=60)
        return source.restore(ask, lost)

    # -- documents

    def document(self, ask: Ask, source: DocumentSource, known_etags: frozenset[str] = frozenset(), made_of: str = "") -> Answered:
        """The document, kept or made now. When its validator is among `known_etags`, an empty body is enough and none is made.

        A proxy makes it of the upstream's document that it keeps at the path `made_of`. Raises NotFound when the repository has no such
        document, and what `find` raises.
        """
        judged = self.judge(ask)
        kind = self.sources.get(judged.snapshot.kind)
        if kind is None:
            return Answered(self.stored_document(judged, ask, source, known_etags), None)
        return kind.document(judged, ask, source, known_etags, made_of)

    def document_again(self, ask: Ask, source: DocumentSource, known_etags: frozenset[str]) -> Document:
        """Of what the repository's own rows have now, decided anew."""
        return self.stored_document(self.judge(ask), ask, source, known_etags)

    def stored_document(self, judged: Judged, ask: Ask, source: DocumentSource, known_etags: frozenset[str]) -> Document:
        """The same for a decision that was made."""
        kept = self.kept_document(judged, ask.caller, _document_key(judged.snapshot.id, judged.epochs, source))
        return kept or self.made_document(judged, ask, source, known_etags, _alone(source))

    def kept_document(self, judged: Judged, caller: Caller, key: Hashable) -> Document | None:
        """From memory, if it may be used."""
        kept: Document | None = self._cache.documents.get(key) if self._may_use_memory(judged, caller) else None
        return kept

    def passing_document(self, ask: Ask, source: DocumentSource, shelf: Shelf) -> Document:
        """One that is made of what is not stored: nothing of it is kept, and its validator is of its bytes."""
        look = _alone(source, shelf)
        return self.made_document(self.judge(ask), ask, source, frozenset(), look)

    def made_document(self, judged: Judged, ask: Ask, source: DocumentSource, known_etags: frozenset[str], look: Look) -> Document:
        """Greenlets that want the same bytes at once share their making, after each has decided for itself in a transaction of its own.

        Equal validators mean equal bytes (C9), so what another reads under the validator found here is this document. `look` says of
        whom it is made.
        """
        while True:
            try:
                return self._make_or_share(judged, ask, source, known_etags, look)
            except Interrupted:
                # Whoever made it was killed.
                continue

    def _make_or_share(self, judged: Judged, ask: Ask, source: DocumentSource, known_etags: frozenset[str], look: Look) -> Document:
        with contextlib.ExitStack() as held:
            connection = held.enter_context(self._database.consistent())
            repository, seen, incarnation = self._decided(connection, judged, ask)
            require_path(repository, ask.path)
            sight = look(connection, repository, seen)
            having = _having(connection, source, sight)
            passing = any(each.shelf is not None for each, _ in having)
            content = "" if passing else _validator(seen, incarnation, source, _revision(sight, having))
            etag = self._known_validator(having, content)
            made = None
            if having and (etag is None or etag not in known_etags):
                made = self._body(held, connection, repository, source, having, content)
        self._observe(seen, sight)
        if not having:
            raise _absent(ask)
        if made is None:
            assert etag is not None
            return Document(b"", etag, source.content_type)
        if passing:
            return Document(made.body, hashlib.sha256(made.body).hexdigest()[:32], source.content_type, made.headers)
        document = Document(made.body, self._validator_until(content, made.until), source.content_type, made.headers)
        self._keep_document(repository, sight, document, made.until)
        return document

    def _observe(self, seen: Seen, sight: Sight) -> None:
        self._cache.observe(seen)
        for each in sight.members or ():
            self._cache.observe_repository(each.id, each.epochs)

    def _keep_document(self, repository: Snapshot, sight: Sight, document: Document, until: datetime | None) -> None:
        everyone = (repository, *(sight.members or ()))
        if sight.key is None or len(document.body) > DOCUMENT_BYTES or not all(self._cache.may_keep(each.id) for each in everyone):
            return
        tags, weight = tuple(keys.tag_of_repository(each.id) for each in everyone), len(document.body) + 500
        self._cache.documents.put(sight.key, document, tags=tags, weight=weight, lifetime=_seconds_to(until))

    def _known_validator(self, having: _Having, content: str) -> str | None:
        """Where age limits what a document shows, it is known once one was made that still holds."""
        if all(restrictions_of(each.snapshot).minimum_age is None for each, _ in having):
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
        seen, incarnation = _read_numbers(connection, _Decided(judged.snapshot, _entered(judged)), ask.caller)
        if seen is not None and not self._is_outdated(judged, ask.caller, seen):
            return judged.snapshot, seen, incarnation
        if seen is not None:
            self._cache.observe(seen)
        decided = self._decide_in(connection, ask)
        seen, incarnation = _read_numbers(connection, decided, ask.caller)
        assert seen is not None
        return decided.snapshot, seen, incarnation

    def _body(
        self,
        held: contextlib.ExitStack,
        connection: Connection,
        repository: Snapshot,
        source: DocumentSource,
        having: _Having,
        content: str,
    ) -> _Made:
        """The connection goes back (`held` is closed) once the rows are read: neither writing nor waiting needs it."""

        def make() -> _Made:
            draft = self._draft(connection, repository, source, having)
            held.close()
            return _Made(*_written(draft), until_of(draft.judges))

        if not content:
            return make()
        shared = self._making.running(content)
        if shared is not None:
            held.close()
            return shared()
        return self._making.lead(content, make)

    def _draft(self, connection: Connection, repository: Snapshot, source: DocumentSource, having: _Having) -> Draft:
        shelves = [(each.snapshot, each.shelf or self._shelf) for each, _ in having]
        # Who knows that nothing stands behind it may have a shorter way.
        if not isinstance(source, Merged) or shelves[0][0].id == repository.id:
            return source.read(connection, *shelves[0])
        return source.merge(repository, [source.part(connection, snapshot, shelf) for snapshot, shelf in shelves])

    # -- the decision

    def may_read(self, ask: Ask) -> Snapshot:
        """The first three steps alone (C8 too)."""
        judged = self.judge(ask)
        if self._may_use_memory(judged, ask.caller):
            return judged.snapshot
        with self._looking(judged, ask) as (_, snapshot):
            return snapshot

    def repositories(self, ask: Ask) -> Sequence[Snapshot]:
        """Who may have a part in what is neither file nor document: the members of a group, online or not, in order, else itself."""
        snapshot = self.may_read(ask)
        if snapshot.kind != "group":
            return [snapshot]
        membership = self._memberships.get(snapshot)
        found = self._snapshots.of(membership.members)
        return [found[each] for each in membership.members if each in found]

    def look(self, ask: Ask) -> contextlib.AbstractContextManager[tuple[Connection, Snapshot]]:
        """The first three steps, and a state of the database in which they hold (C8), for what is neither artifact nor document."""
        return self._looking(self.judge(ask), ask)

    @contextlib.contextmanager
    def _looking(self, judged: Judged, ask: Ask) -> Iterator[tuple[Connection, Snapshot]]:
        with self._database.consistent() as connection:
            snapshot, seen, _ = self._decided(connection, judged, ask)
            self._cache.observe(seen)
            yield connection, snapshot

    def judge(self, ask: Ask) -> Judged:
        """The decision that everything else goes on from. Raises NotFound, Unauthenticated, Forbidden or Unavailable."""
        self._cache.require_synced()
        # Read first: whatever is learnt on the way counts as newer than the decision.
        installation = self._access.installation.switches().epoch
        try:
            snapshot = self._snapshots.get(ask.tenant, ask.repository)
            if snapshot.format != ask.format:
                raise self._of_other_format(snapshot, ask)
        except NotFound as error:
            raise _hidden(error, ask) from None
        check_online(snapshot)
        self._access.require(ask.caller, snapshot, READ, ask.path if ask.of is None else ask.of)
        judged = Judged(snapshot, self._cache.effective(snapshot.id, snapshot.epochs), installation)
        return self._judge_member(judged, ask.member) if ask.member else judged

    def _of_other_format(self, snapshot: Snapshot, ask: Ask) -> NotFound:
        """Which one it is hears only who may read it."""
        try:
            self._access.require(ask.caller, snapshot, READ, "")
        except ArkvoryError:
            return unknown_repository(ask.repository)
        return other_format(snapshot)

    def _judge_member(self, entered: Judged, member_id: int) -> Judged:
        """Raises NotFound when it is no member any more, RepositoryOffline and RepositoryMaintenance."""
        membership = self._memberships.get(entered.snapshot)
        snapshot = self._snapshots.of((member_id,)).get(member_id)
        if snapshot is None or member_id not in membership.members:
            raise NotFound(f"a member of {entered.snapshot.name!r} was taken away meanwhile")
        check_online(snapshot)
        return self.judged_member(entered, snapshot)

    def judged_member(self, entered: Judged, snapshot: Snapshot, *, believes_absences: bool = False) -> Judged:
        """Of a group that was judged. Make it right before it is used: its epochs are those of this moment."""
        epochs = self._cache.effective(snapshot.id, snapshot.epochs)
        return Judged(snapshot, epochs, entered.installation, entered, believes_absences)

    def _may_use_memory(self, judged: Judged, caller: Caller) -> bool:
        """C8 without a statement: nothing that the decision rests on has moved while it was made, nor is in doubt (C2)."""
        cache = self._cache
        return (
            self._stands(judged.snapshot, judged.epochs)
            and judged.installation == cache.view.installation
            and self._access.identities.is_current(caller.identity)
            and not cache.doubts.installation
            and (judged.entered is None or self._stands_still(judged.entered.snapshot))
        )

    def _stands(self, snapshot: Snapshot, epochs: Epochs) -> bool:
        decided = snapshot.epochs
        return self._cache.may_keep(snapshot.id) and (
            epochs is decided
            or (epochs.metadata == decided.metadata and epochs.authorization == decided.authorization and epochs.members == decided.members)
        )

    def _stands_still(self, group: Snapshot) -> bool:
        """A walk may have waited since the group was judged."""
        return self._stands(group, self._cache.effective(group.id, group.epochs))

    def _is_outdated(self, judged: Judged, caller: Caller, seen: Seen) -> bool:
        """C8: any number but the content epoch is larger than the one that the decision was made with, or the user is gone (0)."""
        entered = judged.entered
        return (
            _has_moved(judged.snapshot, seen.epochs)
            or seen.user_revision != caller.revision
            or seen.installation > judged.installation
            or not caller.holds_at(seen.repository_id, seen.epochs.authorization)
            or (entered is not None and seen.entered is not None and self._has_moved_group(entered.snapshot, caller, seen.entered[1]))
        )

    def _has_moved_group(self, group: Snapshot, caller: Caller, epochs: Epochs) -> bool:
        return _has_moved(group, epochs) or not caller.holds_at(group.id, epochs.authorization)

    def _decide_again(self, ask: Ask) -> Looked:
        with self._database.consistent() as connection:
            decided = self._decide_in(connection, ask)
            row = connection.execute(*_gate_query(decided, ask)).one()
        return self._keep_gate(decided, ask, row)

    def _decide_in(self, connection: Connection, ask: Ask) -> _Decided:
        snapshot = find_repository(connection, ask.caller, ask.repository, ask.tenant, ask.format)
        check_online(snapshot)
        self._access.require_now(connection, ask.caller, snapshot, READ, ask.path if ask.of is None else ask.of)
        return _Decided(snapshot) if not ask.member else _Decided(member_now(connection, snapshot, ask.member), snapshot)

    def decide_group(self, ask: Ask) -> tuple[Judged, Membership]:
        """A group and who belongs to it, of one state of the database."""
        with self._database.consistent() as connection:
            decided = self._decide_in(connection, ask).snapshot
            seen, _ = _read_numbers(connection, _Decided(decided), ask.caller)
            membership = read_membership(connection, decided)
        assert seen is not None
        self._cache.observe(seen)
        return Judged(decided, self._cache.effective(decided.id, decided.epochs), seen.installation), membership

    # -- gates

    def _kept_gate(self, judged: Judged, path: str) -> Gate | None:
        if not self._cache.may_keep(judged.snapshot.id):
            return None
        gate: Gate | None = self._cache.gates.get(keys.for_gate(judged.snapshot.id, judged.epochs, path))
        return gate

    def _known_absent(self, judged: Judged, path: str) -> Absence | None:
        """Null when it is not known that nothing is there."""
        cache = self._cache
        if not (cache.believes_absences or judged.believes_absences) or not cache.may_keep(judged.snapshot.id):
            return None
        return cache.absences.get(keys.for_gate(judged.snapshot.id, judged.epochs, path))

    def _load_gate(self, judged: Judged, ask: Ask) -> Looked:
        decided = _Decided(judged.snapshot, _entered(judged))
        with self._database.read() as connection:
            row = connection.execute(*_gate_query(decided, ask)).first()
        if row is None:
            return self._decide_again(ask)
        seen = _seen(decided, row, ask.caller)
        if self._is_outdated(judged, ask.caller, seen):
            self._cache.observe(seen)
            return self._decide_again(ask)
        return self._keep_gate(decided, ask, row)

    def _keep_gate(self, decided: _Decided, ask: Ask, row: Row[Any]) -> Looked:
        """C3: under the epochs that the same statement read."""
        seen, snapshot = _seen(decided, row, ask.caller), decided.snapshot
        self._cache.observe(seen)
        keep = self._cache.may_keep(snapshot.id)
        key, tags = keys.for_gate(snapshot.id, seen.epochs, ask.path), (keys.tag_of_repository(snapshot.id),)
        if row.blob_id is None:
            absence = Absence(row.folder, row.named)
            if keep:
                self._cache.absences.put(key, absence, tags=tags)
            return Looked(snapshot, absence)
        gate = Gate(
            ask.path, row.blob_id, row.digest, row.size, row.checksums, row.content_type, row.metadata, row.created_at, row.updated_at,
            row.reason, row.trust, row.candidate_at, freshness_of(row),
        )  # fmt: skip
        if keep:
            self._cache.gates.put(key, gate, tags=tags)
        return Looked(snapshot, gate)

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

    def find(self, connection: Connection, snapshot: Snapshot, path: str) -> Callable[[], Brought]:
        row = connection.execute(_BLOB, {"id": snapshot.id, "path": path}).first()
        if row is None:
            raise absent_at(snapshot.format, path, snapshot.name)
        return lambda: brought(self.store.open(row.digest, row.id), row.address)


def brought(blob: OpenBlob, address: str | None) -> Brought:
    """The same bytes, with what is known of where they came from."""
    return Brought(blob.fd, blob.size, address or "")


def _written(draft: Draft) -> tuple[bytes, Headers]:
    made: bytes | tuple[bytes, Headers] = gevent.get_hub().threadpool.apply(draft.write) if draft.long else draft.write()
    return (made, draft.headers) if isinstance(made, bytes) else made


_BLOB = text(
    f"select b.id, b.digest, a.metadata ->> '{ADDRESS}' as address from arkvory_artifacts a join arkvory_blobs b on b.id = a.blob_id "
    "where a.repository_id = :id and a.path = :path and not a.withheld"
)
_EPOCHS = "{0}.metadata_epoch, {0}.authorization_epoch, {0}.content_epoch, {0}.members_epoch"
_NUMBERS = f"{_EPOCHS.format('r')}, i.epoch as installation, coalesce(u.revision, 0) as revision"
_NUMBERS_FROM = "from arkvory_repositories r cross join arkvory_installation i left join arkvory_users u on u.id = :user"
# Of a member: the numbers of the group, too (C8).
_ENTERED, _ENTERED_FROM = f", {_EPOCHS.format('e')}", " join arkvory_repositories e on e.id = :entered and e.deleted_at is null"


def _gate_text(entered: str, entered_from: str) -> TextClause:
    return text(
        # `details` are for documents; gates are kept by the thousand.
        f"select {_NUMBERS}{entered}, a.content_type, a.metadata - 'details' as metadata, a.created_at, a.dated_at as updated_at, "
        "b.id as blob_id, b.digest, b.size, b.checksums, h.reason, h.trust, a.candidate_at, "
        f"{FRESHNESS}, "
        # Looked for where nothing else is found.
        "case when a.path is null then exists (select 1 from arkvory_artifacts f where f.repository_id = r.id and not f.withheld "
        "and f.path > :folder and f.path < :folder_end) end as folder, "
        "case when a.path is null then :package <> '' and exists (select 1 from arkvory_packages p "
        f"where p.repository_id = r.id and p.name = :package) end as named {_NUMBERS_FROM}{entered_from} "
        "left join arkvory_artifacts a on a.repository_id = r.id and a.path = :path left join arkvory_blobs b on b.id = a.blob_id "
        "left join arkvory_holds h on h.repository_id = r.id and h.path = :path left join arkvory_freshness f on f.artifact_id = a.id "
        "where r.id = :id and r.deleted_at is null"
    )


def _numbers_text(entered: str, entered_from: str) -> TextClause:
    return text(f"select {_NUMBERS}{entered}, i.incarnation {_NUMBERS_FROM}{entered_from} where r.id = :id and r.deleted_at is null")


_GATE_QUERY, _MEMBER_GATE_QUERY = _gate_text("", ""), _gate_text(_ENTERED, _ENTERED_FROM)
_NUMBERS_QUERY, _MEMBER_NUMBERS_QUERY = _numbers_text("", ""), _numbers_text(_ENTERED, _ENTERED_FROM)


@dataclass(frozen=True, slots=True)
class _Decided:
    """What was decided about: a repository, and the group by which it was reached."""

    snapshot: Snapshot
    entered: Snapshot | None = None

    @property
    def parameters(self) -> dict[str, Any]:
        return {"id": self.snapshot.id} | ({} if self.entered is None else {"entered": self.entered.id})


def _entered(judged: Judged) -> Snapshot | None:
    return None if judged.entered is None else judged.entered.snapshot


def _gate_query(decided: _Decided, ask: Ask) -> tuple[TextClause, dict[str, Any]]:
    values = {
        "path": ask.path, "folder": ask.path + "/", "folder_end": ask.path + "0", "package": package_of(ask.format, ask.path),
        "user": ask.caller.user_id,
    }  # fmt: skip
    return _GATE_QUERY if decided.entered is None else _MEMBER_GATE_QUERY, decided.parameters | values


def _seen(decided: _Decided, row: Row[Any], caller: Caller) -> Seen:
    entered = None if decided.entered is None else (decided.entered.id, Epochs._make(row[6:10]))
    return Seen(decided.snapshot.id, Epochs._make(row[:4]), caller.user_id or None, row.revision, row.installation, entered)


def _read_numbers(connection: Connection, decided: _Decided, caller: Caller) -> tuple[Seen | None, str]:
    query = _NUMBERS_QUERY if decided.entered is None else _MEMBER_NUMBERS_QUERY
    row = connection.execute(query, decided.parameters | {"user": caller.user_id}).first()
    return (None, "") if row is None else (_seen(decided, row, caller), row.incarnation)


def _has_moved(decided: Snapshot, epochs: Epochs) -> bool:
    former = decided.epochs
    return epochs.metadata > former.metadata or epochs.authorization > former.authorization or epochs.members > former.members


_Having = Sequence[tuple[Contributor, int]]
_WITHHELD = text(
    "select r.content_epoch from arkvory_repositories r where r.id = :id "
    "and exists (select 1 from arkvory_holds h where h.repository_id = r.id)"
)
_WITHHELD_OF_PACKAGE = text(
    "select p.revision from arkvory_packages p where p.repository_id = :id and p.name = :package "
    "and exists (select 1 from arkvory_artifacts a where a.package_id = p.id and a.withheld)"
)


def _having(connection: Connection, source: DocumentSource, sight: Sight) -> _Having:
    """Those that have a part, with its revision, below zero where they show nothing; empty when all of them show nothing."""
    if sight.members is None or not isinstance(source, Merged):
        return _first(connection, source, sight.contributors)
    found: list[tuple[Contributor, int]] = []
    for each in sight.contributors:
        revision = _shown(connection, source, each)
        if revision is None and (withheld := source.withheld(connection, each.snapshot)) is not None:
            revision = -withheld
        if revision is not None:
            found.append((each, revision))
    return found if any(revision >= 0 for _, revision in found) else []


def _first(connection: Connection, source: DocumentSource, contributors: Sequence[Contributor]) -> _Having:
    for each in contributors:
        revision = _shown(connection, source, each)
        if revision is not None:
            return [(each, revision)]
    return []


def _shown(connection: Connection, source: DocumentSource | Merged, contributor: Contributor) -> int | None:
    return 0 if contributor.shelf is not None else source.revision(connection, contributor.snapshot)


def _revision(sight: Sight, having: _Having) -> int | str | None:
    """In a group of all that have a part: by whom, described how, and which."""
    if sight.members is None:
        return having[0][1] if having else None
    return repr([(each.snapshot.id, each.snapshot.epochs.metadata, revision) for each, revision in having])


def _alone(source: DocumentSource, shelf: Shelf | None = None) -> Look:
    """Made of the repository's own."""
    return lambda connection, snapshot, seen: Sight([Contributor(snapshot, shelf)], _document_key(snapshot.id, seen.epochs, source))


def _document_key(repository_id: int, epochs: Epochs, source: DocumentSource) -> Any:
    return keys.for_document(repository_id, epochs, source.key, source.representation)


def _validator(seen: Seen, incarnation: str, source: DocumentSource, revision: int | str | None) -> str:
    parts = (incarnation, seen.repository_id, seen.epochs.metadata, revision, source.key, source.representation)
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _aged(content: str, until: datetime) -> str:
    return hashlib.sha256(f"{content} {until.timestamp()!r}".encode()).hexdigest()[:32]


def _seconds_to(until: datetime | None) -> float | None:
    return None if until is None else (until - datetime.now(UTC)).total_seconds()


def is_online(snapshot: Snapshot) -> bool:
    return snapshot.status == "online"


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


def check_age(found: Found) -> None:
    """Raises TooYoung."""
    release = release_of(found.gate.path, found.gate.metadata)
    if release is not None:
        restrictions_of(found.snapshot).require_age(release)


def _absent(ask: Ask, *, folder: bool = False) -> NotFound:
    told = absent_at(ask.format, ask.path, ask.repository)
    return IsFolder(told.message, ask.path) if folder else told
