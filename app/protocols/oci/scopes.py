"""Who asks, in the words of the Docker token flow: scopes, the challenge that names one, and passes that hold some.

A scope is `repository:{name}:{actions}`. What a pass holds is only the most that it may be used for: the credential behind it is judged
by the same steps as any other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flask import g, request

from app.access import passes
from app.access.decision import DELETE, READ, WRITE, find_repository
from app.access.identity import Caller
from app.errors import ArkvoryError, Forbidden, NotFound, Unauthenticated
from app.http import identity
from app.http.addresses import remote_address
from app.http.hosts import asked_host, mapped_base, mapped_repository
from app.http.parts import Parts, parts
from app.http.paths import raw_path
from app.http.reads import Asked
from app.repository.destination import Target, require_right

FORMAT = "oci"
CATALOG = "registry:catalog"
TOKEN_PATH = "/v2/token"
# An action and the permission that it needs.
PERMISSIONS: Mapping[str, str] = {"pull": READ, "push": WRITE, "delete": DELETE}
# Names that need an encoding, or more characters, are no names of images.
_LONGEST_NAME = 1000
BEGINNING = "an image's name begins with the repository: REPOSITORY/NAME:TAG behind the host"
_ADDRESS = re.compile(r"/v2/(.+)/(?:(manifests|blobs|referrers|tags)/[^/]+|blobs/(uploads)(?:/[^/]*)?)")


class InsufficientScope(Unauthenticated):
    """A pass that does not hold what the request needs, of somebody who may do it: another pass does."""


class UnknownName(NotFound):
    """For who may know which repositories there are: the name of an image begins with none."""


@dataclass(frozen=True, slots=True)
class Scope:
    """`name` is whole: `{repository}/{image}`."""

    name: str
    actions: frozenset[str]

    def __str__(self) -> str:
        return f"repository:{self.name}:{','.join(sorted(self.actions))}"


def needed(method: str, path: str) -> Scope | None:
    """What a request needs, by the whole name; null for an address that is not of an image. The path is the encoded one."""
    found = _ADDRESS.fullmatch(path)
    if found is None:
        return None
    name, _, uploads = found.groups()
    if uploads or method in ("PUT", "POST", "PATCH"):
        return Scope(name[:_LONGEST_NAME], frozenset({"pull", "push"}))
    return Scope(name[:_LONGEST_NAME], frozenset({"delete"} if method == "DELETE" else {"pull"}))


def challenge(asked: Asked, error: ArkvoryError) -> str:
    """`WWW-Authenticate` for a request without what it needs."""
    scope = needed(asked.method, asked.path)
    fields = {"realm": f"{base_of(asked)}{TOKEN_PATH}", "service": service_of(asked)}
    if scope is not None:
        fields["scope"] = str(Scope(shown_name(asked.environ, scope.name), scope.actions))
    elif asked.path.startswith("/v2/_catalog"):
        fields["scope"] = f"{CATALOG}:*"
    if isinstance(error, InsufficientScope):
        fields["error"] = "insufficient_scope"
    return "Bearer " + ",".join(f'{name}="{_quotable(value)}"' for name, value in fields.items())


def _quotable(value: str) -> str:
    return "".join(each for each in value if " " <= each <= "~" and each not in '"\\')


def base_of(asked: Asked) -> str:
    """Of the server, as the client reaches it: at a host name that means a repository, just that host."""
    return mapped_base(asked.environ, asked.settings) or asked.base


def service_of(asked: Asked) -> str:
    """The name by which the token service knows this registry: its host."""
    return asked_host(asked.environ, asked.settings) if mapped_repository(asked.environ) else base_of(asked).partition("://")[2]


def shown_name(environ: Mapping[str, Any], name: str) -> str:
    """What the client calls `{repository}/{image}`."""
    mapped = mapped_repository(environ)
    return name if mapped is None else name.removeprefix(f"{mapped}/")


def whole_name(environ: Mapping[str, Any], name: str) -> str:
    """`{repository}/{image}`, from what the client calls it."""
    mapped = mapped_repository(environ)
    return name if mapped is None else f"{mapped}/{name}"


# Who asks


def caller_of(house: Parts, environ: dict[str, Any]) -> Caller:
    """As everywhere, and by a pass too. Raises Unauthenticated, InsufficientScope, or Forbidden for who may not do it by any pass."""
    secret = _pass_in(environ)
    if secret is None:
        return identity.caller_of(house, environ)
    shown = house.passes.read(secret)
    if shown.renews:
        raise Unauthenticated("this token only gets others; ask the token service for one")
    found = Caller(house.passes.bearer(shown), remote_address(environ))
    if found.identity is not None:
        identity.note(environ, "user", found.identity.name)
    wanted = needed(environ["REQUEST_METHOD"], raw_path(environ))
    if wanted is not None and not wanted.actions <= shown.access.get(wanted.name, frozenset()):
        _refuse(house, found, wanted)
    environ["arkvory.pass"] = shown
    return found


def caller() -> Caller:
    """That of the present request, found out once."""
    known: Caller | None = g.get("arkvory_oci_caller")
    if known is None:
        known = g.arkvory_oci_caller = caller_of(parts(), request.environ)
    return known


def holds(environ: Mapping[str, Any], name: str, action: str) -> bool:
    """Whether the present request's pass, if it came with one, is good for this too."""
    shown: passes.Pass | None = environ.get("arkvory.pass")
    return shown is None or action in shown.access.get(name, frozenset())


