"""From the domain's errors to HTTP, in one place; each room renders them in its client's own form."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException

from app import errors
from app.repository.formats import FORMATS

log = logging.getLogger(__name__)

Render = Callable[[Any], Any]

CHALLENGE = 'Basic realm="Arkvory", charset="UTF-8"'
# The nearest class in an error's ancestry decides.
STATUS: dict[type[errors.ArkvoryError], int] = {
    errors.Invalid: 400,
    errors.Unauthenticated: 401,
    errors.Forbidden: 403,
    errors.NotFound: 404,
    errors.NotAllowedHere: 405,
    errors.Conflict: 409,
    errors.PreconditionFailed: 412,
    errors.WrongOffset: 416,
    errors.TooLarge: 413,
    errors.TooManyUploads: 429,
    errors.TooManyLogins: 429,
    errors.Unavailable: 503,
    errors.UpstreamFailed: 502,
    errors.UpstreamBusy: 503,
    errors.UpstreamTimedOut: 504,
    errors.CapacitySpent: 507,
}


def status_of(error: errors.ArkvoryError) -> int:
    """The HTTP status; 500 for a kind that the table does not know."""
    return next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)


def headers_of(error: errors.ArkvoryError) -> dict[str, str]:
    """Challenge, Retry-After and Allow, where the status asks for one."""
    if isinstance(error, errors.Unauthenticated):
        return {"WWW-Authenticate": CHALLENGE}
    if isinstance(error, errors.Later):
        return {"Retry-After": str(error.retry_after)}
    if isinstance(error, errors.NotAllowedHere):
        return {"Allow": "GET, HEAD"}
    return {}


def text_answer(error: errors.ArkvoryError) -> Response:
    """The message as a line of plain text: what curl, pip and browsers show best. Programs find the code in the head, of HEAD too."""
    headers = headers_of(error) | {"X-Arkvory-Error": error.code}
    return Response(f"{error.message}\n", status_of(error), headers, content_type="text/plain; charset=utf-8")


def answer_below(app: Flask, prefix: str, renders: Mapping[type[Exception], Render]) -> None:
    """Let a room answer what goes wrong below its prefix before any of its routes is found; elsewhere whoever did goes on answering."""
    handlers = app.error_handler_spec[None][None]
    for kind, render in renders.items():
        app.register_error_handler(kind, _only_below(prefix, render, handlers.get(kind)))


def _only_below(prefix: str, render: Render, otherwise: Any) -> Render:
    def answer(error: Any) -> Any:
        if request.path.startswith(prefix):
            return render(error)
        if otherwise is None:
            raise error
        return otherwise(error)

    return answer


# In place of Werkzeug's own words.
DETAILS = {
    404: "There is nothing at this address: repositories are below " + ", ".join(each.address("NAME") for each in FORMATS.values()) + ".",
    405: "This address does not take that method.",
}


def register(app: Flask) -> None:
    """Handlers for everything that no room answers itself."""
    app.register_error_handler(errors.ArkvoryError, text_answer)
    app.register_error_handler(HTTPException, _http_answer)
    app.register_error_handler(Exception, _unexpected)


def _http_answer(error: HTTPException) -> Response:
    answer = error.get_response()
    kept = {name: value for name, value in answer.headers if name in {"Allow", "Location"}}
    stock = error.description == type(error).description
    words = (DETAILS.get(answer.status_code) if stock else None) or error.description or error.name
    return Response(f"{words}\n", answer.status_code, kept, mimetype="text/plain")


def _unexpected(error: Exception) -> Response:
    request_id = request.environ.get("arkvory.request_id", "")
    log.error("request %s failed: %s %s", request_id, request.method, request.path, exc_info=error)
    return Response(f"The server failed at this request (id {request_id}).\n", 500, mimetype="text/plain")
