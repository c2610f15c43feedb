"""`-/v1/search`: packages by words in their names and in what their latest versions say of themselves."""

from __future__ import annotations

import json
from typing import Any

from flask import Response, request
from sqlalchemy import Connection, Row, text

from app.access.decision import READ, Grant, find_repository
from app.access.identity import Caller
from app.http.addresses import public_base
from app.http.identity import caller, log_fact
from app.http.parts import parts
from app.http.paths import encode_path
from app.http.responses import json_time
from app.protocols.npm.answers import answer
from app.protocols.npm.blueprint import FORMAT, blueprint
from app.protocols.npm.fragments import manifest_of
from app.protocols.npm.names import scope_of
from app.repository.reading import check_online

MOST_FOUND = 250
MOST_WORDS = 20
# Packages that one search looks at, in the order of their names.
LOOKED_AT = 20_000


@blueprint.get("/<segment:repository>/-/v1/search")
def search(repository: str) -> Response:
    """What the caller may read and has all the words, the best fit first."""
    log_fact("repository", repository)
    words = request.args.get("text", "").lower().split()[:MOST_WORDS]
    size, first = _number("size", 20, MOST_FOUND), _number("from", 0, LOOKED_AT)
    base, who = f"{public_base(request)}/{FORMAT}/{encode_path(repository)}", caller()
    with parts().database.consistent() as connection:
        found = sorted(_found(connection, who, repository, words), key=lambda row: (_rank(row.name, words), row.name))
        objects = [_object(connection, row, base) for row in found[first : first + size]]
    return answer({"objects": objects, "total": len(found), "time": _now_text(found)})


def _found(connection: Connection, who: Caller, repository: str, words: list[str]) -> list[Row[Any]]:
    snapshot = find_repository(connection, who, repository, format_name=FORMAT)
    check_online(snapshot)
    grant = parts().access.grant_now(connection, who, snapshot, READ)
    patterns = [f"%{word.translate(_ESCAPES)}%" for word in words]
    rows = connection.execute(_SEARCH, {"id": snapshot.id, "patterns": patterns, "most": LOOKED_AT, "found": MOST_FOUND * 4}).all()
    return [row for row in rows if _may_read(grant, row.name)]


def _may_read(grant: Grant, package: str) -> bool:
    return grant.covers(f"{package}/")


def _rank(name: str, words: list[str]) -> int:
    """0 for the very name, 1 for one that begins so, 2 for one that has it, 3 for the rest."""
    wanted = " ".join(words)
    if name == wanted:
        return 0
    return 1 if name.startswith(wanted) else 2 if wanted in name else 3


def _object(connection: Connection, row: Row[Any], base: str) -> dict[str, Any]:
    """One after the other: what a version says may be long, and only little of it is shown."""
    kept = connection.execute(_SAID, {"version": row.id, "package": row.package}).one()
    told = manifest_of(kept.fragment)
    publisher = told.get("_npmUser") or {}
    package = {
        "name": row.name,
        "scope": scope_of(row.name) or "unscoped",
        "version": row.version,
        "description": told.get("description", ""),
        "keywords": told.get("keywords") if isinstance(told.get("keywords"), list) else [],
        "date": json_time(row.updated_at),
        "links": {"npm": f"{base}/{row.name}"},
        "publisher": {"username": publisher.get("name", ""), "email": ""},
        "maintainers": [{"username": each.get("name", ""), "email": ""} for each in json.loads(kept.maintainers or "[]")],
    }
    if isinstance(told.get("author"), dict):
        package["author"] = told["author"]
    score = {"final": 1.0, "detail": {"quality": 1.0, "popularity": 1.0, "maintenance": 1.0}}
    return {"package": package, "score": score, "searchScore": 1.0, "flags": {"unstable": row.version.startswith("0.")}}


def _now_text(found: list[Row[Any]]) -> str:
    """When the newest of them was published: equal answers stay equal."""
    return json_time(max(row.updated_at for row in found)) if found else "1970-01-01T00:00:00Z"


def _number(argument: str, otherwise: int, most: int) -> int:
    value = request.args.get(argument, type=int)
    return max(0, min(otherwise if value is None else value, most))


_ESCAPES = str.maketrans({"%": r"\%", "_": r"\_", "\\": r"\\"})
# Of each package its latest version, or where no version is tagged so the one published last.
_SEARCH = text(
    "select p.name, p.id as package, v.id, v.version, v.updated_at from (select id, name from arkvory_packages "
    "where repository_id = :id and artifacts > 0 order by name limit :most) p "
    "cross join lateral (select a.id, a.version, a.updated_at, n.words from arkvory_artifacts a "
    "join arkvory_npm_versions n on n.artifact_id = a.id left join arkvory_npm_tags t on t.artifact_id = a.id and t.tag = 'latest' "
    "where a.package_id = p.id and not a.withheld order by (t.tag is null), a.id desc limit 1) v "
    "where not exists (select 1 from unnest(cast(:patterns as text[])) pattern where lower(p.name) not like pattern "
    "and v.words not like pattern) order by p.name limit :found"
)
_SAID = text(
    "select n.fragment, (select o.maintainers from arkvory_npm_packages o where o.package_id = :package) as maintainers "
    "from arkvory_npm_versions n where n.artifact_id = :version"
)
