"""From the domain's errors to the envelope and the codes of the distribution specification ("Error Codes")."""

from __future__ import annotations

import json
from collections.abc import Mapping

from flask import Flask, Response
from werkzeug.exceptions import HTTPException

from app import errors
from app.http.errors import answer_below, headers_of, status_of
from app.http.reads import Asked, asked_now
from app.protocols.oci.manifests import BadManifest
from app.protocols.oci.names import BadDigest, BadName
from app.protocols.oci.scopes import UnknownName, base_of, challenge, shown_name

# The nearest class in an error's ancestry decides; what is not here depends on the address.
_CODES: Mapping[type[errors.ArkvoryError], str] = {
    BadName: "NAME_INVALID",
    BadDigest: "DIGEST_INVALID",
    BadManifest: "MANIFEST_INVALID",
    errors.DigestMismatch: "DIGEST_INVALID",
    errors.MissingParts: "MANIFEST_BLOB_UNKNOWN",
    UnknownName: "NAME_UNKNOWN",
    errors.UploadUnknown: "BLOB_UPLOAD_UNKNOWN",
    errors.WrongOffset: "BLOB_UPLOAD_INVALID",
    errors.BodyCutShort: "SIZE_INVALID",
    errors.TooLarge: "SIZE_INVALID",
    errors.Unauthenticated: "UNAUTHORIZED",
    errors.Forbidden: "DENIED",
    errors.CapacitySpent: "DENIED",
    errors.Conflict: "DENIED",
    errors.NotAllowedHere: "UNSUPPORTED",
    errors.StillNeeded: "UNSUPPORTED",
    errors.TooManyUploads: "TOOMANYREQUESTS",
    errors.TooManyLogins: "TOOMANYREQUESTS",
    # Not of the specification, whose codes are for 4xx.
    errors.Unavailable: "UNAVAILABLE",
}
# Clients send a request again that is answered by 5xx: what no repetition helps is 403 here.
_STATUS: Mapping[type[errors.ArkvoryError], int] = {
    errors.CapacitySpent: 403,
    errors.MissingParts: 404,
    errors.StillNeeded: 405,
}
VERSION = {"Docker-Distribution-Api-Version": "registry/2.0"}


def refusal(error: errors.ArkvoryError, asked: Asked) -> Response:
    """The answer, with the challenge for what was asked where the request lacks a login."""
    headers = headers_of(error) | VERSION
    if isinstance(error, errors.Unauthenticated):
        headers["WWW-Authenticate"] = challenge(asked, error)
    if isinstance(error, errors.StillNeeded):
        headers["Allow"] = "GET, HEAD"
    if isinstance(error, errors.WrongOffset):
        headers |= {"Range": received_range(error.received), "Location": f"{base_of(asked)}/v2/{shown_name(asked.environ, asked.path[4:])}"}
    detail = error.paths[:100] if isinstance(error, errors.MissingParts) else None
    return envelope(_status(error), _code(error, asked.path), error.message, headers, detail)


def register(app: Flask) -> None:
    """In this form too: what goes wrong before any route is found."""
    answer_below(app, "/v2/", {errors.ArkvoryError: lambda error: refusal(error, asked_now()), HTTPException: _http_refusal})


def _http_refusal(error: HTTPException) -> Response:
    answer = error.get_response()
    kept = {name: value for name, value in answer.headers if name == "Allow"}
    code = "UNSUPPORTED" if answer.status_code == 405 else "NAME_UNKNOWN" if answer.status_code == 404 else "NAME_INVALID"
    return envelope(answer.status_code, code, error.description or error.name, kept | VERSION)


def envelope(status: int, code: str, message: str, headers: Mapping[str, str], detail: object = None) -> Response:
    """`{"errors": [...]}`."""
    body = json.dumps({"errors": [{"code": code, "message": message, "detail": detail}]})
    return Response(body, status, dict(headers), content_type="application/json")


def received_range(received: int) -> str:
    """The `Range` of an upload that has so many bytes; of an empty one it is `0-0`, for want of another way to say it."""
    return f"0-{max(0, received - 1)}"


def _status(error: errors.ArkvoryError) -> int:
    return next((_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS), 0) or status_of(error)


def _code(error: errors.ArkvoryError, path: str) -> str:
    found = next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), None)
    if found == "SIZE_INVALID" and "/manifests/" in path:
        return "MANIFEST_INVALID"
    return found or _by_address(path, unknown=isinstance(error, errors.NotFound))


def _by_address(path: str, *, unknown: bool) -> str:
    if "/blobs/uploads" in path:
        return "NAME_UNKNOWN" if unknown else "BLOB_UPLOAD_INVALID"
    if "/blobs/" in path:
        return "BLOB_UNKNOWN" if unknown else "DIGEST_INVALID"
    if "/manifests/" in path:
        return "MANIFEST_UNKNOWN" if unknown else "MANIFEST_INVALID"
    return "NAME_UNKNOWN" if unknown else "UNSUPPORTED"
