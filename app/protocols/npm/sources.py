"""Where an upstream has the files of a version, and what they are known by, as its packument says."""

from __future__ import annotations

import binascii
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urljoin, urlsplit

import gevent

from app.errors import Invalid, UpstreamUnfit, UpstreamUntrue
from app.protocols.npm.kept import Source
from app.protocols.npm.received import parsed
from app.upstream.upstream import origin

MOST_JSON = 4 * 1024 * 1024
ACCEPTED = {"Accept": "application/json", "Accept-Encoding": "gzip"}
# The strongest first; how many bytes their hashes have.
_ALGORITHMS = {"sha512": 64, "sha384": 48, "sha256": 32, "sha1": 20}
_SHASUM = re.compile(r"[0-9a-f]{40}")
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Integrity:
    """What clients check: the hashes (hex) of the strongest algorithm that the integrity (SRI) has, else the shasum. What cannot be read
    counts as not told.
    """

    algorithm: str
    values: Sequence[str]

    @classmethod
    def of(cls, source: Source) -> Integrity:
        found = [each.partition("?")[0].partition("-") for each in (source.integrity or "").split()]
        for algorithm, length in _ALGORITHMS.items():
            digests = [_decoded(value) for name, _, value in found if name == algorithm]
            values = [each.hex() for each in digests if len(each) == length]
            if values:
                return cls(algorithm, values)
        shasum = (source.shasum or "").strip().lower()
        return cls("sha1", [shasum] if _SHASUM.fullmatch(shasum) else [])

    @property
    def only(self) -> str | None:
        """Null where there are several, or none."""
        return self.values[0] if len(self.values) == 1 else None

    def check(self, path: str, file: Path) -> None:
        """Of several hashes one is enough; a single one is compared while the bytes come. Raises UpstreamUntrue."""
        with file.open("rb") as opened:
            if opened.read(len(_GZIP)) != _GZIP:
                raise UpstreamUntrue(f"what the upstream sent for {path!r} is no tarball")
        if len(self.values) > 1 and gevent.get_hub().threadpool.apply(_digest, (file, self.algorithm)) not in self.values:
            raise UpstreamUntrue(f"what the upstream sent for {path!r} has not the integrity that its packument tells")


def tarball_address(upstream: str, path: str, source: Source) -> str:
    """A whole one. Raises UpstreamUnfit for what is none."""
    where = _address(upstream, source.tarball)
    if not Integrity.of(source).values and origin(where) != origin(upstream):
        # Whatever stands at any address would be handed on by it.
        raise UpstreamUnfit(f"the upstream says that {path!r} is at another server, and no digest of it")
    return where


def attestations_address(upstream: str, source: Source) -> str | None:
    """At the upstream's own server, whatever it calls that, as npm itself asks for them."""
    return None if source.attestations is None else urljoin(upstream, _quoted(urlsplit(source.attestations).path))


def is_list_of(body: bytes, key: str) -> bool:
    """Whether it is a JSON object with a list under that key."""
    try:
        document = parsed(body)
    except Invalid:
        return False
    return isinstance(document, dict) and isinstance(document.get(key), list)


def _digest(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def _address(upstream: str, tarball: str) -> str:
    """Of the upstream's own host it gets the upstream's own scheme and port: many tell those by which they know themselves."""
    try:
        found, own = urlsplit(urljoin(f"{upstream}/", _quoted(tarball))), urlsplit(upstream)
        sound = found.scheme in {"http", "https"} and found.hostname and found.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise UpstreamUnfit("the upstream says that a tarball is at an address that is none")
    if found.hostname == own.hostname and found.scheme != own.scheme:
        found = found._replace(scheme=own.scheme, netloc=own.netloc)
    return found._replace(fragment="", netloc=found.netloc.rpartition("@")[2]).geturl()


def _quoted(address: str) -> str:
    """What is encoded stays so."""
    return quote(address, safe="%/:=&?~#+!$,;'@()*[]")


def _decoded(value: str) -> bytes:
    try:
        return binascii.a2b_base64(value, strict_mode=True)
    except (binascii.Error, ValueError):
        return b""
