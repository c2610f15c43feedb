"""Where a command's requests go.

1. `--url` or ARKVORY_URL                  that server, with `--token` or ARKVORY_TOKEN
2. the server of the data directory        by the address and the secret that it left there (with `--token` as that token's user)
3. none of these                           the same application in this process, as the owner of the storage (S1), where there is one
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

if TYPE_CHECKING:
    from config import Settings

ANSWER_SECONDS = 3600
PAGE = 1000
# Of an answer that is not the API's and is shown all the same.
LONGEST_WORDS = 300

# (method, path with query, body) -> (status, body)
Send = Callable[[str, str, bytes | None], tuple[int, bytes]]


class Failed(Exception):
    """The command cannot go on; its text is for the user."""


class Refused(Failed):
    """The server runs and said no: this credential may not do that."""


class Absent(Failed):
    """The server has no such thing."""


@dataclass(frozen=True)
class Target:
    """What the command line said of the server to use."""

    url: str | None
    token: str | None

    @contextlib.contextmanager
    def connect(self) -> Iterator[Server]:
        """The server that this command talks to. Raises Failed or SettingError."""
        from config import Settings

        settings = Settings.from_environment()
        running = self.running(settings)
        with contextlib.ExitStack() as stack:
            yield running.server if running else self._alone(settings, stack)

    def running(self, settings: Settings) -> Running | None:
        """The server named, else that of the data directory; null when none runs there. Raises Failed."""
        from app.cluster import localserver

        url, token = self.url or settings.url, self.token or settings.token
        if url is not None:
            return Running(url, Server(_http(_checked_url(url), token)), local=False)
        try:
            local = localserver.read(settings.data_dir)
        except PermissionError:
            raise Failed(
                f"the server of {settings.data_dir} belongs to another user: be that user, or set ARKVORY_URL and ARKVORY_TOKEN"
            ) from None
        if local is None:
            return None
        known = functools.partial(localserver.certificates, settings.data_dir, local.secret) if local.certificates else None
        return Running(local.url, Server(_http(local.url, token or local.secret, local=True, certificates=known)), local=True)

    def _alone(self, settings: Settings, stack: contextlib.ExitStack) -> Server:
        if settings.database_url is None and not (settings.data_dir / "postgres").exists():
            raise Failed(
                f"no server runs for {settings.data_dir.resolve()}, and there is no data: start one (make run, arkvory serve), "
                "or say where the data is (ARKVORY_DATA_DIR, and ARKVORY_DATABASE_URL where the server has it), "
                "or name a server (ARKVORY_URL and ARKVORY_TOKEN)"
            )
        return Server(stack.enter_context(_in_process(settings)))


class Server:
    """The management API, whichever way it is reached."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def get(self, *path: str, **query: Any) -> Any:
        return self.call("GET", *path, query=query)

    def call(self, method: str, *path: str, body: Any = None, query: Mapping[str, Any] | None = None) -> Any:
        """The answer's document (null without one). `path` are segments, encoded here. Raises Failed with the problem's detail."""
        target = "/api/v1/" + "/".join(quote(segment, safe="") for segment in path)
        asked = {name: value for name, value in (query or {}).items() if value is not None}
        status, answer = self._send(method, f"{target}?{urlencode(asked)}", None if body is None else json.dumps(body).encode())
        document = _document(answer)
        if status >= 400:
            raise _FAILURES.get(status, Failed)(_reason(status, document, answer))
        return document

    def items(self, *path: str, most: int | None = None, **query: Any) -> Iterator[Any]:
        """All items of a list, page by page; at most `most`."""
        cursor, left = None, most
        while left is None or left > 0:
            page = self.get(*path, **query, limit=min(PAGE, left or PAGE), cursor=cursor)
            yield from page["items"]
            cursor = page["next"]
            left = None if left is None else left - len(page["items"])
            if cursor is None:
                return


_FAILURES: Mapping[int, type[Failed]] = {401: Refused, 403: Refused, 404: Absent}


@dataclass(frozen=True)
class Running:
    """A server that is not this process; `local`: found by the data directory."""

    url: str
    server: Server
    local: bool


