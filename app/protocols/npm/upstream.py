"""How a proxy speaks with an npm registry (see `dialects.Dialect`).

Packuments are fetched in full and kept in the form of `packuments`; they say where tarballs are, whatever they are called there, and which
digests they have. Attestations and keys are kept as they come.
"""

from __future__ import annotations

import binascii
import hashlib
import re
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urljoin, urlsplit

import gevent

from app.errors import Invalid, NotFound, UpstreamUnfit
from app.protocols.npm.kept import INDEXES, MOST_BYTES, Kept, Source, index_path, moment_of, remake
from app.protocols.npm.names import PROVENANCE, Tarball, is_name, parse, tarball_path, version_of
from app.protocols.npm.received import parsed
from app.protocols.npm.uploads import TARBALL_TYPE
from app.repository.dialects import Library, Order, Plan
from app.repository.publishing import NewFile, Package
from app.upload.receiving import Received
from app.upstream.client import Arrived
from app.upstream.upstream import origin

# Where a registry says what it signs with; also the path at which it is kept.
KEYS = "-/npm/v1/keys"
MOST_JSON, MOST_KEYS = 4 * 1024 * 1024, 256 * 1024
# The strongest first; how many bytes their hashes have.
_ALGORITHMS = {"sha512": 64, "sha384": 48, "sha256": 32, "sha1": 20}
_SHASUM = re.compile(r"[0-9a-f]{40}")
_ACCEPTED = {"Accept": "application/json", "Accept-Encoding": "gzip"}
_GZIP = b"\x1f\x8b"


class Registry:
    """Plans of all that a proxy of npm fetches."""

    def plan(self, library: Library, order: Order) -> Plan:
        path = order.path
        if path.startswith(INDEXES) and is_name(path.removeprefix(INDEXES)):
            return _packument(path.removeprefix(INDEXES))
        if path == KEYS:
            return Plan(KEYS, headers=_ACCEPTED, ageless=True, at_most=MOST_KEYS, accept=partial(_document, order, "keys"))
        address = parse(path.removesuffix(PROVENANCE))
        if not isinstance(address, Tarball):
            raise NotFound(f"there is no {path!r}")
        known = _look_up(library, order, address)
        if path.endswith(PROVENANCE):
            return _attestations(order, known.source)
        return _tarball(order, address.package, known)


class _Known(NamedTuple):
    source: Source
    published: datetime | None


def _packument(package: str) -> Plan:
    return Plan(
        package.replace("/", "%2F"), headers=_ACCEPTED, ageless=True, at_most=MOST_BYTES, remade=partial(remake, package),
        accept=partial(_index, package),
    )  # fmt: skip


def _index(package: str, received: Received, head: Arrived) -> NewFile:
    """Its own package is what its documents' revisions hang on; a search looks at the `details`."""
    return NewFile(
        index_path(package), received, "application/octet-stream", metadata={"details": _details(received.path)},
        package=Package(package, package),
    )  # fmt: skip


def _details(path: Path) -> dict[str, Any]:
    with Kept.open_path(path) as kept:
        table = kept.table
        latest = table["tags"].get("latest")
        place = None if latest is None else kept.place(latest)
    return {**table["said"], "version": latest, "date": None if place is None else place.published}


def _look_up(library: Library, order: Order, address: Tarball) -> _Known:
    """What the packument says of a tarball, by its name here or by the upstream's own. Raises NotFound."""
    absent = NotFound(f"there is no {order.path!r} in repository {order.snapshot.name!r}")
    try:
        blob = library.open(index_path(address.package))
    except NotFound:
        raise absent from None
    with Kept.open(blob) as kept:
        version = version_of(address.package, address.path)
        source = None if version is None else kept.source(version)
        source = source or kept.source_of_file(address.path.rpartition("/")[2])
        if source is None:
            raise absent
        place = kept.place(source.version)
    return _Known(source, moment_of(place.published) if place is not None else None)


def _tarball(order: Order, package: str, known: _Known) -> Plan:
    source, upstream = known.source, str(order.snapshot.upstream_url)
    where = _address(upstream, source.tarball)
    algorithm, values = _integrity(source)
    if not values and origin(where) != origin(upstream):
        # Whatever stands at any address would be handed on by it.
        raise UpstreamUnfit(f"the upstream says that {order.path!r} is at another server, and no digest of it")
    digests = {algorithm: values[0]} if len(values) == 1 else {}
    accept = partial(_file, order, source.version, algorithm, values)
    own = tarball_path(package, source.version)
    return Plan(
        where, digests=digests, lasting=True, published_at=known.published, name=package, version=source.version, accept=accept,
        kept=order.path == own, alias_of="" if order.path == own else own,
    )  # fmt: skip


def _file(order: Order, version: str, algorithm: str, values: Sequence[str], received: Received, head: Arrived) -> NewFile:
    """Of several hashes one is enough; a single one was compared before."""
    with received.path.open("rb") as file:
        if file.read(len(_GZIP)) != _GZIP:
            raise UpstreamUnfit(f"what the upstream sent for {order.path!r} is no tarball")
    if len(values) > 1 and gevent.get_hub().threadpool.apply(_digest, (received.path, algorithm)) not in values:
        raise UpstreamUnfit(f"what the upstream sent for {order.path!r} has not the integrity that its packument tells")
    return NewFile(order.path, received, TARBALL_TYPE, version=version)


def _digest(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def _attestations(order: Order, source: Source) -> Plan:
    """At the upstream's own server, whatever it calls that, as npm itself asks for them."""
    if source.attestations is None:
        raise NotFound(f"the upstream has no attestations of {order.path.removesuffix(PROVENANCE)!r}")
    upstream = str(order.snapshot.upstream_url)
    where = urljoin(upstream, _quoted(urlsplit(source.attestations).path))
    return Plan(where, headers=_ACCEPTED, ageless=True, at_most=MOST_JSON, accept=partial(_document, order, "attestations"))


def _document(order: Order, key: str, received: Received, head: Arrived) -> NewFile:
    """A JSON object with a list under that key, as it came."""
    try:
        document = parsed(received.path.read_bytes())
    except Invalid:
        document = None
    if not isinstance(document, dict) or not isinstance(document.get(key), list):
        raise UpstreamUnfit(f"what the upstream sent for {order.path!r} is no JSON with {key}")
    return NewFile(order.path, received, "application/json")


def _address(upstream: str, tarball: str) -> str:
    """A whole one. Of the upstream's own host it gets the upstream's own scheme and port: many tell those by which they know themselves."""
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


def _integrity(source: Source) -> tuple[str, list[str]]:
    """What clients check: the hashes (hex) of the strongest algorithm that the integrity (SRI) has, else the shasum. What cannot be read
    counts as not told.
    """
    found = [each.partition("?")[0].partition("-") for each in (source.integrity or "").split()]
    for algorithm, length in _ALGORITHMS.items():
        digests = [_decoded(value) for name, _, value in found if name == algorithm]
        values = [each.hex() for each in digests if len(each) == length]
        if values:
            return algorithm, values
    shasum = (source.shasum or "").strip().lower()
    return "sha1", [shasum] if _SHASUM.fullmatch(shasum) else []


def _decoded(value: str) -> bytes:
    try:
        return binascii.a2b_base64(value, strict_mode=True)
    except (binascii.Error, ValueError):
        return b""
