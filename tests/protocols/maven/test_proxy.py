"""DESIGN 6 for Maven: what a proxy answers to mvn's requests, whatever its upstream does; the upstream is asked over real sockets."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import gevent
import pytest
from werkzeug.test import TestResponse

from app.access.identity import LOCAL, Caller
from app.errors import UpstreamUnfit
from app.protocols.maven.routes import reads
from app.protocols.maven.upstream import Upstreams
from app.repository.registry import NewRepository, Registry, RepositoryChange
from tests.support import room as room_of
from tests.support.house import eventually
from tests.support.upstreams import FakeUpstream, noise

ADMIN = Caller(LOCAL, "127.0.0.1")
ALGORITHMS = ("md5", "sha1", "sha256", "sha512")
JAR, OTHER = b"PK\x03\x04" + noise(200_000), b"PK\x03\x04" + noise(150_000, 2)
LARGE = b"PK\x03\x04" + noise(4_000_000, 3)
POM = b'<?xml version="1.0"?>\n<project><groupId>org.acme</groupId><artifactId>lib</artifactId></project>\n'
PAGE = b"\n<!DOCTYPE html>\n<html><body>Our site moved</body></html>\n"
FOLDER = "org/acme/lib/1.0"
PATH = f"{FOLDER}/lib-1.0.jar"
SNAPSHOT = "org/acme/lib/2.0-SNAPSHOT/lib-2.0-20200513.061306-4.jar"
METADATA = "org/acme/lib/maven-metadata.xml"


def metadata(*versions: str) -> bytes:
    """As an upstream writes it, which is not how we would."""
    listed = "".join(f"<version>{each}</version>" for each in versions)
    text = f"<metadata>\r\n\t<artifactId>lib</artifactId><versioning><versions>{listed}</versions></versioning></metadata>"
    return f'<?xml version="1.0"?>{text}'.encode()


def digest(algorithm: str, body: bytes) -> str:
    return hashlib.new(algorithm, body).hexdigest()


class Proxied(room_of.Room):
    """A public proxy `mvn` of the upstream. Requests are made once, by the short path."""

    def __init__(self, parts: Any, upstream: FakeUpstream, **settings: Any) -> None:
        super().__init__(parts, reads, "mvn")
        parts.fetches.dialects["maven"] = Upstreams()
        self.upstream = upstream
        self.registry = Registry(parts.settings, parts.database, parts.transactions, parts.access)
        self.registry.create(ADMIN, NewRepository("mvn", "maven", kind="proxy", public=True, upstream_url=upstream.url, settings=settings))

    def request(self, method: str, path: str, **options: Any) -> TestResponse:
        return self.app.test_client().open(f"/maven/mvn/{path}", method=method, **options)

    def change(self, **values: Any) -> None:
        self.registry.update(ADMIN, "mvn", RepositoryChange(values))

    def how(self, path: str) -> str:
        """How it was answered, or the status."""
        answer = self.get(path)
        return answer.headers["X-Arkvory-Cache"] if answer.status_code == 200 else str(answer.status_code)

    def stored(self) -> list[str]:
        return [row.path for row in self.execute("select path from arkvory_artifacts order by path")]

    def assert_sidecars(self, path: str, body: bytes) -> None:
        """HO-MVN-1: bare hex of what is served."""
        for algorithm in ALGORITHMS:
            assert self.get(f"{path}.{algorithm}").data.decode() == digest(algorithm, body)

    def assert_nothing_left(self) -> None:
        """W1: no artifact, and no byte counted."""
        eventually(lambda: not self.parts.admission.open_uploads)
        self.parts.cleanup.run()
        assert self.stored() == []
        assert self.value("select coalesce(sum(bytes), 0) from arkvory_upload_bytes") == 0


@pytest.fixture
def parts(database_url: str, tmp_path: Path) -> Iterator[Any]:
    with room_of.parts_over(database_url, tmp_path, ARKVORY_BLOB_GRACE_SECONDS="0.001") as parts:
        yield parts


@pytest.fixture
def proxied(parts: Any, upstream: FakeUpstream) -> Proxied:
    """Whose mutable copies are always due."""
    return Proxied(parts, upstream, mutable_ttl=0, miss_ttl=60)


def serve(upstream: FakeUpstream, path: str, body: bytes, **fields: Any) -> None:
    """With the checksum beside it."""
    upstream.put(f"/{path}", body, **fields)
    upstream.put(f"/{path}.sha1", digest("sha1", body).encode())


# What clients get


def test_a_release_is_fetched_once_and_described_as_a_hosted_one(proxied: Proxied, upstream: FakeUpstream) -> None:
    serve(upstream, PATH, JAR, headers={"Content-Type": "application/octet-stream"})
    assert [proxied.how(PATH) for _ in range(3)] == ["miss", "hit", "hit"]
    answer = proxied.get(PATH)
    assert (answer.data, answer.content_type) == (JAR, "application/java-archive")
    assert answer.headers["X-Checksum-Sha1"] == digest("sha1", JAR)
    proxied.assert_sidecars(PATH, JAR)
    assert [each.target for each in upstream.asked] == [f"/{PATH}", f"/{PATH}.sha1"]
    row = proxied.execute(
        "select a.version, p.name, f.immutable from arkvory_artifacts a join arkvory_packages p on p.id = a.package_id "
        "join arkvory_freshness f on f.artifact_id = a.id"
    )
    assert [tuple(each) for each in row] == [("1.0", "org.acme:lib", True)]


def test_head_and_conditions_answer_alike_cold_and_warm(proxied: Proxied, upstream: FakeUpstream) -> None:
    serve(upstream, PATH, JAR)
    answer = proxied.request("HEAD", PATH)
    assert (answer.status_code, answer.content_length, answer.data) == (200, len(JAR), b"")
    etag = answer.headers["ETag"]
    assert proxied.get(PATH, headers={"If-None-Match": etag}).status_code == 304
    assert proxied.get(PATH, headers={"Range": "bytes=0-3"}).data == b"PK\x03\x04"


def test_both_paths_answer_alike(parts: Any, upstream: FakeUpstream) -> None:
    proxied = Proxied(parts, upstream)
    serve(upstream, PATH, JAR)
    serve(upstream, METADATA, metadata("1.0"))
    serve(upstream, "archetype-catalog.xml", b"<archetype-catalog></archetype-catalog>")
    catalog = "archetype-catalog.xml"
    paths = (PATH, f"{PATH}.sha1", METADATA, f"{METADATA}.md5", catalog, f"{catalog}.sha1", f"{FOLDER}/", "org", "org/x", "no/x.jar")
    for path in paths:
        proxied.get(path)
    # What was stored in this very second is told as of now.
    gevent.sleep(1.1)
    for path in paths:
        answers = []
        for proxied.client.short.is_open in (True, False):
            answer = proxied.get(path)
            answers.append((answer.status_code, answer.data, {k: v for k, v in answer.headers if k not in ("Age", "Date")}))
        assert answers[0] == answers[1], path


def test_a_cold_sidecar_is_of_the_bytes_that_come_with_it(proxied: Proxied, upstream: FakeUpstream) -> None:
    """Also one that the upstream does not have."""
    upstream.put(f"/{PATH}", JAR)
    assert proxied.get(f"{PATH}.sha512").data.decode() == digest("sha512", JAR)
    assert proxied.how(PATH) == "hit"
    assert proxied.get(f"{FOLDER}/lib-1.0.pom.sha1").status_code == 404


def test_a_signature_is_passed_on(proxied: Proxied, upstream: FakeUpstream) -> None:
    signature = b"-----BEGIN PGP SIGNATURE-----\n\nabc\n-----END PGP SIGNATURE-----\n"
    upstream.put(f"/{PATH}.asc", signature)
    answer = proxied.get(f"{PATH}.asc")
    assert (answer.data, answer.content_type) == (signature, "application/pgp-signature")
    proxied.assert_sidecars(f"{PATH}.asc", signature)
    assert proxied.get(f"{FOLDER}/lib-1.0.pom.asc").status_code == 404


def test_metadata_is_the_upstreams_to_the_byte_and_its_sidecars_are_of_it(proxied: Proxied, upstream: FakeUpstream) -> None:
    """HO-MVN-1: whatever the upstream's own sidecars say, and after each change."""
    for number, versions in enumerate((("1.0",), ("1.0", "1.1"), ("0.9", "1.1"))):
        body = metadata(*versions)
        upstream.put(f"/{METADATA}", body, etag=f'"{number}"')
        upstream.put(f"/{METADATA}.sha1", b"0" * 40)
        answer = proxied.get(METADATA)
        assert (answer.data, answer.content_type) == (body, "application/xml")
        proxied.assert_sidecars(METADATA, body)
    assert upstream.count(f"/{METADATA}.sha1") == 0


