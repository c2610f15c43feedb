"""`-/v1/search`: packages by words in their names and in what their latest versions say of themselves; a proxy passes it on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlencode

from flask import Response, request
from sqlalchemy import Connection

from app.access.decision import READ, Grant, find_repository
from app.cache.snapshots import Snapshot
from app.database.statements import text
from app.errors import Invalid, UpstreamFailed
from app.http.addresses import public_base
from app.http.identity import caller, log_fact
from app.http.parts import parts
from app.http.paths import encode_path
from app.http.responses import json_time
from app.protocols.npm.answers import answer
from app.protocols.npm.blueprint import FORMAT, blueprint
from app.protocols.npm.fragments import manifest_of
from app.protocols.npm.hosted import held_by
from app.protocols.npm.kept import INDEXES, moment_of
from app.protocols.npm.names import scope_of, tarball_path
from app.protocols.npm.received import parsed
from app.repository.reading import Ask, check_online, is_online
from app.repository.withholding import Judge
from app.upstream.client import Wanted

MOST_FOUND = 250
MOST_WORDS = 20
# Packages that one search looks at, in the order of their names.
LOOKED_AT = 20_000
MOST_ANSWER = 4 * 1024 * 1024
_NEVER = "1970-01-01T00:00:00Z"
# What is passed on of a query.
_PASSED_ON = ("text", "size", "from", "quality", "popularity", "maintenance")


@dataclass(frozen=True)
class _Found:
    """A package, by its latest version; `date` as JSON has it, `said` is what that says of it."""

    name: str
    version: str
    date: str
    said: Callable[[Connection], Mapping[str, Any]]


@blueprint.get("/<segment:repository>/-/v1/search")
def search(repository: str) -> Response:
    """What the caller may read and has all the words, the best fit first."""
    log_fact("repository", repository)
    words = request.args.get("text", "").lower().split()[:MOST_WORDS]
    house, who = parts(), caller()
    with house.database.consistent() as connection:
        snapshot = find_repository(connection, who, repository, format_name=FORMAT)
        check_online(snapshot)
        grant = house.access.grant_now(connection, who, snapshot, READ)
    members = [snapshot] if snapshot.kind in _KNOWN else house.reader.repositories(Ask(FORMAT, repository, "", who))
    told = [(each, _searched(repository, each, grant, words)) for each in members if is_online(each)]
    return answer(_one_of_each(_shielded(members, told)))


def _searched(repository: str, member: Snapshot, grant: Grant, words: list[str]) -> Mapping[str, Any]:
    """What its upstream finds, else what is known of it here."""
    told = _passed_on(member, grant)
    if told is not None:
        return told
    with parts().database.consistent() as connection:
        known = [each for each in _KNOWN[member.kind](connection, member, words) if _may_read(grant, each.name)]
        known = [each for each in known if _is_let_out(member, each.name, each.version, each.date)]
        return _answered(connection, repository, words, known)


def _shielded(members: Sequence[Snapshot], told: Sequence[tuple[Snapshot, Mapping[str, Any]]]) -> Sequence[Mapping[str, Any]]:
    """Of names that hosted members hold, nothing that upstreams say."""
    names = {_name(each) for member, one in told if member.upstream_url is not None for each in one["objects"]}
    if len(members) == 1 or not names:
        return [one for _, one in told]
    with parts().database.read() as connection:
        held = held_by(connection, members, names)
    return [one if member.upstream_url is None else _but(one, held) for member, one in told]


def _but(one: Mapping[str, Any], names: AbstractSet[str]) -> Mapping[str, Any]:
    return {**one, "objects": [each for each in one["objects"] if _name(each) not in names]}


def _one_of_each(told: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The first that has a package wins, as in the group's documents."""
    if len(told) == 1:
        return told[0]
    if not told:
        return {"objects": [], "total": 0, "time": _NEVER}
    found = {each["package"]["name"]: each for one in reversed(told) for each in one["objects"]}
    names = dict.fromkeys(each["package"]["name"] for one in told for each in one["objects"])
    return {**told[0], "objects": [found[name] for name in names], "total": max(len(names), *(each["total"] for each in told))}


def _answered(connection: Connection, repository: str, words: list[str], known: list[_Found]) -> dict[str, Any]:
    size, first = _number("size", 20, MOST_FOUND), _number("from", 0, LOOKED_AT)
    found = sorted(known, key=lambda each: (_rank(each.name, words), each.name))
    base = f"{public_base(request)}/{FORMAT}/{encode_path(repository)}"
    objects = [_object(connection, each, base) for each in found[first : first + size]]
    # When the newest of them was published: equal answers stay equal.
    return {"objects": objects, "total": len(found), "time": max((each.date for each in found), default=_NEVER)}


def _passed_on(snapshot: Snapshot, grant: Grant) -> dict[str, Any] | None:
    """What the upstream finds, of what the caller may read; null where there is none, or it cannot say."""
    if snapshot.upstream_url is None:
        return None
    query = urlencode({name: request.args[name] for name in _PASSED_ON if name in request.args})
    wanted = Wanted(f"-/v1/search?{query}", headers={"Accept": "application/json", "Accept-Encoding": "gzip"})
    try:
        told = parsed(parts().fetches.ask(snapshot, wanted, MOST_ANSWER) or b"null")
        packages = [(each, _name(each), each["package"]) for each in told["objects"]]
        let_out = [each for each, name, it in packages if _is_let_out(snapshot, name, it.get("version"), it.get("date"))]
        objects = [each for each in let_out if _may_read(grant, _name(each))]
        total = int(told.get("total", len(objects)))
    except (UpstreamFailed, Invalid, TypeError, KeyError, ValueError, AttributeError, OverflowError):
        return None
    return {**told, "objects": objects, "total": total}


