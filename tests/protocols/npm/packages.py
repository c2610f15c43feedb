"""npm packages and the documents that publish them, of our own making."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from typing import Any


def tgz(members: Mapping[str, bytes]) -> bytes:
    """A gzipped tar file."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return gzip.compress(packed.getvalue(), mtime=0)


def tarball(name: str, version: str, more: Mapping[str, bytes] | None = None, **fields: Any) -> bytes:
    """What `npm pack` makes of a package."""
    manifest = json.dumps({"name": name, "version": version, **fields}).encode()
    return tgz({"package/package.json": manifest, "package/index.js": b"module.exports = 1\n", **(more or {})})


def dist_of(data: bytes) -> dict[str, Any]:
    return {
        "integrity": "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode(),
        "shasum": hashlib.sha1(data, usedforsecurity=False).hexdigest(),
    }


def document(name: str, version: str, *, tag: str = "latest", data: bytes | None = None, **fields: Any) -> dict[str, Any]:
    """The document with which npm publishes a version."""
    packed = tarball(name, version, **fields) if data is None else data
    manifest = {"name": name, "version": version, "_id": f"{name}@{version}", **fields}
    manifest["dist"] = dist_of(packed) | {"tarball": f"http://placeholder.invalid/{name}/-/{name}-{version}.tgz"}
    attached = {"content_type": "application/octet-stream", "data": base64.b64encode(packed).decode(), "length": len(packed)}
    return {
        "_id": name,
        "name": name,
        "dist-tags": {tag: version},
        "versions": {version: manifest},
        "access": None,
        "_attachments": {f"{name}-{version}.tgz": attached},
    }
