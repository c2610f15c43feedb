"""A proxy of a Python index through a real server (DESIGN 6, PROTOCOLS), before an upstream that does what the test says."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import gevent
import pytest
import requests

from app.protocols.pypi import negotiation
from app.protocols.pypi.documents import ProjectPage
from app.protocols.pypi.names import page_path
from app.protocols.pypi.upstream import PythonIndexes
from app.repository.reading import Ask
from app.upstream.breaker import FAILURES
from tests.protocols.pypi.packages import core_metadata, sdist, wheel
from tests.support import pace
from tests.support.house import ADMIN, House, eventually, sha256
from tests.support.server import Server
from tests.support.upstreams import FakeUpstream, noise

PIP = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html; q=0.1, text/html; q=0.01"
JSON, HTML = "application/vnd.pypi.simple.v1+json", "text/html"
WHEEL_NAME, SDIST_NAME = "req-1.0-py3-none-any.whl", "req-1.0.tar.gz"
WHEEL, SDIST = wheel("req", "1.0", "Requires-Python: >=3.8"), sdist("req", "1.0")
METADATA = core_metadata("req", "1.0", "Requires-Python: >=3.8")
AT = "2026-01-02T03:04:05.678900Z"

_numbers = itertools.count(1)


@dataclass
class Index:
    """A proxy of the upstream, and the upstream's side of it."""

    server: Server
    upstream: FakeUpstream
    settings: dict[str, Any] = field(default_factory=dict)
    below: str = "/simple"
    root: str = "/simple"
    name: str = ""

    def __post_init__(self) -> None:
        self.name = self.name or f"proxied{next(_numbers)}"
        self.server.repository(
            self.name, "pypi", kind="proxy", upstream_url=self.upstream.url + self.below, public=True, settings=self.settings
        )

    def get(self, path: str, accept: str = PIP, **more: Any) -> requests.Response:
        return self.server.get(f"/pypi/{self.name}/{path}", headers={"Accept": accept, **more.pop("headers", {})}, **more)

    def page(self, project: str = "req", accept: str = JSON) -> Any:
        answer = self.get(f"simple/{project}/", accept)
        assert answer.status_code == 200, answer.text
        return answer.json() if accept == JSON else answer.text

    def file(self, name: str, project: str = "req") -> requests.Response:
        return self.get(f"files/{project}/{name}", "*/*")

    # what the upstream has

    def lists(self, *files: dict[str, Any], project: str = "req", status: int = 200, etag: str | None = None, **more: Any) -> str:
        """Its page in JSON, for those who accept it; the path."""
        path = f"{self.root}/{project}/"
        document = {"meta": {"api-version": "1.4"}, "name": project, "files": list(files), **more}
        self.upstream.put(
            path, json.dumps(document).encode(), status=status, etag=etag, headers={"Content-Type": JSON}, accept="simple.v1+json"
        )
        return path

    def lists_html(self, *anchors: str, project: str = "req") -> str:
        path = f"{self.root}/{project}/"
        body = f"<!DOCTYPE html><title>Links for {project}</title>{''.join(anchors)}".encode()
        self.upstream.put(path, body, headers={"Content-Type": "text/html"})
        return path

    def asked(self, path: str) -> int:
        return self.upstream.count(path)


def entry(name: str, body: bytes, url: str = "", **more: Any) -> dict[str, Any]:
    return {
        "filename": name, "url": url or f"../../packages/{name}", "hashes": {"sha256": sha256(body)}, "size": len(body), "upload-time": AT,
        **more,
    }  # fmt: skip


@pytest.fixture
def index(server: Server, upstream: FakeUpstream) -> Iterator[Index]:
    made = Index(server, upstream)
    yield made
    assert server.delete(f"/api/v1/repositories/{made.name}").status_code == 204


@pytest.fixture
def due(server: Server, upstream: FakeUpstream) -> Iterator[Index]:
    """Whose pages are due each time."""
    made = Index(server, upstream, {"mutable_ttl": 0, "miss_ttl": 0})
    yield made
    assert server.delete(f"/api/v1/repositories/{made.name}").status_code == 204


