"""Names that the house accepts: of repositories, and paths of artifacts."""

from __future__ import annotations

import mimetypes
import re

from app.errors import Invalid, InvalidPath

PATH_BYTES = 1024
# Below it proxies of some formats keep their upstreams' indexes.
INTERNAL = ".upstream/"
_REPOSITORY = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_FOLDERS = frozenset({".", ".."})
_NO_NAMES = _FOLDERS | {""}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def check_repository_name(name: str) -> str:
    """Raises Invalid for anything but `[a-z0-9][a-z0-9._-]{0,63}`."""
    if not _REPOSITORY.fullmatch(name):
        raise Invalid("a repository's name has 1 to 64 of a-z 0-9 . _ - and begins with a letter or digit", field="name")
    return name


CONTENT_TYPE_CHARACTERS = 255


def is_content_type(value: str) -> bool:
    """Whether it can stand in an answer's header as it is."""
    return len(value) <= CONTENT_TYPE_CHARACTERS and value.isascii() and value.isprintable()


def guessed_type(path: str) -> str:
    """What the name's ending says of what is in it."""
    return mimetypes.guess_type(path)[0] or "application/octet-stream"


def check_path(path: str, *, folder: bool = False) -> str:
    """An artifact's path: exact, at most 1,024 bytes, nothing that could mean another place. Raises InvalidPath.

    With `folder` it may be empty or end in a slash.
    """
    if folder and (path == "" or path.endswith("/")):
        return path if path == "" else check_path(path[:-1]) + "/"
    try:
        length = len(path.encode("utf-8"))
    except UnicodeEncodeError:
        raise InvalidPath("the path is not UTF-8") from None
    if not 0 < length <= PATH_BYTES:
        raise InvalidPath(f"a path has 1 to {PATH_BYTES} bytes, this one {length}")
    if _CONTROL.search(path):
        raise InvalidPath("the path holds a control character")
    if "\\" in path:
        raise InvalidPath("the path holds a backslash; folders are separated by /")
    if not _NO_NAMES.isdisjoint(path.split("/")):
        raise InvalidPath("the path is absolute, or has an empty, `.` or `..` segment")
    if ";" in path and any(each.partition(";")[0] in _FOLDERS for each in path.split("/")):
        # Servers that cut off what follows a semicolon (RFC 3986, 3.3) take it for one.
        raise InvalidPath("the path has a `.` or `..` segment, with parameters")
    return path
