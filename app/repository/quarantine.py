"""Quarantine: what is held leaves through no door until someone releases it.

A hold is a row by path and outlives the artifact (W5): deleting and publishing again does not release it. It covers the files
that stand beside the path too, unless these have a hold of their own, which only its own release ends. `arkvory_artifacts.withheld`
is kept in the same transactions, so that every index leaves out what is held by one condition.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row

from app.access.decision import MANAGE, Access, find_repository
from app.access.identity import Caller
from app.cache.changes import Transaction, Transactions
from app.cache.snapshots import Snapshot
from app.database.engines import Database
from app.database.locks import Step
from app.database.paging import Page, page
from app.database.statements import text
from app.errors import Invalid, NotFound
from app.repository.formats import FORMATS, is_internal, is_made, main_path
from app.repository.members import require_own
from app.repository.names import check_path
from app.repository.references import SAME, same_bytes

TRUST = ("unknown", "suspicious", "malicious")
MOST_REASON = 2000
MOST_RULES = 200


@dataclass(frozen=True, slots=True)
class Hold:
    """Why a path is withheld, since when and by whom (null: a rule, or a user who is gone)."""

    path: str
    reason: str
    trust: str
    held_by: str | None
    held_at: datetime


@dataclass(frozen=True, slots=True)
class HoldRule:
    """What is held when it is published: `pattern` over the path (`*` also over slashes), `publisher` a user's name or null for anyone."""

    id: int
    pattern: str
    publisher: str | None
    reason: str
    created_at: datetime


class Quarantine:
    """Holds and releases; needs `manage` for the whole repository."""

    def __init__(self, database: Database, transactions: Transactions, access: Access) -> None:
        self._database = database
        self._transactions = transactions
        self._access = access

    # -- holds

    def hold(self, caller: Caller, repository: str, path: str, reason: str, trust: str = "unknown") -> Hold:
        """Withhold a path, whether something is there yet or not; again to change reason and trust. Raises Invalid and access errors."""
        check_path(path)
        _check(reason, trust)
        snapshot = self._find(caller, repository)
        with self._transactions.begin(snapshot.id) as transaction:
            caller = self._require(transaction.connection, caller, snapshot)
            require_own(snapshot)
            if is_made(snapshot.format, path):
                raise Invalid(f"{path!r} is made from what is stored and goes with it: hold the files", field="path")
            covered = covered_paths(transaction.connection, snapshot, path)
            self._change(transaction, snapshot, covered, withheld=True)
            _write_holds(transaction.connection, snapshot.id, covered, _Words(reason, trust, caller))
            return _held(transaction.connection, snapshot.id, path)

    def release(self, caller: Caller, repository: str, path: str) -> None:
        """Let a path go again, whole. Raises NotFound when it is not held."""
        snapshot = self._find(caller, repository)
        with self._transactions.begin(snapshot.id) as transaction:
            self._require(transaction.connection, caller, snapshot)
            _held(transaction.connection, snapshot.id, path)
            covered = covered_paths(transaction.connection, snapshot, path)
            _end_hold(transaction.connection, snapshot, path)
            _cover_again(transaction.connection, snapshot, covered)
            held = held_paths(transaction.connection, snapshot.id, covered)
            self._change(transaction, snapshot, [each for each in covered if each not in held], withheld=False)

    def holds(self, caller: Caller, repository: str, limit: int, after: str = "") -> Page[Hold]:
        """What is held, by path, behind `after`."""
        with self._database.consistent() as connection:
            snapshot = find_repository(connection, caller, repository)
            self._access.require_whole(connection, caller, snapshot, MANAGE)
            rows = connection.execute(
                text(f"{_HOLDS} and h.path = h.main_path and h.path > :after order by h.path limit :limit"),
                {"id": snapshot.id, "after": after, "limit": limit + 1},
            )
            return page(rows.all(), limit, lambda row: Hold(*tuple(row)), lambda row: (row.path,))

    # -- rules

    def add_rule(self, caller: Caller, repository: str, pattern: str, publisher: str | None, reason: str) -> HoldRule:
        """Hold what is published from now on and matches. Raises Invalid and access errors."""
        _check(reason, TRUST[0])
        if not pattern or "\x00" in pattern or len(pattern) > MOST_REASON:
            raise Invalid("a pattern is a path in which * stands for anything", field="pattern")
        snapshot = self._find(caller, repository)
        with self._transactions.begin(snapshot.id) as transaction:
            connection = transaction.connection
            self._require(connection, caller, snapshot)
            require_own(snapshot)
            if len(_rules(connection, snapshot.id)) >= MOST_RULES:
                raise Invalid(f"a repository has at most {MOST_RULES} hold rules", field="pattern")
            row = connection.execute(
                text(
                    "insert into arkvory_hold_rules (repository_id, pattern, publisher, reason) "
                    "values (:id, :pattern, :publisher, :reason) returning id, pattern, publisher, reason, created_at"
                ),
                {"id": snapshot.id, "pattern": pattern, "publisher": publisher, "reason": reason},
            ).one()
            _move_indexes(transaction, snapshot)
        return HoldRule(*tuple(row))

    def rules(self, caller: Caller, repository: str) -> list[HoldRule]:
        with self._database.consistent() as connection:
            snapshot = find_repository(connection, caller, repository)
            self._access.require_whole(connection, caller, snapshot, MANAGE)
            return _rules(connection, snapshot.id)

    def remove_rule(self, caller: Caller, repository: str, rule_id: int) -> None:
        """What it held stays held. Raises NotFound."""
        snapshot = self._find(caller, repository)
        with self._transactions.begin(snapshot.id) as transaction:
            self._require(transaction.connection, caller, snapshot)
            gone = transaction.connection.execute(
                text("delete from arkvory_hold_rules where repository_id = :repository and id = :id"),
                {"repository": snapshot.id, "id": rule_id},
            )
            if gone.rowcount == 0:
                raise NotFound(f"there is no hold rule {rule_id}")
            _move_indexes(transaction, snapshot)

    # -- what they share

    def _find(self, caller: Caller, repository: str) -> Snapshot:
        with self._database.read() as connection:
            return find_repository(connection, caller, repository)

    def _require(self, connection: Connection, caller: Caller, snapshot: Snapshot) -> Caller:
        """C10: from the database, under the repository's lock."""
        now = find_repository(connection, caller, snapshot.name)
        if now.id != snapshot.id:
            raise NotFound(f"repository {snapshot.name!r} was deleted meanwhile")
        self._access.require_whole(connection, caller, now, MANAGE)
        return caller

    def _change(self, transaction: Transaction, snapshot: Snapshot, covered: Sequence[str], *, withheld: bool) -> None:
        """Epoch, packages, artifacts: the indexes lose or regain what is there."""
        connection = transaction.connection
        rows = connection.execute(
            text(
                "select a.id, a.package_id, p.name as package from arkvory_artifacts a left join arkvory_packages p on p.id = a.package_id "
                "where a.repository_id = :id and a.path = any(:paths) and a.withheld <> :withheld"
            ),
            {"id": snapshot.id, "paths": list(covered), "withheld": withheld},
        ).all()
        epochs = transaction.advance(snapshot.id, "content", paths=covered)
        _count_packages(transaction, rows, epochs.content, -1 if withheld else 1)
        connection.execute(
            text("update arkvory_artifacts set withheld = :withheld where id = any(:ids)"),
            {"withheld": withheld, "ids": [row.id for row in rows]},
        )


