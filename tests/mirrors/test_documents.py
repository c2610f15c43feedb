"""What a run has at hand of its upstream: the latest, each fetched once for all that ask at once."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import closing

import gevent
import pytest

from app.repository.mirrors import documents
from app.repository.mirrors.documents import SHORT, Documents
from app.repository.reading import Brought
from tests.support.descriptors import open_files


def brought(body: bytes) -> Brought:
    with tempfile.TemporaryFile() as file:
        file.write(body)
        file.flush()
        return Brought(os.dup(file.fileno()), len(body), "where")


def read(document: Brought) -> bytes:
    with closing(document):
        return os.pread(document.fd, document.size, 0)


@pytest.mark.parametrize("size", [10, SHORT + 1])
def test_the_latest_are_at_hand_and_the_others_are_fetched_anew(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(documents, "MOST_SHORT", 2)
    monkeypatch.setattr(documents, "MOST_LONG", 2)
    asked: list[str] = []

    def fetch(name: str) -> Callable[[], Brought]:
        def fetched() -> Brought:
            asked.append(name)
            gevent.sleep(0)
            return brought(name.encode() * size)

        return fetched

    before = open_files()
    with closing(Documents()) as kept:
        crowd = [gevent.spawn(lambda: read(kept.open("a", fetch("a")))) for _ in range(3)]
        assert [each.get() for each in crowd] == [b"a" * size] * 3
        for name in ("b", "a", "c", "a", "b"):
            assert read(kept.open(name, fetch(name))) == name.encode() * size
        assert asked == ["a", "b", "c", "b"]
        kept.keep_too("b", (other := brought(b"other")))
        assert (read(kept.open("b", fetch("b"))), read(other), asked[4:]) == (b"other", b"other", [])
    assert kept.known("a") is None and not open_files() - before
    # Whoever comes behind the end of the run is served, and nothing is kept.
    assert read(kept.open("a", fetch("a"))) == b"a" * size
    assert not open_files() - before
