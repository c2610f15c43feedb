"""Fetching a file from an upstream, once for all who want it (DESIGN 6).

    lease       in a cluster: the path is this process's to fetch; what another process has fetched meanwhile is found instead
    look        what is there now: settings, the copy, what was said of it; perhaps it is fresh already
    ask         one GET, with the copy's validators
    store       the same machinery as a publish: reserve, receive, place, one transaction
    or move     the next check of the copy, when nothing has changed
    or drop     the copy, when the upstream has it no more

A fetch runs in a greenlet of its own: whoever asked first may leave. Followers are fed from the file as it grows; its last bytes are
withheld until length, digest and commit are good.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import hashlib
import itertools
import logging
import mimetypes
import os
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, NamedTuple

import gevent
from gevent.event import AsyncResult, Event
from gevent.lock import BoundedSemaphore
from sqlalchemy import Connection

from app.access.identity import Caller
from app.cache import keys
from app.cache.snapshots import Snapshot, read_snapshot
from app.cache.store import Cache
from app.cache.view import Epochs
from app.cluster.leases import Leases
from app.database.engines import Database
from app.database.statements import text
from app.errors import (
    ArkvoryError,
    CapacitySpent,
    DigestMismatch,
    Invalid,
    NotFound,
    Quarantined,
    TooLarge,
    Unavailable,
    UpstreamFailed,
    UpstreamTimedOut,
    UpstreamUnfit,
    UpstreamUntrue,
)
from app.repository.deleting import Editor
from app.repository.dialects import Dialect, Order, Plan, Remake
from app.repository.formats import absent as absent_at
from app.repository.formats import is_lasting
from app.repository.names import is_content_type
from app.repository.parts import PART, Begun, Parts
from app.repository.publishing import Conditions, NewFile, Publisher, Session, Standing, Target
from app.repository.quarantine import reason_to_hold
from app.repository.reading import ADDRESS, Brought, brought
from app.repository.withholding import Release, release_of, require_path, restrictions_of, told_of
from app.repository.writable import settings_for_writing
from app.storage import OpenBlob
from app.upload.receiving import Expected, Received, Receiver
from app.upstream import freshness, upstream
from app.upstream.breaker import Condition, Line
from app.upstream.client import Answer, Arrived, Client, Wanted
from app.upstream.freshness import MISS_TTL, MUTABLE_TTL, Freshness, Origin, freshness_of, http_moment, ttl_of
from app.upstream.secrets import Secrets
from app.upstream.upstream import Upstream

log = logging.getLogger(__name__)

PLACES = 64
# The fetch of a process that died is taken over after so long.
LEASE_SECONDS = 10.0
# How long another process's fetch is waited for.
ELSEWHERE_SECONDS = 60.0
# What is no longer is answered when it is stored, with all that is known of it by then.
SMALL = 1024 * 1024
HELD_BACK = 4096
# Of an index that is not to be stored.
MOST_TAKEN = 256 * 1024 * 1024
MOST_PAGES = 1000
# Of one path, whose misses are remembered: a path has as many as it has characters to be encoded or not.
MOST_SPELLINGS = 16
# Each follower holds one in memory for as long as its client reads nothing.
_PIECE = 64 * 1024
_LOOK_SECONDS = 0.05
# For which something is not tried to be stored again that found no room half way.
_TOO_LARGE_SECONDS = 60.0
UPSTREAM = Caller(None, "upstream")


class Outcome(enum.Enum):
    """How a fetch ended."""

    FRESH = "another one had seen to it"
    SAME = "the copy is still what the upstream has"
    STORED = "stored, or replaced"
    GONE = "the upstream has no such file"


class NotStorable(Exception):
    """It may be had, but not kept."""


@dataclass(frozen=True)
class Head:
    """What is known of bytes that are coming."""

    size: int | None
    content_type: str
    # What the copy's metadata will say of its age.
    metadata: Mapping[str, Any]
    # Where they come from in the end.
    address: str = ""
    # Digests (hex by algorithm) that they must have, as far as they are known.
    checksums: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Known:
    """What is there when a fetch begins; `copy` null: nothing."""

    settings: Mapping[str, Any]
    upstream: Upstream
    read_only: bool
    copy: Copy | None
    # Why it is withheld, or will be; null: it is not.
    reason: str | None
    # The metadata epoch: it moves with the upstream's address and its credentials.
    described: int


@dataclass(frozen=True)
class Copy:
    upload_id: Any
    blob_id: int
    digest: str
    address: str | None
    freshness: Freshness | None
    published: Release | None


class Fetch:
    """One fetch of one path. Those who wait for it hear of its head, when its bytes may be handed on as they come, and of its end."""

    def __init__(self, order: Order) -> None:
        self.order = order
        # Somebody waits for it who does not come back for the rest.
        self.shared = False
        self.asked_at = time.time()
        self._head: AsyncResult = AsyncResult()
        self._end: AsyncResult = AsyncResult()
        self._progress = Event()
        self._receiver: Receiver | None = None
        self._fd = -1

    # -- for those who wait

    def head(self) -> Head | None:
        """Null when it ends without any bytes to be handed on. Raises what it ends with."""
        head: Head | None = self._head.get()
        return head

    def end(self, seconds: float | None = None) -> Outcome:
        """Raises what it ends with, and UpstreamTimedOut when it goes on for longer than that."""
        with gevent.Timeout(seconds, UpstreamTimedOut("the upstream takes long; it goes on being asked")):
            outcome: Outcome = self._end.get()
        return outcome

    def follow(self) -> Follower | None:
        """Its bytes as they come; null when they are all there, or none is coming."""
        return Follower(self, os.dup(self._fd)) if self._fd >= 0 and not self._end.ready() else None

    @property
    def ended(self) -> bool:
        """Whether all is good. Raises what it ended with otherwise."""
        if self._end.ready():
            self._end.get()
            return True
        return False

    @property
    def written(self) -> int:
        return 0 if self._receiver is None else self._receiver.written

    def wait(self) -> None:
        """Until there may be more."""
        self._progress.wait(_LOOK_SECONDS)

    # -- for the one who fetches

    def begin(self, head: Head, receiver: Receiver) -> None:
        """Its bytes may be handed on."""
        self._receiver = receiver
        self._fd = os.open(receiver.path, os.O_RDONLY | os.O_CLOEXEC)
        self._head.set(head)

    @property
    def begun(self) -> bool:
        return bool(self._head.ready())

    def advance(self) -> None:
        self._progress.set()
        self._progress.clear()

    def finish(self, outcome: Outcome) -> None:
        self._end.set(outcome)
        if not self._head.ready():
            self._head.set(None)
        self.advance()

    def fail(self, error: BaseException) -> None:
        self._end.set_exception(error)
        if not self._head.ready():
            self._head.set_exception(error)
        self.advance()

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class Follower:
    """The bytes of a fetch for one client, at the client's own speed, from the file."""

    def __init__(self, fetch: Fetch, fd: int) -> None:
        self._fetch = fetch
        self._fd = fd
        head = fetch.head()
        self.size = None if head is None else head.size

    def pieces(self, start: int, stop: int | None) -> Iterator[bytes]:
        """Raises what the fetch ends with."""
        at, goal = start, self.size if stop is None else stop
        while True:
            ended = self._fetch.ended
            end = self._readable(goal, ended)
            if at < end:
                piece = os.pread(self._fd, min(_PIECE, end - at), at)
                at += len(piece)
                yield piece
                gevent.sleep(0)
            elif ended:
                return
            else:
                self._fetch.wait()

    def _readable(self, goal: int | None, ended: bool) -> int:
        """How far it may be read: the last bytes of what is to be sent only at the end."""
        written = self._fetch.written
        if ended:
            return written if goal is None else goal
        return written - HELD_BACK if goal is None else min(written, goal - HELD_BACK)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class Passing:
    """The bytes of an answer that is not stored, straight from the upstream; the last piece once length and digests are good."""

    def __init__(self, size: int | None, source: Iterator[bytes], digests: Mapping[str, str], held: contextlib.ExitStack) -> None:
        self.size = size
        self._digests = digests
        self._hashes = {name: hashlib.new(name, usedforsecurity=False) for name in digests}
        self._source = source
        self._held = held

    def pieces(self, start: int, stop: int | None) -> Iterator[bytes]:
        """Raises UpstreamFailed."""
        at, former = 0, b""
        with self._held:
            for piece in self._source:
                if former:
                    yield former
                former = piece[max(0, start - at) : None if stop is None else max(0, stop - at)]
                at += len(piece)
                self._hash(piece)
            self._check(at)
            if former:
                yield former

    def _hash(self, piece: bytes) -> None:
        for each in self._hashes.values():
            each.update(piece)

    def _check(self, size: int) -> None:
        if self.size not in (None, size):
            raise UpstreamUnfit(f"the upstream sent {size} bytes, and {self.size} were to come")
        for name, each in self._hashes.items():
            if each.hexdigest() != self._digests[name]:
                raise UpstreamUnfit(f"{name} of what the upstream sent is {each.hexdigest()}, and should be {self._digests[name]}")

    def close(self) -> None:
        self._held.close()


