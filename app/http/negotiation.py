"""Which of our representations a client wants."""

from __future__ import annotations

import functools

from werkzeug.datastructures import MIMEAccept
from werkzeug.http import parse_accept_header

# Clients of one kind send the same few headers all the time.
_REMEMBERED = 256


@functools.lru_cache(_REMEMBERED)
def prefers_json(asked: str | None, accept: str | None) -> bool:
    """True when JSON is `asked` for (`?format=json`), or liked better than HTML by `Accept`; HTML when both are welcome alike."""
    if asked in {"json", "html"}:
        return asked == "json"
    accepted = parse_accept_header(accept, MIMEAccept)
    return accepted["application/json"] > accepted["text/html"]


@functools.lru_cache(_REMEMBERED)
def takes_gzip(accept_encoding: str | None) -> bool:
    """Whether the client says that it does; without a header nobody is surprised with it."""
    return accept_encoding is not None and parse_accept_header(accept_encoding).quality("gzip") > 0
