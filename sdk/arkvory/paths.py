"""Names as the server's addresses have them, and as this machine's files have them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from urllib.parse import quote

from arkvory.errors import LocalFile

API = "/api/v1"
_SAFE = "/@!$*,=()"
_PART_ENDING = ".arkvory.part"
_LONGEST_NAME = 200


def check_path(path: str) -> str:
    """The path of an artifact. Raises ValueError where none can be at it, before a library on the way tidies it up."""
    if not path or "\0" in path or any(segment in ("", ".", "..") for segment in path.split("/")):
        raise ValueError(f"{path!r} is no path of an artifact: it is made of names with single slashes between them")
    return path


def raw(repository: str, path: str) -> str:
    """Where the file is, encoded."""
    return f"/raw/{segment(repository)}/{quote(check_path(path), safe=_SAFE)}"


def api(*segments: str, path: str | None = None) -> str:
    """Of the management API, encoded; `path` is an artifact's, behind the segments."""
    below = "/".join(segment(each) for each in segments)
    return f"{API}/{below}" + ("" if path is None else f"/{quote(check_path(path), safe=_SAFE)}")


def segment(name: str) -> str:
    """One name, encoded."""
    if name in ("", ".", ".."):
        raise ValueError(f"{name!r} is no name")
    return quote(name, safe="")


def local(folder: Path, path: str) -> Path:
    """The file below `folder` that an artifact's path means. Raises LocalFile for one that would lie elsewhere."""
    names = path.split("/")
    if any(name in ("", ".", "..") or "\0" in name or Path(name).name != name for name in names):
        raise LocalFile(f"{path!r} cannot be a file on this machine")
    return folder.joinpath(*names)


def part_of(target: Path) -> Path:
    """Where the bytes of a download lie until they are all there, beside the file that they become."""
    return target.with_name(_short(target.name) + _PART_ENDING)


def state_of(target: Path) -> Path:
    """What is known of them."""
    return target.with_name(_short(target.name) + _PART_ENDING + ".json")


def _short(name: str) -> str:
    """A name that leaves room for an ending, and is no other file's."""
    encoded = name.encode("utf-8", "surrogateescape")
    if len(encoded) <= _LONGEST_NAME:
        return name
    return f"{encoded[: _LONGEST_NAME - 33].decode('utf-8', 'ignore')}-{hashlib.sha256(encoded).hexdigest()[:32]}"
