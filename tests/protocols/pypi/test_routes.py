from __future__ import annotations

import gzip
import hashlib
import json
from typing import Any
from urllib.parse import urljoin

import pytest
from gevent.monkey import get_original

from app.protocols.pypi import parts
from app.protocols.pypi.parts import files_of
from app.repository import publishing
from app.repository.publishing import Publisher
from tests.protocols.pypi.conftest import Room
from tests.protocols.pypi.packages import CONTENT_TYPE, core_metadata, form_of, sdist, wheel

JSON = {"Accept": "application/vnd.pypi.simple.v1+json"}
FOO = "foo-1.0-py3-none-any.whl"
current_thread = get_original("_thread", "get_ident")


def page(room: Room, project: str = "foo") -> Any:
    return json.loads(room.get(f"simple/{project}/", headers=JSON).data)


def test_an_upload_is_listed_under_its_normalised_name_with_its_own_file_name(room: Room) -> None:
    """HO-PYPI-1."""
    data = wheel("PyQt5_Qt5", "5.15.2", "Requires-Python: >=3.8")
    assert room.upload("PyQt5_Qt5-5.15.2-py3-none-any.whl", data).status_code == 200
    found = page(room, "pyqt5-qt5")
    assert [file["filename"] for file in found["files"]] == ["PyQt5_Qt5-5.15.2-py3-none-any.whl"]
    assert found["files"][0]["hashes"] == {"sha256": hashlib.sha256(data).hexdigest()}
    assert found["files"][0]["requires-python"] == ">=3.8"
    assert json.loads(room.get("simple/", headers=JSON).data)["projects"] == [{"name": "pyqt5-qt5"}]
    assert room.get("files/pyqt5-qt5/PyQt5_Qt5-5.15.2-py3-none-any.whl", anonymous=True).data == data


def test_the_advertised_metadata_is_served_with_its_hash(room: Room) -> None:
    """HO-PYPI-3."""
    room.upload(FOO, wheel("foo", "1.0"))
    room.upload("foo-1.0.tar.gz", sdist("foo", "1.0"))
    whl, source = page(room)["files"]
    served = room.get("files/foo/" + whl["filename"] + ".metadata")
    assert served.status_code == 200
    assert served.data == core_metadata("foo", "1.0")
    assert whl["core-metadata"] == {"sha256": hashlib.sha256(served.data).hexdigest()}
    assert "core-metadata" not in source


def test_a_file_name_is_used_once_and_for_ever(room: Room) -> None:
    """HO-PYPI-4, W4."""
    first = wheel("foo", "1.0")
    assert room.upload(FOO, first).status_code == 200
    for data in (first, wheel("foo", "1.0", "Summary: other")):
        again = room.upload(FOO, data)
        assert (again.status_code, again.text.startswith("File already exists")) == (409, True)
    assert room.get(f"files/foo/{FOO}").data == first
    assert room.request("DELETE", f"files/foo/{FOO}").status_code == 204
    assert room.upload(FOO, first).status_code == 409


def test_signature_and_attestations_stand_beside_the_file_and_go_with_it(room: Room) -> None:
    attestations = json.dumps([{"version": 1}])
    done = room.upload(FOO, wheel("foo", "1.0"), ("gpg_signature", FOO + ".asc", b"signed"), attestations=attestations)
    assert done.status_code == 200, done.text
    assert page(room)["files"][0]["gpg-sig"] is True
    assert room.get(f"files/foo/{FOO}.asc").data == b"signed"
    served = json.loads(room.get(f"files/foo/{FOO}.provenance").data)
    assert served["attestation_bundles"][0]["attestations"] == [{"version": 1}]
    assert room.request("DELETE", f"files/foo/{FOO}.asc").status_code == 409
    assert room.request("DELETE", f"files/foo/{FOO}").status_code == 204
    for ending in ("", ".asc", ".metadata", ".provenance"):
        assert room.get(f"files/foo/{FOO}{ending}").status_code == 404
    assert room.get("simple/foo/").status_code == 404


