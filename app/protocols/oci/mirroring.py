"""What a mirror of images follows: those that are named, else the upstream's catalog; of each the tags, and all that they name.

    (empty), ?{query}     the catalog, from its beginning or from a page on
    {image}               its tags
    {image}:{tag}         one tag: its manifest, the manifests that this names, their layers
    {image}@{digest}      the same of a manifest

Names may have a tag or a digest. `include` and `exclude` speak of images and of tags.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import gevent

from app.errors import Invalid, NotFound, UpstreamUnfit
from app.protocols.oci.documents import pages
from app.protocols.oci.manifests import MOST_BYTES
from app.protocols.oci.manifests import parse as parse_manifest
from app.protocols.oci.names import (
    blob_path,
    check_image,
    check_tag,
    is_digest,
    is_tag,
    manifest_path,
    parse_digest,
    reference_of,
    tags_path,
)
from app.protocols.oci.upstream import MOST_INDEX_BYTES
from app.repository.mirrors.guides import FILE, LIST, Item, ProxiesOnly, Trail
from app.repository.reading import Brought
from app.repository.references import MEMBER, PART
from app.upstream.client import Wanted

PAGE = 500
_NAME = re.compile(r"([^:@]+)(?::([^:@/]+))?(?:@(.+))?")


class Images(ProxiesOnly):
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
        image, reference = _parsed_name(path)
        return _tags(trail, image) if reference is None else _named(trail, image, reference)


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
    body = trail.ask(Wanted(where, headers=_JSON, scope="registry:catalog:*"), MOST_INDEX_BYTES)
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
    with contextlib.closing(trail.document(tags_path(image), (), 0)) as copy:
        body = os.pread(copy.fd, copy.size, 0)
    for tag in gevent.get_hub().threadpool.apply(pages, (body, "tags")):
        if isinstance(tag, str) and is_tag(tag) and trail.wants(manifest_path(image, tag)):
            yield Item(LIST, f"{image}:{tag}")


def _named(trail: Trail, image: str, reference: str) -> Iterator[Item]:
    """The manifest itself is fetched now, to be read; as a file it counts among those that are here."""
    path = manifest_path(image, reference)
    with contextlib.closing(trail.document(path, (), 0)) as copy:
        body = _small(copy, path)
    yield Item(FILE, path, len(body), lasting=is_digest(reference))
    manifest = parse_manifest(image, body, "")
    for each in manifest.references:
        named = reference_of(each.path)
        if each.kind == MEMBER:
            yield Item(LIST, f"{image}@{named}")
        elif each.kind == PART and not each.optional:
            yield Item(FILE, blob_path(image, named), digest=named if named.startswith("sha256:") else None, lasting=True)


def _small(copy: Brought, path: str) -> bytes:
    if copy.size > MOST_BYTES:
        raise UpstreamUnfit(f"the upstream's {path!r} is longer than a manifest is")
    return os.pread(copy.fd, copy.size, 0)
