"""Packages of thousands of versions, many publishers at once, large tarballs: what they cost, and that nothing gets lost."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import itertools
import json
import time
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from app.protocols.npm import hosted
from app.protocols.npm.documents import ABBREVIATED_TYPE, PackumentDocument
from tests.conftest import MakeCluster
from tests.protocols.npm.conftest import ABBREVIATED, Room
from tests.protocols.npm.packages import dist_of, document, tarball, tgz
from tests.support.server import Server
from tests.support.upstreams import FakeUpstream

MIB = 1024 * 1024

# What `count` publishes would have written, copied from the one version that is there.
MULTIPLY = """
with source as (
    select a.*, n.fragment, n.abbreviated, n.words from arkvory_artifacts a join arkvory_npm_versions n on n.artifact_id = a.id
    join arkvory_packages p on p.id = a.package_id where p.name = :name limit 1
), uploads as (
    insert into arkvory_uploads (id, repository_id, status, bytes)
    select gen_random_uuid(), repository_id, 'published', 1 from source cross join generate_series(1, :count) returning id
), numbered as (
    select id, row_number() over () as n from uploads
), made as (
    insert into arkvory_artifacts (repository_id, path, blob_id, upload_id, package_id, version, content_type)
    select s.repository_id, :name || '/-/' || :name || '-1.0.' || u.n || '.tgz', s.blob_id, u.id, s.package_id, '1.0.' || u.n,
           s.content_type from source s cross join numbered u returning id, version
), versions as (
    insert into arkvory_npm_versions (artifact_id, fragment, abbreviated, words)
    select m.id, replace(s.fragment, '1.0.0', m.version) || repeat(' ', :padding), replace(s.abbreviated, '1.0.0', m.version), s.words
    from made m cross join source s
)
update arkvory_packages set artifacts = artifacts + :count, revision = revision + 1 where name = :name
"""


def multiply(room: Room, name: str, count: int, padding: int = 0) -> None:
    room.published(name, "1.0.0", description="Does what its name says", dependencies={f"dependency-{n}": "^1.0.0" for n in range(20)})
    room.execute(MULTIPLY, name=name, count=count, padding=padding)


def test_a_publish_costs_as_much_beside_two_thousand_versions_as_beside_two(room: Room) -> None:
    multiply(room, "small", 1)
    multiply(room, "large", 1999)
    pool = room.parts.database.request
    seconds: dict[str, list[float]] = {"small": [], "large": []}
    sent: dict[str, set[int]] = {"small": set(), "large": set()}
    for number in range(9):
        for name in ("small", "large"):
            before, began = pool.statements, time.perf_counter()
            room.published(name, f"2.0.{number}")
            seconds[name].append(time.perf_counter() - began)
            sent[name].add(pool.statements - before)
    # Now and then one more, when a lock is not free at once.
    assert min(sent["small"]) == min(sent["large"]), "statements of a publish"
    # The best of each: what others had of the machine meanwhile only adds.
    assert min(seconds["large"]) <= 2 * min(seconds["small"]), seconds


def test_a_large_packument_is_joined_and_not_parsed_and_not_kept(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    multiply(room, "p", 1999)
    parsed: list[str] = []
    real = hosted.manifest_of
    monkeypatch.setattr(hosted, "manifest_of", lambda fragment: parsed.append(fragment) or real(fragment))
    answer = room.app.test_client().get("/npm/js/p")
    told = json.loads(answer.data)
    assert len(parsed) == 1, "the latest version's, for what the packument says of the package"
    assert len(told["versions"]) == len(told["time"]) - 2 == 2000
    assert told["versions"]["1.0.77"]["dist"]["tarball"].startswith("http://localhost/npm/js/p/-/")
    assert len(answer.data) > 256 * 1024
    assert room.packument(headers=ABBREVIATED)["versions"].keys() == told["versions"].keys()


def test_a_long_document_that_was_read_and_changed_is_parsed_elsewhere(room: Room) -> None:
    """npm deprecates a version by sending all of them."""
    multiply(room, "p", 1999, padding=1000)
    told = room.packument()
    for version in ("1.0.7", "1.0.8"):
        told["versions"][version]["deprecated"] = "it leaks"
    assert len(json.dumps(told)) > 2 * MIB
    assert room.put("p", told).status_code == 201
    versions = room.packument(headers=ABBREVIATED)["versions"]
    assert [version for version, manifest in versions.items() if "deprecated" in manifest] == ["1.0.7", "1.0.8"]
    told = room.packument()
    del told["versions"]["1.0.9"]
    assert room.put(f"p/-rev/{told['_rev']}", told).status_code == 201
    assert len(room.packument()["versions"]) == 1999
    broken = json.dumps(told)[:-1000]
    assert room.request("PUT", "p", data=broken).status_code == 400


def test_a_conditional_read_renders_nothing(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """C9: the validator is the revision, known before the document is made."""
    multiply(room, "p", 1999)
    validators = [room.get("p", headers=headers).headers["ETag"] for headers in ({}, ABBREVIATED)]
    monkeypatch.setattr(PackumentDocument, "read", None)
    for headers, validator in zip(({}, ABBREVIATED), validators, strict=True):
        answer = room.get("p", headers=headers | {"If-None-Match": validator})
        assert (answer.status_code, answer.data) == (304, b"")


# A whole server


def counters(server: Server) -> tuple[list[Any], list[Any]]:
    """What the counters say, and the sums."""
    engine = create_engine(str(server.database_url), poolclass=NullPool)
    with engine.connect() as connection:
        told = connection.execute(text("select repository_id, status, bytes from arkvory_upload_bytes where bytes > 0 order by 1, 2"))
        sums = connection.execute(
            text("select repository_id, status, sum(bytes) from arkvory_uploads where status <> 'released' group by 1, 2 order by 1, 2")
        )
        return [tuple(row) for row in told], [(each[0], each[1], int(each[2])) for each in sums]


def insist(server: Server, method: str, path: str, body: Any) -> int:
    """As clients do when all places are taken, or someone else changed the package."""
    while (answer := server.request(method, path, json=body)).status_code in (409, 429, 503):
        assert "previously published" not in answer.text
        time.sleep(0.2)
    return answer.status_code


def race(nodes: Sequence[Server], count: int) -> None:
    """Versions come and tags move at once, by each of the nodes in turn."""
    nodes[0].repository("race", "npm")
    assert insist(nodes[0], "PUT", "/npm/race/p", document("p", "0.0.0")) == 201
    versions = [f"1.0.{number}" for number in range(count)]
    turns = itertools.cycle(nodes)
    with ThreadPoolExecutor(16) as pool:
        tags = [pool.submit(insist, next(turns), "PUT", f"/npm/race/-/package/p/dist-tags/t{number % 5}", "0.0.0") for number in range(20)]
        done = [pool.submit(insist, next(turns), "PUT", "/npm/race/p", document("p", each, tag="next")) for each in versions]
        assert {each.result() for each in (*tags, *done)} == {201}
    for node in nodes:
        _has_all(node, {"0.0.0", *versions})
    told_bytes, summed = counters(nodes[0])
    assert told_bytes == summed


def _has_all(node: Server, versions: set[str]) -> None:
    """Within a few polls of its mailbox, where another node published."""
    deadline = time.monotonic() + 30
    while set((told := node.get("/npm/race/p").json())["versions"]) != versions and time.monotonic() < deadline:
        time.sleep(0.1)
    assert set(told["versions"]) == versions
    assert (told["dist-tags"]["latest"], told["dist-tags"]["t0"]) == ("0.0.0", "0.0.0")
    for version in sorted(versions)[:3]:
        data = node.get(f"/npm/race/p/-/p-{version}.tgz").content
        assert told["versions"][version]["dist"]["shasum"] == hashlib.sha1(data).hexdigest()


def test_fifty_publishes_at_once_lose_nothing_while_tags_move(server: Server) -> None:
    """HO-NPM-4, W1."""
    race([server], 50)


def test_two_nodes_that_publish_at_once_lose_nothing(make_cluster: MakeCluster) -> None:
    """HO-NPM-4; and a login that began at one is confirmed at the other and redeemed at the first."""
    nodes = make_cluster(2, 1)
    race(nodes, 40)
    begun = nodes[0].post("/npm/race/-/v1/login", auth=None).json()
    page, done = (begun[key].partition("/npm/")[2] for key in ("loginUrl", "doneUrl"))
    assert nodes[1].post(f"/npm/{page}", auth=None, data={"name": "admin", "password": nodes[1].password}).status_code == 200
    token = nodes[0].get(f"/npm/{done}", auth=None).json()["token"]
    assert nodes[1].get("/npm/race/-/whoami", auth=("x", token)).json() == {"username": "admin"}


@contextlib.contextmanager
def growth(server: Server) -> Iterator[list[int]]:
    """Bytes by which the worker's memory grew at most, in the list after the block."""
    begun_as = Path(f"/proc/{server.pid}/cmdline").read_text()
    (worker,) = [Path(f"/proc/{each}") for each in server.workers() if Path(f"/proc/{each}/cmdline").read_text() == begun_as]
    # "Reset the peak resident set size to the present one" (proc_pid_clear_refs(5)): a password that was checked had 64 MiB.
    (worker / "clear_refs").write_text("5")
    before, grown = _peak(worker), []
    yield grown
    grown.append(_peak(worker) - before)


