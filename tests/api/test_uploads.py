"""Uploads in parts by HTTP: answers, codes, and that nothing is read in vain."""

from __future__ import annotations

import base64
import hashlib
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from tests.conftest import MakeServer
from tests.support.house import eventually
from tests.support.server import Server

MIB = 1024 * 1024
PART = 8 * MIB
BODY = os.urandom(2 * PART + 12345)
PARTS = [BODY[start : start + PART] for start in range(0, len(BODY), PART)]


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


@pytest.fixture(scope="module", autouse=True)
def files(server: Server) -> None:
    server.repository("files")


def address(path: str = "") -> str:
    return f"/api/v1/repositories/files/uploads{path}"


def create(server: Server, path: str = "big.bin", headers: dict[str, str] | None = None, **wanted: Any) -> Any:
    answer = server.post(address(), json={"path": path, "size": len(BODY), "part_size": PART} | wanted, headers=headers or {})
    assert answer.status_code == 201, answer.text
    assert urlsplit(answer.headers["Location"]).path == address(f"/{answer.json()['id']}")
    return answer.json()


def send(server: Server, id: str, number: int, body: bytes, **headers: str) -> requests.Response:
    return server.put(address(f"/{id}/parts/{number}"), body, headers=headers)


def refused(answer: requests.Response) -> tuple[int, str]:
    assert answer.headers["Content-Type"] == "application/problem+json"
    return answer.status_code, answer.json()["code"]


def test_a_file_comes_in_parts_in_any_order_and_at_once(server: Server) -> None:
    upload = create(server, sha256=sha256(BODY))
    assert upload == {
        "id": upload["id"], "repository": "files", "path": "big.bin", "size": len(BODY), "sha256": sha256(BODY),
        "content_type": "application/octet-stream", "part_size": PART, "received": 0, "state": "open",
        "expires_at": upload["expires_at"], "error": None, "artifact": None,
    }  # fmt: skip
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda number: send(server, upload["id"], number, PARTS[number - 1]), (3, 1, 2)))
    expected = [{"number": number, "size": len(PARTS[number - 1]), "sha256": sha256(PARTS[number - 1])} for number in (3, 1, 2)]
    assert [answer.json() for answer in answers] == expected
    first = server.get(address(f"/{upload['id']}/parts?limit=2")).json()
    rest = server.get(address(f"/{upload['id']}/parts?cursor={first['next']}")).json()
    assert first["items"] + rest["items"] == sorted(expected, key=lambda part: int(part["number"]))
    assert rest["next"] is None
    done = server.post(address(f"/{upload['id']}/complete"), json={})
    assert (done.status_code, done.json()["sha256"], done.json()["size"]) == (201, sha256(BODY), len(BODY))
    assert server.get(urlsplit(done.headers["Location"]).path).content == BODY
    shown = server.get(address(f"/{upload['id']}")).json()
    assert (shown["state"], shown["artifact"]) == ("published", done.json())
    assert server.get("/api/v1/repositories/files/artifacts/big.bin").json() == done.json()
    again = server.post(address(f"/{upload['id']}/complete"))
    assert (again.status_code, again.json()) == (201, done.json())
    assert refused(server.delete(address(f"/{upload['id']}"))) == (409, "upload_closed")


def test_digests_are_taken_as_every_client_sends_them(server: Server) -> None:
    upload = create(server, size=None)
    encoded = base64.b64encode(hashlib.sha256(b"part").digest()).decode()
    right = {"Content-Digest": f"sha-256=:{encoded}:", "Repr-Digest": f"sha-256=:{encoded}:", "X-Checksum-Sha256": sha256(b"part")}
    for name, value in right.items():
        assert send(server, upload["id"], 1, b"trap").status_code == 200
        assert send(server, upload["id"], 1, b"part", **{name: value}).status_code == 200
    assert send(server, upload["id"], 1, b"other").status_code == 200
    assert refused(send(server, upload["id"], 1, b"trap", **{"X-Checksum-Sha256": sha256(b"part")})) == (400, "digest_mismatch")
    assert refused(send(server, upload["id"], 1, b"part", **{"Content-Digest": "nothing"})) == (422, "invalid")
    assert server.delete(address(f"/{upload['id']}")).status_code == 204
    assert refused(server.get(address(f"/{upload['id']}"))) == (404, "upload_unknown")