class Deposits(Publisher):
    """Stores what an upstream has: nobody's right is asked, and no policy; the repository must still be that proxy."""

    def _check_right(self, connection: Connection, target: Target, paths: Iterable[str | None]) -> tuple[Snapshot, Mapping[str, Any]]:
        now = read_snapshot(connection, target.tenant, target.repository)
        return now, settings_for_writing(connection, now.id)

    def _check_offers(self, connection: Connection, standing: Standing, files: Sequence[NewFile], conditions: Conditions) -> None:
        """Whatever the upstream has now replaces what it had, unless it is not the upstream any more. Raises Unavailable."""
        now = standing.snapshot
        if not now.caching_allowed or any(each.origin is None or each.origin.source != now.upstream_url for each in files):
            raise _changed(now)

    def _remember(self, connection: Connection, snapshot: Snapshot, files: Sequence[NewFile]) -> None:
        for each in files:
            if each.origin is not None:
                freshness.write(connection, snapshot.id, each.path, each.origin)


class Fetches:
    """Those of this process, one for each path at a time."""

    def __init__(
        self, database: Database, cache: Cache, secrets: Secrets, deposits: Deposits, editor: Editor, leases: Leases | None
    ) -> None:
        """`leases` null: no other process fetches."""
        self._database = database
        self._cache = cache
        self._secrets = secrets
        self._deposits = deposits
        self._editor = editor
        self._leases = leases
        self._client = Client()
        self._places = BoundedSemaphore(PLACES)
        self._lines: dict[int, Line] = {}
        self._running: dict[Any, Fetch] = {}
        self._too_large: dict[tuple[int, str], float] = {}
        # By format.
        self.dialects: dict[str, Dialect] = {}

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def places(self) -> BoundedSemaphore:
        """Those of all upstreams together."""
        return self._places

    @property
    def left_alone(self) -> int:
        """Upstreams that are not asked just now."""
        return sum(line.breaker.leaves_alone for line in self.lines)

    def condition(self, repository_id: int) -> Condition | None:
        """How this process gets along with the upstream of a proxy; null when it has not asked it yet."""
        line = self._lines.get(repository_id)
        return None if line is None else line.condition

    @property
    def lines(self) -> Collection[Line]:
        """Those to upstreams that this process has asked."""
        return self._lines.values()

    def join(self, order: Order) -> Fetch:
        """The fetch of that path that runs already, or one that begins now."""
        key = order.snapshot.id, order.snapshot.epochs.metadata, order.path, order.spelling
        fetch = self._running.get(key)
        if fetch is None:
            fetch = self._running[key] = Fetch(order)
            gevent.spawn(self._run, key, fetch)
        fetch.shared |= order.kept is None
        return fetch

    def _run(self, key: Any, fetch: Fetch) -> None:
        try:
            fetch.finish(self._fetch(fetch))
        except (ArkvoryError, NotStorable) as error:
            fetch.fail(error)
        except BaseException as error:
            log.exception("the fetch of %s broke off", fetch.order.path)
            fetch.fail(Unavailable("the fetch broke off; try again"))
            if not isinstance(error, Exception):
                raise
        finally:
            del self._running[key]
            fetch.close()

    def _fetch(self, fetch: Fetch) -> Outcome:
        order = fetch.order
        # It may wait for another fetch: nothing is held meanwhile.
        plan = self._plan(order)
        _check_age(order, plan)
        if not plan.kept:
            raise NotStorable
        outcome = self._ask(fetch, plan)
        return self._make(order, plan) if outcome is Outcome.GONE and plan.instead is not None else outcome

    def _ask(self, fetch: Fetch, plan: Plan) -> Outcome:
        order = fetch.order
        with self._alone(order):
            found = self.look(order)
            copy = found.copy
            if copy is not None and copy.freshness is not None and self._is_fresh(copy.freshness, fetch):
                return Outcome.FRESH
            if copy is not None and self._is_same(order, plan, found, copy):
                return Outcome.SAME
            with self._asked(order, plan, found, patient=copy is None) as fetched:
                if fetched.answer.unchanged:
                    return self._move(fetched)
                if fetched.answer.absent:
                    return self._drop(order, plan, found)
                return self._put_off(fetched) if fetched.comes_too_early else self._store(fetch, fetched)

    @contextlib.contextmanager
    def _asked(self, order: Order, plan: Plan, found: Known, *, patient: bool = True, anew: bool = False) -> Iterator[_Fetched]:
        """The first answer that is not absence, else the last; `anew`: whatever the copy is."""
        ways = _asked_anew(plan) if anew else self._ways(order, plan, found)
        parts = None if anew else self._parts(order, plan)
        for wanted in ways:
            with self._answered(_Question(order, plan, found, parts, patient), wanted) as fetched:
                if not fetched.answer.absent or wanted is ways[-1]:
                    yield fetched
                    return

    @contextlib.contextmanager
    def _answered(self, question: _Question, wanted: Wanted) -> Iterator[_Fetched]:
        """The next part, where it is to come in parts and the upstream goes along with that; else the whole."""
        order, plan, found, parts, patient = question
        line = self._line(order, found)
        if parts is not None:
            begun = parts.begun()
            asked = parts.wanted(wanted, begun)
            with self._client.get(found.upstream, asked, line, patient=patient) as answer:
                coming = _Coming(parts, begun, line)
                if parts.fits(answer, begun):
                    fetched = _Fetched(order, plan, found, answer, asked, coming)
                    if not fetched.in_parts:
                        parts.give_up(begun)
                    yield fetched
                    return
            parts.give_up(begun)
        with self._client.get(found.upstream, wanted, line, patient=patient) as answer:
            yield _Fetched(order, plan, found, answer, wanted)

    def _parts(self, order: Order, plan: Plan) -> Parts | None:
        """Null where it comes as a whole."""
        if order.kept is None or not plan.is_plain or (plan.size is not None and plan.size <= PART):
            return None
        parts = Parts(self._deposits.sessions, order.kept, order.snapshot.id, order.path)
        return parts if parts.worthwhile else None

    def _is_same(self, order: Order, plan: Plan, found: Known, copy: Copy) -> bool:
        """Whether HEAD says so; then the copy counts as compared."""
        known = copy.freshness
        if plan.same is None or known is None or known.source != found.upstream.url or known.spelling != plan.where:
            return False
        wanted = replace(_asked_anew(plan)[0], method="HEAD")
        with self._client.get(found.upstream, wanted, self._line(order, found), patient=False) as answer:
            same = not answer.absent and not answer.unsaid and plan.same(answer.head, copy.digest)
        if same:
            self._move(_Fetched(order, plan, found, answer, wanted))
        return same

    def head_of(self, order: Order, epochs: Epochs) -> Head | None:
        """What the upstream says of a file that is not here without sending it; null where it says nothing, and is to be asked for it.

        Raises NotFound when it has none, Quarantined, and UpstreamFailed.
        """
        absent = absent_at(order.snapshot.format, order.path, order.snapshot.name)
        if self.is_missing(order, epochs):
            raise absent
        plan, found = self._plan(order), self.look(order)
        _check_age(order, plan)
        _check_reason(order.path, found.reason)
        self._check_alias(order, plan)
        wanted = replace(_asked_anew(plan)[0], method="HEAD")
        with self._client.get(found.upstream, wanted, self._line(order, found)) as answer:
            fetched = _Fetched(order, plan, found, answer, wanted)
            if not (answer.absent or answer.unsaid or plan.ageless):
                restrictions_of(order.snapshot).require_time(fetched.told)
        if answer.absent and self._drop(order, plan, found) is Outcome.GONE:
            raise absent
        return None if answer.absent or answer.unsaid else fetched.head

    def settings_of(self, snapshot: Snapshot) -> Mapping[str, Any]:
        """As they are now. Raises NotFound when the repository is gone."""
        with self._database.read() as connection:
            settings = connection.execute(_SETTINGS, {"id": snapshot.id}).scalar()
        if settings is None:
            raise NotFound(f"repository {snapshot.name!r} was deleted meanwhile")
        return dict(settings)

    def _plan(self, order: Order) -> Plan:
        dialect = self.dialects.get(order.snapshot.format)
        if dialect is None:
            return Plan(order.spelling, lasting=is_lasting(order.snapshot.format, order.path))
        return dialect.plan(_Library(self, order.snapshot), order)

    def _ways(self, order: Order, plan: Plan, found: Known) -> list[Wanted]:
        """With the validators of the copy where it came from the same address, which goes first; of a path alone, by that spelling."""
        known = None if found.copy is None else found.copy.freshness
        if known is None or known.source != found.upstream.url:
            return _asked_anew(plan)
        again = Wanted(known.spelling, known.etag, known.last_modified, plan.headers, scope=plan.scope)
        if order.snapshot.format not in self.dialects:
            return [again]
        ways = [again if each.path == again.path else each for each in _asked_anew(plan)]
        return sorted(ways, key=lambda each: each is not again)

    def bring(self, snapshot: Snapshot, path: str, *, anew: bool = False) -> Brought:
        """What is stored at a path of a proxy, fetched or compared first where that is due; what is not to be stored comes as it is.

        `anew`: compared whether it is due or not. Raises NotFound, Quarantined, and UpstreamFailed when there is no copy either, and `anew`
        whatever there is.
        """
        order = Order.of(snapshot, path, anew=anew)
        absent = absent_at(snapshot.format, path, snapshot.name)
        if not snapshot.caching_allowed:
            return self.taken(order, absent)
        if not anew and self.is_missing(order, self._cache.effective(snapshot.id, snapshot.epochs)):
            raise absent
        failure: ArkvoryError | None = None
        try:
            if self.join(order).end() is Outcome.GONE:
                raise absent
        except NotStorable:
            return self.taken(order, absent)
        except UpstreamFailed as error:
            if anew:
                raise
            failure = error
        found = self.look(order)
        _check_reason(path, found.reason)
        if found.copy is None:
            raise failure or Unavailable(f"{path!r} was deleted meanwhile; try again", retry_after=1)
        return brought(self._deposits.store.open(found.copy.digest, found.copy.blob_id), found.copy.address)

    def peek(self, snapshot: Snapshot, where: str, most: int) -> bytes | None:
        """See `dialects.Library`."""
        order = Order(snapshot, where, where)
        found = self.look(order)
        return self._client.small(found.upstream, Wanted(where), self._line(order, found), most)

    def taken(self, order: Order, absent: NotFound) -> Brought:
        """All of an answer that is not stored, as it would be kept, in a file without a name. Raises `absent` and UpstreamFailed."""
        plan = self._plan(order)
        passing = self._pass_on(order, plan)
        if passing is None:
            raise absent
        head, coming = passing
        with contextlib.closing(coming), tempfile.NamedTemporaryFile() as file:
            for piece in coming.pieces(0, None):
                file.write(piece)
                if file.tell() > MOST_TAKEN:
                    raise UpstreamUnfit(f"the upstream's {order.path!r} has more than {MOST_TAKEN} bytes, and is not to be stored")
            file.flush()
            return brought(_unnamed(file.file) if plan.remade is None else _remade(plan.remade, Path(file.name)), head.address)

    def _is_fresh(self, known: Freshness, fetch: Fetch) -> bool:
        """Another one has asked the upstream since: in this process or another, before we had our turn."""
        source, anew = fetch.order.snapshot.upstream_url, fetch.order.anew and not known.immutable
        return (not anew and not known.is_due(source, time.time())) or (known.source == source and known.checked > fetch.asked_at)

    def look(self, order: Order) -> Known:
        """Raises NotFound when the repository is gone, and Unavailable."""
        repository_id = order.snapshot.id
        with self._database.read() as connection:
            row = connection.execute(_LOOK, {"id": repository_id, "path": order.path}).first()
            if row is None:
                raise NotFound(f"repository {order.snapshot.name!r} was deleted meanwhile")
            where = upstream.read(connection, self._secrets, repository_id)
            reason = reason_to_hold(connection, order.snapshot, order.path, UPSTREAM)
        metadata = row.metadata or {}
        copy = None if row.upload_id is None else Copy(
            row.upload_id, row.blob_id, row.digest, metadata.get(ADDRESS), freshness_of(row), release_of(order.path, metadata)
        )  # fmt: skip
        return Known(row.settings, where, row.read_only, copy, reason, row.metadata_epoch)

    def require_released(self, snapshot: Snapshot, path: str) -> None:
        """Raises Quarantined for what is held, or will be when it is stored."""
        with self._database.read() as connection:
            reason = reason_to_hold(connection, snapshot, path, UPSTREAM)
        _check_reason(path, reason)

    def _check_alias(self, order: Order, plan: Plan) -> None:
        """Raises Blocked and Quarantined for another name of what may not leave."""
        if plan.alias_of:
            require_path(order.snapshot, plan.alias_of)
            self.require_released(order.snapshot, plan.alias_of)

    @contextlib.contextmanager
    def _alone(self, order: Order) -> Iterator[None]:
        """In all processes. Whoever waited for too long goes on beside the other: twice is harmless."""
        if self._leases is None:
            yield
            return
        name = f"fetch/{order.snapshot.id}/{hashlib.sha256(order.path.encode()).hexdigest()[:32]}"
        with self._leases.hold(name, LEASE_SECONDS, ELSEWHERE_SECONDS):
            yield

    def _line(self, order: Order, found: Known) -> Line:
        """Another address is another upstream: what the former one did says nothing about it."""
        line, upstream = self._lines.get(order.snapshot.id), found.upstream
        if line is None or (line.address != upstream.url and line.described < found.described):
            former = 0 if line is None else line.breaker.disappointments
            line = Line(order.snapshot.name, upstream.connections, self._places, address=upstream.url, described=found.described)
            line.breaker.disappointments = former
            self._lines[order.snapshot.id] = line
        line.resize(upstream.connections)
        line.breaker.name = order.snapshot.name
        return line

    # -- what becomes of the answer

    def _move(self, fetched: _Fetched) -> Outcome:
        """Not modified: no epoch moves."""
        copy = fetched.found.copy
        assert copy is not None
        self._compared(fetched.order, copy, fetched.origin(copy.freshness))
        return Outcome.SAME

    def _put_off(self, fetched: _Fetched) -> Outcome:
        """What the upstream has now is too young to replace the copy, which stays as long; compared by its own validators."""
        copy = fetched.found.copy
        assert copy is not None and copy.freshness is not None
        known = copy.freshness
        origin = replace(fetched.origin(), spelling=known.spelling, etag=known.etag, last_modified=known.last_modified)
        self._compared(fetched.order, copy, origin)
        return Outcome.SAME

    def _compared(self, order: Order, copy: Copy, origin: Origin) -> None:
        with self._database.write() as connection:
            freshness.move(connection, order.snapshot.id, order.path, copy.upload_id, origin)

    def _drop(self, order: Order, plan: Plan, found: Known) -> Outcome:
        """Gone: the copy goes, and a miss is remembered, unless the path was stored since the fetch began.

        Raises Unavailable when it was another upstream that said so, or one that was asked with other credentials.
        """
        if found.copy is not None:
            self._editor.drop_copy(order.snapshot, order.path, found.copy.upload_id, described=found.described)
        lifetime = 0 if plan.instead is not None else ttl_of(found.settings, "miss_ttl", MISS_TTL)
        with self._database.read() as connection:
            row = connection.execute(_PRESENCE, {"id": order.snapshot.id, "path": order.path}).first()
        if row is None:
            return Outcome.GONE
        if row.metadata_epoch != found.described:
            raise _changed(order.snapshot)
        if row.present:
            return Outcome.FRESH
        seen = Epochs._make(row[:4])
        # A rise since the query may be this very path. Between here and `put` nobody else runs.
        if lifetime and self._cache.view.repository(order.snapshot.id).content <= seen.content and self._cache.may_keep(order.snapshot.id):
            self._remember_miss(order, seen, lifetime)
        return Outcome.GONE

    def _remember_miss(self, order: Order, seen: Epochs, lifetime: float) -> None:
        """C3: under the metadata epoch that the query read. Each spelling for itself: an upstream may tell them apart."""
        key, now = keys.for_miss(order.snapshot.id, seen, order.path), time.monotonic()
        known = {spelling: until for spelling, until in (self._cache.misses.peek(key) or {}).items() if until > now}
        if len(known) >= MOST_SPELLINGS:
            del known[min(known, key=known.__getitem__)]
        known[order.spelling] = now + lifetime
        self._cache.misses.put(key, known, tags=(keys.tag_of_repository(order.snapshot.id),), lifetime=max(known.values()) - now)

    def give_up(self, order: Order) -> None:
        """The copy goes when its bytes are missing on the disk."""
        copy = self.look(order).copy
        if copy is None:
            return
        try:
            self._deposits.store.open(copy.digest, copy.blob_id).close()
        except FileNotFoundError:
            self._editor.drop_copy(order.snapshot, order.path, copy.upload_id)

    def is_missing(self, order: Order, epochs: Epochs) -> bool:
        """Whether the upstream said lately that it has no such file, by this spelling."""
        known = self._cache.misses.get(keys.for_miss(order.snapshot.id, epochs, order.path))
        return known is not None and known.get(order.spelling, 0.0) > time.monotonic()

    def _store(self, fetch: Fetch, fetched: _Fetched) -> Outcome:
        order, found = fetched.order, fetched.found
        if found.read_only or self.lacks_room(order):
            raise NotStorable
        with Session(self._deposits, _target(order.snapshot), order.snapshot, contextlib.ExitStack()) as session:
            received = self._remade(session, fetched, self._receive(session, fetch, fetched))
            if found.copy is not None and found.copy.digest == received.sha256:
                self._compared(order, found.copy, fetched.origin())
                return Outcome.SAME
            session.publish(fetched.accepted(session, received))
        return Outcome.STORED

    def _remade(self, session: Session, fetched: _Fetched, received: Received) -> Received:
        """As it is to be kept. Raises NotStorable when there is no room, and UpstreamUnfit."""
        if fetched.plan.remade is None:
            return received
        try:
            return session.remade(received, fetched.plan.remade)
        except (CapacitySpent, TooLarge) as error:
            self._leave_alone(fetched.order)
            raise NotStorable from error

    def _make(self, order: Order, plan: Plan) -> Outcome:
        """What stands in for a file that the upstream has not. Raises NotStorable where it is not to be stored."""
        assert plan.instead is not None
        found = self.look(order)
        if found.read_only:
            raise NotStorable
        with Session(self._deposits, _target(order.snapshot), order.snapshot, contextlib.ExitStack()) as session:
            ttl = ttl_of(found.settings, "mutable_ttl", MUTABLE_TTL)
            origin = Origin(found.upstream.url, plan.where, None, None, plan.lasting, ttl)
            file = plan.instead(session.store)
            release = Release(order.path, plan.published_at or datetime.now(UTC), plan.name, plan.version)
            session.publish([replace(file, origin=origin, metadata={**file.metadata, **told_of(release)})])
        return Outcome.STORED

    def _receive(self, session: Session, fetch: Fetch, fetched: _Fetched) -> Received:
        """The whole body, handed on as it comes where nothing stands against it. Raises NotStorable when there is no room."""
        order, found, answer = fetched.order, fetched.found, fetched.answer
        try:
            receiver = self._receiver(session, fetched)
        except (CapacitySpent, TooLarge) as error:
            raise NotStorable from error
        # A copy is better than a new file that breaks off, and what is held must not leave.
        may_begin = found.copy is None and found.reason is None and not fetched.plan.whole and fetched.plan.remade is None
        try:
            for piece in self._coming(fetch, fetched, receiver):
                receiver.feed(piece)
                if may_begin and not fetch.begun and (answer.size or receiver.size) > SMALL:
                    fetch.begin(fetched.head, receiver)
                fetch.advance()
            return receiver.finish()
        except (CapacitySpent, TooLarge) as error:
            self._leave_alone(order)
            if fetch.begun:
                # Those who have its beginning get no more; whoever asks again is handed it on.
                raise Unavailable(f"there is no room to store {order.path!r}; try again", retry_after=1) from error
            raise NotStorable from error
        except (DigestMismatch, Invalid) as error:
            raise UpstreamUntrue(f"what the upstream sent for {order.path!r} is not what it should be: {error.message}") from error

    def _receiver(self, session: Session, fetched: _Fetched) -> Receiver:
        coming, expected, always = fetched.coming, fetched.expected(), fetched.plan.checksums
        if coming is None or not fetched.in_parts:
            return session.receiver(expected, always=always, when_small=("md5", "sha1"))
        return coming.parts.receiver(session, coming.begun, fetched.answer, expected, always)

    def _coming(self, fetch: Fetch, fetched: _Fetched, receiver: Receiver) -> Iterator[bytes]:
        coming, found = fetched.coming, fetched.found
        if coming is None or not fetched.in_parts:
            return self._pieces(fetched)
        more = functools.partial(self._client.more, found.upstream, line=coming.line)
        return coming.parts.pieces(fetched.answer, fetched.wanted, receiver, more, lambda: fetch.shared)

    def lacks_room(self, order: Order) -> bool:
        """Whether there was none for it lately, so that it is not tried again just now."""
        return self._too_large.get((order.snapshot.id, order.path), 0.0) > time.monotonic()

    def _leave_alone(self, order: Order) -> None:
        """There was no room for it half way."""
        now = time.monotonic()
        self._too_large = {path: until for path, until in self._too_large.items() if until > now}
        self._too_large[order.snapshot.id, order.path] = now + _TOO_LARGE_SECONDS

    def _pieces(self, fetched: _Fetched) -> Iterator[bytes]:
        """All of the body, and of the pages behind it. Raises UpstreamFailed for more than the plan takes."""
        taken, most = 0, fetched.plan.at_most
        if most is not None and (fetched.answer.size or 0) > most:
            raise UpstreamUnfit(f"the upstream's {fetched.order.path!r} has {fetched.answer.size} bytes, more than {most}")
        for number, answer in enumerate(self._pages(fetched)):
            if number:
                yield b"\n"
            while piece := answer.read():
                taken += len(piece)
                if most is not None and taken > most:
                    raise UpstreamUnfit(f"the upstream's {fetched.order.path!r} has more than {most} bytes")
                yield piece

    def _pages(self, fetched: _Fetched) -> Iterator[Answer]:
        """The answer; once it was read, the one that it leads to, and so on."""
        plan, found, answer = fetched.plan, fetched.found, fetched.answer
        yield answer
        where = None if plan.further is None else plan.further(answer.head)
        for number in itertools.count(2):
            if where is None or plan.further is None:
                return
            if number > MOST_PAGES:
                raise UpstreamUnfit(f"the upstream's {fetched.order.path!r} has more than {MOST_PAGES} pages")
            with self._client.more(found.upstream, _page(plan, where), self._line(fetched.order, found)) as answer:
                if answer.absent:
                    raise UpstreamUnfit(f"the upstream's {fetched.order.path!r} leads to a page that is not there")
                yield answer
            where = plan.further(answer.head)

    # -- without storing

    def ask(self, snapshot: Snapshot, wanted: Wanted, most: int, hear: Callable[[Answer], None] | None = None) -> bytes | None:
        """What the upstream of a proxy says to it just now; null when it knows of no such thing.

        `hear` is called with the answer first. Raises UpstreamFailed, also for an answer of more than `most` bytes, and what `hear` raises.
        """
        order = Order(snapshot, "", "")
        found = self.look(order)
        with self._client.get(found.upstream, wanted, self._line(order, found)) as answer:
            if hear is not None:
                hear(answer)
            if answer.absent:
                return None
            body = answer.whole(most)
        if body is None:
            raise UpstreamUnfit(f"the upstream's answer has more than {most} bytes")
        return body

    def pass_through(self, order: Order) -> tuple[Head, Passing] | None:
        """The upstream's bytes for one client; null when it has none. Raises Quarantined for what is held, and TooYoung."""
        return self._pass_on(order, self._plan(order))

    def _pass_on(self, order: Order, plan: Plan) -> tuple[Head, Passing] | None:
        found = self.look(order)
        _check_age(order, plan)
        _check_reason(order.path, found.reason)
        self._check_alias(order, plan)
        held = contextlib.ExitStack()
        try:
            fetched = held.enter_context(self._asked(order, plan, found, anew=True))
            if not fetched.answer.absent and not plan.ageless:
                restrictions_of(order.snapshot).require_time(fetched.told)
        except BaseException:
            held.close()
            raise
        if fetched.answer.absent:
            held.close()
            return None
        return fetched.head, Passing(fetched.size, self._pieces(fetched), plan.digests, held)


