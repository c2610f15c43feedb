"""The body of the present request as the domain wants it: a `read(n)` and its length."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from flask import request

from app.errors import Invalid, TooLarge
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


def body_size(*, partial: bool = False) -> int | None:
    """The announced length in bytes; null for a chunked body. Raises Invalid for an encoded one, and unless `partial` for a part."""
    if "Content-Range" in request.headers and not partial:
        raise Invalid("a part of a file cannot be stored by PUT (Content-Range)", field="Content-Range")
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise Invalid("send the bytes as they are to be stored, without Content-Encoding", field="Content-Encoding")
    if request.headers.get("Transfer-Encoding", "").lower() == "chunked":
        return None
    return request.content_length or 0


def read_small(size: int | None, most: int) -> bytes:
    """The whole body, of `size` bytes where that is known. Raises TooLarge for more than `most`, before reading where it can."""
    check_size(size, most)
    read = body_reader()
    body = b""
    while piece := read(most + 1 - len(body)):
        body += piece
        check_size(len(body), most)
    return body


def check_size(size: int | None, most: int) -> None:
    """Raises TooLarge."""
    if size is not None and size > most:
        raise TooLarge(f"at most {most} bytes are read here")