@pytest.mark.parametrize("first", [PIP, HTML, "*/*"])
def test_each_client_gets_the_form_that_it_asks_for_whoever_came_first(index: Index, first: str) -> None:
    """HO-PYPI-2: cold and warm, in any order; what JSON alone tells is not lost."""
    index.lists(entry(WHEEL_NAME, WHEEL, **{"requires-python": ">=3.8"}), versions=["1.0"])
    index.lists_html(f'<a href="../../packages/{WHEEL_NAME}#sha256={sha256(WHEEL)}">{WHEEL_NAME}</a>')
    index.upstream.put(f"/packages/{WHEEL_NAME}", WHEEL)
    index.get("simple/req/", first)
    for _ in range(2):
        for accept in (PIP, HTML, "*/*", JSON):
            answer = index.get("simple/req/", accept)
            assert answer.headers["Vary"] == "Accept, Accept-Encoding"
            if accept in (PIP, JSON):
                assert answer.headers["Content-Type"] == JSON
                page = answer.json()
                assert page["meta"]["api-version"] == "1.4"
                (file,) = page["files"]
                assert (file["upload-time"], file["size"], file["hashes"]) == (AT, len(WHEEL), {"sha256": sha256(WHEEL)})
                assert file["url"] == f"../../files/req/{WHEEL_NAME}"
            else:
                assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
                assert f'href="../../files/req/{WHEEL_NAME}#sha256={sha256(WHEEL)}"' in answer.text
                assert 'data-requires-python="&gt;=3.8"' in answer.text
    assert index.get("simple/req/", "application/x-unknown").status_code == 406
    assert index.asked("/simple/req/") == 1
    assert index.file(WHEEL_NAME).content == WHEEL


def test_an_upstream_of_html_gives_json_too(index: Index) -> None:
    index.lists_html(
        f'<a href="/packages/{WHEEL_NAME}#sha256={sha256(WHEEL)}" data-yanked="why" data-requires-python="&gt;=3">{WHEEL_NAME}</a>',
        f'<a href="https://elsewhere.example/{SDIST_NAME}">{SDIST_NAME}</a>',
    )
    page = index.page()
    assert page["meta"]["api-version"] == "1.0"
    assert page["versions"] == ["1.0"]
    assert [(file["filename"], file["hashes"], file["yanked"]) for file in page["files"]] == [
        (WHEEL_NAME, {"sha256": sha256(WHEEL)}, "why"),
        (SDIST_NAME, {}, False),
    ]


@pytest.mark.parametrize(
    ("below", "root"), [("/simple", "/simple"), ("", "/simple"), ("", ""), ("/a/pypi", "/a/pypi/simple"), ("/whl", "/whl")]
)
def test_the_address_may_be_the_indexs_or_of_what_it_lies_in(server: Server, upstream: FakeUpstream, below: str, root: str) -> None:
    index = Index(server, upstream, {"mutable_ttl": 0}, below, root)
    path = index.lists(entry(WHEEL_NAME, WHEEL), etag='"1"')
    assert len(index.page()["files"]) == 1
    before = len(upstream.asked)
    assert len(index.page()["files"]) == 1
    # What was found once is asked first.
    assert [each.target for each in upstream.asked[before:]] == [path]
    assert upstream.asked[-1].headers["if-none-match"] == '"1"'
    assert index.get("simple/none/").status_code == 404


def test_files_lie_on_another_host_which_gets_no_credentials(server: Server, upstream: FakeUpstream) -> None:
    """HO-X-9."""
    files = FakeUpstream().start()
    try:
        index = Index(server, upstream)
        server.patch(f"/api/v1/repositories/{index.name}", json={"upstream": {"username": "u", "password": "p"}})
        index.lists(entry(WHEEL_NAME, WHEEL, f"{files.url}/deep/{WHEEL_NAME}?sig=a%2Bb"), entry(SDIST_NAME, SDIST))
        upstream.put(f"/packages/{SDIST_NAME}", SDIST)
        files.put(f"/deep/{WHEEL_NAME}?sig=a%2Bb", WHEEL)
        assert (index.file(WHEEL_NAME).content, index.file(SDIST_NAME).content) == (WHEEL, SDIST)
        assert all("authorization" in each.headers for each in upstream.asked)
        assert [each for each in files.asked if "authorization" in each.headers] == []
        assert len(files.asked) == 1
    finally:
        files.stop()


def test_relative_links_start_where_a_redirect_led(server: Server, upstream: FakeUpstream) -> None:
    files = FakeUpstream().start()
    try:
        index = Index(server, upstream)
        upstream.put("/simple/req/", status=302, headers={"Location": f"{files.url}/mirror/of/req/"})
        body = json.dumps({"meta": {"api-version": "1.0"}, "files": [entry(WHEEL_NAME, WHEEL, f"../{WHEEL_NAME}")]}).encode()
        files.put("/mirror/of/req/", body)
        files.put(f"/mirror/of/{WHEEL_NAME}", WHEEL)
        assert index.file(WHEEL_NAME).content == WHEEL
        server.patch(f"/api/v1/repositories/{index.name}", json={"settings": {"caching": False}})
        assert index.file(WHEEL_NAME).content == WHEEL
    finally:
        files.stop()


def test_a_file_is_fetched_once_and_never_compared_again(due: Index) -> None:
    due.lists(entry(WHEEL_NAME, WHEEL))
    due.upstream.put(f"/packages/{WHEEL_NAME}", WHEEL, headers={"Content-Type": "application/octet-stream"})
    cold = due.file(WHEEL_NAME)
    assert (cold.content, cold.headers["X-Arkvory-Cache"]) == (WHEEL, "miss")
    due.upstream.stop()
    for _ in range(2):
        warm = due.file(WHEEL_NAME)
        assert (warm.content, warm.headers["X-Arkvory-Cache"], warm.headers["ETag"]) == (WHEEL, "hit", f'"{sha256(WHEEL)}"')
    assert due.asked(f"/packages/{WHEEL_NAME}") == 1
    due.upstream.start()


