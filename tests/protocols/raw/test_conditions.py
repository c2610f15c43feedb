"""Conditions, dates and content types of raw files, over a whole server."""

from __future__ import annotations

import http.client
import itertools
from email.utils import parsedate_to_datetime
from typing import Any

import pytest

from tests.support.server import Server

_numbers = itertools.count(1)


class Files:
    """A fresh public repository."""

    def __init__(self, server: Server) -> None:
        self.server, self.name = server, f"conditions{next(_numbers)}"
        server.repository(self.name, public=True)

    def send(self, method: str, path: str, data: bytes = b"", **headers: str) -> Any:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.server.request(method, f"/raw/{self.name}/{path}", data=data, headers=named)


@pytest.fixture
def files(server: Server) -> Files:
    return Files(server)


@pytest.mark.parametrize("tags", ['W/"abc"', "", '"other"', 'W/"a", W/"b"'])
@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_an_if_match_that_matches_nothing_changes_nothing(files: Files, tags: str, method: str) -> None:
    """RFC 9110, 13.1.1: the comparison is strong, so a weak tag never matches; an empty list is no missing one."""
    files.send("PUT", "x", b"first")
    assert files.send(method, "x", b"second", If_Match=tags).status_code == 412
    assert files.send("GET", "x").content == b"first"


def test_a_weak_tag_of_our_own_digest_does_not_match_either(files: Files) -> None:
    etag = files.send("PUT", "x", b"first").headers["ETag"]
    assert files.send("PUT", "x", b"second", If_Match=f"W/{etag}").status_code == 412
    assert files.send("PUT", "x", b"second", If_Match=etag).status_code == 204


def test_if_none_match_compares_weakly_and_counts_for_deletes_too(files: Files) -> None:
    etag = files.send("PUT", "x", b"first").headers["ETag"]
    assert files.send("PUT", "x", b"second", If_None_Match=f"W/{etag}").status_code == 412
    assert files.send("PUT", "x", b"second", If_None_Match='"other"').status_code == 204
    assert files.send("DELETE", "x", If_None_Match="*").status_code == 412


def test_bytes_that_went_and_came_again_within_a_second_have_another_date(files: Files) -> None:
    """Neither a mix by If-Range nor a 304 for changed content, whatever happened within the second (W2)."""
    for number in range(4):
        files.send("PUT", "x", b"a" * 100)
        date = files.send("GET", "x").headers["Last-Modified"]
        if number % 2:
            files.send("PUT", "x", b"b" * 100)
        else:
            files.send("DELETE", "x")
            files.send("PUT", "x", b"b" * 100)
        part = files.send("GET", "x", Range="bytes=50-", If_Range=date)
        assert part.status_code == 200, "a range of other bytes than those that the date was of"
        assert files.send("GET", "x", If_Modified_Since=date).status_code == 200
        files.send("DELETE", "x")


def test_last_modified_is_never_later_than_the_answer(files: Files) -> None:
    for number in range(5):
        files.send("PUT", "x", str(number).encode())
    answer = files.send("GET", "x")
    assert parsedate_to_datetime(answer.headers["Last-Modified"]) <= parsedate_to_datetime(answer.headers["Date"])


@pytest.mark.parametrize("content_type", ["text/日本", "text/\u2028", "a" * 300])
def test_a_content_type_that_cannot_be_sent_back_is_not_kept(files: Files, content_type: str) -> None:
    body = (
        f'--b\r\nContent-Disposition: form-data; name="f"; filename="x.txt"\r\nContent-Type: {content_type}\r\n\r\nhello\r\n--b--\r\n'
    ).encode()
    assert files.send("POST", "", body, Content_Type="multipart/form-data; boundary=b").status_code == 201
    answer = files.send("GET", "x.txt")
    assert (answer.status_code, answer.content) == (200, b"hello")
    assert answer.headers["Content-Type"] == "text/plain"


def test_a_form_brings_a_bounded_number_of_files(files: Files) -> None:
    parts = "".join(f'--b\r\nContent-Disposition: form-data; name="f"; filename="{n}"\r\n\r\nx\r\n' for n in range(150))
    answer = files.send("POST", "many/", (parts + "--b--\r\n").encode(), Content_Type="multipart/form-data; boundary=b")
    assert answer.status_code == 400
    assert files.send("GET", "many/").status_code == 404


def test_the_location_of_what_was_stored_is_an_address_that_leads_there(files: Files) -> None:
    location = files.send("PUT", "a b/c%2Bd", b"x").headers["Location"]
    assert location.startswith(files.server.url)
    assert files.server.get(location.removeprefix(files.server.url)).content == b"x"


@pytest.mark.parametrize("method", ["BREW", "get", "head", "PROPFIND", "M" * 100])
def test_a_method_that_nobody_knows_is_refused_before_it_counts(server: Server, method: str) -> None:
    """Names of methods are labels of metrics: made-up ones would fill the memory for ever."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request(method, "/health/live")
    assert connection.getresponse().status == 501
    assert f'"{method}"' not in server.get("/metrics", auth=None).text


def test_nobody_learns_by_the_answer_which_repositories_exist(server: Server) -> None:
    server.repository("hidden")
    server.post("/api/v1/users", json={"name": "stranger", "password": "long enough"})
    for auth in (None, ("stranger", "long enough")):
        for method in ("GET", "PUT", "DELETE"):
            texts = {
                (answer.status_code, answer.text.replace(name, "NAME"))
                for name in ("hidden", "absent")
                for answer in [server.request(method, f"/raw/{name}/x", auth=auth)]
            }
            assert len(texts) == 1, texts
