"""What a mirror of images follows: those that are named, else the upstream's catalog; of each the tags, and all that they name.

    (empty), ?{query}     the catalog, from its beginning or from a page on
    {image}               its tags
    {image}:{tag}         one tag: its manifest, the manifests that this names, their layers
    {image}@{digest}      the same of a manifest
    {image}^{digest}      for a hosted repository: what refers to that manifest, each like a manifest that is named

Names may have a tag or a digest. `include` and `exclude` speak of images and of tags.

A manifest comes after all that it names, and its tag with it: a reader who sees the tag finds all of it. Manifests are read when their list
is, so a hosted repository publishes what is at hand then; a tag that means what it meant is told by HEAD.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import gevent

from app.errors import Forbidden, Invalid, NotFound, UpstreamBusy, UpstreamFailed, UpstreamTimedOut, UpstreamUnfit
from app.protocols.oci.documents import pages
from app.protocols.oci.manifests import MOST_BYTES
from app.protocols.oci.names import (
    BLOBS,
    MANIFESTS,
    Digest,
    blob_path,
    check_image,
    check_tag,
    is_digest,
    is_tag,
    manifest_path,
    parse_digest,
    reference_of,
    referrers_path,
    tags_path,
)
from app.protocols.oci.uploads import BLOB_TYPE, manifest_file, parsed, tag_file
from app.protocols.oci.upstream import ACCEPT, MOST_INDEX_BYTES, Place, next_page, told_digest
from app.repository.blobs import Linked
from app.repository.mirrors.guides import FILE, LIST, ByLink, Index, Item, New, OfFiles, Trail, lines
from app.repository.publishing import NewFile, Session
from app.repository.reading import Brought
from app.repository.references import MEMBER, PART
from app.upload.receiving import Received
from app.upstream.client import Arrived, Wanted

PAGE = 500
# An index may name indexes.
MOST_DEPTH = 4
_NAME = re.compile(r"([^:@]+)(?::([^:@/]+))?(?:@(.+))?")
_REFERRERS_OF = "^"


class Images(OfFiles):
    """The guide of this room."""

    def check(self, names: Sequence[str]) -> None:
        for each in names:
            try:
                _parsed_name(each)
            except Invalid as error:
                told = f"names are images, with a tag or a digest where only that is wanted: {error.message}"
                raise Invalid(told, field="names") from None

    def roots(self, names: Sequence[str]) -> Iterable[Item]:
        return [Item(LIST, each) for each in names] or [Item(LIST, "")]

    def items(self, trail: Trail, path: str) -> Iterator[Item]:
        if not path or path.startswith("?"):
            return _catalog(trail, path)
        if _REFERRERS_OF in path:
            return _referrers(trail, *path.split(_REFERRERS_OF, 1))
        image, reference = _parsed_name(path)
        return _tags(trail, image) if reference is None else _Walk(trail, image).items(reference)

    def led_to(self, kind: str, item: Item) -> Iterable[Item]:
        """A hosted repository gets layers by the manifests that name them."""
        if kind == "proxy":
            return [item]
        image, of, name = item.path.rsplit("/", 2)
        return [Item(LIST, f"{image}{'@' if is_digest(name) else ':'}{name}")] if of == MANIFESTS else []

    def source(self, trail: Trail, item: Item) -> Wanted | Brought:
        image, kind, name = item.path.rsplit("/", 2)
        if kind == MANIFESTS:
            return trail.document(_manifest(trail, image, item.digest or name))
        return Place.of(trail.url, image).wanted(f"{kind}/{name}")

    def by_link(self, path: str) -> ByLink | None:
        return _linked(path) if path.split("/")[-2:-1] == [BLOBS] else None

    def publishable(self, trail: Trail, session: Session, item: Item, received: Received, head: Arrived) -> New:
        image, kind, name = item.path.rsplit("/", 2)
        if kind == BLOBS:
            return New([NewFile(item.path, received, BLOB_TYPE, is_part=True)])
        manifest = parsed(image, received.path.read_bytes(), "")
        if is_digest(name):
            return New([manifest_file(image, parse_digest(name), manifest, received)])
        digest = Digest("sha256", received.sha256)
        (once_more,) = session.again(received, 1)
        return New([tag_file(image, name, digest, manifest.media_type, received), manifest_file(image, digest, manifest, once_more)])


def _linked(path: str) -> ByLink:
    def become(linked: Linked) -> New:
        return New([NewFile(path, linked, BLOB_TYPE, is_part=True)])

    return become


def _parsed_name(name: str) -> tuple[str, str | None]:
    """Image, and the tag or digest. Raises Invalid."""
    found = _NAME.fullmatch(name)
    image, tag, digest = found.groups() if found is not None else ("", None, None)
    check_image(image)
    if tag is not None:
        check_tag(tag)
    return image, str(parse_digest(digest)) if digest is not None else tag


def _catalog(trail: Trail, query: str) -> Iterator[Item]:
    parts = urlsplit(trail.url)
    below = parts.path.strip("/")
    where = f"{parts.scheme}://{parts.netloc}/v2/_catalog{query or f'?n={PAGE}'}"
    body = trail.ask_list(Wanted(where, headers=_JSON, scope="registry:catalog:*"), MOST_INDEX_BYTES)
    if body is None:
        raise NotFound("the upstream has no catalog: name the images that are wanted")
    images = gevent.get_hub().threadpool.apply(_listed, (body, "repositories"))
    if images is None:
        raise UpstreamUnfit("what the upstream answers is no catalog")
    for each in images:
        image = each.removeprefix(f"{below}/") if below else each
        with contextlib.suppress(Invalid):
            if (not below or each.startswith(f"{below}/")) and trail.wants(f"{check_image(image)}/"):
                yield Item(LIST, image)
    if len(images) >= PAGE:
        yield Item(LIST, f"?n={PAGE}&last={images[-1]}")


_JSON: Mapping[str, str] = {"Accept": "application/json"}


def _listed(body: bytes, name: str) -> list[str] | None:
    try:
        document: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None
    found = document.get(name) if isinstance(document, dict) else None
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else None


def _tags(trail: Trail, image: str) -> Iterator[Item]:
    where = Place.of(trail.url, image).wanted("tags/list", _JSON)
    for tag in _all_pages(trail, Index(tags_path(image), [where], MOST_INDEX_BYTES, further=next_page, alone=True), "tags"):
        if isinstance(tag, str) and is_tag(tag) and trail.wants(manifest_path(image, tag)):
            yield Item(LIST, f"{image}:{tag}")


def _all_pages(trail: Trail, index: Index, name: str) -> list[Any]:
    with contextlib.closing(trail.document(index)) as copy:
        body = os.pread(copy.fd, copy.size, 0)
    found: list[Any] | None = gevent.get_hub().threadpool.apply(_pages, (body, name))
    if found is None:
        raise UpstreamUnfit(f"what the upstream sent for {index.path!r} is no list of {name}")
    return found


def _pages(body: bytes, name: str) -> list[Any] | None:
    try:
        return pages(body, name)
    except ValueError:
        return None


# Manifests


def _manifest(trail: Trail, image: str, reference: str) -> Index:
    """By a tag HEAD says first which one that is."""
    where = Place.of(trail.url, image).wanted(f"manifests/{reference}", {"Accept": ACCEPT})
    names = None if is_digest(reference) else lambda head: _named_by(image, head)
    return Index(manifest_path(image, reference), [where], MOST_BYTES, names=names)


def _named_by(image: str, head: Arrived) -> str | None:
    digest = told_digest(head)
    return None if digest is None else manifest_path(image, str(digest))


@dataclass
class _Walk:
    """Through a manifest and all that it names, each once."""

    trail: Trail
    image: str
    seen: set[str] = field(default_factory=set)

    def items(self, reference: str, depth: int = 0) -> Iterator[Item]:
        """The manifest itself is fetched now, to be read; as a file it counts among those that are here."""
        path = manifest_path(self.image, reference)
        with contextlib.closing(self.trail.document(_manifest(self.trail, self.image, reference))) as copy:
            body = _small(copy, path)
        digest = reference if is_digest(reference) else f"sha256:{hashlib.sha256(body).hexdigest()}"
        needs: list[str] = []
        for each in parsed(self.image, body, "").references:
            named = reference_of(each.path)
            if each.kind == MEMBER:
                yield from self._member(named, depth + 1)
                needs += [manifest_path(self.image, named), blob_path(self.image, named)]
            elif each.kind == PART and not each.optional:
                yield self._blob(named)
                needs.append(each.path)
        yield Item(FILE, path, len(body), digest, lasting=is_digest(reference), needs=lines(needs))
        if not depth and not is_digest(reference) and self.trail.snapshot.kind == "hosted":
            yield Item(LIST, f"{self.image}{_REFERRERS_OF}{digest}")

    def _member(self, digest: str, depth: int) -> Iterator[Item]:
        """Build caches list their layers as if they were images. What may not be had is left out, and the rest comes all the same."""
        if digest in self.seen or depth > MOST_DEPTH:
            return
        self.seen.add(digest)
        try:
            yield from self.items(digest, depth)
        except NotFound:
            yield self._blob(digest)
        except Forbidden:
            return

    def _blob(self, digest: str) -> Item:
        return Item(FILE, blob_path(self.image, digest), digest=digest, lasting=True)


def _small(copy: Brought, path: str) -> bytes:
    if copy.size > MOST_BYTES:
        raise UpstreamUnfit(f"the upstream's {path!r} is longer than a manifest is")
    return os.pread(copy.fd, copy.size, 0)


def _referrers(trail: Trail, image: str, digest: str) -> Iterator[Item]:
    """As far as the upstream tells them, by a list or by the tag that stands in for it."""
    place = Place.of(trail.url, image)
    ways = [place.wanted(where, {"Accept": ACCEPT}) for where in (f"referrers/{digest}", f"manifests/{digest.replace(':', '-')}")]
    index = Index(referrers_path(image, digest), ways, MOST_INDEX_BYTES, further=next_page)
    try:
        found = _all_pages(trail, index, "manifests")
    except (UpstreamBusy, UpstreamTimedOut):
        raise
    except UpstreamFailed:
        # Older registries know no such address, and do not all say so by 404.
        return
    for each in found:
        with contextlib.suppress(Invalid):
            if isinstance(each, dict):
                yield Item(LIST, f"{image}@{parse_digest(str(each.get('digest')))}")
