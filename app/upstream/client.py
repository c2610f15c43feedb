"""Asking an upstream for a file: one GET, its redirects followed by hand, the body read as it comes.

Nothing of the environment is used (no `http_proxy`, no `.netrc`). Credentials and own headers go to the upstream's own origin alone.
Whatever the upstream does there is an end: to connecting, to the head, to silence, to slowness.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import ssl
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import unquote, urljoin, urlsplit

import gevent
import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NameResolutionError, NewConnectionError, ProtocolError, ReadTimeoutError
from urllib3.util import Retry, Timeout

from app.errors import UpstreamBusy, UpstreamFailed, UpstreamTimedOut, UpstreamUnfit
from app.upstream.breaker import LONGEST_PAUSE, Line
from app.upstream.freshness import http_moment
from app.upstream.logins import MOST_BYTES, Logins, basic, basic_of, challenges
from app.upstream.outward import LeadsInside, OutwardManager, StrictManager, StrictProxyManager, lies_inside
from app.upstream.upstream import Upstream, origin

log = logging.getLogger(__name__)

PIECE = 1024 * 1024
MOST_REDIRECTS = 5
# A body below this rate, in bytes a second, counts as stalled once it has taken as long as one silence may.
LEAST_RATE = 1024
# Encoded although we asked for none: so much may come of it, or so many times its size.
DECODED_BYTES, DECODED_TIMES = 16 * PIECE, 100
# Of an error's page.
_READ_ANYWAY = 64 * 1024
# In digits.
_LONGEST_LENGTH = 18
_CONTENT_RANGE = re.compile(rf"bytes ([0-9]{{1,{_LONGEST_LENGTH}}})-([0-9]{{1,{_LONGEST_LENGTH}}})/([0-9]{{1,{_LONGEST_LENGTH}}}|\*)")
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_ABSENT = frozenset({404, 410})
_REFUSED = frozenset({401, 403, 407})
# To HEAD: that it cannot be asked so.
_UNSAID = frozenset({405, 501})


@dataclass(frozen=True)
class Wanted:
    """`path` is the encoded one, as it goes out, or a whole address. With a validator the answer may be that nothing has changed.

    With a `scope` nobody logs in before the upstream wants it, and then in the way that it names (`logins.py`).
    """

    path: str
    etag: str | None = None
    last_modified: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    # A body makes it a POST, to the upstream's own origin alone.
    body: bytes | None = None
    scope: str = ""
    method: str = "GET"
    # The first and the last byte that are wanted (the whole may be answered all the same), of what still has the validator `part_of`.
    part: tuple[int, int] | None = None
    part_of: str | None = None

    @property
    def conditional(self) -> bool:
        return self.etag is not None or self.last_modified is not None


@dataclass(frozen=True)
class Arrived:
    """The head of an answer; `url` is where it came from in the end, names in `headers` are in lower case."""

    url: str
    content_type: str | None
    headers: Mapping[str, str]


class Part(NamedTuple):
    """Which bytes of the whole an answer has; `total` null: it is not told how many there are."""

    first: int
    last: int
    total: int | None

    @property
    def is_whole(self) -> bool:
        return self.first == 0 and self.total == self.last + 1


class Answer:
    """What the upstream says: `unchanged`, `absent`, or a body of `size` bytes (null: not told), read to its end by `read`.

    Of a `part` the size is that of the whole.
    """

    def __init__(self, response: urllib3.BaseHTTPResponse, url: str, upstream: Upstream) -> None:
        self._response = response
        self._url = url
        self._patience = upstream.read_seconds
        self._taken = self._given = 0
        self._waited = 0.0
        self._announced = _length(response)
        coding = response.headers.get("Content-Encoding", "identity").strip().lower()
        self._decoder = zlib.decompressobj(16 + zlib.MAX_WBITS) if coding in {"gzip", "x-gzip"} else None
        if self._decoder is None and coding not in {"identity", ""} and response.status == 200:
            raise UpstreamFailed(f"the upstream sends its answer in the coding {coding!r}, which nobody asked for")
        # Called by `whole` once there is more than so much of the body in memory.
        self.grown: tuple[int, Callable[[], None]] | None = None
        # Of what is encoded nobody can tell which bytes they are.
        self.part = _part(response) if response.status == 206 and coding in {"identity", ""} else None

    @property
    def unchanged(self) -> bool:
        return self._response.status == 304

    @property
    def absent(self) -> bool:
        return self._response.status in _ABSENT

    @property
    def unsaid(self) -> bool:
        """HEAD got no answer that says anything."""
        return self._response.status in _UNSAID

    @property
    def unsatisfied(self) -> bool:
        """There are no such bytes, or nobody can tell which ones these are."""
        return self._response.status == 416 or (self._response.status == 206 and self.part is None)

    @property
    def size(self) -> int | None:
        if self.part is not None:
            return self.part.total
        return self._announced if self._decoder is None else None

    @property
    def content_type(self) -> str | None:
        return self._response.headers.get("Content-Type")

    @property
    def head(self) -> Arrived:
        headers = {name.lower(): value for name, value in self._response.headers.items()}
        return Arrived(self._url, self.content_type, headers)

    @property
    def etag(self) -> str | None:
        """As it was sent, weak ones too: for the upstream, never for clients."""
        return _short(self._response.headers.get("ETag"))

    @property
    def strong_etag(self) -> str | None:
        """Equal ones mean equal bytes (RFC 9110, 8.8.1)."""
        etag = self.etag
        return etag if etag is not None and etag.startswith('"') else None

    @property
    def last_modified(self) -> str | None:
        return _short(self._response.headers.get("Last-Modified"))

    def read(self) -> bytes:
        """The next bytes, as they come; none at the end. Raises UpstreamFailed (short, broken, a bomb) or UpstreamTimedOut."""
        while True:
            piece = self._next()
            if self._decoder is None:
                return piece
            decoded = self._decode(piece)
            if decoded or not piece:
                return decoded

    def whole(self, most: int) -> bytes | None:
        """All of it; null when it has more than `most` bytes."""
        body = bytearray()
        while piece := self.read():
            body += piece
            if len(body) > most:
                return None
            if self.grown is not None and len(body) > self.grown[0]:
                tell, self.grown = self.grown[1], None
                tell()
        return bytes(body)

    def leave(self) -> None:
        """The connection may be used again where little is left to read of it."""
        if self.unchanged or (self.absent and self._announced is not None and self._announced <= _READ_ANYWAY):
            with contextlib.suppress(UpstreamFailed):
                while self._next():
                    pass

    def _next(self) -> bytes:
        if self._decoder is not None and (left := self._undecoded()):
            return left
        asked_at = time.monotonic()
        with _answers_in_time():
            # `None` where urllib3 has nothing any more.
            piece = self._response.read1(self._most()) or b""
        # A client that reads slowly what is handed on to it is not the upstream's fault.
        self._waited += time.monotonic() - asked_at
        self._taken += len(piece)
        if not piece and self._announced is not None and self._taken != self._announced:
            raise UpstreamFailed(f"the upstream announced {self._announced} bytes and sent {self._taken}")
        self._check_rate()
        return piece

    def _most(self) -> int:
        """The last byte is read by itself: what has come behind it can be seen then, and would be cut off without a word."""
        left = PIECE + 1 if self._announced is None else self._announced - self._taken
        # urllib3 has no word for it.
        if left == 1 and len(self._response._fp.peek(2)) > 1:  # type: ignore[attr-defined]
            raise UpstreamFailed(f"the upstream announced {self._announced} bytes and sent more")
        return min(PIECE, max(1, left - 1))

    def _check_rate(self) -> None:
        seconds = self._waited
        if seconds > self._patience and self._taken < LEAST_RATE * seconds:
            raise UpstreamTimedOut(f"the upstream sent {self._taken} bytes in {seconds:.0f} s: that is too slow")

    def _undecoded(self) -> bytes:
        """What has come and was not decoded yet. Where a part of the coding ends another one may begin (RFC 1952, 2.2)."""
        assert self._decoder is not None
        if self._decoder.unconsumed_tail:
            return self._decoder.unconsumed_tail
        behind = self._decoder.unused_data
        if behind:
            self._decoder = zlib.decompressobj(16 + zlib.MAX_WBITS)
        return behind

    def _decode(self, piece: bytes) -> bytes:
        assert self._decoder is not None
        try:
            decoded = self._decoder.decompress(piece, PIECE)
        except zlib.error as error:
            raise UpstreamFailed("the upstream's answer is said to be gzip, and is not") from error
        self._given += len(decoded)
        if self._given > max(DECODED_BYTES, DECODED_TIMES * self._taken):
            raise UpstreamFailed("the upstream's answer grows beyond measure when it is decoded")
        if not piece and not self._decoder.eof:
            raise UpstreamFailed("the upstream's answer ends before its coding does")
        return decoded


class Client:
    """Keeps connections open between fetches, and nothing that was a secret but the tokens that upstreams gave for it."""

    def __init__(self) -> None:
        self._logins = Logins()
        self._managers: dict[tuple[str | None, int, type[urllib3.PoolManager]], urllib3.PoolManager] = {}

    @contextlib.contextmanager
    def get(self, upstream: Upstream, wanted: Wanted, line: Line, *, patient: bool = True) -> Iterator[Answer]:
        """The upstream's answer, whose body is to be read inside; what is left of it is not waited for.

        Raises UpstreamFailed, UpstreamBusy or UpstreamTimedOut; only 404 and 410 count as absence.
        """
        with line.connection(patient), self.more(upstream, wanted, line) as answer:
            yield answer

    @contextlib.contextmanager
    def more(self, upstream: Upstream, wanted: Wanted, line: Line) -> Iterator[Answer]:
        """One more answer by the connection that `get` holds, once the one before was read."""
        with _counted(line), _in_time(upstream):
            response, url = self._follow(upstream, wanted)
        try:
            with _counted(line):
                _judge(response, wanted, line)
                answer = Answer(response, url, upstream)
                yield answer
                answer.leave()
                line.breaker.succeeded()
        finally:
            if wanted.method == "HEAD":
                response.drain_conn()
            # Back into the pool when it was read to its end.
            response.close()

    def small(self, upstream: Upstream, wanted: Wanted, line: Line, most: int) -> bytes | None:
        """A small file beside one that was read to its end just now, in whose place among the connections it comes.

        Null when there is none to be had: it is absent, refused, or has more than `most` bytes. Raises UpstreamFailed.
        """
        with _in_time(upstream):
            response, url = self._follow(upstream, wanted)
            try:
                _judge(response, wanted, line)
                answer = Answer(response, url, upstream)
                body = None if answer.absent else answer.whole(most)
                answer.leave()
                return body
            except UpstreamUnfit:
                return None
            finally:
                response.close()

    def _follow(self, upstream: Upstream, wanted: Wanted) -> tuple[urllib3.BaseHTTPResponse, str]:
        """And where it came from in the end."""
        if not wanted.scope:
            return self._follow_as(upstream, wanted, basic(upstream))
        login = self._logins.known(upstream, wanted.scope)
        response, url = self._follow_as(upstream, wanted, login)
        if response.status == 401 and origin(url) == origin(upstream.url):
            ways = challenges(response.headers.getlist("WWW-Authenticate"))
            response.close()
            another = self._logins.get(upstream, wanted.scope, ways, lambda *asked: self._ask_service(upstream, *asked))
            if another is None or another == login:
                raise UpstreamUnfit(f"the upstream answers 401: {_REFUSAL}")
            response, url = self._follow_as(upstream, wanted, another)
        return response, url

    def _follow_as(self, upstream: Upstream, wanted: Wanted, login: str | None) -> tuple[urllib3.BaseHTTPResponse, str]:
        method = wanted.method if wanted.body is None else "POST"
        managers = functools.partial(self._manager, upstream)
        request = _Request(upstream, managers, method, lambda url: _headers(upstream, wanted, url, login), wanted.body)
        return request.follow(_address(upstream, wanted))

    def _ask_service(self, upstream: Upstream, service: str, login: str | None) -> bytes:
        """See `AskService`: the login goes to the service's own origin alone."""

        def headers(url: str) -> dict[str, str]:
            own = {"User-Agent": "Arkvory", "Accept": "application/json", "Accept-Encoding": "identity"}
            return own | ({"Authorization": login} if login is not None and origin(url) == origin(service) else {})

        response, _ = _Request(upstream, functools.partial(self._manager, upstream), "GET", headers).follow(service)
        try:
            with _answers_in_time():
                body = response.read(MOST_BYTES)
        finally:
            response.close()
        _judge_service(response)
        return bytes(body)

    def _manager(self, upstream: Upstream, outward: bool) -> urllib3.PoolManager:
        """`outward`: it leads to nothing that is nobody's business but this machine's (`outward.py`)."""
        if upstream.http_proxy is not None:
            # Its login would stay in a kept one.
            return _through_proxy(upstream)
        kind: type[urllib3.PoolManager] = urllib3.PoolManager
        if outward:
            kind = OutwardManager if upstream.may_lie_inside else StrictManager
        key = upstream.ca, upstream.connections, kind
        if key not in self._managers:
            context = _tls(upstream.ca)
            # Another request may have made it meanwhile.
            self._managers.setdefault(key, kind(16, maxsize=upstream.connections, ssl_context=context))
        return self._managers[key]


