"""What rooms say of their addresses for reading, once, for Flask and for the short path.

    reads = Reads(blueprint)

    @reads.get("/<segment:repository>/<artifact:path>")
    def get(asked: Asked, repository: str, path: str) -> Read:
        return FileRead(path, describe)

Such a function is pure: it says what the address stands for, and with `describe` how that is sent. Who asks, whether they may, and what
is there now is found out afterwards, by the same calls on either path. Where an address stands for something else (a redirect) it
gives a function that makes the answer, which only Flask calls.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

from flask import Blueprint, Request, Response, request

from app.access.identity import Caller
from app.errors import ArkvoryError, IsFolder, NotFound, NotKept
from app.http.addresses import base_address
from app.http.errors import text_answer
from app.http.identity import caller_of, note
from app.http.parts import Parts, parts
from app.http.paths import decode_path, decode_segment
from app.http.responses import PRECONDITIONS, coming_response, document_response, etags_of, file_response
from app.repository.reading import Ask, Coming, Document, DocumentSource, Found, Gate, Reader, Told
from app.storage import OpenBlob
from config import Settings

# So long after a client got bytes it may still ask for what belongs to them.
SLACK_SECONDS = 30.0
_CONVERTER = re.compile(r"<(segment|artifact):(\w+)>")
_DECODERS: Mapping[str, tuple[str, Callable[[str], str]]] = {"segment": ("([^/]+)", decode_segment), "artifact": ("(.+)", decode_path)}


@dataclass(slots=True)
class Asked:
    """What a request says beside its address; `path` is the encoded one."""

    environ: Mapping[str, Any]
    path: str
    settings: Settings

    def header(self, name: str) -> str | None:
        value: str | None = self.environ.get(f"HTTP_{name.upper().replace('-', '_')}")
        return value

    def argument(self, name: str) -> str | None:
        """The first value of an argument of the query."""
        return Request(dict(self.environ)).args.get(name) if self.environ.get("QUERY_STRING") else None

    def spelling(self, depth: int = 2) -> str:
        """The encoded path behind so many segments (format and repository); empty where nothing in it is encoded."""
        return self.path.split("/", depth + 1)[depth + 1] if "%" in self.path else ""

    @property
    def method(self) -> str:
        return str(self.environ["REQUEST_METHOD"])

    @property
    def base(self) -> str:
        """See `addresses.public_base`."""
        return base_address(self.environ, self.settings)


@dataclass(frozen=True, slots=True)
class Description:
    """An answer but for what conditions make of it; `body` null means the artifact's own bytes. `etag` is unquoted and strong."""

    etag: str
    content_type: str
    headers: Mapping[str, str]
    last_modified: datetime | None = None
    body: bytes | None = None


class Loaded(NamedTuple):
    """What is there now, its bytes where they are its own, and how a proxy came by them.

    `counts_for`: the repository for which sending them is a download; 0 where it is none, since they are an upstream's own document.
    """

    thing: Gate | Document
    bytes: OpenBlob | Coming | None
    told: Told | None = None
    counts_for: int = 0


@dataclass(frozen=True, slots=True)
class FileRead:
    """The artifact at a path. With `renews`, who asks whether it is there (HEAD) may rely on the answer for a while.

    With `told_by_head` a proxy that does not have it asks the upstream no more than the client asks: HEAD brings no bytes here.
    """

    path: str
    describe: Callable[[Gate], Description]
    renews: bool = False
    told_by_head: bool = False
    # See `Ask`.
    spelling: str = ""
    # What is said of the path where nothing is.
    absent: str = ""

    def load(self, reader: Reader, ask: Ask, environ: Mapping[str, Any]) -> Loaded:
        head, whole = environ["REQUEST_METHOD"] == "HEAD", not PRECONDITIONS.isdisjoint(environ)
        if head and self.told_by_head and not whole:
            ask = replace(ask, bodiless=True)
        try:
            # A condition is about what is there, whole.
            found = reader.find(ask, whole=whole)
        except NotFound as error:
            raise NotFound(self.absent) if self.absent and not isinstance(error, IsFolder) else error from None
        try:
            return self._opened(reader, ask, found, head=head)
        except NotFound:
            if found.told is None:
                raise
            # A proxy's copy that went meanwhile is fetched again.
            return self._opened(reader, ask, reader.find(ask, whole=whole), head=head)

    def _opened(self, reader: Reader, ask: Ask, found: Found, *, head: bool) -> Loaded:
        if found.coming is not None:
            return Loaded(found.gate, found.coming, found.told, found.snapshot.id)
        # What a proxy fetched is used by whoever reads it; what was published, by whoever is about to refer to it.
        if self.renews and (head or found.told is not None):
            found = reader.renew(ask, found)
        found, blob = reader.open_blob(ask, found)
        return Loaded(found.gate, blob, found.told, found.snapshot.id)


