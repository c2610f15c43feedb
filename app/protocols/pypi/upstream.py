"""How Python indexes are asked (see `repository.dialects`).

    .upstream/index/simple            the upstream's index of all projects
    .upstream/simple/{project}        its page of a project, in the form that it likes to give
    {project}/{file name}             where that page says that the file is, on whatever host
    {project}/{file name}.metadata    beside the file; where it is not, the wheel's own, if that has the hash that the page says

The upstream's address is that of its index (it ends in `simple`), or of what the index lies in: both are asked where it could be either.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from app.errors import NotFound, UpstreamUnfit
from app.protocols.pypi import indexes
from app.protocols.pypi.indexes import Listed, Listing
from app.protocols.pypi.inspection import readers
from app.protocols.pypi.names import INDEX_PATH, Companion, companion_of, is_normalised, page_path, project_at
from app.protocols.pypi.pages import MOST_BYTES, MOST_INDEX_BYTES
from app.repository.dialects import Library, Order, Plan
from app.repository.fetching import content_type_of
from app.repository.publishing import NewFile, Package
from app.repository.reading import ADDRESS, Brought
from app.upload.archives.tars import MIB, Unreadable
from app.upload.receiving import Received
from app.upstream.client import Arrived
from app.upstream.upstream import origin

# As pip asks; whatever it is called, it is looked at.
INDEX_HEADERS = {"Accept": "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1, */*;q=0.01"}
_PROVENANCE = {"Accept": "application/vnd.pypi.integrity.v1+json, application/json;q=0.5"}
# Bytes of what goes with a file.
MOST_BESIDE = 16 * MIB
_METADATA_TYPE = "text/plain; charset=utf-8"
# How files begin that no hash is known of, by the endings of their names.
_BEGINNINGS = {
    (".whl", ".zip", ".egg"): b"PK",
    (".tar.gz", ".tgz"): b"\x1f\x8b",
    (".tar.bz2",): b"BZ",
    (".tar.xz",): b"\xfd7zXZ",
    (".tar.z",): b"\x1f\x9d",
    (".exe",): b"MZ",
    (".msi",): b"\xd0\xcf\x11\xe0",
    (".rpm",): b"\xed\xab\xee\xdb",
    (".deb",): b"!<arch>",
    (".asc",): b"-----BEGIN PGP",
    (".metadata",): b"Metadata-Version",
    (".provenance",): b"{",
}


class PythonIndexes:
    """The dialect of this room."""

    def plan(self, library: Library, order: Order) -> Plan:
        """Raises NotFound for what the upstream's page does not name."""
        if order.path == INDEX_PATH:
            return _index(order, "", MOST_INDEX_BYTES, indexes.check_index)
        project = project_at(order.path)
        if project is not None:
            return _index(order, f"{project}/", MOST_BYTES, lambda copy: indexes.listing_of(copy, project), Package(project, project))
        return _Wish.of(order.path).plan(library, order.snapshot.upstream_url or "")


def _index(order: Order, below: str, at_most: int, check: Callable[[Brought], object], package: Package | None = None) -> Plan:
    def accept(received: Received, head: Arrived) -> NewFile:
        with _opened(received, head.url) as copy:
            check(copy)
        return NewFile(order.path, received, content_type_of(head, order.path), {ADDRESS: head.url}, package=package)

    where, *or_else = addresses(order.snapshot.upstream_url or "", below)
    return Plan(where, or_else, headers=INDEX_HEADERS, whole=True, ageless=True, at_most=at_most, accept=accept)


def addresses(upstream: str, below: str) -> list[str]:
    """Below the upstream's address, the likeliest first."""
    path = urlsplit(upstream).path
    if path.lower().endswith("simple"):
        return [below]
    return [f"simple/{below}", below] if path in ("", "/") else [below, f"simple/{below}"]


@contextlib.contextmanager
def _opened(received: Received, address: str) -> Iterator[Brought]:
    copy = Brought(os.open(received.path, os.O_RDONLY | os.O_CLOEXEC), received.size, address)
    try:
        yield copy
    finally:
        copy.close()


