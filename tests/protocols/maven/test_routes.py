from __future__ import annotations

import hashlib
import io
import re
import tracemalloc
import zipfile
from collections import Counter

import gevent
import pytest
from sqlalchemy import text
from werkzeug.test import TestResponse

from app.protocols.maven.names import ALGORITHMS
from app.protocols.maven.uploads import MOST_METADATA
from tests.protocols.maven.conftest import Room

LIB = "org/acme/lib"
BUILD = f"{LIB}/1.53-SNAPSHOT/lib-1.53-20200513.061306-4"


def values(answer: TestResponse, tag: str) -> list[str]:
    assert answer.status_code == 200, answer.text
    return re.findall(f"<{tag}>([^<]*)</{tag}>", answer.text)


def versions(room: Room, folder: str = LIB) -> list[str]:
    return values(room.get(f"{folder}/maven-metadata.xml"), "version")


def jar(version: str, ending: str = ".jar", artifact: str = "lib") -> str:
    return f"org/acme/{artifact}/{version}/{artifact}-{version}{ending}"


def assert_sidecars_are_right(room: Room, path: str) -> None:
    body = room.get(path).data
    for algorithm in ALGORITHMS:
        assert room.get(f"{path}.{algorithm}").data == hashlib.new(algorithm, body).hexdigest().encode()


# Metadata


def test_snapshot_metadata_names_the_newest_file_of_each_kind(room: Room) -> None:
    """HO-MVN-3."""
    room.stored(f"{BUILD}.jar", f"{BUILD}.pom", f"{BUILD}-sources.jar", f"{BUILD}.tar.gz", f"{BUILD}.jar.asc")
    answer = room.get(f"{LIB}/1.53-SNAPSHOT/maven-metadata.xml")
    assert values(answer, "version") == ["1.53-SNAPSHOT"]
    assert (values(answer, "timestamp"), values(answer, "buildNumber")) == (["20200513.061306"], ["4"])
    assert values(answer, "extension") == ["jar", "jar", "jar.asc", "pom", "tar.gz"]
    assert values(answer, "classifier") == ["sources"]
    assert set(values(answer, "value")) == {"1.53-20200513.061306-4"}
    assert set(values(answer, "updated") + values(answer, "lastUpdated")) == {"20200513061306"}
    room.stored(BUILD.replace("061306-4", "061307-5") + ".jar")
    answer = room.get(f"{LIB}/1.53-SNAPSHOT/maven-metadata.xml")
    assert Counter(values(answer, "value")) == {"1.53-20200513.061306-4": 4, "1.53-20200513.061307-5": 1}
    assert (values(answer, "timestamp"), values(answer, "buildNumber")) == (["20200513.061307"], ["5"])


def test_a_snapshot_without_timestamps_is_its_own_value(room: Room) -> None:
    room.stored(f"{LIB}/1.0-SNAPSHOT/lib-1.0-SNAPSHOT.jar")
    answer = room.get(f"{LIB}/1.0-SNAPSHOT/maven-metadata.xml")
    assert values(answer, "value") == ["1.0-SNAPSHOT"]
    assert "<snapshot>" not in answer.text
    assert len(values(answer, "updated")[0]) == 14
    assert room.put(f"{LIB}/1.0-SNAPSHOT/lib-1.0-SNAPSHOT.jar", b"newer").status_code == 200
    assert room.get(f"{LIB}/1.0-SNAPSHOT/lib-1.0-SNAPSHOT.jar").data == b"newer"


@pytest.mark.parametrize("ending", ["\u017fnapshot", "snap\u017fhot", "\xdfnapshot"])
def test_a_version_that_only_some_tools_take_for_a_snapshot_is_a_release(room: Room, ending: str) -> None:
    """Capitals beyond ASCII are other letters in Python than in PostgreSQL; all parts of the house have to agree."""
    version = f"1.0-{ending}"
    room.stored(jar(version))
    assert room.put(jar(version), b"others").status_code == 409
    assert room.put(f"{LIB}/{version}/lib-1.0-20200513.061306-4.jar").status_code == 400
    assert values(room.get(f"{LIB}/maven-metadata.xml"), "release") == [version]
    assert room.get(f"{LIB}/{version}/maven-metadata.xml").status_code == 404
    room.repository("releases", version_policy="release")
    assert room.put(jar(version), repository="releases").status_code == 201


