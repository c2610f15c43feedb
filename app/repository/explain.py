"""What a read of an address would come to now, and why. Nothing is asked of any upstream, and nothing changes: not even what memory keeps.

    permission   whether the subject may read, and by what (`access/explaining.py`)
    members      of a group: in its present order, each with what it would say, and which one answers
    gate         what the path points at, and what withholds it
    memory       what this process has of it, under the epochs that the next read goes by
    freshness    a proxy's copy: how old, and when it is compared next
    upstream     how this process gets along with it

All of it is read in one state of the database. A proxy that has neither a copy nor a memory of a miss would ask its upstream: what
comes of that nobody knows before.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Protocol

from sqlalchemy import Connection, Row

from app.access.decision import MANAGE, READ, Access, find_repository
from app.access.explaining import Verdict, explain
from app.access.identity import Caller
from app.cache import keys
from app.cache.snapshots import Snapshot
from app.cache.store import Cache
from app.cache.view import Epochs
from app.database.engines import Database
from app.database.statements import text
from app.errors import ArkvoryError, Forbidden, Invalid, Later, NotFound, Quarantined, UpstreamBusy
from app.repository.dialects import Order
from app.repository.fetching import UPSTREAM, Fetches
from app.repository.quarantine import reason_to_hold
from app.repository.reading import DocumentSource, Merged, check_online
from app.repository.withholding import Release, release_of, require_path, restrictions_of
from app.upstream.breaker import Condition
from app.upstream.freshness import COLUMNS, Freshness, freshness_of

# What becomes of a read: bytes that are here; a copy, once the upstream was asked about it; whatever the upstream says; an error.
SERVED, COMPARED, FETCHED, REFUSED, ABSENT, UNAVAILABLE = ANSWERS = ("served", "compared", "fetched", "refused", "absent", "unavailable")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an address stands for: the artifact at `path`, or with a `source` a document, in a proxy made of what is kept at `made_of`.

    `spelling` is the path as it was encoded, empty where nothing is. `copied`: a proxy has the document as its upstream makes it, a file.
    """

    format: str
    repository: str
    path: str
    spelling: str = ""
    source: DocumentSource | None = None
    made_of: str = ""
    copied: bool = False
    # See `reading.Ask`.
    slack: float = 0.0
    tenant: str = "default"

    def within(self, snapshot: Snapshot) -> Wanted:
        """What is looked at in that repository."""
        if self.source is None or snapshot.kind != "proxy":
            return self
        if self.copied:
            return replace(self, source=None)
        return replace(self, source=None, path=self.made_of, spelling="") if self.made_of else self


@dataclass(frozen=True, slots=True)
class Outcome:
    """One of `ANSWERS`; `code` is the error's, null where there is none."""

    answer: str
    detail: str
    code: str | None = None


@dataclass(frozen=True, slots=True)
class Pointed:
    """What a path points at. `published_at` as far as it is known, `available_at` while it is too young."""

    size: int
    sha256: str
    content_type: str
    updated_at: datetime
    published_at: datetime | None
    available_at: datetime | None


@dataclass(frozen=True, slots=True)
class Withheld:
    """A hold at a path, whether something is there or not."""

    reason: str
    trust: str
    held_at: datetime


@dataclass(frozen=True, slots=True)
class Memory:
    """What this process has of it: the snapshot, the gate, that nothing is there, documents (their representations).

    `miss`: for how many seconds on the upstream's 404 counts. `trusted` false: a commit of unknown outcome forbids to use any of it.
    """

    trusted: bool
    snapshot: bool
    gate: bool
    absence: bool
    miss: float | None
    documents: Sequence[str]


@dataclass(frozen=True, slots=True)
class Holding:
    """What one repository has to say; `rule` is the path rule that keeps it out, `condition` null: its upstream was not asked yet.

    `shown` is whether whoever asks may see the upstream, and what is known of it.
    """

    snapshot: Snapshot
    path: str
    outcome: Outcome
    chosen: bool
    effective: Epochs
    memory: Memory
    gate: Pointed | None
    quarantine: Withheld | None
    rule: str | None
    freshness: Freshness | None
    shown: bool
    condition: Condition | None

    @property
    def behind(self) -> bool:
        """A message to this process is under way, or was lost and the next probe will tell."""
        return self.effective.joined(self.snapshot.epochs) != self.effective


@dataclass(frozen=True, slots=True)
class Report:
    """`holding` null: who asks may not see it. `members` null: it is no group. `verdict` without rules where they may not see those."""

    wanted: Wanted
    outcome: Outcome
    verdict: Verdict
    holding: Holding | None = None
    members: Sequence[Holding] | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """A member of a group, in its order; `kept_from`: why it is not asked about this at all."""

    snapshot: Snapshot
    kept_from: str | None = None