def test_a_sidecar_belongs_to_the_metadata_that_was_served_and_not_to_a_newer_one(proxied: Proxied, upstream: FakeUpstream) -> None:
    """HO-MVN-1: the upstream changes between the two requests of one client."""
    body = metadata("1.0")
    upstream.put(f"/{METADATA}", body)
    assert proxied.get(METADATA).data == body
    upstream.put(f"/{METADATA}", metadata("1.0", "2.0"))
    proxied.assert_sidecars(METADATA, body)
    assert proxied.get(METADATA).data == metadata("1.0", "2.0")
    proxied.assert_sidecars(METADATA, metadata("1.0", "2.0"))


def test_who_asks_for_sidecars_alone_hears_of_changes_too(
    proxied: Proxied, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream.put(f"/{SNAPSHOT}", JAR)
    assert proxied.get(f"{SNAPSHOT}.sha1").data.decode() == digest("sha1", JAR)
    upstream.put(f"/{SNAPSHOT}", OTHER)
    monkeypatch.setattr("app.http.reads.SLACK_SECONDS", 0.0)
    assert proxied.get(f"{SNAPSHOT}.sha1").data.decode() == digest("sha1", OTHER)


def test_snapshots_and_metadata_are_compared_and_releases_never(parts: Any, upstream: FakeUpstream) -> None:
    proxied = Proxied(parts, upstream, mutable_ttl=1)
    plain = "org/acme/lib/2.0-SNAPSHOT/lib-2.0-SNAPSHOT.jar"
    moving = (SNAPSHOT, plain, METADATA, "org/acme/lib/2.0-SNAPSHOT/maven-metadata.xml")
    for path in (*moving, PATH, f"{FOLDER}/ivy-1.0.xml"):
        upstream.put(f"/{path}", metadata("1") if path.endswith("xml") else JAR, etag='"1"')
        assert proxied.how(path) == "miss"
    gevent.sleep(1.1)
    assert [proxied.how(path) for path in moving] == ["revalidated"] * 4
    assert [proxied.how(path) for path in (PATH, f"{FOLDER}/ivy-1.0.xml")] == ["hit"] * 2
    upstream.put(f"/{plain}", OTHER, etag='"2"')
    gevent.sleep(1.1)
    assert proxied.get(plain).data == OTHER


def test_a_new_build_under_the_same_name_leaves_no_old_signature(proxied: Proxied, upstream: FakeUpstream) -> None:
    path = "org/acme/lib/2.0-SNAPSHOT/lib-2.0-SNAPSHOT.jar"
    upstream.put(f"/{path}", JAR)
    upstream.put(f"/{path}.asc", b"old")
    assert [proxied.how(path), proxied.how(f"{path}.asc")] == ["miss", "miss"]
    upstream.put(f"/{path}", OTHER)
    assert proxied.get(path).data == OTHER
    assert proxied.stored() == [path]


def test_paths_that_are_no_coordinates_are_passed_on(proxied: Proxied, upstream: FakeUpstream) -> None:
    index = ".index/nexus-maven-repository-index.properties"
    for path in (index, "org/acme/lib/1.0/something-else.txt", "org.acme/lib/1.0/lib-1.0.jar", "robots.txt"):
        upstream.put(f"/{path}", b"bytes")
        assert proxied.get(path).data == b"bytes"
        assert proxied.get(f"{path}.sha1").data.decode() == digest("sha1", b"bytes")
    assert proxied.value("select count(*) from arkvory_packages") == 0
    before = len(upstream.asked)
    assert [proxied.get(path).status_code for path in ("elsewhere", "org/acme/nothing")] == [404, 404]
    assert len(upstream.asked) == before


def test_a_folder_of_the_upstream_is_no_file(proxied: Proxied, upstream: FakeUpstream) -> None:
    upstream.put("/org/acme/lib/1.0.Final", status=301, headers={"Location": "/org/acme/lib/1.0.Final/"})
    upstream.put("/org/acme/lib/1.0.Final/", PAGE, headers={"Content-Type": "text/html"})
    assert proxied.get("org/acme/lib/1.0.Final").status_code == 404
    serve(upstream, "org/acme/lib/1.0.Final/lib-1.0.Final.jar", JAR)
    proxied.get("org/acme/lib/1.0.Final/lib-1.0.Final.jar")
    assert proxied.get("org/acme/lib/1.0.Final").headers["Location"].endswith("1.0.Final/")
    assert b"lib-1.0.Final.jar" in proxied.get("org/acme/lib/1.0.Final/").data


def test_a_spelling_goes_out_as_it_came(proxied: Proxied, upstream: FakeUpstream) -> None:
    """HO-RAW-1: for files, metadata, and sidecars of what is not there yet."""
    spelled = "org/acme/lib/1.0%2Bb/lib-1.0%2Bb.jar"
    serve(upstream, spelled, JAR)
    assert proxied.get(f"{spelled}.md5").data.decode() == digest("md5", JAR)
    assert [each.target for each in upstream.asked] == [f"/{spelled}", f"/{spelled}.sha1"]
    other = "org/acme/lib/1%2B-SNAPSHOT/maven-metadata.xml"
    upstream.put(f"/{other}", metadata("1"))
    assert proxied.get(other).data == metadata("1")


def test_a_large_catalog_is_streamed_while_it_comes(proxied: Proxied, upstream: FakeUpstream) -> None:
    entry = b"<archetype><groupId>org.acme</groupId><artifactId>a</artifactId><version>1</version></archetype>\n"
    catalog = b"<archetype-catalog><archetypes>" + entry * 40_000 + b"</archetypes></archetype-catalog>\n"
    upstream.put("/archetype-catalog.xml", catalog, etag='"1"')
    cold = proxied.get("archetype-catalog.xml", buffered=False)
    assert cold.headers["X-Arkvory-Cache"] == "miss"
    # No validator: nobody knew all of it when it began.
    assert "ETag" not in cold.headers
    assert cold.data == catalog
    proxied.assert_sidecars("archetype-catalog.xml", catalog)
    assert proxied.how("archetype-catalog.xml") == "revalidated"


def test_files_of_upstreams_show_in_listings_and_by_what_is_in_them(proxied: Proxied, upstream: FakeUpstream) -> None:
    jar = io.BytesIO()
    with zipfile.ZipFile(jar, "w") as archive:
        archive.writestr("META-INF/maven/archetype-metadata.xml", "<a/>")
    serve(upstream, PATH, jar.getvalue())
    proxied.get(PATH)
    assert b"lib-1.0.jar" in proxied.get(f"{FOLDER}/").data
    assert proxied.value("select metadata -> 'maven' from arkvory_artifacts") == {"archetype": {}}


def test_what_is_too_young_is_withheld_with_its_checksums_and_exceptions_are_coordinates(proxied: Proxied, upstream: FakeUpstream) -> None:
    """Minimum age: by the upstream's date of the file; metadata tells no times of versions and names them all."""
    proxied.change(settings={"minimum_age": 7})
    young = {"Last-Modified": format_datetime(datetime.now(UTC), usegmt=True)}
    serve(upstream, PATH, JAR, headers=young)
    serve(upstream, SNAPSHOT, JAR, headers={"Last-Modified": "Sat, 20 Apr 2019 08:00:00 GMT"})
    upstream.put(f"/{METADATA}", metadata("1.0"), headers=young)
    assert [proxied.how(each) for each in (PATH, f"{PATH}.sha1", SNAPSHOT, METADATA)] == ["403", "403", "miss", "miss"]
    assert b"lib-1.0.jar" not in proxied.get(f"{FOLDER}/").data
    proxied.change(settings={"minimum_age_exceptions": ["org.acme:lib@1.*"]})
    assert [proxied.how(each) for each in (PATH, f"{PATH}.sha1")] == ["hit", "hit"]


@pytest.mark.parametrize(
    ("policy", "closed", "open_"),
    [
        ("release", [SNAPSHOT, f"{SNAPSHOT}.sha1", "org/acme/lib/2.0-SNAPSHOT/maven-metadata.xml"], [PATH, METADATA]),
        ("snapshot", [PATH, f"{PATH}.md5"], [SNAPSHOT, METADATA, "org/acme/lib/2.0-SNAPSHOT/maven-metadata.xml"]),
    ],
)
def test_a_version_policy_keeps_the_other_kind_out_without_asking(
    proxied: Proxied, upstream: FakeUpstream, policy: str, closed: list[str], open_: list[str]
) -> None:
    proxied.change(settings={"version_policy": policy})
    for path in (*closed, *open_):
        upstream.put(f"/{path}", metadata("1") if path.endswith("xml") else JAR)
    assert [proxied.get(path).status_code for path in closed] == [404] * len(closed)
    assert upstream.asked == []
    assert [proxied.get(path).status_code for path in open_] == [200] * len(open_)
    # What is there already comes and goes with the next request.
    proxied.change(settings={"version_policy": None})
    assert [proxied.get(path).status_code for path in closed] == [200] * len(closed)
    proxied.change(settings={"version_policy": policy})
    assert [proxied.get(path).status_code for path in closed] == [404] * len(closed)


# What an upstream does wrong


FAULTS = [401, 403, 429, 500, 503, "refused", "silent", "short", "short without a length", "long", "loop", "page"]


@pytest.mark.parametrize(("path", "fault"), [*((path, fault) for path in (PATH, METADATA) for fault in FAULTS), (PATH, "another checksum")])
def test_nothing_but_absence_is_remembered_and_nothing_bad_is_stored(
    proxied: Proxied, upstream: FakeUpstream, path: str, fault: int | str
) -> None:
    """HO-X-3, HO-X-4: cold an honest 502, 503 or 504; then the file; then the copy, when the fault comes back."""
    proxied.change(upstream={"read_seconds": 0.5, "connect_seconds": 1})
    body = metadata("1.0") if path == METADATA else JAR
    moving = path if path == METADATA else SNAPSHOT
    break_(upstream, path, body, fault)
    answer = proxied.get(path)
    assert answer.status_code in {502, 503, 504}
    assert int(answer.headers["Retry-After"]) > 0
    proxied.assert_nothing_left()
    mend(upstream, path, body)
    eventually(lambda: proxied.get(path).data == body)
    mend(upstream, moving, body)
    assert proxied.get(moving).data == body
    break_(upstream, moving, OTHER if moving == SNAPSHOT else metadata("2.0"), fault)
    answer = proxied.get(moving)
    assert (answer.data, answer.headers["X-Arkvory-Cache"]) == (body, "stale")
    assert proxied.get(f"{moving}.sha1").data.decode() == digest("sha1", body)


def break_(upstream: FakeUpstream, path: str, body: bytes, fault: int | str) -> None:
    wrong: dict[int | str, dict[str, Any]] = {
        "silent": {"delay": 5},
        "short": {"truncate": len(body) - 60},
        "short without a length": {"truncate": len(body) - 60, "endless": True},
        "long": {"length": len(body) - 10},
        "loop": {"status": 302, "headers": {"Location": f"/{path}"}},
    }
    serve(upstream, path, body)
    if fault == "refused":
        upstream.stop()
    elif fault == "page":
        upstream.put(f"/{path}", PAGE)
    elif fault == "another checksum":
        upstream.put(f"/{path}.sha1", b"0" * 40)
    elif isinstance(fault, int):
        upstream.put(f"/{path}", status=fault, headers={"Retry-After": "1"} if fault in (429, 503) else {})
    else:
        upstream.put(f"/{path}", body, **wrong[fault])


def mend(upstream: FakeUpstream, path: str, body: bytes) -> None:
    upstream.stop()
    upstream.start()
    serve(upstream, path, body)


@pytest.mark.parametrize("status", [404, 410])
def test_what_is_gone_upstream_is_gone_here(proxied: Proxied, upstream: FakeUpstream, status: int) -> None:
    for path in (METADATA, SNAPSHOT):
        upstream.put(f"/{path}", metadata("1") if path == METADATA else JAR)
        assert proxied.how(path) == "miss"
        upstream.put(f"/{path}", status=status)
        assert [proxied.how(path) for _ in range(2)] == ["404"] * 2
        assert upstream.count(f"/{path}") == 2
        assert proxied.get(f"{path}.sha1").status_code == 404
    proxied.assert_nothing_left()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (f"{FOLDER}/lib-1.0.pom", PAGE),
        (f"{FOLDER}/lib-1.0.pom", b'<?xml version="1.0"?>\n<!-- proxy -->\n<html xmlns="x"><body/></html>'),
        (f"{FOLDER}/lib-1.0.pom", b"404 page not found\n"),
        (f"{FOLDER}/lib-1.0.pom", b""),
        (f"{FOLDER}/lib-1.0.module", PAGE),
        (PATH, b"\xef\xbb\xbf" + PAGE),
        (f"{PATH}.asc", b"-----BEGIN PGP SIGNATURE-----\n\nabc"),
        (METADATA, b"<metadata><versioning></metadata>"),
        (METADATA, b"<metadata><versioning>"),
        (METADATA, b"<project/>"),
        (METADATA, b'<!DOCTYPE m [<!ENTITY a "aaaa">]><metadata>&a;</metadata>'),
        (METADATA, b'{"errors": []}'),
        (METADATA, b"<metadata>" + b" " * (9 * 1024 * 1024) + b"</metadata>"),
        ("archetype-catalog.xml", b"<archetype-catalog><archetypes>"),
        (".index/index.properties", PAGE),
    ],
)
def test_what_cannot_be_what_was_asked_for_is_refused_and_the_upstream_asked_again(
    proxied: Proxied, upstream: FakeUpstream, path: str, body: bytes
) -> None:
    upstream.put(f"/{path}", body)
    statuses = {proxied.get(path).status_code for _ in range(8)}
    assert statuses == ({404} if path.startswith(".index") else {502})
    # Its health is not in question: other paths are asked for all the same.
    serve(upstream, SNAPSHOT, JAR)
    assert proxied.get(SNAPSHOT).data == JAR
    assert proxied.stored() == [SNAPSHOT]


