"""Quarantine: what is held leaves through no door, and comes back whole."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.protocols.pypi.packages import CONTENT_TYPE, form_of, wheel
from tests.support.server import Server

_numbers = itertools.count(1)
FOO = "foo-1.0-py3-none-any.whl"
JAR = "org/acme/lib/1.0/lib-1.0.jar"
JSON = {"Accept": "application/vnd.pypi.simple.v1+json"}


class Shelf:
    """A fresh public repository; reads are anonymous unless `admin`."""

    def __init__(self, server: Server, kind: str) -> None:
        self.server, self.kind, self.name = server, kind, f"q{next(_numbers)}"
        server.repository(self.name, kind, public=True)
        self.api = f"/api/v1/repositories/{self.name}"

    def read(self, path: str, **options: Any) -> Any:
        return self.server.request(options.pop("method", "GET"), f"/{self.kind}/{self.name}/{path}", auth=None, **options)

    def hold(self, path: str, **fields: str) -> Any:
        return self.server.put(f"{self.api}/artifacts/{path}/quarantine", data=None, json={"reason": "looks like <malware>"} | fields)

    def release(self, path: str) -> Any:
        return self.server.delete(f"{self.api}/artifacts/{path}/quarantine")

    def upload(self, filename: str, content: bytes) -> int:
        name, version = filename.split("-")[:2]
        fields = {":action": "file_upload", "protocol_version": "1", "name": name, "version": version}
        form = form_of([*((key, None, value.encode()) for key, value in fields.items()), ("content", filename, content)])
        answer = self.server.post(f"/pypi/{self.name}/", data=form, headers={"Content-Type": CONTENT_TYPE})
        return int(answer.status_code)


@pytest.fixture
def raw(server: Server) -> Shelf:
    return Shelf(server, "raw")


@pytest.fixture
def pypi(server: Server) -> Shelf:
    return Shelf(server, "pypi")


def test_a_held_file_leaves_through_no_door_and_comes_back_whole(raw: Shelf) -> None:
    raw.server.put(f"/raw/{raw.name}/a/held.bin", b"0123456789")
    raw.server.put(f"/raw/{raw.name}/a/other.bin", b"x")
    before = raw.read("a/held.bin")
    assert raw.hold("a/held.bin", trust="malicious").json()["trust"] == "malicious"
    for answer in (
        raw.read("a/held.bin"),
        raw.read("a/held.bin", method="HEAD"),
        raw.read("a/held.bin", headers={"Range": "bytes=0-3"}),
        raw.read("a/held.bin", headers={"If-None-Match": before.headers["ETag"]}),
        raw.server.get(f"/raw/{raw.name}/a/held.bin"),
    ):
        assert answer.status_code == 403
        assert not {"ETag", "Repr-Digest", "X-Checksum-Sha256"} & set(answer.headers)
    assert "looks like <malware>" in raw.read("a/held.bin").text
    assert [each["name"] for each in raw.read("a/?format=json").json()["items"]] == ["other.bin"]
    assert "held.bin" not in raw.read("a/", headers={"Accept": "text/html"}).text
    assert raw.server.get(f"{raw.api}/artifacts", auth=None).json()["items"][0]["path"] == "a/other.bin"
    assert raw.server.get("/api/v1/search?q=held.bin", auth=None).json()["items"] == []
    assert raw.server.get(f"{raw.api}/artifacts/a/held.bin", auth=None).status_code == 403
    assert raw.release("a/held.bin").status_code == 204
    after = raw.read("a/held.bin")
    assert (after.status_code, after.content, after.headers["ETag"]) == (200, b"0123456789", before.headers["ETag"])
    assert raw.read("a/?format=json").json()["items"][0]["name"] == "held.bin"
    assert raw.release("a/held.bin").status_code == 404


def test_a_folder_whose_only_file_is_held_is_not_there(raw: Shelf) -> None:
    raw.server.put(f"/raw/{raw.name}/only/one", b"1")
    assert raw.read("only/").status_code == 200
    raw.hold("only/one")
    assert raw.read("only/").status_code == 404


def test_w5_a_hold_outlives_the_artifact(raw: Shelf) -> None:
    raw.server.put(f"/raw/{raw.name}/x", b"1")
    raw.hold("x")
    assert raw.server.delete(f"/raw/{raw.name}/x").status_code == 204
    assert raw.server.put(f"/raw/{raw.name}/x", b"2").status_code == 201
    assert raw.read("x").status_code == 403
    raw.release("x")
    assert raw.read("x").content == b"2"


def test_a_path_can_be_held_before_it_is_published(raw: Shelf) -> None:
    assert raw.hold("later").status_code == 200
    assert raw.read("later").status_code == 404
    raw.server.put(f"/raw/{raw.name}/later", b"1")
    assert raw.read("later").status_code == 403


def test_those_who_manage_see_what_is_held_and_why(raw: Shelf) -> None:
    raw.server.put(f"/raw/{raw.name}/x", b"1")
    raw.hold("x", trust="suspicious")
    shown = raw.server.get(f"{raw.api}/artifacts/x").json()["quarantine"]
    assert (shown["reason"], shown["trust"]) == ("looks like <malware>", "suspicious")
    (hold,) = raw.server.get(f"{raw.api}/holds").json()["items"]
    assert (hold["path"], hold["held_by"]) == ("x", "admin")


@pytest.mark.parametrize("body", [{}, {"reason": ""}, {"reason": "a\nb"}, {"reason": "x", "trust": "friend"}, {"reason": "x" * 3000}])
def test_a_hold_wants_a_reason_of_one_line(raw: Shelf, body: dict[str, str]) -> None:
    answer = raw.server.put(f"{raw.api}/artifacts/x/quarantine", data=None, json=body)
    assert answer.status_code == 422, answer.text


def test_holding_needs_manage(raw: Shelf) -> None:
    name = f"reader{raw.name}"
    raw.server.post("/api/v1/users", json={"name": name, "password": "long enough"})
    raw.server.post(f"{raw.api}/rules", json={"subject": f"user:{name}", "permissions": ["read", "write", "delete"]})
    raw.server.put(f"/raw/{raw.name}/x", b"1")
    asked = {"data": None, "json": {"reason": "x"}, "auth": (name, "long enough")}
    assert raw.server.put(f"{raw.api}/artifacts/x/quarantine", **asked).status_code == 403
    assert raw.server.get(f"{raw.api}/holds", auth=(name, "long enough")).status_code == 403
    assert raw.server.put(f"{raw.api}/artifacts/x/quarantine", data=None, json={"reason": "x"}, auth=None).status_code == 401


def test_a_held_release_and_all_beside_it_leave_the_python_index(pypi: Shelf) -> None:
    assert pypi.upload(FOO, wheel("foo", "1.0")) == 200
    assert pypi.upload("foo-1.1-py3-none-any.whl", wheel("foo", "1.1")) == 200
    before = pypi.read("simple/foo/", headers=JSON)
    pypi.hold(f"foo/{FOO}")
    page = pypi.read("simple/foo/", headers=JSON | {"If-None-Match": before.headers["ETag"]})
    assert page.status_code == 200, "the validator of before the hold must not hold"
    assert [each["filename"] for each in page.json()["files"]] == ["foo-1.1-py3-none-any.whl"]
    assert page.json()["versions"] == ["1.1"]
    assert pypi.read(f"files/foo/{FOO}").status_code == 403
    assert pypi.read(f"files/foo/{FOO}.metadata").status_code == 403
    assert pypi.read("pypi/foo/1.0/json").status_code == 404
    pypi.release(f"foo/{FOO}")
    assert len(pypi.read("simple/foo/", headers=JSON).json()["files"]) == 2
    assert pypi.read(f"files/foo/{FOO}.metadata").status_code == 200


def test_a_project_that_is_held_whole_is_not_in_the_root_index(pypi: Shelf) -> None:
    pypi.upload(FOO, wheel("foo", "1.0"))
    pypi.hold(f"foo/{FOO}")
    assert pypi.read("simple/", headers=JSON).json()["projects"] == []
    assert pypi.read("simple/foo/").status_code == 404
    pypi.release(f"foo/{FOO}")
    assert len(pypi.read("simple/", headers=JSON).json()["projects"]) == 1
    assert pypi.server.delete(f"/pypi/{pypi.name}/files/foo/{FOO}").status_code == 204
    assert pypi.read("simple/", headers=JSON).json()["projects"] == []


def test_rules_hold_what_is_published_until_someone_releases_it(pypi: Shelf) -> None:
    rules = f"{pypi.api}/hold-rules"
    made = pypi.server.post(rules, json={"pattern": "foo/*", "reason": "reviewed by hand"}).json()
    other = pypi.server.post(rules, json={"pattern": "*", "publisher": "somebody-else", "reason": "never"})
    assert other.status_code == 201
    pypi.upload(FOO, wheel("foo", "1.0"))
    pypi.upload("bar-1.0-py3-none-any.whl", wheel("bar", "1.0"))
    answer = pypi.read(f"files/foo/{FOO}")
    assert (answer.status_code, "reviewed by hand" in answer.text) == (403, True)
    assert pypi.read(f"files/foo/{FOO}.metadata").status_code == 403
    assert [each["name"] for each in pypi.read("simple/", headers=JSON).json()["projects"]] == ["bar"]
    pypi.release(f"foo/{FOO}")
    assert pypi.read(f"files/foo/{FOO}").status_code == 200
    assert pypi.server.delete(f"{rules}/{made['id']}").status_code == 204
    assert [each["publisher"] for each in pypi.server.get(rules).json()["items"]] == ["somebody-else"]


@pytest.fixture
def maven(server: Server) -> Shelf:
    shelf = Shelf(server, "maven")
    for path in (JAR, f"{JAR}.asc"):
        assert server.put(f"/maven/{shelf.name}/{path}", path.encode()).status_code == 201
    return shelf


def test_a_hold_of_its_own_ends_with_its_own_release_alone(maven: Shelf) -> None:
    """Whichever was held or released first: a file beside another one is free when neither is held."""

    def served() -> tuple[int, int]:
        return maven.read(JAR).status_code, maven.read(f"{JAR}.asc").status_code

    for first, second in ((JAR, f"{JAR}.asc"), (f"{JAR}.asc", JAR)):
        maven.hold(first, reason="first")
        maven.hold(second, reason="second")
        held = maven.server.get(f"{maven.api}/holds").json()["items"]
        assert {each["path"]: each["reason"] for each in held} == {first: "first", second: "second"}
        maven.release(JAR)
        assert served() == (200, 403)
        maven.hold(JAR)
        maven.release(f"{JAR}.asc")
        assert served() == (403, 403)
        maven.release(JAR)
        assert served() == (200, 200)
    assert maven.server.get(f"{maven.api}/holds").json()["items"] == []


@pytest.mark.parametrize("path", [f"{JAR}.sha1", f"{JAR}.SHA-256", "org/acme/lib/maven-metadata.xml", "archetype-catalog.xml"])
def test_what_is_made_from_files_is_not_held_on_its_own(maven: Shelf, raw: Shelf, path: str) -> None:
    """A hold that holds nothing would only look like one."""
    assert maven.hold(path).status_code == 422
    assert raw.hold(path).status_code == 200


def test_a_rule_replaces_nothing_that_somebody_said(raw: Shelf) -> None:
    rule = raw.server.post(f"{raw.api}/hold-rules", json={"pattern": "*", "reason": "new here"})
    assert rule.status_code == 201
    raw.hold("a", reason="looked at", trust="malicious")
    raw.server.put(f"/raw/{raw.name}/a", b"again")
    (held,) = raw.server.get(f"{raw.api}/holds").json()["items"]
    assert (held["reason"], held["trust"], held["held_by"]) == ("looked at", "malicious", "admin")


def test_releasing_is_seen_by_the_next_request_of_a_warm_reader(raw: Shelf) -> None:
    raw.server.put(f"/raw/{raw.name}/x", b"1")
    for _ in range(25):
        assert raw.read("x").status_code == 200
        raw.hold("x")
        assert raw.read("x").status_code == 403
        assert raw.read("x").status_code == 403
        raw.release("x")
