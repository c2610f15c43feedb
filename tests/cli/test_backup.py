"""`arkvory db dump` and `db restore`: the database as one file (DESIGN 3 and 5: what a restore makes void)."""

from __future__ import annotations

import itertools
import shutil
import stat
from pathlib import Path

import pytest

from app.database import backup, migrate
from app.errors import Unavailable
from tests.cli.test_arkvory import arkvory
from tests.conftest import MakeServer
from tests.faults.test_servers import Observer
from tests.support.server import Server
from tests.support.upstreams import FakeUpstream
from tests.support.wares import WARES

STEP = 2**32
EPOCHS = "select metadata_epoch, authorization_epoch, content_epoch, members_epoch from arkvory_repositories where name = 'files'"

COUNTERS = "select * from arkvory_upload_bytes where bytes <> 0 order by 1, 2"


def wares(server: Server, upstream: FakeUpstream) -> None:
    """Of each format something in a hosted repository, in a proxy and in a group of both."""
    for ware in WARES:
        own, there = f"{ware.format}-own", f"{ware.format}-there"
        server.repository(own, ware.format), server.repository(there, ware.format, kind="proxy", upstream_url=upstream.url)
        server.repository(f"{ware.format}-all", ware.format, kind="group", members=[own, there])
        ware.publish(server, own), ware.put(upstream)
    taken(server)


def taken(server: Server) -> dict[str, bytes]:
    found = {}
    for ware, kind in itertools.product(WARES, ("own", "there", "all")):
        answer = server.get(ware.file.format(f"{ware.format}-{kind}"))
        assert answer.status_code == 200 and server.get(ware.index.format(f"{ware.format}-{kind}")).status_code == 200, answer.text
        found[f"{ware.format}-{kind}"] = answer.content
    return found


def filled(server: Server) -> Server:
    server.repository("files", public=True)
    for number in range(3):
        assert server.put(f"/raw/files/{number}", b"stored %d" % number).status_code == 201
    assert server.put("/raw/files/0", b"replaced").status_code == 204
    return server


def test_a_dump_beside_a_running_server_is_restored_elsewhere_with_higher_epochs_and_counters(
    make_server: MakeServer, empty_database_url: str, tmp_path: Path, upstream: FakeUpstream
) -> None:
    """HO-X-8: of each format and kind; what a proxy has is there though its upstream is not."""
    server = filled(make_server(ARKVORY_CLEANUP_SECONDS="3600"))
    wares(server, upstream)
    all_of_it = taken(server)
    file = tmp_path / "backup"
    here = {"ARKVORY_DATA_DIR": str(server.data), "ARKVORY_DATABASE_URL": str(server.database_url)}
    done = arkvory("db", "dump", str(file), **here)
    assert 'table "public.arkvory_artifacts"' in done.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    tag = server.get("/raw/files/0").headers["ETag"]
    index = server.get("/raw/files/").headers.get("ETag")
    before = Observer(server)
    epochs, counters = before.rows(EPOCHS)[0], before.rows(COUNTERS)
    incarnation = before.value("select incarnation from arkvory_installation")
    revision = before.value("select revision from arkvory_users where name = 'admin'")

    shutil.copytree(server.data / "blobs", tmp_path / "there" / "blobs")
    there = {"ARKVORY_DATA_DIR": str(tmp_path / "there"), "ARKVORY_DATABASE_URL": empty_database_url}
    arkvory("db", "restore", str(file), **there)
    moved = make_server(start=False, **there)
    after = Observer(moved)
    assert [now - then for now, then in zip(after.rows(EPOCHS)[0], epochs, strict=True)] == [STEP] * 4
    assert after.value("select revision from arkvory_users where name = 'admin'") == revision + STEP
    assert after.value("select incarnation from arkvory_installation") != incarnation
    assert after.rows(COUNTERS) == counters
    after.assert_counted()

    upstream.stop()
    moved.start()
    assert taken(moved) == all_of_it
    upstream.start()
    assert [moved.get(f"/raw/files/{number}").content for number in range(3)] == [b"replaced", b"stored 1", b"stored 2"]
    assert moved.get("/raw/files/0").headers["ETag"] == tag, "equal bytes"
    assert moved.get("/raw/files/").headers.get("ETag") != index or index is None
    assert moved.put("/raw/files/3", b"goes on").status_code == 201


def test_an_embedded_database_is_dumped_stopped_or_not_and_restored_into_a_new_one(make_server: MakeServer, tmp_path: Path) -> None:
    server = filled(make_server(embedded=True))
    here = {"ARKVORY_DATA_DIR": str(server.data)}
    arkvory("db", "dump", str(tmp_path / "running"), **here)
    server.stop()
    arkvory("db", "dump", str(tmp_path / "stopped"), **here)
    assert not (server.data / "postgres" / "postmaster.pid").exists()
    shutil.copytree(server.data / "blobs", tmp_path / "data" / "blobs")
    moved = make_server(embedded=True, start=False, ARKVORY_DATA_DIR=str(tmp_path / "data"))
    arkvory("db", "restore", str(tmp_path / "running"), ARKVORY_DATA_DIR=str(moved.data))
    moved.start()
    assert moved.get("/raw/files/1", auth=None).content == b"stored 1"
    again = arkvory("db", "restore", str(tmp_path / "stopped"), check=False, ARKVORY_DATA_DIR=str(moved.data))
    assert (again.returncode, "the database is not empty" in again.stderr) == (1, True)


def test_after_a_restore_that_was_broken_off_nothing_starts(
    database_url: str, empty_database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its epochs are those of before, which others may remember."""
    file = tmp_path / "backup"
    backup.dump(database_url, None, file, print)

    def die(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(backup, "_make_void", die)
    with pytest.raises(KeyboardInterrupt):
        backup.restore(empty_database_url, None, file, print)
    with pytest.raises(Unavailable, match="a restore broke off"):
        migrate.upgrade(empty_database_url)


def test_what_cannot_be_dumped_or_restored_is_refused_in_a_line_and_changes_nothing(
    database_url: str, empty_database_url: str, tmp_path: Path
) -> None:
    here = {"ARKVORY_DATA_DIR": str(tmp_path / "data"), "ARKVORY_DATABASE_URL": database_url}
    file, other = tmp_path / "backup", tmp_path / "other"
    arkvory("db", "dump", str(file), **here)
    other.write_bytes(b"not a dump")
    refusals = {
        "is there already": arkvory("db", "dump", str(file), check=False, **here),
        "cannot be written": arkvory("db", "dump", str(tmp_path / "none" / "backup"), check=False, **here),
        "there is no database in": arkvory("db", "dump", str(tmp_path / "b"), check=False, ARKVORY_DATA_DIR=str(tmp_path / "data")),
        "the database is not empty": arkvory("db", "restore", str(file), check=False, **here),
        "is no dump of Arkvory's": arkvory("db", "restore", str(other), check=False, **here | {"ARKVORY_DATABASE_URL": empty_database_url}),
    }
    for words, done in refusals.items():
        assert (done.returncode, words in done.stderr, done.stderr.count("\n")) == (1, True, 1), done.stderr
    assert not (tmp_path / "data").exists()
    assert migrate.state(empty_database_url)[0] is None
    assert sorted(each.name for each in tmp_path.iterdir()) == ["backup", "other"]
