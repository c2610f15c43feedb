"""`/api/v1/explain` for the addresses of every format, as somebody may have pasted them, and `/repositories/{name}/upstream`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.api.test_artifact_addresses import publish_maven, publish_npm, publish_oci, publish_pypi, publish_raw
from tests.api.test_management import problem, user
from tests.protocols.oci.conftest import digest_of
from tests.support.server import Server
from tests.support.upstreams import FakeUpstream

PUBLISH: dict[str, Callable[[Server, str], None]] = {
    "raw": publish_raw, "maven": publish_maven, "pypi": publish_pypi, "npm": publish_npm, "oci": publish_oci,
}  # fmt: skip


@pytest.fixture(scope="module")
def filled(server: Server) -> Server:
    """A server with a repository of each format, named after it, in which something is."""
    for kind, publish in PUBLISH.items():
        server.repository(kind, kind, **({"host": "images.example.org"} if kind == "oci" else {}))
        publish(server, kind)
    return server


def explained(server: Server, url: str, **options: Any) -> dict[str, Any]:
    answer = server.get("/api/v1/explain", params={"url": url, **options.pop("query", {})}, **options)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


@pytest.mark.parametrize(("address", "path"), [
    ("/raw/raw/a.txt", "a.txt"),
    ("/raw/raw/some/%C3%9C%20%23%25.txt", "some/Ü #%.txt"),
    ("/maven/maven/org/acme/lib/1.0/lib-1.0.jar", "org/acme/lib/1.0/lib-1.0.jar"),
    ("/maven/maven/org/acme/lib/1.0/lib-1.0.jar.sha1", "org/acme/lib/1.0/lib-1.0.jar"),
    ("/pypi/pypi/files/foo/foo-1.0-py3-none-any.whl", "foo/foo-1.0-py3-none-any.whl"),
    ("/npm/npm/@acme/tool/-/tool-1.0.0.tgz", "@acme/tool/-/tool-1.0.0.tgz"),
    ("/v2/oci/team/app/manifests/1.0", "team/app/manifests/1.0"),
    (f"/v2/oci/team/app/blobs/{digest_of(b'{}')}", f"team/app/blobs/{digest_of(b'{}')}"),
])
def test_a_file_is_found_by_its_address_whatever_its_format(filled: Server, address: str, path: str) -> None:
    found = explained(filled, address)
    assert (found["path"], found["document"], found["outcome"]["answer"]) == (path, False, "served")
    assert found["found"]["gate"]["size"] > 0 and found["found"]["upstream"] is None and found["members"] is None
    assert filled.get(address).status_code == 200


@pytest.mark.parametrize("address", [
    "/raw/raw/", "/raw/raw/some/", "/maven/maven/org/acme/lib/maven-metadata.xml", "/maven/maven/org/acme/lib/maven-metadata.xml.md5",
    "/pypi/pypi/simple/", "/pypi/pypi/simple/foo/", "/pypi/pypi/simple/foo", "/pypi/pypi/simple/Foo/", "/pypi/pypi/pypi/foo/json",
    "/npm/npm/@acme%2ftool", "/npm/npm/@acme%2Ftool/1.0.0", "/npm/npm/-/package/@acme%2ftool/dist-tags", "/v2/oci/team/app/tags/list?n=1",
])  # fmt: skip
def test_a_document_is_found_by_its_address(filled: Server, address: str) -> None:
    found = explained(filled, address)
    assert (found["document"], found["outcome"]["answer"], found["outcome"]["code"]) == (True, "served", None)
    assert filled.get(address).status_code == 200


@pytest.mark.parametrize("address", [
    "/raw/raw/none", "/maven/maven/org/acme/lib/2.0/lib-2.0.jar", "/pypi/pypi/simple/bar/", "/npm/npm/nothing",
    "/v2/oci/team/app/manifests/2.0",
])  # fmt: skip
def test_what_is_not_there_is_absent(filled: Server, address: str) -> None:
    found = explained(filled, address)
    assert (found["outcome"]["answer"], found["outcome"]["code"]) == ("absent", "not_found")
    assert filled.get(address).status_code == 404


def test_an_address_may_be_whole_and_a_host_name_may_mean_a_repository(filled: Server) -> None:
    assert explained(filled, f"{filled.url}/raw/raw/a.txt#L1")["path"] == "a.txt"
    assert explained(filled, "https://arkvory.example.org/raw/raw/a.txt")["path"] == "a.txt"
    assert explained(filled, "localhost:8080/raw/raw/a.txt")["path"] == "a.txt"
    assert explained(filled, "localhost:8080/oci/team/app:1.0")["path"] == "team/app/manifests/1.0"
    found = explained(filled, "https://IMAGES.example.org/v2/team/app/manifests/1.0")
    assert (found["repository"], found["path"], found["outcome"]["answer"]) == ("oci", "team/app/manifests/1.0", "served")


def test_a_login_in_an_address_is_used_for_nothing_and_is_not_logged(filled: Server) -> None:
    assert explained(filled, "https://ann:hidden-word@arkvory.example.org/raw/raw/a.txt")["permission"]["subject"] == "user:admin"
    assert "hidden-word" not in filled.log()


@pytest.mark.parametrize(("url", "code", "field"), [
    ("raw/raw/a.txt", "invalid", "url"), ("ftp://host/raw/raw/a.txt", "invalid", "url"), ("http://[", "invalid", "url"),
    ("/nothing/raw/a.txt", "invalid", "url"), ("/", "invalid", "url"), ("/v2/token", "invalid", "url"),
    ("/raw/raw/%zz", "invalid_path", None),
])  # fmt: skip
def test_what_is_no_address_of_an_artifact_is_refused(filled: Server, url: str, code: str, field: str | None) -> None:
    problem(filled.get("/api/v1/explain", params={"url": url}), 422 if field else 400, code, field)


def test_which_format_a_repository_is_of_hears_who_may_read_it(filled: Server) -> None:
    told = "is of the format npm"
    assert told in filled.get("/raw/npm/a").text
    assert told in filled.put("/raw/npm/a", b"").text
    assert told not in filled.get("/raw/npm/a", auth=None).text


def test_a_repository_of_another_format_or_none_is_not_found(filled: Server) -> None:
    for url in ("/raw/npm/a", "/raw/nowhere/a"):
        problem(filled.get("/api/v1/explain", params={"url": url}), 404, "not_found")
        problem(filled.get("/api/v1/explain", params={"url": url}, auth=None), 401, "unauthenticated")


def test_rules_are_for_who_manages_the_repository(filled: Server) -> None:
    ada = user(filled, "ada")
    assert filled.post("/api/v1/repositories/raw/rules", json={"subject": "user:ada", "permissions": ["read"]}).status_code == 201
    mine = explained(filled, "/raw/raw/a.txt", auth=ada)
    assert mine["permission"]["allowed"] and mine["permission"]["rules"] == []
    about = explained(filled, "/raw/raw/a.txt", query={"subject": "user:ada"})["permission"]
    assert (about["subject"], about["allowed"]) == ("user:ada", True)
    assert [each["covers"] for each in about["rules"]] == [True]
    problem(filled.get("/api/v1/explain", params={"url": "/raw/raw/a.txt", "subject": "anonymous"}, auth=ada), 403, "forbidden")
    assert explained(filled, "/raw/raw/a.txt", query={"subject": "anonymous"})["outcome"]["code"] == "unauthenticated"


def test_in_a_proxy_what_is_made_elsewhere_is_the_upstreams_own_file(filled: Server, upstream: FakeUpstream) -> None:
    filled.repository("central", "maven", kind="proxy", upstream_url=upstream.url)
    upstream.put("/org/acme/lib/maven-metadata.xml", b"<metadata><groupId>org.acme</groupId><artifactId>lib</artifactId></metadata>")
    address = "/maven/central/org/acme/lib/maven-metadata.xml"
    assert (explained(filled, address)["outcome"]["answer"], upstream.asked) == ("fetched", [])
    assert filled.get(address).status_code == 200
    warm = explained(filled, address)
    assert (warm["outcome"]["answer"], warm["found"]["path"]) == ("served", "org/acme/lib/maven-metadata.xml")
    assert warm["found"]["gate"]["size"] == len(filled.get(address).content)


def test_of_a_group_each_member_says_for_itself_what_it_has(filled: Server, upstream: FakeUpstream) -> None:
    """Present order; a member that is away is named; and so does the answer itself."""
    filled.repository("away"), filled.repository("up", kind="proxy", upstream_url=upstream.url)
    assert filled.patch("/api/v1/repositories/away", json={"status": "offline"}).status_code == 200
    filled.repository("all", kind="group", members=["away", "up", "raw"])
    cold = explained(filled, "/raw/all/a.txt")
    assert [(each["repository"], each["outcome"]["answer"]) for each in cold["members"]] == [
        ("away", "unavailable"), ("up", "fetched"), ("raw", "served"),
    ]  # fmt: skip
    assert (cold["outcome"]["answer"], upstream.asked) == ("fetched", [])
    answer = filled.get("/raw/all/a.txt")
    assert (answer.headers["X-Arkvory-Member"], answer.headers["X-Arkvory-Passed-Over"]) == ("raw", "away")
    warm = explained(filled, "/raw/all/a.txt")
    assert [(each["outcome"]["code"], each["chosen"]) for each in warm["members"]] == [
        ("repository_offline", False), ("not_found", False), (None, True),
    ]  # fmt: skip
    assert warm["outcome"] == {"answer": "served", "code": None, "detail": "raw: stored here"}
    folder = explained(filled, "/raw/all/")
    assert [each["repository"] for each in folder["members"] if each["chosen"]] == ["up", "raw"]


@pytest.fixture(scope="module")
def grouped(filled: Server) -> Iterator[Server]:
    """Of each format a group of the repository in which something is, and of a proxy whose upstream has nothing."""
    nothing = FakeUpstream().start()
    for kind in PUBLISH:
        filled.repository(f"{kind}-px", kind, kind="proxy", upstream_url=nothing.url)
        filled.repository(f"{kind}-all", kind, kind="group", members=[kind, f"{kind}-px"])
    yield filled
    nothing.stop()


@pytest.mark.parametrize("address", [
    "/raw/raw-all/a.txt", "/raw/raw-all/some/%C3%9C%20%23%25.txt", "/raw/raw-all/", "/raw/raw-all/some/", "/raw/raw-all/none",
    "/maven/maven-all/org/acme/lib/1.0/lib-1.0.jar", "/maven/maven-all/org/acme/lib/1.0/lib-1.0.jar.sha1",
    "/maven/maven-all/org/acme/lib/maven-metadata.xml", "/maven/maven-all/org/acme/lib/maven-metadata.xml.md5",
    "/maven/maven-all/org/acme/lib/2.0/lib-2.0.jar", "/maven/maven-all/org/acme/none/maven-metadata.xml", "/maven/maven-all/org/acme/",
    "/pypi/pypi-all/files/foo/foo-1.0-py3-none-any.whl", "/pypi/pypi-all/simple/", "/pypi/pypi-all/simple/foo/",
    "/pypi/pypi-all/simple/bar/", "/pypi/pypi-all/pypi/foo/json", "/pypi/pypi-all/pypi/foo/1.0/json",
    "/npm/npm-all/@acme%2ftool", "/npm/npm-all/@acme%2Ftool/1.0.0", "/npm/npm-all/-/package/@acme%2ftool/dist-tags",
    "/npm/npm-all/@acme/tool/-/tool-1.0.0.tgz", "/npm/npm-all/nothing", "/npm/npm-all/nothing/-/nothing-1.0.0.tgz",
    "/v2/oci-all/team/app/manifests/1.0", f"/v2/oci-all/team/app/blobs/{digest_of(b'a layer')}", "/v2/oci-all/team/app/tags/list",
    f"/v2/oci-all/team/app/referrers/{digest_of(b'a layer')}", "/v2/oci-all/team/app/manifests/2.0", "/v2/oci-all/team/none/tags/list",
])  # fmt: skip
def test_of_a_group_it_says_what_a_read_then_does_whatever_the_format(grouped: Server, address: str) -> None:
    """Cold it may say that an upstream is asked; once that was asked, nothing is left open.

    But for files that an upstream's index would have to name: that it has no such index is no word on them.
    """
    ends = {"served": 200, "absent": 404}
    cold = explained(grouped, address)
    status = grouped.get(address).status_code
    assert cold["outcome"]["answer"] in {"fetched", "compared"} or ends[cold["outcome"]["answer"]] == status, cold
    warm = explained(grouped, address)
    assert ends.get(warm["outcome"]["answer"], 404 if "/-/" in address else None) == status, warm
    assert any(each["chosen"] for each in warm["members"]) == (status == 200)


@pytest.mark.parametrize(("address", "status"), [
    ("/npm/npm-all/@acme%2ftool", 503), ("/npm/npm-all/nothing", 404), ("/npm/npm-all/nothing/-/nothing-1.0.0.tgz", 404),
    ("/pypi/pypi-all/simple/foo/", 503), ("/pypi/pypi-all/files/foo/foo-1.0-py3-none-any.whl", 503), ("/pypi/pypi-all/simple/bar/", 404),
    ("/raw/raw-all/a.txt", 503), ("/raw/raw-all/none", 503),
])  # fmt: skip
def test_of_a_group_whose_hosted_member_is_offline_it_says_what_a_read_then_does(grouped: Server, address: str, status: int) -> None:
    name = address.split("/")[1]
    try:
        assert grouped.patch(f"/api/v1/repositories/{name}", json={"status": "offline"}).status_code == 200
        answer = grouped.get(address)
        assert (answer.status_code, answer.headers.get("Retry-After")) == (status, "1" if status == 503 else None)
        told = explained(grouped, address)
        assert told["outcome"]["answer"] in ({"unavailable"} if status == 503 else {"absent", "fetched"}), told
        assert [each["outcome"]["answer"] for each in told["members"] if each["repository"] == name] == [
            "unavailable" if status == 503 else "absent"
        ]  # fmt: skip
    finally:
        assert grouped.patch(f"/api/v1/repositories/{name}", json={"status": "online"}).status_code == 200


def test_the_upstream_of_a_proxy_and_how_it_is(filled: Server, upstream: FakeUpstream) -> None:
    """In the answers and in the metrics: of the process that answers."""
    filled.repository("dl", kind="proxy", upstream_url=upstream.url)
    assert filled.get("/api/v1/repositories/dl/upstream").json()["condition"] is None
    upstream.put("/a", status=503, headers={"Retry-After": "100"})
    assert filled.get("/raw/dl/a").status_code == 503
    shown = filled.get("/api/v1/repositories/dl/upstream").json()
    assert shown["url"] == upstream.url and shown["process"]
    assert (shown["condition"]["state"], shown["condition"]["last_failure"]["reason"][:25]) == ("paused", "the upstream answers 503; "[:25])
    assert shown["condition"]["until"].endswith("Z")
    found = explained(filled, "/raw/dl/a")
    assert (found["outcome"]["answer"], found["outcome"]["code"]) == ("unavailable", "upstream_busy")
    assert found["found"]["upstream"]["condition"]["state"] == "paused"
    asked = len(upstream.asked)
    assert (filled.get("/raw/dl/a").status_code, len(upstream.asked)) == (503, asked)
    metrics = filled.get("/metrics").text
    assert 'arkvory_proxy_upstream_left_alone{repository="dl"} 1.0' in metrics
    assert 'arkvory_proxy_upstream_failures_total{repository="dl"} 1.0' in metrics
    problem(filled.get("/api/v1/repositories/raw/upstream"), 404, "not_found")
    problem(filled.get("/api/v1/repositories/dl/upstream", auth=None), 401, "unauthenticated")