@pytest.mark.parametrize("version", ["1.0-snapshot", "1.0-Snapshot", "SNAPSHOT"])
def test_a_snapshot_may_be_written_in_any_case(room: Room, version: str) -> None:
    room.stored(jar(version), jar(version, "-sources.jar"))
    answer = room.get(f"{LIB}/{version}/maven-metadata.xml")
    assert (values(answer, "value"), values(answer, "classifier")) == ([version, version], ["sources"])
    assert room.put(jar(version), b"newer").status_code == 200


def test_an_artifacts_versions_stand_in_order_with_latest_and_release(room: Room) -> None:
    room.stored(*(jar(version) for version in ("1.10", "1.9", "1.10-rc1", "2.0-SNAPSHOT", "1.9-sp")))
    answer = room.get(f"{LIB}/maven-metadata.xml")
    assert values(answer, "version") == ["1.9", "1.9-sp", "1.10-rc1", "1.10", "2.0-SNAPSHOT"]
    assert (values(answer, "latest"), values(answer, "release")) == (["2.0-SNAPSHOT"], ["1.10"])
    assert answer.headers["Content-Type"] == "application/xml"


def test_metadata_and_its_checksums_are_of_one_generation_after_every_put(room: Room) -> None:
    """HO-MVN-1, C9: in the order of a client, with checksums of what the client believes."""
    at = [f"{LIB}/maven-metadata.xml", f"{LIB}/1.53-SNAPSHOT/maven-metadata.xml"]
    mine = b"<metadata><groupId>org.acme</groupId></metadata>"
    for number in (4, 5):
        base = BUILD.replace("-4", f"-{number}")
        for path, body in ((f"{base}.jar", b"jar"), (f"{base}.pom", b"pom"), (at[1], mine), (at[0], mine)):
            sent = {path: body} | {f"{path}.{name}": hashlib.new(name, body).hexdigest().encode() for name in ("md5", "sha1")}
            for name, content in sent.items():
                assert room.put(name, content).status_code in (200, 201)
                for document in at:
                    assert_sidecars_are_right(room, document)
    assert values(room.get(at[1]), "buildNumber") == ["5"]


def test_the_validator_moves_with_the_artifact_alone(room: Room) -> None:
    """C9."""
    room.stored(jar("1.0"), jar("1.0", artifact="other"))
    before = {name: room.get(f"org/acme/{name}/maven-metadata.xml").headers["ETag"] for name in ("lib", "other")}
    room.stored(jar("1.1"))
    assert room.get(f"{LIB}/maven-metadata.xml").headers["ETag"] != before["lib"]
    known = {"If-None-Match": before["other"]}
    assert room.get("org/acme/other/maven-metadata.xml", headers=known).status_code == 304
    assert room.request("HEAD", "org/acme/other/maven-metadata.xml").headers["ETag"] == before["other"]


def test_where_nothing_lies_there_is_no_metadata(room: Room) -> None:
    room.stored(jar("1.0"), f"{jar('2.0')}.asc")
    assert versions(room) == ["1.0"]
    for folder in ("org", "org/acme", "org/acme/other", f"{LIB}/1.0", f"{LIB}/2.0-SNAPSHOT"):
        for ending in ("", ".sha1"):
            assert room.get(f"{folder}/maven-metadata.xml{ending}").status_code == 404


def test_a_folder_may_be_an_artifact_and_a_group(room: Room) -> None:
    room.stored(jar("1.0"))
    room.put("org/acme/lib/x-maven-plugin/2.0/x-maven-plugin-2.0.jar", plugin_jar("org.acme.lib", "x-maven-plugin", "x"))
    answer = room.get(f"{LIB}/maven-metadata.xml")
    assert (values(answer, "groupId"), values(answer, "version"), values(answer, "prefix")) == (["org.acme"], ["1.0"], ["x"])
    before = answer.headers["ETag"]
    assert room.request("DELETE", jar("1.0")).status_code == 204
    answer = room.get(f"{LIB}/maven-metadata.xml")
    assert (values(answer, "groupId"), values(answer, "prefix")) == ([], ["x"])
    assert answer.headers["ETag"] != before


