"""The end of an upload in parts (ADR 12): a durable job that whoever is alive takes on, from where it was.

    claim     hold the upload, by a lease
    gather    the file takes a name by which no part finds it
    read      from one end to the other: the digest of the whole, or those of its parts; copied where somebody may still write into it
    publish   as everything else (publishing.py)

What stands in the way for now is tried again; what is wrong ends the upload, and its bytes are given back. Bytes that are not those of
their part any more send the upload back: that part is to come again.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any
from uuid import UUID

import gevent

from app.access.identity import LOCAL, Caller, Identities, Reference, reference_to
from app.database.engines import Database
from app.database.greenlets import to_the_end
from app.database.statements import text
from app.errors import ArkvoryError, CapacitySpent, DigestMismatch, Later, NotFound, Unauthenticated, Unavailable, UploadIncomplete
from app.repository.destination import Target
from app.repository.publishing import Conditions, NewFile, Published, Publisher
from app.storage import Gathered, Incoming, Whole
from app.storage.threads import apart, opened
from app.upload.admission import Reservation
from app.upload.gathering import Passage
from app.upload.multipart import Job, Multiparts
from app.upload.parts import machine
from app.upload.receiving import Received
from config import Settings

log = logging.getLogger(__name__)

AT_ONCE = 2
PAUSE_SECONDS = 10.0
BROKEN_SECONDS = 60.0
_LOCAL = "local"


def reference_of(caller: Caller) -> Mapping[str, Any]:
    """By whose right an upload is to be published when the request that asked for it is gone. Raises Unauthenticated for nobody."""
    identity = caller.identity
    if identity is None:
        raise Unauthenticated("this needs a login")
    reference = Reference(_LOCAL, 0) if identity is LOCAL else reference_to(identity)
    return asdict(reference) | {"address": caller.address}


class _Damaged(Exception):
    """These parts are not what they were when they were taken."""

    def __init__(self, numbers: Sequence[int]) -> None:
        super().__init__()
        self.numbers = numbers


class Completions:
    """Those that this process runs."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        identities: Identities,
        publisher: Publisher,
        multiparts: Multiparts,
        wake: Callable[[], None],
    ) -> None:
        """`wake` makes whoever runs jobs look for some."""
        self._settings = settings
        self._database = database
        self._identities = identities
        self._publisher = publisher
        self._multiparts = multiparts
        self._store = publisher.store
        self._running: dict[UUID, gevent.Greenlet] = {}
        self._machine = machine()
        self._wake = wake

    def begin(self, upload_id: UUID) -> None:
        """Complete it in the background, at once where there is room, else as a job that whoever runs those finds."""
        if len(self._running) >= AT_ONCE:
            self._wake()
        elif upload_id not in self._running:
            running = self._running[upload_id] = gevent.spawn(self._run_quietly, upload_id)
            running.link(lambda _: self._running.pop(upload_id, None))

    def attempt(self, upload_id: UUID) -> str:
        """Complete it, and say what came of it. Raises what is in the way for now."""
        try:
            published = self.run(upload_id)
        except (Later, CapacitySpent):
            raise
        except ArkvoryError as error:
            return error.message
        return "somebody else is at it, or it has ended" if published is None else f"published {published.path!r}"

    def stop(self) -> None:
        """Each ends where it stands; another process, or the next one, goes on with it."""
        gevent.killall(list(self._running.values()), timeout=5)

    def run(self, upload_id: UUID) -> Published | None:
        """Complete it; null when somebody else does, or did. Raises what ended it, sent it back or was in the way."""
        job = self._multiparts.claim(upload_id)
        if job is None:
            return None
        with self._held(job):
            try:
                published = self._publish(job)
            except (Later, CapacitySpent, UploadIncomplete):
                raise
            except ArkvoryError as error:
                self._multiparts.fail(job, error)
                raise
        with contextlib.suppress(ArkvoryError):
            # Else cleanup does it.
            self._multiparts.published(upload_id)
            apart(self._store.remove_temporary, upload_id)
        return published

    def _run_quietly(self, upload_id: UUID) -> None:
        try:
            self.run(upload_id)
        except ArkvoryError as error:
            log.warning("upload %s: %s", upload_id, error)
        except Exception:
            log.exception("upload %s could not be completed", upload_id)

    @contextlib.contextmanager
    def _held(self, job: Job) -> Iterator[None]:
        """Its lease is renewed inside; what cuts the block short leaves the job to be gone on with."""
        open_uploads, upload_id = self._publisher.admission.open_uploads, job.upload.id
        open_uploads[upload_id] = _reservation(job)
        try:
            yield
        except (Later, CapacitySpent) as error:
            self._put_off(job, error, PAUSE_SECONDS)
            raise
        except ArkvoryError:
            raise
        except Exception:
            self._put_off(job, Unavailable("the server failed at it; it is tried again"), BROKEN_SECONDS)
            raise
        except BaseException:
            self._put_off(job, Unavailable("the server was stopped; it goes on with it"), 0.0)
            raise
        finally:
            open_uploads.pop(upload_id, None)

    def _put_off(self, job: Job, error: ArkvoryError, seconds: float) -> None:
        """Where that cannot be written, the lease runs out; where the job is another one's by now, nothing is."""

        def put_off() -> None:
            with contextlib.suppress(ArkvoryError):
                self._multiparts.put_off(job, error, seconds)

        to_the_end(put_off)

    def _publish(self, job: Job) -> Published:
        plan = job.upload.plan
        gathered = apart(self._store.gather, job.upload.id)
        if gathered is None:
            raise NotFound("the bytes of this upload are gone; begin anew")
        conditions = Conditions(plan.if_match, plan.if_none_match)
        with self._publisher.begin(self._target(job), plan.path, conditions, job.size, links=True) as session:
            if session.snapshot.id != plan.repository_id:
                raise NotFound("what is sent to this group goes to another member by now; begin anew")
            try:
                whole, sha256 = self._read(job, gathered)
            except _Damaged as damaged:
                raise self._sent_back(job, gathered, damaged.numbers) from None
            received = Received(_reservation(job), whole, job.size, {"sha256": sha256})
            return session.publish([NewFile(plan.path, received, plan.content_type)], conditions)[0]

    def _target(self, job: Job) -> Target:
        """With the right of whoever asked, as it is now. Raises Unauthenticated or NotFound."""
        asked = dict(job.asked_by)
        address = asked.pop("address")
        identity = LOCAL if asked["kind"] == _LOCAL else self._identities.recall(Reference(**asked))
        with self._database.read() as connection:
            statement = text("select name, format from arkvory_repositories where id = :id and deleted_at is null")
            row = connection.execute(statement, {"id": job.upload.plan.door_id}).first()
        if row is None:
            raise NotFound("the repository was deleted meanwhile")
        return Target(row.format, row.name, Caller(identity, address))

    # -- the bytes

    def _read(self, job: Job, gathered: Gathered) -> tuple[Whole, str]:
        """A file that nobody writes into, with the bytes of the parts, and its SHA-256. Raises _Damaged or DigestMismatch."""
        if not gathered.staged and gathered.size > job.size:
            apart(gathered.cut, job.size)
        if gathered.staged or self._is_safe(job, gathered):
            return gathered, self._checked(job, gathered, None)
        copy = self._copy_for(job)
        try:
            return copy, self._checked(job, gathered, copy)
        except BaseException:
            to_the_end(lambda: apart(copy.discard))
            raise

    def _is_safe(self, job: Job, gathered: Gathered) -> bool:
        """Whether all that ever wrote into it have ended, by what they said or by what this kernel knows."""
        return not job.strays or (job.strays == {self._machine} and apart(gathered.is_sole))

    def _copy_for(self, job: Job) -> Incoming:
        if self._store.free_bytes() - self._settings.disk_reserve_bytes < job.size:
            raise CapacitySpent(f"the disk has no room to copy the {job.size} bytes of this upload, into which another process may write")
        log.warning("upload %s is copied: a request that sent a part of it never ended", job.upload.id)
        return opened(self._store.create, job.upload.id, job.holder, close=lambda copy: copy.discard())

    def _checked(self, job: Job, gathered: Gathered, copy: Incoming | None) -> str:
        """The digest of the whole announces those of its parts; without it, each is made, in the same reading."""
        wanted = job.upload.plan.sha256
        passage = Passage(gathered.path, job.parts, each=wanted is None, copy=copy)
        passage.run()
        if copy is not None:
            apart(copy.sync)
        if wanted not in (None, passage.sha256):
            # Which of them?
            passage = Passage(gathered.path if copy is None else copy.path, job.parts, each=True)
            passage.run()
        if passage.damaged:
            raise _Damaged(passage.damaged)
        if wanted not in (None, passage.sha256):
            raise DigestMismatch(f"sha256 of the whole is {passage.sha256}, {wanted} was announced; begin anew")
        return passage.sha256

    def _sent_back(self, job: Job, gathered: Gathered, numbers: Sequence[int]) -> ArkvoryError:
        """The error to raise: parts that are to come again. The bytes of one that was staged may be a blob's, and take none."""
        if gathered.staged:
            return DigestMismatch("the bytes of this upload were damaged on the disk; begin anew")
        apart(self._store.scatter, gathered)
        return self._multiparts.reopen(job, numbers)


def _reservation(job: Job) -> Reservation:
    return Reservation(job.upload.id, job.upload.plan.repository_id, job.bytes, exact=True, written=job.bytes, holder=job.holder)
