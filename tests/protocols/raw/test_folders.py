"""Folders whose slash was left out, over a whole server."""

from __future__ import annotations

import requests

from tests.support.server import Server


def sent(answer: requests.Response) -> tuple[int, str | None]:
    return answer.status_code, answer.headers.get("Location")


def test_a_folder_without_its_slash_is_a_step_away(server: Server) -> None:
    files = server.repository("slashes", public=True).removeprefix(server.url)
    server.put(f"{files}/a b/c%2Bd/e", b"x")

    def get(path: str, method: str = "GET") -> requests.Response:
        return server.request(method, f"{files}/{path}", auth=None, allow_redirects=False)

    for method in ("GET", "HEAD"):
        for _ in ("cold", "warm"):
            assert sent(get("a%20b", method)) == (302, "a%20b/")
            assert sent(get("a%20b/c%2Bd", method)) == (302, "c%2Bd/")
    assert sent(get("a%20b?format=json")) == (302, "a%20b/?format=json")
    assert server.get(f"{files}/a%20b?format=json", auth=None).json()["items"] == [{"name": "c+d/", "type": "folder"}]
    for other in ("a", "a%20b/c", "a%20b/c%2Bd/e/f", "a%20b0"):
        assert sent(get(other)) == (404, None)
    # A file of that name comes first, and none is said to be there that was deleted.
    server.put(f"{files}/a%20b", b"a file")
    assert get("a%20b").content == b"a file"
    server.delete(f"{files}/a%20b")
    assert get("a%20b").status_code == 302
    server.delete(f"{files}/a%20b/c%2Bd/e")
    assert get("a%20b").status_code == 404


def test_a_folder_of_what_is_held_or_may_not_be_read_is_not_there(server: Server) -> None:
    files = server.repository("hidden").removeprefix(server.url)
    server.put(f"{files}/a/b", b"x")
    assert server.get(f"{files}/a", auth=None, allow_redirects=False).status_code == 401
    assert server.get(f"{files}/a", allow_redirects=False).status_code == 302
    server.put("/api/v1/repositories/hidden/artifacts/a/b/quarantine", json={"reason": "looked at"})
    assert server.get(f"{files}/a", allow_redirects=False).status_code == 404
