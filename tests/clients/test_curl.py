"""curl against raw repositories."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from urllib.parse import urljoin

import pytest

from tests.clients.conftest import Desk
from tests.support.server import Server

_numbers = itertools.count(1)


class Files:
    """A fresh raw repository, and curl's way to it."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.name = f"files{next(_numbers)}"
        self.url = desk.server.repository(self.name)

    def curl(self, *arguments: str | Path, check: bool = True) -> str:
        login = ":".join(self.desk.server.admin)
        return self.desk.run("curl", "-sS", "-g", "--path-as-is", "-u", login, *arguments, check=check).stdout

    def code(self, *arguments: str | Path) -> int:
        """The status of the answer; its body goes to the file `body`."""
        return int(self.curl("-o", self.desk.home / "body", "-w", "%{http_code}", *arguments, check=False)[-3:])

    def get(self, path: str) -> bytes:
        assert self.code(f"{self.url}/{path}") == 200
        return (self.desk.home / "body").read_bytes()


@pytest.fixture
def files(desk: Desk) -> Files:
    return Files(desk)


def test_what_curl_puts_it_gets(files: Files) -> None:
    data = os.urandom(300_000)
    path = files.desk.file("data.bin", data)
    assert files.code("-T", path, f"{files.url}/a/b/data.bin") == 201
    assert files.get("a/b/data.bin") == data
    assert files.code("-T", path, f"{files.url}/a/b/data.bin") == 204
    assert files.code("-X", "DELETE", f"{files.url}/a/b/data.bin") == 204
    assert files.code(f"{files.url}/a/b/data.bin") == 404


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 2**20 - 1, 2**20, 2**20 + 1, 40 * 2**20 + 1])
@pytest.mark.parametrize("chunked", [True, False])
def test_bodies_of_any_length_arrive_whole(files: Files, size: int, chunked: bool) -> None:
    """HO-RAW-2."""
    data = os.urandom(size)
    path = files.desk.file("body.bin", data)
    if chunked:
        # From a pipe: curl 7.88 sends no last chunk for an empty file that it knows the length of.
        login = ":".join(files.desk.server.admin)
        files.desk.run("sh", "-c", f"cat {path} | curl -fsS -u {login} -H 'Transfer-Encoding: chunked' -T - {files.url}/big/f")
    else:
        assert files.code("-T", path, f"{files.url}/big/f") == 201
    assert files.get("big/f") == data
    assert files.desk.server.head(f"/raw/{files.name}/big/f").headers["Content-Length"] == str(size)


def test_curl_streams_from_a_pipe(files: Files) -> None:
    path = files.desk.file("piped", b"from a pipe")
    login = ":".join(files.desk.server.admin)
    files.desk.run("sh", "-c", f"cat {path} | curl -fsS -u {login} -T - {files.url}/piped.txt")
    assert files.get("piped.txt") == b"from a pipe"


@pytest.mark.parametrize(
    ("encoded", "name"),
    [
        ("whl/torch-1.10.2%2Brocm4.2.whl", "whl/torch-1.10.2+rocm4.2.whl"),
        ("whl/torch+cpu.whl", "whl/torch+cpu.whl"),
        ("d/file%5Ba%23b%5D.log", "d/file[a#b].log"),
        ("%C3%9Cbungen/%E5%9C%9F.txt", "Übungen/土.txt"),
        ("a%20b/c%25d/%7Etilde^caret", "a b/c%d/~tilde^caret"),
        ("what%3Fnow/a%26b=c;d", "what?now/a&b=c;d"),
    ],
)
def test_special_and_unicode_names_are_kept_and_each_link_leads_there(files: Files, encoded: str, name: str) -> None:
    """HO-RAW-1, HO-RAW-4: decoded once, encoded exactly once in every link."""
    server = files.desk.server
    assert files.code("-T", files.desk.file("x", name.encode()), f"{files.url}/{encoded}") == 201
    assert files.get(encoded) == name.encode()
    listed = server.get(f"/api/v1/repositories/{files.name}/artifacts").json()["items"]
    assert [each["path"] for each in listed] == [name]
    address, steps = f"/raw/{files.name}/", name.split("/")
    for number, step in enumerate(steps):
        page = server.get(address, headers={"Accept": "text/html"})
        links = [part.split('"')[0] for part in page.text.split('href="')[1:]]
        (link,) = [each for each in links if each != "../"]
        address = urljoin(address, link)
        folder = address.rsplit("/", 1)[0] + "/" if number == len(steps) - 1 else urljoin(address, "..")
        items = server.get(folder, params={"format": "json"})
        assert step in [each["name"].rstrip("/") for each in items.json()["items"]]
    assert server.get(address).content == name.encode()


