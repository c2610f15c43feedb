"""Paths arrive as they were sent, decoded once, and leave encoded once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from flask import Flask
from werkzeug.routing import Rule

from app.errors import InvalidPath
from app.http.paths import RawPath, decode_path, encode_path, raw_path, route_on_raw_paths
from tests.http.edge import Edge
from tests.http.sample import app


@pytest.mark.parametrize(("sent", "path"), [
    ("a/b.txt", "a/b.txt"),
    ("torch-1.10.2%2Brocm4.2.whl", "torch-1.10.2+rocm4.2.whl"),
    ("torch-1.10.2+rocm4.2.whl", "torch-1.10.2+rocm4.2.whl"),
    ("a%2Fb", "a/b"),
    ("%7Euser/~user", "~user/~user"),
    ("[x]^{y}|", "[x]^{y}|"),
    ("%5Bx%5D%5E", "[x]^"),
    ("with%20space", "with space"),
    ("%C3%9Cbungen/%e5%9c%9f.txt", "\u00dcbungen/\u571f.txt"),
    ("\u00dcbungen", "\u00dcbungen"),
    ("U%CC%88", "U\u0308"),
    ("file%5Ba%23b%5D%3F.log", "file[a#b]?.log"),
    ("%252e%252e/%2520", "%2e%2e/%20"),
    ("%2525", "%25"),
    ("...", "..."),
    (".hidden/..x", ".hidden/..x"),
    ("folder/", "folder/"),
    ("%41%2D%5f", "A-_"),
    ("a;b=c&d,e@f:g!$'()*", "a;b=c&d,e@f:g!$'()*"),
    ("a" * 1024, "a" * 1024),
])
def test_a_path_is_decoded_once_and_its_link_leads_back(edge: Edge, sent: str, path: str) -> None:
    answer = edge.ask("GET", "/path/" + sent.encode().decode("latin-1") + "?q=%2e#".rstrip("#"))
    got, link = answer.body.decode().split("\n")
    assert (answer.status, got) == (200, path)
    again = edge.ask("GET", f"/path/{link}")
    assert again.body == answer.body


@pytest.mark.parametrize("sent", [
    "..", "../x", "a/..", "a/../b", "%2e%2e/x", "a/%2E%2e/b", "a%2F..%2Fb", "..%2f..%2fetc", ".", "a/./b", "%2e",
    "a%00b", "a%0Ab", "a%0d%0aX", "a%1f", "a%7F", "a%5Cb", "a\\b", "..%5c..", "/etc/passwd", "%2Fetc/passwd", "a//b", "a%2F%2Fb", "a///",
    "//", "%ff", "%c3", "%C0%AE%C0%AE/x", "\xed\xa0\x80", "%", "a%2", "a%zz", "%u0041", "..;/x", "a/..;b=c/x", "a/.;/b",
    "a%2F..%3Bx%2Fb", "a" * 1025, "%C3%9C" * 513,
])
def test_a_path_that_no_artifact_can_have_is_400(edge: Edge, sent: str) -> None:
    answer = edge.ask("GET", f"/path/{sent}")
    assert (answer.status, answer.body.split(b":")[0]) == (400, b"invalid_path")


def test_a_raw_nul_or_space_is_400_before_any_route(edge: Edge) -> None:
    for target in (b"/path/a\0b", b"/path/a b", b"/path/a\tb"):
        assert edge.raw(b"GET " + target + b" HTTP/1.1\r\nHost: a\r\n\r\n").status == 400


@pytest.mark.parametrize(("sent", "status", "name"), [
    ("a%2Bb", 200, b"a+b"), ("%2541", 200, b"%41"), ("a%2Fb", 400, None), ("a%2f..%2fb", 400, None),
    ("%2e%2e", 400, None), ("%00", 400, None),
])
def test_a_segment_holds_no_slash(edge: Edge, sent: str, status: int, name: bytes | None) -> None:
    answer = edge.ask("GET", f"/segment/{sent}/end")
    assert answer.status == status
    assert name in (None, answer.body)


def test_an_encoded_separator_is_not_one_for_the_routes(edge: Edge) -> None:
    assert edge.ask("GET", "/segment%2Fa%2Fend").status == 404
    assert edge.ask("GET", "/p%69ng").body == b"pong"


def test_the_absolute_form_routes_like_the_origin_form(edge: Edge) -> None:
    assert edge.ask("GET", "http://other.test:81/path/a%2Bb?x").body.split(b"\n")[0] == b"a+b"
    assert edge.ask("GET", "http://other.test").status == 404


def test_flasks_own_test_client_routes_the_same_way() -> None:
    client = app.test_client()
    assert client.get("/path/a%252Fb%2Bc").data.split(b"\n")[0] == b"a%2Fb+c"
    assert client.get("/path/a%00b").status_code == 400
    assert client.get("/path/../x").status_code == 400


def test_links_made_by_flask_are_encoded_once() -> None:
    with app.test_request_context("/"):
        assert app.url_for("path", path="\u00dc b/c+d%2F") == "/path/%C3%9C%20b/c%2Bd%252F"
        assert app.url_for("segment", name="a/b") == "/segment/a%2Fb/end"


def test_what_makes_links_is_compiled_for_the_first_one_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take half of a server's start."""
    compiled: list[bool] = []
    really = Rule._compile_builder

    def compile_builder(rule: Rule, append_unknown: bool = True) -> Callable[..., tuple[str, str]]:
        compiled.append(append_unknown)
        return really(rule, append_unknown)

    monkeypatch.setattr(Rule, "_compile_builder", compile_builder)
    fresh = Flask("fresh", static_folder=None)
    route_on_raw_paths(fresh)
    fresh.add_url_rule("/a/<segment:name>", "a")
    assert compiled == []
    with fresh.test_request_context("/"):
        assert [fresh.url_for("a", name=name, q="1") for name in ("x", "/")] == ["/a/x?q=1", "/a/%2F?q=1"]
    assert compiled == [True]


