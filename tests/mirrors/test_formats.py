"""What each format's mirrors follow, before an upstream that does what the test says; and what hosted repositories publish of it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from app.errors import Forbidden, Invalid, Unauthenticated
from app.protocols.pypi import indexes
from app.repository.mirrors.settings import MirrorSettings
from tests.mirrors.conftest import Following
from tests.mirrors.test_following import page, serve
from tests.protocols.maven.test_proxy import FOLDER, JAR, POM, metadata
from tests.protocols.npm.packages import dist_of, tarball
from tests.protocols.oci.conftest import INDEX, MANIFEST, digest_of, index_of, manifest_of
from tests.protocols.pypi.packages import core_metadata, sdist, wheel
from tests.support.house import ADMIN, NOBODY
from tests.support.upstreams import FakeUpstream, noise

SIMPLE = {"Content-Type": "application/vnd.pypi.simple.v1+json"}
WHEEL, METADATA = wheel("req", "1.0"), core_metadata("req", "1.0")


def sha(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


class Python:
    """An upstream of two projects, one file each; the wheel's METADATA goes along."""

    def __init__(self, upstream: FakeUpstream) -> None:
        self.upstream = upstream
        self.lists("req", {"req-1.0-py3-none-any.whl": WHEEL}, **{"core-metadata": {"sha256": sha(METADATA)}})
        self.lists("other", {"other-2.0.tar.gz": sdist("other", "2.0"), "other-2.0.exe": b"MZ"})
        upstream.put("/f/req-1.0-py3-none-any.whl.metadata", METADATA)
        self.index("req", "other")

    def index(self, *names: str) -> None:
        document = {"meta": {"api-version": "1.4"}, "projects": [{"name": each} for each in names]}
        self.upstream.put("/simple/", json.dumps(document).encode(), headers=SIMPLE)

    def lists(self, project: str, files: dict[str, bytes], **more: Any) -> None:
        told = [{"filename": name, "url": f"../../f/{name}", "hashes": {"sha256": sha(body)}, **more} for name, body in files.items()]
        document = {"meta": {"api-version": "1.4"}, "name": project, "files": told}
        self.upstream.put(f"/simple/{project}/", json.dumps(document).encode(), headers=SIMPLE)
        for name, body in files.items():
            self.upstream.put(f"/f/{name}", body)


@pytest.fixture
def python(upstream: FakeUpstream) -> Python:
    return Python(upstream)


def test_a_proxy_follows_an_index_of_python_projects(following: Following, python: Python, upstream: FakeUpstream) -> None:
    following.house.repository("py", format="pypi", kind="proxy", upstream_url=f"{upstream.url}/simple", settings={"mutable_ttl": 0})
    following.follow("py")
    assert following.run("py").state == "complete"
    assert following.states("py") == {
        "other/other-2.0.exe": "done", "other/other-2.0.tar.gz": "done", "req/req-1.0-py3-none-any.whl": "done",
        "req/req-1.0-py3-none-any.whl.metadata": "done",
    }  # fmt: skip
    python.lists("other", {"other-3.0.tar.gz": sdist("other", "3.0")})
    assert following.run("py").state == "complete"
    states = following.states("py")
    assert (states["other/other-2.0.tar.gz"], states["other/other-3.0.tar.gz"]) == ("gone", "done")
    assert [upstream.count(f"/f/{each}") for each in ("req-1.0-py3-none-any.whl", "other-2.0.tar.gz", "other-3.0.tar.gz")] == [1, 1, 1]


def test_named_projects_go_by_any_spelling(following: Following, python: Python, upstream: FakeUpstream) -> None:
    following.house.repository("py", format="pypi", kind="proxy", upstream_url=upstream.url)
    following.follow("py", names=["Req"])
    assert following.run("py").state == "complete"
    assert upstream.count("/simple/") == 0 and len(following.states("py")) == 2
    with pytest.raises(Invalid):
        following.follow("py", names=["no such name!"])


def test_names_of_a_long_index_come_one_after_the_other(following: Following, python: Python, upstream: FakeUpstream) -> None:
    """As many as a process of its own is needed for; an empty one is an index too."""
    names = [f"project-{number}" for number in range(40_000)]
    fetches = following.house.parts.fetches
    following.house.repository("py", format="pypi", kind="proxy", upstream_url=f"{upstream.url}/simple", settings={"mutable_ttl": 0})
    for told in (names, []):
        python.index(*told)
        with_index = fetches.bring(following.house.parts.snapshots.get("default", "py"), ".upstream/index/simple")
        try:
            assert list(indexes.each_name(with_index)) == sorted(told)
        finally:
            with_index.close()


