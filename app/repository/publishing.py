"""Publishing (DESIGN 5): a write reads as a list of verbs.

    check early      the right, the policy, before a byte of the body is read
    take a place     wait in memory, fairly
    reserve          under the global lock, from counters
    receive          stream, hash, write, sync
    place            the blob's row (`placing`), then the rename
    publish          one short transaction under the repository's lock

The commit moves the path; whatever ends earlier leaves nothing that anyone can see (W1).
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import gevent
from sqlalchemy import Connection, Row

from app.access.decision import WRITE, Access
from app.access.identity import Caller
from app.cache.changes import Transaction, Transactions, UploadState
from app.cache.snapshots import Snapshot
from app.database.engines import Database
from app.database.greenlets import to_the_end
from app.database.locks import Step
from app.database.statements import text
from app.errors import (
    AlreadyExists,
    ArkvoryError,
    BodyCutShort,
    Invalid,
    Later,
    NotAllowedHere,
    NotFound,
    PreconditionFailed,
)
from app.repository.blobs import Blobs, Linked
from app.repository.destination import Target as Target
from app.repository.destination import destination
from app.repository.formats import FORMATS, check_version_policy, immutable_tag, is_written_once, write_policy
from app.repository.names import check_path, is_content_type
from app.repository.quarantine import apply_rules, held_paths, spread_holds
from app.repository.references import Reference, resolved
from app.repository.references import write as write_references
from app.repository.writable import settings_for_writing
from app.storage import BlobStore
from app.storage.threads import apart
from app.upload.admission import Admission, Reservation
from app.upload.places import Places
from app.upload.receiving import Expected, Received, Receiver
from app.upload.sessions import Address, Sessions
from app.upstream.freshness import Origin


@dataclass(frozen=True)
class Conditions:
    """What the client demands of the present state; ETags unquoted, `*` for any. Null: it demands nothing; empty: nothing fulfils it."""

    if_match: frozenset[str] | None = None
    if_none_match: frozenset[str] | None = None

    def check(self, path: str, digest: str | None) -> None:
        """Raises PreconditionFailed; `digest` is what the path points at, null for nothing."""
        present = frozenset() if digest is None else frozenset({"*", digest})
        if self.if_none_match is not None and self.if_none_match & present:
            raise PreconditionFailed(f"{path!r} exists already (If-None-Match)")
        if self.if_match is not None and not self.if_match & present:
            raise PreconditionFailed(f"{path!r} is not what it was (If-Match)")


@dataclass(frozen=True)
class NewFile:
    """One file of a publish; `metadata` is what the format's documents are made of.

    `package` is its own, in place of the whole publish's. A part is kept by references to it alone, once its grace is over.
    """

    path: str
    received: Received | Linked
    content_type: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    version: str | None = None
    package: Package | None = None
    references: Sequence[Reference] = ()
    is_part: bool = False
    # Of what a proxy fetched.
    origin: Origin | None = None


@dataclass(frozen=True)
class KnownBlob:
    """A blob to link: `sha256` and other checksums in hexadecimal, `size` in bytes."""

    sha256: str
    size: int
    checksums: Mapping[str, str]


@dataclass(frozen=True)
class Published:
    """What a publish did to one path; `id` is the artifact's."""

    id: int
    path: str
    created: bool
    sha256: str
    checksums: Mapping[str, str]
    updated_at: datetime


# What a format writes of its own about what is published, into its own tables: called in the publish's transaction, under the repository's
# lock, with the package's id and what was published. What it raises takes the publish back.
Also = Callable[[Connection, int, Sequence[Published]], None]


@dataclass(frozen=True)
class Package:
    """What the repository's index groups the files by; `name` normalised, `display_name` as published."""

    name: str
    display_name: str
    also: Also | None = field(default=None, compare=False)