@pytest.mark.parametrize("size", [1000, 3_000_000])
def test_other_bytes_than_the_page_says_are_not_stored(due: Index, size: int) -> None:
    """HO-X-4: a wrong digest, a wrong size, a body that breaks off."""
    name = "req-1.0.tar.gz"
    body = noise(size)
    due.lists(entry(name, body))
    for wrong in ({"body": noise(size, 2)}, {"body": body + b"x"}, {"body": body[:-1]}, {"body": body, "truncate": size - 10}):
        due.upstream.put(f"/packages/{name}", **wrong)
        try:
            answer = due.file(name)
        except requests.RequestException:
            continue
        assert answer.status_code == 502, answer.headers
        assert int(answer.headers["Retry-After"]) > 0
    assert artifacts(due) == []
    due.upstream.put(f"/packages/{name}", body)
    assert due.file(name).content == body


def artifacts(index: Index) -> list[str]:
    items = index.server.get(f"/api/v1/repositories/{index.name}/artifacts").json()["items"]
    return [each["path"] for each in items]


@pytest.mark.parametrize("algorithm", ["md5", "sha1", "sha384", "sha512", "blake2b"])
def test_other_hashes_are_compared_and_passed_on(due: Index, algorithm: str) -> None:
    digest = hashlib.new(algorithm, WHEEL).hexdigest()
    due.lists_html(f'<a href="/f/{WHEEL_NAME}#{algorithm}={digest}">{WHEEL_NAME}</a>')
    due.upstream.put(f"/f/{WHEEL_NAME}", noise(500))
    assert f"{WHEEL_NAME}#{algorithm}={digest}" in due.page(accept=HTML)
    assert due.file(WHEEL_NAME).status_code == 502
    due.upstream.put(f"/f/{WHEEL_NAME}", WHEEL)
    assert due.file(WHEEL_NAME).content == WHEEL
    (file,) = due.page()["files"]
    assert file["hashes"] == {algorithm: digest, "sha256": sha256(WHEEL)}


def test_without_a_hash_it_is_stored_and_its_own_is_told_from_then_on(due: Index) -> None:
    due.lists_html(f'<a href="/f/{WHEEL_NAME}">{WHEEL_NAME}</a>', f'<a href="/f/{SDIST_NAME}">{SDIST_NAME}</a>')
    due.upstream.put(f"/f/{WHEEL_NAME}", WHEEL)
    before = due.get("simple/req/", HTML)
    assert f'files/req/{WHEEL_NAME}"' in before.text
    assert due.file(WHEEL_NAME).content == WHEEL
    after = due.get("simple/req/", HTML)
    assert f"files/req/{WHEEL_NAME}#sha256={sha256(WHEEL)}" in after.text
    assert before.headers["ETag"] != after.headers["ETag"]
    assert [(file["size"], file["hashes"]) for file in due.page()["files"] if "size" in file] == [(len(WHEEL), {"sha256": sha256(WHEEL)})]


@pytest.mark.parametrize("name", [WHEEL_NAME, SDIST_NAME, "req-1.0.zip"])
def test_an_error_page_with_status_200_is_no_file(due: Index, name: str) -> None:
    due.lists_html(f'<a href="/f/{name}">{name}</a>')
    due.upstream.put(f"/f/{name}", b"<html>Try again</html>", headers={"Content-Type": "text/html"})
    answer = due.file(name)
    assert answer.status_code == 502
    assert "is none" in answer.text
    assert artifacts(due) == []


# Metadata, signatures, provenance


def test_metadata_files_come_from_the_upstream_and_have_the_hash_that_is_told(index: Index) -> None:
    """HO-PYPI-3."""
    index.lists(entry(WHEEL_NAME, WHEEL, **{"core-metadata": {"sha256": sha256(METADATA)}}), entry(SDIST_NAME, SDIST))
    index.upstream.put(f"/packages/{WHEEL_NAME}.metadata", METADATA)
    told = {file["filename"]: file.get("core-metadata") for file in index.page()["files"]}
    assert told == {WHEEL_NAME: {"sha256": sha256(METADATA)}, SDIST_NAME: None}
    assert index.page(accept=HTML).count(f'data-core-metadata="sha256={sha256(METADATA)}"') == 1
    served = index.file(f"{WHEEL_NAME}.metadata")
    assert (served.content, served.headers["Content-Type"]) == (METADATA, "text/plain; charset=utf-8")
    assert index.asked(f"/packages/{WHEEL_NAME}") == 0
    assert index.file(f"{SDIST_NAME}.metadata").status_code == 404
    assert index.asked(f"/packages/{SDIST_NAME}.metadata") == 0


