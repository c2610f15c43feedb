"""Blobs as files.

    blobs/
    ├── incoming/{upload id}                     being written; same file system as the addresses
    │            {upload id}.{holder}            the same, by one request of several
    │            {upload id}.{digest}            whole, about to be placed: keeps cleanup from the blob of that digest
    │            {upload id}.{digest}.again      for a moment, where something is at the address already
    └── sha256/ab/cd/{digest}-{row id}           placed; never changes

The row id in the name keeps a late unlink of a former row from the bytes of its successor, and the digest in the temporary name keeps a
late placing from the address of a row that is gone (W3).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

from app.errors import CapacitySpent, Unavailable, UploadGivenUp
from app.storage import writeback
from app.storage.interface import Incoming, OpenBlob

log = logging.getLogger(__name__)

# Bytes after which the disk begins to write: enough for it to do so in long runs.
_WRITE_BEHIND = 8 * 1024 * 1024
_COPIED_AT_ONCE = 64 * 1024 * 1024
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextlib.contextmanager
def _disk_errors(*passing: type[OSError]) -> Iterator[None]:
    """Turn what the file system raises into the domain's words; `passing` stay what they are."""
    try:
        yield
    except passing:
        raise
    except OSError as error:
        raise _told(error) from error


@contextlib.contextmanager
def _source(path: Path) -> Iterator[None]:
    """Cleanup takes the files of whoever did not answer for them."""
    try:
        yield
    except FileNotFoundError as error:
        if path.exists():
            raise
        raise UploadGivenUp from error


def _told(error: OSError) -> CapacitySpent | Unavailable:
    if error.errno in _FULL:
        return CapacitySpent("the server's disk is full; nothing of this upload was kept")
    log.error("the blob store fails: %s", error)
    return Unavailable("the server's storage does not work at the moment; tell its administrator", retry_after=30)