@dataclass(frozen=True)
class _Current:
    """What a path points at before the publish."""

    id: int
    blob_id: int
    digest: str
    upload_id: Any
    package_id: int | None
    size: int
    updated_at: datetime
    withheld: bool

    def may_be(self, digest: str | None, size: int | None) -> bool:
        """Whether these are the same bytes, as far as is known of those that come."""
        return digest in (None, self.digest) and size in (None, self.size)


@dataclass(frozen=True)
class _Stored:
    """What was made of the files before the transaction, in their order: the rows of their blobs, their metadata as JSON."""

    blob_ids: Sequence[int]
    metadata: Sequence[str]


class _Repeated(Exception):
    """All that a publish brings is there already, byte for byte, and stays as it is."""

    def __init__(self, published: list[Published]) -> None:
        super().__init__()
        self.published = published


class Session:
    """One publish: a place, its uploads, and the end of both. Use as a context manager."""

    def __init__(self, publisher: Publisher, target: Target, snapshot: Snapshot, place: contextlib.ExitStack) -> None:
        self._publisher = publisher
        self._target = target
        self._snapshot = snapshot
        self._place = place
        self._receivers: list[Receiver] = []
        self._reservations: list[Reservation] = []
        self._going_on: tuple[Receiver, Reservation] | None = None
        self._published = False

    @property
    def snapshot(self) -> Snapshot:
        return self._snapshot

    @property
    def published(self) -> bool:
        """Something was written: all of it was not there already."""
        return self._published

    def receiver(
        self, expected: Expected, when_small: Iterable[str] = (), at_most: int | None = None, always: Iterable[str] = ()
    ) -> Receiver:
        """Reserve room for one body, `at_most` so long where its size is not known. Raises CapacitySpent, TooLarge.

        Nothing of the body has been read by then. Its digests: `always` these, and `when_small` those too.
        """
        publisher = self._publisher
        reservation = publisher.admission.open(self._snapshot.id, expected.size, self._target.caller.upload_key, at_most)
        self._reservations.append(reservation)
        receiver = Receiver(publisher.admission, publisher.store, reservation, expected, when_small, always)
        self._receivers.append(receiver)
        return receiver

    def store(self, body: bytes, when_small: Iterable[str] = ()) -> Received:
        """A small body that is at hand already."""
        receiver = self.receiver(Expected(size=len(body)), when_small)
        receiver.feed(body)
        return receiver.finish()

    def store_for(self, body: bytes, count: int, digests: Mapping[str, str]) -> list[Received]:
        """The same for `count` paths, which are counted each; `digests` are those that it must have. Raises DigestMismatch too."""
        publisher = self._publisher
        reservations = publisher.admission.open_all(self._snapshot.id, [len(body)] * count, self._target.caller.upload_key)
        self._reservations += reservations
        receiver = Receiver(publisher.admission, publisher.store, reservations[0], Expected(digests, len(body)))
        self._receivers.append(receiver)
        receiver.feed(body)
        received = receiver.finish()
        return [replace(received, reservation=each) for each in reservations]

    def remade(self, received: Received, make: Callable[[Path, Callable[[bytes], object]], None]) -> Received:
        """Another body, which `make` feeds from the file of one that came and is given back. Raises what both raise."""
        receiver = self.receiver(Expected(), at_most=received.size)
        make(received.path, receiver.feed)
        made = receiver.finish()
        self._give_back(received)
        return made

    def _give_back(self, received: Received) -> None:
        apart(received.incoming.discard)
        self._publisher.admission.release([received.reservation.id])
        self._reservations.remove(received.reservation)

    def again(self, received: Received, count: int) -> list[Received]:
        """The same bytes for so many more paths. Raises CapacitySpent."""
        publisher = self._publisher
        reservations = publisher.admission.open_all(self._snapshot.id, [received.size] * count, self._target.caller.upload_key)
        self._reservations += reservations
        return [replace(received, reservation=each) for each in reservations]

    def link(self, blobs: Sequence[KnownBlob]) -> list[Linked]:
        """Room for more paths to what is here already. Raises CapacitySpent or NotFound."""
        publisher = self._publisher
        reservations = publisher.admission.open_all(self._snapshot.id, [each.size for each in blobs], self._target.caller.upload_key)
        self._reservations += reservations
        return [Linked(room, each.sha256, each.size, each.checksums) for room, each in zip(reservations, blobs, strict=True)]

    def go_on(self, address: Address, offset: int | None, expected: Expected, always: Iterable[str] = ()) -> Receiver:
        """The next bytes of an upload that takes several requests, from `offset` on where the client says so.

        Raises UploadUnknown, WrongOffset or TooManyUploads, which change nothing.

        When this publish ends without publishing it, it is paused where that makes sense: nothing was wrong, or the client broke off,
        or it may come back later. Otherwise its bytes are given back.
        """
        publisher = self._publisher
        held = publisher.sessions.hold(address, offset)
        receiver = Receiver(publisher.admission, publisher.store, held.reservation, expected, (), always, (held.incoming, held.progress))
        self._going_on = receiver, held.reservation
        return receiver

    def publish(self, files: Sequence[NewFile], conditions: Conditions | None = None, package: Package | None = None) -> list[Published]:
        """All files or none. Raises AlreadyExists, PreconditionFailed, NotAllowedHere and what the locks and the database raise."""
        try:
            published = self._publisher.commit(self._target, self._snapshot, files, conditions or Conditions(), package)
        except _Repeated as again:
            return again.published
        self._published = True
        return published

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._place:
            to_the_end(lambda: self._end(error))

    def _end(self, error: BaseException | None) -> None:
        try:
            self._settle_upload(error)
        finally:
            self._discard()

    def _settle_upload(self, error: BaseException | None) -> None:
        """What becomes of an upload that `go_on` went on with."""
        if self._going_on is None:
            return
        receiver, reservation = self._going_on
        wrong = isinstance(error, ArkvoryError) and not isinstance(error, BodyCutShort | Later)
        # The file of a whole one may be at a blob's address already: nobody writes into it again.
        if self._published or wrong or receiver.finished:
            self._receivers.append(receiver)
            self._reservations.append(reservation)
        else:
            self._pause(receiver, reservation)

    def _pause(self, receiver: Receiver, reservation: Reservation) -> None:
        """Raises UploadGivenUp or UploadUnknown when somebody else went on with it, or ended it."""
        publisher = self._publisher
        try:
            publisher.sessions.pause(reservation, receiver.pause())
        finally:
            publisher.admission.forget(reservation.id)

    def _discard(self) -> None:
        """W1: whatever was not published is given back at once; what cannot be is left to the cleanup."""
        try:
            with contextlib.ExitStack() as all_of_them:
                for receiver in self._receivers:
                    all_of_them.callback(receiver.discard)
        finally:
            if self._published:
                for each in self._reservations:
                    self._publisher.admission.forget(each.id)
            elif self._reservations:
                self._publisher.admission.release([each.id for each in self._reservations])


