"""What a mirror does: it walks the lists, copies what is missing, goes on where it was, and says how far that is."""

from __future__ import annotations

import hashlib
import json

import gevent
import pytest
from gevent.event import Event

from app.errors import Conflict, Invalid, NotAllowedHere, NotFound
from app.repository.mirrors import run
from app.repository.mirrors.settings import MirrorSettings
from app.repository.mirrors.worklist import WorkList
from tests.conftest import MakePause
from tests.mirrors.conftest import Following
from tests.support.house import ADMIN, eventually
from tests.support.upstreams import FakeUpstream, noise

TREE = {"a.txt": b"a", "docs/b.txt": b"bb", "docs/deep/c.bin": noise(30_000)}


def page(*names: str) -> bytes:
    return ("<html><body>" + "".join(f'<a href="{each}">{each}</a>' for each in ("../", "?C=N;O=D", *names)) + "</body></html>").encode()


def serve(upstream: FakeUpstream, tree: dict[str, bytes]) -> None:
    """As a server of static files lists them."""
    folders: dict[str, set[str]] = {"": set()}
    for path, body in tree.items():
        upstream.put(f"/{path}", body, etag=f'"{hashlib.sha256(body).hexdigest()[:8]}"')
        *above, name = path.split("/")
        for depth in range(len(above)):
            folders.setdefault("".join(f"{each}/" for each in above[:depth]), set()).add(f"{above[depth]}/")
        folders.setdefault("".join(f"{each}/" for each in above), set()).add(name)
    for folder, names in folders.items():
        upstream.put(f"/{folder}", page(*sorted(names)))


def test_a_proxy_has_all_that_its_upstream_lists_before_anybody_asks(proxied: Following, upstream: FakeUpstream) -> None:
    serve(upstream, TREE)
    assert proxied.follow().state == "new"
    after = proxied.run()
    assert (after.state, after.reason, after.files, after.bytes) == ("complete", None, 3, sum(map(len, TREE.values())))
    assert proxied.states() == dict.fromkeys(sorted(TREE), "done")
    assert after.lag_seconds < 60 and after.succeeded_at is not None
    asked = len(upstream.asked)
    assert {row.path for row in proxied.house.rows("select path from arkvory_artifacts")} == set(TREE)
    assert len(upstream.asked) == asked
    proxied.house.assert_nothing_is_left()


def test_the_next_round_asks_again_and_copies_only_what_changed(proxied: Following, upstream: FakeUpstream) -> None:
    serve(upstream, TREE)
    proxied.follow()
    proxied.run()
    changed = {**TREE, "a.txt": b"another", "new.txt": b"new"}
    del changed["docs/b.txt"]
    serve(upstream, changed)
    upstream.forget("/docs/b.txt")
    after = proxied.run()
    assert (after.state, after.files, after.round) == ("complete", 5, 2)
    assert proxied.states() == {"a.txt": "done", "docs/b.txt": "gone", "docs/deep/c.bin": "done", "new.txt": "done"}
    assert proxied.house.read("a.txt") == b"another"


def test_a_run_that_is_stopped_goes_on_where_it_was_and_asks_for_nothing_twice(proxied: Following, upstream: FakeUpstream) -> None:
    tree = {f"f/{number:03}": noise(2_000, number) for number in range(40)}
    serve(upstream, tree)
    proxied.follow(concurrency=2)
    proxied.begin()
    eventually(lambda: len(upstream.asked) >= 15)
    proxied.stop()
    assert proxied.show().state == "stopped"
    assert 0 < list(proxied.states().values()).count("done") < 40
    after = proxied.run()
    assert (after.state, after.round) == ("complete", 1)
    assert {path: upstream.count(f"/{path}") for path in tree} == dict.fromkeys(tree, 1)


def test_what_is_already_the_same_by_its_list_is_not_asked_for(following: Following, upstream: FakeUpstream) -> None:
    """Another Arkvory tells digests."""
    bodies = {"x/1": b"one", "x/2": b"two"}
    items = [
        {"path": path, "size": len(body), "sha256": hashlib.sha256(body).hexdigest(), "quarantine": None} for path, body in bodies.items()
    ]
    held = {"path": "held", "size": 1, "sha256": "0" * 64, "quarantine": {"reason": "bad"}}
    first, second = "/api/v1/repositories/src/artifacts?limit=500", "/api/v1/repositories/src/artifacts?limit=500&cursor=go%2Bon"
    upstream.put(first, json.dumps({"items": [items[0], held], "next": "go+on"}).encode())
    upstream.put(second, json.dumps({"items": [items[1]], "next": None}).encode())
    for path, body in bodies.items():
        upstream.put(f"/raw/src/{path}", body)
    following.house.repository(kind="proxy", upstream_url=f"{upstream.url}/raw/src", settings={"mutable_ttl": 0})
    following.follow(source="arkvory")
    assert following.run().state == "complete"
    assert following.run().counts["done"] == 2
    assert [upstream.count(f"/raw/src/{path}") for path in bodies] == [1, 1]
    assert [upstream.count(each) for each in (first, second)] == [2, 2]
    # Somebody deletes a copy: what the list has is brought again.
    following.house.rows("delete from arkvory_artifacts where path = 'x/1'")
    assert following.run().counts["done"] == 2
    assert upstream.count("/raw/src/x/1") == 2


