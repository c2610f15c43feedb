"""Gunicorn masters of one cluster: who may start, under which name and slot, and what becomes of both (DESIGN 4)."""

from __future__ import annotations

import re

from tests.conftest import MakeCluster


def test_two_masters_with_two_workers_each_serve_one_storage_under_slots_of_their_own(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    labels = {label for server in cluster for label in re.findall(r"Arkvory serves at \S+ as (\S+)", server.log())}
    assert labels == {"vm1/0", "vm1/1", "vm2/0", "vm2/1"}
    cluster[0].repository("files")
    assert cluster[0].put("/raw/files/a", b"from one").status_code == 201
    assert cluster[1].get("/raw/files/a").content == b"from one"
