"""What clients PUT: files are stored, checksums compared with what is stored, metadata looked at and let go."""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Callable
from typing import Any
from xml.etree.ElementTree import ParseError

import gevent
from defusedxml import DefusedXmlException
from defusedxml.ElementTree import DefusedXMLParser
from sqlalchemy import Connection

from app.database.statements import text
from app.errors import DigestMismatch, Invalid
from app.http.bodies import check_size
from app.protocols.maven.inspection import look_into
from app.protocols.maven.names import ALGORITHMS, File, Sidecar
from app.repository.publishing import NewFile, Package, Published, Session
from app.upload.receiving import Expected, Fill, Read, Received

# 100,000 versions fit; what the client merged into it came from here.
MOST_METADATA = 8 * 1024 * 1024
MOST_SIDECAR = 1024
_PIECE = 64 * 1024
_DEEPEST = 64
_MOST_NAMES = 1000
_LONGEST = 256 * 1024
_UNLIKE = "the metadata is like none of Maven's"
_HEX = {"md5": 32, "sha1": 40, "sha256": 64, "sha512": 128}
_TYPES = {
    "asc": "application/pgp-signature",
    "jar": "application/java-archive",
    "module": "application/json",
    "pom": "application/xml",
    "xml": "application/xml",
    "war": "application/java-archive",
}


def store_file(session: Session, file: File, expected: Expected, fill: Fill) -> Published:
    """Receive a file with all four checksums and publish it. Raises what receiving and publishing raise."""
    receiver = session.receiver(expected, always=ALGORITHMS)
    receiver.drain_into(fill)
    return session.publish([new_file(file, receiver.finish())])[0]


def new_file(file: File, received: Received) -> NewFile:
    """What arrived, as the artifact that the documents are made of."""
    known: dict[str, Any] = {}
    named = file.coordinates
    if named is not None and named.extension == "jar" and not named.classifier:
        known = gevent.get_hub().threadpool.apply(look_into, (received.path, named.group, named.artifact))
    package = Package(file.package, file.package)
    return NewFile(file.path, received, content_type_of(file.path), known, file.base_version, package)


def content_type_of(path: str) -> str:
    """By its ending, whoever sent it."""
    return _TYPES.get(path.rpartition(".")[2]) or mimetypes.guess_type(path)[0] or "application/octet-stream"


def compare_sidecar(connection: Connection, repository_id: int, sidecar: Sidecar, body: bytes) -> bool:
    """Whether the file that the checksum belongs to is there. Raises DigestMismatch when it has another one, Invalid for no checksum."""
    sent = _digest(sidecar, body)
    row = connection.execute(_CHECKSUM, {"id": repository_id, "path": sidecar.path, "algorithm": sidecar.algorithm}).first()
    if row is not None and row.checksum is not None and row.checksum != sent:
        # Not which one it is: whoever may write here may perhaps not read, and the file may be held.
        raise DigestMismatch(f"the stored {sidecar.path!r} has another {sidecar.algorithm} than {sent}; send the file again")
    return row is not None


_CHECKSUM = text(
    "select b.checksums ->> :algorithm as checksum from arkvory_artifacts a join arkvory_blobs b on b.id = a.blob_id "
    "where a.repository_id = :id and a.path = :path"
)


def _digest(sidecar: Sidecar, body: bytes) -> str:
    found = checksum_in(sidecar.algorithm, body)
    if found is None:
        raise Invalid(f"this is no {sidecar.algorithm} checksum; that has {_HEX[sidecar.algorithm]} hexadecimal digits")
    return found


def checksum_in(algorithm: str, body: bytes) -> str | None:
    """The one checksum in a text, in lower case; tools write names before or behind it. Null when there is none, or more than one."""
    found = re.findall(rb"(?<![0-9A-Za-z])[0-9A-Fa-f]{%d}(?![0-9A-Za-z])" % _HEX[algorithm], body)
    return bytes(found[0]).decode().lower() if len(found) == 1 else None


def check_metadata(read: Read, size: int | None, *, root: str | None = None) -> None:
    """Read metadata and keep nothing. Raises TooLarge, or Invalid for what is no XML, declares entities or is like none of Maven's.

    With `root` its outermost element has that name.
    """
    check_size(size, MOST_METADATA)
    told = _Told(root)
    parser = DefusedXMLParser(target=told, forbid_dtd=True)
    taken = 0
    while piece := read(_PIECE):
        taken += len(piece)
        check_size(taken, MOST_METADATA)
        _check(gevent.get_hub().threadpool.apply(_fault, (parser.feed, piece)))
        _check(told.endless(len(piece)))
    _check(_fault(parser.close))


class _Unlike(ValueError):
    """What no metadata needs, and costs memory."""


class _Told:
    """What the parser tells of the metadata, measured and let go. It remembers all names and whatever is not closed yet."""

    def __init__(self, root: str | None) -> None:
        self._root = root
        self._depth = 0
        self._names: set[str] = set()
        self._silent = 0

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self._silent = 0
        self._depth += 1
        if self._depth == 1 and self._root not in (None, tag.rpartition("}")[2]):
            raise _Unlike(f"its outermost element is {tag[:100]!r}")
        self._names.update((tag, *attributes))
        if self._depth > _DEEPEST or len(self._names) > _MOST_NAMES:
            raise _Unlike(f"it has more than {_DEEPEST} elements in each other, or more than {_MOST_NAMES} names")

    def start_ns(self, prefix: str, uri: str) -> None:
        self._names.add(f"{prefix} {uri}")

    def end(self, _tag: str) -> None:
        self._silent = 0
        self._depth -= 1

    def data(self, _text: str) -> None:
        self._silent = 0

    def endless(self, count: int) -> str | None:
        """After `count` bytes more: what is wrong when the parser has told nothing for long."""
        self._silent += count
        return f"{_UNLIKE}: a tag or comment has more than {_LONGEST} bytes" if self._silent > _LONGEST else None


def _fault(parse: Callable[..., Any], *arguments: bytes) -> str | None:
    """What is wrong, returned: gevent's threads print what is raised in them."""
    try:
        parse(*arguments)
    except DefusedXmlException:
        return "the metadata has a document type or entities, which Maven's never has"
    except _Unlike as error:
        return f"{_UNLIKE}: {error}"
    except (ParseError, ValueError, LookupError) as error:
        return f"the metadata is no XML: {error}"
    return None


def _check(fault: str | None) -> None:
    if fault is not None:
        raise Invalid(fault)
