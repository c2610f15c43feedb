"""What a repository follows, and how far that is: the row of its mirror. Changing it needs `manage`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row

from app.access.authority import Authority
from app.access.decision import MANAGE, Access
from app.access.identity import Caller
from app.access.rules import managed
from app.access.visibility import MANAGED, subject
from app.cache.changes import Transaction, Transactions
from app.cache.snapshots import Snapshot
from app.cluster.schedule import Schedule, ask
from app.database.engines import Database
from app.database.locks import Step
from app.database.paging import Page, page
from app.database.statements import text
from app.errors import Conflict, Invalid, NotAllowedHere, NotFound
from app.repository.mirrors import arkvory
from app.repository.mirrors.guides import Guide
from app.repository.patterns import check_pattern
from app.upstream import upstream as upstreams
from app.upstream.placing import may_lie_inside
from app.upstream.secrets import Secrets
from app.upstream.upstream import Upstream

ARKVORY, INDEX = "arkvory", "index"
SOURCES = (INDEX, ARKVORY)
MOST_NAMES, LONGEST_NAME = 10_000, 500
MOST_PATTERNS, LONGEST_PATTERN = 100, 200
LEAST_SECONDS, MOST_SECONDS = 60, 31 * 86400
MOST_AT_ONCE = 16
# A runner that lives says so more often.
SILENT_SECONDS = 30
# What the job of a mirror is called, before its id.
JOB = "mirror/"
MOST_ERRORS = 20


@dataclass(frozen=True, slots=True)
class MirrorSettings:
    """What is to be followed. Without `names` all that the upstream has; `include` and `exclude` as `allow` and `block` of a proxy.

    `upstream_url` and `upstream` are a hosted repository's; null as `upstream`: as it was.
    """

    source: str = INDEX
    names: Sequence[str] = ()
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    every_seconds: int = 3600
    enabled: bool = True
    concurrency: int = 4
    upstream_url: str | None = None
    upstream: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Mirror:
    """A mirror as it is shown; `upstream` without anything secret, `lag_seconds` how old what the repository has may be."""

    repository: str
    job: str
    source: str
    names: Sequence[str]
    include: Sequence[str]
    exclude: Sequence[str]
    every_seconds: int
    enabled: bool
    concurrency: int
    upstream_url: str | None
    upstream: Mapping[str, Any] | None
    state: str
    reason: str | None
    round: int
    cursor: str
    counts: Mapping[str, int]
    files: int
    bytes: int
    errors: Sequence[Mapping[str, Any]]
    lag_seconds: int
    next_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    succeeded_at: datetime | None
    created_at: datetime
    created: bool = field(default=False)


@dataclass(frozen=True, slots=True)
class Progress:
    """Of one mirror among many; `failures` of its job in a row."""

    repository: str
    job: str
    enabled: bool
    every_seconds: int
    state: str
    reason: str | None
    counts: Mapping[str, int]
    lag_seconds: int
    next_at: datetime | None
    succeeded_at: datetime | None
    failures: int


@dataclass(frozen=True, slots=True)
class RefusedFile:
    """A file that the upstream has and the repository has not, since something is wrong with it.

    `size` and `digest` are as its list tells them. Tried again once any of that changes, or what it was refused by; else at `retry_at`.
    """

    path: str
    reason: str
    size: int | None
    digest: str | None
    refusals: int
    retry_at: datetime | None


class Mirrors:
    """One for each repository that follows something; `guides` by format."""

    def __init__(self, database: Database, transactions: Transactions, access: Access, secrets: Secrets, schedule: Schedule) -> None:
        """`schedule` hears when something is to be run."""
        self._schedule = schedule
        self._database = database
        self._transactions = transactions
        self._access = access
        self._secrets = secrets
        self._authority = Authority(access.identities)
        self.guides: dict[str, Guide] = {}

    def put(self, caller: Caller, repository: str, wanted: MirrorSettings) -> Mirror:
        """Follow this from now on; what is running by other settings ends. Raises Invalid with the field, NotAllowedHere, and as `show`."""
        return self._set(caller, repository, lambda connection, found: wanted)

    def change(self, caller: Caller, repository: str, changes: Mapping[str, Any]) -> Mirror:
        """Some of `MirrorSettings`, by name; the rest stays. Raises as `put`, and NotFound where nothing is followed."""
        return self._set(caller, repository, lambda connection, found: replace(_settings(_row(connection, found)), **changes))

    def _set(self, caller: Caller, repository: str, wanted_of: Callable[[Connection, Snapshot], MirrorSettings]) -> Mirror:
        with self._changing(caller, repository) as (transaction, found):
            connection = transaction.connection
            wanted = wanted_of(connection, found)
            self._check(found, wanted)
            row = connection.execute(_PUT, self._values(connection, caller, found, wanted)).one()
            ask(connection, f"{JOB}{row.id}")
            mirror = _shown(_row(connection, found), found, created=row.created)
        self._schedule.changed.set()
        return mirror

    def list(self, caller: Caller, limit: int, after: str = "") -> Page[Progress]:
        """Of repositories that the caller manages, by name. Raises Unauthenticated, and Forbidden for a deploy token."""
        with self._database.consistent() as connection:
            identity = self._authority.signed_in(connection, caller)
            if identity.token is not None and MANAGE not in identity.token.permissions:
                return Page([])
            values = {"after": after, "limit": limit + 1, **subject(identity)}
            rows = connection.execute(text(f"{_PROGRESS} where r.name > :after and {MANAGED} order by r.name limit :limit"), values).all()
        return page(rows, limit, lambda row: Progress(*row), lambda row: [row.repository])

    def show(self, caller: Caller, repository: str) -> Mirror:
        """For who manages the repository. Raises NotFound, Forbidden or Unauthenticated."""
        with self._database.consistent() as connection:
            found = managed(self._access, connection, caller, repository)
            return _shown(_row(connection, found), found)

    def delete(self, caller: Caller, repository: str) -> None:
        """What was copied stays; a run ends. Raises as `show`."""
        with self._changing(caller, repository) as (transaction, found):
            _row(transaction.connection, found)
            transaction.connection.execute(text("delete from arkvory_mirrors where repository_id = :id"), {"id": found.id})

    def refused(self, caller: Caller, repository: str, limit: int, after: str = "") -> Page[RefusedFile]:
        """By path. Raises as `show`."""
        with self._database.consistent() as connection:
            mirror = _row(connection, managed(self._access, connection, caller, repository))
            rows = connection.execute(_REFUSED, {"mirror": mirror.id, "after": after, "limit": limit + 1}).all()
        return page(rows, limit, lambda row: RefusedFile(*row), lambda row: [row.path])

    def run(self, caller: Caller, repository: str, *, anew: bool = False) -> Mirror:
        """Do not wait for the schedule. Raises Conflict for one that is switched off, and as `show`.

        `anew`: by nothing that is remembered of the upstream; what was refused is tried again. A run ends for it.
        """
        with self._changing(caller, repository) as (transaction, found):
            row = _row(transaction.connection, found)
            if not row.enabled:
                raise Conflict(f"the mirror of {repository!r} is switched off; switch it on first (enabled)")
            if anew:
                transaction.connection.execute(_ANEW, {"id": found.id})
            ask(transaction.connection, f"{JOB}{row.id}")
        self._schedule.changed.set()
        return _shown(row, found)

    def upstream_of(self, row: Row[Any]) -> Upstream:
        """What a hosted repository follows, with its credentials. Raises Unavailable when these cannot be read."""
        described = upstreams.opened(self._secrets, row.shown or {}, row.secret)
        return Upstream(row.upstream_url, **described, may_lie_inside=row.may_lie_inside)

    @contextlib.contextmanager
    def _changing(self, caller: Caller, repository: str) -> Iterator[tuple[Transaction, Snapshot]]:
        """Under the repository's lock, for who manages it."""
        with self._database.read() as connection:
            found = managed(self._access, connection, caller, repository)
        with self._transactions.begin(found.id) as transaction:
            managed(self._access, transaction.connection, caller, repository, found.id)
            transaction.order.reach(Step.REPOSITORY_ROW)
            yield transaction, found

    def _check(self, found: Snapshot, wanted: MirrorSettings) -> None:
        guide = self.guides.get(found.format)
        if guide is None or found.kind == "group":
            told = f"a {found.kind} of the format {found.format} cannot follow anything; a mirror belongs to what has the files"
            raise NotAllowedHere(told)
        _check_numbers(wanted)
        _check_names(wanted)
        for name, setting in (("include", wanted.include), ("exclude", wanted.exclude)):
            _check_patterns(found.format, name, setting)
        if found.kind == "proxy":
            _check_proxy(found, wanted)
        elif wanted.upstream_url is None:
            raise Invalid("say what it follows: upstream_url is the upstream's address", field="upstream_url")
        url = found.upstream_url if found.kind == "proxy" else upstreams.check_url(wanted.upstream_url)
        if wanted.source == INDEX:
            guide.check(wanted.names)
        else:
            arkvory.source_of(found.format, url or "")

    def _values(self, connection: Connection, caller: Caller, found: Snapshot, wanted: MirrorSettings) -> dict[str, Any]:
        """Of the row. Raises Invalid, and Forbidden for an upstream that only an administrator may name."""
        documents = {name: json.dumps(list(getattr(wanted, name))) for name in ("names", "include", "exclude")}
        values = {name: getattr(wanted, name) for name in ("source", "every_seconds", "enabled", "concurrency")}
        return {"id": found.id, **values, **documents, **self._described(connection, caller, found, wanted)}

    def _described(self, connection: Connection, caller: Caller, found: Snapshot, wanted: MirrorSettings) -> dict[str, Any]:
        """The upstream. What is secret stays where nothing is said of it, unless requests are to go elsewhere."""
        if found.kind == "proxy":
            return {"upstream_url": None, "shown": None, "secret": None, "inside": False}
        url, change = upstreams.check_url(wanted.upstream_url), wanted.upstream or {}
        before = connection.execute(_UPSTREAM, {"id": found.id}).first()
        if before is not None and url == before.upstream_url and not change:
            return {"upstream_url": url, "inside": before.may_lie_inside, "shown": json.dumps(before.shown), "secret": before.secret}
        moved = before is not None and upstreams.origin(url) != upstreams.origin(before.upstream_url)
        known = {} if before is None else upstreams.staying(self._secrets, before.shown or {}, before.secret, change, moved=moved)
        after = upstreams.merged(known, change)
        if before is not None and url == before.upstream_url and "http_proxy" not in change:
            inside = before.may_lie_inside
        else:
            inside = may_lie_inside(connection, self._authority, caller, (url, after.get("http_proxy")))
        return {"upstream_url": url, "inside": inside, **upstreams.sealed(self._secrets, after)}


