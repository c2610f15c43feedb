"""Reading what a proxy keeps of its upstream's packuments (`packuments` says in which form)."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import semver

from app.errors import Invalid, Unavailable, UpstreamUnfit
from app.protocols.npm import packuments
from app.protocols.npm.fragments import ADDRESS
from app.protocols.npm.packuments import END_BYTES, FORM, table_place, take_apart
from app.protocols.npm.received import LONG_BODY, parsed
from app.repository.names import INTERNAL
from app.storage import OpenBlob
from app.upload.archives.readers import Died, Readers
from app.upload.archives.tars import Unreadable
from app.upstream.freshness import in_utc

readers = Readers(packuments.__name__, semver)
_PIECE = 1024 * 1024
_ADDRESS, _DEPRECATED = ADDRESS.encode(), b'"deprecated":'
# Packuments that are longer are not taken apart.
MOST_BYTES = 256 * 1024 * 1024


# Where a proxy keeps packuments, by the name of the package; those of another form are elsewhere.
INDEXES = f"{INTERNAL}packument-{FORM}/"


def index_path(package: str) -> str:
    return f"{INDEXES}{package}"


class Source(NamedTuple):
    """Where an upstream has a version's files, as it says, and which digests the tarball has."""

    version: str
    tarball: str
    integrity: str | None
    shasum: str | None
    attestations: str | None


class Place(NamedTuple):
    """When a version was published, as the upstream says, and where its fragments are: begin and length."""

    version: str
    published: str | None
    full: int
    full_length: int
    abbreviated: int
    abbreviated_length: int


def moment_of(published: str | None) -> datetime | None:
    """Null for what is no time."""
    try:
        return in_utc(datetime.fromisoformat(published or ""))
    except ValueError:
        return None


@dataclass(frozen=True)
class Kept:
    """One packument, in an open file."""

    blob: OpenBlob

    @classmethod
    @contextlib.contextmanager
    def open(cls, blob: OpenBlob) -> Iterator[Kept]:
        """Close the file afterwards."""
        with contextlib.closing(blob):
            yield cls(blob)

    @classmethod
    def open_path(cls, path: Path) -> contextlib.AbstractContextManager[Kept]:
        """The same of a file that has a name."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return cls.open(OpenBlob(fd, os.fstat(fd).st_size))

    @cached_property
    def table(self) -> Mapping[str, Any]:
        """`tags`, `times`, `said`, and `at`: begin and length of each section."""
        end = self.blob.size - END_BYTES
        begin = table_place(self._read(end, END_BYTES))
        if begin is None:
            raise Unavailable("what is kept of the upstream's packument cannot be read", retry_after=60)
        table: Mapping[str, Any] = json.loads(self._read(begin, end - begin))
        return table

    def section(self, name: str) -> bytes:
        return self._read(*self.table["at"][name])

    def places(self) -> list[Place]:
        """Of all versions, in the upstream's order."""
        lines = self.section("places").strip()
        return [Place._make(each) for each in json.loads(b"[%s]" % lines.replace(b"\n", b","))]

    def sources(self) -> list[Source]:
        """Of all versions."""
        lines = self.section("sources").strip()
        return [Source._make(each) for each in json.loads(b"[%s]" % lines.replace(b"\n", b","))]

    def place(self, version: str) -> Place | None:
        line = self._line("places", version)
        return None if line is None else Place._make(line)

    def source(self, version: str) -> Source | None:
        line = self._line("sources", version)
        return None if line is None else Source._make(line)

    def manifest(self, version: str) -> dict[str, Any] | None:
        """What is known of a version, its addresses without their beginning; null where there is none. Raises UpstreamUnfit."""
        place = self.place(version)
        if place is None:
            return None
        member = self._read(place.full, place.full_length)
        return _object(member.partition(b":")[2].replace(_ADDRESS, b""))

    def about(self) -> dict[str, Any]:
        """What is said of the package itself. Raises UpstreamUnfit."""
        return _object(b"{%s}" % self.section("about"))

    def deprecations(self) -> dict[str, str]:
        """Of each version that has one; to look for them takes its time."""
        found: dict[str, str] = {}
        for place in self.places():
            member = self._read(place.abbreviated, place.abbreviated_length)
            if _DEPRECATED in member:
                told = json.loads(member.partition(b":")[2].replace(_ADDRESS, b"")).get("deprecated")
                found |= {place.version: told} if isinstance(told, str) and told else {}
        return found

    def source_of_file(self, name: str) -> Source | None:
        """Of the version whose tarball is called so at the upstream."""
        section, mark = self.section("sources"), json.dumps(f"/{name}").encode()[1:-1]
        at = section.find(mark)
        while at >= 0:
            begin, end = section.rfind(b"\n", 0, at) + 1, section.index(b"\n", at)
            found = Source._make(json.loads(section[begin:end]))
            if found.tarball.partition("?")[0].endswith(f"/{name}"):
                return found
            at = section.find(mark, end)
        return None

    def pieces(self, ranges: Iterable[tuple[int, int]]) -> Iterator[bytes]:
        """The bytes of these, begin and length, each by itself."""
        for begin, length in ranges:
            for at in range(begin, begin + length, _PIECE):
                yield self._read(at, min(_PIECE, begin + length - at))

    def _line(self, name: str, version: str) -> list[Any] | None:
        section, mark = self.section(name), b"\n[%s," % json.dumps(version).encode()
        at = section.find(mark)
        found: list[Any] | None = json.loads(section[at + 1 : section.index(b"\n", at + 1)]) if at >= 0 else None
        return found

    def _read(self, begin: int, length: int) -> bytes:
        return os.pread(self.blob.fd, length, begin)


def _object(body: bytes) -> dict[str, Any]:
    try:
        found: dict[str, Any] = parsed(body)
    except Invalid as error:
        raise UpstreamUnfit(f"what the upstream says cannot be read again: {error.message}") from None
    return found


def remake(package: str, path: Path, take: Callable[[bytes], object]) -> None:
    """Take the packument in that file apart (`dialects.Remake`); a long one elsewhere. Raises UpstreamUnfit and Unavailable."""
    size = path.stat().st_size
    try:
        if size > MOST_BYTES:
            raise Unreadable(f"has {size} bytes, more than {MOST_BYTES}")
        take(_taken(package, path) if size <= LONG_BODY else _taken_elsewhere(package, path, take))
    except Unreadable as error:
        raise UpstreamUnfit(f"what the upstream sent as the packument of {package!r} {error}") from None


def _taken(package: str, path: Path) -> bytes:
    return b"".join(take_apart(path.read_bytes(), package))


def _taken_elsewhere(package: str, path: Path, take: Callable[[bytes], object]) -> bytes:
    """Its end, once it says that all of it is there."""
    try:
        tail = readers.pour(path, package, take)
    except Died:
        raise Unreadable("takes more time or memory to be read than it may have") from None
    if table_place(tail[-END_BYTES:]) is None:
        raise Unreadable(json.loads(tail[tail.rindex(b"\n") :])["unreadable"])
    return tail
