"""From an address, as somebody pasted it, to what it stands for: by the same functions that answer it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

from flask import current_app, request

from app.errors import Invalid, NotFound
from app.http.addresses import base_address
from app.http.hosts import PREFIX, map_to
from app.http.parts import Parts, parts
from app.http.paths import raw_path
from app.http.reads import SLACK_SECONDS, Addresses, Asked, DocumentRead, FactRead, MadeRead, Read
from app.repository.explain import Wanted
from app.repository.formats import FORMATS

_MOST_REDIRECTS = 3
_IMAGE = re.compile(r"(/[a-z0-9._/-]+)(?::|@(?=sha))([A-Za-z0-9_][A-Za-z0-9._:-]*)")


def wanted_at(url: str) -> Wanted:
    """What a read of `url` (whole, or its path) is about; a redirect of ours is followed. Raises Invalid, InvalidPath and NotFound."""
    for _ in range(_MOST_REDIRECTS):
        found = _stands_for(url)
        if isinstance(found, Wanted):
            return found
        url = urljoin(url, found)
    raise Invalid("this address leads from one to the next", field="url")


def _stands_for(url: str) -> Wanted | str:
    """What it stands for, or where it leads."""
    house, addresses = parts(), current_app.extensions["arkvory.addresses"]
    assert isinstance(addresses, Addresses)
    environ = _environ(house, _split(url))
    path = raw_path(environ)
    found = addresses.find(path)
    if found is None:
        raise Invalid("nothing that is read is at this address: it begins with a format and a repository", field="url")
    route, arguments = found
    read = route.address(Asked(environ, path, house.settings), **arguments)
    if isinstance(read, Read):
        return _wanted(route.room.format, arguments["repository"], read)
    location = read().headers.get("Location")
    if location is None:
        raise NotFound("this address stands for no artifact and no document")
    return str(location)


def _wanted(format_name: str, repository: str, read: Read) -> Wanted:
    if isinstance(read, MadeRead):
        made = _wanted(format_name, repository, read.made)
        return replace(_wanted(format_name, repository, read.copy), source=made.source, copied=True)
    if isinstance(read, DocumentRead):
        return Wanted(format_name, repository, read.path, read.spelling, read.source, read.made_of)
    return Wanted(format_name, repository, read.path, read.spelling, slack=SLACK_SECONDS if isinstance(read, FactRead) else 0.0)


def _split(url: str) -> SplitResult:
    url = url.strip()
    # As clients take it: without a scheme.
    url = url if "://" in url or url.startswith("/") else f"//{url}"
    try:
        found = urlsplit(url)
        sound = found.path.startswith("/") and (not found.scheme or (found.scheme in {"http", "https"} and bool(found.hostname)))
    except ValueError:
        sound = False
    if not sound:
        forms = "https://host/raw/files/a.txt, /raw/files/a.txt or host/images/app:1.0"
        raise Invalid(f"{url!r} is no address of this server, such as {forms}", field="url")
    return _as_image(found)


def _as_image(url: SplitResult) -> SplitResult:
    """An image's name, as container clients take it, is its manifest's address."""
    name, first = _IMAGE.fullmatch(url.path), url.path.split("/")[1]
    if name is None or first in {each.prefix or each.name for each in FORMATS.values()}:
        return url
    return url._replace(path=f"/v2{name.group(1)}/manifests/{name.group(2)}")


def _environ(house: Parts, url: SplitResult) -> dict[str, Any]:
    """Of a request for that address by this client, which says nothing of the form that it wants."""
    target = _below_base(house, url.path)
    environ = {name: value for name, value in request.environ.items() if name in _KEPT}
    environ |= {"REQUEST_METHOD": "GET", "RAW_URI": target, "QUERY_STRING": url.query}
    hosts = house.access.installation.hosts() if url.hostname and target.startswith(PREFIX) else {}
    repository = hosts.get((url.hostname or "").lower())
    if repository is not None:
        map_to(environ, repository, target)
    return environ


def _below_base(house: Parts, path: str) -> str:
    """Without the folder at which a proxy in front of the server may have put it."""
    base = urlsplit(base_address(request.environ, house.settings)).path
    return path.removeprefix(base) if path.startswith(f"{base}/") else path


# Of the present request: by which address the client came, and through whom.
_KEPT = frozenset({
    "HTTP_HOST", "HTTP_X_FORWARDED_FOR", "HTTP_X_FORWARDED_HOST", "HTTP_X_FORWARDED_PORT", "HTTP_X_FORWARDED_PREFIX",
    "HTTP_X_FORWARDED_PROTO", "REMOTE_ADDR", "SCRIPT_NAME", "SERVER_NAME", "SERVER_PORT", "wsgi.url_scheme",
})  # fmt: skip
