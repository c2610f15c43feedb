"""What no client of npm's sends: never 500, no package that installs otherwise than its document says, none that breaks reading."""

from __future__ import annotations

import base64
import gzip
import io
import json
import tarfile
from typing import Any

import pytest

from app.errors import NotFound
from app.protocols.npm.archives import MOST_DEPTH, MOST_MANIFEST
from app.protocols.npm.names import MOST_TAGS
from app.repository.promoting import Selection
from app.repository.publishing import Publisher
from app.storage.filesystem import FileStore
from tests.protocols.npm.conftest import ABBREVIATED, Room
from tests.protocols.npm.packages import document, tarball, tgz
from tests.support.house import ADMIN

ZEROS = bytes(512)
GOOD = json.dumps({"name": "p", "version": "1.0.0"}).encode()
OTHER = json.dumps({"name": "other", "version": "6.6.6"}).encode()


def readable(room: Room) -> None:
    """Whatever was published, every document is JSON and can be had."""
    for name in ("p", "q"):
        for headers in ({}, ABBREVIATED):
            answer = room.get(name, headers=headers)
            assert answer.status_code in (200, 404), answer.text
            json.loads(answer.data, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))
    assert room.app.test_client().get("/npm/js/-/v1/search?text=").status_code == 200


# Documents


def test_numbers_and_depths_that_cannot_be_written_again_are_refused(room: Room) -> None:
    """One that is stored breaks the package for whoever reads it."""
    said = json.dumps(document("p", "1.0.0"))[:-1]
    for more in ('"maintainers": [{"name": "x", "n": 1e400}]', '"maintainers": [{"name": "x", "n": NaN}]', '"readme": -1e999'):
        assert room.request("PUT", "p", data=f"{said}, {more}}}").status_code == 400, more
    for depth in (MOST_DEPTH, 500, 930, 960, 990, 100_000):
        deep = f"[{'[' * depth}{']' * depth}]"
        for long in ("", f', "x": "{"a" * 400_000}"'):
            for more in (f'"maintainers": [{{"name": "x", "n": {deep}}}]', f'"_id": {deep}'):
                assert room.request("PUT", "p", data=f"{said}{long}, {more}}}").status_code == 400, (depth, bool(long))
            inside = said.replace('"_id": "p@1.0.0"', f'"_id": "p@1.0.0", "keywords": {deep}')
            assert room.request("PUT", "p", data=f"{inside}{long}}}").status_code == 400, (depth, bool(long))
    readable(room)
    room.published("p", "1.0.0", keywords=[[[["deep"]]]])
    readable(room)


