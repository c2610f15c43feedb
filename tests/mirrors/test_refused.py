"""What is at fault as the upstream has it is had once: until it changes there, or what refused it here, or a while has passed."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from app.repository.mirrors import worklist
from app.upload.admission import Admission
from tests.mirrors.conftest import Following
from tests.mirrors.test_following import page, serve
from tests.mirrors.test_hosted_npm import Registry
from tests.protocols.maven.test_proxy import FOLDER, JAR
from tests.support.house import ADMIN
from tests.support.upstreams import FakeUpstream

LISTED = "/api/v1/repositories/origin/artifacts?limit=500"
SUM = hashlib.sha1(JAR).hexdigest().encode()


def tell(upstream: FakeUpstream, **bodies: bytes) -> None:
    """The list of another Arkvory, by which its files have these bytes."""
    told = [
        {"path": path, "size": len(body), "sha256": hashlib.sha256(body).hexdigest(), "quarantine": None} for path, body in bodies.items()
    ]
    upstream.put(LISTED, json.dumps({"items": told, "next": None}).encode())


@pytest.fixture
def refused(following: Following, upstream: FakeUpstream) -> Following:
    """After a round in which one of two files was other bytes than its list says."""
    following.house.repository()
    tell(upstream, a=b"told", b=b"good")
    upstream.put("/raw/origin/a", b"sent")
    upstream.put("/raw/origin/b", b"good")
    following.follow(source="arkvory", upstream_url=f"{upstream.url}/raw/origin")
    following.run()
    return following


def listed(following: Following, repository: str = "files") -> dict[str, Any]:
    """How often each was refused."""
    return {each.path: each.refusals for each in following.house.parts.mirrors.refused(ADMIN, repository, 100).items}


def pass_pause(following: Following) -> None:
    following.house.rows("update arkvory_mirror_items set refused_until = now() - interval '1 second' where refusals > 0")


def test_what_was_refused_is_shown_and_not_had_again(refused: Following, upstream: FakeUpstream) -> None:
    for _ in range(3):
        after = refused.run()
        assert (after.state, after.reason) == ("incomplete", "1 refused: what the upstream has is at fault")
        assert (after.counts["refused"], after.counts["failed"], after.counts["done"]) == (1, 0, 1)
        assert [each["path"] for each in after.errors] == ["a"]
    assert upstream.count("/raw/origin/a") == 1
    (only,) = refused.house.parts.mirrors.refused(ADMIN, "files", 10).items
    assert (only.path, only.size, only.digest, only.refusals) == ("a", 4, f"sha256:{hashlib.sha256(b'told').hexdigest()}", 1)
    assert only.retry_at is not None and "sha256" in only.reason
    refused.house.assert_nothing_is_left()


def test_it_is_tried_again_ever_more_rarely(refused: Following, upstream: FakeUpstream) -> None:
    seconds = "select extract(epoch from refused_until - now())::int from arkvory_mirror_items where state = 'refused'"
    pauses = [refused.house.value(seconds)]
    for number in range(2, 8):
        pass_pause(refused)
        refused.run()
        pauses.append(refused.house.value(seconds))
        assert (upstream.count("/raw/origin/a"), listed(refused)) == (number, {"a": number})
    expected = [min(worklist.LONGEST_PAUSE_SECONDS, worklist.FIRST_PAUSE_SECONDS * 4**number) for number in range(7)]
    assert all(abs(there - wanted) < 60 for there, wanted in zip(pauses, expected, strict=True)), pauses
    pass_pause(refused)
    upstream.put("/raw/origin/a", b"told")
    after = refused.run()
    assert (after.state, after.errors, listed(refused)) == ("complete", [], {})
    assert refused.house.read("a") == b"told"


def test_it_is_tried_again_when_the_list_tells_another_file(refused: Following, upstream: FakeUpstream) -> None:
    tell(upstream, a=b"other", b=b"good")
    assert refused.run().counts["refused"] == 1
    assert (upstream.count("/raw/origin/a"), listed(refused)) == (2, {"a": 1})
    tell(upstream, a=b"sent", b=b"good")
    assert refused.run().state == "complete"
    assert refused.house.read("a") == b"sent"


@pytest.mark.parametrize("what", ["settings", "mirror", "by hand", "limit"])
def test_it_is_tried_again_when_what_refused_it_changes(
    refused: Following, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    if what == "settings":
        refused.house.change("files", settings={"write_policy": "once"})
    elif what == "mirror":
        refused.follow(source="arkvory", upstream_url=f"{upstream.url}/raw/origin", include=["*"])
    elif what == "by hand":
        refused.house.parts.mirrors.run(ADMIN, "files", anew=True)
    else:
        monkeypatch.setattr(Admission, "most_bytes", 10**9)
    for _ in range(2):
        refused.run()
    assert (upstream.count("/raw/origin/a"), upstream.count("/raw/origin/b")) == (2, 1)
    assert listed(refused) == {"a": 1}


def test_a_file_that_is_too_large_is_not_begun_again(
    following: Following, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its list tells no digest: whether it is the same file say its validators. Without any it is asked for again after a while."""
    monkeypatch.setattr(Admission, "most_bytes", 1000)
    serve(upstream, {"large": b"x" * 2000, "small": b"y"})
    upstream.put("/", page("large", "small", "unknown"))
    upstream.put("/unknown", b"x" * 2000)
    following.house.repository()
    following.follow(upstream_url=upstream.url)
    for _ in range(3):
        after = following.run()
        assert (after.counts["refused"], after.counts["done"]) == (2, 1)
    asked = [each.headers.get("if-none-match") for each in upstream.asked if each.target == "/large"]
    assert asked == [None, *[upstream.rules["/large"][0].headers["ETag"]] * 2]
    assert upstream.count("/unknown") == 1
    serve(upstream, {"large": b"z" * 900})
    assert following.run().counts["gone"] == 2
    assert following.house.read("large") == b"z" * 900
    following.house.assert_nothing_is_left()


