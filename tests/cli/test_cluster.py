"""`arkvory cluster`, beside a running server and without one."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.cli.test_arkvory import arkvory
from tests.cli.test_doctor import run
from tests.support.server import Server

MakeServer = Callable[..., Server]


def test_a_single_node_says_so_also_while_none_runs(make_server: MakeServer) -> None:
    server = make_server()
    server.repository("files")
    there = {"ARKVORY_DATA_DIR": str(server.data), "ARKVORY_DATABASE_URL": str(server.database_url)}
    running = arkvory("cluster", "status", "--repository", "files", **there).stdout
    server.stop()
    stopped = arkvory("cluster", "status", **there).stdout
    for shown in (running, stopped):
        assert shown.startswith("A single node: one process, with nobody to agree with.")
    assert "DATABASE       authorization=1, content=1, members=1, metadata=1" in running


def test_instances_their_mail_and_dead_letters_are_shown_to_people_and_programs(server: Server) -> None:
    columns = "name, slot, kind, host, pid, version"
    run(server.database_url, f"insert into arkvory_instances ({columns}) values ('vm1', 3, 'web', 'h', 7, '0.1.0')")
    run(server.database_url, "insert into arkvory_mail (instance_id, body) select id, '{}' from arkvory_instances")
    run(
        server.database_url,
        "insert into arkvory_dead_letters (instance, sent_at, error, body) values ('vm1/3', now(), 'KeyError: x', '{\"a\": 1}')",
    )
    there = {"ARKVORY_DATA_DIR": str(server.data)}
    shown = arkvory("cluster", "status", **there).stdout
    row = next(line for line in shown.splitlines() if line.startswith("vm1/3"))
    assert row.split()[:6] == ["vm1/3", "web", "h", "7", "0.1.0", "yes"]
    assert "1 dead letters, see: arkvory cluster dead-letters" in shown
    assert json.loads(arkvory("cluster", "status", "--json", **there).stdout)["instances"][0]["unread"] == 1
    assert "KeyError: x" in arkvory("cluster", "dead-letters", **there).stdout
    assert json.loads(arkvory("cluster", "dead-letters", "--json", **there).stdout)[0]["body"] == {"a": 1}
    assert arkvory("cluster", "forget", **there).stdout == "1 dead letters are gone.\n"
    assert json.loads(arkvory("cluster", "dead-letters", "--json", **there).stdout) == []
