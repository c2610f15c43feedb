"""OCI through a group of a hosted repository and a proxy: lists are merged, bytes and their names come from the first that has them."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from werkzeug.test import TestResponse

from app.access.tokens import NewToken
from tests.protocols.oci.conftest import INDEX, MANIFEST, Registry, digest_of, index_of, manifest_of, refused
from tests.protocols.oci.test_proxy import AT, LAYER, OTHER, put_tags, referrer
from tests.support.house import ADMIN, House
from tests.support.upstreams import FakeUpstream

ADMINISTRATOR = {"Authorization": "Bearer local"}


class Grouped(Registry):
    """A group `all` of the hosted `oci` and the proxy `there`, in this order; each request is sent once."""

    upstream: FakeUpstream

    def read(self, path: str, **options: Any) -> TestResponse:
        return self.get(f"all/{path}", **options)

    def hold(self, repository: str, path: str) -> None:
        self.manage("PUT", f"repositories/{repository}/artifacts/{path}/quarantine", json={"reason": "not looked at"})


@pytest.fixture
def grouped(house: House, database_url: str, tmp_path: Path, upstream: FakeUpstream) -> Iterator[Grouped]:
    house.repository("oci", format="oci")
    house.repository("there", format="oci", kind="proxy", upstream_url=upstream.url)
    house.repository("all", format="oci", kind="group", members=["oci", "there"])
    made = Grouped(house, database_url, tmp_path / "data")
    # Answers of a proxy say how they came about, which is another one each time.
    made.client = made.app.test_client()  # type: ignore[assignment]
    made.upstream = upstream
    yield made
    made.close()


def put(grouped: Grouped, tag: str, body: bytes) -> None:
    """At the upstream."""
    for name in (tag, digest_of(body)):
        headers = {"Content-Type": MANIFEST, "Docker-Content-Digest": digest_of(body)}
        grouped.upstream.put(f"{AT}/manifests/{name}", body, headers=headers)


def test_the_first_member_that_has_a_tag_wins_and_lists_show_all(grouped: Grouped) -> None:
    ours = grouped.image("1.0", LAYER, image="oci/team/app")
    put(grouped, "1.0", manifest_of(OTHER))
    put(grouped, "2.0", manifest_of(OTHER))
    put_tags(grouped.upstream, ["1.0", "2.0", "0.9"], 2)
    assert grouped.read("team/app/manifests/1.0").data == ours
    theirs = grouped.read("team/app/manifests/2.0")
    assert (theirs.data, theirs.headers["X-Arkvory-Member"]) == (manifest_of(OTHER), "there")
    assert grouped.read("team/app/tags/list").get_json() == {"name": "all/team/app", "tags": ["0.9", "1.0", "2.0"]}
    first = grouped.read("team/app/tags/list?n=2")
    assert first.get_json()["tags"] == ["0.9", "1.0"]
    rest = grouped.get(first.headers["Link"].partition(">")[0].strip("<"))
    assert (rest.get_json()["tags"], "Link" in rest.headers) == (["2.0"], False)


def test_what_the_first_member_withholds_no_later_one_shows(grouped: Grouped) -> None:
    grouped.image("1.0", LAYER, image="oci/team/app")
    put(grouped, "1.0", manifest_of(OTHER))
    put(grouped, "2.0", manifest_of(OTHER))
    put_tags(grouped.upstream, ["1.0", "2.0"], 10)
    grouped.hold("oci", "team/app/manifests/1.0")
    assert refused(grouped.read("team/app/manifests/1.0")) == (403, "DENIED")
    assert grouped.read("team/app/tags/list").get_json()["tags"] == ["2.0"]
    grouped.hold("there", "team/app/manifests/2.0")
    assert grouped.read("team/app/tags/list").get_json()["tags"] == []


def test_referrers_are_those_of_all_members(grouped: Grouped) -> None:
    subject = grouped.image("1.0", LAYER, image="oci/team/app")
    grouped.image("sig", OTHER, image="oci/team/app", subject={"mediaType": MANIFEST, "digest": digest_of(subject), "size": len(subject)})
    assert len(grouped.read(f"team/app/referrers/{digest_of(subject)}").get_json()["manifests"]) == 1
    theirs = referrer(b"one", "a/b")
    body = index_of().replace(b'"manifests": []', b'"manifests": [%s]' % str(theirs).replace("'", '"').encode())
    grouped.upstream.put(f"{AT}/referrers/{digest_of(subject)}", body, headers={"Content-Type": INDEX})
    grouped.parts.cache.misses.clear()
    listed = grouped.read(f"team/app/referrers/{digest_of(subject)}").get_json()["manifests"]
    assert {each["digest"] for each in listed} >= {theirs["digest"]}
    assert len(listed) == 2
    assert grouped.read(f"team/app/referrers/{digest_of(subject)}?artifactType=a/b").get_json()["manifests"] == [theirs]
    assert grouped.read(f"other/app/referrers/{digest_of(b'x')}").get_json()["manifests"] == []


def test_a_member_that_fails_is_passed_over_in_lists(grouped: Grouped) -> None:
    grouped.image("1.0", LAYER, image="oci/team/app")
    grouped.upstream.stop()
    answer = grouped.read("team/app/tags/list")
    assert (answer.get_json()["tags"], answer.headers["X-Arkvory-Passed-Over"]) == (["1.0"], "there")
    assert grouped.read("team/app/manifests/9").status_code in (502, 504)


def test_the_catalogue_has_the_images_of_groups(grouped: Grouped) -> None:
    """Of those that the caller may read, whether they may read the members or not; of what a proxy has, its copies."""
    for image in ("team/app", "team/zoo", "abc"):
        grouped.image("1.0", LAYER, image=f"oci/{image}")
    for each in (LAYER, b"{}"):
        grouped.upstream.put(f"{AT}/blobs/{digest_of(each)}", each)
    put(grouped, "2.0", manifest_of(LAYER))
    assert grouped.get("there/team/app/manifests/2.0").status_code == 200
    group, hosted = ([f"{name}/{image}" for image in ("abc", "team/app", "team/zoo")] for name in ("all", "oci"))
    assert grouped.get("_catalog").get_json()["repositories"] == [*group, *hosted, "there/team/app"]
    first = grouped.get("_catalog?n=2")
    assert first.get_json()["repositories"] == group[:2]
    assert grouped.get("_catalog?n=2&last=all/team/app").get_json()["repositories"] == [group[2], hosted[0]]
    grouped.house.user("ann"), grouped.house.rule("all", "user:ann", "read", prefix="team")
    bearer = f"Bearer {grouped.house.token('ann')}"
    assert grouped.get("_catalog", auth=bearer).get_json()["repositories"] == group[1:]
    grouped.manage("PATCH", "repositories/oci", json={"status": "offline"})
    assert grouped.get("_catalog").get_json()["repositories"] == ["all/team/app", "there/team/app"]


def test_pushes_need_a_member_that_takes_them(grouped: Grouped) -> None:
    """HO-OCI-2: docker wants one address for both; what is pushed to the group is the member's."""
    assert refused(grouped.post("all/team/app/blobs/uploads/")) == (405, "UNSUPPORTED")
    grouped.manage("PATCH", "repositories/all", json={"settings": {"write_member": "oci"}})
    body = grouped.image("3.0", LAYER, image="all/team/app")
    assert grouped.get("oci/team/app/manifests/3.0").data == body
    assert grouped.read(f"team/app/blobs/{digest_of(LAYER)}").data == LAYER