@dataclass(frozen=True, slots=True)
class FactRead:
    """Something that is known of the artifact at a path without its bytes.

    `instead` is what a proxy passes on that stores nothing: the upstream's own word on it.
    """

    path: str
    describe: Callable[[Gate], Description]
    spelling: str = ""
    instead: FileRead | None = None

    def load(self, reader: Reader, ask: Ask, environ: Mapping[str, Any]) -> Loaded:
        try:
            # Of the bytes that the client got just before, not of those that the upstream has meanwhile.
            found = reader.find(replace(ask, slack=SLACK_SECONDS))
        except NotKept:
            if self.instead is None:
                raise
            passed_on = self.instead.load(reader, replace(ask, path=self.instead.path, spelling=self.instead.spelling), environ)
            return passed_on._replace(counts_for=0)
        return Loaded(found.gate, None, found.told)


@dataclass(frozen=True, slots=True)
class DocumentRead:
    """A derived document, for those who may read `path`; without `whole` a client that has it (304) may be answered without its bytes."""

    path: str
    source: DocumentSource
    describe: Callable[[Document], Description]
    whole: bool = False
    spelling: str = ""
    # In a proxy: the path of the upstream's document that it is made of.
    made_of: str = ""

    def load(self, reader: Reader, ask: Ask, environ: Mapping[str, Any]) -> Loaded:
        document, told = reader.document(ask, self.source, frozenset() if self.whole else etags_of(environ), self.made_of)
        return Loaded(document, None, told)


@dataclass(frozen=True, slots=True)
class MadeRead:
    """What is made of a repository's rows, or of a group's members; a proxy has it from its upstream, as it is: `copy` of the same path.

    `describe` is of a gate and of a document alike.
    """

    made: DocumentRead
    copy: FileRead | FactRead
    describe: Callable[[Any], Description]

    @property
    def path(self) -> str:
        return self.copy.path

    @property
    def spelling(self) -> str:
        return self.copy.spelling

    def load(self, reader: Reader, ask: Ask, environ: Mapping[str, Any]) -> Loaded:
        read: FileRead | FactRead | DocumentRead = self.copy if reader.is_passed_on(ask) else self.made
        return read.load(reader, ask, environ)._replace(counts_for=0)


Read = FileRead | FactRead | DocumentRead | MadeRead
Otherwise = Callable[[], Response]
Address = Callable[..., Read | Otherwise]
Refusal = Callable[[ArkvoryError, Asked], Response]
CallerOf = Callable[[Parts, dict[str, Any]], Caller]


def plainly(error: ArkvoryError, asked: Asked) -> Response:
    """`text_answer`, for whatever was asked."""
    return text_answer(error)


def load(house: Parts, format_name: str, repository: str, read: Read, who: Caller, environ: Mapping[str, Any]) -> Loaded:
    """For this caller. Raises what `Reader` raises."""
    return read.load(house.reader, Ask(format_name, repository, read.path, who, spelling=read.spelling), environ)


def headers_about(told: Told | None) -> tuple[tuple[str, str], ...]:
    """What an answer's head says of how a proxy came by it, and of a group's members; nothing for others."""
    if told is None:
        return ()
    found = [("X-Arkvory-Cache", told.how), ("Age", str(told.age))] if told.how else []
    if told.member:
        found.append(("X-Arkvory-Member", told.member))
    if told.passed_over:
        found.append(("X-Arkvory-Passed-Over", ", ".join(told.passed_over)))
    return tuple(found)


def respond(asked: Request, about: Description, blob: OpenBlob | Coming | None, told: Told | None = None) -> Response:
    """The answer with its conditions; owns `blob` from here on."""
    answer = _respond(asked, about, blob)
    answer.headers.extend(headers_about(told))
    return answer


def counted(house: Parts, found: Loaded, environ: Mapping[str, Any], answer: Response) -> Response:
    """The same answer; a download when it brings the first byte of an artifact: no HEAD, no 304, and of ranges the first one."""
    if found.counts_for and isinstance(found.thing, Gate) and environ["REQUEST_METHOD"] == "GET":
        begins = answer.status_code == 200 or (
            answer.status_code == 206 and answer.headers.get("Content-Range", "").startswith("bytes 0-")
        )
        if begins:
            house.downloads.note(found.counts_for, found.thing.path)
    return answer


