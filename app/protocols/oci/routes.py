"""`/v2/`: the OCI distribution specification 1.1, end-1 to end-14, the catalogue and the token service. Names are in `names`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flask import Blueprint, Response, request
from sqlalchemy import Connection

from app.access.identity import Caller
from app.cache.snapshots import Snapshot
from app.errors import Invalid, MissingParts, NotAllowedHere, NotFound, TooLarge, Unauthenticated
from app.http.bodies import body_filler, body_size, read_small
from app.http.hosts import mapped_repository
from app.http.identity import log_fact
from app.http.parts import parts
from app.http.preconditions import conditions
from app.http.reads import Asked, Description, DocumentRead, FileRead, Loaded, Read, Reads, asked_now
from app.protocols.oci import scopes, tokens
from app.protocols.oci.documents import ReferrerList, TagList, next_link
from app.protocols.oci.errors import VERSION, received_range, refusal, register
from app.protocols.oci.manifests import MOST_BYTES
from app.protocols.oci.mounting import Mount, found_elsewhere, mounted
from app.protocols.oci.names import (
    ALGORITHMS,
    Digest,
    blob_path,
    check_image,
    check_tag,
    is_digest,
    manifest_path,
    parse_digest,
    reference_of,
    referrers_path,
    tags_path,
)
from app.protocols.oci.scopes import FORMAT
from app.protocols.oci.uploads import (
    BLOB_TYPE,
    DIGEST,
    ManifestPush,
    Pushed,
    address_of,
    algorithms_for,
    chunk,
    finish_blob,
    owner_of,
    store_blob,
    store_manifest,
    take_chunk,
)
from app.repository.publishing import KnownBlob, NewFile, Target
from app.repository.reading import Ask, Brought, Document, Gate, Reader
from app.upload.sessions import Address

blueprint = Blueprint(FORMAT, __name__, url_prefix="/v2")
reads = Reads(blueprint, refusal, scopes.caller_of)

MOST_IMAGES = 1000
MOST_TAGS = 50
_FRESH = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox; default-src 'none'"}
_IMAGE = "/<segment:repository>/<artifact:image>"
_UPLOAD = f"{_IMAGE}/blobs/uploads/<segment:upload>"


# Who is there (end-1), and the token service


@blueprint.get("/")
def base() -> Response:
    """Clients ask here how to log in, even where they could read without: so nobody is refused."""
    shown = scopes.caller()
    if shown.identity is None and "arkvory.pass" not in request.environ:
        raise Unauthenticated("log in, or get a token for nobody")
    return Response("{}", 200, VERSION, content_type="application/json")


@blueprint.get("/token")
def get_token() -> Response:
    return _json(tokens.answer_get())


@blueprint.post("/token")
def post_token() -> Response:
    return _json(tokens.answer_post())


# Pulling (end-2, end-3)


@reads.get(f"{_IMAGE}/manifests/<segment:reference>")
def manifest(asked: Asked, repository: str, image: str, reference: str) -> Read:
    """A manifest by tag or digest, as it was pushed."""
    if is_digest(reference):
        return FileRead(manifest_path(check_image(image), str(parse_digest(reference))), _manifest, told_by_head=True)
    # What a tag means is wanted again when the upstream is away: a proxy fetches the manifest too.
    return FileRead(manifest_path(check_image(image), reference), _manifest)


@reads.get(f"{_IMAGE}/blobs/<segment:digest>")
def blob(asked: Asked, repository: str, image: str, digest: str) -> Read:
    """A blob of an image. Whoever asks whether it is there may push a manifest that names it."""
    return FileRead(blob_path(check_image(image), parse_digest(digest)), _blob, renews=True, told_by_head=True)


def _manifest(gate: Gate) -> Description:
    reference = reference_of(gate.path)
    # Of a tag that a proxy hands on without storing it: what the upstream says.
    told = next((f"{name}:{encoded}" for name, encoded in gate.checksums.items() if name in ALGORITHMS), "")
    digest = reference if is_digest(reference) else gate.metadata.get(DIGEST, told)
    headers = {"Docker-Content-Digest": digest} if digest else {}
    return Description(gate.digest, gate.content_type, _FRESH | VERSION | headers, gate.updated_at)


def _blob(gate: Gate) -> Description:
    headers = _FRESH | VERSION | {"Docker-Content-Digest": reference_of(gate.path)}
    return Description(gate.digest, gate.content_type, headers, gate.updated_at)


# Discovery (end-8, end-12)


@reads.get(f"{_IMAGE}/tags/list")
def tags(asked: Asked, repository: str, image: str) -> Read:
    name = scopes.shown_name(asked.environ, f"{repository}/{image}")
    wanted = TagList(check_image(image), name, _limit(asked), asked.argument("last") or "")
    return DocumentRead(image, wanted, _document, made_of=tags_path(image))


@reads.get(f"{_IMAGE}/referrers/<segment:digest>")
def referrers(asked: Asked, repository: str, image: str, digest: str) -> Read:
    name, kind = scopes.shown_name(asked.environ, f"{repository}/{image}"), asked.argument("artifactType") or ""
    wanted = ReferrerList(image, name, str(parse_digest(digest)), kind, asked.argument("last") or "")
    return ReferrersRead(check_image(image), wanted, _document, made_of=referrers_path(image, wanted.digest))


@dataclass(frozen=True, slots=True)
class ReferrersRead(DocumentRead):
    """Where the upstream of a proxy has no list, nothing refers to it: that is an empty list, not none."""

    def load(self, reader: Reader, ask: Ask, environ: Mapping[str, Any]) -> Loaded:
        try:
            return DocumentRead.load(self, reader, ask, environ)
        except NotFound:
            return Loaded(reader.passing_document(ask, self.source, _Empty()), None)


class _Empty:
    """See `Shelf`."""

    def find(self, connection: Connection, snapshot: Snapshot, path: str) -> Callable[[], Brought]:
        raise NotFound(f"there is no {path!r} in repository {snapshot.name!r}")


def _document(made: Document) -> Description:
    return Description(made.etag, made.content_type, _FRESH | VERSION | dict(made.headers), body=made.body)


def _limit(asked: Asked) -> int | None:
    """Raises Invalid for what is no number."""
    given = asked.argument("n")
    if not given:
        return None
    if not given.isascii() or not given.isdigit() or len(given) > 9:
        raise Invalid("n is a number of items")
    return int(given)


@blueprint.get("/_catalog")
def catalog() -> Response:
    """Images that the caller may read, in all repositories or the one that the host name means."""
    asked, who = asked_now(), scopes.caller()
    limit = min(MOST_IMAGES, MOST_IMAGES if (given := _limit(asked)) is None else given)
    last = scopes.whole_name(asked.environ, asked.argument("last") or "").partition("/")
    only = mapped_repository(asked.environ)
    if who.identity is None and "arkvory.pass" not in request.environ:
        raise Unauthenticated("log in, or get a token for nobody")
    page = parts().listing.packages(who, FORMAT, limit, (last[0], last[2]), only)
    names = [scopes.shown_name(asked.environ, f"{repository}/{image}") for repository, image in page.items]
    answer = _json({"repositories": names})
    if page.after is not None:
        answer.headers.add(*next_link("_catalog", {"n": limit, "last": names[-1]}))
    return answer


# Pushing blobs (end-4, end-5, end-6, end-11, end-13, end-14)


@blueprint.post(f"{_IMAGE}/blobs/uploads")
@blueprint.post(f"{_IMAGE}/blobs/uploads/")
def begin_upload(repository: str, image: str) -> Response:
    """Mount a blob, store one that comes with the request, or begin an upload."""
    target, arguments = _target(repository, image), request.args
    if "mount" in arguments:
        digest = parse_digest(arguments["mount"])
        return _mounted(target, image, digest, arguments.get("from", "")) or _begun(target, image)
    if "digest" in arguments:
        digest = parse_digest(arguments["digest"])
        with parts().publisher.begin(target, blob_path(image, digest)) as session:
            store_blob(session, image, digest, body_size(), body_filler())
        return _stored_blob(target, image, digest)
    return _begun(target, image, algorithms_for(arguments.get("digest-algorithm")))


def _begun(target: Target, image: str, algorithms: Sequence[str] = ()) -> Response:
    snapshot = parts().publisher.may_publish(target, image)
    who = target.caller
    upload_id = parts().sessions.begin(snapshot.id, image, owner_of(who), who.upload_key, algorithms)
    return _upload(202, Address(snapshot.id, image, owner_of(who), upload_id), 0)


def _mounted(target: Target, image: str, digest: Digest, source: str) -> Response | None:
    """Null when it cannot be, for whatever reason: which one is nobody's business."""
    found = _source(target.caller, source, digest)
    if found is None:
        return None
    path = blob_path(image, digest)
    try:
        with parts().publisher.begin(target, path, links=True) as session:
            (linked,) = session.link([found])
            session.publish([NewFile(path, linked, BLOB_TYPE, is_part=True)])
    except NotFound:
        # It went meanwhile; when the repository did, the upload that is begun instead says so.
        return None
    return _stored_blob(target, image, digest)