def _peak(process: Path) -> int:
    lines = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) * 1024


def stored_tgz(megabytes: int) -> bytes:
    """A tarball that is as large as what is in it."""
    blob = hashlib.shake_128(b"x").digest(megabytes * MIB)
    packed = zlib.decompress(tgz({"package/package.json": b'{"name": "big", "version": "1.0.0"}', "package/blob": blob}), wbits=31)
    squeeze = zlib.compressobj(0, wbits=31)
    return squeeze.compress(packed) + squeeze.flush()


def test_a_large_tarball_takes_little_memory_and_a_larger_one_is_refused(server: Server) -> None:
    """413 comes as soon as it is known; W1."""
    server.repository("big", "npm")
    assert insist(server, "PUT", "/npm/big/p", document("p", "1.0.0")) == 201
    data = stored_tgz(48)
    body = json.dumps(document("big", "1.0.0", data=data)).encode()
    with growth(server) as grown:
        assert server.put("/npm/big/big", body).status_code == 201
    assert grown[0] < 24 * MIB
    assert hashlib.sha256(server.get("/npm/big/big/-/big-1.0.0.tgz").content).digest() == hashlib.sha256(data).digest()


def test_a_packument_of_thirty_megabytes_is_not_many_times_in_memory(server: Server) -> None:
    """HO-NPM-5."""
    server.repository("long", "npm")
    assert insist(server, "PUT", "/npm/long/long", document("long", "1.0.0")) == 201
    engine = create_engine(str(server.database_url), poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text(MULTIPLY), {"name": "long", "count": 300, "padding": 100_000})
    with growth(server) as grown:
        body = server.get("/npm/long/long", headers={"Accept-Encoding": "identity"}).content
    assert len(body) > 30_000_000
    assert grown[0] < 2.5 * len(body)
    assert len(json.loads(body)["versions"]) == 301