def plugin_jar(group: str, artifact: str, prefix: str) -> bytes:
    text = f"<plugin><groupId>{group}</groupId><artifactId>{artifact}</artifactId><goalPrefix>{prefix}</goalPrefix><mojos/></plugin>"
    with io.BytesIO() as buffer:
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("META-INF/maven/plugin.xml", text)
        return buffer.getvalue()


def test_a_groups_plugins_are_those_of_its_jars_in_their_highest_version(room: Room) -> None:
    for version, prefix in (("1.10", "new"), ("1.9", "old")):
        room.put(jar(version, artifact="a-maven-plugin"), plugin_jar("org.acme", "a-maven-plugin", prefix))
    room.put(jar("1.0", artifact="b-maven-plugin"), plugin_jar("org.acme", "b-maven-plugin", "b"))
    room.put("org/acme/deep/c/1/c-1.jar", plugin_jar("org.acme.deep", "c", "c"))
    answer = room.get("org/acme/maven-metadata.xml")
    assert values(answer, "prefix") == ["new", "b"]
    assert values(answer, "artifactId") == values(answer, "name") == ["a-maven-plugin", "b-maven-plugin"]
    assert_sidecars_are_right(room, "org/acme/maven-metadata.xml")
    assert room.request("DELETE", "org/acme/a-maven-plugin/1.10/").status_code == 204
    assert values(room.get("org/acme/maven-metadata.xml"), "prefix") == ["old", "b"]


def test_the_catalog_lists_archetypes(room: Room) -> None:
    assert values(room.get("archetype-catalog.xml"), "artifactId") == []
    with io.BytesIO() as buffer:
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("META-INF/maven/archetype-metadata.xml", "<archetype-descriptor/>")
        room.put(jar("1.0", artifact="start"), buffer.getvalue())
    answer = room.get("archetype-catalog.xml")
    assert (values(answer, "groupId"), values(answer, "artifactId"), values(answer, "version")) == (["org.acme"], ["start"], ["1.0"])
    assert_sidecars_are_right(room, "archetype-catalog.xml")


# Files and their checksums


def test_a_file_is_served_with_checksums_validators_and_ranges(room: Room) -> None:
    data = bytes(range(256)) * 5000
    assert room.put(jar("1.0"), data).status_code == 201
    answer = room.get(jar("1.0"))
    assert answer.data == data
    for algorithm in ALGORITHMS:
        assert answer.headers[f"X-Checksum-{algorithm.capitalize()}"] == hashlib.new(algorithm, data).hexdigest()
    assert_sidecars_are_right(room, jar("1.0"))
    assert room.get(jar("1.0"), headers={"Range": "bytes=-3"}).data == data[-3:]
    assert room.get(jar("1.0"), headers={"If-None-Match": answer.headers["ETag"]}).status_code == 304
    head = room.request("HEAD", f"{jar('1.0')}.sha1")
    assert (head.status_code, head.headers["Content-Length"], head.data) == (200, "40", b"")
    assert room.get(f"{jar('1.0')}.SHA-256").text == hashlib.sha256(data).hexdigest()


def test_a_signature_is_a_file_with_checksums_of_its_own_and_may_come_first(room: Room) -> None:
    room.stored(jar("1.0", ".jar.asc"), jar("1.0"))
    assert_sidecars_are_right(room, jar("1.0", ".jar.asc"))


def test_a_snapshot_with_other_bytes_loses_the_signature_of_the_old_ones(room: Room) -> None:
    path = f"{LIB}/1.0-SNAPSHOT/lib-1.0-SNAPSHOT.jar"
    room.stored(path, f"{path}.asc")
    assert room.put(path, b"other").status_code == 200
    assert room.get(f"{path}.asc").status_code == 404


@pytest.mark.parametrize("form", ["{}", "{}\n", "{}  lib-1.0.jar", "{} *lib-1.0.jar\n", "SHA1(lib-1.0.jar)= {}", "sha1 (lib-1.0.jar) = {}"])
def test_a_checksum_is_compared_with_the_file_and_never_stored(room: Room, form: str) -> None:
    room.stored(jar("1.0"))
    right, wrong = hashlib.sha1(jar("1.0").encode()).hexdigest(), "0" * 40
    assert room.put(f"{jar('1.0')}.sha1", form.format(right.upper()).encode()).status_code == 200
    refused = room.put(f"{jar('1.0')}.sha1", form.format(wrong).encode())
    assert (refused.status_code, wrong in refused.status) == (400, True)
    assert room.get(f"{jar('1.0')}.sha1").text == right
    assert room.value("select count(*) from arkvory_artifacts") == 1