class Walk(Protocol):
    """How a kind of repository that has nothing of its own goes through others."""

    def steps(self, connection: Connection, group: Snapshot, wanted: Wanted) -> Sequence[Step]: ...


class Explain:
    """For whoever may know of the repository: who may read it sees what comes of it, who manages it all the rest."""

    def __init__(self, database: Database, cache: Cache, access: Access, fetches: Fetches, walks: Mapping[str, Walk]) -> None:
        self._database = database
        self._cache = cache
        self._access = access
        self._fetches = fetches
        # By kind.
        self._walks = walks

    def report(self, caller: Caller, wanted: Wanted, subject: str | None = None) -> Report:
        """For the caller, or (for who manages the repository) for `user:NAME` or `anonymous`. Raises Invalid and access errors."""
        with self._database.consistent() as connection:
            snapshot = find_repository(connection, caller, wanted.repository, wanted.tenant, wanted.format)
            caller = self._known(connection, caller, snapshot)
            manages = self._manages(connection, caller, snapshot)
            verdict = explain(connection, self._subject(connection, caller, subject, manages=manages), snapshot, READ, wanted.path)
            if not manages:
                verdict = replace(verdict, rules=())
            if not (manages or verdict.allowed):
                return Report(wanted, _decided(snapshot, verdict), verdict)
            report = self._looked(connection, caller, snapshot, wanted, verdict)
        return report if verdict.allowed else replace(report, outcome=_decided(snapshot, verdict))

    def _known(self, connection: Connection, caller: Caller, snapshot: Snapshot) -> Caller:
        """The caller as they are now. Raises NotFound or Unauthenticated for who may not know of the repository."""
        try:
            return self._access.require_known(connection, caller, snapshot)
        except Forbidden:
            # They are told so wherever they ask; here also why.
            assert caller.identity is not None
            return replace(caller, identity=self._access.identities.read_again(connection, caller.identity))

    def upstream(self, caller: Caller, repository: str) -> tuple[Snapshot, Condition | None]:
        """How this process gets along with a proxy's upstream; null when it has not asked it yet. Raises NotFound and access errors."""
        with self._database.consistent() as connection:
            snapshot = find_repository(connection, caller, repository)
            self._access.require_whole(connection, caller, snapshot, MANAGE)
        if snapshot.kind != "proxy":
            raise NotFound(f"{repository!r} is a {snapshot.kind} repository: it has no upstream")
        return snapshot, self._fetches.condition(snapshot.id)

    def _manages(self, connection: Connection, caller: Caller, snapshot: Snapshot) -> bool:
        try:
            self._access.require_whole(connection, caller, snapshot, MANAGE)
        except ArkvoryError:
            return False
        return True

    def _subject(self, connection: Connection, caller: Caller, subject: str | None, *, manages: bool) -> Caller:
        if subject is None:
            return caller
        if not manages:
            raise Forbidden("what others may is told to those who manage the repository")
        kind, _, name = subject.partition(":")
        if subject == "anonymous":
            return Caller(None, caller.address)
        if kind != "user" or not name:
            raise Invalid("a subject is user:NAME or anonymous", field="subject")
        return Caller(self._access.identities.by_name(connection, name), caller.address)

    def _looked(self, connection: Connection, caller: Caller, snapshot: Snapshot, wanted: Wanted, verdict: Verdict) -> Report:
        entered = self._holding(connection, caller, snapshot, wanted)
        walk = self._walks.get(snapshot.kind)
        if walk is None or entered.outcome.answer == UNAVAILABLE:
            return Report(wanted, entered.outcome, verdict, replace(entered, chosen=True), None if walk is None else ())
        steps = walk.steps(connection, snapshot, wanted)
        members = _walked([self._member(connection, caller, each, wanted) for each in steps], wanted)
        outcome = _of_group(members, wanted)
        return Report(wanted, outcome, verdict, replace(entered, outcome=outcome), members)

    def _member(self, connection: Connection, caller: Caller, step: Step, wanted: Wanted) -> Holding:
        found = self._holding(connection, caller, step.snapshot, wanted)
        return found if step.kept_from is None else replace(found, outcome=Outcome(ABSENT, step.kept_from))

    # -- one repository

    def _holding(self, connection: Connection, caller: Caller, snapshot: Snapshot, wanted: Wanted) -> Holding:
        kept: Snapshot | None = self._cache.snapshots.peek(keys.for_snapshot(snapshot.tenant, snapshot.name))
        effective = self._cache.effective(snapshot.id, snapshot.epochs if kept is None else kept.epochs)
        memory = self._memory(snapshot, wanted, effective, kept=kept is not None)
        own, condition = snapshot.kind not in self._walks, self._fetches.condition(snapshot.id)
        look = _looked_at(connection, snapshot, wanted, memory.miss, condition, own=own)
        return Holding(
            snapshot, look.at.path, look.outcome, False, effective, memory, look.gate, look.quarantine, look.rule, look.freshness,
            self._manages(connection, caller, snapshot), look.condition,
        )  # fmt: skip

    def _memory(self, snapshot: Snapshot, wanted: Wanted, effective: Epochs, *, kept: bool) -> Memory:
        cache, at = self._cache, wanted.within(snapshot)
        gate = keys.for_gate(snapshot.id, effective, at.path)
        misses = cache.misses.peek(keys.for_miss(snapshot.id, effective, at.path)) or {}
        miss = misses.get(Order.of(snapshot, at.path, at.spelling).spelling, 0.0) - time.monotonic()
        documents = () if wanted.source is None else self._documents(snapshot, effective, wanted.source)
        return Memory(
            cache.may_keep(snapshot.id), kept, cache.gates.peek(gate) is not None, cache.absences.peek(gate) is not None,
            miss if miss > 0 else None, documents,
        )  # fmt: skip

    def _documents(self, snapshot: Snapshot, effective: Epochs, source: DocumentSource) -> Sequence[str]:
        """Their representations; of a group under whatever epochs, since its key depends on those of all members."""
        region = self._cache.documents
        named = {key: keys.named_document(key) for key in region.tagged(keys.tag_of_repository(snapshot.id))}
        return sorted(
            representation
            for key, (document, representation) in named.items()
            if document == source.key
            and region.peek(key) is not None
            and (snapshot.kind in self._walks or key == keys.for_document(snapshot.id, effective, document, representation))
        )


