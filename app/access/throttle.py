"""Wrong passwords, counted by name and by address, so that nobody guesses for long.

Each name, and each address, has a bucket that a wrong guess fills and time empties. While one of the two is full no password is
checked; logins that are known to be right from before go on, and so do tokens. An address from which a name's password was right has
a bucket of its own for that name: whoever guesses elsewhere keeps nobody out who was let in before. Sending the same wrong password
again is no new guess: it fills a bucket of its own, so that a machine with an old password locks nobody out but itself.
"""

from __future__ import annotations

import hashlib
import ipaddress
import math
import time
from collections import OrderedDict

from app.errors import TooManyLogins

# Buckets of each kind; beyond, those longest untouched go.
MOST_BUCKETS = 50_000
# An IPv6 client has a whole network to guess from.
IPV6_PREFIX = 64


class Buckets:
    """`limit` wrong guesses fill a bucket, which empties in `window` seconds; limit 0: none is ever full."""

    def __init__(self, limit: int, window: float) -> None:
        self._limit = limit
        self._window = window
        self._levels: OrderedDict[bytes, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._levels)

    def fill(self, key: bytes) -> None:
        """One wrong guess more."""
        if not self._limit:
            return
        self._levels[key] = (min(self._level(key) + 1, self._limit), time.monotonic())
        self._levels.move_to_end(key)
        if len(self._levels) > MOST_BUCKETS:
            self._levels.popitem(last=False)

    def wait(self, key: bytes) -> float:
        """Seconds until there is room for one guess; 0 when there is now."""
        if not self._limit:
            return 0.0
        return max(0.0, self._level(key) - (self._limit - 1)) * self._window / self._limit

    def _level(self, key: bytes) -> float:
        level, at = self._levels.get(key, (0.0, 0.0))
        return max(0.0, level - (time.monotonic() - at) * self._limit / self._window)


class Throttle:
    """Who has guessed too often; in the memory of this process."""

    def __init__(self, per_name: int, per_address: int, window: float) -> None:
        self._names = Buckets(per_name, window)
        self._addresses = Buckets(per_address, window)
        self._repeats = Buckets(per_name, window)
        self._let_in: OrderedDict[bytes, None] = OrderedDict()

    def check(self, name: str, address: str) -> None:
        """Raises TooManyLogins when no password may be checked for that name, or from that address, now."""
        by_address = self._addresses.wait(_key(network(address))) if address else 0.0
        _refuse(max(self._names.wait(self._name_key(name, address)), by_address))

    def count(self, name: str, address: str) -> None:
        """A password was wrong."""
        self._names.fill(self._name_key(name, address))
        # Whoever has none (a Unix socket) shares it with everybody.
        if address:
            self._addresses.fill(_key(network(address)))

    def let_in(self, name: str, address: str) -> None:
        """A password was right."""
        if address:
            pair = _pair(name, address)
            self._let_in[pair] = None
            self._let_in.move_to_end(pair)
            if len(self._let_in) > MOST_BUCKETS:
                self._let_in.popitem(last=False)

    def _name_key(self, name: str, address: str) -> bytes:
        pair = _pair(name, address)
        return pair if pair in self._let_in else _key(name)

    def repeat(self, credential: bytes) -> None:
        """The same wrong password came again. Raises TooManyLogins when it does so too often."""
        _refuse(self._repeats.wait(credential))
        self._repeats.fill(credential)


def _refuse(seconds: float) -> None:
    if seconds > 0:
        raise TooManyLogins("too many wrong passwords; wait, or use a token", retry_after=math.ceil(seconds))


def _key(text: str) -> bytes:
    """Of one length, whatever a client sends."""
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).digest()


def _pair(name: str, address: str) -> bytes:
    # No address holds a NUL.
    return _key(f"{network(address)}\0{name}")


def network(address: str) -> str:
    """Who guesses as one: an address, of IPv6 all that begin alike."""
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(known, ipaddress.IPv4Address):
        return str(known)
    return str(known.ipv4_mapped or ipaddress.ip_network((known, IPV6_PREFIX), strict=False))
