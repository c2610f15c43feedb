"""Uploads in parts, with the rights that they need: the verbs of the management API (ADR 12).

The right to write is asked at each step, as for a PUT to the same path; what a client may see of uploads are its own, or all for whoever
manages the repository.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from app.access.decision import MANAGE, WRITE, Access, find_repository
from app.access.identity import Caller
from app.cache.snapshots import Snapshot
from app.database.engines import Database
from app.database.greenlets import to_the_end
from app.database.paging import Page
from app.database.statements import text
from app.errors import Forbidden, Invalid, NotFound, TooLarge, Unauthenticated
from app.repository.completing import Completions, reference_of
from app.repository.destination import Target, require_right
from app.repository.formats import FORMATS
from app.repository.names import check_path, guessed_type, is_content_type
from app.repository.publishing import Conditions, Publisher
from app.upload.admission import Reservation
from app.upload.multipart import GRAIN, LARGEST_PART, MOST_PARTS, Multiparts, Part, Plan, Upload, part_size_for, unknown
from app.upload.parts import PartHolds
from app.upload.places import Places
from app.upload.receiving import Expected, Fill, Progress, Receiver
from config import Settings


@dataclass(frozen=True, slots=True)
class Door:
    """The repository that a client names, and who it is."""

    repository: str
    caller: Caller


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a client means to upload; null: it does not say. `key` is its Idempotency-Key."""

    path: str
    size: int | None = None
    sha256: str | None = None
    content_type: str | None = None
    part_size: int | None = None
    conditions: Conditions = field(default_factory=Conditions)
    key: str | None = None


@dataclass(frozen=True, slots=True)
class PartBody:
    """The body of a part: its length where it is told, its announced digests (hexadecimal, by algorithm), and where it comes from."""

    size: int | None
    digests: Mapping[str, str]
    fill: Fill


