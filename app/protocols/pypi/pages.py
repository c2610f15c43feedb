"""What the index pages of an upstream say, read with suspicion: JSON (PEP 691) or HTML (PEP 503), whichever it is.

The bytes say what they are, since servers of static files say anything of them. Forgiven is what installers forgive too: a file
that cannot be told by name and address is left out, a hash or a size that is none is not passed on. What is no index page at
all (an error page with status 200, JSON that is broken or of another kind, a version of the interface that nobody knows) is `Unreadable`.

Long pages, and all in HTML, are read by a process that has a limit of time and memory (`app.upload.archives`); so this imports little
of Arkvory.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urljoin, urlsplit

from packaging.utils import InvalidName, canonicalize_name

from app.protocols.pypi.metadata import index_html, index_json
from app.protocols.pypi.names import LONGEST_FILE_NAME, LONGEST_NAME, Companion, version_in
from app.upload.archives.tars import MIB, Unreadable

MOST_BYTES = 64 * MIB
MOST_INDEX_BYTES = 128 * MIB
MOST_FILES = 200_000
# Characters of a reason, a set of versions, an address.
LONGEST_TEXT = 4096
# Files that are told in one line.
_PART = 100

_LENGTHS = {
    name: 2 * hashlib.new(name, usedforsecurity=False).digest_size for name in hashlib.algorithms_guaranteed if not name.startswith("shake")
}
_HEX = re.compile(r"[0-9a-f]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f/\\\ud800-\udfff]")
_VERSION = re.compile(r"([0-9]+)\.[0-9]+")
# What tells a page of links from any other: an index says its version, or is called as the first one was; else files tell.
_TITLE = re.compile(r"\b(?:links for|simple index)\b", re.IGNORECASE)
ENDINGS = (".whl", ".tar.gz", ".zip", ".egg", ".tar.bz2", ".tgz", ".tar.xz", ".tar.z", ".tar", ".exe", ".msi", ".rpm", ".deb", ".dmg")
_BESIDE = tuple(map(str, Companion))
_STATUSES = frozenset({"active", "archived", "quarantined", "deprecated"})

Facts = dict[str, Any]


class Page(NamedTuple):
    """`files` as `_fact` gives them; `versions` as the upstream lists them, where it does."""

    files: list[Facts]
    versions: list[str]
    status: str | None
    reason: str | None


def read_page(data: bytes, address: str, project: str) -> Page:
    """The page of a project (normalised) that came from `address`. Raises Unreadable."""
    page = _json_page(data, address, project) if is_json(data) else _html_page(data, address, project)
    if len(page.files) > MOST_FILES:
        raise Unreadable(f"names {len(page.files)} files, more than {MOST_FILES}")
    return page


def read_names(data: bytes) -> list[str]:
    """Normalised names of all projects of an index, sorted. Raises Unreadable."""
    names = _json_names(data) if is_json(data) else _html_names(data)
    return sorted({name for name in map(_normalised, names) if name})


# JSON


def is_json(data: bytes) -> bool:
    """Whether this begins as JSON does."""
    return data[:1024].lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[")


def _document(data: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"is broken JSON ({str(error)[:100]})") from None
    if not isinstance(document, dict):
        raise Unreadable("is JSON, but no index page")
    meta = document.get("meta")
    _check_version(meta.get("api-version") if isinstance(meta, dict) else None)
    return document


def _check_version(version: Any) -> None:
    """PEP 629: a greater major version may mean anything."""
    found = _VERSION.match(version) if isinstance(version, str) else None
    if found is not None and int(found.group(1)[:9]) != 1:
        raise Unreadable(f"is of version {found.group(0)} of the interface, and only 1 is known")


def _list(document: Mapping[str, Any], key: str) -> list[Any]:
    found = document.get(key)
    if not isinstance(found, list):
        raise Unreadable(f"is JSON without a list of {key}")
    return found


def _json_page(data: bytes, address: str, project: str) -> Page:
    document = _document(data)
    links = (_json_link(each) for each in _list(document, "files") if isinstance(each, dict))
    versions = document.get("versions")
    status = document.get("project-status")
    return Page(
        _files(links, address, project),
        [each for each in versions if _text(each)] if isinstance(versions, list) else [],
        *(_status(status.get("status"), status.get("reason")) if isinstance(status, dict) else (None, None)),
    )


def _json_link(entry: Mapping[str, Any]) -> Facts:
    core = entry.get("core-metadata", entry.get("dist-info-metadata"))
    yanked = entry.get("yanked")
    return {
        "url": entry.get("url"),
        "filename": entry.get("filename"),
        "hashes": entry.get("hashes"),
        "requires_python": entry.get("requires-python"),
        "core_metadata": core if isinstance(core, dict) else {} if core is True else None,
        "signed": entry.get("gpg-sig"),
        "yanked": yanked if isinstance(yanked, str) else "" if yanked is True else None,
        "size": entry.get("size"),
        "uploaded_at": entry.get("upload-time"),
        "provenance": entry.get("provenance"),
    }


def _json_names(data: bytes) -> Iterator[Any]:
    return (each.get("name") for each in _list(_document(data), "projects") if isinstance(each, dict))


# HTML


class _Links(HTMLParser):
    """Anchors in their order (attributes, and text), `<base>`, what stands in `<meta>`, and the titles."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.anchors: list[tuple[dict[str, str | None], str]] = []
        self.base: str | None = None
        self.meta: dict[str, str] = {}
        self.titles: list[str] = []
        self._open: dict[str, str | None] | None = None
        self._in_title = False
        self._text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(reversed(attrs))
        if tag == "a":
            self._finish()
            self._open = found
        elif tag == "base" and self.base is None:
            self.base = found.get("href")
        elif tag == "meta":
            self.meta.setdefault(found.get("name") or "", found.get("content") or "")
        elif tag in ("title", "h1"):
            self._finish()
            self._in_title = True

    def handle_endtag(self, tag: str) -> None:
        if tag == "a" or (tag in ("title", "h1") and self._in_title):
            self._finish()

    def handle_data(self, data: str) -> None:
        if self._open is not None or self._in_title:
            self._text.append(data)

    def close(self) -> None:
        super().close()
        self._finish()

    def _finish(self) -> None:
        text = "".join(self._text)[:LONGEST_TEXT].strip()
        if self._open is not None:
            self.anchors.append((self._open, text))
        elif self._in_title:
            self.titles.append(text)
        self._open, self._in_title, self._text = None, False, []