@dataclass(frozen=True)
class _Wish:
    """A file of a project, or what goes with one."""

    path: str
    project: str
    filename: str
    companion: Companion | None

    @classmethod
    def of(cls, path: str) -> _Wish:
        """Raises NotFound."""
        project, _, name = path.partition("/")
        if not is_normalised(project) or not name or "/" in name:
            raise NotFound(f"{path!r} is no file of a project")
        main, companion = companion_of(name)
        return cls(path, project, main, companion)

    def plan(self, library: Library, upstream: str) -> Plan:
        """Raises NotFound, and UpstreamUnfit for what lies elsewhere and could be anything."""
        with contextlib.closing(library.open(page_path(self.project))) as page:
            listing, own = indexes.listing_of(page, self.project, self.filename), {origin(upstream), origin(page.address)}
        listed = self._listed(listing)
        plan, file = self._asked_for(listed, library), listed.file
        if not self._can_be_told(listed) and origin(plan.where) not in own:
            # Whatever stands at any address would be handed on by it.
            raise UpstreamUnfit(f"the upstream's page says that {self.path!r} is at another server, and no hash of it")
        return replace(plan, published_at=file.uploaded_at, name=self.project, version=file.version)

    def _can_be_told(self, listed: Listed) -> bool:
        """Whether it is seen of the bytes that they are what they should be."""
        hashes = {None: listed.file.hashes, Companion.METADATA: listed.file.core_metadata}.get(self.companion)
        return bool(hashes) or (self.companion is not Companion.PROVENANCE and bool(self._beginning))

    @property
    def _beginning(self) -> bytes:
        return next((each for endings, each in _BEGINNINGS.items() if self.path.lower().endswith(endings)), b"")

    def _asked_for(self, listed: Listed, library: Library) -> Plan:
        match self.companion:
            case None:
                return self._file(listed)
            case Companion.METADATA:
                return self._metadata(listed, library)
            case Companion.SIGNATURE:
                return self._signature(listed)
            case Companion.PROVENANCE:
                return self._provenance(listed)

    def _listed(self, listing: Listing) -> Listed:
        if not listing.files:
            raise self._absent()
        return listing.files[0]

    def _absent(self) -> NotFound:
        return NotFound(f"the upstream's page of {self.project!r} names no {self.path.rpartition('/')[2]!r}")

    def _file(self, listed: Listed) -> Plan:
        file = listed.file
        return Plan(
            listed.url, digests=file.hashes, size=file.size, lasting=True,
            accept=self._accept(file.version or None, looked_at=not file.hashes),
        )  # fmt: skip

    def _metadata(self, listed: Listed, library: Library) -> Plan:
        hashes = listed.file.core_metadata
        if hashes is None:
            raise self._absent()

        def instead(store: Callable[[bytes], Received]) -> NewFile:
            body = self._metadata_in_wheel(library)
            sha256 = hashlib.sha256(body).hexdigest()
            if hashes.get("sha256", sha256) != sha256:
                raise UpstreamUnfit(f"the upstream has no {self.path!r}, and what stands in the wheel is not what its page says")
            return self._new(store(body), _METADATA_TYPE)

        return Plan(
            f"{listed.url}{Companion.METADATA}", digests=hashes, lasting=True, at_most=MOST_BESIDE,
            accept=self._accept(content_type=_METADATA_TYPE, looked_at=not hashes),
            instead=instead if self.filename.endswith(".whl") else None,
        )  # fmt: skip

    def _metadata_in_wheel(self, library: Library) -> bytes:
        """Its METADATA. Raises UpstreamUnfit: its page said that there is some."""
        try:
            with contextlib.closing(library.open(f"{self.project}/{self.filename}")) as wheel:
                return base64.b64decode(readers.document(wheel.fd, "wheel")["metadata"])
        except (NotFound, Unreadable) as error:
            raise UpstreamUnfit(f"the upstream's page promises {self.path!r}, which neither it nor the wheel has: {error}") from None

    def _signature(self, listed: Listed) -> Plan:
        if listed.file.has_signature is False:
            raise self._absent()
        return Plan(
            f"{listed.url}{Companion.SIGNATURE}", lasting=True, at_most=MOST_BESIDE,
            accept=self._accept(content_type="application/pgp-signature", looked_at=True),
        )  # fmt: skip

    def _provenance(self, listed: Listed) -> Plan:
        if listed.provenance is None:
            raise self._absent()
        return Plan(
            listed.provenance, headers=_PROVENANCE, at_most=MOST_BESIDE,
            accept=self._accept(content_type="application/json", looked_at=True),
        )  # fmt: skip

    def _accept(
        self, version: str | None = None, *, content_type: str = "", looked_at: bool = False
    ) -> Callable[[Received, Arrived], NewFile]:
        def accept(received: Received, head: Arrived) -> NewFile:
            if looked_at:
                self._look_at(received)
            return self._new(received, content_type or content_type_of(head, self.path), version)

        return accept

    def _look_at(self, received: Received) -> None:
        """Nothing else tells it from an error page with status 200. Raises UpstreamUnfit."""
        with received.path.open("rb") as file:
            began = file.read(64).lstrip()
        if not began.startswith(self._beginning) or began[:1] == b"<":
            raise UpstreamUnfit(f"what the upstream sent for {self.path!r} is none: it begins with {began[:20]!r}")

    def _new(self, received: Received, content_type: str, version: str | None = None) -> NewFile:
        return NewFile(self.path, received, content_type, version=version, package=Package(self.project, self.project))