class MultipartUploads:
    """Create, send, complete, cancel, look."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        access: Access,
        publisher: Publisher,
        places: Places,
        multiparts: Multiparts,
        holds: PartHolds,
        completions: Completions,
    ) -> None:
        self._settings = settings
        self._database = database
        self._access = access
        self._publisher = publisher
        self._places = places
        self._multiparts = multiparts
        self._holds = holds
        self._completions = completions

    # -- verbs

    def create(self, door: Door, wanted: Wanted) -> tuple[Upload, bool]:
        """The upload, and whether it is new. Raises what `may_publish` raises, KeyReused, TooLarge, TooManyUploads, CapacitySpent."""
        addressed = self._addressed(door)
        if not FORMATS[addressed.format].in_parts:
            words = f"uploads in parts are for raw repositories; publish to {door.repository!r} with a client of its format"
            raise Invalid(f"{words} ({addressed.format})", field="repository")
        part_size = self._part_size(wanted)
        content_type = wanted.content_type or guessed_type(wanted.path)
        if not is_content_type(content_type):
            raise Invalid("the content type is not one", field="content_type")
        target = Target(addressed.format, door.repository, door.caller)
        snapshot = self._publisher.may_publish(target, check_path(wanted.path), wanted.conditions, wanted.size)
        demanded = wanted.conditions
        plan = Plan(
            snapshot.id, addressed.id, door.caller.upload_owner, wanted.path, wanted.size, wanted.sha256, content_type, part_size,
            demanded.if_match, demanded.if_none_match,
        )  # fmt: skip
        return self._multiparts.begin(plan, door.caller.upload_key, wanted.key, _digest_of(wanted))

    def send(self, door: Door, upload_id: UUID, number: int, body: PartBody) -> Part:
        """A part of it. The same again is answered before its body is read.

        Raises UploadUnknown, UploadClosed, Invalid, DigestMismatch, TooManyUploads and what `Publisher.begin` raises.
        """
        upload = self._own(door, upload_id)
        upload.require_open()
        size = upload.length_of(number, body.size)
        there = self._multiparts.part(upload.id, number)
        if there is not None and body.digests.get("sha256") == there.sha256:
            return there
        self._require_right(door, upload)
        with self._places.take(door.caller.upload_key), self._holds.hold(upload, number, size) as (attempt, range):
            told = size if upload.plan.size is not None else body.size
            room = Reservation(upload.id, upload.plan.repository_id, size, exact=True)
            expected = Expected(body.digests, told)
            receiver = Receiver(self._publisher.admission, self._publisher.store, room, expected, going_on=(range, Progress()))
            try:
                receiver.drain_into(body.fill)
                if not receiver.size:
                    raise Invalid("a part has at least one byte", field="Content-Length")
                received = receiver.finish()
            except BaseException:
                to_the_end(receiver.discard)
                raise
            return self._holds.finish(upload, attempt, received.size, received.sha256)

    def complete(self, door: Door, upload_id: UUID, sha256: str | None) -> Upload:
        """Publish it, at once where it is small; else it goes on by itself. As it stands then.

        Raises UploadIncomplete, DigestMismatch and what publishing raises.
        """
        upload = self._own(door, upload_id)
        if sha256 is not None and upload.plan.sha256 not in (None, sha256):
            raise Invalid("this is not the digest that the upload was begun with", field="sha256")
        if upload.state == "open":
            self._require_right(door, upload)
            self._multiparts.close(upload, sha256, reference_of(door.caller))
        if upload.state in ("open", "completing"):
            self._go_on(door, upload)
        return self._multiparts.find(upload_id)

    def _go_on(self, door: Door, upload: Upload) -> None:
        known = upload.plan.size if upload.plan.size is not None else upload.received
        if known > self._settings.complete_at_once_bytes:
            self._completions.begin(upload.id)
        else:
            with self._places.take(door.caller.upload_key):
                self._completions.run(upload.id)

    def cancel(self, door: Door, upload_id: UUID) -> None:
        """Its bytes are given back. Raises UploadUnknown, UploadClosed, or Forbidden for who may not write there, nor manages it."""
        upload, addressed = self._visible(door, upload_id), self._addressed(door)
        if not self._manages(door.caller, addressed):
            with self._database.read() as connection:
                require_right(connection, self._access, Target(addressed.format, door.repository, door.caller), WRITE, upload.plan.path)
        self._multiparts.cancel(upload_id)

    # -- looking

    def show(self, door: Door, upload_id: UUID) -> Upload:
        """Raises UploadUnknown."""
        return self._visible(door, upload_id)

    def list(self, door: Door, limit: int, after: str) -> Page[Upload]:
        """Those that the caller may see, by id."""
        addressed = self._addressed(door)
        everybody = self._manages(door.caller, addressed)
        return self._multiparts.of_repository(addressed.id, None if everybody else door.caller.upload_owner, limit, after)

    def parts(self, door: Door, upload_id: UUID, limit: int, after: int) -> Page[Part]:
        """Those that are there. Raises UploadUnknown."""
        return self._multiparts.parts(self._visible(door, upload_id).id, limit, after)

    def repository_names(self, uploads: Sequence[Upload]) -> Mapping[int, str]:
        """Of the repositories that they go to, by id."""
        ids = sorted({each.plan.repository_id for each in uploads})
        with self._database.read() as connection:
            rows = connection.execute(text("select id, name from arkvory_repositories where id = any(:ids)"), {"ids": ids})
            return {row.id: row.name for row in rows}

    # -- whose it is

    def _addressed(self, door: Door) -> Snapshot:
        """Raises NotFound or Unauthenticated."""
        with self._database.read() as connection:
            snapshot = find_repository(connection, door.caller, door.repository)
            self._access.require_known(connection, door.caller, snapshot)
        return snapshot

    def _manages(self, caller: Caller, snapshot: Snapshot) -> bool:
        try:
            with self._database.read() as connection:
                self._access.require_whole(connection, caller, snapshot, MANAGE)
        except (Forbidden, NotFound, Unauthenticated):
            return False
        return True

    def _own(self, door: Door, upload_id: UUID) -> Upload:
        upload = self._of_door(self._addressed(door), upload_id)
        if upload.plan.owner != door.caller.upload_owner:
            raise unknown()
        return upload

    def _visible(self, door: Door, upload_id: UUID) -> Upload:
        addressed = self._addressed(door)
        upload = self._of_door(addressed, upload_id)
        if upload.plan.owner != door.caller.upload_owner and not self._manages(door.caller, addressed):
            raise unknown()
        return upload

    def _of_door(self, addressed: Snapshot, upload_id: UUID) -> Upload:
        upload = self._multiparts.find(upload_id)
        if addressed.id not in (upload.plan.door_id, upload.plan.repository_id):
            raise unknown()
        return upload

    def _require_right(self, door: Door, upload: Upload) -> None:
        """To write there, now. Raises what `Publisher.begin` raises."""
        plan = upload.plan
        target = Target("raw", door.repository, door.caller)
        snapshot = self._publisher.may_publish(target, plan.path, Conditions(plan.if_match, plan.if_none_match), plan.size)
        if snapshot.id != plan.repository_id:
            raise NotFound("what is sent to this group goes to another member by now; begin anew")

    def _part_size(self, wanted: Wanted) -> int:
        least = max(1, self._settings.least_part_bytes)
        chosen = part_size_for(wanted.size, least) if wanted.part_size is None else wanted.part_size
        if not least <= chosen <= LARGEST_PART:
            raise Invalid(f"parts have {least} to {LARGEST_PART} bytes here", field="part_size")
        if chosen % GRAIN and least >= GRAIN:
            raise Invalid(f"the size of parts is a multiple of {GRAIN} bytes", field="part_size")
        if wanted.size is not None and wanted.size > chosen * MOST_PARTS:
            if wanted.part_size is None:
                raise TooLarge(f"an upload has at most {MOST_PARTS} parts of {LARGEST_PART} bytes")
            raise Invalid(f"an upload has at most {MOST_PARTS} parts; this one needs larger ones", field="part_size")
        return chosen


def _digest_of(wanted: Wanted) -> str:
    """What two requests under the same key have in common, or not."""
    demanded = wanted.conditions
    tags = [None if each is None else sorted(each) for each in (demanded.if_match, demanded.if_none_match)]
    asked = [wanted.path, wanted.size, wanted.sha256, wanted.content_type, wanted.part_size, *tags]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()