@dataclass(frozen=True, slots=True)
class _Look:
    """One path of one repository as the database has it, and what this process knows of its upstream. The outcome is what a read says."""

    snapshot: Snapshot
    at: Wanted
    # The path that a path rule speaks of.
    asked: str
    row: Row[Any]
    # Why what is fetched would be held.
    reason: str | None
    has_document: bool
    miss: float | None
    condition: Condition | None

    @property
    def release(self) -> Release | None:
        return None if self.row.digest is None else release_of(self.at.path, self.row.metadata)

    @property
    def gate(self) -> Pointed | None:
        row, release = self.row, self.release
        if row.digest is None:
            return None
        available_at = None if release is None else restrictions_of(self.snapshot).available_at(release)
        is_young = available_at is not None and available_at > datetime.now(UTC)
        published_at = None if release is None else release.at
        return Pointed(row.size, row.digest, row.content_type, row.updated_at, published_at, available_at if is_young else None)

    @property
    def quarantine(self) -> Withheld | None:
        return None if self.row.reason is None else Withheld(self.row.reason, self.row.trust, self.row.held_at)

    @property
    def rule(self) -> str | None:
        restrictions = restrictions_of(self.snapshot)
        return restrictions.keep_out(self.asked) if restrictions.are_about_paths else None

    @property
    def freshness(self) -> Freshness | None:
        return freshness_of(self.row)

    @property
    def outcome(self) -> Outcome:
        try:
            check_online(self.snapshot)
            require_path(self.snapshot, self.asked)
            return self._of_proxy() if self.snapshot.kind == "proxy" and self.at.source is None else self._of_rows()
        except ArkvoryError as error:
            return _failed(error)

    def _of_rows(self) -> Outcome:
        if self.at.source is not None:
            return Outcome(SERVED, "made of what is stored") if self.has_document else self._absent("what is stored makes no such document")
        if self.row.digest is None:
            return self._absent("nothing is stored there")
        self._require_release()
        return Outcome(SERVED, "stored here")

    def _of_proxy(self) -> Outcome:
        if not self.snapshot.caching_allowed:
            return self._asked("nothing is stored here (caching): the upstream is asked each time", self.reason)
        if self.row.digest is None:
            return self._of_nothing()
        self._require_release()
        known = self.freshness
        if known is not None and not known.is_due(self.snapshot.upstream_url, time.time() - self.at.slack):
            return Outcome(SERVED, "the copy is fresh" if not known.immutable else "the copy is of what never changes")
        if self._is_left_alone:
            return Outcome(SERVED, f"the copy is due, but {self._leaving_alone}: it is served as it is")
        return Outcome(COMPARED, "the copy is due: the upstream is asked, and the copy served when it gives no usable answer")

    def _of_nothing(self) -> Outcome:
        if self.miss is not None:
            return self._absent(f"the upstream said that it has no such file; it is asked again in {self.miss:.0f} s")
        return self._asked("there is no copy: the upstream is asked", None)

    def _asked(self, why: str, refused: str | None) -> Outcome:
        if refused is not None:
            raise Quarantined(f"{self.at.path!r} is held in quarantine: {refused}")
        if self._is_left_alone:
            raise UpstreamBusy(f"{why}, but {self._leaving_alone}")
        return Outcome(FETCHED, why if self.reason is None else f"{why}, and what comes is held in quarantine: {self.reason}")

    def _absent(self, why: str) -> Outcome:
        return Outcome(ABSENT, why, NotFound.code)

    def _require_release(self) -> None:
        if self.row.reason is not None:
            raise Quarantined(f"{self.at.path!r} is held in quarantine: {self.row.reason}")
        if (release := self.release) is not None:
            restrictions_of(self.snapshot).require_age(release)

    @property
    def _is_left_alone(self) -> bool:
        return self.condition is not None and self.condition.until is not None

    @property
    def _leaving_alone(self) -> str:
        assert self.condition is not None and self.condition.until is not None
        return f"this process leaves the upstream alone until {self.condition.until:%H:%M:%S} UTC ({self.condition.state})"


