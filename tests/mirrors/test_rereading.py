"""Lists are sent once, as long as they and all that counts for their reading stay as they are; nothing that is missing is passed over."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from gevent.event import Event

from app.repository.mirrors import folders, memory, rereading, run, worklist
from app.repository.mirrors.worklist import WorkList
from tests.mirrors.conftest import Following
from tests.mirrors.test_failing import serve_formats
from tests.mirrors.test_following import page, serve
from tests.mirrors.test_hosted_npm import Registry, packument
from tests.support.house import eventually
from tests.support.upstreams import FakeUpstream

# Of hosted repositories, as `serve_formats` serves them, and of a folder: the lists that a round is made of.
LISTS = {
    "maven": ("org.acme:lib", ["/org/acme/lib/maven-metadata.xml"]), "npm": ("p", ["/p"]), "oci": ("team/app", ["/v2/team/app/tags/list"]),
    "pypi": (None, ["/simple/", "/simple/req/", "/simple/other/"]), "raw": ("docs/", ["/docs/", "/docs/deep/"]),
}  # fmt: skip


@pytest.fixture
def registry(upstream: FakeUpstream) -> Registry:
    return Registry(upstream)


@pytest.fixture
def hosted(following: Following, registry: Registry, upstream: FakeUpstream) -> Following:
    """After the round from which on it has what the upstream has, and knows that."""
    following.house.repository("js", format="npm")
    registry.put("p", "1.0.0", "1.1.0", tags={"latest": "1.1.0", "old": "1.0.0"})
    following.follow("js", names=["p"], upstream_url=upstream.url)
    for _ in range(2):
        assert following.run("js").state == "complete"
    return following


def sent(upstream: FakeUpstream, path: str) -> int:
    """How often it was sent: to each question that was not by its validator."""
    rule = upstream.rules[path][0]
    return sum(1 for each in upstream.asked if each.target == path and each.headers.get("if-none-match") != rule.headers["ETag"])


def tagged(upstream: FakeUpstream) -> None:
    """With an ETag in each answer."""
    for rules in upstream.rules.values():
        for rule in rules:
            rule.headers = {**rule.headers, "ETag": f'"{hashlib.sha256(rule.body).hexdigest()[:16]}"'}


def test_a_packument_that_stays_as_it_is_is_not_sent_again(hosted: Following, registry: Registry, upstream: FakeUpstream) -> None:
    """Nor does anything else happen; a new version is seen at once."""
    before, epochs = sent(upstream, "/p"), hosted.house.epochs("js")
    for _ in range(3):
        assert hosted.run("js").state == "complete"
    assert (sent(upstream, "/p"), upstream.count("/p"), hosted.house.epochs("js")) == (before, before + 3, epochs)
    assert set(hosted.states("js").values()) == {"done"}
    registry.put("p", "1.0.0", "1.1.0", "1.2.0", tags={"latest": "1.2.0"})
    assert hosted.run("js").state == "complete"
    assert packument(hosted, "p")["dist-tags"] == {"latest": "1.2.0"}
    registry.put("p", "1.0.0")
    assert hosted.run("js").counts["gone"] == 2
    hosted.house.assert_nothing_is_left()


@pytest.mark.parametrize("what", ["names", "include", "settings", "tag"])
def test_what_counts_for_the_reading_is_changed_and_the_list_is_read_as_a_whole(
    hosted: Following, registry: Registry, upstream: FakeUpstream, what: str
) -> None:
    """Of the mirror or the repository; and what somebody says here of the package, which the mirror says otherwise."""
    before = sent(upstream, "/p")
    if what == "names":
        registry.put("q", "1.0.0")
        hosted.follow("js", names=["p", "q"], upstream_url=upstream.url)
    elif what == "include":
        hosted.follow("js", names=["p"], include=["p@1.0.0"], upstream_url=upstream.url)
    elif what == "settings":
        hosted.house.change("js", settings={"write_policy": "replace"})
    else:
        hosted.house.rows("update arkvory_packages set revision = revision + 1")
        hosted.house.rows("delete from arkvory_npm_tags where tag = 'old'")
    assert hosted.run("js").state == "complete"
    assert sent(upstream, "/p") == before + 1
    assert packument(hosted, "p")["dist-tags"] == {"latest": "1.1.0", "old": "1.0.0"}
    wanted = {"names": {"done": 3}, "include": {"done": 1, "gone": 1}}.get(what, {"done": 2})
    states = list(hosted.states("js").values())
    assert {each: states.count(each) for each in set(states)} == wanted


def test_what_is_missing_comes_though_its_list_did_not_change(hosted: Following, registry: Registry, upstream: FakeUpstream) -> None:
    """Somebody deleted it here; or it could not be had in the round in which the list was read."""
    hosted.house.rows("delete from arkvory_artifacts where path = 'p/-/p-1.0.0.tgz'")
    tarballs = registry.tarballs()
    assert (hosted.run("js").state, registry.tarballs()) == ("complete", tarballs + 1)
    registry.put("p", "1.0.0", "1.1.0", "2.0.0")
    upstream.put("/files/p-2.0.0.tgz", status=500)
    assert hosted.run("js").state == "incomplete"
    assert hosted.run("js").state == "incomplete"
    before = sent(upstream, "/p")
    documents = dict(registry.documents)
    registry.put("p", "1.0.0", "1.1.0", "2.0.0")
    assert documents == registry.documents
    assert hosted.run("js").state == "complete"
    assert set(hosted.states("js").values()) == {"done"}
    # Its manifest stands in the packument, which is asked for where a version is to be made of it.
    assert sent(upstream, "/p") == before + 1


def test_a_run_that_dies_while_what_a_list_named_is_named_again(
    hosted: Following, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a part of it, or all: the next one goes on, and nothing is gone."""
    monkeypatch.setattr(worklist, "_SWEPT", 1)
    name_again, before = WorkList.name_again, sent(upstream, "/p")

    def die(*known: Any) -> bool:
        name_again(*known)
        hosted.stop()
        return True

    for name, dying in (("name_again", die), ("read", lambda *_: hosted.stop())):
        with monkeypatch.context() as patch:
            patch.setattr(WorkList, name, dying)
            hosted.begin()
            hosted.wait()
        after = hosted.run("js")
        assert (after.state, set(hosted.states("js").values())) == ("complete", {"done"}), name
    assert sent(upstream, "/p") == before