def _check_numbers(wanted: MirrorSettings) -> None:
    if wanted.source not in SOURCES:
        raise Invalid(f"the source is one of {', '.join(SOURCES)}", field="source")
    if not LEAST_SECONDS <= wanted.every_seconds <= MOST_SECONDS:
        raise Invalid(f"every_seconds is a number of seconds, from {LEAST_SECONDS} to {MOST_SECONDS}", field="every_seconds")
    if not 1 <= wanted.concurrency <= MOST_AT_ONCE:
        raise Invalid(f"concurrency is how many files are copied at once, from 1 to {MOST_AT_ONCE}", field="concurrency")


def _check_names(wanted: MirrorSettings) -> None:
    if len(wanted.names) > MOST_NAMES or any(not 0 < len(each) <= LONGEST_NAME for each in wanted.names):
        raise Invalid(f"names are at most {MOST_NAMES}, of 1 to {LONGEST_NAME} characters", field="names")
    if wanted.names and wanted.source == ARKVORY:
        raise Invalid("of another Arkvory all artifacts are followed; choose among them by include and exclude", field="names")


def _check_patterns(format_name: str, name: str, patterns: Sequence[str]) -> None:
    if len(patterns) > MOST_PATTERNS or any(not 0 < len(each) <= LONGEST_PATTERN for each in patterns):
        raise Invalid(f"{name} are at most {MOST_PATTERNS} patterns of up to {LONGEST_PATTERN} characters", field=name)
    for each in patterns:
        try:
            check_pattern(format_name, "allow" if name == "include" else "block", each)
        except Invalid as error:
            raise Invalid(f"{name}: {error.message.partition(': ')[2]}", field=name) from None


