"""Audits and keys: of what is hosted here nothing is known, said in the form that each client expects; a proxy passes on what its upstream
knows.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gevent
from flask import Response, request
from sqlalchemy import Connection

from app.cache.snapshots import Snapshot
from app.database.statements import text
from app.errors import ArkvoryError, Invalid, NotFound, TooLarge, UpstreamUnfit
from app.http.bodies import body_reader
from app.http.identity import caller, log_fact
from app.http.parts import parts
from app.http.reads import Asked, Description, DocumentRead, Read
from app.protocols.npm.answers import FRESH, answer
from app.protocols.npm.blueprint import FORMAT, blueprint, reads
from app.protocols.npm.hosted import held_by
from app.protocols.npm.portions import dumps
from app.protocols.npm.received import parsed
from app.protocols.npm.upstream import KEYS
from app.repository.reading import Ask, Document, Draft, Merged, Shelf, check_online, is_online
from app.upstream.client import Wanted

# Of a body as it is sent, and unpacked; and of an upstream's answer.
MOST_SENT, MOST_BODY, MOST_ANSWER = 2 * 1024 * 1024, 8 * 1024 * 1024, 8 * 1024 * 1024
BULK, QUICK, FULL = (f"-/npm/v1/security/{each}" for each in ("advisories/bulk", "audits/quick", "audits"))
DEEPEST = 200
_LEVELS = ("info", "low", "moderate", "high", "critical")


# Audits


@blueprint.post(f"/<segment:repository>/{BULK}")
def bulk(repository: str) -> Response:
    """Advisories by package (npm 7 and later, pnpm, Yarn): versions come."""
    return _audited(repository, BULK)


@blueprint.post(f"/<segment:repository>/{FULL}")
def full(repository: str) -> Response:
    """The report of former clients: a tree of dependencies comes."""
    return _audited(repository, FULL)


@blueprint.post(f"/<segment:repository>/{QUICK}")
def quick(repository: str) -> Response:
    """The same, and less."""
    return _audited(repository, QUICK)


def _audited(repository: str, path: str) -> Response:
    """In a group each member says what it knows; names that its hosted members hold are told to nobody else."""
    log_fact("repository", repository)
    members = parts().reader.repositories(Ask(FORMAT, repository, "", caller()))
    told = _object(_told())
    asked = _without(told, _held(members, told), path) if len(members) > 1 else told
    known = [_AUDITORS[each.kind](each, path, asked if each.kind == "proxy" else told) for each in _auditors(members)]
    known = known or [_nothing_known(None, path, told)]
    return answer(_merged(known) if path == BULK else known[0])


def _auditors(members: Sequence[Snapshot]) -> Sequence[Snapshot]:
    """Of those that are online. Those with an upstream know more than those without. Raises RepositoryOffline where none is."""
    there = [each for each in members if is_online(each)]
    if members and not there:
        check_online(members[0])
    return [each for each in there if each.upstream_url is not None] or there[:1]


def _merged(known: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    if len(known) == 1:
        return known[0]
    found: dict[str, list[Any]] = {}
    for name, advisories in (item for each in known for item in each.items()):
        found[name] = _each_once([*found.get(name, ()), *advisories])
    return found


def _each_once(things: Iterable[Any]) -> list[Any]:
    """In their order; what upstreams tell is compared as text, since there may be a lot of it."""
    return list({dumps(each): each for each in things}.values())


def _held(members: Sequence[Snapshot], told: Mapping[str, Any]) -> frozenset[str]:
    with parts().database.read() as connection:
        return held_by(connection, members, _names(told))


def _names(told: Any) -> set[str]:
    """Keys at any depth, packages among them."""
    found: set[str] = set()
    waiting = [told]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            found |= each.keys()
            waiting += each.values()
    return found


def _without(told: Mapping[str, Any], names: frozenset[str], path: str) -> Mapping[str, Any]:
    """The same audit without them."""
    if not names:
        return told
    return {name: each for name, each in told.items() if name not in names} if path == BULK else _pruned(told, names, DEEPEST)


def _pruned(tree: Mapping[str, Any], names: frozenset[str], depth: int) -> Mapping[str, Any]:
    """A tree of dependencies. Raises Invalid for one that is too deep."""
    if depth == 0:
        raise Invalid(f"the dependencies are nested more than {DEEPEST} deep", "dependencies")
    kept = dict(tree)
    for key in {"requires", "dependencies"} & tree.keys():
        below = tree[key] if isinstance(tree[key], dict) else {}
        kept[key] = {
            name: _pruned(each, names, depth - 1) if isinstance(each, dict) else each for name, each in below.items() if name not in names
        }
    return kept


def _nothing_known(snapshot: Snapshot | None, path: str, told: Mapping[str, Any]) -> Mapping[str, Any]:
    if path == BULK:
        if any(not isinstance(versions, list) for versions in told.values()):
            raise Invalid("the body is an object of versions by package")
        return {}
    count = _count(told.get("dependencies"))
    found = {"vulnerabilities": dict.fromkeys(_LEVELS, 0), "dependencies": count, "devDependencies": 0, "optionalDependencies": 0}
    return {"actions": [], "advisories": {}, "muted": [], "metadata": found | {"totalDependencies": count}}


def _passed_on(snapshot: Snapshot, path: str, asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """That an upstream cannot say is never told as if there were nothing to say."""
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    body = gevent.get_hub().threadpool.apply(dumps, (asked,))
    told = parts().fetches.ask(snapshot, Wanted(path, headers=headers, body=body), MOST_ANSWER)
    if told is None:
        raise NotFound(f"the upstream of {snapshot.name!r} makes no such audits")
    try:
        found = _object(told)
    except Invalid:
        raise UpstreamUnfit("what the upstream answers to the audit is no JSON object") from None
    if path == BULK and not all(isinstance(each, list) for each in found.values()):
        raise UpstreamUnfit("what the upstream answers to the audit are no advisories by package")
    return found


# By kind of repository.
_AUDITORS: Mapping[str, Callable[[Snapshot, str, Mapping[str, Any]], Mapping[str, Any]]] = {"hosted": _nothing_known, "proxy": _passed_on}


def _told() -> bytes:
    """The body, unpacked."""
    body = body_reader()(MOST_SENT + 1)
    if len(body) > MOST_SENT:
        raise TooLarge(f"at most {MOST_SENT} bytes are read here")
    if request.headers.get("Content-Encoding", "").lower() == "gzip":
        unpacked = gevent.get_hub().threadpool.apply(_unpacked, (body,))
        if isinstance(unpacked, ArkvoryError):
            raise unpacked
        body = unpacked
    return body or b"{}"


def _object(body: bytes) -> dict[str, Any]:
    told = parsed(body)
    if not isinstance(told, dict):
        raise Invalid("the body is no JSON object")
    return told


def _unpacked(body: bytes) -> bytes | ArkvoryError:
    """Or what is wrong, returned: gevent's threads print what is raised in them."""
    unpacking = zlib.decompressobj(wbits=31)
    try:
        unpacked = unpacking.decompress(body, MOST_BODY)
    except zlib.error:
        return Invalid("the body is not gzipped, though it is said to be", "Content-Encoding")
    if unpacking.unconsumed_tail:
        return TooLarge(f"at most {MOST_BODY} bytes are read here, unpacked")
    return unpacked if unpacking.eof else Invalid("the gzipped body ends too early", "Content-Encoding")