def test_a_hosted_repository_publishes_what_an_index_has_and_it_has_not(
    following: Following, python: Python, upstream: FakeUpstream
) -> None:
    """By its own rules: looked into, with METADATA; what may not be uploaded is left out."""
    following.house.repository("py", format="pypi")
    following.follow("py", upstream_url=f"{upstream.url}/simple", upstream={"username": "u", "password": "secret"})
    after = following.run("py")
    assert (after.state, after.upstream) == ("complete", {"username": "u", "password": True})
    assert following.states("py") == {"other/other-2.0.tar.gz": "done", "req/req-1.0-py3-none-any.whl": "done"}
    stored = {row.path for row in following.house.rows("select path from arkvory_artifacts")}
    assert stored == {
        "other/other-2.0.tar.gz", "other/other-2.0.tar.gz.metadata", "req/req-1.0-py3-none-any.whl",
        "req/req-1.0-py3-none-any.whl.metadata",
    }  # fmt: skip
    assert all(each.headers["authorization"].startswith("Basic ") for each in upstream.asked)
    assert "secret" not in str(following.house.rows("select * from arkvory_mirrors"))
    asked = upstream.count("/f/req-1.0-py3-none-any.whl")
    assert following.run("py").state == "complete"
    assert upstream.count("/f/req-1.0-py3-none-any.whl") == asked
    following.house.assert_nothing_is_left()


def test_a_file_that_is_not_what_its_page_says_is_not_published(following: Following, python: Python, upstream: FakeUpstream) -> None:
    upstream.put("/f/req-1.0-py3-none-any.whl", wheel("req", "1.0", "Summary: another"))
    following.house.repository("py", format="pypi")
    following.follow("py", names=["req"], upstream_url=f"{upstream.url}/simple")
    after = following.run("py")
    assert (after.state, after.counts["refused"]) == ("incomplete", 1)
    assert following.house.value("select count(*) from arkvory_artifacts") == 0
    following.house.assert_nothing_is_left()


@pytest.mark.parametrize("told", [2**60, 4])
def test_a_list_that_lies_about_a_length_takes_no_room_and_leaves_other_files_alone(
    following: Following, upstream: FakeUpstream, told: int
) -> None:
    """Also where the answer announces none."""
    house = following.house
    house.repository(quota_bytes=1000)
    serve(upstream, {"b": b"five.", "c": b"c"})
    upstream.put("/a", b"five.", chunked=True)
    items = [{"name": "a", "size": told}, {"name": "b", "size": told}, {"name": "c", "size": 1}]
    upstream.put("/", json.dumps(items).encode())
    # Of what has no length at all, one after the other: while it comes it may take all the room that there is.
    following.follow(upstream_url=upstream.url, concurrency=1)
    after = following.run()
    assert following.states() == {"a": "refused", "b": "refused", "c": "done"} and after.state == "incomplete"
    assert all(f"has {told} bytes, and the upstream sends 5" in each["message"] for each in after.errors)
    house.assert_no_strays()


def test_a_hosted_repository_replaces_what_the_mirror_brought_and_nothing_else(following: Following, upstream: FakeUpstream) -> None:
    house = following.house
    house.repository()
    serve(upstream, {"a": b"one", "b": b"theirs", "c": b"three"})
    house.publish("b", b"ours")
    following.follow(upstream_url=upstream.url)
    assert following.run().state == "complete"
    assert following.states() == {"a": "done", "b": "skipped", "c": "done"}
    assert (house.read("a"), house.read("b")) == (b"one", b"ours")
    house.publish("c", b"ours since")
    serve(upstream, {"a": b"another", "b": b"theirs", "c": b"again"})
    assert following.run().state == "complete"
    assert (house.read("a"), house.read("b"), house.read("c")) == (b"another", b"ours", b"ours since")
    # Unchanged: by the upstream's own validator.
    serve(upstream, {"a": b"another"})
    upstream.asked.clear()
    assert following.run().files == following.show().files
    assert [each.headers.get("if-none-match") for each in upstream.asked if each.target == "/a"][-1] is not None
    house.assert_nothing_is_left()


