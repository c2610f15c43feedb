"""Reading from a group: its members in their present order, asked anew at each request (DESIGN 6).

Whether the caller may read is the group's to say. Each member has its own gates, and is online or not, for itself. A member that cannot
answer is passed over, but then nothing is called absent. Names that hosted members hold are kept from proxies where the group shields.
"""

from __future__ import annotations

import contextlib
import fnmatch
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy import Connection

from app.cache import keys
from app.cache.members import Membership, Memberships, read_membership
from app.cache.snapshots import Snapshot, Snapshots, read_snapshots
from app.cache.store import Cache
from app.cache.view import Epochs, Seen
from app.database.statements import text
from app.errors import DatabaseAway, Forbidden, IsFolder, NotFound, NotKept, RepositoryMaintenance, RepositoryOffline, Unavailable
from app.repository.explain import Step, Wanted
from app.repository.formats import FORMATS, MERGE, SHIELD, package_of
from app.repository.formats import absent as absent_at
from app.repository.proxy import Proxy
from app.repository.reading import (
    Absence,
    Answered,
    Ask,
    Contributor,
    DocumentSource,
    Found,
    Gate,
    Judged,
    Look,
    Looked,
    Reader,
    Shelf,
    Sight,
    Told,
    check_online,
)
from app.repository.withholding import keeps_out, require_path

log = logging.getLogger(__name__)

# Seconds after which a client may ask again for what a member that was passed over may have: installers wait that long, some times, for
# each of many names, and show the reason only in the end.
SOON = 1
# Walks that find nothing while something was stored or moved meanwhile.
TRIES = 4
MOST_ENTRIES = 4096
ENTRY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class _Entry:
    """A group as it was entered, its members in order; `epochs` are theirs, null where memory may not be used for all of them."""

    judged: Judged
    membership: Membership
    members: Sequence[Snapshot]
    epochs: Sequence[Epochs] | None = None

    def shields(self, package: str) -> bool:
        """Whether this name is kept from proxies as soon as a hosted member holds it."""
        return _shields(self.judged.snapshot.format, self.membership, package)


@dataclass(frozen=True, slots=True)
class _Kept:
    """An entry that holds for whoever enters by the same snapshot and epochs, while `Cache.moment` is the same; `until` by the clock."""

    entry: _Entry
    moment: tuple[int, ...]
    until: float

    def holds(self, judged: Judged, moment: tuple[int, ...]) -> bool:
        entered = self.entry.judged
        return (
            self.moment == moment
            and entered.snapshot is judged.snapshot
            and entered.epochs == judged.epochs
            and time.monotonic() < self.until
        )


@dataclass(slots=True)
class _Outcomes:
    """What members said that did not have it; `failed` by the member's name."""

    absent: NotFound | None = None
    failed: dict[str, Unavailable] = field(default_factory=dict)

    def told(self, told: Told | None, member: str) -> Told:
        how, age = ("", 0) if told is None else told[:2]
        return Told(how, age, member, tuple(self.failed))

    def note(self, error: NotFound) -> None:
        """A folder is one in any of them."""
        if self.absent is None or (isinstance(error, IsFolder) and not isinstance(self.absent, IsFolder)):
            self.absent = error

    @property
    def error(self) -> NotFound | Unavailable | None:
        """A member that could not answer may have it. Null: nobody said anything."""
        return next((_soon(*each) for each in self.failed.items()), None) or self.absent


