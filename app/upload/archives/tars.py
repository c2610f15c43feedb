"""Gzipped tar files from anyone, read to their end in flat memory and with suspicion; nothing is unpacked to disk.

    with open_tar(path, limits) as archive:
        for member in archive:
            archive.name_of(member); archive.read(member, most)

What is wrong is `Unreadable`. This runs in the children of `server`, so it imports nothing else of Arkvory.
"""

from __future__ import annotations

import contextlib
import gzip
import posixpath
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, NamedTuple, Self

KIB = 1024
MIB = 1024 * KIB

# A file that inflates to more is taken for a bomb, when it is more than a harmless size, too.
MOST_RATIO = 100
HARMLESS = 64 * MIB
# Of the headers that say more about a member than its block has room for (pax, GNU's long names).
_MOST_EXTENSION = 16 * KIB
_PIECE = MIB
# Of a header block.
_MAGIC, _PREFIX = slice(257, 265), slice(345, 500)
_POSIX = b"ustar\x0000"


class Unreadable(ValueError):
    """The archive is not what its name says; the message is a clause about it: `is not a zip file`."""


class Limits(NamedTuple):
    """`members` counted, `inflated` bytes of all members together, `metadata` bytes of the metadata file."""

    members: int
    inflated: int
    metadata: int


class Tar:
    """An open archive; goes through its members once."""

    def __init__(self, archive: tarfile.TarFile, limits: Limits) -> None:
        self._archive = archive
        self._limits = limits

    def __iter__(self) -> Iterator[tarfile.TarInfo]:
        count = 0
        while (member := self._archive.next()) is not None:
            count += 1
            check_count(count, self._limits)
            yield member
            self._archive.members = []  # type: ignore[attr-defined]  # missing in the stubs; else it keeps them all

    def name_of(self, member: tarfile.TarInfo) -> str:
        """The name of the present member, from the top folder on; empty for the root itself."""
        name = member.name.removeprefix("./")
        if name in ("", "."):
            return ""
        check_name(name)
        if member.issym() or member.islnk():
            _check_link(member, name)
        elif not (member.isfile() or member.isdir()):
            raise Unreadable(f"has a member that is neither a file nor a folder ({quoted(member.name)})")
        return name

    def read(self, member: tarfile.TarInfo) -> bytes:
        """The present member, as large as metadata may be."""
        if member.size > self._limits.metadata:
            raise Unreadable(f"has a {quoted(member.name)} of {member.size} bytes, more than {self._limits.metadata}")
        data = self._archive.extractfile(member)
        return data.read() if data else b""


@contextlib.contextmanager
def open_tar(path: Path, limits: Limits) -> Iterator[Tar]:
    """At the end of the block the rest is read too: the checksum stands at the very end, and nothing else may stand behind the members.

    Some readers go on where others see the end (behind one empty block, or a damaged one), and would find other members there.
    """
    with path.open("rb") as packed, gzip.GzipFile(fileobj=packed, mode="rb") as inflated:
        source = _Bounded(inflated, path.stat().st_size, limits)  # type: ignore[arg-type]  # a reader, though not IO[bytes] by name
        with tarfile.open(fileobj=source, mode="r|", bufsize=64 * KIB, tarinfo=_Member) as archive:  # type: ignore[call-overload]  # read() alone is called
            yield Tar(archive, limits)
            while rest := archive.fileobj.read(_PIECE):
                if rest.strip(b"\0"):
                    raise Unreadable("has something behind its end")


class _Bounded:
    """A reader that stops when more bytes come out than are allowed, whoever asks for them."""

    def __init__(self, source: IO[bytes], packed: int, limits: Limits) -> None:
        self._source, self._packed, self._limits, self._seen = source, packed, limits, 0

    def read(self, size: int = _PIECE) -> bytes:
        data = self._source.read(min(size, _PIECE))
        self._seen += len(data)
        check_amount(self._seen, self._packed, self._limits)
        return data


class _Member(tarfile.TarInfo):
    """Without what `tarfile` spends too long on, and no package needs: sparse files and endless extended headers.

    And without what other readers understand otherwise, so that they cannot be shown other files than those that are looked at here.
    """

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(archive)
        except (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError):  # type: ignore[attr-defined]  # missing in the stubs
            # At the very beginning it is no archive at all, and `tarfile` says so; later it would take this for the end.
            if archive.offset == 0:
                raise
            raise Unreadable("has a damaged header") from None

    @classmethod
    def frombuf(cls, block: bytes | bytearray, encoding: str, errors: str) -> Self:
        found = super().frombuf(block, encoding, errors)
        if bytes(block[_MAGIC]) != _POSIX and any(block[_PREFIX]):
            raise Unreadable("has a name in two parts in a header that is not POSIX's")
        return found

    # The names are those of the base class, which calls them by the member's type.
    def _apply_pax_info(self, headers: Mapping[str, str], encoding: str, errors: str) -> None:
        if "size" in headers:
            raise Unreadable("has a member whose size is told twice")
        super()._apply_pax_info(headers, encoding, errors)  # type: ignore[misc]  # private, missing in the stubs

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type == tarfile.GNUTYPE_SPARSE:
            self._refuse_sparse()
        if self.type in _EXTENSIONS and self.size > _MOST_EXTENSION:
            raise Unreadable(f"has an extended header of {self.size} bytes, more than {_MOST_EXTENSION}")
        return super()._proc_member(archive)  # type: ignore[misc, no-any-return]  # private, missing in the stubs

    def _refuse_sparse(self, *_arguments: object) -> None:
        raise Unreadable("has a sparse member, which no package has")

    # Versions 0.0, 0.1 and 1.0 of the format; the first looks for numbers with a pattern in quadratic time (CVE-2024-6232).
    _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse_sparse


_EXTENSIONS = {tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK}


def _check_link(member: tarfile.TarInfo, name: str) -> None:
    base = posixpath.dirname(name) if member.issym() else ""
    target = posixpath.normpath(posixpath.join(base, member.linkname))
    if target.startswith(("/", "../")) or target == "..":
        raise Unreadable(f"has a link that leads out of it ({quoted(member.name)} to {quoted(member.linkname)})")


def check_name(name: str) -> None:
    """Raises `Unreadable` for the name of a member that could be written elsewhere than below the archive's folder."""
    parts = name.removesuffix("/").split("/")
    if name.startswith("/") or any(part in {"", ".", ".."} for part in parts):
        raise Unreadable(f"has a member whose name is no plain path ({quoted(name)})")
    if "\\" in name or any(ord(character) < 32 or ord(character) == 127 for character in name):
        raise Unreadable(f"has a member whose name has a back-slash or a control character ({quoted(name)})")


def check_count(count: int, limits: Limits) -> None:
    """Raises `Unreadable` for more members than are allowed."""
    if count > limits.members:
        raise Unreadable(f"has more than {limits.members} members")


def check_amount(inflated: int, packed: int, limits: Limits) -> None:
    """Bytes: all members together, and the file. Raises `Unreadable` for a bomb."""
    if inflated > limits.inflated:
        raise Unreadable(f"inflates to more than {limits.inflated} bytes")
    if inflated > max(HARMLESS, MOST_RATIO * packed):
        raise Unreadable(f"inflates to more than {MOST_RATIO} times its size of {packed} bytes")


def quoted(text: str) -> str:
    """For messages: in ASCII, and not longer than a line."""
    return ascii(text if len(text) <= 120 else text[:120] + "...")


def short(error: Exception) -> str:
    """One line; no path of the server is in the messages of these errors, but a name from the archive may be."""
    return ascii(str(error) or type(error).__name__)[1:-1][:200]
