"""Maven through a group: PROTOCOLS "group merge", HO-MVN-4, HO-X-1; each read by both paths."""

from __future__ import annotations

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from werkzeug.test import TestResponse

from app.access.identity import LOCAL, Caller
from app.protocols.maven.routes import reads
from app.protocols.maven.upstream import Upstreams
from app.repository.quarantine import Quarantine
from app.repository.registry import NewRepository, Registry, RepositoryChange
from tests.protocols.maven.test_routes import plugin_jar
from tests.support import room as room_of
from tests.support.upstreams import FakeUpstream

ADMIN = Caller(LOCAL, "127.0.0.1")
LIB = "org/acme/lib"
SNAPSHOT = f"{LIB}/1.0-SNAPSHOT"


class Room(room_of.Room):
    """Requests to a public group `all` of `one` and `two`, as nobody; other repositories are named."""

    def __init__(self, parts: Any) -> None:
        super().__init__(parts, reads, "all")
        self.registry = Registry(parts.settings, parts.database, parts.transactions, parts.access)
        self.quarantine = Quarantine(parts.database, parts.transactions, parts.access)
        for name in ("one", "two"):
            self.registry.create(ADMIN, NewRepository(name, "maven"))
        self.registry.create(ADMIN, NewRepository("all", "maven", "group", public=True, members=["one", "two"]))

    def stored(self, repository: str, *paths: str, body: bytes = b"") -> None:
        for path in paths:
            answer = self.request("PUT", path, repository=repository, data=body or f"{repository} {path}".encode())
            assert answer.status_code == 201, answer.text

    def read(self, path: str, **options: Any) -> TestResponse:
        return self.get(path, as_=None, **options)

    def fetched(self, path: str) -> TestResponse:
        """By one request: the first says `miss`, the next `hit`."""
        return self.app.test_client().get(f"/maven/all/{path}")

    def values(self, path: str, tag: str) -> list[str]:
        answer = self.read(path)
        assert answer.status_code == 200, answer.text
        return re.findall(f"<{tag}>([^<]*)</{tag}>", answer.text)

    def change(self, name: str, **values: Any) -> None:
        self.registry.update(ADMIN, name, RepositoryChange(values))


@pytest.fixture
def room(database_url: str, tmp_path: Path) -> Iterator[Room]:
    with room_of.parts_over(database_url, tmp_path) as parts:
        yield Room(parts)


def archetype_jar() -> bytes:
    with io.BytesIO() as buffer:
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("META-INF/maven/archetype-metadata.xml", "<archetype-descriptor/>")
        return buffer.getvalue()


def build(number: int, ending: str) -> str:
    return f"{SNAPSHOT}/lib-1.0-2020051{number}.061306-{number}{ending}"


def release(version: str, ending: str = ".jar") -> str:
    return f"{LIB}/{version}/lib-{version}{ending}"


def test_the_newest_snapshot_of_each_classifier_and_extension_wins_and_can_be_had(room: Room) -> None:
    """HO-MVN-4."""
    room.stored("one", build(1, ".jar"), build(1, ".zip"), build(1, "-sources.jar"))
    room.stored("two", build(2, ".jar"), build(2, ".pom"))
    at = f"{SNAPSHOT}/maven-metadata.xml"
    assert (room.values(at, "timestamp"), room.values(at, "buildNumber")) == (["20200512.061306"], ["2"])
    entries = re.findall(r"<snapshotVersion>(.*?)</snapshotVersion>", room.read(at).text, re.DOTALL)
    named = {}
    for each in entries:
        told = dict(re.findall(r"<(\w+)>([^<]*)</", each))
        named["-" * ("classifier" in told) + told.get("classifier", "") + "." + told["extension"]] = told["value"]
    assert named == {
        ".jar": "1.0-20200512.061306-2", "-sources.jar": "1.0-20200511.061306-1", ".pom": "1.0-20200512.061306-2",
        ".zip": "1.0-20200511.061306-1",
    }  # fmt: skip
    for ending, value in named.items():
        assert room.read(f"{SNAPSHOT}/lib-{value}{ending}").status_code == 200
    assert room.values(at, "lastUpdated") == ["20200512061306"]
    room.stored("one", build(3, ".jar"))
    assert room.values(at, "buildNumber") == ["3"]


