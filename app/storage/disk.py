"""What a disk says, in the domain's words."""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Iterator

from app.errors import CapacitySpent, Unavailable

log = logging.getLogger(__name__)

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextlib.contextmanager
def disk_errors(*passing: type[OSError]) -> Iterator[None]:
    """Turn what the file system raises into the domain's words; `passing` stay what they are."""
    try:
        yield
    except passing:
        raise
    except OSError as error:
        raise told(error) from error


def told(error: OSError) -> CapacitySpent | Unavailable:
    """The error to raise in place of what the file system raised."""
    if error.errno in _FULL:
        return CapacitySpent("the server's disk is full; nothing of this upload was kept")
    log.error("the blob store fails: %s", error)
    return Unavailable("the server's storage does not work at the moment; tell its administrator", retry_after=30)