def test_metadata_that_is_promised_and_not_there_is_the_wheels_own(index: Index) -> None:
    """HO-PYPI-3: never 404 behind an advertised one."""
    index.lists(entry(WHEEL_NAME, WHEEL, **{"core-metadata": {"sha256": sha256(METADATA)}}))
    index.upstream.put(f"/packages/{WHEEL_NAME}", WHEEL)
    served = index.file(f"{WHEEL_NAME}.metadata")
    assert (served.status_code, served.content) == (200, METADATA)
    assert index.file(f"{WHEEL_NAME}.metadata").headers["X-Arkvory-Cache"] == "hit"
    assert index.file(WHEEL_NAME).content == WHEEL
    assert (index.asked(f"/packages/{WHEEL_NAME}"), index.asked(f"/packages/{WHEEL_NAME}.metadata")) == (1, 1)


@pytest.mark.parametrize("body", [WHEEL, b"no wheel at all"])
def test_metadata_that_nobody_has_is_the_upstreams_failure_and_not_an_absence(index: Index, body: bytes) -> None:
    index.lists(entry(WHEEL_NAME, body, **{"core-metadata": {"sha256": sha256(b"other")}}))
    index.upstream.put(f"/packages/{WHEEL_NAME}", body)
    for _ in range(2):
        assert index.file(f"{WHEEL_NAME}.metadata").status_code == 502
    index.upstream.put(f"/packages/{WHEEL_NAME}.metadata", b"other")
    assert index.file(f"{WHEEL_NAME}.metadata").content == b"other"


def test_metadata_with_another_hash_is_refused(index: Index) -> None:
    index.lists(entry(WHEEL_NAME, WHEEL, **{"core-metadata": {"sha256": sha256(WHEEL)}}))
    index.upstream.put(f"/packages/{WHEEL_NAME}.metadata", METADATA)
    assert index.file(f"{WHEEL_NAME}.metadata").status_code == 502


def test_metadata_without_a_hash_is_told_with_its_own_once_it_is_stored(index: Index) -> None:
    index.lists(entry(WHEEL_NAME, WHEEL, **{"core-metadata": True}))
    index.upstream.put(f"/packages/{WHEEL_NAME}.metadata", METADATA)
    assert index.page()["files"][0]["core-metadata"] is True
    assert index.file(f"{WHEEL_NAME}.metadata").content == METADATA
    assert index.page()["files"][0]["core-metadata"] == {"sha256": sha256(METADATA)}


def test_signatures_and_provenance_go_along(index: Index) -> None:
    index.lists(
        entry(WHEEL_NAME, WHEEL, **{"gpg-sig": True, "provenance": "/integrity/req/p"}), entry(SDIST_NAME, SDIST, **{"gpg-sig": False})
    )
    index.upstream.put(f"/packages/{WHEEL_NAME}.asc", b"-----BEGIN PGP SIGNATURE-----")
    index.upstream.put("/integrity/req/p", b'{"version": 1}')
    assert [file["gpg-sig"] for file in index.page()["files"]] == [True, False]
    assert index.file(f"{WHEEL_NAME}.asc").content == b"-----BEGIN PGP SIGNATURE-----"
    assert index.file(f"{WHEEL_NAME}.provenance").json() == {"version": 1}
    assert index.file(f"{SDIST_NAME}.asc").status_code == index.file(f"{SDIST_NAME}.provenance").status_code == 404
    assert index.asked(f"/packages/{SDIST_NAME}.asc") == 0


def test_what_a_page_says_of_the_project_goes_along(index: Index) -> None:
    status = {"status": "deprecated", "reason": "use bar"}
    index.lists(entry(WHEEL_NAME, WHEEL), versions=["0.1", "1.0.0", "2.0rc1"], **{"project-status": status})
    page = index.page()
    assert (page["versions"], page["project-status"]) == (["0.1", "1.0", "2.0rc1"], status)
    assert '<meta name="pypi:project-status-reason" content="use bar">' in index.page(accept=HTML)


def test_the_document_of_a_release_is_made_of_the_page(index: Index) -> None:
    old = "req-0.9.tar.gz"
    index.lists(entry(WHEEL_NAME, WHEEL, **{"requires-python": ">=3.8"}), entry(old, SDIST), entry("req-2.0rc1.zip", b""))
    document = index.get("pypi/req/json").json()
    assert (document["info"]["version"], document["info"]["requires_python"]) == ("1.0", ">=3.8")
    assert list(document["releases"]) == ["0.9", "1.0", "2.0rc1"]
    assert document["urls"][0]["url"] == f"{index.server.url}/pypi/{index.name}/files/req/{WHEEL_NAME}"
    assert document["urls"][0]["upload_time_iso_8601"] == AT
    assert [file["filename"] for file in index.get("pypi/req/0.9.0/json").json()["urls"]] == [old]
    assert index.get("pypi/req/3/json").status_code == index.get("pypi/none/json").status_code == 404


# Freshness


