"""What upstreams' lists say, read with suspicion: folders in JSON or HTML, and the artifacts of another Arkvory.

Each takes time and memory in proportion to its length. Long ones are read by a process that has a limit of both (`app.upload.archives`);
so this imports little of Arkvory.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urljoin, urlsplit

from app.upload.archives.tars import Unreadable

# Characters: no path here is longer, and no page of a list is called by more.
LONGEST = 1024
# Entries that are told in one line.
_AT_ONCE = 500
_TAG = re.compile(rb"<a\s[^<>]*+>", re.IGNORECASE)
_HREF = re.compile(rb"\shref\s*+=\s*+(?:\"([^\"]{1,4096})\"|'([^']{1,4096})'|([^\s>\"']{1,4096}))", re.IGNORECASE)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class Entry(NamedTuple):
    """What a list names; `size` in bytes and `sha256` in hexadecimal as far as it tells them. A folder's name ends in a slash."""

    name: str
    size: int | None = None
    sha256: str | None = None


class Page(NamedTuple):
    """`further` is where the list goes on; null at its end."""

    entries: Iterable[Entry]
    further: str | None


def read_folder(data: bytes, address: str) -> Page:
    """The list of a folder that came from `address`. Raises Unreadable."""
    if data.lstrip()[:1] in (b"{", b"["):
        return _json_folder(data)
    beginning = data.lower()
    if b"<a " not in beginning and b"<html" not in beginning:
        raise Unreadable("is no list of what is in it")
    return Page(map(Entry, _html_names(data, address)), None)


def read_artifacts(data: bytes, _address: str) -> Page:
    """A page of the artifacts of another Arkvory's repository, but for those that are held. Raises Unreadable."""
    document = _parsed(data)
    if not isinstance(document, dict) or not isinstance(document.get("items"), list):
        raise Unreadable("is no list of artifacts of an Arkvory")
    told = (each for each in document["items"] if isinstance(each, dict) and each.get("quarantine") is None)
    return Page(_entries((each.get("path"), each) for each in told), _further(document.get("next")))


def _json_folder(data: bytes) -> Page:
    document = _parsed(data)
    entries = document.get("items") if isinstance(document, dict) else document
    if not isinstance(entries, list):
        raise Unreadable("is JSON, but no list of what is in it")
    further = document.get("next") if isinstance(document, dict) else None
    return Page(_entries((_name_in(each), each) for each in entries if isinstance(each, dict)), _further(further))


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise Unreadable("is broken JSON") from None


def _name_in(told: Mapping[str, Any]) -> Any:
    name = told.get("name")
    return name.rstrip("/") + "/" if isinstance(name, str) and told.get("type") in ("folder", "directory") else name


def _entries(named: Iterable[tuple[Any, Mapping[str, Any]]]) -> Iterator[Entry]:
    for name, told in named:
        if isinstance(name, str) and 0 < len(name) <= LONGEST:
            yield Entry(name, _size(told.get("size")), _sha256(told.get("sha256")))


def _size(told: Any) -> int | None:
    return told if isinstance(told, int) and not isinstance(told, bool) and 0 <= told < 2**63 else None


def _sha256(told: Any) -> str | None:
    return told if isinstance(told, str) and _SHA256.fullmatch(told) else None


def _further(told: Any) -> str | None:
    """By what the next page is called. Raises Unreadable for what nobody can be asked for."""
    if not told:
        return None
    if not isinstance(told, str) or len(told.encode("utf-8", "replace")) > LONGEST * 2 or _CONTROL.search(told) or not _is_utf_8(told):
        raise Unreadable("goes on at a place that can be none")
    return told


def _is_utf_8(told: str) -> bool:
    try:
        told.encode()
    except UnicodeEncodeError:
        return False
    return True


def _html_names(data: bytes, address: str) -> Iterable[str]:
    """Only what lies directly in the folder. Servers' own links, such as those that sort, stand in an address with a query."""
    base = urlsplit(address)
    folder = unquote(base.path)
    names: dict[str, None] = {}
    for reference in _references(data):
        try:
            found = urlsplit(urljoin(address, reference))
            path = unquote(found.path, errors="strict")
        except ValueError:
            continue
        name = path.removeprefix(folder)
        own = (found.scheme, found.netloc) == (base.scheme, base.netloc) and path.startswith(folder)
        if own and not found.query and name and "/" not in name.rstrip("/") and "\n" not in name:
            names[name] = None
    return names


def _references(data: bytes) -> Iterator[str]:
    for tag in _TAG.finditer(data):
        found = _HREF.search(tag.group())
        if found is not None:
            yield html.unescape(next(each for each in found.groups() if each is not None).decode("utf-8", "replace")).strip()


# In the process that reads long ones


def answer(path: str, kind: str) -> Iterator[bytes]:
    """`[what, address]`: lines of JSON, the first about the page, then lists of entries; `{"unreadable": clause}` if it cannot be read."""
    what, address = json.loads(kind)
    try:
        yield from _lines(_READERS[what](Path(path).read_bytes(), address))
    except Unreadable as error:
        yield _line({"unreadable": str(error)})
    except MemoryError:
        yield _line({"unreadable": "needs more memory to be read than is allowed"})


def _lines(page: Page) -> Iterator[bytes]:
    yield _line({"further": page.further})
    entries = iter(page.entries)
    while some := list(islice(entries, _AT_ONCE)):
        yield _line(some)


def _line(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"


_READERS: Mapping[str, Callable[[bytes, str], Page]] = {"folder": read_folder, "artifacts": read_artifacts}
