"""How Maven repositories elsewhere are spoken with: their paths are ours.

    releases                                    lasting
    snapshots, metadata, the catalog, the rest  compared again when due

A checksum of the upstream's is compared before the commit: the one that the head of its answer tells, as most servers do, else the one in
the file beside it, as Maven itself does. Metadata is only compared with its head: the two files of an upstream are of one generation now
and then by chance. What clients get beside a file is made of the stored bytes.
"""

from __future__ import annotations

import functools
import io
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gevent

from app.errors import Invalid, NotFound, TooLarge, UpstreamFailed, UpstreamUnfit, UpstreamUntrue
from app.protocols.maven.names import ALGORITHMS, SIGNATURE, Catalog, File, Metadata, Other, Sidecar, is_snapshot, parse_any
from app.protocols.maven.uploads import MOST_METADATA, MOST_SIDECAR, check_metadata, checksum_in, content_type_of, new_file
from app.repository.dialects import Library, Order, Plan
from app.repository.publishing import NewFile
from app.upload.receiving import Received
from app.upstream.client import Arrived

log = logging.getLogger(__name__)

Stored = File | Metadata | Catalog | Other

# Those that stand beside a file, in the order in which Maven asks for them.
_BESIDE = ("sha1", "md5")
# By Artifactory, Maven Central and others; by Google's mirror of it.
_TOLD = ("x-checksum-", "x-goog-meta-checksum-")
# By Nexus 2, in its ETag.
_NEXUS = re.compile(r'"\{SHA1\{([0-9a-f]{40})\}\}"')
_LOOKED_AT = 1024
# What it has passed it does not look at again in another way: of many comments there are too many ways.
_PAGE = re.compile(rb"(?:<\?xml[^>]*+>\s*+|<!--(?>.*?-->)\s*+)*+<(?:!doctype\s+html|html)\b", re.IGNORECASE | re.DOTALL)
_PAGES = (".html", ".htm", ".xhtml")
_MARKUP = (".pom", ".xml")
# Byte order marks: UTF-8's says nothing, after others text is not looked at.
_EXTENSION = re.compile(r"\.[A-Za-z][A-Za-z0-9]*$")
_UTF_8, _OTHER_ORDERS = b"\xef\xbb\xbf", (b"\xfe\xff", b"\xff\xfe")


class Upstreams:
    """The dialect of Maven."""

    def plan(self, library: Library, order: Order) -> Plan:
        """Raises NotFound for what can be nothing but a folder."""
        address = parse_any(order.path)
        if isinstance(address, Sidecar):
            # Asked for only where nothing is stored.
            return Plan(order.spelling, content_type="text/plain", kept=False, **_release(address.of))
        if isinstance(address, Other) and not _EXTENSION.search(order.path):
            raise NotFound(address.reason)
        return Plan(
            order.spelling,
            lasting=isinstance(address, File) and not is_snapshot(address.base_version),
            content_type=content_type_of(order.path),
            checksums=ALGORITHMS,
            whole=isinstance(address, Metadata),
            at_most=MOST_METADATA if isinstance(address, Metadata) else None,
            **_release(address),
            told=told_in,
            accept=functools.partial(_accept, library, order, address),
        )


def _release(address: Stored) -> Mapping[str, Any]:
    """What a minimum age goes by; when it was published the upstream tells with the file (Last-Modified)."""
    if isinstance(address, File):
        return {"name": address.package, "version": address.base_version}
    return {"ageless": isinstance(address, Metadata | Catalog)}


def told_in(head: Arrived) -> Mapping[str, str]:
    """The checksums in the head of an answer, by algorithm."""
    found: dict[str, str] = {}
    for start in _TOLD:
        for name in ALGORITHMS:
            value = head.headers.get(f"{start}{name}", "").strip().lower()
            if checksum_in(name, value.encode("latin-1", "replace")) == value:
                found.setdefault(name, value)
    if (etag := _NEXUS.fullmatch(head.headers.get("etag", ""))) is not None:
        found["sha1"] = etag.group(1)
    return found


def _accept(library: Library, order: Order, address: Stored, received: Received, head: Arrived) -> NewFile:
    """Raises UpstreamUnfit for what cannot be what was asked for, NotFound where nobody knows that it should be anything."""
    fault: str | None = gevent.get_hub().threadpool.apply(_fault, (address, received.path))
    if fault is not None:
        raise NotFound(address.reason) if isinstance(address, Other) else UpstreamUnfit(f"the upstream's {order.path!r} is {fault}")
    if isinstance(address, Metadata):
        _check_metadata(received)
    elif isinstance(address, File | Other) and not order.path.endswith(SIGNATURE) and not told_in(head):
        _compare(library, order, received, framed=not head.headers.keys().isdisjoint({"content-length", "transfer-encoding"}))
    if isinstance(address, File):
        return new_file(address, received)
    return NewFile(order.path, received, content_type_of(order.path))


def _fault(address: Stored, path: Path) -> str | None:
    """What the bytes are instead of what they should be; null when nothing is seen."""
    with path.open("rb") as file:
        start = file.read(_LOOKED_AT)
        file.seek(max(0, file.seek(0, io.SEEK_END) - _LOOKED_AT))
        end = file.read()
    text = start.removeprefix(_UTF_8).lstrip()
    if _PAGE.match(text) and not address.path.endswith(_PAGES):
        return "an HTML page"
    if address.path.endswith(_MARKUP) and not text.startswith((b"<", *_OTHER_ORDERS)):
        return "no XML"
    if isinstance(address, Catalog) and b"</archetype-catalog>" not in end:
        return "a part of it"
    if address.path.endswith(SIGNATURE) and text.startswith(b"-----BEGIN") and b"-----END" not in end:
        return "a part of it"
    return None


def _check_metadata(received: Received) -> None:
    with received.path.open("rb") as file:
        try:
            check_metadata(file.read, received.size, root="metadata")
        except (Invalid, TooLarge) as error:
            raise UpstreamUnfit(f"the upstream's metadata cannot be used: {error.message}") from error


def _compare(library: Library, order: Order, received: Received, *, framed: bool) -> None:
    """With the checksum that the upstream has beside the file. Where none can be had just now, `framed` bytes are known to be all."""
    for algorithm in _BESIDE:
        try:
            told = library.peek(f"{order.spelling}.{algorithm}", MOST_SIDECAR)
        except UpstreamFailed as error:
            if not framed:
                raise
            log.warning("the %s of %r is not compared: %s", algorithm, order.path, error)
            return
        checksum = None if told is None or told.lstrip().startswith(b"<") else checksum_in(algorithm, told)
        if checksum is not None:
            if checksum != received.checksums[algorithm]:
                raise UpstreamUntrue(f"what the upstream sent for {order.path!r} has another {algorithm} than the upstream says")
            return
