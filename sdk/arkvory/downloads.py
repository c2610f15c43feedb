"""Fetching one file: ranges in parallel into `NAME.arkvory.part`, the name only when the whole has the server's digest.

    download(...)     HEAD → what is there already? → pieces by Range and If-Match → SHA-256 → rename
    _Facts            what the server says of the artifact
    _Partial          the bytes that are here, and the state file that says which

A piece that breaks off goes on behind its last byte. An artifact that is replaced meanwhile is fetched anew: never a mix of both.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import requests

from arkvory import paths, state
from arkvory.documents import Downloaded
from arkvory.errors import ArkvoryError, Damaged, LocalFile, NoAnswer, PreconditionFailed, Refused, Replaced
from arkvory.files import sha256_of, sync_folder
from arkvory.progress import Event, OnEvent
from arkvory.retry import Attempts, Stop
from arkvory.transport import PIECE, Asked, Transport, told
from arkvory.working import run_all

if sys.platform != "win32":
    import fcntl

MIB = 1024 * 1024
LEAST_PIECE = 8 * MIB
MOST_PIECES = 1000
# How often an artifact may be replaced, or come damaged, while it is fetched.
_ROUNDS = 4
# Of a length that a file can have, in digits.
_LONGEST_LENGTH = 18
_LENGTH = re.compile(rf"[0-9]{{1,{_LONGEST_LENGTH}}}")
_RANGE = re.compile(rf"bytes ({_LENGTH.pattern})-({_LENGTH.pattern})/({_LENGTH.pattern})")


@dataclass(frozen=True)
class Means:
    """How: who fetches, how many pieces at once, of which size."""

    transport: Transport
    progress: OnEvent
    stop: Stop
    parallel: int
    piece_size: int = LEAST_PIECE


@dataclass(frozen=True)
class _Facts:
    """`size` null where nobody knows yet (a proxy that is fetching it), `etag` empty where there is no strong one: then no ranges."""

    size: int | None
    etag: str
    sha256: str

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> _Facts:
        etag, length = headers.get("ETag", ""), headers.get("Content-Length", "")
        return cls(int(length) if _LENGTH.fullmatch(length) else None, etag if etag.startswith('"') else "", _digest(headers))


class _Changed(Exception):
    """What is there now is another artifact."""


class _NoRanges(Exception):
    """Something on the way sends the whole where a range was asked for."""


def download(means: Means, address: str, name: str, target: Path) -> Downloaded:
    """`address` is the encoded path of the bytes, `name` what progress calls it. An existing file is replaced when the new one is whole.

    Raises ArkvoryError; what was fetched stays beside the target for the next call.
    """
    if target.is_dir():
        raise LocalFile(f"{target} is a folder: a file cannot take its place")
    _make_folder(target.parent)
    with _locked(paths.part_of(target)):
        return _Download(means, address, name, target).run()


class _Download:
    def __init__(self, means: Means, address: str, name: str, target: Path) -> None:
        self._means = means
        self._address = address
        self._name = name
        self._target = target
        self._done = 0
        self._size: int | None = None
        self._lock = threading.Lock()

    def run(self) -> Downloaded:
        damaged: Damaged | None = None
        for _ in range(_ROUNDS):
            facts = self._facts()
            self._tell("started")
            if facts.sha256 and _is_whole(self._target, facts):
                paths.part_of(self._target).unlink(missing_ok=True)
                state.remove(paths.state_of(self._target))
                return self._result(facts, 0, unchanged=True)
            try:
                return self._fetched(facts)
            except _Changed:
                continue
            except Damaged as error:
                if damaged is not None:
                    raise
                damaged = error
        raise Replaced(f"{self._name!r} was replaced again and again while it was fetched: try again when it rests")

    def _facts(self) -> _Facts:
        asked = Asked("HEAD", self._address, headers={"Accept-Encoding": "identity"})
        try:
            answer = self._means.transport.send(asked, self._means.stop)
        except Refused as error:
            raise self._with_words(error) from None
        facts = _Facts.of(answer.headers)
        self._size, self._done = facts.size, 0
        return facts

    def _with_words(self, error: Refused) -> Refused:
        """The answer to HEAD has no body that says why."""
        try:
            self._means.transport.send(Asked("GET", self._address, stream=True, once=True), self._means.stop).close()
        except Refused as told:
            told.attempts = error.attempts
            return told
        except ArkvoryError:
            pass
        return error

    def _fetched(self, facts: _Facts) -> Downloaded:
        partial = _Partial(self._target, facts, self._means.piece_size)
        resumed = partial.resume() if facts.etag else 0
        try:
            if not facts.etag or facts.size is None:
                raise _NoRanges
            self._fetch_pieces(partial, facts)
        except _NoRanges:
            resumed = 0
            facts = self._told_later(self._fetch_whole(partial))
        return self._finished(partial, facts, resumed)

    # By ranges

    def _fetch_pieces(self, partial: _Partial, facts: _Facts) -> None:
        self._done = partial.got
        missing = [number for number in range(len(partial.pieces)) if partial.missing(number)]
        jobs = [self._piece(partial, facts, number) for number in missing]
        try:
            run_all(jobs, self._means.parallel, self._means.stop)
        finally:
            partial.save()

    def _piece(self, partial: _Partial, facts: _Facts, number: int) -> Callable[[Stop], None]:
        """What fetches it, or what is missing of it."""
        attempts = Attempts(self._means.transport.retry)

        def fetch(stop: Stop) -> None:
            with partial.open() as file:
                while missing := partial.missing(number):
                    asked = self._range(facts, *missing)
                    try:
                        for count in self._received(asked, file, missing, facts, stop):
                            self._wrote(partial, number, count, attempts)
                    except NoAnswer as error:
                        self._means.transport.wait(asked, error, attempts, stop)
            partial.save()

        return fetch

    def _wrote(self, partial: _Partial, number: int, count: int, attempts: Attempts) -> None:
        partial.wrote(number, count)
        attempts.progress()
        with self._lock:
            self._done += count
        self._tell("moving")

    def _range(self, facts: _Facts, start: int, stop: int) -> Asked:
        head = {"Range": f"bytes={start}-{stop - 1}", "If-Match": facts.etag}
        return Asked("GET", self._address, headers=head, stream=True)

    def _received(self, asked: Asked, file: IO[bytes], span: tuple[int, int], facts: _Facts, stop: Stop) -> Iterator[int]:
        """Write what comes, and tell how many bytes were written. Raises NoAnswer where it breaks off, _Changed, _NoRanges."""
        try:
            answer = self._means.transport.send(asked, stop)
        except PreconditionFailed as error:
            raise _Changed from error
        except Refused as error:
            if error.status == 416:
                raise _Changed from error
            raise
        with answer:
            _check_range(answer, span, facts)
            file.seek(span[0])
            for piece in self._pieces(answer, span[1] - span[0], stop):
                _write(file, piece)
                yield len(piece)

    def _pieces(self, answer: requests.Response, length: int | None, stop: Stop) -> Iterator[bytes]:
        """Of a body of this length, null where nobody told it. Raises NoAnswer when it ends before, Damaged when it does not end there."""
        left = length
        with told(self._means.transport.address.url):
            for piece in answer.iter_content(PIECE):
                stop.check()
                if left is not None and len(piece) > left:
                    raise Damaged(f"{self._name!r} came damaged: the server sends more than the {length} bytes that it announced")
                yield piece
                left = None if left is None else left - len(piece)
        if left:
            raise NoAnswer(f"{self._means.transport.address.url} broke off: {left} bytes are missing")

    # As a whole

    def _fetch_whole(self, partial: _Partial) -> _Facts:
        """From the first byte, each time that it breaks off. Returns what the answer said of it."""
        attempts = Attempts(self._means.transport.retry)
        asked = Asked("GET", self._address, stream=True)
        while True:
            self._done = 0
            partial.begin_anew()
            try:
                return self._receive_whole(asked, partial)
            except NoAnswer as error:
                self._means.transport.wait(asked, error, attempts, self._means.stop)

    def _receive_whole(self, asked: Asked, partial: _Partial) -> _Facts:
        with self._means.transport.send(asked, self._means.stop) as answer, partial.open() as file:
            if answer.status_code != 200:
                raise Damaged(f"{self._name!r} came damaged: the server sends a part of it where the whole was asked for")
            facts = _Facts.of(answer.headers)
            self._size = facts.size
            for piece in self._pieces(answer, _decoded_length(answer, facts), self._means.stop):
                _write(file, piece)
                self._done += len(piece)
                self._tell("moving")
            return _Facts(self._done, facts.etag, facts.sha256)

    def _told_later(self, facts: _Facts) -> _Facts:
        """With the digest that a proxy knows once it has fetched the file itself; what does not fit was replaced, or is damaged."""
        if facts.sha256:
            return facts
        later = self._facts()
        return _Facts(facts.size, later.etag, later.sha256) if later.sha256 else facts

    # When all of it is here

    def _finished(self, partial: _Partial, facts: _Facts, resumed: int) -> Downloaded:
        self._tell("checking")
        with told_of_files(partial.file):
            if partial.file.stat().st_size != facts.size:
                partial.forget()
                raise Damaged(f"{self._name!r} has {facts.size} bytes, and {partial.file.stat().st_size} came")
            digest = sha256_of(partial.file, self._means.stop)
            if facts.sha256 and digest != facts.sha256:
                partial.forget()
                raise Damaged(f"{self._name!r} came damaged: its SHA-256 is {digest}, the server's {facts.sha256}")
            partial.become(self._target)
        return self._result(_Facts(facts.size, facts.etag, digest), resumed, verified=bool(facts.sha256))

    def _result(self, facts: _Facts, resumed: int, *, unchanged: bool = False, verified: bool = True) -> Downloaded:
        self._done = self._size = facts.size or 0
        self._tell("done", "was there already" if unchanged else "", resumed)
        return Downloaded(self._name, str(self._target), facts.size or 0, facts.sha256, resumed, unchanged, verified)

    def _tell(self, what: Any, words: str = "", resumed: int = 0) -> None:
        self._means.progress(Event("download", self._name, what, self._done, self._size, words, resumed))


class _Partial:
    """`pieces` are as long as each other but for the last; `_got` says how many bytes of each are here, from its beginning."""

    def __init__(self, target: Path, facts: _Facts, piece_size: int) -> None:
        self.file = paths.part_of(target)
        self._state = paths.state_of(target)
        self._facts = facts
        size = facts.size or 0
        self._length = max(piece_size, -(-size // MOST_PIECES))
        self.pieces = [(start, min(start + self._length, size)) for start in range(0, size, self._length)]
        self._got = [0] * len(self.pieces)
        self._lock = threading.Lock()

    @property
    def got(self) -> int:
        """Bytes."""
        return sum(self._got)

    def resume(self) -> int:
        """Bytes that are here of the same artifact; else the file begins anew."""
        known = state.read(self._state)
        with told_of_files(self.file):
            same = [known.get(name) for name in ("etag", "size", "piece")] == [self._facts.etag, self._facts.size, self._length]
            got: Any = known.get("got")
            if same and self._fits(got) and self.file.stat().st_size == self._facts.size:
                self._got = list(got)
            else:
                self.begin_anew()
                os.truncate(self.file, self._facts.size or 0)
                self.save()
        return self.got

    def _fits(self, got: Any) -> bool:
        """Whether it can be true of these pieces."""
        if not isinstance(got, list) or len(got) != len(self.pieces):
            return False
        return all(isinstance(each, int) and 0 <= each <= stop - start for each, (start, stop) in zip(got, self.pieces, strict=True))

    def begin_anew(self) -> None:
        self._got = [0] * len(self.pieces)
        state.remove(self._state)
        with told_of_files(self.file):
            os.truncate(self.file, 0)

    def missing(self, number: int) -> tuple[int, int] | None:
        """Where the rest of a piece begins and ends; null when it is whole."""
        start, stop = self.pieces[number]
        at = start + self._got[number]
        return None if at >= stop else (at, stop)

    @contextlib.contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        with told_of_files(self.file), self.file.open("r+b", buffering=0) as file:
            yield file

    def wrote(self, number: int, count: int) -> None:
        self._got[number] += count

    def save(self) -> None:
        """Only what is written already: a state that knows less than the file is harmless."""
        with self._lock, contextlib.suppress(OSError):
            facts = {"etag": self._facts.etag, "size": self._facts.size, "piece": self._length}
            state.write(self._state, facts | {"got": list(self._got)})

    def forget(self) -> None:
        state.remove(self._state)

    def become(self, target: Path) -> None:
        """The name, once the bytes are safe."""
        with self.file.open("r+b") as file:
            os.fsync(file.fileno())
        self.file.replace(target)
        state.remove(self._state)
        sync_folder(target.parent)


@contextlib.contextmanager
def told_of_files(file: Path) -> Iterator[None]:
    """Raises LocalFile for what this machine's files refuse."""
    try:
        yield
    except (requests.exceptions.RequestException, ArkvoryError):
        raise
    except OSError as error:
        raise LocalFile(f"{error.filename or file} cannot be written: {error.strerror}") from error


