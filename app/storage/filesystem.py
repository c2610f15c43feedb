"""Blobs as files.

    blobs/
    ├── incoming/{upload id}                     being written; same file system as the addresses
    │            {upload id}.{holder}            the same, by one request of several
    │            {upload id}.whole               its parts are all there; whoever looks for it to write a part does not find it
    │            {upload id}.{digest}            whole, about to be placed: keeps cleanup from the blob of that digest
    │            {upload id}.{digest}.again      for a moment, where something is at the address already
    └── sha256/ab/cd/{digest}-{row id}           placed; never changes

The row id in the name keeps a late unlink of a former row from the bytes of its successor, and the digest in the temporary name keeps a
late placing from the address of a row that is gone (W3).
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

from app.errors import UploadGivenUp
from app.storage import writeback
from app.storage.disk import disk_errors, told
from app.storage.gathered import WHOLE, GatheredFile, WindowOfFile, found
from app.storage.interface import Gathered, OpenBlob, Whole

_COPIED_AT_ONCE = 64 * 1024 * 1024
# Of `st_blocks`, wherever it is asked.
_BLOCK = 512
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


@contextlib.contextmanager
def _source(path: Path) -> Iterator[None]:
    """Cleanup takes the files of whoever did not answer for them."""
    try:
        yield
    except FileNotFoundError as error:
        if path.exists():
            raise
        raise UploadGivenUp from error


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
        with disk_errors(FileNotFoundError):
            flags = os.O_CREAT | os.O_EXCL if size is None else 0
            self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o640)
        if size is not None:
            self._cut(size)

    def _cut(self, size: int) -> None:
        """What a request of before wrote without its being counted goes."""
        try:
            with disk_errors():
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
        with disk_errors():
            while view:
                view = view[os.write(self._fd, view) :]
        self._written += len(piece)
        if self._written - self._begun >= writeback.BEHIND:
            writeback.begin(self._fd, self._begun, self._written - self._begun)
            self._begun = self._written

    def sync(self) -> None:
        """The end of writing: on the disk, and the descriptor given back (a form may bring many files)."""
        with disk_errors():
            os.fsync(self._fd)
        self._give_back()

    def close(self) -> None:
        self._give_back()
        name = self.path.with_suffix("")
        if name != self.path:
            with disk_errors(), _source(self.path):
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
        with disk_errors(), whole.open("rb") as source, own.open("xb") as target:
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
        raise told(error) from error


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
                raise told(error) from error
        return _opened_again(name)

    def create(self, upload_id: UUID, holder: UUID | None = None) -> IncomingFile:
        name = self._incoming / str(upload_id)
        return IncomingFile(name if holder is None else name.with_suffix(f".{holder}"))

    def resume(self, upload_id: UUID, size: int, holder: UUID) -> IncomingFile | None:
        name = self._incoming / str(upload_id)
        own = name.with_suffix(f".{holder}")
        try:
            with disk_errors(FileNotFoundError):
                os.rename(name, own)
        except FileNotFoundError:
            _take_over(name, own, size)
        try:
            return IncomingFile(own, size)
        except FileNotFoundError:
            return None

    def spread(self, upload_id: UUID) -> None:
        with disk_errors():
            descriptor = os.open(self._incoming / str(upload_id), os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o640)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def window(self, upload_id: UUID, offset: int, size: int) -> WindowOfFile | None:
        try:
            return WindowOfFile(self._incoming / str(upload_id), offset, size)
        except FileNotFoundError:
            return None

    def gather(self, upload_id: UUID) -> GatheredFile | None:
        name = self._incoming / str(upload_id)
        with disk_errors():
            # Whoever was here before may have staged it, or died on the way.
            if (there := found(name)) is not None:
                return there
            with contextlib.suppress(FileNotFoundError):
                os.rename(name, name.with_suffix(WHOLE))
            return found(name)

    def scatter(self, gathered: Gathered) -> None:
        with disk_errors(), _source(gathered.path):
            os.rename(gathered.path, gathered.path.with_suffix(""))

    def holds(self, digest: str, blob_id: int, size: int) -> bool:
        # By opening: NFS asks its server then, while a `stat` may be answered from what this machine remembers of a file half written.
        try:
            blob = self.open(digest, blob_id)
        except FileNotFoundError:
            return False
        blob.close()
        return blob.size == size

    def stage(self, incoming: Whole, digest: str) -> None:
        staged = incoming.path.with_suffix(f".{digest}")
        with disk_errors(), _source(incoming.path):
            os.rename(incoming.path, staged)
        incoming.path = staged

    def staged(self) -> set[str]:
        names = (entry.name.split(".") for entry in os.scandir(self._incoming))
        return {digest for _, digest, *_ in (name for name in names if len(name) > 1)}

    def place(self, incoming: Whole, digest: str, blob_id: int) -> None:
        target = self.address(digest, blob_id)
        with disk_errors(), _source(incoming.path):
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
        with disk_errors():
            self.address(digest, blob_id).unlink(missing_ok=True)

    def temporary(self) -> dict[UUID, int]:
        sizes: dict[UUID, int] = {}
        with os.scandir(self._incoming) as entries:
            for entry in entries:
                # Not ours, or gone meanwhile.
                with contextlib.suppress(ValueError, FileNotFoundError):
                    upload_id, state = UUID(entry.name.partition(".")[0]), entry.stat()
                    # Parts come in any order: a file may have holes, which take no room yet.
                    sizes[upload_id] = sizes.get(upload_id, 0) + min(state.st_size, state.st_blocks * _BLOCK)
        return sizes

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
