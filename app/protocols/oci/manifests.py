"""Reading a manifest: what it is, what it refers to. Its bytes stay as they came."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from app.errors import Invalid
from app.protocols.oci.names import BadDigest, blob_path, manifest_path, parse_digest
from app.repository.references import MEMBER, PART, SUBJECT, Reference

MOST_BYTES = 4 * 1024 * 1024
# From here on it takes longer to read than the loop may be kept from others.
LONG = 64 * 1024

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
_IMAGES = (OCI_MANIFEST, DOCKER_MANIFEST)
_INDEXES = (OCI_INDEX, DOCKER_LIST)
# Layers that may be had only from where their publisher keeps them.
_FOREIGN = (
    "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip",
    "application/vnd.oci.image.layer.nondistributable.v1.tar",
    "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip",
    "application/vnd.oci.image.layer.nondistributable.v1.tar+zstd",
)
_UNTOLD = ("", "application/json", "application/octet-stream", "application/x-www-form-urlencoded")
_LONGEST_TYPE = 255
# Names that mean something in a manifest or a descriptor.
_NAMES = frozenset({
    "schemaVersion", "mediaType", "artifactType", "config", "layers", "manifests", "subject", "annotations", "digest", "size", "urls",
    "data", "platform",
})  # fmt: skip
_FOLDED = {name.casefold(): name for name in _NAMES}


class BadManifest(Invalid):
    """Not a manifest of a kind that is stored here."""

    code = "manifest_invalid"


@dataclass(frozen=True)
class Manifest:
    """`media_type` is what it is served as; `details` are what a list of referrers says of it."""

    media_type: str
    references: tuple[Reference, ...]
    subject: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


def parse(image: str, body: bytes, content_type: str) -> Manifest:
    """Of an image; `content_type` is what the client called it. Raises BadManifest, and BadDigest for one that it names."""
    document = _document(body)
    media_type = _media_type(document, content_type)
    subject = _subject(document)
    references = list(_references(image, document, media_type))
    if subject is not None:
        references.append(Reference(manifest_path(image, subject), SUBJECT, optional=True))
    return Manifest(media_type, tuple(references), subject, {} if subject is None else _details(document, media_type))


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body.decode(), object_pairs_hook=_object, parse_constant=_no_json, parse_float=_float)
    except (ValueError, RecursionError):
        raise BadManifest("the manifest is no JSON in UTF-8") from None
    if not isinstance(document, dict):
        raise BadManifest("a manifest is a JSON object")
    _check_names(document, "the manifest")
    if document.get("schemaVersion") != 2:
        raise BadManifest("only manifests with schemaVersion 2 are stored here")
    return document


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Raises BadManifest where a name is there twice: what that means, every client decides for itself."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise BadManifest("an object in the manifest has the same name twice")
    return found


def _no_json(constant: str) -> NoReturn:
    raise ValueError(constant)


def _float(number: str) -> float:
    found = float(number)
    return found if math.isfinite(found) else _no_json(number)


def _check_names(found: Mapping[str, Any], where: str) -> None:
    """Clients written in Go take `Layers` for `layers`. Raises BadManifest for what they would read and we would not."""
    for name in found:
        if name not in _NAMES and name.casefold() in _FOLDED:
            raise BadManifest(f"{where}: {name!r} is written {_FOLDED[name.casefold()]!r}")


def _media_type(document: Mapping[str, Any], content_type: str) -> str:
    told, own = content_type.partition(";")[0].strip().lower(), document.get("mediaType")
    if own is not None and not isinstance(own, str):
        raise BadManifest("mediaType is not a text")
    if told in _UNTOLD:
        told = own or (OCI_INDEX if "manifests" in document else OCI_MANIFEST)
    if own not in (None, told):
        raise BadManifest(f"the manifest calls itself {own!r}, and was sent as {told!r}")
    if told not in (*_IMAGES, *_INDEXES):
        raise BadManifest(f"manifests of the type {told!r} are not stored here; there are OCI's and Docker's, images and lists")
    if own is None and told in (DOCKER_MANIFEST, DOCKER_LIST):
        raise BadManifest("Docker's manifests say what they are (mediaType)")
    if ("manifests" in document and told in _IMAGES) or ("layers" in document and told in _INDEXES):
        raise BadManifest("the manifest is an image and a list at once")
    return told


def _references(image: str, document: Mapping[str, Any], media_type: str) -> Iterator[Reference]:
    if media_type in _IMAGES:
        yield Reference(blob_path(image, _digest(document.get("config"), "config")), PART)
        for each in _list(document, "layers"):
            yield Reference(blob_path(image, _digest(each, "layers")), PART, optional=each.get("mediaType") in _FOREIGN)
    else:
        for each in _list(document, "manifests"):
            digest = _digest(each, "manifests")
            # Build caches list their layers as if they were images.
            yield Reference(manifest_path(image, digest), MEMBER, otherwise=blob_path(image, digest))


def _list(document: Mapping[str, Any], name: str) -> list[Any]:
    found = document.get(name, [])
    if not isinstance(found, list):
        raise BadManifest(f"{name} is not a list")
    return found


def _digest(descriptor: Any, where: str) -> str:
    """Of a descriptor. Raises BadManifest and BadDigest."""
    if not isinstance(descriptor, dict) or not isinstance(descriptor.get("digest"), str):
        raise BadManifest(f"{where}: a descriptor is an object with a digest")
    _check_names(descriptor, where)
    size = descriptor.get("size")
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 0):
        raise BadManifest(f"{where}: a descriptor's size is a number of bytes")
    return str(parse_digest(descriptor["digest"]))


def _subject(document: Mapping[str, Any]) -> str | None:
    found = document.get("subject")
    return None if found is None else _digest(found, "subject")


def _details(document: Mapping[str, Any], media_type: str) -> dict[str, Any]:
    """An image without a type of its own has that of its configuration; a list has none."""
    kind = document.get("artifactType") or (document["config"].get("mediaType") if media_type in _IMAGES else None)
    annotations = document.get("annotations")
    if kind is not None and (not isinstance(kind, str) or len(kind) > _LONGEST_TYPE):
        raise BadManifest("artifactType is not a media type")
    if annotations is not None and not (isinstance(annotations, dict) and all(isinstance(each, str) for each in annotations.values())):
        raise BadManifest("annotations are texts by name")
    return {name: value for name, value in (("artifactType", kind), ("annotations", annotations)) if value}


__all__ = ["BadDigest", "BadManifest", "Manifest", "parse"]
