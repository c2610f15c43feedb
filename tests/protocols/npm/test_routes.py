from __future__ import annotations

import base64
import gzip
import hashlib
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.protocols.npm.routes import reads
from app.repository.promoting import Selection
from app.repository.publishing import Target
from app.repository.quarantine import Quarantine
from tests.protocols.npm.conftest import ABBREVIATED, Room
from tests.protocols.npm.packages import document, tarball, tgz
from tests.support.house import ADMIN
from tests.support.room import parts_over


def test_a_scoped_package_is_one_in_every_spelling(room: Room) -> None:
    """HO-NPM-1."""
    assert room.put("@s%2fp", document("@s/p", "1.0.0")).status_code == 201
    documents = [room.get(spelling).data for spelling in ("@s%2fp", "@s%2Fp", "@s/p")]
    assert documents[0] == documents[1] == documents[2]
    address = json.loads(documents[0])["versions"]["1.0.0"]["dist"]["tarball"]
    assert address == "http://localhost/npm/js/@s/p/-/p-1.0.0.tgz"
    tarballs = [room.get(path) for path in ("@s/p/-/p-1.0.0.tgz", "@s%2fp/-/p-1.0.0.tgz", "@s/p/-/@s/p-1.0.0.tgz")]
    assert [each.data for each in tarballs] == [tarball("@s/p", "1.0.0")] * 3
    assert room.put("@s/p", document("@s/p", "1.0.1")).status_code == 201


def test_tarballs_follow_the_address_by_which_the_client_came(room: Room) -> None:
    """HO-NPM-2: on warm reads too."""
    room.published("p", "1.0.0")
    for host in ("one.example", "two.example:8443", "one.example"):
        dist = room.packument(base_url=f"https://{host}/")["versions"]["1.0.0"]["dist"]
        assert dist["tarball"] == f"https://{host}/npm/js/p/-/p-1.0.0.tgz"
    data = room.get("p/-/p-1.0.0.tgz").data
    assert dist["integrity"] == "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()
    assert dist["shasum"] == hashlib.sha1(data).hexdigest()


def test_both_forms_have_their_own_validators_which_move_with_a_publish(room: Room) -> None:
    """HO-NPM-5, C9."""
    room.published("p", "1.0.0", description="Does it", scripts={"postinstall": "x"}, dependencies={"q": "^1"}, readme="# P")
    seen = set()
    for headers in ({}, ABBREVIATED, {"Accept-Encoding": "gzip"}, ABBREVIATED | {"Accept-Encoding": "gzip"}):
        answer = room.get("p", headers=headers)
        seen.add(answer.headers["ETag"])
        assert {"Accept", "Accept-Encoding"} == set(answer.headers["Vary"].split(", "))
        again = room.get("p", headers=headers | {"If-None-Match": answer.headers["ETag"]})
        assert (again.status_code, again.data) == (304, b"")
    assert len(seen) == 4
    full, short = room.packument(), room.packument(headers=ABBREVIATED)
    assert room.get("p", headers=ABBREVIATED).headers["Content-Type"] == "application/vnd.npm.install-v1+json"
    assert set(short) == {"name", "dist-tags", "versions", "modified", "time"}
    assert short["time"] == full["time"]
    assert set(full["time"]) == {"created", "modified", "1.0.0"}
    assert all(moment.endswith("Z") for moment in full["time"].values())
    assert (full["readme"], full["description"]) == ("# P", "Does it")
    assert "readme" not in full["versions"]["1.0.0"]
    assert "scripts" not in short["versions"]["1.0.0"]
    assert short["versions"]["1.0.0"]["hasInstallScript"] is True
    assert short["versions"]["1.0.0"]["dependencies"] == {"q": "^1"}
    room.published("p", "1.0.1")
    assert room.get("p").headers["ETag"] not in seen
    assert gzip.decompress(room.get("p", headers={"Accept-Encoding": "gzip"}).data) == room.get("p").data


def test_a_publish_elsewhere_leaves_validators_valid(room: Room) -> None:
    """C9."""
    room.published("p", "1.0.0")
    before = room.get("p").headers["ETag"]
    room.published("q", "1.0.0")
    assert room.get("p", headers={"If-None-Match": before}).status_code == 304