def test_a_list_that_is_none_is_not_sent_again_until_it_changes(hosted: Following, registry: Registry, upstream: FakeUpstream) -> None:
    """Nor is anything gone for it. After a while it is read as a whole once more: perhaps it was not the upstream's fault."""
    upstream.put("/p", b"<html>", etag='"none"')
    whole = upstream.count("/p")
    for _ in range(3):
        after = hosted.run("js")
        assert (after.state, after.counts["failed"], after.counts["done"]) == ("incomplete", 1, 2)
        assert "packument of 'p'" in after.errors[0]["message"]
    asked = [each.headers.get("if-none-match") for each in upstream.asked if each.target == "/p"][whole:]
    assert asked[1:] == ['"none"', '"none"']
    error = "select error from arkvory_mirror_items where kind = 'list'"
    assert "packument of 'p'" in hosted.house.value(error)
    hosted.house.rows("update arkvory_mirror_items set refused_until = now() where kind = 'list'")
    hosted.run("js")
    assert upstream.asked[-1].headers.get("if-none-match") is None
    assert hosted.house.value("select refusals from arkvory_mirror_items where kind = 'list'") == 2
    registry.tell("p")
    for _ in range(2):
        after = hosted.run("js")
        assert (after.state, after.errors) == ("complete", [])
    assert hosted.house.value("select refusals from arkvory_mirror_items where kind = 'list'") == 0


