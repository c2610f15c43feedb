"""What is made of an upstream's pages, as they come from all kinds of servers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.protocols.pypi import pages
from app.protocols.pypi.names import version_in
from app.protocols.pypi.pages import read_names, read_page
from app.upload.archives.tars import Unreadable

AT = "https://up.example/root/simple/foo/"
SHA = "a" * 64


def html(*anchors: str, head: str = "") -> bytes:
    return f"<!DOCTYPE html><html><head>{head}<title>Links for foo</title></head><body>{''.join(anchors)}</body></html>".encode()


def page(*files: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"meta": {"api-version": "1.4"}, "name": "foo", "files": files, **more}).encode()


def only(data: bytes, address: str = AT) -> dict[str, Any]:
    (file,) = read_page(data, address, "foo").files
    return file


@pytest.mark.parametrize(
    ("href", "url"),
    [
        ("foo-1.0.tar.gz", "https://up.example/root/simple/foo/foo-1.0.tar.gz"),
        ("../../packages/foo-1.0.tar.gz", "https://up.example/root/packages/foo-1.0.tar.gz"),
        ("/p/foo-1.0.tar.gz", "https://up.example/p/foo-1.0.tar.gz"),
        ("//files.example/foo-1.0.tar.gz", "https://files.example/foo-1.0.tar.gz"),
        ("http://files.example:81/foo-1.0.tar.gz?sig=a%2Bb&x=1", "http://files.example:81/foo-1.0.tar.gz?sig=a%2Bb&x=1"),
        ("foo-1.0.tar.gz#sha256=" + SHA + "&egg=foo", "https://up.example/root/simple/foo/foo-1.0.tar.gz"),
        ("a b/foo-1.0.tar.gz", "https://up.example/root/simple/foo/a%20b/foo-1.0.tar.gz"),
        ("ü/foo-1.0.tar.gz", "https://up.example/root/simple/foo/%C3%BC/foo-1.0.tar.gz"),
    ],
)
def test_links_lead_where_browsers_go(href: str, url: str) -> None:
    assert only(html(f'<a href="{href}">foo-1.0.tar.gz</a>'))["url"] == url
    entry = {"filename": "foo-1.0.tar.gz", "url": href, "hashes": {}}
    assert only(page(entry))["url"] == url


def test_a_base_goes_before_the_pages_own_address_and_the_first_one_counts() -> None:
    head = '<base href="https://cdn.example/a/"><base href="https://other.example/">'
    assert only(html('<a href="foo-1.0.zip">x</a>', head=head))["url"] == "https://cdn.example/a/foo-1.0.zip"
    assert only(html('<a href="foo-1.0.zip">x</a>', head='<base href="../b/">'))["url"] == "https://up.example/root/simple/b/foo-1.0.zip"


def test_html_and_json_say_the_same() -> None:
    anchor = (
        f'<a href="foo-1.0-py3-none-any.whl#sha256={SHA.upper()}" data-requires-python="&gt;=3.8" data-yanked="why &amp; when" '
        f'data-dist-info-metadata="sha256={"b" * 64}" data-gpg-sig="true" data-provenance="https://p.example/x">foo-1.0-py3-none-any.whl</a>'
    )
    entry = {
        "filename": "foo-1.0-py3-none-any.whl", "url": "foo-1.0-py3-none-any.whl", "hashes": {"sha256": SHA}, "requires-python": ">=3.8",
        "yanked": "why & when", "dist-info-metadata": {"sha256": "b" * 64}, "gpg-sig": True, "provenance": "https://p.example/x",
    }  # fmt: skip
    found = only(html(anchor))
    assert found == only(page(entry))
    assert found == {
        "filename": "foo-1.0-py3-none-any.whl", "url": AT + "foo-1.0-py3-none-any.whl", "version": "1.0", "hashes": {"sha256": SHA},
        "requires_python": ">=3.8", "core_metadata": {"sha256": "b" * 64}, "signed": True, "yanked": "why & when", "size": None,
        "uploaded_at": None, "provenance": "https://p.example/x",
    }  # fmt: skip


def test_json_alone_knows_sizes_times_versions_and_status_and_html_the_status() -> None:
    entry = {"filename": "foo-1.0.zip", "url": "foo-1.0.zip", "hashes": {}, "size": 7, "upload-time": "2026-01-02T03:04:05.6Z"}
    read = read_page(page(entry, versions=["0.9", "1.0"], **{"project-status": {"status": "archived", "reason": "old"}}), AT, "foo")
    assert (read.files[0]["size"], read.files[0]["uploaded_at"]) == (7, "2026-01-02T03:04:05.6Z")
    assert (read.versions, read.status, read.reason) == (["0.9", "1.0"], "archived", "old")
    head = '<meta name="pypi:project-status" content="deprecated"><meta name="pypi:project-status-reason" content="use bar">'
    assert read_page(html(head=head), AT, "foo")[2:] == ("deprecated", "use bar")


@pytest.mark.parametrize(
    ("value", "meaning"),
    [
        ("", None),
        ("false", None),
        ("true", {}),
        ("sha256=" + SHA, {"sha256": SHA}),
        ("sha256=short", {}),
        ("md5=" + "c" * 32, {"md5": "c" * 32}),
    ],
)
def test_what_the_metadata_attribute_may_say(value: str, meaning: Any) -> None:
    """PEP 714: the newer name goes first."""
    attributes = f'data-core-metadata="{value}" data-dist-info-metadata="sha256={"f" * 64}"'
    assert only(html(f'<a href="foo-1.0-py3-none-any.whl" {attributes}>x</a>'))["core_metadata"] == meaning


def test_what_is_no_file_of_a_project_is_left_out() -> None:
    names = [
        "a/b.whl",
        "..",
        "x.whl\n",
        "x.txt",
        "foo-1.0.tar.gz.asc",
        "foo-1.0-py3-none-any.whl.metadata",
        "",
        7,
        "\ud800.zip",
        "n" * 260 + ".zip",
    ]
    entries = [{"filename": name, "url": "x", "hashes": {}} for name in names]
    wrong = [{"filename": "foo-1.0.zip", "url": url} for url in ("ftp://h/x", "http://[::1", 5, "javascript:x", "http://h:0/x")]
    assert read_page(page(*entries, *wrong, {}, {"filename": "foo-2.zip", "url": "x"}), AT, "foo").files == [
        only(page({"filename": "foo-2.zip", "url": "x"}))
    ]
    autoindex = html('<a href="../">Parent</a>', '<a href="?C=M">Date</a>', '<a href="foo-2.zip">foo-2.zip</a>')
    assert only(autoindex)["filename"] == "foo-2.zip"


def test_what_is_not_what_it_should_be_is_not_passed_on() -> None:
    entry = {
        "filename": "foo-1.0.zip", "url": "x", "hashes": {"sha256": "xyz", "md5": "d" * 32, "what": "e" * 32, "sha1": 5}, "size": -1,
        "requires-python": 3, "yanked": False, "upload-time": 12, "gpg-sig": "yes", "core-metadata": "no", "provenance": 4,
    }  # fmt: skip
    found = only(page(entry))
    assert found["hashes"] == {"md5": "d" * 32}
    assert [found[key] for key in found if key not in ("hashes", "filename", "url", "version")] == [None] * 7


def test_the_first_of_two_files_with_one_name_counts() -> None:
    found = only(page(*({"filename": "foo-1.zip", "url": url} for url in ("first", "second"))))
    assert found["url"].endswith("/first")


@pytest.mark.parametrize(
    ("data", "clause"),
    [
        (b"<html><head><title>Sign in</title></head><body><a href='/login'>Log in</a></body></html>", "names no file"),
        (b"", "names no file"),
        (b"Internal error", "names no file"),
        (b'{"meta": {"api-version": "1.0"}', "broken JSON"),
        (b"[1, 2]", "no index page"),
        (b'{"message": "hello"}', "without a list of files"),
        (b'{"files": {}}', "without a list of files"),
        (b"{" * 100_000, "broken JSON"),
        (b'{"files": [' + b"[" * 200_000, "broken JSON"),
        (b'{"files": [], "n": ' + b"9" * 10_000 + b"}", "broken JSON"),
        (page(meta={"api-version": "2.0"}), "version 2.0"),
        (html(head='<meta name="pypi:repository-version" content="2.1">'), "version 2.1"),
        (b'{"files": [], "x": "\xff"}', "broken JSON"),
    ],
)
def test_what_is_no_index_page_is_told_from_one(data: bytes, clause: str) -> None:
    with pytest.raises(Unreadable, match=clause):
        read_page(data, AT, "foo")


def test_an_empty_page_is_one() -> None:
    assert read_page(page(), AT, "foo").files == read_page(html(), AT, "foo").files == []


@pytest.mark.parametrize(
    ("filename", "project", "version"),
    [
        ("foo-1.0-py3-none-any.whl", "foo", "1.0"),
        ("Foo.Bar-1.0.0.tar.gz", "foo-bar", "1.0.0"),
        ("foo-bar-1.0.zip", "foo-bar", "1.0"),
        ("foo-1.0-1.tar.gz", "foo", "1.0.post1"),
        ("foo-1.0-py3.8.egg", "foo", "1.0"),
        ("foo-1.0.win32-py2.7.exe", "foo", ""),
        ("foo-1.0.linux-x86_64.tar.gz", "foo", ""),
        ("foo-2.1.tar.bz2", "foo", "2.1"),
        ("foo-v1.0rc1.tgz", "foo", "1.0rc1"),
        ("other-1.0.tar.gz", "foo", ""),
        ("foo.whl", "foo", ""),
        ("-".join("a" * 100) + ".zip", "foo", ""),
    ],
)
def test_the_version_in_a_name(filename: str, project: str, version: str) -> None:
    assert version_in(filename, project) == version


def test_the_names_of_an_index() -> None:
    assert read_names(b'{"meta": {}, "projects": [{"name": "Foo_Bar"}, {"name": "b"}, {"name": "b"}, {"name": "-"}, 5, {}]}') == [
        "b",
        "foo-bar",
    ]
    anchors = '<a href="/simple/foo-bar/">Foo_Bar</a><a href="b">b</a><a href="../">up</a><a href="https://x.example/about">help</a>'
    assert read_names(f"<html><title>Simple index</title>{anchors}</html>".encode()) == ["b", "foo-bar"]
    with pytest.raises(Unreadable):
        read_names(b"<html><title>Welcome</title><a href='/login'>Sign in</a></html>")


def test_a_child_answers_with_lines_and_with_what_is_wrong(tmp_path: Any) -> None:
    path = tmp_path / "page"
    path.write_bytes(page(*({"filename": f"foo-{n}.zip", "url": "x"} for n in range(250))))
    first, *rest = pages.answer(str(path), json.dumps(["page", AT, "foo"])).splitlines()
    assert json.loads(first)["files"] == 250
    assert [len(json.loads(line)) for line in rest] == [100, 100, 50]
    one = pages.answer(str(path), json.dumps(["page", AT, "foo", "foo-7.zip"])).splitlines()[1:]
    assert [each["filename"] for line in one for each in json.loads(line)] == ["foo-7.zip"]
    path.write_bytes(b"{")
    assert "broken" in json.loads(pages.answer(str(path), json.dumps(["page", AT, "foo"])))["unreadable"]
