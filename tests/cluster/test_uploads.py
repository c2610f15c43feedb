"""Uploads of several processes over one database and one folder (DESIGN 5)."""

from __future__ import annotations

import gevent
import pytest

from app.errors import CapacitySpent, UploadGivenUp
from app.upload import admission
from tests.cluster.conftest import MakeMember
from tests.conftest import MakePause
from tests.support.house import House

MIB = 1024 * 1024


@pytest.mark.parametrize("grace", ["0.001", "3600"], ids=["its blob is gone too", "its blob is still there"])
def test_an_upload_that_another_process_took_for_dead_is_refused_and_leaves_nothing(
    make_member: MakeMember, pause: MakePause, grace: str
) -> None:
    """W1: its process was stopped for longer than the lease, and goes on."""
    stopped, other = (make_member(ARKVORY_BLOB_GRACE_SECONDS=grace) for _ in range(2))
    stopped.repository("files", public=True)
    held = pause(stopped.parts.publisher, "_publish", before=True)
    publishing = gevent.spawn(stopped.publish, "late", b"x" * 1000)
    held.reached()
    other.rows("update arkvory_uploads set lease_until = now() - interval '1 s'")
    other.clean()
    held.go()
    with pytest.raises(UploadGivenUp):
        publishing.get(timeout=10)
    assert other.outcome("late") == "not_found"
    other.clean()
    other.assert_counted()
    other.assert_no_strays()
    stopped.publish("late", b"again")
    assert other.read("late") == b"again"


def test_an_upload_that_was_given_up_does_not_grow(pair: tuple[House, House]) -> None:
    stopped, other = pair
    repository = stopped.repository("files")
    reservation = stopped.parts.admission.open(repository, None, "ann")
    other.rows("update arkvory_uploads set lease_until = now() - interval '1 s'")
    other.clean()
    with pytest.raises(UploadGivenUp):
        stopped.parts.admission.grow(reservation, 5 * MIB)
    other.assert_counted()


def test_the_disk_has_room_for_what_the_other_processes_have_still_to_write(
    make_member: MakeMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = make_member(), make_member()
    repository = first.repository("files")
    for each in (first, second):
        monkeypatch.setattr(each.parts.store, "free_bytes", lambda: 10 * MIB)
    monkeypatch.setattr(admission, "LOOK_SECONDS", 0.0)
    reservation = first.parts.admission.open(repository, 6 * MIB, "ann")
    with pytest.raises(CapacitySpent, match="on the server's disk"):
        second.parts.admission.open(repository, 6 * MIB, "bob")
    incoming = first.parts.store.create(reservation.id)
    incoming.write(b"\0" * 5 * MIB)
    second.parts.admission.open(repository, 6 * MIB, "bob")
    incoming.discard()
