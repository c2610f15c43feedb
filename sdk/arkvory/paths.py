"""Names as the server's addresses have them, and as this machine's files have them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from urllib.parse import quote

from arkvory.errors import LocalFile

API = "/api/v1"
_SAFE = "/@!$*,=()"
_PART_ENDING = ".arkvory.part"
_LONGEST_NAME = 200
_DIGITS = "123456789\u00b9\u00b2\u00b3"
_DEVICES = frozenset({"CON", "PRN", "AUX", "NUL", *(f"{each}{digit}" for each in ("COM", "LPT") for digit in _DIGITS)})


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
    """The file below `folder` that an artifact's path means.

    Raises LocalFile for one that would lie elsewhere, or where another one's bytes lie until they are all there.
    """
    names = path.split("/")
    if any(name in ("", ".", "..") or "\0" in name or Path(name).name != name for name in names):
        raise LocalFile(f"{path!r} cannot be a file on this machine")
    if os.name == "nt" and any(map(means_something_to_windows, names)):
        raise LocalFile(f"{path!r} cannot be a file on Windows")
    if is_left_over(path):
        raise LocalFile(f"{path!r} has the name of a file that is being downloaded; fetch it alone, by another name")
    return folder.joinpath(*names)


def means_something_to_windows(name: str) -> bool:
    """Whether Windows would take it for another name: of a device, of a stream within a file, of the same without its last dots."""
    stem = name.partition(".")[0].rstrip(" ").upper()
    return stem in _DEVICES or name.endswith((".", " ")) or any(char in '<>:"|?*\\' or char < " " for char in name)


def is_left_over(path: str) -> bool:
    """Whether this is what a download has left that did not come to its end."""
    return path.endswith((_PART_ENDING, *(f"{_PART_ENDING}{each}" for each in (".json", ".json.new"))))


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