def test_a_wrong_checksum_does_not_tell_the_right_one(room: Room) -> None:
    """Whoever may write may perhaps not read, and the file may be held."""
    room.put(jar("1.0"), b"secret")
    answer = room.put(jar("1.0", ".jar.sha1"), b"0" * 40)
    assert (answer.status_code, hashlib.sha1(b"secret").hexdigest() in answer.text + answer.status) == (400, False)


def test_a_checksum_before_its_file_is_taken_and_forgotten(room: Room) -> None:
    assert room.put(f"{jar('1.0')}.md5", b"0" * 32).status_code == 202
    assert room.get(f"{jar('1.0')}.md5").status_code == 404
    room.stored(jar("1.0"))
    assert_sidecars_are_right(room, jar("1.0"))


@pytest.mark.parametrize(
    ("body", "status"), [(b"", 400), (b"abc", 400), (b"0" * 41, 400), (b"0" * 40 + b" " + b"1" * 40, 400), (b"0" * 2000, 413)]
)
def test_what_is_no_checksum_is_refused(room: Room, body: bytes, status: int) -> None:
    room.stored(jar("1.0"))
    assert room.put(f"{jar('1.0')}.sha1", body).status_code == status


def test_a_body_is_checked_against_the_checksum_in_its_head(room: Room) -> None:
    assert room.put(jar("1.0"), b"bytes", headers={"X-Checksum-Sha1": "0" * 40}).status_code == 400
    assert room.get(jar("1.0")).status_code == 404


# Policies


def test_a_release_is_written_once(room: Room) -> None:
    """W4: the same bytes again change nothing, others are refused in words that clients show."""
    room.stored(jar("1.0"))
    before = room.get(jar("1.0"))
    epoch = room.value("select content_epoch from arkvory_repositories")
    again = room.put(jar("1.0"), jar("1.0").encode())
    assert (again.status_code, again.headers["ETag"]) == (200, before.headers["ETag"])
    for body in (b"other", b"x" * len(jar("1.0"))):
        refused = room.put(jar("1.0"), body)
        assert (refused.status_code, "keeps what was published once" in refused.status) == (409, True)
    assert room.get(jar("1.0")).headers["Last-Modified"] == before.headers["Last-Modified"]
    assert room.value("select content_epoch from arkvory_repositories") == epoch
    assert room.value("select sum(bytes) from arkvory_upload_bytes") == len(jar("1.0"))


def test_a_repository_that_replaces_takes_a_release_again(room: Room) -> None:
    room.repository("loose", write_policy="replace")
    for body in (b"one", b"two"):
        assert room.put(jar("1.0"), body, repository="loose").status_code in (200, 201)
        assert room.get(f"{jar('1.0')}.md5", repository="loose").text == hashlib.md5(body).hexdigest()


@pytest.mark.parametrize(
    ("policy", "path", "status"),
    [
        ("release", jar("1.0"), 201),
        ("release", jar("1.0-SNAPSHOT"), 409),
        ("release", jar("1.0-snapshot"), 409),
        ("release", f"{BUILD}.jar", 409),
        ("snapshot", jar("1.0"), 409),
        ("snapshot", f"{BUILD}.jar", 201),
        ("mixed", f"{BUILD}.jar", 201),
    ],
)
def test_a_version_policy_lets_in_its_own_kind(room: Room, policy: str, path: str, status: int) -> None:
    room.repository("strict", version_policy=policy)
    answer = room.put(path, repository="strict")
    assert answer.status_code == status
    assert ("version_policy" in answer.status) == (status == 409)


def test_a_read_only_repository_takes_nothing(room: Room) -> None:
    room.repository("frozen", write_policy="read_only")
    for path in (jar("1.0"), f"{jar('1.0')}.sha1", f"{LIB}/maven-metadata.xml"):
        assert room.put(path, b"<a/>", repository="frozen").status_code == 405