def _checked_url(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise Failed(f"{url!r} is not an address: it begins with http:// or https://")
    return url


def _document(answer: bytes) -> Any:
    try:
        return json.loads(answer) if answer.strip() else None
    except ValueError:
        return None


def _reason(status: int, document: Any, answer: bytes) -> str:
    if not isinstance(document, dict) or "detail" not in document:
        return f"the server answered {status}; is it an Arkvory?{_words(answer)}"
    if status == 401:
        return f"{document['detail']} (ARKVORY_TOKEN)"
    return str(document["detail"])


def _words(answer: bytes) -> str:
    """A line of plain text says more than its status: ours to http where https is spoken, or a proxy's."""
    words = answer.decode(errors="replace").strip()
    return f" It says: {words}" if 0 < len(words) <= LONGEST_WORDS and "<" not in words and words.isprintable() else ""


def _no_answer(url: str, error: Exception) -> Failed:
    reason: Any = getattr(error, "reason", error)
    if type(reason).__name__ == "SSLCertVerificationError":
        words = f"{url} shows a certificate that Python does not trust ({reason.verify_message})"
        return Failed(f"{words}: SSL_CERT_FILE=authority.pem names an authority of your own")
    return Failed(f"{url} does not answer: {reason}")


def _http(url: str, token: str | None, *, local: bool = False, certificates: Callable[[], Sequence[str]] | None = None) -> Send:
    import urllib.error
    import urllib.request

    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    # A proxy of the environment is for the outside.
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})] if local else []
    if certificates is not None:
        from app.cli.bound import BoundHandler

        handlers.append(BoundHandler(certificates))
    opener = urllib.request.build_opener(*handlers)

    def send(method: str, target: str, body: bytes | None) -> tuple[int, bytes]:
        request = urllib.request.Request(url.rstrip("/") + target, body, headers, method=method)  # the user's own address
        try:
            with opener.open(request, timeout=ANSWER_SECONDS) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()
        except (OSError, ValueError) as error:
            raise _no_answer(url, error) from None

    return send


@contextlib.contextmanager
def _in_process(settings: Settings) -> Iterator[Send]:
    """The whole application without a socket, as the only one that uses the storage."""
    from gevent import monkey

    # `close` and `subprocess` of gevent wait for a loop that does not turn while PostgreSQL is being started.
    # TLS is only loaded already when a server was looked for by https; this process then makes no more connections of that kind.
    monkey.patch_all(subprocess=False, os=False, signal=False, ssl="ssl" not in sys.modules)
    from app.database import embedded
    from app.database.outage import outage
    from app.database.pools import patch_for_gevent
    from app.errors import ArkvoryError, DatabaseAway

    patch_for_gevent()
    with contextlib.ExitStack() as stack:
        try:
            if settings.database_url is None:
                settings = replace(settings, database_url=stack.enter_context(embedded.start(settings)).url)
            application = _start(settings, stack)
        except DatabaseAway as error:
            raise Failed(outage.words(error)) from None
        except ArkvoryError as error:
            raise Failed(str(error)) from None
        yield application


def _start(settings: Settings, stack: contextlib.ExitStack) -> Send:
    # By name: the table of contents imports every room, this one's neighbours too.
    app = importlib.import_module("app").create_app(settings)
    lifecycle = app.extensions["arkvory.lifecycle"]
    stack.callback(lifecycle.stop)
    lifecycle.own()
    first_start = lifecycle.make_administrator()
    if first_start is not None:
        print(first_start.shown, file=sys.stderr)
    secret = app.extensions["arkvory"].local_secret = secrets.token_urlsafe(32)
    headers = {"Authorization": f"Bearer {secret}"}
    client = app.test_client()

    def send(method: str, target: str, body: bytes | None) -> tuple[int, bytes]:
        answer = client.open(
            target, method=method, data=body, headers=headers, content_type="application/json", environ_overrides={"RAW_URI": target},
            base_url=f"{settings.scheme}://localhost:{settings.port}",
        )
        return answer.status_code, answer.get_data()

    return send
