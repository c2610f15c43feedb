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
