"""Raw groups over HTTP, asked by curl: one address for what hosted repositories and a proxy have (DESIGN 6)."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.api.test_management import problem, user
from tests.cli.test_arkvory import arkvory
from tests.support.house import eventually, sha256
from tests.support.server import Server
from tests.support.upstreams import FakeUpstream, noise

BODY = noise(100_000)
MEMBERS = ("one", "two", "up")


class Answer(NamedTuple):
    """What curl got; names of headers in small letters."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def member(self) -> str | None:
        return self.headers.get("x-arkvory-member")

    @property
    def passed_over(self) -> str | None:
        return self.headers.get("x-arkvory-passed-over")


class Grouped:
    """A public group `all` of `one` and `two`, which are private, and a proxy `up`."""

    def __init__(self, server: Server, upstream: FakeUpstream, folder: Path) -> None:
        self.server = server
        self.upstream = upstream
        self.folder = folder
        self.created = False
        for name in ("one", "two"):
            server.repository(name)
        server.repository("up", kind="proxy", upstream_url=upstream.url)
        answer = server.post("/api/v1/repositories", json={
            "name": "all", "format": "raw", "kind": "group", "public": True, "members": list(MEMBERS),
        })  # fmt: skip
        assert answer.status_code == 201, answer.text
        self.warnings = answer.json()["warnings"]

    def curl(self, path: str, *options: str, name: str = "all", login: bool = False) -> Answer:
        head, body = self.folder / "head", self.folder / "body"
        body.write_bytes(b"")
        auth = ("-u", ":".join(self.server.admin)) if login else ()
        address = f"{self.server.url}/raw/{name}/{path}"
        subprocess.run(["curl", "-sS", "-D", head, "-o", body, *auth, *options, address], check=True, timeout=60)
        # Behind "100 Continue", where there was one.
        lines = re.split(r"^HTTP/1.1 (?!1)", head.read_bytes().decode(), flags=re.MULTILINE)[-1].splitlines()
        fields = dict(re.findall(r"^([^:]+): (.*)$", "\n".join(lines[1:]), re.MULTILINE))
        return Answer(int(lines[0].split()[0]), {name.lower(): value.strip() for name, value in fields.items()}, body.read_bytes())

    def put(self, path: str, body: bytes, name: str) -> None:
        assert self.server.put(f"/raw/{name}/{path}", body).status_code in (201, 204)

    def change(self, name: str, **values: Any) -> None:
        answer = self.server.patch(f"/api/v1/repositories/{name}", json=values)
        assert answer.status_code == 200, answer.text

    def hold(self, name: str, path: str) -> None:
        answer = self.server.put(f"/api/v1/repositories/{name}/artifacts/{path}/quarantine", json={"reason": "looked at"})
        assert answer.status_code in (200, 201), answer.text

    def names(self, folder: str = "") -> list[str]:
        """Of the listing for programs, which that for people agrees with."""
        told = self.curl(folder + "?format=json")
        page = self.curl(folder, "-H", "Accept: text/html")
        assert (told.status, page.status) == (200, 200)
        found = [each["name"] for each in json.loads(told.body)["items"]]
        assert re.findall(r'href="\./([^"]+)"', page.body.decode()) == found
        return found


@pytest.fixture
def grouped(server: Server, upstream: FakeUpstream, tmp_path: Path) -> Iterator[Grouped]:
    yield Grouped(server, upstream, tmp_path)
    for name in ("all", *MEMBERS):
        assert server.delete(f"/api/v1/repositories/{name}").status_code == 204


def test_the_first_member_that_has_a_file_answers_and_says_so(grouped: Grouped) -> None:
    """DESIGN 3: whoever may read the group reads what its members have, private ones too; adding them said so."""
    assert any("'one' is private" in each for each in grouped.warnings)
    grouped.put("a", b"1", "one"), grouped.put("a", b"2", "two"), grouped.put("b", b"2", "two")
    grouped.upstream.put("/c", BODY)
    for _ in ("cold", "warm"):
        for path, member, body in (("a", "one", b"1"), ("b", "two", b"2"), ("c", "up", BODY)):
            answer = grouped.curl(path)
            assert (answer.status, answer.member, answer.passed_over, answer.body) == (200, member, None, body)
            assert answer.headers["etag"] == f'"{sha256(body)}"'
    assert grouped.curl("c").headers["x-arkvory-cache"] == "hit" and "x-arkvory-cache" not in grouped.curl("a").headers
    assert grouped.curl("a", name="one").status == 401
    assert (grouped.curl("none").status, grouped.upstream.count("/none")) == (404, 1)
    grouped.change("all", members=["two", "up", "one"])
    assert grouped.curl("a").body == b"2"


