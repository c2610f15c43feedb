"""`/api/v1/cluster`: what the tables tell, and what the answering process believes. Rows of others are written by the test."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.pool import NullPool

from tests.api.test_management import problem, user
from tests.support.server import Server


@pytest.fixture
def tables(server: Server) -> Iterator[Connection]:
    """A connection to the server's database; what it added goes at the end."""
    with create_engine(str(server.database_url), isolation_level="AUTOCOMMIT", poolclass=NullPool).connect() as connection:
        yield connection
        for table in ("instances", "mail", "dead_letters", "leases", "instance_names"):
            connection.execute(text(f"delete from arkvory_{table}"))


def instance(tables: Connection, name: str, slot: int = 0, silent: float = 0, **values: Any) -> int:
    """Id of a process that was heard `silent` seconds ago."""
    given = {"name": name, "slot": slot, "silent": silent, "kind": "web", "host": "vm1", "pid": 7, "version": "0.1.0"} | values
    return int(
        tables.execute(
            text(
                "insert into arkvory_instances (name, slot, kind, host, pid, version, heartbeat_at) values "
                "(:name, :slot, :kind, :host, :pid, :version, clock_timestamp() - make_interval(secs => :silent)) returning id"
            ),
            given,
        ).scalar_one()
    )


def mail(tables: Connection, receiver: int, age: float = 0) -> None:
    statement = (
        "insert into arkvory_mail (instance_id, sent_at, body) "
        "values (:receiver, clock_timestamp() - make_interval(secs => :age), '{}')"
    )
    tables.execute(text(statement), {"receiver": receiver, "age": age})


def dead_letter(tables: Connection, error: str, owner: str = "vm1/0") -> int:
    statement = "insert into arkvory_dead_letters (instance, sent_at, error, body) values (:owner, now(), :error, :body) returning id"
    return int(tables.execute(text(statement), {"owner": owner, "error": error, "body": json.dumps({"said": error})}).scalar_one())


def cluster(server: Server, **query: Any) -> dict[str, Any]:
    answer = server.get("/api/v1/cluster", params=query)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def test_a_single_node_says_that_it_is_one(server: Server) -> None:
    found = cluster(server)
    assert (found["deployment"], found["instances"], found["leases"], found["repository"]) == ("single", [], [], None)
    assert found["dead_letters"] == {"count": 0, "latest": []}
    assert found["process"] | {"host": "", "pid": 0} == {
        "instance": None, "instance_id": None, "host": "", "pid": 0, "online": None, "last_poll_age": None, "last_probe_age": None,
        "corrections": 0, "dead_letters": 0,
    }  # fmt: skip
    assert found["process"]["pid"] in server.workers()


def test_it_is_for_administrators_alone(server: Server) -> None:
    who = user(server, "cluster-eve")
    narrow = server.post("/api/v1/tokens", json={"name": "narrow", "permissions": ["read"]}).json()["token"]
    problem(server.get("/api/v1/cluster", auth=None), 401, "unauthenticated")
    for auth in (who, ("x", narrow)):
        problem(server.get("/api/v1/cluster", auth=auth), 403, "forbidden")
        problem(server.delete("/api/v1/cluster/dead-letters", auth=auth), 403, "forbidden")


def test_m4_whoever_was_not_heard_for_30_seconds_is_not_online(server: Server, tables: Connection) -> None:
    instance(tables, "vm2", silent=31)
    instance(tables, "vm1", slot=1, silent=12, kind="worker", host="vm1.example", pid=4711, version="0.2.0")
    instance(tables, "vm1", slot=0)
    found = cluster(server)["instances"]
    assert [(each["name"], each["slot"], each["online"]) for each in found] == [("vm1", 0, True), ("vm1", 1, True), ("vm2", 0, False)]
    assert [round(each["heartbeat_age"]) for each in found] == [0, 12, 31]
    assert {name: found[1][name] for name in ("kind", "host", "pid", "version")} == {
        "kind": "worker", "host": "vm1.example", "pid": 4711, "version": "0.2.0",
    }  # fmt: skip
    assert found[1]["started_at"].endswith("Z")