def test_pages_are_compared_when_due_and_change_at_once(due: Index) -> None:
    path = due.lists(entry(WHEEL_NAME, WHEEL), etag='"1"')
    assert due.get("simple/req/").headers["X-Arkvory-Cache"] == "miss"
    again = due.get("simple/req/")
    assert (again.headers["X-Arkvory-Cache"], len(again.json()["files"])) == ("revalidated", 1)
    due.lists(entry(WHEEL_NAME, WHEEL), entry(SDIST_NAME, SDIST), etag='"2"')
    changed = due.get("simple/req/", headers={"If-None-Match": again.headers["ETag"]})
    assert (changed.status_code, len(changed.json()["files"])) == (200, 2)
    same = due.get("simple/req/", headers={"If-None-Match": changed.headers["ETag"]})
    assert (same.status_code, same.content) == (304, b"")
    assert due.asked(path) == 4


def test_a_fresh_page_asks_nobody(index: Index) -> None:
    path = index.lists(entry(WHEEL_NAME, WHEEL))
    answers = [index.get("simple/req/") for _ in range(3)]
    assert [answer.headers["X-Arkvory-Cache"] for answer in answers] == ["miss", "hit", "hit"]
    assert len({answer.headers["ETag"] for answer in answers}) == 1
    assert int(answers[-1].headers["Age"]) >= 0
    assert index.asked(path) == 1


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
def test_only_absence_is_remembered_and_the_copy_is_served_while_the_upstream_fails(due: Index, status: int) -> None:
    """HO-X-3."""
    headers = {"Retry-After": "1"} if status in (429, 503) else {}
    due.upstream.put("/simple/req/", status=status, headers=headers)
    cold = due.get("simple/req/")
    assert cold.status_code == (503 if headers else 502)
    assert int(cold.headers["Retry-After"]) >= 1
    gevent.sleep(1.1 if headers else 0)
    due.upstream.forget("/simple/req/")
    due.lists(entry(WHEEL_NAME, WHEEL))
    assert len(due.page()["files"]) == 1
    due.upstream.forget("/simple/req/")
    due.upstream.put("/simple/req/", status=status, headers=headers)
    for accept in (JSON, HTML):
        stale = due.get("simple/req/", accept)
        assert (stale.status_code, stale.headers["X-Arkvory-Cache"]) == (200, "stale")
        assert WHEEL_NAME in stale.text


BROKEN = {
    "an error page": b"<html><title>Sign in</title><a href='/login'>Log in</a></html>",
    "broken JSON": b'{"meta": {"api-version": "1.0"}, "files": [',
    "other JSON": b'{"error": "no"}',
    "a version to come": b'{"meta": {"api-version": "2.0"}, "files": []}',
}


@pytest.mark.parametrize("what", list(BROKEN))
def test_what_is_no_page_is_a_failure_and_does_not_replace_one(due: Index, what: str) -> None:
    due.upstream.put("/simple/req/", BROKEN[what])
    cold = due.get("simple/req/")
    assert cold.status_code == 502
    assert "the upstream's page of 'req'" in cold.text
    due.upstream.forget("/simple/req/")
    due.lists(entry(WHEEL_NAME, WHEEL))
    assert len(due.page()["files"]) == 1
    due.upstream.forget("/simple/req/")
    due.upstream.put("/simple/req/", BROKEN[what])
    stale = due.get("simple/req/")
    assert (stale.headers["X-Arkvory-Cache"], len(stale.json()["files"])) == ("stale", 1)


def test_a_bomb_is_stopped_early(due: Index) -> None:
    bomb = gzip.compress(b'{"files": [' + b" " * 100_000_000, 9)
    due.upstream.put("/simple/req/", bomb, headers={"Content-Encoding": "gzip", "Content-Type": JSON})
    answer = due.get("simple/req/")
    assert answer.status_code == 502
    assert artifacts(due) == []


def test_a_page_that_is_compressed_all_the_same_is_read(due: Index) -> None:
    document = {"meta": {"api-version": "1.1"}, "files": [entry(WHEEL_NAME, WHEEL)]}
    due.upstream.put("/simple/req/", gzip.compress(json.dumps(document).encode()), headers={"Content-Encoding": "gzip"})
    assert len(due.page()["files"]) == 1


def test_a_project_that_is_gone_upstream_is_gone_here_and_its_files_stay(due: Index) -> None:
    due.lists(entry(WHEEL_NAME, WHEEL))
    due.upstream.put(f"/packages/{WHEEL_NAME}", WHEEL)
    assert due.file(WHEEL_NAME).content == WHEEL
    due.upstream.forget("/simple/req/")
    for accept in (JSON, HTML):
        assert due.get("simple/req/", accept).status_code == 404
    assert due.get("pypi/req/json").status_code == 404
    assert due.file(WHEEL_NAME).content == WHEEL
    assert due.file(SDIST_NAME).status_code == 404
    due.lists(entry(WHEEL_NAME, WHEEL))
    assert len(due.page()["files"]) == 1


