"""Who sends this request: Basic with password or token (any user name), or Bearer."""

from __future__ import annotations

import hmac

from flask import Request, g, request

from app.access.identity import LOCAL, Caller, Credential, Identity
from app.errors import Unauthenticated
from app.http.addresses import remote_address
from app.http.parts import Parts, parts


def caller() -> Caller:
    """The caller of the present request, found out once. Raises Unauthenticated for a wrong credential, on public repositories too."""
    known: Caller | None = g.get("arkvory_caller")
    if known is None:
        known = g.arkvory_caller = Caller(_identity(parts(), request), remote_address(request.environ))
        if known.identity is not None:
            log_fact("user", known.identity.name)
    return known


def log_fact(name: str, value: str) -> None:
    """Add a field to the request's line in the access log."""
    request.environ.setdefault("arkvory.log", {})[name] = value


def _identity(house: Parts, asked: Request) -> Identity | None:
    if "Authorization" not in asked.headers:
        return None
    given = asked.authorization
    if given is None or given.type not in {"basic", "bearer"}:
        raise Unauthenticated("the Authorization header is neither Basic nor Bearer, or malformed")
    if given.type == "basic":
        return house.identities.identify(Credential(given.username or "", given.password or ""), remote_address(asked.environ))
    token = given.token or ""
    if house.local_secret and hmac.compare_digest(token.encode(), house.local_secret.encode()):
        return LOCAL
    if not Credential("", token).is_token:
        raise Unauthenticated("the Bearer token is not one of this server's")
    return house.identities.identify(Credential("", token))
