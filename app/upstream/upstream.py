"""Upstreams as they are kept: what anyone may see beside what is encrypted.

A description is read for one fetch and dropped. Names stand in `shown`, values that could let somebody in (the password, headers, the
HTTP proxy's address) in `secret`, under the key of `secrets.py`.
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import Connection

from app.database.statements import text
from app.errors import Invalid
from app.upstream.secrets import Secrets

CONNECT_SECONDS, READ_SECONDS, CONNECTIONS = 10.0, 30.0, 16
MOST_SECONDS, MOST_CONNECTIONS = 600.0, 64
MOST_HEADERS, LONGEST_TEXT, LONGEST_CA = 20, 4096, 256 * 1024
_NUMBERS = {
    "connect_seconds": (CONNECT_SECONDS, MOST_SECONDS),
    "read_seconds": (READ_SECONDS, MOST_SECONDS),
    "connections": (CONNECTIONS, MOST_CONNECTIONS),
}
_SECRETS = ("password", "headers", "http_proxy")
FIELDS = ("username", "password", "headers", "ca", "http_proxy", *_NUMBERS)
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# Those that the client itself speaks with.
_OURS = frozenset({"host", "connection", "content-length", "transfer-encoding", "accept-encoding", "range", "te", "upgrade"})


@dataclass(frozen=True)
class Upstream:
    """Where a proxy fetches from, and how; times in seconds. `ca` is PEM text that is believed beside the usual authorities."""

    url: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    ca: str | None = field(default=None, repr=False)
    http_proxy: str | None = field(default=None, repr=False)
    connect_seconds: float = CONNECT_SECONDS
    read_seconds: float = READ_SECONDS
    connections: int = CONNECTIONS
    # Whether it may lie where only this machine can reach it (`outward.py`): an administrator said where it is.
    may_lie_inside: bool = True


def check_url(url: str | None) -> str:
    """Without a slash at its end. Raises Invalid."""
    if url is None or not _is_address(url, ("http", "https")) or urlsplit(url).username is not None:
        raise Invalid("the upstream's address is https://... or http://..., without user name, query and fragment", field="upstream_url")
    if urlsplit(url).query or urlsplit(url).fragment or len(url) > LONGEST_TEXT:
        raise Invalid("the upstream's address has neither query nor fragment", field="upstream_url")
    return url.rstrip("/")


def merged(former: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """All values after the change; null takes one away. Raises Invalid with the field."""
    unknown = sorted(set(change) - set(FIELDS))
    if unknown:
        raise Invalid(f"an upstream has no {unknown[0]!r}; there is: {', '.join(FIELDS)}", field=f"upstream.{unknown[0]}")
    after = {name: value for name, value in {**former, **change}.items() if value is not None}
    for name, value in after.items():
        _check(name, value)
    if "password" in after and "username" not in after:
        raise Invalid("a password needs a user name", field="upstream.username")
    return after


def kept(former: Mapping[str, Any], change: Mapping[str, Any], *, moved: bool) -> dict[str, Any]:
    """What stays of the former values: when requests are to go by another way, no secret that was kept for the way before."""
    if not moved and change.get("http_proxy") is None:
        return dict(former)
    return {name: value for name, value in former.items() if name not in {"username", *_SECRETS}}


def origin(url: str) -> tuple[str, str | None, int | None]:
    """Scheme, host and port."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def read(connection: Connection, secrets: Secrets, repository_id: int) -> Upstream:
    """For one fetch. Raises Unavailable when the secrets cannot be read."""
    row = connection.execute(
        text(
            "select r.upstream_url, coalesce(u.may_lie_inside, true) as may_lie_inside from arkvory_repositories r "
            "left join arkvory_upstreams u on u.repository_id = r.id where r.id = :id"
        ),
        {"id": repository_id},
    ).one()
    return Upstream(row.upstream_url, **values(connection, secrets, repository_id), may_lie_inside=row.may_lie_inside)


def values(connection: Connection, secrets: Secrets, repository_id: int) -> dict[str, Any]:
    """With the secret ones. Raises Unavailable when they cannot be read."""
    row = connection.execute(_DESCRIBED, {"id": repository_id}).first()
    return {} if row is None else opened(secrets, row.shown, row.secret)


def changed(connection: Connection, secrets: Secrets, repository_id: int, change: Mapping[str, Any], *, moved: bool) -> dict[str, Any]:
    """All values after the change. Raises Invalid, and as `staying`."""
    row = connection.execute(_DESCRIBED, {"id": repository_id}).first()
    former = {} if row is None else staying(secrets, row.shown, row.secret, change, moved=moved)
    return merged(former, change)


_DESCRIBED = text("select shown, secret from arkvory_upstreams where repository_id = :id")