def _pass_in(environ: Mapping[str, Any]) -> str | None:
    scheme, _, secret = str(environ.get("HTTP_AUTHORIZATION", "")).partition(" ")
    secret = secret.strip()
    return secret if scheme.lower() == "bearer" and secret.startswith(passes.PREFIX) else None


def _refuse(house: Parts, who: Caller, wanted: Scope) -> None:
    """Raises."""
    allowed = granted(house, who, wanted)
    if wanted.actions <= allowed:
        raise InsufficientScope("this token is for something else; get one with the scope that is named")
    if who.identity is None:
        raise Unauthenticated("this needs a login")
    repository = wanted.name.partition("/")[0]
    if not allowed and _knows_all(who) and not _is_there(house, who, repository):
        raise UnknownName(f"there is no OCI repository {repository!r}; {BEGINNING}")
    actions = ", ".join(sorted(wanted.actions - allowed))
    raise Forbidden(f"{who.identity.name!r} may not {actions} here ({wanted.name}), or there is no repository {repository!r}; {BEGINNING}")


def _knows_all(who: Caller) -> bool:
    identity = who.identity
    return identity is not None and identity.administrator and (identity.token is None or identity.token.repositories is None)


def _is_there(house: Parts, who: Caller, repository: str) -> bool:
    with house.database.consistent() as connection:
        try:
            find_repository(connection, who, repository, format_name=FORMAT)
        except NotFound:
            return False
        return True


def granted(house: Parts, who: Caller, asked: Scope) -> frozenset[str]:
    """Those of the actions that the caller may do now, from the database; `asked.name` is whole."""
    repository, _, image = asked.name.partition("/")
    target = Target(FORMAT, repository, who)
    with house.database.consistent() as connection:
        return frozenset(_allowed(house, connection, target, image, asked.actions))


def _allowed(house: Parts, connection: Any, target: Target, image: str, actions: Iterable[str]) -> Iterable[str]:
    for action in actions:
        try:
            _require(house, connection, target, PERMISSIONS[action], image)
        except ArkvoryError:
            continue
        yield action


def _require(house: Parts, connection: Any, target: Target, permission: str, image: str) -> None:
    """Reading is the repository's own to say; the rest is asked where it goes to."""
    if permission != READ:
        require_right(connection, house.access, target, permission, image)
        return
    snapshot = find_repository(connection, target.caller, target.repository, format_name=target.format)
    house.access.require_now(connection, target.caller, snapshot, permission, image)
