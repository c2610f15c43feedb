"""Uploads in parts without HTTP: what a client does, in the words of tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

from app.access.identity import Caller
from app.errors import BodyCutShort
from app.repository.multipart import Door, MultipartUploads, PartBody, Wanted
from app.upload.multipart import Part, Upload
from app.upload.receiving import Fill
from tests.support.house import ADMIN, House, eventually, sha256

# Parts of a few bytes.
SMALL_PARTS = {"ARKVORY_LEAST_PART_BYTES": "4", "ARKVORY_BLOB_GRACE_SECONDS": "3600"}


def filler(body: bytes, *, cut: bool = False) -> Fill:
    """What fills buffers from this body; `cut`: the client goes away at its end."""
    rest = [body]

    def fill(buffer: bytearray) -> int:
        count = min(len(buffer), len(rest[0]))
        if not count and cut:
            raise BodyCutShort("gone")
        buffer[:count], rest[0] = rest[0][:count], rest[0][count:]
        return count

    return fill


def never(_: bytearray) -> int:
    raise AssertionError("the body was read")


class Client:
    """One client of one process."""

    def __init__(self, house: House, repository: str = "files", caller: Caller = ADMIN) -> None:
        self.house = house
        self.door = Door(repository, caller)

    @property
    def uploads(self) -> MultipartUploads:
        return self.house.parts.uploads

    def create(self, path: str = "big.bin", **wanted: Any) -> Upload:
        return self.uploads.create(self.door, Wanted(path, **wanted))[0]

    def send(
        self, upload: Upload | UUID, number: int, body: bytes, *, told: bool = True, digest: str | None = "", fill: Fill | None = None
    ) -> Part:
        """`told`: the length; `digest`: null for none, empty for the right one."""
        digests = {} if digest is None else {"sha256": digest or sha256(body)}
        given = PartBody(len(body) if told else None, digests, fill or filler(body))
        return self.uploads.send(self.door, _id(upload), number, given)

    def send_all(self, upload: Upload, body: bytes, numbers: Sequence[int] | None = None) -> None:
        """In this order, or from the first to the last."""
        for number, part in cut(body, upload.plan.part_size):
            if numbers is None or number in numbers:
                self.send(upload, number, part)

    def complete(self, upload: Upload | UUID, digest: str | None = None) -> Upload:
        return self.uploads.complete(self.door, _id(upload), digest)

    def show(self, upload: Upload | UUID) -> Upload:
        return self.uploads.show(self.door, _id(upload))

    def numbers(self, upload: Upload | UUID) -> list[int]:
        """Of the parts that are there."""
        return [each.number for each in self.uploads.parts(self.door, _id(upload), 10_000, 0).items]

    def cancel(self, upload: Upload | UUID) -> None:
        self.uploads.cancel(self.door, _id(upload))

    def ends(self, upload: Upload | UUID, state: str = "published") -> Upload:
        """Wait until it is in this state."""
        eventually(lambda: self.show(upload).state == state)
        return self.show(upload)


def empty(house: House) -> None:
    """No repository, no user, no upload and no file any more."""
    eventually(lambda: not house.parts.admission.open_uploads)
    house.rows("truncate arkvory_repositories, arkvory_users, arkvory_blobs, arkvory_uploads, arkvory_multiparts cascade")
    for path in (*house.files(), *house.temporary()):
        path.unlink()


def cut(body: bytes, size: int) -> Iterator[tuple[int, bytes]]:
    """The parts of a body, with their numbers."""
    for number, start in enumerate(range(0, len(body), size), 1):
        yield number, body[start : start + size]


def _id(upload: Upload | UUID) -> UUID:
    return upload if isinstance(upload, UUID) else upload.id
