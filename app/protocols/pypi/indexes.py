"""An upstream's index pages as they lie in a proxy, read where they keep nobody else waiting (`pages` says what is made of them)."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import packaging
from gevent.lock import BoundedSemaphore

from app.errors import Unavailable, UpstreamUnfit
from app.protocols.pypi import pages
from app.protocols.pypi.metadata import ProjectFile, ProjectStatus
from app.repository.reading import Brought
from app.storage.threads import apart
from app.upload.archives.readers import Died, Readers
from app.upload.archives.tars import MIB, Unreadable
from app.upstream.freshness import in_utc

# JSON up to here is read in a thread: what it takes grows with it alone. Longer pages, and HTML, have a process.
SHORT = MIB // 2

PLACES, PLACE_WAIT_SECONDS = 2, 60.0
_places = BoundedSemaphore(PLACES)

readers = Readers(pages.__name__, packaging, most_bytes=2 * pages.MOST_INDEX_BYTES)


@dataclass(frozen=True, slots=True)
class Listed:
    """A file as an upstream's page tells it: `url` and `provenance` (null: there is none) are where it has them."""

    file: ProjectFile
    url: str
    provenance: str | None


@dataclass(frozen=True, slots=True)
class Listing:
    """An upstream's page of a project."""

    files: Sequence[Listed]
    versions: Sequence[str]
    status: ProjectStatus | None


def listing_of(page: Brought, project: str, filename: str | None = None) -> Listing:
    """All of a page, or what it says of one file. Raises UpstreamUnfit, and Unavailable when it could not be looked into."""
    try:
        _check_size(page, pages.MOST_BYTES)
        if page.size <= SHORT and pages.is_json(os.pread(page.fd, 1024, 0)):
            return apart(_short_listing, page, project, filename)
        answer = _answer(page, ["page", page.address, project, filename])
    except Unreadable as error:
        raise UpstreamUnfit(f"the upstream's page of {project!r} {error}") from None
    return apart(_long_listing, answer)


def index_of(index: Brought, form: str, coding: str) -> bytes:
    """An upstream's index of all projects as clients get it. Raises as `listing_of`."""
    return _asked_of(index, ["index", form, coding])


def names_in(index: Brought) -> list[str]:
    """The names of an upstream's index, normalised and in order. Raises as `listing_of`."""
    answer = _asked_of(index, ["names"])
    return apart(lambda: answer.decode().split())


def each_name(index: Brought) -> Iterator[str]:
    """The same names, one after the other: however many there are, no more than a few are in memory. Raises as `listing_of`."""
    try:
        _check_size(index, pages.MOST_INDEX_BYTES)
        with contextlib.nullcontext() if index.size <= SHORT else _place():
            kept = readers.spill(index.fd, json.dumps(["names"]))
    except Died:
        raise UpstreamUnfit("the upstream's index takes more time or memory to be read than it may have") from None
    except Unreadable as error:
        raise UpstreamUnfit(f"the upstream's index {error}") from None
    with kept:
        for line in kept:
            if line.startswith(b"{"):
                raise UpstreamUnfit(f"the upstream's index {json.loads(line)['unreadable']}")
            if name := line.decode().rstrip("\n"):
                yield name


def check_index(index: Brought) -> None:
    """Whether it is one. Raises as `listing_of`."""
    _asked_of(index, ["check"])


def _asked_of(index: Brought, question: list[str | None]) -> bytes:
    try:
        _check_size(index, pages.MOST_INDEX_BYTES)
        return _answer(index, question)
    except Unreadable as error:
        raise UpstreamUnfit(f"the upstream's index {error}") from None


def _check_size(page: Brought, most: int) -> None:
    if page.size > most:
        raise Unreadable(f"has {page.size} bytes, more than {most}")


def _answer(page: Brought, question: list[str | None]) -> bytes:
    """Few long ones are read at once: each may take hundreds of megabytes. Raises Unreadable and Unavailable."""
    with contextlib.nullcontext() if page.size <= SHORT else _place():
        answer = readers.answer(page.fd, json.dumps(question))
    if answer.startswith(b'{"unreadable"'):
        raise Unreadable(json.loads(answer)["unreadable"])
    return answer


@contextlib.contextmanager
def _place() -> Iterator[None]:
    if not _places.acquire(timeout=PLACE_WAIT_SECONDS):
        raise Unavailable("other long pages of upstreams are being read; try again shortly", retry_after=10)
    try:
        yield
    finally:
        _places.release()


def _short_listing(page: Brought, project: str, filename: str | None) -> Listing:
    return _listing(pages.lines_of(os.pread(page.fd, page.size, 0), page.address, project, filename))


def _long_listing(answer: bytes) -> Listing:
    return _listing(answer.splitlines())


def _listing(lines: Iterable[str | bytes]) -> Listing:
    """Of what `pages.answer` says. No line is long: others have their turn between two of them."""
    first, *rest = lines
    about = json.loads(first)
    status = ProjectStatus(about["status"], about["reason"]) if about["status"] else None
    return Listing([_listed(fact) for line in rest for fact in json.loads(line)], about["versions"], status)


def _listed(fact: Mapping[str, Any]) -> Listed:
    file = ProjectFile(
        filename=fact["filename"],
        version=fact["version"],
        size=fact["size"],
        hashes=fact["hashes"],
        uploaded_at=_time(fact["uploaded_at"]),
        requires_python=fact["requires_python"],
        yanked=fact["yanked"],
        core_metadata=fact["core_metadata"],
        has_signature=fact["signed"],
        has_provenance=fact["provenance"] is not None,
    )
    return Listed(file, fact["url"], fact["provenance"])


def _time(text: str | None) -> datetime | None:
    """PEP 700: `yyyy-mm-ddThh:mm:ss.ffffffZ`; without a zone UTC is meant. Null for what is no time."""
    try:
        return None if text is None else in_utc(datetime.fromisoformat(text))
    except ValueError:
        return None