def test_head_ranges_and_conditions_are_those_of_the_members_file(grouped: Grouped) -> None:
    """HO-RAW-3."""
    grouped.put("a", BODY, "two")
    etag = f'"{sha256(BODY)}"'
    for _ in ("cold", "warm"):
        head = grouped.curl("a", "-I")
        assert (head.status, head.headers["content-length"], head.member) == (200, str(len(BODY)), "two")
        part = grouped.curl("a", "-r", "10-19")
        assert (part.status, part.body, part.headers["content-range"]) == (206, BODY[10:20], f"bytes 10-19/{len(BODY)}")
        assert part.member == "two"
        beyond = grouped.curl("a", "-r", f"{len(BODY)}-")
        assert beyond.status == 416
        same = grouped.curl("a", "-H", f"If-None-Match: {etag}")
        assert (same.status, same.body, same.member) == (304, b"", "two")
        since = grouped.curl("a", "-z", head.headers["last-modified"])
        assert (since.status, since.member) == (304, "two")
        assert grouped.curl("a", "-H", 'If-Match: "other"').status == 412
    grouped.put("a", b"other", "one")
    assert grouped.curl("a", "-H", f"If-None-Match: {etag}").body == b"other"


def test_a_broken_download_goes_on_where_it_ended(grouped: Grouped, tmp_path: Path) -> None:
    grouped.upstream.put("/big", noise(3_000_000))
    (tmp_path / "big").write_bytes(noise(3_000_000)[:1_000_000])
    subprocess.run(["curl", "-sSf", "-C", "-", "-o", tmp_path / "big", f"{grouped.server.url}/raw/all/big"], check=True, timeout=60)
    assert (tmp_path / "big").read_bytes() == noise(3_000_000)
    eventually(lambda: grouped.curl("big", "-I").headers.get("x-arkvory-cache") == "hit")


def test_folders_are_the_union_of_what_members_show(grouped: Grouped) -> None:
    for path, name in (("docs/a", "one"), ("docs/a", "two"), ("docs/b", "two"), ("x", "two")):
        grouped.put(path, name.encode(), name)
    grouped.upstream.put("/docs/c", BODY)
    assert (grouped.names(), grouped.names("docs/")) == (["docs/", "x"], ["a", "b"])
    assert grouped.curl("docs/c").status == 200
    assert grouped.names("docs/") == ["a", "b", "c"]
    listed = grouped.curl("docs/?format=json")
    assert [each["size"] for each in json.loads(listed.body)["items"]] == [3, 3, len(BODY)]
    grouped.change("all", members=["two", "one", "up"])
    first = json.loads(grouped.curl("docs/?format=json").body)["items"][0]
    assert first["sha256"] == sha256(b"two")
    again = grouped.curl("docs/", "-H", f"If-None-Match: {grouped.curl('docs/').headers['etag']}")
    assert again.status == 304
    assert grouped.curl("docs").status == 302


def test_a_spelling_goes_out_as_it_came_and_each_link_leads_to_its_file(grouped: Grouped) -> None:
    """HO-RAW-1, HO-RAW-4."""
    grouped.upstream.put("/whl/torch-1.10.2%2Brocm.whl", b"W"), grouped.upstream.put("/whl/a+b", b"+")
    assert (grouped.curl("whl/torch-1.10.2%2Brocm.whl").body, grouped.curl("whl/a+b").body) == (b"W", b"+")
    assert [each.target for each in grouped.upstream.asked] == ["/whl/torch-1.10.2%2Brocm.whl", "/whl/a+b"]
    grouped.put("d/file%5Ba%23b%5D.log", b"1", "one"), grouped.put("d/%C3%9Cbung%20%E5%9C%9F.txt", b"2", "two")
    listed = [each["name"] for each in json.loads(grouped.curl("d/?format=json").body)["items"]]
    assert listed == ["file[a#b].log", "Übung 土.txt"]
    links = re.findall(r'href="\./([^"]+)"', grouped.curl("d/", "-H", "Accept: text/html").body.decode())
    assert [grouped.curl(f"d/{each}", "-g").body for each in links] == [b"1", b"2"]