def staying(
    secrets: Secrets, described: Mapping[str, Any], secret: str | None, change: Mapping[str, Any], *, moved: bool
) -> dict[str, Any]:
    """As `kept`. Where none of the secrets of before stays, none need be read: the key may be another one by now. Raises Unavailable."""
    stays = not moved and change.get("http_proxy") is None and any(name in described and name not in change for name in _SECRETS)
    return kept(opened(secrets, described, secret if stays else None), change, moved=moved)


def opened(secrets: Secrets, described: Mapping[str, Any], secret: str | None) -> dict[str, Any]:
    """All values, from what is shown of them and the encrypted rest. Raises Unavailable when that cannot be read."""
    hidden = json.loads(secrets.decrypt(secret)) if secret else {}
    return {name: value for name, value in described.items() if name not in _SECRETS} | hidden


def sealed(secrets: Secrets, after: Mapping[str, Any]) -> dict[str, str | None]:
    """`shown` and `secret`, as they are kept."""
    hidden = {name: after[name] for name in _SECRETS if name in after}
    return {"shown": json.dumps(shown(after)), "secret": secrets.encrypt(json.dumps(hidden)) if hidden else None}


def write(connection: Connection, secrets: Secrets, repository_id: int, after: Mapping[str, Any]) -> None:
    """Keep all of it, the secret part encrypted."""
    connection.execute(
        text(
            "insert into arkvory_upstreams (repository_id, shown, secret) values (:id, cast(:shown as jsonb), :secret) "
            "on conflict (repository_id) do update set shown = excluded.shown, secret = excluded.secret"
        ),
        {"id": repository_id, **sealed(secrets, after)},
    )


def let_inside(connection: Connection, repository_id: int, may_lie_inside: bool) -> None:
    """Keep whether it may lie where only this machine can reach it."""
    statement = text(
        "insert into arkvory_upstreams (repository_id, shown, may_lie_inside) values (:id, '{}', :may) "
        "on conflict (repository_id) do update set may_lie_inside = excluded.may_lie_inside"
    )
    connection.execute(statement, {"id": repository_id, "may": may_lie_inside})


def shown(after: Mapping[str, Any]) -> dict[str, Any]:
    """What anyone who may look at the repository sees: whether there is a password, names of headers, the HTTP proxy without its login."""
    seen = {name: value for name, value in after.items() if name not in _SECRETS}
    if "password" in after:
        seen["password"] = True
    if "headers" in after:
        seen["headers"] = sorted(after["headers"])
    if "http_proxy" in after:
        proxy = urlsplit(after["http_proxy"])
        seen["http_proxy"] = f"{proxy.scheme}://{proxy.netloc.rpartition('@')[2]}"
    return seen


def _check(name: str, value: Any) -> None:
    if name in _NUMBERS:
        _check_number(name, value)
    elif name == "headers":
        _check_headers(value)
    elif not isinstance(value, str) or not value or len(value) > (LONGEST_CA if name == "ca" else LONGEST_TEXT) or "\0" in value:
        raise Invalid(f"{name} is text", field=f"upstream.{name}")
    elif name == "ca":
        _check_ca(value)
    elif name == "http_proxy" and not _is_address(value, ("http", "https")):
        raise Invalid("http_proxy is http://host:port, with user:password@ where it asks for them", field="upstream.http_proxy")
    elif name == "username" and ":" in value:
        raise Invalid("a user name has no colon", field="upstream.username")


def _check_number(name: str, value: Any) -> None:
    most = _NUMBERS[name][1]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
        raise Invalid(f"{name} is a number above 0, at most {most:g}", field=f"upstream.{name}")
    if name == "connections" and not isinstance(value, int):
        raise Invalid("connections is a whole number", field="upstream.connections")


def _check_headers(value: Any) -> None:
    if not isinstance(value, dict) or len(value) > MOST_HEADERS:
        raise Invalid(f"headers are at most {MOST_HEADERS} names with their values", field="upstream.headers")
    for name, text_ in value.items():
        if not isinstance(text_, str) or len(text_) > LONGEST_TEXT or not text_.isprintable() or not text_.isascii():
            raise Invalid(f"the value of the header {name!r} cannot be sent", field="upstream.headers")
        if not _NAME.fullmatch(name) or name.lower() in _OURS:
            raise Invalid(f"the header {name!r} cannot be set", field="upstream.headers")


def _check_ca(value: str) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=value)
    except (ssl.SSLError, ValueError):
        raise Invalid("ca is one certificate or several, as PEM text", field="upstream.ca") from None


def _is_address(value: str, schemes: tuple[str, ...]) -> bool:
    try:
        parts = urlsplit(value)
        return parts.scheme in schemes and bool(parts.hostname) and parts.port != 0 and value.isascii() and " " not in value
    except ValueError:
        return False