@pytest.mark.parametrize(("environ", "path"), [
    ({"RAW_URI": "/a%2f%7e%41?b"}, "/a%2F~A"),
    ({"RAW_URI": "http://h:1/a%2Fb"}, "/a%2Fb"),
    ({"RAW_URI": "http://h"}, "/"),
    ({"RAW_URI": "http://h?x"}, "/"),
    ({"RAW_URI": "/http://h/x"}, "/http://h/x"),
    ({"RAW_URI": "//h/x"}, "//h/x"),
    ({"RAW_URI": "/%zz%2"}, "/%zz%2"),
    ({"RAW_URI": "/\xc3\x9c"}, "/%C3%9C"),
    ({"PATH_INFO": "/\xc3\x9c%+~ "}, "/%C3%9C%25%2B~%20"),
])
def test_the_raw_path_is_normalised_but_stays_encoded(environ: dict[str, str], path: str) -> None:
    assert raw_path(environ) == path


def test_the_wrapper_leaves_the_script_name_alone() -> None:
    seen: dict[str, str] = {}

    def inner(environ: dict[str, str], _start: object) -> list[bytes]:
        seen.update(environ)
        return []

    RawPath(inner)({"RAW_URI": "/a%2Fb", "SCRIPT_NAME": "/x", "PATH_INFO": "/a/b"}, None)  # type: ignore[arg-type]  # nothing is answered
    assert (seen["SCRIPT_NAME"], seen["PATH_INFO"]) == ("/x", "/a%2Fb")


def test_decoding_undoes_encoding() -> None:
    for path in ("a b", "100%/+", "\u00dc\u571f", "x;y=z", "'\"<>&", "~._-"):
        assert decode_path(encode_path(path)) == path
        assert encode_path(path).isascii()


def test_decoding_outside_of_a_route_raises_the_domains_error() -> None:
    with pytest.raises(InvalidPath):
        decode_path("a/../b")