class Publisher:
    """Publishes into hosted repositories, whatever the format."""

    def __init__(
        self,
        database: Database,
        transactions: Transactions,
        access: Access,
        places: Places,
        admission: Admission,
        store: BlobStore,
        blobs: Blobs,
        sessions: Sessions,
    ) -> None:
        self._database = database
        self._transactions = transactions
        self._access = access
        self._places = places
        self.admission = admission
        self.store = store
        self._blobs = blobs
        self.sessions = sessions

    @contextlib.contextmanager
    def begin(
        self, target: Target, path: str | None, conditions: Conditions | None = None, size: int | None = None, *, links: bool = False
    ) -> Iterator[Session]:
        """Everything that can be refused before the body is read, then a place; one that only `links` moves no bytes, and needs none.

        `path` is where the file goes; null when its name comes with the body, which is then judged at the commit.
        `size` is that of the body in bytes, where it is known.
        Raises Unauthenticated, Forbidden, NotFound, NotAllowedHere, AlreadyExists, PreconditionFailed,
        TooManyUploads, Unavailable.
        """
        snapshot = self.may_publish(target, path, conditions, size)
        place = contextlib.ExitStack()
        if not links:
            place.enter_context(self._places.take(target.caller.upload_key))
        with Session(self, target, snapshot, place) as session:
            yield session

    def may_publish(self, target: Target, path: str | None, conditions: Conditions | None = None, size: int | None = None) -> Snapshot:
        """The first step of `begin` alone."""
        if path is not None:
            check_path(path)
        self._transactions.ownership.require()
        with self._database.read() as connection:
            snapshot, settings = self._check_right(connection, target, (path,))
            if path is not None:
                (current,) = _currents(connection, snapshot.id, [path])
                _check_policy(connection, snapshot, settings, _Offer(path, conditions or Conditions(), None, size), current)
        return snapshot

    def _check_right(self, connection: Connection, target: Target, paths: Iterable[str | None]) -> tuple[Snapshot, Mapping[str, Any]]:
        """C10: from the database, in the order of reads. Raises the errors of `begin`."""
        snapshot = destination(connection, self._access, target, WRITE, paths)
        settings = settings_for_writing(connection, snapshot.id)
        if write_policy(snapshot.format, settings) == "read_only":
            raise NotAllowedHere(f"repository {snapshot.name!r} is read only")
        return snapshot, settings

    # -- the commit

    def commit(
        self, target: Target, snapshot: Snapshot, files: Sequence[NewFile], conditions: Conditions, package: Package | None
    ) -> list[Published]:
        """Place the blobs, then publish in one transaction; cleanup leaves alone what is being placed (W3)."""
        for each in files:
            check_path(each.path)
            if not is_content_type(each.content_type):
                raise Invalid(f"the content type of {each.path!r} is not one", field="Content-Type")
        if len({each.path for each in files}) != len(files):
            raise Invalid("two files of one upload have the same name")
        metadata = _texts([each.metadata for each in files])
        # Several paths of one publish may be for the same bytes.
        placed = {each.received.sha256: self._blobs.place(each.received) for each in _one_of_each(files)}
        stored = _Stored([placed[each.received.sha256] for each in files], metadata)
        return self._publish(target, snapshot, files, stored, conditions, package)

    def _publish(
        self,
        target: Target,
        snapshot: Snapshot,
        files: Sequence[NewFile],
        stored: _Stored,
        conditions: Conditions,
        package: Package | None,
    ) -> list[Published]:
        with self._transactions.begin(snapshot.id) as transaction:
            connection = transaction.connection
            now, settings = self._check_right(connection, target, [each.path for each in files])
            if now.id != snapshot.id:
                raise NotFound(f"repository {snapshot.name!r} was deleted meanwhile")
            currents = _currents(connection, snapshot.id, [each.path for each in files])
            self._check_offers(connection, Standing(now, settings, currents), files, conditions)
            stale = _stale_companions(connection, now, files, currents)
            references = _references(connection, now, files)
            new = {each.path for each, current in zip(files, currents, strict=True) if current is None}
            held = _hold(connection, now, [each.path for each in files], target.caller, references, new)
            epochs = transaction.advance(snapshot.id, "content", paths=[each.path for each in files])
            gone = [*currents, *(each for _, each in stale)]
            packages = _touch_packages(transaction, snapshot.id, epochs.content, _shown(files, currents, stale, held, package))
            self._blobs.take(transaction, stored.blob_ids, [each.blob_id for each in gone if each is not None])
            if stale:
                delete_rows(connection, snapshot.id, [each.upload_id for _, each in stale])
            published = [
                _write_artifact(
                    connection,
                    _Place(snapshot.id, blob_id, packages.get(each.package or package), each.path in held, known),
                    each,
                    target.caller,
                    current,
                )
                for each, blob_id, known, current in zip(files, stored.blob_ids, stored.metadata, currents, strict=True)
            ]
            if references:
                write_references(connection, snapshot.id, references)
            _tell_packages(connection, packages, [each.package or package for each in files], published)
            self._remember(connection, now, files)
            states = {each.upload_id: UploadState("garbage") for each in gone if each is not None}
            # Last: of one that another process published meanwhile under the same name, nothing becomes garbage.
            states |= {(room := each.received.reservation).id: UploadState("published", each.received.size, room.holder) for each in files}
            transaction.settle_uploads(states)
        return published

    def _check_offers(self, connection: Connection, standing: Standing, files: Sequence[NewFile], conditions: Conditions) -> None:
        """Whether the policy lets these files in, and each replace what is there."""
        for each, current in zip(files, standing.currents, strict=True):
            offer = _Offer(each.path, conditions if each is files[0] else Conditions(), each.received.sha256, each.received.size)
            _check_policy(connection, standing.snapshot, standing.settings, offer, current)
        _check_for_repetition(standing.snapshot, standing.settings, files, standing.currents)

    def _remember(self, connection: Connection, snapshot: Snapshot, files: Sequence[NewFile]) -> None:
        """What else is to be known of what was published, in its own transaction."""