def test_unread_mail_is_counted_by_mailbox_with_the_age_of_the_oldest(server: Server, tables: Connection) -> None:
    first, second = instance(tables, "vm1"), instance(tables, "vm2")
    for age in (3, 40, 1):
        mail(tables, first, age)
    found = cluster(server)["instances"]
    assert [each["unread"] for each in found] == [3, 0]
    assert (round(found[0]["oldest_unread"]), found[1]["oldest_unread"]) == (40, None)
    assert second


def test_m3_the_latest_dead_letters_are_shown_and_deleted_once_somebody_saw_them(server: Server, tables: Connection) -> None:
    ids = [dead_letter(tables, f"error {number}") for number in range(23)]
    found = cluster(server)["dead_letters"]
    assert found["count"] == 23
    assert [each["id"] for each in found["latest"]] == ids[:2:-1]
    shown = found["latest"][0]
    assert (shown["instance"], shown["error"], shown["body"]) == ("vm1/0", "error 22", {"said": "error 22"})
    assert server.delete("/api/v1/cluster/dead-letters", params={"up_to": ids[19]}).json() == {"deleted": 20}
    assert [each["id"] for each in cluster(server)["dead_letters"]["latest"]] == ids[:19:-1]
    assert server.delete("/api/v1/cluster/dead-letters").json() == {"deleted": 3}
    assert cluster(server)["dead_letters"] == {"count": 0, "latest": []}
    problem(server.delete("/api/v1/cluster/dead-letters", params={"up_to": "x"}), 422, "invalid", "up_to")


def test_only_the_youngest_process_of_a_slot_is_online(server: Server, tables: Connection) -> None:
    """A killed one says no goodbye, and its heartbeat is young for half a minute."""
    for silent in (200, 5, 0):
        instance(tables, "vm1", slot=1, silent=silent)
    instance(tables, "vm1", slot=0, silent=3)
    found = cluster(server)["instances"]
    assert [(each["slot"], each["online"], each["replaced"]) for each in found] == [
        (0, True, False), (1, False, True), (1, False, True), (1, True, False),
    ]  # fmt: skip


def test_leases_are_shown_with_whom_and_whether_they_are_still_held(server: Server, tables: Connection) -> None:
    for name, holder, left in (("cleanup", "vm1/0 0123abcd", 20), ("mirrors", "vm1/0 -", -1), ("place/1", "0123abcd 4567 vm1/0", 20)):
        statement = "insert into arkvory_leases (name, holder, until) values (:name, :holder, now() + make_interval(secs => :left))"
        tables.execute(text(statement), {"name": name, "holder": holder, "left": left})
    assert [(each["name"], each["holder"], each["held"]) for each in cluster(server)["leases"]] == [
        ("cleanup", "vm1/0", True), ("mirrors", "vm1/0", False), ("place/1", "vm1/0", True),
    ]  # fmt: skip


def test_a_repository_is_shown_as_this_process_and_as_the_database_has_it(server: Server, tables: Connection) -> None:
    """Looking does not make the process know more than before."""
    server.repository("looked-at", public=True)
    assert server.put("/raw/looked-at/a", b"1").status_code == 201
    assert server.get("/raw/looked-at/a", auth=None).status_code == 200
    found = cluster(server, repository="looked-at")["repository"]
    assert (found["name"], found["snapshot_kept"], found["behind"]) == ("looked-at", True, False)
    assert found["believed"] == found["database"] == {"metadata": 1, "authorization": 1, "content": 2, "members": 1}
    tables.execute(text("update arkvory_repositories set content_epoch = content_epoch + 1 where name = 'looked-at'"))
    for _ in range(2):
        found = cluster(server, repository="looked-at")["repository"]
        assert (found["behind"], found["believed"]["content"], found["database"]["content"]) == (True, 2, 3)
    problem(server.get("/api/v1/cluster?repository=none"), 404, "not_found")


def test_of_a_repository_that_it_never_met_a_process_believes_nothing(server: Server, tables: Connection) -> None:
    statement = "insert into arkvory_repositories (name, format, kind, public) values ('unmet', 'raw', 'hosted', true)"
    tables.execute(text(statement))
    found = cluster(server, repository="unmet")["repository"]
    assert (found["believed"], found["snapshot_kept"], found["behind"]) == (None, False, False)
