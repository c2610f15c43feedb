"""Connections that lead to no place which only this machine can reach.

Where an upstream sends us to another server (a redirect, a link in an index, a token service), that may not be this machine itself, nor
what stands on its link: there are services which give secrets to whoever can reach them. Nor may the upstream itself, or its HTTP proxy,
unless an administrator named it; whoever is none names no address either by which a network knows this machine. Looked at is the address
that was connected to, whatever its name was, before anything is sent.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

# Services of clouds for their machines that have addresses of other kinds.
_KNOWN = frozenset(map(ipaddress.ip_address, ("100.100.100.200", "168.63.129.16", "fd00:ec2::254")))


class LeadsInside(Exception):
    """The address lies inside."""


def lies_inside(host: str) -> bool:
    """Whether a name or an address is that of this machine, or lies on its link. Raises OSError for a name that nobody knows."""
    return any(is_inside(str(each[4][0])) for each in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))


def names_inside(host: str) -> bool:
    """Whether that can be said of it without asking anybody: an address, or the name that each machine has for itself."""
    try:
        return host == "localhost" or is_inside(host) or is_own(host)
    except ValueError:
        return False


def is_inside(address: str) -> bool:
    """The same of an address as the kernel writes it."""
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    found = mapped or found
    return found.is_loopback or found.is_link_local or found.is_unspecified or found in _KNOWN


def is_own(address: str) -> bool:
    """Whether a network knows this machine by it: what would be sent there would come from there. Nothing is sent."""
    found = ipaddress.ip_address(address.partition("%")[0])
    family = socket.AF_INET if found.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as asked:
            asked.connect((str(found), 9))
            return ipaddress.ip_address(asked.getsockname()[0].partition("%")[0]) == found
    except OSError:
        return False


def _checked(connected: socket.socket) -> socket.socket:
    if is_inside(connected.getpeername()[0]):
        connected.close()
        raise LeadsInside
    return connected


def _checked_strictly(connected: socket.socket) -> socket.socket:
    # What comes from where it goes to stays here.
    if connected.getpeername()[0] == connected.getsockname()[0]:
        connected.close()
        raise LeadsInside
    return _checked(connected)


class _Http(HTTPConnection):
    def _new_conn(self) -> socket.socket:
        return _checked(super()._new_conn())


class _Https(HTTPSConnection):
    def _new_conn(self) -> socket.socket:
        return _checked(super()._new_conn())


class _StrictHttp(HTTPConnection):
    def _new_conn(self) -> socket.socket:
        return _checked_strictly(super()._new_conn())


class _StrictHttps(HTTPSConnection):
    def _new_conn(self) -> socket.socket:
        return _checked_strictly(super()._new_conn())


class _HttpPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Http


class _HttpsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _Https


class _StrictHttpPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _StrictHttp


class _StrictHttpsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _StrictHttps


_POOLS: dict[str, type[urllib3.HTTPConnectionPool]] = {"http": _HttpPool, "https": _HttpsPool}
_STRICT_POOLS: dict[str, type[urllib3.HTTPConnectionPool]] = {"http": _StrictHttpPool, "https": _StrictHttpsPool}


class OutwardManager(urllib3.PoolManager):
    """Raises LeadsInside."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.pool_classes_by_scheme = _POOLS


class StrictManager(urllib3.PoolManager):
    """Also for this machine's own address in a network, where services may listen that nobody else reaches."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.pool_classes_by_scheme = _STRICT_POOLS


class StrictProxyManager(urllib3.ProxyManager):
    """The same of the way to an HTTP proxy."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.pool_classes_by_scheme = _STRICT_POOLS
