"""/repositories/{name}/uploads: files that come in parts, in any order, several at once, over any number of connections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from flask import Response, jsonify, request

from app.api.answers import Document, page_document, upload_document
from app.api.blueprints import PREFIX, Blueprint
from app.api.parsing import is_text, key_of, one
from app.api.schemas import ArtifactOut, CompletionIn, NewUploadIn, PageQuery, PartOut, UploadOut, listed
from app.errors import Invalid, UploadClosed
from app.http.addresses import public_base
from app.http.bodies import body_filler, body_size
from app.http.digests import announced
from app.http.identity import caller, log_fact
from app.http.parts import parts
from app.http.preconditions import conditions
from app.repository.multipart import Door, PartBody, Wanted
from app.upload.multipart import Upload

blueprint = Blueprint("uploads", "Uploads in parts")
Answer = tuple[Document, int, dict[str, str]]

# When to ask again how an upload is that goes on by itself, in seconds.
ASK_AGAIN = 2
LONGEST_KEY = 255
# The id of no upload.
NOBODYS = UUID(int=0)
_BODY = {"required": True, "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}


@blueprint.route("/repositories/<name>/uploads", methods=["POST"])
@blueprint.arguments(NewUploadIn)
@blueprint.response(201, UploadOut)
@blueprint.otherwise(200, UploadOut)
@blueprint.noted(parameters=[{"in": "header", "name": "Idempotency-Key", "schema": {"type": "string"}}])
def create_upload(body: dict[str, Any], name: str) -> Answer:
    """Begin an upload in parts; the same request under the same Idempotency-Key is the same upload, with 200"""
    log_fact("repository", name)
    upload, fresh = parts().uploads.create(_door(name), Wanted(**body, conditions=conditions(), key=_key()))
    (document,) = _documents([upload])
    return document, 201 if fresh else 200, {"Location": f"{public_base(request)}{PREFIX}/repositories/{name}/uploads/{upload.id}"}


@blueprint.route("/repositories/<name>/uploads")
@blueprint.arguments(PageQuery, location="query")
@blueprint.response(200, listed(UploadOut))
def list_uploads(query: dict[str, Any], name: str) -> Document:
    """Uploads in parts by id: the caller's own, or all for who manages the repository; those that ended for a day"""
    page = parts().uploads.list(_door(name), query["limit"], _after(query["cursor"]))
    documents = {document["id"]: document for document in _documents(page.items)}
    return page_document(page, lambda upload: documents[str(upload.id)])


@blueprint.route("/repositories/<name>/uploads/<id>")
@blueprint.response(200, UploadOut)
def show_upload(name: str, id: str) -> Document:
    """How far an upload in parts is"""
    (document,) = _documents([parts().uploads.show(_door(name), _uuid(id))])
    return document


@blueprint.route("/repositories/<name>/uploads/<id>", methods=["DELETE"])
@blueprint.response(204)
def cancel_upload(name: str, id: str) -> None:
    """Cancel an upload in parts; its bytes are given back"""
    log_fact("repository", name)
    parts().uploads.cancel(_door(name), _uuid(id))


@blueprint.route("/repositories/<name>/uploads/<id>/parts")
@blueprint.arguments(PageQuery, location="query")
@blueprint.response(200, listed(PartOut))
def list_parts(query: dict[str, Any], name: str, id: str) -> Document:
    """Parts that are there, by number"""
    page = parts().uploads.parts(_door(name), _uuid(id), query["limit"], one(key_of(query["cursor"], int), 0))
    return page_document(page, lambda part: part)


@blueprint.route("/repositories/<name>/uploads/<id>/parts/<int:number>", methods=["PUT"])
@blueprint.response(200, PartOut)
@blueprint.noted(requestBody=_BODY)
def send_part(name: str, id: str, number: int) -> Any:
    """Send a part, or send it again, in any order; with its digest announced, the same again is answered before it is read"""
    log_fact("repository", name)
    return parts().uploads.send(_door(name), _uuid(id), number, PartBody(body_size(), announced(request.headers), body_filler()))


@blueprint.route("/repositories/<name>/uploads/<id>/complete", methods=["POST"])
@blueprint.arguments(CompletionIn)
@blueprint.response(201, ArtifactOut)
@blueprint.otherwise(202, UploadOut)
def complete_upload(body: dict[str, Any], name: str, id: str) -> Any:
    """Publish what the parts make up: 201 with the artifact, or 202 with the upload where that takes longer and goes on by itself"""
    log_fact("repository", name)
    (document,) = _documents([parts().uploads.complete(_door(name), _uuid(id), body["sha256"])])
    if document["artifact"] is not None:
        return document["artifact"], 201, {"Location": document["artifact"]["url"]}
    return _not_done(document)


def _not_done(document: Document) -> Response:
    """Raises UploadClosed for one that had its end before."""
    if document["state"] not in ("open", "completing"):
        why = document["error"]["detail"] if document["error"] else "its artifact has been replaced or deleted since"
        raise UploadClosed(f"this upload is {document['state']}: {why}")
    answer = jsonify(UploadOut().dump(document))
    answer.status_code = 202
    answer.headers["Retry-After"] = str(ASK_AGAIN)
    return answer


def _documents(uploads: Sequence[Upload]) -> list[Document]:
    names = parts().uploads.repository_names(uploads)
    ended = [(each.plan.repository_id, each.plan.path, each.id) for each in uploads if each.state == "published"]
    artifacts = parts().listing.of_uploads(ended) if ended else {}
    return [upload_document(each, names.get(each.plan.repository_id, ""), artifacts.get(each.id)) for each in uploads]


def _door(name: str) -> Door:
    return Door(name, caller())


def _uuid(id: str) -> UUID:
    """What is none is nobody's: who asks is looked at first, as for any other upload that is not there."""
    try:
        return UUID(id)
    except ValueError:
        return NOBODYS


def _after(cursor: str | None) -> str:
    after = str(one(key_of(cursor, str), ""))
    try:
        return str(UUID(after)) if after else ""
    except ValueError:
        raise Invalid("this cursor is not one of this list's; begin without one", field="cursor") from None


def _key() -> str | None:
    key = request.headers.get("Idempotency-Key")
    if key is not None and not (0 < len(key) <= LONGEST_KEY and is_text(key)):
        raise Invalid(f"an Idempotency-Key has 1 to {LONGEST_KEY} characters", field="Idempotency-Key")
    return key