def _check_proxy(found: Snapshot, wanted: MirrorSettings) -> None:
    if wanted.upstream_url is not None or wanted.upstream:
        raise Invalid("a proxy follows its own upstream, whose address and credentials stand with the repository", field="upstream_url")
    if not found.caching_allowed:
        raise Invalid("this proxy stores nothing that it fetches (caching is off), so there is nothing to copy", field="source")


def _row(connection: Connection, found: Snapshot) -> Row[Any]:
    row = connection.execute(_MIRROR, {"id": found.id}).first()
    if row is None:
        raise NotFound(f"repository {found.name!r} follows nothing: it has no mirror")
    return row


def _settings(row: Row[Any]) -> MirrorSettings:
    """As they are; what is secret stays."""
    known = {each.name: getattr(row, each.name) for each in fields(MirrorSettings)}
    return MirrorSettings(**{**known, "upstream": None})


def standings(connection: Connection) -> Sequence[Progress]:
    """Of all mirrors, by the repository's name."""
    return [Progress(*row) for row in connection.execute(text(f"{_PROGRESS} order by r.name"))]


def followers(connection: Connection) -> Mapping[str, str]:
    """Names of repositories, by the job of their mirror."""
    return {each.job: each.repository for each in standings(connection)}


def _shown(row: Row[Any], found: Snapshot, *, created: bool = False) -> Mirror:
    known = dict(row._mapping)
    known["job"] = f"{JOB}{known.pop('id')}"
    known["upstream_url"] = found.upstream_url if found.kind == "proxy" else known["upstream_url"]
    return Mirror(**{"repository": found.name, **known}, created=created)


