"""Audits: nothing is known against what is hosted here, said in the form that each client expects. And keys: there are none."""

from __future__ import annotations

import zlib
from typing import Any

import gevent
from flask import Response, request

from app.errors import ArkvoryError, Invalid, TooLarge
from app.http.bodies import body_reader
from app.http.identity import caller, log_fact
from app.http.parts import parts
from app.protocols.npm.answers import answer
from app.protocols.npm.blueprint import FORMAT, blueprint
from app.protocols.npm.received import parsed
from app.repository.reading import Ask

# Of a body as it is sent, and unpacked.
MOST_SENT, MOST_BODY = 2 * 1024 * 1024, 8 * 1024 * 1024
_LEVELS = ("info", "low", "moderate", "high", "critical")


@blueprint.post("/<segment:repository>/-/npm/v1/security/advisories/bulk")
def bulk(repository: str) -> Response:
    """Advisories by package (npm 7 and later, pnpm, Yarn): versions come, nothing is known."""
    told = _told(repository)
    if any(not isinstance(versions, list) for versions in told.values()):
        raise Invalid("the body is an object of versions by package")
    return answer({})


@blueprint.post("/<segment:repository>/-/npm/v1/security/audits")
@blueprint.post("/<segment:repository>/-/npm/v1/security/audits/quick")
def quick(repository: str) -> Response:
    """The report of former clients: a tree of dependencies comes."""
    count = _count(_told(repository).get("dependencies"))
    found = {"vulnerabilities": dict.fromkeys(_LEVELS, 0), "dependencies": count, "devDependencies": 0, "optionalDependencies": 0}
    return answer({"actions": [], "advisories": {}, "muted": [], "metadata": found | {"totalDependencies": count}})


@blueprint.get("/<segment:repository>/-/npm/v1/keys")
def keys(repository: str) -> Response:
    """What the registry signs with: it signs nothing of its own."""
    _may_read(repository)
    return answer({"keys": []})


def _told(repository: str) -> dict[str, Any]:
    _may_read(repository)
    body = body_reader()(MOST_SENT + 1)
    if len(body) > MOST_SENT:
        raise TooLarge(f"at most {MOST_SENT} bytes are read here")
    if request.headers.get("Content-Encoding", "").lower() == "gzip":
        unpacked = gevent.get_hub().threadpool.apply(_unpacked, (body,))
        if isinstance(unpacked, ArkvoryError):
            raise unpacked
        body = unpacked
    told = parsed(body or b"{}")
    if not isinstance(told, dict):
        raise Invalid("the body is no JSON object")
    return told


def _may_read(repository: str) -> None:
    log_fact("repository", repository)
    parts().reader.may_read(Ask(FORMAT, repository, "", caller()))


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
