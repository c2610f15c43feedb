"""What clients push: blobs in one request or several, blobs that another image has already, manifests with their tags."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import gevent

from app.access.identity import Caller
from app.errors import Invalid, UploadUnknown
from app.protocols.oci import manifests
from app.protocols.oci.documents import DETAILS
from app.protocols.oci.manifests import Manifest
from app.protocols.oci.names import ALGORITHMS, BadDigest, Digest, blob_path, is_digest, manifest_path, parse_digest
from app.repository.blobs import Linked
from app.repository.publishing import Conditions, NewFile, Package, Session
from app.repository.references import SAME, Reference
from app.upload.receiving import Expected, Fill, Received, Receiver
from app.upload.sessions import Address

BLOB_TYPE = "application/octet-stream"
# Key of an artifact's metadata: the digest by which the manifest behind a tag was pushed.
DIGEST = "digest"
_CONTENT_RANGE = re.compile(r"(?:bytes )?([0-9]{1,19})-([0-9]{1,19})(?:/(?:[0-9]+|\*))?")


def owner_of(who: Caller) -> str:
    """Whose uploads are whose."""
    return who.upload_owner


def address_of(repository_id: int, image: str, who: Caller, upload_id: str) -> Address:
    """Raises UploadUnknown for what is no upload's name."""
    try:
        return Address(repository_id, image, owner_of(who), UUID(upload_id))
    except ValueError:
        raise UploadUnknown("there is no such upload") from None


@dataclass(frozen=True)
class Chunk:
    """Bytes of an upload as a request announces them: where they begin, how many they are; null where it does not say."""

    offset: int | None
    size: int | None


def chunk(content_range: str | None, size: int | None) -> Chunk:
    """From `Content-Range` and the length of the body. Raises Invalid when they contradict each other."""
    if content_range is None:
        return Chunk(None, size)
    found = _CONTENT_RANGE.fullmatch(content_range.strip())
    if found is None:
        raise Invalid("Content-Range is of the form 0-1023, both ends included")
    first, last = int(found.group(1)), int(found.group(2))
    if last < first or size not in (None, last - first + 1):
        raise Invalid(f"Content-Range {content_range} does not fit a body of {size} bytes")
    return Chunk(first, last - first + 1)


def store_blob(session: Session, image: str, digest: Digest, size: int | None, fill: Fill) -> None:
    """A blob in one request. Raises DigestMismatch and what receiving and publishing raise."""
    receiver = session.receiver(Expected({digest.algorithm: digest.encoded}, size))
    receiver.drain_into(fill)
    session.publish([NewFile(blob_path(image, digest), receiver.finish(), BLOB_TYPE, is_part=True)])


def take_chunk(session: Session, address: Address, part: Chunk, fill: Fill) -> int:
    """The next bytes of an upload; how many there are then. Raises UploadUnknown, WrongOffset, CapacitySpent, TooLarge or Invalid."""
    return _take(session, address, part, fill, Expected()).size


def finish_blob(session: Session, address: Address, digest: Digest, part: Chunk, fill: Fill) -> None:
    """The last bytes, if any, and the end of an upload. Raises DigestMismatch too, which ends it as well."""
    receiver = _take(session, address, part, fill, Expected({digest.algorithm: digest.encoded}))
    session.publish([NewFile(blob_path(address.target, digest), receiver.finish(), BLOB_TYPE, is_part=True)])


def _take(session: Session, address: Address, part: Chunk, fill: Fill, expected: Expected) -> Receiver:
    receiver = session.go_on(address, part.offset, expected)
    before = receiver.size
    if part.size:
        receiver.announce(part.size)
    receiver.drain_into(fill)
    if part.size is not None and receiver.size - before != part.size:
        raise Invalid(f"the body has {receiver.size - before} bytes, {part.size} were announced")
    return receiver


@dataclass(frozen=True)
class ManifestPush:
    """A manifest as it is put: under a tag or a digest, and `tags` besides."""

    image: str
    reference: str
    tags: Sequence[str]
    content_type: str
    body: bytes


@dataclass(frozen=True)
class Pushed:
    """What was stored; `digest` is what the client calls it, or SHA-256."""

    digest: Digest
    manifest: Manifest


def store_manifest(session: Session, push: ManifestPush, conditions: Conditions, beside: Sequence[NewFile] = ()) -> Pushed:
    """With what else is to be published `beside` it.

    Raises BadManifest, BadDigest, DigestMismatch, MissingParts, and what receiving and publishing raise.
    """
    manifest = parsed(push.image, push.body, push.content_type)
    digest = parse_digest(push.reference) if is_digest(push.reference) else Digest("sha256", hashlib.sha256(push.body).hexdigest())
    tags = [*([] if is_digest(push.reference) else [push.reference]), *push.tags]
    received = session.store_for(push.body, 1 + len(tags), {digest.algorithm: digest.encoded})
    whole = manifest_file(push.image, digest, manifest, received[0])
    named = [tag_file(push.image, tag, digest, manifest.media_type, each) for tag, each in zip(tags, received[1:], strict=True)]
    # Conditions speak of what the request names, which comes first.
    files = [whole, *named] if is_digest(push.reference) else [*named, whole]
    session.publish([*files, *beside], conditions)
    return Pushed(digest, manifest)


def manifest_file(image: str, digest: Digest, manifest: Manifest, received: Received | Linked) -> NewFile:
    """A manifest by its digest."""
    details = {DETAILS: manifest.details} if manifest.details else {}
    path, package = manifest_path(image, str(digest)), Package(image, image)
    return NewFile(path, received, manifest.media_type, details, package=package, references=manifest.references)


def tag_file(image: str, tag: str, digest: Digest, media_type: str, received: Received) -> NewFile:
    """The same bytes under a name."""
    path, package = manifest_path(image, tag), Package(image, image)
    whole = Reference(manifest_path(image, str(digest)), SAME)
    return NewFile(path, received, media_type, {DIGEST: str(digest)}, tag, package, (whole,))


def parsed(image: str, body: bytes, content_type: str) -> Manifest:
    """A long one is read in a thread. Raises as `manifests.parse`."""
    if len(body) < manifests.LONG:
        return manifests.parse(image, body, content_type)
    outcome: Manifest | Invalid = gevent.get_hub().threadpool.apply(_parsed_or_refused, (image, body, content_type))
    if isinstance(outcome, Invalid):
        raise outcome
    return outcome


def _parsed_or_refused(image: str, body: bytes, content_type: str) -> Manifest | Invalid:
    """What is wrong, returned: gevent's threads print what is raised in them."""
    try:
        return manifests.parse(image, body, content_type)
    except Invalid as error:
        return error


def algorithms_for(name: str | None) -> tuple[str, ...]:
    """The digests to make of an upload that announces one. Raises BadDigest for an unknown one."""
    if name is not None and name not in ALGORITHMS:
        raise BadDigest(f"digests are made by {' or '.join(ALGORITHMS)}")
    return () if name is None else (name,)
