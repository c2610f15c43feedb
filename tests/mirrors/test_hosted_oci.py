"""A hosted OCI repository that follows a registry: a tag comes when all that it means is there, and nothing comes twice."""

from __future__ import annotations

import json
from typing import Any

import gevent
import pytest
from gevent.event import Event

from app.protocols.oci.uploads import DIGEST
from app.repository.mirrors import run
from app.repository.parts import PART
from tests.mirrors.conftest import Following
from tests.mirrors.test_parts import Ranged
from tests.protocols.oci.conftest import INDEX, MANIFEST, descriptor, digest_of, index_of, manifest_of
from tests.support.house import eventually
from tests.support.upstreams import FakeUpstream, noise

LAYERS = [noise(20_000, number) for number in range(3)]


class Registry:
    """An upstream with one image, `team/app`."""

    def __init__(self, upstream: FakeUpstream) -> None:
        self.upstream = upstream
        self.tags: dict[str, bytes] = {}
        self.blobs(b"{}", *LAYERS)

    def at(self, where: str) -> str:
        return f"/v2/team/app/{where}"

    def blobs(self, *bodies: bytes) -> None:
        for each in bodies:
            self.upstream.put(self.at(f"blobs/{digest_of(each)}"), each)

    def manifest(self, body: bytes, *tags: str, kind: str = MANIFEST) -> str:
        for name in (*tags, digest_of(body)):
            headers = {"Content-Type": kind, "Docker-Content-Digest": digest_of(body)}
            self.upstream.put(self.at(f"manifests/{name}"), body, headers=headers)
        self.tags |= dict.fromkeys(tags, body)
        self.upstream.put(self.at("tags/list"), json.dumps({"name": "team/app", "tags": sorted(self.tags)}).encode())
        return digest_of(body)

    def fetched(self, what: str) -> list[str]:
        """Digests and tags of what was asked for by GET."""
        start = self.at(f"{what}/")
        return [each.target.removeprefix(start) for each in self.upstream.asked if each.method == "GET" and each.target.startswith(start)]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "FIRST_WAIT_SECONDS", 0.02)
    monkeypatch.setattr(run, "BEAT_SECONDS", 0.05)


@pytest.fixture
def registry(upstream: FakeUpstream) -> Registry:
    return Registry(upstream)


@pytest.fixture
def hosted(following: Following, upstream: FakeUpstream) -> Following:
    following.house.repository("images", format="oci")
    return following


def stored(following: Following) -> set[str]:
    return {row.path.removeprefix("team/app/") for row in following.house.rows("select path from arkvory_artifacts")}


def tags(following: Following) -> dict[str, str]:
    """Digests by tag."""
    rows = following.house.rows("select version, metadata from arkvory_artifacts where version is not null")
    return {row.version: row.metadata[DIGEST] for row in rows}


def test_tags_come_with_all_that_they_mean_and_each_part_once(hosted: Following, registry: Registry, upstream: FakeUpstream) -> None:
    """An index with its images, a cache that lists a layer as if it were one, what refers to them; by the upstream's token service."""
    one, two = manifest_of(LAYERS[0]), manifest_of(LAYERS[0], LAYERS[1])
    cache = index_of(LAYERS[2])
    both = index_of(one, two)
    signature = manifest_of(LAYERS[2], subject=descriptor(both, INDEX), artifactType="application/x-signature")
    registry.manifest(one, "1.0")
    registry.manifest(two)
    registry.manifest(both, "2.0", "latest", kind=INDEX)
    registry.manifest(cache, "cache", kind=INDEX)
    registry.manifest(signature)
    upstream.put(registry.at(f"referrers/{digest_of(both)}"), index_of(signature))
    upstream.put("/v2/_catalog?n=500", json.dumps({"repositories": ["team/app"]}).encode())
    upstream.put("/token?service=hub&scope=registry%3Acatalog%3A%2A&account=ci", b'{"token": "all"}')
    upstream.put("/token?service=hub&scope=repository%3Ateam%2Fapp%3Apull&account=ci", b'{"token": "pulls"}')
    for path, rules in upstream.rules.items():
        if path.startswith("/v2/"):
            rules[0].auth = "Bearer all" if path.startswith("/v2/_catalog") else "Bearer pulls"
            rules[0].challenge = f'Bearer realm="{upstream.url}/token",service="hub"'
    hosted.follow("images", upstream_url=upstream.url, upstream={"username": "ci", "password": "secret"})
    after = hosted.run("images")
    assert after.state == "complete", after
    manifests = {digest_of(each): each for each in (one, two, both, cache, signature)}
    wanted = {f"blobs/{digest_of(each)}" for each in (b"{}", *LAYERS)} | {f"manifests/{each}" for each in manifests}
    assert stored(hosted) == wanted | {f"manifests/{each}" for each in ("1.0", "2.0", "latest", "cache")}
    assert tags(hosted) == {"1.0": digest_of(one), "2.0": digest_of(both), "latest": digest_of(both), "cache": digest_of(cache)}
    kind = "select r.kind from arkvory_references r join arkvory_artifacts a on a.id = r.artifact_id where a.path = :path"
    assert hosted.house.value(kind, path=f"team/app/manifests/{digest_of(cache)}") == "part"
    assert set(registry.fetched("blobs")) == {digest_of(each) for each in (b"{}", *LAYERS)}
    assert upstream.count("/token?service=hub&scope=repository%3Ateam%2Fapp%3Apull&account=ci") == 1
    # Again: tags by HEAD, and besides only what is not there may be asked for.
    upstream.asked.clear()
    epochs = hosted.house.epochs("images")
    assert hosted.run("images").state == "complete"
    assert (registry.fetched("blobs"), hosted.house.epochs("images")) == ([], epochs)
    assert not set(registry.fetched("manifests")) & {*manifests, *registry.tags}
    assert set(hosted.states("images").values()) == {"done"}
    hosted.house.assert_nothing_is_left()


