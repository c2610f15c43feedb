"""How one file gets into a proxy: fetched as for a client's request, so that nothing is stored in a second way."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from app.cache.snapshots import Snapshot, Snapshots
from app.database.engines import Database
from app.database.statements import text
from app.errors import ArkvoryError, CapacitySpent, Invalid, MissingParts, NotAllowedHere, NotFound, ReadOnly, TooLarge, UpstreamUntrue
from app.repository.dialects import Order
from app.repository.fetching import Fetches, NotStorable, Outcome
from app.repository.mirrors.guides import Amendment, Index, Trail
from app.repository.mirrors.rereading import UNKNOWN, Reading, Validators, validators_of
from app.repository.mirrors.worklist import Copied, Work
from app.repository.parts import Kept
from app.repository.reading import Brought, check_online
from app.repository.withholding import Restrictions, keeps_out, require_path
from app.upstream.client import Answer, Wanted

# Of bytes, or of what is said of them: they will not get better by being asked for again.
_AT_FAULT = (Invalid, TooLarge, UpstreamUntrue)


class Refused(Exception):
    """What the upstream has may not be had here, as it is now; it is known by these validators of its answer.

    `again`: it is what was refused before.
    """

    def __init__(self, message: str, validators: Validators = UNKNOWN, *, again: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.validators = validators
        self.again = again


@contextlib.contextmanager
def refusing(answer: Answer | None = None) -> Iterator[None]:
    """What is at fault inside is Refused; what only lacks something that may still come is not."""
    try:
        yield
    except MissingParts:
        raise
    except _AT_FAULT as error:
        raise Refused(error.message, UNKNOWN if answer is None else validators_of(answer)) from error


class Follower(Protocol):
    """What a run asks of the repository that it copies to. Raises as `guides.Trail`."""

    def require_open(self) -> None:
        """Raises NotFound when the repository is gone, and Unavailable while it is offline."""

    @property
    def snapshot(self) -> Snapshot:
        """As it is at the moment."""

    def read_by(self, reading: Reading) -> Trail:
        """What leads through one list."""

    def said_of(self, package: str | None) -> int:
        """A number that moves with whatever the repository says of the package; 0 for none."""

    def copy(self, work: Work, kept: Kept) -> Copied:
        """`kept` is where parts of it stay.

        Raises NotFound where the upstream has it no more, Forbidden, Conflict and Blocked for what does not belong here, CapacitySpent;
        Refused.
        """


class Rules:
    """Whether a path is followed: the mirror's patterns, and the proxy's own rules."""

    def __init__(self, own: Restrictions) -> None:
        self._own = own

    def want(self, snapshot: Snapshot, path: str) -> bool:
        return self._own.keep_out(path) is None and not keeps_out(snapshot, path)


class Repositories:
    """One repository as it is at the moment, whatever it is called by now."""

    def __init__(self, snapshots: Snapshots, repository_id: int) -> None:
        self._snapshots = snapshots
        self._id = repository_id

    def now(self) -> Snapshot:
        """Raises NotFound when it is gone."""
        found = self._snapshots.of([self._id]).get(self._id)
        if found is None:
            raise NotFound("the repository was deleted")
        return found


@dataclass(frozen=True)
class Chosen:
    """What of an upstream one run follows, whatever kind of repository it is for."""

    repository: Repositories
    names: Sequence[str]
    rules: Rules

    @property
    def snapshot(self) -> Snapshot:
        return self.repository.now()

    def wants(self, path: str) -> bool:
        return self.rules.want(self.snapshot, path)


@dataclass(frozen=True)
class Prefetch(Chosen):
    """A proxy: trail and copies of one run."""

    database: Database
    fetches: Fetches
    reading: Reading | None = None

    @property
    def url(self) -> str:
        return self.snapshot.upstream_url or ""

    def read_by(self, reading: Reading) -> Prefetch:
        return replace(self, reading=reading)

    def said_of(self, package: str | None) -> int:
        return 0

    def document(self, index: Index) -> Brought:
        # The copy that clients get says nothing of what the upstream has now; that one is compared by the validators of the copy.
        if self.reading is not None:
            self.reading.take_in()
        return self.fetches.bring(self.snapshot, index.path, anew=True)

    def ask(self, wanted: Wanted, at_most: int) -> bytes | None:
        if self.reading is None:
            return self.fetches.ask(self.snapshot, wanted, at_most)
        self.reading.take_in()
        return self.fetches.ask(self.snapshot, wanted, at_most, partial(self.reading.watch, at_most=at_most))

    def ask_list(self, wanted: Wanted, at_most: int) -> bytes | None:
        reading = self.reading
        if reading is None:
            return self.ask(wanted, at_most)

        def hear(answer: Answer) -> None:
            reading.hear(answer)
            reading.watch(answer, at_most)

        return self.fetches.ask(self.snapshot, reading.asked(wanted), at_most, hear)

    def amend(self, package: str, told: Callable[[], Amendment]) -> None:
        """What it says is its upstream's."""

    def require_open(self) -> None:
        snapshot = self.snapshot
        check_online(snapshot)
        if not snapshot.caching_allowed:
            raise NotAllowedHere(f"repository {snapshot.name!r} stores nothing that it fetches (caching is off)")

    def copy(self, work: Work, kept: Kept) -> Copied:
        path, snapshot = work.item.path, self.snapshot
        require_path(snapshot, path)
        order = Order.of(snapshot, path, kept=kept)
        here = self._here(order, work.item.digest)
        if here is not None:
            return here
        with refusing():
            outcome = self._fetched(order)
        if outcome is Outcome.GONE:
            raise NotFound(f"the upstream has no {path!r}")
        copied = here_at(self.database, snapshot.id, path)
        if copied is None:
            raise NotFound(f"{path!r} was deleted meanwhile")
        return Copied(copied.sha256, copied.size, received=copied.size if outcome is Outcome.STORED else None)

    def _here(self, order: Order, digest: str | None) -> Copied | None:
        """The copy where nobody need be asked: it is fresh, or the bytes that the upstream's list has just told."""
        found = self.fetches.look(order)
        if found.read_only:
            raise ReadOnly("this server is read only for the time being: nothing is stored", retry_after=60)
        copy = found.copy
        if copy is None or copy.freshness is None or copy.freshness.source != found.upstream.url:
            return None
        known = here_at(self.database, order.snapshot.id, order.path)
        if known is None or known.sha256 != copy.digest:
            return None
        if not known.is_told(digest) and (digest is not None or copy.freshness.is_due(found.upstream.url, time.time())):
            return None
        return Copied(known.sha256, known.size)

    def _fetched(self, order: Order) -> Outcome:
        try:
            return self.fetches.join(order).end()
        except NotStorable as error:
            if isinstance(error.__cause__, CapacitySpent | TooLarge):
                raise error.__cause__ from None
            if self.fetches.lacks_room(order):
                raise CapacitySpent(f"there was no room for {order.path!r} just now") from None
            raise NotAllowedHere(f"{order.path!r} is handed on and never stored") from None
        except ArkvoryError as error:
            # Its beginning was handed on to a client when the room ran out.
            if isinstance(error.__cause__, CapacitySpent):
                raise error.__cause__ from None
            raise


@dataclass(frozen=True, slots=True)
class Here:
    """What is at a path: hex digests, and bytes."""

    sha256: str
    size: int
    checksums: Mapping[str, str]

    def is_told(self, digest: str | None) -> bool:
        """Whether it is the file of which a list tells this digest, as far as that can be known."""
        algorithm, _, encoded = (digest or "").partition(":")
        return bool(encoded) and {**self.checksums, "sha256": self.sha256}.get(algorithm) == encoded


def here_at(database: Database, repository_id: int, path: str) -> Here | None:
    """Null for nothing."""
    with database.read() as connection:
        row = connection.execute(_HERE, {"id": repository_id, "path": path}).first()
    return None if row is None else Here(*row)


_HERE = text(
    "select b.digest, b.size, b.checksums from arkvory_artifacts a join arkvory_blobs b on b.id = a.blob_id "
    "where a.repository_id = :id and a.path = :path"
)