@contextlib.contextmanager
def _counted(line: Line) -> Iterator[None]:
    """What fails inside counts against the upstream, but for what says nothing about its health."""
    try:
        yield
    except UpstreamFailed as error:
        if not isinstance(error, UpstreamBusy | UpstreamUnfit):
            line.breaker.failed()
        raise
    finally:
        line.breaker.given_up()


def _in_time(upstream: Upstream) -> gevent.Timeout:
    return gevent.Timeout(upstream.connect_seconds + upstream.read_seconds, UpstreamTimedOut("the upstream did not answer in time"))


@dataclass(frozen=True)
class _Request:
    """How something is asked for: `headers` are those for an address, `managers` see `Client._manager`."""

    upstream: Upstream
    managers: Callable[[bool], urllib3.PoolManager]
    method: str
    headers: Callable[[str], Mapping[str, str]]
    body: bytes | None = None

    def follow(self, url: str) -> tuple[urllib3.BaseHTTPResponse, str]:
        """The answer behind all redirects, and where it came from in the end."""
        for _ in range(MOST_REDIRECTS + 1):
            with _answers_in_time():
                response = self._ask_twice(url)
            target = response.headers.get("Location")
            if response.status not in _REDIRECTS or target is None:
                return response, url
            response.close()
            url = _redirected(url, target)
            if self.body is not None and origin(url) != origin(self.upstream.url):
                raise UpstreamFailed("the upstream redirects what is sent to it to another server")
        raise UpstreamFailed(f"the upstream redirects more than {MOST_REDIRECTS} times")

    def _ask_twice(self, url: str) -> urllib3.BaseHTTPResponse:
        """Once more where the connection broke before an answer: it was perhaps a kept one that the upstream was just closing."""
        try:
            return self._ask(url)
        except ProtocolError:
            return self._ask(url)

    def _ask(self, url: str) -> urllib3.BaseHTTPResponse:
        """An upstream that may lie inside, and does, may lead there; no other one. Raises UpstreamUnfit."""
        upstream = self.upstream
        its_own = origin(url) == origin(upstream.url)
        if its_own and upstream.may_lie_inside:
            return self._send(url, outward=False)
        try:
            return self._send(url, outward=True)
        except LeadsInside:
            if not upstream.may_lie_inside and (its_own or upstream.http_proxy is not None):
                raise UpstreamUnfit(_ONLY_ADMINISTRATORS) from None
            if not upstream.may_lie_inside or not lies_inside(urlsplit(upstream.url).hostname or ""):
                raise UpstreamUnfit("the upstream leads to an address of this machine, or of its link") from None
        return self._send(url, outward=False)

    def _send(self, url: str, *, outward: bool) -> urllib3.BaseHTTPResponse:
        return self.managers(outward).urlopen(
            self.method, url, body=self.body, headers=self.headers(url), redirect=False, retries=_NO_RETRIES, preload_content=False,
            decode_content=False, timeout=Timeout(connect=self.upstream.connect_seconds, read=self.upstream.read_seconds),
        )  # fmt: skip


