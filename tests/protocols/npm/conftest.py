"""An application in this process with an npm repository `js`, over a real PostgreSQL and the file system."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from werkzeug.test import TestResponse

from app.access.people import Users
from app.protocols.npm import kept, received
from app.protocols.npm.routes import reads
from app.repository.registry import Registry, RepositoryChange
from tests.protocols.npm.packages import document
from tests.support import room as room_of
from tests.support.house import ADMIN

ABBREVIATED = {"Accept": "application/vnd.npm.install-v1+json; q=1.0, application/json; q=0.8, */*"}


class Room(room_of.Room):
    """Requests to `/npm/js/`."""

    def change(self, **values: Any) -> None:
        """Of the repository."""
        house = self.parts
        Registry(house.settings, house.database, house.transactions, house.access).update(ADMIN, "js", RepositoryChange(values))

    def once(self, path: str) -> TestResponse:
        """GET by nobody, of what is different the next time."""
        return self.app.test_client().get(f"/npm/js/{path}")

    def packument(self, name: str = "p", **options: Any) -> Any:
        answer = self.get(name, **options)
        assert answer.status_code == 200, answer.text
        return json.loads(answer.data)

    def put(self, path: str, body: Any, **options: Any) -> TestResponse:
        return self.request("PUT", path, data=json.dumps(body), content_type="application/json", **options)

    def publish(self, name: str, version: str, **fields: Any) -> TestResponse:
        return self.put(name.replace("/", "%2f"), document(name, version, **fields))

    def published(self, name: str, *versions: str, **fields: Any) -> None:
        for version in versions:
            answer = self.publish(name, version, **fields)
            assert answer.status_code == 201, answer.text

    def user(self, name: str, password: str = "correct-horse") -> None:
        house = self.parts
        Users(house.database, house.transactions, house.identities, 8).create(ADMIN, name, password, administrator=False, robot=False)

    def rule(self, subject: str, *permissions: str) -> None:
        self.execute(
            "insert into arkvory_access_rules (repository_id, subject, permissions) select id, :subject, cast(:permissions as text[]) "
            "from arkvory_repositories where name = 'js'", subject=subject, permissions=list(permissions),
        )  # fmt: skip


@pytest.fixture(scope="session", autouse=True)
def _end_readers() -> Iterator[None]:
    yield
    received.readers.close()
    kept.readers.close()


@pytest.fixture
def room(database_url: str, tmp_path: Path) -> Iterator[Room]:
    with room_of.parts_over(database_url, tmp_path, ARKVORY_PASSWORD_LENGTH="8") as parts:
        made = Room(parts, reads, "js")
        made.repository("js")
        yield made