def test_a_member_that_is_offline_is_passed_over_and_named(grouped: Grouped) -> None:
    grouped.put("a", b"1", "one"), grouped.put("a", b"2", "two"), grouped.put("b", b"1", "one")
    grouped.change("one", status="offline")
    for _ in ("cold", "warm"):
        answer = grouped.curl("a")
        assert (answer.body, answer.member, answer.passed_over) == (b"2", "two", "one")
        away = grouped.curl("b")
        assert (away.status, "retry-after" in away.headers) == (503, True) and b"offline" in away.body
    listed = grouped.curl("?format=json")
    assert ([each["name"] for each in json.loads(listed.body)["items"]], listed.passed_over) == (["a"], "one")
    grouped.change("all", status="offline")
    assert grouped.curl("a").status == 503


def test_a_member_in_error_is_passed_over_and_what_it_may_have_is_not_called_absent(grouped: Grouped) -> None:
    """HO-X-3."""
    grouped.change("all", members=["up", "one"])
    grouped.put("a", b"1", "one")
    for path in ("/a", "/b"):
        grouped.upstream.put(path, status=500)
    answer = grouped.curl("a")
    assert (answer.body, answer.member, answer.passed_over) == (b"1", "one", "up")
    failed = grouped.curl("b")
    assert (failed.status, "retry-after" in failed.headers) == (502, True)
    grouped.upstream.put("/b", b"there")
    assert grouped.curl("b").body == b"there"


def test_when_all_are_in_error_the_answer_is_the_first_ones(grouped: Grouped, server: Server) -> None:
    server.repository("up-too", kind="proxy", upstream_url=grouped.upstream.url)
    grouped.change("all", members=["up", "up-too", "one"])
    grouped.change("one", status="maintenance")
    grouped.upstream.put("/a", status=500)
    for _ in range(3):
        failed = grouped.curl("a")
        assert (failed.status, "retry-after" in failed.headers) == (502, True)
    assert grouped.curl("?format=json").status == 200
    for name in ("up", "up-too"):
        grouped.change(name, status="offline")
    assert (grouped.curl("a").status, grouped.curl("?format=json").status) == (503, 503)
    grouped.change("all", members=list(MEMBERS))
    assert server.delete("/api/v1/repositories/up-too").status_code == 204


def test_what_the_first_member_holds_back_no_later_one_gives(grouped: Grouped) -> None:
    grouped.put("d/a", b"1", "one"), grouped.put("d/a", b"2", "two"), grouped.put("d/b", b"2", "two")
    assert grouped.names("d/") == ["a", "b"]
    grouped.hold("one", "d/a")
    held = grouped.curl("d/a")
    assert held.status == 403 and b"looked at" in held.body
    assert grouped.curl("d/a", "-I").status == 403
    assert grouped.names("d/") == ["b"]
    grouped.change("all", members=["two", "one"])
    assert (grouped.curl("d/a").body, grouped.names("d/")) == (b"2", ["a", "b"])


def test_what_is_too_young_in_the_first_member_no_later_one_gives(grouped: Grouped) -> None:
    grouped.change("all", members=["up", "one"])
    grouped.change("up", settings={"minimum_age": 2})
    new = {"Last-Modified": format_datetime(datetime.now(UTC) - timedelta(hours=1), usegmt=True)}
    for path in ("d/a", "d/b"):
        grouped.put(path, b"1", "one")
    grouped.upstream.put("/d/a", BODY, headers=new)
    young = grouped.curl("d/a")
    assert young.status == 403 and b"minimum_age" in young.body
    assert grouped.names("d/") == ["b"]
    # What a path rule leaves out is as good as absent there.
    grouped.change("up", settings={"minimum_age": 2, "block": ["d/a"]})
    assert (grouped.curl("d/a").body, grouped.names("d/")) == (b"1", ["a", "b"])
    grouped.change("up", settings={"minimum_age": None, "block": None})
    assert (grouped.curl("d/a").body, grouped.names("d/")) == (BODY, ["a", "b"])