def _count(dependencies: Any) -> int:
    """How many packages a tree has."""
    count, waiting = 0, [dependencies]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            count += len(each)
            waiting += [below.get("dependencies") for below in each.values() if isinstance(below, dict)]
    return count


# Keys


@reads.get(f"/<segment:repository>/{KEYS}")
def keys(asked: Asked, repository: str) -> Read:
    """What the registry signs with."""
    return DocumentRead("", KeysDocument(), _described, made_of=KEYS)


def _described(made: Document) -> Description:
    return Description(made.etag, made.content_type, FRESH, body=made.body)


@dataclass(frozen=True)
class KeysDocument(Merged):
    """`-/npm/v1/keys`: nothing is signed here, a proxy has its upstream's keys."""

    key: str = "keys"
    package: str = ""
    representation: str = "json"
    content_type: str = "application/json"

    def revision(self, connection: Connection, snapshot: Snapshot) -> int | None:
        return _KEYRINGS[snapshot.kind].revision(connection, snapshot)

    def part(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Callable[[], list[Any]]:
        """The keys of one repository."""
        return _KEYRINGS[snapshot.kind].keys(connection, snapshot, shelf)

    def merge(self, repository: Snapshot, parts: Sequence[Callable[[], list[Any]]]) -> Draft:
        """All of them, each once."""

        def write() -> bytes:
            return dumps({"keys": _each_once(key for each in parts for key in each())})

        return Draft(write, long=True)


class _NoKeys:
    def revision(self, connection: Connection, snapshot: Snapshot) -> int | None:
        return 0

    def keys(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Callable[[], list[Any]]:
        return list


class _Upstreams:
    def revision(self, connection: Connection, snapshot: Snapshot) -> int | None:
        found: int | None = connection.execute(_BLOB, {"id": snapshot.id, "path": KEYS}).scalar()
        return found

    def keys(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Callable[[], list[Any]]:
        found = shelf.find(connection, snapshot, KEYS)

        def read() -> list[Any]:
            blob = found()
            with open(blob.fd, "rb") as file:
                blob.fd = -1
                keys: list[Any] = json.load(file)["keys"]
            return keys

        return read


_KEYRINGS: Mapping[str, _NoKeys | _Upstreams] = {"hosted": _NoKeys(), "proxy": _Upstreams()}
_BLOB = text("select blob_id from arkvory_artifacts where repository_id = :id and path = :path")
