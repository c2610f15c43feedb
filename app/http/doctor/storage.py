"""The data directory as the doctor sees it; everything here blocks."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.database.programs import user_name
from app.http.doctor.findings import OK, Finding, fail, ok, shown, warn
from app.http.doctor.mounts import examine_mount
from app.repository.presence import Blob, missing, missing_words
from app.storage.filesystem import put, sync_folder
from config import Settings

# Nobody else may look into these.
PRIVATE = ("secrets", "postgres-state", "server.json", "server-*.json", "secrets/postgres-password")
SHARED = (".", "blobs", "blobs/incoming", "blobs/sha256")
FEW_FILES = 0.02


@dataclass(frozen=True)
class Expected:
    """What the database says of the files: some blobs (digest, row id, size), and the cluster's machines (empty on a single node)."""

    blobs: Sequence[Blob] = ()
    hosts: frozenset[str] = frozenset()


def examine_storage(settings: Settings, expected: Expected) -> list[Finding]:
    """Modes, whether it can be written, what is free, and whether it is the folder that the others write to."""
    data = settings.data_dir
    if not data.exists():
        return [_to_be_made(data), *_present(data, expected), _disk(settings)]
    modes = list(_modes(data)) or [ok("permissions", f"{data.resolve()} is open to nobody else")]
    mount = examine_mount(data / "blobs", expected.hosts)
    return [_writable(data), *_present(data, expected), *mount, *modes, _disk(settings)]


def _present(data: Path, expected: Expected) -> Iterator[Finding]:
    """In a cluster each machine must see what any of them has stored."""
    if gone := missing(data, expected.blobs):
        words = missing_words(data, gone, expected.blobs)
        shared, own = "mount one shared file system at `blobs` in each data directory", "set ARKVORY_DATA_DIR as the server has it"
        yield fail("blob store", words, f"{shared if expected.hosts else own}; `arkvory scrub` names what is really lost")
    elif expected.blobs:
        yield ok("blob store", f"{len(expected.blobs)} files that were stored lately or long ago are there")


def existing(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    resolved = path.resolve()
    return next(each for each in (resolved, *resolved.parents) if each.exists())


def _to_be_made(data: Path) -> Finding:
    above = existing(data)
    if os.access(above, os.W_OK | os.X_OK):
        return ok("storage", f"{data.resolve()} is not there yet; the first start makes it")
    me = user_name(os.geteuid())
    return fail(
        "storage", f"{data.resolve()} is not there, and {me} cannot make it in {above}", f"make it for {me}, or set ARKVORY_DATA_DIR"
    )


def _writable(data: Path) -> Finding:
    me, owner = user_name(os.geteuid()), user_name(data.stat().st_uid)
    incoming, placed = data / "blobs" / "incoming", data / "blobs" / "sha256"
    folder = incoming if incoming.is_dir() else data
    try:
        _write_as_uploads_do(folder)
        if incoming.is_dir() and placed.is_dir() and incoming.stat().st_dev != placed.stat().st_dev:
            return fail(
                "storage", "blobs/incoming and blobs/sha256 are different file systems", "mount one for both: a finished upload is renamed"
            )
    except OSError as error:
        advice = f"run as {owner}, or give the folder to {me} (chown -R); if the disk is read only, see the system's log"
        return fail("storage", f"{me} cannot write in {folder.resolve()}: {error.strerror}", advice)
    if me != owner:
        return warn(
            "storage",
            f"{data.resolve()} belongs to {owner}, and this is {me}",
            f"run as {owner}, so that it finds no files that it cannot use",
        )
    return ok("storage", f"{data.resolve()} can be written")


def _write_as_uploads_do(folder: Path) -> None:
    """Write, sync, give it a second name, rename, look again, remove; raises OSError. No name that the cleanup would know."""
    body = os.urandom(64)
    with tempfile.TemporaryDirectory(prefix="doctor-", dir=folder) as name:
        first, placed = Path(name) / "first", Path(name) / "placed"
        with open(first, "xb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        put(first, placed)
        sync_folder(placed.parent)
        if placed.read_bytes() != body:
            raise OSError(errno.EIO, "what was written is read back otherwise")


def _modes(data: Path) -> Iterator[Finding]:
    for path in (each for name in PRIVATE for each in sorted(data.glob(name))):
        if (mode := _mode(path)) is not None and mode & 0o077:
            wanted = 0o700 if path.is_dir() else 0o600
            words = f"{path.relative_to(data)} has mode {mode:03o}: others can reach its secrets"
            yield fail("permissions", words, f"chmod {wanted:o} {path}")
    for name in SHARED:
        if (mode := _mode(data / name)) is not None and mode & 0o022:
            found = fail if mode & 0o002 else warn
            yield found("permissions", f"{data / name} has mode {mode:03o}: others can write there", f"chmod go-w {data / name}")


def _mode(path: Path) -> int | None:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return None


def _disk(settings: Settings) -> Finding:
    state = os.statvfs(existing(settings.data_dir))
    free, size = state.f_bavail * state.f_frsize, state.f_blocks * state.f_frsize
    reserve = settings.disk_reserve_bytes
    words = f"{shown(free)} of {shown(size)} are free, {shown(reserve)} are kept in reserve"
    if free <= reserve:
        return fail("disk", f"{words}: uploads are refused with 507", "make room, enlarge the disk, or lower ARKVORY_DISK_RESERVE_BYTES")
    if free < reserve * 2 or free < size * 0.05:
        return warn("disk", words, "make room before it runs out")
    if state.f_files and state.f_favail < state.f_files * FEW_FILES:
        return warn("disk", f"{state.f_favail} more files fit on the file system", "make room, or use a file system with more inodes")
    return Finding("disk", OK, words)
