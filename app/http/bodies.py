"""The body of the present request as the domain wants it: a `read(n)` and its length."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from flask import request

from app.errors import Invalid
from app.http.forms import Readable


def body_stream() -> Readable:
    """The body; the client is asked to go on (100) at the first read, not before."""
    return cast(Readable, request.environ["wsgi.input"])


def body_reader() -> Callable[[int], bytes]:
    """Reads the body piece by piece."""
    return body_stream().read


def body_filler() -> Callable[[bytearray], int]:
    """Fills a buffer with the next bytes of the body; less than the whole of it only at the end."""
    return cast(Callable[[bytearray], int], request.environ["wsgi.input"].readinto)


def body_size() -> int | None:
    """The announced length in bytes; null for a chunked body. Raises Invalid for a part of one or an encoded one."""
    if "Content-Range" in request.headers:
        raise Invalid("a part of a file cannot be stored by PUT (Content-Range)", field="Content-Range")
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise Invalid("send the bytes as they are to be stored, without Content-Encoding", field="Content-Encoding")
    if request.headers.get("Transfer-Encoding", "").lower() == "chunked":
        return None
    return request.content_length or 0