_ONLY_ADMINISTRATORS = "the upstream, or its HTTP proxy, is at an address of this machine or its link; an administrator may name such a one"
_NO_RETRIES = Retry(total=False, redirect=False, raise_on_redirect=False)


def _through_proxy(upstream: Upstream) -> urllib3.PoolManager:
    assert upstream.http_proxy is not None
    parts = urlsplit(upstream.http_proxy)
    login = parts.netloc.rpartition("@")[0]
    headers = {"Proxy-Authorization": basic_of(unquote(login))} if login else None
    address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    kind = urllib3.ProxyManager if upstream.may_lie_inside else StrictProxyManager
    return kind(address, proxy_headers=headers, ssl_context=_tls(upstream.ca))


def _tls(ca: str | None) -> ssl.SSLContext:
    """Reading the system's certificates takes 0.1 s: once for all, in a thread."""
    if ca not in _contexts:
        context: ssl.SSLContext = gevent.get_hub().threadpool.apply(ssl.create_default_context)
        if ca is not None:
            context.load_verify_locations(cadata=ca)
        if len(_contexts) >= MOST_CONTEXTS:
            _contexts.clear()
        _contexts[ca] = context
    return _contexts[ca]


# By the certificates that are trusted beside the system's.
_contexts: dict[str | None, ssl.SSLContext] = {}
MOST_CONTEXTS = 100