def test_a_miss_is_remembered_for_its_time(index: Index) -> None:
    for path in ("simple/none/", "files/none/none-1.0.tar.gz", "pypi/none/json"):
        assert index.get(path).status_code == index.get(path, HTML).status_code == 404
    assert index.asked("/simple/none/") == 1


def test_a_file_that_was_replaced_upstream_stays_what_it_was_and_the_page_says_so(due: Index) -> None:
    """What was locked once stays right; page and bytes belong together."""
    due.lists(entry(WHEEL_NAME, WHEEL, **{"core-metadata": {"sha256": sha256(METADATA)}}))
    due.upstream.put(f"/packages/{WHEEL_NAME}", WHEEL)
    assert due.file(WHEEL_NAME).content == WHEEL
    other = wheel("req", "1.0", "Summary: other")
    due.lists(entry(WHEEL_NAME, other, **{"core-metadata": {"sha256": sha256(b"x")}}))
    due.upstream.put(f"/packages/{WHEEL_NAME}", other)
    (file,) = due.page()["files"]
    assert (file["hashes"], file["size"], file.get("core-metadata")) == ({"sha256": sha256(WHEEL)}, len(WHEEL), None)
    assert due.file(WHEEL_NAME).content == WHEEL


def test_names_are_asked_for_as_the_specification_spells_them(index: Index) -> None:
    index.lists(entry("Req_Two-1.0.tar.gz", SDIST), project="req-two")
    for spelling in ("Req_Two", "req.two", "REQ-TWO", "req-two"):
        answer = index.get(f"simple/{spelling}/")
        assert (answer.status_code, answer.json()["files"][0]["filename"]) == (200, "Req_Two-1.0.tar.gz")
    assert index.get("simple/req-two", allow_redirects=False).headers["Location"] == "req-two/"
    assert {each.target for each in index.upstream.asked} == {"/simple/req-two/"}


def test_internal_addresses_lead_nowhere(index: Index) -> None:
    index.lists(entry(WHEEL_NAME, WHEEL))
    index.page()
    for path in ("files/.upstream/simple", "files/.upstream/simple%2Freq", "files/.upstream/simple/req", "files/Req/" + WHEEL_NAME):
        assert index.get(path).status_code in (400, 404)


# The index of all projects


@pytest.mark.parametrize("form", ["json", "html"])
def test_the_index_of_all_projects_is_the_upstreams_with_our_links(index: Index, form: str) -> None:
    names = ["Foo_Bar", "zope.interface", "a"]
    if form == "json":
        body = json.dumps(
            {"meta": {"_last-serial": 7, "api-version": "1.4"}, "projects": [{"_last-serial": 1, "name": name} for name in names]}
        )
    else:
        body = "<title>Simple index</title>" + "".join(f'<a href="/simple/{name}/">{name}</a>' for name in names)
    index.upstream.put("/simple/", body.encode())
    listed = index.get("simple/", JSON)
    assert [each["name"] for each in listed.json()["projects"]] == ["a", "foo-bar", "zope-interface"]
    assert re.findall('href="([^"]+)"', index.get("simple/", HTML).text) == ["a/", "foo-bar/", "zope-interface/"]
    assert index.get("simple/", HTML, headers={"If-None-Match": index.get("simple/", HTML).headers["ETag"]}).status_code == 304
    assert index.asked("/simple/") == 1


def test_an_upstream_without_an_index_has_the_projects_that_are_known(index: Index) -> None:
    assert index.get("simple/", JSON).json()["projects"] == []
    index.lists(entry(WHEEL_NAME, WHEEL))
    index.page()
    assert [each["name"] for each in index.get("simple/", JSON).json()["projects"]] == ["req"]


def test_an_index_that_is_none_is_a_failure(due: Index) -> None:
    due.upstream.put("/simple/", b"<html><title>Welcome</title></html>")
    assert due.get("simple/").status_code == 502


# Who may, and what is held


def test_what_is_held_is_in_no_page_before_it_was_ever_fetched(due: Index) -> None:
    """W5."""
    due.lists(entry(WHEEL_NAME, WHEEL), entry(SDIST_NAME, SDIST))
    due.upstream.put(f"/packages/{WHEEL_NAME}", WHEEL)
    before = due.get("simple/req/")
    held = due.server.put(f"/api/v1/repositories/{due.name}/artifacts/req/{WHEEL_NAME}/quarantine", json={"reason": "looked at"})
    assert held.status_code in (200, 201), held.text
    after = due.get("simple/req/", headers={"If-None-Match": before.headers["ETag"]})
    assert [file["filename"] for file in after.json()["files"]] == [SDIST_NAME]
    assert WHEEL_NAME not in due.page(accept=HTML) + due.get("pypi/req/json").text
    assert due.file(WHEEL_NAME).status_code == 403
    assert due.server.delete(f"/api/v1/repositories/{due.name}/artifacts/req/{WHEEL_NAME}/quarantine").status_code == 204
    assert len(due.page()["files"]) == 2