def test_a_tag_moves_and_one_that_is_somebody_elses_or_immutable_stays(
    hosted: Following, registry: Registry, upstream: FakeUpstream
) -> None:
    """What the upstream has no more stays too. Of two images with the same layer one fetches it."""
    house = hosted.house
    house.change("images", settings={"immutable_tags": ["v*"]})
    one, two = manifest_of(LAYERS[0]), manifest_of(LAYERS[0], LAYERS[1])
    registry.manifest(one, "latest", "v1", "old")
    upstream.put("/v2/team/other/manifests/1", one, headers={"Content-Type": MANIFEST, "Docker-Content-Digest": digest_of(one)})
    house.publish("team/app/manifests/mine", b"mine", "images", format="oci")
    for names in (["team/app"], ["team/app", "team/other:1"]):
        hosted.follow("images", names=names, upstream_url=upstream.url)
        assert hosted.run("images").state == "complete"
    assert sorted(registry.fetched("blobs")) == sorted(digest_of(each) for each in (b"{}", LAYERS[0]))
    assert not [each for each in upstream.asked if each.target.startswith("/v2/team/other/blobs/")]
    assert house.value("select count(*) from arkvory_artifacts where path like 'team/other/%'") == 4
    registry.manifest(two, "latest", "v1", "mine")
    del registry.tags["old"]
    registry.manifest(two)
    after = hosted.run("images")
    assert (after.state, after.counts["skipped"]) == ("complete", 2), after
    assert tags(hosted) == {"latest": digest_of(two), "v1": digest_of(one), "old": digest_of(one), "1": digest_of(one)}
    house.assert_nothing_is_left()


def test_no_tag_is_there_before_all_of_its_parts_are(hosted: Following, registry: Registry, upstream: FakeUpstream) -> None:
    """Nor its manifest; and where one of them cannot be had, never. A part that was taken for what nobody wants comes again."""
    gate, house = Event(), hosted.house
    slow, lost = manifest_of(LAYERS[0], LAYERS[1]), manifest_of(noise(500, 9))
    registry.manifest(slow, "slow")
    registry.manifest(index_of(slow), "both", kind=INDEX)
    registry.manifest(lost, "lost")
    upstream.put(registry.at(f"blobs/{digest_of(LAYERS[1])}"), LAYERS[1], gate=gate, piece=1000)
    hosted.follow("images", names=["team/app"], upstream_url=upstream.url)
    hosted.begin()
    quick = f"team/app/blobs/{digest_of(LAYERS[0])}"
    eventually(lambda: hosted.states("images").get(quick) == "done" and hosted.states("images").get("team/app/manifests/lost") == "failed")
    gevent.sleep(0.3)
    assert not {each for each in stored(hosted) if each.startswith("manifests/")}
    house.rows("update arkvory_artifacts set candidate_at = now() - interval '1 day' where path = :path", path=quick)
    house.clean()
    gate.set()
    hosted.wait()
    after = hosted.show("images")
    assert (after.state, after.counts["failed"]) == ("incomplete", 1), after
    assert [each["path"] for each in after.errors] == ["team/app/manifests/lost"]
    assert {each for each in stored(hosted) if each.startswith("manifests/")} == {
        "manifests/slow", "manifests/both", f"manifests/{digest_of(slow)}", f"manifests/{digest_of(index_of(slow))}",
    }  # fmt: skip
    assert registry.fetched("blobs").count(digest_of(LAYERS[0])) == 2


def test_a_layer_goes_on_within_where_the_run_was_stopped(hosted: Following, registry: Registry, upstream: FakeUpstream) -> None:
    layer = noise(PART + 12_345, 7)
    registry.manifest(manifest_of(layer), "1.0")
    source = Ranged(upstream, layer, path=registry.at(f"blobs/{digest_of(layer)}"))
    source.after = 1
    hosted.follow("images", names=["team/app:1.0"], upstream_url=upstream.url)
    hosted.begin()
    eventually(lambda: len(source.asked) == 2)
    hosted.stop()
    source.after = 10**9
    source.gate.set()
    hosted.house.parts.sessions.free_all()
    assert hosted.run("images").state == "complete"
    assert [each for each, _ in source.asked[2:]] == [f"bytes={PART}-{2 * PART - 1}"]
    assert tags(hosted) == {"1.0": digest_of(manifest_of(layer))}
    assert registry.fetched("manifests").count("1.0") == 1
    hosted.house.assert_nothing_is_left()


@pytest.mark.parametrize("why", ["held", "quota", "frozen"])
def test_holds_and_quotas_and_the_switch_count_for_a_mirror_too(
    hosted: Following, registry: Registry, upstream: FakeUpstream, why: str
) -> None:
    house: Any = hosted.house
    registry.manifest(manifest_of(LAYERS[0]), "1.0")
    if why == "held":
        house.rows("insert into arkvory_hold_rules (repository_id, pattern, reason) select id, 'team/*', 'new' from arkvory_repositories")
    elif why == "quota":
        house.change("images", quota_bytes=10_000)
    else:
        house.rows("update arkvory_installation set read_only = true")
    hosted.follow("images", names=["team/app"], upstream_url=upstream.url)
    after = hosted.run("images")
    held = house.value("select count(*) from arkvory_artifacts where withheld and path like '%/manifests/%'")
    assert (after.state, held) == (("complete", 2) if why == "held" else ("failed", 0)), after
    house.assert_nothing_is_left()