def test_nobody_writes_without_a_login_not_even_what_is_not_kept(room: Room) -> None:
    for path in (jar("1.0"), f"{jar('1.0')}.sha1", f"{LIB}/maven-metadata.xml", f"{LIB}/maven-metadata.xml.sha1"):
        answer = room.put(path, b"<a/>", anonymous=True)
        assert (answer.status_code, "Basic" in answer.headers["WWW-Authenticate"]) == (401, True)


# Bad input


@pytest.mark.parametrize(
    "path",
    [
        "lib.jar",
        "org/acme/lib/1.0/other.jar",
        "org/acme/lib/1.0%2F2/lib-1.0%2F2.jar",
        "org/acme/lib/1:0/lib-1:0.jar",
        "maven-metadata.xml",
        "org/acme/lib/1.0/lib-1.0.jar.sha1.sha1",
        "org/acme/lib/..%2F..%2Fx/lib-1.0.jar",
        "org/acme/lib/1.0/",
        "org/acme/lib/1%EF%BC%8F0/lib-1%EF%BC%8F0.jar",
    ],
)
def test_a_path_that_is_no_coordinate_is_refused_and_holds_nothing(room: Room, path: str) -> None:
    assert room.put(path).status_code == 400
    assert room.get(path).status_code in (400, 404)
    assert room.value("select count(*) from arkvory_artifacts") == 0


def test_a_folder_without_its_slash_is_a_step_away(room: Room) -> None:
    room.stored(jar("1.0"))
    for path, there in (("org", "org/"), ("org/acme", "acme/"), (LIB, "lib/"), (f"{LIB}/1.0", "1.0/")):
        answer = room.get(path)
        assert (answer.status_code, answer.headers["Location"]) == (302, there)
    answer = room.get("org/acm")
    assert (answer.status_code, "no Maven path" in answer.text) == (404, True)
    room.repository("closed")
    assert room.get("org", anonymous=True, repository="nowhere").status_code == 401


def test_names_in_other_scripts_are_kept(room: Room) -> None:
    path = "例/жук/библиотека/1.0-δ/библиотека-1.0-δ-日本.jar"
    room.stored(path)
    assert room.get(path).status_code == 200
    assert values(room.get("例/жук/библиотека/maven-metadata.xml"), "version") == ["1.0-δ"]
    assert_sidecars_are_right(room, "例/жук/библиотека/maven-metadata.xml")


def test_markup_in_names_is_escaped(room: Room) -> None:
    room.stored("org/a&b/lib/1.0&amp/lib-1.0&amp.jar")
    assert "<groupId>org.a&amp;b</groupId>" in room.get("org/a&b/lib/maven-metadata.xml").text
    assert "<version>1.0&amp;amp</version>" in room.get("org/a&b/lib/maven-metadata.xml").text


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"<metadata/>", 200),
        (b"<metadata><versioning><versions><version>99</version></versions></versioning></metadata>", 200),
        (b'<!DOCTYPE m [<!ENTITY a "b">]><metadata>&a;</metadata>', 400),
        (b'<!DOCTYPE m SYSTEM "file:///etc/passwd"><metadata/>', 400),
        (b"<metadata>&unknown;</metadata>", 400),
        (b"", 400),
        (b"no markup", 400),
        (b"<metadata>", 400),
        (b'<?xml version="1.0" encoding="nonsense"?><metadata/>', 400),
    ],
)
@pytest.mark.parametrize("folder", ["org/acme", LIB, f"{LIB}/1.53-SNAPSHOT"])
def test_metadata_of_a_client_changes_nothing(room: Room, folder: str, body: bytes, status: int) -> None:
    room.stored(jar("1.0"))
    epoch = room.value("select content_epoch from arkvory_repositories")
    assert room.put(f"{folder}/maven-metadata.xml", body).status_code == status
    assert versions(room) == ["1.0"]
    assert room.value("select content_epoch from arkvory_repositories") == epoch