@dataclass(frozen=True)
class Standing:
    """What a publish finds: the repository, its settings, and what its paths point at now."""

    snapshot: Snapshot
    settings: Mapping[str, Any]
    currents: Sequence[_Current | None]


def _hold(
    connection: Connection,
    snapshot: Snapshot,
    paths: Sequence[str],
    caller: Caller,
    references: Mapping[str, Sequence[tuple[str, str]]],
    new: set[str],
) -> frozenset[str]:
    """Which of these paths are held from the publish on."""
    held = apply_rules(connection, snapshot, paths, caller)
    if references:
        spread_holds(connection, snapshot.id, references, new)
        held = held_paths(connection, snapshot.id, paths)
    return held


def _tell_packages(
    connection: Connection, packages: Mapping[Package | None, int], belonging: Sequence[Package | None], published: Sequence[Published]
) -> None:
    """Let formats write their own rows: `belonging` are the packages of what was published, `packages` the ids of each."""
    for package, package_id in packages.items():
        if package is not None and package.also is not None:
            package.also(connection, package_id, [done for done, whose in zip(published, belonging, strict=True) if whose == package])


def delete_rows(connection: Connection, repository_id: int, upload_ids: Sequence[Any]) -> None:
    """Delete the artifacts of these uploads, and remember the latest date that they showed."""
    connection.execute(
        text(
            "with gone as (delete from arkvory_artifacts where repository_id = :id and upload_id = any(:uploads) returning dated_at) "
            "update arkvory_repositories r set last_date_deleted = greatest(r.last_date_deleted, (select max(dated_at) from gone)) "
            "where r.id = :id and exists (select 1 from gone)"
        ),
        {"id": repository_id, "uploads": list(upload_ids)},
    )