def _looked_at(
    connection: Connection, snapshot: Snapshot, wanted: Wanted, miss: float | None, condition: Condition | None, *, own: bool
) -> _Look:
    """`own`: it may have something itself; of what others have its documents tell nothing."""
    at = wanted.within(snapshot)
    row = connection.execute(_POINTED, {"id": snapshot.id, "path": at.path}).one()
    reason = reason_to_hold(connection, snapshot, at.path, UPSTREAM) if snapshot.kind == "proxy" else None
    has_document = own and at.source is not None and at.source.revision(connection, snapshot) is not None
    return _Look(snapshot, at, wanted.path, row, reason, has_document, miss, condition)


def _failed(error: ArkvoryError, detail: str | None = None) -> Outcome:
    answer = UNAVAILABLE if isinstance(error, Later) else ABSENT if isinstance(error, NotFound) else REFUSED
    return Outcome(answer, detail or error.message, error.code)


def _decided(snapshot: Snapshot, verdict: Verdict) -> Outcome:
    """For who may not read; that the repository is offline comes first."""
    assert verdict.error is not None
    try:
        check_online(snapshot)
    except ArkvoryError as error:
        return _failed(error)
    return _failed(verdict.error, verdict.because)


# -- groups


def _walked(members: Sequence[Holding], wanted: Wanted) -> Sequence[Holding]:
    """With those marked that answer: the first one that does not pass; of a document that is merged all that have a part in it."""
    if wanted.source is not None and isinstance(wanted.source, Merged):
        return [replace(each, chosen=each.outcome.answer in {SERVED, COMPARED}) for each in members]
    ends = {SERVED, COMPARED, REFUSED} if wanted.source is None else {SERVED, COMPARED}
    first = next((each for each in members if each.outcome.answer in ends), None)
    return [replace(each, chosen=each is first) for each in members]


def _of_group(members: Sequence[Holding], wanted: Wanted) -> Outcome:
    """What the walk ends with. A member that cannot answer may have it, so that nothing is called absent then."""
    for each in members:
        if each.chosen or (each.outcome.answer == FETCHED and wanted.source is None):
            return replace(each.outcome, detail=f"{each.snapshot.name}: {each.outcome.detail}")
    for answer in (FETCHED, UNAVAILABLE):
        found = next((each for each in members if each.outcome.answer == answer), None)
        if found is not None:
            return replace(found.outcome, detail=f"{found.snapshot.name}: {found.outcome.detail}")
    return Outcome(ABSENT, "no member has it" if members else "the group has no members", NotFound.code)


_POINTED = text(
    "select a.content_type, a.metadata - 'details' as metadata, a.dated_at as updated_at, b.digest, b.size, h.reason, h.trust, h.held_at, "
    f"{COLUMNS} from arkvory_repositories r left join arkvory_artifacts a on a.repository_id = r.id and a.path = :path "
    "left join arkvory_blobs b on b.id = a.blob_id left join arkvory_holds h on h.repository_id = r.id and h.path = :path "
    "left join arkvory_freshness f on f.artifact_id = a.id where r.id = :id"
)