_STATE = f"case when m.state = 'running' and m.seen_at < now() - interval '{SILENT_SECONDS} seconds' then 'interrupted' else m.state end"
_LAG = "extract(epoch from now() - coalesce(m.current_at, m.created_at))::bigint"
_NEXT_AT = "case when m.enabled and not j.running then least(j.next_at, j.asked_at) end"
_JOINED = f"from arkvory_mirrors m left join arkvory_jobs j on j.name = '{JOB}' || m.id"
_MIRROR = text(
    "select m.id, m.source, m.names, m.include, m.exclude, m.every_seconds, m.enabled, m.concurrency, m.upstream_url, m.shown as upstream, "
    f"{_STATE} as state, m.reason, m.round, m.cursor, m.counts, m.files, m.bytes, m.errors, {_LAG} as lag_seconds, {_NEXT_AT} as next_at, "
    f"m.started_at, m.ended_at, m.succeeded_at, m.created_at {_JOINED} where m.repository_id = :id"
)
_PROGRESS = (
    f"select r.name as repository, '{JOB}' || m.id as job, m.enabled, m.every_seconds, {_STATE} as state, "
    f"coalesce(m.reason, case when j.failures > 0 then j.said end) as reason, m.counts, {_LAG} as lag_seconds, "
    f"{_NEXT_AT} as next_at, m.succeeded_at, coalesce(j.failures, 0) as failures {_JOINED} "
    "join arkvory_repositories r on r.id = m.repository_id and r.deleted_at is null"
)
_UPSTREAM = text(
    "select upstream_url, shown, secret, may_lie_inside from arkvory_mirrors where repository_id = :id and upstream_url is not null"
)
# All that is remembered is remembered with it.
_ANEW = text("update arkvory_mirrors set revision = revision + 1 where repository_id = :id")
_REFUSED = text(
    "select i.path, i.error, i.size, i.digest, i.refusals, i.refused_until from arkvory_mirror_items i "
    "where i.mirror_id = :mirror and i.state = 'refused' and i.path > :after order by i.path limit :limit"
)
# `xmax` is 0 for a row that is new.
_PUT = text(
    "insert into arkvory_mirrors as m (repository_id, source, names, include, exclude, every_seconds, enabled, concurrency, upstream_url, "
    "shown, secret, may_lie_inside) values (:id, :source, cast(:names as jsonb), cast(:include as jsonb), cast(:exclude as jsonb), "
    ":every_seconds, :enabled, :concurrency, :upstream_url, cast(:shown as jsonb), :secret, :inside) "
    "on conflict (repository_id) do update set "
    "source = excluded.source, names = excluded.names, include = excluded.include, exclude = excluded.exclude, "
    "every_seconds = excluded.every_seconds, enabled = excluded.enabled, concurrency = excluded.concurrency, "
    "upstream_url = excluded.upstream_url, shown = excluded.shown, secret = excluded.secret, "
    "may_lie_inside = excluded.may_lie_inside, "
    # Another list is walked from its beginning; another hour goes on with the one that is being walked.
    "revision = m.revision + case when (m.source, m.names, m.include, m.exclude, m.upstream_url) is distinct from "
    "(excluded.source, excluded.names, excluded.include, excluded.exclude, excluded.upstream_url) then 1 else 0 end "
    "returning m.id, xmax = 0 as created"
)
