"""What stands in an uploaded wheel or source distribution, read with suspicion.

Nothing is unpacked to disk. Every wheel and zip is checked for names that lead elsewhere, overlapping and
repeated members, sizes out of proportion, and its members are inflated and compared with their checksums (the
first 512 MiB of them); a `.tar.gz` is read to its end. Of the core metadata, what indexes are made of must be
right (name, version, `Requires-Python`, a metadata version below 3); the rest is kept as it is, since old
packages that every installer accepts would fail a stricter look.

The server reads none itself: it asks for the `answer` of a process that has a limit of time and memory
(`app.upload.archives`), whatever the size. Some hundred bytes can keep a parser busy for hours, with no chance
for anybody else. So that the process is small, this imports nothing else of Arkvory.
"""

from __future__ import annotations

import base64
import errno
import gzip
import json
import lzma
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from email.parser import BytesHeaderParser
from pathlib import Path
from typing import Any, Literal, NamedTuple

from packaging.metadata import InvalidMetadata, Metadata, parse_email
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from app.upload.archives.tars import (
    KIB,
    MIB,
    Limits,
    Tar,
    Unreadable,
    check_amount,
    check_count,
    check_name,
    open_tar,
    quoted,
    short,
)

Kind = Literal["wheel", "tar", "zip"]


LIMITS = Limits(members=200_000, inflated=1024 * 1024 * MIB, metadata=MIB)
# `packaging` looks through all headers once for each name; the specification has some thirty names, large
# projects a few thousand lines.
MOST_HEADERS, MOST_HEADER_NAMES = 10_000, 200
# Bytes of the metadata's fields as they are kept, JSON in UTF-8; characters of a version or a set of them.
MOST_FIELDS = MIB
LONGEST_SPECIFIER = 1_000

MOST_VERIFIED = 512 * MIB

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
    return Unreadable(f"is damaged, or no {'gzipped tar' if kind == 'tar' else 'zip'} file ({short(error)})")


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
    check_count(len(members), limits)
    check_amount(sum(member.file_size for member in members), path.stat().st_size, limits)
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
            raise Unreadable(f"has members that overlap ({quoted(member.filename)})")
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
        raise Unreadable(f"has no {quoted(name)}") from None
    if member.file_size > most:
        raise Unreadable(f"has a {quoted(name)} of {member.file_size} bytes, more than {most}")
    return archive.read(member)


def _check_wheel_version(wheel: bytes) -> None:
    """PEP 427: an installer aborts when the major version is greater than the one it knows."""
    text = BytesHeaderParser().parsebytes(wheel).get("Wheel-Version")
    try:
        major = Version(str(text).strip()).major
    except ValueError:
        raise Unreadable("has a WHEEL file without a proper Wheel-Version") from None
    if major != 1:
        raise Unreadable(f"has Wheel-Version {quoted(str(text))}, which no installer knows")


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


def _read_tar(path: Path, limits: Limits) -> Contents:
    with open_tar(path, limits) as archive:
        folder, metadata = _walk(archive)
    return Contents(folder, metadata, parse(metadata, "PKG-INFO"))


def _walk(archive: Tar) -> tuple[str, bytes]:
    folders: set[str] = set()
    found: list[bytes] = []
    for member in archive:
        name = archive.name_of(member)
        if not name:
            continue
        top, _, rest = name.partition("/")
        folders.add(top if rest or member.isdir() else "")
        if rest == "PKG-INFO" and member.isfile():
            found.append(archive.read(member))
        if len(folders) > 1:
            break
    folder = _only_folder(folders)
    if len(found) != 1:
        raise Unreadable(f"must have one {quoted(folder + '/PKG-INFO')}, but has {len(found)}")
    return folder, found[0]


_READERS: dict[Kind, Callable[[Path, Limits], Contents]] = {"wheel": _read_wheel, "tar": _read_tar, "zip": _read_zip_sdist}


# What holds for all


def _only_folder(folders: set[str]) -> str:
    if len(folders) != 1 or "" in folders:
        raise Unreadable(f"must have one folder at its top and nothing beside it, but has {_list(folders)}")
    return next(iter(folders))


def _list(names: set[str]) -> str:
    return ", ".join(quoted(name or "files") for name in sorted(names)[:3]) or "none"


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
        raise Unreadable(f"has a {name} with a wrong {error.field}: {short(error)}") from None
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
        raise Unreadable(f"has a {name} with a wrong {field}: {short(error)}") from None


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
        raise Unreadable(f"has a {name} with the unknown Metadata-Version {quoted(text)}")


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
