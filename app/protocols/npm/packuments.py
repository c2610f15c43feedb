"""An upstream's packument as a proxy keeps it: taken apart once, when it was fetched, and never parsed again.

    full         what is known of each version: members of a JSON object, with commas between them
    abbreviated  the same for installers
    about        what is said of the package itself: members of a JSON object
    sources      a line for each version, a JSON list: where its tarball is, and what is known of it
    places       a line for each version, a JSON list: when it was published, and where in the file its fragments stand
    table        JSON: tags, times, what a search looks at, and where everything stands
    end          where the table stands, in a fixed length

U+0001 stands for the repository's address, as in the fragments of versions that were published here (`fragments`). What comes out depends
on nothing but the packument: the same again is the same file. Another form gets another number.

A packument is taken apart version by version, so that memory holds its text and one version of it; a long one in a child
(`app.upload.archives`), whose last piece says whether all is well.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from app.errors import Invalid
from app.protocols.npm.fragments import foreign
from app.protocols.npm.names import attestations_reference, tarball_reference
from app.upload.archives.tars import Unreadable, short

FORM = 1
_END = b"\n%%020d arkvory packument %d\n" % FORM
END_BYTES = len(_END % 0)
# Versions are parts of addresses: what could not be one is passed over.
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+~_\-]{0,255}")
_SPACES = re.compile(r"[ \t\r\n]*")
# Said in another place of the documents, or meant for the upstream alone.
_NOT_ABOUT = frozenset(
    {"_id", "_rev", "_attachments", "_cached", "_distfiles", "_uplinks", "name", "versions", "time", "dist-tags", "modified", "users"}
)
_PIECE = 256 * 1024
_SHORT, _LONG = 200, 4096
_MOST_WORDS = 100


def answer(path: str, package: str) -> Iterator[bytes]:
    """In a child: what is kept of the packument in that file, or at its end `{"unreadable": clause}` in a line of its own."""
    try:
        yield from take_apart(Path(path).read_bytes(), package)
    except Unreadable as error:
        yield b"\n" + json.dumps({"unreadable": str(error)}).encode()


def table_place(end: bytes) -> int | None:
    """Where the table begins, by the last `END_BYTES` of a file; null when it is not of this form."""
    place = end[1:21]
    return int(place) if place.isdigit() and end == _END % int(place) else None


def take_apart(data: bytes, package: str) -> Iterator[bytes]:
    """What is kept of a packument, in pieces. Raises Unreadable for what is none, or another package's, perhaps after some of them."""
    try:
        yield from _Taking(package).pieces(data.removeprefix(b"\xef\xbb\xbf").decode())
    except (ValueError, RecursionError, MemoryError, Invalid) as error:
        raise Unreadable(f"is no packument ({short(error)})") from None


@dataclass(frozen=True)
class _Version:
    """Begin and length of its full fragment in the file; its abbreviated one."""

    begin: int
    length: int
    abbreviated: bytes