def sync_folder(folder: Path) -> None:
    """Names made in it are on the disk afterwards."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class IncomingFile:
    """A temporary file, written in order; `size` null: a new one, else behind the first `size` bytes of one that is there."""

    def __init__(self, path: Path, size: int | None = None) -> None:
        self.path = path
        self._written = self._begun = size or 0
        with _disk_errors(FileNotFoundError):
            flags = os.O_CREAT | os.O_EXCL if size is None else 0
            self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o640)
        if size is not None:
            self._cut(size)

    def _cut(self, size: int) -> None:
        """What a request of before wrote without its being counted goes."""
        try:
            with _disk_errors():
                there = os.fstat(self._fd).st_size
                os.ftruncate(self._fd, min(size, there))
                os.lseek(self._fd, 0, os.SEEK_END)
            if there < size:
                raise FileNotFoundError(self.path)
        except BaseException:
            self._give_back()
            raise

    def write(self, piece: bytes | memoryview) -> None:
        """Raises CapacitySpent when the disk is full."""
        view = memoryview(piece)
        with _disk_errors():
            while view:
                view = view[os.write(self._fd, view) :]
        self._written += len(piece)
        if self._written - self._begun >= _WRITE_BEHIND:
            writeback.begin(self._fd, self._begun, self._written - self._begun)
            self._begun = self._written

    def sync(self) -> None:
        """The end of writing: on the disk, and the descriptor given back (a form may bring many files)."""
        with _disk_errors():
            os.fsync(self._fd)
        self._give_back()

    def close(self) -> None:
        self._give_back()
        name = self.path.with_suffix("")
        if name != self.path:
            with _disk_errors(), _source(self.path):
                os.rename(self.path, name)
            self.path = name

    def _give_back(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def discard(self) -> None:
        self._give_back()
        self.path.unlink(missing_ok=True)


def put(path: Path, target: Path) -> None:
    """Give the file its address, whatever is there; where there are hard links, its temporary name stays beside it."""
    try:
        os.link(path, target)
    except FileExistsError:
        again = path.with_name(f"{path.name}.again")
        os.link(path, again)
        os.rename(again, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        os.rename(path, target)


def _take_over(name: Path, own: Path, size: int) -> None:
    """Copy the first bytes of what somebody held and may still write into, and take its name away from them."""
    held = [each for each in name.parent.glob(f"{name.name}.*") if len(each.suffix) == len(own.suffix) and each != own]
    whole = next((each for each in held if each.stat().st_size >= size), None)
    if whole is not None:
        with _disk_errors(), whole.open("rb") as source, own.open("xb") as target:
            left = size
            while left and (count := os.copy_file_range(source.fileno(), target.fileno(), min(left, _COPIED_AT_ONCE))):
                left -= count
    for each in held:
        each.unlink(missing_ok=True)


def _opened(name: str) -> OpenBlob:
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return OpenBlob(fd, os.fstat(fd).st_size)
    except BaseException:
        os.close(fd)
        raise


def _opened_again(name: str) -> OpenBlob:
    """NFS knew the name by a handle whose file another machine has deleted or replaced; the second look asks the server."""
    try:
        return _opened(name)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno == errno.ESTALE:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name) from error
        raise _told(error) from error


def address(folder: Path, digest: str, blob_id: int) -> Path:
    """Of a placed blob, below `sha256`."""
    return folder / digest[:2] / digest[2:4] / f"{digest}-{blob_id}"


class FileStore:
    """The blob store in a folder; makes the folder. Raises OSError when it cannot be written."""

    def __init__(self, root: Path) -> None:
        self._incoming = root / "incoming"
        self._blobs = root / "sha256"
        self._blobs_name = str(self._blobs)
        # Names are digests: nobody else on the machine needs to list them.
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (self._incoming, self._blobs):
            folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self._incoming):
            pass

    def address(self, digest: str, blob_id: int) -> Path:
        return address(self._blobs, digest, blob_id)

    def open(self, digest: str, blob_id: int) -> OpenBlob:
        # `address` without its objects: each download pays for this.
        name = f"{self._blobs_name}/{digest[:2]}/{digest[2:4]}/{digest}-{blob_id}"
        try:
            return _opened(name)
        except FileNotFoundError:
            raise
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise _told(error) from error
        return _opened_again(name)

    def create(self, upload_id: UUID) -> IncomingFile:
        return IncomingFile(self._incoming / str(upload_id))

    def resume(self, upload_id: UUID, size: int, holder: UUID) -> IncomingFile | None:
        name = self._incoming / str(upload_id)
        own = name.with_suffix(f".{holder}")
        try:
            with _disk_errors(FileNotFoundError):
                os.rename(name, own)
        except FileNotFoundError:
            _take_over(name, own, size)
        try:
            return IncomingFile(own, size)
        except FileNotFoundError:
            return None

    def holds(self, digest: str, blob_id: int, size: int) -> bool:
        # By opening: NFS asks its server then, while a `stat` may be answered from what this machine remembers of a file half written.
        try:
            blob = self.open(digest, blob_id)
        except FileNotFoundError:
            return False
        blob.close()
        return blob.size == size

    def stage(self, incoming: Incoming, digest: str) -> None:
        staged = incoming.path.with_suffix(f".{digest}")
        with _disk_errors(), _source(incoming.path):
            os.rename(incoming.path, staged)
        incoming.path = staged

    def staged(self) -> set[str]:
        names = (entry.name.split(".") for entry in os.scandir(self._incoming))
        return {digest for _, digest, *_ in (name for name in names if len(name) > 1)}

    def place(self, incoming: Incoming, digest: str, blob_id: int) -> None:
        target = self.address(digest, blob_id)
        with _disk_errors(), _source(incoming.path):
            self._make_folder(target.parent)
            put(incoming.path, target)
            sync_folder(target.parent)

    def _make_folder(self, folder: Path) -> None:
        """With each new name on the disk before anything is put below it."""
        if folder.is_dir():
            return
        for parent, child in ((self._blobs, folder.parent), (folder.parent, folder)):
            child.mkdir(exist_ok=True)
            sync_folder(parent)

    def remove(self, digest: str, blob_id: int) -> None:
        with _disk_errors():
            self.address(digest, blob_id).unlink(missing_ok=True)

    def temporary(self) -> dict[UUID, int]:
        found: dict[UUID, int] = {}
        with os.scandir(self._incoming) as entries:
            for entry in entries:
                # Not ours, or gone meanwhile.
                with contextlib.suppress(ValueError, FileNotFoundError):
                    found[UUID(entry.name.partition(".")[0])] = entry.stat().st_size
        return found

    def remove_temporary(self, upload_id: UUID) -> None:
        for path in self._incoming.glob(f"{upload_id}*"):
            path.unlink(missing_ok=True)

    def free_bytes(self) -> int:
        """What an ordinary user may still write, in bytes."""
        return free_bytes(self._incoming)


def free_bytes(folder: Path) -> int:
    """What an ordinary user may still write on the disk of that folder, in bytes."""
    state = os.statvfs(folder)
    return state.f_bavail * state.f_frsize
