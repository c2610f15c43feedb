"""`/maven/{repository}/{path}`: GET HEAD PUT DELETE of what layout 2 knows, folders as listings. Paths are in `names`."""

from __future__ import annotations

import hashlib

import gevent
from flask import Blueprint, Response, request
from sqlalchemy import Connection, text

from app.errors import ArkvoryError, Conflict, InvalidPath, NotFound
from app.http.bodies import body_filler, body_reader, body_size
from app.http.digests import announced, digest_headers
from app.http.errors import text_answer
from app.http.identity import caller, log_fact
from app.http.listing import HARMLESS, folder_response
from app.http.parts import parts
from app.http.paths import encode_path
from app.http.responses import document_response, etags_of, file_response
from app.protocols.maven.documents import ArchetypeCatalog, MetadataDocument
from app.protocols.maven.names import ALGORITHMS, Catalog, File, Metadata, Sidecar, parse
from app.protocols.maven.uploads import MOST_SIDECAR, check_metadata, compare_sidecar, read_small, store_file
from app.repository.publishing import Target
from app.repository.reading import Ask, Document, DocumentSource
from app.upload.receiving import Expected

FORMAT = "maven"
blueprint = Blueprint(FORMAT, __name__, url_prefix="/maven")

MOST_DELETED = 10_000
# Hashing more than this keeps the loop from others.
_LONG_BODY = 256 * 1024
_LONGEST_PHRASE = 250

# What moves is asked for each time: the next request sees the commit.
_FRESH = {"Cache-Control": "no-cache"}


@blueprint.errorhandler(ArkvoryError)
def refusal(error: ArkvoryError) -> Response:
    """The message as the reason phrase too, which is all that mvn and Gradle show."""
    answer = text_answer(error)
    phrase = " ".join(error.message.encode("ascii", "replace").decode().split())[:_LONGEST_PHRASE]
    answer.status = f"{answer.status_code} {phrase}"
    return answer


# Reading


@blueprint.get("/<segment:repository>")
def to_root(repository: str) -> Response:
    return Response(status=308, headers={"Location": f"{encode_path(repository)}/"})


@blueprint.get("/<segment:repository>/", defaults={"path": ""})
@blueprint.get("/<segment:repository>/<artifact:path>")
def get(repository: str, path: str) -> Response:
    """A file, a document, the checksum of either, or a folder."""
    ask = _ask(repository, path)
    if not path or path.endswith("/"):
        return folder_response(ask)
    try:
        address = parse(path)
    except InvalidPath as error:
        parts().reader.may_read(ask)
        raise NotFound(error.message) from None
    if isinstance(address, Sidecar):
        return _sidecar(ask, address)
    source = _document_at(address)
    return _file(ask) if source is None else _document(ask, source)


def _document_at(address: File | Metadata | Catalog) -> DocumentSource | None:
    if isinstance(address, Metadata):
        return MetadataDocument(address.folder)
    return ArchetypeCatalog() if isinstance(address, Catalog) else None


def _file(ask: Ask) -> Response:
    found, blob = parts().reader.open_blob(ask, parts().reader.find(ask))
    gate = found.gate
    return file_response(
        request,
        blob,
        etag=gate.digest,
        last_modified=gate.updated_at,
        content_type=gate.content_type,
        headers=_FRESH | HARMLESS | digest_headers(gate.checksums),
    )


def _document(ask: Ask, source: DocumentSource) -> Response:
    made = parts().reader.document(ask, source, etags_of(request))
    # No bytes are made for a client that has them (304).
    checksums = {algorithm: _hash(made.body, algorithm) for algorithm in ALGORITHMS if made.body}
    headers = _FRESH | HARMLESS | digest_headers(checksums)
    return document_response(request, made.body, etag=made.etag, content_type=made.content_type, headers=headers)


def _sidecar(ask: Ask, sidecar: Sidecar) -> Response:
    """Bare lower-case hex: of the bytes that are served, whatever a client sent."""
    source = _document_at(sidecar.of)
    if source is None:
        gate = parts().reader.find(_ask(ask.repository, sidecar.path)).gate
        checksum, etag, modified = gate.checksums.get(sidecar.algorithm), gate.digest, gate.updated_at
        if checksum is None:
            raise NotFound(f"the {sidecar.algorithm} of {sidecar.path!r} is not known")
    else:
        made: Document = parts().reader.document(_ask(ask.repository, sidecar.path), source)
        checksum, etag, modified = _hash(made.body, sidecar.algorithm), made.etag, None
    return document_response(
        request, checksum.encode(), etag=f"{etag}-{sidecar.algorithm}", content_type="text/plain", last_modified=modified,
        headers=_FRESH | HARMLESS,
    )  # fmt: skip


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
    snapshot = parts().publisher.may_publish(target, path)
    if isinstance(address, Sidecar):
        return _put_sidecar(snapshot.id, address)
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
    body = read_small(body_reader(), body_size(), MOST_SIDECAR)
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
    snapshot = parts().reader.may_read(Ask(FORMAT, target.repository, path, target.caller))
    with parts().database.read() as connection:
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


def _ask(repository: str, path: str) -> Ask:
    log_fact("repository", repository)
    return Ask(FORMAT, repository, path, caller())


def _target(repository: str) -> Target:
    log_fact("repository", repository)
    return Target(FORMAT, repository, caller())
