"""Requests to one server: login, time-outs, and sending again what is harmless to repeat.

    Asked         one request
    Transport     sends it until it is answered, refused for good, or the policy has an end
"""

from __future__ import annotations

import http.cookiejar
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase

from arkvory.errors import ArkvoryError, NoAnswer, NotArkvory, TimedOut, Untrusted, refusal
from arkvory.retry import Attempts, Retry, Stop

REPEATABLE = frozenset({"GET", "HEAD", "PUT", "DELETE"})
LONGEST_PROBLEM = 64 * 1024
CONNECTIONS = 64
PIECE = 256 * 1024


class Body(Protocol):
    """Pieces of a known length; a transfer of unknown length is a plain iterator."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[bytes]: ...


@dataclass(frozen=True)
class Timeouts:
    """Seconds. `connect`: until the server takes the connection; `send`: for which it may take no more of a body (it may first have
    to wait for a place); `read`: for which it may say nothing. None of them bounds a whole transfer that goes on moving."""

    connect: float = 10.0
    send: float = 60.0
    read: float = 120.0


@dataclass(frozen=True)
class Asked:
    """`path` is encoded; `body` makes the same bytes anew for each attempt; `accepted` are statuses besides 2xx that are no errors."""

    method: str
    path: str
    query: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Callable[[], Body | Iterator[bytes] | bytes] | None = None
    document: Any = None
    stream: bool = False
    accepted: frozenset[int] = frozenset()
    once: bool = False

    @property
    def repeatable(self) -> bool:
        """Whether a second one does no harm when the first one was done after all."""
        return not self.once and (self.method in REPEATABLE or "Idempotency-Key" in self.headers)


# What is waited for, the failure, and the seconds.
OnWait = Callable[[Asked, ArkvoryError, float], None]


class Login(AuthBase):
    """The Authorization header; without one, nobody's: netrc is not asked."""

    def __init__(self, value: str | None) -> None:
        self._value = value

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._value is not None:
            request.headers["Authorization"] = self._value
        return request


