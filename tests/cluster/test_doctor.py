"""The doctor looks at a cluster; each drift is made, and must be named with what to do about it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
from pathlib import Path

import gevent
import pytest

from app.cluster.loop import PROBE_SECONDS
from app.database.embedded import EmbeddedPostgres
from app.http import doctor
from app.http.doctor import FAIL, OK, WARN, Finding
from app.http.doctor.cluster import LATE_HEARTBEAT_SECONDS, OLD_MAIL_SECONDS
from app.http.doctor.mounts import examine_mount, mount_of
from config.settings import OWN, SETTINGS
from tests.cli.test_doctor import Report
from tests.cluster.conftest import MakeMember
from tests.conftest import MakeCluster, MakeHouse
from tests.support import pace
from tests.support.database import take_down
from tests.support.house import House, eventually
from tests.support.server import Server

HERE = socket.gethostname()
WELL = (
    "this process", "instances", "heartbeats", "mail", "dead letters", "versions", "settings", "connections", "storage", "blob store",
    "mount",
)  # fmt: skip


def examined(house: House, check: str) -> Finding:
    """What the server of this house says to one check."""
    parts = house.parts
    found = [each for each in doctor.examine(parts.settings, parts.database, lambda: True, parts.loop) if each.check == check]
    assert len(found) == 1, found
    assert bool(found[0].advice) == (found[0].status != OK)
    return found[0]


def instance(house: House, name: str, slot: int = 0, *, silent: float = 0, age: float = 0, host: str = HERE, version: str = "0.1.0") -> int:
    """Another process, as its row shows it; its id."""
    return int(
        house.value(
            "insert into arkvory_instances (name, slot, kind, host, pid, version, started_at, heartbeat_at) values (:name, :slot, 'web', "
            ":host, 7, :version, clock_timestamp() - make_interval(secs => :age), clock_timestamp() - make_interval(secs => :silent)) "
            "returning id",
            name=name, slot=slot, host=host, version=version, age=age, silent=silent,
        )
    )  # fmt: skip


def mail(house: House, receiver: int, age: float) -> None:
    house.rows(
        "insert into arkvory_mail (instance_id, sent_at, body) values (:receiver, clock_timestamp() - make_interval(secs => :age), '{}')",
        receiver=receiver, age=age,
    )  # fmt: skip


# A cluster that is well


def test_a_cluster_that_is_well_gets_an_ok_for_each_check_from_each_server(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2, 2)
    cluster[0].repository("files")
    cluster[0].put("/raw/files/a", b"1")
    for server in cluster:
        report = Report(ARKVORY_DATA_DIR=str(server.data), ARKVORY_URL=server.url, ARKVORY_TOKEN=_token(server))
        for check in WELL:
            assert report.status(check) == "ok", report.of(check)
        assert report.code == 0, report.document
        assert "4 at work" in report.of("instances")[0]["message"]
        assert "in 4 processes" in report.of("connections")[0]["message"]


def _token(server: Server) -> str:
    body = {"name": "whole", "permissions": ["read", "write", "delete", "manage"]}
    return str(server.post("/api/v1/tokens", json=body).json()["token"])


def test_the_api_shows_the_processes_with_the_one_that_answers(make_cluster: MakeCluster) -> None:
    """DESIGN 4: instances, last heartbeat, unread mail, and this process's view of a repository."""
    cluster = make_cluster(2, 1)
    cluster[0].repository("files", public=True)
    cluster[1].put("/raw/files/a", b"1")
    for number, server in enumerate(cluster, 1):
        assert server.get("/raw/files/a").status_code == 200
        found = server.get("/api/v1/cluster?repository=files").json()
        assert found["deployment"] == "cluster"
        shown = found["process"]
        assert (shown["instance"], shown["online"], shown["corrections"], shown["dead_letters"]) == (f"vm{number}/0", True, 0, 0)
        assert shown["pid"] in server.workers()
        assert 0 <= shown["last_poll_age"] < 5
        assert 0 <= shown["last_probe_age"] < 6
        assert [(each["name"], each["slot"], each["online"]) for each in found["instances"]] == [("vm1", 0, True), ("vm2", 0, True)]
        assert {each["version"] for each in found["instances"]} == {"0.1.0"}
        assert (found["repository"]["behind"], found["repository"]["believed"]) == (False, found["repository"]["database"])