def _move_indexes(transaction: Transaction, snapshot: Snapshot) -> None:
    """Those of a proxy leave out what a rule will hold when it is fetched."""
    if snapshot.kind == "proxy":
        transaction.advance(snapshot.id, "content", paths=[])


def covered_paths(connection: Connection, snapshot: Snapshot, path: str) -> list[str]:
    """The path, what may stand beside it, and the other paths of the same bytes: a held tag's manifest goes by no name."""
    others = same_bytes(connection, snapshot.id, [path]) - {path} if FORMATS[snapshot.format].references else set()
    return [*_with_companions(snapshot.format, path), *sorted(others)]


def _with_companions(format_name: str, path: str) -> list[str]:
    return [path, *(path + ending for ending in FORMATS[format_name].companions)]


def _cover_again(connection: Connection, snapshot: Snapshot, paths: Sequence[str]) -> None:
    """After a hold ended: another one that covers some of the same bytes goes on."""
    if not FORMATS[snapshot.format].references:
        return
    for hold in _own_holds(connection, snapshot.id, same_bytes(connection, snapshot.id, paths)):
        covered = [each for each in covered_paths(connection, snapshot, hold.path) if each in set(paths)]
        _write_holds(connection, snapshot.id, covered, _Words(hold.reason, hold.trust, None), hold.path)


def _own_holds(connection: Connection, repository_id: int, paths: Iterable[str]) -> Sequence[Row[Any]]:
    """Those that somebody or a rule put on just these paths."""
    return connection.execute(
        text("select path, reason, trust from arkvory_holds where repository_id = :id and path = any(:paths) and path = main_path"),
        {"id": repository_id, "paths": list(paths)},
    ).all()