def test_versions_and_tags_have_documents(room: Room) -> None:
    room.published("p", "1.0.0", "1.1.0")
    assert json.loads(room.get("p/latest").data)["version"] == "1.1.0"
    assert json.loads(room.get("p/1.0.0").data)["dist"]["tarball"].endswith("/npm/js/p/-/p-1.0.0.tgz")
    absent = room.get("p/9.9.9")
    assert (absent.status_code, set(json.loads(absent.data))) == (404, {"error", "reason"})
    assert room.get("nothing").status_code == 404
    assert room.get("-/package/p/dist-tags").json == {"latest": "1.1.0"}


def test_tags_stay_where_they_are(room: Room) -> None:
    """HO-NPM-3."""
    room.published("p", "1.1.0")
    room.published("p", "2.0.0-rc.1", tag="next")
    room.published("p", "1.0.9", tag="v1")
    assert room.packument()["dist-tags"] == {"latest": "1.1.0", "next": "2.0.0-rc.1", "v1": "1.0.9"}
    assert room.put("-/package/p/dist-tags/beta", "1.1.0").status_code == 201
    assert room.get("-/package/p/dist-tags").json["beta"] == "1.1.0"
    assert room.request("DELETE", "-/package/p/dist-tags/beta").status_code == 200
    assert "beta" not in room.packument()["dist-tags"]
    assert room.request("DELETE", "-/package/p/dist-tags/beta").status_code == 404
    assert room.put("-/package/p/dist-tags/beta", "9.9.9").status_code == 404
    assert room.put("-/package/p/dist-tags/latest", "9.9.9").status_code == 404
    assert room.request("DELETE", "-/package/p/dist-tags/latest").status_code == 400
    assert room.packument()["dist-tags"] == {"latest": "1.1.0", "next": "2.0.0-rc.1", "v1": "1.0.9"}
    assert room.request("POST", "-/package/p/dist-tags", data=json.dumps({"a": "1.0.9"})).status_code == 201
    assert room.put("-/package/p/dist-tags", {"b": "1.0.9"}).status_code == 201
    assert room.packument()["dist-tags"] == {"latest": "1.1.0", "b": "1.0.9"}


def test_the_first_version_is_the_latest_whatever_its_tag_and_the_next_one_does_not_take_it_over(room: Room) -> None:
    room.published("p", "1.0.0-beta.1", "1.0.0-beta.2", tag="beta")
    assert room.packument()["dist-tags"] == {"latest": "1.0.0-beta.1", "beta": "1.0.0-beta.2"}


def test_the_same_version_twice_is_a_conflict(room: Room) -> None:
    """W4."""
    room.published("p", "1.0.0")
    for data in (None, tarball("p", "1.0.0", description="other")):
        again = room.publish("p", "1.0.0", data=data)
        assert again.status_code == 409
        assert again.json["error"] == "You cannot publish over the previously published versions: 1.0.0."
    lerna = room.put("p", document("p", "1.0.0"), headers={"User-Agent": "lerna/7.1.1/node@v20.0.0+x64 (linux)"})
    assert lerna.status_code == 403
    assert room.get("p/-/p-1.0.0.tgz").data == tarball("p", "1.0.0")


