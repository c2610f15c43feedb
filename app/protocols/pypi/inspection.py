"""Is an uploaded file what its name says?

`inspect` is called from a request's greenlet, once the bytes are complete in their temporary file and before
anything is published. The archive is read in a child process under limits of time and memory (`readers`), so that
neither a long archive nor a hostile one holds up the loop.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import packaging

from app.errors import Invalid
from app.protocols.pypi import archives
from app.protocols.pypi.archives import Contents, Kind
from app.protocols.pypi.names import Distribution, FileType, check_against, parse_file_name, shown
from app.upload.archives.readers import Readers
from app.upload.archives.tars import Unreadable

readers = Readers(archives.__name__, packaging)


@dataclass(frozen=True)
class Inspected:
    """What a sound file holds.

    `metadata` are the bytes of its METADATA (PKG-INFO for a source distribution), `fields` its core metadata under
    the names of `packaging.metadata.RawMetadata` (texts, lists, mappings; ready for JSON) without the description.
    """

    distribution: Distribution
    name: str
    requires_python: str | None
    metadata: bytes
    metadata_sha256: str
    fields: Mapping[str, Any]
    description: str

    @property
    def serves_metadata(self) -> bool:
        """Whether `{file}.metadata` may be served: only a wheel's cannot change when it is installed (PEP 658)."""
        return self.distribution.filetype is FileType.WHEEL


def inspect(path: Path, filename: str) -> Inspected:
    """Look into the file at `path`, uploaded as `filename`; `Invalid` says what is wrong or what differs.

    Raises `Unavailable` when the look could not be finished for a reason that is not the file's.
    """
    distribution = parse_file_name(filename)
    kind = _kind(distribution)
    try:
        contents = _contents(path, kind)
    except Unreadable as error:
        raise Invalid(f"{filename} {error}", "content") from None
    _check_folder(distribution, contents.folder)
    source = "METADATA" if kind == "wheel" else "PKG-INFO"
    check_against(distribution, f"its {source}", contents.fields["name"], contents.fields["version"])
    return _inspected(distribution, contents)


def _kind(distribution: Distribution) -> Kind:
    if distribution.filetype is FileType.WHEEL:
        return "wheel"
    return "zip" if distribution.filename.endswith(".zip") else "tar"


def _inspected(distribution: Distribution, contents: Contents) -> Inspected:
    fields = {key: value for key, value in contents.fields.items() if key != "description"}
    return Inspected(
        distribution=distribution,
        name=fields["name"],
        requires_python=fields.get("requires_python") or None,
        metadata=contents.metadata,
        metadata_sha256=hashlib.sha256(contents.metadata).hexdigest(),
        fields=fields,
        description=contents.fields.get("description", ""),
    )


def _check_folder(distribution: Distribution, folder: str) -> None:
    """`{name}-{version}`, in any spelling."""
    name, dash, version = folder.rpartition("-")
    if not dash:
        raise Invalid(f"{distribution.filename} has its metadata in {shown(folder)}, which names no version", "content")
    check_against(distribution, f"its folder {shown(folder)}", name, version)


def _contents(path: Path, kind: Kind) -> Contents:
    document = readers.document(path, kind)
    return Contents(document["folder"], base64.b64decode(document["metadata"]), document["fields"])