def spread_holds(connection: Connection, repository_id: int, references: Mapping[str, Sequence[tuple[str, str]]], new: set[str]) -> None:
    """While something is published: what stands for held bytes is held with them, from its first moment on.

    `references` are paths and kinds by the path that refers; bytes that are `new` here and go to a held path are held too.
    """
    pairs = [(path, target) for path, targets in references.items() for target, kind in targets if kind == SAME]
    connection.execute(
        # A tag that was held for what it stood for may stand for something else now.
        text("delete from arkvory_holds where repository_id = :id and path = any(:paths) and path <> main_path"),
        {"id": repository_id, "paths": [path for path, _ in pairs]},
    )
    rows = connection.execute(
        text("select path, main_path, reason, trust from arkvory_holds where repository_id = :id and path = any(:paths)"),
        {"id": repository_id, "paths": [each for pair in pairs for each in pair]},
    )
    held = {row.path: (_Words(row.reason, row.trust, None), row.main_path) for row in rows}
    onto_bytes = [(path, target) for path, target in pairs if target in new]
    onto_names = [(target, path) for path, target in pairs]
    for source, other in (*onto_bytes, *onto_names):
        if source in held and other not in held:
            held[other] = held[source]
            _write_holds(connection, repository_id, [other], *held[source])


def apply_rules(connection: Connection, snapshot: Snapshot, paths: Sequence[str], caller: Caller) -> frozenset[str]:
    """While something is published: hold what a rule names; which of the paths are held then.

    The publish's own transaction marks these (`withheld`).
    """
    found = connection.execute(_RULES_AND_HELD, {"id": snapshot.id, "paths": list(paths)}).one()
    rules = [
        HoldRule(number, pattern, publisher, reason, datetime.fromisoformat(created_at))
        for number, pattern, publisher, reason, created_at in found.rules
    ]
    held = set(found.held)
    for path in paths:
        rule = _rule_for(rules, snapshot.format, path, caller)
        if rule is not None:
            covered = _with_companions(snapshot.format, path)
            _write_holds(connection, snapshot.id, covered, _Words(rule.reason, TRUST[0], None))
            held |= set(covered) & set(paths)
    return frozenset(held)


_RULES_AND_HELD = text(
    "select (select coalesce(jsonb_agg(jsonb_build_array(r.id, r.pattern, r.publisher, r.reason, r.created_at) order by r.id), '[]') "
    "from arkvory_hold_rules r where r.repository_id = :id) as rules, "
    "array(select h.path from arkvory_holds h where h.repository_id = :id and h.path = any(:paths)) as held"
)


def reason_to_hold(connection: Connection, snapshot: Snapshot, path: str, caller: Caller) -> str | None:
    """Why a path is held, or would be when somebody publishes it now; null when it is not."""
    statement = text("select reason from arkvory_holds where repository_id = :id and path = :path")
    held: str | None = connection.execute(statement, {"id": snapshot.id, "path": path}).scalar()
    if held is not None:
        return held
    rule = _rule_for(_rules(connection, snapshot.id), snapshot.format, path, caller)
    return None if rule is None else rule.reason


@dataclass(frozen=True)
class Barred:
    """What is held below a folder, also of what nobody has published yet; `stamp` differs when that does, and is empty where nothing is."""

    paths: frozenset[str]
    pattern: re.Pattern[str] | None
    # What came before the rules and was not held since.
    free: frozenset[str]
    stamp: str

    def holds(self, path: str) -> bool:
        return path in self.paths or (self.pattern is not None and path not in self.free and self.pattern.match(path) is not None)


def barred_below(connection: Connection, repository_id: int, folder: str, caller: Caller) -> Barred:
    """As `reason_to_hold`, of all paths that begin with `folder` (with a slash at its end)."""
    between = {"id": repository_id, "folder": folder, "end": folder[:-1] + "0"}
    paths = list(connection.execute(_HELD_BELOW, between).scalars())
    name = caller.identity.name if caller.identity else None
    patterns = [fnmatch.translate(rule.pattern) for rule in _rules(connection, repository_id) if rule.publisher in {None, name}]
    free = list(connection.execute(_FREE_BELOW, between).scalars()) if patterns else []
    stamp = hashlib.sha256(repr((paths, patterns, free)).encode("utf-8", "surrogatepass")).hexdigest() if paths or patterns else ""
    return Barred(frozenset(paths), re.compile("|".join(patterns)) if patterns else None, frozenset(free), stamp)


_HELD_BELOW = text("select path from arkvory_holds where repository_id = :id and path > :folder and path < :end order by path")
_FREE_BELOW = text(
    "select path from arkvory_artifacts where repository_id = :id and path > :folder and path < :end and not withheld order by path"
)


