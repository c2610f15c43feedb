"""npm groups: documents of several members, shielded names, and that index and file are the same member's (DESIGN 6)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.access.people import Users
from app.access.rules import NewRule, Rules
from app.protocols.npm.routes import Registry as Dialect
from app.protocols.npm.routes import reads
from app.repository.quarantine import Quarantine
from app.repository.registry import NewRepository, RepositoryChange
from tests.protocols.npm import packages, test_proxy
from tests.protocols.npm.conftest import ABBREVIATED
from tests.protocols.npm.packages import dist_of, tarball
from tests.protocols.npm.test_proxy import BULK, QUICK, refused
from tests.support import room as room_of
from tests.support.house import ADMIN
from tests.support.upstreams import FakeUpstream


class Room(test_proxy.Room):
    """Requests to `/npm/all/`: a group of the hosted `own` and of `near` and `far`, proxies of two upstreams."""

    near: FakeUpstream
    far: FakeUpstream

    def once(self, path: str, method: str = "GET", as_: str | None = None, **options: Any) -> Any:
        headers = dict(options.pop("headers", {})) | ({} if as_ is None else {"Authorization": as_})
        return self.app.test_client().open(f"/npm/all/{path}", method=method, headers=headers, **options)

    def there(self, upstream: FakeUpstream, name: str, *versions: str, **fields: Any) -> None:
        """Published at that upstream."""
        self.upstream = upstream
        self.publish(name, *versions, **fields)

    def own(self, name: str, *versions: str) -> None:
        for version in versions:
            answer = self.app.test_client().put(
                f"/npm/own/{name}", json=packages.document(name, version), headers={"Authorization": room_of.ADMINISTRATOR}
            )
            assert answer.status_code == 201, answer.text

    def group(self, **settings: Any) -> None:
        self.registry().update(ADMIN, "all", RepositoryChange({"settings": settings}))


@pytest.fixture
def room(database_url: str, tmp_path: Path) -> Iterator[Room]:
    near, far = FakeUpstream().start(), FakeUpstream().start()
    with room_of.parts_over(database_url, tmp_path) as parts:
        parts.fetches.dialects["npm"] = Dialect()
        made = Room(parts, reads, "all")
        made.near, made.far = near, far
        registry = made.registry()
        registry.create(ADMIN, NewRepository("own", "npm"))
        for name, upstream in (("near", near), ("far", far)):
            registry.create(ADMIN, NewRepository(name, "npm", kind="proxy", upstream_url=upstream.url, settings={"mutable_ttl": 0}))
        members = ("own", "near", "far")
        registry.create(ADMIN, NewRepository("all", "npm", kind="group", public=True, members=members))
        yield made
    near.stop()
    far.stop()


def test_versions_of_all_members_each_from_the_first_that_has_it(room: Room) -> None:
    room.there(room.near, "p", "1.0.0", "1.1.0", **{"dist-tags": {"latest": "1.1.0", "near": "1.0.0"}})
    room.there(room.far, "p", "1.1.0", "2.0.0", description="far", **{"dist-tags": {"latest": "2.0.0", "far": "2.0.0"}})
    for form in ({}, ABBREVIATED):
        told = room.packument(headers=form)
        assert list(told["versions"]) == ["1.0.0", "1.1.0", "2.0.0"]
        assert told["dist-tags"] == {"far": "2.0.0", "latest": "1.1.0", "near": "1.0.0"}
        assert set(told["time"]) == {"created", "modified", "1.0.0", "1.1.0", "2.0.0"}
        assert told["versions"]["2.0.0"]["dist"]["tarball"] == "http://localhost/npm/all/p/-/p-2.0.0.tgz"
    assert room.packument()["description"] == "p does it"
    for version, upstream in (("1.1.0", room.near), ("2.0.0", room.far)):
        assert room.once(f"p/-/p-{version}.tgz").data == tarball("p", version)
        assert upstream.count(f"/p/-/p-{version}.tgz") == 1
        assert room.packument(f"p/{version}")["version"] == version
    assert room.packument("p/far")["version"] == "2.0.0"
    assert room.packument("-/package/p/dist-tags")["near"] == "1.0.0"
    assert refused(room.once("p/3.0.0")) == refused(room.once("q")) == (404, "not_found")


def test_addresses_are_those_by_which_the_client_came(room: Room) -> None:
    """HO-NPM-2: cold and warm, whoever came before."""
    room.group(name_policy="merge")
    room.there(room.near, "p", "2.0.0"), room.own("p", "1.0.0")
    for host in ("one.example", "two.example:8080") * 2:
        told = room.packument(headers={"Host": host})["versions"]
        assert {each["dist"]["tarball"] for each in told.values()} == {
            f"http://{host}/npm/all/p/-/p-{version}.tgz" for version in ("1.0.0", "2.0.0")
        }  # fmt: skip


def test_validators_move_with_any_member(room: Room) -> None:
    room.there(room.near, "p", "1.0.0")
    room.there(room.far, "p", "2.0.0")
    first = room.once("p").headers["ETag"]
    assert room.once("p", headers={"If-None-Match": first}).status_code == 304
    room.there(room.far, "p", "2.0.0", "2.1.0")
    assert room.once("p").headers["ETag"] != first
    assert "2.1.0" in room.packument()["versions"]


def test_a_name_that_is_hosted_here_is_asked_of_no_upstream(room: Room) -> None:
    """Shield: not in documents, not at files, not even by its name."""
    room.own("p", "1.0.0")
    for upstream in (room.near, room.far):
        room.there(upstream, "p", "1.0.0", "9.9.9")
    assert list(room.packument()["versions"]) == ["1.0.0"]
    for path in ("p/9.9.9", "p/-/p-9.9.9.tgz"):
        assert refused(room.once(path)) == (404, "not_found")
    assert room.once("p/-/p-1.0.0.tgz").data == tarball("p", "1.0.0")
    assert not room.near.asked and not room.far.asked
    room.registry().update(ADMIN, "own", RepositoryChange({"status": "offline"}))
    assert room.once("p").status_code == 503
    assert not room.near.asked and not room.far.asked
    room.registry().update(ADMIN, "own", RepositoryChange({"status": "online"}))
    room.group(name_policy="merge")
    assert list(room.packument()["versions"]) == ["1.0.0", "9.9.9"]


def test_a_name_that_was_hosted_here_is_asked_of_no_upstream_after_its_last_version_went(room: Room) -> None:
    """Dependency confusion: old lock files go on asking. Who manages the group gives the name free, in words."""
    admin = {"as_": room_of.ADMINISTRATOR}
    room.there(room.near, "p", "9.9.9")
    assert list(room.packument()["versions"]) == ["9.9.9"]
    room.group(write_member="own")
    room.own("p", "1.0.0")
    assert room.once(f"p/-rev/{room.packument()['_rev']}", "DELETE", **admin).status_code == 200
    room.near.asked.clear(), room.far.asked.clear()
    for _ in ("cold", "warm"):
        for path in ("p", "p/9.9.9", "p/latest", "-/package/p/dist-tags", "p/-/p-9.9.9.tgz", "p/-/p-1.0.0.tgz"):
            assert refused(room.once(path)) == (404, "not_found"), path
    assert room.once(BULK, "POST", data=b'{"p": ["1.0.0"]}').status_code in (200, 404)
    found = {"objects": [{"package": {"name": "p", "version": "9.9.9"}}], "total": 1}
    room.near.put("/-/v1/search?text=p", json.dumps(found).encode())
    assert room.packument("-/v1/search?text=p")["objects"] == []
    assert not [each for each in room.near.asked + room.far.asked if each.target.startswith("/p") or b'"p"' in each.body]
    room.group(merged_names=["p"])
    assert list(room.packument()["versions"]) == ["9.9.9"]
    assert room.once("p/-/p-9.9.9.tgz").data == tarball("p", "9.9.9")


def test_what_the_first_member_withholds_no_later_one_shows(room: Room) -> None:
    """Neither a version of its own, nor a tag that names it, nor the file."""
    for upstream in (room.near, room.far):
        room.there(upstream, "p", "1.0.0", "1.1.0", **{"dist-tags": {"latest": "1.1.0", "next": "1.1.0"}})
    quarantine = Quarantine(room.parts.database, room.parts.transactions, room.parts.access)
    quarantine.hold(ADMIN, "near", "p/-/p-1.1.0.tgz", "looks odd")
    for form in ({}, ABBREVIATED):
        told = room.packument(headers=form)
        assert (list(told["versions"]), told["dist-tags"]) == (["1.0.0"], {"latest": "1.0.0"})
        assert "1.1.0" not in told["time"]
    assert room.packument("-/package/p/dist-tags") == {"latest": "1.0.0"}
    assert refused(room.once("p/1.1.0")) == (404, "not_found")
    assert refused(room.once("p/-/p-1.1.0.tgz")) == (403, "quarantined")
    room.group(name_policy="merge")
    room.own("q", "1.0.0")
    room.there(room.near, "q", "1.0.0", "2.0.0")
    quarantine.hold(ADMIN, "own", "q/-/q-1.0.0.tgz", "looks odd")
    assert list(room.packument("q")["versions"]) == ["2.0.0"]
    assert refused(room.once("q/1.0.0")) == (404, "not_found")


def test_a_member_that_fails_is_passed_over_where_another_one_can_tell(room: Room) -> None:
    room.there(room.far, "p", "1.0.0")
    room.near.put("/p", status=500)
    answer = room.once("p")
    assert (answer.status_code, answer.headers["X-Arkvory-Passed-Over"]) == (200, "near")
    assert list(answer.json["versions"]) == ["1.0.0"]
    room.near.put("/q", status=500)
    assert room.once("q").status_code == 502


def test_a_hosted_member_that_is_away_keeps_nobody_waiting(room: Room) -> None:
    """Its rows say which names it has: others are absent. What it has is asked for again soon, or else npm waits for minutes."""
    room.own("p", "1.0.0")
    room.there(room.near, "q", "1.0.0")
    for status in ("offline", "maintenance"):
        room.registry().update(ADMIN, "own", RepositoryChange({"status": status}))
        for path in ("p", "p/1.0.0", "p/-/p-1.0.0.tgz"):
            answer = room.once(path)
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
            assert "'own' is" in answer.get_json()["error"]
        for path in ("q", "q/-/q-1.0.0.tgz"):
            assert (room.once(path).status_code, room.once(path).headers.get("X-Arkvory-Passed-Over")) == (200, None)
        for path in ("none", "none/1.0.0", "none/-/none-1.0.0.tgz"):
            assert refused(room.once(path)) == (404, "not_found")
    room.group(name_policy="merge")
    assert room.once("none").status_code == 503


def test_publishing_goes_to_the_member_that_is_named_for_it(room: Room) -> None:
    admin = {"as_": room_of.ADMINISTRATOR}
    body = json.dumps(packages.document("p", "1.0.0"))
    assert refused(room.once("p", "PUT", data=body, **admin)) == (405, "not_allowed_here")
    room.group(write_member="own")
    assert room.once("p", "PUT", data=body, **admin).status_code == 201
    told = room.packument()
    told["versions"]["1.0.0"]["deprecated"] = "it leaks"
    assert room.once("p", "PUT", data=json.dumps(told), **admin).status_code == 201
    assert room.packument()["versions"]["1.0.0"]["deprecated"] == "it leaks"
    assert room.once("-/package/p/dist-tags/next", "PUT", data=b'"1.0.0"', **admin).status_code == 201
    rev = room.packument()["_rev"]
    assert room.once(f"p/-rev/{rev}", "DELETE", **admin).status_code == 200
    assert refused(room.once("p")) == (404, "not_found")


def test_a_login_at_the_group_publishes_through_it(room: Room) -> None:
    """npm keeps its token by the address that it logs in at, and that is all it has for `npm publish` there."""
    room.group(write_member="own")
    house = room.parts
    Users(house.database, house.transactions, house.identities, 8).create(ADMIN, "anna", "correct-horse", administrator=False, robot=False)
    login = {"name": "anna", "password": "correct-horse", "type": "user"}
    bearer = f"Bearer {room.once('-/user/org.couchdb.user:anna', 'PUT', json=login).get_json()['token']}"
    body = packages.document("p", "1.0.0")
    told = room.once("p", "PUT", json=body, as_=bearer)
    assert (told.status_code, told.get_json()["error"]) == (
        403, "group 'all' publishes to its member 'own', and 'anna' has no write permission for that there; who manages 'own' can give it",
    )  # fmt: skip
    Rules(house.database, house.transactions, house.access).add(ADMIN, "own", NewRule("user:anna", ("write",), None))
    assert room.once("p", "PUT", json=body, as_=bearer).status_code == 201
    assert room.once("-/package/p/dist-tags/next", "PUT", data=b'"1.0.0"', as_=bearer).status_code == 201
    assert room.once("-/user/org.couchdb.user:anna", as_=bearer).status_code == 200
    assert room.packument()["dist-tags"] == {"latest": "1.0.0", "next": "1.0.0"}


def test_audits_are_what_all_upstreams_know_and_private_names_stay_here(room: Room) -> None:
    room.own("secret", "1.0.0")
    leak, other = {"id": 1, "title": "one"}, {"id": 2, "title": "two"}
    room.near.put(f"/{BULK}", json.dumps({"p": [leak]}).encode())
    room.far.put(f"/{BULK}", json.dumps({"p": [leak, other], "q": [other]}).encode())
    told = room.once(BULK, "POST", data=json.dumps({"p": ["1.0.0"], "q": ["1.0.0"], "secret": ["1.0.0"]}))
    assert told.json == {"p": [leak, other], "q": [other]}
    tree = {"name": "app", "requires": {"p": "1", "secret": "1"}, "dependencies": {"p": {"version": "1", "dependencies": {"secret": {}}}}}
    room.near.put(f"/{QUICK}", b'{"advisories": {}}')
    room.far.put(f"/{QUICK}", b'{"advisories": {}}')
    assert room.once(QUICK, "POST", data=json.dumps(tree)).json == {"advisories": {}}
    deep: dict[str, Any] = {}
    for _ in range(300):
        deep = {"dependencies": {"secret2": deep, "secret": {}}}
    assert room.once(QUICK, "POST", data=json.dumps(deep)).status_code == 400
    bodies = [each.body.decode() for each in (*room.near.asked, *room.far.asked)]
    assert len(bodies) >= 3 and not any('"secret"' in each for each in bodies)
    room.far.put(f"/{BULK}", status=500)
    assert room.once(BULK, "POST", data=b'{"p": ["1.0.0"]}').status_code == 502


def test_keys_and_searches_are_those_of_all_members(room: Room) -> None:
    one, two = {"keyid": "1"}, {"keyid": "2"}
    room.near.put("/-/npm/v1/keys", json.dumps({"keys": [one]}).encode())
    room.far.put("/-/npm/v1/keys", json.dumps({"keys": [two, one]}).encode())
    assert room.packument("-/npm/v1/keys") == {"keys": [one, two]}
    room.own("words", "1.0.0")
    found = {"objects": [{"package": {"name": name}} for name in ("words", "more-words")], "total": 40, "time": "now"}
    room.far.put("/-/v1/search?text=words", json.dumps(found).encode())
    told = room.packument("-/v1/search?text=words")
    assert [each["package"]["name"] for each in told["objects"]] == ["words", "more-words"]
    assert told["objects"][0]["package"]["version"] == "1.0.0", "of the member that comes first"


def test_what_a_tag_names_is_what_the_packument_says_of_it(room: Room) -> None:
    """DESIGN 6: index and bytes of one version come from the same member, and what the first withholds no later one shows."""
    room.group(name_policy="merge", write_member="own")
    room.own("p", "1.0.0", "1.1.0")
    tags = {"latest": "2.0.0", "odd": "1.1.0", "next": "2.0.0"}
    room.there(room.near, "p", "1.0.0", "1.1.0", "2.0.0", **{"dist-tags": tags})
    room.near.put("/p/-/p-1.1.0.tgz", tarball("p", "1.1.0", private=True))
    for _ in ("cold", "warm"):
        told = room.packument()
        assert told["dist-tags"] == {"latest": "1.1.0", "next": "2.0.0", "odd": "1.1.0"}
        for tag, version in told["dist-tags"].items():
            assert room.packument(f"p/{tag}") == room.packument(f"p/{version}") == told["versions"][version]
    quarantine = Quarantine(room.parts.database, room.parts.transactions, room.parts.access)
    quarantine.hold(ADMIN, "own", "p/-/p-1.1.0.tgz", "looks odd")
    assert room.packument()["dist-tags"] == {"latest": "1.0.0", "next": "2.0.0"}
    for path in ("p/odd", "p/1.1.0"):
        assert refused(room.once(path)) == (404, "not_found")
    assert room.packument("p/latest")["version"] == "1.0.0"


@pytest.mark.parametrize("members", [("own", "near"), ("near", "own")])
def test_what_was_read_through_a_group_is_changed_where_it_lies(room: Room, members: tuple[str, ...]) -> None:
    """npm sends the whole document back: deprecated, or without the versions that are to go. Those of other members are not meant."""
    admin = {"as_": room_of.ADMINISTRATOR}
    room.registry().update(ADMIN, "all", RepositoryChange({"members": list(members)}))
    room.group(name_policy="merge", write_member="own")
    theirs = test_proxy.document(room.near, "p", "2.0.0", "2.1.0", "3.0.0")
    theirs["versions"]["2.0.0"]["deprecated"] = "theirs"
    theirs["versions"]["3.0.0"]["deprecated"] = False
    room.there(room.near, "p", "2.0.0", "2.1.0", "3.0.0", versions=theirs["versions"])
    room.own("p", "1.0.0", "1.1.0")
    told = room.packument()
    told["versions"]["1.0.0"]["deprecated"] = "ours"
    for _ in ("once", "twice"):
        assert room.once("p", "PUT", data=json.dumps(told), **admin).status_code in (201, 409)
        told["_rev"] = room.packument()["_rev"]
    assert {version: each.get("deprecated") for version, each in room.packument()["versions"].items()} == {
        "1.0.0": "ours", "1.1.0": None, "2.0.0": "theirs", "2.1.0": None, "3.0.0": False,
    }  # fmt: skip
    told["versions"]["2.1.0"]["deprecated"] = "not ours to say"
    answer = room.once("p", "PUT", data=json.dumps(told), **admin)
    assert (refused(answer), "'2.1.0' of 'p' in repository 'own'" in answer.text) == ((404, "not_found"), True)
    told = room.packument(query_string="write=true")
    del told["versions"]["1.0.0"]
    assert room.once(f"p/-rev/{told['_rev']}", "PUT", data=json.dumps(told), **admin).status_code == 201
    revision = room.packument()["_rev"]
    assert room.once(f"p/-/p-1.0.0.tgz/-rev/{revision}", "DELETE", **admin).status_code == 200
    assert list(room.packument()["versions"]) == (
        ["1.1.0", "2.0.0", "2.1.0", "3.0.0"] if members[0] == "own" else ["2.0.0", "2.1.0", "3.0.0", "1.1.0"]
    )
    assert room.once(f"p/-rev/{revision}", "DELETE", **admin).status_code == 200
    assert list(room.packument()["versions"]) == ["2.0.0", "2.1.0", "3.0.0"]


def test_nothing_is_taken_back_that_the_group_did_not_show(room: Room) -> None:
    """What a member before it withholds, or what was away, is missing in the document that the client sends back."""
    admin = {"as_": room_of.ADMINISTRATOR}
    room.registry().update(ADMIN, "all", RepositoryChange({"members": ["near", "own"]}))
    room.group(name_policy="merge", write_member="own")
    room.there(room.near, "p", "1.1.0", "9.0.0")
    room.own("p", "1.0.0", "1.1.0", "1.2.0")
    there = {"Authorization": room_of.ADMINISTRATOR}

    def kept() -> list[str]:
        return list(room.app.test_client().get("/npm/own/p", headers=there).get_json()["versions"])

    def send(told: Any) -> int:
        return int(room.once(f"p/-rev/{told.get('_rev')}", "PUT", data=json.dumps(told), **admin).status_code)

    Quarantine(room.parts.database, room.parts.transactions, room.parts.access).hold(ADMIN, "near", "p/-/p-1.1.0.tgz", "looks odd")
    told = room.packument()
    assert sorted(told["versions"]) == ["1.0.0", "1.2.0", "9.0.0"]
    del told["versions"]["1.0.0"]
    assert (send(told), kept()) == (400, ["1.0.0", "1.1.0", "1.2.0"])
    Quarantine(room.parts.database, room.parts.transactions, room.parts.access).release(ADMIN, "near", "p/-/p-1.1.0.tgz")
    room.registry().update(ADMIN, "own", RepositoryChange({"status": "offline"}))
    away = room.packument()
    assert sorted(away["versions"]) == ["1.1.0", "9.0.0"]
    room.registry().update(ADMIN, "own", RepositoryChange({"status": "online"}))
    assert (send(away), kept()) == (400, ["1.0.0", "1.1.0", "1.2.0"])
    # Nor by what was read in another repository, whatever its number.
    number = room.packument()["_rev"].partition("-")[0]
    assert (send(away | {"_rev": f"{number}-{99:016x}"}), kept()) == (409, ["1.0.0", "1.1.0", "1.2.0"])


def test_two_hosted_members_and_one_document(room: Room) -> None:
    room.registry().create(ADMIN, NewRepository("more", "npm"))
    room.registry().update(ADMIN, "all", RepositoryChange({"members": ["more", "own"]}))
    room.own("p", "1.0.0", "1.1.0")
    data = tarball("p", "1.1.0", private=True)
    for version in ("1.1.0", "1.2.0"):
        body = packages.document("p", version, data=data if version == "1.1.0" else None, private=True)
        answer = room.app.test_client().put("/npm/more/p", json=body, headers={"Authorization": room_of.ADMINISTRATOR})
        assert answer.status_code == 201, answer.text
    told = room.packument()
    assert sorted(told["versions"]) == ["1.0.0", "1.1.0", "1.2.0"]
    assert told["versions"]["1.1.0"]["dist"]["shasum"] == dist_of(data)["shasum"]
    assert room.once("p/-/p-1.1.0.tgz").data == data


@pytest.mark.parametrize("status", ["online", "offline"])
def test_private_names_are_told_to_nobody_and_found_nowhere_else(room: Room, status: str) -> None:
    """Shield, for what is neither document nor file, and whether the member that holds the name is online or not."""
    room.own("own-lib", "1.0.0")
    found = {"objects": [{"package": {"name": name, "version": "6.6.6"}} for name in ("own-lib", "theirs")], "total": 2}
    for upstream in (room.near, room.far):
        upstream.put(f"/{BULK}", b"{}", headers=test_proxy.JSON)
        upstream.put("/-/v1/search?text=lib", json.dumps(found).encode())
    room.registry().update(ADMIN, "all", RepositoryChange({"members": ["near", "far", "own"]}))
    room.registry().update(ADMIN, "own", RepositoryChange({"status": status}))
    asked = {"own-lib": ["1.0.0"], "theirs": ["2.0.0"], "no\u0000name": [], "\ud800": []}
    assert room.once(BULK, "POST", data=json.dumps(asked)).json == {}
    for upstream in (room.near, room.far):
        (told,) = [json.loads(each.body) for each in upstream.asked]
        assert told.keys() & {"own-lib", "theirs"} == {"theirs"}
    objects = {each["package"]["name"]: each["package"]["version"] for each in room.packument("-/v1/search?text=lib")["objects"]}
    assert objects == {"theirs": "6.6.6"} | ({"own-lib": "1.0.0"} if status == "online" else {})

