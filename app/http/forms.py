"""Reading an upload form (`multipart/form-data`, RFC 7578) while it arrives.

    form = read_form(stream, content_type, receive)

Short parts become fields, repeated ones lists; a part with a file name is handed to `receive` as it comes, and
what `receive` leaves unread is skipped. The order of the parts does not matter and memory stays bounded,
however the client cut its pieces. Werkzeug's decoder does the parsing; it is fed 64 KiB at a time, with which
it is fastest (2 GB/s; 1 MiB pieces take three times as long).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

import gevent
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.http import parse_options_header
from werkzeug.sansio.multipart import Data, Epilogue, Event, Field, File, MultipartDecoder, NeedData, State

from app.errors import BodyCutShort, Invalid

KIB = 1024
PIECE = 64 * KIB

# Headers of one part, and what comes before the first one.
_MOST_HEADER_BYTES = 16 * KIB
_LONGEST_BOUNDARY = 70
# Thousands of short fields arrive in one piece: others get their turns in between.
_PARTS_AT_ONCE = 50


class Readable(Protocol):
    """What a request's body looks like: up to `size` bytes, nothing at its end."""

    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True)
class Limits:
    """Parts of the form; bytes of one field and of all fields (a description may be long)."""

    parts: int = 4096
    field_bytes: int = 8 * 1024 * KIB
    all_field_bytes: int = 12 * 1024 * KIB


class FilePart:
    """A file in the form while it arrives: `name` of the part, `filename` as the client gave it, `content_type`.

    Read it with `read(size)` or piece by piece with `pieces()`, before `receive` returns.
    """

    def __init__(self, name: str, filename: str, content_type: str | None, pieces: Iterator[bytes]) -> None:
        self.name, self.filename, self.content_type = name, filename, content_type
        self._pieces = pieces
        self._rest = b""

    def pieces(self) -> Iterator[bytes]:
        """What has not been read yet, in pieces of about 64 KiB."""
        if self._rest:
            rest, self._rest = self._rest, b""
            yield rest
        yield from self._pieces

    def read(self, size: int = -1, /) -> bytes:
        """Exactly `size` bytes (fewer at the end of the file only), or all that is left."""
        parts, missing = [], size
        while size < 0 or missing > 0:
            piece = self._rest or next(self._pieces, b"")
            if not piece:
                break
            taken, self._rest = (piece, b"") if size < 0 else (piece[:missing], piece[missing:])
            parts.append(taken)
            missing -= len(taken)
        return parts[0] if len(parts) == 1 else b"".join(parts)


@dataclass
class Form:
    """`fields` by name, in the order in which they came; `files` are the names of the parts that were files."""

    fields: dict[str, list[str]] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)


def read_form(stream: Readable, content_type: str | None, receive: Callable[[FilePart], object], limits: Limits = Limits()) -> Form:
    """Read the whole form; `receive` is called for each file when it begins.

    Raises `Invalid` for what is no form or beyond the limits, `BodyCutShort` when it ends before its last boundary,
    and whatever `receive` raises.
    """
    return _Reader(stream, boundary_of(content_type), limits).run(receive)


def boundary_of(content_type: str | None) -> bytes:
    """The boundary that the request's `Content-Type` names; `Invalid` when it is no form at all."""
    media_type, options = parse_options_header(content_type)
    boundary = options.get("boundary", "")
    if media_type.lower() != "multipart/form-data" or not boundary:
        raise Invalid("an upload by POST is a multipart/form-data form with a boundary")
    if len(boundary) > _LONGEST_BOUNDARY or not boundary.isascii() or not boundary.isprintable():
        raise Invalid(f"the form's boundary may have up to {_LONGEST_BOUNDARY} printable characters (RFC 2046)")
    return boundary.encode("ascii")