def test_who_may_not_read_learns_nothing_and_asks_nobody(index: Index) -> None:
    index.lists(entry(WHEEL_NAME, WHEEL))
    assert index.server.patch(f"/api/v1/repositories/{index.name}", json={"public": False}).status_code == 200
    for path in ("simple/", "simple/req/", "simple/none/", f"files/req/{WHEEL_NAME}", "pypi/req/json"):
        assert index.get(path, auth=None).status_code == 401
    assert not index.upstream.asked


def test_without_caching_everything_is_passed_on_and_nothing_stored(index: Index) -> None:
    index.server.patch(f"/api/v1/repositories/{index.name}", json={"settings": {"caching": False}})
    index.lists(entry(WHEEL_NAME, WHEEL), entry(SDIST_NAME, SDIST))
    index.upstream.put(f"/packages/{WHEEL_NAME}", WHEEL)
    index.upstream.put("/simple/", b'{"meta": {"api-version": "1.0"}, "projects": [{"name": "req"}]}')
    for accept in (JSON, HTML):
        assert WHEEL_NAME in index.get("simple/req/", accept).text
    assert index.file(WHEEL_NAME).content == WHEEL
    assert [each["name"] for each in index.get("simple/", JSON).json()["projects"]] == ["req"]
    assert index.server.get(f"/api/v1/repositories/{index.name}/artifacts").json()["items"] == []


def test_publishing_goes_to_hosted_repositories(index: Index) -> None:
    answer = index.server.post(f"/pypi/{index.name}/", data={":action": "file_upload"})
    assert answer.status_code in (400, 405)
    assert index.server.delete(f"/pypi/{index.name}/files/req/{WHEEL_NAME}").status_code in (404, 405)


def test_versions_that_are_too_young_are_in_no_page_and_leave_by_no_door(index: Index) -> None:
    young, old = "req-2.0-py3-none-any.whl", WHEEL_NAME
    now = datetime.now(UTC).isoformat()
    index.lists(entry(old, WHEEL), entry(young, SDIST, **{"upload-time": now}), versions=["0.1", "1.0", "2.0"])
    index.upstream.put(f"/packages/{young}", SDIST)
    index.upstream.put(f"/packages/{old}", WHEEL)
    assert len(index.page()["files"]) == 2
    index.server.patch(f"/api/v1/repositories/{index.name}", json={"settings": {"minimum_age": 3}})
    page = index.page()
    assert ([file["filename"] for file in page["files"]], page["versions"]) == ([old], ["0.1", "1.0"])
    assert young not in index.page(accept=HTML) + index.get("pypi/req/json").text
    assert index.get("pypi/req/json").json()["info"]["version"] == "1.0"
    withheld = index.file(young)
    assert (withheld.status_code, "2.0" in withheld.text) == (403, True), withheld.text
    assert index.file(old).content == WHEEL
    settings = {"minimum_age": 3, "minimum_age_exceptions": ["req@2.*"]}
    index.server.patch(f"/api/v1/repositories/{index.name}", json={"settings": settings})
    assert len(index.page()["files"]) == 2
    assert index.file(young).content == SDIST


def test_path_rules_leave_projects_and_files_out(index: Index) -> None:
    index.lists(entry(WHEEL_NAME, WHEEL), entry(SDIST_NAME, SDIST))
    index.lists(entry("other-1.0.tar.gz", SDIST), project="other")
    index.upstream.put(f"/packages/{SDIST_NAME}", SDIST)
    index.server.patch(f"/api/v1/repositories/{index.name}", json={"settings": {"block": ["other", "req/*.tar.gz"]}})
    assert [file["filename"] for file in index.page()["files"]] == [WHEEL_NAME]
    assert index.get("simple/other/").status_code == index.file(SDIST_NAME).status_code == 404
    assert index.asked("/simple/other/") == index.asked(f"/packages/{SDIST_NAME}") == 0


@pytest.fixture
def proxied(house: House, upstream: FakeUpstream) -> House:
    """A house with a proxy `py` of an upstream that has one file, with provenance."""
    house.parts.fetches.dialects |= {"pypi": PythonIndexes()}
    house.repository("py", format="pypi", kind="proxy", upstream_url=f"{upstream.url}/simple")
    document = {"meta": {"api-version": "1.4"}, "files": [entry(WHEEL_NAME, WHEEL, provenance="/integrity/p")]}
    upstream.put("/simple/req/", json.dumps(document).encode())
    return house


@pytest.mark.parametrize(("origin", "told"), [("https://h.example/pypi/py/", True), ("", False)])
def test_provenance_is_told_where_our_address_is_secure(proxied: House, origin: str, told: bool) -> None:
    """PEP 740."""
    source = ProjectPage(negotiation.JSON, "", "req", origin)
    page = json.loads(proxied.parts.reader.document(Ask("pypi", "py", "req/", ADMIN), source, made_of=page_path("req")).document.body)
    expected = f"{origin}files/req/{WHEEL_NAME}.provenance" if told else None
    assert page["files"][0].get("provenance") == expected