def _currents(connection: Connection, repository_id: int, paths: Sequence[str]) -> list[_Current | None]:
    """What these paths point at, in their order."""
    if not paths:
        return []
    rows = connection.execute(
        text(
            "select a.path, a.id, a.blob_id, b.digest, a.upload_id, a.package_id, b.size, a.updated_at, a.withheld "
            "from arkvory_artifacts a join arkvory_blobs b on b.id = a.blob_id where a.repository_id = :id and a.path = any(:paths)"
        ),
        {"id": repository_id, "paths": list(paths)},
    )
    found = {path: _Current(*facts) for path, *facts in rows}
    return [found.get(each) for each in paths]


def _stale_companions(
    connection: Connection, snapshot: Snapshot, files: Sequence[NewFile], currents: Sequence[_Current | None]
) -> list[tuple[str, _Current]]:
    """What stood beside a file that is replaced (the first of each pair) and does not come with the new one: a signature of other bytes.

    Beside a new file it may have arrived first, as Maven's parallel uploads do.
    """
    brought = {each.path for each in files}
    replaced = [each.path for each, current in zip(files, currents, strict=True) if current is not None]
    beside = [(path, path + ending) for path in replaced for ending in FORMATS[snapshot.format].companions]
    wanted = [(main, path) for main, path in beside if path not in brought]
    found = _currents(connection, snapshot.id, [path for _, path in wanted])
    return [(main, each) for (main, _), each in zip(wanted, found, strict=True) if each is not None]