@pytest.mark.parametrize(
    "path", ["../x", "a/../x", "a/%2e%2e/x", "a/..%2Fx", "a//x", "/x", "a%5Cx", "a%00x", "a%0Ax", "%ff", "a/./x", "%zz"]
)
def test_hostile_paths_are_refused(files: Files, path: str) -> None:
    assert files.code("-T", files.desk.file("x", b"x"), f"{files.url}/{path}") == 400
    assert files.code(f"{files.url}/{path}") == 400


def test_a_download_resumes_where_it_stopped(files: Files) -> None:
    data = os.urandom(100_000)
    assert files.code("-T", files.desk.file("d", data), f"{files.url}/d") == 201
    partial = files.desk.file("partial", data[:33_333])
    files.curl("-f", "-C", "-", "-o", partial, f"{files.url}/d")
    assert partial.read_bytes() == data


def test_a_wrong_digest_is_refused_and_nothing_is_kept(files: Files, server: Server) -> None:
    """W1."""
    body = files.desk.file("x", b"x")
    for header in ("X-Checksum-Sha256: " + "0" * 64, "X-Checksum-Md5: " + "0" * 32, "Repr-Digest: sha-256=:" + "A" * 43 + "=:"):
        assert files.code("-H", header, "-T", body, f"{files.url}/wrong") == 400
    assert files.code(f"{files.url}/wrong") == 404
    usage = server.get(f"/api/v1/repositories/{files.name}/usage").json()
    assert usage["bytes"] == {"open": 0, "published": 0, "garbage": 0}


def test_create_only_and_conditional_overwrite(files: Files) -> None:
    """W4."""
    one, two = files.desk.file("one", b"one"), files.desk.file("two", b"two")
    url = f"{files.url}/c"
    assert files.code("-H", "If-None-Match: *", "-T", one, url) == 201
    assert files.code("-H", "If-None-Match: *", "-T", two, url) == 412
    etag = files.desk.server.head(f"/raw/{files.name}/c").headers["ETag"]
    assert files.code("-H", 'If-Match: "other"', "-T", two, url) == 412
    assert files.code("-H", f"If-Match: {etag}", "-T", two, url) == 204
    assert files.get("c") == b"two"


def test_a_form_stores_its_files_in_the_folder(files: Files) -> None:
    one, two = files.desk.file("one.txt", b"one"), files.desk.file("two.bin", b"two")
    assert files.code("-F", f"file=@{one}", "-F", f"file=@{two}", f"{files.url}/some/folder/") == 201
    assert files.get("some/folder/one.txt") == b"one"
    assert files.get("some/folder/two.bin") == b"two"
    assert files.code("-F", f"a=@{one};filename=../up", f"{files.url}/some/folder/") == 400


def test_a_refusal_comes_before_the_body(files: Files) -> None:
    """100-continue is answered late: a client without the right never sends its body."""
    big = files.desk.file("big", b"")
    os.truncate(big, 200 * 2**20)
    shown = files.desk.run("curl", "-sS", "-v", "-H", "Expect: 100-continue", "-T", big, f"{files.url}/big", check=False).stdout
    assert " 401 " in shown
    assert "100 Continue" not in shown


def test_write_once_keeps_what_was_published(files: Files) -> None:
    server = files.desk.server
    assert server.patch(f"/api/v1/repositories/{files.name}", json={"settings": {"write_policy": "once"}}).status_code == 200
    assert files.code("-T", files.desk.file("a", b"first"), f"{files.url}/a") == 201
    assert files.code("-T", files.desk.file("b", b"second"), f"{files.url}/a") == 409
    assert files.get("a") == b"first"
    assert server.patch(f"/api/v1/repositories/{files.name}", json={"settings": {"write_policy": "read_only"}}).status_code == 200
    assert files.code("-T", files.desk.file("b", b"second"), f"{files.url}/new") == 405
