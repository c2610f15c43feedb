"""OCI proxies (DESIGN 6, PROTOCOLS "oci"): what they ask, keep and answer, before an upstream that does what the test says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest
from werkzeug.test import TestResponse

from app.errors import UpstreamFailed
from app.repository.fetching import SMALL
from app.repository.quarantine import Quarantine
from tests.protocols.oci.conftest import INDEX, MANIFEST, Registry, digest_of, index_of, manifest_of, refused
from tests.support.house import ADMIN, House, eventually
from tests.support.upstreams import FakeUpstream, noise

LAYER, OTHER = noise(200_000), noise(100_000, 2)
LARGE = noise(3 * SMALL + 12345, 3)
AT = "/v2/team/app"


class Proxied(Registry):
    """With a proxy `there` of the upstream; each request is sent once."""

    upstream: FakeUpstream

    def get(self, path: str, **options: Any) -> TestResponse:
        return super().get(f"there/{path}" if not path.startswith("/") else path, **options)

    def head(self, path: str, **options: Any) -> TestResponse:
        return super().head(f"there/{path}", **options)

    def put_image(self, tag: str, *layers: bytes, **more: Any) -> bytes:
        """An image at the upstream as `team/app`, as most registries show it; its manifest."""
        body = manifest_of(*layers, **more)
        self.put_manifest(body, tag)
        for each in (b"{}", *layers):
            self.upstream.put(f"{AT}/blobs/{digest_of(each)}", each)
        return body

    def put_manifest(self, body: bytes, *tags: str, kind: str = MANIFEST, **more: Any) -> None:
        headers = {"Content-Type": kind, "Docker-Content-Digest": digest_of(body), **more.pop("headers", {})}
        for name in (*tags, digest_of(body)):
            self.upstream.put(f"{AT}/manifests/{name}", body, headers=headers, **more)

    def asked(self) -> list[str]:
        """What the upstream was asked since the last call."""
        found = [f"{each.method} {each.target.removeprefix(AT)}" for each in self.upstream.asked]
        self.upstream.asked.clear()
        return found


@pytest.fixture
def proxied(house: House, database_url: str, tmp_path: Path, upstream: FakeUpstream) -> Iterator[Proxied]:
    house.repository("there", format="oci", kind="proxy", upstream_url=upstream.url)
    made = Proxied(house, database_url, tmp_path / "data")
    # Answers of a proxy say how they came about, which is another one each time.
    made.client = made.app.test_client()  # type: ignore[assignment]
    made.upstream = upstream
    yield made
    made.close()


def how(answer: TestResponse) -> tuple[int, str]:
    return answer.status_code, answer.headers.get("X-Arkvory-Cache", "")


def due(proxied: Proxied) -> None:
    """From now on copies are compared at each read, also those whose time is in memory."""
    change(proxied, settings={"mutable_ttl": 0})
    proxied.parts.cache.gates.clear()


def grow_old(house: House, minutes: float) -> None:
    for column, table in (("candidate_at", "artifacts"), ("candidate_at", "blobs"), ("last_used_at", "blobs")):
        house.rows(f"update arkvory_{table} set {column} = {column} - make_interval(mins => :minutes)", minutes=minutes)


def change(proxied: Proxied, **values: Any) -> None:
    proxied.manage("PATCH", "repositories/there", json=values)


# Manifests


def test_one_pull_of_a_tag_is_good_for_its_digest_too(proxied: Proxied, house: House) -> None:
    body = proxied.put_image("1.0", LAYER)
    cold = proxied.get("team/app/manifests/1.0")
    assert (how(cold), cold.data) == ((200, "miss"), body)
    assert (cold.headers["Content-Type"], cold.headers["Docker-Content-Digest"]) == (MANIFEST, digest_of(body))
    by_digest = proxied.get(f"team/app/manifests/{digest_of(body)}")
    assert (how(by_digest), by_digest.data) == ((200, "hit"), body)
    assert how(proxied.get("team/app/manifests/1.0")) == (200, "hit")
    assert proxied.asked() == ["GET /manifests/1.0"]
    house.assert_nothing_is_left()


def test_a_tag_is_compared_by_head_which_no_registry_counts(proxied: Proxied, house: House) -> None:
    first = proxied.put_image("1.0", LAYER)
    proxied.get("team/app/manifests/1.0")
    due(proxied)
    epochs = house.epochs("there")
    assert [how(proxied.get("team/app/manifests/1.0")) for _ in range(2)] == [(200, "revalidated")] * 2
    assert house.epochs("there") == epochs
    assert proxied.asked() == ["GET /manifests/1.0", "HEAD /manifests/1.0", "HEAD /manifests/1.0"]
    second = proxied.put_image("1.0", OTHER)
    assert proxied.get("team/app/manifests/1.0").data == second
    assert proxied.asked() == ["HEAD /manifests/1.0", "GET /manifests/1.0"]
    # What the tag meant before can be had by its digest still.
    assert proxied.get(f"team/app/manifests/{digest_of(first)}").data == first
    assert proxied.asked() == []
    house.assert_nothing_is_left()


def test_an_upstream_without_head_or_digests_is_asked_conditionally(proxied: Proxied, house: House) -> None:
    body = manifest_of(LAYER)
    proxied.upstream.put(f"{AT}/manifests/1.0", body, etag='"v1"', headers={"Content-Type": MANIFEST})
    proxied.upstream.put(f"{AT}/manifests/1.0", status=405, method="HEAD")
    cold = proxied.get("team/app/manifests/1.0")
    assert (how(cold), cold.headers["Docker-Content-Digest"]) == ((200, "miss"), digest_of(body))
    due(proxied)
    assert how(proxied.get("team/app/manifests/1.0")) == (200, "revalidated")
    assert proxied.upstream.asked[-1].headers["if-none-match"] == '"v1"'


def test_a_tag_that_is_gone_goes_and_its_manifest_stays(proxied: Proxied, house: House) -> None:
    body = proxied.put_image("1.0", LAYER)
    proxied.get("team/app/manifests/1.0")
    due(proxied)
    proxied.upstream.forget(f"{AT}/manifests/1.0")
    assert refused(proxied.get("team/app/manifests/1.0")) == (404, "MANIFEST_UNKNOWN")
    assert proxied.get(f"team/app/manifests/{digest_of(body)}").data == body
    house.assert_nothing_is_left()


def test_the_upstream_sees_all_types_whatever_the_client_takes(proxied: Proxied) -> None:
    """HO-OCI-3."""
    body = index_of(manifest_of(LAYER), spaced="   as it came")
    proxied.upstream.put(f"{AT}/manifests/3.20", body, headers={"Content-Type": INDEX}, accept="image.index")
    for accept in (f"{INDEX}, {MANIFEST}", MANIFEST, None):
        answer = proxied.get("team/app/manifests/3.20", headers={} if accept is None else {"Accept": accept})
        assert (answer.status_code, answer.data, answer.headers["Content-Type"]) == (200, body, INDEX)
        assert answer.headers["Docker-Content-Digest"] == digest_of(body)
    assert proxied.get(f"team/app/manifests/{digest_of(body)}").data == body
    assert proxied.asked() == ["GET /manifests/3.20"]


def test_a_tag_is_asked_for_again_when_the_upstream_is_away(proxied: Proxied, house: House) -> None:
    """Clients ask by HEAD what a tag means, then for the digest: after the first pull both are here."""
    body = proxied.put_image("1.0", LAYER)
    cold = proxied.head("team/app/manifests/1.0")
    assert (how(cold), cold.headers["Docker-Content-Digest"]) == ((200, "miss"), digest_of(body))
    assert cold.headers["Content-Length"] == str(len(body))
    assert proxied.get(f"team/app/manifests/{digest_of(body)}").data == body
    due(proxied)
    proxied.upstream.stop()
    stale = proxied.head("team/app/manifests/1.0")
    assert (how(stale), stale.headers["Docker-Content-Digest"]) == ((200, "stale"), digest_of(body))
    assert how(proxied.get(f"team/app/manifests/{digest_of(body)}")) == (200, "hit")
    assert proxied.get("team/app/manifests/2.0").status_code in (502, 504)


@pytest.mark.parametrize("by", ["tag", "digest"])
@pytest.mark.parametrize("what", ["other bytes", "a page", "no manifest", "too long", "short", "nothing"])
def test_what_is_not_the_manifest_is_never_stored(proxied: Proxied, house: House, by: str, what: str) -> None:
    """HO-X-4, and pages for people with 200."""
    body = manifest_of(LAYER)
    proxied.put_manifest(body, "1.0")
    name = "1.0" if by == "tag" else digest_of(body)
    headers = {"Content-Type": MANIFEST} | ({"Docker-Content-Digest": digest_of(body)} if what == "other bytes" else {})
    sent = {
        "other bytes": manifest_of(OTHER), "a page": b"<html>Please log in</html>", "no manifest": b'{"tags": []}',
        "too long": b'{"schemaVersion": 2, "layers": [' + b" " * (4 << 20) + b"]}", "short": body, "nothing": b"",
    }[what]  # fmt: skip
    proxied.upstream.put(f"{AT}/manifests/{name}", sent, headers=headers, truncate=100 if what == "short" else None)
    assert refused(proxied.get(f"team/app/manifests/{name}"))[0] == 502
    assert house.value("select count(*) from arkvory_artifacts") == 0
    house.assert_nothing_is_left()
    proxied.put_manifest(body, "1.0")
    assert proxied.get(f"team/app/manifests/{name}").data == body


def test_a_copy_outlives_what_is_no_manifest(proxied: Proxied, house: House) -> None:
    body = proxied.put_image("1.0", LAYER)
    proxied.get("team/app/manifests/1.0")
    due(proxied)
    proxied.upstream.put(f"{AT}/manifests/1.0", b"<html>", headers={"Content-Type": "text/html"})
    stale = proxied.get("team/app/manifests/1.0")
    assert (how(stale), stale.data) == ((200, "stale"), body)


def test_of_a_list_only_what_clients_ask_for_is_fetched(proxied: Proxied, house: House) -> None:
    images = [manifest_of(noise(100, number)) for number in range(20)]
    body = index_of(*images)
    proxied.put_manifest(body, "1.0", kind=INDEX)
    for each in images:
        proxied.put_manifest(each)
    assert proxied.get("team/app/manifests/1.0").data == body
    assert proxied.get(f"team/app/manifests/{digest_of(images[7])}").data == images[7]
    assert len(proxied.asked()) == 2
    assert house.value("select count(*) from arkvory_artifacts") == 3
    house.assert_nothing_is_left()


# Blobs


@pytest.mark.parametrize(("body", "chunked", "algorithm"), [(LAYER, False, "sha512"), (LARGE, True, "sha256"), (LARGE, False, "sha512")])
def test_a_blob_is_fetched_once_and_for_good(proxied: Proxied, house: House, body: bytes, chunked: bool, algorithm: str) -> None:
    digest = digest_of(body, algorithm)
    proxied.upstream.put(f"{AT}/blobs/{digest}", body, chunked=chunked)
    cold = proxied.get(f"team/app/blobs/{digest}")
    assert (how(cold), cold.data, cold.headers["Docker-Content-Digest"]) == ((200, "miss"), body, digest)
    eventually(lambda: how(proxied.get(f"team/app/blobs/{digest}")) == (200, "hit"))
    due(proxied)
    assert (how(warm := proxied.get(f"team/app/blobs/{digest}")), warm.data) == ((200, "hit"), body)
    assert len(proxied.asked()) == 1
    house.assert_counted()


@pytest.mark.parametrize("body", [LAYER, LARGE])
@pytest.mark.parametrize("fault", [{"truncate": 100_000}, {"body": noise(200_000, 9)}, {"chunked": True, "truncate": 150_000}])
def test_a_blob_that_is_not_what_its_digest_says_is_never_whole_for_anyone(
    proxied: Proxied, house: House, body: bytes, fault: dict[str, Any]
) -> None:
    """HO-X-4. The last bytes of a long one are withheld: the client sees a broken transfer, never a clean short answer."""
    address = f"{AT}/blobs/{digest_of(body)}"
    sent = fault.get("body", b"")
    proxied.upstream.put(address, sent + body[len(sent) :], **{name: value for name, value in fault.items() if name != "body"})
    assert is_broken(proxied, f"team/app/blobs/{digest_of(body)}")
    eventually(lambda: not house.value("select count(*) from arkvory_artifacts"))
    house.assert_nothing_is_left()
    proxied.upstream.put(address, body)
    assert proxied.get(f"team/app/blobs/{digest_of(body)}").data == body


def is_broken(proxied: Proxied, path: str) -> bool:
    """Whether the client is refused, or its transfer breaks off: in this process as the error that breaks it."""
    try:
        answer = proxied.get(path)
        return answer.status_code == 502 or not answer.data
    except UpstreamFailed:
        return True


def test_head_of_a_blob_that_is_not_here_brings_none_of_it(proxied: Proxied, house: House) -> None:
    digest = digest_of(LARGE)
    proxied.upstream.put(f"{AT}/blobs/{digest}", LARGE)
    head = proxied.head(f"team/app/blobs/{digest}")
    assert (how(head), head.headers["Content-Length"], head.headers["Docker-Content-Digest"]) == ((200, "miss"), str(len(LARGE)), digest)
    assert proxied.asked() == [f"HEAD /blobs/{digest}"]
    assert house.value("select count(*) from arkvory_artifacts") == 0
    assert refused_head(proxied.head(f"team/app/blobs/{digest_of(b'none')}")) == 404
    assert refused(proxied.get(f"team/app/blobs/{digest_of(b'none')}")) == (404, "BLOB_UNKNOWN")
    # The miss was remembered.
    assert proxied.asked() == [f"HEAD /blobs/{digest_of(b'none')}"]
    proxied.get(f"team/app/blobs/{digest}")
    eventually(lambda: how(proxied.head(f"team/app/blobs/{digest}")) == (200, "hit"))


def refused_head(answer: TestResponse) -> int:
    assert not answer.data
    return answer.status_code


@pytest.mark.parametrize("status", [405, 501, 403, 500])
def test_an_upstream_that_does_not_answer_head_is_asked_for_the_blob(proxied: Proxied, status: int) -> None:
    digest = digest_of(LAYER)
    proxied.upstream.put(f"{AT}/blobs/{digest}", LAYER)
    proxied.upstream.put(f"{AT}/blobs/{digest}", status=status, method="HEAD")
    head = proxied.head(f"team/app/blobs/{digest}")
    assert (head.status_code, head.headers["Content-Length"]) == (200, str(len(LAYER)))
    assert proxied.asked() == [f"HEAD /blobs/{digest}", f"GET /blobs/{digest}"]


# How long copies live (W3)


def test_parts_that_came_behind_their_manifest_are_kept_by_it(proxied: Proxied, house: House) -> None:
    body = proxied.put_image("1.0", LAYER, OTHER)
    proxied.get("team/app/manifests/1.0")
    for each in (b"{}", LAYER):
        proxied.get(f"team/app/blobs/{digest_of(each)}")
    gevent.sleep(0.1)
    house.clean()
    proxied.asked()
    for each in (b"{}", LAYER):
        assert how(proxied.get(f"team/app/blobs/{digest_of(each)}")) == (200, "hit")
    assert proxied.get(f"team/app/blobs/{digest_of(OTHER)}").data == OTHER
    assert proxied.asked() == [f"GET /blobs/{digest_of(OTHER)}"]
    assert proxied.get(f"team/app/manifests/{digest_of(body)}").data == body
    house.assert_nothing_is_left()


def test_parts_that_came_before_their_manifest_are_kept_by_it_too(proxied: Proxied, house: House) -> None:
    proxied.put_image("1.0", LAYER)
    proxied.get(f"team/app/blobs/{digest_of(LAYER)}")
    proxied.get("team/app/manifests/1.0")
    gevent.sleep(0.1)
    house.clean()
    assert how(proxied.get(f"team/app/blobs/{digest_of(LAYER)}")) == (200, "hit")


def test_what_a_list_names_may_be_a_blob_and_is_kept_by_it(proxied: Proxied, house: House) -> None:
    """Build caches list their layers as if they were images."""
    body = index_of(LAYER)
    proxied.put_manifest(body, "cache", kind=INDEX)
    proxied.upstream.put(f"{AT}/blobs/{digest_of(LAYER)}", LAYER)
    proxied.get("team/app/manifests/cache")
    proxied.get(f"team/app/blobs/{digest_of(LAYER)}")
    gevent.sleep(0.1)
    house.clean()
    assert how(proxied.get(f"team/app/blobs/{digest_of(LAYER)}")) == (200, "hit")


def test_a_part_that_nothing_names_goes_when_nobody_uses_it(make_house: Any, database_url: str, tmp_path: Path, upstream: Any) -> None:
    """Its grace begins anew with each read."""
    house = make_house(ARKVORY_BLOB_GRACE_SECONDS="3600")
    house.repository("there", format="oci", kind="proxy", upstream_url=upstream.url)
    proxied = Proxied(house, database_url, tmp_path / "data", ARKVORY_BLOB_GRACE_SECONDS="3600")
    proxied.client, proxied.upstream = proxied.app.test_client(), upstream  # type: ignore[assignment]
    upstream.put(f"{AT}/blobs/{digest_of(LAYER)}", LAYER)
    for minutes in (0, 40, 40):
        grow_old(house, minutes)
        house.clean()
        assert proxied.get(f"team/app/blobs/{digest_of(LAYER)}").data == LAYER
    assert upstream.count(f"{AT}/blobs/{digest_of(LAYER)}") == 1
    grow_old(house, 61)
    house.clean()
    assert house.value("select count(*) from arkvory_artifacts") == 0
    assert how(proxied.get(f"team/app/blobs/{digest_of(LAYER)}")) == (200, "miss")
    proxied.close()


# Lists


def put_tags(upstream: FakeUpstream, tags: list[str], size: int, at: str = "/v2/team/app") -> None:
    """In pages of that size, as the specification links them."""
    pages = [tags[start : start + size] for start in range(0, len(tags), size)]
    addresses = [f"{at}/tags/list", *(f"{at}/tags/list?last={page[-1]}&n={size}" for page in pages)]
    for number, page in enumerate(pages):
        link = {"Link": f'<{addresses[number + 1]}>; rel="next"'} if number + 1 < len(pages) else {}
        upstream.put(addresses[number], json.dumps({"name": "team/app", "tags": page}).encode(), headers=link)


def test_tags_are_those_of_all_pages_and_have_pages_of_their_own(proxied: Proxied, house: House) -> None:
    tags = [f"1.{number}" for number in range(25)]
    put_tags(proxied.upstream, tags, 10)
    answer = proxied.get("team/app/tags/list")
    assert (how(answer), answer.get_json()) == ((200, "miss"), {"name": "there/team/app", "tags": sorted(tags)})
    assert len(proxied.asked()) == 3
    first = proxied.get("team/app/tags/list?n=20")
    assert (first.get_json()["tags"], how(first)) == (sorted(tags)[:20], (200, "hit"))
    following = first.headers["Link"].partition(">")[0].strip("<")
    rest = proxied.get(following)
    assert (rest.get_json()["tags"], "Link" in rest.headers) == (sorted(tags)[20:], False)
    assert proxied.asked() == []
    due(proxied)
    put_tags(proxied.upstream, [*tags, "2.0"], 30)
    assert "2.0" in proxied.get("team/app/tags/list").get_json()["tags"]
    proxied.upstream.stop()
    stale = proxied.get("team/app/tags/list")
    assert (how(stale), len(stale.get_json()["tags"])) == ((200, "stale"), 26)
    house.assert_nothing_is_left()


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"tags": 1}', b'{"name": "x"}', b"", b"[" * 100_000])
def test_a_page_that_is_no_list_of_tags_replaces_none(proxied: Proxied, house: House, body: bytes) -> None:
    proxied.upstream.put(f"{AT}/tags/list", body)
    assert refused(proxied.get("team/app/tags/list")) == (502, "UNAVAILABLE")
    put_tags(proxied.upstream, ["1.0"], 10)
    assert proxied.get("team/app/tags/list").get_json()["tags"] == ["1.0"]
    due(proxied)
    proxied.upstream.put(f"{AT}/tags/list", body)
    assert proxied.get("team/app/tags/list").get_json()["tags"] == ["1.0"]


def test_an_image_that_the_upstream_does_not_have_has_no_tags_and_one_without_tags_an_empty_list(proxied: Proxied) -> None:
    assert refused(proxied.get("team/app/tags/list")) == (404, "NAME_UNKNOWN")
    proxied.upstream.put("/v2/team/none/tags/list", b'{"name": "x", "tags": null}')
    assert proxied.get("team/none/tags/list").get_json()["tags"] == []


def test_a_list_that_leads_in_circles_ends(proxied: Proxied) -> None:
    proxied.upstream.put(f"{AT}/tags/list", b'{"tags": ["1"]}', headers={"Link": f'<{AT}/tags/list>; rel="next"'})
    assert refused(proxied.get("team/app/tags/list"))[0] == 502
    assert len(proxied.asked()) == 1


def test_a_held_tag_is_in_no_list_and_leaves_by_no_name(proxied: Proxied, house: House) -> None:
    body = proxied.put_image("1.0", LAYER)
    proxied.put_image("2.0", OTHER)
    put_tags(proxied.upstream, ["1.0", "2.0"], 10)
    proxied.get("team/app/manifests/1.0")
    before = proxied.get("team/app/tags/list")
    proxied.manage("PUT", "repositories/there/artifacts/team/app/manifests/1.0/quarantine", json={"reason": "not looked at"})
    proxied.manage("PUT", "repositories/there/artifacts/team/app/manifests/2.0/quarantine", json={"reason": "not looked at"})
    after = proxied.get("team/app/tags/list")
    assert (before.get_json()["tags"], after.get_json()["tags"]) == (["1.0", "2.0"], [])
    assert before.headers["ETag"] != after.headers["ETag"]
    for name in ("1.0", "2.0", digest_of(body)):
        assert refused(proxied.get(f"team/app/manifests/{name}")) == (403, "DENIED")
        assert proxied.head(f"team/app/manifests/{name}").status_code == 403
    proxied.manage("DELETE", "repositories/there/artifacts/team/app/manifests/1.0/quarantine")
    assert proxied.get(f"team/app/manifests/{digest_of(body)}").data == body
    assert proxied.get("team/app/tags/list").get_json()["tags"] == ["1.0"]


def referrer(body: bytes, kind: str) -> dict[str, Any]:
    return {"mediaType": MANIFEST, "digest": digest_of(body), "size": len(body), "artifactType": kind}


def test_referrers_are_the_upstreams_and_are_filtered_here(proxied: Proxied) -> None:
    subject = digest_of(b"subject")
    listed = [referrer(b"one", "a/b"), referrer(b"two", "c/d")]
    body = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": listed}).encode()
    proxied.upstream.put(f"{AT}/referrers/{subject}", body)
    answer = proxied.get(f"team/app/referrers/{subject}")
    assert (answer.headers["Content-Type"], how(answer)) == (INDEX, (200, "miss"))
    assert {each["digest"] for each in answer.get_json()["manifests"]} == {each["digest"] for each in listed}
    some = proxied.get(f"team/app/referrers/{subject}?artifactType=c/d")
    assert (some.get_json()["manifests"], some.headers["OCI-Filters-Applied"]) == ([listed[1]], "artifactType")
    assert proxied.asked() == [f"GET /referrers/{subject}"]


def test_a_registry_without_referrers_has_a_tag_that_stands_in(proxied: Proxied) -> None:
    subject, listed = digest_of(b"subject"), [referrer(b"one", "a/b")]
    body = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": listed}).encode()
    stand_in = f"/manifests/{subject.replace(':', '-')}"
    proxied.upstream.put(AT + stand_in, body)
    assert proxied.get(f"team/app/referrers/{subject}").get_json()["manifests"] == listed
    assert proxied.asked() == [f"GET /referrers/{subject}", f"GET {stand_in}"]


def test_where_nothing_refers_the_list_is_empty(proxied: Proxied, house: House) -> None:
    for _ in range(2):
        answer = proxied.get(f"team/app/referrers/{digest_of(b'subject')}")
        assert (answer.status_code, answer.get_json()["manifests"]) == (200, [])
    assert len(proxied.asked()) == 2
    assert house.value("select count(*) from arkvory_artifacts") == 0
    proxied.upstream.stop()
    assert proxied.get(f"team/app/referrers/{digest_of(b'other')}").status_code in (502, 504)
    assert proxied.get(f"/v2/nothere/app/referrers/{digest_of(b'x')}").status_code == 404


def test_the_catalogue_lists_what_is_here(proxied: Proxied) -> None:
    proxied.put_image("1.0", LAYER)
    assert proxied.get("/v2/_catalog").get_json() == {"repositories": []}
    proxied.get("team/app/manifests/1.0")
    assert proxied.get("/v2/_catalog").get_json() == {"repositories": ["there/team/app"]}


# Addresses


def test_names_go_where_the_upstream_has_them(proxied: Proxied, house: House) -> None:
    body = manifest_of(LAYER)
    for at in ("library/alpine", "mirror/library/alpine", "mirror/team/app"):
        proxied.upstream.put(f"/v2/{at}/manifests/3", body)
    change(proxied, settings={"short_names": "library"})
    assert proxied.get("alpine/manifests/3").data == body
    assert proxied.get("library/alpine/manifests/3").data == body
    change(proxied, upstream_url=f"{proxied.upstream.url}/mirror/")
    assert proxied.get("alpine/manifests/3").data == body
    assert proxied.get("team/app/manifests/3").data == body
    paths = [each.split("/v2/")[1].split("/manifests")[0] for each in proxied.asked() if each.startswith("GET")]
    assert paths == ["library/alpine", "library/alpine", "mirror/library/alpine", "mirror/team/app"]


@pytest.mark.parametrize("value", ["", "Library", "/library", "library/", "a b", 1, "../x"])
def test_a_folder_of_short_names_is_one(proxied: Proxied, value: Any) -> None:
    answer = proxied.app.test_client().patch(
        "/api/v1/repositories/there", json={"settings": {"short_names": value}}, headers={"Authorization": "Bearer local"}
    )
    assert answer.status_code == 422


def test_mirrors_work_with_the_query_that_names_the_registry(proxied: Proxied, house: House) -> None:
    """containerd says in `ns` whose mirror it asks; and a host name may mean the proxy."""
    body = proxied.put_image("1.0", LAYER)
    assert proxied.get("team/app/manifests/1.0?ns=registry.example").data == body
    assert proxied.get(f"team/app/blobs/{digest_of(LAYER)}?ns=registry.example").data == LAYER
    change(proxied, host="mirror.example")
    answer = proxied.app.test_client().get(
        "/v2/team/app/manifests/1.0?ns=registry.example", headers={"Host": "mirror.example", "Authorization": "Bearer local"}
    )
    assert answer.data == body


# What there is not


def test_pushes_are_refused_in_the_specifications_words(proxied: Proxied, house: House) -> None:
    """HO-OCI-2."""
    proxied.put_image("1.0", LAYER)
    proxied.get("team/app/manifests/1.0")
    digest = digest_of(LAYER)
    attempts = [
        ("POST", "blobs/uploads/", b""), ("POST", f"blobs/uploads/?digest={digest}", LAYER),
        ("POST", f"blobs/uploads/?mount={digest}&from=there/other", b""), ("PUT", "manifests/1.0", manifest_of(LAYER)),
        ("DELETE", "manifests/1.0", b""), ("DELETE", f"blobs/{digest}", b""),
    ]  # fmt: skip
    for method, path, body in attempts:
        answer = proxied.request(method, f"there/team/app/{path}", data=body, headers={"Content-Type": MANIFEST})
        assert refused(answer) == (405, "UNSUPPORTED"), (method, path)
    assert proxied.get("team/app/manifests/1.0").status_code == 200


# When nothing is to be stored


@pytest.mark.parametrize("why", ["switched off", "no room"])
def test_without_a_store_everything_is_handed_on(proxied: Proxied, house: House, why: str) -> None:
    change(proxied, **({"settings": {"caching": False}} if why == "switched off" else {"quota_bytes": 0}))
    body = proxied.put_image("1.0", LARGE)
    for name in ("1.0", digest_of(body)):
        answer = proxied.get(f"team/app/manifests/{name}")
        assert (how(answer), answer.data) == ((200, "miss"), body)
        assert (answer.headers["Docker-Content-Digest"], answer.headers["Content-Type"]) == (digest_of(body), MANIFEST)
        assert proxied.head(f"team/app/manifests/{name}").headers["Docker-Content-Digest"] == digest_of(body)
    assert proxied.get(f"team/app/blobs/{digest_of(LARGE)}").data == LARGE
    put_tags(proxied.upstream, ["1", "2", "3"], 2)
    assert proxied.get("team/app/tags/list").get_json()["tags"] == ["1", "2", "3"]
    assert proxied.get(f"team/app/referrers/{digest_of(body)}").get_json()["manifests"] == []
    assert house.value("select count(*) from arkvory_artifacts") == 0
    house.assert_nothing_is_left()


# When the upstream does not want to be asked


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
def test_only_absence_is_absence(proxied: Proxied, house: House, status: int) -> None:
    """HO-X-3."""
    body = manifest_of(LAYER)
    address = f"{AT}/manifests/1.0"
    headers = {"Retry-After": "1"} if status in (429, 503) else {}
    proxied.upstream.put(address, status=status, headers=headers)
    cold = proxied.get("team/app/manifests/1.0")
    assert cold.status_code in (502, 503)
    assert int(cold.headers["Retry-After"]) >= 1
    proxied.put_manifest(body, "1.0")
    gevent.sleep(1.1)
    assert proxied.get("team/app/manifests/1.0").data == body
    due(proxied)
    proxied.upstream.put(address, status=status, headers=headers)
    stale = proxied.get("team/app/manifests/1.0")
    assert (how(stale), stale.data) == ((200, "stale"), body)


def test_limits_as_large_registries_tell_them(proxied: Proxied, house: House) -> None:
    """`RateLimit-Remaining: 0;w=21600` says of which window, not when that ends: only a refusal with a time means a pause."""
    told = {"RateLimit-Limit": "100;w=21600", "RateLimit-Remaining": "0;w=21600"}
    first, second = manifest_of(LAYER), manifest_of(OTHER)
    proxied.put_manifest(first, "1.0", headers=told)
    proxied.put_manifest(second, "2.0", headers=told)
    assert proxied.get("team/app/manifests/1.0").data == first
    assert proxied.get("team/app/manifests/2.0").data == second
    proxied.upstream.put(f"{AT}/manifests/3.0", status=429, headers={**told, "Retry-After": "60"})
    busy = proxied.get("team/app/manifests/3.0")
    assert (busy.status_code, int(busy.headers["Retry-After"]) > 50) == (503, True)
    asked = len(proxied.upstream.asked)
    assert proxied.get("team/app/manifests/4.0").status_code == 503
    due(proxied)
    assert how(proxied.get("team/app/manifests/1.0")) == (200, "stale")
    assert len(proxied.upstream.asked) == asked


# What is kept from clients (`withholding.py`)


def test_a_young_tag_is_withheld_with_its_manifest_and_left_out_of_the_list(proxied: Proxied) -> None:
    change(proxied, settings={"minimum_age": 2, "minimum_age_exceptions": ["team/app@9.*"]})
    days_ago = ("Thu, 01 Jan 2026 00:00:00 GMT", None, None)
    for tag, layer, at in zip(("1.0", "2.0", "9.1"), (noise(10, 1), noise(10, 2), noise(10, 3)), days_ago, strict=True):
        body = manifest_of(layer)
        proxied.put_manifest(body, tag, headers={} if at is None else {"Last-Modified": at})
    put_tags(proxied.upstream, ["1.0", "2.0", "9.1"], 10)
    assert proxied.get("team/app/manifests/1.0").status_code == 200
    assert refused(proxied.get("team/app/manifests/2.0")) == (403, "DENIED")
    assert refused(proxied.get(f"team/app/manifests/{digest_of(manifest_of(noise(10, 2)))}")) == (403, "DENIED")
    assert proxied.get("team/app/manifests/9.1").status_code == 200
    assert proxied.get("team/app/tags/list").get_json()["tags"] == ["1.0", "9.1"]
    change(proxied, settings={"minimum_age": 0})
    assert proxied.get("team/app/manifests/2.0").status_code == 200
    assert proxied.get("team/app/tags/list").get_json()["tags"] == ["1.0", "2.0", "9.1"]


def test_path_rules_speak_of_images_and_of_tags(proxied: Proxied) -> None:
    change(proxied, settings={"block": ["other", "team/app/manifests/*-rc*"]})
    for name in ("1.0", "1.1-rc1"):
        proxied.put_manifest(manifest_of(LAYER), name)
    put_tags(proxied.upstream, ["1.0", "1.1-rc1"], 10)
    assert proxied.get("team/app/tags/list").get_json()["tags"] == ["1.0"]
    assert refused(proxied.get("team/app/manifests/1.1-rc1")) == (404, "MANIFEST_UNKNOWN")
    for path in ("other/app/manifests/1", f"other/app/blobs/{digest_of(LAYER)}", "other/app/tags/list"):
        assert proxied.get(path).status_code == 404
    assert proxied.head(f"other/app/blobs/{digest_of(LAYER)}").status_code == 404
    assert proxied.asked() == ["GET /tags/list"]


def test_a_copy_that_went_just_now_is_fetched_again(proxied: Proxied, house: House) -> None:
    """Another process cleaned up, and this one has not heard of it: a client must not be told that there is no such blob."""
    proxied.put_image("1.0", LAYER)
    address = f"team/app/blobs/{digest_of(LAYER)}"
    for method in ("GET", "HEAD"):
        proxied.get(address)
        gevent.sleep(0.1)
        house.clean()
        assert house.value("select count(*) from arkvory_artifacts") == 0
        assert how(proxied.request(method, f"there/{address}")) == (200, "miss")


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_part_whose_bytes_went_from_the_disk_is_fetched_anew(proxied: Proxied, house: House, method: str) -> None:
    """Also while a manifest names it."""
    proxied.put_image("1.0", LAYER)
    proxied.get("team/app/manifests/1.0")
    proxied.get(f"team/app/blobs/{digest_of(LAYER)}")
    for each in house.files():
        if each.stat().st_size == len(LAYER):
            each.unlink()
    answer = proxied.request(method, f"there/team/app/blobs/{digest_of(LAYER)}")
    assert answer.status_code == 200
    assert proxied.get(f"team/app/blobs/{digest_of(LAYER)}").data == LAYER
    assert proxied.asked() == ["GET /manifests/1.0", *[f"GET /blobs/{digest_of(LAYER)}"] * 2]
    house.clean()
    assert how(proxied.get(f"team/app/blobs/{digest_of(LAYER)}")) == (200, "hit")


def test_lists_leave_out_what_a_rule_will_hold_when_it_is_fetched(proxied: Proxied) -> None:
    """What a list names can be had."""
    quarantine = Quarantine(proxied.parts.database, proxied.parts.transactions, proxied.parts.access)
    body = proxied.put_image("1.0", LAYER)
    proxied.put_manifest(body, "2.0")
    proxied.upstream.put(f"{AT}/tags/list", json.dumps({"name": "team/app", "tags": ["1.0", "2.0"]}).encode())
    assert proxied.get("team/app/tags/list").json["tags"] == ["1.0", "2.0"]
    quarantine.add_rule(ADMIN, "there", "team/app/manifests/2.*", None, "looked at")
    assert proxied.get("team/app/tags/list").json["tags"] == ["1.0"]
    assert refused(proxied.get("team/app/manifests/2.0"))[0] == 403


def test_referrers_are_told_that_have_digests(proxied: Proxied) -> None:
    subject, good = digest_of(b"subject"), {"digest": digest_of(b"one"), "mediaType": MANIFEST, "size": 3}
    bad = ["\ud800:x", "none", 7, None, "sha256:" + "a" * 9000, "sha256:a/../b", ["sha256:aa"]]
    told = [good, "x", {}, *({"digest": each, "mediaType": MANIFEST, "size": 3} for each in bad)]
    proxied.upstream.put(f"{AT}/referrers/{subject}", json.dumps({"schemaVersion": 2, "manifests": told}).encode())
    answer = proxied.get(f"team/app/referrers/{subject}")
    assert (answer.status_code, answer.json["manifests"]) == (200, [good])