def _references(connection: Connection, snapshot: Snapshot, files: Sequence[NewFile]) -> dict[str, list[tuple[str, str]]]:
    """What the files refer to from now on, by path; empty where nothing ever does. Raises MissingParts."""
    if not FORMATS[snapshot.format].references:
        return {}
    wanted = {each.path: each.references for each in files if not each.is_part}
    return resolved(connection, snapshot.id, wanted, [each.path for each in files])


def _one_of_each(files: Sequence[NewFile]) -> list[NewFile]:
    return list({each.received.sha256: each for each in files}.values())


@dataclass(frozen=True)
class _Offer:
    """What is to go to a path; digest and size are null before they are known."""

    path: str
    conditions: Conditions
    digest: str | None
    size: int | None


def _check_policy(
    connection: Connection, snapshot: Snapshot, settings: Mapping[str, Any], offer: _Offer, current: _Current | None
) -> None:
    """Preconditions first: a client that sent one wants to hear about it."""
    path, conditions = offer.path, offer.conditions
    conditions.check(path, None if current is None else current.digest)
    check_version_policy(snapshot.format, settings, path)
    if not is_written_once(snapshot.format, settings, path):
        return
    if current is not None and not (FORMATS[snapshot.format].repeatable and current.may_be(offer.digest, offer.size)):
        tag = immutable_tag(snapshot.format, settings, path)
        raise AlreadyExists(tag or f"File already exists: {path!r}; this repository keeps what was published once")
    if FORMATS[snapshot.format].names_are_for_ever and _was_used(connection, snapshot.id, path):
        raise AlreadyExists(f"File already exists: {path!r} was deleted, and its name may not be used again")


def _check_for_repetition(
    snapshot: Snapshot, settings: Mapping[str, Any], files: Sequence[NewFile], currents: Sequence[_Current | None]
) -> None:
    """W4: what was published once stays as it is when the same comes again. Raises _Repeated."""
    known = [
        Published(current.id, file.path, False, current.digest, file.received.checksums, current.updated_at)
        for file, current in zip(files, currents, strict=True)
        # A part that comes again is wanted again: its grace begins anew.
        if current is not None and not file.is_part and is_written_once(snapshot.format, settings, file.path)
    ]
    if len(known) == len(files):
        raise _Repeated(known)


def _was_used(connection: Connection, repository_id: int, path: str) -> bool:
    statement = text("select 1 from arkvory_used_paths where repository_id = :id and path = :path")
    return connection.execute(statement, {"id": repository_id, "path": path}).first() is not None


def _shown(
    files: Sequence[NewFile],
    currents: Sequence[_Current | None],
    stale: Sequence[tuple[str, _Current]],
    held: frozenset[str],
    common: Package | None,
) -> Mapping[Package, int]:
    """How many files more than before the indexes of each package show."""
    counts: Counter[Package] = Counter()
    for file, current in zip(files, currents, strict=True):
        package = file.package or common
        if package is not None:
            before = [current, *(each for main, each in stale if main == file.path)]
            counts[package] += (file.path not in held) - sum(1 for each in before if each is not None and not each.withheld)
    return counts


def _touch_packages(
    transaction: Transaction, repository_id: int, revision: int, shown: Mapping[Package, int]
) -> Mapping[Package | None, int]:
    """Make or find the packages' rows in the order of their names, move their revisions (C9) and count what their indexes show; the ids."""
    if shown:
        transaction.order.reach(Step.PACKAGE)
    in_order = sorted(shown, key=lambda package: package.name)
    return {package: _touch_package(transaction, repository_id, package, revision, shown[package]) for package in in_order}


