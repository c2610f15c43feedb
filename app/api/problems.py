"""Errors below /api in one form: `application/problem+json` (RFC 9457) with a stable `code`."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException

from app.errors import ArkvoryError, Invalid
from app.http.errors import DETAILS, answer_below, headers_of, status_of

log = logging.getLogger(__name__)

CONTENT_TYPE = "application/problem+json"
# Where HTTP's own name of a status is not the word that the domain uses.
_CODES = {400: "invalid", 401: "unauthenticated", 413: "too_large", 422: "invalid", 500: "failed"}
_DETAILS = DETAILS | {404: "There is nothing at this address; /api/v1/openapi.json lists what there is."}
_KEPT_HEADERS = {"allow", "location", "retry-after", "www-authenticate"}


def register(app: Flask) -> None:
    """Answer below /api ourselves."""
    answer_below(app, "/api/", {ArkvoryError: _domain_problem, HTTPException: _http_problem, Exception: _failure})


def _domain_problem(error: ArkvoryError) -> Response:
    """422 names the field that is wrong; a request that is wrong as a whole, or its path, is 400."""
    field = error.field if isinstance(error, Invalid) else None
    status = status_of(error) if field is None else 422
    fields = None if field is None else {field: [error.message]}
    return problem(status, error.code, error.message, fields, headers_of(error))


def _http_problem(error: HTTPException) -> Response:
    answer = error.get_response()
    status = answer.status_code
    headers = {name: value for name, value in answer.headers if name.lower() in _KEPT_HEADERS}
    messages = getattr(error, "data", {}).get("messages")
    if status == 422 and messages:
        fields = dict(_flat(messages))
        detail = "; ".join(f"{name}: {' '.join(texts)}" for name, texts in fields.items())
        return problem(status, "invalid", detail, fields, headers)
    code = _CODES.get(status) or HTTPStatus(status).name.lower()
    return problem(status, code, _DETAILS.get(status) or error.description or error.name, None, headers)


def _failure(error: Exception) -> Response:
    request_id = _request_id()
    log.error("request %s failed: %s %s", request_id, request.method, request.path, exc_info=error)
    return problem(500, "failed", f"The server failed at this request; its administrator finds the reason under {request_id!r}.")


def problem(
    status: int,
    code: str,
    detail: str,
    fields: Mapping[str, list[str]] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """The answer; `fields` are messages by the name of what is wrong, `field` the first of them."""
    document: dict[str, Any] = {
        "type": f"urn:arkvory:problem:{code}",
        "title": code.replace("_", " ").capitalize(),
        "status": status,
        "detail": detail,
        "code": code,
    }
    if fields:
        document |= {"field": next(iter(fields)), "fields": dict(fields)}
    document["request_id"] = _request_id()
    return Response(json.dumps(document) + "\n", status, dict(headers or {}), content_type=CONTENT_TYPE)


def _request_id() -> str:
    return str(request.environ.get("arkvory.request_id", ""))


def _flat(messages: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """marshmallow's messages lie by place (`json`, `query`), then by field and, in lists, by position."""
    for place in messages.values():
        yield from _flat_fields(place, "")


def _flat_fields(messages: Any, name: str) -> Iterator[tuple[str, list[str]]]:
    if isinstance(messages, Mapping):
        for key, inner in messages.items():
            # `_schema`: the document itself is wrong, not one of its fields.
            below = name if key == "_schema" else f"{name}.{key}" if name else str(key)
            yield from _flat_fields(inner, below)
    else:
        texts = messages if isinstance(messages, list) else [messages]
        yield name or "body", [str(each) for each in texts]
