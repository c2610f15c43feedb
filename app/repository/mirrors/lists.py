"""Reading an upstream's lists where they keep nobody else waiting (`pages` says what is made of them)."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import closing
from typing import IO, Any

import gevent
from gevent.lock import BoundedSemaphore

from app.errors import Unavailable, UpstreamUnfit
from app.repository.mirrors import pages
from app.repository.mirrors.pages import Entry, Page
from app.upload.archives.readers import Died, Readers
from app.upload.archives.tars import Unreadable

# Up to here one is read in a thread; longer ones have a process, few of them at once: each may take hundreds of megabytes.
SHORT = 256 * 1024
PLACES, PLACE_WAIT_SECONDS = 2, 60.0
_places = BoundedSemaphore(PLACES)

readers = Readers(pages.__name__)
_READERS = {"folder": pages.read_folder, "artifacts": pages.read_artifacts}


def read(what: str, body: bytes, address: str, called: str) -> Page:
    """A `folder`, or the `artifacts` of another Arkvory; `called` names the list to people. Raises UpstreamUnfit, and Unavailable."""
    try:
        if len(body) <= SHORT:
            found: Page = gevent.get_hub().threadpool.apply(_short, (what, body, address))
            return found
        return _long(what, body, address)
    except Unreadable as error:
        raise UpstreamUnfit(f"what the upstream answers for {called} {error}") from None
    except Died:
        raise UpstreamUnfit(f"what the upstream answers for {called} takes more time or memory to be read than it may have") from None


def _short(what: str, body: bytes, address: str) -> Page:
    page = _READERS[what](body, address)
    return Page(list(page.entries), page.further)


def _long(what: str, body: bytes, address: str) -> Page:
    if not _places.acquire(timeout=PLACE_WAIT_SECONDS):
        raise Unavailable("other long lists of upstreams are being read; try again shortly", retry_after=10)
    try:
        told = _told(what, body, address)
    finally:
        _places.release()
    return Page(_entries(told), _head(told)["further"])


def _told(what: str, body: bytes, address: str) -> IO[bytes]:
    with tempfile.TemporaryFile() as file:
        file.write(body)
        file.flush()
        return readers.spill(file.fileno(), json.dumps([what, address]))


def _head(told: IO[bytes]) -> dict[str, Any]:
    head: dict[str, Any] = json.loads(told.readline())
    if "unreadable" in head:
        told.close()
        raise Unreadable(head["unreadable"])
    return head


def _entries(told: IO[bytes]) -> Iterator[Entry]:
    with closing(told):
        for line in told:
            some = json.loads(line)
            if isinstance(some, dict):
                raise UpstreamUnfit(f"a list of the upstream's {some['unreadable']}")
            yield from map(Entry._make, some)
