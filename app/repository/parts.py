"""A file of an upstream in parts of 8 MiB, kept where they arrived, so that whoever breaks off and comes back asks only for the rest.

Each part is a request of its own (RFC 9110, 14): `Range`, and from the second on `If-Range` with the strong validator of the first, so that
parts of two files never come together. What has arrived is an upload that takes several requests (`upload/sessions.py`): after each part
its bytes are on the disk, then its row says how many. An upstream that gives no strong validator, or no parts, is asked for the whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol
from uuid import UUID

from app.errors import ArkvoryError, UploadUnknown, UpstreamUnfit
from app.repository.publishing import Session
from app.upload.receiving import Expected, Receiver
from app.upload.sessions import Address, Sessions
from app.upstream.client import Answer, Wanted

PART = 8 * 1024 * 1024
# What an upstream sends at least of those: each part costs a request and the disk.
LEAST = 1024 * 1024
OWNER = "upstream"
# The next answer of the same upstream, in the place that the former one had among its connections.
More = Callable[[Wanted], contextlib.AbstractContextManager[Answer]]


class Kept(Protocol):
    """What is remembered of a file between two fetches."""

    @property
    def size(self) -> int | None:
        """Of the whole, in bytes, as far as a list told."""

    def known(self) -> tuple[UUID, str] | None:
        """The upload that has what arrived, and the validator that the rest must have."""

    def keep(self, upload_id: UUID, validator: str) -> None: ...

    def require_wanted(self) -> None:
        """Raises Later when the rest is not to be fetched now."""


@dataclass(frozen=True)
class Begun:
    """What is here already: `received` bytes in an upload; null: nothing."""

    upload_id: UUID | None = None
    validator: str | None = None
    received: int = 0


@dataclass(frozen=True)
class Parts:
    """The parts of one path of a repository."""

    sessions: Sessions
    kept: Kept
    repository_id: int
    path: str

    @property
    def worthwhile(self) -> bool:
        return self.kept.size is None or self.kept.size > PART

    def begun(self) -> Begun:
        known = self.kept.known()
        if known is None:
            return Begun()
        try:
            return Begun(*known, self.sessions.received(self._address(known[0])))
        except UploadUnknown:
            # It took too long: its bytes were given back.
            return Begun()

    def wanted(self, whole: Wanted, begun: Begun) -> Wanted:
        """The next part of it."""
        return replace(whole, part=(begun.received, begun.received + PART - 1), part_of=begun.validator)

    def fits(self, answer: Answer, begun: Begun) -> bool:
        """Whether something can be made of what was answered: the next part, the whole, or that there is none."""
        part = answer.part
        if part is None:
            return not answer.unsatisfied
        if part.first != begun.received or part.total is None:
            return False
        enough = part.last + 1 >= min(part.first + LEAST, part.total)
        return part.is_whole or (enough and answer.strong_etag is not None and begun.validator in (None, answer.strong_etag))

    def give_up(self, begun: Begun) -> None:
        """What has arrived is of no use. What cannot be given back just now is cleanup's."""
        if begun.upload_id is not None:
            with contextlib.suppress(ArkvoryError):
                self.sessions.cancel(self._address(begun.upload_id))

    def receiver(self, session: Session, begun: Begun, answer: Answer, expected: Expected, always: Iterable[str]) -> Receiver:
        """For all that is still to come, which has room from now on. Raises CapacitySpent, TooLarge, TooManyUploads and UploadUnknown."""
        assert answer.part is not None and answer.part.total is not None and answer.strong_etag is not None
        upload_id = begun.upload_id
        if upload_id is None:
            upload_id = self.sessions.begin(self.repository_id, self.path, OWNER, OWNER, (*expected.digests, *always))
            self.kept.keep(upload_id, answer.strong_etag)
        receiver = session.go_on(self._address(upload_id), begun.received, expected, always)
        receiver.announce(answer.part.total - begun.received)
        return receiver

    def pieces(
        self, answer: Answer, wanted: Wanted, receiver: Receiver, more: More, wanted_by_others: Callable[[], bool] = lambda: False
    ) -> Iterator[bytes]:
        """The bytes of the part that `answer` is, and of all that follow. Raises UpstreamFailed, and Later when nobody wants more."""
        assert answer.part is not None
        total, validator = answer.part.total, answer.strong_etag
        yield from _read(answer)
        while receiver.size < (total or 0):
            receiver.flush()
            self.sessions.note(receiver.reservation, receiver.size)
            if not wanted_by_others():
                self.kept.require_wanted()
            begun = Begun(None, validator, receiver.size)
            with more(self.wanted(replace(wanted, etag=None, last_modified=None), begun)) as answer:
                if answer.part is None or answer.part.total != total or not self.fits(answer, begun):
                    raise UpstreamUnfit(f"the upstream's {self.path!r} was changed while it was fetched")
                yield from _read(answer)

    def _address(self, upload_id: UUID) -> Address:
        return Address(self.repository_id, self.path, OWNER, upload_id)


def _read(answer: Answer) -> Iterator[bytes]:
    while piece := answer.read():
        yield piece