def test_a_tarball_over_the_limit_is_refused_and_leaves_nothing(make_server: Any) -> None:
    """Before it is sent where its length tells, else while it arrives."""
    server = make_server(ARKVORY_MAX_UPLOAD_BYTES="1M")
    server.repository("big", "npm")
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.putrequest("PUT", "/npm/big/big")
    login = base64.b64encode(":".join(server.admin).encode()).decode()
    for name, value in (("Content-Length", "200000000"), ("Expect", "100-continue"), ("Authorization", f"Basic {login}")):
        connection.putheader(name, value)
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()
    answer = server.put("/npm/big/big", json.dumps(document("big", "1.0.0", data=stored_tgz(2))).encode())
    assert answer.status_code == 413
    assert "1048576" in answer.json()["error"]
    told, summed = counters(server)
    assert told == summed
    assert sum(each[2] for each in told if each[1] in ("open", "published")) == 0


def many_versions(upstream: FakeUpstream, count: int, padding: int) -> bytes:
    """A packument of an upstream."""
    data = tarball("big", "1.0.0")
    versions = {
        f"1.0.{number}": {
            "name": "big", "version": f"1.0.{number}", "padding": "x" * padding,
            "dependencies": {f"d{each}": "^1.0.0" for each in range(20)},
            "dist": {**dist_of(data), "tarball": f"{upstream.url}/big.tgz"},
        }
        for number in range(count)
    }  # fmt: skip
    return json.dumps({"name": "big", "dist-tags": {"latest": "1.0.0"}, "versions": versions, "time": {}}).encode()


def test_an_upstreams_packument_of_fifty_megabytes_keeps_nobody_else_waiting(server: Server, upstream: FakeUpstream) -> None:
    """It is taken apart in a child, and its documents are written in a thread; memory holds the document once, not its values."""
    server.repository("far", "npm", kind="proxy", upstream_url=upstream.url, public=True, settings={"mutable_ttl": 3600})
    body = many_versions(upstream, 5000, 9500)
    upstream.put("/big", body)
    upstream.put("/big.tgz", tarball("big", "1.0.0"))
    assert len(body) > 50_000_000
    server.get("/npm/far/-/ping")
    waits: list[float] = []
    with growth(server) as grown, ThreadPoolExecutor(2) as pool:
        cold = pool.submit(server.get, "/npm/far/big", headers={"Accept-Encoding": "identity"})
        while not cold.done():
            began = time.perf_counter()
            assert server.get("/npm/far/-/ping").status_code == 200
            waits.append(time.perf_counter() - began)
            time.sleep(0.02)
    assert grown[0] < 2.5 * len(body), f"{grown[0] / 1e6:.0f} MB"
    assert sorted(waits)[len(waits) * 9 // 10] < 0.5, waits
    with growth(server) as grown:
        short = server.get("/npm/far/big", headers={"Accept": ABBREVIATED_TYPE})
        again = server.get("/npm/far/big", headers={"Accept": ABBREVIATED_TYPE, "If-None-Match": short.headers["ETag"]})
        assert server.get("/npm/far/big/-/big-1.0.4999.tgz").content == tarball("big", "1.0.0")
    assert grown[0] < 24 * MIB, f"{grown[0] / 1e6:.0f} MB"
    assert (short.headers["Content-Encoding"], again.status_code) == ("gzip", 304)
    assert len(short.json()["versions"]) == len(cold.result().json()["versions"]) == 5000
    assert upstream.count("/big") == 1