class Endless:
    """A body of 100 MB that counts what is read of it."""

    def __init__(self) -> None:
        self.taken = 0

    def read(self, size: int = -1) -> bytes:
        assert 0 < size <= 1024 * 1024, "all of it would be in memory"
        piece = b"<a/>" * (size // 4) if self.taken else b"<metadata>"
        self.taken += len(piece)
        return piece if self.taken < 100_000_000 else b""


@pytest.mark.parametrize(
    ("told", "most"), [({"CONTENT_LENGTH": "100000000"}, 0), ({"HTTP_TRANSFER_ENCODING": "chunked"}, MOST_METADATA + 2**20)]
)
def test_endless_metadata_is_refused_without_being_read_to_its_end(room: Room, told: dict[str, str], most: int) -> None:
    body = Endless()
    answer = room.request("PUT", f"{LIB}/maven-metadata.xml", environ_overrides={"wsgi.input": body} | told)
    assert answer.status_code == 413
    assert body.taken <= most


@pytest.mark.parametrize(
    ("before", "piece", "behind"),
    [
        ("", "<m>", ""),
        ("", '<m xmlns:a="u">', ""),
        ("", "<m%x/>", ""),
        ("", '<m n%x=""/>', ""),
        ("", '<m xmlns:n%x="u"/>', ""),
        ("<m", ' n%x=""', "/>"),
        ("<", "m", "/>"),
        ("<!--", "m", "-->"),
        ('<m a="', "m", '"/>'),
    ],
    ids=["deep", "deep namespaces", "names", "attributes", "namespaces", "wide", "a long name", "a long comment", "a long attribute"],
)
def test_metadata_like_none_of_mavens_costs_no_memory(room: Room, before: str, piece: str, behind: str) -> None:
    middle = "".join(piece % number if "%" in piece else piece for number in range(2**20 // len(piece)))
    body = f"<metadata>{before}{middle}{behind}".encode()
    tracemalloc.start()
    try:
        answer = room.put(f"{LIB}/maven-metadata.xml", body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (answer.status_code, "like none of Maven's" in answer.text) == (400, True)
    # The client of this test holds the body once more.
    assert peak < len(body) + 3 * 2**20


def test_metadata_of_very_many_versions_is_read(room: Room) -> None:
    rows = b"".join(b"<version>1.0.%d</version>\n" % number for number in range(200_000))
    body = b"<metadata><versioning><versions>" + rows + b"</versions></versioning></metadata>"
    assert room.put(f"{LIB}/maven-metadata.xml", body).status_code == 200


def test_metadata_is_read_in_a_place_like_a_file(room: Room) -> None:
    """A hundred clients at once would have a hundred parsers."""
    places = room.parts.places
    seen: list[int] = []

    class Looking(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            seen.append(places.used)
            return super().read(size)

    answer = room.request("PUT", f"{LIB}/maven-metadata.xml", environ_overrides={"wsgi.input": Looking(b"<m/>"), "CONTENT_LENGTH": "4"})
    assert answer.status_code == 200
    assert (set(seen), places.used) == ({1}, 0)


def test_what_is_withheld_stands_in_no_document(room: Room) -> None:
    newer = BUILD.replace("061306-4", "061307-5")
    room.stored(jar("1.0"), jar("1.1"), f"{BUILD}.jar", f"{newer}.jar", f"{newer}.zip")
    room.put(jar("1.0", artifact="a-maven-plugin"), plugin_jar("org.acme", "a-maven-plugin", "a"))
    held = [jar("1.1"), f"{newer}.jar", f"{newer}.zip", jar("1.0", artifact="a-maven-plugin")]
    with room.parts.database.write() as connection:
        connection.execute(text("update arkvory_artifacts set withheld = true where path = any(:paths)"), {"paths": held})
    assert versions(room) == ["1.0", "1.53-SNAPSHOT"]
    assert values(room.get(f"{LIB}/1.53-SNAPSHOT/maven-metadata.xml"), "value") == ["1.53-20200513.061306-4"]
    for path in ("org/acme/maven-metadata.xml", "org/acme/a-maven-plugin/maven-metadata.xml"):
        assert room.get(path).status_code == 404


# Deleting


def test_a_deleted_version_is_gone_from_the_metadata_at_once(room: Room) -> None:
    room.stored(jar("1.0"), jar("1.0", ".jar.asc"), jar("1.0", ".pom"), jar("1.1"))
    assert room.request("DELETE", jar("1.0")).status_code == 204
    assert room.get(jar("1.0", ".jar.asc")).status_code == 404
    assert versions(room) == ["1.0", "1.1"]
    assert room.request("DELETE", f"{LIB}/1.0/").status_code == 204
    assert versions(room) == ["1.1"]
    assert_sidecars_are_right(room, f"{LIB}/maven-metadata.xml")
    assert room.request("DELETE", f"{LIB}/").status_code == 204
    assert room.get(f"{LIB}/maven-metadata.xml").status_code == 404
    assert room.request("DELETE", f"{LIB}/").status_code == 404
    room.stored(jar("1.0"))
    assert versions(room) == ["1.0"]


def test_after_old_builds_went_the_metadata_names_those_that_are_left(room: Room) -> None:
    """HO-MVN-1, after a retention."""
    newer = BUILD.replace("061306-4", "061307-5")
    room.stored(f"{BUILD}.jar", f"{BUILD}.zip", f"{newer}.jar")
    assert room.request("DELETE", f"{newer}.jar").status_code == 204
    path = f"{LIB}/1.53-SNAPSHOT/maven-metadata.xml"
    assert set(values(room.get(path), "value")) == {"1.53-20200513.061306-4"}
    assert_sidecars_are_right(room, path)


def test_documents_and_checksums_are_not_deleted_on_their_own(room: Room) -> None:
    room.stored(jar("1.0"))
    for path in (f"{LIB}/maven-metadata.xml", f"{jar('1.0')}.sha1", "archetype-catalog.xml"):
        assert room.request("DELETE", path).status_code == 409
    assert room.request("DELETE", jar("1.0"), anonymous=True).status_code == 401


# Many at once


def test_the_first_files_of_many_versions_arrive_together(room: Room) -> None:
    """HO-MVN-2."""
    paths = [jar(f"1.{number}", ending) for number in range(50) for ending in (".jar", "-sources.jar", ".pom")]
    runs = [gevent.spawn(room.put, path, path.encode()) for path in paths]
    gevent.joinall(runs, timeout=120, raise_error=True)
    assert Counter(run.value.status_code for run in runs) == {201: 150}
    assert versions(room) == [f"1.{number}" for number in range(50)]
    assert all(room.get(path).data == path.encode() for path in paths)


def test_of_200_who_deploy_the_same_first_file_all_succeed(room: Room) -> None:
    """HO-MVN-2, W4: the bytes are the same, one of them made it, and it is counted once."""
    runs = [gevent.spawn(room.put, jar("1.0"), b"the same") for _ in range(200)]
    gevent.joinall(runs, timeout=120, raise_error=True)
    assert Counter(run.value.status_code for run in runs) == {201: 1, 200: 199}
    assert versions(room) == ["1.0"]
    assert room.value("select artifacts from arkvory_packages") == 1
    assert room.value("select sum(bytes) from arkvory_upload_bytes") == len(b"the same")


def test_of_many_who_deploy_different_bytes_one_succeeds(room: Room) -> None:
    runs = [gevent.spawn(room.put, jar("1.0"), b"bytes of %03d" % number) for number in range(30)]
    gevent.joinall(runs, timeout=120, raise_error=True)
    assert Counter(run.value.status_code for run in runs) == {201: 1, 409: 29}


# What newer Gradle sends


def test_a_publication_of_gradle_with_its_module_file(room: Room) -> None:
    """Gradle 6 and later: each file with its four checksums, `.module` too, then the merged metadata."""
    base, mine = f"{LIB}/1.53-SNAPSHOT/lib-1.53-20200513.061306-1", b"<metadata><artifactId>lib</artifactId></metadata>"
    files = {f"{base}.jar": b"jar", f"{base}.pom": b"pom", f"{base}.module": b'{"formatVersion": "1.1"}'}
    files[f"{LIB}/1.53-SNAPSHOT/maven-metadata.xml"] = mine
    for path, body in files.items():
        assert room.put(path, body).status_code in (200, 201)
        for algorithm in ALGORITHMS:
            assert room.put(f"{path}.{algorithm}", hashlib.new(algorithm, body).hexdigest().encode()).status_code == 200
    assert values(room.get(f"{LIB}/1.53-SNAPSHOT/maven-metadata.xml"), "extension") == ["jar", "module", "pom"]
    assert room.get(f"{base}.module").headers["Content-Type"] == "application/json"


def test_a_folder_is_listed(room: Room) -> None:
    room.stored(jar("1.0"), jar("1.1"))
    listed = room.get(f"{LIB}/?format=json").json
    assert [each["name"] for each in listed["items"]] == ["1.0/", "1.1/"]
    assert room.get("").status_code == 200
