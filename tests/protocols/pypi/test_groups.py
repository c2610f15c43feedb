"""Groups of Python repositories: one page of several, and each file from the member whose page told of it (PROTOCOLS, DESIGN 6)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.protocols.pypi.packages import CONTENT_TYPE, form_of, wheel
from tests.protocols.pypi.test_proxy import HTML, JSON, Index, entry
from tests.support.house import sha256
from tests.support.server import Server
from tests.support.upstreams import FakeUpstream

COMMON = "litellm-1.85-py3-none-any.whl"
OURS = {version: wheel("litellm", version, "Summary: ours") for version in ("1.83", "1.85")}
THEIRS = {version: wheel("litellm", version) for version in ("1.80", "1.85", "1.90")}


def name_of(version: str) -> str:
    return f"litellm-{version}-py3-none-any.whl"


class Group:
    """The group `both` of the hosted `ours` and the proxy `theirs`."""

    def __init__(self, server: Server, upstream: FakeUpstream, **settings: Any) -> None:
        self.server = server
        server.repository("ours", "pypi", public=True)
        self.theirs = Index(server, upstream, {"mutable_ttl": 0, "miss_ttl": 0}, name="theirs")
        self.theirs.lists(*(entry(name_of(version), body) for version, body in THEIRS.items()), project="litellm", versions=list(THEIRS))
        for version, body in THEIRS.items():
            upstream.put(f"/packages/{name_of(version)}", body)
        server.repository("both", "pypi", kind="group", members=["ours", "theirs"], public=True, settings=settings)

    def publish(self) -> None:
        for version, body in OURS.items():
            fields = {":action": "file_upload", "protocol_version": "1", "name": "litellm", "version": version}
            form = form_of([*((key, None, value.encode()) for key, value in fields.items()), ("content", name_of(version), body)])
            answer = self.server.post("/pypi/ours/", data=form, headers={"Content-Type": CONTENT_TYPE})
            assert answer.status_code == 200, answer.text

    def get(self, path: str, accept: str = JSON) -> Any:
        return self.server.get(f"/pypi/both/{path}", headers={"Accept": accept})

    def hashes(self) -> dict[str, str]:
        """By file; the page in HTML lists the same."""
        files = self.get("simple/litellm/").json()["files"]
        html = self.get("simple/litellm/", HTML).text
        assert all(f"{each['filename']}#sha256={each['hashes']['sha256']}" in html for each in files)
        assert html.count("<a ") == len(files)
        return {each["filename"]: each["hashes"]["sha256"] for each in files}

    def end(self) -> None:
        for name in ("both", "ours", "theirs"):
            assert self.server.delete(f"/api/v1/repositories/{name}").status_code == 204


@pytest.fixture
def shielded(server: Server, upstream: FakeUpstream) -> Iterator[Group]:
    group = Group(server, upstream)
    yield group
    group.end()


@pytest.fixture
def merged(server: Server, upstream: FakeUpstream) -> Iterator[Group]:
    group = Group(server, upstream, name_policy="merge")
    yield group
    group.end()


def expected(*sources: dict[str, bytes]) -> dict[str, str]:
    """The first of those that have a version."""
    return {name_of(version): sha256(body) for source in reversed(sources) for version, body in source.items()}


def test_a_name_that_a_hosted_member_holds_is_never_answered_from_a_proxy(shielded: Group) -> None:
    """HO-PYPI-5, shield."""
    assert shielded.hashes() == expected(THEIRS)
    shielded.publish()
    assert shielded.hashes() == expected(OURS)
    assert shielded.get(f"files/litellm/{COMMON}").content == OURS["1.85"]
    assert shielded.get(f"files/litellm/{name_of('1.90')}").status_code == 404
    assert list(shielded.get("pypi/litellm/json").json()["releases"]) == list(OURS)
    # In no spelling, and not when its last file is gone.
    for project in ("LiteLLM", "litellm"):
        assert shielded.get(f"files/{project}/{name_of('1.90')}").status_code == 404
    for version in OURS:
        assert shielded.server.delete(f"/api/v1/repositories/ours/artifacts/litellm/{name_of(version)}").status_code == 204
    asked = len(shielded.theirs.upstream.asked)
    for path in ("simple/litellm/", f"files/litellm/{name_of('1.90')}", "pypi/litellm/json", f"files/litellm/{name_of('1.83')}"):
        assert shielded.get(path).status_code == 404, path
    assert len(shielded.theirs.upstream.asked) == asked


def test_a_merged_page_is_the_union_and_hash_and_bytes_are_the_first_members(merged: Group) -> None:
    """HO-PYPI-5, merge."""
    merged.publish()
    assert merged.hashes() == expected(OURS, THEIRS)
    assert merged.get("simple/litellm/").json()["versions"] == ["1.80", "1.83", "1.85", "1.90"]
    for name, digest in merged.hashes().items():
        answer = merged.get(f"files/litellm/{name}")
        assert sha256(answer.content) == digest
        assert answer.headers["X-Arkvory-Member"] == ("ours" if digest in expected(OURS).values() else "theirs")
    document = merged.get("pypi/litellm/json").json()
    assert (document["info"]["version"], len(document["releases"])) == ("1.90", 4)
    assert [each["filename"] for each in merged.get("pypi/litellm/1.85/json").json()["urls"]] == [COMMON]
    assert merged.get("pypi/litellm/1.80/json").status_code == 200


def test_with_the_upstream_down_there_is_what_is_known_and_who_was_passed_over(merged: Group) -> None:
    merged.publish()
    merged.theirs.upstream.put("/simple/litellm/", status=500, accept="simple.v1+json")
    cold = merged.get("simple/litellm/")
    assert [each["filename"] for each in cold.json()["files"]] == [name_of(version) for version in OURS]
    assert cold.headers["X-Arkvory-Passed-Over"] == "theirs"
    merged.theirs.lists(entry(name_of("1.90"), THEIRS["1.90"]), project="litellm")
    assert name_of("1.90") in merged.hashes()
    merged.theirs.upstream.put("/simple/litellm/", status=500, accept="simple.v1+json")
    assert name_of("1.90") in merged.hashes()
    merged.theirs.upstream.put("/simple/other/", status=500)
    assert merged.get("simple/other/").status_code == 502
    merged.theirs.lists(entry("other-1.zip", b"x"), project="other")
    merged.theirs.upstream.rules["/simple/other/"] = [each for each in merged.theirs.upstream.rules["/simple/other/"] if each.status == 200]
    assert merged.get("simple/other/").status_code == 200


def test_what_the_first_member_withholds_no_later_one_shows(merged: Group) -> None:
    merged.publish()
    address = f"/api/v1/repositories/ours/artifacts/litellm/{COMMON}/quarantine"
    assert merged.server.put(address, json={"reason": "looked at"}).status_code in (200, 201)
    assert COMMON not in merged.hashes()
    assert merged.get(f"files/litellm/{COMMON}").status_code == 403
    assert merged.server.delete(address).status_code == 204
    assert merged.hashes()[COMMON] == sha256(OURS["1.85"])


def test_what_a_proxy_withholds_is_not_in_the_page_of_the_group(merged: Group) -> None:
    settings = {"mutable_ttl": 0, "minimum_age": 3650}
    assert merged.server.patch("/api/v1/repositories/theirs", json={"settings": settings}).status_code == 200
    merged.publish()
    assert merged.hashes() == expected(OURS)
    assert merged.get(f"files/litellm/{name_of('1.90')}").status_code == 403
    settings = {"mutable_ttl": 0, "minimum_age": 0, "block": ["litellm/*1.90*"]}
    assert merged.server.patch("/api/v1/repositories/theirs", json={"settings": settings}).status_code == 200
    assert merged.hashes() == {name: digest for name, digest in expected(OURS, THEIRS).items() if "1.90" not in name}


def test_the_index_of_a_group_has_the_projects_of_all_members(merged: Group) -> None:
    merged.publish()
    merged.theirs.upstream.put("/simple/", b'{"meta": {"api-version": "1.0"}, "projects": [{"name": "Zope"}, {"name": "litellm"}]}')
    assert [each["name"] for each in merged.get("simple/").json()["projects"]] == ["litellm", "zope"]
    merged.theirs.upstream.forget("/simple/")
    assert [each["name"] for each in merged.get("simple/").json()["projects"]] == ["litellm"]
