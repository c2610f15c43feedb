"""What can go wrong, in the domain's words; no HTTP here.

    ArkvoryError
    ├── Invalid              the request itself is wrong
    │   ├── InvalidPath      a path that no artifact can have
    │   ├── DigestMismatch   the bytes are not those that the client announced
    │   ├── BodyCutShort     the body ended before its length
    │   ├── MissingParts     what is published names parts that are not there
    │   └── KeyReused        an Idempotency-Key that stands for another request
    ├── Unauthenticated      no credential, or a wrong one
    ├── Forbidden            a known identity without the right
    │   ├── Quarantined      withheld from everyone until someone releases it
    │   └── TooYoung         withheld until it is old enough, or an exception names it
    ├── NotFound             nothing there, or nothing that the caller may know of
    │   ├── Blocked          a path rule of the repository keeps it out
    │   └── UploadUnknown    no such upload: ended, expired, or somebody else's
    ├── Conflict             what is there forbids it
    │   ├── AlreadyExists
    │   ├── NotAllowedHere   this repository does not do that (read only, wrong kind)
    │   ├── PreconditionFailed
    │   ├── WrongOffset      the bytes are not those that come next in their upload
    │   ├── UploadIncomplete an upload in parts that lacks some
    │   ├── UploadClosed     an upload in parts that takes none any more
    │   └── StillNeeded      something else refers to it
    ├── TooLarge             larger than the server accepts
    ├── CapacitySpent        no room: the server's capacity, its disk or the repository's quota
    └── Later                come back later
        ├── TooManyUploads   no place came free in time, or its owner has too many open
        ├── TooManyLogins    too many wrong passwords of this name, or from this address
        └── Unavailable      cannot be answered now
            ├── RepositoryOffline, RepositoryMaintenance
            ├── ReadOnly         an administrator has frozen all that is stored
            ├── DatabaseAway     PostgreSQL does not answer, or no connection came free
            │   └── DatabaseRefuses  it answers, but not to this address's user or for this database
            ├── OutcomeUnknown   the answer to COMMIT was lost and has not been found out yet
            ├── UploadGivenUp    another process took this one for dead and released what it receives
            ├── NotOwner         this process does not own the storage (any more)
            ├── LockLost         this process has no longer to itself what it works at
            ├── PinLost          nothing keeps the file that is being sent
            ├── NotKept          a proxy that hands on what it does not store has nothing to tell it by
            └── UpstreamFailed   the upstream of a proxy gave no usable answer
                ├── UpstreamBusy      it, or we for its sake, want a pause
                ├── UpstreamUnfit     it answered, and not with what was asked for: its health is not in question
                │   └── UpstreamUntrue   what it sent is not what it says of it
                └── UpstreamTimedOut  it did not answer in time

Each class has a stable `code`, the one that the management API shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import ClassVar

LONGEST_MESSAGE = 2000


class ArkvoryError(Exception):
    """Base of all; `message` is for the user: what was wrong, where, and what to do next."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str) -> None:
        # It may quote what a client sent, however long that is.
        self.message = message if len(message) <= LONGEST_MESSAGE else f"{message[:LONGEST_MESSAGE]}..."
        super().__init__(self.message)


class Invalid(ArkvoryError):
    code = "invalid"

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class InvalidPath(Invalid):
    code = "invalid_path"


class DigestMismatch(Invalid):
    code = "digest_mismatch"


class BodyCutShort(Invalid):
    code = "body_cut_short"


class MissingParts(Invalid):
    """`paths` are those that nothing is at."""

    code = "missing_parts"

    def __init__(self, message: str, paths: Sequence[str]) -> None:
        super().__init__(message)
        self.paths = paths


class KeyReused(Invalid):
    code = "idempotency_key_reused"


class Unauthenticated(ArkvoryError):
    code = "unauthenticated"


class Forbidden(ArkvoryError):
    code = "forbidden"


class Quarantined(Forbidden):
    code = "quarantined"


class TooYoung(Forbidden):
    """`available_at` null: nobody can tell."""

    code = "too_young"

    def __init__(self, message: str, available_at: datetime | None) -> None:
        super().__init__(message)
        self.available_at = available_at


class NotFound(ArkvoryError):
    code = "not_found"


class IsFolder(NotFound):
    """Nothing lies at the `path` itself, but below it: with a slash behind it, it is a folder's."""

    def __init__(self, message: str, path: str) -> None:
        super().__init__(message)
        self.path = path


class Blocked(NotFound):
    """Not there as far as clients can see, so that they look elsewhere; `rule` in words."""

    def __init__(self, message: str, rule: str) -> None:
        super().__init__(message)
        self.rule = rule


class UploadUnknown(NotFound):
    code = "upload_unknown"


class Conflict(ArkvoryError):
    code = "conflict"


class AlreadyExists(Conflict):
    code = "already_exists"


class NotAllowedHere(Conflict):
    code = "not_allowed_here"


class PreconditionFailed(Conflict):
    code = "precondition_failed"


class WrongOffset(Conflict):
    """`received` bytes are there."""

    code = "wrong_offset"

    def __init__(self, message: str, received: int) -> None:
        super().__init__(message)
        self.received = received


class UploadIncomplete(Conflict):
    code = "upload_incomplete"


class UploadClosed(Conflict):
    code = "upload_closed"


class StillNeeded(Conflict):
    code = "still_needed"


class TooLarge(ArkvoryError):
    code = "too_large"


class CapacitySpent(ArkvoryError):
    code = "capacity_spent"


class Later(ArkvoryError):
    """Cannot be answered now; `retry_after` is in seconds."""

    def __init__(self, message: str, retry_after: int = 5) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TooManyUploads(Later):
    code = "too_many_uploads"


class TooManyLogins(Later):
    code = "too_many_logins"


class Unavailable(Later):
    code = "unavailable"


class RepositoryOffline(Unavailable):
    code = "repository_offline"


class RepositoryMaintenance(Unavailable):
    code = "repository_maintenance"


class ReadOnly(Unavailable):
    code = "read_only"


class DatabaseAway(Unavailable):
    code = "database_away"


class DatabaseRefuses(DatabaseAway):
    """Waiting does not help; a new password, or the making of the database, may."""


class OutcomeUnknown(Unavailable):
    code = "outcome_unknown"


class UploadGivenUp(Unavailable):
    code = "upload_given_up"

    def __init__(self) -> None:
        super().__init__("this upload was given up, since its process gave no sign of life for long; send it again")


class NotOwner(Unavailable):
    code = "not_owner"


class LockLost(Unavailable):
    code = "lock_lost"


class PinLost(Unavailable):
    code = "pin_lost"


class NotKept(Unavailable):
    code = "not_kept"


class UpstreamFailed(Unavailable):
    code = "upstream_failed"


class UpstreamBusy(UpstreamFailed):
    code = "upstream_busy"


class UpstreamUnfit(UpstreamFailed):
    pass


class UpstreamUntrue(UpstreamUnfit):
    pass


class UpstreamTimedOut(UpstreamFailed):
    code = "upstream_timed_out"
