"""What comes in: JSON bodies, bounded and strict, and cursors."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import marshmallow
from flask import Request
from webargs.flaskparser import FlaskParser
from werkzeug.exceptions import BadRequest, UnsupportedMediaType

from app.errors import Invalid, TooLarge

BODY_BYTES = 1024 * 1024


class Parser(FlaskParser):
    """webargs' parser with a body of our own reading: at most 1 MiB, only JSON, and nothing in it can fail but as a 4xx."""

    def load_json(self, req: Request, schema: marshmallow.Schema) -> Any:
        """The document, or webargs' mark for no body at all. Raises TooLarge, 415 or 400."""
        data = _body(req)
        if not data:
            return marshmallow.missing
        if req.mimetype != "application/json" and not req.mimetype.endswith("+json"):
            raise UnsupportedMediaType("send JSON, and say so: Content-Type: application/json")
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise BadRequest("the body is not JSON") from None


def _body(req: Request) -> bytes:
    if (req.content_length or 0) > BODY_BYTES:
        raise TooLarge(f"a JSON body has at most {BODY_BYTES} bytes here")
    source = req.environ["wsgi.input"] if _is_delimited(req) else req.stream
    pieces: list[bytes] = []
    size = 0
    while piece := source.read(BODY_BYTES + 1 - size):
        pieces.append(piece)
        size += len(piece)
        if size > BODY_BYTES:
            raise TooLarge(f"a JSON body has at most {BODY_BYTES} bytes here")
    return b"".join(pieces)


def _is_delimited(req: Request) -> bool:
    """Chunked: our own handler's input ends by itself, and Werkzeug would take it for empty."""
    return req.headers.get("Transfer-Encoding", "").lower() == "chunked" and "arkvory.request_id" in req.environ


def cursor_of(key: Sequence[str | int] | None) -> str | None:
    """The key of a page's last item as clients hand it back, opaque to them."""
    if key is None:
        return None
    return base64.urlsafe_b64encode(json.dumps(list(key), ensure_ascii=False).encode()).decode().rstrip("=")


def key_of(cursor: str | None, *kinds: type) -> Any:
    """The key again, a list of values of these `kinds`; null without a cursor. Raises Invalid for one that is not ours."""
    if not cursor:
        return None
    try:
        key = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, RecursionError):
        key = None
    if not isinstance(key, list) or [type(each) for each in key] != list(kinds) or not all(map(_is_usable, key)):
        raise Invalid("this cursor is not one that the server gave out; begin without one", field="cursor")
    return key


def _is_usable(value: Any) -> bool:
    if isinstance(value, int):
        return 0 <= value < 2**63
    return is_text(value)


def is_text(value: str) -> bool:
    """Whether PostgreSQL can hold it: UTF-8 without NUL."""
    try:
        return b"\x00" not in value.encode("utf-8")
    except UnicodeEncodeError:
        return False


def one(key: Any, otherwise: Any) -> Any:
    """The only value of a key, or what stands for the beginning of the list."""
    return key[0] if key else otherwise