def test_a_pass_for_pushes_through_a_group_is_for_who_may_write_in_its_member(grouped: Grouped) -> None:
    """And the credential behind it may be a token for the group alone, which also deletes a manifest with its tags."""
    grouped.manage("PATCH", "repositories/all", json={"settings": {"write_member": "oci"}})
    house = grouped.house
    for name in ("ann", "bob"):
        house.user(name), house.rule("all", f"user:{name}", "read", "write", "delete")
    house.rule("oci", "user:ann", "write", "delete")

    def passing(name: str) -> tuple[str, str]:
        secret = house.tokens.create(ADMIN, NewToken("t", ("read", "write", "delete"), ["all"], user=name))[1]
        asked = "/v2/token?scope=repository:all/team/app:pull,push,delete"
        told = grouped.get(asked, auth=f"Basic {base64.b64encode(f'x:{secret}'.encode()).decode()}").get_json()
        return told["scope"], f"Bearer {told['token']}"

    assert passing("bob")[0] == "repository:all/team/app:pull"
    scope, bearer = passing("ann")
    assert scope == "repository:all/team/app:delete,pull,push"
    for each in (b"{}", LAYER):
        grouped.blob(each, "all/team/app", auth=bearer)
    body = manifest_of(LAYER)
    assert grouped.manifest(body, "1.0", "all/team/app", auth=bearer).status_code == 201
    assert grouped.delete(f"all/team/app/manifests/{digest_of(body)}", auth=bearer).status_code == 202
    assert grouped.read("team/app/manifests/1.0").status_code == 404