def _check_age(order: Order, plan: Plan) -> None:
    """Before the upstream is asked. Raises TooYoung."""
    if not plan.ageless:
        restrictions_of(order.snapshot).require_age(Release(order.path, plan.published_at, plan.name, plan.version))


def _changed(snapshot: Snapshot) -> Unavailable:
    return Unavailable(f"the upstream of {snapshot.name!r} was changed meanwhile; try again", retry_after=1)


def _check_reason(path: str, reason: str | None) -> None:
    """Raises Quarantined."""
    if reason is not None:
        raise Quarantined(f"{path!r} is held in quarantine: {reason}")


def _target(snapshot: Snapshot) -> Target:
    return Target(snapshot.format, snapshot.name, UPSTREAM, snapshot.tenant)


def _remade(remake: Remake, path: Path) -> OpenBlob:
    with tempfile.TemporaryFile() as file:
        remake(path, file.write)
        file.flush()
        return _unnamed(file)


def _unnamed(file: IO[bytes]) -> OpenBlob:
    return OpenBlob(os.dup(file.fileno()), file.tell())


def _asked_anew(plan: Plan) -> list[Wanted]:
    return [_page(plan, where) for where in (plan.where, *plan.or_else)]


def _page(plan: Plan, where: str) -> Wanted:
    return Wanted(where, headers=plan.headers, scope=plan.scope)