class Group:
    """The verbs of the reader for repositories that have what their members have."""

    def __init__(self, reader: Reader, cache: Cache, snapshots: Snapshots, memberships: Memberships, proxy: Proxy) -> None:
        self._reader = reader
        self._cache = cache
        self._snapshots = snapshots
        self._memberships = memberships
        self._proxy = proxy
        self._entries: dict[int, _Kept] = {}

    def find(self, judged: Judged, ask: Ask, *, whole: bool) -> Found:
        """In the first member that has it. Raises NotFound when none does, and what the first one raises that cannot tell."""
        believes = not self._cache.believes_absences
        for _ in range(TRIES):
            entry = self._enter(judged, ask)
            known, found = self._recall(entry, ask, believes=believes)
            if found is not None:
                return found
            before, contents = self._cache.view.repository(judged.snapshot.id).members, self._contents(entry)
            outcomes = _Outcomes()
            found = self._walk(entry, known, ask, outcomes, whole=whole, believes=believes)
            if found is not None:
                return found
            if outcomes.failed:
                break
            if self._contents(entry) == contents and self._cache.view.repository(judged.snapshot.id).members == before and not believes:
                break
            # C10: once more by the database, where a message may be on its way; and where something has moved since the walk began.
            believes = False
            judged = self._reader.judge(ask)
        raise self._nowhere(entry, ask, outcomes)

    def _nowhere(self, entry: _Entry, ask: Ask, outcomes: _Outcomes) -> NotFound | Unavailable:
        """A client that pushes asks HEAD to save an upload: an upstream that is away, or speaks of no such name, must not end that."""
        hosted = {each.name for each in entry.members if each.kind not in self._reader.sources}
        if ask.bodiless and hosted and hosted.isdisjoint(outcomes.failed):
            return outcomes.absent or _nothing(ask)
        return outcomes.error or _nothing(ask)

    def _enter(self, judged: Judged, ask: Ask) -> _Entry:
        kept = self._entries.get(judged.snapshot.id)
        if kept is not None and kept.holds(judged, self._cache.moment):
            return _Entry(judged, kept.entry.membership, kept.entry.members, kept.entry.epochs)
        membership = self._memberships.get(judged.snapshot)
        decided = judged.snapshot.epochs
        if membership.epochs.members > decided.members or membership.epochs.metadata > decided.metadata:
            judged, membership = self._reader.decide_group(ask)
        found = self._snapshots.of(membership.members)
        return self._remembered(_Entry(judged, membership, [found[each] for each in membership.members if each in found]), ask)

    def _remembered(self, entry: _Entry, ask: Ask) -> _Entry:
        """With the members' epochs, and kept, where all of it is what memory has at this moment."""
        group, members = entry.judged.snapshot, entry.members
        epochs = [each for each in map(self._reader.effective, members) if each is not None]
        snapshots = self._cache.snapshots
        if (
            len(epochs) < len(entry.membership.members)
            or any(snapshots.peek(keys.for_snapshot_of(each.id)) is not each for each in members)
            or not self._reader.may_recall(entry.judged, ask.caller)
        ):
            return entry
        entry = replace(entry, epochs=epochs)
        if len(self._entries) >= MOST_ENTRIES:
            self._entries.clear()
        self._entries[group.id] = _Kept(entry, self._cache.moment, time.monotonic() + ENTRY_SECONDS)
        return entry

    def _recall(self, entry: _Entry, ask: Ask, *, believes: bool) -> tuple[int, Found | None]:
        """As far as memory tells: how many of the first members do not have it, and what the next one has. Raises Quarantined and TooYoung.

        It waits for nothing, so that what may be used when it begins may be used all the way (C8).
        """
        if entry.epochs is None or not (believes or self._cache.believes_absences):
            return 0, None
        if not self._reader.may_recall(entry.judged, ask.caller):
            return 0, None
        number = 0
        for number, (member, epochs) in enumerate(zip(entry.members, entry.epochs, strict=True)):
            there = self._reader.remembered(member, epochs, ask.path) if member.status == "online" else None
            if there is None or (isinstance(there, Absence) and (there.folder or member.kind in self._reader.sources)):
                return number, None
            if not isinstance(there, Absence):
                return number, self._found(entry, member, there, ask)
        return len(entry.members), None

    def _found(self, entry: _Entry, member: Snapshot, gate: Gate, ask: Ask) -> Found | None:
        """What memory has of a member, if that may leave as it is; of a proxy null where more is to be thought of."""
        if member.kind not in self._reader.sources:
            return Found(self._reader.passed(ask, Looked(member, gate)).snapshot, gate, Told(member=member.name))
        package = package_of(ask.format, ask.path)
        found = None if package and entry.shields(package) else self._proxy.kept(member, gate, ask.slack)
        if found is None or found.told is None:
            return None
        return Found(member, gate, Told(*found.told[:2], member.name))

    def _contents(self, entry: _Entry) -> list[int]:
        return [self._cache.view.repository(each.id).content for each in entry.members]

    def _walk(self, entry: _Entry, known: int, ask: Ask, outcomes: _Outcomes, *, whole: bool, believes: bool) -> Found | None:
        """From the member behind those of which it is `known` that they do not have it."""
        shielded: bool | None = None
        for member in entry.members[known:]:
            source = self._reader.sources.get(member.kind)
            if source is not None and shielded is None:
                shielded = self._is_shielded(entry, ask, believes=believes)
            if source is not None and shielded:
                continue
            try:
                found = self._of_member(entry, member, ask, whole=whole, believes=believes)
            except NotFound as error:
                outcomes.note(error)
            except DatabaseAway:
                raise
            except NotKept:
                # It does not tell of what it has without storing it, so no later one may: the bytes are to come from the same member.
                if self._passes_on(entry, member, ask):
                    raise
            except Unavailable as error:
                log.warning("group %s passes %s over for %s: %s", ask.repository, member.name, ask.path, error)
                self._put_aside(entry, member, ask, outcomes, error, believes=believes)
            else:
                return Found(found.snapshot, found.gate, outcomes.told(found.told, found.snapshot.name), found.coming)
        return None

    def _of_member(self, entry: _Entry, member: Snapshot, ask: Ask, *, whole: bool, believes: bool) -> Found:
        """Raises what it ends with; of a hosted member Quarantined, which ends the walk."""
        check_online(member)
        judged = self._reader.judged_member(entry.judged, member, believes_absences=believes)
        source = self._reader.sources.get(member.kind)
        if source is not None:
            return source.find(judged, replace(ask, member=member.id), whole=whole)
        looked = self._looked(judged, ask)
        check_online(looked.snapshot)
        return self._reader.passed(ask, looked)

    def _looked(self, judged: Judged, ask: Ask) -> Looked:
        """Of a hosted member."""
        return self._reader.recall(judged, ask) or self._reader.look_up(judged, replace(ask, member=judged.snapshot.id))

    def _put_aside(self, entry: _Entry, member: Snapshot, ask: Ask, outcomes: _Outcomes, error: Unavailable, *, believes: bool) -> None:
        """A member that cannot answer may have it, unless it is a hosted one whose rows, which are here, do not hold the name.

        Only of shielded names: there the walk has looked at them anyway, and a name is one package's in all members.
        """
        away = isinstance(error, RepositoryOffline | RepositoryMaintenance)
        if away and self._lacks(entry, member, ask, believes=believes):
            outcomes.note(_nothing(ask))
        else:
            outcomes.failed[member.name] = error

    def _lacks(self, entry: _Entry, member: Snapshot, ask: Ask, *, believes: bool) -> bool:
        package = package_of(ask.format, ask.path)
        if member.kind in self._reader.sources or not package or not entry.shields(package):
            return False
        return not self._holds(entry, member, ask, believes=believes)

    def _passes_on(self, entry: _Entry, member: Snapshot, ask: Ask) -> bool:
        """Whether a proxy that stores nothing has it."""
        try:
            found = self._of_member(entry, member, ask, whole=False, believes=False)
        except (NotFound, Unavailable):
            return False
        if found.coming is not None:
            found.coming.close()
        return True

    def _is_shielded(self, entry: _Entry, ask: Ask, *, believes: bool) -> bool:
        """Whether a hosted member, online or not, holds the name that the path belongs to."""
        package = package_of(ask.format, ask.path)
        if not package or not entry.shields(package):
            return False
        hosted = [each for each in entry.members if each.kind not in self._reader.sources]
        return any(self._holds(entry, each, ask, believes=believes) for each in hosted)

    def _holds(self, entry: _Entry, member: Snapshot, ask: Ask, *, believes: bool) -> bool:
        there = self._looked(self._reader.judged_member(entry.judged, member, believes_absences=believes), ask).there
        return there.named if isinstance(there, Absence) else True

    # -- documents

    def document(self, judged: Judged, ask: Ask, source: DocumentSource, known_etags: frozenset[str], made_of: str) -> Answered:
        """Of what all members that can answer have in it, or the first one that has it (see `reading.Merged`)."""
        entry = self._enter(judged, ask)
        try:
            return self._document(entry, ask, source, known_etags, made_of)
        except FileNotFoundError:
            log.error("bytes of what %s/%s is made of are missing on the disk: fetched anew", ask.repository, ask.path)
            return self._document(entry, ask, source, known_etags, made_of, anew=True)

    def restore(self, ask: Ask, lost: Found) -> Found:
        """What is lost is a member's, which restores it."""
        return self._reader.find(ask)

    def _document(
        self, entry: _Entry, ask: Ask, source: DocumentSource, known_etags: frozenset[str], made_of: str, *, anew: bool = False
    ) -> Answered:
        with contextlib.ExitStack() as held:
            shielded = bool(source.package) and self._is_shielded(entry, ask, believes=not self._cache.believes_absences)
            brought = self._bring(entry, ask, "" if shielded else made_of, held, anew=anew)
            kept = None if brought.shelves else self._reader.kept_document(entry.judged, ask.caller, self._key_now(entry, source))
            try:
                look = self._look(ask, source, brought)
                made = kept or self._reader.made_document(entry.judged, ask, source, known_etags, look)
            except NotFound:
                if (error := brought.outcomes.error) is not None:
                    raise error from None
                raise
        return Answered(made, brought.outcomes.told(None, ""))

    def _bring(self, entry: _Entry, ask: Ask, made_of: str, held: contextlib.ExitStack, *, anew: bool) -> _Brought:
        """Proxies bring what the document is made of up to date first, but for names that they are shielded from."""
        brought = _Brought()
        for member in entry.members:
            try:
                check_online(member)
                # Of what a proxy's rules leave out its upstream hears nothing, and it need not be able to answer.
                require_path(member, ask.path)
                if member.kind in self._reader.sources and made_of:
                    judged = self._reader.judged_member(entry.judged, member)
                    index = replace(ask, member=member.id, path=made_of, spelling="", of=ask.path)
                    shelf = self._proxy.bring(judged, index, held, anew=anew)
                    if shelf is not None:
                        brought.shelves[member.id] = shelf
            except (NotFound, Forbidden):
                brought.without.add(member.id)
            except DatabaseAway:
                raise
            except Unavailable as error:
                brought.without.add(member.id)
                self._put_aside(entry, member, ask, brought.outcomes, error, believes=not self._cache.believes_absences)
        return brought

    def _key_now(self, entry: _Entry, source: DocumentSource) -> object:
        """C1: under the epochs in effect."""
        group = entry.judged.snapshot
        digest = keys.members_digest((each.id, self._cache.effective(each.id, each.epochs)) for each in entry.members)
        return keys.for_group_document(group.id, self._cache.effective(group.id, group.epochs), digest, source.key, source.representation)

    def _look(self, ask: Ask, source: DocumentSource, brought: _Brought) -> Look:
        def look(connection: Connection, group: Snapshot, seen: Seen) -> Sight:
            membership = read_membership(connection, group)
            found = read_snapshots(connection, membership.members)
            members = [found[each] for each in membership.members if each in found]
            contributors = [
                Contributor(each, brought.shelves.get(each.id))
                for each in self._unshielded(connection, membership, members, source.package)
                if each.status == "online" and each.id not in brought.without and not keeps_out(each, ask.path)
            ]
            digest = keys.members_digest((each.id, each.epochs) for each in members)
            key = keys.for_group_document(group.id, seen.epochs, digest, source.key, source.representation)
            return Sight(contributors, key, members)

        return look

    # -- explained

    def steps(self, connection: Connection, group: Snapshot, wanted: Wanted) -> Sequence[Step]:
        """The members as a read would ask them, in order, and which of them it would not; see `explain.Walk`."""
        membership = read_membership(connection, group)
        found = read_snapshots(connection, membership.members)
        members = [found[each] for each in membership.members if each in found]
        package = package_of(wanted.format, wanted.path) if wanted.source is None else wanted.source.package
        asked = self._unshielded(connection, membership, members, package)
        without = self._without(connection, membership, members, package)

        def kept_from(member: Snapshot) -> str | None:
            if member in without:
                return f"it is not online, and does not hold the name {package!r}"
            return None if member in asked else (
                f"a hosted member holds the name {package!r}, or held it once, so no proxy is asked (shield; merged_names gives it free)"
            )

        return [Step(each, kept_from(each)) for each in members]

    def _without(self, connection: Connection, membership: Membership, members: Sequence[Snapshot], package: str) -> Sequence[Snapshot]:
        """Those that cannot have it although they are not online; see `_put_aside`."""
        away = [each for each in members if each.kind not in self._reader.sources and each.status != "online"]
        if not package or not away or not _shields(away[0].format, membership, package):
            return ()
        return [each for each in away if not connection.execute(_HOLDS, {"ids": [each.id], "package": package}).scalar_one()]

    def _unshielded(self, connection: Connection, membership: Membership, members: Sequence[Snapshot], package: str) -> Sequence[Snapshot]:
        """All of them, or the hosted ones where these hold the name."""
        hosted = [each for each in members if each.kind not in self._reader.sources]
        if not package or not hosted or len(hosted) == len(members) or not _shields(hosted[0].format, membership, package):
            return members
        held = connection.execute(_HOLDS, {"ids": [each.id for each in hosted], "package": package}).scalar_one()
        return hosted if held else members


