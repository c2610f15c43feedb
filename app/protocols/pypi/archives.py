"""What stands in an uploaded wheel or source distribution, read with suspicion.

Nothing is unpacked to disk. Every wheel and zip is checked for names that lead elsewhere, overlapping and
repeated members, sizes out of proportion, and its members are inflated and compared with their checksums (the
first 512 MiB of them); a `.tar.gz` is read to its end. Of the core metadata, what indexes are made of must be
right (name, version, `Requires-Python`, a metadata version below 3); the rest is kept as it is, since old
packages that every installer accepts would fail a stricter look.

The server reads none itself: it asks for the `answer` of a process that has a `limit` of time and memory
(`archive_server`, `readers`), whatever the size. Some hundred bytes can keep a parser busy for hours, with no chance
for anybody else. So that the process is small, this imports nothing of Arkvory.
"""

from __future__ import annotations

import base64
import errno
import gzip
import json
import lzma
import os
import posixpath
import re
import resource
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from email.parser import BytesHeaderParser
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from packaging.metadata import InvalidMetadata, Metadata, parse_email
from packaging.specifiers import SpecifierSet
from packaging.version import Version

KIB = 1024
MIB = 1024 * KIB

Kind = Literal["wheel", "tar", "zip"]


class Unreadable(ValueError):
    """The archive is not what its name says; the message is a clause about it: `is not a zip file`."""


class Limits(NamedTuple):
    """`members` counted, `inflated` bytes of all members together, `metadata` bytes of the metadata file."""

    members: int
    inflated: int
    metadata: int


LIMITS = Limits(members=200_000, inflated=1024 * 1024 * MIB, metadata=MIB)
# `packaging` looks through all headers once for each name; the specification has some thirty names, large
# projects a few thousand lines.
MOST_HEADERS, MOST_HEADER_NAMES = 10_000, 200
# Bytes of the metadata's fields as they are kept, JSON in UTF-8; characters of a version or a set of them.
MOST_FIELDS = MIB
LONGEST_SPECIFIER = 1_000

# A file that inflates to more is taken for a bomb, when it is more than a harmless size, too.
MOST_RATIO = 100
HARMLESS = 64 * MIB
MOST_VERIFIED = 512 * MIB

CPU_SECONDS = 120
MEMORY_BYTES = 1024 * MIB

# Of the headers that say more about a member than its block has room for (pax, GNU's long names).
_MOST_EXTENSION = 16 * KIB

_PIECE = MIB
_LOCAL_HEADER = 30
_WHEEL_FILE_BYTES = 64 * KIB
_BROKEN = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    tarfile.TarError,
    gzip.BadGzipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,
    RuntimeError,
    UnicodeError,
    OverflowError,
    IndexError,
    KeyError,
    ValueError,
    struct.error,
)


class Contents(NamedTuple):
    """`folder` is the one that holds the metadata, without `.dist-info`; `fields` are those of `packaging.metadata.RawMetadata`."""

    folder: str
    metadata: bytes
    fields: dict[str, Any]


def read(path: Path, kind: Kind, limits: Limits) -> Contents:
    """Read the archive; raises `Unreadable` with what is wrong with it."""
    try:
        return _READERS[kind](path, limits)
    except Unreadable:
        raise
    except MemoryError:
        raise Unreadable("needs more memory to be read than is allowed") from None
    except _BROKEN as error:
        raise _damaged(kind, error) from None
    except OSError as error:
        if error.errno != errno.EINVAL:  # that one means a position before the file's beginning
            raise
        raise _damaged(kind, error) from None


def _damaged(kind: Kind, error: Exception) -> Unreadable:
    return Unreadable(f"is damaged, or no {'gzipped tar' if kind == 'tar' else 'zip'} file ({_short(error)})")


def _short(error: Exception) -> str:
    """One line; no path of the server is in the messages of these errors, but a name from the archive may be."""
    return ascii(str(error) or type(error).__name__)[1:-1][:200]


# Zip files


def _read_wheel(path: Path, limits: Limits) -> Contents:
    with zipfile.ZipFile(path) as archive:
        _check_zip(archive, path, limits)
        folder = _dist_info(archive.namelist())
        metadata = _member(archive, f"{folder}.dist-info/METADATA", limits.metadata)
        _check_wheel_version(_member(archive, f"{folder}.dist-info/WHEEL", _WHEEL_FILE_BYTES))
        fields = parse(metadata, "METADATA")
        _verify(archive)
        return Contents(folder, metadata, fields)