def _headers(upstream: Upstream, wanted: Wanted, url: str, login: str | None) -> dict[str, str]:
    """Those that are for this address."""
    headers = {"User-Agent": "Arkvory", "Accept": "*/*", "Accept-Encoding": "identity", **wanted.headers}
    if wanted.etag is not None:
        headers["If-None-Match"] = wanted.etag
    if wanted.last_modified is not None:
        headers["If-Modified-Since"] = wanted.last_modified
    if wanted.part is not None:
        headers["Range"] = f"bytes={wanted.part[0]}-{wanted.part[1]}"
        if wanted.part_of is not None:
            headers["If-Range"] = wanted.part_of
    if origin(url) == origin(upstream.url):
        if login is not None:
            headers["Authorization"] = login
        headers |= upstream.headers
    return headers


def _address(upstream: Upstream, wanted: Wanted) -> str:
    """A whole address that an upstream's document names is followed by the rules of a redirect."""
    below = f"{upstream.url}/"
    whole = wanted.path.startswith(("http://", "https://"))
    return _redirected(below, wanted.path) if whole else below + wanted.path


def _redirected(url: str, target: str) -> str:
    try:
        found = urljoin(url, target)
        parts = urlsplit(found)
        sound = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0 and found.isprintable()
    except ValueError:
        sound = False
    if not sound:
        raise UpstreamFailed("the upstream redirects to an address that is none")
    if urlsplit(url).scheme == "https" and parts.scheme != "https":
        raise UpstreamFailed("the upstream redirects from https to http")
    return found.partition("#")[0]


