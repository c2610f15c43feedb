"""The cache of one process: its regions, its view, and the three things that happen to them.

`observe` after a query, `apply` after a commit, `doubt` after a commit whose answer was lost.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from app.cache import keys
from app.cache.regions import Region
from app.cache.view import Epochs, Seen, View

if TYPE_CHECKING:
    from app.cache.outcomes import Outcome, RepositoryChange

log = logging.getLogger(__name__)


def _always() -> None:
    """A single node may believe its memory."""


DOCUMENT_BYTES = 256 * 1024
MISSING_LIFETIME = 60.0


@dataclass(frozen=True)
class CurrentNumbers:
    """Epochs, revisions and the installation's epoch as the database has them now."""

    repositories: Mapping[int, Epochs]
    users: Mapping[int, int]
    installation: int


@dataclass
class Doubts:
    """What a transaction of unknown outcome may have changed, by its 64-bit transaction id (C2)."""

    open: dict[int, Outcome] = field(default_factory=dict)
    repositories: frozenset[int] = frozenset()
    users: frozenset[int] = frozenset()
    installation: bool = False
    moves: int = 0

    def _recount(self) -> None:
        self.moves += 1
        outcomes = self.open.values()
        self.repositories = frozenset(change.repository_id for outcome in outcomes for change in outcome.repositories)
        self.users = frozenset(user_id for outcome in outcomes for user_id in outcome.users)
        self.installation = any(outcome.installation is not None for outcome in outcomes)

    def add(self, outcome: Outcome) -> None:
        self.open[outcome.transaction_id] = outcome
        self._recount()

    def remove(self, transaction_id: int) -> None:
        self.open.pop(transaction_id, None)
        self._recount()


