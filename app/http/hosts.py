"""Host names that mean one repository: at them, images have no prefix, as a registry mirror needs it.

    GET /v2/library/alpine/manifests/3   Host: mirror.example   is   GET /v2/{repository}/library/alpine/manifests/3

The path is changed before anything looks at it; the room writes its addresses as the client knows them. Which names there are is kept
under the installation's epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flask import Flask

from app.errors import ArkvoryError
from app.http.addresses import host_of, seen_base
from app.http.errors import text_answer
from app.http.exchange import Application, StartResponse
from app.http.parts import Parts
from app.http.paths import raw_path
from config import Settings

PREFIX = "/v2/"
# Addresses that belong to no repository.
_COMMON = ("token", "_catalog")
_KEY = "arkvory.mapped"


class MappedHosts:
    """WSGI callable around `application`."""

    def __init__(self, application: Application, house: Parts) -> None:
        self._application = application
        self._house = house

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        path = raw_path(environ)
        if path.startswith(PREFIX):
            try:
                self._map(environ, path)
            except ArkvoryError as error:
                return text_answer(error)(environ, start_response)
        return self._application(environ, start_response)

    def _map(self, environ: dict[str, Any], path: str) -> None:
        hosts = self._house.access.installation.hosts()
        repository = hosts.get(asked_host(environ, self._house.settings).lower()) if hosts else None
        if repository is not None:
            map_to(environ, repository, path)


def map_to(environ: dict[str, Any], repository: str, path: str) -> None:
    """Let a request whose host name means the repository ask for what is in it; `path` begins with `PREFIX`."""
    environ[_KEY] = repository
    rest = path[len(PREFIX) :]
    if rest not in ("", *_COMMON):
        environ["RAW_URI"] = f"{PREFIX}{repository}/{rest}"


def mapped_repository(environ: Mapping[str, Any]) -> str | None:
    """The repository that the request's host name means."""
    found: str | None = environ.get(_KEY)
    return found


def mapped_base(environ: Mapping[str, Any], settings: Settings) -> str | None:
    """The address that a client at such a host name uses, whatever the server's public one is; null elsewhere."""
    return seen_base(environ, settings) if _KEY in environ else None


def asked_host(environ: Mapping[str, Any], settings: Settings) -> str:
    """The host name that the client asked, without a port. Raises Invalid for a malformed one."""
    return host_of(seen_base(environ, settings))


def put_before(app: Flask, house: Parts) -> None:
    """Let the application's addresses depend on host names."""
    app.wsgi_app = MappedHosts(app.wsgi_app, house)  # type: ignore[assignment,method-assign]  # Flask documents this way to wrap it
