"""Logging in as a registry's clients do (Docker's token authentication).

An upstream that answers 401 says how (`WWW-Authenticate`): by Basic, or by a token for a scope, which the token service at `realm` gives.
The credentials go there as they would go to the upstream, for it names the service; from there to no other host. Tokens are kept in
memory, each for as long as it is good, and used for their scope of their upstream alone.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit
from urllib.request import parse_http_list

from app.cache.single import SingleFlight
from app.errors import UpstreamFailed
from app.upstream.upstream import Upstream

# How long a token is good that does not say so (seconds); and how long before its end it is not used any more.
GOOD_SECONDS, LEAST_SECONDS = 60.0, 5.0
LONGEST_SECONDS = 24 * 3600.0
MOST_TOKENS, LONGEST_TOKEN, MOST_BYTES = 10_000, 64 * 1024, 256 * 1024
_KEY = os.urandom(32)

# Asks a token service: an address, and the login to ask with (null: none). Raises UpstreamFailed, also for what is no 200.
AskService = Callable[[str, str | None], bytes]


@dataclass(frozen=True)
class Challenge:
    """One way to log in: `scheme` in lower case, its fields by name."""

    scheme: str
    fields: Mapping[str, str]


@dataclass(frozen=True)
class _Login:
    """What to send as `Authorization`, and until when (monotonic)."""

    value: str
    until: float


class Logins:
    """What this process has to log in with, by upstream, credentials and scope."""

    def __init__(self) -> None:
        self._kept: dict[str, _Login] = {}
        self._asking: SingleFlight[str] = SingleFlight()

    def known(self, upstream: Upstream, scope: str) -> str | None:
        """What was good the last time."""
        token, now = self._kept.get(_key(upstream, scope)), time.monotonic()
        if token is not None and token.until > now:
            return token.value
        by_basic = self._kept.get(_key(upstream, ""))
        return basic(upstream) if by_basic is not None and by_basic.until > now else None

    def get(self, upstream: Upstream, scope: str, challenges: Iterable[Challenge], ask: AskService) -> str | None:
        """What these challenges ask for; null where there is nothing to be had. Raises UpstreamFailed."""
        by_scheme = {each.scheme: each for each in challenges}
        bearer = by_scheme.get("bearer")
        if bearer is not None and bearer.fields.get("realm"):
            key = _key(upstream, scope)
            return self._asking.run(key, lambda: self._token(key, upstream, _service(upstream, scope, bearer), ask))
        login = basic(upstream)
        if "basic" in by_scheme and login is not None:
            # That it takes them, not what they are.
            self._keep(_key(upstream, ""), "", LONGEST_SECONDS)
            return login
        return None

    def _token(self, key: str, upstream: Upstream, address: str, ask: AskService) -> str:
        token, seconds = _read(ask(address, basic(upstream)))
        self._keep(key, f"Bearer {token}", seconds - LEAST_SECONDS)
        return f"Bearer {token}"

    def _keep(self, key: str, value: str, seconds: float) -> None:
        if len(self._kept) >= MOST_TOKENS:
            now = time.monotonic()
            self._kept = {name: login for name, login in self._kept.items() if login.until > now}
            if len(self._kept) >= MOST_TOKENS:
                self._kept.clear()
        self._kept[key] = _Login(value, time.monotonic() + seconds)


def challenges(headers: Iterable[str]) -> list[Challenge]:
    """All of them, of one header or several (RFC 9110, 11.6.1)."""
    found: list[tuple[str, dict[str, str]]] = []
    for part in (part for header in headers for part in parse_http_list(header) if part):
        name, equals, value = part.partition("=")
        scheme, space, key = name.strip().rpartition(" ")
        if space or not equals:
            found.append(((scheme or key).strip().lower(), {}))
        if equals and found:
            value = value.strip()
            found[-1][1][key.strip().lower()] = value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else value
    return [Challenge(scheme, fields) for scheme, fields in found]


def _key(upstream: Upstream, scope: str) -> str:
    """Nobody who reads this process's memory learns a password from it. Other credentials have other tokens."""
    parts = (upstream.url, upstream.username, upstream.password, scope)
    return hashlib.blake2b(repr(parts).encode("utf-8", "surrogatepass"), key=_KEY, digest_size=32).hexdigest()


def basic(upstream: Upstream) -> str | None:
    """Its credentials as `Authorization`."""
    if upstream.username is None:
        return None
    return basic_of(f"{upstream.username}:{upstream.password or ''}")


def basic_of(login: str) -> str:
    """Of `name:password` (RFC 7617, in UTF-8)."""
    return "Basic " + base64.b64encode(login.encode()).decode()


def _service(upstream: Upstream, scope: str, challenge: Challenge) -> str:
    """The address to ask for a token. Raises UpstreamFailed where it is none, or where credentials would go unencrypted."""
    realm = challenge.fields["realm"]
    try:
        parts = urlsplit(realm)
        sound = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0 and not parts.username and realm.isascii()
    except ValueError:
        sound = False
    if not sound or any(each <= " " for each in realm):
        raise UpstreamFailed("the upstream names a token service at an address that is none")
    if urlsplit(upstream.url).scheme == "https" and parts.scheme != "https":
        raise UpstreamFailed("the upstream speaks https and names a token service that does not")
    asked = {"service": challenge.fields.get("service"), "scope": scope, "account": upstream.username}
    query = urlencode({name: value for name, value in asked.items() if value})
    return parts._replace(query="&".join(filter(None, (parts.query, query))), fragment="").geturl()


def _read(body: bytes) -> tuple[str, float]:
    """A token, and the seconds for which it is good. Raises UpstreamFailed."""
    try:
        answer = json.loads(body)
        token = answer.get("token") or answer.get("access_token")
        seconds = answer.get("expires_in") or GOOD_SECONDS
    except (ValueError, RecursionError, AttributeError):
        token = seconds = None
    if not isinstance(token, str) or not 0 < len(token) <= LONGEST_TOKEN or not (token.isascii() and token.isprintable()) or " " in token:
        raise UpstreamFailed("the upstream's token service gives no token")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds != seconds:
        seconds = GOOD_SECONDS
    return token, float(max(0, min(seconds, LONGEST_SECONDS)))