@pytest.fixture
def maven(upstream: FakeUpstream) -> FakeUpstream:
    """Lists no folders."""
    upstream.put("/org/acme/lib/maven-metadata.xml", metadata("1.0"))
    for path, body in ((f"{FOLDER}/lib-1.0.jar", JAR), (f"{FOLDER}/lib-1.0.pom", POM)):
        upstream.put(f"/{path}", body)
        upstream.put(f"/{path}.sha1", hashlib.sha1(body).hexdigest().encode())
    return upstream


def test_a_proxy_follows_maven_coordinates(following: Following, maven: FakeUpstream) -> None:
    following.house.repository("mvn", format="maven", kind="proxy", upstream_url=maven.url)
    following.follow("mvn", names=["org.acme:lib"])
    assert following.run("mvn").state == "complete"
    states = following.states("mvn")
    assert {path for path, state in states.items() if state == "done"} == {
        f"{FOLDER}/lib-1.0.jar", f"{FOLDER}/lib-1.0.pom", "org/acme/lib/maven-metadata.xml",
    }  # fmt: skip
    assert states[f"{FOLDER}/lib-1.0-sources.jar"] == "gone"


def test_no_coordinate_leads_above_the_upstreams_address(following: Following, maven: FakeUpstream) -> None:
    following.house.repository("mvn", format="maven", kind="proxy", upstream_url=f"{maven.url}/org")
    for name in ("acme:..", "acme:lib:..", "..:lib", "acme..x:lib", "acme:.", ".acme:lib"):
        with pytest.raises(Invalid, match="names are"):
            following.follow("mvn", names=[name])
    maven.put("/org/acme/lib/maven-metadata.xml", metadata("..", "1.0", "a/b", "../../x"))
    following.follow("mvn", names=["acme:lib"])
    assert following.run("mvn").state == "complete"
    assert {each.target.rpartition("/")[0] for each in maven.asked} == {"/org/acme/lib", "/org/acme/lib/1.0"}