@dataclass(frozen=True)
class Address:
    """`http(s)://host[:port][/prefix]`, without a slash at its end."""

    url: str

    @classmethod
    def of(cls, url: str) -> Address:
        """Raises ValueError with what is wrong."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not an address of a server: it begins with http:// or https://")
        if parts.username is not None or parts.query or parts.fragment:
            raise ValueError("the server's address has neither a login nor a query in it: a login is a token, or user and password")
        return cls(url.rstrip("/"))


class Transport:
    """Safe for several threads at once."""

    def __init__(
        self,
        address: Address,
        login: Login,
        *,
        retry: Retry,
        timeouts: Timeouts,
        verify: bool | str,
        agent: str,
        on_wait: OnWait,
    ) -> None:
        self.address = address
        self.retry = retry
        self._timeouts = timeouts
        self._on_wait = on_wait
        self._session = requests.Session()
        self._session.auth = login
        self._session.verify = verify
        self._session.headers["User-Agent"] = agent
        self._session.cookies.set_policy(http.cookiejar.DefaultCookiePolicy(allowed_domains=[]))
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(pool_maxsize=CONNECTIONS))

    def close(self) -> None:
        self._session.close()

    def send(self, asked: Asked, stop: Stop | None = None) -> requests.Response:
        """The answer, read wholly unless `asked.stream` (then the caller closes it). Raises ArkvoryError."""
        attempts = Attempts(self.retry)
        while True:
            if stop is not None:
                stop.check()
            try:
                return self._once(asked)
            except ArkvoryError as error:
                if not asked.repeatable:
                    raise
                self.wait(asked, error, attempts, stop or Stop())

    def wait(self, asked: Asked, error: ArkvoryError, attempts: Attempts, stop: Stop) -> None:
        """Before the next attempt; raises the error when there is none."""
        pause = attempts.pause(error)
        self._on_wait(asked, error, pause)
        stop.sleep(pause)

    def document(self, asked: Asked, stop: Stop | None = None) -> Any:
        """The JSON of the answer, null without a body. Raises ArkvoryError."""
        answer = self.send(asked, stop)
        if not answer.content:
            return None
        try:
            return json.loads(answer.content)
        except (ValueError, RecursionError):
            raise NotArkvory(f"{self.address.url} answers {answer.status_code} with something else than JSON: is it an Arkvory?") from None

    def object(self, asked: Asked, *fields: str, stop: Stop | None = None) -> dict[str, Any]:
        """The same of an answer that is an object with these fields. Raises NotArkvory for another one."""
        return self._with(fields, self.document(asked, stop), asked)

    def items(self, path: str, query: Mapping[str, Any], limit: int, *fields: str, stop: Stop | None = None) -> Iterator[dict[str, Any]]:
        """Those of a list, page by page; each is an object with these fields. Raises NotArkvory for what is no list, or has no end."""
        cursor = None
        while True:
            asked = Asked("GET", path, query={**query, "limit": limit, "cursor": cursor})
            page = self.object(asked, "items", stop=stop)
            if not isinstance(page["items"], list):
                raise self._strange(asked)
            for each in page["items"]:
                yield self._with(fields, each, asked)
            former, cursor = cursor, page.get("next")
            if cursor is None:
                return
            if cursor == former:
                raise self._strange(asked)

    def _with(self, fields: Iterable[str], found: Any, asked: Asked) -> dict[str, Any]:
        if not isinstance(found, dict) or not found.keys() >= set(fields):
            raise self._strange(asked)
        return found

    def _strange(self, asked: Asked) -> NotArkvory:
        return NotArkvory(f"{self.address.url} answers {asked.method} {asked.path} with another document than expected: is it an Arkvory?")

    def _once(self, asked: Asked) -> requests.Response:
        with told(self.address.url):
            answer = self._session.request(
                asked.method, self.address.url + asked.path,
                params={name: value for name, value in asked.query.items() if value is not None},
                headers={"Accept": "application/json", **_coding(asked), **asked.headers}, json=asked.document,
                data=None if asked.body is None else asked.body(),
                stream=asked.stream, allow_redirects=False, timeout=self._patience(asked),
            )  # fmt: skip
        if 200 <= answer.status_code < 300 or answer.status_code in asked.accepted:
            return answer
        with answer:
            raise refusal(answer.status_code, answer.headers, _beginning(answer) if asked.stream else answer.content)

    def _patience(self, asked: Asked) -> tuple[float, float]:
        # One number stands for both in requests: a connection takes no longer to be made than to take a piece of the body.
        opening = self._timeouts.connect if asked.body is None else max(self._timeouts.connect, self._timeouts.send)
        return opening, self._timeouts.read


class told:  # reads as a verb: with told(url): ...
    """Turns the errors of `requests` into ours."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, requests.exceptions.SSLError):
            raise Untrusted(f"{self._url} cannot be trusted: {_innermost(error)}") from error
        if isinstance(error, requests.exceptions.Timeout) or _is_timeout(error):
            raise TimedOut(f"{self._url} took too long to answer") from error
        if isinstance(error, requests.exceptions.ConnectionError | requests.exceptions.ChunkedEncodingError):
            raise NoAnswer(f"{self._url} does not answer: {_innermost(error)}") from error
        if isinstance(error, requests.exceptions.RequestException):
            raise NotArkvory(f"{self._url}: {error}") from error


def _coding(asked: Asked) -> dict[str, str]:
    """Of files, the bytes as they are: a range of compressed ones would be another range."""
    return {"Accept-Encoding": "identity"} if asked.stream else {}


def _beginning(answer: requests.Response) -> bytes:
    try:
        return next(answer.iter_content(LONGEST_PROBLEM), b"")
    except requests.exceptions.RequestException:
        return b""


def _is_timeout(error: BaseException | None) -> bool:
    """A body that nobody took comes as a broken connection with a time-out inside."""
    return isinstance(error, requests.exceptions.ConnectionError) and any(isinstance(each, TimeoutError) for each in _chain(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, and what it holds or came from."""
    seen: set[int] = set()
    left: list[Any] = [error]
    while left:
        each = left.pop()
        if isinstance(each, BaseException) and id(each) not in seen:
            seen.add(id(each))
            yield each
            left += [*each.args, getattr(each, "reason", None), each.__cause__, each.__context__]


def _innermost(error: BaseException) -> str:
    """What the system said, without the layers around it."""
    for each in _chain(error):
        if isinstance(each, OSError) and each.strerror and not isinstance(each, requests.exceptions.RequestException):
            return each.strerror
    return str(error)