def test_a_beginning_that_could_be_read_in_many_ways_is_looked_at_once(proxied: Proxied, upstream: FakeUpstream) -> None:
    """A search that tries them all would keep the whole process from everything else, for ever."""
    text = f"{FOLDER}/lib-1.0.txt"
    serve(upstream, text, b"<!---->" * 140 + b"x")
    assert proxied.get(text).status_code == 200
    serve(upstream, PATH, b"<!-- a --> " * 80 + b"<html>")
    assert proxied.get(PATH).status_code == 502


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Checksum-Sha1": digest("sha1", JAR)},
        {"x-checksum-sha512": digest("sha512", JAR).upper()},
        {"x-goog-meta-checksum-md5": digest("md5", JAR)},
        {"ETag": f'"{{SHA1{{{digest("sha1", JAR)}}}}}"'},
    ],
)
def test_a_checksum_in_the_head_of_the_answer_saves_a_request_and_is_compared(
    proxied: Proxied, upstream: FakeUpstream, headers: dict[str, str]
) -> None:
    """HO-X-4."""
    upstream.put(f"/{PATH}", OTHER, headers=headers)
    assert proxied.get(PATH).status_code == 502
    proxied.assert_nothing_left()
    upstream.put(f"/{PATH}", JAR, headers=headers)
    assert proxied.get(PATH).data == JAR
    assert {each.target for each in upstream.asked} == {f"/{PATH}"}


