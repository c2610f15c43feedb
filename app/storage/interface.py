"""What a blob store can do; every store passes the same tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from uuid import UUID


@dataclass
class OpenBlob:
    """An open descriptor, which keeps the bytes readable whatever happens to their name; `size` in bytes.

    `check` is called before each piece that is sent, where another machine may delete the file all the same (cluster/pins.py).
    """

    fd: int
    size: int
    check: Callable[[], None] | None = field(default=None, kw_only=True)
    on_close: Callable[[], None] | None = field(default=None, kw_only=True)

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
            if self.on_close is not None:
                self.on_close()


class Whole(Protocol):
    """A temporary file that nobody writes into any more, about to be placed."""

    path: Path

    def discard(self) -> None:
        """Close and remove; harmless after `BlobStore.place`."""


class Incoming(Whole, Protocol):
    """Bytes on their way in, in a temporary file. Everything here blocks: call it in the thread pool."""

    def write(self, piece: bytes | memoryview) -> None: ...

    def close(self) -> None:
        """Give the descriptor back; the bytes stay, for `BlobStore.resume`. Raises UploadGivenUp when another one went on with them."""

    def sync(self) -> None:
        """The end of writing: on the disk, not only in the kernel's memory."""


class Gathered(Whole, Protocol):
    """A temporary file that parts were written into. `staged`: the bytes of a blob may be these already, so none is written ever again."""

    staged: bool

    @property
    def size(self) -> int: ...

    def cut(self, size: int) -> None:
        """Drop what lies behind; not of one that was staged."""

    def is_sole(self) -> bool:
        """Whether nobody on this machine, as the kernel knows for sure, has it open to write into it."""


class BlobStore(Protocol):
    """Blobs at their digest and the id of their row. Everything but `open` and `free_bytes` blocks: thread pool."""

    def open(self, digest: str, blob_id: int) -> OpenBlob:
        """Raises FileNotFoundError."""

    def create(self, upload_id: UUID, holder: UUID | None = None) -> Incoming:
        """`holder`: beside the upload's own file, by one of those who may be at it."""

    def resume(self, upload_id: UUID, size: int, holder: UUID) -> Incoming | None:
        """Go on behind the first `size` bytes of a temporary file, as `holder`; null when so many are not there.

        A former holder that did not close it may still write: what it has is copied, and nothing that it does reaches the copy.
        """

    def spread(self, upload_id: UUID) -> None:
        """An empty temporary file for parts; harmless when it is there."""

    def window(self, upload_id: UUID, offset: int, size: int) -> Incoming | None:
        """A range of a temporary file that is there, beside which others write; null when it is gone. Discarding it leaves the file."""

    def gather(self, upload_id: UUID) -> Gathered | None:
        """The file of an upload whose parts are all there, at a name by which `window` finds it no more; null when it is gone."""

    def scatter(self, gathered: Gathered) -> None:
        """Let `window` find it again: parts are to be written anew. Not for one that was staged."""

    def holds(self, digest: str, blob_id: int, size: int) -> bool: ...

    def stage(self, incoming: Whole, digest: str) -> None:
        """Say of a synced temporary file what it is to be placed as; `staged` shows it until the file is gone."""

    def staged(self) -> set[str]:
        """Digests that somebody may still place."""

    def place(self, incoming: Whole, digest: str, blob_id: int) -> None:
        """Put a synced temporary file at its address, for good; replaces what is there. Raises UploadGivenUp when the file is gone."""

    def remove(self, digest: str, blob_id: int) -> None:
        """Harmless when it is gone already."""

    def temporary(self) -> Mapping[UUID, int]:
        """Uploads that have a temporary file, with its size in bytes."""

    def remove_temporary(self, upload_id: UUID) -> None: ...

    def free_bytes(self) -> int: ...