def test_patterns_choose_among_what_is_listed(proxied: Following, upstream: FakeUpstream) -> None:
    serve(upstream, TREE)
    proxied.follow(include=["docs"], exclude=["docs/deep"])
    proxied.run()
    assert proxied.states() == {"docs/b.txt": "done"}
    assert upstream.count("/docs/deep/") == 0


def test_names_are_files_or_folders(proxied: Following, upstream: FakeUpstream) -> None:
    serve(upstream, TREE)
    proxied.follow(names=["a.txt", "docs/deep/", "missing"])
    after = proxied.run()
    assert after.state == "complete"
    assert proxied.states() == {"a.txt": "done", "docs/deep/c.bin": "done", "missing": "gone"}


def test_an_upstream_that_is_away_ends_the_run_which_says_so_and_goes_on_later(proxied: Following, upstream: FakeUpstream) -> None:
    serve(upstream, TREE)
    proxied.follow()
    upstream.stop()
    proxied.begin()
    proxied.wait()
    after = proxied.show()
    assert after.state == "failed" and after.reason is not None
    upstream.start()
    assert proxied.run().state == "complete"


def test_an_upstream_that_asks_for_a_long_pause_gets_it(proxied: Following, upstream: FakeUpstream) -> None:
    """From whichever process runs the mirror next."""
    serve(upstream, TREE)
    upstream.put("/", status=429, headers={"Retry-After": "240"}, times=1)
    proxied.follow()
    after = proxied.run()
    assert after.state == "failed" and "429" in (after.reason or "")
    proxied.house.parts.fetches._lines.clear()
    proxied.begin()
    eventually(lambda: proxied.show().state == "running")
    gevent.sleep(0.3)
    assert (proxied.show().state, upstream.count("/")) == ("running", 1)
    proxied.stop()
    proxied.house.rows("update arkvory_mirrors set not_before = now()")
    assert proxied.run().state == "complete"


def test_one_bad_file_leaves_the_others_alone(proxied: Following, upstream: FakeUpstream) -> None:
    serve(upstream, TREE)
    upstream.put("/a.txt", status=500)
    proxied.follow()
    after = proxied.run()
    assert (after.state, after.counts["failed"], after.counts["done"]) == ("incomplete", 1, 2)
    assert [each["path"] for each in after.errors] == ["a.txt"]
    serve(upstream, TREE)
    assert proxied.run().state == "complete"


def test_no_room_ends_the_run_and_nothing_is_left_of_it(proxied: Following, upstream: FakeUpstream) -> None:
    serve(upstream, TREE)
    proxied.house.change("files", quota_bytes=10_000)
    proxied.follow()
    after = proxied.run()
    assert after.state == "failed" and "quota" in (after.reason or "")
    proxied.house.assert_nothing_is_left()
    proxied.house.change("files", quota_bytes=None)
    proxied.house.parts.fetches._too_large.clear()
    assert proxied.run().state == "complete"


def test_deleting_the_mirror_or_its_repository_ends_the_run(
    proxied: Following, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "BEAT_SECONDS", 0.05)
    gate = Event()
    serve(upstream, {"x": noise(200_000)})
    upstream.put("/x", noise(200_000), gate=gate)
    for end in (lambda: proxied.house.parts.mirrors.delete(ADMIN, "files"), lambda: proxied.house.registry.delete(ADMIN, "files")):
        proxied.follow()
        proxied.begin()
        eventually(lambda: upstream.count("/x") > 0)
        end()
        proxied.wait()
    gate.set()
    with pytest.raises(NotFound):
        proxied.show()
    proxied.house.clean()
    assert proxied.house.value("select count(*) from arkvory_mirror_items") == 0