def test_parts_come_in_chunks_of_untold_length_too(server: Server) -> None:
    upload = create(server)
    for number, body in enumerate(PARTS, 1):
        sent = server.put(address(f"/{upload['id']}/parts/{number}"), iter([body[:1000], body[1000:]]))
        assert sent.json() == {"number": number, "size": len(body), "sha256": sha256(body)}
    short = server.put(address(f"/{upload['id']}/parts/1"), iter([b"short"]))
    assert refused(short) == (400, "invalid")
    assert server.get(address(f"/{upload['id']}")).json()["received"] == len(BODY) - PART
    server.delete(address(f"/{upload['id']}"))


def test_the_same_part_again_is_answered_before_its_body_is_asked_for(server: Server) -> None:
    upload = create(server)
    assert send(server, upload["id"], 3, PARTS[2]).status_code == 200
    login = base64.b64encode(":".join(server.admin).encode()).decode()
    place = address(f"/{upload['id']}/parts/3")
    head = (
        f"PUT {place} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {login}\r\n"
        f"Content-Length: {len(PARTS[2])}\r\nExpect: 100-continue\r\nX-Checksum-Sha256: {sha256(PARTS[2])}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(head.encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_the_same_key_is_the_same_upload(server: Server) -> None:
    upload = create(server, headers={"Idempotency-Key": "one"})
    wanted = {"path": "big.bin", "size": len(BODY), "part_size": PART}
    again = server.post(address(), json=wanted, headers={"Idempotency-Key": "one"})
    assert (again.status_code, again.json()["id"]) == (200, upload["id"])
    other = server.post(address(), json=wanted | {"size": 1}, headers={"Idempotency-Key": "one"})
    assert refused(other) == (422, "idempotency_key_reused")
    assert refused(server.post(address(), json=wanted, headers={"Idempotency-Key": "k" * 256})) == (422, "invalid")


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({"path": "../x"}, None),
        ({"path": "x", "size": -1}, "size"),
        ({"path": "x", "size": "5"}, "size"),
        ({"path": "x", "sha256": "abc"}, "sha256"),
        ({"path": "x", "sha256": "A" * 64}, "sha256"),
        ({"path": "x", "part_size": 100}, "part_size"),
        ({"path": "x", "part_size": 2**31}, "part_size"),
        ({"path": "x", "part_size": PART + 1}, "part_size"),
        ({"path": "x", "size": 2**40, "part_size": PART}, "part_size"),
        ({"path": "x", "content_type": "a\nb"}, "content_type"),
        ({"path": "x", "parts": 3}, "parts"),
        ({}, "path"),
    ],
)
def test_what_is_wrong_with_an_upload_is_said_at_its_beginning(server: Server, wanted: dict[str, Any], field: str | None) -> None:
    answer = server.post(address(), json=wanted)
    assert (answer.status_code, answer.json().get("field")) == (400 if field is None else 422, field), answer.text


def test_what_does_not_fit_is_refused_with_its_code(server: Server) -> None:
    upload = create(server)
    id = upload["id"]
    assert refused(send(server, id, 1, b"short")) == (422, "invalid")
    assert refused(send(server, id, 9, PARTS[0])) == (422, "invalid")
    assert refused(send(server, id, 0, PARTS[0])) == (422, "invalid")
    assert refused(server.post(address(f"/{id}/complete"))) == (409, "upload_incomplete")
    assert refused(server.post(address(f"/{id}/complete"), json={"sha256": "x"})) == (422, "invalid")
    assert refused(server.put(address(f"/{id}/parts/1"), PARTS[0], headers={"Content-Range": "bytes 0-1/2"})) == (422, "invalid")
    for unknown in ("not-an-id", "00000000-0000-0000-0000-000000000000"):
        for answer in (
            server.get(address(f"/{unknown}")), server.delete(address(f"/{unknown}")), server.get(address(f"/{unknown}/parts")),
            send(server, unknown, 1, b"x"), server.post(address(f"/{unknown}/complete")),
        ):  # fmt: skip
            assert refused(answer) == (404, "upload_unknown")
    assert refused(server.get(address(f"/{id}"), auth=None)) == (401, "unauthenticated")
    assert refused(send(server, id, 99999999999999999999, b"x")) == (422, "invalid")
    server.delete(address(f"/{id}"))


