"""What clients do that spread their requests over two servers of one cluster."""

from __future__ import annotations

import itertools
import os
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import gevent
import pytest
import requests
from gevent.pool import Pool

from app.database import embedded
from tests.conftest import MakeCluster, NewDatabase, drop
from tests.faults.test_servers import Observer, until
from tests.protocols.npm.packages import document, tarball
from tests.protocols.oci.conftest import digest_of
from tests.support import pace
from tests.support.house import eventually
from tests.support.images import push_and_pull
from tests.support.lines import headers_of
from tests.support.server import Cluster, Server
from tests.support.upstreams import FakeUpstream, noise

SOAK_SECONDS = float(os.environ.get("ARKVORY_SOAK_SECONDS", "60"))
MIB = 1024 * 1024
QUOTA = 10 * MIB
CLIENTS = 30
GRACE_SECONDS = 3.0
EAGER = {
    "ARKVORY_CLEANUP_SECONDS": "0.5",
    "ARKVORY_BLOB_GRACE_SECONDS": str(GRACE_SECONDS),
    "ARKVORY_UPLOAD_LEASE_SECONDS": "30",
    "ARKVORY_DISK_RESERVE_BYTES": "0",
    "ARKVORY_MAX_UPLOADS": "16",
    "ARKVORY_MAX_UPLOADS_PER_KEY": "16",
    "ARKVORY_PLACE_WAIT_SECONDS": "60",
}