def test_a_private_group_is_for_those_who_may_read_it(grouped: Grouped, server: Server) -> None:
    grouped.put("a", b"1", "one")
    grouped.change("all", public=False)
    assert (grouped.curl("a").status, grouped.curl("").status) == (401, 401)
    eve = user(server, "eve")
    assert server.get("/raw/all/a", auth=eve).status_code == 404
    rule = {"subject": "user:eve", "permissions": ["read"], "path_prefix": "b"}
    assert server.post("/api/v1/repositories/all/rules", json=rule).status_code == 201
    assert server.get("/raw/all/a", auth=eve).status_code == 403
    assert server.post("/api/v1/repositories/all/rules", json=rule | {"path_prefix": None}).status_code == 201
    assert server.get("/raw/all/a", auth=eve).content == b"1"
    assert server.get("/raw/one/a", auth=eve).status_code == 404


def test_what_is_put_and_deleted_through_a_group_is_its_write_members(grouped: Grouped, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(BODY)
    refused = grouped.curl("a", "-T", str(file), login=True)
    assert refused.status == 405 and b"write_member" in refused.body
    grouped.change("all", settings={"write_member": "two"})
    made = grouped.curl("d/a", "-T", str(file), login=True)
    assert (made.status, made.headers["location"]) == (201, f"{grouped.server.url}/raw/all/d/a")
    assert (grouped.curl("d/a").member, grouped.curl("d/a", name="two", login=True).body) == ("two", BODY)
    assert grouped.names("d/") == ["a"]
    form = grouped.curl("d/", "-F", f"file=@{file};filename=b", login=True)
    assert (form.status, grouped.names("d/")) == (201, ["a", "b"])
    assert grouped.curl("d/a", "-T", str(file)).status == 401
    assert grouped.curl("d/a", "-X", "DELETE", login=True).status == 204
    assert (grouped.curl("d/a").status, grouped.names("d/")) == (404, ["b"])
    # What an earlier member has stays what readers get.
    grouped.put("d/a", b"1", "one")
    assert grouped.curl("d/a", "-T", str(file), login=True).status == 201
    assert grouped.curl("d/a").body == b"1"


# The management API of something that has nothing of its own


def test_its_artifacts_are_the_union_of_its_members(grouped: Grouped, server: Server) -> None:
    for path, name in (("a", "one"), ("b", "two"), ("b", "one"), ("c", "two"), ("e", "one")):
        grouped.put(path, name.encode(), name)
    grouped.upstream.put("/d", BODY)
    grouped.curl("d")
    grouped.hold("one", "b")
    found = pages(server, "/api/v1/repositories/all/artifacts", limit=2)
    assert [(each["path"], each["member"]) for each in found] == [
        ("a", "one"), ("b", "one"), ("c", "two"), ("d", "up"), ("e", "one"),
    ]  # fmt: skip
    assert {each["url"].removeprefix(server.url).rpartition("/")[0] for each in found} == {"/raw/all"}
    # Who does not manage the group is shown neither the held one nor another one in its place.
    readers = pages(server, "/api/v1/repositories/all/artifacts", auth=None, limit=1)
    assert [each["path"] for each in readers] == ["a", "c", "d", "e"]
    assert [each["path"] for each in pages(server, "/api/v1/repositories/all/artifacts", q="E")] == ["e"]
    assert server.get("/api/v1/repositories/all/artifacts/c").json()["member"] == "two"
    problem(server.get("/api/v1/repositories/all/artifacts/b", auth=None), 403, "quarantined")
    problem(server.get("/api/v1/repositories/all/artifacts/z"), 404, "not_found")
    assert server.get("/api/v1/repositories/one/artifacts/a").json()["member"] is None


def pages(server: Server, path: str, *, auth: Any = ..., **query: Any) -> list[dict[str, Any]]:
    """The items of all pages."""
    found, cursor, options = [], "", {} if auth is ... else {"auth": auth}
    while cursor is not None:
        page = server.get(path, params=query | ({"cursor": cursor} if cursor else {}), **options).json()
        found += page["items"]
        cursor = page["next"]
    return found


def test_it_stores_nothing_and_a_search_finds_things_where_they_are(grouped: Grouped, server: Server) -> None:
    grouped.put("needle", b"1", "one")
    assert server.get("/api/v1/repositories/all/usage").json() == {
        "bytes": {"open": 0, "published": 0, "garbage": 0}, "quota_bytes": None, "quota_level": None, "artifacts": 0,
        "downloads": 0, "last_downloaded_at": None,
    }  # fmt: skip
    assert [each["repository"] for each in server.get("/api/v1/search?q=needle").json()["items"]] == ["one"]


def test_holds_and_copies_are_the_members_affair_and_it_says_so(grouped: Grouped, server: Server) -> None:
    grouped.put("a", b"1", "one")
    server.repository("target")
    hold = server.put("/api/v1/repositories/all/artifacts/a/quarantine", json={"reason": "looked at"})
    rule = server.post("/api/v1/repositories/all/hold-rules", json={"pattern": "a*", "reason": "looked at"})
    copy = server.post("/api/v1/repositories/all/promotions", json={"to": "target", "paths": ["a"]})
    for refused in (hold, rule, copy):
        problem(refused, 405, "not_allowed_here")
        assert "group" in refused.json()["detail"]
    assert grouped.curl("a").status == 200
    grouped.change("all", settings={"write_member": "two"})
    into = server.post("/api/v1/repositories/one/promotions", json={"to": "all", "paths": ["a"]})
    assert (into.status_code, grouped.curl("a", name="two", login=True).body) == (200, b"1")
    assert server.delete("/api/v1/repositories/all/artifacts/a").status_code == 204
    assert (grouped.curl("a", name="two", login=True).status, grouped.curl("a").member) == (404, "one")
    assert server.delete("/api/v1/repositories/target").status_code == 204


def test_a_deploy_token_of_the_group_reads_and_one_of_the_write_member_publishes(grouped: Grouped, server: Server) -> None:
    grouped.put("a", b"1", "one")
    grouped.change("all", public=False, settings={"write_member": "two"})

    def deploy(repository: str) -> tuple[str, str]:
        new = {"name": "ci", "permissions": ["read", "write"]}
        answer = server.post(f"/api/v1/repositories/{repository}/deploy-tokens", json=new)
        assert answer.status_code == 201, answer.text
        return "ci", answer.json()["token"]

    of_group, of_member = deploy("all"), deploy("two")
    assert server.get("/raw/all/a", auth=of_group).content == b"1"
    assert server.get("/raw/one/a", auth=of_group).status_code in (403, 404)
    refused = server.put("/raw/all/b", b"2", auth=of_group)
    assert refused.status_code == 403 and "publishes to" in refused.text
    assert server.put("/raw/all/b", b"2", auth=of_member).status_code == 201
    assert server.get("/raw/all/a", auth=of_member).status_code in (403, 404)


def test_whoever_deletes_a_member_is_told_what_groups_lose(grouped: Grouped, server: Server) -> None:
    """In the answer; the command tells it too, before it asks and afterwards."""
    grouped.change("all", settings={"write_member": "two"})
    answer = server.delete("/api/v1/repositories/two")
    assert (answer.status_code, answer.json()) == (200, {"warnings": [
        "'two' was a member of the group 'all', which has nothing of it any more, and takes no publishes until it has another write_member",
    ]})  # fmt: skip
    server.repository("two")
    assert server.delete("/api/v1/repositories/two").status_code == 204
    server.repository("two")
    grouped.change("all", members=["one", "two"], settings={"write_member": "two"})
    here = {"ARKVORY_DATA_DIR": str(server.data)}
    asked = arkvory("repo", "delete", "two", check=False, **here)
    assert (asked.returncode, "The group all has it as a member and publishes to it." in asked.stderr) == (2, True)
    done = arkvory("repo", "delete", "two", "--yes", **here)
    assert done.stdout == "Repository two is gone.\n"
    assert "Warning: 'two' was a member of the group 'all'" in done.stderr
    server.repository("two")