def test_a_hosted_maven_repository_takes_files_and_makes_the_rest(following: Following, maven: FakeUpstream) -> None:
    """Of an upstream that lists its folders; a file that has not the checksum beside it is left where it is."""
    maven.put(f"/{FOLDER}/", page("lib-1.0.jar", "lib-1.0.jar.sha1", "lib-1.0.pom", "lib-1.0.pom.sha1", "lib-1.0-docs.zip"))
    maven.put(f"/{FOLDER}/lib-1.0-docs.zip", b"PK docs")
    maven.put(f"/{FOLDER}/lib-1.0-docs.zip.sha1", b"0" * 40)
    following.house.repository("mvn", format="maven")
    following.follow("mvn", names=["org.acme:lib:1.0"], upstream_url=maven.url)
    after = following.run("mvn", seconds=90)
    assert (after.state, after.counts["refused"]) == ("incomplete", 1)
    stored = {row.path for row in following.house.rows("select path from arkvory_artifacts")}
    assert stored == {f"{FOLDER}/lib-1.0.jar", f"{FOLDER}/lib-1.0.pom"}
    checksums = following.house.value("select checksums from arkvory_blobs b where digest = :sha", sha=sha(JAR))
    assert set(checksums) == {"md5", "sha1", "sha256", "sha512"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.repository.mirrors.run.FIRST_WAIT_SECONDS", 0.02)


def test_a_proxy_follows_npm_packages_by_name_or_by_search(following: Following, upstream: FakeUpstream) -> None:
    for name, versions in (("p", ("1.0.0", "1.1.0")), ("@s/q", ("2.0.0",))):
        base = name.rpartition("/")[2]
        told = {}
        for version in versions:
            dist = {**dist_of(tarball(name, version)), "tarball": f"{upstream.url}/{name}/-/{base}-{version}.tgz"}
            told[version] = {"name": name, "version": version, "dist": dist}
        document = {"name": name, "dist-tags": {"latest": versions[-1]}, "versions": told, "time": {}}
        upstream.put(f"/{name.replace('/', '%2F')}", json.dumps(document).encode(), headers={"Content-Type": "application/json"})
        for version in versions:
            upstream.put(f"/{name}/-/{base}-{version}.tgz", tarball(name, version))
    found = [{"package": {"name": "p"}}, {"package": {"name": "@s/q"}}]
    upstream.put("/-/v1/search?text=&size=250&from=0", json.dumps({"objects": found}).encode())
    upstream.put("/-/v1/search?text=&size=250&from=2", json.dumps({"objects": []}).encode())
    following.house.repository("js", format="npm", kind="proxy", upstream_url=upstream.url)
    following.follow("js", names=["p"])
    assert following.run("js").state == "complete"
    assert following.states("js") == {"p/-/p-1.0.0.tgz": "done", "p/-/p-1.1.0.tgz": "done"}
    following.follow("js")
    assert following.run("js").state == "complete"
    assert following.states("js")["@s/q/-/q-2.0.0.tgz"] == "done"


def test_a_proxy_follows_images_with_all_that_their_tags_name(following: Following, upstream: FakeUpstream) -> None:
    layers = noise(20_000), noise(30_000, 2)
    at = "/v2/team/app"
    images = [manifest_of(each) for each in layers]
    both = index_of(*images)
    for body, kind, tags in ((images[0], MANIFEST, ("1.0",)), (images[1], MANIFEST, ("rc-1",)), (both, INDEX, ("2.0",))):
        for name in (*tags, digest_of(body)):
            upstream.put(f"{at}/manifests/{name}", body, headers={"Content-Type": kind, "Docker-Content-Digest": digest_of(body)})
    for blob in (b"{}", *layers):
        upstream.put(f"{at}/blobs/{digest_of(blob)}", blob)
    upstream.put(f"{at}/tags/list", json.dumps({"name": "team/app", "tags": ["1.0", "2.0", "rc-1"]}).encode())
    upstream.put("/v2/_catalog?n=500", json.dumps({"repositories": ["team/app"]}).encode())
    following.house.repository("hub", format="oci", kind="proxy", upstream_url=upstream.url)
    following.follow("hub", exclude=["team/app:rc-*"])
    assert following.run("hub").state == "complete"
    stored = {row.path for row in following.house.rows("select path from arkvory_artifacts")}
    wanted = {f"team/app/blobs/{digest_of(each)}" for each in (b"{}", *layers)}
    wanted |= {f"team/app/manifests/{each}" for each in ("1.0", "2.0", digest_of(both), *map(digest_of, images))}
    assert stored == wanted | {"team/app/tags/list"}
    assert upstream.count(f"{at}/manifests/rc-1") == 0
    # By a tag alone, and nothing twice.
    asked = len([each for each in upstream.asked if each.method == "GET" and "/blobs/" in each.target])
    following.follow("hub", names=["team/app:1.0"])
    assert following.run("hub").state == "complete"
    assert len([each for each in upstream.asked if each.method == "GET" and "/blobs/" in each.target]) == asked


def test_only_who_manages_a_repository_sees_and_sets_its_mirror(following: Following, upstream: FakeUpstream) -> None:
    """And only an administrator names an upstream at an address of this machine."""
    house = following.house
    house.repository()
    house.user("ada"), house.user("bob")
    house.rule("files", "user:ada", "read", "manage")
    house.rule("files", "user:bob", "read", "write")
    ada, bob = (house.identify(house.token(name)) for name in ("ada", "bob"))
    mirrors, wanted = house.parts.mirrors, MirrorSettings(upstream_url="https://files.example.org/x")
    for caller, refusal in ((NOBODY, Unauthenticated), (bob, Forbidden)):
        with pytest.raises(refusal):
            mirrors.put(caller, "files", wanted)
        with pytest.raises(refusal):
            mirrors.show(caller, "files")
    assert mirrors.put(ada, "files", wanted).upstream_url == wanted.upstream_url
    with pytest.raises(Forbidden, match="administrator"):
        mirrors.put(ada, "files", MirrorSettings(upstream_url=upstream.url))
    mirrors.put(ADMIN, "files", MirrorSettings(upstream_url=upstream.url))
    assert [each.repository for caller in (ada, bob, ADMIN) for each in mirrors.list(caller, 10).items] == ["files", "files"]
    assert not mirrors.list(ADMIN, 10, after="files").items
    with pytest.raises(Unauthenticated):
        mirrors.list(NOBODY, 10)
    assert mirrors.change(ada, "files", {"every_seconds": 120}).upstream_url == upstream.url
    with pytest.raises(Forbidden):
        mirrors.change(bob, "files", {"every_seconds": 60})
    # Of the same one she may change the rest.
    assert mirrors.put(ada, "files", MirrorSettings(upstream_url=upstream.url, every_seconds=60)).every_seconds == 60
    serve(upstream, {"a": b"a"})
    assert following.run().state == "complete"