def test_versions_are_the_union_in_mavens_order(room: Room) -> None:
    """HO-MVN-4."""
    room.stored("one", release("1.9"), release("2.0-SNAPSHOT"), release("1.10-rc1"))
    room.stored("two", release("1.10"), release("1.9", ".pom"))
    at = f"{LIB}/maven-metadata.xml"
    assert room.values(at, "version") == ["1.9", "1.10-rc1", "1.10", "2.0-SNAPSHOT"]
    assert (room.values(at, "latest"), room.values(at, "release")) == (["2.0-SNAPSHOT"], ["1.10"])
    updated = [re.findall("<lastUpdated>(.*)<", room.get(at, repository=name).text)[0] for name in ("one", "two")]
    assert room.values(at, "lastUpdated") == [max(updated)]


def test_the_first_member_wins_a_release_and_checksums_are_of_what_is_served(room: Room) -> None:
    room.stored("two", release("1.0")), room.stored("one", release("1.0"))
    answer = room.read(release("1.0"))
    assert (answer.data, answer.headers["X-Arkvory-Member"]) == (f"one {release('1.0')}".encode(), "one")
    assert room.read(release("1.0", ".jar.sha1")).data == room.get(release("1.0", ".jar.sha1"), repository="one").data
    room.change("all", members=["two", "one"])
    assert room.read(release("1.0")).data == f"two {release('1.0')}".encode()


def test_checksums_of_merged_metadata_are_of_its_own_bytes(room: Room) -> None:
    """HO-MVN-1."""
    room.stored("one", release("1.0"), build(1, ".jar")), room.stored("two", release("1.1"), build(2, ".jar"))
    for folder in (LIB, SNAPSHOT):
        body = room.read(f"{folder}/maven-metadata.xml").data
        for algorithm in ("md5", "sha1", "sha256", "sha512"):
            assert room.read(f"{folder}/maven-metadata.xml.{algorithm}").text == hashlib.new(algorithm, body).hexdigest()


def test_c9_the_validator_of_a_merged_document_moves_with_the_artifact_in_any_member_alone(room: Room) -> None:
    room.stored("one", release("1.0")), room.stored("two", release("1.1"))
    at = f"{LIB}/maven-metadata.xml"
    first = room.read(at).headers["ETag"]
    assert room.read(at, headers={"If-None-Match": first}).status_code == 304
    room.stored("two", "org/acme/other/1.0/other-1.0.jar")
    assert room.read(at).headers["ETag"] == first
    room.registry.create(ADMIN, NewRepository("three", "maven"))
    room.change("all", members=["one", "two", "three"])
    assert room.read(at).headers["ETag"] == first
    room.stored("two", release("1.2"))
    second = room.read(at)
    assert second.headers["ETag"] != first and "1.2" in second.text
    room.change("all", members=["one"])
    assert room.values(at, "version") == ["1.0"]
    room.change("all", members=["two", "one"])
    assert room.values(at, "version") == ["1.0", "1.1", "1.2"]


def test_warm_a_merged_document_needs_no_statement(room: Room) -> None:
    room.stored("one", release("1.0")), room.stored("two", release("1.1"))
    at = f"{LIB}/maven-metadata.xml"
    room.read(at)
    before = room.parts.database.statements()
    room.read(at)
    assert room.parts.database.statements() == before


def test_what_a_member_withholds_leaves_by_no_door(room: Room) -> None:
    """HO-X-1: neither in an index, nor by its checksum, nor by HEAD; the same file in a later member does not stand in for it."""
    path, at = release("1.0"), f"{LIB}/maven-metadata.xml"
    room.stored("one", path, release("1.1")), room.stored("two", path, build(1, ".jar"))
    room.quarantine.hold(ADMIN, "one", path, "looked at")
    assert room.values(at, "version") == ["1.0-SNAPSHOT", "1.1"]
    for each in (path, f"{path}.sha1"):
        assert room.read(each).status_code == 403
        assert room.request("HEAD", each, as_=None).status_code == 403
    assert f">{path.rpartition('/')[2]}<" not in room.read(f"{LIB}/1.0/").text
    room.quarantine.hold(ADMIN, "two", build(1, ".jar"), "looked at")
    assert room.read(f"{SNAPSHOT}/maven-metadata.xml").status_code == 404
    room.quarantine.release(ADMIN, "one", path)
    assert room.values(at, "version") == ["1.0", "1.1"]