def test_a_document_says_so_much_of_a_version_and_brings_two_files(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    create = FileStore.create
    monkeypatch.setattr(FileStore, "create", lambda self, upload_id: made.append(upload_id) or create(self, upload_id))
    told = document("p", "1.0.0")
    told["versions"]["1.0.0"]["extra"] = ["x" * 1000] * (MOST_MANIFEST // 1000)
    assert "more than" in room.put("p", told).json["error"]
    made.clear()
    told = document("p", "1.0.0")
    told["_attachments"] |= {f"x{number}": {"data": "AAAA" * 20_000} for number in range(60)}
    assert "at most 2 files" in room.put("p", told).json["error"]
    assert len(made) <= 3, "each would take a file, and room"
    assert room.value("select coalesce(sum(bytes), 0) from arkvory_upload_bytes where status <> 'released'") == 0


def test_an_answer_quotes_no_more_than_people_read(room: Room) -> None:
    long = "x" * 3_000_000
    for wrong in ({"name": long}, {"dist-tags": {"latest": long}}, {"dist-tags": {long: "1.0.0"}}, {"_id": [long]}):
        answer = room.put("p", document("p", "1.0.0") | wrong)
        assert (answer.status_code, len(answer.data) < 5000) == (400, True), list(wrong)


def test_many_tags_at_once_are_refused_before_others_wait_for_them(room: Room) -> None:
    room.published("p", "1.0.0")
    many = {f"t{number}": "1.0.0" for number in range(MOST_TAGS + 1)}
    assert room.put("-/package/p/dist-tags", many).status_code == 400
    assert room.put("p", document("p", "1.1.0") | {"dist-tags": dict.fromkeys(many, "1.1.0")}).status_code == 400
    del many["t0"]
    assert room.put("-/package/p/dist-tags", many).status_code == 201
    assert room.put("-/package/p/dist-tagsfoo", "1.0.0").status_code == 404


# Text that the database cannot keep


def test_a_nul_or_half_a_character_is_refused_in_npms_words(room: Room) -> None:
    room.user("anna")
    room.published("p", "1.0.0")
    login = "Basic " + base64.b64encode(b"anna:correct-horse").decode()
    for text in ("\0", "\ud800", "\udc80"):
        assert room.put("-/package/p/dist-tags/x", f"1.0.0{text}").status_code == 400
        assert room.put("-/user/org.couchdb.user:anna", {"name": "anna", "password": f"wrong{text}"}).status_code == 401
        wanted = {"password": "correct-horse", "name": text}
        answer = room.request("POST", "-/npm/v1/tokens", as_=login, data=json.dumps(wanted), content_type="application/json")
        assert answer.status_code == 400, answer.text
        assert answer.is_json
    found = room.app.test_client().get("/npm/js/-/v1/search?text=%00")
    assert (found.status_code, found.is_json) == (400, True)


def test_a_token_never_does_more_than_was_asked_for(room: Room) -> None:
    room.user("anna")
    login = "Basic " + base64.b64encode(b"anna:correct-horse").decode()

    def made(**wanted: Any) -> Any:
        told = json.dumps({"password": "correct-horse", **wanted})
        return room.request("POST", "-/npm/v1/tokens", as_=login, data=told, content_type="application/json")

    for limit in ({"cidr": ["10.0.0.0/8"]}, {"cidr_whitelist": ["10.0.0.0/8"]}, {"packages": ["p"]}, {"scopes": ["@s"]}, {"orgs": ["o"]},
                  {"packages_and_scopes_permission": "no-access"}, {"packages_and_scopes_permission": ["read-only"]}):  # fmt: skip
        assert made(**limit).status_code == 400, limit
    for narrow in ({"readonly": True}, {"readonly": "yes"}, {"packages_and_scopes_permission": "read-only"}):
        assert made(**narrow).json["readonly"] is True, narrow
    assert made(packages_and_scopes_permission="read-write", cidr=[]).json["readonly"] is False


# Tarballs in which installers would find another package.json than we


def members(*entries: tuple[str, bytes]) -> bytes:
    """An archive without its end."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, data in entries:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        end = archive.offset
    return packed.getvalue()[:end]


def in_two_parts(format: int, magic: bytes | None) -> bytes:
    """`package/package.json` in a header whose prefix only some readers put before it."""
    member = tarfile.TarInfo("package/package.json")
    member.size = len(OTHER)
    header = bytearray(member.tobuf(format))
    header[257:265] = magic or header[257:265]
    header[345:346] = b"x"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + OTHER.ljust(512, b"\0")


def linked(kind: bytes) -> bytes:
    member = tarfile.TarInfo("package/package.json")
    member.type, member.linkname = kind, "package/x"
    return member.tobuf()


def sized(size: str) -> bytes:
    member = tarfile.TarInfo("package/a")
    member.size = 512
    member.pax_headers = {"size": size}
    return member.tobuf(tarfile.PAX_FORMAT) + OTHER.ljust(512, b"\0")


FIRST, SECOND = members(("package/package.json", GOOD)), members(("package/package.json", OTHER))
CONFUSING = {
    "behind one empty block": FIRST + ZEROS + SECOND,
    "behind the end": FIRST + ZEROS * 2 + SECOND,
    "behind a damaged header": FIRST + b"x" * 512 + SECOND,
    "garbage at the end": FIRST + ZEROS * 2 + b"x",
    "in the root": FIRST + members(("./package.json", OTHER)),
    "in the root, twice": FIRST + members(("././package.json", OTHER)),
    "a folder further down": members(("./package/package.json", GOOD)),
    "where case does not count": FIRST + members(("package/PACKAGE.json", OTHER)),
    "a link": FIRST + linked(tarfile.SYMTYPE),
    "a hard link": FIRST + linked(tarfile.LNKTYPE),
    "in two parts, no magic": FIRST + in_two_parts(tarfile.USTAR_FORMAT, bytes(8)),
    "in two parts, GNU": FIRST + in_two_parts(tarfile.GNU_FORMAT, None),
    "a size told twice": FIRST + sized("0"),
}


@pytest.mark.parametrize("case", CONFUSING)
def test_a_tarball_that_readers_understand_in_different_ways_is_refused(room: Room, case: str) -> None:
    packed = gzip.compress(CONFUSING[case] + ZEROS * 2)
    answer = room.put("p", document("p", "1.0.0", data=packed))
    assert answer.status_code == 400, answer.text
    assert room.get("p").status_code == 404


def test_whatever_the_top_folder_is_called_the_package_is_below_it(room: Room) -> None:
    for number, (top, end) in enumerate([("package", ZEROS * 2), (".", ZEROS * 20), ("any thing", b"")]):
        told = json.dumps({"name": "p", "version": f"1.0.{number}"}).encode()
        packed = gzip.compress(members((f"{top}/package.json", told), (f"{top}/sub/package.json", OTHER)) + end)
        assert room.put("p", document("p", f"1.0.{number}", data=packed)).status_code == 201, top


# Documents that say other things than the tarball


@pytest.mark.parametrize(
    ("packed", "told"),
    [
        ({"scripts": {"postinstall": "curl evil"}}, {}),
        ({}, {"scripts": {"preinstall": "x"}}),
        ({"scripts": {"install": "a"}}, {"scripts": {"install": "b"}}),
        ({"dependencies": {"hidden": "1"}}, {}),
        ({}, {"dependencies": {"more": "1"}}),
        ({"dependencies": {"a": "^1.0.0"}}, {"dependencies": {"a": "^6.6.6"}}),
        ({"optionalDependencies": {"hidden": "1"}}, {"dependencies": {}}),
    ],
)
def test_what_installing_acts_upon_is_the_same_in_document_and_tarball(room: Room, packed: dict[str, Any], told: dict[str, Any]) -> None:
    sent = document("p", "1.0.0", data=tarball("p", "1.0.0", **packed))
    sent["versions"]["1.0.0"] |= told
    assert "disagree" in room.put("p", sent).json["error"]
    assert room.get("p").status_code == 404


@pytest.mark.parametrize(
    ("packed", "told"),
    [
        ({"scripts": {"test": "x", "install": ""}}, {"scripts": {"start": "y"}}),
        ({"dependencies": {"a": "1"}, "optionalDependencies": {"b": "2"}}, {"dependencies": {"a": "1", "b": "2"}}),
        ({"dependencies": {"a": "user/repository", "b": None}}, {"dependencies": {"a": "github:user/repository"}}),
        ({"dependencies": ["a@1"], "devDependencies": {"x": "1"}}, {}),
        ({"scripts": "x", "dependencies": None}, {"dependencies": {}}),
    ],
)
def test_what_npm_writes_in_another_way_is_no_disagreement(room: Room, packed: dict[str, Any], told: dict[str, Any]) -> None:
    sent = document("p", "1.0.0", data=tarball("p", "1.0.0", **packed))
    sent["versions"]["1.0.0"] |= told
    assert room.put("p", sent).status_code == 201
    readable(room)


def test_a_binding_is_built_by_a_script_that_npm_adds_or_does_not(room: Room) -> None:
    for number, told in enumerate([{}, {"scripts": {"install": "node-gyp rebuild"}}]):
        version = f"1.0.{number}"
        members = {"package/package.json": json.dumps({"name": "p", "version": version}).encode(), "package/binding.gyp": b"{}"}
        sent = document("p", version, data=tgz(members))
        sent["versions"][version] |= told
        assert room.put("p", sent).status_code == 201
        assert room.packument(headers=ABBREVIATED)["versions"][version]["hasInstallScript"] is True


# Races


def test_a_version_that_is_replaced_while_it_is_promoted_is_never_half_the_one_half_the_other(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    room.change(settings={"write_policy": "replace"})
    room.published("p", "1.0.0", description="first")
    room.repository("other")
    begin = Publisher.begin

    def after_another(self: Publisher, target: Any, *given: Any, **named: Any) -> Any:
        if target.repository == "other":
            monkeypatch.setattr(Publisher, "begin", begin)
            room.published("p", "1.0.0", description="second")
        return begin(self, target, *given, **named)

    monkeypatch.setattr(Publisher, "begin", after_another)
    promoter = room.parts.promoter
    with pytest.raises(NotFound, match="replaced"):
        promoter.promote(ADMIN, "js", "other", Selection(package="p"))
    assert room.get("p", repository="other").status_code == 404
    assert promoter.promote(ADMIN, "js", "other", Selection(package="p")).created == 1
