"""A document that a client sends, received with the files in it and taken apart: what it wants to change, and what it brings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gevent

from app.errors import Invalid, TooLarge
from app.protocols.npm import archives
from app.protocols.npm.names import check_number_of_tags
from app.protocols.npm.splitting import MOST_REST, Rest, Splitter, Take, decode, marker
from app.repository.publishing import Session
from app.upload.archives.readers import Readers
from app.upload.archives.tars import Unreadable
from app.upload.receiving import Expected, Read, Received, Receiver

DIGESTS = ("sha1", "sha512")
# From here on a body takes longer to parse than the loop may be kept from others.
LONG_BODY = 64 * 1024

readers = Readers(archives.__name__)


@dataclass(frozen=True)
class Attachment:
    """A file in a document, `length` as announced; its bytes are `received`, or stand in the document as `text`."""

    name: str
    text: str
    length: int | None
    received: Received | None


@dataclass(frozen=True)
class Document:
    """What a client wants of a package, by `archives.reduced`; checked as far as types go."""

    values: Mapping[str, Any]
    attachments: tuple[Attachment, ...]

    @property
    def versions(self) -> Mapping[str, Any] | None:
        """Deprecations by version; None when the document does not speak of versions."""
        return self.values.get("versions")

    @property
    def manifests(self) -> Mapping[str, Any]:
        """Versions that bring a file."""
        return dict(self.values["manifests"])

    @property
    def tags(self) -> Mapping[str, Any]:
        found = self.values.get("dist-tags") or {}
        if not isinstance(found, dict):
            raise Invalid("dist-tags is an object of versions by tag", "dist-tags")
        return check_number_of_tags(found)

    def value(self, key: str) -> Any:
        """Of the document's own fields, or None."""
        return self.values.get(key)

    def check_name(self, package: str) -> None:
        """Raises Invalid when the document is another package's than the address."""
        for key in ("name", "_id"):
            if self.values.get(key) not in (None, package):
                raise Invalid(f"the document is of {self.values[key]!r}, the address is that of {package!r}", key)


def receive(session: Session, read: Read, size: int | None, most_file: int | None) -> Document:
    """Read a document of `size` bytes (None: unknown), with files of at most `most_file` bytes. Raises Invalid, TooLarge and what
    receiving raises.
    """
    _check_size(size, most_file)
    files: list[Receiver] = []
    spilled: list[Receiver] = []

    def begin(receivers: list[Receiver], *digests: str) -> Take:
        receivers.append(session.receiver(Expected(), at_most=size, always=digests))
        return receivers[-1].feed

    rest = Rest(lambda: begin(spilled))
    splitter = Splitter(rest, lambda: begin(files, *DIGESTS))
    splitter.read(read)
    values = _parsed(rest, spilled)
    return Document(values, tuple(_attachments(values, [each.finish() for each in files])))


def _check_size(size: int | None, most_file: int | None) -> None:
    """Before anything is read: whatever is no document is base64 of files."""
    if size is not None and most_file is not None and (size - MOST_REST) // 4 * 3 > most_file:
        raise TooLarge(f"a file may have at most {most_file} bytes here")


def _parsed(rest: Rest, spilled: list[Receiver]) -> Mapping[str, Any]:
    """A long document is parsed in another process."""
    try:
        if spilled:
            values: Mapping[str, Any] = readers.document(spilled[0].finish().path, "document")
        else:
            values = archives.reduced(parsed(bytes(rest.kept)))
    except Unreadable as error:
        raise Invalid(f"the document {error}") from None
    return values


def _attachments(values: Mapping[str, Any], received: list[Received]) -> list[Attachment]:
    """Each with its bytes. Raises Invalid when one was taken out of another place."""
    left = {marker(number): each for number, each in enumerate(received)}
    found = [_attachment(name, each, left) for name, each in values["attachments"].items()]
    if left:
        raise Invalid("a long text `data` stands elsewhere than in an attached file", "_attachments")
    return found


def _attachment(name: str, attached: Any, received: dict[str, Received]) -> Attachment:
    text = attached.get("data") if isinstance(attached, dict) else None
    length = attached.get("length") if isinstance(attached, dict) else None
    if not isinstance(text, str) or isinstance(length, bool) or not isinstance(length, int | None):
        raise Invalid(f"the attached file {name!r} has no data", "_attachments")
    return Attachment(name, text, length, received.pop(text, None))


def stored(session: Session, attachment: Attachment) -> Received:
    """The bytes of a file that came as base64. Raises Invalid for another length than announced."""
    received = attachment.received
    if received is None:
        body = decode(attachment.text)
        receiver = session.receiver(Expected(size=len(body)), always=DIGESTS)
        receiver.feed(body)
        received = receiver.finish()
    if attachment.length not in (None, received.size):
        raise Invalid(f"{attachment.name!r} has {received.size} bytes, {attachment.length} were announced", "_attachments")
    return received


def look_into(received: Received) -> Mapping[str, Any]:
    """What `archives.read_tarball` finds. Raises Invalid."""
    try:
        found: Mapping[str, Any] = readers.document(received.path, "tarball")
    except Unreadable as error:
        raise Invalid(f"the tarball {error}", "_attachments") from None
    return found


def small_document(read: Read, most: int) -> Any:
    """A short JSON body. Raises Invalid and TooLarge."""
    body = b""
    while piece := read(most + 1 - len(body)):
        body += piece
        if len(body) > most:
            raise TooLarge(f"at most {most} bytes are read here")
    return parsed(body)


def parsed(body: bytes) -> Any:
    """JSON from a client; a long one in a thread. Raises Invalid."""
    value, fault = _parse(body) if len(body) <= LONG_BODY else gevent.get_hub().threadpool.apply(_parse, (body,))
    if fault is not None:
        raise Invalid(fault)
    return value


def _parse(body: bytes) -> tuple[Any, str | None]:
    """And what is wrong, returned: gevent's threads print what is raised in them."""
    try:
        return archives.parse(body), None
    except ValueError as error:
        return None, f"the body is no JSON: {str(error)[:200]}"
