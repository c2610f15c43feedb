"""Proxies in a cluster (DESIGN 6): one fetch per path across processes, and misses that go when another process stores the path."""

from __future__ import annotations

import hashlib

import gevent
import pytest
import requests
from requests.adapters import HTTPAdapter

from app.errors import NotFound
from app.repository.reading import Ask
from tests.cluster.conftest import MakeMember
from tests.conftest import MakeCluster
from tests.support.house import ADMIN, House, eventually, sha256
from tests.support.server import Cluster
from tests.support.upstreams import FakeUpstream, noise

BODY = noise(200_000)


def crowd(cluster: Cluster, path: str) -> set[str]:
    """64 clients ask for it at once, half of them each process; the digests of what they get."""
    with requests.Session() as session:
        session.trust_env = False
        session.mount("http://", HTTPAdapter(pool_maxsize=64))
        clients = [
            gevent.spawn(lambda url: sha256(session.get(url, timeout=60).content), each.url + path) for each in cluster for _ in range(32)
        ]
        gevent.joinall(clients, timeout=90, raise_error=True)
    return {each.value for each in clients}


@pytest.mark.parametrize(
    ("format", "path", "through"),
    [
        ("raw", "b.jar", "all"),
        ("maven", "org/acme/b/1.0/b-1.0.jar", "there"),
        pytest.param("raw", "b.jar", "there", marks=pytest.mark.soak),
        pytest.param("maven", "org/acme/b/1.0/b-1.0.jar", "all", marks=pytest.mark.soak),
    ],
)
def test_a_crowd_over_two_processes_is_one_request(
    make_cluster: MakeCluster, upstream: FakeUpstream, format: str, path: str, through: str
) -> None:
    """HO-X-7: 64 clients ask for one cold file at once, of the proxy or of a group with a hosted member before it."""
    cluster = make_cluster(masters=2, workers=1)
    body = noise(8_000_000, 2)
    upstream.put(f"/{path}", body, pause=0.01)
    cluster[0].repository("there", format, kind="proxy", upstream_url=upstream.url, public=True)
    cluster[0].repository("ours", format)
    cluster[0].repository("all", format, kind="group", members=["ours", "there"], public=True)
    assert crowd(cluster, f"/{format}/{through}/{path}") == {sha256(body)}
    if format == "maven":
        sums = {each.get(f"/maven/{through}/{path}.sha1").text for each in cluster}
        assert sums == {hashlib.sha1(body).hexdigest()}
    assert upstream.count(f"/{path}") == 1


def test_a_crowd_wants_one_layer(make_cluster: MakeCluster, upstream: FakeUpstream) -> None:
    """HO-X-7, HO-X-4: each gets all of it, as its digest says; the upstream sends it once."""
    cluster = make_cluster(masters=2, workers=1)
    body = noise(8_000_000, 3)
    digest = f"sha256:{sha256(body)}"
    upstream.put(f"/v2/team/app/blobs/{digest}", body, pause=0.01)
    cluster[0].repository("there", format="oci", kind="proxy", upstream_url=upstream.url, public=True)
    assert crowd(cluster, f"/v2/there/team/app/blobs/{digest}") == {sha256(body)}
    assert [each.method for each in upstream.asked] == ["GET"]


def fetch(house: House, spelling: str) -> None:
    house.parts.reader.find(Ask("raw", "files", "a+b", ADMIN, spelling=spelling))


def pair_of(make_member: MakeMember, upstream: FakeUpstream) -> tuple[House, House]:
    one, other = make_member(), make_member()
    one.repository(kind="proxy", upstream_url=upstream.url, settings={"miss_ttl": 60})
    return one, other


def test_a_miss_goes_when_another_process_stores_the_path(make_member: MakeMember, upstream: FakeUpstream) -> None:
    """Of the same path by another spelling, so that the miss itself would have stood."""
    one, other = pair_of(make_member, upstream)
    upstream.put("/a%2Bb", BODY)
    with pytest.raises(NotFound):
        fetch(one, "a+b")
    assert len(one.parts.cache.misses) == 1
    fetch(other, "a%2Bb")
    eventually(lambda: len(one.parts.cache.misses) == 0)
    assert one.read("a+b") == BODY
    assert upstream.count("/a+b") == 1


def test_what_another_process_stored_is_found_despite_a_miss_whose_message_is_late(make_member: MakeMember, upstream: FakeUpstream) -> None:
    """C10: in a cluster an absence is confirmed by the rows."""
    one, other = pair_of(make_member, upstream)
    upstream.put("/a%2Bb", BODY)
    with pytest.raises(NotFound):
        fetch(one, "a+b")
    one.loop.stop()
    fetch(other, "a%2Bb")
    assert len(one.parts.cache.misses) == 1
    one.parts.cache.require_synced = lambda: None
    assert one.read("a+b") == BODY