@contextlib.contextmanager
def _locked(part: Path) -> Iterator[None]:
    """One download at a time to each file. Raises LocalFile."""
    with told_of_files(part):
        descriptor = _take(part)
    try:
        yield
    finally:
        _drop_if_empty(part)
        if descriptor is not None:
            os.close(descriptor)


def _drop_if_empty(part: Path) -> None:
    """While the lock is held: nothing came."""
    with contextlib.suppress(OSError):
        if part.stat().st_size == 0:
            part.unlink()


def _take(part: Path) -> int | None:
    """The lock is that of the file which has the name now: another download may have given it away meanwhile."""
    if sys.platform == "win32":
        # No file that is open can be renamed there: two downloads to one file are the caller's to avoid.
        part.touch()
        return None
    while True:
        # Not through a link that somebody else has put there.
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if part.exists() and os.path.samestat(os.fstat(descriptor), part.stat()):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise LocalFile(f"another download writes {part}: wait for it, or take another folder") from None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _make_folder(folder: Path) -> None:
    with told_of_files(folder):
        folder.mkdir(parents=True, exist_ok=True)


def _is_whole(target: Path, facts: _Facts) -> bool:
    return target.is_file() and target.stat().st_size == facts.size and sha256_of(target) == facts.sha256


def _check_range(answer: requests.Response, span: tuple[int, int], facts: _Facts) -> None:
    """That these are the bytes asked for, of the artifact that was asked for."""
    if answer.status_code != 206 or answer.headers.get("Content-Encoding", "identity") != "identity":
        raise _NoRanges
    told = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    if answer.headers.get("ETag") != facts.etag or told is None or int(told[3]) != facts.size:
        raise _Changed
    if (int(told[1]), int(told[2]) + 1) != span:
        raise _NoRanges


def _decoded_length(answer: requests.Response, facts: _Facts) -> int | None:
    """Null where a length is told of something else, or of nothing."""
    return facts.size if answer.headers.get("Content-Encoding", "identity") == "identity" else None


def _write(file: IO[bytes], piece: bytes) -> None:
    """All of it: an unbuffered file may take less."""
    view = memoryview(piece)
    while view:
        view = view[file.write(view) :]


def _digest(headers: Mapping[str, str]) -> str:
    """The SHA-256 that the answer's head tells, in hex; empty without one."""
    plain = headers.get("X-Checksum-Sha256", "").strip().lower()
    if re.fullmatch("[0-9a-f]{64}", plain):
        return plain
    told = re.search(r"(?:^|,)\s*sha-256=:([A-Za-z0-9+/=]+):", headers.get("Repr-Digest", ""))
    try:
        return base64.b64decode(told[1], validate=True).hex() if told else ""
    except binascii.Error:
        return ""
