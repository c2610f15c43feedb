"""An application in this process with an npm repository `js`, over a real PostgreSQL and the file system."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import text
from werkzeug.test import TestResponse

from app.access.people import Users
from app.http import errors
from app.http.parts import Parts, build_parts
from app.http.paths import route_on_raw_paths
from app.protocols.npm.received import readers
from app.protocols.npm.routes import blueprint, reads
from app.repository.registry import Registry, RepositoryChange
from config.settings import Settings
from tests.protocols.npm.packages import document
from tests.support.bothways import both_ways
from tests.support.house import ADMIN

ABBREVIATED = {"Accept": "application/vnd.npm.install-v1+json; q=1.0, application/json; q=0.8, */*"}


class Room:
    """Requests to `/npm/js/`, as the administrator unless `as_` says otherwise; reads by both paths."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.app = Flask("arkvory", static_folder=None)
        route_on_raw_paths(self.app)
        self.app.extensions["arkvory"] = parts
        errors.register(self.app)
        self.app.register_blueprint(blueprint)
        self.client = both_ways(self.app, parts, reads)

    def request(self, method: str, path: str, *, as_: str | None = "Bearer local", **options: Any) -> TestResponse:
        headers = dict(options.pop("headers", {}))
        if as_ is not None:
            headers["Authorization"] = as_
        return self.client.open(f"/npm/js/{path}", method=method, headers=headers, **options)

    def change(self, **values: Any) -> None:
        """Of the repository."""
        house = self.parts
        Registry(house.settings, house.database, house.transactions, house.access).update(ADMIN, "js", RepositoryChange(values))

    def once(self, path: str) -> TestResponse:
        """GET by nobody, of what is different the next time."""
        return self.app.test_client().get(f"/npm/js/{path}")

    def get(self, path: str, **options: Any) -> TestResponse:
        return self.request("GET", path, **options)

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

    def execute(self, statement: str, **values: Any) -> list[Any]:
        with self.parts.database.write() as connection:
            result = connection.execute(text(statement), values)
            return list(result) if result.returns_rows else []

    def value(self, statement: str, **values: Any) -> Any:
        return self.execute(statement, **values)[0][0]


@pytest.fixture(scope="session", autouse=True)
def _end_readers() -> Iterator[None]:
    yield
    readers.close()


@pytest.fixture
def room(database_url: str, tmp_path: Path) -> Iterator[Room]:
    given = {"ARKVORY_DATABASE_URL": database_url, "ARKVORY_DATA_DIR": str(tmp_path / "data"), "ARKVORY_PASSWORD_LENGTH": "8"}
    parts = build_parts(Settings.from_environment(given))
    parts.local_secret = "local"
    parts.ownership.acquire(5)
    with parts.database.write() as connection:
        connection.execute(text("insert into arkvory_repositories (name, format, kind, public) values ('js', 'npm', 'hosted', true)"))
    try:
        yield Room(parts)
    finally:
        parts.ownership.release()
        parts.database.dispose()
