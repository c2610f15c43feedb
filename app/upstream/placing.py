"""Who may say that an upstream is at an address of this machine: whoever reads through it reads as the server does (`outward.py`)."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from sqlalchemy import Connection

from app.access.authority import Authority, has_full_scope
from app.access.identity import Caller
from app.errors import Forbidden
from app.upstream.outward import names_inside


def may_lie_inside(connection: Connection, authority: Authority, caller: Caller, addresses: Iterable[str | None]) -> bool:
    """Whether an upstream may be where only this machine can reach it, since this caller put it there. Raises Forbidden where it is."""
    identity = authority.present(connection, caller)
    may = identity is not None and identity.administrator and has_full_scope(identity)
    if not may and any(names_inside(urlsplit(each).hostname or "") for each in addresses if each):
        raise Forbidden("only an administrator may name an upstream, or its HTTP proxy, at an address of this machine or of its link")
    return may