def _checksums(plan: Plan, head: Arrived) -> Mapping[str, str]:
    """Those that the bytes must have, by the plan and by the answer's head."""
    return {**({} if plan.told is None else plan.told(head)), **plan.digests}


def content_type_of(head: Arrived, path: str) -> str:
    """What the upstream says, else what the name's ending says."""
    if head.content_type is not None and is_content_type(head.content_type):
        return head.content_type
    return mimetypes.guess_type(path)[0] or "application/octet-stream"


class _Question(NamedTuple):
    """What is asked; `parts` null: as a whole."""

    order: Order
    plan: Plan
    found: Known
    parts: Parts | None
    patient: bool


@dataclass(frozen=True)
class _Coming:
    """A part of a file, and how the others are asked for."""

    parts: Parts
    begun: Begun
    line: Line


@dataclass(frozen=True)
class _Fetched:
    """An answer, and what it is the answer to."""

    order: Order
    plan: Plan
    found: Known
    answer: Answer
    wanted: Wanted
    coming: _Coming | None = None
    arrived_at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def in_parts(self) -> bool:
        """Whether more is to be asked for; a short file is its own only part."""
        return self.answer.part is not None and not self.answer.part.is_whole

    @property
    def told(self) -> Release:
        """Its age as the upstream tells it: when it was published, else when it was changed last."""
        at = self.plan.published_at or http_moment(self.answer.last_modified)
        return Release(self.order.path, at, self.plan.name, self.plan.version)

    @property
    def release(self) -> Release | None:
        """Where the upstream tells no time, that of its first sight; null for what has no age."""
        return None if self.plan.ageless else replace(self.told, at=self.told.at or self.arrived_at)

    @property
    def comes_too_early(self) -> bool:
        """Whether it is too young to take the place of a copy that is not. Of a time that nobody tells, only storing it keeps the count."""
        copy, restrictions = self.found.copy, restrictions_of(self.order.snapshot)
        if copy is None or copy.freshness is None or copy.published is None or self.plan.ageless:
            return False
        if copy.freshness.source != self.found.upstream.url:
            return False
        now, former = self.arrived_at, restrictions.available_at(copy.published)
        coming = restrictions.available_at(self.told)
        return coming is not None and coming > now and (former is None or former <= now)

    @property
    def head(self) -> Head:
        arrived = self.answer.head
        content_type = self.plan.content_type or content_type_of(arrived, self.order.path)
        try:
            checksums = _checksums(self.plan, arrived)
        except NotStorable:
            # It is only passed on.
            checksums = self.plan.digests
        return Head(self.size, content_type, told_of(self.release), arrived.url, checksums)

    @property
    def size(self) -> int | None:
        """Of all of it in bytes, as far as that is known beforehand."""
        if self.plan.further is not None:
            return None
        return self.answer.size if self.plan.size is None else self.plan.size

    def expected(self) -> Expected:
        return Expected(_checksums(self.plan, self.answer.head), self.size)

    def accepted(self, session: Session, received: Received) -> list[NewFile]:
        """Raises UpstreamUnfit when the format finds that it is something else."""
        accept = self.plan.accept or self._as_it_is
        files = [replace(accept(received, self.answer.head), origin=self.origin())]
        if self.plan.beside is not None:
            more = self.plan.beside(received, self.answer.head)
            for_good = replace(self.origin(), immutable=True)
            files += [
                replace(each, received=own, origin=for_good) for each, own in zip(more, session.again(received, len(more)), strict=True)
            ]
        return [replace(each, metadata={**each.metadata, **told_of(self.release)}) for each in files]

    def _as_it_is(self, received: Received, head: Arrived) -> NewFile:
        return NewFile(self.order.path, received, self.head.content_type)

    def origin(self, former: Freshness | None = None) -> Origin:
        """Where it came from, and by which validators; those that it does not repeat are the former ones."""
        etag = self.answer.etag or (None if former is None else former.etag)
        modified = self.answer.last_modified or (None if former is None else former.last_modified)
        ttl = ttl_of(self.found.settings, "mutable_ttl", MUTABLE_TTL)
        return Origin(self.found.upstream.url, self.wanted.path, etag, modified, self.plan.lasting, ttl)