def _links(data: bytes) -> _Links:
    parser = _Links()
    parser.feed(data.decode("utf-8", "replace"))
    parser.close()
    _check_version(parser.meta.get("pypi:repository-version"))
    return parser


def _says_what_it_is(parser: _Links) -> bool:
    return "pypi:repository-version" in parser.meta or any(_TITLE.search(each) for each in parser.titles)


def _html_page(data: bytes, address: str, project: str) -> Page:
    parser = _links(data)
    base = _joined(address, parser.base or "") or address
    files = _files((_html_link(attributes, text) for attributes, text in parser.anchors), base, project)
    if not files and not _says_what_it_is(parser):
        raise Unreadable("is a page that names no file and does not say that it is an index")
    return Page(files, [], *_status(parser.meta.get("pypi:project-status"), parser.meta.get("pypi:project-status-reason")))


def _html_link(attributes: Mapping[str, str | None], text: str) -> Facts:
    href = (attributes.get("href") or "").strip()
    algorithm, _, digest = href.partition("#")[2].partition("=")
    core = attributes.get("data-core-metadata", attributes.get("data-dist-info-metadata", ""))
    signed = attributes.get("data-gpg-sig")
    return {
        "url": href,
        "filename": _name_at(href) or text,
        "hashes": {algorithm: digest.partition("&")[0]},
        "requires_python": attributes.get("data-requires-python"),
        "core_metadata": _html_core_metadata(core or ""),
        "signed": None if signed is None else signed.lower() == "true",
        "yanked": (attributes["data-yanked"] or "") if "data-yanked" in attributes else None,
        "size": None,
        "uploaded_at": None,
        "provenance": attributes.get("data-provenance"),
    }


def _html_core_metadata(value: str) -> dict[str, str] | None:
    algorithm, equals, digest = value.partition("=")
    return {algorithm: digest} if equals else {} if value.lower() == "true" else None


def _name_at(href: str) -> str:
    """The name of a file that an address ends in; empty when it does not look like one."""
    name = unquote(href.partition("#")[0].partition("?")[0].rpartition("/")[2])
    return name if name.lower().endswith(ENDINGS) else ""


def _html_names(data: bytes) -> Iterator[str]:
    parser = _links(data)
    found = False
    for attributes, text in parser.anchors:
        name = unquote((attributes.get("href") or "").partition("#")[0].partition("?")[0].rstrip("/").rpartition("/")[2])
        if _normalised(text) and _normalised(text) == _normalised(name):
            found = True
            yield name
    if not found and not _says_what_it_is(parser):
        raise Unreadable("is a page that names no project and does not say that it is an index")


# What holds for both


def _files(links: Iterable[Facts], address: str, project: str) -> list[Facts]:
    """Those that can be told by name and address, the first of each name."""
    found: dict[str, Facts] = {}
    for link in links:
        fact = _fact(link, address, project)
        if fact is not None:
            found.setdefault(fact["filename"], fact)
    return list(found.values())


