"""Who asks, and by which address: Host, `X-Forwarded-*`, and whom to believe."""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from app.errors import Invalid
from app.http.head import split_host
from config.settings import SettingError, Settings

if TYPE_CHECKING:
    from flask import Request

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Networks = tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]

_PREFIX = re.compile(r"(?:/[A-Za-z0-9._~!$&'()*+,;=:@%-]+)*/?")
_DEFAULT_PORTS = {"http": 80, "https": 443}


@functools.lru_cache(maxsize=16)
def networks(names: tuple[str, ...]) -> Networks:
    """The networks that `ARKVORY_TRUSTED_PROXIES` names (`0.0.0.0/0` is everybody's IPv4); raises `SettingError`."""
    try:
        return tuple(ipaddress.ip_network(name, strict=False) for name in names)
    except ValueError as error:
        raise SettingError(f"ARKVORY_TRUSTED_PROXIES: {error}; expected addresses or networks such as 10.0.0.0/8") from None


def client_address(environ: Mapping[str, Any], trusted: Networks) -> str:
    """The nearest address that is not a trusted proxy's: `X-Forwarded-For` walked from the right, starting at the peer."""
    peer = str(environ.get("REMOTE_ADDR") or "")
    if not trusted or "HTTP_X_FORWARDED_FOR" not in environ:
        return peer
    nearest = peer
    for hop in (peer, *_listed(environ, "HTTP_X_FORWARDED_FOR")[::-1]):
        address = _address(hop)
        if address is None:
            break
        nearest = str(address)
        if not _inside(address, trusted):
            break
    return nearest


def remote_address(environ: Mapping[str, Any]) -> str:
    """The client's address, behind trusted proxies too; under a server other than ours the peer's."""
    known = environ.get("arkvory.client")
    return str(known if known is not None else environ.get("REMOTE_ADDR") or "")


def public_base(request: Request) -> str:
    """Base address for links, without a slash at the end: the one configured, else the one by which the client came.

    Raises `Invalid` for a Host that is malformed or not among `ARKVORY_ALLOWED_HOSTS`.
    """
    from flask import current_app

    return base_address(request.environ, current_app.extensions["arkvory"].settings)


def base_address(environ: Mapping[str, Any], settings: Settings) -> str:
    """`public_base` of a WSGI environment; raises `Invalid`."""
    if settings.public_url:
        return settings.public_url.rstrip("/")
    return seen_base(environ, settings)


def host_of(base: str) -> str:
    """The host name in a base address, without its port."""
    host = base.partition("://")[2].partition("/")[0]
    return split_host(host)[0].strip("[]")


def seen_base(environ: Mapping[str, Any], settings: Settings) -> str:
    """The base address by which the client came, whatever is configured; raises `Invalid`."""
    scheme, host, prefix = _told_by_proxies(environ, settings) or _seen_here(environ)
    name = _checked(host).rpartition(":")[0] if _port(host) else host
    if settings.allowed_hosts and name.strip("[]").lower() not in _allowed(settings.allowed_hosts):
        raise Invalid(f"The host {name!r} is not served here; see ARKVORY_ALLOWED_HOSTS.", field="Host")
    return f"{scheme}://{host}{prefix}"


def _seen_here(environ: Mapping[str, Any]) -> tuple[str, str, str]:
    scheme = str(environ.get("wsgi.url_scheme") or "http")
    host = environ.get("HTTP_HOST") or _own_host(environ)
    return scheme, _without_default_port(scheme, _checked(str(host))), str(environ.get("SCRIPT_NAME") or "").rstrip("/")


def _own_host(environ: Mapping[str, Any]) -> str:
    """HTTP/1.0 may come without a Host."""
    name, port = environ.get("SERVER_NAME") or "localhost", environ.get("SERVER_PORT") or ""
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}".rstrip(":")


def _told_by_proxies(environ: Mapping[str, Any], settings: Settings) -> tuple[str, str, str] | None:
    """Scheme, host and prefix of the outermost trusted proxy; None when the peer is not one."""
    hops = _trusted_hops(environ, networks(settings.trusted_proxies))
    if not hops:
        return None
    scheme, host, prefix = _seen_here(environ)
    scheme = _told(environ, "HTTP_X_FORWARDED_PROTO", hops, scheme).lower()
    if scheme not in _DEFAULT_PORTS:
        raise Invalid("The header X-Forwarded-Proto is neither http nor https.", field="X-Forwarded-Proto")
    host = _with_port(_checked(_told(environ, "HTTP_X_FORWARDED_HOST", hops, host)), _told(environ, "HTTP_X_FORWARDED_PORT", hops, ""))
    prefix = _told(environ, "HTTP_X_FORWARDED_PREFIX", hops, prefix)
    if not _PREFIX.fullmatch(prefix) or {".", ".."} & set(prefix.split("/")):
        raise Invalid("The header X-Forwarded-Prefix is malformed.", field="X-Forwarded-Prefix")
    return scheme, _without_default_port(scheme, host), prefix.rstrip("/")


def _trusted_hops(environ: Mapping[str, Any], trusted: Networks) -> int:
    """How many proxies in a row, from the peer outwards, are trusted."""
    hops = 0
    for hop in (str(environ.get("REMOTE_ADDR") or ""), *_listed(environ, "HTTP_X_FORWARDED_FOR")[::-1]):
        address = _address(hop)
        if address is None or not _inside(address, trusted):
            break
        hops += 1
    return hops


def _told(environ: Mapping[str, Any], field: str, hops: int, otherwise: str) -> str:
    """What the outermost trusted proxy added to a field; further left is the client's own invention."""
    values = _listed(environ, field)
    return values[-min(hops, len(values))] if values else otherwise


def _listed(environ: Mapping[str, Any], field: str) -> list[str]:
    return [part.strip() for part in str(environ.get(field, "")).split(",") if part.strip()]


def _address(text: str) -> Address | None:
    """An address as proxies write it: also in brackets, also with a port."""
    bare = text[1:].partition("]")[0] if text.startswith("[") else text
    if bare.count(":") == 1:
        bare = bare.partition(":")[0]
    try:
        address = ipaddress.ip_address(bare.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _inside(address: Address, trusted: Networks) -> bool:
    return any(address in network for network in trusted)


def _checked(host: str) -> str:
    try:
        split_host(host)
    except ValueError:
        raise Invalid("The header Host is malformed.", field="Host") from None
    return host


def _port(host: str) -> int | None:
    return split_host(host)[1]


def _with_port(host: str, port: str) -> str:
    if not port or _port(host) is not None:
        return host
    return _checked(f"{host}:{port}")


def _without_default_port(scheme: str, host: str) -> str:
    return host.rpartition(":")[0] if _port(host) == _DEFAULT_PORTS.get(scheme) else host


def _allowed(names: Iterable[str]) -> set[str]:
    return {name.strip("[]").lower() for name in names}