def test_what_disagrees_is_refused_and_leaves_nothing(room: Room) -> None:
    """W1."""
    good = document("p", "1.0.0")

    def changed(**changes: Any) -> dict[str, Any]:
        return json.loads(json.dumps(good)) | changes

    manifest = good["versions"]["1.0.0"]
    attached = good["_attachments"]["p-1.0.0.tgz"]
    for wrong, words in [
        (changed(name="q"), "the address is that of"),
        (changed(_id="q"), "the address is that of"),
        (changed(versions={"1.0.0": manifest | {"version": "1.0.1"}}), "is not of 'p'"),
        (changed(versions={"1.0.0": manifest | {"name": "q"}}), "is not of 'p'"),
        (changed(versions={"1.0.0": 5}), "something else than an object"),
        (changed(versions={}), "exactly one version"),
        (changed(versions={"1.0.0": manifest | {"dist": manifest["dist"] | {"shasum": "0" * 40}}}), "shasum"),
        (changed(versions={"1.0.0": manifest | {"dist": {"integrity": "sha512-AAAA"}}}), "integrity"),
        (changed(**{"dist-tags": {"latest": "9.9.9"}}), "not in the document"),
        (changed(**{"dist-tags": {"1.0.0": "1.0.0"}}), "it is a version"),
        (changed(_attachments={"p-1.0.0.tgz": attached | {"data": "not base64!"}}), "no base64"),
        (changed(_attachments={"p-1.0.0.tgz": attached | {"data": attached["data"][:-4]}}), "were announced"),
        (changed(_attachments={"p-1.0.0.tgz": attached | {"length": 5}}), "were announced"),
        (changed(_attachments={"p-1.0.0.tgz": {}}), "has no data"),
        (changed(_attachments={"q-1.0.0.tgz": attached}), "is not called"),
        (document("p", "1.0.0", data=tarball("p", "1.0.1")), "package.json in the tarball"),
        (document("p", "1.0.0", data=tarball("q", "1.0.0")), "package.json in the tarball"),
        (document("p", "1.0.0", data=b"no archive"), "is damaged"),
        (document("p", "1.0.0", data=tgz({"package/x": b""})), "one package.json"),
        (document("p", "1.0.0", data=tgz({"package/package.json": b"{"})), "no JSON"),
        (document("p", "1.0.0", data=tgz({"package/../../x": b"", "package/package.json": b"{}"})), "no plain path"),
        (document("p", "01.0.0"), "no semantic version"),
    ]:
        answer = room.put("p", wrong)
        assert answer.status_code == 400, answer.text
        assert words in answer.json["error"], answer.json
    for name in ("Upper", "http", ".dot", "_under", "node_modules", "a b", "x" * 215, "p!"):
        assert room.put(name.replace(" ", "%20"), document(name, "1.0.0")).status_code in (400, 404), name
    for body in (b"", b"[]", b"{", b"{" * 100_000, b'{"a": NaN}', b"\xff", json.dumps(good).encode()[:-20]):
        assert room.request("PUT", "p", data=body).status_code == 400, body[:20]
    assert room.value("select count(*) from arkvory_artifacts") == 0
    assert room.value("select coalesce(sum(bytes), 0) from arkvory_upload_bytes where status <> 'released'") == 0
    assert room.get("p").status_code == 404


def test_a_long_tarball_is_taken_out_of_the_document_while_it_arrives(room: Room) -> None:
    data = tarball("p", "1.0.0", {"package/blob": hashlib.shake_128(b"x").digest(3_000_000)})
    assert room.publish("p", "1.0.0", data=data).status_code == 201
    assert room.get("p/-/p-1.0.0.tgz").data == data
    answer = room.put("p", document("p", "1.0.1", data=data))
    assert (answer.status_code, "package.json" in answer.json["error"]) == (400, True)
    broken = document("p", "1.0.2")
    broken["_attachments"]["p-1.0.2.tgz"]["data"] = "A" * 3_000_000 + "*"
    assert room.put("p", broken).json["error"] == "the attached file is no base64"
    elsewhere = document("p", "1.0.2") | {"data": "AAAA" * 500_000}
    assert "elsewhere" in room.put("p", elsewhere).json["error"]


def test_deprecations_come_and_go_with_the_whole_document(room: Room) -> None:
    room.published("p", "1.0.0", "1.1.0")
    told = room.packument(query_string="write=true")
    told["versions"]["1.0.0"]["deprecated"] = 'leaks <"memory">'
    assert room.put("p", told).status_code == 201
    assert room.packument()["versions"]["1.0.0"]["deprecated"] == 'leaks <"memory">'
    assert room.packument(headers=ABBREVIATED)["versions"]["1.0.0"]["deprecated"] == 'leaks <"memory">'
    assert "deprecated" not in room.packument()["versions"]["1.1.0"]
    assert room.put("p", told).status_code == 409, "it was read before the first change"
    told = room.packument()
    told["versions"]["1.0.0"]["deprecated"] = ""
    assert room.put("p", told).status_code == 201
    assert "deprecated" not in room.packument()["versions"]["1.0.0"]
    assert room.put("p", {"versions": {"9.9.9": {"deprecated": "x"}}}).status_code == 404
    assert room.put("p", {"versions": {"1.0.0": {"deprecated": 5}}}).status_code == 400