def _touch_package(transaction: Transaction, repository_id: int, package: Package, revision: int, new: int) -> int:
    return int(
        transaction.connection.execute(
            text(
                "insert into arkvory_packages as p (repository_id, name, display_name, artifacts, revision) "
                "values (:repository, :name, :display, greatest(:new, 0), :revision) on conflict (repository_id, name) do update "
                "set revision = excluded.revision, artifacts = p.artifacts + :new, "
                "display_name = excluded.display_name returning id"
            ),
            {
                "repository": repository_id,
                "name": package.name,
                "display": package.display_name,
                "new": new,
                "revision": revision,
            },
        ).scalar_one()
    )


@dataclass(frozen=True)
class _Place:
    """Where a file's row belongs, whether a hold covers it, and its metadata as JSON."""

    repository_id: int
    blob_id: int
    package_id: int | None
    withheld: bool
    metadata: str


def _write_artifact(connection: Connection, place: _Place, file: NewFile, caller: Caller, current: _Current | None) -> Published:
    row: Row[Any] = connection.execute(
        _ARTIFACT_UPSERT,
        {
            "repository": place.repository_id,
            "path": file.path,
            "blob": place.blob_id,
            "upload": file.received.reservation.id,
            "package": place.package_id,
            "withheld": place.withheld,
            "version": file.version,
            "content_type": file.content_type,
            "metadata": place.metadata,
            "by": caller.user_id if caller.user_id > 0 else None,
            "part": file.is_part,
        },
    ).one()
    return Published(row.id, file.path, current is None, file.received.sha256, file.received.checksums, row.updated_at)


_ARTIFACT_UPSERT = text(
    "insert into arkvory_artifacts (repository_id, path, blob_id, upload_id, package_id, version, content_type, "
    "metadata, created_by, withheld, candidate_at, dated_at) "
    "values (:repository, :path, :blob, :upload, :package, :version, :content_type, cast(:metadata as jsonb), :by, :withheld, "
    # A part that something refers to already, as a proxy's manifests do before their layers come, is none that cleanup looks at.
    "case when :part and not exists (select 1 from arkvory_references f where f.repository_id = :repository and f.path = :path "
    "and f.kind = 'part') then now() end, "
    "greatest(clock_timestamp(), (select date_trunc('second', r.last_date_deleted) + interval '1 second' "
    "from arkvory_repositories r where r.id = :repository))) "
    "on conflict (repository_id, path) do update set blob_id = excluded.blob_id, upload_id = excluded.upload_id, "
    "package_id = excluded.package_id, version = excluded.version, content_type = excluded.content_type, "
    "metadata = excluded.metadata, created_by = excluded.created_by, withheld = excluded.withheld, candidate_at = excluded.candidate_at, "
    "updated_at = clock_timestamp(), "
    # Seconds are all that Last-Modified has: other bytes always get a later one.
    "dated_at = greatest(clock_timestamp(), date_trunc('second', arkvory_artifacts.dated_at) + interval '1 second') "
    "returning id, updated_at"
)


def _texts(documents: Sequence[Mapping[str, Any]]) -> list[str]:
    """As JSON, in a thread when there is anything to write: how much, only writing tells."""
    if not any(documents):
        return ["{}"] * len(documents)
    return list(gevent.get_hub().threadpool.apply(lambda: [_json(each) for each in documents]))


def _json(value: Mapping[str, Any]) -> str:
    text = json.dumps(value)
    # What looks like an escape may also be a backslash and the rest of it, or half of a character whose other half follows.
    return json.dumps(_storable(value)) if "\\u0000" in text or "\\ud" in text else text


def _storable(value: Any) -> Any:
    """Without what PostgreSQL keeps in no text: NUL goes, and half a character becomes U+FFFD, as it does in most clients."""
    if isinstance(value, str):
        return value.replace("\0", "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        return {_storable(key): _storable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(each) for each in value]
    return value