class _Reader:
    def __init__(self, stream: Readable, boundary: bytes, limits: Limits) -> None:
        self._stream, self._limits = stream, limits
        self._decoder = MultipartDecoder(boundary, max_parts=limits.parts)
        self._undecided = re.compile(rb"--%s(?:-|[ \t]+)\Z" % re.escape(boundary))
        self._field_bytes = 0

    def run(self, receive: Callable[[FilePart], object]) -> Form:
        form = Form()
        parts = itertools.count(1)
        while not isinstance(event := self._next(), Epilogue):
            if next(parts) % _PARTS_AT_ONCE == 0:
                gevent.sleep(0)
            if isinstance(event, File):
                form.files.append(_part_name(event))
                self._hand_over(event, receive)
            elif isinstance(event, Field):
                form.fields.setdefault(_part_name(event), []).append(self._field(event))
        return form

    def _hand_over(self, event: File, receive: Callable[[FilePart], object]) -> None:
        pieces = self._pieces()
        receive(FilePart(event.name, event.filename, event.headers.get("Content-Type"), pieces))
        for _ in pieces:
            pass

    def _field(self, event: Field) -> str:
        collected = bytearray()
        for piece in self._pieces():
            collected += piece
            self._field_bytes += len(piece)
            if len(collected) > self._limits.field_bytes or self._field_bytes > self._limits.all_field_bytes:
                raise Invalid(f"the field {event.name!r} makes the form larger than is accepted", event.name)
        try:
            return collected.decode()
        except UnicodeDecodeError:
            raise Invalid(f"the field {event.name!r} is not UTF-8", event.name) from None

    def _pieces(self) -> Iterator[bytes]:
        more = True
        while more:
            event = self._next()
            if not isinstance(event, Data):
                _broken()
            more = event.more_data
            if event.data:
                yield event.data

    def _next(self) -> Event:
        """The decoder's next event, feeding it as it asks."""
        while isinstance(event := self._decoded(), NeedData):
            self._check_header()
            self._feed()
        return event

    def _decoded(self) -> Event:
        if self._decoder.state is State.EPILOGUE:
            return Epilogue(b"")  # what follows the last boundary means nothing (RFC 2046, 5.1.1)
        try:
            return self._decoder.next_event()
        except RequestEntityTooLarge:
            raise Invalid(f"the form has more than {self._limits.parts} parts") from None
        except (ValueError, UnicodeError, AttributeError):
            _broken()

    def _check_header(self) -> None:
        outside = self._decoder.state in {State.PREAMBLE, State.PART}
        if outside and len(self._decoder.buffer) > _MOST_HEADER_BYTES:
            raise Invalid(f"the head of a part of the form is longer than {_MOST_HEADER_BYTES} bytes")

    def _feed(self) -> None:
        """One more piece, and the few bytes after it that the end of a boundary may lack.

        The decoder must not see a last boundary without its last dash, or one whose padding goes on: it would take
        the line break before it for content (werkzeug 3.1.9).
        """
        self._decoder.receive_data(self._more(PIECE))
        for _ in range(_LONGEST_BOUNDARY):
            if not self._undecided.search(self._decoder.buffer, max(0, len(self._decoder.buffer) - 3 * _LONGEST_BOUNDARY)):
                return
            self._decoder.receive_data(self._more(1))

    def _more(self, size: int) -> bytes:
        if piece := self._stream.read(size):
            return piece
        raise BodyCutShort("the form ends before its last boundary; please send it again")


def _part_name(event: Field | File) -> str:
    if not isinstance(event.name, str):  # the decoder says str, but a part need not have a name
        raise Invalid("a part of the form has no name")
    if event.headers.get("Content-Transfer-Encoding", "binary").lower() not in {"binary", "8bit", "7bit"}:
        raise Invalid(f"the part {event.name!r} has a Content-Transfer-Encoding, which forms must not use (RFC 7578, 4.7)", event.name)
    return event.name


def _broken() -> NoReturn:
    raise Invalid("the body is not a proper multipart/form-data form")