def test_what_was_here_before_stays_while_what_comes_after_it_is_refused(following: Following, upstream: FakeUpstream) -> None:
    """Of a Maven repository, whose lists tell no digests; the validators of what was refused say nothing of what is here."""
    jar = f"{FOLDER}/lib-1.0.jar"
    upstream.put(f"/{FOLDER}/", page("lib-1.0.jar"))
    upstream.put(f"/{jar}.sha1", SUM)
    upstream.put(f"/{jar}", JAR, etag='"1"')
    following.house.repository("mvn", format="maven", settings={"write_policy": "replace"})
    following.follow("mvn", names=["org.acme:lib:1.0"], upstream_url=upstream.url)
    assert following.run("mvn").state == "complete"
    upstream.put(f"/{jar}", JAR + b" ", etag='"2"')
    for _ in range(3):
        after = following.run("mvn")
        assert (after.counts["refused"], after.counts["done"]) == (1, 0)
    tags = [each.headers.get("if-none-match") for each in upstream.asked if each.target == f"/{jar}"]
    assert tags == [None, '"1"', '"2"', '"2"']
    upstream.put(f"/{jar}", JAR, etag='"1"')
    assert following.run("mvn").state == "complete"
    assert following.run("mvn").state == "complete"
    assert [each.headers.get("if-none-match") for each in upstream.asked if each.target == f"/{jar}"][-2:] == ['"2"', '"1"']


def test_a_proxys_mirror_does_not_fetch_again_what_it_may_not_store(following: Following, upstream: FakeUpstream) -> None:
    registry = Registry(upstream)
    registry.put("p", "1.0.0", "1.1.0")
    upstream.put("/files/p-1.1.0.tgz", b"something else")
    following.house.repository("js", format="npm", kind="proxy", upstream_url=upstream.url, settings={"mutable_ttl": 0})
    following.follow("js", names=["p"])
    for _ in range(2):
        after = following.run("js")
        assert (after.state, after.counts["refused"], after.counts["done"]) == ("incomplete", 1, 1)
    assert registry.tarballs() == 2
    assert listed(following, "js") == {"p/-/p-1.1.0.tgz": 1}


def test_refused_files_are_listed_page_by_page(refused: Following, upstream: FakeUpstream) -> None:
    tell(upstream, **{f"f{number}": b"told" for number in range(5)})
    for number in range(5):
        upstream.put(f"/raw/origin/f{number}", b"sent")
    refused.run()
    first = refused.house.parts.mirrors.refused(ADMIN, "files", 3)
    second = refused.house.parts.mirrors.refused(ADMIN, "files", 3, str(first.after[0]) if first.after else "")
    assert [each.path for each in (*first.items, *second.items)] == [f"f{number}" for number in range(5)]
    assert refused.states()["a"] == "gone"