def test_m5_the_first_probe_of_a_new_process_has_nothing_to_correct(make_member: MakeMember) -> None:
    house = make_member()
    pace.now()
    for _ in range(2):
        # In turns of five seconds, from beginning to beginning.
        began, asked = house.loop.last_probe, pace.now()
        eventually(lambda began=began: house.loop.last_probe > began)
        assert house.loop.last_probe - began < PROBE_SECONDS + 0.5 + pace.lost(asked - PROBE_SECONDS)
    assert house.loop.corrections == 0


# Drifts


def test_s1_a_single_node_beside_a_cluster_is_a_fail(make_house: MakeHouse) -> None:
    house = make_house()
    assert examined(house, "instances").status == OK
    instance(house, "vm1", 3, silent=31)
    assert examined(house, "instances").status == OK
    instance(house, "vm1", 2)
    found = examined(house, "instances")
    assert (found.status, "vm1/2" in found.message, "ARKVORY_DEPLOYMENT=cluster" in found.advice) == (FAIL, True, True)


def test_a_name_on_two_machines_is_a_fail(make_member: MakeMember) -> None:
    house = make_member()
    assert examined(house, "instances").status == OK
    instance(house, "here", 7, host="elsewhere")
    found = examined(house, "instances")
    assert (found.status, "elsewhere" in found.message, "ARKVORY_INSTANCE_ID" in found.advice) == (FAIL, True, True)


def test_a_name_that_went_to_another_master_while_the_former_ones_work_is_named(make_member: MakeMember) -> None:
    house = make_member()
    house.rows("insert into arkvory_instance_names (name, master, host) values ('vm2', 'new', 'h')")
    instance(house, "vm2", 0)
    assert examined(house, "instances").status == OK
    instance(house, "vm2", 1, age=60)
    found = examined(house, "instances")
    assert (found.status, "vm2/1" in found.message, "vm2/0" in found.message) == (WARN, True, False)


def test_a_process_that_was_killed_and_replaced_shows_twice_for_a_moment(make_member: MakeMember) -> None:
    house = make_member()
    instance(house, "vm2", 0, silent=5)
    instance(house, "vm2", 0)
    found = examined(house, "instances")
    assert (found.status, "vm2/0" in found.message) == (WARN, True)
    assert examined(house, "heartbeats").status == OK
    killed = "(select min(id) from arkvory_instances where name = 'vm2')"
    house.rows(f"update arkvory_instances set heartbeat_at = heartbeat_at - interval '40 s' where id = {killed}")
    assert {examined(house, check).status for check in ("instances", "heartbeats")} == {OK}


@pytest.mark.parametrize(("silent", "said"), [(LATE_HEARTBEAT_SECONDS + 1, r"(1[6-9]|2\d) s old"), (100, r"fell silent 1[0-2]\d s ago")])
def test_m4_old_heartbeats_are_named(make_member: MakeMember, silent: float, said: str) -> None:
    house = make_member()
    assert examined(house, "heartbeats").status == OK
    instance(house, "vm2", silent=silent)
    found = examined(house, "heartbeats")
    assert (found.status, re.search(said, found.message) is not None, "vm2/0" in found.message) == (WARN, True, True)


def test_m4_a_heartbeat_that_cannot_be_written_is_a_fail(make_member: MakeMember) -> None:
    """For real: a trigger refuses every update of the row."""
    house = make_member()
    assert examined(house, "this process").status == OK
    house.rows("create function refuse() returns trigger language plpgsql as $$ begin raise exception 'no'; end $$")
    house.rows("create trigger refuse before update on arkvory_instances for each row execute function refuse()")
    eventually(lambda: not house.loop.online)
    assert examined(house, "this process").status == FAIL


def test_m4_a_process_that_is_cut_off_says_so_of_itself(private_postgres: EmbeddedPostgres, make_cluster: MakeCluster) -> None:
    server = make_cluster(1, 1, database_url=private_postgres.url)[0]
    take_down(private_postgres, signal.SIGKILL)
    eventually(lambda: Report(ARKVORY_DATA_DIR=str(server.data)).status("this process") == "fail", 60)
    report = Report(ARKVORY_DATA_DIR=str(server.data))
    assert (report.status("server"), report.status("database"), report.of("mail")) == ("ok", "fail", [])


