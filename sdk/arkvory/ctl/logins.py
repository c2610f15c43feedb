"""`login`, `logout` and `whoami`, and the server that a command talks to.

    1. --url, or ARKVORY_URL     that server, with --token or ARKVORY_TOKEN, else with the login that is kept for it
    2. the last login            kept in the user's configuration folder, in a file that nobody else can read
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import socket
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from arkvory import state
from arkvory.client import Client
from arkvory.ctl.options import PERMISSIONS, Arguments, permissions
from arkvory.ctl.output import say
from arkvory.errors import ArkvoryError, LocalFile, Unauthenticated
from arkvory.progress import Bars, Lines, OnEvent, quiet
from arkvory.retry import Retry

# Of what asks and moves no files: somebody waits for it.
QUICK_ATTEMPTS = 5


class NoServer(Exception):
    """Nobody said which."""


def add(verbs: Any) -> None:
    login = verbs.add_parser("login", help="make a token for this machine and keep it", description=_login.__doc__)
    login.add_argument("server", metavar="URL")
    login.add_argument("--user", help="name; asked for where it is not given")
    login.add_argument("--password-stdin", action="store_true", help="read the password from standard input")
    login.add_argument("--token-stdin", action="store_true", help="read a token that there is already, instead of making one")
    login.add_argument("--days", type=int, default=90, help="for which the new token is good (90)")
    login.add_argument("--permission", type=permissions, default=list(PERMISSIONS), metavar="WORDS", help="what it may, such as read (all)")
    login.set_defaults(run=_login)
    logout = verbs.add_parser("logout", help="revoke that token, with those made with it, and forget it", description=_logout.__doc__)
    logout.add_argument("server", metavar="URL", nargs="?", help="by default the server of the last login")
    logout.set_defaults(run=_logout)
    whoami = verbs.add_parser("whoami", help="which server, and as whom", description=_whoami.__doc__)
    whoami.set_defaults(run=_whoami)


@contextlib.contextmanager
def connected(given: Arguments, *, patient: bool = False, progress: OnEvent = quiet) -> Iterator[Client]:
    """The server that this command talks to; `patient` where files move. Raises NoServer, LocalFile."""
    url, token = _target(given)
    with _client(given, url, token=token, patient=patient, progress=progress) as client:
        yield client


@contextlib.contextmanager
def by_password(given: Arguments, user: str) -> Iterator[Client]:
    """The same server, with a name and a password that are said now: what is made so ends with no login. Raises NoServer, ValueError."""
    url, _ = _target(given)
    with _client(given, url, user=user, password=_line() if given.password_stdin else _secret()) as client:
        yield client


def is_of_login(url: str, token_id: int | None) -> bool:
    """Whether that token is the one that `login` keeps for the server."""
    login = Logins.read().servers.get(url)
    return login is not None and token_id is not None and login["token_id"] == token_id


@contextlib.contextmanager
def watched(given: Arguments) -> Iterator[Client]:
    """The same, with bars on a terminal and lines elsewhere."""
    if given.quiet:
        with connected(given, patient=True) as client:
            yield client
        return
    with (Bars() if sys.stderr.isatty() else Lines()) as progress, connected(given, patient=True, progress=progress) as client:
        yield client


def _client(
    given: Arguments,
    url: str,
    *,
    token: str | None = None,
    user: str | None = None,
    password: str | None = None,
    patient: bool = False,
    progress: OnEvent = quiet,
) -> Client:
    policy = Retry(total=given.retry_for) if patient else Retry(attempts=QUICK_ATTEMPTS, total=given.retry_for)
    return Client(
        url, token=token, user=user, password=password, retry=policy, verify=given.ca or True, progress=progress, parallel=given.parallel
    )


def _target(given: Arguments) -> tuple[str, str | None]:
    """Address and token, null for nobody's."""
    url, token = given.url or os.environ.get("ARKVORY_URL"), given.token or os.environ.get("ARKVORY_TOKEN")
    kept = Logins.read()
    url = url or kept.current
    if url is None:
        if kept.servers:
            # Never another one than was meant: a command may delete something.
            other = next(iter(kept.servers))
            raise NoServer(f"no server is the current one since the logout: name one (--url {other}), or arkvoryctl login URL")
        raise NoServer("no server is known: arkvoryctl login URL, or set ARKVORY_URL and ARKVORY_TOKEN")
    return url, token or kept.token(url)


