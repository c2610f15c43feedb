"""`/maven/{repository}/{path}`: GET HEAD PUT DELETE of what layout 2 knows, folders as listings. Paths are in `names`."""

from __future__ import annotations

import functools
import hashlib
from datetime import datetime

import gevent
from flask import Blueprint, Response, request
from sqlalchemy import Connection

from app.database.statements import text
from app.errors import ArkvoryError, Conflict, NotFound
from app.http import listing
from app.http.bodies import body_filler, body_reader, body_size, read_small
from app.http.digests import announced, digest_headers
from app.http.identity import caller, log_fact
from app.http.listing import HARMLESS, folder
from app.http.parts import parts
from app.http.paths import encode_path
from app.http.reads import Asked, Description, DocumentRead, FactRead, FileRead, MadeRead, Read, Reads
from app.protocols.maven.documents import ArchetypeCatalog, MetadataDocument
from app.protocols.maven.names import ALGORITHMS, Catalog, File, Metadata, Other, Sidecar, is_sidecar, parse, parse_any
from app.protocols.maven.uploads import MOST_SIDECAR, check_metadata, compare_sidecar, store_file
from app.repository.publishing import Target
from app.repository.reading import Ask, Document, DocumentSource, Gate
from app.upload.receiving import Expected

FORMAT = "maven"
blueprint = Blueprint(FORMAT, __name__, url_prefix="/maven")

MOST_DELETED = 10_000
# Hashing more than this keeps the loop from others.
_LONG_BODY = 256 * 1024
_LONGEST_PHRASE = 250

# What moves is asked for each time: the next request sees the commit.
_FRESH = {"Cache-Control": "no-cache"}


def refusal(error: ArkvoryError, asked: Asked) -> Response:
    """The message as the reason phrase too, which is all that mvn and Gradle show."""
    answer = listing.refusal(error, asked)
    if answer.status_code < 400:
        return answer
    phrase = " ".join(error.message.encode("ascii", "replace").decode().split())[:_LONGEST_PHRASE]
    answer.status = f"{answer.status_code} {phrase}"
    return answer


reads = Reads(blueprint, refusal)


# Reading


@blueprint.get("/<segment:repository>")
def to_root(repository: str) -> Response:
    return Response(status=308, headers={"Location": f"{encode_path(repository)}/"})


@reads.get("/<segment:repository>/", path="")
@reads.get("/<segment:repository>/<artifact:path>")
def get(asked: Asked, repository: str, path: str) -> Read:
    """A file, a document, the checksum of either, or a folder."""
    if not path or path.endswith("/"):
        return folder(asked, path)
    return _read(path, asked.spelling())


@functools.lru_cache(4096)
def _read(path: str, spelling: str) -> Read:
    address = parse_any(path)
    if isinstance(address, Sidecar):
        return _sidecar(address, FileRead(path, _file, spelling=spelling))
    copy = FileRead(path, _file, spelling=spelling, absent=address.reason if isinstance(address, Other) else "")
    source = _document_at(address)
    return copy if source is None else MadeRead(DocumentRead(path, source, _document, made_of=path), copy, _file_or_document)


def _sidecar(sidecar: Sidecar, passed_on: FileRead) -> Read:
    """Bare lower-case hex: of the bytes that are served, whatever a client sent or an upstream has."""
    algorithm, path = sidecar.algorithm, sidecar.path
    fact = FactRead(path, _FILE_SIDECARS[algorithm], spelling=_spelled(sidecar, passed_on), instead=passed_on)
    source = _document_at(sidecar.of)
    if source is None:
        return fact
    made = DocumentRead(path, source, _DOCUMENT_SIDECARS[algorithm], whole=True, made_of=path)
    return MadeRead(made, fact, _SIDECARS[algorithm])


def _spelled(sidecar: Sidecar, passed_on: FileRead) -> str:
    """What the checksum belongs to, as the client spelled it."""
    if not passed_on.spelling:
        return ""
    ending = passed_on.path.removeprefix(sidecar.path)
    return passed_on.spelling.removesuffix(ending) if passed_on.spelling.endswith(ending) else encode_path(sidecar.path)


def _document_at(address: File | Metadata | Catalog | Other) -> DocumentSource | None:
    if isinstance(address, Metadata):
        return MetadataDocument(address.folder)
    return ArchetypeCatalog() if isinstance(address, Catalog) else None


def _file(gate: Gate) -> Description:
    return Description(gate.digest, gate.content_type, _FRESH | HARMLESS | digest_headers(gate.checksums), gate.updated_at)


def _file_or_document(thing: Gate | Document) -> Description:
    return _file(thing) if isinstance(thing, Gate) else _document(thing)


def _document(made: Document) -> Description:
    # No bytes are made for a client that has them (304).
    checksums = {algorithm: _hash(made.body, algorithm) for algorithm in ALGORITHMS if made.body}
    return Description(made.etag, made.content_type, _FRESH | HARMLESS | digest_headers(checksums), body=made.body)


