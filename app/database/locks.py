"""The order of locks, in one place (DESIGN 5).

Every business transaction takes what it needs in this order and nothing after `UPLOADS`; two
transactions that both keep to it cannot wait for each other in a circle.

    OWNER          the storage owner's row, shared
    GLOBAL         advisory lock of admission
    REPOSITORY     advisory locks of repositories, by id
    REPOSITORY_ROW rows of repositories, by id (epochs advance here)
    PACKAGE        rows of packages, by name
    BLOB           rows of blobs, by digest
    PEOPLE         rows of users by id, then of the installation
    CACHE          cache rows
    MAIL           messages to other processes
    PARTS          rows of uploads that come in parts, then of their parts
    UPLOADS        `arkvory_uploads`, one statement, and with it the counters in the order of their key
"""

from __future__ import annotations

from enum import IntEnum

# Two-integer advisory locks: (class, object). They never collide with the one-integer kind.
INSTALLATION_CLASS = 18471
REPOSITORY_CLASS = 18472
# Of a random object: to find out whether session locks work (database/sessions.py).
TRIAL_CLASS = 18473
# Of the pin session with this number (cluster/pins.py).
PIN_CLASS = 18474

OWNERSHIP = (INSTALLATION_CLASS, 1)
ADMISSION = (INSTALLATION_CLASS, 2)
MIGRATION = (INSTALLATION_CLASS, 3)
# Nothing else is locked in its transactions (upload/shared_places.py).
PLACES = (INSTALLATION_CLASS, 4)
# Nor in these (cluster/shares.py).
DOWNLOADS = (INSTALLATION_CLASS, 5)


def repository_lock(repository_id: int) -> tuple[int, int]:
    """The advisory lock of a repository; ids beyond 31 bits share locks, which costs time but never safety."""
    return REPOSITORY_CLASS, repository_id % 2**31


# One-integer advisory locks: PostgreSQL makes the integer of a text, `hashtextextended(:key, 0)`. Two texts that share one cost a refusal
# once in 10^19, never safety.


def master_key(name: str, master: str) -> str:
    """Shared by the workers of the master that goes by this name."""
    return f"arkvory/master/{name}/{master}"


def slot_key(name: str, slot: int) -> str:
    """Held by the one process in this slot."""
    return f"arkvory/slot/{name}/{slot}"


def write_key(name: str) -> str:
    """Held by the one process that works at this object (database/writelocks.py)."""
    return f"arkvory/write/{name}"


class Step(IntEnum):
    """Positions in the order above."""

    START = 0
    OWNER = 1
    GLOBAL = 2
    REPOSITORY = 3
    REPOSITORY_ROW = 4
    PACKAGE = 5
    BLOB = 6
    PEOPLE = 7
    CACHE = 8
    MAIL = 9
    PARTS = 10
    UPLOADS = 11


class LockOrder:
    """Watches one transaction; a step backwards is a fault of the program, found before it can deadlock."""

    def __init__(self) -> None:
        self._reached = Step.START

    def reach(self, step: Step) -> None:
        """Note that locks of `step` are about to be taken. Raises RuntimeError when the order forbids it."""
        if step < self._reached or (step == self._reached == Step.UPLOADS):
            raise RuntimeError(f"lock order: {step.name} after {self._reached.name}")
        self._reached = step