def _source(who: Caller, name: str, digest: Digest) -> KnownBlob | None:
    whole = scopes.whole_name(request.environ, name)
    repository, _, image = whole.partition("/")
    if not image or not scopes.holds(request.environ, whole, "pull"):
        return None
    return parts().promoter.readable(Target(FORMAT, repository, who), blob_path(image, digest))


@blueprint.patch(_UPLOAD)
def patch_upload(repository: str, image: str, upload: str) -> Response:
    """The next bytes of an upload; 416 with the true offset where they are others."""
    target = _target(repository, image)
    part = chunk(request.headers.get("Content-Range"), body_size(partial=True))
    with parts().publisher.begin(target, image) as session:
        address = address_of(session.snapshot.id, image, target.caller, upload)
        received = take_chunk(session, address, part, body_filler())
    return _upload(202, address, received)


@blueprint.put(_UPLOAD)
def finish_upload(repository: str, image: str, upload: str) -> Response:
    """The end of an upload, perhaps with its last bytes."""
    target = _target(repository, image)
    if "digest" not in request.args:
        raise Invalid("an upload ends with the digest of all of it (?digest=)")
    digest = parse_digest(request.args["digest"])
    part = chunk(request.headers.get("Content-Range"), body_size(partial=True))
    with parts().publisher.begin(target, blob_path(image, digest)) as session:
        address = address_of(session.snapshot.id, image, target.caller, upload)
        finish_blob(session, address, digest, part, body_filler())
    return _stored_blob(target, image, digest)


