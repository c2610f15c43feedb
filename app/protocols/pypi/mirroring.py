"""What a mirror of Python projects follows: those that are named, else all that the upstream's index has; of each the files on its page.

    (empty)      the index of all projects
    {project}    the page of one
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import urlsplit

from app.errors import Invalid, UpstreamUnfit
from app.protocols.pypi import indexes
from app.protocols.pypi.indexes import Listed
from app.protocols.pypi.inspection import inspect
from app.protocols.pypi.names import INDEX_PATH, Companion, normalised, page_path, parse_file_name
from app.protocols.pypi.pages import MOST_BYTES, MOST_INDEX_BYTES
from app.protocols.pypi.uploads import files_of
from app.protocols.pypi.upstream import INDEX_HEADERS, addresses
from app.repository.mirrors.guides import FILE, LIST, Index, Item, New, OfFiles, Trail
from app.repository.names import check_path
from app.repository.publishing import Package, Session
from app.upload.receiving import Received
from app.upstream.client import Arrived, Wanted


class Projects(OfFiles):
    """The guide of this room."""

    def check(self, names: Sequence[str]) -> None:
        for each in names:
            try:
                normalised(each)
            except Invalid as error:
                raise Invalid(error.message, field="names") from None

    def takes(self, kind: str, path: str) -> bool:
        """A hosted repository takes what may be uploaded, and makes of a file what goes with it."""
        return kind == "proxy" or _may_be_uploaded(path)

    def roots(self, names: Sequence[str]) -> Iterable[Item]:
        return [Item(LIST, normalised(each)) for each in names] or [Item(LIST, "")]

    def items(self, trail: Trail, path: str) -> Iterator[Item]:
        return _files(trail, path) if path else _projects(trail)

    def publishable(self, trail: Trail, session: Session, item: Item, received: Received, head: Arrived) -> New:
        inspected = inspect(received.path, item.path.partition("/")[2])
        return New(files_of(session, received, inspected, {}), Package(inspected.distribution.project, inspected.name))


def _may_be_uploaded(path: str) -> bool:
    project, _, filename = path.partition("/")
    try:
        return parse_file_name(filename).project == project
    except Invalid:
        return False


def _projects(trail: Trail) -> Iterator[Item]:
    with contextlib.closing(trail.document(Index(INDEX_PATH, _ways(trail, ""), MOST_INDEX_BYTES, alone=True))) as index:
        for name in indexes.each_name(index):
            if trail.wants(f"{name}/"):
                yield Item(LIST, name)


def _files(trail: Trail, project: str) -> Iterator[Item]:
    with contextlib.closing(trail.document(Index(page_path(project), _ways(trail, f"{project}/"), MOST_BYTES, alone=True))) as page:
        listing = indexes.listing_of(page, project)
    for listed in listing.files:
        for item in _with_companions(project, listed):
            if trail.wants(item.path):
                yield item


def _ways(trail: Trail, below: str) -> list[Wanted]:
    return [Wanted(each, headers=INDEX_HEADERS) for each in addresses(trail.url, below)]


def _with_companions(project: str, listed: Listed) -> Iterator[Item]:
    file = listed.file
    path = f"{project}/{file.filename}"
    try:
        check_path(path)
    except Invalid:
        return
    if not urlsplit(listed.url).hostname:
        raise UpstreamUnfit(f"the upstream's page of {project!r} has an address that is none")
    yield Item(FILE, path, file.size, _sha256(file.hashes), listed.url, lasting=True)
    if file.core_metadata is not None:
        yield Item(FILE, path + Companion.METADATA, None, _sha256(file.core_metadata), listed.url + Companion.METADATA, lasting=True)
    if file.has_signature:
        yield Item(FILE, path + Companion.SIGNATURE, address=listed.url + Companion.SIGNATURE, lasting=True)
    if listed.provenance is not None:
        yield Item(FILE, path + Companion.PROVENANCE, address=listed.provenance)


def _sha256(hashes: object) -> str | None:
    known = hashes.get("sha256") if isinstance(hashes, dict) else None
    return None if known is None else f"sha256:{known}"