@pytest.mark.parametrize("form", ["{}", "{}\n", "{}  lib-1.0.jar\n", "SHA1(lib-1.0.jar)= {}", "lib-1.0.jar: {}"])
def test_checksums_beside_the_file_are_read_in_all_forms(proxied: Proxied, upstream: FakeUpstream, form: str) -> None:
    upstream.put(f"/{PATH}", JAR)
    upstream.put(f"/{PATH}.sha1", form.format("0" * 40).encode())
    assert proxied.get(PATH).status_code == 502
    upstream.put(f"/{PATH}.sha1", form.format(digest("sha1", JAR).upper()).encode())
    assert proxied.get(PATH).data == JAR


@pytest.mark.parametrize(
    ("beside", "status"),
    [
        ({}, 200),
        ({"sha1": {"status": 403}}, 200),
        ({"sha1": {"status": 500}}, 200),
        ({"sha1": {"body": PAGE + b"0" * 40}}, 200),
        ({"sha1": {"body": b"x" * 100_000}}, 200),
        ({"sha1": {"body": b"none"}, "md5": {"body": b"0" * 32}}, 502),
        ({"md5": {"body": b"0" * 32}}, 502),
        ({"md5": {"body": digest("md5", JAR).encode()}}, 200),
    ],
)
def test_checksums_that_cannot_be_had_keep_nothing_out(
    proxied: Proxied, upstream: FakeUpstream, beside: dict[str, dict[str, Any]], status: int
) -> None:
    upstream.put(f"/{PATH}", JAR)
    for algorithm, fields in beside.items():
        upstream.put(f"/{PATH}.{algorithm}", **fields)
    assert proxied.get(PATH).status_code == status


