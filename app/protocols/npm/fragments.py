"""What of one version goes into its package's documents, made once when it is published.

A fragment is JSON text, ready to stand in a document. The repository's address is not in it, since clients come by many: U+0001, which
JSON never has as it is, stands in its place.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.errors import Invalid
from app.protocols.npm.archives import INSTALL_SCRIPTS

ADDRESS = "\x01"
# As the public registry cuts it.
MOST_README = 64 * 1024
MOST_WORDS = 4096

# What installers read (the registry's `package-metadata.md`, and what its clients look for beyond).
_ABBREVIATED = (
    "name", "version", "dependencies", "optionalDependencies", "devDependencies", "bundleDependencies", "bundledDependencies",
    "peerDependencies", "peerDependenciesMeta", "acceptDependencies", "bin", "directories", "dist", "engines", "cpu", "os", "libc",
    "funding", "_hasShrinkwrap", "hasInstallScript",
)  # fmt: skip
# Said elsewhere: the deprecation has a column, the readme is told once for the package.
_ELSEWHERE = ("readme", "deprecated", "_attachments", "_rev", "_revisions")


@dataclass(frozen=True)
class Facts:
    """What is known of a version's tarball; `reference` is its address below the repository's."""

    reference: str
    integrity: str
    shasum: str
    files: int
    unpacked: int
    shrinkwrap: bool
    gyp: bool
    # The address of its attestations below the repository's, and the type of its provenance, where it has one.
    attestations: str | None = None
    predicate: str | None = None


@dataclass(frozen=True)
class Fragments:
    """Of one version, as its row keeps them."""

    full: str
    abbreviated: str
    words: str
    readme: str | None
    deprecated: str | None


def fragments(manifest: Mapping[str, Any], facts: Facts, publisher: str | None, readme: Any) -> Fragments:
    """`manifest` as the client sent it, `readme` from the document around it. Raises Invalid for what cannot be written as JSON.

    A `publisher` of null is the one that the manifest names.
    """
    whole = {key: value for key, value in manifest.items() if key not in _ELSEWHERE}
    address = secrets.token_hex(16)
    whole["dist"] = _dist(manifest, facts, address)
    if publisher is not None:
        whole["_npmUser"] = {"name": publisher, "email": ""}
    if facts.shrinkwrap:
        whole["_hasShrinkwrap"] = True
    if _runs_something(manifest, gyp=facts.gyp and manifest.get("gypfile") is not False):
        whole["hasInstallScript"] = True
    told = manifest.get("readme") or readme
    deprecated = manifest.get("deprecated")
    return Fragments(
        _text(whole).replace(address, ADDRESS),
        _text({key: whole[key] for key in _ABBREVIATED if key in whole}).replace(address, ADDRESS),
        _words(manifest),
        plain(told[:MOST_README]) if isinstance(told, str) and told else None,
        plain(deprecated) if isinstance(deprecated, str) and deprecated else None,
    )


def foreign(manifest: Mapping[str, Any], reference: str, attestations: str, address: str) -> tuple[str, str]:
    """Of a version as an upstream describes it, in full and abbreviated: all as it is, but for where its files are.

    `reference` and `attestations` are where we have them, below the repository's address; `address` is a text that is nowhere in it.
    Raises Invalid for what cannot be written as JSON.
    """
    dist = {**manifest["dist"], "tarball": address + reference}
    if isinstance(dist.get("attestations"), dict):
        dist["attestations"] = {**dist["attestations"], "url": address + attestations}
    whole = {**manifest, "dist": dist}
    if _runs_something(manifest, gyp=manifest.get("gypfile") is True):
        whole["hasInstallScript"] = True
    short = {key: whole[key] for key in (*_ABBREVIATED, "deprecated") if key in whole}
    full, abbreviated = (_text(each).replace(address, ADDRESS) for each in (whole, short))
    return full, abbreviated


def manifest_of(fragment: str) -> dict[str, Any]:
    """What a fragment says, addresses without their beginning."""
    manifest: dict[str, Any] = json.loads(fragment.replace(ADDRESS, ""))
    return manifest


def _dist(manifest: Mapping[str, Any], facts: Facts, address: str) -> dict[str, Any]:
    """Of what the client said, signatures and the like stay."""
    told = manifest.get("dist")
    dist = dict(told) if isinstance(told, dict) else {}
    dist.pop("attestations", None)
    dist |= {"integrity": facts.integrity, "shasum": facts.shasum, "tarball": address + facts.reference}
    dist |= {"fileCount": facts.files, "unpackedSize": facts.unpacked}
    if facts.attestations is not None:
        dist["attestations"] = {"url": address + facts.attestations, "provenance": {"predicateType": facts.predicate}}
    return dist


def _runs_something(manifest: Mapping[str, Any], *, gyp: bool) -> bool:
    scripts = manifest.get("scripts")
    return gyp or (isinstance(scripts, dict) and any(scripts.get(name) for name in INSTALL_SCRIPTS))


def _words(manifest: Mapping[str, Any]) -> str:
    """What a search looks at beside the name: description and keywords."""
    keywords = manifest.get("keywords")
    told = [manifest.get("description"), *(keywords if isinstance(keywords, list) else [keywords])]
    return plain(" ".join(each for each in told if isinstance(each, str))[:MOST_WORDS]).lower()


def _text(value: Any) -> str:
    try:
        return plain(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")))
    except (ValueError, RecursionError):
        raise Invalid("the document has a number, or a depth, that JSON cannot have", "versions") from None


def plain(text: str) -> str:
    """As the database can keep it: without NUL, and with an escape for half a character, as JSON writes it."""
    return text.replace("\0", "").encode("utf-8", "backslashreplace").decode()