def test_each_form_of_a_page_has_its_own_validator_and_the_asked_coding(room: Room) -> None:
    room.upload(FOO, wheel("foo", "1.0"))
    seen = set()
    for accept in ("text/html", "application/vnd.pypi.simple.v1+json", "application/vnd.pypi.simple.v1+html"):
        for coding in ("identity", "gzip"):
            answer = room.get("simple/foo/", headers={"Accept": accept, "Accept-Encoding": coding})
            body = gzip.decompress(answer.data) if coding == "gzip" else answer.data
            assert answer.headers["Content-Type"].startswith(accept)
            assert answer.headers.get("Content-Encoding", "identity") == coding
            assert FOO.encode() in body
            assert {"Accept", "Accept-Encoding"} <= {name.strip() for name in answer.headers["Vary"].split(",")}
            again = room.get("simple/foo/", headers={"Accept": accept, "Accept-Encoding": coding, "If-None-Match": answer.headers["ETag"]})
            assert again.status_code == 304
            seen.add(answer.headers["ETag"])
    assert len(seen) == 6


def test_a_publish_changes_the_validator_of_its_project_only(room: Room) -> None:
    """C9."""
    room.upload(FOO, wheel("foo", "1.0"))
    room.upload("bar-1.0-py3-none-any.whl", wheel("bar", "1.0"))
    foo, bar = (room.get(f"simple/{name}/").headers["ETag"] for name in ("foo", "bar"))
    room.upload("foo-1.1-py3-none-any.whl", wheel("foo", "1.1"))
    assert room.get("simple/foo/").headers["ETag"] != foo
    assert room.get("simple/bar/").headers["ETag"] == bar


def test_other_spellings_are_redirected_to_the_normalised_address(room: Room) -> None:
    room.upload("foo_bar-1.0-py3-none-any.whl", wheel("foo_bar", "1.0"))
    for path in ("simple/Foo.Bar", "simple/Foo.Bar/", "simple/foo-bar", "pypi/Foo_Bar/json", "pypi/Foo_Bar/1.0/json", "simple", ""):
        answer = room.get(path + "?x=1", follow_redirects=False)
        assert answer.status_code == 308
        assert "://" not in answer.headers["Location"]
        address = urljoin(f"http://h/pypi/py/{path}", answer.headers["Location"])
        assert address.endswith("?x=1")
        followed = room.get(address.removeprefix("http://h/pypi/py/"))
        assert followed.status_code == 200, address
        assert b"foo-bar" in followed.data


def test_who_accepts_no_form_of_ours_gets_406(room: Room) -> None:
    assert room.get("simple/", headers={"Accept": "application/vnd.pypi.simple.v2+json"}).status_code == 406
    assert room.get("simple/?format=application/vnd.pypi.simple.v1%2Bjson").headers["Content-Type"] == JSON["Accept"]


def test_a_release_is_yanked_with_its_reason_and_back(room: Room) -> None:
    room.upload(FOO, wheel("foo", "1.0"))
    before = room.get("simple/foo/").headers["ETag"]
    assert room.request("PUT", "pypi/foo/1.0.0/yanked", data="brökén".encode()).status_code == 204
    assert page(room)["files"][0]["yanked"] == "brökén"
    assert room.get("simple/foo/").headers["ETag"] != before
    assert room.request("PUT", "pypi/foo/1.0/yanked").status_code == 204
    assert page(room)["files"][0]["yanked"] is True
    assert room.request("DELETE", "pypi/foo/1.0/yanked").status_code == 204
    assert page(room)["files"][0]["yanked"] is False
    assert room.request("PUT", "pypi/foo/1.1/yanked").status_code == 404
    assert room.request("PUT", "pypi/foo/1.0/yanked", data=b"a\nb").status_code == 400
    assert room.request("PUT", "pypi/foo/1.0/yanked", anonymous=True).status_code == 401