@dataclass(frozen=True)
class _Library:
    """See `dialects.Library`."""

    fetches: Fetches
    snapshot: Snapshot

    @property
    def settings(self) -> Mapping[str, Any]:
        return self.fetches.settings_of(self.snapshot)

    def open(self, path: str) -> Brought:
        return self.fetches.bring(self.snapshot, path)

    def peek(self, where: str, most: int) -> bytes | None:
        return self.fetches.peek(self.snapshot, where, most)


_LOOK = text(
    "select r.settings, r.metadata_epoch, i.read_only, a.upload_id, a.blob_id, b.digest, a.metadata - 'details' as metadata, "
    f"{freshness.COLUMNS} "
    "from arkvory_repositories r cross join arkvory_installation i "
    "left join arkvory_artifacts a on a.repository_id = r.id and a.path = :path left join arkvory_blobs b on b.id = a.blob_id "
    "left join arkvory_freshness f on f.artifact_id = a.id where r.id = :id and r.deleted_at is null"
)
_SETTINGS = text("select settings from arkvory_repositories where id = :id and deleted_at is null")
_PRESENCE = text(
    "select r.metadata_epoch, r.authorization_epoch, r.content_epoch, r.members_epoch, exists (select 1 from arkvory_artifacts a "
    "where a.repository_id = r.id and a.path = :path) as present from arkvory_repositories r where r.id = :id and r.deleted_at is null"
)
