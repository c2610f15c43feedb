"""Sending one file: a whole PUT while it is small, parts where it is large.

    upload(...)          picks one, or nothing where the same bytes are there
    _Whole               PUT, with the digest in its head
    _Parts               create → parts in parallel → complete; goes on where a killed one stopped

In parts: the key of the upload is on disk before the server hears it, so that a client that dies at any moment finds its upload again.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from arkvory import paths, state
from arkvory.documents import Uploaded
from arkvory.errors import (
    ArkvoryError,
    Conflict,
    DigestMismatch,
    LocalFile,
    NotAllowedHere,
    NotFound,
    PreconditionFailed,
    Refused,
    TimedOut,
    UploadFailed,
    UploadUnknown,
    named,
    seconds_of,
)
from arkvory.files import Digests, Section, Source, hashed
from arkvory.progress import Event, OnEvent
from arkvory.retry import Stop
from arkvory.transport import PIECE, Asked, Transport
from arkvory.working import run_all

MIB = 1024 * 1024
USUAL_PART, LARGEST_PART = 16 * MIB, 1024 * MIB
MOST_PARTS = 1000
# While the server puts an upload together; it may say how long to wait.
_POLL_SECONDS, _LONGEST_POLL = 1.0, 30.0
_LONGEST_COMPLETION = 3600.0
_ROUNDS = 4
# Somebody else with the same file was faster, or parts are missing after all: what the upload is now tells.
_LOOK_AGAIN = frozenset({"upload_closed", "upload_incomplete"})


@dataclass(frozen=True)
class Wish:
    """Where to, and under which conditions: `only_new`: nothing may be there; `replaces`: the ETag or SHA-256 of what may be."""

    repository: str
    path: str
    content_type: str | None = None
    only_new: bool = False
    replaces: str | None = None

    def conditions(self) -> dict[str, str]:
        none = {"If-None-Match": "*"} if self.only_new else {}
        return none | ({} if self.replaces is None else {"If-Match": f'"{self.replaces.strip(chr(34))}"'})


@dataclass(frozen=True)
class Means:
    """How: who sends, how many parts at once, from which size on in parts, where is remembered what is under way."""

    transport: Transport
    progress: OnEvent
    stop: Stop
    parallel: int
    part_size: int | None
    parts_from: int
    remembered: state.Uploads


class Tally:
    """Bytes that went, over all parts, told to whoever looks on."""

    def __init__(self, progress: OnEvent, name: str, size: int | None) -> None:
        self._progress = progress
        self._name = name
        self._size = size
        self._by_part: dict[int, int] = {}
        self.sum = 0
        # Of these, what an earlier call sent.
        self.resumed = 0
        self._lock = threading.Lock()
        self._tell("started")

    def at(self, part: int) -> Callable[[int], None]:
        """Hears how many bytes of this part went."""

        def moved(count: int) -> None:
            with self._lock:
                self.sum += count - self._by_part.get(part, 0)
                self._by_part[part] = count
            self._tell("moving")

        return moved

    def checking(self) -> None:
        self._tell("checking")

    def done(self, words: str = "") -> None:
        self._tell("done", words)

    def _tell(self, what: Any, words: str = "") -> None:
        self._progress(Event("upload", self._name, what, self.sum, self._size, words, self.resumed if what == "done" else 0))


def upload(means: Means, file: Path, wish: Wish, digest: str | None = None) -> Uploaded:
    """`digest`: its SHA-256, where the caller has it. Raises ArkvoryError."""
    source = Source.of(file)
    if source.size >= means.parts_from:
        try:
            return _Parts(means, source, wish).send()
        except _NoParts:
            pass
    return _whole(means, source, wish, digest)


def upload_stream(means: Means, stream: IO[bytes], wish: Wish) -> Uploaded:
    """All that is left of the stream. It is sent again after a failure only where it can be wound back. Raises ArkvoryError."""
    begin = stream.tell() if stream.seekable() else None
    tally = Tally(means.progress, wish.path, None)

    def body() -> Iterator[bytes]:
        if begin is not None:
            stream.seek(begin)
        moved, count = tally.at(0), 0
        while piece := stream.read(PIECE):
            means.stop.check()
            count += len(piece)
            yield piece
            moved(count)

    asked = Asked("PUT", paths.raw(wish.repository, wish.path), headers=_head(wish), body=body, once=begin is None)
    answer = means.transport.send(asked, means.stop)
    digest = answer.headers.get("X-Checksum-Sha256", "")
    tally.done()
    return Uploaded(wish.repository, wish.path, tally.sum, digest)


def _whole(means: Means, source: Source, wish: Wish, digest: str | None) -> Uploaded:
    tally = Tally(means.progress, wish.path, source.size)
    digest = digest or hashed(source, 0, means.stop).whole

    def body() -> Section | bytes:
        return Section(source, 0, source.size, means.stop, tally.at(0)) if source.size else b""

    head = _head(wish) | {"X-Checksum-Sha256": digest}
    try:
        means.transport.send(Asked("PUT", paths.raw(wish.repository, wish.path), headers=head, body=body), means.stop)
    except (PreconditionFailed, Conflict) as error:
        if error.attempts == 1 or not _is_there(means, wish, digest):
            raise
    tally.done()
    return Uploaded(wish.repository, wish.path, source.size, digest)


def _is_there(means: Means, wish: Wish, digest: str) -> bool:
    """Whether an attempt whose answer was lost has stored these bytes after all."""
    try:
        answer = means.transport.send(Asked("HEAD", paths.raw(wish.repository, wish.path)), means.stop)
    except NotFound:
        return False
    return answer.headers.get("X-Checksum-Sha256") == digest


def _head(wish: Wish) -> dict[str, str]:
    return wish.conditions() | ({} if wish.content_type is None else {"Content-Type": wish.content_type})


class _NoParts(Exception):
    """This server, or this repository, takes no uploads in parts."""


class _Gone(Exception):
    """The upload that was under way is not there any more; `why` is what the server said."""

    def __init__(self, why: Refused) -> None:
        self.why = why


@dataclass
class _Memory:
    """What is on disk of an upload. `key` is known to nobody else; `id` is empty until the server has answered."""

    file: Path | None
    key: str = ""
    id: str = ""
    part_size: int = 0
    digests: Digests = field(default_factory=lambda: Digests("", []))

    def read(self) -> None:
        found = {} if self.file is None else state.read(self.file)
        with contextlib.suppress(KeyError, TypeError, ValueError):
            digests = Digests(str(found["sha256"]), [str(each) for each in found["parts"]])
            self.key, self.id, self.part_size, self.digests = str(found["key"]), str(found["id"]), int(found["part_size"]), digests

    def write(self) -> None:
        """Where nothing can be written, the upload goes on and only cannot be taken up again."""
        if self.file is not None:
            with contextlib.suppress(OSError):
                facts = {"key": self.key, "id": self.id, "part_size": self.part_size}
                state.write(self.file, facts | {"sha256": self.digests.whole, "parts": self.digests.parts})

    def forget(self) -> None:
        self.key = self.id = ""
        if self.file is not None:
            state.remove(self.file)


class _Parts:
    def __init__(self, means: Means, source: Source, wish: Wish) -> None:
        self._means = means
        self._source = source
        self._wish = wish
        self._tally = Tally(means.progress, wish.path, source.size)
        # Parts that this call sent.
        self._sent: set[int] = set()
        self._poll = _POLL_SECONDS

    def send(self) -> Uploaded:
        """Raises ArkvoryError, _NoParts. An upload that has expired meanwhile is begun anew, once."""
        memory = _Memory(self._place())
        memory.read()
        try:
            self._run(memory)
        except _Gone:
            memory.forget()
            try:
                self._run(memory)
            except _Gone as gone:
                raise gone.why from None
        memory.forget()
        self._tally.done()
        return Uploaded(self._wish.repository, self._wish.path, self._source.size, memory.digests.whole, len(self._sent))

    def _place(self) -> Path | None:
        """Where it is remembered, by all that has a part in it; null where nothing can be."""
        wish, source = self._wish, self._source
        with contextlib.suppress(OSError):
            return self._means.remembered.file(
                self._means.transport.address.url, wish.repository, wish.path, wish.content_type, wish.only_new, wish.replaces,
                source.file.absolute(), source.size, source.mtime_ns,
            )  # fmt: skip
        return None

    def _run(self, memory: _Memory) -> None:
        upload = self._known(memory) or self._created(memory)
        try:
            for _ in range(_ROUNDS):
                upload = self._settled(self._advanced(upload, memory))
                if upload["state"] != "open":
                    return self._judge(upload, memory)
        except UploadUnknown as error:
            raise _Gone(error) from error
        raise UploadFailed(f"the server finds parts of {self._wish.path!r} damaged again and again: {_reason(upload)}")

    def _advanced(self, upload: dict[str, Any], memory: _Memory) -> dict[str, Any]:
        """What it has become once all parts were sent and it was to be published."""
        if upload["state"] != "open":
            return upload
        id = str(upload["id"])
        try:
            self._send_missing(upload, memory.digests)
            self._tally.checking()
            self._complete(id, memory)
        except (Conflict, PreconditionFailed, LocalFile) as error:
            if error.code not in _LOOK_AGAIN:
                self._cancel(id, memory)
                raise
        return self._get(id)

    def _cancel(self, id: str, memory: _Memory) -> None:
        """What was sent is of no use to anybody: its room is given back."""
        memory.forget()
        with contextlib.suppress(ArkvoryError):
            self._means.transport.send(Asked("DELETE", self._address(id), once=True))

    def _complete(self, id: str, memory: _Memory) -> None:
        key = {"Idempotency-Key": f"{memory.key}-complete"}
        try:
            answer = self._means.transport.send(Asked("POST", self._address(id, "complete"), headers=key), self._means.stop)
        except DigestMismatch:
            memory.forget()
            raise
        self._poll = min(seconds_of(answer.headers.get("Retry-After"), answer.headers.get("Date")) or _POLL_SECONDS, _LONGEST_POLL)

    def _settled(self, upload: dict[str, Any]) -> dict[str, Any]:
        """What it is when the server has put it together. Raises TimedOut where that takes too long."""
        end = time.monotonic() + _LONGEST_COMPLETION
        while upload["state"] == "completing":
            if time.monotonic() > end:
                raise TimedOut("the server is still putting the upload together: the same call again goes on waiting for it")
            self._tally.checking()
            self._means.stop.sleep(self._poll)
            upload = self._get(str(upload["id"]))
        return upload

    def _judge(self, upload: dict[str, Any], memory: _Memory) -> None:
        """Raises UploadFailed where it is not published as what was sent."""
        digest = memory.digests.whole
        artifact = upload.get("artifact") or {}
        if upload["state"] == "published" and artifact.get("sha256", digest) == digest:
            return
        memory.forget()
        raise _failure(upload) or UploadFailed(f"the server could not publish {self._wish.path!r}: {_reason(upload)}; try again")

    def _known(self, memory: _Memory) -> dict[str, Any] | None:
        """The upload that an earlier client began; null where there is none to go on with."""
        if not memory.id:
            return None
        try:
            upload = self._get(memory.id)
        except NotFound:
            upload = {}
        fits = upload.get("sha256") in (None, memory.digests.whole) and upload.get("part_size") == memory.part_size
        if fits and (upload.get("state") in ("open", "completing") or self._is_published(upload, memory)):
            return upload
        memory.forget()
        return None

    def _is_published(self, upload: dict[str, Any], memory: _Memory) -> bool:
        """Whether what was published then is what is there now."""
        return upload.get("state") == "published" and _is_there(self._means, self._wish, memory.digests.whole)

    def _created(self, memory: _Memory) -> dict[str, Any]:
        """A new one; where the key is remembered, the one that was made under it."""
        if not memory.key:
            memory.key, memory.part_size = uuid.uuid4().hex, self._part_size()
            memory.digests = hashed(self._source, memory.part_size, self._means.stop)
            memory.write()
        upload = self._create(memory)
        if upload["part_size"] != memory.part_size:
            memory.part_size = int(upload["part_size"])
            memory.digests = hashed(self._source, memory.part_size, self._means.stop)
        memory.id = str(upload["id"])
        memory.write()
        return upload

    def _create(self, memory: _Memory) -> dict[str, Any]:
        wish = self._wish
        body = {"path": wish.path, "size": self._source.size, "sha256": memory.digests.whole, "part_size": memory.part_size}
        body |= {} if wish.content_type is None else {"content_type": wish.content_type}
        head = wish.conditions() | {"Idempotency-Key": memory.key}
        asked = Asked("POST", paths.api("repositories", wish.repository, "uploads"), headers=head, document=body)
        try:
            return self._document(asked, "id", "state", "part_size")
        except Refused as error:
            memory.forget()
            if error.code == "idempotency_key_reused":
                raise _Gone(error) from error
            if isinstance(error, NotFound | NotAllowedHere) or error.problem.get("field") == "repository":
                # A plain PUT may do, and says why where it does not.
                raise _NoParts from error
            raise

    def _part_size(self) -> int:
        if self._means.part_size is not None:
            return self._means.part_size
        for_all = -(-self._source.size // (MOST_PARTS * MIB)) * MIB
        return min(max(USUAL_PART, for_all), LARGEST_PART)

    def _send_missing(self, upload: dict[str, Any], digests: Digests) -> None:
        size, id = int(upload["part_size"]), str(upload["id"])
        there = self._parts_there(id)
        self._tally.resumed = 0
        for number, digest in enumerate(digests.parts, 1):
            if there.get(number) == digest:
                length = min(size, self._source.size - (number - 1) * size)
                self._tally.at(number)(length)
                self._tally.resumed += 0 if number in self._sent else length
        missing = [number for number, digest in enumerate(digests.parts, 1) if there.get(number) != digest]
        self._sent.update(missing)
        jobs = [self._part(id, number, size, digests.parts[number - 1]) for number in missing]
        run_all(jobs, self._means.parallel, self._means.stop)
        self._source.check()

    def _parts_there(self, id: str) -> dict[int, str]:
        """Digests of those that arrived, by number."""
        parts = self._means.transport.items(self._address(id, "parts"), {}, 1000, "number", "sha256", stop=self._means.stop)
        return {int(each["number"]): str(each["sha256"]) for each in parts}

    def _part(self, id: str, number: int, size: int, digest: str) -> Callable[[Stop], None]:
        """What sends it."""
        start = (number - 1) * size
        end = min(start + size, self._source.size)
        head = {"X-Checksum-Sha256": digest, "Content-Type": "application/octet-stream"}

        def send(stop: Stop) -> None:
            def body() -> Section:
                return Section(self._source, start, end, stop, self._tally.at(number))

            self._means.transport.send(Asked("PUT", self._address(id, "parts", str(number)), headers=head, body=body), stop)

        return send

    def _get(self, id: str) -> dict[str, Any]:
        return self._document(Asked("GET", self._address(id)), "id", "state", "part_size")

    def _address(self, id: str, *below: str) -> str:
        return paths.api("repositories", self._wish.repository, "uploads", id, *below)

    def _document(self, asked: Asked, *fields: str) -> dict[str, Any]:
        """An object that has these fields."""
        return self._means.transport.object(asked, *fields, stop=self._means.stop)


def _failure(upload: dict[str, Any]) -> Refused | None:
    """What the server found when it had answered already, as the error that it would have been; null where that has no name."""
    error = upload.get("error")
    return named(str(error.get("code")), str(error.get("detail"))) if isinstance(error, dict) else None


def _reason(upload: dict[str, Any]) -> str:
    error = upload.get("error")
    found = error.get("detail") if isinstance(error, dict) else error
    return str(found or f"its state is {upload['state']!r}")
