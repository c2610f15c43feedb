"""Wheels, source distributions and forms for the tests of this room."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

BOUNDARY = "boundary0123456789"
CONTENT_TYPE = f"multipart/form-data; boundary={BOUNDARY}"


def core_metadata(name: str, version: str, *lines: str, body: str = "") -> bytes:
    head = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}", *lines]
    return ("\n".join(head) + f"\n\n{body}").encode()


WHEEL = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def wheel_members(name: str, version: str, *lines: str) -> dict[str, bytes]:
    """The members of a minimal wheel."""
    folder = f"{name}-{version}.dist-info"
    return {
        f"{name}/__init__.py": b"x = 1\n",
        f"{folder}/METADATA": core_metadata(name, version, *lines),
        f"{folder}/WHEEL": WHEEL,
        f"{folder}/RECORD": b"",
    }


def zip_of(members: Mapping[str, bytes] | Iterable[tuple[str, bytes]], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in members.items() if isinstance(members, Mapping) else members:
            archive.writestr(name, data)
    return buffer.getvalue()


def wheel(name: str, version: str, *lines: str) -> bytes:
    return zip_of(wheel_members(name, version, *lines))


def tar_of(members: Iterable[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for member, data in members:
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return gzip.compress(buffer.getvalue(), 1, mtime=0)


def files_of(members: Mapping[str, bytes]) -> list[tuple[tarfile.TarInfo, bytes]]:
    return [(tarfile.TarInfo(name), data) for name, data in members.items()]


def sdist(name: str, version: str) -> bytes:
    folder = f"{name}-{version}"
    return tar_of(files_of({f"{folder}/setup.py": b"", f"{folder}/PKG-INFO": core_metadata(name, version)}))


def stored(folder: Path, filename: str, data: bytes) -> Path:
    """The upload's temporary file; its own name says nothing."""
    path = folder / f"upload-{abs(hash(filename))}"
    path.write_bytes(data)
    return path


def form_of(parts: Iterable[tuple[str, str | None, bytes]], padding: str = "") -> bytes:
    """A form with (name, file name or None, content) parts, in the lines of RFC 7578; `padding` stands behind its boundaries (RFC 2046)."""
    body = b""
    for name, filename, content in parts:
        disposition = f'form-data; name="{name}"' + (f'; filename="{filename}"' if filename is not None else "")
        body += f"--{BOUNDARY}{padding}\r\nContent-Disposition: {disposition}\r\n\r\n".encode() + content + b"\r\n"
    return body + f"--{BOUNDARY}--{padding}\r\n".encode()
