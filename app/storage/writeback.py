"""Asking the kernel to begin writing what a file has in memory, so that the fsync at the end has little left to wait for."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

# Bytes after which the disk begins to write: enough for it to do so in long runs.
BEHIND = 8 * 1024 * 1024
_SYNC_FILE_RANGE_WRITE = 2


def _find() -> Callable[[int, int, int, int], int] | None:
    """Linux' `sync_file_range`; other systems have none, and go without."""
    try:
        function = ctypes.CDLL(None).sync_file_range
    except (AttributeError, OSError):
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    function.restype = ctypes.c_int
    return function


_sync_file_range = _find()


def begin(fd: int, offset: int, length: int) -> None:
    """Start, and do not wait. A hint: it promises nothing and reports nothing; what fails to be written, fsync will tell."""
    if _sync_file_range is not None:
        _sync_file_range(fd, offset, length, _SYNC_FILE_RANGE_WRITE)