@pytest.mark.parametrize("format_name", LISTS)
def test_lists_of_hosted_repositories_are_asked_for_by_their_etag(following: Following, upstream: FakeUpstream, format_name: str) -> None:
    """And what they named stays named: a folder's folders, an index's projects, tags, versions."""
    name, lists = LISTS[format_name]
    serve_formats(upstream)
    serve(upstream, {"docs/a": b"a", "docs/deep/b": b"b"})
    tagged(upstream)
    following.house.repository("here", format=format_name)
    url = f"{upstream.url}/simple" if format_name == "pypi" else upstream.url
    following.follow("here", names=[] if name is None else [name], upstream_url=url)
    for _ in range(2):
        assert following.run("here").state == "complete"
    states, before = following.states("here"), [sent(upstream, each) for each in lists]
    assert set(states.values()) <= {"done", "gone"} and "done" in states.values()
    for _ in range(2):
        assert following.run("here").state == "complete"
    assert [sent(upstream, each) for each in lists] == before
    assert following.states("here") == states
    assert following.house.value("select count(*) from arkvory_mirror_items where state = 'done' and kind = 'list'") >= len(lists)


@pytest.mark.parametrize(("minutes", "whole"), [(60, 1), (0, 3)])
def test_a_date_alone_counts_once_it_is_older_than_a_moment(following: Following, upstream: FakeUpstream, minutes: int, whole: int) -> None:
    now = datetime.now(UTC)
    serve(upstream, {"x": b"x"})
    changed = format_datetime(now - timedelta(minutes=minutes), usegmt=True)
    upstream.put("/", page("x"), headers={"Last-Modified": changed, "Date": format_datetime(now, usegmt=True)})
    following.house.repository()
    following.follow(upstream_url=upstream.url)
    for _ in range(3):
        assert following.run().state == "complete"
    asked = [each.headers.get("if-modified-since") for each in upstream.asked if each.target == "/"]
    assert asked.count(None) == whole and set(asked) <= {None, changed}


def test_a_proxys_folders_are_asked_for_by_their_etag_too(proxied: Following, upstream: FakeUpstream) -> None:
    serve(upstream, {"x": b"x"})
    tagged(upstream)
    proxied.follow()
    for _ in range(2):
        assert proxied.run().state == "complete"
    assert (sent(upstream, "/"), upstream.count("/")) == (1, 2)
    serve(upstream, {"y": b"y"})
    assert proxied.run().counts == {"todo": 0, "done": 1, "skipped": 0, "gone": 1, "failed": 0, "refused": 0, "lists": 0}


def test_long_lists_wait_for_room_in_memory_and_all_come(
    following: Following, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many are read at once: no more of them than there is room for; nothing counts against one that waits too long."""
    room = memory.Room(folders.MOST_BYTES)
    monkeypatch.setattr(rereading, "room", room)
    monkeypatch.setattr(memory, "WAIT_SECONDS", 0.05)
    monkeypatch.setattr(run, "HELD_SECONDS", 0.05)
    gates, names = [Event() for _ in range(3)], [f"f{number}/" for number in range(3)]
    for name, gate in zip(names, gates, strict=True):
        upstream.put(f"/{name}", page("x") + b" " * (3 * memory.LITTLE), gate=gate, piece=2 * memory.LITTLE)
        upstream.put(f"/{name}x", b"x")
    following.house.repository(kind="proxy", upstream_url=upstream.url)
    following.follow(names=names, concurrency=3)
    taken: list[int] = []
    take = memory.Room.take
    monkeypatch.setattr(memory.Room, "take", lambda here, size: taken.append(size) or take(here, size))
    following.begin()
    eventually(lambda: len(taken) >= 3)
    for gate in gates:
        gate.set()
    following.wait(60)
    assert following.show().state == "complete", following.show()
    assert set(following.states().values()) == {"done"} and len(following.states()) == 3
    assert room._left == folders.MOST_BYTES
