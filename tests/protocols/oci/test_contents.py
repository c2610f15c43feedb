"""Tags, referrers, the catalogue, deletes, mounts: end-8 to end-12 (HO-OCI-2, HO-OCI-4); holds, immutable tags, host names, promotions."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest
from werkzeug.test import TestResponse

from tests.protocols.oci.conftest import INDEX, MANIFEST, Registry, descriptor, digest_of, index_of, manifest_of, place, refused
from tests.support.house import ADMIN

LAYER = b"layer" * 1000


def next_page(answer: TestResponse) -> str | None:
    """Where its Link leads, if it has one."""
    link = answer.headers.get("Link")
    if link is None:
        return None
    found = re.fullmatch(r'<([^>]+)>; rel="next"', link)
    assert found is not None, link
    return found.group(1)


def pages(registry: Registry, first: str, key: str, **options: Any) -> list[list[Any]]:
    found: list[list[Any]] = []
    path: str | None = first
    while path is not None:
        answer = registry.get(path, **options)
        assert answer.status_code == 200, answer.text
        found.append(answer.get_json()[key])
        path = next_page(answer)
    return found


# Tags


def test_tags_are_in_the_order_of_their_bytes_whole_and_in_pages(registry: Registry) -> None:
    registry.blob(b"{}")
    body = manifest_of()
    query = "&".join(f"tag={each}" for each in ("b", "A", "a", "1.10", "1.9", "_x"))
    registry.manifest(body, f"{digest_of(body)}?{query}")
    answer = registry.get("oci/app/tags/list")
    assert answer.get_json() == {"name": "oci/app", "tags": ["1.10", "1.9", "A", "_x", "a", "b"]}
    assert next_page(answer) is None
    assert pages(registry, "oci/app/tags/list?n=4", "tags") == [["1.10", "1.9", "A", "_x"], ["a", "b"]]
    assert pages(registry, "oci/app/tags/list?n=3", "tags") == [["1.10", "1.9", "A"], ["_x", "a", "b"]]
    assert pages(registry, "oci/app/tags/list?last=A", "tags") == [["_x", "a", "b"]]
    assert pages(registry, "oci/app/tags/list?n=0", "tags") == [[]]
    for wrong in ("-1", "x", "1.5", "9" * 10):
        assert registry.get(f"oci/app/tags/list?n={wrong}").status_code == 400


def test_c9_a_list_of_tags_is_not_made_again_for_who_has_it(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    from app.protocols.oci import documents

    registry.image("latest", LAYER)
    etag = registry.get("oci/app/tags/list").headers["ETag"]
    registry.image("elsewhere", LAYER, image="oci/other")
    monkeypatch.setattr(documents.TagList, "read", lambda *_: pytest.fail("the list was made again"))
    assert registry.get("oci/app/tags/list", headers={"If-None-Match": etag}).status_code == 304
    monkeypatch.undo()
    registry.image("second", LAYER)
    assert registry.get("oci/app/tags/list", headers={"If-None-Match": etag}).status_code == 200


# Referrers


def referrer(subject: bytes | str, kind: str = "application/vnd.example.sbom", **more: Any) -> bytes:
    digest = subject if isinstance(subject, str) else digest_of(subject)
    return manifest_of(artifactType=kind, subject={"mediaType": MANIFEST, "digest": digest, "size": 2}, **more)


def referrers(registry: Registry, digest: str, query: str = "") -> list[dict[str, Any]]:
    answer = registry.get(f"oci/app/referrers/{digest}{query}")
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, INDEX)
    document = answer.get_json()
    assert (document["schemaVersion"], document["mediaType"]) == (2, INDEX)
    return list(document["manifests"])


def test_a_subject_may_come_after_what_refers_to_it(registry: Registry) -> None:
    registry.blob(b"{}")
    subject = manifest_of(annotations={"is": "subject"})
    body = referrer(subject, annotations={"org.example": "yes"})
    answer = registry.manifest(body, digest_of(body))
    assert (answer.status_code, answer.headers["OCI-Subject"]) == (201, digest_of(subject))
    told = {
        "mediaType": MANIFEST, "size": len(body), "digest": digest_of(body), "artifactType": "application/vnd.example.sbom",
        "annotations": {"org.example": "yes"},
    }  # fmt: skip
    assert referrers(registry, digest_of(subject)) == [told]
    registry.manifest(subject, "latest")
    assert referrers(registry, digest_of(subject)) == [told]
    registry.delete(f"oci/app/manifests/{digest_of(body)}")
    assert referrers(registry, digest_of(subject)) == []


def test_referrers_of_what_nobody_refers_to_are_an_empty_list_and_a_bad_digest_is_400(registry: Registry) -> None:
    assert referrers(registry, digest_of(b"nothing")) == []
    assert refused(registry.get("oci/app/referrers/sha256:short")) == (400, "DIGEST_INVALID")


def test_the_type_of_a_referrer_is_its_own_or_its_configurations_and_a_list_has_none(registry: Registry) -> None:
    image = registry.image("image", LAYER)
    plain = manifest_of(subject=descriptor(image, MANIFEST))
    listed = index_of(image, subject=descriptor(image, MANIFEST))
    typed = index_of(image, subject=descriptor(image, MANIFEST), artifactType="application/vnd.example.list")
    for body, media_type in ((plain, MANIFEST), (listed, INDEX), (typed, INDEX)):
        assert registry.manifest(body, digest_of(body), media_type=media_type).headers["OCI-Subject"] == digest_of(image)
    kinds = {each["digest"]: each.get("artifactType") for each in referrers(registry, digest_of(image))}
    assert kinds == {
        digest_of(plain): "application/vnd.oci.image.config.v1+json",
        digest_of(listed): None,
        digest_of(typed): "application/vnd.example.list",
    }


def test_referrers_by_type_say_that_they_were_filtered(registry: Registry) -> None:
    registry.blob(b"{}")
    subject = digest_of(b"subject")
    for kind in ("application/a", "application/b"):
        body = referrer(subject, kind)
        registry.manifest(body, digest_of(body))
    answer = registry.get(f"oci/app/referrers/{subject}?artifactType=application/a")
    assert answer.headers["OCI-Filters-Applied"] == "artifactType"
    assert [each["artifactType"] for each in answer.get_json()["manifests"]] == ["application/a"]
    assert "OCI-Filters-Applied" not in registry.get(f"oci/app/referrers/{subject}").headers


def test_referrers_come_in_pages_below_4_mib(registry: Registry) -> None:
    registry.blob(b"{}")
    subject = digest_of(b"subject")
    bodies = [referrer(subject, annotations={"n": f"{number}" * 1_200_000}) for number in range(5)]
    for body in bodies:
        assert registry.manifest(body, digest_of(body)).status_code == 201
    answers = pages(registry, f"oci/app/referrers/{subject}?artifactType=application/vnd.example.sbom", "manifests")
    assert [len(each) for each in answers] == [2, 2, 1]
    assert sorted(each["digest"] for page in answers for each in page) == sorted(map(digest_of, bodies))
    assert len(registry.get(f"oci/app/referrers/{subject}").data) < 4 * 1024 * 1024


# Deleting


def test_ho_oci_2_a_tag_goes_alone_and_a_manifest_with_its_tags(registry: Registry) -> None:
    body = registry.image("a", LAYER)
    registry.manifest(body, "b")
    assert registry.delete("oci/app/manifests/a").status_code == 202
    assert registry.tags() == ["b"]
    assert registry.get("oci/app/manifests/b").data == body
    assert refused(registry.get("oci/app/manifests/a")) == (404, "MANIFEST_UNKNOWN")
    assert refused(registry.delete("oci/app/manifests/a")) == (404, "MANIFEST_UNKNOWN")
    assert registry.delete(f"oci/app/manifests/{digest_of(body)}").status_code == 202
    for reference in ("b", digest_of(body)):
        assert refused(registry.get(f"oci/app/manifests/{reference}")) == (404, "MANIFEST_UNKNOWN")
    assert refused(registry.delete(f"oci/app/manifests/{digest_of(body)}")) == (404, "MANIFEST_UNKNOWN")
    assert refused(registry.get("oci/app/tags/list")) == (404, "NAME_UNKNOWN")
    registry.house.assert_counted()
    registry.house.assert_published_is_there()


def test_a_blob_is_deleted_unless_a_manifest_names_it(registry: Registry) -> None:
    free = registry.blob(b"free")
    assert registry.delete(f"oci/app/blobs/{free}").status_code == 202
    assert refused(registry.get(f"oci/app/blobs/{free}")) == (404, "BLOB_UNKNOWN")
    assert refused(registry.delete(f"oci/app/blobs/{free}")) == (404, "BLOB_UNKNOWN")
    body = registry.image("latest", LAYER)
    assert refused(registry.delete(f"oci/app/blobs/{digest_of(LAYER)}")) == (405, "UNSUPPORTED")
    registry.delete(f"oci/app/manifests/{digest_of(body)}")
    assert registry.delete(f"oci/app/blobs/{digest_of(LAYER)}").status_code == 202


def test_a_conditional_push_loses_to_who_came_first(registry: Registry) -> None:
    first = registry.image("latest", b"first")
    etag = registry.get("oci/app/manifests/latest").headers["ETag"]
    registry.image("latest", b"second")
    answer = registry.put("oci/app/manifests/latest", first, headers={"Content-Type": MANIFEST, "If-Match": etag})
    assert answer.status_code == 412
    assert registry.put("oci/app/manifests/latest", first, headers={"Content-Type": MANIFEST, "If-None-Match": "*"}).status_code == 412


# Mounting


def login(registry: Registry, name: str) -> str:
    registry.house.user(name)
    return f"Bearer {registry.house.token(name)}"


def test_ho_oci_4_a_blob_is_mounted_from_where_the_caller_may_read_and_else_an_upload_begins(registry: Registry) -> None:
    house = registry.house
    for name in ("secret", "open"):
        house.repository(name, format="oci")
    auth = login(registry, "ada")
    house.rule("oci", "user:ada", "read", "write")
    house.rule("open", "user:ada", "read")
    digest = registry.blob(LAYER, "secret/y")
    seen = []
    for source in ("&from=secret/y", "&from=unknown/y", "", "&from=secret", "&from=oci/none", "&from=%2F", "&from=open/y"):
        answer = registry.post(f"oci/pub/x/blobs/uploads/?mount={digest}{source}", auth=auth)
        assert re.fullmatch(r"/v2/oci/pub/x/blobs/uploads/[0-9a-f-]{36}", place(answer))
        seen.append((answer.status_code, answer.headers["Range"], sorted(answer.headers.keys()), answer.data))
        assert registry.get(f"oci/pub/x/blobs/{digest}", auth=auth).status_code == 404
    assert seen[0][0] == 202
    assert all(each == seen[0] for each in seen), "what is forbidden looks as what is not there"
    registry.blob(LAYER, "open/y")
    answer = registry.post(f"oci/pub/x/blobs/uploads/?mount={digest}&from=open/y", auth=auth)
    assert (answer.status_code, place(answer), answer.headers["Docker-Content-Digest"]) == (201, f"/v2/oci/pub/x/blobs/{digest}", digest)
    assert registry.get(place(answer), auth=auth).data == LAYER
    assert len(list(house.files())) == 1, "no byte was copied"
    assert house.counters()[2, "published"] == len(LAYER) * 1
    assert refused(registry.post("oci/x/blobs/uploads/?mount=md5:1&from=open/y", auth=auth)) == (400, "DIGEST_INVALID")


def test_a_token_without_the_source_mounts_nothing(registry: Registry) -> None:
    digest = registry.blob(LAYER, "oci/one")
    registry.house.rule("oci", "signed-in", "read", "write")
    secret = login(registry, "ada").removeprefix("Bearer ")
    basic = f"Basic {base64.b64encode(f'x:{secret}'.encode()).decode()}"
    for scopes, status in ((["repository:oci/two:pull,push"], 202), (["repository:oci/two:pull,push", "repository:oci/one:pull"], 201)):
        token = registry.get("token?" + "&".join(f"scope={each}" for each in scopes), auth=basic).get_json()["token"]
        answer = registry.post(f"oci/two/blobs/uploads/?mount={digest}&from=oci/one", auth=f"Bearer {token}")
        assert answer.status_code == status


# The catalogue


def test_the_catalogue_shows_each_caller_what_they_may_read(registry: Registry) -> None:
    house = registry.house
    house.repository("second", format="oci")
    for image in ("oci/a", "oci/team/b", "oci/team/c", "second/z"):
        registry.image("1", LAYER, image=image)
    auth = login(registry, "ada")
    house.rule("oci", "user:ada", "read", prefix="team")
    assert pages(registry, "_catalog", "repositories") == [["oci/a", "oci/team/b", "oci/team/c", "second/z"]]
    assert pages(registry, "_catalog?n=3", "repositories") == [["oci/a", "oci/team/b", "oci/team/c"], ["second/z"]]
    assert pages(registry, "_catalog?n=1", "repositories", auth=auth) == [["oci/team/b"], ["oci/team/c"]]
    assert pages(registry, "_catalog?last=oci/team/b", "repositories", auth=auth) == [["oci/team/c"]]
    assert registry.get("_catalog", auth=None).status_code == 401
    registry.manage("PATCH", "repositories/second", json={"public": True})
    token = registry.get("token?scope=registry:catalog:*", auth=None).get_json()["token"]
    assert pages(registry, "_catalog", "repositories", auth=f"Bearer {token}") == [["second/z"]]


# Quarantine


def held(registry: Registry, path: str) -> None:
    registry.manage("PUT", f"repositories/oci/artifacts/{path}/quarantine", json={"reason": "a test"})


def released(registry: Registry, path: str) -> None:
    registry.manage("DELETE", f"repositories/oci/artifacts/{path}/quarantine")


@pytest.mark.parametrize("by", ["tag", "digest"])
def test_a_held_manifest_leaves_through_no_door(registry: Registry, by: str) -> None:
    body = registry.image("1.0", LAYER)
    registry.manifest(body, "latest")
    other = registry.image("other", b"other")
    about = referrer(other)
    registry.manifest(about, digest_of(about))
    path = f"app/manifests/{digest_of(body) if by == 'digest' else '1.0'}"
    held(registry, path)
    for reference in ("1.0", "latest", digest_of(body)):
        assert refused(registry.get(f"oci/app/manifests/{reference}")) == (403, "DENIED")
        assert registry.head(f"oci/app/manifests/{reference}").status_code == 403
    assert registry.tags() == ["other"]
    # W5: what stands for it later is held from its first moment on, as is what comes again.
    assert registry.manifest(body, "again").status_code == 201
    assert registry.get("oci/app/manifests/again").status_code == 403
    registry.delete(f"oci/app/manifests/{digest_of(body)}")
    registry.manifest(body, "latest")
    assert registry.get("oci/app/manifests/latest").status_code == 403
    released(registry, path)
    for reference in ("latest", digest_of(body)):
        assert registry.get(f"oci/app/manifests/{reference}").status_code == 200
    held(registry, f"app/manifests/{digest_of(about)}")
    assert referrers(registry, digest_of(other)) == []


def test_a_tag_that_moves_on_to_a_good_manifest_is_free_unless_it_is_held_itself(registry: Registry) -> None:
    bad = registry.image("latest", b"bad")
    held(registry, f"app/manifests/{digest_of(bad)}")
    registry.image("latest", b"good")
    assert registry.get("oci/app/manifests/latest").status_code == 200
    held(registry, "app/manifests/latest")
    better = registry.image("latest", b"better")
    assert registry.get("oci/app/manifests/latest").status_code == 403
    assert registry.get(f"oci/app/manifests/{digest_of(better)}").status_code == 403


def test_two_holds_of_the_same_bytes_are_released_one_by_one(registry: Registry) -> None:
    body = registry.image("1.0", LAYER)
    registry.manifest(body, "latest")
    held(registry, f"app/manifests/{digest_of(body)}")
    held(registry, "app/manifests/1.0")
    released(registry, "app/manifests/1.0")
    assert [registry.get(f"oci/app/manifests/{each}").status_code for each in ("1.0", "latest", digest_of(body))] == [403] * 3
    released(registry, f"app/manifests/{digest_of(body)}")
    assert [registry.get(f"oci/app/manifests/{each}").status_code for each in ("1.0", "latest", digest_of(body))] == [200] * 3


def test_a_rule_holds_what_is_pushed_by_tag_and_by_digest(registry: Registry) -> None:
    registry.manage("POST", "repositories/oci/hold-rules", json={"pattern": "*/manifests/rc-*", "reason": "not yet"})
    body = registry.image("rc-1", LAYER)
    assert registry.get("oci/app/manifests/rc-1").status_code == 403
    assert registry.get(f"oci/app/manifests/{digest_of(body)}").status_code == 403


def test_a_held_blob_is_neither_pulled_nor_mounted(registry: Registry) -> None:
    digest = registry.blob(LAYER)
    held(registry, f"app/blobs/{digest}")
    assert refused(registry.get(f"oci/app/blobs/{digest}")) == (403, "DENIED")
    assert registry.post(f"oci/other/blobs/uploads/?mount={digest}&from=oci/app").status_code == 202


# Policies


def test_tags_that_match_a_pattern_stay_what_they_are(registry: Registry) -> None:
    registry.manage("PATCH", "repositories/oci", json={"settings": {"immutable_tags": ["v*", "stable"]}})
    first = registry.image("v1.0", b"one")
    registry.image("latest", b"one")
    second = manifest_of(b"two")
    registry.blob(b"two")
    assert refused(registry.manifest(second, "v1.0")) == (409, "DENIED")
    assert refused(registry.manifest(second, f"{digest_of(second)}?tag=fresh&tag=v1.0")) == (409, "DENIED")
    assert registry.tags() == ["latest", "v1.0"], "all tags or none"
    # W4: the same again is no conflict.
    assert registry.manifest(first, "v1.0").status_code == 201
    assert registry.manifest(second, "latest").status_code == 201
    registry.manage("PATCH", "repositories/oci", json={"settings": {"immutable_tags": None}})
    assert registry.manifest(second, "v1.0").status_code == 201


def test_a_tag_that_stays_what_it_is_is_not_deleted_either(registry: Registry) -> None:
    registry.manage("PATCH", "repositories/oci", json={"settings": {"immutable_tags": ["v*"]}})
    body = registry.image("v1.0", b"one")
    registry.image("latest", b"one")
    for reference in ("v1.0", digest_of(body)):
        answer = registry.delete(f"oci/app/manifests/{reference}")
        assert refused(answer) == (409, "DENIED")
        assert "'v*'" in answer.json["errors"][0]["message"]
    # Others go, and the manifest with them once nothing of that kind names it.
    assert registry.delete("oci/app/manifests/latest").status_code == 202
    registry.manage("PATCH", "repositories/oci", json={"settings": {"immutable_tags": None}})
    assert registry.delete("oci/app/manifests/v1.0").status_code == 202


def test_write_once_holds_for_every_tag_and_read_only_for_all(registry: Registry) -> None:
    registry.manage("PATCH", "repositories/oci", json={"settings": {"write_policy": "once"}})
    registry.image("1", b"one")
    registry.blob(b"two")
    assert registry.manifest(manifest_of(b"two"), "1").status_code == 409
    registry.manage("PATCH", "repositories/oci", json={"settings": {"write_policy": "read_only"}})
    assert refused(registry.post("oci/app/blobs/uploads/")) == (405, "UNSUPPORTED")
    assert refused(registry.manifest(manifest_of(b"one"), "2")) == (405, "UNSUPPORTED")


def test_a_spent_quota_is_403_denied(registry: Registry) -> None:
    registry.manage("PATCH", "repositories/oci", json={"quota_bytes": 10_000})
    upload = registry.begin()
    assert refused(registry.patch(upload, b"x" * 20_000)) == (403, "DENIED")
    assert refused(registry.post(f"oci/app/blobs/uploads/?digest={digest_of(b'x' * 20_000)}", data=b"x" * 20_000)) == (403, "DENIED")
    assert registry.house.counters() == {}
    registry.blob(b"y" * 9_000)


def test_an_offline_repository_is_503(registry: Registry) -> None:
    registry.image("latest", LAYER)
    registry.manage("PATCH", "repositories/oci", json={"status": "offline"})
    answer = registry.get("oci/app/manifests/latest")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "60")
    assert registry.post("oci/app/blobs/uploads/").status_code == 503


# Host names


def test_a_host_name_means_one_repository(registry: Registry) -> None:
    registry.manage("PATCH", "repositories/oci", json={"host": "mirror.example", "public": True})
    body = registry.image("3", LAYER, image="oci/library/alpine")
    at = {"environ_overrides": {"HTTP_HOST": "mirror.example:5000"}}
    assert registry.get("library/alpine/manifests/3", auth=None, **at).data == body
    assert registry.get(f"library/alpine/blobs/{digest_of(LAYER)}", auth=None, **at).data == LAYER
    assert registry.get("library/alpine/tags/list?n=1", auth=None, **at).get_json() == {"name": "library/alpine", "tags": ["3"]}
    answer = registry.post("token/blobs/uploads/", **at)
    assert answer.headers["Location"].startswith("http://mirror.example:5000/v2/token/blobs/uploads/")
    answer = registry.put(f"{answer.headers['Location'][len('http://mirror.example:5000'):]}?digest={digest_of(b'x')}", b"x", **at)
    assert (answer.status_code, answer.headers["Location"]) == (201, f"http://mirror.example:5000/v2/token/blobs/{digest_of(b'x')}")
    refusal = registry.post("library/alpine/blobs/uploads/", auth=None, **at).headers["WWW-Authenticate"]
    assert 'realm="http://mirror.example:5000/v2/token"' in refusal
    assert 'scope="repository:library/alpine:pull,push"' in refusal
    secret = login(registry, "ada").removeprefix("Bearer ")
    registry.house.rule("oci", "user:ada", "write")
    basic = f"Basic {base64.b64encode(f'x:{secret}'.encode()).decode()}"
    token = registry.get("token?scope=repository:library/alpine:pull,push", auth=basic, **at).get_json()["token"]
    assert registry.post("library/alpine/blobs/uploads/", auth=f"Bearer {token}", **at).status_code == 202
    assert registry.post("library/alpine/blobs/uploads/", auth=f"Bearer {token}").status_code == 403
    mounted = registry.post(f"copy/blobs/uploads/?mount={digest_of(LAYER)}&from=library/alpine", **at)
    assert mounted.status_code == 201
    assert pages(registry, "_catalog", "repositories", **at) == [["library/alpine"]]


def test_a_host_name_follows_renames_and_ends_with_its_repository(registry: Registry) -> None:
    registry.manage("PATCH", "repositories/oci", json={"host": "mirror.example", "public": True})
    registry.image("3", LAYER, image="oci/alpine")
    at = {"environ_overrides": {"HTTP_HOST": "mirror.example"}}
    assert registry.get("alpine/manifests/3", **at).status_code == 200
    registry.manage("PATCH", "repositories/oci", json={"name": "images"})
    assert registry.get("alpine/manifests/3", **at).status_code == 200
    taken = registry.app.test_client().post(
        "/api/v1/repositories", json={"name": "other", "format": "oci", "host": "mirror.example"}, headers={"Authorization": "Bearer local"}
    )
    assert taken.status_code == 409
    registry.manage("DELETE", "repositories/images")
    assert registry.get("alpine/manifests/3", **at).status_code == 404
    registry.manage("POST", "repositories", json={"name": "other", "format": "oci", "host": "mirror.example"})
    registry.image("3", LAYER, image="other/alpine")
    assert registry.get("alpine/manifests/3", **at).status_code == 200


@pytest.mark.parametrize(
    ("format", "host"), [("oci", "UPPER.example"), ("oci", "host:5000"), ("oci", ""), ("oci", "a..b"), ("raw", "a.example")]
)
def test_host_names_that_are_none_are_422(registry: Registry, format: str, host: str) -> None:
    answer = registry.app.test_client().post(
        "/api/v1/repositories", json={"name": "other", "format": format, "host": host}, headers={"Authorization": "Bearer local"}
    )
    assert (answer.status_code, answer.get_json()["field"]) == (422, "host")


# Promotions


def test_an_image_is_promoted_with_all_that_it_needs_and_no_byte_moves(registry: Registry) -> None:
    registry.house.repository("prod", format="oci")
    one, two = registry.image("one", b"one"), registry.image("two", b"two", LAYER)
    registry.manifest(index_of(one, two), "many", media_type=INDEX)
    registry.image("unrelated", b"unrelated")
    files = sorted(registry.house.files())
    done = registry.manage("POST", "repositories/oci/promotions", json={"to": "prod", "package": "app", "version": "many"})
    assert done == {"artifacts": 8, "created": 8}
    assert registry.get("prod/app/manifests/many").data == index_of(one, two)
    for body in (b"one", b"two", LAYER, b"{}"):
        assert registry.get(f"prod/app/blobs/{digest_of(body)}").data == body
    for body in (one, two):
        assert registry.get(f"prod/app/manifests/{digest_of(body)}").data == body
    assert registry.tags("prod/app") == ["many"]
    assert registry.get(f"prod/app/blobs/{digest_of(b'unrelated')}").status_code == 404
    assert sorted(registry.house.files()) == files
    registry.house.assert_counted()
    registry.house.assert_published_is_there()
    # The copy lives by itself.
    registry.manage("DELETE", "repositories/oci")
    for _ in range(3):
        registry.parts.cleanup.run()
    assert registry.get(f"prod/app/blobs/{digest_of(LAYER)}").data == LAYER
    assert registry.get("prod/app/manifests/many").status_code == 200
    registry.house.assert_counted()


def promotion(registry: Registry, body: dict[str, Any], auth: str = "Bearer local", source: str = "oci") -> tuple[int, str | None]:
    answer = registry.app.test_client().post(f"/api/v1/repositories/{source}/promotions", json=body, headers={"Authorization": auth})
    return answer.status_code, answer.get_json().get("code")


def test_promotions_that_cannot_be_change_nothing(registry: Registry) -> None:
    house = registry.house
    for name, format in (("prod", "oci"), ("files", "raw"), ("small", "oci")):
        house.repository(name, format=format)
    registry.manage("PATCH", "repositories/small", json={"quota_bytes": 100})
    body = registry.image("1", LAYER)
    reader, writer = login(registry, "reader"), login(registry, "writer")
    house.rule("oci", "user:reader", "read")
    house.rule("prod", "user:reader", "read")
    house.rule("prod", "user:writer", "read", "write")
    whole = {"to": "prod", "package": "app", "version": "1"}
    assert promotion(registry, whole, reader) == (403, "forbidden")
    assert promotion(registry, whole, writer)[0] in (403, 404)
    assert promotion(registry, whole | {"version": "2"}) == (404, "not_found")
    assert promotion(registry, whole | {"to": "files"})[0] == 404
    assert promotion(registry, whole | {"to": "oci"})[0] == 422
    assert promotion(registry, whole | {"to": "small"})[0] == 507
    assert promotion(registry, {"to": "prod"})[0] == 422
    assert promotion(registry, {"to": "prod", "paths": ["absent"]})[0] == 404
    held(registry, f"app/manifests/{digest_of(body)}")
    assert promotion(registry, whole) == (403, "quarantined")
    there = "select count(*) from arkvory_artifacts a join arkvory_repositories r on r.id = a.repository_id where r.name = 'prod'"
    assert house.value(there) == 0
    house.assert_counted()


def test_files_and_versions_of_other_formats_are_promoted_too(registry: Registry) -> None:
    house = registry.house
    for name in ("staging", "released"):
        house.repository(name)
    for path in ("a/1.txt", "a/b/2.txt", "ab.txt"):
        house.publish(path, path.encode(), "staging", caller=ADMIN)
    folder = {"to": "released", "paths": ["a/"]}
    assert registry.manage("POST", "repositories/staging/promotions", json=folder) == {"artifacts": 2, "created": 2}
    assert registry.request("GET", "/raw/released/a/b/2.txt").data == b"a/b/2.txt"
    assert registry.request("GET", "/raw/released/ab.txt").status_code == 404
    again = {"to": "released", "paths": ["a/1.txt", "ab.txt"]}
    assert registry.manage("POST", "repositories/staging/promotions", json=again) == {"artifacts": 2, "created": 1}
    house.assert_counted()
    house.assert_published_is_there()


def test_an_artifact_of_an_image_is_shown_and_deleted_by_the_management_api(registry: Registry) -> None:
    body = registry.image("1", LAYER)
    shown = registry.manage("GET", "repositories/oci/artifacts/app/manifests/1")
    assert (shown["package"], shown["version"], shown["sha256"]) == ("app", "1", digest_of(body).partition(":")[2])
    assert registry.get(shown["url"].removeprefix("http://localhost")).data == body
    registry.manage("DELETE", f"repositories/oci/artifacts/app/manifests/{digest_of(body)}")
    assert registry.get("oci/app/manifests/1").status_code == 404
    assert json.loads(registry.get("_catalog").data) == {"repositories": []}