@blueprint.get(_UPLOAD)
def show_upload(repository: str, image: str, upload: str) -> Response:
    """How far an upload is."""
    address = _own_upload(repository, image, upload)
    return _upload(204, address, parts().sessions.received(address))


@blueprint.delete(_UPLOAD)
def cancel_upload(repository: str, image: str, upload: str) -> Response:
    parts().sessions.cancel(_own_upload(repository, image, upload))
    return Response(status=204)


def _own_upload(repository: str, image: str, upload: str) -> Address:
    target = _target(repository, image)
    snapshot = parts().publisher.may_publish(target, image)
    return address_of(snapshot.id, image, target.caller, upload)


def _upload(status: int, address: Address, received: int) -> Response:
    headers = {
        "Location": _address(f"{address.target}/blobs/uploads/{address.id}"),
        "Range": received_range(received),
        "Docker-Upload-UUID": str(address.id),
    }
    return Response(status=status, headers=VERSION | headers)


def _stored_blob(target: Target, image: str, digest: Digest) -> Response:
    headers = {"Location": _address(f"{image}/blobs/{digest}"), "Docker-Content-Digest": str(digest)}
    return Response(status=201, headers=VERSION | headers)


# Pushing manifests (end-7)


@blueprint.put(f"{_IMAGE}/manifests/<segment:reference>")
def put_manifest(repository: str, image: str, reference: str) -> Response:
    """A manifest under a tag or its digest, in which case `?tag=` names more."""
    target = _target(repository, image)
    more = _more_tags(reference)
    pushed = _pushed(target, image, reference, more)
    headers = {"Location": _address(f"{image}/manifests/{reference}"), "Docker-Content-Digest": str(pushed.digest)}
    if pushed.manifest.subject is not None:
        headers["OCI-Subject"] = pushed.manifest.subject
    if more:
        headers["OCI-Tag"] = ", ".join(more)
    return Response(status=201, headers=VERSION | headers)


