"""A hosted npm repository that follows a registry: versions with all that is said of them, and what is said of them later."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from app.protocols.npm import changes
from app.protocols.npm.documents import PackumentDocument
from app.protocols.npm.kept import index_path
from app.repository.mirrors.worklist import WorkList
from app.repository.publishing import Target
from app.repository.reading import Ask
from tests.mirrors.conftest import Following
from tests.mirrors.test_following import serve
from tests.protocols.npm.packages import dist_of, tarball
from tests.support.house import ADMIN
from tests.support.upstreams import FakeUpstream

OWNERS = [{"name": "ada", "email": "ada@example.org"}]
TIMES = {"created": "2020-01-01T00:00:00.000Z", "1.0.0": "2020-01-02T03:04:05.678Z", "1.1.0": "2021-01-01T00:00:00.000Z"}


class Registry:
    """An upstream with some packages, told as they are put."""

    def __init__(self, upstream: FakeUpstream) -> None:
        self.upstream = upstream
        self.documents: dict[str, Any] = {}

    def put(self, name: str, *versions: str, tags: dict[str, str] | None = None, **about: Any) -> None:
        told = {version: self._version(name, version) for version in versions}
        document = {"name": name, "dist-tags": tags or {"latest": versions[-1]}, "versions": told, "time": TIMES, "maintainers": OWNERS}
        self.documents[name] = {**document, "readme": f"# {name}", **about}
        self.tell(name)

    def tell(self, name: str) -> None:
        body = json.dumps(self.documents[name]).encode()
        where, etag = f"/{name.replace('/', '%2F')}", f'"{hashlib.sha256(body).hexdigest()[:16]}"'
        self.upstream.put(where, body, headers={"Content-Type": "application/json"}, etag=etag)

    def deprecate(self, name: str, version: str, message: str) -> None:
        self.documents[name]["versions"][version]["deprecated"] = message
        self.tell(name)

    def _version(self, name: str, version: str) -> dict[str, Any]:
        where = f"/files/{name.rpartition('/')[2]}-{version}.tgz"
        data = tarball(name, version, scripts={"postinstall": "node ."})
        self.upstream.put(where, data)
        dist = {**dist_of(data), "tarball": f"{self.upstream.url}{where}", "signatures": [{"keyid": "k", "sig": "s"}]}
        return {
            "name": name, "version": version, "description": f"{name} in {version}", "scripts": {"postinstall": "node ."}, "dist": dist,
            "_npmUser": OWNERS[0],
        }  # fmt: skip

    def tarballs(self) -> int:
        """How often some were asked for."""
        return sum(1 for each in self.upstream.asked if each.target.endswith(".tgz"))


@pytest.fixture
def registry(upstream: FakeUpstream) -> Registry:
    return Registry(upstream)


@pytest.fixture
def hosted(following: Following) -> Following:
    following.house.repository("js", format="npm")
    return following


def packument(following: Following, name: str) -> Any:
    """As clients get it."""
    ask = Ask("npm", "js", f"{name}/", ADMIN)
    made = following.house.parts.reader.document(ask, PackumentDocument(name, "http://here/npm/js/"), made_of=index_path(name))
    return json.loads(made.document.body)


def test_versions_come_with_all_that_is_said_of_them(hosted: Following, registry: Registry, upstream: FakeUpstream) -> None:
    registry.put("@s/p", "1.0.0", "1.1.0", tags={"latest": "1.0.0", "next": "1.1.0", "1.x": "1.0.0"})
    registry.deprecate("@s/p", "1.1.0", "broken")
    attested = registry.documents["@s/p"]["versions"]["1.0.0"]["dist"]
    attested["attestations"] = {"url": "https://elsewhere/-/att/p", "provenance": {"predicateType": "https://slsa.dev/provenance/v1"}}
    upstream.put("/-/att/p", json.dumps({"attestations": [{"bundle": {}}]}).encode())
    registry.tell("@s/p")
    hosted.follow("js", names=["@s/p"], upstream_url=upstream.url)
    after = hosted.run("js")
    assert (after.state, after.files) == ("complete", 2), after
    told = packument(hosted, "@s/p")
    assert told["dist-tags"] == {"latest": "1.0.0", "next": "1.1.0", "1.x": "1.0.0"}
    assert {key: told["time"][key] for key in TIMES} == TIMES | {"created": "2020-01-02T03:04:05.678000Z"}
    assert (told["maintainers"], told["readme"], told["description"]) == (OWNERS, "# @s/p", "@s/p in 1.0.0")
    one, two = told["versions"]["1.0.0"], told["versions"]["1.1.0"]
    assert ("deprecated" in one, two["deprecated"]) == (False, "broken")
    here = "http://here/npm/js/"
    assert one["dist"] == {
        **dist_of(tarball("@s/p", "1.0.0", scripts={"postinstall": "node ."})), "signatures": attested["signatures"], "fileCount": 2,
        "tarball": f"{here}@s/p/-/p-1.0.0.tgz", "unpackedSize": one["dist"]["unpackedSize"],
        "attestations": {
            "url": f"{here}-/npm/v1/attestations/@s/p@1.0.0", "provenance": {"predicateType": "https://slsa.dev/provenance/v1"},
        },
    }  # fmt: skip
    assert (one["hasInstallScript"], one["_npmUser"]) == (True, OWNERS[0])
    stored = {row.path for row in hosted.house.rows("select path from arkvory_artifacts")}
    assert stored == {"@s/p/-/p-1.0.0.tgz", "@s/p/-/p-1.1.0.tgz", "@s/p/-/p-1.0.0.tgz.sigstore"}
    hosted.house.assert_nothing_is_left()


def test_what_is_said_later_follows_and_what_others_published_stays(
    hosted: Following, registry: Registry, upstream: FakeUpstream
) -> None:
    """Nothing that is here is asked for again, and a round without news leaves every document as it was."""
    house = hosted.house
    registry.put("p", "1.0.0", "1.1.0")
    hosted.follow("js", upstream_url=upstream.url, names=["p"])
    assert hosted.run("js").state == "complete"
    house.publish("p/-/p-9.0.0.tgz", b"ours", "js", format="npm", package="p")
    house.rows("update arkvory_artifacts set version = '9.0.0' where path like '%9.0.0.tgz'")
    house.rows(
        "insert into arkvory_npm_versions (artifact_id, fragment, abbreviated, words) select id, '{\"version\":\"9.0.0\"}', '{}', '' "
        "from arkvory_artifacts where version = '9.0.0'"
    )
    house.rows(
        "insert into arkvory_npm_tags (package_id, tag, artifact_id) select package_id, 'ours', id from arkvory_artifacts "
        "where version = '9.0.0'"
    )
    asked, epochs = registry.tarballs(), house.epochs("js")
    assert (hosted.run("js").state, registry.tarballs(), house.epochs("js")) == ("complete", asked, epochs)
    registry.put("p", "1.0.0", "1.1.0", "1.2.0", "9.0.0", tags={"latest": "1.2.0", "old": "1.0.0", "ours": "1.0.0", "nine": "9.0.0"})
    registry.deprecate("p", "1.0.0", "old")
    registry.deprecate("p", "9.0.0", "theirs")
    after = hosted.run("js")
    assert (after.state, after.counts["skipped"], registry.tarballs() - asked) == ("complete", 1, 1), after
    told = packument(hosted, "p")
    assert told["dist-tags"] == {"latest": "1.2.0", "old": "1.0.0", "ours": "9.0.0"}
    assert {version: each.get("deprecated") for version, each in told["versions"].items()} == {
        "1.0.0": "old", "1.1.0": None, "1.2.0": None, "9.0.0": None,
    }  # fmt: skip
    # Taken back: nothing is deleted but the message.
    registry.put("p", "1.1.0", tags={"latest": "1.1.0"})
    registry.put("p", "1.0.0", "1.1.0", "1.2.0", tags={"latest": "1.1.0"})
    assert hosted.run("js").state == "complete"
    told = packument(hosted, "p")
    assert told["dist-tags"] == {"latest": "1.1.0", "ours": "9.0.0"} and "deprecated" not in told["versions"]["1.0.0"]
    assert registry.tarballs() - asked == 1
    house.assert_nothing_is_left()


def test_a_tag_that_the_upstream_has_no_more_goes_where_the_mirror_set_it(
    hosted: Following, registry: Registry, upstream: FakeUpstream
) -> None:
    """What somebody tagged here stays, be it a tag that the mirror had set before; and `latest` does."""
    registry.put("p", "1.0.0", "1.1.0", tags={"latest": "1.1.0", "next": "1.1.0", "stable": "1.0.0"})
    hosted.follow("js", names=["p"], upstream_url=upstream.url)
    assert hosted.run("js").state == "complete"
    target = Target("npm", "js", ADMIN)
    for tag in ("ours", "stable"):
        changes.set_tags(hosted.house.parts.editor, target, "p", {tag: "1.0.0"})
    registry.put("p", "1.0.0", "1.1.0", tags={"beta": "1.0.0"})
    for _ in range(2):
        assert hosted.run("js").state == "complete"
        assert packument(hosted, "p")["dist-tags"] == {"latest": "1.1.0", "ours": "1.0.0", "stable": "1.0.0", "beta": "1.0.0"}
    registry.put("p", "1.0.0", "1.1.0", tags={"latest": "1.0.0"})
    assert hosted.run("js").state == "complete"
    assert packument(hosted, "p")["dist-tags"] == {"latest": "1.0.0", "ours": "1.0.0", "stable": "1.0.0"}
    hosted.house.assert_nothing_is_left()


def test_what_is_not_what_the_packument_says_is_not_published(hosted: Following, registry: Registry, upstream: FakeUpstream) -> None:
    """Other bytes, or those of another version, or a package.json that says otherwise."""
    registry.put("p", "1.0.0", "1.1.0", "1.2.0")
    upstream.put("/files/p-1.0.0.tgz", tarball("p", "1.0.0", scripts={"postinstall": "curl evil"}))
    for version, data in (("1.1.0", tarball("p", "6.6.6", scripts={"postinstall": "node ."})), ("1.2.0", tarball("p", "1.2.0"))):
        upstream.put(f"/files/p-{version}.tgz", data)
        registry.documents["p"]["versions"][version]["dist"] |= dist_of(data)
    registry.tell("p")
    hosted.follow("js", names=["p"], upstream_url=upstream.url)
    after = hosted.run("js")
    assert (after.state, after.counts["refused"]) == ("incomplete", 3)
    assert hosted.house.value("select count(*) from arkvory_artifacts") == 0
    hosted.house.assert_nothing_is_left()


def test_a_version_is_written_once_unless_the_repository_lets_it_be_replaced(
    hosted: Following, registry: Registry, upstream: FakeUpstream
) -> None:
    registry.put("p", "1.0.0")
    hosted.follow("js", names=["p"], upstream_url=upstream.url)
    assert hosted.run("js").state == "complete"
    other = tarball("p", "1.0.0", {"package/more.js": b"1"}, scripts={"postinstall": "node ."})
    upstream.put("/files/p-1.0.0.tgz", other)
    registry.documents["p"]["versions"]["1.0.0"]["dist"] |= dist_of(other)
    registry.tell("p")
    after = hosted.run("js")
    assert (after.state, after.counts["skipped"]) == ("complete", 1)
    hosted.house.change("js", settings={"write_policy": "replace"})
    assert hosted.run("js").state == "complete"
    assert packument(hosted, "p")["versions"]["1.0.0"]["dist"]["integrity"] == dist_of(other)["integrity"]
    hosted.house.assert_nothing_is_left()


def test_a_run_that_died_behind_a_commit_knows_what_it_brought(
    following: Following, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose list tells no digests, as of any hosted repository."""
    following.house.repository()
    serve(upstream, {"a": b"one"})
    following.follow(upstream_url=upstream.url)
    with monkeypatch.context() as dying:
        dying.setattr(WorkList, "copied", lambda *_: following.stop())
        following.begin()
        following.wait()
    assert following.states() == {"a": "todo"} and following.house.read("a") == b"one"
    assert (following.show().files, following.show().bytes) == (1, 3)
    serve(upstream, {"a": b"two"})
    after = following.run()
    assert (after.state, after.files, after.bytes) == ("complete", 2, 6)
    assert (following.states(), following.house.read("a")) == ({"a": "done"}, b"two")
