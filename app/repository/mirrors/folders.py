"""Folders of upstreams as they list them: Arkvory's and nginx's JSON, and the HTML of whatever serves files.

Of HTML only links count that lead to something directly in the folder. Lists are called by the folder's path, empty or ending in a slash;
behind a line feed stands where a further page goes on.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote, urlencode, urljoin, urlsplit

import gevent

from app.errors import Invalid, NotFound, UpstreamUnfit
from app.repository.mirrors.guides import FILE, LIST, Item, Trail
from app.repository.names import check_path
from app.upstream.client import Wanted

MOST_BYTES = 32 * 1024 * 1024
_ACCEPTED = {"Accept": "application/json, text/html;q=0.5"}
# Servers' own links, such as those that sort, stand in an address with a query.
_LINK = re.compile(rb"<a\s(?:[^>]*?\s)?href\s*=\s*(?:\"([^\"]{1,4096})\"|'([^']{1,4096})'|([^\s>\"']{1,4096}))", re.IGNORECASE)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_AS_IT_IS = "/!$&'()*+,;=:@~"
Told = list[dict[str, Any]]


def items(trail: Trail, path: str) -> Iterator[Item]:
    """What is in a folder. Raises NotFound, UpstreamFailed, and UpstreamUnfit for what is no list of a folder."""
    folder, _, after = path.partition("\n")
    where = quote(folder, safe=_AS_IT_IS) + (f"?{urlencode({'after': after})}" if after else "")
    body = trail.ask(Wanted(where, headers=_ACCEPTED), MOST_BYTES)
    if body is None:
        raise NotFound(f"the upstream lists no folder {folder!r}")
    found: tuple[Told, str | None] | None = gevent.get_hub().threadpool.apply(_read, (body, f"{trail.url}/{where}"))
    if found is None:
        raise UpstreamUnfit(f"what the upstream answers for the folder {folder!r} is no list of what is in it")
    entries, further = found
    for each in entries:
        item = _item(folder, each)
        if item is not None and trail.wants(item.path):
            yield item
    if further:
        yield Item(LIST, f"{folder}\n{further}")


def _item(folder: str, entry: Mapping[str, Any]) -> Item | None:
    """Null for what cannot be a path here."""
    name, size, sha256 = entry["name"], entry.get("size"), entry.get("sha256")
    path = folder + name
    try:
        check_path(path, folder=path.endswith("/"))
    except Invalid:
        return None
    if path.endswith("/"):
        return Item(LIST, path)
    known = f"sha256:{sha256}" if isinstance(sha256, str) and _SHA256.fullmatch(sha256) else None
    length = size if isinstance(size, int) and not isinstance(size, bool) and 0 <= size < 2**63 else None
    return Item(FILE, path, length, known, quote(path, safe=_AS_IT_IS))


def _read(body: bytes, address: str) -> tuple[Told, str | None] | None:
    """The entries (folders end in a slash), and where the next page goes on; null for what is no list."""
    if body.lstrip()[:1] in (b"{", b"["):
        return _read_json(body)
    if b"<a " not in body.lower() and b"<html" not in body.lower():
        return None
    return _read_html(body, address), None


def _read_json(body: bytes) -> tuple[Told, str | None] | None:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    entries = document.get("items") if isinstance(document, dict) else document
    if not isinstance(entries, list):
        return None
    further = document.get("next") if isinstance(document, dict) else None
    found = [_entry(each) for each in entries if isinstance(each, dict) and isinstance(each.get("name"), str) and each["name"]]
    return found, further if isinstance(further, str) and "\n" not in further else None


def _entry(told: Mapping[str, Any]) -> dict[str, Any]:
    name = told["name"].rstrip("/") if told.get("type") in ("folder", "directory") else told["name"]
    return {**told, "name": name + "/" if told.get("type") in ("folder", "directory") else name}


def _read_html(body: bytes, address: str) -> Told:
    base = urlsplit(address)
    folder = unquote(base.path)
    names: dict[str, None] = {}
    for match in _LINK.finditer(body):
        reference = html.unescape(next(each for each in match.groups() if each is not None).decode("utf-8", "replace")).strip()
        try:
            found = urlsplit(urljoin(address, reference))
            path = unquote(found.path, errors="strict")
        except ValueError:
            continue
        name = path.removeprefix(folder)
        own = (found.scheme, found.netloc) == (base.scheme, base.netloc) and path.startswith(folder)
        if own and not found.query and name and "/" not in name.rstrip("/") and "\n" not in name:
            names[name] = None
    return [{"name": name} for name in names]
