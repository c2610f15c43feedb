"""Uploads of images in several requests, with real servers: a killed one and a cluster's processes lose nothing that was acknowledged."""

from __future__ import annotations

import base64
import hashlib
import os
import socket
import time

from tests.conftest import MakeServer
from tests.support.server import Server

MIB = 1024 * 1024


def begin(server: Server) -> str:
    answer = server.post("/v2/oci/app/blobs/uploads/")
    assert answer.status_code == 202, answer.text
    return answer.headers["Location"].removeprefix(server.url)


def patch(server: Server, upload: str, body: bytes, start: int) -> None:
    answer = server.patch(upload, data=body[start : start + MIB], headers={"Content-Range": f"{start}-{min(start + MIB, len(body)) - 1}"})
    assert answer.status_code == 202, answer.text


def finish(server: Server, upload: str, body: bytes) -> None:
    digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
    answer = server.put(f"{upload}?digest={digest}")
    assert answer.status_code == 201, answer.text
    assert server.get(f"/v2/oci/app/blobs/{digest}").content == body


def half_a_patch(server: Server, upload: str) -> socket.socket:
    """A request that has sent half of its chunk and goes on no further."""
    client = socket.create_connection(("127.0.0.1", server.port))
    login = "Authorization: Basic " + base64.b64encode(":".join(server.admin).encode()).decode()
    head = f"PATCH {upload} HTTP/1.1\r\nHost: x\r\n{login}\r\nContent-Length: {4 * MIB}\r\n\r\n"
    client.sendall(head.encode() + b"y" * (2 * MIB))
    return client


def test_an_upload_goes_on_after_its_server_was_killed_in_the_middle_of_a_chunk(make_server: MakeServer) -> None:
    server = make_server()
    server.repository("oci", format="oci")
    body = os.urandom(3 * MIB)
    upload = begin(server)
    patch(server, upload, body, 0)
    with half_a_patch(server, upload):
        time.sleep(0.5)
        server.kill9()
    server.start()
    state = server.get(upload)
    assert (state.status_code, state.headers["Range"]) == (204, f"0-{MIB - 1}")
    patch(server, upload, body, MIB)
    patch(server, upload, body, 2 * MIB)
    finish(server, upload, body)


def test_chunks_that_come_to_any_process_of_a_cluster_make_one_blob(make_server: MakeServer) -> None:
    server = make_server(ARKVORY_DEPLOYMENT="cluster", ARKVORY_INSTANCE_ID="one", WEB_CONCURRENCY="2")
    server.repository("oci", format="oci")
    body = os.urandom(12 * MIB)
    upload = begin(server)
    for start in range(0, len(body), MIB):
        # Each request is a connection of its own, and goes to whichever process takes it.
        patch(server, upload, body, start)
    finish(server, upload, body)
    token = server.get("/v2/token?scope=repository:oci/app:pull").json()["token"]
    digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
    for _ in range(8):
        answer = server.head(f"/v2/oci/app/blobs/{digest}", auth=None, headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == 200
