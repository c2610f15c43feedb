"""Which form of the Simple API a client gets: PEP 691 over the rules of RFC 9110, 12.5.1.

The client's q-values decide; among equals the more exact mention does (`text/html` before `text/*` before
`*/*`); among those JSON goes before HTML, since the HTML form is frozen (PEP 833). Only who says nothing
more than `*/*`, or nothing at all, gets plain `text/html`, as clients from before the JSON form expect.
A client that accepts none of ours gets 406 (PEP 691 leaves the choice), with the list of what there is.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

from werkzeug.datastructures import MIMEAccept
from werkzeug.http import parse_accept_header, parse_options_header


@dataclass(frozen=True)
class Representation:
    """A form in which index pages exist; `content_type` is sent with the answer, `media_type` is negotiated."""

    form: Literal["json", "html"]
    media_type: str
    content_type: str


JSON = Representation("json", "application/vnd.pypi.simple.v1+json", "application/vnd.pypi.simple.v1+json")
HTML_V1 = Representation("html", "application/vnd.pypi.simple.v1+html", "application/vnd.pypi.simple.v1+html; charset=utf-8")
HTML = Representation("html", "text/html", "text/html; charset=utf-8")

# In the order in which they are preferred.
_OFFERS = (JSON, HTML_V1, HTML)


@functools.lru_cache(256)
def negotiate(accept: str | None, wanted: str | None = None) -> Representation | None:
    """The form to answer with, or None when the client accepts none of them (406).

    `accept` is the header (None or blank: anything), `wanted` the address's `?format=`, which goes before it.
    """
    if wanted is not None:
        return _named(wanted)
    if accept is None or not accept.strip():
        return HTML
    accepted = _plain(accept)
    ranked = [(*rank, offer) for offer in _OFFERS if (rank := _rank(accepted, offer))]
    if not ranked:
        return None
    quality, exactness, best = max(ranked, key=lambda ranking: ranking[:2])
    anything = exactness == (False, False) and accepted.quality(HTML.media_type) == quality
    return HTML if anything else best


def unacceptable() -> str:
    """Text of the 406 answer."""
    return "None of the types that you accept exists here. There are: " + ", ".join(offer.media_type for offer in _OFFERS) + "."


def _named(wanted: str) -> Representation | None:
    """A `+` in a query means a space to many clients that should have escaped it."""
    name = _present(wanted.strip().replace(" ", "+").lower())
    return next((offer for offer in _OFFERS if offer.media_type == name), None)


def _present(name: str) -> str:
    """`latest` is a name for the version that is the latest now (PEP 691)."""
    return name.replace("application/vnd.pypi.simple.latest+", "application/vnd.pypi.simple.v1+")


def _plain(accept: str) -> MIMEAccept:
    """Without parameters: `charset` and its like do not tell our forms apart, so they may not keep one from matching."""
    parsed = parse_accept_header(accept, MIMEAccept)
    return MIMEAccept([(_present(parse_options_header(item)[0].lower()), quality) for item, quality in parsed])


def _rank(accepted: MIMEAccept, offer: Representation) -> tuple[float, tuple[bool, ...]] | None:
    """Quality and exactness of the most exact mention of a form; None when it is not acceptable."""
    position = accepted.find(offer.media_type)
    if position < 0:
        return None
    item, quality = accepted[position]
    return (quality, tuple(part != "*" for part in item.split("/"))) if quality > 0 else None