def test_a_body_of_unknown_length_is_not_believed_while_its_checksum_cannot_be_had(proxied: Proxied, upstream: FakeUpstream) -> None:
    """HO-X-4: where neither length nor chunks tell that it is all."""
    upstream.put(f"/{PATH}", JAR, endless=True)
    upstream.put(f"/{PATH}.sha1", status=500)
    assert proxied.get(PATH).status_code == 502
    proxied.assert_nothing_left()
    upstream.put(f"/{PATH}.sha1", digest("sha1", JAR).encode())
    assert proxied.get(PATH).data == JAR


def test_another_checksum_breaks_off_what_was_on_its_way(proxied: Proxied, upstream: FakeUpstream) -> None:
    """HO-X-4: a large file that is handed on while it comes is whole for nobody."""
    upstream.put(f"/{PATH}", LARGE)
    upstream.put(f"/{PATH}.sha1", b"0" * 40)
    taken: list[bytes] = []
    with pytest.raises(UpstreamUnfit, match="another sha1"):
        taken.extend(proxied.get(PATH, buffered=False).response)
    assert len(b"".join(taken)) < len(LARGE)
    proxied.assert_nothing_left()


def test_one_connection_is_enough_for_a_file_and_its_checksum(proxied: Proxied, upstream: FakeUpstream) -> None:
    proxied.change(upstream={"connections": 1})
    serve(upstream, PATH, JAR)
    with gevent.Timeout(5):
        assert proxied.get(PATH).data == JAR
    assert upstream.connections == 1


