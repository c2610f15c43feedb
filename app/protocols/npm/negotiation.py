"""Which of the two packuments a client wants."""

from __future__ import annotations

import functools

from werkzeug.datastructures import MIMEAccept
from werkzeug.http import parse_accept_header, parse_options_header

from app.protocols.npm.documents import ABBREVIATED_TYPE, FULL_TYPE


@functools.lru_cache(256)
def wants_abbreviated(accept: str | None) -> bool:
    """Only who names the abbreviated form, and likes the full one no better."""
    if accept is None or ABBREVIATED_TYPE not in accept.lower():
        return False
    accepted = MIMEAccept([(parse_options_header(item)[0], quality) for item, quality in parse_accept_header(accept, MIMEAccept)])
    named = next((quality for item, quality in accepted if item.lower() == ABBREVIATED_TYPE), 0)
    return named > 0 and named >= max((quality for item, quality in accepted if item.lower() == FULL_TYPE), default=0)
