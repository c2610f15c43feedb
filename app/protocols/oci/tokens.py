"""The token service (Docker's token authentication, by GET and by OAuth2's POST): a pass for a credential.

It holds what the credential may do of what was asked. A wrong credential is refused; without one, there is a pass for nobody, with what
anyone may do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from flask import request
from werkzeug.datastructures import MultiDict

from app.access.identity import Caller, Credential
from app.errors import Invalid, Unauthenticated
from app.http import identity
from app.http.addresses import remote_address
from app.http.bodies import body_size, read_small
from app.http.parts import parts
from app.http.responses import json_time
from app.protocols.oci.scopes import CATALOG, PERMISSIONS, Scope, granted, whole_name

SECONDS = 300
RENEWAL_SECONDS = 30 * 24 * 3600
MOST_SCOPES = 100
MOST_FORM_BYTES = 64 * 1024
_SCOPE = re.compile(r"([a-z0-9]+)(?:\([a-z0-9]+\))?:(.{1,600}):([a-z*]+(?:,[a-z*]+)*|)")


def answer_get() -> Mapping[str, Any]:
    """`GET`, with the credential in the request's head. Raises Unauthenticated, TooManyLogins or Invalid."""
    who = identity.caller_of(parts(), request.environ)
    renewal = request.args.get("offline_token", "").lower() in {"true", "1"}
    return _answer(who, request.args.getlist("scope"), renewal=renewal)


def answer_post() -> Mapping[str, Any]:
    """`POST` of a form, with the credential in it. Raises as `answer_get`."""
    form = _form()
    renewal = form.get("access_type") == "offline"
    return _answer(_of_form(form), form.getlist("scope"), renewal=renewal)


def _form() -> MultiDict[str, str]:
    if request.mimetype != "application/x-www-form-urlencoded":
        raise Invalid("the token service takes a form (application/x-www-form-urlencoded)")
    from urllib.parse import parse_qsl

    try:
        return MultiDict(parse_qsl(read_small(body_size(), MOST_FORM_BYTES).decode(), keep_blank_values=True, max_num_fields=1000))
    except ValueError:
        raise Invalid("the form is malformed") from None


def _of_form(form: MultiDict[str, str]) -> Caller:
    house, address = parts(), remote_address(request.environ)
    if form.get("grant_type") == "password":
        credential = Credential(form.get("username", ""), form.get("password", ""))
        return Caller(house.identities.identify(credential, address), address)
    if form.get("grant_type") == "refresh_token":
        shown = house.passes.read(form.get("refresh_token", ""))
        if not shown.renews:
            raise Unauthenticated("this is no refresh token")
        return Caller(house.passes.bearer(shown), address)
    raise Invalid("grant_type is password or refresh_token")


def _answer(who: Caller, asked: Iterable[str], *, renewal: bool) -> Mapping[str, Any]:
    house, issued = parts(), datetime.now(UTC)
    if who.identity is None and not house.access.installation.switches().anonymous:
        raise Unauthenticated("this server needs a login")
    access = _access(who, asked)
    token = house.passes.make(who.identity, access, SECONDS)
    answer = {"token": token, "access_token": token, "expires_in": SECONDS, "issued_at": json_time(issued.replace(microsecond=0))}
    answer["scope"] = " ".join(f"repository:{name}:{','.join(sorted(actions))}" for name, actions in access.items())
    if renewal and who.identity is not None:
        answer["refresh_token"] = house.passes.make(who.identity, {}, RENEWAL_SECONDS, renews=True)
    return answer


def _access(who: Caller, asked: Iterable[str]) -> dict[str, frozenset[str]]:
    """Actions by the images' whole names: what was asked and may be done. Raises Invalid."""
    texts = [each for one in asked for each in one.split(" ") if each]
    if len(texts) > MOST_SCOPES:
        raise Invalid(f"a token has at most {MOST_SCOPES} scopes")
    wanted: dict[str, frozenset[str]] = {}
    for text in texts:
        scope = _scope(text)
        if scope is not None:
            wanted[scope.name] = wanted.get(scope.name, frozenset()) | scope.actions
    found = {name: granted(parts(), who, Scope(name, actions)) for name, actions in wanted.items()}
    return {name: actions for name, actions in found.items() if actions}


def _scope(text: str) -> Scope | None:
    """Null for what is of no image: the catalogue shows each caller their own. Raises Invalid."""
    if text.startswith(f"{CATALOG}:"):
        return None
    found = _SCOPE.fullmatch(text)
    if found is None:
        raise Invalid("a scope is of the form repository:NAME:pull,push")
    kind, name, actions = found.groups()
    if kind != "repository":
        return None
    known = set(actions.split(","))
    return Scope(whole_name(request.environ, name), frozenset(PERMISSIONS if "*" in known else known & set(PERMISSIONS)))