def _read_zip_sdist(path: Path, limits: Limits) -> Contents:
    with zipfile.ZipFile(path) as archive:
        _check_zip(archive, path, limits)
        folder = _only_folder({name.split("/", 1)[0] for name in archive.namelist()})
        metadata = _member(archive, f"{folder}/PKG-INFO", limits.metadata)
        fields = parse(metadata, "PKG-INFO")
        _verify(archive)
        return Contents(folder, metadata, fields)


def _check_zip(archive: zipfile.ZipFile, path: Path, limits: Limits) -> None:
    members = archive.infolist()
    _check_count(len(members), limits)
    _check_amount(sum(member.file_size for member in members), path.stat().st_size, limits)
    names = {member.filename for member in members}
    if len(names) < len(members):
        raise Unreadable("has two members of the same name")
    for member in members:
        check_name(member.orig_filename)
    _check_overlap(members, archive.start_dir)


def _check_overlap(members: Iterable[zipfile.ZipInfo], end: int) -> None:
    """Members that share bytes let a small file inflate to any size."""
    for member in sorted(members, key=lambda member: member.header_offset, reverse=True):
        if member.header_offset + _LOCAL_HEADER + member.compress_size > end:
            raise Unreadable(f"has members that overlap ({_quoted(member.filename)})")
        end = member.header_offset


def _dist_info(names: Iterable[str]) -> str:
    folders = {name.split("/", 1)[0] for name in names if name.split("/", 1)[0].endswith(".dist-info")}
    if len(folders) != 1:
        raise Unreadable(f"must have one folder `.dist-info`, but has {_list(folders)}")
    return folders.pop().removesuffix(".dist-info")