def test_warm_a_page_sends_no_statement_and_copies_remember_what_the_page_said(proxied: House, upstream: FakeUpstream) -> None:
    house = proxied
    upstream.put(f"/packages/{WHEEL_NAME}", WHEEL)
    source, ask = ProjectPage(negotiation.JSON, "", "req", ""), Ask("pypi", "py", "req/", ADMIN)
    house.parts.reader.document(ask, source, made_of=page_path("req"))
    found = house.parts.reader.find(Ask("pypi", "py", f"req/{WHEEL_NAME}", ADMIN))
    assert found.gate.metadata == {"published_at": "2026-01-02T03:04:05.678900+00:00", "published_as": ["req", "1.0"]}
    assert house.value("select version from arkvory_artifacts where path = :path", path=f"req/{WHEEL_NAME}") == "1.0"
    house.parts.reader.document(ask, source, made_of=page_path("req"))
    before = house.parts.database.statements()
    answered = house.parts.reader.document(ask, source, made_of=page_path("req"))
    assert answered.told is not None and answered.told.how == "hit"
    assert house.parts.database.statements() == before
    house.clean()
    house.assert_counted()
    house.assert_no_strays()


# Size


def test_a_page_of_fifty_megabytes_is_read_elsewhere(due: Index) -> None:
    """The loop goes on answering, and whoever waits gets all of it."""
    padding = "x" * 3000
    files = [
        entry(f"req-1.{n}-py3-none-any.whl", b"", f"https://files.example/{padding}/req-1.{n}-py3-none-any.whl") for n in range(16_000)
    ]
    due.lists(*files)
    body = due.upstream.rules["/simple/req/"][0].body
    assert 50_000_000 < len(body) < 64 * 1024 * 1024
    asking = gevent.spawn(due.get, "simple/req/", JSON, headers={"Accept-Encoding": "identity"})
    slowest = 0.0
    while not asking.ready():
        began = pace.now()
        due.server.get("/health/live", auth=None)
        slowest = max(slowest, pace.now() - began - pace.lost(began))
        gevent.sleep(0.02)
    assert asking.get().status_code == 200
    assert len(asking.get().json()["files"]) == 16_000
    assert slowest < 1.5


def test_a_page_beyond_all_measure_is_a_failure(due: Index) -> None:
    due.upstream.put("/simple/req/", b'{"meta": {}, "files": [], "x": "' + b"x" * (65 * 1024 * 1024) + b'"}')
    answer = due.get("simple/req/")
    assert answer.status_code == 502
    assert "bytes, more than" in answer.text
    eventually(lambda: artifacts(due) == [])


def test_what_could_be_anything_is_fetched_from_no_other_server(index: Index) -> None:
    """A page names an address of somebody else's, and nothing would tell what is there from what was asked for."""
    elsewhere = FakeUpstream().start()
    try:
        for path in ("/secret", "/secret.asc", "/setup.exe"):
            elsewhere.put(path, b'{"secret": 1}')
        there = {"url": f"{elsewhere.url}/secret", "hashes": {}}
        index.lists(
            entry(WHEEL_NAME, WHEEL, provenance=f"{elsewhere.url}/secret", **{"gpg-sig": True} | there),
            entry("req-1.0.dmg", b"", **there), entry("req-1.0.tar", b"", **there), entry("req-1.0.exe", b"", **there),
        )  # fmt: skip
        names = [f"{WHEEL_NAME}.provenance", f"{WHEEL_NAME}.asc", WHEEL_NAME, "req-1.0.dmg", "req-1.0.tar", "req-1.0.exe"]
        assert [index.file(each).status_code for each in names] == [502] * 6
        assert {each.target for each in elsewhere.asked} == {"/secret", "/secret.asc"}, "of what can be told by its beginning alone"
        assert elsewhere.count("/secret") == 2
        elsewhere.put("/secret", WHEEL)
        assert index.file(WHEEL_NAME).content == WHEEL
    finally:
        elsewhere.stop()


def test_one_bad_file_or_page_keeps_nobody_from_the_others(index: Index) -> None:
    """Its health is not in question: the upstream answers, and not with what was asked for."""
    index.lists(entry(WHEEL_NAME, WHEEL), entry("req-2.0.zip", b"", hashes={}, size=None))
    index.upstream.put("/packages/req-2.0.zip", b"<html>sorry</html>")
    index.upstream.put("/simple/other/", b"<html>sorry</html>")
    for _ in range(FAILURES + 1):
        assert index.file("req-2.0.zip").status_code == 502
        assert index.get("simple/other/").status_code == 502
    index.upstream.put(f"/packages/{WHEEL_NAME}", WHEEL)
    assert index.file(WHEEL_NAME).content == WHEEL