class _Taking:
    """One packument on its way."""

    def __init__(self, package: str) -> None:
        self._package = package
        # Stands for the repository's address until the text is made: nothing in a packument is the same by chance.
        self._address = secrets.token_hex(16)
        self._told: dict[str, Any] = {}
        self._versions: dict[str, _Version] = {}
        self._sources: list[bytes] = []
        self._written = 0

    def pieces(self, text: str) -> Iterator[bytes]:
        cursor, seen = _Cursor(text), set()
        for key in cursor.members():
            if key in seen:
                raise ValueError(f"it says {key[:_SHORT]!r} twice")
            seen.add(key)
            if key == "versions":
                yield from self._full(cursor)
            else:
                self._told[key] = cursor.value()
        cursor.end()
        self._check_name()
        yield from self._rest()

    def _check_name(self) -> None:
        """What another service says of its own, as JSON, ends here too."""
        name = self._told.get("name", self._told.get("_id"))
        if name != self._package:
            raise ValueError(f"it is of {str(name)[:_SHORT]!r}, and {self._package!r} was asked for")

    def _full(self, cursor: _Cursor) -> Iterator[bytes]:
        waiting: list[bytes] = []
        begun = self._written
        for version in cursor.members():
            waiting += self._version(version, cursor.value())
            if self._written - begun >= _PIECE:
                yield b"".join(waiting)
                waiting, begun = [], self._written
        yield b"".join(waiting)

    def _version(self, version: str, manifest: Any) -> list[bytes]:
        """Nothing for what nobody could install."""
        dist = manifest.get("dist") if isinstance(manifest, dict) else None
        if not _VERSION.fullmatch(version) or not isinstance(dist, dict) or not isinstance(dist.get("tarball"), str):
            return []
        if version in self._versions:
            raise ValueError(f"it has {version!r} twice")
        references = tarball_reference(self._package, version), attestations_reference(self._package, version)
        member = f"{json.dumps(version)}:"
        full, abbreviated = (f"{member}{each}".encode() for each in foreign(manifest, *references, self._address))
        comma = b"," if self._versions else b""
        self._versions[version] = _Version(self._written + len(comma), len(full), abbreviated)
        self._written += len(comma) + len(full)
        self._sources.append(_line([version, *_source(dist)]))
        return [comma, full]

    def _rest(self) -> Iterator[bytes]:
        """All but the full fragments, which are written."""
        sections = {
            "abbreviated": b",".join(each.abbreviated for each in self._versions.values()),
            "about": _members({key: value for key, value in self._told.items() if key not in _NOT_ABOUT}),
            "sources": b"\n" + b"".join(self._sources),
            "places": b"\n" + b"".join(self._lines()),
        }
        places, at = {"full": [0, self._written]}, self._written
        for name, section in sections.items():
            yield section
            places[name] = [at, len(section)]
            at += len(section)
        yield json.dumps({"tags": self._tags(), "times": self._times(), "said": self._said(), "at": places}).encode()
        yield _END % at

    def _lines(self) -> Iterator[bytes]:
        """Of each version: its name, its time, begin and length of either fragment."""
        times, at = self._object("time"), self._written
        for version, each in self._versions.items():
            yield _line([version, _text(times.get(version)), each.begin, each.length, at, len(each.abbreviated)])
            at += len(each.abbreviated) + 1

    def _said(self) -> dict[str, Any]:
        """What a search looks at."""
        keywords = self._told.get("keywords")
        words = [each[:_SHORT] for each in keywords if isinstance(each, str)] if isinstance(keywords, list) else []
        return {"description": _text(self._told.get("description"), _LONG) or "", "keywords": words[:_MOST_WORDS]}

    def _tags(self) -> dict[str, str]:
        """Those that name a version which is there."""
        return {
            tag: version for tag, version in self._object("dist-tags").items() if isinstance(version, str) and version in self._versions
        }

    def _times(self) -> dict[str, Any]:
        """`unpublished` is what the public registry says of a package that was taken back."""
        times = self._object("time")
        told = {
            "created": _text(times.get("created")),
            "modified": _text(times.get("modified")) or _text(self._told.get("modified")),
            "unpublished": None if self._versions else times.get("unpublished"),
        }
        return {key: value for key, value in told.items() if value is not None}

    def _object(self, key: str) -> Mapping[str, Any]:
        found = self._told.get(key)
        return found if isinstance(found, dict) else {}


def _source(dist: Mapping[str, Any]) -> list[str | None]:
    """Address of the tarball, integrity, shasum, address of the attestations."""
    attestations = dist.get("attestations")
    url = attestations.get("url") if isinstance(attestations, dict) else None
    return [dist["tarball"], _text(dist.get("integrity"), _LONG), _text(dist.get("shasum")), _text(url, _LONG)]


def _text(value: Any, most: int = _SHORT) -> str | None:
    return value if isinstance(value, str) and len(value) <= most else None


def _line(value: list[Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _members(value: Mapping[str, Any]) -> bytes:
    """JSON of an object, without its braces."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "backslashreplace")[1:-1]


class _Cursor:
    """A place in JSON text, which goes on over one value, or one member of an object, after the other. Raises ValueError."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def value(self) -> Any:
        value, self._at = _DECODER.raw_decode(self._text, self._next())
        return value

    def members(self) -> Iterator[str]:
        """The keys of the object that stands here; whoever asks takes the value of each before the next."""
        self._take("{")
        more = self._peek() != "}"
        while more:
            key = self.value()
            if not isinstance(key, str):
                raise ValueError("a key is no text")
            self._take(":")
            yield key
            more = self._peek() == ","
            if more:
                self._take(",")
        self._take("}")

    def end(self) -> None:
        if self._next() != len(self._text):
            raise ValueError("something follows it")

    def _next(self) -> int:
        found = _SPACES.match(self._text, self._at)
        assert found is not None
        self._at = found.end()
        return self._at

    def _peek(self) -> str:
        at = self._next()
        return self._text[at : at + 1]

    def _take(self, character: str) -> None:
        if self._peek() != character:
            raise ValueError(f"{character!r} is missing at character {self._at}")
        self._at += 1


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)
