"""A blob store keeps whole files at their digest and row, and says in the house's words what fails."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from uuid import uuid4

import gevent
import pytest

from app.errors import CapacitySpent, Unavailable
from app.storage.filesystem import FileStore
from tests.support.descriptors import open_files
from tests.support.house import sha256

BODY = b"bytes"
DIGEST = sha256(BODY)


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "blobs")


def incoming(store: FileStore, body: bytes = BODY):  # type: ignore[no-untyped-def]  # what a store gives is its own
    made = store.create(uuid4())
    made.write(body)
    made.sync()
    return made


def test_what_was_placed_is_read_back_and_its_temporary_file_goes(store: FileStore) -> None:
    made = incoming(store)
    store.place(made, DIGEST, 7)
    made.discard()
    blob = store.open(DIGEST, 7)
    assert (os.read(blob.fd, 100), blob.size) == (BODY, len(BODY))
    blob.close()
    blob.close()
    assert list(store.temporary()) == []
    assert store.holds(DIGEST, 7, len(BODY))
    assert not store.holds(DIGEST, 7, len(BODY) + 1)
    assert not store.holds(DIGEST, 8, len(BODY))


def test_w3_it_can_be_placed_again_under_another_row_and_the_former_name_s_removal_does_not_matter(store: FileStore) -> None:
    made = incoming(store)
    store.place(made, DIGEST, 1)
    store.remove(DIGEST, 1)
    store.place(made, DIGEST, 2)
    store.remove(DIGEST, 1)
    made.discard()
    blob = store.open(DIGEST, 2)
    assert os.read(blob.fd, 100) == BODY
    blob.close()


def test_w3_a_staged_file_shows_its_digest_until_it_is_gone(store: FileStore) -> None:
    made = incoming(store)
    assert store.staged() == set()
    store.stage(made, DIGEST)
    store.stage(made, DIGEST)
    assert store.staged() == {DIGEST}
    assert made.path.read_bytes() == BODY
    store.place(made, DIGEST, 1)
    assert store.staged() == {DIGEST}, "its publishing is still to come"
    made.discard()
    assert store.staged() == set()


def test_w3_a_file_whose_source_is_gone_reaches_no_address(store: FileStore) -> None:
    upload = uuid4()
    made = store.create(upload)
    store.stage(made, DIGEST)
    store.remove_temporary(upload)
    with pytest.raises(Unavailable):
        store.place(made, DIGEST, 1)
    assert not store.holds(DIGEST, 1, 0)


@pytest.mark.parametrize("links", [True, False])
def test_w3_what_is_at_the_address_is_replaced_with_and_without_hard_links(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "no links here")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    for body in (b"damaged", BODY):
        made = incoming(store, body)
        store.stage(made, DIGEST)
        store.place(made, DIGEST, 1)
        made.discard()
    assert store.address(DIGEST, 1).read_bytes() == BODY
    assert list(store.temporary()) == []


def test_w2_an_open_blob_stays_readable_after_its_removal_and_its_replacement(store: FileStore) -> None:
    store.place(incoming(store), DIGEST, 1)
    blob = store.open(DIGEST, 1)
    store.place(incoming(store), DIGEST, 1)
    store.remove(DIGEST, 1)
    store.remove(DIGEST, 1)
    assert os.read(blob.fd, 100) == BODY
    blob.close()
    with pytest.raises(FileNotFoundError):
        store.open(DIGEST, 1)


def test_discarding_leaves_nothing_at_any_step(store: FileStore) -> None:
    for steps in range(4):
        made = store.create(uuid4())
        if steps > 0:
            made.write(BODY)
        if steps > 1:
            store.stage(made, DIGEST)
        if steps > 2:
            store.place(made, DIGEST, 1)
        assert len(list(store.temporary())) >= 1
        made.discard()
        made.discard()
        assert list(store.temporary()) == []


def test_whether_somebody_may_write_into_a_file_is_known_to_the_kernel(store: FileStore) -> None:
    """ADR 12; and asking never ends a process, whoever opens the file at that moment."""
    upload = uuid4()
    store.spread(upload)
    window = store.window(upload, 4, 5)
    assert window is not None
    window.write(BODY)
    gathered = store.gather(upload)
    assert gathered is not None and gathered.size == 9
    assert not gathered.is_sole()
    assert store.window(upload, 0, 4) is None, "it is found under that name no more"
    window.close()
    assert gathered.is_sole()
    opening, stop = gevent.get_hub().threadpool, []

    def open_again() -> None:
        while not stop:
            os.close(os.open(gathered.path, os.O_WRONLY))

    opener = opening.spawn(open_again)
    assert {gathered.is_sole() for _ in range(2000)} <= {True, False}
    stop.append(True)
    opener.get()
    store.scatter(gathered)
    assert store.window(upload, 0, 4) is not None


def test_holes_in_a_file_take_no_room(store: FileStore) -> None:
    upload = uuid4()
    store.spread(upload)
    window = store.window(upload, 64 * 1024 * 1024, len(BODY))
    assert window is not None
    window.write(BODY)
    window.sync()
    assert 0 < store.temporary()[upload] < 1024 * 1024


def test_temporary_files_are_found_and_removed_by_their_upload(store: FileStore, tmp_path: Path) -> None:
    upload = uuid4()
    store.stage(store.create(upload), DIGEST)
    for name in ("lost+found", f"{upload}", f"{upload}.{DIGEST}.again"):
        (tmp_path / "blobs" / "incoming" / name).touch()
    assert set(store.temporary()) == {upload}
    store.remove_temporary(upload)
    store.remove_temporary(upload)
    assert set(store.temporary()) == set()


@pytest.mark.parametrize(
    ("number", "error"), [(28, CapacitySpent), (122, CapacitySpent), (5, Unavailable), (30, Unavailable), (13, Unavailable)]
)
def test_what_the_disk_says_becomes_the_house_s_words(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception]
) -> None:
    def fail(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    made = store.create(uuid4())
    monkeypatch.setattr(os, "write", fail)
    monkeypatch.setattr(os, "fsync", fail)
    monkeypatch.setattr(os, "rename", fail)
    monkeypatch.setattr(os, "link", fail)
    for action in (lambda: made.write(BODY), made.sync, lambda: store.stage(made, DIGEST), lambda: store.place(made, DIGEST, 1)):
        with pytest.raises(error):
            action()
    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(error):
        store.create(uuid4())


def test_a_blob_that_cannot_be_opened_is_not_taken_for_one_that_is_not_there(store: FileStore) -> None:
    folder = store.address(DIGEST, 1).parent
    folder.parent.mkdir(parents=True)
    folder.write_text("a file where a folder should be")
    with pytest.raises(Unavailable):
        store.open(DIGEST, 1)


@pytest.mark.parametrize("stale", [1, 2])
def test_a_stale_handle_is_looked_up_again_and_then_taken_for_a_file_that_is_gone(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, stale: int
) -> None:
    """What NFS says of a file that another machine deleted or replaced; the error is made, since it needs two kernels."""
    store.place(incoming(store), DIGEST, 1)
    real, calls = os.open, iter(range(10))

    def open_(name: str, *arguments: int) -> int:
        if next(calls) < stale:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), name)
        return real(name, *arguments)

    monkeypatch.setattr(os, "open", open_)
    if stale == 2:
        with pytest.raises(FileNotFoundError):
            store.open(DIGEST, 1)
        return
    blob = store.open(DIGEST, 1)
    assert os.read(blob.fd, 100) == BODY
    blob.close()


def test_a_blob_whose_size_cannot_be_told_leaves_no_descriptor_open(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.place(incoming(store), DIGEST, 1)
    before = open_files()

    def fail(*_: object) -> os.stat_result:
        raise OSError(errno.ESTALE, "stale")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", fail)
        with pytest.raises(FileNotFoundError):
            store.open(DIGEST, 1)
    assert not open_files() - before