def test_only_raw_repositories_take_parts(server: Server) -> None:
    server.repository("java", format="maven")
    answer = server.post("/api/v1/repositories/java/uploads", json={"path": "a/b/1/b-1.jar"})
    assert (*refused(answer), answer.json()["field"]) == (422, "invalid", "repository")
    assert server.get("/api/v1/repositories/java/uploads").json() == {"items": [], "next": None}
    assert refused(server.post("/api/v1/repositories/none/uploads", json={"path": "x"})) == (404, "not_found")


def test_conditions_are_those_of_the_headers(server: Server) -> None:
    server.put("/raw/files/there.bin", b"there")
    for headers in ({"If-None-Match": "*"}, {"If-Match": '"other"'}):
        answer = server.post(address(), json={"path": "there.bin", "size": 1}, headers=headers)
        assert refused(answer) == (412, "precondition_failed")
    create(server, "there.bin", headers={"If-Match": f'"{sha256(b"there")}"'})


def test_uploads_are_listed_page_by_page(server: Server) -> None:
    server.repository("listed")
    place = "/api/v1/repositories/listed/uploads"
    made = sorted(server.post(place, json={"path": f"{number}.bin", "size": 1}).json()["id"] for number in range(3))
    first = server.get(f"{place}?limit=2").json()
    second = server.get(f"{place}?limit=2&cursor={first['next']}").json()
    assert [each["id"] for each in first["items"] + second["items"]] == made
    assert second["next"] is None
    assert refused(server.get(f"{place}?cursor=WyJ4Il0")) == (422, "invalid")


def test_a_token_that_may_only_write_uploads_in_parts(server: Server) -> None:
    made = server.post("/api/v1/repositories/files/deploy-tokens", json={"name": "ci", "permissions": ["write"], "path_prefix": "ci/"})
    token = ("x", made.json()["token"])
    wanted = {"path": "ci/small.bin", "part_size": PART}
    upload = server.post(address(), json=wanted, auth=token).json()
    assert server.put(address(f"/{upload['id']}/parts/1"), b"small", auth=token).status_code == 200
    done = server.post(address(f"/{upload['id']}/complete"), json={"sha256": sha256(b"small")}, auth=token)
    assert (done.status_code, done.json()["path"]) == (201, "ci/small.bin")
    assert refused(server.post(address(), json={"path": "elsewhere.bin"}, auth=token)) == (403, "forbidden")


def test_a_large_one_is_202_and_goes_on_by_itself_after_a_kill(make_server: MakeServer) -> None:
    """W1, W4: killed as soon as it had promised."""
    server = make_server(ARKVORY_COMPLETE_AT_ONCE_BYTES="1M")
    server.repository("files")
    id = create(server, sha256=sha256(BODY))["id"]
    for number, body in enumerate(PARTS, 1):
        assert send(server, id, number, body).status_code == 200
    promised = server.post(address(f"/{id}/complete"))
    assert (promised.status_code, promised.json()["state"], promised.headers["Retry-After"]) == (202, "completing", "2")
    server.kill9()
    server.start()
    eventually(lambda: server.get(address(f"/{id}")).json()["state"] == "published", 60)
    assert server.get("/raw/files/big.bin").content == BODY


def test_one_user_has_so_many_open_and_is_told_when_to_come_again(make_server: MakeServer) -> None:
    server = make_server(ARKVORY_MAX_OPEN_UPLOADS_PER_USER="1")
    server.repository("files")
    first = create(server, headers={"Idempotency-Key": "k"})
    answer = server.post(address(), json={"path": "other.bin", "size": len(BODY), "part_size": PART})
    assert refused(answer) == (429, "too_many_uploads")
    assert answer.headers["Retry-After"] == "30"
    assert "1 uploads of one user are open, of at most 1" in answer.json()["detail"]
    again = server.post(address(), json={"path": "big.bin", "size": len(BODY), "part_size": PART}, headers={"Idempotency-Key": "k"})
    assert (again.status_code, again.json()["id"]) == (200, first["id"])
    assert "arkvory_uploads_refused_total 1.0" in server.get("/metrics").text
    assert server.delete(address(f"/{first['id']}")).status_code == 204
    create(server, "other.bin")