def _member(archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    try:
        member = archive.getinfo(name)
    except KeyError:
        raise Unreadable(f"has no {_quoted(name)}") from None
    if member.file_size > most:
        raise Unreadable(f"has a {_quoted(name)} of {member.file_size} bytes, more than {most}")
    return archive.read(member)


def _check_wheel_version(wheel: bytes) -> None:
    """PEP 427: an installer aborts when the major version is greater than the one it knows."""
    text = BytesHeaderParser().parsebytes(wheel).get("Wheel-Version")
    try:
        major = Version(str(text).strip()).major
    except ValueError:
        raise Unreadable("has a WHEEL file without a proper Wheel-Version") from None
    if major != 1:
        raise Unreadable(f"has Wheel-Version {_quoted(str(text))}, which no installer knows")


def _verify(archive: zipfile.ZipFile) -> None:
    """Inflate the members and compare their checksums, which `zipfile` does at the end of each."""
    left = MOST_VERIFIED
    for member in archive.infolist():
        left -= member.file_size
        if left < 0:
            return
        with archive.open(member) as data:
            while data.read(_PIECE):
                pass


# Tar files


class _Bounded:
    """A reader that stops when more bytes come out than are allowed, whoever asks for them."""

    def __init__(self, source: IO[bytes], packed: int, limits: Limits) -> None:
        self._source, self._packed, self._limits, self._seen = source, packed, limits, 0

    def read(self, size: int = _PIECE) -> bytes:
        data = self._source.read(min(size, _PIECE))
        self._seen += len(data)
        _check_amount(self._seen, self._packed, self._limits)
        return data


class _Member(tarfile.TarInfo):
    """Without what `tarfile` spends too long on, and no source distribution needs: sparse files and endless extended headers."""

    # The names are those of the base class, which calls them by the member's type.
    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise Unreadable("has a sparse member, which no source distribution has")
        if self.type in _EXTENSIONS and self.size > _MOST_EXTENSION:
            raise Unreadable(f"has an extended header of {self.size} bytes, more than {_MOST_EXTENSION}")
        return super()._proc_member(archive)  # type: ignore[misc, no-any-return]  # private, missing in the stubs

    def _refuse_sparse(self, *_arguments: object) -> None:
        raise Unreadable("has a sparse member, which no source distribution has")

    # Versions 0.0, 0.1 and 1.0 of the format; the first looks for numbers with a pattern in quadratic time (CVE-2024-6232).
    _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse_sparse


_EXTENSIONS = {tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK}


def _read_tar(path: Path, limits: Limits) -> Contents:
    with path.open("rb") as packed, gzip.GzipFile(fileobj=packed, mode="rb") as inflated:
        source = _Bounded(inflated, path.stat().st_size, limits)  # type: ignore[arg-type]  # a reader, though not IO[bytes] by name
        with tarfile.open(fileobj=source, mode="r|", bufsize=64 * KIB, tarinfo=_Member) as archive:  # type: ignore[call-overload]  # read() alone is called
            folder, metadata = _walk(archive, limits)
        while source.read():  # the checksum stands at the very end
            pass
    return Contents(folder, metadata, parse(metadata, "PKG-INFO"))


def _walk(archive: tarfile.TarFile, limits: Limits) -> tuple[str, bytes]:
    folders: set[str] = set()
    found: list[bytes] = []
    for count, member in enumerate(_members(archive), 1):
        _check_count(count, limits)
        name = _check_tar_member(member)
        if not name:
            continue
        top, _, rest = name.partition("/")
        folders.add(top if rest or member.isdir() else "")
        if rest == "PKG-INFO" and member.isfile():
            found.append(_tar_member(archive, member, limits.metadata))
        if len(folders) > 1:
            break
    folder = _only_folder(folders)
    if len(found) != 1:
        raise Unreadable(f"must have one {_quoted(folder + '/PKG-INFO')}, but has {len(found)}")
    return folder, found[0]


def _members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    while (member := archive.next()) is not None:
        yield member
        archive.members = []  # type: ignore[attr-defined]  # missing in the stubs; else it keeps them all


def _check_tar_member(member: tarfile.TarInfo) -> str:
    """The name of the member, from the top folder on; empty for the root itself."""
    name = member.name
    while name.startswith("./"):
        name = name[2:]
    if name == ".":
        return ""
    check_name(name)
    if member.issym() or member.islnk():
        base = posixpath.dirname(name) if member.issym() else ""
        target = posixpath.normpath(posixpath.join(base, member.linkname))
        if target.startswith(("/", "../")) or target == "..":
            raise Unreadable(f"has a link that leads out of it ({_quoted(member.name)} to {_quoted(member.linkname)})")
    elif not (member.isfile() or member.isdir()):
        raise Unreadable(f"has a member that is neither a file nor a folder ({_quoted(member.name)})")
    return name


def _tar_member(archive: tarfile.TarFile, member: tarfile.TarInfo, most: int) -> bytes:
    if member.size > most:
        raise Unreadable(f"has a {_quoted(member.name)} of {member.size} bytes, more than {most}")
    data = archive.extractfile(member)
    return data.read() if data else b""


_READERS: dict[Kind, Callable[[Path, Limits], Contents]] = {"wheel": _read_wheel, "tar": _read_tar, "zip": _read_zip_sdist}


# What holds for all


def check_name(name: str) -> None:
    """Raises `Unreadable` for the name of a member that could be written elsewhere than below the archive's folder."""
    parts = name.removesuffix("/").split("/")
    if name.startswith("/") or any(part in {"", ".", ".."} for part in parts):
        raise Unreadable(f"has a member whose name is no plain path ({_quoted(name)})")
    if "\\" in name or any(ord(character) < 32 or ord(character) == 127 for character in name):
        raise Unreadable(f"has a member whose name has a back-slash or a control character ({_quoted(name)})")


def _check_count(count: int, limits: Limits) -> None:
    if count > limits.members:
        raise Unreadable(f"has more than {limits.members} members")


def _check_amount(inflated: int, packed: int, limits: Limits) -> None:
    """Bytes: all members together, and the file."""
    if inflated > limits.inflated:
        raise Unreadable(f"inflates to more than {limits.inflated} bytes")
    if inflated > max(HARMLESS, MOST_RATIO * packed):
        raise Unreadable(f"inflates to more than {MOST_RATIO} times its size of {packed} bytes")


def _only_folder(folders: set[str]) -> str:
    if len(folders) != 1 or "" in folders:
        raise Unreadable(f"must have one folder at its top and nothing beside it, but has {_list(folders)}")
    return next(iter(folders))


def _list(names: set[str]) -> str:
    return ", ".join(_quoted(name or "files") for name in sorted(names)[:3]) or "none"


def _quoted(text: str) -> str:
    return ascii(text if len(text) <= 120 else text[:120] + "...")


# Core metadata


def parse(data: bytes, name: str) -> dict[str, Any]:
    """The fields of a metadata file called `name`; raises `Unreadable` where one that indexes need is wrong."""
    _check_headers(data, name)
    fields: dict[str, Any] = dict(parse_email(data)[0])
    _check_texts(fields, name)
    for needed in ("metadata_version", "name", "version"):
        if needed not in fields:
            raise Unreadable(f"has a {name} without exactly one {needed.replace('_', '-').title()}")
    _check_metadata_version(str(fields["metadata_version"]), name)
    _check_field("version", name, lambda: Version(fields["version"]))
    checked = Metadata.from_raw(fields, validate=False)  # type: ignore[arg-type]  # a RawMetadata again
    try:
        checked.name  # noqa: B018  # reading checks it
    except InvalidMetadata as error:
        raise Unreadable(f"has a {name} with a wrong {error.field}: {_short(error)}") from None
    if requires := fields.get("requires_python"):
        _check_length("requires-python", name, requires)
        # Its versions are read only when somebody asks whether one fits.
        _check_field("requires-python", name, lambda: SpecifierSet(requires).contains("3.11"))
    if len(json.dumps(fields, ensure_ascii=False).encode()) > MOST_FIELDS:
        raise Unreadable(f"has a {name} with more than {MOST_FIELDS} bytes of fields")
    return fields


def _check_headers(data: bytes, name: str) -> None:
    head = re.split(rb"\r?\n\r?\n|\r\r", data, maxsplit=1)[0]
    lines = head.splitlines()
    if len(lines) > MOST_HEADERS:
        raise Unreadable(f"has a {name} with more than {MOST_HEADERS} lines of headers")
    names = {line.partition(b":")[0].lower() for line in lines if line[:1] not in b" \t"}
    if len(names) > MOST_HEADER_NAMES:
        raise Unreadable(f"has a {name} with more than {MOST_HEADER_NAMES} different headers")


def _check_field(field: str, name: str, read: Callable[[], object]) -> None:
    """`ValueError` is also what Python says to numbers of thousands of digits."""
    try:
        read()
    except ValueError as error:
        raise Unreadable(f"has a {name} with a wrong {field}: {_short(error)}") from None


def _check_length(field: str, name: str, text: str) -> None:
    if len(text) > LONGEST_SPECIFIER:
        raise Unreadable(f"has a {name} with a wrong {field}: it has {len(text)} characters, more than {LONGEST_SPECIFIER}")


def _check_metadata_version(text: str, name: str) -> None:
    """Minor versions only add to the format, so those from after this was written are good too."""
    try:
        known = Version(text).major in {1, 2}
    except ValueError:
        known = False
    if not known:
        raise Unreadable(f"has a {name} with the unknown Metadata-Version {_quoted(text)}")


def _check_texts(fields: dict[str, Any], name: str) -> None:
    for text in _texts(fields):
        if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
            raise Unreadable(f"has a {name} with characters that no text has")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        yield from _texts(list(value.values()))
    else:
        for item in value:
            yield from _texts(item)


# What a child process does


def answer(path: str, kind: Kind) -> bytes:
    """JSON: `{"folder", "metadata" (base64), "fields"}`, or `{"unreadable": clause}`."""
    try:
        found = read(Path(path), kind, LIMITS)
        document: dict[str, Any] = {
            "folder": found.folder,
            "metadata": base64.b64encode(found.metadata).decode(),
            "fields": found.fields,
        }
    except Unreadable as error:
        document = {"unreadable": str(error)}
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "backslashreplace")


def limit() -> None:
    """Bound processor time (seconds), address space (bytes); no files written, no core left, and others go first."""
    _bound(resource.RLIMIT_CPU, CPU_SECONDS, CPU_SECONDS + 5)
    _bound(resource.RLIMIT_AS, MEMORY_BYTES, MEMORY_BYTES)
    _bound(resource.RLIMIT_FSIZE, 0, 0)
    _bound(resource.RLIMIT_CORE, 0, 0)
    os.nice(5)


def _bound(what: int, soft: int, hard: int) -> None:
    allowed = resource.getrlimit(what)[1]
    if allowed != resource.RLIM_INFINITY:
        soft, hard = min(soft, allowed), min(hard, allowed)
    resource.setrlimit(what, (soft, hard))
