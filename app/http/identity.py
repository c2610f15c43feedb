"""Who sends this request: Basic with password or token (any user name), or Bearer."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any

from flask import g, request
from werkzeug.datastructures import Authorization

from app.access.identity import LOCAL, Caller, Credential, Identity
from app.errors import Unauthenticated
from app.http.addresses import remote_address
from app.http.parts import Parts, parts


def caller() -> Caller:
    """The caller of the present request, found out once. Raises Unauthenticated for a wrong credential, on public repositories too."""
    known: Caller | None = g.get("arkvory_caller")
    if known is None:
        known = g.arkvory_caller = caller_of(parts(), request.environ)
    return known


def caller_of(house: Parts, environ: dict[str, Any]) -> Caller:
    """The caller of a request, from its WSGI environment. Raises as `caller`."""
    found = Caller(_identity(house, environ), remote_address(environ))
    if found.identity is not None:
        note(environ, "user", found.identity.name)
    if house.pacing is not None:
        environ["arkvory.lane"] = house.pacing.lane(found.upload_key)
    return found


def log_fact(name: str, value: str) -> None:
    """Add a field to the present request's line in the access log."""
    note(request.environ, name, value)


def note(environ: dict[str, Any], name: str, value: str) -> None:
    """The same for the request of a WSGI environment."""
    environ.setdefault("arkvory.log", {})[name] = value


def _identity(house: Parts, environ: Mapping[str, Any]) -> Identity | None:
    form = environ.get("HTTP_AUTHORIZATION")
    if form is None:
        return None
    identities = house.identities
    digest = identities.digests.of_form(form)
    if digest is not None and (kept := identities.kept(digest)) is not None:
        return kept
    credential = _credential(form, house.local_secret)
    if credential is None:
        return LOCAL
    if digest is not None:
        return identities.fetch(digest, credential, remote_address(environ))
    identity = identities.identify(credential, remote_address(environ))
    identities.digests.remember(form, credential)
    return identity


def _credential(form: str, local_secret: str) -> Credential | None:
    """What stands in an Authorization header; null for the secret of this machine's commands. Raises Unauthenticated."""
    given = Authorization.from_header(form)
    if given is None or given.type not in {"basic", "bearer"}:
        raise Unauthenticated("the Authorization header is neither Basic nor Bearer, or malformed")
    if given.type == "basic":
        return Credential(given.username or "", given.password or "")
    token = given.token or ""
    if local_secret and hmac.compare_digest(token.encode(), local_secret.encode()):
        return None
    if not Credential("", token).is_token:
        raise Unauthenticated("the Bearer token is not one of this server's")
    return Credential("", token)
