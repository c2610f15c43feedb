"""Reading from a proxy: the local copy while it is fresh, else what the upstream says, else the copy all the same (DESIGN 6)."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from sqlalchemy import Connection

from app.cache.snapshots import Snapshot
from app.errors import ArkvoryError, Blocked, IsFolder, NotFound, NotKept, UpstreamBusy, UpstreamFailed, UpstreamTimedOut
from app.repository.dialects import Order
from app.repository.fetching import Fetches, Head, NotStorable, Outcome
from app.repository.formats import absent as absent_at
from app.repository.reading import Answered, Ask, Brought, Coming, DocumentSource, Found, Gate, Judged, Reader, Shelf, Told, check_age
from app.repository.withholding import require_path

log = logging.getLogger(__name__)

# How long whoever could have the copy waits for the upstream's word.
PATIENCE_SECONDS = 10.0
_HOW = {Outcome.FRESH: "hit", Outcome.SAME: "revalidated", Outcome.STORED: "miss"}


class Proxy:
    """The verbs of the reader for repositories that fetch what they do not have; `revalidations` by outcome."""

    def __init__(self, reader: Reader, fetches: Fetches) -> None:
        self._reader = reader
        self._fetches = fetches
        self.revalidations: Counter[str] = Counter(not_modified=0, updated=0, served_existing=0)

    def find(self, judged: Judged, ask: Ask, *, whole: bool) -> Found:
        """Without `whole` its bytes may still be coming. Raises as `Reader.find`, and UpstreamFailed when nothing can be said."""
        require_path(judged.snapshot, ask.path)
        found = self._found(judged, ask, whole=whole)
        try:
            # It may have been decided anew.
            require_path(found.snapshot, ask.path)
        except Blocked:
            if found.coming is not None:
                found.coming.close()
            raise
        return found

    def _found(self, judged: Judged, ask: Ask, *, whole: bool) -> Found:
        if not judged.snapshot.caching_allowed:
            return self._pass_through(judged, ask, whole=whole)
        try:
            return self._stored(judged, ask, whole=whole)
        except NotStorable:
            return self._pass_through(judged, ask, whole=whole)

    def _stored(self, judged: Judged, ask: Ask, *, whole: bool = True) -> Found:
        """The copy, fetched or compared first where it is due. Raises NotStorable too."""
        try:
            found = self._reader.stored(judged, ask)
        except NotFound as absent:
            return self._fetch(judged, ask, absent, whole=whole)
        known = found.gate.freshness
        if known is not None and not known.is_due(judged.snapshot.upstream_url, time.time() - ask.slack):
            return Found(found.snapshot, found.gate, Told("hit", known.age))
        return self._revalidate(judged, ask, found)

    def kept(self, snapshot: Snapshot, gate: Gate, slack: float) -> Found | None:
        """A copy that is there, where nothing speaks against it as it is and no upstream is to be asked; see `Ask` for `slack`."""
        known = gate.freshness
        if known is None or gate.held is not None or snapshot.restrictions is not None or not snapshot.caching_allowed:
            return None
        if known.is_due(snapshot.upstream_url, time.time() - slack):
            return None
        return Found(snapshot, gate, Told("hit", known.age))

    def restore(self, ask: Ask, lost: Found) -> Found:
        """The copy goes, and is fetched anew. Raises UpstreamFailed when it cannot be had."""
        self._fetches.give_up(Order.of(lost.snapshot, ask.path))
        return self._reader.find(replace(ask, bodiless=False))

    def document(self, judged: Judged, ask: Ask, source: DocumentSource, known_etags: frozenset[str], made_of: str) -> Answered:
        """Of the upstream's document that is kept at `made_of`, which is looked after like any other file; empty: of rows alone."""
        require_path(judged.snapshot, ask.path)
        if not made_of:
            return Answered(self._reader.stored_document(judged, ask, source, known_etags), None)
        index = replace(ask, path=made_of, spelling="", of=ask.path)
        try:
            return self._made_document(judged, ask, source, known_etags, index)
        except FileNotFoundError:
            log.error("the bytes of %s/%s are missing on the disk: fetched anew", ask.repository, made_of)
            self._fetches.give_up(_order(judged, index))
            self._fetches.bring(judged.snapshot, made_of).close()
            return Answered(self._reader.document_again(ask, source, known_etags), Told("miss", 0))

    def _made_document(self, judged: Judged, ask: Ask, source: DocumentSource, known_etags: frozenset[str], index: Ask) -> Answered:
        with contextlib.ExitStack() as held:
            told, shelf = self._bring(judged, index, held)
            if shelf is not None:
                return Answered(self._reader.passing_document(ask, source, shelf), told)
        if told is not None and told.how == "hit":
            return Answered(self._reader.stored_document(judged, ask, source, known_etags), told)
        return Answered(self._reader.document_again(ask, source, known_etags), told)

    def bring(self, judged: Judged, index: Ask, held: contextlib.ExitStack, *, anew: bool = False) -> Shelf | None:
        """Fetch or compare the upstream's document at a path where it is due. What is not to be stored is on the shelf, until `held` ends.

        `anew`: perhaps its bytes are missing on the disk. Raises NotFound, Quarantined, and UpstreamFailed when there is no copy either.
        """
        if anew:
            self._fetches.give_up(_order(judged, index))
        return self._bring(judged, index, held)[1]

    def _bring(self, judged: Judged, index: Ask, held: contextlib.ExitStack) -> tuple[Told | None, Shelf | None]:
        if judged.snapshot.caching_allowed:
            with contextlib.suppress(NotStorable):
                return self._stored(judged, index).told, None
        absent = absent_at(index.format, index.path, index.repository)
        blob = held.enter_context(contextlib.closing(self._fetches.taken(_order(judged, index), absent)))
        return Told("miss", 0), _Passed(index.path, blob)

    def _fetch(self, judged: Judged, ask: Ask, absent: NotFound, *, whole: bool) -> Found:
        order = _order(judged, ask)
        if ask.bodiless and (head := self._head(judged, order)) is not None:
            return self._coming(ask, head, _Unsent(head.size))
        if self._fetches.is_missing(order, judged.epochs):
            raise absent
        fetch = self._fetches.join(order)
        try:
            head = None if whole else fetch.head()
            if head is not None and (coming := fetch.follow()) is not None:
                return self._coming(ask, head, coming)
            outcome = fetch.end()
        except NotFound as error:
            # A folder of ours, whatever is said of the upstream.
            raise absent if isinstance(absent, IsFolder) else error from None
        if outcome is Outcome.GONE:
            raise absent
        return self._told(self._reader.find_stored(ask), _HOW[outcome])

    def _head(self, judged: Judged, order: Order) -> Head | None:
        """Null when the upstream does not answer such a question well: then it is asked for all of it."""
        try:
            return self._fetches.head_of(order, judged.epochs)
        except (UpstreamBusy, UpstreamTimedOut):
            raise
        except UpstreamFailed as error:
            log.info("HEAD of %s: %s", order.path, error)
            return None

    def _revalidate(self, judged: Judged, ask: Ask, found: Found) -> Found:
        """Only absence and other bytes take the copy away; the next check is not put off by a failure."""
        fetch = self._fetches.join(_order(judged, ask))
        try:
            outcome = fetch.end(PATIENCE_SECONDS)
        except NotFound:
            # The upstream's own index does not name it any more.
            raise
        except (ArkvoryError, NotStorable) as error:
            log.warning("%s/%s is served from its copy: %s", ask.repository, ask.path, error)
            self.revalidations["served_existing"] += 1
            # C8: the upstream may have taken its time, and what was decided before is decided anew.
            return self._told(self._reader.find_stored(ask), "stale")
        if outcome is Outcome.GONE:
            raise absent_at(ask.format, ask.path, ask.repository)
        self.revalidations["updated"] += outcome is Outcome.STORED
        self.revalidations["not_modified"] += outcome is Outcome.SAME
        return self._told(self._reader.find_again(ask, found), _HOW[outcome])

    def _coming(self, ask: Ask, head: Head, coming: Coming) -> Found:
        """The head may have been long in coming: whether the client may read is asked once more, and whether anybody may."""
        try:
            found = Found(self._reader.may_read(ask), _provisional(ask, head), Told("miss", 0), coming)
            self._fetches.require_released(found.snapshot, ask.path)
            check_age(found)
        except BaseException:
            coming.close()
            raise
        return found

    def _pass_through(self, judged: Judged, ask: Ask, *, whole: bool) -> Found:
        if whole:
            raise NotKept("this repository does not store what it fetches, and that cannot be told without storing it", retry_after=60)
        if ask.bodiless and (only := self._head(judged, _order(judged, ask))) is not None:
            return self._coming(ask, only, _Unsent(only.size))
        passing = self._fetches.pass_through(_order(judged, ask))
        if passing is None:
            raise absent_at(ask.format, ask.path, ask.repository)
        head, coming = passing
        return self._coming(ask, head, coming)

    def _told(self, found: Found, how: str) -> Found:
        known = found.gate.freshness
        return replace(found, told=Told(how, 0 if known is None else known.age))


@dataclass(frozen=True)
class _Unsent:
    """Of bytes that nobody wants to have: how many they are."""

    size: int | None

    def pieces(self, start: int, stop: int | None) -> Iterator[bytes]:
        raise UpstreamFailed("only the head of this was asked for")

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True)
class _Passed:
    """A shelf with the one document that was just taken, for as long as it is open."""

    path: str
    blob: Brought

    def find(self, connection: Connection, snapshot: Snapshot, path: str) -> Callable[[], Brought]:
        if path != self.path:
            raise absent_at(snapshot.format, path, snapshot.name)
        return lambda: Brought(os.dup(self.blob.fd), self.blob.size, self.blob.address)


def _order(judged: Judged, ask: Ask) -> Order:
    return Order.of(judged.snapshot, ask.path, ask.spelling)


def _provisional(ask: Ask, head: Head) -> Gate:
    """What can be said of bytes that are coming: no date yet, and of digests those that they must have."""
    now = datetime.now(UTC)
    return Gate(ask.path, 0, "", head.size or 0, head.checksums, head.content_type, head.metadata, now, now)
