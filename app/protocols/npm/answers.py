"""JSON answers, and the domain's errors as npm shows them: it looks for `error` in the body."""

from __future__ import annotations

import json
from typing import Any

from flask import Response

from app.errors import AlreadyExists, ArkvoryError
from app.http.errors import headers_of, status_of
from app.http.reads import Asked

# A client may keep what it got, but asks each time whether it still holds: the next request sees the commit.
FRESH = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}


def answer(value: Any, status: int = 200, **headers: str) -> Response:
    """JSON that nobody keeps."""
    return Response(json.dumps(value), status, {"Cache-Control": "no-store", **headers}, content_type="application/json")


def refusal(error: ArkvoryError, _asked: Asked) -> Response:
    """The error's message under `error`, its code under `reason`."""
    answered = answer({"error": error.message, "reason": error.code}, status_of(error))
    answered.headers.extend(headers_of(error))
    return answered


def published_before(error: AlreadyExists, version: str, user_agent: str) -> Response:
    """409, and for Lerna, which knows no other, 403 with the public registry's words (its publish command compares them)."""
    words = f"You cannot publish over the previously published versions: {version}."
    return answer({"error": words, "reason": error.code}, 403 if user_agent.startswith("lerna/") else 409)
