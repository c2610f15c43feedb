"""What is a download: an answer that brings an artifact's first byte, by the short path and by the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.http.parts import Parts
from app.protocols.raw.routes import reads
from tests.support.room import Room, parts_over
from tests.support.server import Server

# `Room` asks each read by three ways: short and cold, long, short and warm.
WAYS = 3


@pytest.fixture
def room(database_url: str, tmp_path: Path) -> Room:
    with parts_over(database_url, tmp_path) as parts:
        made = Room(parts, reads, "files")
        made.repository("files")
        assert made.request("PUT", "a.txt", data=b"0123456789").status_code == 201
        yield made


def noted(parts: Parts) -> int:
    return sum(int(count) for count, _ in parts.downloads._noted.values())


@pytest.mark.parametrize(
    ("method", "headers", "times"),
    [
        ("GET", {}, 1),
        ("HEAD", {}, 0),
        ("GET", {"If-None-Match": "*"}, 0),
        ("GET", {"If-None-Match": '"another"'}, 1),
        ("GET", {"Range": "bytes=0-3"}, 1),
        ("GET", {"Range": "bytes=4-"}, 0),
        ("GET", {"Range": "bytes=-20"}, 1),
        ("GET", {"Range": "bytes=50-"}, 0),
        ("GET", {"If-Match": '"another"'}, 0),
    ],
)
def test_an_answer_counts_when_it_brings_the_first_byte(room: Room, method: str, headers: dict[str, str], times: int) -> None:
    room.request(method, "a.txt", headers=headers)
    assert noted(room.parts) == times * WAYS


def test_what_is_not_there_and_folders_count_nothing(room: Room) -> None:
    assert room.get("nothing").status_code == 404
    assert room.get("").status_code == 200
    assert noted(room.parts) == 0


def test_a_server_that_stops_has_written_what_it_counted(server: Server) -> None:
    server.repository("files")
    server.put("/raw/files/a", b"1")
    for _ in range(5):
        assert server.get("/raw/files/a").content == b"1"
    server.restart()
    found = server.get("/api/v1/repositories/files/artifacts/a").json()
    assert (found["downloads"], found["last_downloaded_at"] is not None) == (5, True)
    assert server.get("/api/v1/repositories/files/artifacts").json()["items"][0]["downloads"] == 5
    assert server.get("/api/v1/repositories/files/usage").json()["downloads"] == 5
