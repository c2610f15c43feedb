"""What a round that could not read all lists says of itself, and what the next one forgets of it."""

from __future__ import annotations

import base64
import json

import pytest
from cryptography.fernet import Fernet
from gevent.event import Event

from app.errors import Unavailable
from app.repository.mirrors import run
from tests.mirrors.conftest import Following
from tests.mirrors.test_following import TREE, serve
from tests.mirrors.test_formats import Python
from tests.protocols.maven.test_proxy import FOLDER, JAR, POM, metadata
from tests.protocols.npm.packages import dist_of, tarball
from tests.protocols.oci.conftest import MANIFEST, digest_of, manifest_of
from tests.protocols.pypi.packages import sdist
from tests.support.house import ADMIN, eventually
from tests.support.upstreams import FakeUpstream, noise

NAMES = {"maven": "org.acme:lib", "npm": "p", "oci": "team/app", "pypi": "req"}


def serve_formats(upstream: FakeUpstream) -> None:
    """Something of each."""
    Python(upstream)
    upstream.put("/org/acme/lib/maven-metadata.xml", metadata("1.0"))
    for path, body in ((f"{FOLDER}/lib-1.0.jar", JAR), (f"{FOLDER}/lib-1.0.pom", POM)):
        upstream.put(f"/{path}", body)
    packed, layer = tarball("p", "1.0.0"), noise(2_000)
    dist = {**dist_of(packed), "tarball": f"{upstream.url}/p/-/p-1.0.0.tgz"}
    told = {"name": "p", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": {"name": "p", "version": "1.0.0", "dist": dist}}}
    upstream.put("/p", json.dumps(told).encode(), headers={"Content-Type": "application/json"})
    upstream.put("/p/-/p-1.0.0.tgz", packed)
    image = manifest_of(layer)
    for name in ("1.0", digest_of(image)):
        upstream.put(f"/v2/team/app/manifests/{name}", image, headers={"Content-Type": MANIFEST, "Docker-Content-Digest": digest_of(image)})
    for blob in (b"{}", layer):
        upstream.put(f"/v2/team/app/blobs/{digest_of(blob)}", blob)
    upstream.put("/v2/team/app/tags/list", json.dumps({"name": "team/app", "tags": ["1.0"]}).encode())


def test_a_list_that_only_a_copy_answers_was_not_read_whatever_the_format(following: Following, upstream: FakeUpstream) -> None:
    """Its proxy serves clients from that copy, be it stale or fresh; the mirror says that the upstream is away."""
    serve_formats(upstream)
    for format_name, name in NAMES.items():
        below = "/simple" if format_name == "pypi" else ""
        settings = {"mutable_ttl": 0 if format_name == "npm" else 3600}
        following.house.repository(format_name, format=format_name, kind="proxy", upstream_url=upstream.url + below, settings=settings)
        following.follow(format_name, names=[name])
    following.run("pypi")
    before = {each: following.show(each) for each in NAMES}
    assert {each: shown.state for each, shown in before.items()} == dict.fromkeys(NAMES, "complete")
    upstream.stop()
    following.run("pypi")
    for each in NAMES:
        shown = following.show(each)
        assert shown.state == "failed" and "cannot be reached" in (shown.reason or ""), each
        assert shown.succeeded_at == before[each].succeeded_at, each
    upstream.start()
    Python(upstream).lists("req", {"req-2.0.tar.gz": sdist("req", "2.0")})
    following.run("pypi")
    assert {each: following.show(each).state for each in NAMES} == dict.fromkeys(NAMES, "complete")
    assert following.states("pypi")["req/req-2.0.tar.gz"] == "done"


def test_a_wrong_name_that_was_taken_out_holds_up_nothing(proxied: Following, upstream: FakeUpstream) -> None:
    serve(upstream, TREE)
    proxied.follow(names=["docs/", "nothing/"])
    after = proxied.run()
    assert (after.state, [each["path"] for each in after.errors]) == ("incomplete", ["nothing/"])
    # Another wrong one instead of it: only that one counts, once.
    proxied.follow(names=["docs/", "none/"])
    for _ in range(2):
        after = proxied.run()
        assert (after.state, after.counts["failed"], [each["path"] for each in after.errors]) == ("incomplete", 1, ["none/"])
    proxied.follow(names=["docs/deep/"])
    after = proxied.run()
    assert (after.state, after.reason, after.counts["failed"], after.errors) == ("complete", None, 0, [])
    assert proxied.states() == {"docs/b.txt": "gone", "docs/deep/c.bin": "done"}


def test_errors_go_once_they_are_mended(proxied: Following, upstream: FakeUpstream) -> None:
    serve(upstream, TREE)
    for path in ("/a.txt", "/docs/b.txt"):
        upstream.put(path, status=500)
    proxied.follow()
    assert {each["path"] for each in proxied.run().errors} == {"a.txt", "docs/b.txt"}
    upstream.put("/a.txt", b"a")
    assert [each["path"] for each in proxied.run().errors] == ["docs/b.txt"]
    serve(upstream, TREE)
    after = proxied.run()
    assert (after.state, after.errors) == ("complete", [])


def test_what_was_copied_is_counted_with_it_and_outlives_a_kill(
    proxied: Following, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an empty file too; a process that is killed says nothing any more."""
    serve(upstream, {"a": b"aa", "b": b"", "c": b"c"})
    gate = Event()
    upstream.put("/c", noise(200_000), gate=gate)
    proxied.follow(concurrency=1)
    proxied.begin()
    eventually(lambda: list(proxied.states().values()).count("done") == 2)
    monkeypatch.setattr(run.Run, "_tell_end", lambda run, cut: None)
    proxied.stop()
    monkeypatch.undo()
    gate.set()
    shown = proxied.show()
    assert (shown.files, shown.bytes) == (2, 2)
    # What was on its way goes on without the run.
    after = proxied.run()
    assert (after.state, after.counts["done"]) == ("complete", 3)


def test_credentials_that_were_kept_under_another_key_are_set_again(following: Following, upstream: FakeUpstream) -> None:
    """Until then the mirror says so; what is not about them can be changed."""
    house, login = following.house, {"username": "u", "password": "old"}
    house.repository()
    house.repository("proxied", kind="proxy", upstream_url=upstream.url, upstream=login)
    serve(upstream, TREE)
    following.follow(upstream_url=upstream.url, upstream=login)
    assert following.run().state == "complete"
    house.parts.mirrors._secrets._fernet = house.registry._secrets._fernet = Fernet(Fernet.generate_key())
    after = following.run()
    assert after.state == "failed" and "kept under another key" in (after.reason or "")
    assert house.parts.mirrors.change(ADMIN, "files", {"every_seconds": 120}).upstream == {"username": "u", "password": True}
    with pytest.raises(Unavailable):
        house.change("proxied", upstream={"username": "v"})
    house.parts.mirrors.change(ADMIN, "files", {"upstream": {"password": "new"}})
    house.change("proxied", upstream={"password": "new"})
    upstream.asked.clear()
    assert following.run().state == "complete"
    assert house.registry.show(ADMIN, "proxied").upstream == {"username": "u", "password": True}
    assert {each.headers["authorization"] for each in upstream.asked} == {"Basic " + base64.b64encode(b"u:new").decode()}