def test_a_release_is_deleted_with_all_its_files(room: Room) -> None:
    room.upload(FOO, wheel("foo", "1.0"))
    room.upload("foo-1.0.tar.gz", sdist("foo", "1.0"))
    room.upload("foo-2.0.tar.gz", sdist("foo", "2.0"))
    assert room.request("DELETE", "pypi/foo/1.0").status_code == 204
    assert page(room)["versions"] == ["2.0"]


def test_the_json_documents_tell_of_the_metadata(room: Room) -> None:
    room.upload(FOO, wheel("foo", "1.0", "Summary: a \\u0000 literal", "Requires-Dist: bar>=1"), comment="a comment")
    room.upload("foo-1.1rc1.tar.gz", sdist("foo", "1.1rc1"))
    found = json.loads(room.get("pypi/foo/json").data)
    assert found["info"]["version"] == "1.0"
    assert found["info"]["summary"] == "a \\u0000 literal"
    assert found["info"]["requires_dist"] == ["bar>=1"]
    assert sorted(found["releases"]) == ["1.0", "1.1rc1"]
    assert found["urls"][0]["comment_text"] == "a comment"
    assert room.get(found["urls"][0]["url"].partition("/pypi/py/")[2]).status_code == 200
    assert json.loads(room.get("pypi/foo/1.1RC1/json").data)["info"]["version"] == "1.1rc1"
    assert room.get("pypi/foo/3/json").status_code == 404


def test_a_nul_in_what_is_kept_is_dropped_and_what_only_looks_like_one_stays(room: Room) -> None:
    assert room.upload(FOO, wheel("foo", "1.0"), comment="a\0b\\u0000").status_code == 200
    assert json.loads(room.get("pypi/foo/json").data)["urls"][0]["comment_text"] == "ab\\u0000"


