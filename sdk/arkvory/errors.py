"""What can go wrong, as one tree.

    ArkvoryError
    ├── NoAnswer                 refused, cut off, no such host
    │   ├── TimedOut             it took longer than the time-outs say
    │   └── Untrusted            its certificate is not one that this machine trusts
    ├── NotArkvory               it answers, and not as an Arkvory would
    │   └── SentElsewhere        it names another address, to which no login goes by itself: `location`
    ├── Refused                  an answer that says no: `status`, `code`, `detail`
    │   ├── Invalid              400, 422: the request is wrong; `fields` says where
    │   │   └── DigestMismatch   the bytes that came are not those that were announced
    │   ├── Unauthenticated      401: no login, or a wrong one
    │   ├── Forbidden            403: a login without this right
    │   │   ├── Quarantined      held until somebody releases it
    │   │   └── TooYoung         held until it is old enough
    │   ├── NotFound             404: nothing there, or nothing that this login may know of
    │   │   └── UploadUnknown    an upload that ended, expired, or is somebody else's
    │   ├── NotAllowedHere       405: this repository does not do that
    │   ├── Conflict             409: what is there forbids it
    │   │   └── AlreadyExists
    │   ├── PreconditionFailed   412: not, or not any more, what was to be replaced
    │   ├── TooLarge             413
    │   ├── CapacitySpent        507: no room, or the quota is used up
    │   └── Later                come back later; `retry_after` in seconds where the server said it
    │       ├── TooManyUploads   429: no place came free, or the user has too many uploads open
    │       ├── TooManyLogins    429: too many wrong passwords
    │       └── Unavailable      500 and above
    │           ├── RepositoryOffline, RepositoryMaintenance, ReadOnly
    │           └── UpstreamFailed   what a proxy fetches from gave no usable answer
    ├── Damaged                  the bytes that were fetched are not those that the server has
    ├── Replaced                 the artifact was replaced again and again while it was fetched
    ├── UploadFailed             the server took all parts and could not publish them
    ├── LocalFile                something on this machine: a file that changed while it was sent, a path that cannot be
    └── Incomplete               of a folder, some files failed: `failures`

`str(error)` is for people: what was wrong and where. An error that ended a row of attempts says how many there were.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar

LONGEST_WORDS = 2000


class ArkvoryError(Exception):
    """Base of all. `code` is the server's word for it, or this library's where no server said anything."""

    code: str = "error"
    # Whether asking again may help, where the request is one that may be sent twice.
    passing: ClassVar[bool] = False

    def __init__(self, message: str) -> None:
        self.message = message
        self.attempts = 1
        super().__init__(message)

    def __str__(self) -> str:
        return self.message if self.attempts == 1 else f"{self.message} (after {self.attempts} attempts)"


class NoAnswer(ArkvoryError):
    code = "no_answer"
    passing = True


class TimedOut(NoAnswer):
    code = "timed_out"


class Untrusted(NoAnswer):
    code = "untrusted"
    passing = False


class NotArkvory(ArkvoryError):
    code = "not_arkvory"


class SentElsewhere(NotArkvory):
    code = "sent_elsewhere"

    def __init__(self, location: str) -> None:
        self.location = location
        super().__init__(f"the server sends its clients on to {location or 'another address'!r}: use that one")


class Refused(ArkvoryError):
    """`problem` is the answer's document (RFC 9457), empty where the answer was plain text."""

    def __init__(self, detail: str, *, status: int = 0, code: str | None = None, problem: Mapping[str, Any] | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.status = status
        self.code = code or type(self).code
        self.problem: Mapping[str, Any] = problem or {}

    @property
    def fields(self) -> Mapping[str, Sequence[str]]:
        """What is wrong, by the name of the field (422)."""
        found = self.problem.get("fields")
        return found if isinstance(found, dict) else {}

    @property
    def request_id(self) -> str:
        """By which the server's administrator finds the request in the log."""
        return str(self.problem.get("request_id", ""))


class Invalid(Refused):
    code = "invalid"


class DigestMismatch(Invalid):
    code = "digest_mismatch"


class Unauthenticated(Refused):
    code = "unauthenticated"


class Forbidden(Refused):
    code = "forbidden"


class Quarantined(Forbidden):
    code = "quarantined"


class TooYoung(Forbidden):
    code = "too_young"


class NotFound(Refused):
    code = "not_found"


class UploadUnknown(NotFound):
    code = "upload_unknown"


class NotAllowedHere(Refused):
    code = "not_allowed_here"


class Conflict(Refused):
    code = "conflict"


class AlreadyExists(Conflict):
    code = "already_exists"


class PreconditionFailed(Refused):
    code = "precondition_failed"


class TooLarge(Refused):
    code = "too_large"


class CapacitySpent(Refused):
    code = "capacity_spent"


class Later(Refused):
    """`retry_after` in seconds, null where the server did not say it."""

    code = "later"
    passing = True
    retry_after: float | None = None


class TooManyUploads(Later):
    code = "too_many_uploads"


class TooManyLogins(Later):
    """Not repeated by itself: a wrong password stays wrong."""

    code = "too_many_logins"
    passing = False


class Unavailable(Later):
    code = "unavailable"


class RepositoryOffline(Unavailable):
    code = "repository_offline"


class RepositoryMaintenance(Unavailable):
    code = "repository_maintenance"


class ReadOnly(Unavailable):
    code = "read_only"


class UpstreamFailed(Unavailable):
    code = "upstream_failed"


class Damaged(ArkvoryError):
    code = "damaged"


class Replaced(ArkvoryError):
    code = "replaced"


class UploadFailed(ArkvoryError):
    code = "upload_failed"


class LocalFile(ArkvoryError):
    code = "local_file"


class Incomplete(ArkvoryError):
    """`failures` are errors by the path of the file that each is about."""

    code = "incomplete"

    def __init__(self, failures: Mapping[str, ArkvoryError], of: int) -> None:
        path, first = next(iter(failures.items()))
        words = f"{len(failures)} of {of} files failed, the first of them {path!r}: {first}"
        super().__init__(f"{words}; the same call again goes on with what is missing")
        self.failures = failures


_NAMED: tuple[type[Refused], ...] = (
    DigestMismatch, Quarantined, TooYoung, UploadUnknown, NotAllowedHere, AlreadyExists, PreconditionFailed, CapacitySpent,
    TooManyUploads, TooManyLogins, RepositoryOffline, RepositoryMaintenance, ReadOnly, UpstreamFailed,
)  # fmt: skip
_BY_CODE = {kind.code: kind for kind in _NAMED} | {"upstream_busy": UpstreamFailed, "upstream_timed_out": UpstreamFailed}
_BY_STATUS: dict[int, type[Refused]] = {
    400: Invalid, 401: Unauthenticated, 403: Forbidden, 404: NotFound, 405: NotAllowedHere, 408: Later, 409: Conflict, 410: NotFound,
    412: PreconditionFailed, 413: TooLarge, 422: Invalid, 425: Later, 429: Later, 501: Refused, 505: Refused, 507: CapacitySpent,
}  # fmt: skip


def refusal(status: int, headers: Mapping[str, str], body: bytes) -> ArkvoryError:
    """The error that an answer of this status stands for; `headers` are found by names in any case."""
    if 300 <= status < 400:
        return SentElsewhere(headers.get("Location", ""))
    problem = _problem(body)
    code = str(problem.get("code") or headers.get("X-Arkvory-Error") or "") or None
    kind = _BY_CODE.get(code or "") or _BY_STATUS.get(status) or (Unavailable if status >= 500 else Refused)
    detail = str(problem.get("detail") or "") or _plain(body) or f"the server answered {status}"
    made = kind(detail, status=status, code=code, problem=problem)
    if isinstance(made, Later):
        made.retry_after = seconds_of(headers.get("Retry-After"), headers.get("Date"))
    return made


def named(code: str, detail: str) -> Refused | None:
    """The error that has this code of the server's; null where it is none that has a class of its own."""
    kind = _BY_CODE.get(code)
    if kind is None:
        return None
    return kind(detail, status=next((status for status, of in _BY_STATUS.items() if issubclass(kind, of)), 0), code=code)


def seconds_of(retry_after: str | None, date: str | None) -> float | None:
    """Seconds that Retry-After asks for, null where it says nothing (RFC 9110, 10.2.3). Dates are compared with the server's own clock."""
    told = (retry_after or "").strip()
    if told.isascii() and told.isdigit():
        return float(told[:9])
    try:
        until = parsedate_to_datetime(told)
        now = parsedate_to_datetime(date) if date else datetime.now(UTC)
        return max(0.0, (until - now).total_seconds())
    except (TypeError, ValueError):
        return None


def _problem(body: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _plain(body: bytes) -> str:
    """A line or two of plain text; a page of HTML is no message."""
    words = body[:LONGEST_WORDS].decode(errors="replace").strip()
    return "" if words.startswith(("<", "{", "[")) else words