def _judge(response: urllib3.BaseHTTPResponse, wanted: Wanted, line: Line) -> None:
    """Raises for every status that is neither a file, nor absence, nor the same as before."""
    status = response.status
    pause = _pause(response.headers, status)
    if pause is not None:
        line.breaker.pause(pause)
    if status == 429 or (status == 503 and pause is not None):
        raise UpstreamBusy(f"the upstream answers {status}; try again shortly", max(1, round(pause or 1)))
    if status in _REFUSED:
        raise UpstreamUnfit(f"the upstream answers {status}: {_REFUSAL}")
    if wanted.method == "HEAD" and status in _UNSAID:
        return
    if wanted.part is not None and status in {206, 416}:
        return
    if wanted.body is not None and status not in {200, *_ABSENT} and status < 500:
        raise UpstreamUnfit(f"the upstream answers {status}")
    if status != 200 and status not in _ABSENT and not (status == 304 and wanted.conditional):
        raise UpstreamFailed(f"the upstream answers {status}")


def _judge_service(response: urllib3.BaseHTTPResponse) -> None:
    """Of a token service: raises for what is no token."""
    status = response.status
    if status in {429, 503}:
        pause = _pause(response.headers, status)
        raise UpstreamBusy(f"the upstream's token service answers {status}; try again shortly", max(1, round(pause or 1)))
    if status in _REFUSED:
        raise UpstreamUnfit(f"the upstream's token service answers {status}: {_REFUSAL}")
    if status != 200:
        raise UpstreamFailed(f"the upstream's token service answers {status}")