def test_owners_are_named_and_allow_nothing(room: Room) -> None:
    room.published("p", "1.0.0")
    told = room.packument()
    owners = [*told["maintainers"], {"name": "anna", "email": "a@example.org"}]
    assert room.put(f"p/-rev/{told['_rev']}", {"_id": "p", "_rev": told["_rev"], "maintainers": owners}).status_code == 201
    assert [each["name"] for each in room.packument()["maintainers"]] == ["local", "anna"]
    assert room.put(f"p/-rev/{told['_rev']}", {"_id": "p", "maintainers": owners}).status_code == 409
    assert room.put(f"p/-rev/{room.packument()['_rev']}", {"_id": "p", "maintainers": []}).status_code == 400


def unpublish(room: Room, version: str) -> None:
    """As npm does it."""
    told = room.packument(query_string="write=true")
    tarball_address = told["versions"].pop(version)["dist"]["tarball"].partition("/npm/js/")[2]
    assert room.put(f"p/-rev/{told['_rev']}", told).status_code == 201
    revision = room.packument(query_string="write=true")["_rev"]
    assert room.request("DELETE", f"{tarball_address}/-rev/{revision}").status_code == 200


def test_a_version_is_taken_back_and_latest_goes_to_the_highest_release_that_is_left(room: Room) -> None:
    room.published("p", "1.0.0", "1.2.0")
    room.published("p", "2.0.0-rc.1", tag="next")
    room.published("p", "1.10.0", "0.9.0")
    assert room.packument()["dist-tags"]["latest"] == "0.9.0"
    unpublish(room, "1.2.0")
    assert room.packument()["dist-tags"]["latest"] == "0.9.0", "another version was taken back"
    unpublish(room, "0.9.0")
    assert room.packument()["dist-tags"] == {"latest": "1.10.0", "next": "2.0.0-rc.1"}
    room.published("p", "3.0.0", tag="next")
    assert room.packument()["dist-tags"] == {"latest": "1.10.0", "next": "3.0.0"}
    assert room.get("p/-/p-1.2.0.tgz").status_code == 404
    room.published("p", "1.2.0", tag="old")


def test_a_version_that_came_meanwhile_is_not_taken_back(room: Room) -> None:
    room.published("p", "1.0.0", "1.1.0")
    told = room.packument()
    del told["versions"]["1.0.0"]
    room.published("p", "1.2.0")
    assert room.put(f"p/-rev/{told['_rev']}", told).status_code == 409
    assert set(room.packument()["versions"]) == {"1.0.0", "1.1.0", "1.2.0"}


def test_all_of_a_package_is_taken_back(room: Room) -> None:
    room.published("p", "1.0.0", "1.1.0")
    assert room.request("DELETE", f"p/-rev/{room.packument()['_rev']}").status_code == 200
    assert room.get("p").status_code == 404
    assert room.get("-/package/p/dist-tags").status_code == 404
    room.published("p", "1.0.0")
    assert set(room.packument()["versions"]) == {"1.0.0"}
    assert room.request("DELETE", "p/-rev/1-0").status_code == 409
    assert room.request("DELETE", "p").status_code == 404
    assert room.request("DELETE", "nothing/-rev/1-0").status_code == 404


def test_a_held_version_leaves_the_packument_its_tags_and_its_file(room: Room) -> None:
    """Quarantine, W5."""
    room.published("p", "1.0.0", "1.1.0")
    house = room.parts
    quarantine = Quarantine(house.database, house.transactions, house.access)
    before = room.get("p").headers["ETag"]
    quarantine.hold(ADMIN, "js", "p/-/p-1.1.0.tgz", "malware")
    told = room.packument()
    assert (set(told["versions"]), told["dist-tags"]) == ({"1.0.0"}, {"latest": "1.0.0"})
    assert room.get("p").headers["ETag"] != before
    refused = room.get("p/-/p-1.1.0.tgz")
    assert (refused.status_code, refused.json["reason"]) == (403, "quarantined")
    assert room.get("p/1.1.0").status_code == 404
    quarantine.release(ADMIN, "js", "p/-/p-1.1.0.tgz")
    assert room.packument()["dist-tags"] == {"latest": "1.1.0"}


def bundle(data: bytes) -> str:
    statement = {"predicateType": "https://slsa.dev/provenance/v1", "subject": [{"digest": {"sha512": hashlib.sha512(data).hexdigest()}}]}
    return json.dumps({"dsseEnvelope": {"payload": base64.b64encode(json.dumps(statement).encode()).decode()}})