def test_other_settings_begin_another_round_at_once(proxied: Following, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "BEAT_SECONDS", 0.05)
    gate = Event()
    serve(upstream, TREE)
    upstream.put("/a.txt", noise(200_000), gate=gate)
    proxied.follow()
    proxied.begin()
    eventually(lambda: upstream.count("/a.txt") > 0)
    proxied.follow(names=["docs/"])
    proxied.wait()
    assert proxied.show().state == "stopped"
    proxied.begin()
    proxied.wait()
    gate.set()
    after = proxied.show()
    assert (after.state, after.round, after.names) == ("complete", 2, ["docs/"])
    assert proxied.states()["docs/b.txt"] == "done"


def test_only_one_process_runs_a_mirror(proxied: Following, upstream: FakeUpstream, make_house: object) -> None:
    assert callable(make_house)
    other = Following(make_house(owns=False))
    gate = Event()
    serve(upstream, {"x": noise(200_000)})
    upstream.put("/x", noise(200_000), gate=gate)
    proxied.follow()
    proxied.begin()
    eventually(lambda: upstream.count("/x") > 0)
    # Even where its lease was lost.
    other.begin()
    other.wait()
    assert proxied.house.parts.mirroring.running == 1
    gate.set()
    proxied.wait()
    assert (proxied.show().state, upstream.count("/x"), upstream.count("/")) == ("complete", 1, 1)


def test_a_runner_that_was_taken_for_dead_says_nothing_any_more(proxied: Following, upstream: FakeUpstream) -> None:
    gate = Event()
    serve(upstream, {"x": noise(200_000)})
    upstream.put("/x", noise(200_000), gate=gate)
    proxied.follow()
    proxied.begin()
    eventually(lambda: upstream.count("/x") > 0)
    proxied.house.rows("update arkvory_mirrors set runner = 'another', reason = 'its own'")
    proxied.wait()
    gate.set()
    assert (proxied.show().state, proxied.show().reason) == ("running", "its own")


def test_settings_that_cannot_be_are_refused(proxied: Following) -> None:
    for wrong, field in (
        ({"source": "elsewhere"}, "source"), ({"every_seconds": 1}, "every_seconds"), ({"concurrency": 99}, "concurrency"),
        ({"names": ["../x"]}, "names"), ({"upstream_url": "http://x"}, "upstream_url"), ({"source": "arkvory"}, "upstream_url"),
    ):  # fmt: skip
        with pytest.raises(Invalid) as refused:
            proxied.follow(**wrong)
        assert refused.value.field == field, wrong
    proxied.house.repository("all", kind="group", members=["files"])
    with pytest.raises(NotAllowedHere):
        proxied.follow("all")
    with pytest.raises(NotFound):
        proxied.show()
    proxied.follow(enabled=False)
    with pytest.raises(Conflict):
        proxied.house.parts.mirrors.run(ADMIN, "files")
    assert MirrorSettings().every_seconds == 3600


def test_a_list_that_is_not_there_is_an_error_and_not_the_end_of_all_that_it_named(proxied: Following, upstream: FakeUpstream) -> None:
    serve(upstream, TREE)
    proxied.follow()
    assert proxied.run().state == "complete"
    upstream.put("/", status=404)
    after = proxied.run()
    assert after.state == "incomplete" and "lists no folder" in after.errors[-1]["message"]
    assert set(proxied.states().values()) == {"done"}


def test_another_upstream_is_followed_from_its_own_beginning(following: Following, upstream: FakeUpstream) -> None:
    """Though its files have the same names, and never change."""
    path = "org/acme/lib/1.0/lib-1.0.pom"
    bodies = {f"/{where}/{path}": f"<project><!-- {where} --></project>".encode() for where in ("one", "two")}
    for where, body in bodies.items():
        upstream.put(where, body)
    house = following.house
    house.repository("mvn", format="maven", kind="proxy", upstream_url=f"{upstream.url}/one")
    following.follow("mvn", names=["org.acme:lib:1.0"])
    for where in ("one", "two"):
        house.change("mvn", upstream_url=f"{upstream.url}/{where}")
        assert following.run("mvn").state == "complete"
        copies = "select b.digest from arkvory_artifacts a join arkvory_blobs b on b.id = a.blob_id where a.path = :path"
        assert house.value(copies, path=path) == hashlib.sha256(bodies[f"/{where}/{path}"]).hexdigest()


def test_what_ends_while_the_list_is_looked_at_is_not_begun_again(proxied: Following, upstream: FakeUpstream, pause: MakePause) -> None:
    """The look saw it as it was before."""
    serve(upstream, {"a": b"a", "b": b"b"})
    gate = Event()
    upstream.put("/a", noise(200_000), gate=gate)
    proxied.follow(concurrency=3)
    proxied.begin()
    eventually(lambda: upstream.count("/a") == 1 and proxied.states().get("b") == "done")
    look = pause(WorkList, "_due")
    look.reached()
    gate.set()
    eventually(lambda: proxied.states()["a"] == "done")
    look.go()
    proxied.wait()
    assert upstream.count("/a") == 1


