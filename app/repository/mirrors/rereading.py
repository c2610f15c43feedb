"""Reading a list again: what it said when it was read to its end last, by the upstream's validators, is not sent a second time.

They count only as long as nothing here is another than it was then (`Reading.basis`), and only for a list that is made of one answer.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NamedTuple, Self

from app.repository.mirrors.memory import LITTLE, room
from app.upstream.client import Answer, Wanted
from app.upstream.freshness import http_moment

# Of how lists are read: another one reads all of them as a whole once more.
FORM = 1
# Within a moment the same date may stand for other bytes (RFC 9110, 8.8.2.2).
SETTLED_SECONDS = 60.0


class Unchanged(Exception):
    """The list says what it said when it was read last."""


class Validators(NamedTuple):
    """Of an answer, as the upstream sent them; both null: it is not asked by any."""

    etag: str | None = None
    last_modified: str | None = None


UNKNOWN = Validators()


class Reading:
    """One reading of a list. `basis` is all that what it names depends on beside the upstream; `before` are validators under the same one.

    `after` are those to be remembered, once it was read to its end.
    """

    def __init__(self, basis: str, before: Validators) -> None:
        self.basis = basis
        self.before = before
        self.after = UNKNOWN
        self._answers = self._held = 0

    def __enter__(self) -> Self:
        """What is kept in memory of it is given back in the end."""
        return self

    def __exit__(self, *_: object) -> None:
        self._hold(0)

    def asked(self, wanted: Wanted) -> Wanted:
        """With the validators, for an answer that the list is made of."""
        return replace(wanted, etag=self.before.etag, last_modified=self.before.last_modified)

    def hear(self, answer: Answer) -> None:
        """It is made of this one. Raises Unchanged."""
        if answer.unchanged:
            raise Unchanged
        # What is not there is asked for elsewhere, unless it is a further page.
        if not answer.absent or self._answers:
            self.take_in()
            self.after = validators_of(answer) if self._answers == 1 else UNKNOWN

    def watch(self, answer: Answer, at_most: int) -> None:
        """It is read into memory as a whole."""
        answer.grown = LITTLE, partial(self._hold, at_most)

    def _hold(self, size: int) -> None:
        """One at a time: whoever waits has nothing. Raises TooManyUploads."""
        if self._held:
            room.give_back(self._held)
            self._held = 0
        self._held = room.take(size) if size else 0

    def take_in(self) -> None:
        """It is made of something else too: none of them says anything about the whole."""
        self._answers += 1
        self.after = UNKNOWN


def validators_of(answer: Answer) -> Validators:
    """Those that can be trusted: where there is an ETag, a date says less."""
    if answer.etag is not None:
        return Validators(answer.etag)
    changed, sent = http_moment(answer.last_modified), http_moment(answer.head.headers.get("date"))
    settled = changed is not None and sent is not None and (sent - changed).total_seconds() >= SETTLED_SECONDS
    return Validators(None, answer.last_modified if settled else None)
