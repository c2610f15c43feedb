"""What a mirror has to do: a row for each list and each file, so that a run which broke off goes on where it was.

    todo      from `next_try_at` on
    done      a list was read; a file is here
    skipped   a rule of the repository keeps it out, or something else is there
    gone      the upstream has it no more, or names it no more
    failed    tried several times; the next round tries again
    refused   what the upstream has was had, and is at fault; tried again when that changes, or what refused it, and else ever more rarely

A round asks for all lists. What they name again keeps its state where it is here and known to be the same, and becomes `todo` otherwise;
what no list names any more is gone. A list that says what it said when it was read last names again what it named then (`named_by`), so no
two of these name the same. One runner at a time works at a list; a former one that lingers changes only what is still to do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from app.database.engines import Database
from app.database.statements import text
from app.repository.mirrors.guides import FILE, Item
from app.repository.mirrors.rereading import Reading, Validators

BATCH = 500
STATES = ("todo", "done", "skipped", "gone", "failed", "refused")
LONGEST_ERROR = 500
# Until what was refused is tried again though nothing changed; each time so many times as long.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, PAUSE_TIMES = 900, 7 * 86400, 4
_SWEPT = 5_000


@dataclass(frozen=True, slots=True)
class Work:
    """One row that is due."""

    item: Item
    attempts: int
    # The digest of what was copied last; null: nothing was yet.
    sha256: str | None
    etag: str | None
    last_modified: str | None
    upload_id: UUID | None
    validator: str | None
    # Of a list: how, and in which round, it was read to its end last. Its validators are those of then.
    basis: str | None
    read_in: int | None
    # How often it was refused, a list for being none; validators are those of what was. `refused`: only what has changed may be tried.
    refusals: int
    refused: bool
    # By what a file is refused now.
    standing: str | None
    error: str | None


@dataclass(frozen=True, slots=True)
class Copied:
    """What is here now; `received` are bytes that came for it just now, null where nothing was to come. `counted`: with its publish."""

    sha256: str
    size: int
    received: int | None = None
    etag: str | None = None
    last_modified: str | None = None
    counted: bool = False


class WorkList:
    """That of one mirror, in one round."""

    def __init__(self, database: Database, mirror_id: int, repository_id: int, round_: int, limits: str) -> None:
        """`limits` are those of this process, beside the settings of mirror and repository, by which something may be refused."""
        self._database = database
        self._known = {"mirror": mirror_id, "repository": repository_id, "round": round_, "limits": limits}
        # Lists and files of this round, as of the last `counts`.
        self.named = 0

    def add(self, items: Sequence[Item], by: str) -> None:
        """Those that a list names; what was named in this round before stays as it is."""
        if items:
            with self._database.write() as connection:
                self.add_in(connection, items, by)

    def add_in(self, connection: Connection, items: Sequence[Item], by: str | None = None) -> None:
        """`by` null: a round begins with them."""
        # In the order of their key, and each once.
        unique = {(each.kind, each.path): each for each in items}
        rows = [unique[key] for key in sorted(unique)]
        for start in range(0, len(rows), BATCH):
            part = rows[start : start + BATCH]
            values = {name: [getattr(each, name) for each in part] for name in Item.__slots__}
            connection.execute(_ADD, self._known | values | {"by": by})

    def name_again(self, path: str, since: int) -> bool:
        """A batch of what a list named when it was read last, not before that round; whether there may be more."""
        values = self._known | {"by": path, "since": since, "most": _SWEPT}
        with self._database.write() as connection:
            return connection.execute(_NAME_AGAIN, values).rowcount == _SWEPT

    def due(self, limit: int, but: Collection[tuple[str, str]]) -> list[Work]:
        """What is to be done now, files before lists, without those that are being done."""
        rows = self._due(limit + len(but))
        found = [Work(Item(*row[:6]), *row[6:]) for row in rows if (row.kind, row.path) not in but]
        return found[:limit]

    def _due(self, limit: int) -> list[Any]:
        with self._database.read() as connection:
            return list(connection.execute(_DUE, self._known | {"limit": limit}))

    def seconds_to_next(self) -> float | None:
        """Until something is due; null when nothing is left to do."""
        with self._database.read() as connection:
            seconds = connection.execute(_NEXT, self._known).scalar()
        return None if seconds is None else max(0.0, float(seconds))

    def read(self, path: str, reading: Reading) -> None:
        """A list was read to its end."""
        etag, modified = reading.after
        values = {"path": path, "basis": reading.basis, "etag": etag, "modified": modified}
        with self._database.write() as connection:
            connection.execute(_READ, self._known | values)

    def copied(self, path: str, copied: Copied) -> None:
        values = {
            "path": path, "sha256": copied.sha256, "size": copied.size, "etag": copied.etag, "modified": copied.last_modified,
        }  # fmt: skip
        with self._database.write() as connection:
            if copied.received is not None and not copied.counted:
                # With it, so that no kill comes between; the mirror's row first, as a run that begins takes them.
                connection.execute(_COUNT_COPY, self._known | {"received": copied.received})
            connection.execute(_COPIED, self._known | values)

    def settle(self, item: Item, state: str, error: str | None = None) -> None:
        """It is gone, skipped or failed, for this round."""
        self._settle(item.kind, item.path, state, error)

    def _settle(self, kind: str, path: str, state: str, error: str | None = None) -> None:
        values = {"kind": kind, "path": path, "state": state, "error": None if error is None else error[:LONGEST_ERROR]}
        with self._database.write() as connection:
            connection.execute(_SETTLE, self._known | values)

    def refuse(self, work: Work, error: str, validators: Validators) -> None:
        """What the upstream has of a file now, known by these."""
        self._refuse(work, "refused", error, validators, work.standing)

    def fault(self, work: Work, error: str, reading: Reading) -> None:
        """What the upstream has of a list now is none."""
        self._refuse(work, "failed", error, reading.after, reading.basis)

    def _refuse(self, work: Work, state: str, error: str, validators: Validators, basis: str | None) -> None:
        refusals = work.refusals + 1 if work.basis == basis and not work.refused else 1
        pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * PAUSE_TIMES ** min(refusals - 1, 20))
        values = {
            "kind": work.item.kind, "path": work.item.path, "state": state, "error": error[:LONGEST_ERROR], "etag": validators.etag,
            "modified": validators.last_modified, "refusals": refusals, "pause": pause, "basis": basis,
        }  # fmt: skip
        with self._database.write() as connection:
            connection.execute(_REFUSE, self._known | values)

    def leave_refused(self, item: Item) -> None:
        """It is what it was then."""
        with self._database.write() as connection:
            connection.execute(_LEAVE_REFUSED, self._known | {"path": item.path})

    def put_off(self, item: Item, seconds: float, *, attempts: int, error: str | None = None) -> None:
        """Once more after so long; `attempts` is their number by now."""
        values = {
            "kind": item.kind, "path": item.path, "seconds": seconds, "attempts": attempts,
            "error": None if error is None else error[:LONGEST_ERROR],
        }  # fmt: skip
        with self._database.write() as connection:
            connection.execute(_PUT_OFF, self._known | values)

    def forgive(self) -> None:
        """It was the upstream that failed, or we, and not these files: what failed may be tried again at once, as if it never had."""
        with self._database.write() as connection:
            connection.execute(_FORGIVE, self._known)

    def keep_part(self, path: str, upload_id: UUID, validator: str) -> None:
        """Where what has arrived of a file is kept."""
        values = {"path": path, "upload": str(upload_id), "validator": validator}
        with self._database.write() as connection:
            connection.execute(_KEEP_PART, self._known | values)

    def do_again(self, paths: Collection[str]) -> bool:
        """Those of these files that were copied in this round, and are gone since; whether any is to be done now."""
        values = self._known | {"paths": list(paths)}
        with self._database.write() as connection:
            connection.execute(_DO_AGAIN, values)
            return connection.execute(_TO_BE_DONE, values).first() is not None

    def forget_unnamed(self) -> None:
        """After a round: lists that it did not name are forgotten. Where all others were read, what none of them named is gone, and
        what was gone before is forgotten too. In batches.
        """
        self._in_batches(_FORGET_LISTS)
        if not self._has_failed_lists():
            self._in_batches(_FORGET)
            self._in_batches(_GONE)

    def _in_batches(self, statement: Any) -> None:
        while True:
            with self._database.write() as connection:
                if connection.execute(statement, self._known | {"most": _SWEPT}).rowcount < _SWEPT:
                    return

    def _has_failed_lists(self) -> bool:
        """Whether something may not have been named for that reason alone."""
        with self._database.read() as connection:
            return connection.execute(_FAILED_LISTS, self._known).first() is not None

    def unmended(self, paths: Collection[str]) -> set[str]:
        """Those of which something failed, or is still to be tried."""
        with self._database.read() as connection:
            return set(connection.execute(_UNMENDED, self._known | {"paths": list(paths)}).scalars())

    def counts(self) -> dict[str, int]:
        """Files by state, and `lists` that are still to be read; of lists only failed ones of this round count otherwise."""
        with self._database.read() as connection:
            rows = connection.execute(_COUNTS, self._known).all()
        self.named = sum(row.named for row in rows)
        found = dict.fromkeys((*STATES, "lists"), 0)
        for kind, state, count, _ in rows:
            if kind == FILE or state == "failed":
                found[state] += count
            elif state == "todo":
                found["lists"] += count
        return found


def note_brought(connection: Connection, repository_id: int, digests: Mapping[str, str], received: int) -> None:
    """In the transaction of a publish: it was the repository's mirror who brought these bytes (SHA-256 in hex, by path); one copy more."""
    values = {"id": repository_id, "paths": list(digests), "digests": list(digests.values())}
    connection.execute(_COUNT_BROUGHT, {"id": repository_id, "received": received})
    connection.execute(_NOTE_BROUGHT, values)