def _name(found: Any) -> str:
    """Raises TypeError or KeyError for what is no package."""
    name = found["package"]["name"]
    if not isinstance(name, str):
        raise TypeError("a package's name is no text")
    return name


def _is_let_out(snapshot: Snapshot, package: str, version: object, date: object) -> bool:
    """Whether a proxy's own rules let that version out, as far as a search tells of it."""
    judge = Judge(snapshot)
    if judge.leaves_out(f"{package}/"):
        return False
    published = moment_of(date) if isinstance(date, str) else None
    return not isinstance(version, str) or not judge.leaves_out(tarball_path(package, version), published, package, version)


def _may_read(grant: Grant, package: str) -> bool:
    return grant.covers(f"{package}/")


def _rank(name: str, words: list[str]) -> int:
    """0 for the very name, 1 for one that begins so, 2 for one that has it, 3 for the rest."""
    wanted = " ".join(words)
    if name == wanted:
        return 0
    return 1 if name.startswith(wanted) else 2 if wanted in name else 3


def _object(connection: Connection, found: _Found, base: str) -> dict[str, Any]:
    """One after the other: what a version says may be long, and only little of it is shown."""
    package = {
        "name": found.name,
        "scope": scope_of(found.name) or "unscoped",
        "version": found.version,
        "date": found.date,
        "links": {"npm": f"{base}/{found.name}"},
        **found.said(connection),
    }
    score = {"final": 1.0, "detail": {"quality": 1.0, "popularity": 1.0, "maintenance": 1.0}}
    return {"package": package, "score": score, "searchScore": 1.0, "flags": {"unstable": found.version.startswith("0.")}}


def _in_rows(connection: Connection, snapshot: Snapshot, words: Sequence[str]) -> list[_Found]:
    rows = connection.execute(_ROWS, _looked_for(snapshot, words))
    return [_Found(row.name, row.version, json_time(row.published), partial(_said, row.id, row.package)) for row in rows]


def _said(version: int, package: int, connection: Connection) -> Mapping[str, Any]:
    kept = connection.execute(_SAID, {"version": version, "package": package}).one()
    told = manifest_of(kept.fragment)
    found = {
        "description": told.get("description", ""),
        "keywords": told.get("keywords") if isinstance(told.get("keywords"), list) else [],
        "publisher": {"username": (told.get("_npmUser") or {}).get("name", ""), "email": ""},
        "maintainers": [{"username": each.get("name", ""), "email": ""} for each in json.loads(kept.maintainers or "[]")],
    }
    return found | ({"author": told["author"]} if isinstance(told.get("author"), dict) else {})


def _in_indexes(connection: Connection, snapshot: Snapshot, words: Sequence[str]) -> list[_Found]:
    """As far as they were fetched."""
    rows = connection.execute(_INDEXES, _looked_for(snapshot, words) | {"indexes": INDEXES})
    told = [(row.name, row.details) for row in rows if row.details["version"] is not None]
    return [_Found(name, each["version"], each["date"] or _NEVER, partial(_told, each)) for name, each in told]


def _told(details: Mapping[str, Any], connection: Connection) -> Mapping[str, Any]:
    nobody = {"publisher": {"username": "", "email": ""}, "maintainers": []}
    return {"description": details["description"], "keywords": details["keywords"], **nobody}


# By kind of repository.
_KNOWN: Mapping[str, Callable[[Connection, Snapshot, Sequence[str]], list[_Found]]] = {"hosted": _in_rows, "proxy": _in_indexes}


def _looked_for(snapshot: Snapshot, words: Sequence[str]) -> dict[str, Any]:
    patterns = [f"%{word.translate(_ESCAPES)}%" for word in words]
    return {"id": snapshot.id, "patterns": patterns, "most": LOOKED_AT, "found": MOST_FOUND * 4}


def _number(argument: str, otherwise: int, most: int) -> int:
    value = request.args.get(argument, type=int)
    return max(0, min(otherwise if value is None else value, most))


_ESCAPES = str.maketrans({"%": r"\%", "_": r"\_", "\\": r"\\"})
_PACKAGES = "(select id, name from arkvory_packages where repository_id = :id and artifacts > 0 order by name limit :most) p"
_HAVE_ALL = (
    "where not exists (select 1 from unnest(cast(:patterns as text[])) pattern where lower(p.name) not like pattern "
    "and v.words not like pattern) order by p.name limit :found"
)
# Of each package its latest version, or where no version is tagged so the one published last.
_ROWS = text(
    f"select p.name, p.id as package, v.id, v.version, v.published from {_PACKAGES} "
    "cross join lateral (select a.id, a.version, coalesce(n.published_at, a.updated_at) as published, n.words from arkvory_artifacts a "
    "join arkvory_npm_versions n on n.artifact_id = a.id left join arkvory_npm_tags t on t.artifact_id = a.id and t.tag = 'latest' "
    f"where a.package_id = p.id and not a.withheld order by (t.tag is null), a.id desc limit 1) v {_HAVE_ALL}"
)
_INDEXES = text(
    f"select p.name, v.details from {_PACKAGES} cross join lateral (select a.metadata -> 'details' as details, "
    "lower(concat(a.metadata -> 'details' ->> 'description', ' ', a.metadata -> 'details' ->> 'keywords')) as words "
    f"from arkvory_artifacts a where a.repository_id = :id and a.path = :indexes || p.name) v {_HAVE_ALL}"
)
_SAID = text(
    "select n.fragment, (select o.maintainers from arkvory_npm_packages o where o.package_id = :package) as maintainers "
    "from arkvory_npm_versions n where n.artifact_id = :version"
)
