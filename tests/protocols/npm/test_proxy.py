"""npm proxies before an upstream that does what the test says (DESIGN 6): what they keep, render, verify and refuse."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import gevent
import pytest
from werkzeug.test import TestResponse

from app.access.people import Users
from app.access.rules import NewRule, Rules
from app.errors import NotFound, UpstreamUnfit
from app.protocols.npm.routes import Registry as Dialect
from app.protocols.npm.routes import reads
from app.repository.listing import Filter, Listing
from app.repository.quarantine import Quarantine
from app.repository.registry import NewRepository, Registry, RepositoryChange
from tests.protocols.npm import packages
from tests.protocols.npm.conftest import ABBREVIATED
from tests.protocols.npm.packages import dist_of, tarball
from tests.support import room as room_of
from tests.support.house import ADMIN
from tests.support.upstreams import FakeUpstream

JSON = {"Content-Type": "application/json"}
DATES = {"created": "2019-01-01T00:00:00.000Z", "modified": "2024-05-05T00:00:00.000Z"}


class Room(room_of.Room):
    """Requests to `/npm/px/`, a proxy of `upstream` whose copies are always due unless a test says otherwise."""

    upstream: FakeUpstream

    def registry(self) -> Registry:
        house = self.parts
        return Registry(house.settings, house.database, house.transactions, house.access)

    def proxy(self, **settings: Any) -> None:
        told = {"mutable_ttl": 0, "miss_ttl": 0} | settings
        new = NewRepository("px", "npm", kind="proxy", public=True, upstream_url=self.upstream.url, settings=told)
        self.registry().create(ADMIN, new)

    def change(self, **values: Any) -> None:
        self.registry().update(ADMIN, "px", RepositoryChange(values))

    def once(self, path: str, method: str = "GET", as_: str | None = None, **options: Any) -> TestResponse:
        """By the short path, once."""
        headers = dict(options.pop("headers", {})) | ({} if as_ is None else {"Authorization": as_})
        return self.app.test_client().open(f"/npm/px/{path}", method=method, headers=headers, **options)

    def packument(self, name: str = "p", **options: Any) -> Any:
        answer = self.once(name, **options)
        assert answer.status_code == 200, answer.text
        return json.loads(answer.data)

    def publish(self, name: str, *versions: str, **fields: Any) -> dict[str, Any]:
        """At the upstream; its packument, changed by `fields`."""
        told = document(self.upstream, name, *versions) | fields
        self.upstream.put(f"/{name.replace('/', '%2F')}", json.dumps(told).encode(), headers=JSON)
        for version in versions:
            self.upstream.put(f"/{name}/-/{name.rpartition('/')[2]}-{version}.tgz", tarball(name, version))
        return told

    def kept(self) -> list[str]:
        """Paths of what is stored."""
        return [row.path for row in self.execute("select path from arkvory_artifacts order by path")]

    def assert_nothing_is_open(self) -> None:
        """W1: what did not become an artifact counts nowhere."""
        rows = self.execute("select status, sum(bytes)::bigint as bytes from arkvory_uploads group by 1 having sum(bytes) > 0")
        told = {row.status: row.bytes for row in rows}
        sums = self.execute("select status, sum(bytes)::bigint as bytes from arkvory_upload_bytes group by 1 having sum(bytes) > 0")
        assert "open" not in told
        assert {row.status: row.bytes for row in sums} == {key: value for key, value in told.items() if key != "released"}


def manifest(upstream: FakeUpstream, name: str, version: str, **fields: Any) -> dict[str, Any]:
    address = f"{upstream.url}/{name}/-/{name.rpartition('/')[2]}-{version}.tgz"
    return {
        "name": name, "version": version, "_id": f"{name}@{version}", "description": f"{name} does it", "scripts": {"test": "x"},
        "dist": {**dist_of(tarball(name, version)), "tarball": address, "signatures": [{"keyid": "k", "sig": "s"}]}, **fields,
    }  # fmt: skip


def document(upstream: FakeUpstream, name: str, *versions: str) -> dict[str, Any]:
    return {
        "_id": name,
        "_rev": "7-upstream",
        "name": name,
        "dist-tags": {"latest": versions[-1]} if versions else {},
        "versions": {each: manifest(upstream, name, each) for each in versions},
        "time": DATES | {each: f"2020-01-0{number}T00:00:00.000Z" for number, each in enumerate(versions, 1)},
        "description": f"{name} does it",
        "keywords": ["one", "two"],
        "readme": "# Read me",
        "maintainers": [{"name": "ann", "email": "ann@example.org"}],
    }


@pytest.fixture
def room(database_url: str, tmp_path: Path, upstream: FakeUpstream) -> Iterator[Room]:
    with room_of.parts_over(database_url, tmp_path, ARKVORY_PASSWORD_LENGTH="8") as parts:
        parts.fetches.dialects["npm"] = Dialect()
        made = Room(parts, reads, "px")
        made.upstream = upstream
        yield made


def refused(answer: TestResponse) -> tuple[int, str]:
    return answer.status_code, json.loads(answer.data)["reason"]


# What is rendered


def test_the_documents_are_the_upstreams_with_our_addresses(room: Room) -> None:
    """HO-NPM-2, HO-NPM-5: cold, warm, and under two host names."""
    room.proxy(mutable_ttl=60)
    told = room.publish("p", "1.0.0", "1.1.0")
    cold = room.packument()
    for version, each in told["versions"].items():
        each["dist"]["tarball"] = f"http://localhost/npm/px/p/-/p-{version}.tgz"
    own = {"_rev": cold.pop("_rev")}
    assert cold == {key: value for key, value in told.items() if key != "_rev"}
    assert own["_rev"] != "7-upstream"
    short = room.packument(headers=ABBREVIATED)
    assert set(short) == {"name", "dist-tags", "versions", "modified", "time"}
    assert short["time"] == told["time"]
    assert short["modified"] == DATES["modified"]
    assert set(short["versions"]["1.0.0"]) == {"name", "version", "dist"}
    assert short["versions"]["1.0.0"]["dist"] == told["versions"]["1.0.0"]["dist"]
    for host in ("one.example", "two.example:8443"):
        dist = room.packument(base_url=f"https://{host}/")["versions"]["1.1.0"]["dist"]
        assert dist["tarball"] == f"https://{host}/npm/px/p/-/p-1.1.0.tgz"
    assert room.upstream.count("/p") == 1


def test_warm_documents_are_the_same_by_both_paths_and_send_no_statement(room: Room) -> None:
    room.proxy(mutable_ttl=60)
    room.publish("p", "1.0.0")
    for path in ("p", "p/1.0.0", "p/latest", "-/package/p/dist-tags", "p/-/p-1.0.0.tgz"):
        room.once(path), room.once(path)
        before = room.parts.database.statements()
        answer = room.once(path)
        assert (answer.status_code, answer.headers["X-Arkvory-Cache"]) == (200, "hit")
        assert room.parts.database.statements() == before
        assert room.request("HEAD", path, as_=None).headers["ETag"] == room.get(path, as_=None).headers["ETag"]


def test_each_form_has_its_own_validator_which_moves_with_the_upstreams_change_alone(room: Room) -> None:
    """C9, and equal bytes for equal validators."""
    room.proxy()
    room.publish("p", "1.0.0")
    seen = {}
    for coding in ({}, {"Accept-Encoding": "gzip"}):
        for form in ({}, ABBREVIATED):
            answer = room.once("p", headers=form | coding)
            again = room.once("p", headers=form | coding | {"If-None-Match": answer.headers["ETag"]})
            assert (again.status_code, again.data) == (304, b"")
            seen[answer.headers["ETag"]] = gzip.decompress(answer.data) if coding else answer.data
    assert len(seen) == 4
    assert len(set(seen.values())) == 2
    room.once("p/-/p-1.0.0.tgz")
    assert room.once("p").headers["ETag"] in seen, "a tarball that was fetched changes no document"
    room.publish("p", "1.0.0", _rev="8-another", users={"ann": True})
    assert room.once("p").headers["ETag"] in seen, "nothing that is shown has changed"
    room.publish("p", "1.0.0", "1.0.1")
    changed = room.once("p")
    assert changed.headers["ETag"] not in seen
    assert "1.0.1" in changed.json["versions"]


def test_one_version_and_the_tags(room: Room) -> None:
    room.proxy(mutable_ttl=60)
    told = room.publish("@s/p", "1.0.0", "2.0.0")
    tags = {"latest": "1.0.0", "next": "2.0.0", "broken": "9.9.9"}
    room.publish("@s/p", "1.0.0", "2.0.0", **{"dist-tags": tags})
    one = room.packument("@s%2fp/next")
    assert one["dist"].pop("tarball") == "http://localhost/npm/px/@s/p/-/p-2.0.0.tgz"
    del told["versions"]["2.0.0"]["dist"]["tarball"]
    assert one == told["versions"]["2.0.0"]
    assert room.packument("@s/p/1.0.0")["version"] == "1.0.0"
    assert room.packument("-/package/@s%2fp/dist-tags") == {"latest": "1.0.0", "next": "2.0.0"}
    for path in ("@s/p/9.9.9", "@s/p/broken", "@s/q", "@s/q/1.0.0", "-/package/q/dist-tags"):
        assert refused(room.once(path)) == (404, "not_found")


def test_a_scoped_package_is_asked_for_as_npm_does(room: Room) -> None:
    """HO-NPM-1."""
    room.proxy()
    room.publish("@s/p", "1.0.0")
    answers = [room.packument(spelling) for spelling in ("@s%2fp", "@s%2Fp", "@s/p")]
    assert answers[0] == answers[1] == answers[2]
    assert {each.target for each in room.upstream.asked} == {"/@s%2Fp"}
    assert room.upstream.asked[0].headers["accept"] == "application/json"
    for path in ("@s/p/-/p-1.0.0.tgz", "@s%2fp/-/p-1.0.0.tgz", "@s/p/-/@s/p-1.0.0.tgz"):
        assert room.once(path).data == tarball("@s/p", "1.0.0")
    assert room.upstream.count("/@s/p/-/p-1.0.0.tgz") == 1


def test_what_installers_need_is_found_out_where_the_upstream_does_not_say_it(room: Room) -> None:
    room.proxy()
    more = {"scripts": {"postinstall": "x"}, "deprecated": "it leaks", "peerDependenciesMeta": {"q": {"optional": True}}}
    versions = {"1.0.0": manifest(room.upstream, "p", "1.0.0", **more), "1.1.0": manifest(room.upstream, "p", "1.1.0", gypfile=True)}
    room.publish("p", "1.0.0", versions=versions)
    short = room.packument(headers=ABBREVIATED)["versions"]
    assert short["1.0.0"].items() >= {"hasInstallScript": True, "deprecated": "it leaks"}.items()
    assert "peerDependenciesMeta" in short["1.0.0"]
    assert short["1.1.0"]["hasInstallScript"] is True


# Tarballs


def test_a_tarball_is_fetched_from_wherever_the_upstream_keeps_it_and_never_again(room: Room) -> None:
    room.proxy()
    data = tarball("p", "1.0.0")
    elsewhere = FakeUpstream().start()
    try:
        elsewhere.put("/download/x/p%20v1?token=a%2Fb", data)
        told = manifest(room.upstream, "p", "1.0.0")
        told["dist"]["tarball"] = f"{elsewhere.url}/download/x/p v1?token=a%2Fb"
        room.publish("p", "1.0.0", versions={"1.0.0": told})
        assert room.packument()["versions"]["1.0.0"]["dist"]["tarball"] == "http://localhost/npm/px/p/-/p-1.0.0.tgz"
        answer = room.once("p/-/p-1.0.0.tgz")
        assert (answer.data, answer.headers["Content-Type"]) == (data, "application/octet-stream")
        asked = len(room.upstream.asked)
        assert room.get("p/-/p-1.0.0.tgz", as_=None).data == data
        assert (len(elsewhere.asked), len(room.upstream.asked)) == (1, asked)
    finally:
        elsewhere.stop()


def test_a_cold_tarball_alone_is_found_by_its_packument(room: Room) -> None:
    """As `npm ci` asks, from a lock file."""
    room.proxy()
    room.publish("p", "1.0.0", "1.1.0")
    assert room.once("p/-/p-1.1.0.tgz").data == tarball("p", "1.1.0")
    assert [each.target for each in room.upstream.asked] == ["/p", "/p/-/p-1.1.0.tgz"]
    rows = room.execute("select version, metadata from arkvory_artifacts where path = 'p/-/p-1.1.0.tgz'")
    assert rows[0].version == "1.1.0"
    assert rows[0].metadata["published_at"] == "2020-01-02T00:00:00+00:00"
    assert refused(room.once("p/-/p-3.0.0.tgz")) == (404, "not_found")
    assert refused(room.once("q/-/q-1.0.0.tgz")) == (404, "not_found")


def test_a_tarball_by_the_name_that_the_upstream_gave_it(room: Room) -> None:
    room.proxy()
    told = manifest(room.upstream, "p", "1.0.0")
    told["dist"]["tarball"] = f"{room.upstream.url}/p/-/p-v1.0.0-final.tgz"
    room.publish("p", "1.0.0", versions={"1.0.0": told})
    room.upstream.put("/p/-/p-v1.0.0-final.tgz", tarball("p", "1.0.0"))
    assert room.once("p/-/p-v1.0.0-final.tgz").data == room.once("p/-/p-1.0.0.tgz").data == tarball("p", "1.0.0")


def other(dist: dict[str, Any]) -> dict[str, Any]:
    return {**dist_of(tarball("p", "6.6.6")), "tarball": dist["tarball"]}


WRONG = {
    "integrity": lambda dist: other(dist) | {"shasum": dist["shasum"]},
    "shasum": lambda dist: {"shasum": other(dist)["shasum"], "tarball": dist["tarball"]},
    "one of several": lambda dist: {"integrity": f"sha512-{'A' * 86}== sha512-{'B' * 85}A==", "tarball": dist["tarball"]},
}  # fmt: skip


@pytest.mark.parametrize("how", WRONG)
def test_a_tarball_with_other_digests_than_the_packument_tells_is_refused_and_not_kept(room: Room, how: str) -> None:
    """HO-X-4; others of the same upstream are served all the same."""
    room.proxy()
    told = manifest(room.upstream, "p", "1.0.0")
    told["dist"] = WRONG[how](told["dist"])
    room.publish("p", "1.0.0", versions={"1.0.0": told})
    for _ in range(7):
        assert refused(room.once("p/-/p-1.0.0.tgz")) == (502, "upstream_failed")
    assert not any(path.endswith(".tgz") for path in room.kept())
    room.assert_nothing_is_open()
    room.publish("q", "1.0.0")
    assert room.once("q/-/q-1.0.0.tgz").data == tarball("q", "1.0.0")


def test_a_wrong_tarball_that_is_not_stored_breaks_off(room: Room) -> None:
    room.proxy(caching=False)
    told = manifest(room.upstream, "p", "1.0.0")
    told["dist"] = WRONG["integrity"](told["dist"])
    room.publish("p", "1.0.0", versions={"1.0.0": told})
    with pytest.raises(UpstreamUnfit):
        room.once("p/-/p-1.0.0.tgz").get_data()


GOOD = {
    "several": lambda dist, data: {"integrity": f"sha512-{'A' * 86}== {dist['integrity']}?opt"},
    "weaker": lambda dist, data: {"integrity": "sha256-" + base64.b64encode(hashlib.sha256(data).digest()).decode(), "shasum": "0" * 40},
    "unreadable": lambda dist, data: {"integrity": "sha512-%%%", "shasum": dist["shasum"].upper()},
    "none": lambda dist, data: {},
}


@pytest.mark.parametrize("how", GOOD)
def test_what_clients_would_accept_is_accepted(room: Room, how: str) -> None:
    room.proxy()
    told, data = manifest(room.upstream, "p", "1.0.0"), tarball("p", "1.0.0")
    told["dist"] = GOOD[how](told["dist"], data) | {"tarball": told["dist"]["tarball"]}
    room.publish("p", "1.0.0", versions={"1.0.0": told})
    assert room.once("p/-/p-1.0.0.tgz").data == data


def test_a_page_in_place_of_a_tarball_is_refused(room: Room) -> None:
    """Where no digest tells."""
    room.proxy()
    told = manifest(room.upstream, "p", "1.0.0")
    told["dist"] = {"tarball": told["dist"]["tarball"]}
    room.publish("p", "1.0.0", versions={"1.0.0": told})
    room.upstream.put("/p/-/p-1.0.0.tgz", b"<html>sorry</html>")
    assert refused(room.once("p/-/p-1.0.0.tgz")) == (502, "upstream_failed")
    elsewhere = FakeUpstream().start()
    try:
        told["dist"]["tarball"] = f"{elsewhere.url}/secret"
        room.publish("p", "1.0.0", versions={"1.0.0": told})
        assert refused(room.once("p/-/p-1.0.0.tgz")) == (502, "upstream_failed")
        assert not elsewhere.asked, "what is not known by its digest is not asked for elsewhere"
    finally:
        elsewhere.stop()


@pytest.mark.parametrize("address", ["ftp://x/p.tgz", "javascript:1", "http://[", "http://u:p@host:0/x"])
def test_an_address_that_is_none_is_refused(room: Room, address: str) -> None:
    room.proxy()
    told = manifest(room.upstream, "p", "1.0.0")
    told["dist"]["tarball"] = address
    room.publish("p", "1.0.0", versions={"1.0.0": told})
    assert refused(room.once("p/-/p-1.0.0.tgz")) == (502, "upstream_failed")
    assert room.packument()["versions"]["1.0.0"]["dist"]["tarball"] == "http://localhost/npm/px/p/-/p-1.0.0.tgz"


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_breaks_off_is_never_kept(room: Room, chunked: bool) -> None:
    """HO-X-4, for documents and tarballs."""
    room.proxy()
    told = room.publish("p", "1.0.0")
    body = json.dumps(told).encode()
    room.upstream.put("/p", body, truncate=len(body) // 2, chunked=chunked)
    assert room.once("p").status_code == 502
    assert not room.kept()
    room.publish("p", "1.0.0")
    data = tarball("p", "1.0.0")
    room.upstream.put("/p/-/p-1.0.0.tgz", data, truncate=len(data) // 2, chunked=chunked)
    assert room.once("p/-/p-1.0.0.tgz").status_code == 502
    assert not any(path.endswith(".tgz") for path in room.kept())
    room.assert_nothing_is_open()
    room.upstream.put("/p/-/p-1.0.0.tgz", data, chunked=chunked)
    assert room.once("p/-/p-1.0.0.tgz").data == data


# What is no packument


def numbers(told: Mapping[str, Any]) -> bytes:
    return json.dumps(told).encode().replace(b'"# Read me"', b"NaN")


def twice(told: Mapping[str, Any]) -> bytes:
    return json.dumps(told).encode()[:-1] + b',"versions":{}}'


ODD = {
    "html": lambda told: b"<html>sorry</html>",
    "nothing": lambda told: b"",
    "a list": lambda told: b"[]",
    "null": lambda told: b"null",
    "cut short": lambda told: json.dumps(told).encode()[:-10],
    "followed by more": lambda told: json.dumps(told).encode() + b"{}",
    "another's": lambda told: json.dumps(told | {"name": "q", "_id": "q"}).encode(),
    "an error": lambda told: b'{"error": "not today"}',
    "NaN": numbers,
    "versions twice": twice,
    "versions a list": lambda told: json.dumps(told | {"versions": ["1.0.0"]}).encode(),
    "too deep": lambda told: b'{"name": "p", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "not UTF-8": lambda told: json.dumps(told).encode().replace(b"Read me", b"Read \xff"),
    "a bomb": lambda told: gzip.compress(b" " * 60_000_000),
}


@pytest.mark.parametrize("what", ODD)
def test_what_is_no_packument_is_502_and_the_former_one_stays(room: Room, what: str) -> None:
    """Short ones are read here, long ones in a child: the answer is the same."""
    room.proxy()
    for padding in ("", "x" * 100_000):
        told = room.publish("p", "1.0.0", padding=padding)
        assert room.packument()["padding"] == padding
        coding = {"Content-Encoding": "gzip"} if what == "a bomb" else {}
        room.upstream.put("/p", ODD[what](told), headers=JSON | coding)
        stale = room.once("p")
        assert (stale.status_code, stale.headers["X-Arkvory-Cache"]) == (200, "stale")
    room.upstream.put("/r", ODD[what](told | {"name": "r", "_id": "r"} if what != "another's" else told), headers=JSON | coding)
    assert refused(room.once("r")) == (502, "upstream_failed")
    room.assert_nothing_is_open()
    room.publish("q", "1.0.0")
    assert room.once("q").status_code == 200, "and the upstream is not left alone for it"


def test_odd_but_readable_packuments_are_made_the_best_of(room: Room) -> None:
    room.proxy()
    told = room.publish("p", "1.0.0", "1.1.0", "1.2.0")
    del told["time"], told["_id"]
    told["versions"] |= {"../../x": told["versions"]["1.0.0"], "2.0.0": None, "2.1.0": {"name": "p", "dist": {}}, "2.2.0": {"dist": 7}}
    told["dist-tags"] |= {"next": "2.0.0", "odd": 5}
    told["versions"]["1.1.0"] |= {"version": "v1.1.0", "half": "\ud800", "nul": "\0", "one": "\x01", "big": 10**30, "float": 1e22}
    body = b"\xef\xbb\xbf" + json.dumps(told).encode()
    room.upstream.put("/p", body, headers={"Content-Type": "text/html"})
    for form in ({}, ABBREVIATED):
        seen = room.packument(headers=form)
        assert list(seen["versions"]) == ["1.0.0", "1.1.0", "1.2.0"]
        assert seen["dist-tags"] == {"latest": "1.2.0"}
        assert seen["time"] == {}
    kept = room.packument()["versions"]["1.1.0"]
    assert (kept["half"], kept["nul"], kept["one"], kept["big"], kept["float"]) == ("\ud800", "\0", "\x01", 10**30, 1e22)
    assert room.packument("p/1.1.0") == kept
    assert room.once("p/-/p-1.1.0.tgz").data == tarball("p", "1.1.0")


def test_an_unpublished_package_says_so_and_a_removed_version_goes(room: Room) -> None:
    room.proxy()
    room.publish("p", "1.0.0", "1.1.0")
    assert room.once("p/-/p-1.1.0.tgz").status_code == 200
    room.publish("p", "1.0.0")
    assert list(room.packument()["versions"]) == ["1.0.0"]
    assert refused(room.once("p/1.1.0")) == (404, "not_found")
    assert room.once("p/-/p-1.1.0.tgz").data == tarball("p", "1.1.0"), "what never changes stays where it is"
    gone = {"name": "ann", "time": "2024-01-01T00:00:00.000Z", "versions": ["1.0.0"]}
    room.upstream.put("/p", json.dumps({"_id": "p", "name": "p", "time": DATES | {"unpublished": gone}}).encode())
    seen = room.packument()
    assert (seen["versions"], seen["time"]["unpublished"]) == ({}, gone)
    room.upstream.put("/p", status=404)
    assert refused(room.once("p")) == (404, "not_found")
    assert room.kept() == ["p/-/p-1.1.0.tgz"]


# Misses and failures


def test_only_absence_is_remembered_and_everything_else_serves_what_is_there(room: Room) -> None:
    """HO-X-3."""
    room.proxy(miss_ttl=60)
    assert refused(room.once("p")) == (404, "not_found")
    assert refused(room.once("p")) == (404, "not_found")
    assert room.upstream.count("/p") == 1
    room.publish("q", "1.0.0")
    for status, expected in ((429, 503), (500, 502), (503, 502), (401, 502), (403, 502)):
        room.upstream.put("/q", status=status, times=1)
        assert room.once("q").status_code == expected
        assert room.once("q").status_code == 200
        room.parts.editor.drop_copy(*copy_of(room, "q"))
    room.packument("q")
    for status in (429, 500, 503, 401):
        room.upstream.put("/q", status=status, times=1)
        answer = room.once("q")
        assert (answer.status_code, answer.headers["X-Arkvory-Cache"]) == (200, "stale")


def copy_of(room: Room, package: str) -> tuple[Any, str, Any]:
    row = room.execute("select path, upload_id from arkvory_artifacts where path like :path", path=f".upstream/%/{package}")[0]
    return room.parts.snapshots.get("default", "px"), row.path, row.upload_id


def test_with_the_upstream_stopped_all_that_was_fetched_is_there(room: Room) -> None:
    room.proxy()
    room.publish("p", "1.0.0")
    before = [room.once(path).data for path in ("p", "p/1.0.0", "p/-/p-1.0.0.tgz", "-/package/p/dist-tags")]
    room.upstream.stop()
    assert [room.once(path).data for path in ("p", "p/1.0.0", "p/-/p-1.0.0.tgz", "-/package/p/dist-tags")] == before
    assert room.once("p").headers["X-Arkvory-Cache"] == "stale"
    assert room.once("q").status_code in (502, 503, 504)


def test_a_crowd_is_one_request(room: Room) -> None:
    """HO-X-7."""
    room.proxy(mutable_ttl=60)
    room.publish("p", "1.0.0")
    for path, times in (("p", 20), ("p/-/p-1.0.0.tgz", 20)):
        room.upstream.rules[f"/{path}"][0].delay = 0.3
        crowd = [gevent.spawn(room.once, path) for _ in range(times)]
        gevent.joinall(crowd, raise_error=True)
        assert len({each.value.data for each in crowd}) == 1
        assert {each.value.status_code for each in crowd} == {200}
        assert room.upstream.count(f"/{path}") == 1


def test_without_storing_everything_is_passed_on(room: Room) -> None:
    room.proxy(caching=False)
    told = room.publish("p", "1.0.0")
    seen = room.packument()
    assert seen["versions"]["1.0.0"]["dist"]["tarball"] == "http://localhost/npm/px/p/-/p-1.0.0.tgz"
    assert seen["readme"] == told["readme"]
    assert room.packument("p/latest")["version"] == "1.0.0"
    assert room.once("p/-/p-1.0.0.tgz").data == tarball("p", "1.0.0")
    assert room.kept() == []
    room.assert_nothing_is_open()


def test_credentials_stay_with_the_upstreams_own_origin(room: Room) -> None:
    """HO-X-9."""
    room.proxy()
    room.change(upstream={"username": "u", "password": "p"})
    elsewhere = FakeUpstream().start()
    try:
        elsewhere.put("/p.tgz", tarball("p", "1.0.0"))
        told = {each: manifest(room.upstream, "p", each) for each in ("1.0.0", "1.1.0")}
        told["1.0.0"]["dist"]["tarball"] = f"{elsewhere.url}/p.tgz"
        room.publish("p", "1.0.0", "1.1.0", versions=told)
        assert room.once("p/-/p-1.0.0.tgz").status_code == room.once("p/-/p-1.1.0.tgz").status_code == 200
        assert "authorization" not in elsewhere.asked[0].headers
        assert {each.headers.get("authorization") for each in room.upstream.asked} == {"Basic dTpw"}
    finally:
        elsewhere.stop()


# Holds and rights


def test_what_is_held_is_in_no_document_whether_it_was_fetched_or_not(room: Room) -> None:
    room.proxy(mutable_ttl=60)
    room.publish("p", "1.0.0", "1.1.0", "1.2.0")
    quarantine = Quarantine(room.parts.database, room.parts.transactions, room.parts.access)
    validators = [room.once("p").headers["ETag"]]
    room.once("p/-/p-1.2.0.tgz")
    for version, left, latest in (("1.2.0", ["1.0.0", "1.1.0"], "1.1.0"), ("1.1.0", ["1.0.0"], "1.0.0")):
        quarantine.hold(ADMIN, "px", f"p/-/p-{version}.tgz", "looks odd")
        for form in ({}, ABBREVIATED):
            seen = room.packument(headers=form)
            assert (list(seen["versions"]), seen["dist-tags"]["latest"]) == (left, latest)
            assert version not in seen["time"]
        validators.append(room.once("p").headers["ETag"])
        assert refused(room.once(f"p/{version}")) == (404, "not_found")
        answer = room.once(f"p/-/p-{version}.tgz")
        assert refused(answer) == (403, "quarantined") and "looks odd" in answer.text
    for version in ("1.2.0", "1.1.0"):
        quarantine.release(ADMIN, "px", f"p/-/p-{version}.tgz")
    assert room.packument()["dist-tags"]["latest"] == "1.2.0"
    assert len(set(validators)) == 3
    rule = quarantine.add_rule(ADMIN, "px", "*-1.0.0.tgz", None, "by rule")
    assert list(room.packument()["versions"]) == ["1.1.0", "1.2.0"]
    assert refused(room.once("p/-/p-1.0.0.tgz")) == (403, "quarantined")
    quarantine.remove_rule(ADMIN, "px", rule.id)
    quarantine.add_rule(ADMIN, "px", "*", None, "all of it")
    assert list(room.packument()["versions"]) == ["1.1.0", "1.2.0"], "what came before the rule stays"
    room.publish("q", "1.0.0")
    assert (room.packument("q")["versions"], room.packument("q")["dist-tags"]) == ({}, {})


def test_what_is_too_young_or_left_out_by_a_path_rule_is_in_no_document(room: Room) -> None:
    """Minimum age in index and file alike; ETags move when the next version comes of age."""
    room.proxy(mutable_ttl=60, minimum_age=7, minimum_age_exceptions=["q", "p@1.9.0"], block=["@evil", "p/-/p-0.0.1.tgz"])
    moment = datetime.now(UTC)
    times = {"0.0.1": 99, "1.0.0": 99, "1.1.0": 8, "1.2.0": 2, "1.9.0": 1}
    for name in ("p", "q", "@evil/p"):
        ages = {version: (moment - timedelta(days=days)).isoformat().replace("+00:00", "Z") for version, days in times.items()}
        room.publish(name, *times, time=DATES | ages, **{"dist-tags": {"latest": "1.9.0", "next": "1.2.0"}})
    for form in ({}, ABBREVIATED):
        seen = room.packument(headers=form)
        assert list(seen["versions"]) == ["1.0.0", "1.1.0", "1.9.0"]
        assert seen["dist-tags"] == {"latest": "1.9.0"}
        assert "1.2.0" not in seen["time"]
    assert refused(room.once("p/next")) == refused(room.once("p/1.2.0")) == (404, "not_found")
    young = room.once("p/-/p-1.2.0.tgz")
    assert (young.status_code, young.json["reason"]) == (403, "too_young")
    assert "p 1.2.0 was published at" in young.json["error"]
    assert room.upstream.count("/p/-/p-1.2.0.tgz") == 0
    assert room.once("p/-/p-1.9.0.tgz").status_code == room.once("p/-/p-1.1.0.tgz").status_code == 200
    assert refused(room.once("p/-/p-0.0.1.tgz")) == (404, "not_found")
    assert len(room.packument("q")["versions"]) == 5
    assert refused(room.once("@evil/p")) == (404, "not_found")
    before = room.once("p").headers["ETag"]
    assert room.once("p", headers={"If-None-Match": before}).status_code == 304
    room.change(settings={"minimum_age": 1.5})
    assert room.packument()["dist-tags"] == {"latest": "1.9.0", "next": "1.2.0"}
    assert room.once("p").headers["ETag"] != before


def test_who_may_read_one_scope_reads_its_documents_cold_and_warm(room: Room) -> None:
    room.proxy()
    room.change(public=False)
    house = room.parts
    Users(house.database, house.transactions, house.identities, 8).create(ADMIN, "ann", "correct-horse", administrator=False, robot=False)
    Rules(house.database, house.transactions, house.access).add(ADMIN, "px", NewRule("user:ann", ("read",), "@s/"))
    room.publish("@s/p", "1.0.0")
    room.publish("q", "1.0.0")
    login = "Basic " + base64.b64encode(b"ann:correct-horse").decode()
    for _ in range(2):
        assert room.once("@s/p", as_=login).status_code == 200
        assert room.once("@s/p/-/p-1.0.0.tgz", as_=login).status_code == 200
        assert room.once("q", as_=login).status_code == 403
        assert room.once("q/-/q-1.0.0.tgz", as_=login).status_code == 403
        assert room.once("@s/p").status_code == 401
    assert room.upstream.count("/q") == 0


def test_what_is_kept_of_the_upstream_is_nobodys_to_read(room: Room) -> None:
    room.proxy()
    room.publish("p", "1.0.0")
    room.packument()
    (path,) = room.kept()
    listing = Listing(room.parts.database, room.parts.access)
    assert [each.path for each in listing.artifacts(ADMIN, "px", Filter(), 10).items] == []
    assert listing.search(ADMIN, Filter(words="packument"), 10).items == []
    with pytest.raises(NotFound):
        listing.artifact(ADMIN, "px", path)
    for address in (path, f"-/npm/v1/attestations/{path}", f"-/npm/v1/attestations/{path}@1.0.0", f"{path}/-/{path}"):
        assert room.once(address, as_=room_of.ADMINISTRATOR).status_code in (400, 404)


# What is passed on

PUBLIC = {"keyid": "SHA256:x", "keytype": "ecdsa-sha2-nistp256", "key": "MFkw"}


def test_keys_and_attestations_are_kept_as_they_come(room: Room) -> None:
    room.proxy()
    assert refused(room.once("-/npm/v1/keys")) == (404, "not_found")
    room.upstream.put("/-/npm/v1/keys", json.dumps({"keys": [PUBLIC]}).encode(), headers=JSON)
    told = manifest(room.upstream, "@s/p", "1.0.0")
    url = f"{room.upstream.url}/-/npm/v1/attestations/@s%2Fp@1.0.0"
    told["dist"]["attestations"] = {"url": url, "provenance": {"predicateType": "https://slsa.dev/provenance/v1"}}
    room.publish("@s/p", "1.0.0", "1.1.0", versions={"1.0.0": told, "1.1.0": manifest(room.upstream, "@s/p", "1.1.0")})
    bundle = json.dumps({"attestations": [{"predicateType": "x", "bundle": {}}]}).encode()
    room.upstream.put("/-/npm/v1/attestations/@s%2Fp@1.0.0", bundle, headers=JSON)
    for _ in range(2):
        dist = room.packument("@s/p")["versions"]["1.0.0"]["dist"]
        assert dist["attestations"] == {**told["dist"]["attestations"], "url": "http://localhost/npm/px/-/npm/v1/attestations/@s/p@1.0.0"}
        assert dist["signatures"] == [{"keyid": "k", "sig": "s"}]
        assert room.packument("-/npm/v1/keys") == {"keys": [PUBLIC]}
        for spelling in ("@s/p@1.0.0", "@s%2fp@1.0.0"):
            assert room.once(f"-/npm/v1/attestations/{spelling}").data == bundle
        assert refused(room.once("-/npm/v1/attestations/@s/p@1.1.0")) == (404, "not_found") or not room.upstream._server.started
        room.upstream.stop()
    room.upstream.start()
    room.upstream.put("/-/npm/v1/keys", b"<html>")
    room.upstream.put("/-/npm/v1/attestations/@s%2Fp@1.0.0", b"{}")
    assert room.once("-/npm/v1/keys").headers["X-Arkvory-Cache"] == "stale"
    assert room.once("-/npm/v1/attestations/@s/p@1.0.0").headers["X-Arkvory-Cache"] == "stale"


BULK, QUICK = "-/npm/v1/security/advisories/bulk", "-/npm/v1/security/audits/quick"


@pytest.mark.parametrize("path", [BULK, QUICK, "-/npm/v1/security/audits"])
def test_audits_are_passed_on(room: Room, path: str) -> None:
    room.proxy()
    room.change(upstream={"headers": {"X-Own": "yes"}})
    body, told = json.dumps({"p": ["1.0.0"]}).encode(), {"p": [{"id": 1, "title": "It leaks"}]}
    room.upstream.put(f"/{path}", json.dumps(told).encode(), headers=JSON)
    plain = room.once(path, "POST", data=body, content_type="application/json")
    packed = room.once(path, "POST", data=gzip.compress(body), headers={"Content-Encoding": "gzip"})
    assert (plain.json, packed.json) == (told, told)
    seen = [(each.method, json.loads(each.body), each.headers["x-own"]) for each in room.upstream.asked]
    assert seen == [("POST", {"p": ["1.0.0"]}, "yes")] * 2


AUDITS = {
    "none": ({"status": 404}, 404),
    "refused": ({"status": 400}, 502),
    "failing": ({"status": 500}, 502),
    "busy": ({"status": 429, "headers": {"Retry-After": "1"}}, 503),
    "a page": ({"body": b"<html>"}, 502),
    "no advisories": ({"body": b'{"p": 7}'}, 502),
    "long": ({"body": b'{"x": "' + b"x" * 9_000_000 + b'"}'}, 502),
    "elsewhere": ({"status": 307, "headers": {"Location": "http://127.0.0.1:1/"}}, 502),
}


@pytest.mark.parametrize("what", AUDITS)
def test_an_audit_that_the_upstream_does_not_answer_is_not_answered(room: Room, what: str) -> None:
    """Never as if nothing were known."""
    room.proxy()
    rule, expected = AUDITS[what]
    room.upstream.put(f"/{BULK}", **rule)
    assert room.once(BULK, "POST", data=b'{"p": ["1.0.0"]}').status_code == expected


@pytest.mark.parametrize(("body", "expected"), [(b"[]", 400), (b"{", 400), (b"x" * 2_100_000, 413)])
def test_what_is_no_audit_is_not_passed_on(room: Room, body: bytes, expected: int) -> None:
    room.proxy()
    assert room.once(BULK, "POST", data=body).status_code == expected
    assert not room.upstream.asked


def test_a_search_is_passed_on_or_answered_from_what_is_known(room: Room) -> None:
    room.proxy()
    room.publish("left", "1.0.0")
    room.publish("right", "1.0.0", description="Turns WORDS", keywords=["caps"])
    room.packument("left"), room.packument("right")
    target = "/-/v1/search?text=words&size=5"
    room.upstream.put(target, json.dumps({"objects": [{"package": {"name": "far"}}], "total": 900, "time": "now"}).encode())
    told = room.packument("-/v1/search?text=words&size=5&x=1")
    assert ([each["package"]["name"] for each in told["objects"]], told["total"]) == (["far"], 900)
    objects = (b"7", b"[7]", b'[{"package": {"name": ["p"]}}]', b'[], "total": "x"')
    broken = [b"<html>", *(b'{"objects": %s}' % each for each in objects)]
    for rule in ({"status": 404}, {"status": 500}, *({"body": each} for each in broken)):
        room.upstream.put(target, **rule)
        objects = room.packument("-/v1/search?text=words&size=5")["objects"]
        assert [each["package"]["name"] for each in objects] == ["right"]
        assert objects[0]["package"].items() >= {"version": "1.0.0", "description": "Turns WORDS", "keywords": ["caps"]}.items()
        assert objects[0]["package"]["date"] == "2020-01-01T00:00:00.000Z"


def test_a_search_leaves_out_what_the_proxy_does_not_let_out(room: Room) -> None:
    room.proxy(block=["bad", "worse@2.0.0"], minimum_age=7)
    now, old = datetime.now(UTC).isoformat(), "2020-01-01T00:00:00.000Z"
    packages = [("bad", "1.0.0", old), ("worse", "2.0.0", old), ("worse2", "2.0.0", old), ("young", "1.0.0", now), ("good", "1.0.0", old)]
    objects = [{"package": {"name": name, "version": version, "date": date}} for name, version, date in packages]
    room.upstream.put("/-/v1/search?text=w", json.dumps({"objects": objects, "total": 5, "time": "now"}).encode())
    told = room.packument("-/v1/search?text=w")
    assert [each["package"]["name"] for each in told["objects"]] == ["worse2", "good"]


def test_what_is_not_there_is_told_by_its_own_name(room: Room) -> None:
    room.proxy()
    answer = room.once("nosuch")
    assert (answer.status_code, ".upstream" in answer.text, "'nosuch'" in answer.text) == (404, False, True)


def test_nothing_is_changed_in_a_proxy(room: Room) -> None:
    """405, and the reason in the words of the answer."""
    room.proxy()
    room.publish("p", "1.0.0")
    told = room.packument()
    admin = {"as_": room_of.ADMINISTRATOR}
    answers = [
        room.once("p", "PUT", data=json.dumps(packages.document("p", "2.0.0")), **admin),
        room.once("p", "PUT", data=json.dumps(told), **admin),
        room.once(f"p/-rev/{told['_rev']}", "PUT", data=json.dumps({**told, "versions": {}}), **admin),
        room.once(f"p/-rev/{told['_rev']}", "DELETE", **admin),
        room.once(f"p/-/p-1.0.0.tgz/-rev/{told['_rev']}", "DELETE", **admin),
        room.once("-/package/p/dist-tags/next", "PUT", data=b'"1.0.0"', **admin),
        room.once("-/package/p/dist-tags/latest", "DELETE", **admin),
    ]
    assert [refused(each) for each in answers[:6]] == [(405, "not_allowed_here")] * 6
    assert answers[6].status_code in (400, 405)
    assert all("'px' is a proxy" in each.text for each in answers[:6])
    assert room.packument()["versions"].keys() == {"1.0.0"}


def test_no_time_that_an_upstream_tells_breaks_a_packument_or_a_file(room: Room) -> None:
    room.proxy(minimum_age=3)
    times = {"1.0.0": "2020-01-01T00:00:00Z", "1.1.0": "9999-12-31T23:59:59Z", "1.2.0": "0001-01-01T00:00:00+05:00", "1.3.0": "soon"}
    room.publish("p", *times, time=DATES | times)
    assert list(room.packument()["versions"]) == ["1.0.0", "1.2.0", "1.3.0"]
    codes = {version: room.once(f"p/-/p-{version}.tgz").status_code for version in times}
    assert codes == {"1.0.0": 200, "1.1.0": 403, "1.2.0": 403, "1.3.0": 403}, "what has no time is as old as its first sight"


def test_a_file_by_another_name_leaves_as_it_does_by_its_own(room: Room) -> None:
    """W5: the upstream calls it otherwise, and a client asks for it by that name."""
    room.proxy()
    told = manifest(room.upstream, "p", "1.0.0")
    told["dist"]["tarball"] = f"{room.upstream.url}/p/-/other-name.tgz"
    room.publish("p", "1.0.0", versions={"1.0.0": told})
    room.upstream.put("/p/-/other-name.tgz", tarball("p", "1.0.0"))
    Quarantine(room.parts.database, room.parts.transactions, room.parts.access).hold(ADMIN, "px", "p/-/p-1.0.0.tgz", "looked at")
    assert [room.once(f"p/-/{name}.tgz").status_code for name in ("other-name", "p-1.0.0")] == [403, 403]
    Quarantine(room.parts.database, room.parts.transactions, room.parts.access).release(ADMIN, "px", "p/-/p-1.0.0.tgz")
    assert [room.once(f"p/-/{name}.tgz").status_code for name in ("other-name", "p-1.0.0")] == [200, 200]
    room.change(settings={"block": ["p/-/p-1.*"]})
    assert [room.once(f"p/-/{name}.tgz").status_code for name in ("other-name", "p-1.0.0")] == [404, 404]


@pytest.mark.parametrize("path", ["p", "-/npm/v1/keys"])
def test_an_index_without_end_is_given_up(room: Room, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Before it fills the disk, whether its length is told or not."""
    monkeypatch.setattr("app.protocols.npm.upstream.MOST_BYTES", 100_000)
    room.proxy()
    body = b'{"x": "' + b"x" * 3_000_000
    for rule in ({"chunked": True}, {}):
        room.upstream.put(f"/{path}", body, piece=50_000, **rule)
        assert room.once(path).status_code == 502
    assert room.kept() == []
    room.assert_nothing_is_open()


def test_keys_without_number_keep_nobody_waiting(room: Room) -> None:
    room.proxy()
    keys = [{"keyid": str(number)} for number in range(12_000)]
    room.upstream.put("/-/npm/v1/keys", json.dumps({"keys": [*keys, *keys[:10]]}, separators=(",", ":")).encode())
    began = time.monotonic()
    assert room.packument("-/npm/v1/keys")["keys"] == keys
    assert time.monotonic() - began < 15
