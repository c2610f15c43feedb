"""How a proxy speaks with a registry: what it asks for, how it logs in, what it makes of the answers.

    {image}/manifests/{digest}    for good; its digest is in the path
    {image}/manifests/{tag}       compared when due, by HEAD: that no registry counts as a pull. With its bytes the manifest is stored too
    {image}/blobs/{digest}        for good
    {image}/tags/list             the upstream's list, all of its pages: an index that is never sent as it is
    {image}/referrers/{digest}    the same of referrers; of a registry without them, the tag that stands in for them

The upstream's address is what clients write before an image's name: `https://host`, or `https://host/team` for images below `team`.

Tags have an age (`withholding.py`), and the manifest that came by one has the tag's. What is known by its digest alone has none: that was
chosen by whoever wrote it down, or named by a list that was old enough.

What a manifest names need not be here: only what clients ask for is fetched. Its blobs are parts as those that are pushed are, kept by
any manifest that names them, whichever came first; one that no stored manifest names goes when its grace after the last use is over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urljoin, urlsplit

import gevent

from app.errors import Invalid, InvalidPath, UpstreamUnfit
from app.protocols.oci.documents import pages
from app.protocols.oci.manifests import (
    DOCKER_LIST,
    DOCKER_MANIFEST,
    MOST_BYTES,
    OCI_INDEX,
    OCI_MANIFEST,
    BadDigest,
    Manifest,
)
from app.protocols.oci.names import (
    BLOBS,
    MANIFESTS,
    REFERRERS,
    TAGS,
    Digest,
    blob_path,
    is_digest,
    parse_digest,
    reference_of,
)
from app.protocols.oci.uploads import BLOB_TYPE, manifest_file, parsed, tag_file
from app.repository.dialects import Accept, Library, Order, Plan
from app.repository.publishing import NewFile
from app.repository.references import MEMBER, PART, Reference
from app.upload.receiving import Received
from app.upstream.client import Arrived, Wanted

# The setting of a proxy: where images of one segment are, as `library` in the registry that gave them that name.
SHORT_NAMES = "short_names"
# All kinds at once, whatever the client takes: what is kept is for all of them.
ACCEPT = ", ".join((OCI_INDEX, DOCKER_LIST, OCI_MANIFEST, DOCKER_MANIFEST))
_KINDS = frozenset({OCI_INDEX, DOCKER_LIST, OCI_MANIFEST, DOCKER_MANIFEST})
MOST_INDEX_BYTES = 8 * 1024 * 1024
DIGEST_HEADER = "docker-content-digest"
_NEXT = re.compile(r'<([^<>]*)>\s*;[^,<]*\brel="?next"?', re.IGNORECASE)


class Registry:
    """See `Dialect`."""

    def plan(self, library: Library, order: Order) -> Plan:
        image, kind, name = order.path.rsplit("/", 2)
        assert order.snapshot.upstream_url is not None
        at = Place.of(order.snapshot.upstream_url, image, library.settings)
        if kind == BLOBS:
            return at.plan(f"blobs/{name}", digests=_digests(name), lasting=True, ageless=True, accept=_blob(order.path))
        if kind == MANIFESTS and is_digest(name):
            accept = _manifest(image, parse_digest(name))
            return at.plan(f"manifests/{name}", **_MANIFEST, digests=_digests(name), lasting=True, ageless=True, accept=accept)
        if kind == MANIFESTS:
            made = {"accept": _tag(image, name), "beside": _named(image), "told": _told, "same": _is_same}
            return at.plan(f"manifests/{name}", **_MANIFEST, **made, name=image, version=name)
        if kind == TAGS:
            return at.plan("tags/list", **_INDEX, headers={"Accept": "application/json"}, accept=_index(order.path, "tags"))
        if kind == REFERRERS:
            stand_in = f"manifests/{name.replace(':', '-')}"
            accept = _index(order.path, "manifests")
            return at.plan(f"referrers/{name}", stand_in, **_INDEX, headers={"Accept": OCI_INDEX}, accept=accept)
        raise InvalidPath(f"{order.path!r} is nothing that a registry has")


@dataclass(frozen=True)
class Place:
    """An image at the upstream: the address of all that it has, and the scope that reads it."""

    address: str
    scope: str

    @classmethod
    def of(cls, url: str, image: str, settings: Mapping[str, Any] | None = None) -> Place:
        """`url` is the upstream's, `settings` are a proxy's."""
        parts, short = urlsplit(url), (settings or {}).get(SHORT_NAMES)
        below = [parts.path.strip("/"), short if short and "/" not in image else "", image]
        name = "/".join(each for each in below if each)
        return cls(f"{parts.scheme}://{parts.netloc}/v2/{name}", f"repository:{name}:pull")

    def plan(self, where: str, *or_else: str, **more: Any) -> Plan:
        return Plan(f"{self.address}/{where}", [f"{self.address}/{each}" for each in or_else], scope=self.scope, **more)

    def wanted(self, where: str, headers: Mapping[str, str] | None = None) -> Wanted:
        return Wanted(f"{self.address}/{where}", headers=headers or {}, scope=self.scope)


def next_page(arrived: Arrived) -> str | None:
    """The address of the next page (distribution specification, "Listing Tags")."""
    found = _NEXT.search(arrived.headers.get("link", ""))
    if found is None:
        return None
    try:
        where: str = urljoin(arrived.url, found.group(1))
    except ValueError:
        where = ""
    if not where or where == arrived.url:
        raise UpstreamUnfit("the upstream's list leads to no next page")
    return where


_MANIFEST: Mapping[str, Any] = {"headers": {"Accept": ACCEPT}, "at_most": MOST_BYTES, "whole": True}
_INDEX: Mapping[str, Any] = {"at_most": MOST_INDEX_BYTES, "whole": True, "further": next_page, "ageless": True}


# Manifests


def _digests(name: str) -> Mapping[str, str]:
    digest = parse_digest(name)
    return {digest.algorithm: digest.encoded}


def told_digest(arrived: Arrived) -> Digest | None:
    """What the upstream calls it, where it says so by an algorithm that is known here."""
    try:
        return parse_digest(arrived.headers.get(DIGEST_HEADER, ""))
    except BadDigest:
        return None


def _told(arrived: Arrived) -> Mapping[str, str]:
    digest = told_digest(arrived)
    return {} if digest is None else {digest.algorithm: digest.encoded}


def _is_same(arrived: Arrived, sha256: str) -> bool:
    return arrived.headers.get(DIGEST_HEADER) == f"sha256:{sha256}"


def _manifest(image: str, digest: Digest) -> Accept:
    return lambda received, arrived: _whole(image, digest, received, arrived)


def _tag(image: str, tag: str) -> Accept:
    def accept(received: Received, arrived: Arrived) -> NewFile:
        manifest = _read(image, received, arrived)
        return tag_file(image, tag, _digest_of(received, arrived), manifest.media_type, received)

    return accept


def _named(image: str) -> Callable[[Received, Arrived], Sequence[NewFile]]:
    """The manifest that came by a tag, under its digest."""
    return lambda received, arrived: [_whole(image, _digest_of(received, arrived), received, arrived)]


def _digest_of(received: Received, arrived: Arrived) -> Digest:
    return told_digest(arrived) or Digest("sha256", received.sha256)


def _whole(image: str, digest: Digest, received: Received, arrived: Arrived) -> NewFile:
    return manifest_file(image, digest, _read(image, received, arrived), received)


def _read(image: str, received: Received, arrived: Arrived) -> Manifest:
    """Served as what the upstream calls it. Raises UpstreamUnfit for what is none, such as a page for people."""
    try:
        manifest = parsed(image, received.path.read_bytes(), "")
    except Invalid as error:
        raise UpstreamUnfit(f"what the upstream sent is no manifest that can be kept: {error.message}") from error
    told = (arrived.content_type or "").partition(";")[0].strip().lower()
    references = tuple(each for one in manifest.references for each in _not_yet_here(image, one))
    return replace(manifest, media_type=told if told in _KINDS else manifest.media_type, references=references)


def _not_yet_here(image: str, reference: Reference) -> Iterator[Reference]:
    """Whatever it names may come later, or never; what a list names may turn out to be a blob, which is kept by it then."""
    yield replace(reference, optional=True, otherwise=None)
    if reference.kind == MEMBER:
        yield Reference(blob_path(image, reference_of(reference.path)), PART, optional=True)


def _blob(path: str) -> Accept:
    return lambda received, arrived: NewFile(path, received, BLOB_TYPE, is_part=True)


# Lists


def _index(path: str, name: str) -> Accept:
    """All pages, one to a line, once it is seen that each of them has a list of that name."""

    def accept(received: Received, arrived: Arrived) -> NewFile:
        if not gevent.get_hub().threadpool.apply(_is_index, (received.path.read_bytes(), name)):
            raise UpstreamUnfit(f"what the upstream sent is no list of {name}")
        return NewFile(path, received, "application/json")

    return accept


def _is_index(body: bytes, name: str) -> bool:
    try:
        pages(body, name)
    except ValueError:
        return False
    return True