def test_a_member_that_only_withholds_keeps_later_ones_from_showing_it(room: Room) -> None:
    """C9: and the validator moves with what it withholds."""
    at, folder = f"{LIB}/maven-metadata.xml", f"{LIB}/1.0/"
    room.stored("one", release("1.0")), room.stored("two", release("1.0"), release("1.1"), release("1.0", ".pom"))
    room.quarantine.hold(ADMIN, "one", release("1.0"), "looked at")
    first = room.read(at)
    assert (room.values(at, "version"), "lib-1.0.jar" in room.read(folder).text) == (["1.1"], False)
    room.quarantine.add_rule(ADMIN, "one", "*-1.1.*", None, "looked at")
    room.stored("one", release("1.1"))
    second = room.read(at)
    assert second.headers["ETag"] != first.headers["ETag"]
    assert "<version>" not in second.text


def test_a_public_group_shows_a_private_member_and_the_member_itself_stays_closed(room: Room) -> None:
    """HO-X-1."""
    room.stored("one", release("1.0"))
    paths = (release("1.0"), release("1.0", ".jar.sha1"), f"{LIB}/maven-metadata.xml", f"{LIB}/")
    assert [room.read(path).status_code for path in paths] == [200] * 4
    assert [room.read(path, repository="one").status_code for path in paths] == [401] * 4
    room.change("all", public=False)
    assert [room.read(path).status_code for path in paths] == [401] * 4


def test_a_member_that_is_away_is_named_and_its_own_artifact_is_not_called_absent(room: Room) -> None:
    room.stored("one", release("1.0")), room.stored("two", release("1.1"))
    at = f"{LIB}/maven-metadata.xml"
    room.change("one", status="offline")
    assert (room.values(at, "version"), room.read(at).headers["X-Arkvory-Passed-Over"]) == (["1.1"], "one")
    answer = room.read(release("1.1"))
    assert (answer.headers["X-Arkvory-Member"], answer.headers["X-Arkvory-Passed-Over"]) == ("two", "one")
    room.change("two", status="offline")
    for path in (at, release("1.0"), release("1.1")):
        answer = room.read(path)
        assert (answer.status_code, int(answer.headers["Retry-After"]) > 0) == (503, True)
    room.change("one", status="online")
    assert room.read(f"{LIB}/9/maven-metadata.xml").status_code == 503


def test_plugins_and_archetypes_are_united(room: Room) -> None:
    def plugin(artifact: str, prefix: str, version: str) -> tuple[str, bytes]:
        return f"org/acme/{artifact}/{version}/{artifact}-{version}.jar", plugin_jar("org.acme", artifact, prefix)

    def archetype(artifact: str) -> tuple[str, bytes]:
        return f"org/acme/{artifact}/1/{artifact}-1.jar", archetype_jar()

    for name, *files in (
        ("one", plugin("a-maven-plugin", "old", "1.0"), archetype("x")),
        ("two", plugin("a-maven-plugin", "new", "2.0"), plugin("b-maven-plugin", "bee", "1.0"), archetype("y"), archetype("x")),
    ):
        for path, body in files:
            room.stored(name, path, body=body)
    at = "org/acme/maven-metadata.xml"
    assert (room.values(at, "artifactId"), room.values(at, "prefix")) == (["a-maven-plugin", "b-maven-plugin"], ["new", "bee"])
    assert room.values("archetype-catalog.xml", "artifactId") == ["x", "y"]


def test_folders_are_united_and_the_first_member_shows_a_file(room: Room) -> None:
    room.stored("one", release("1.0")), room.stored("two", release("1.0"), release("1.0", ".pom"), release("1.1"))
    items = json.loads(room.read(f"{LIB}/1.0/", headers={"Accept": "application/json"}).data)["items"]
    assert [each["name"] for each in items] == ["lib-1.0.jar", "lib-1.0.pom"]
    assert items[0]["size"] == len(f"one {release('1.0')}")
    assert f"<title>all/{LIB}/" in room.read(f"{LIB}/").text
    assert room.read("org").status_code == 302