# Pushing through a group what another member has


@pytest.fixture
def pushed_to(grouped: Grouped) -> Grouped:
    grouped.manage("PATCH", "repositories/all", json={"settings": {"write_member": "oci"}})
    return grouped


def push(grouped: Grouped, body: bytes, reference: str, *blobs: bytes, media_type: str = MANIFEST) -> TestResponse:
    """As podman, skopeo and docker do: what is there already (HEAD) is not sent."""
    for each in blobs:
        if grouped.client.head(f"/v2/all/team/app/blobs/{digest_of(each)}", headers=ADMINISTRATOR).status_code == 404:
            grouped.blob(each, "all/team/app")
    return grouped.manifest(body, reference, "all/team/app", media_type)


def at_upstream(grouped: Grouped, *blobs: bytes) -> None:
    for each in blobs:
        grouped.upstream.put(f"{AT}/blobs/{digest_of(each)}", each)


@pytest.mark.parametrize("copied", [False, True])
def test_layers_that_a_proxy_has_are_mounted_into_the_member_that_takes_the_push(pushed_to: Grouped, copied: bool) -> None:
    """An image built on one of the upstream's, under its name: the base layer was not sent."""
    at_upstream(pushed_to, LAYER, b"{}")
    if copied:
        assert pushed_to.read(f"team/app/blobs/{digest_of(LAYER)}").data == LAYER
    body = manifest_of(LAYER, OTHER)
    assert push(pushed_to, body, "7", b"{}", LAYER, OTHER).status_code == 201
    assert pushed_to.upstream.count(f"{AT}/blobs/{digest_of(LAYER)}", "GET") == 1
    pushed_to.upstream.stop()
    assert pushed_to.get("oci/team/app/manifests/7").data == body
    for each in (b"{}", LAYER, OTHER):
        assert pushed_to.get(f"oci/team/app/blobs/{digest_of(each)}").data == each
    pushed_to.house.assert_counted()
    usage = pushed_to.manage("GET", "repositories/oci/usage")
    assert usage["bytes"]["published"] == 2 * len(body) + len(b"{}") + len(LAYER) + len(OTHER)
    assert push(pushed_to, body, "7", b"{}", LAYER, OTHER).status_code == 201


def test_images_of_an_index_are_mounted_with_their_layers(pushed_to: Grouped) -> None:
    at_upstream(pushed_to, LAYER, b"{}")
    theirs, ours = manifest_of(LAYER), manifest_of(OTHER)
    put(pushed_to, "1", theirs)
    assert push(pushed_to, ours, digest_of(ours), b"{}", OTHER).status_code == 201
    index = index_of(theirs, ours)
    assert push(pushed_to, index, "all", media_type=INDEX).status_code == 201
    pushed_to.upstream.stop()
    assert pushed_to.get(f"oci/team/app/manifests/{digest_of(theirs)}").data == theirs
    assert pushed_to.get(f"oci/team/app/blobs/{digest_of(LAYER)}").data == LAYER
    assert pushed_to.tags("oci/team/app") == ["all"]
    pushed_to.house.assert_counted()


def test_what_no_member_has_is_told_and_what_cannot_be_told_is_no_absence(pushed_to: Grouped) -> None:
    at_upstream(pushed_to, b"{}")
    answer = push(pushed_to, manifest_of(LAYER), "7", b"{}")
    assert refused(answer) == (404, "MANIFEST_BLOB_UNKNOWN")
    assert pushed_to.get("oci/team/app/manifests/7").status_code == 404
    # The hosted repository alone knows of no other.
    assert refused(pushed_to.manifest(manifest_of(), "7", "oci/team/app")) == (404, "MANIFEST_BLOB_UNKNOWN")
    pushed_to.parts.cache.misses.clear()
    pushed_to.upstream.stop()
    assert pushed_to.manifest(manifest_of(LAYER), "7", "all/team/app").status_code in (502, 503, 504)
    pushed_to.hold("there", f"team/app/blobs/{digest_of(b'{}')}")
    assert refused(pushed_to.manifest(manifest_of(), "7", "all/team/app")) == (404, "MANIFEST_BLOB_UNKNOWN")
    pushed_to.house.assert_counted()
