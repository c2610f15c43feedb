"""What a writing request demands of what is there now (RFC 9110, 13)."""

from __future__ import annotations

from flask import request
from werkzeug.datastructures import ETags

from app.repository.publishing import Conditions


def conditions() -> Conditions:
    """If-Match compares strongly: a weak tag matches nothing (RFC 9110, 13.1.1). If-None-Match compares weakly."""
    return Conditions(
        if_match=_tags("If-Match", request.if_match, weak=False), if_none_match=_tags("If-None-Match", request.if_none_match, weak=True)
    )


def _tags(header: str, given: ETags, *, weak: bool) -> frozenset[str] | None:
    if header not in request.headers:
        return None
    return frozenset({"*"}) if given.star_tag else frozenset(given.as_set(include_weak=weak))