def _login(given: Arguments) -> None:
    """Ask for a name and a password, make a token with them, and keep that where nobody else can read it. The password is not kept."""
    url = given.server.rstrip("/")
    if urlsplit(url).scheme == "http" and urlsplit(url).hostname not in ("localhost", "127.0.0.1", "::1"):
        print("The address is plain http: the login goes over the network as it is.", file=sys.stderr)
    kept = Logins.read()
    user, token, id = _from_stdin(given, url) if given.token_stdin else _made(given, url)
    kept.servers[url] = {"user": user, "token": token, "token_id": id}
    kept.current = url
    kept.write()
    say(f"Logged in to {url} as {user}; the token is in {Logins.file()}.")


def _from_stdin(given: Arguments, url: str) -> tuple[str, str, int | None]:
    token = _line()
    with _client(given, url, token=token) as client:
        who = client.whoami()
    if who["user"] is None and not who.get("deploy_token"):
        raise Unauthenticated("that is no token of this server", status=401)
    own = who["token"] or {}
    return who["user"] or f"deploy token {who['deploy_token']['name']}", token, own.get("id")


def _made(given: Arguments, url: str) -> tuple[str, str, int | None]:
    user = given.user or _ask("User: ")
    password = _line() if given.password_stdin else _secret()
    with _client(given, url, user=user, password=password) as client:
        made = client.create_token(f"arkvoryctl on {socket.gethostname()}"[:200], given.permission, expires_in_days=given.days)
    return made.user, made.token or "", made.id


def _logout(given: Arguments) -> None:
    """Revoke the token of the last login, or of the server named, and forget it. What was made with it ends too, and is named."""
    kept = Logins.read()
    url = (given.server or kept.current or "").rstrip("/")
    login = kept.servers.pop(url, None)
    if login is None:
        raise NoServer(f"there is no login of {url} to end" if url else "there is no login to end")
    if kept.current == url:
        kept.current = None
    kept.write()
    ended: Sequence[str] = ()
    try:
        if login["token_id"] is not None:
            with _client(given, url, token=login["token"]) as client:
                ended = client.revoke_token(login["token_id"])
    except Unauthenticated:
        pass
    except ArkvoryError as error:
        error.message = f"the token is forgotten here, but not revoked (arkvory token revoke {login['token_id']}): {error.message}"
        raise
    say(f"Logged out of {url}.")
    for line in ended:
        say(line)


def _whoami(given: Arguments) -> None:
    """The server that commands talk to, whom the login stands for there, and until when."""
    with connected(given) as client:
        who = client.whoami()
    if given.json:
        print(json.dumps({"url": client.url} | who, indent=2, ensure_ascii=False))
        return
    deploy, token = who.get("deploy_token"), who["token"]
    name = f"deploy token {deploy['name']}" if deploy else who["user"] or "nobody: there is no login"
    by = f", by token {token['id']} ({token['name']})" if token else ""
    until = f", until {token['expires_at']}" if token and token["expires_at"] else ""
    say(f"{client.url}: {name}{', administrator' if who['administrator'] else ''}{by}{until}")


@dataclass
class Logins:
    """What is kept: by address `user`, `token` and `token_id`; `current` is the address of the last login."""

    servers: dict[str, dict[str, Any]]
    current: str | None

    @staticmethod
    def file() -> Path:
        if sys.platform == "win32":
            return Path(os.environ.get("APPDATA") or Path.home() / "AppData" / "Roaming") / "arkvory" / "logins.json"
        return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "arkvory" / "logins.json"

    @classmethod
    def read(cls) -> Logins:
        """Nothing where nothing is kept. Raises LocalFile where others can read it."""
        file = cls.file()
        if os.name != "nt" and file.exists() and stat.S_IMODE(file.stat().st_mode) & 0o077:
            raise LocalFile(f"others may read the tokens in {file}: type chmod 600 {file}, and log in anew if somebody did")
        found = state.read(file)
        servers, current = found.get("servers"), found.get("current")
        return cls(servers if isinstance(servers, dict) else {}, current if isinstance(current, str) else None)

    def token(self, url: str) -> str | None:
        found = self.servers.get(url.rstrip("/"))
        return None if found is None else str(found["token"])

    def write(self) -> None:
        """For its owner alone, whole or not at all. Raises LocalFile."""
        file = self.file()
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            state.write(file, {"current": self.current, "servers": self.servers})
        except OSError as error:
            raise LocalFile(f"the login cannot be kept in {file}: {error.strerror}") from error


def _line() -> str:
    """One line of standard input, such as a password that a program hands over."""
    return sys.stdin.readline().rstrip("\r\n")


def _ask(question: str) -> str:
    if not sys.stdin.isatty():
        raise ValueError("there is no terminal to ask for the name: use --user")
    print(question, end="", file=sys.stderr, flush=True)
    return _line()


def _secret() -> str:
    if not sys.stdin.isatty():
        raise ValueError("there is no terminal to ask for the password: use --password-stdin")
    return getpass.getpass("Password: ")