def test_the_metadata_is_written_in_a_thread_and_before_the_transaction(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing it is pure Python: within the transaction it would hold the repository's lock, on the loop everybody."""
    loop, order = current_thread(), []
    dump, publish = publishing._json, Publisher._publish

    def noted_dump(value: Any) -> str:
        order.append("in a thread" if current_thread() != loop else "on the loop")
        return dump(value)

    def noted_publish(*arguments: Any) -> Any:
        order.append("transaction")
        return publish(*arguments)

    monkeypatch.setattr(publishing, "_json", noted_dump)
    monkeypatch.setattr(Publisher, "_publish", noted_publish)
    assert room.upload(FOO, wheel("foo", "1.0", "Requires-Python: >=3")).status_code == 200
    assert order == ["in a thread", "in a thread", "transaction"]


def test_the_document_of_a_release_reads_the_files_of_that_release_alone(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of thousands of versions the others cost nothing."""
    for version in ("1.0", "1.1", "2.0"):
        assert room.upload(f"foo-{version}-py3-none-any.whl", wheel("foo", version), comment=version).status_code == 200
    read: list[list[str]] = []
    monkeypatch.setattr(parts, "files_of", lambda rows: read.append([row.path for row in rows]) or files_of(rows))
    found = json.loads(room.get("pypi/foo/1.1.0/json").data)
    assert (found["info"]["version"], [entry["comment_text"] for entry in found["urls"]]) == ("1.1", ["1.1"])
    assert [sorted(paths) for paths in read] == [["foo/foo-1.1-py3-none-any.whl", "foo/foo-1.1-py3-none-any.whl.metadata"]]
    assert room.get("pypi/foo/nonsense/json").status_code == 404


def test_a_project_whose_files_are_all_withheld_has_no_document_though_something_stands_beside_them(room: Room) -> None:
    assert room.upload(FOO, wheel("foo", "1.0")).status_code == 200
    with room.parts.database.write() as connection:
        connection.exec_driver_sql("update arkvory_artifacts set withheld = true where path not like '%%.metadata'")
    for path in ("pypi/foo/json", "pypi/foo/1.0/json"):
        assert room.get(path).status_code == 404


def test_each_file_of_a_release_has_its_own_comment_and_the_wheel_tells_of_the_rest(room: Room) -> None:
    assert room.upload("foo-1.0.tar.gz", sdist("foo", "1.0"), comment="source").status_code == 200
    assert room.upload(FOO, wheel("foo", "1.0", "Summary: of the wheel"), comment="wheel").status_code == 200
    for path in ("pypi/foo/json", "pypi/foo/1/json"):
        found = json.loads(room.get(path).data)
        assert found["info"]["summary"] == "of the wheel"
        assert [entry["comment_text"] for entry in found["urls"]] == ["wheel", "source"]


@pytest.mark.parametrize(
    ("filename", "content", "fields", "words"),
    [
        (FOO, wheel("foo", "1.1"), {}, "its folder 'foo-1.1'"),
        (FOO, b"corrupt", {}, "is damaged"),
        (FOO, wheel("foo", "1.0"), {"name": "bar"}, "the form names the project 'bar'"),
        (FOO, wheel("foo", "1.0"), {"sha256_digest": "0" * 64}, "sha256"),
        (FOO, wheel("foo", "1.0"), {"md5_digest": "0" * 32}, "md5"),
        (FOO, wheel("foo", "1.0"), {"blake2_256_digest": "0" * 64}, "blake2"),
        (FOO, wheel("foo", "1.0"), {":action": "submit"}, ":action"),
        (FOO, wheel("foo", "1.0"), {"version": "9" * 5000}, "is not a version"),
        (FOO, wheel("foo", "1.0"), {"comment": "\x01" * 8_000_000}, "'comment' may have 65536 characters"),
        (FOO, wheel("foo", "1.0", "Requires-Python: >=" + "9" * 5000), {}, "wrong requires-python"),
        (FOO, wheel("foo", "1.0", *(f"{number:x}: a" for number in range(4096, 22_000))), {}, "lines of headers"),
        ("..-1.0.tar.gz", b"", {}, "cannot be the name"),
        ("foo-1.0.exe", b"", {}, "neither a wheel"),
    ],
)
def test_a_wrong_upload_leaves_nothing(room: Room, filename: str, content: bytes, fields: dict[str, str], words: str) -> None:
    """W1."""
    answer = room.upload(filename, content, **fields)
    assert (answer.status_code, words in answer.text) == (400, True), answer.text
    assert json.loads(room.get("simple/", headers=JSON).data)["projects"] == []
    with room.parts.database.read() as connection:
        bytes_counted = connection.exec_driver_sql("select coalesce(sum(bytes), 0) from arkvory_upload_bytes").scalar_one()
    assert bytes_counted == 0


def test_weaker_digests_alone_are_checked_too(room: Room) -> None:
    data = wheel("foo", "1.0")
    blake = hashlib.blake2b(data, digest_size=32).hexdigest()
    assert room.upload(FOO, data, blake2_256_digest=blake).status_code == 200
    data = sdist("foo", "1.0")
    assert room.upload("foo-1.0.tar.gz", data, md5_digest=hashlib.md5(data).hexdigest()).status_code == 200


def test_a_form_that_is_cut_off_leaves_nothing(room: Room) -> None:
    """W1."""
    form = form_of([(":action", None, b"file_upload"), ("content", FOO, wheel("foo", "1.0"))])
    answer = room.request("POST", "", data=form[:-30], content_type=CONTENT_TYPE)
    assert answer.status_code == 400
    assert room.get("simple/foo/").status_code == 404


def test_the_address_itself_takes_uploads_with_the_file_first(room: Room) -> None:
    fields = {":action": b"file_upload", "name": b"foo", "version": b"1.0"}
    form = form_of([("content", FOO, wheel("foo", "1.0")), *((name, None, value) for name, value in fields.items())])
    assert room.request("POST", "", data=form, content_type=CONTENT_TYPE).status_code == 200
    assert room.request("POST", "", data=form, content_type=CONTENT_TYPE, anonymous=True).status_code == 401
    assert room.request("POST", "", data=b"{}", content_type="application/json").status_code == 400