def test_publishing_goes_to_the_member_that_is_named_and_is_refused_clearly_without_one(room: Room) -> None:
    answer = room.request("PUT", release("1.0"), data=b"x")
    assert (answer.status_code, "write_member" in answer.text, answer.headers["Allow"]) == (405, True, "GET, HEAD")
    assert room.request("DELETE", release("1.0")).status_code == 405
    room.change("all", settings={"write_member": "two"})
    assert room.request("PUT", release("1.0"), data=b"x").status_code == 201
    assert room.request("PUT", release("1.0", ".jar.sha1"), data=hashlib.sha1(b"x").hexdigest().encode()).status_code == 200
    assert room.request("PUT", f"{LIB}/maven-metadata.xml", data=b"<metadata/>").status_code == 200
    assert room.request("PUT", release("1.0"), data=b"y").status_code == 409
    assert room.read(release("1.0")).headers["X-Arkvory-Member"] == "two"
    assert room.request("DELETE", release("1.0")).status_code == 204
    assert room.read(release("1.0")).status_code == 404


def test_a_path_that_no_client_means_is_not_there_for_a_reason(room: Room) -> None:
    answer = room.read("lib.jar")
    assert (answer.status_code, "no Maven path" in answer.text) == (404, True)


# A proxy among the members


def upstream_metadata(folder: str, versioning: str) -> bytes:
    """As an upstream writes it, which is not how we would."""
    text = f"<metadata><artifactId>lib</artifactId>\r\n<versioning>{versioning}</versioning></metadata>"
    return f'<?xml version="1.0"?>\r\n{text}'.encode()


@pytest.fixture
def proxied(room: Room, upstream: FakeUpstream) -> Room:
    """`all` is of `one`, and of `there`, whose copies are always due."""
    room.parts.fetches.dialects["maven"] = Upstreams()
    new = NewRepository("there", "maven", kind="proxy", upstream_url=upstream.url, settings={"mutable_ttl": 0, "miss_ttl": 0})
    room.registry.create(ADMIN, new)
    room.change("all", members=["one", "there"])
    return room


def listed(*versions: str) -> bytes:
    named = "".join(f"<version>{each}</version>" for each in versions)
    return upstream_metadata(LIB, f"<versions>{named}</versions><lastUpdated>20990101000000</lastUpdated>")


def test_versions_are_those_of_members_and_upstream_whatever_the_upstream_does(proxied: Room, upstream: FakeUpstream) -> None:
    """HO-MVN-4, HO-X-3."""
    at = f"{LIB}/maven-metadata.xml"
    proxied.stored("one", release("1.5"))
    assert proxied.values(at, "version") == ["1.5"]
    upstream.put(f"/{at}", listed("1.0", "2.0"))
    assert (proxied.values(at, "version"), proxied.values(at, "lastUpdated")) == (["1.0", "1.5", "2.0"], ["20990101000000"])
    upstream.put(f"/{at}", listed("1.0", "2.0", "3.0"))
    assert proxied.values(at, "release") == ["3.0"]
    upstream.put(f"/{at}", status=500)
    assert proxied.values(at, "release") == ["3.0"]
    upstream.put(f"/{at}", status=404)
    assert proxied.values(at, "version") == ["1.5"]
    upstream.put(f"/{at}", status=500)
    answer = proxied.read(at)
    assert (answer.status_code, answer.headers["X-Arkvory-Passed-Over"]) == (200, "there")
    assert proxied.read("org/acme/none/maven-metadata.xml").status_code == 404
    upstream.put("/org/acme/none/maven-metadata.xml", status=500)
    assert proxied.read("org/acme/none/maven-metadata.xml").status_code == 502


def test_a_version_that_is_longer_than_any_path_is_none(proxied: Room, upstream: FakeUpstream) -> None:
    at = f"{LIB}/maven-metadata.xml"
    proxied.stored("one", release("1.5"))
    upstream.put(f"/{at}", listed("1.0", "9" * 5000, "1." * 3000 + "1"))
    assert proxied.values(at, "version") == ["1.0", "1.5"]


def test_snapshots_are_deployed_through_a_group_whatever_becomes_of_an_upstream_of_releases(proxied: Room, upstream: FakeUpstream) -> None:
    """mvn reads the metadata of a snapshot before it deploys one; of one that the proxy's policy leaves out its upstream need not tell."""
    upstream.stop()
    at = f"{SNAPSHOT}/maven-metadata.xml"
    answer = proxied.read(at)
    assert (answer.status_code, answer.text[:60]) == (502, "member 'there' cannot answer: the upstream cannot be reached:"[:60])
    proxied.change("there", settings={"version_policy": "release"})
    assert proxied.read(at).status_code == 404
    proxied.change("all", settings={"write_member": "one"})
    assert proxied.request("PUT", build(1, ".jar"), data=b"x").status_code == 201
    assert proxied.values(at, "buildNumber") == ["1"]
    upstream.start()


