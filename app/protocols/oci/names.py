"""Images, tags and digests, and the paths that they have in a repository (distribution specification 1.1).

    {image}/manifests/{digest}    a manifest's bytes
    {image}/manifests/{tag}       the same bytes, under a name that moves
    {image}/blobs/{digest}        a layer, a configuration: a part of the manifests that name it
    {image}/tags/list             in a proxy: what the upstream says of its tags
    {image}/referrers/{digest}    in a proxy: what the upstream says of referrers

An image's own name covers all of it, so rules by path prefix are rules by image.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from app.errors import Invalid

_IMAGE = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}")
_DIGEST = re.compile(r"(sha256):([0-9a-f]{64})|(sha512):([0-9a-f]{128})")
ALGORITHMS = ("sha256", "sha512")
# Leaves room for the rest of a path, whose limit is 1,024 bytes.
LONGEST_IMAGE = 512
MANIFESTS, BLOBS, TAGS, REFERRERS = "manifests", "blobs", "tags", "referrers"


class BadName(Invalid):
    """Not the name of an image or a tag."""

    code = "name_invalid"


class BadDigest(Invalid):
    """Not a digest, or by an algorithm that is not known here."""

    code = "digest_invalid"


@dataclass(frozen=True, slots=True)
class Digest:
    """`encoded` is lower-case hexadecimal."""

    algorithm: str
    encoded: str

    def __str__(self) -> str:
        return f"{self.algorithm}:{self.encoded}"


@functools.lru_cache(4096)
def check_image(image: str) -> str:
    """Raises BadName."""
    if len(image) > LONGEST_IMAGE or not _IMAGE.fullmatch(image):
        raise BadName(
            f"an image's name is of lower-case letters, digits and single separators, has at most {LONGEST_IMAGE} characters, and "
            "comes after the repository's"
        )
    return image


def check_tag(tag: str) -> str:
    """Raises BadName."""
    if not is_tag(tag):
        raise BadName("a tag has 1 to 128 letters, digits, and (not at its beginning) . and -")
    return tag


def is_tag(text: str) -> bool:
    """Whether it can be one."""
    return _TAG.fullmatch(text) is not None


def parse_digest(text: str) -> Digest:
    """Raises BadDigest."""
    found = _DIGEST.fullmatch(text)
    if found is None:
        raise BadDigest(f"a digest is {' or '.join(ALGORITHMS)}, a colon, and lower-case hexadecimal digits")
    algorithm, encoded = (each for each in found.groups() if each is not None)
    return Digest(algorithm, encoded)


def is_digest(reference: str) -> bool:
    """Whether a reference means to be a digest; tags have no colon."""
    return ":" in reference


def manifest_path(image: str, reference: str) -> str:
    """Where a manifest is; `reference` is a tag or a digest."""
    return f"{image}/{MANIFESTS}/{reference}"


def blob_path(image: str, digest: Digest | str) -> str:
    return f"{image}/{BLOBS}/{digest}"


def tags_path(image: str) -> str:
    return f"{image}/{TAGS}/list"


def referrers_path(image: str, digest: str) -> str:
    return f"{image}/{REFERRERS}/{digest}"


def is_manifest(path: str) -> bool:
    """Whether a manifest is there, by tag or digest."""
    return path.split("/")[-2:-1] == [MANIFESTS]


def reference_of(path: str) -> str:
    """The tag or digest at the end of a path."""
    return path.rpartition("/")[2]