def test_m6_a_loop_that_stands_still_is_a_fail(make_member: MakeMember) -> None:
    house = make_member()
    greenlet = house.loop._greenlet
    assert greenlet is not None
    greenlet.kill()
    eventually(lambda: examined(house, "this process").status == FAIL)


def test_mail_that_nobody_reads_is_named(make_member: MakeMember) -> None:
    house = make_member()
    other = instance(house, "vm2")
    mail(house, other, 1)
    assert examined(house, "mail").status == OK
    mail(house, other, OLD_MAIL_SECONDS + 7)
    found = examined(house, "mail")
    assert (found.status, re.search(r"2 wait for vm2/0, the oldest for (1[2-9]|2\d) s", found.message) is not None) == (FAIL, True)
    house.rows("delete from arkvory_instances where id = :id", id=other)
    assert examined(house, "mail").status == OK
    mail(house, other, 1000)
    found = examined(house, "mail")
    assert (found.status, "arkvory cleanup" in found.advice) == (WARN, True)


def test_m3_dead_letters_are_named_with_the_last_error(make_member: MakeMember) -> None:
    house = make_member()
    assert examined(house, "dead letters").status == OK
    house.rows("insert into arkvory_dead_letters (instance, sent_at, error, body) values ('vm2/0', now(), 'KeyError: epochs', '{}')")
    found = examined(house, "dead letters")
    assert (found.status, "vm2/0: KeyError: epochs" in found.message) == (WARN, True)


def test_different_versions_are_named(make_member: MakeMember) -> None:
    house = make_member()
    assert examined(house, "versions").status == OK
    instance(house, "vm2", version="0.2.0")
    found = examined(house, "versions")
    assert (found.status, "0.1.0 (1), 0.2.0 (1)" in found.message) == (WARN, True)


def test_settings_that_must_agree_and_do_not_are_named_with_values_and_processes(make_member: MakeMember) -> None:
    house = make_member(ARKVORY_DOWNLOAD_BYTES_PER_SECOND="20M", ARKVORY_MAX_UPLOADS="8", ARKVORY_SECRET_KEY="the first one")
    instance(house, "old", version="0.0.9")
    assert examined(house, "settings").status == OK
    other = make_member(ARKVORY_MAX_UPLOADS_PER_KEY="4", ARKVORY_LOG_LEVEL="debug", ARKVORY_SECRET_KEY="another one")
    for each in (house, other):
        found = examined(each, "settings")
        assert found.status == WARN
        assert found.message.split("; ") == [
            "ARKVORY_DOWNLOAD_BYTES_PER_SECOND is not set in here/1, 20971520 in here/0",
            "ARKVORY_SECRET_KEY (or the key beside the blobs) is another one in here/0 than in here/1",
        ]


def test_every_setting_is_one_of_the_processes_own_or_of_all() -> None:
    assert {each.field for each in SETTINGS} >= OWN
    shared = {"download_bytes_per_second", "capacity_bytes", "max_upload_bytes", "max_uploads", "pins", "blob_grace_seconds", "public_url"}
    assert not shared & OWN


def test_the_connections_of_all_processes_together_must_fit(make_member: MakeMember) -> None:
    house = make_member()
    assert examined(house, "connections").status == OK
    for slot in range(40):
        instance(house, "vm2", slot)
    found = examined(house, "connections")
    assert (found.status, "41 process(es) (1 of here, 40 of vm2)" in found.message) == (FAIL, True)


# What they share


def test_a_folder_of_its_own_is_found_by_what_others_stored(make_house: MakeHouse, tmp_path: Path) -> None:
    """Two machines that each have a `blobs` of their own: half of the downloads would fail."""
    environment = {"ARKVORY_DEPLOYMENT": "cluster", "ARKVORY_INSTANCE_ID": "vm1"}
    house = make_house(**environment).join()
    house.repository()
    for number in range(3):
        house.publish(f"a{number}", b"%d" % number)
    assert examined(house, "blob store").status == OK
    shutil.copytree(house.folder, tmp_path / "other")
    house.publish("b", b"only here")
    other = House(house.url, tmp_path / "other", owns=False, **environment)
    found = examined_stopped(other, "blob store")
    assert (found.status, "1 of 4" in found.message, "shared file system" in found.advice) == (FAIL, True, True)
    other.close()