@pytest.mark.parametrize("length", [2_000, 400_000])
def test_a_list_is_read_in_the_time_that_its_length_takes(proxied: Following, upstream: FakeUpstream, length: int) -> None:
    """Short ones here, long ones by another process; of neither is anything looked at again and again."""
    serve(upstream, {"x": b"x", "y": b"y"})
    upstream.put("/", page("x") + b"<a " * length + b'<a class="<" href="../out"><A title = z HREF = y >')
    proxied.follow()
    assert proxied.run(seconds=60).state == "complete"
    assert proxied.states() == {"x": "done", "y": "done"}


def test_a_long_list_in_json_says_as_much_as_a_short_one(proxied: Following, upstream: FakeUpstream) -> None:
    names = [f"{number:04}{'n' * 200}" for number in range(1500)]
    told = [{"name": each, "type": "file", "size": 1, "sha256": "no digest"} for each in names] + [{"name": "f", "type": "directory"}]
    upstream.put("/", json.dumps({"items": [{"name": "../x"}, {"name": 5}, 7, *told], "next": "m"}).encode())
    upstream.put("/?after=m", json.dumps({"items": []}).encode())
    proxied.follow(include=["0001*", "f/"])
    proxied.run(seconds=60)
    assert list(proxied.states()) == [names[1]]
    assert (upstream.count("/?after=m"), upstream.count("/f/")) == (1, 1)


@pytest.mark.parametrize("further", ["n" * 5000, "a\0b", 7, "\ud800", ["x"]])
def test_a_list_that_goes_on_where_nothing_can_be_is_at_fault(proxied: Following, upstream: FakeUpstream, further: object) -> None:
    upstream.put("/", json.dumps({"items": [{"name": "x"}], "next": further}).encode())
    upstream.put("/x", b"x")
    proxied.follow()
    after = proxied.run()
    assert "goes on at a place that can be none" in (after.reason or "") + "".join(each["message"] for each in after.errors)


@pytest.mark.parametrize("body", [b"[" * 300_000, b"{" + b'"a":{' * 100_000, b'{"items": 5}' + b" " * 300_000, b"x" * 300_000])
def test_a_long_list_that_is_none_is_the_upstreams_fault(proxied: Following, upstream: FakeUpstream, body: bytes) -> None:
    upstream.put("/", body)
    proxied.follow()
    after = proxied.run(seconds=60)
    assert after.state == "failed" and "what the upstream answers for the folder ''" in (after.reason or "")


def test_lists_without_an_end_end_the_run(proxied: Following, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MOST_NAMED", 5)
    monkeypatch.setattr(run, "BEAT_SECONDS", 0.05)
    serve(upstream, {f"f/{number}": b"x" for number in range(20)})
    upstream.put("/f/19", b"x", gate=(gate := Event()))
    proxied.follow(concurrency=1)
    proxied.begin()
    eventually(lambda: proxied.show().state == "failed" or gate.set() or False)
    assert "name more than 5 files and lists" in str(proxied.show().reason)
    gate.set()
    proxied.wait()


@pytest.mark.parametrize("digests", [True, False], ids=["the list tells digests", "it tells none"])
def test_w1_a_copy_whose_end_was_not_noted_is_not_taken_for_the_one_before(
    following: Following, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch, digests: bool
) -> None:
    """Its process died right after the commit, and the upstream went back to what it had before."""

    def has(body: bytes) -> None:
        digest = hashlib.sha256(body).hexdigest()
        listed = {"items": [{"path": "a", "size": len(body), "sha256": digest, "quarantine": None}], "next": None}
        upstream.put("/api/v1/repositories/origin/artifacts?limit=500", json.dumps(listed).encode())
        upstream.put("/raw/origin/a", body, etag=f'"{digest}"')
        upstream.put("/raw/origin/", page("a"))

    def dies(*_: object) -> None:
        raise RuntimeError("killed")

    following.house.repository()
    has(b"first")
    following.follow(source="arkvory" if digests else "index", upstream_url=f"{upstream.url}/raw/origin")
    assert following.run().state == "complete"
    has(b"second")
    with monkeypatch.context() as patch:
        patch.setattr(WorkList, "copied", dies)
        following.run()
    assert following.house.read("a") == b"second"
    has(b"first")
    assert following.run().state == "complete"
    assert following.house.read("a") == b"first"
    following.house.assert_nothing_is_left()
