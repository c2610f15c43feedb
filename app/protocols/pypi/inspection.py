"""Is an uploaded file what its name says?

`inspect` is called from a request's greenlet, once the bytes are complete in their temporary file and before
anything is published. Small archives are read in the thread that `in_pool` provides, large ones in a child
process under limits of time and memory, so that neither a long archive nor a hostile one holds up the loop.

`in_pool` calls what it is given in another thread: `gevent.get_hub().threadpool.apply`. The child is started
from the greenlet, since gevent's subprocesses cannot be used inside its thread pool.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.errors import Invalid, Unavailable
from app.protocols.pypi import archives
from app.protocols.pypi.archives import KIB, MIB, SMALL, Contents, Kind, TooMuch, Unreadable
from app.protocols.pypi.names import Distribution, FileType, check_against, parse_file_name, shown

CHILD_SECONDS = 300

# Above these a file goes to the child at once: bytes of the file, and of a zip's directory (about 100 a member).
_SMALL_FILE = {"wheel": 4 * MIB, "zip": 4 * MIB, "tar": MIB}
_SMALL_DIRECTORY = 100 * KIB

# The end of a zip file: 22 bytes, and a comment of at most 64 KiB.
_ZIP_TAIL = 22 + 64 * KIB
_ZIP_END = re.compile(rb"PK\x05\x06")
_ZIP64_LOCATOR = b"PK\x06\x07"

_KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ")

Outcome = Contents | Unreadable
Pool = Callable[[Callable[[], Outcome]], Outcome]


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


def _at_once(work: Callable[[], Outcome]) -> Outcome:
    return work()


def inspect(path: Path, filename: str, in_pool: Pool = _at_once) -> Inspected:
    """Look into the file at `path`, uploaded as `filename`; `Invalid` says what is wrong or what differs.

    Raises `Unavailable` when the look could not be finished for a reason that is not the file's.
    """
    distribution = parse_file_name(filename)
    kind = _kind(distribution)
    try:
        contents = _contents(path, kind, in_pool)
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


def _contents(path: Path, kind: Kind, in_pool: Pool) -> Contents:
    if not is_small(path, kind):
        return _in_child(path, kind)
    outcome = in_pool(lambda: _outcome(path, kind))
    if isinstance(outcome, TooMuch):
        return _in_child(path, kind)
    if isinstance(outcome, Unreadable):
        raise outcome
    return outcome


def _outcome(path: Path, kind: Kind) -> Outcome:
    """A refusal comes back as a value: gevent's pool prints the trace of everything that is raised in it."""
    try:
        return archives.read(path, kind, SMALL)
    except Unreadable as error:
        return error


def is_small(path: Path, kind: Kind) -> bool:
    """Whether reading the archive is short work, as far as its outside tells; cheap to ask."""
    size = path.stat().st_size
    return size <= _SMALL_FILE[kind] and (kind == "tar" or _directory_bytes(path, size) <= _SMALL_DIRECTORY)


def _directory_bytes(path: Path, size: int) -> int:
    """Bytes of a zip file's directory, at least: `zipfile` reads it whole before anything can be checked."""
    with path.open("rb") as file:
        file.seek(max(0, size - _ZIP_TAIL))
        tail = file.read(_ZIP_TAIL)
    if _ZIP64_LOCATOR in tail:
        return size
    sizes = [int.from_bytes(tail[end.start() + 12 : end.start() + 16], "little") for end in _ZIP_END.finditer(tail)]
    return max(sizes, default=0)


def _in_child(path: Path, kind: Kind) -> Contents:
    done = _run([sys.executable, "-I", archives.__file__, os.fspath(path.absolute()), kind])
    if done.returncode == -signal.SIGXCPU:
        raise Unreadable(f"takes more than {archives.CPU_SECONDS} seconds to be read")
    if done.returncode != 0:
        raise Unavailable("the file could not be looked into, please send it again", retry_after=30)
    document = json.loads(done.stdout)
    if "unreadable" in document:
        raise Unreadable(document["unreadable"])
    return Contents(document["folder"], base64.b64decode(document["metadata"]), document["fields"])


def _run(command: list[str]) -> subprocess.CompletedProcess[bytes]:
    """The child gets no credential of ours in its environment, and nothing of it reaches the log."""
    environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=environment,
            timeout=CHILD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable("the file could not be looked into in time, please send it again", retry_after=60) from None
