"""How a proxy speaks with an npm registry (see `dialects.Dialect`).

Packuments are fetched in full and kept in the form of `packuments`; they say where tarballs are, whatever they are called there, and which
digests they have. Attestations and keys are kept as they come.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from app.errors import NotFound, UpstreamUnfit
from app.protocols.npm.kept import INDEXES, MOST_BYTES, Kept, Source, index_path, moment_of, remake
from app.protocols.npm.names import PROVENANCE, Tarball, is_name, parse, tarball_path, version_of
from app.protocols.npm.sources import ACCEPTED, MOST_JSON, Integrity, attestations_address, is_list_of, tarball_address
from app.protocols.npm.uploads import TARBALL_TYPE
from app.repository.dialects import Library, Order, Plan
from app.repository.publishing import NewFile, Package
from app.upload.receiving import Received
from app.upstream.client import Arrived

# Where a registry says what it signs with; also the path at which it is kept.
KEYS = "-/npm/v1/keys"
MOST_KEYS = 256 * 1024


class Registry:
    """Plans of all that a proxy of npm fetches."""

    def plan(self, library: Library, order: Order) -> Plan:
        path = order.path
        if path.startswith(INDEXES) and is_name(path.removeprefix(INDEXES)):
            return _packument(path.removeprefix(INDEXES))
        if path == KEYS:
            return Plan(KEYS, headers=ACCEPTED, ageless=True, at_most=MOST_KEYS, accept=partial(_document, order, "keys"))
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
        package.replace("/", "%2F"), headers=ACCEPTED, ageless=True, at_most=MOST_BYTES, remade=partial(remake, package),
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
    source = known.source
    where, integrity = tarball_address(str(order.snapshot.upstream_url), order.path, source), Integrity.of(source)
    digests = {} if integrity.only is None else {integrity.algorithm: integrity.only}
    accept = partial(_file, order, source.version, integrity)
    own = tarball_path(package, source.version)
    return Plan(
        where, digests=digests, lasting=True, published_at=known.published, name=package, version=source.version, accept=accept,
        kept=order.path == own, alias_of="" if order.path == own else own,
    )  # fmt: skip


def _file(order: Order, version: str, integrity: Integrity, received: Received, head: Arrived) -> NewFile:
    integrity.check(order.path, received.path)
    return NewFile(order.path, received, TARBALL_TYPE, version=version)


def _attestations(order: Order, source: Source) -> Plan:
    where = attestations_address(str(order.snapshot.upstream_url), source)
    if where is None:
        raise NotFound(f"the upstream has no attestations of {order.path.removesuffix(PROVENANCE)!r}")
    return Plan(where, headers=ACCEPTED, ageless=True, at_most=MOST_JSON, accept=partial(_document, order, "attestations"))


def _document(order: Order, key: str, received: Received, head: Arrived) -> NewFile:
    """A JSON object with a list under that key, as it came."""
    if not is_list_of(received.path.read_bytes(), key):
        raise UpstreamUnfit(f"what the upstream sent for {order.path!r} is no JSON with {key}")
    return NewFile(order.path, received, "application/json")
