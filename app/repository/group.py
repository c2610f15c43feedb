"""Reading from a group: its members in their present order, asked anew at each request (DESIGN 6).

Whether the caller may read is the group's to say. Each member has its own gates, and is online or not, for itself. A member that cannot
answer is passed over, but then nothing is called absent. Names that hosted members hold are kept from proxies where the group shields.
"""

from __future__ import annotations

import contextlib
import fnmatch
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy import Connection, text

from app.cache import keys
from app.cache.members import Membership, Memberships, read_membership
from app.cache.snapshots import Snapshot, Snapshots, read_snapshots
from app.cache.store import Cache
from app.cache.view import Seen
from app.errors import DatabaseAway, Forbidden, IsFolder, NotFound, NotKept, Unavailable
from app.repository.explain import Step, Wanted
from app.repository.formats import FORMATS, MERGE, SHIELD, package_of
from app.repository.proxy import Proxy
from app.repository.reading import (
    Absence,
    Answered,
    Ask,
    Contributor,
    DocumentSource,
    Found,
    Judged,
    Look,
    Reader,
    Shelf,
    Sight,
    Told,
    check_online,
)
from app.repository.withholding import keeps_out

log = logging.getLogger(__name__)

# Walks that find nothing while something was stored or moved meanwhile.
TRIES = 4


@dataclass(frozen=True, slots=True)
class _Entry:
    """A group as it was entered, its members in order."""

    judged: Judged
    membership: Membership
    members: Sequence[Snapshot]

    def shields(self, package: str) -> bool:
        """Whether this name is kept from proxies as soon as a hosted member holds it."""
        return _shields(self.judged.snapshot.format, self.membership, package)


@dataclass(slots=True)
class _Outcomes:
    """What members said that did not have it; `failed` by the member's name."""

    absent: list[NotFound] = field(default_factory=list)
    failed: dict[str, Unavailable] = field(default_factory=dict)

    def told(self, told: Told | None, member: str) -> Told:
        return (told or Told())._replace(member=member, passed_over=tuple(self.failed))

    def error(self) -> NotFound | Unavailable:
        """A member that could not answer may have it. A folder is one in any of them."""
        if self.failed:
            return next(iter(self.failed.values()))
        folders = [each for each in self.absent if isinstance(each, IsFolder)]
        return folders[0] if folders else self.absent[0]


class Group:
    """The verbs of the reader for repositories that have what their members have."""

    def __init__(self, reader: Reader, cache: Cache, snapshots: Snapshots, memberships: Memberships, proxy: Proxy) -> None:
        self._reader = reader
        self._cache = cache
        self._snapshots = snapshots
        self._memberships = memberships
        self._proxy = proxy

    def find(self, judged: Judged, ask: Ask, *, whole: bool) -> Found:
        """In the first member that has it. Raises NotFound when none does, and what the first one raises that cannot tell."""
        believes = not self._cache.believes_absences
        for _ in range(TRIES):
            entry, before = self._enter(judged, ask), self._cache.view.repository(judged.snapshot.id).members
            contents = self._contents(entry)
            outcomes = _Outcomes()
            found = self._walk(entry, ask, outcomes, whole=whole, believes=believes)
            if found is not None:
                return found
            if outcomes.failed:
                break
            if self._contents(entry) == contents and self._cache.view.repository(judged.snapshot.id).members == before and not believes:
                break
            # C10: once more by the database, where a message may be on its way; and where something has moved since the walk began.
            believes = False
            judged = self._reader.judge(ask)
        raise outcomes.error() if outcomes.absent or outcomes.failed else _nothing(ask)

    def _enter(self, judged: Judged, ask: Ask) -> _Entry:
        membership = self._memberships.get(judged.snapshot)
        decided = judged.snapshot.epochs
        if membership.epochs.members > decided.members or membership.epochs.metadata > decided.metadata:
            judged, membership = self._reader.decide_group(ask)
        found = self._snapshots.of(membership.members)
        return _Entry(judged, membership, [found[each] for each in membership.members if each in found])

    def _contents(self, entry: _Entry) -> list[int]:
        return [self._cache.view.repository(each.id).content for each in entry.members]

    def _walk(self, entry: _Entry, ask: Ask, outcomes: _Outcomes, *, whole: bool, believes: bool) -> Found | None:
        shielded: bool | None = None
        for member in entry.members:
            source = self._reader.sources.get(member.kind)
            asked = replace(ask, member=member.id)
            if source is not None and shielded is None:
                shielded = self._is_shielded(entry, asked, believes=believes)
            if source is not None and shielded:
                continue
            try:
                check_online(member)
                judged = self._reader.judged_member(entry.judged, member, believes_absences=believes)
                found = self._stored(judged, asked) if source is None else source.find(judged, asked, whole=whole)
            except NotFound as error:
                outcomes.absent.append(error)
            except DatabaseAway:
                raise
            except NotKept:
                # It does not tell of what it has without storing it, so no later one may: the bytes are to come from the same member.
                if self._passes_on(entry, member, asked):
                    raise
            except Unavailable as error:
                log.warning("group %s passes %s over for %s: %s", ask.repository, member.name, ask.path, error)
                outcomes.failed[member.name] = error
            else:
                return replace(found, told=outcomes.told(found.told, found.snapshot.name))
        return None

    def _passes_on(self, entry: _Entry, member: Snapshot, ask: Ask) -> bool:
        """Whether a proxy that stores nothing has it."""
        try:
            found = self._reader.sources[member.kind].find(self._reader.judged_member(entry.judged, member), ask, whole=False)
        except (NotFound, Unavailable):
            return False
        if found.coming is not None:
            found.coming.close()
        return True

    def _stored(self, judged: Judged, ask: Ask) -> Found:
        """Of a hosted member. Raises Quarantined, which ends the walk."""
        looked = self._reader.look_up(judged, ask)
        check_online(looked.snapshot)
        return self._reader.passed(ask, looked)

    def _is_shielded(self, entry: _Entry, ask: Ask, *, believes: bool) -> bool:
        """Whether a hosted member, online or not, holds the name that the path belongs to."""
        package = package_of(ask.format, ask.path)
        if not package or not entry.shields(package):
            return False
        hosted = [each for each in entry.members if each.kind not in self._reader.sources]
        return any(self._holds(entry, each, ask, believes=believes) for each in hosted)

    def _holds(self, entry: _Entry, member: Snapshot, ask: Ask, *, believes: bool) -> bool:
        judged = self._reader.judged_member(entry.judged, member, believes_absences=believes)
        there = self._reader.look_up(judged, replace(ask, member=member.id)).there
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
                if brought.outcomes.failed:
                    raise brought.outcomes.error() from None
                raise
        return Answered(made, brought.outcomes.told(None, ""))

    def _bring(self, entry: _Entry, ask: Ask, made_of: str, held: contextlib.ExitStack, *, anew: bool) -> _Brought:
        """Proxies bring what the document is made of up to date first, but for names that they are shielded from."""
        brought = _Brought()
        for member in entry.members:
            try:
                check_online(member)
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
                brought.outcomes.failed[member.name] = error
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
        shielded = f"a hosted member holds the name {package!r}, so no proxy is asked (shield)"
        return [Step(each, None if each in asked else shielded) for each in members]

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


def _nothing(ask: Ask) -> NotFound:
    return NotFound(f"there is no {ask.path!r} in repository {ask.repository!r}")


_HOLDS = text(
    "select exists (select 1 from arkvory_packages p join arkvory_artifacts a on a.package_id = p.id "
    "where p.repository_id = any(:ids) and p.name = :package)"
)