def test_provenance_and_signatures_are_kept(room: Room) -> None:
    data = tarball("@s/p", "1.0.0")
    told = document("@s/p", "1.0.0", data=data)
    told["versions"]["1.0.0"]["dist"]["signatures"] = [{"keyid": "k", "sig": "s"}]
    told["_attachments"]["@s/p-1.0.0.sigstore"] = {"content_type": "application/vnd.dev.sigstore.bundle+json", "data": bundle(b"other")}
    assert "other bytes" in room.put("@s%2fp", told).json["error"]
    told["_attachments"]["@s/p-1.0.0.sigstore"]["data"] = bundle(data)
    assert room.put("@s%2fp", told).status_code == 201
    dist = room.packument("@s/p")["versions"]["1.0.0"]["dist"]
    assert dist["signatures"] == [{"keyid": "k", "sig": "s"}]
    assert dist["attestations"]["url"] == "http://localhost/npm/js/-/npm/v1/attestations/@s/p@1.0.0"
    for spelling in ("@s/p@1.0.0", "@s%2fp@1.0.0"):
        found = room.get(f"-/npm/v1/attestations/{spelling}").json["attestations"]
        assert [each["predicateType"] for each in found] == [dist["attestations"]["provenance"]["predicateType"]]
    assert room.get("-/npm/v1/attestations/@s/p@1.0.1").status_code == 404
    assert room.get("-/npm/v1/keys").json == {"keys": []}


def test_tarballs_are_served_in_parts(room: Room) -> None:
    room.published("p", "1.0.0")
    data = tarball("p", "1.0.0")
    part = room.get("p/-/p-1.0.0.tgz", headers={"Range": "bytes=5-9"})
    assert (part.status_code, part.data) == (206, data[5:10])
    assert room.get("p/-/p-1.0.0.tgz", headers={"Range": "bytes=999999-"}).status_code == 416
    head = room.request("HEAD", "p/-/p-1.0.0.tgz")
    assert (head.status_code, head.headers["Content-Length"], head.data) == (200, str(len(data)), b"")


def test_hostile_names_are_no_packages(room: Room) -> None:
    for path in ("..%2fx", "@s%2f..%2fx", "p%00", "%2e%2e/p", "p\\x", "@/p", "@s", "-", "p/-/../x", "p//x", "@s%2f%2fp"):
        assert room.get(path).status_code in (400, 404), path
        assert room.put(path, document("p", "1.0.0")).status_code in (400, 404), path
    assert room.request("POST", "p", data=b"{}").status_code == 405


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_whoever_has_no_right_changes_nothing(room: Room, method: str) -> None:
    room.published("p", "1.0.0")
    room.user("anna")
    login = "Basic " + base64.b64encode(b"anna:correct-horse").decode()
    for path in ("p", f"p/-rev/{room.packument()['_rev']}", "-/package/p/dist-tags/x"):
        for who, status in ((None, 401), (login, 403)):
            answer = room.request(method, path, as_=who, data=json.dumps("1.0.0"))
            assert answer.status_code in ((status, 404) if (method, path) == ("DELETE", "p") else (status,)), (path, answer.text)
    assert set(room.packument()["versions"]) == {"1.0.0"}


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.just(10**400), st.floats(), st.text(max_size=5), st.just("\x01attached 0"),
    st.lists(st.text(max_size=3), max_size=2), st.dictionaries(st.text(max_size=3), st.none(), max_size=2),
)  # fmt: skip
# Places in a document: of each, the keys that lead there.
PLACES = [
    *((key,) for key in ("name", "_id", "_rev", "readme", "maintainers", "dist-tags", "versions", "_attachments")),
    ("dist-tags", "latest"), ("versions", "1.0.0"), ("_attachments", "p-1.0.0.tgz"),
    *(("versions", "1.0.0", key) for key in ("name", "version", "dist", "scripts", "keywords", "readme", "deprecated", "gypfile", "bin")),
    *(("versions", "1.0.0", "dist", key) for key in ("integrity", "shasum", "signatures", "tarball")),
    *(("_attachments", "p-1.0.0.tgz", key) for key in ("data", "length", "content_type")),
]  # fmt: skip


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.sampled_from(PLACES), VALUES), max_size=3), path=st.sampled_from(["p", "p/-rev/1-0"]))
def test_whatever_a_document_says_is_taken_or_refused(room: Room, changes: list[tuple[tuple[str, ...], Any]], path: str) -> None:
    """Never 500; and what was taken can be read."""
    sent = document("p", "1.0.0")
    for keys, value in changes:
        place: Any = sent
        for key in keys[:-1]:
            place = place.get(key, {}) if isinstance(place, dict) else {}
        if isinstance(place, dict):
            place[keys[-1]] = value
    answer = room.put(path, sent)
    assert answer.status_code in (201, 400, 404, 409), answer.text
    assert answer.is_json
    if answer.status_code == 201:
        for headers in ({}, ABBREVIATED):
            assert "1.0.0" in room.packument(headers=headers)["versions"]
        assert room.get("-/v1/search?text=").status_code == 200


