"""Long downloads from real servers over shared storage: pinned while another one cleans up, stopped when their pin session is lost (W3).

The file system here is a local one, with pins forced on; so the open descriptor keeps the bytes too, and what is looked at is the name.
On a real one: ARKVORY_TEST_NFS=/mnt/a:/mnt/b, two folders where the same empty export is mounted, one for each server. They tell by
themselves then that pins are needed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest

from app.database import embedded
from tests.conftest import NewDatabase, drop
from tests.faults.test_servers import Observer, until
from tests.support.server import Cluster, Server

MIB = 1024 * 1024
# More than the kernel takes in for a client that does not read.
LARGE = 48 * MIB
MOUNTS = [Path(each) for each in os.environ.get("ARKVORY_TEST_NFS", "").split(":") if each]
PINNING = {
    "ARKVORY_PINS": "on",
    "ARKVORY_PIN_SECONDS": "1",
    "ARKVORY_CLEANUP_SECONDS": "0.5",
    "ARKVORY_BLOB_GRACE_SECONDS": "0.5",
    "ARKVORY_UPLOAD_LEASE_SECONDS": "6",
    "ARKVORY_DISK_RESERVE_BYTES": "0",
    # A client that reads nothing for so long is cut off.
    "ARKVORY_IDLE_SECONDS": "600",
}


@pytest.fixture(scope="module")
def pair(
    postgres: embedded.EmbeddedPostgres, new_database: NewDatabase, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Two servers with a process each, and a repository `files`."""
    url = new_database(template)
    folder = tmp_path_factory.mktemp("pins")
    cluster = Cluster(folder, url, masters=0 if MOUNTS else 2, workers=1, **PINNING)
    for mount in MOUNTS:
        data = folder / f"data-of-{mount.name}"
        data.mkdir()
        (data / "blobs").symlink_to(mount)
        cluster.add(ARKVORY_DATA_DIR=str(data), ARKVORY_PINS="auto")
    try:
        cluster.start()[0].repository("files", public=True)
        yield cluster
    finally:
        cluster.close()
        drop(postgres, url)


class Slow:
    """A client that reads the head of its answer, and the body when it is told to."""

    def __init__(self, server: Server, path: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", server.port), timeout=30)
        self._socket.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        head = b""
        while b"\r\n\r\n" not in head:
            head += self._socket.recv(1024)
        assert head.startswith(b"HTTP/1.1 200 "), head
        self._body = bytearray(head.partition(b"\r\n\r\n")[2])

    def rest(self) -> bytes:
        """To the end of the connection, whatever that is."""
        with contextlib.closing(self._socket), contextlib.suppress(ConnectionResetError):
            while piece := self._socket.recv(MIB):
                self._body += piece
        return bytes(self._body)


class Street:
    """The two servers over their database and folder."""

    def __init__(self, pair: Cluster) -> None:
        self.here, self.there = pair
        self.observer = Observer(self.here)

    def publish(self, server: Server, path: str, body: bytes) -> Path:
        """And the file that it is in."""
        assert server.put(f"/raw/files/{path}", body).status_code in (201, 204)
        row = self.observer.rows(
            "select b.id, digest from arkvory_artifacts a join arkvory_blobs b on b.id = a.blob_id where path = :path", path=path
        )[0]
        found: Path = next(self.observer.folder.glob(f"blobs/sha256/*/*/{row.digest}-{row.id}"))
        return found

    def is_pinned(self, file: Path) -> bool:
        return bool(self.observer.rows("select 1 from arkvory_pins where blob_id = :id", id=int(file.name.rpartition("-")[2])))

    def age(self) -> None:
        """An hour passes for what nobody refers to."""
        self.observer.rows(
            "update arkvory_blobs set candidate_at = candidate_at - interval '1 h', last_used_at = last_used_at - interval '1 h' "
            "where candidate_at is not null"
        )

    def is_there(self, file: Path) -> bool:
        """By opening, so that a server of files is asked."""
        try:
            file.open("rb").close()
        except FileNotFoundError:
            return False
        return True

    def clean(self) -> None:
        """A whole cleanup comes and goes, by whichever server."""
        marker = self.publish(self.there, "marker", os.urandom(8))
        self.publish(self.there, "marker", os.urandom(8))
        self.age()
        until(lambda: not self.is_there(marker))


@pytest.fixture
def street(pair: Cluster) -> Street:
    return Street(pair)


def test_w3_a_download_of_hours_keeps_its_file_from_the_cleanup_of_another_server(street: Street) -> None:
    body = os.urandom(LARGE)
    file = street.publish(street.here, "big", body)
    slow = Slow(street.here, "/raw/files/big")
    until(lambda: street.is_pinned(file))
    street.publish(street.there, "big", b"newer")
    for _ in range(2):
        street.clean()
        assert street.is_there(file)
    assert "arkvory_pins 1.0" in street.here.get("/metrics").text
    assert slow.rest() == body
    until(lambda: not street.is_pinned(file))
    street.clean()
    until(lambda: not street.is_there(file))


def test_w3_a_lost_pin_session_stops_its_answers_instead_of_sending_doubtful_bytes(street: Street) -> None:
    """The client sees that it is not whole; what it got is right as far as it goes."""
    body = os.urandom(LARGE)
    file = street.publish(street.here, "big", body)
    slow = Slow(street.here, "/raw/files/big")
    until(lambda: street.is_pinned(file))
    street.publish(street.there, "big", b"newer")
    street.observer.rows(
        "select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and classid = 18474 and granted "
        "and database = (select oid from pg_database where datname = current_database())"
    )
    until(lambda: "its pin session is lost" in street.here.log())
    got = slow.rest()
    assert len(got) < len(body)
    assert got == body[: len(got)]
    until(lambda: "a long download was stopped" in street.here.log())
    assert "Traceback" not in street.here.log()
    assert "arkvory_pins_lost_total 1.0" in street.here.get("/metrics").text
    street.clean()
    until(lambda: not street.is_there(file))


def test_s1_a_process_that_stood_still_writes_nothing_of_what_was_given_up_and_sends_what_is_pinned(street: Street) -> None:
    """By SIGSTOP, in the middle of an upload and of a download. Its session lives on in the kernel, so its pins do."""
    body = os.urandom(LARGE)
    file = street.publish(street.there, "big", body)
    slow = Slow(street.there, "/raw/files/big")
    until(lambda: street.is_pinned(file))
    go_on = gevent.event.Event()

    def slowly() -> Iterator[bytes]:
        yield b"first half, "
        go_on.wait(240)
        yield b"second half"

    late = gevent.spawn(street.there.put, "/raw/files/late", slowly())
    until(lambda: any(street.observer.temporary()))
    os.killpg(street.there.pid, signal.SIGSTOP)
    try:
        until(lambda: not any(street.observer.temporary()))
        street.publish(street.here, "late", b"of another one")
        street.publish(street.here, "big", b"newer")
        street.age()
        gevent.sleep(3)
        assert street.is_there(file)
    finally:
        os.killpg(street.there.pid, signal.SIGCONT)
    go_on.set()
    assert late.get(timeout=60).status_code == 503
    assert street.here.get("/raw/files/late").content == b"of another one"
    assert slow.rest() == body
    until(lambda: not street.is_there(file))
    street.observer.assert_counted()