def test_a_crowd_for_a_jar_and_its_checksum_is_one_fetch(proxied: Proxied, upstream: FakeUpstream) -> None:
    """HO-X-7: whole answers for all, and no empty checksum."""
    serve(upstream, PATH, LARGE, pause=0.005)
    jars = [gevent.spawn(lambda: proxied.get(PATH).data) for _ in range(20)]
    sums = [gevent.spawn(lambda: proxied.get(f"{PATH}.sha1").data) for _ in range(20)]
    gevent.joinall([*jars, *sums], timeout=30, raise_error=True)
    assert {each.value for each in jars} == {LARGE}
    assert {each.value for each in sums} == {digest("sha1", LARGE).encode()}
    assert (upstream.count(f"/{PATH}"), upstream.count(f"/{PATH}.sha1")) == (1, 1)


def test_credentials_go_to_the_upstream_alone_also_for_checksums(proxied: Proxied, upstream: FakeUpstream) -> None:
    """HO-X-9."""
    other = FakeUpstream().start()
    try:
        proxied.change(upstream={"username": "u", "password": "p"})
        for path, body in ((PATH, JAR), (f"{PATH}.sha1", digest("sha1", JAR).encode())):
            upstream.put(f"/{path}", status=302, headers={"Location": f"{other.url}/elsewhere/{path}?sig=1"}, auth="Basic dTpw")
            other.put(f"/elsewhere/{path}?sig=1", body)
        assert proxied.get(PATH).data == JAR
        assert [each.headers.get("authorization") for each in upstream.asked] == ["Basic dTpw"] * 2
        assert len(other.asked) == 2
        assert all("authorization" not in each.headers for each in other.asked)
    finally:
        other.stop()


