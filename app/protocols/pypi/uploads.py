"""An upload from its form to its publish: receive, look into it, publish file and companions together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gevent

from app.errors import Invalid, TooLarge
from app.http.forms import FilePart, Readable, read_form
from app.protocols.pypi.inspection import Inspected, inspect
from app.protocols.pypi.names import Companion, Distribution, parse_file_name
from app.protocols.pypi.parts import DETAILS, REQUIRES_PYTHON
from app.protocols.pypi.upload_form import CONTENT_PART, MOST_SIGNATURE_BYTES, SIGNATURE_PART, UploadForm, provenance
from app.repository.publishing import NewFile, Package, Published, Session
from app.upload.receiving import Expected, Received

CONTENT_TYPES = {".whl": "application/octet-stream", ".tar.gz": "application/gzip", ".zip": "application/zip"}
COMPANION_TYPES = {
    Companion.METADATA: "text/plain; charset=utf-8",
    Companion.SIGNATURE: "application/pgp-signature",
    Companion.PROVENANCE: "application/json",
}
_PUBLISHER = {"kind": "arkvory", "claims": None}


def store_upload(session: Session, stream: Readable, content_type: str | None, form_size: int | None = None) -> Published:
    """Read the form (of `form_size` bytes) and publish what it brings.

    Raises Invalid, AlreadyExists and what receiving and publishing raise.
    """
    parts = _FileParts(session, form_size)
    fields = read_form(stream, content_type, parts.take)
    file = parts.content()
    form = UploadForm.from_fields(fields.fields)
    distribution = form.distribution(file.filename)
    _check_digest(form, file.received)
    inspected = inspect(file.received.path, file.filename)
    files = files_of(session, file.received, inspected, _beside(form, parts.signature), form.comment)
    return session.publish(files, package=Package(distribution.project, inspected.name))[0]


def files_of(
    session: Session, received: Received, inspected: Inspected, beside: Mapping[Companion, bytes], comment: str | None = None
) -> list[NewFile]:
    """What arrived and was looked into, with its core metadata and what comes `beside` it."""
    details = {**inspected.fields, "description": inspected.description} | ({"comment": comment} if comment else {})
    bodies: dict[Companion, tuple[bytes, dict[str, Any]]] = {
        Companion.METADATA: (inspected.metadata, {DETAILS: details}), **{companion: (body, {}) for companion, body in beside.items()}
    }  # fmt: skip
    companions = [
        NewFile(inspected.distribution.beside(companion), session.store(body), COMPANION_TYPES[companion], kept)
        for companion, (body, kept) in bodies.items()
    ]
    return [_file(inspected.distribution, received, inspected), *companions]


@dataclass(frozen=True)
class _Content:
    filename: str
    received: Received


class _FileParts:
    """The form's files. A refusal waits until the whole form is read: clients look for an answer only then."""

    def __init__(self, session: Session, form_size: int | None) -> None:
        self._session = session
        self._form_size = form_size
        self._content: _Content | None = None
        self._refusal: Invalid | TooLarge | None = None
        self.signature: bytes | None = None

    def take(self, part: FilePart) -> None:
        if part.name == CONTENT_PART:
            self._take_content(part)
        elif part.name == SIGNATURE_PART:
            self._take_signature(part)

    def _take_content(self, part: FilePart) -> None:
        try:
            if self._content is not None:
                raise Invalid("the form has more than one file 'content'", CONTENT_PART)
            parse_file_name(part.filename)
        except Invalid as error:
            self._refusal = error
            return
        receiver = self._session.receiver(Expected(), at_most=self._form_size)
        receiver.drain(part.read)
        self._content = _Content(part.filename, receiver.finish())

    def _take_signature(self, part: FilePart) -> None:
        self.signature = part.read(MOST_SIGNATURE_BYTES)
        if part.read(1):
            self._refusal = TooLarge(f"a signature may have {MOST_SIGNATURE_BYTES} bytes")

    def content(self) -> _Content:
        """The one file; raises what was wrong with the form's files."""
        if self._refusal is not None:
            raise self._refusal
        if self._content is None:
            raise Invalid("the form has no file 'content'", CONTENT_PART)
        return self._content


def _check_digest(form: UploadForm, received: Received) -> None:
    """The most trusted digest that the client sent; SHA-256 is at hand, others are made of the stored bytes."""
    if form.digest is None:
        return
    algorithm = form.digest[0]
    known = received.checksums.get(algorithm)
    form.check_digest(algorithm, known or gevent.get_hub().threadpool.apply(_hash, (received.path, algorithm)))


_HASHES: dict[str, Callable[[], Any]] = {
    "sha256": hashlib.sha256,
    "blake2b_256": lambda: hashlib.blake2b(digest_size=32),
    "md5": lambda: hashlib.md5(usedforsecurity=False),
}


def _hash(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        return str(hashlib.file_digest(file, _HASHES[algorithm]).hexdigest())


def _file(distribution: Distribution, received: Received, inspected: Inspected) -> NewFile:
    known = {REQUIRES_PYTHON: inspected.requires_python} if inspected.requires_python else {}
    content_type = next(kind for ending, kind in CONTENT_TYPES.items() if distribution.filename.endswith(ending))
    return NewFile(distribution.path, received, content_type, known, str(distribution.version))


def _beside(form: UploadForm, signature: bytes | None) -> dict[Companion, bytes]:
    beside = {} if signature is None else {Companion.SIGNATURE: signature}
    if form.attestations:
        beside[Companion.PROVENANCE] = json.dumps(provenance(form.attestations, _PUBLISHER)).encode()
    return beside