def _fact(link: Facts, address: str, project: str) -> Facts | None:
    """What stands in JSON or HTML, with nothing in it that is not what it should be; null for what is no file of a project."""
    filename, url = link["filename"], link["url"]
    if not _is_file_name(filename) or not isinstance(url, str) or (whole := _joined(address, url)) is None:
        return None
    core, size, provenance = link["core_metadata"], link["size"], link["provenance"]
    return {
        "filename": filename,
        "url": whole,
        "version": version_in(filename, project),
        "hashes": _hashes(link["hashes"]),
        "requires_python": _text(link["requires_python"]),
        "core_metadata": None if core is None else _hashes(core),
        "signed": link["signed"] if isinstance(link["signed"], bool) else None,
        "yanked": None if link["yanked"] is None else _text(link["yanked"]) or "",
        "size": size if isinstance(size, int) and not isinstance(size, bool) and 0 <= size < 2**63 else None,
        "uploaded_at": _text(link["uploaded_at"]),
        "provenance": _joined(address, provenance) if isinstance(provenance, str) else None,
    }


def _is_file_name(name: Any) -> bool:
    """Of one segment, and not what stands beside a file: that is told with the file."""
    return (
        isinstance(name, str)
        and 0 < len(name.encode("utf-8", "replace")) <= LONGEST_FILE_NAME
        and not _CONTROL.search(name)
        and name.lower().endswith(ENDINGS)
        and not name.endswith(_BESIDE)
    )


def _hashes(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        return {}
    lower = {str(name): digest.lower() for name, digest in value.items() if isinstance(digest, str)}
    return {name: digest for name, digest in lower.items() if len(digest) == _LENGTHS.get(name) and _HEX.fullmatch(digest)}


def _text(value: Any) -> str | None:
    """Without what no answer may carry; null when it is none, or endless."""
    if not isinstance(value, str) or not value or len(value) > LONGEST_TEXT:
        return None
    return _CONTROL_IN_TEXT.sub(" ", value)


_CONTROL_IN_TEXT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def _status(status: Any, reason: Any) -> tuple[str | None, str | None]:
    return (status, _text(reason)) if status in _STATUSES else (None, None)


# A whole address that needs nothing done to it, as most are.
_WHOLE = re.compile(r"https?://[a-z0-9-]+(?:\.[a-z0-9-]+)+(?:/[A-Za-z0-9_+!~-][A-Za-z0-9._+!~-]*){1,40}")


def _joined(address: str, reference: str) -> str | None:
    """The whole address without its fragment; null for what is none of http, or is endless."""
    if len(reference) <= LONGEST_TEXT and _WHOLE.fullmatch(reference):
        return reference
    try:
        url = urljoin(address, reference.strip()).partition("#")[0]
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and len(url) <= LONGEST_TEXT
        return _encoded(url) if sound else None
    except ValueError:
        return None


def _encoded(url: str) -> str:
    """Characters that stand in no address are escaped as browsers do; escapes stay as they are."""
    return re.sub(r"[^!-~]|[\"<>\\^`{|}]", lambda match: "".join(f"%{byte:02X}" for byte in match.group().encode("utf-8", "replace")), url)


def _normalised(name: Any) -> str | None:
    try:
        return canonicalize_name(name, validate=True) if isinstance(name, str) and len(name) <= LONGEST_NAME else None
    except InvalidName:
        return None


# What a child process does


def answer(path: str, kind: str) -> bytes:
    """`kind` is JSON: `[what, ...]`.

    `["page", address, project]`: lines of JSON, the first about the page, then lists of files; of one file with `filename` as the fourth.
    `["index", form, coding]`: the index of all projects as it is sent to clients; `["names"]`: its names, one a line; `["check"]`: nothing,
    where it is one.
    `{"unreadable": clause}` when it cannot be read.
    """
    what, *arguments = json.loads(kind)
    try:
        return _ANSWERS[what](Path(path).read_bytes(), *arguments)
    except Unreadable as error:
        return json.dumps({"unreadable": str(error)}).encode()
    except MemoryError:
        return json.dumps({"unreadable": "needs more memory to be read than is allowed"}).encode()


def lines_of(data: bytes, address: str, project: str, filename: str | None = None) -> Iterator[str]:
    """See `answer`."""
    page = read_page(data, address, project)
    files = [each for each in page.files if filename in (None, each["filename"])]
    yield json.dumps({"versions": page.versions, "status": page.status, "reason": page.reason, "files": len(files)})
    for start in range(0, len(files), _PART):
        yield json.dumps(files[start : start + _PART])


def _page_answer(data: bytes, address: str, project: str, filename: str | None = None) -> bytes:
    return "\n".join(lines_of(data, address, project, filename)).encode()


def _index_answer(data: bytes, form: str, coding: str) -> bytes:
    body = (index_json if form == "json" else index_html)(read_names(data))
    return gzip.compress(body, 5, mtime=0) if coding == "gzip" else body


def _names_answer(data: bytes) -> bytes:
    """Each behind a line feed, so that none is an answer too."""
    return "".join(f"\n{name}" for name in read_names(data)).encode() or b"\n"


def _check_answer(data: bytes) -> bytes:
    """Of HTML the beginning is enough, which takes long to read."""
    any(_json_names(data) if is_json(data) else _html_names(data[:MIB]))
    return b"{}"


_ANSWERS: Mapping[str, Callable[..., bytes]] = {
    "page": _page_answer,
    "index": _index_answer,
    "names": _names_answer,
    "check": _check_answer,
}