@dataclass(slots=True)
class _Brought:
    """What became of the members before a document is made: those `without` a part in it, and what is not stored of others, by id."""

    shelves: dict[int, Shelf] = field(default_factory=dict)
    without: set[int] = field(default_factory=set)
    outcomes: _Outcomes = field(default_factory=_Outcomes)


def _shields(format_name: str, membership: Membership, package: str) -> bool:
    policy = membership.name_policy or (SHIELD if FORMATS[format_name].shields else MERGE)
    return policy == SHIELD and not any(fnmatch.fnmatchcase(package, each) for each in membership.merged_names)


def _soon(member: str, error: Unavailable) -> Unavailable:
    """The same for a client of the group, which has not asked for the member by its name; the error itself may be others' too."""
    named = isinstance(error, RepositoryOffline | RepositoryMaintenance)
    told = type(error).__new__(type(error), error.message if named else f"member {member!r} cannot answer: {error.message}")
    told.__dict__.update(error.__dict__, message=told.args[0], retry_after=min(error.retry_after, SOON))
    return told


def _nothing(ask: Ask) -> NotFound:
    return absent_at(ask.format, ask.path, ask.repository)


# What was published once is held for good: when its last version goes (by a client, or by retention), nobody else may step in.
_HOLDS = text("select exists (select 1 from arkvory_packages p where p.repository_id = any(:ids) and p.name = :package)")