def test_what_only_an_upstream_says_stays_as_it_is(proxied: Room, upstream: FakeUpstream) -> None:
    at, body = f"{LIB}/maven-metadata.xml", listed("1.0")
    upstream.put(f"/{at}", body)
    assert proxied.read(at).data == body
    assert proxied.read(f"{at}.sha1").text == hashlib.sha1(body).hexdigest()


def test_the_newest_build_may_be_an_upstreams(proxied: Room, upstream: FakeUpstream) -> None:
    """HO-MVN-4."""
    at, value = f"{SNAPSHOT}/maven-metadata.xml", "1.0-20200512.061306-2"
    entry = f"<snapshotVersion><extension>jar</extension><value>{value}</value><updated>20200512061306</updated></snapshotVersion>"
    stamp = "<snapshot><timestamp>20200512.061306</timestamp><buildNumber>2</buildNumber></snapshot>"
    upstream.put(f"/{at}", upstream_metadata(SNAPSHOT, f"{stamp}<snapshotVersions>{entry}</snapshotVersions>"))
    upstream.put(f"/{SNAPSHOT}/lib-{value}.jar", b"PK far")
    proxied.stored("one", build(1, ".jar"), build(1, ".zip"))
    assert proxied.values(at, "value") == [value, "1.0-20200511.061306-1"]
    assert proxied.values(at, "buildNumber") == ["2"]
    answer = proxied.fetched(f"{SNAPSHOT}/lib-{value}.jar")
    assert (answer.headers["X-Arkvory-Cache"], answer.data, answer.headers["X-Arkvory-Member"]) == ("miss", b"PK far", "there")
    assert proxied.read(f"{SNAPSHOT}/lib-{value}.jar.sha1").text == hashlib.sha1(b"PK far").hexdigest()


def test_where_nothing_is_stored_all_of_it_works_too(proxied: Room, upstream: FakeUpstream) -> None:
    """Metadata is merged of what just came; a checksum is of the member whose bytes it is asked for."""
    proxied.change("there", settings={"caching": False})
    at = f"{LIB}/maven-metadata.xml"
    upstream.put(f"/{at}", listed("2.0"))
    upstream.put(f"/{release('2.0')}", b"PK far")
    upstream.put(f"/{release('2.0')}.sha1", hashlib.sha1(b"PK far").hexdigest().encode())
    proxied.stored("one", release("1.0")), proxied.stored("two", release("2.0"), release("3.0"))
    proxied.change("all", members=["one", "there", "two"])
    assert proxied.values(at, "version") == ["1.0", "2.0", "3.0"]
    assert proxied.read(f"{at}.sha1").text == hashlib.sha1(proxied.read(at).data).hexdigest()
    assert proxied.read(release("2.0")).data == b"PK far"
    assert proxied.read(release("2.0", ".jar.sha1")).text == hashlib.sha1(b"PK far").hexdigest()
    assert proxied.read(release("3.0", ".jar.sha1")).text == hashlib.sha1(f"two {release('3.0')}".encode()).hexdigest()
    assert proxied.value("select count(*) from arkvory_freshness") == 0


def test_shielded_a_hosted_name_never_comes_from_an_upstream(proxied: Room, upstream: FakeUpstream) -> None:
    proxied.change("all", settings={"name_policy": "shield"})
    at = f"{LIB}/maven-metadata.xml"
    upstream.put(f"/{at}", listed("9.0"))
    upstream.put(f"/{release('9.0')}", b"PK far")
    assert proxied.values(at, "version") == ["9.0"]
    assert [proxied.fetched(release("9.0")).headers["X-Arkvory-Cache"] for _ in range(2)] == ["miss", "hit"]
    proxied.stored("one", release("1.0"))
    assert proxied.values(at, "version") == ["1.0"]
    assert proxied.read(release("9.0")).status_code == 404
    proxied.change("one", status="offline")
    for path in (at, release("9.0"), release("1.0")):
        assert proxied.read(path).status_code == 503
    # Its rows say that it does not hold that name: it is none that may have it.
    assert proxied.read("org/acme/other/1/other-1.jar").status_code == 404
    proxied.change("one", status="online")
    proxied.change("all", settings={"merged_names": ["org.acme:*"]})
    assert proxied.values(at, "version") == ["1.0", "9.0"]
    assert proxied.read(release("9.0")).status_code == 200