def _rule_for(rules: Sequence[HoldRule], format_name: str, path: str, caller: Caller) -> HoldRule | None:
    if is_internal(format_name, path):
        return None
    name = caller.identity.name if caller.identity else None
    return next((each for each in rules if each.publisher in {None, name} and fnmatch.fnmatchcase(path, each.pattern)), None)


def held_paths(connection: Connection, repository_id: int, paths: Sequence[str]) -> frozenset[str]:
    """Which of these paths a hold covers."""
    rows = connection.execute(
        text("select path from arkvory_holds where repository_id = :id and path = any(:paths)"), {"id": repository_id, "paths": list(paths)}
    )
    return frozenset(rows.scalars())


@dataclass(frozen=True, slots=True)
class _Words:
    """What is said of a hold; `by` null: by a rule."""

    reason: str
    trust: str
    by: Caller | None


def _write_holds(connection: Connection, repository_id: int, covered: Sequence[str], words: _Words, main: str | None = None) -> None:
    """A hold of a path, null: of the first one; and what it covers.

    A path's own hold is not replaced by one that only covers it; and what somebody said of a path is not replaced by a rule.
    """
    by = words.by.user_id if words.by is not None and words.by.user_id > 0 else None
    for path in covered:
        connection.execute(
            text(
                "insert into arkvory_holds as h (repository_id, path, main_path, reason, trust, held_by) "
                "values (:repository, :path, :main, :reason, :trust, :by) on conflict (repository_id, path) do update set "
                "main_path = excluded.main_path, reason = excluded.reason, trust = excluded.trust, held_by = excluded.held_by "
                "where case when h.path = h.main_path then :told and :path = :main else :told or :path = :main end"
            ),
            {
                "repository": repository_id,
                "path": path,
                "main": main or covered[0],
                "reason": words.reason,
                "trust": words.trust,
                "by": by,
                "told": words.by is not None,
            },
        )


def _end_hold(connection: Connection, snapshot: Snapshot, path: str) -> None:
    """With all that it covered; a file beside one that is still held is covered by that one's again."""
    values = {"id": snapshot.id, "path": path, "main": main_path(snapshot.format, path)}
    connection.execute(text("delete from arkvory_holds where repository_id = :id and main_path = :path"), values)
    connection.execute(
        text(
            "insert into arkvory_holds (repository_id, path, main_path, reason, trust, held_by, held_at) "
            "select repository_id, :path, main_path, reason, trust, held_by, held_at from arkvory_holds "
            "where repository_id = :id and path = :main and main_path = :main"
        ),
        values,
    )


def _count_packages(transaction: Transaction, rows: Sequence[Row[Any]], revision: int, sign: int) -> None:
    """Packages count what their indexes show; their revisions move (C9), in the order of their names."""
    packages: Mapping[tuple[str, int], int] = {
        key: sum(1 for row in rows if row.package_id == key[1]) for key in {(row.package, row.package_id) for row in rows if row.package_id}
    }
    if not packages:
        return
    transaction.order.reach(Step.PACKAGE)
    for (_, package_id), count in sorted(packages.items()):
        transaction.connection.execute(
            text("update arkvory_packages set revision = :revision, artifacts = artifacts + :count where id = :id"),
            {"revision": revision, "count": sign * count, "id": package_id},
        )


def _held(connection: Connection, repository_id: int, path: str) -> Hold:
    row = connection.execute(text(f"{_HOLDS} and h.path = :path and h.main_path = :path"), {"id": repository_id, "path": path}).first()
    if row is None:
        raise NotFound(f"{path!r} is not held")
    return Hold(*tuple(row))


def _rules(connection: Connection, repository_id: int) -> list[HoldRule]:
    rows = connection.execute(
        text("select id, pattern, publisher, reason, created_at from arkvory_hold_rules where repository_id = :id order by id"),
        {"id": repository_id},
    )
    return [HoldRule(*tuple(row)) for row in rows]


def _check(reason: str, trust: str) -> None:
    if not reason.strip() or len(reason) > MOST_REASON or any(character < " " or character == "\x7f" for character in reason):
        raise Invalid(f"a reason is one line of at most {MOST_REASON} characters", field="reason")
    if trust not in TRUST:
        raise Invalid(f"trust is one of {', '.join(TRUST)}", field="trust")


_HOLDS = (
    "select h.path, h.reason, h.trust, u.name as held_by, h.held_at from arkvory_holds h "
    "left join arkvory_users u on u.id = h.held_by where h.repository_id = :id"
)