def _pushed(target: Target, image: str, reference: str, more: Sequence[str]) -> Pushed:
    """Through a group once more with what other members have of it, and with what that needs in turn."""
    push: ManifestPush | None = None
    mounts: dict[str, Mount] = {}
    while True:
        with parts().publisher.begin(target, manifest_path(image, reference), conditions()) as session:
            push = push or ManifestPush(image, reference, more, request.headers.get("Content-Type", ""), _manifest_body())
            try:
                return store_manifest(session, push, conditions(), mounted(session, list(mounts.values())))
            except MissingParts as error:
                missing = error
        mounts |= found_elsewhere(target, image, missing, mounts.keys())


def _more_tags(reference: str) -> list[str]:
    """Raises BadName, BadDigest, or Invalid for more than can be."""
    if not is_digest(reference):
        check_tag(reference)
        return []
    parse_digest(reference)
    more = list(dict.fromkeys(check_tag(each) for each in request.args.getlist("tag")))
    if len(more) > MOST_TAGS:
        raise Invalid(f"a manifest is pushed with at most {MOST_TAGS} tags at once")
    return more


def _manifest_body() -> bytes:
    try:
        return read_small(body_size(), MOST_BYTES)
    except TooLarge:
        raise TooLarge(f"a manifest has at most {MOST_BYTES} bytes") from None


# Deleting (end-9, end-10)


@blueprint.delete(f"{_IMAGE}/manifests/<segment:reference>")
def delete_manifest(repository: str, image: str, reference: str) -> Response:
    """A tag alone, or a manifest with all tags that it has."""
    if is_digest(reference):
        parse_digest(reference)
    parts().editor.delete(_target(repository, image), [manifest_path(image, reference)], conditions())
    return Response(status=202, headers=VERSION)


@blueprint.delete(f"{_IMAGE}/blobs/<segment:digest>")
def delete_blob(repository: str, image: str, digest: str) -> Response:
    """A blob that no manifest of the image names."""
    parts().editor.delete(_target(repository, image), [blob_path(image, parse_digest(digest))])
    return Response(status=202, headers=VERSION)


# What there is not


@blueprint.route("/<artifact:rest>", methods=["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"], provide_automatic_options=False)
def nothing(rest: str) -> Response:
    """Also for methods that an address does not take. Nobody learns which is which without a login."""
    if scopes.caller().identity is None:
        raise Unauthenticated("this needs a login")
    wanted = scopes.needed(request.method, request.path)
    if wanted is not None and "/" not in wanted.name:
        raise NotFound(f"{wanted.name!r} alone is no image: {scopes.BEGINNING}")
    if wanted is not None and request.method not in ("GET", "HEAD"):
        raise NotAllowedHere(f"this address does not take {request.method}")
    raise NotFound("there is nothing at this address")


# What they share


def _target(repository: str, image: str) -> Target:
    """Raises BadName."""
    log_fact("repository", repository)
    check_image(image)
    return Target(FORMAT, repository, scopes.caller())


def _address(below: str) -> str:
    """The absolute address of something below the repository, as the client reaches it."""
    repository = str((request.view_args or {})["repository"])
    return f"{scopes.base_of(asked_now())}/v2/{scopes.shown_name(request.environ, f'{repository}/{below}')}"


def _json(document: object) -> Response:
    return Response(json.dumps(document), 200, VERSION | {"Cache-Control": "no-store"}, content_type="application/json")


__all__ = ["blueprint", "reads", "register"]