class Cache:
    """Regions as DESIGN 3 lists them; capacities do not compete."""

    def __init__(self) -> None:
        self.view = View()
        self.doubts = Doubts()
        self.deletion_errors = 0
        self.row_errors = 0
        self._void: set[int] = set()
        self._committing: list[Outcome] = []
        # In cluster mode: raises when memory is too old to be believed and cannot be compared (M6).
        self.require_synced: Callable[[], None] = _always
        # In cluster mode a message may be on its way: what seems absent is looked for (C10).
        self.believes_absences = True
        self.snapshots: Region[Any] = Region("snapshot", capacity=10_000, lifetime=600)
        self.members: Region[Any] = Region("members", capacity=10_000, lifetime=600)
        self.identities: Region[Any] = Region("identity", capacity=100_000, lifetime=30)
        self.passwords: Region[bool] = Region("password", capacity=10_000, lifetime=600)
        self.grants: Region[Any] = Region("authorization", capacity=100_000, lifetime=30)
        self.gates: Region[Any] = Region("gate", capacity=100_000, lifetime=60)
        self.absences: Region[Any] = Region("gate_absent", capacity=100_000, lifetime=MISSING_LIFETIME)
        self.documents: Region[Any] = Region("derived_document", capacity=50_000, lifetime=3600, capacity_bytes=64 * 1024 * 1024)
        # Of each path those of its spellings that an upstream does not have, with the (monotonic) time until which that counts.
        self.misses: Region[dict[str, float]] = Region("proxy_miss", capacity=100_000, lifetime=math.inf)
        self.installation: Region[Any] = Region("installation", capacity=2, lifetime=math.inf)

    @property
    def regions(self) -> tuple[Region[Any], ...]:
        return (
            self.snapshots, self.members, self.identities, self.passwords, self.grants, self.gates, self.absences, self.documents,
            self.misses, self.installation,
        )  # fmt: skip

    def may_keep(self, repository_id: int) -> bool:
        """False while a transaction of unknown outcome may have changed the repository (C2)."""
        return repository_id not in self.doubts.repositories

    def is_void(self, repository_id: int) -> bool:
        """True when local deletion failed and the snapshot has not been read again since (C5)."""
        return repository_id in self._void

    @property
    def moment(self) -> tuple[int, int, int, int]:
        """Another one as soon as anything happens by which snapshots, or whether they may be used, are other ones than before."""
        return self.view.moves, self.doubts.moves, self.deletion_errors, self.snapshots.removals

    def was_read_again(self, repository_id: int) -> None:
        self._void.discard(repository_id)

    def keep(self, keeps: bool) -> None:
        """Whether what is read is kept (M7). When not, all that was kept goes too; numbers and verdicts on passwords stay true."""
        for region in self.regions:
            if region is not self.passwords:
                region.keeps = keeps
                if not keeps:
                    region.clear()

    def cached(self, kind: str) -> set[int]:
        """Ids of the repositories or users that anything is kept of."""
        return {tag[1] for region in self.regions for tag in region.tags if tag[0] == kind}

    def has_snapshot(self, repository_id: int) -> bool:
        return keys.tag_of_repository(repository_id) in self.snapshots.tags

    def effective(self, repository_id: int, epochs: Epochs) -> Epochs:
        """C1: the larger of the snapshot's and the view's."""
        return epochs.joined(self.view.repository(repository_id))

    # -- what a query read

    def observe(self, seen: Seen) -> None:
        """Raise the view to what a query read; a rise that no commit here caused counts as a message without paths (C3)."""
        self.observe_repository(seen.repository_id, seen.epochs)
        if seen.entered is not None:
            self.observe_repository(*seen.entered)
        if seen.user_id is not None:
            self.observe_user(seen.user_id, seen.user_revision)
        self.observe_installation(seen.installation)

    def observe_repository(self, repository_id: int, epochs: Epochs) -> None:
        if self.view.raise_repository(repository_id, epochs) is not None:
            self.drop_repository(repository_id)

    def observe_user(self, user_id: int, revision: int) -> None:
        if self.view.raise_user(user_id, revision):
            self.drop_user(user_id)

    def observe_installation(self, epoch: int) -> None:
        if self.view.raise_installation(epoch):
            self._guarded(None, self.grants.clear)

    # -- around a commit

    @contextlib.contextmanager
    def committing(self, outcome: Outcome) -> Iterator[None]:
        """While others may see a commit of this process before it does itself."""
        self._committing.append(outcome)
        try:
            yield
        finally:
            self._committing.remove(outcome)

    def is_own(self, *, repository_id: int | None = None, user_id: int | None = None) -> bool:
        """Whether a transaction of this process changes that repository, that user or (both null) the installation right now."""
        for outcome in (*self._committing, *self.doubts.open.values()):
            if repository_id is not None:
                found = any(change.repository_id == repository_id for change in outcome.repositories)
            else:
                found = outcome.installation is not None if user_id is None else user_id in outcome.users
            if found:
                return True
        return False

    def apply(self, outcome: Outcome) -> None:
        """What a confirmed commit changed: the view rises first, then entries are deleted (C2)."""
        for change in outcome.repositories:
            self.view.raise_repository(change.repository_id, change.epochs)
        for user_id, revision in outcome.users.items():
            self.view.raise_user(user_id, revision)
        if outcome.installation is not None:
            self.view.raise_installation(outcome.installation)
        for change in outcome.repositories:
            self._drop_changed(change)
        for user_id in outcome.users:
            self.drop_user(user_id)
        if outcome.installation is not None:
            self._guarded(None, self.grants.clear)

    def _drop_changed(self, change: RepositoryChange) -> None:
        self._drop_misses(change)
        if change.touches_snapshot:
            self._drop_snapshots(change.repository_id, change.names)
        else:
            self._drop_strangers(change.repository_id, change.names)
        # Under numbers that nobody asks for any more: documents would only fill their 64 MB. Gates are small, many, and soon over.
        going = {self.members: change.touches_members, self.documents: change.touches_documents, self.grants: change.touches_grants}
        tag = keys.tag_of_repository(change.repository_id)
        for region, touched in going.items():
            if touched:
                self._guarded(change.repository_id, lambda r=region: r.drop_tag(tag))

    def doubt(self, outcome: Outcome) -> None:
        """The answer to COMMIT was lost: nothing about what it touched is kept until the outcome is known."""
        self.doubts.add(outcome)
        self._drop_outcome(outcome)

    def settle(self, outcome: Outcome, now: CurrentNumbers) -> None:
        """The outcome is known: entries go and the view takes the numbers that were read since (C2).

        The view is never left empty: a reader that began before the transaction could otherwise keep what it read.
        """
        self._drop_outcome(outcome)
        for repository_id, epochs in now.repositories.items():
            self.view.raise_repository(repository_id, epochs)
        for user_id, revision in now.users.items():
            self.view.raise_user(user_id, revision)
        for user_id in outcome.users.keys() - now.users.keys():
            # Deleted: no row tells a number, and a reader that began before must not keep what it read.
            self.view.raise_user(user_id, outcome.users[user_id])
        self.view.raise_installation(now.installation)
        self.doubts.remove(outcome.transaction_id)

    def _drop_outcome(self, outcome: Outcome) -> None:
        for change in outcome.repositories:
            self._drop_snapshots(change.repository_id, change.names)
            self.drop_repository(change.repository_id)
        for user_id in outcome.users:
            self.drop_user(user_id)
        if outcome.installation is not None:
            self._guarded(None, self.grants.clear)

    # -- deletion

    def _drop_snapshots(self, repository_id: int, names: tuple[tuple[str, str], ...]) -> None:
        self._guarded(repository_id, lambda: self.snapshots.drop(keys.for_snapshot_of(repository_id)))
        for tenant, name in names:
            self._guarded(repository_id, lambda t=tenant, n=name: self.snapshots.drop(keys.for_snapshot(t, n)))

    def _drop_misses(self, change: RepositoryChange) -> None:
        """What was stored or confirmed gone is not known to be missing any more; without paths that may be anything."""
        if "content" not in change.classes:
            return
        repository_id, epochs = change.repository_id, self.view.repository(change.repository_id)
        if change.paths is None:
            self._guarded(repository_id, lambda: self.misses.drop_tag(keys.tag_of_repository(repository_id)))
            return
        for path in change.paths if self.misses else ():
            self._guarded(repository_id, lambda p=path: self.misses.drop(keys.for_miss(repository_id, epochs, p)))

    def _drop_strangers(self, repository_id: int, names: tuple[tuple[str, str], ...]) -> None:
        """Under its name another repository may be remembered: one that was renamed or deleted, and no message has said so yet."""
        for tenant, name in names:
            kept = self.snapshots.get(keys.for_snapshot(tenant, name))
            if kept is not None and kept.id != repository_id:
                self._drop_snapshots(kept.id, ((tenant, name),))

    def drop_repository(self, repository_id: int) -> None:
        tag = keys.tag_of_repository(repository_id)
        for region in (self.snapshots, self.members, self.grants, self.gates, self.absences, self.documents, self.misses):
            self._guarded(repository_id, lambda r=region: r.drop_tag(tag))

    def drop_user(self, user_id: int) -> None:
        tag = keys.tag_of_user(user_id)
        for region in (self.identities, self.grants):
            self._guarded(None, lambda r=region: r.drop_tag(tag))

    def _guarded(self, repository_id: int | None, delete: Callable[..., None]) -> None:
        """C5: a deletion that fails voids the snapshot, so that the next read goes to the database."""
        try:
            delete()
        except Exception:
            self.deletion_errors += 1
            log.exception("deleting cache entries failed; repository %s is read from the database next", repository_id)
            if repository_id is not None:
                self._void.add(repository_id)
