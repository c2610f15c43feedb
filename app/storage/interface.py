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


class Incoming(Protocol):
    """Bytes on their way in, in a temporary file. Everything here blocks: call it in the thread pool."""

    path: Path

    def write(self, piece: bytes | memoryview) -> None: ...

    def close(self) -> None:
        """Give the descriptor back; the bytes stay, for `BlobStore.resume`. Raises UploadGivenUp when another one went on with them."""

    def sync(self) -> None:
        """The end of writing: on the disk, not only in the kernel's memory."""

    def discard(self) -> None:
        """Close and remove; harmless after `BlobStore.place`."""


class BlobStore(Protocol):
    """Blobs at their digest and the id of their row. Everything but `open` and `free_bytes` blocks: thread pool."""

    def open(self, digest: str, blob_id: int) -> OpenBlob:
        """Raises FileNotFoundError."""

    def create(self, upload_id: UUID) -> Incoming: ...

    def resume(self, upload_id: UUID, size: int, holder: UUID) -> Incoming | None:
        """Go on behind the first `size` bytes of a temporary file, as `holder`; null when so many are not there.

        A former holder that did not close it may still write: what it has is copied, and nothing that it does reaches the copy.
        """

    def holds(self, digest: str, blob_id: int, size: int) -> bool: ...

    def stage(self, incoming: Incoming, digest: str) -> None:
        """Say of a synced temporary file what it is to be placed as; `staged` shows it until the file is gone."""

    def staged(self) -> set[str]:
        """Digests that somebody may still place."""

    def place(self, incoming: Incoming, digest: str, blob_id: int) -> None:
        """Put a synced temporary file at its address, for good; replaces what is there. Raises UploadGivenUp when the file is gone."""

    def remove(self, digest: str, blob_id: int) -> None:
        """Harmless when it is gone already."""

    def temporary(self) -> Mapping[UUID, int]:
        """Uploads that have a temporary file, with its size in bytes."""

    def remove_temporary(self, upload_id: UUID) -> None: ...

    def free_bytes(self) -> int: ...