def examined_stopped(house: House, check: str) -> Finding:
    """As `arkvory doctor` says it where no server runs."""
    return next(each for each in doctor.examine_stopped(house.parts.settings) if each.check == check)


TABLE = "\n".join(
    (
        "/dev/sda1 / ext4 rw,relatime 0 0",
        "tmpfs /srv tmpfs rw 0 0",
        "nas:/a /srv/with\\040space/blobs nfs4 {options} 0 0",
        "nas:/b /srv/with\\040space/blobs2 nfs4 rw,soft 0 0",
    )
)
BLOBS = Path("/srv/with space/blobs")
GOOD = "rw,relatime,vers=4.2,hard,lookupcache=positive"


def test_the_mount_of_a_path_is_the_longest_that_holds_it() -> None:
    table = TABLE.format(options=GOOD)
    places = {"/": "ext4", "/srvx": "ext4", "/srv/x": "tmpfs", "/srv/with space/blobs/x": "nfs4", "/srv/with space/blobs3": "tmpfs"}
    for place, kind in places.items():
        found = mount_of(Path(place), table)
        assert found is not None
        assert found.kind == kind, place


@pytest.mark.parametrize(
    ("options", "hosts", "statuses"),
    [
        (GOOD, {"vm1", "vm2"}, [OK]),
        ("rw,vers=4.1,hard,lookupcache=none", {"vm1", "vm2"}, [OK]),
        ("rw,vers=4.2,hard", {"vm1", "vm2"}, [WARN]),
        ("rw,vers=4.2,hard", set(), [OK]),
        ("rw,vers=4.0,hard,lookupcache=pos", {"vm1"}, [WARN]),
        ("rw,vers=3,hard,lookupcache=pos", {"vm1"}, [WARN]),
        ("rw,vers=4.2,soft,lookupcache=positive", {"vm1"}, [FAIL]),
        ("rw,vers=3,softerr", {"vm1"}, [WARN, FAIL, WARN]),
    ],
)
def test_nfs_is_looked_at_by_its_options(options: str, hosts: set[str], statuses: list[str]) -> None:
    found = examine_mount(BLOBS, frozenset(hosts), TABLE.format(options=options))
    assert [each.status for each in found] == statuses, found


@pytest.mark.parametrize(("hosts", "status"), [({"vm1", "vm2"}, WARN), ({"vm1"}, OK), (set(), OK)])
def test_a_file_system_of_one_machine_under_a_cluster_of_several_is_named(hosts: set[str], status: str) -> None:
    found = examine_mount(Path("/var/lib/arkvory/blobs"), frozenset(hosts), TABLE.format(options=GOOD))
    assert [each.status for each in found] == [status]


def test_looking_at_the_store_leaves_nothing_in_it(house: House) -> None:
    before = sorted(house.folder.rglob("*"))
    assert examined(house, "storage").status == OK
    assert sorted(house.folder.rglob("*")) == before


def test_a_stopped_process_is_named_by_the_others(make_cluster: MakeCluster) -> None:
    """A real one, by SIGSTOP: it cannot say so itself."""
    cluster = make_cluster(2, 1)
    cluster[0].repository("files")
    stopped = cluster[1].workers()[0]
    token = _token(cluster[0])
    os.kill(stopped, signal.SIGSTOP)
    try:
        assert cluster[0].patch("/api/v1/repositories/files", json={"public": True}).status_code == 200
        gevent.sleep(OLD_MAIL_SECONDS + 0.5)
        report = Report(ARKVORY_DATA_DIR=str(cluster[0].data), ARKVORY_URL=cluster[0].url, ARKVORY_TOKEN=token)
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert report.status("mail") == "fail"
    assert "wait for vm2/0" in report.of("mail")[0]["message"]