def _respond(asked: Request, about: Description, blob: OpenBlob | Coming | None) -> Response:
    if blob is not None and not isinstance(blob, OpenBlob):
        return coming_response(asked, blob, content_type=about.content_type, headers=about.headers)
    if blob is None:
        return document_response(
            asked, about.body or b"", etag=about.etag, content_type=about.content_type, last_modified=about.last_modified,
            headers=about.headers,
        )  # fmt: skip
    assert about.last_modified is not None
    return file_response(
        asked, blob, etag=about.etag, last_modified=about.last_modified, content_type=about.content_type, headers=about.headers
    )


@dataclass(frozen=True, slots=True)
class Route:
    """One address of a room: encoded paths that `pattern` matches, whose groups `decoders` turn into what `address` takes."""

    endpoint: str
    pattern: re.Pattern[str]
    names: tuple[str, ...]
    decoders: tuple[Callable[[str], str], ...]
    defaults: Mapping[str, str]
    address: Address
    room: Reads

    def arguments(self, path: str) -> dict[str, str] | None:
        """Null when the address is another one. Raises InvalidPath."""
        match = self.pattern.fullmatch(path)
        if match is None:
            return None
        found = {name: decode(text) for name, decode, text in zip(self.names, self.decoders, match.groups(), strict=True)}
        return {**found, **self.defaults}


class Reads:
    """A room's addresses for reading, below its blueprint's, whose name is the format.

    `refusal` renders errors in its clients' form, from the error and what was asked; `caller_of` finds out who asks.
    """

    def __init__(self, blueprint: Blueprint, refusal: Refusal = plainly, caller_of: CallerOf = caller_of) -> None:
        assert blueprint.url_prefix is not None
        self.format = blueprint.name
        self.prefix = blueprint.url_prefix
        self.refusal = refusal
        self.caller_of = caller_of
        self.routes: list[Route] = []
        self.blueprint = blueprint
        self._views: dict[str, Callable[..., Response]] = {}
        blueprint.register_error_handler(ArkvoryError, lambda error: refusal(error, asked_now()))

    def get(self, rule: str, **defaults: str) -> Callable[[Address], Address]:
        """GET and HEAD of what `rule` describes are answered by what the decorated function says."""

        def register(address: Address) -> Address:
            name = getattr(address, "__name__")  # noqa: B009  # a callable in general has none
            view = self._views.setdefault(name, self._view(address))
            self.blueprint.add_url_rule(rule, name, view, methods=["GET"], defaults=defaults)
            self.routes.append(Route(f"{self.format}.{name}", *_compiled(self.prefix + rule), defaults, address, self))
            return address

        return register

    def _view(self, address: Address) -> Callable[..., Response]:
        def view(repository: str, **more: str) -> Response:
            environ, house = request.environ, parts()
            note(environ, "repository", repository)
            read = address(asked_now(), repository=repository, **more)
            if not isinstance(read, Read):
                return read()
            found = load(house, self.format, repository, read, self.caller_of(house, environ), environ)
            with giving_back(found.bytes):
                about = read.describe(found.thing)  # type: ignore[arg-type]  # each kind of read loads what its own function takes
            return counted(house, found, environ, respond(request, about, found.bytes, found.told))

        return view


class Addresses:
    """All that the rooms declare, by the path as it was sent (`paths.raw_path`)."""

    def __init__(self, rooms: Iterable[Reads]) -> None:
        self._routes = {f"{room.prefix}/": room.routes for room in rooms}

    def find(self, path: str) -> tuple[Route, dict[str, str]] | None:
        """Null where none is. Raises InvalidPath."""
        for route in self._routes.get(path[: path.find("/", 1) + 1], ()):
            arguments = route.arguments(path)
            if arguments is not None:
                return route, arguments
        return None


def asked_now() -> Asked:
    """What the present request asks, by the long path."""
    return Asked(request.environ, request.environ["PATH_INFO"], parts().settings)


@contextlib.contextmanager
def giving_back(blob: OpenBlob | Coming | None) -> Iterator[None]:
    """Close it when what is done inside fails."""
    try:
        yield
    except BaseException:
        if blob is not None:
            blob.close()
        raise


def _compiled(rule: str) -> tuple[re.Pattern[str], tuple[str, ...], tuple[Callable[[str], str], ...]]:
    pieces = list(_pieces(rule))
    pattern = "".join(_DECODERS[kind][0] if name else re.escape(kind) for kind, name in pieces)
    names = tuple(name for _, name in pieces if name)
    return re.compile(pattern), names, tuple(_DECODERS[kind][1] for kind, name in pieces if name)


def _pieces(rule: str) -> Iterator[tuple[str, str]]:
    """Literal text with an empty name, and converters with theirs."""
    position = 0
    for match in _CONVERTER.finditer(rule):
        yield rule[position : match.start()], ""
        yield match.group(1), match.group(2)
        position = match.end()
    yield rule[position:], ""
