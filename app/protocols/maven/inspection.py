"""What only a jar knows of itself: that it is a Maven plugin, by which prefix it is called, or that it is an archetype.

One member is read, found by its name in the directory at the end of the file (PKWARE's APPNOTE, 4.3); every part
that is read is bounded, and a jar that cannot be read is a jar of which nothing is known. Runs in a thread.
"""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any, BinaryIO
from xml.etree.ElementTree import ParseError

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import iterparse

KIND = "maven"

PLUGIN = b"META-INF/maven/plugin.xml"
ARCHETYPES = (b"META-INF/maven/archetype-metadata.xml", b"META-INF/maven/archetype.xml")

MOST_DIRECTORY = 32 * 1024 * 1024
# The head of a descriptor, with all that is asked of it, comes before its many goals.
HEAD = 64 * 1024
_LONGEST_TEXT = 200
_MOST_FINDS = 1000
_END = struct.Struct("<4s4H2LH")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")


def look_into(path: Path, group: str, artifact: str) -> dict[str, Any]:
    """What an artifact's metadata is to say of the jar at `path`; empty for an ordinary one."""
    with path.open("rb") as file:
        directory, start = _directory(file)
        if head := _member(file, directory, start, PLUGIN):
            plugin = _descriptor(head)
            if plugin.get("groupId") == group and plugin.get("artifactId") == artifact and plugin.get("goalPrefix"):
                return {KIND: {"plugin": {"prefix": plugin["goalPrefix"], "name": plugin.get("name") or artifact}}}
        if any(_position(directory, name) is not None for name in ARCHETYPES):
            return {KIND: {"archetype": {}}}
    return {}


def _directory(file: BinaryIO) -> tuple[bytes, int]:
    """The central directory, and what must be added to the offsets in it (bytes before the archive); empty when there is none."""
    size = file.seek(0, io.SEEK_END)
    tail_at = max(0, size - 65536 - _END.size)
    file.seek(tail_at)
    tail = file.read()
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or at + _END.size > len(tail):
        return b"", 0
    *_, length, offset, _comment = _END.unpack_from(tail, at)
    begin = tail_at + at - length
    # Beyond 65,534 members another record stands between the two; the offset still holds where it is not full itself.
    if offset != 0xFFFFFFFF and tail[at - 20 : at - 16] == b"PK\x06\x07":
        begin = offset
    if begin < 0 or length > MOST_DIRECTORY:
        return b"", 0
    file.seek(begin)
    return file.read(length), begin - offset


def _position(directory: bytes, name: bytes) -> int | None:
    """Where the entry of a member begins. A directory that says the name in very many other places was made to cost time: None."""
    found = directory.find(name)
    for _ in range(_MOST_FINDS):
        if found < 0:
            return None
        entry = found - _ENTRY.size
        if entry >= 0 and directory[entry : entry + 4] == b"PK\x01\x02" and _ENTRY.unpack_from(directory, entry)[10] == len(name):
            return entry
        found = directory.find(name, found + 1)
    return None


def _member(file: BinaryIO, directory: bytes, start: int, name: bytes) -> bytes:
    """The first bytes of a member; empty when it is not there or cannot be read."""
    entry = _position(directory, name)
    if entry is None:
        return b""
    fields = _ENTRY.unpack_from(directory, entry)
    file.seek(max(0, fields[-1] + start))
    local = file.read(_LOCAL.size)
    if len(local) < _LOCAL.size or local[:4] != b"PK\x03\x04":
        return b""
    *_, name_length, extra_length = _LOCAL.unpack(local)
    file.seek(name_length + extra_length, io.SEEK_CUR)
    packed = file.read(min(fields[8], HEAD))
    return _unpacked(packed, method=fields[4])


def _unpacked(packed: bytes, *, method: int) -> bytes:
    if method == 0:
        return packed
    try:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, HEAD) if method == 8 else b""
    except zlib.error:
        return b""


def _descriptor(head: bytes) -> dict[str, str]:
    """The texts directly below the root of a plugin's descriptor, up to its goals."""
    texts: dict[str, str] = {}
    depth = 0
    try:
        for event, element in iterparse(io.BytesIO(head), events=("start", "end"), forbid_dtd=True):
            depth += 1 if event == "start" else -1
            if element.tag == "mojos":
                break
            if event == "end" and depth == 1:
                texts[element.tag] = (element.text or "").strip()[:_LONGEST_TEXT]
    except (ParseError, DefusedXmlException, ValueError, LookupError):
        # Cut off at HEAD, or broken: what was read of it holds.
        pass
    return texts