def _file_sidecar(algorithm: str, gate: Gate) -> Description:
    if is_sidecar(gate.path):
        # The upstream's own, of what is not stored here.
        return _file(gate)
    if algorithm not in gate.checksums:
        raise NotFound(f"the {algorithm} of {gate.path!r} is not known")
    return _checksum(algorithm, gate.checksums[algorithm], gate.digest, gate.updated_at)


def _document_sidecar(algorithm: str, made: Document) -> Description:
    return _checksum(algorithm, _hash(made.body, algorithm), made.etag, None)


def _sidecar_of(algorithm: str, thing: Gate | Document) -> Description:
    return _file_sidecar(algorithm, thing) if isinstance(thing, Gate) else _document_sidecar(algorithm, thing)


def _checksum(algorithm: str, checksum: str, etag: str, modified: datetime | None) -> Description:
    return Description(f"{etag}-{algorithm}", "text/plain", _FRESH | HARMLESS, modified, checksum.encode())


_FILE_SIDECARS = {algorithm: functools.partial(_file_sidecar, algorithm) for algorithm in ALGORITHMS}
_SIDECARS = {algorithm: functools.partial(_sidecar_of, algorithm) for algorithm in ALGORITHMS}
_DOCUMENT_SIDECARS = {algorithm: functools.partial(_document_sidecar, algorithm) for algorithm in ALGORITHMS}


def _hash(body: bytes, algorithm: str) -> str:
    def work() -> str:
        return hashlib.new(algorithm, body, usedforsecurity=False).hexdigest()

    return work() if len(body) <= _LONG_BODY else str(gevent.get_hub().threadpool.apply(work))


# Writing


@blueprint.put("/<segment:repository>/<artifact:path>")
def put(repository: str, path: str) -> Response:
    """Store a file: 201 when it is new, 200 when it was there. What belongs to files and metadata is checked and made here."""
    target, address = _target(repository), parse(path)
    if isinstance(address, File):
        return _put_file(target, address)
    if isinstance(address, Sidecar):
        return _put_sidecar(parts().publisher.may_publish(target, path).id, address)
    # It is read in a place like a file: each parser takes memory.
    with parts().publisher.begin(target, path, size=body_size()):
        check_metadata(body_reader(), body_size())
    return _told("this document is made from what is stored", 200)


def _put_file(target: Target, file: File) -> Response:
    expected = Expected(announced(request.headers), body_size())
    with parts().publisher.begin(target, file.path, size=expected.size) as session:
        published = store_file(session, file, expected, body_filler())
    answer = _told(f"{file.path} is stored", 201 if published.created else 200)
    answer.headers.extend(digest_headers(published.checksums) | {"ETag": f'"{published.sha256}"'})
    return answer


def _put_sidecar(repository_id: int, sidecar: Sidecar) -> Response:
    body = read_small(body_size(), MOST_SIDECAR)
    if not isinstance(sidecar.of, File):
        return _told("checksums of this document are made from it", 200)
    with parts().database.read() as connection:
        known = compare_sidecar(connection, repository_id, sidecar, body)
    # A checksum that comes before its file is neither kept nor held against anyone: parallel clients send them so.
    return _told("the file has this checksum", 200) if known else _told("the file is not there yet; its checksums are made from it", 202)


def _told(message: str, status: int) -> Response:
    return Response(f"{message}\n", status, content_type="text/plain; charset=utf-8")


@blueprint.delete("/<segment:repository>/<artifact:path>")
def delete(repository: str, path: str) -> Response:
    """Take away a file with its signature, or (path ending in a slash) all files of a folder."""
    target = _target(repository)
    if not path.endswith("/") and not isinstance(parse(path), File):
        raise Conflict(f"{path!r} is made from what is stored and goes with it")
    parts().editor.delete(target, _doomed(target, path))
    return Response(status=204)


def _doomed(target: Target, path: str) -> list[str]:
    """The paths to delete. Raises NotFound, and what a reader of the path may not know of."""
    with parts().reader.look(Ask(FORMAT, target.repository, path, target.caller)) as (connection, snapshot):
        found = _below(connection, snapshot.id, path) if path.endswith("/") else [path]
    if not found:
        raise NotFound(f"there is no {path!r} in repository {target.repository!r}")
    if len(found) > MOST_DELETED:
        raise Conflict(f"there are more than {MOST_DELETED} files in {path!r}; delete its folders one by one")
    return found


def _below(connection: Connection, repository_id: int, folder: str) -> list[str]:
    statement = text("select path from arkvory_artifacts where repository_id = :id and path > :folder and path < :end limit :most")
    values = {"id": repository_id, "folder": folder, "end": folder[:-1] + "0", "most": MOST_DELETED + 1}
    return list(connection.execute(statement, values).scalars())


# What they share


def _target(repository: str) -> Target:
    log_fact("repository", repository)
    return Target(FORMAT, repository, caller())
