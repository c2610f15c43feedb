"""The short path: reads are answered before Flask would dispatch them.

It takes the addresses that the rooms declare (`reads.py`) and asks what the long path asks, by the same calls: the caller, then
`Reader`. So nothing is decided here, and memory is used where `Reader` uses it. What it leaves out is Flask's own work: its contexts,
matching, and a response object for each answer. Whatever it does not know goes on to Flask: other methods, a query, paths that cannot be
decoded, addresses that stand for no read, its own failures.

Kept beside each gate and document, as long as these live, is the head of the answer that they get when no condition is sent.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from timeit import default_timer
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from flask import Flask, Request, Response

from app.errors import ArkvoryError, InvalidPath
from app.http.exchange import Application, Fields, StartResponse
from app.http.files import FileBody
from app.http.identity import note
from app.http.parts import Parts
from app.http.paths import raw_path
from app.http.reads import Addresses, Asked, Description, Read, Route, counted, giving_back, headers_about, load, respond
from app.http.responses import CONDITIONS, decide, header_fields
from app.repository.reading import Coming, Told
from app.storage import OpenBlob

log = logging.getLogger(__name__)

# Endpoint, method, status and seconds of an answer.
Count = Callable[[str, str, int, float], None]
_MOST_REMEMBERED = 8192
_MOST_ADDRESSES = 4096


@dataclass(slots=True)
class _Head:
    """What the room says of a thing, and the fields of its whole answer; null where these differ from one time to the next."""

    about: Description
    fields: Fields | None
    # The answer before, of those that say how a proxy or a group came by it: the same for a second at least.
    _told: Told | None = None
    _extended: Fields | None = None

    def extended(self, fields: Fields, told: Told) -> Fields:
        if self._extended is None or told != self._told:
            self._told, self._extended = told, fields.extended(headers_about(told))
        return self._extended


class _Answer(NamedTuple):
    code: int
    status: str
    fields: list[tuple[str, str]]
    body: Iterable[bytes] = ()


class ShortPath:
    """WSGI callable around `application`; `is_open` false sends everything there."""

    def __init__(self, application: Application, house: Parts, addresses: Addresses, count: Count) -> None:
        self.is_open = True
        self.application = application
        self._house = house
        self._count = count
        self._addresses = addresses
        # What an address means depends on nothing else.
        self._route = functools.lru_cache(_MOST_ADDRESSES)(self._find_route)
        self._heads: WeakKeyDictionary[Any, dict[Any, _Head]] = WeakKeyDictionary()

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in ("GET", "HEAD") and not environ.get("QUERY_STRING") and self.is_open:
            found = self._route(raw_path(environ))
            if found is not None:
                answer = self._answer(*found, environ, start_response)
                if answer is not None:
                    return answer
        return self.application(environ, start_response)

    def _find_route(self, path: str) -> tuple[Route, str, dict[str, str]] | None:
        try:
            found = self._addresses.find(path)
        except InvalidPath:
            return None
        return None if found is None else (found[0], path, found[1])

    def _answer(
        self, route: Route, path: str, arguments: dict[str, str], environ: dict[str, Any], start_response: StartResponse
    ) -> Iterable[bytes] | None:
        """Null when Flask is to answer."""
        began = default_timer()
        asked = Asked(environ, path, self._house.settings)
        try:
            note(environ, "repository", arguments["repository"])
            read = route.address(asked, **arguments)
            if not isinstance(read, Read):
                return None
            answer = self._read(route, arguments["repository"], read, environ)
        except ArkvoryError as error:
            answer = route.room.refusal(error, asked)
        except Exception:
            log.exception("the short path failed at %s; the long one answers", path)
            return None
        status = answer.status_code if isinstance(answer, Response) else answer.code
        self._count(route.endpoint, environ["REQUEST_METHOD"], status, default_timer() - began)
        if isinstance(answer, Response):
            return answer(environ, start_response)
        start_response(answer.status, answer.fields)
        return answer.body

    def _read(self, route: Route, repository: str, read: Read, environ: dict[str, Any]) -> Response | _Answer:
        """A response where more is to be said than what is kept."""
        house = self._house
        found = load(house, route.room.format, repository, read, route.room.caller_of(house, environ), environ)
        thing: Any = found.thing
        blob, told = found.bytes, found.told
        if blob is not None and not isinstance(blob, OpenBlob):
            return counted(house, found, environ, _coming(environ, read, thing, blob, told))
        head = self._head(read, thing, blob)
        fields = head.fields
        if fields is None or (blob is not None and blob.size != fields.length):
            return counted(house, found, environ, respond(Request(environ), head.about, blob, told))
        if not CONDITIONS.isdisjoint(environ):
            answer = _conditional(environ, head.about, fields, blob, told)
            return counted(house, found, environ, answer) if isinstance(answer, Response) else answer
        if told is not None:
            fields = head.extended(fields, told)
        if environ["REQUEST_METHOD"] == "HEAD":
            if blob is not None:
                blob.close()
            return _Answer(200, "200 OK", fields)
        if blob is None:
            return _Answer(200, "200 OK", fields, (head.about.body or b"",))
        if found.counts_for:
            house.downloads.note(found.counts_for, thing.path)
        body = environ["arkvory.file"] = FileBody(blob.fd, 0, blob.size, blob.close, blob.check)
        return _Answer(200, "200 OK", fields, body)

    def _head(self, read: Read, thing: Any, blob: OpenBlob | None) -> _Head:
        heads = self._heads.get(thing)
        if heads is None:
            if len(self._heads) >= _MOST_REMEMBERED:
                self._heads.clear()
            heads = self._heads[thing] = {}
        head = heads.get(read.describe)
        if head is None:
            head = heads[read.describe] = _made(read, thing, blob)
        return head


def _coming(environ: dict[str, Any], read: Read, thing: Any, coming: Coming, told: Told | None) -> Response:
    with giving_back(coming):
        about: Description = read.describe(thing)
    return respond(Request(environ), about, coming, told)


def _conditional(
    environ: dict[str, Any], about: Description, fields: Fields, blob: OpenBlob | None, told: Told | None
) -> Response | _Answer:
    asked = Request(environ)
    with giving_back(blob):
        decision = decide(asked, fields.length, about.etag, about.last_modified, dict(fields))
    if decision.status != 304:
        return respond(asked, about, blob, told)
    if blob is not None:
        blob.close()
    return _Answer(304, "304 NOT MODIFIED", [*decision.fields.items(), *headers_about(told)])


def _made(read: Read, thing: Any, blob: OpenBlob | None) -> _Head:
    with giving_back(blob):
        about: Description = read.describe(thing)
        return _Head(about, _fields(about, blob))


def _fields(about: Description, blob: OpenBlob | None) -> Fields | None:
    if about.last_modified is not None and about.last_modified > datetime.now(UTC):
        # Told as the time of the answer until it has passed.
        return None
    size = len(about.body or b"") if blob is None else blob.size
    fields = header_fields(about.etag, about.last_modified, about.content_type, about.headers) | {"Content-Length": str(size)}
    return Fields(fields.items())


def put_before(app: Flask, house: Parts, addresses: Addresses, count: Count) -> ShortPath:
    """Let `app` answer the reads of these addresses by the short path, where it can; `count` hears of each of its answers."""
    path = app.extensions["arkvory.shortpath"] = ShortPath(app.wsgi_app, house, addresses, count)
    app.wsgi_app = path  # type: ignore[assignment,method-assign]  # Flask documents this way to wrap it
    return path