def test_addresses_have_the_prefix_and_port_of_a_trusted_proxy(database_url: str, tmp_path: Any) -> None:
    """HO-NPM-2."""
    with parts_over(database_url, tmp_path, ARKVORY_TRUSTED_PROXIES="127.0.0.1") as parts:
        room = Room(parts, reads, "js")
        room.repository("js")
        room.published("@s/p", "1.0.0")
        told = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "art.example", "X-Forwarded-Port": "8443"}
        told["X-Forwarded-Prefix"] = "/packages"
        for headers in (told, told | ABBREVIATED, told):
            dist = room.packument("@s/p", headers=headers)["versions"]["1.0.0"]["dist"]
            assert dist["tarball"] == "https://art.example:8443/packages/npm/js/@s/p/-/p-1.0.0.tgz"
        begun = room.request("POST", "-/v1/login", headers=told).json
        assert begun["loginUrl"].startswith("https://art.example:8443/packages/npm/js/-/v1/login/")


def test_what_has_no_room_is_refused_in_npms_words(room: Room) -> None:
    room.change(quota_bytes=0)
    answer = room.publish("p", "1.0.0")
    assert (answer.status_code, answer.json["reason"]) == (507, "capacity_spent")
    room.change(quota_bytes=None, settings={"write_policy": "read_only"})
    assert room.publish("p", "1.0.0").status_code == 405
    assert room.publish("p", "1.0.0").is_json


def test_where_versions_may_be_replaced_the_packument_tells_of_the_new_one(room: Room) -> None:
    room.change(settings={"write_policy": "replace"})
    room.published("p", "1.0.0", description="first")
    room.put("p", {"versions": {"1.0.0": {"deprecated": "bad"}}})
    room.published("p", "1.0.0", description="second")
    told = room.packument()
    assert (told["description"], "deprecated" in told["versions"]["1.0.0"]) == ("second", False)
    data = room.get("p/-/p-1.0.0.tgz").data
    assert told["versions"]["1.0.0"]["dist"]["shasum"] == hashlib.sha1(data).hexdigest()


def test_what_is_deleted_elsewhere_leaves_the_packument_with_its_tags(room: Room) -> None:
    """By the management API, and with the repository."""
    room.published("p", "1.0.0", "1.1.0")
    room.parts.editor.delete(Target("npm", "js", ADMIN), ["p/-/p-1.1.0.tgz"])
    told = room.packument()
    assert (set(told["versions"]), told["dist-tags"]) == ({"1.0.0"}, {"latest": "1.0.0"})
    room.execute("update arkvory_repositories set deleted_at = now()")
    room.parts.cleanup.run()
    for table in ("repositories", "packages", "artifacts", "npm_versions", "npm_tags", "npm_packages"):
        assert room.value(f"select count(*) from arkvory_{table}") == 0


def test_a_promoted_version_is_in_the_packument_of_the_other_repository(room: Room) -> None:
    """Its addresses are the other's."""
    room.published("@s/p", "1.0.0", "1.1.0", description="\u0001 and \0", readme="# P")
    room.repository("other")
    done = room.parts.promoter.promote(ADMIN, "js", "other", Selection(package="@s/p", version="1.0.0"))
    assert (done.artifacts, done.created) == (1, 1)
    told = json.loads(room.get("@s/p", repository="other").data)
    assert (set(told["versions"]), told["dist-tags"], told["readme"]) == ({"1.0.0"}, {"latest": "1.0.0"}, "# P")
    assert told["versions"]["1.0.0"]["dist"]["tarball"] == "http://localhost/npm/other/@s/p/-/p-1.0.0.tgz"
    assert room.get("@s/p/-/p-1.0.0.tgz", repository="other").data == room.get("@s/p/-/p-1.0.0.tgz").data