# Where nothing is stored


@pytest.mark.parametrize("why", ["caching", "quota"])
def test_without_storing_everything_comes_from_the_upstream_checksums_too(proxied: Proxied, upstream: FakeUpstream, why: str) -> None:
    proxied.change(**({"settings": {"caching": False}} if why == "caching" else {"quota_bytes": 0}))
    for path, body in ((PATH, JAR), (METADATA, metadata("1"))):
        serve(upstream, path, body)
        assert proxied.get(path).data == body
        answer = proxied.get(f"{path}.sha1")
        assert (answer.data.decode(), answer.content_type) == (digest("sha1", body), "text/plain")
        assert proxied.get(f"{path}.sha512").status_code == 404
    assert proxied.stored() == []


def test_a_copy_whose_bytes_are_gone_from_the_disk_is_fetched_anew(proxied: Proxied, upstream: FakeUpstream, tmp_path: Path) -> None:
    for path in (PATH, METADATA):
        body = JAR if path == PATH else metadata("1")
        serve(upstream, path, body)
        proxied.get(path)
        for each in (tmp_path / "data" / "blobs" / "sha256").rglob("*-*"):
            each.unlink()
        assert proxied.get(path).data == body
        assert proxied.how(path) == ("hit" if path == PATH else "revalidated")
    for each in (tmp_path / "data" / "blobs" / "sha256").rglob("*-*"):
        each.unlink()
    upstream.put(f"/{PATH}", status=500)
    assert proxied.get(PATH).status_code == 502


def test_publishing_into_a_proxy_is_refused(proxied: Proxied) -> None:
    for path in (PATH, f"{PATH}.sha1", METADATA):
        answer = proxied.request("PUT", path, data=b"x", headers={"Authorization": room_of.ADMINISTRATOR})
        assert answer.status_code == 405
