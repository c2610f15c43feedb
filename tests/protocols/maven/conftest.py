"""An application in this process with a maven repository `mvn`, over a real PostgreSQL and the file system."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from werkzeug.test import TestResponse

from app.protocols.maven.routes import reads
from tests.support import room as room_of


class Room(room_of.Room):
    """Requests to `/maven/mvn/`, as the administrator unless `anonymous`."""

    def request(self, method: str, path: str, *, anonymous: bool = False, **options: Any) -> TestResponse:
        return super().request(method, path, **({"as_": None} if anonymous else {}), **options)

    def put(self, path: str, body: bytes = b"bytes", **options: Any) -> TestResponse:
        return self.request("PUT", path, data=body, **options)

    def stored(self, *paths: str) -> None:
        for path in paths:
            answer = self.put(path, path.encode())
            assert answer.status_code == 201, answer.text

    def repository(self, name: str, **settings: str) -> None:
        super().repository(name)
        statement = "update arkvory_repositories set settings = cast(:settings as jsonb) where name = :name"
        self.execute(statement, name=name, settings=json.dumps(settings))


@pytest.fixture
def room(database_url: str, tmp_path: Path) -> Iterator[Room]:
    with room_of.parts_over(database_url, tmp_path) as parts:
        made = Room(parts, reads, "mvn")
        made.repository("mvn")
        yield made