_REFUSAL = "it refuses the credentials that it is asked with, or wants some"


def _pause(headers: Mapping[str, str], status: int) -> float | None:
    """Seconds for which the upstream does not want to be asked."""
    told = headers.get("Retry-After")
    if told is not None and status in {429, 503}:
        return _seconds(told)
    remaining, reset = headers.get("RateLimit-Remaining"), headers.get("RateLimit-Reset")
    if remaining is not None and reset is not None and remaining.partition(";")[0].strip() == "0":
        return _seconds(reset)
    return None


def _seconds(value: str) -> float | None:
    """Of Retry-After: a number of them, or a date; no more than anybody is kept waiting."""
    value = value.strip()
    if value.isascii() and value.isdecimal():
        return min(LONGEST_PAUSE, float(value[:_LONGEST_LENGTH]))
    moment = http_moment(value)
    return None if moment is None else min(LONGEST_PAUSE, max(0.0, moment.timestamp() - time.time()))


def _length(response: urllib3.BaseHTTPResponse) -> int | None:
    """Null where none is told. Raises UpstreamFailed where nobody can say which one is meant (RFC 9112, 6.3)."""
    told = {each.strip() for header in response.headers.getlist("Content-Length") for each in header.split(",")}
    value = told.pop() if len(told) == 1 else ""
    if value.isascii() and value.isdecimal() and len(value) <= _LONGEST_LENGTH:
        return int(value)
    if (told or value) and response.status == 200:
        raise UpstreamFailed("the upstream announces a length that is none")
    return None


def _part(response: urllib3.BaseHTTPResponse) -> Part | None:
    """Null for what does not say which bytes it has (RFC 9110, 14.4)."""
    found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if found is not None:
        first, last, total = (None if each == "*" else int(each) for each in found.groups())
        if first is not None and last is not None and first <= last and (total is None or last < total):
            return Part(first, last, total)
    return None


def _short(value: str | None) -> str | None:
    return value if value is not None and len(value) <= 1024 and value.isprintable() else None


@contextlib.contextmanager
def _answers_in_time() -> Iterator[None]:
    """Turn what urllib3 raises into the domain's words."""
    try:
        yield
    except NewConnectionError as error:
        raise UpstreamFailed(f"the upstream cannot be reached: {_why_not(error)}") from error
    except (ConnectTimeoutError, ReadTimeoutError, TimeoutError) as error:
        raise UpstreamTimedOut("the upstream does not answer in time") from error
    except (HTTPError, OSError, ValueError) as error:
        log.info("upstream: %s", error)
        raise UpstreamFailed("the upstream cannot be reached, or its answer broke off") from error


def _why_not(error: NewConnectionError) -> str:
    """In words; of what the system says only its own, without addresses."""
    if isinstance(error, NameResolutionError):
        return "its host is not known (DNS)"
    cause = error.__cause__ or error.__context__
    if isinstance(cause, ConnectionRefusedError):
        return "it refuses the connection; nothing listens at this host and port"
    return (cause.strerror if isinstance(cause, OSError) else None) or "there is no way to it"
