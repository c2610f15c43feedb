"""What stands in an uploaded tarball, and in a document too long for the server's own process. Runs in a child (`app.upload.archives`).

Every tarball is read to its end: names that lead elsewhere, sparse members and bombs are refused, and there must be exactly one
`package.json` in a folder at the top, since installers strip that folder whatever its name and take the last such file that they find.
So that the process is small, this imports nothing else of Arkvory.
"""

from __future__ import annotations

import gzip
import json
import math
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from app.upload.archives.tars import MIB, Limits, Unreadable, open_tar, short

# What a document may say of a version that it brings, without the readme; and how deep it may be nested: what is read in one place must be
# written, and read again, in others that have less of the stack.
MOST_MANIFEST = 2 * MIB
MOST_DEPTH = 100
INSTALL_SCRIPTS = ("preinstall", "install", "postinstall")
LIMITS = Limits(members=200_000, inflated=16 * 1024 * MIB, metadata=MIB)
_BROKEN = (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, UnicodeError, OverflowError, IndexError, KeyError, ValueError)
# What a document keeps when it is reduced, beside versions and attachments.
_KEPT = ("_id", "_rev", "name", "dist-tags", "maintainers", "readme")


def answer(path: str, kind: str) -> bytes:
    """JSON: what `kind` (`tarball` or `document`) found in the file, or `{"unreadable": clause}`."""
    try:
        found = _READERS[kind](Path(path))
    except Unreadable as error:
        found = {"unreadable": str(error)}
    return json.dumps(found, ensure_ascii=False).encode("utf-8", "backslashreplace")


def read_tarball(path: Path) -> dict[str, Any]:
    """`name`, `version` and what it `installs` of its package.json, `files` and `unpacked` bytes, whether it has a `shrinkwrap` and a
    `gyp` file at its top.

    Raises Unreadable.
    """
    try:
        return _read_tarball(path)
    except Unreadable:
        raise
    except (*_BROKEN, MemoryError) as error:
        raise Unreadable(f"is damaged, or no gzipped tar file ({short(error)})") from None


def _read_tarball(path: Path) -> dict[str, Any]:
    found: list[bytes] = []
    top: set[str] = set()
    files = unpacked = 0
    with open_tar(path, LIMITS) as archive:
        for member in archive:
            archive.name_of(member)
            # Installers strip whatever is before the first slash, `.` too.
            _, _, rest = member.name.partition("/")
            # Where case does not count, one file takes the other's place.
            if rest.casefold() == "package.json":
                found.append(archive.read(member) if member.isfile() else b"")
            if not member.isfile():
                continue
            files, unpacked = files + 1, unpacked + member.size
            if rest in {"npm-shrinkwrap.json", "binding.gyp"}:
                top.add(rest)
    if len(found) != 1:
        raise Unreadable(f"must have one package.json in the folder at its top, but has {len(found)}")
    named = _package_json(found[0])
    more = {"shrinkwrap": "npm-shrinkwrap.json" in top, "gyp": "binding.gyp" in top, "installs": installs(named)}
    return {"name": named.get("name"), "version": named.get("version"), "files": files, "unpacked": unpacked, **more}


def installs(named: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """What installing acts upon, of a package.json or of what a document says of a version: `scripts` and `dependencies`.

    Optional ones are dependencies too: npm writes them there. What is no text, npm leaves out.
    """
    scripts = {name: script for name, script in _texts(named, "scripts").items() if name in INSTALL_SCRIPTS and script}
    return {"scripts": scripts, "dependencies": {**_texts(named, "dependencies"), **_texts(named, "optionalDependencies")}}


def _texts(named: Mapping[str, Any], key: str) -> dict[str, str]:
    found = named.get(key)
    return {name: text for name, text in found.items() if isinstance(text, str)} if isinstance(found, dict) else {}


def _package_json(data: bytes) -> dict[str, Any]:
    try:
        document = parse(data)
    except ValueError as error:
        raise Unreadable(f"has a package.json that is no JSON ({short(error)})") from None
    if not isinstance(document, dict):
        raise Unreadable("has a package.json that is no JSON object")
    return document


def parse(data: bytes | str) -> Any:
    """JSON as it is written down, and nothing that only Python takes for it. Raises ValueError."""
    if isinstance(data, bytes):
        data = data.removeprefix(b"\xef\xbb\xbf").decode()
    try:
        return json.loads(data, parse_constant=_refuse, parse_float=_float)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _float(number: str) -> float:
    """What is too large for one would be written as `Infinity`, which is no JSON."""
    found = float(number)
    return found if math.isfinite(found) else _refuse(number[:40])


def _read_document(path: Path) -> dict[str, Any]:
    try:
        found = reduced(parse(path.read_bytes()))
        if len(json.dumps(found["manifests"])) > MOST_MANIFEST:
            raise Unreadable(f"says more than {MOST_MANIFEST} bytes of a version")
        return found
    except Unreadable:
        raise
    except (ValueError, MemoryError) as error:
        raise Unreadable(f"is no JSON ({short(error)})") from None


def reduced(document: Any) -> dict[str, Any]:
    """What a document that a client sends means to change: small, even when all versions of a package stand in it.

    `versions` has the deprecation of each, `manifests` those versions that bring a file. Raises Unreadable for what is no such document.
    """
    if not isinstance(document, dict):
        raise Unreadable("is no JSON object")
    versions, attachments = _object(document, "versions"), _object(document, "_attachments")
    kept: dict[str, Any] = {key: document[key] for key in _KEPT if key in document}
    if "versions" in document:
        kept["versions"] = {version: _object(versions, version).get("deprecated") for version in versions}
    kept["attachments"] = attachments
    name = document.get("name")
    kept["manifests"] = {
        version: manifest
        for version, manifest in versions.items()
        if attachments and (len(versions) == 1 or f"{name}-{version}.tgz" in attachments)
    }
    _check_depth(kept)
    return kept


def _check_depth(found: Any) -> None:
    """Raises Unreadable."""
    level, depth = [found], 0
    while level := [each for one in level if isinstance(one, dict | list) for each in (one.values() if isinstance(one, dict) else one)]:
        depth += 1
        if depth > MOST_DEPTH:
            raise Unreadable(f"is nested more than {MOST_DEPTH} deep")


def _object(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = document.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Unreadable(f"has something else than an object at {key!r}"[:200])
    return value


_READERS = {"tarball": read_tarball, "document": _read_document}