def brought(alias: str) -> str:
    """SQL: whether what an artifact's path points at is what its repository's mirror brought."""
    return (
        "exists (select 1 from arkvory_mirrors m join arkvory_mirror_items i on i.mirror_id = m.id and i.kind = 'file' "
        f"and i.path = {alias}.path join arkvory_blobs b on b.id = {alias}.blob_id and b.digest = i.sha256 "
        f"where m.repository_id = {alias}.repository_id)"
    )


def delete_orphans(database: Database) -> int:
    """One batch of the work of mirrors that are gone; how many rows went."""
    with database.write() as connection:
        return connection.execute(_ORPHANS, {"most": _SWEPT}).rowcount


_MINE = "i.mirror_id = :mirror"
# What only an earlier round named, under other settings, is not done any more.
_TODO = f"{_MINE} and i.state = 'todo' and i.round = :round"
_ONE = f"{_MINE} and i.kind = :kind and i.path = :path"
# Nothing that it needs is still to be done: then it is, or will never be, here.
_READY = (
    "(i.needs is null or not exists (select 1 from arkvory_mirror_items n where n.mirror_id = i.mirror_id and n.kind = 'file' "
    "and n.path = any(string_to_array(i.needs, chr(10))) and n.state = 'todo' and n.round = i.round))"
)
# A proxy's copy of another upstream is none of this one.
_HERE = (
    "exists (select 1 from arkvory_artifacts a join arkvory_repositories r on r.id = a.repository_id "
    "left join arkvory_freshness f on f.artifact_id = a.id where a.repository_id = :repository and a.path = i.path "
    "and coalesce(f.source = r.upstream_url, true))"
)
# By what something is refused now.
_STANDING = (
    "(select cast(:limits as text) || '.' || m.revision || '.' || r.metadata_epoch from arkvory_mirrors m "
    "join arkvory_repositories r on r.id = m.repository_id where m.id = :mirror)"
)
_REFUSED_STILL = f"i.basis = {_STANDING} and i.refused_until > now()"
# Where a list tells no digest, its validators say whether it is the same.
_STAYS_REFUSED = (
    f"i.state = 'refused' and {_REFUSED_STILL} and (i.digest is not null or (i.etag is null and i.last_modified is null))"
)
_SAME_ENTRY = (
    "(excluded.digest is not distinct from i.digest and excluded.size is not distinct from i.size "
    "and (excluded.digest is not null or excluded.address is not distinct from i.address))"
)
# What is here already stays done where its list says that it is the same, or where it never changes.
_ADD = text(
    "insert into arkvory_mirror_items as i (mirror_id, kind, path, round, size, digest, address, lasting, needs, named_by) "
    "select :mirror, e.kind, e.path, :round, e.size, e.digest, e.address, e.lasting, e.needs, cast(:by as text) "
    "from unnest(cast(:kind as text[]), cast(:path as text[]), cast(:size as bigint[]), cast(:digest as text[]), "
    "cast(:address as text[]), cast(:lasting as boolean[]), cast(:needs as text[])) "
    "as e(kind, path, size, digest, address, lasting, needs) "
    "on conflict (mirror_id, kind, path) do update set round = excluded.round, address = excluded.address, digest = excluded.digest, "
    "lasting = excluded.lasting, needs = excluded.needs, attempts = 0, next_try_at = now(), size = excluded.size, "
    f"named_by = excluded.named_by, refusals = case when {_SAME_ENTRY} then i.refusals else 0 end, "
    f"error = case when i.refusals > 0 and {_SAME_ENTRY} then i.error end, "
    "state = case when i.kind = 'file' and i.state = 'done' "
    "and (excluded.digest = i.digest or excluded.digest = 'sha256:' || i.sha256 or (excluded.digest is null and excluded.lasting)) "
    f"and {_HERE} then 'done' when {_SAME_ENTRY} and {_STAYS_REFUSED} then 'refused' else 'todo' end where i.round < excluded.round"
)
_NAME_AGAIN = text(
    "update arkvory_mirror_items i set round = :round, attempts = 0, next_try_at = now(), "
    "error = case when i.refusals > 0 then i.error end, state = "
    f"case when i.kind = 'file' and i.state = 'done' and (i.digest is not null or i.lasting) and {_HERE} then 'done' "
    f"when {_STAYS_REFUSED} then 'refused' else 'todo' end "
    "from (select n.kind, n.path from arkvory_mirror_items n where n.mirror_id = :mirror and n.named_by = :by and n.round >= :since "
    "and n.round < :round order by n.kind, n.path limit :most for update) n "
    f"where {_MINE} and i.kind = n.kind and i.path = n.path"
)
_DUE = text(
    "select i.kind, i.path, i.size, i.digest, i.address, i.lasting, i.attempts, i.sha256, i.etag, i.last_modified, i.upload_id, "
    "i.validator, i.basis, i.read_in, i.refusals, "
    f"coalesce(i.refusals > 0 and i.refused_until > now() and (i.kind = 'list' or i.basis = {_STANDING}), false), {_STANDING}, i.error "
    f"from arkvory_mirror_items i where {_TODO} and i.next_try_at <= now() and {_READY} "
    "order by i.kind, i.next_try_at, i.path limit :limit"
)
_NEXT = text(
    f"select extract(epoch from min(i.next_try_at) - now())::float8 from arkvory_mirror_items i where {_TODO} and {_READY}"
)
_READ = text(
    "update arkvory_mirror_items i set state = 'done', error = null, basis = :basis, etag = :etag, last_modified = :modified, "
    "refusals = 0, refused_until = null, read_in = i.round "
    f"where {_MINE} and i.kind = 'list' and i.path = :path and i.state = 'todo'"
)
_COPIED = text(
    "update arkvory_mirror_items i set state = 'done', sha256 = :sha256, size = :size, etag = :etag, last_modified = :modified, "
    "upload_id = null, validator = null, error = null, refusals = 0, refused_until = null, basis = null "
    f"where {_MINE} and i.kind = 'file' and i.path = :path and i.state = 'todo'"
)
_REFUSE = text(
    "update arkvory_mirror_items i set state = :state, error = :error, etag = :etag, last_modified = :modified, upload_id = null, "
    "validator = null, refusals = :refusals, refused_until = clock_timestamp() + make_interval(secs => :pause), basis = :basis "
    f"where {_ONE} and i.state = 'todo'"
)
_LEAVE_REFUSED = text(
    "update arkvory_mirror_items i set state = 'refused', upload_id = null, validator = null "
    f"where {_MINE} and i.kind = 'file' and i.path = :path and i.state = 'todo'"
)
_COUNT_COPY = text("update arkvory_mirrors set files = files + 1, bytes = bytes + :received where id = :mirror")
_COUNT_BROUGHT = text("update arkvory_mirrors set files = files + 1, bytes = bytes + :received where repository_id = :id")
_SETTLE = text(
    "update arkvory_mirror_items i set state = :state, error = :error, upload_id = null, validator = null "
    f"where {_ONE} and i.state = 'todo'"
)
_PUT_OFF = text(
    "update arkvory_mirror_items i set next_try_at = clock_timestamp() + make_interval(secs => :seconds), attempts = :attempts, "
    f"error = :error where {_ONE} and i.state = 'todo'"
)
_FORGIVE = text(
    "update arkvory_mirror_items i set attempts = 0, next_try_at = least(i.next_try_at, clock_timestamp()) "
    f"where {_MINE} and i.state = 'todo' and i.attempts > 0"
)
_KEEP_PART = text(
    "update arkvory_mirror_items i set upload_id = cast(:upload as uuid), validator = :validator "
    f"where {_MINE} and i.kind = 'file' and i.path = :path and i.state = 'todo'"
)
_DO_AGAIN = text(
    "update arkvory_mirror_items i set state = 'todo', attempts = 0, next_try_at = clock_timestamp() "
    f"where {_MINE} and i.kind = 'file' and i.path = any(:paths) and i.state = 'done' and i.round = :round and not exists "
    "(select 1 from arkvory_artifacts a where a.repository_id = :repository and a.path = i.path)"
)
_TO_BE_DONE = text(f"select 1 from arkvory_mirror_items i where {_TODO} and i.kind = 'file' and i.path = any(:paths) limit 1")
# In the order of their keys, as lists add them.
_NOTE_BROUGHT = text(
    "with found as (select i.mirror_id, i.path, f.sha256 from unnest(cast(:paths as text[]), cast(:digests as text[])) as f(path, sha256) "
    "join arkvory_mirrors m on m.repository_id = :id "
    "join arkvory_mirror_items i on i.mirror_id = m.id and i.kind = 'file' and i.path = f.path order by i.path for update of i) "
    # The validators are those of the bytes before.
    "update arkvory_mirror_items i set sha256 = found.sha256, etag = null, last_modified = null from found "
    "where i.mirror_id = found.mirror_id and i.kind = 'file' and i.path = found.path"
)
_FORGET_LISTS, _FORGET = (
    text(
        "delete from arkvory_mirror_items where (mirror_id, kind, path) in (select i.mirror_id, i.kind, i.path from arkvory_mirror_items i "
        f"where {_MINE} and i.round < :round and {which} limit :most)"
    )
    for which in ("i.kind = 'list'", "i.state = 'gone'")
)
_GONE = text(
    "update arkvory_mirror_items set state = 'gone' where (mirror_id, kind, path) in (select i.mirror_id, i.kind, i.path "
    f"from arkvory_mirror_items i where {_MINE} and i.round < :round and i.state <> 'gone' limit :most)"
)
_UNMENDED = text(
    f"select i.path from arkvory_mirror_items i where {_MINE} and i.kind in ('file', 'list') and i.path = any(:paths) "
    "and i.state in ('failed', 'refused', 'todo')"
)
_FAILED_LISTS = text(
    f"select 1 from arkvory_mirror_items i where {_MINE} and i.kind = 'list' and i.state = 'failed' and i.round = :round limit 1"
)
_COUNTS = text(
    "select i.kind, i.state, count(*), count(*) filter (where i.round = :round) as named "
    f"from arkvory_mirror_items i where {_MINE} and (i.kind = 'file' or i.round = :round) group by i.kind, i.state"
)
# From one mirror's rows to the next by the index, whatever their number.
_ORPHANS = text(
    "with recursive known(id) as (select min(mirror_id) from arkvory_mirror_items union all "
    "select (select min(i.mirror_id) from arkvory_mirror_items i where i.mirror_id > known.id) from known where known.id is not null) "
    "delete from arkvory_mirror_items where (mirror_id, kind, path) in (select i.mirror_id, i.kind, i.path from arkvory_mirror_items i "
    "where i.mirror_id = (select k.id from known k where k.id is not null "
    "and not exists (select 1 from arkvory_mirrors m where m.id = k.id) limit 1) limit :most)"
)