@pytest.fixture(scope="module")
def nodes(
    postgres: embedded.EmbeddedPostgres, new_database: NewDatabase, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    url = new_database(template)
    cluster = Cluster(tmp_path_factory.mktemp("nodes"), url, masters=2, workers=1, **EAGER)
    try:
        yield cluster.start()
    finally:
        cluster.close()
        drop(postgres, url)


def all_at_once(acts: Sequence[Callable[[], int]], most: int = CLIENTS) -> Counter[int]:
    """Their statuses."""
    pool = Pool(most)
    running = [pool.spawn(act) for act in acts]
    gevent.joinall(running, timeout=120, raise_error=True)
    return Counter(each.value for each in running)


def test_mvn_2_the_first_files_of_many_versions_come_to_two_servers(nodes: Cluster) -> None:
    """HO-MVN-2: jar, sources and pom of one version each to another server than the file before."""
    nodes[0].repository("many", "maven")
    names = [f"org/acme/lib/1.{number}/lib-1.{number}" for number in range(50)]
    paths = [f"/maven/many/{name}{ending}" for name in names for ending in (".jar", "-sources.jar", ".pom")]
    pairs = zip(nodes * 75, paths, strict=True)
    acts = [lambda server=server, path=path: server.put(path, path.encode()).status_code for server, path in pairs]
    assert all_at_once(acts) == {201: 150}
    for server in nodes:
        assert all(server.get(path).content == path.encode() for path in paths)
        metadata = server.get("/maven/many/org/acme/lib/maven-metadata.xml").text
        assert re.findall("<version>(.*)</version>", metadata) == [f"1.{number}" for number in range(50)]


class Quota:
    """A repository with room for 10 MiB, filled through both servers; looked at all the time."""

    def __init__(self, nodes: Cluster, format: str) -> None:
        self.nodes = nodes
        self.name = f"narrow-{format}"
        nodes[0].repository(self.name, format, quota_bytes=QUOTA)
        self.observer = Observer(nodes[0])
        self.most = 0
        self._looking = gevent.spawn(self._look)

    def _look(self) -> None:
        while True:
            self.most = max(self.most, self.taken("open", "published"))
            gevent.sleep(0.05)

    def taken(self, *statuses: str) -> int:
        """Bytes that its counters hold."""
        statement = (
            "select coalesce(sum(c.bytes), 0) from arkvory_upload_bytes c join arkvory_repositories r on r.id = repository_id "
            "where r.name = :name and c.status = any(:statuses)"
        )
        return int(self.observer.value(statement, name=self.name, statuses=list(statuses)))

    def assert_settles(self, published: int) -> None:
        """Nothing is held by whoever is gone, and what is published is what it says, on both servers."""
        until(lambda: self.taken("open") == 0, 20)
        for server in self.nodes:
            usage = server.get(f"/api/v1/repositories/{self.name}/usage").json()["bytes"]
            assert (usage["open"], usage["published"]) == (0, published)

    def end(self) -> None:
        self._looking.kill()
        assert 0 < self.most <= QUOTA
        self.observer.assert_counted()


@pytest.fixture
def quota(nodes: Cluster) -> Iterator[Callable[[str], Quota]]:
    made: list[Quota] = []

    def make(format: str) -> Quota:
        made.append(Quota(nodes, format))
        return made[-1]

    yield make
    for each in made:
        each.end()


def half_an_upload(server: Server, path: str) -> int:
    """From a client that is gone in the middle."""
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        (header,) = (f"{name}: {value}" for name, value in headers_of(server.admin).items())
        client.sendall(f"PUT {path} HTTP/1.1\r\nHost: a\r\n{header}\r\nContent-Length: {MIB}\r\n\r\n".encode() + bytes(MIB // 2))
        gevent.sleep(0.3)
    return 0


def test_x_5_no_two_servers_store_more_than_the_quota(quota: Callable[[str], Quota], nodes: Cluster) -> None:
    """HO-X-5: with and without a length, and some clients gone half way."""
    narrow, turns = quota("raw"), itertools.cycle(nodes)
    address = f"/raw/{narrow.name}"

    def put(number: int, told: bool) -> int:
        body = os.urandom(MIB)
        return next(turns).put(f"{address}/{number}", body if told else iter((body[: MIB // 2], body[MIB // 2 :]))).status_code

    acts = [lambda number=number: put(number, number % 3 != 0) for number in range(CLIENTS - 5)]
    acts += [lambda number=number: half_an_upload(next(turns), f"{address}/gone-{number}") for number in range(5)]
    statuses = all_at_once(acts)
    assert set(statuses) <= {0, 201, 507} and 0 < statuses[201] <= 10
    narrow.assert_settles(statuses[201] * MIB)
    # What was refused for those who went is free again.
    more = next(number for number in itertools.count() if put(100 + number, told=True) == 507)
    assert statuses[201] + more == 10
    narrow.assert_settles(QUOTA)
    there = [each["path"] for each in nodes[1].get(f"/api/v1/repositories/{narrow.name}/artifacts?limit=100").json()["items"]]
    assert [nodes[1].delete(f"{address}/{each}").status_code for each in there[:2]] == [204, 204]
    assert nodes[0].put(f"{address}/{there[2]}", b"x" * 1000).status_code == 204
    narrow.assert_settles(7 * MIB + 1000)
    for each, server in zip(there[2:], turns, strict=False):
        assert server.delete(f"{address}/{each}").status_code == 204
    narrow.assert_settles(0)


def test_x_5_nor_of_images_whose_chunks_go_from_one_to_the_other(quota: Callable[[str], Quota], nodes: Cluster) -> None:
    narrow, turns = quota("oci"), itertools.cycle(nodes)

    def push() -> int:
        body = os.urandom(MIB)
        begun = next(turns).post(f"/v2/{narrow.name}/app/blobs/uploads/")
        if begun.status_code != 202:
            return refused(begun)
        address = begun.headers["Location"].removeprefix(begun.url.partition("/v2/")[0])
        for start in (0, MIB // 2):
            end = start + MIB // 2
            sent = next(turns).patch(address, data=body[start:end], headers={"Content-Range": f"{start}-{end - 1}"})
            if sent.status_code != 202:
                assert next(turns).delete(address).status_code == 204
                return refused(sent)
        ended = next(turns).put(f"{address}{'&' if '?' in address else '?'}digest={digest_of(body)}")
        return ended.status_code if ended.status_code == 201 else refused(ended)

    statuses = all_at_once([push] * CLIENTS)
    assert set(statuses) <= {201, 403} and 0 < statuses[201] <= 10
    narrow.assert_settles(statuses[201] * MIB)
    more = next(number for number in itertools.count() if push() == 403)
    assert statuses[201] + more >= 9, "an upload of unknown length reserves in steps"
    narrow.assert_settles((statuses[201] + more) * MIB)


def refused(answer: requests.Response) -> int:
    assert answer.status_code == 403 and answer.json()["errors"][0]["code"] == "DENIED", answer.text
    return answer.status_code


def test_x_5_nor_of_packages(quota: Callable[[str], Quota], nodes: Cluster) -> None:
    narrow, turns = quota("npm"), itertools.cycle(nodes)

    def publish(number: int) -> int:
        packed = tarball(f"big{number}", "1.0.0", {"package/noise": os.urandom(MIB)})
        told = document(f"big{number}", "1.0.0", data=packed)
        return next(turns).put(f"/npm/{narrow.name}/big{number}", json=told).status_code

    statuses = all_at_once([lambda number=number: publish(number) for number in range(CLIENTS)])
    assert set(statuses) == {201, 507} and statuses[201] < 10
    more = next(number for number in itertools.count() if publish(100 + number) == 507)
    assert statuses[201] + more == 9, "each is a little more than a tenth"
    narrow.assert_settles(narrow.taken("published"))


@pytest.mark.parametrize("seconds", [8, pytest.param(SOAK_SECONDS * 0.05, marks=pytest.mark.soak)])
def test_x_6_images_are_pushed_through_two_servers_beside_a_cleanup(nodes: Cluster, seconds: float) -> None:
    """HO-X-6."""
    nodes[0].repository("images", format="oci")
    end = time.monotonic() + seconds

    def push(number: int) -> int:
        turns = 0
        while time.monotonic() < end:
            began = pace.now()
            try:
                push_and_pull(nodes[:: 1 if turns % 2 else -1], f"images/app{number}", os.urandom(20_000), 0.3 * number)
            except AssertionError:
                # What nothing names is kept for its grace, and the machine may have stood still for longer.
                if time.monotonic() - began < GRACE_SECONDS or pace.lost(began) < GRACE_SECONDS / 3:
                    raise
                continue
            turns += 1
        return turns

    assert min(all_at_once([lambda number=number: push(number) for number in range(4)])) >= 1


def test_x_7_a_crowd_has_it_whole_though_the_server_that_fetches_is_killed(
    make_cluster: MakeCluster, upstream: FakeUpstream, tmp_path: Path
) -> None:
    """HO-X-7: also its checksum, and through a group; nothing that the dead one held is in anybody's way."""
    cluster = make_cluster(masters=2, workers=1)
    body = noise(8_000_000, 3)
    upstream.put("/b.jar", body, pause=0.03)
    upstream.put("/b.jar.sha1", b"0" * 40)
    cluster[0].repository("there", kind="proxy", upstream_url=upstream.url, public=True)
    cluster[0].repository("ours")
    cluster[0].repository("all", kind="group", members=["ours", "there"], public=True)
    doors = itertools.cycle(["there", "all"])

    def ask(server: Server, name: str) -> bytes | None:
        try:
            return server.get(f"/raw/{next(doors)}/{name}", auth=None, timeout=60).content
        except requests.RequestException:
            return None

    begun = [gevent.spawn(ask, cluster[0], "b.jar")]
    eventually(lambda: upstream.count("/b.jar") == 1)
    begun += [gevent.spawn(ask, cluster[0], "b.jar") for _ in range(20)]
    others = [gevent.spawn(ask, cluster[1], "b.jar") for _ in range(40)]
    sums = [gevent.spawn(ask, cluster[1], "b.jar.sha1") for _ in range(40)]
    gevent.sleep(1)
    assert not any(each.ready() for each in others), "it is too fast to be killed in the middle"
    cluster[0].kill9()
    gevent.joinall([*others, *sums, *begun], timeout=60)
    assert {each.value == body for each in others} == {True}
    assert {each.value for each in sums} == {b"0" * 40}
    # Of those at the dead one nobody has taken a part for the whole.
    assert {each.value for each in begun} == {None}
    assert upstream.count("/b.jar") <= 2 and upstream.count("/b.jar.sha1") == 1
    assert ask(cluster[1], "b.jar") == body
