"""An application in this process with a maven repository `mvn`, over a real PostgreSQL and the file system."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import text
from werkzeug.test import TestResponse

from app.http import errors
from app.http.parts import Parts, build_parts
from app.http.paths import route_on_raw_paths
from app.protocols.maven.routes import blueprint, reads
from config.settings import Settings
from tests.support.bothways import both_ways


class Room:
    """Requests to `/maven/mvn/`, as the administrator unless `anonymous`; reads by both paths."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.app = Flask("arkvory", static_folder=None)
        route_on_raw_paths(self.app)
        self.app.extensions["arkvory"] = parts
        errors.register(self.app)
        self.app.register_blueprint(blueprint)
        self.client = both_ways(self.app, parts, reads)

    def request(self, method: str, path: str, *, anonymous: bool = False, repository: str = "mvn", **options: Any) -> TestResponse:
        headers = dict(options.pop("headers", {}))
        if not anonymous:
            headers["Authorization"] = "Bearer local"
        return self.client.open(f"/maven/{repository}/{path}", method=method, headers=headers, **options)

    def get(self, path: str, **options: Any) -> TestResponse:
        return self.request("GET", path, **options)

    def put(self, path: str, body: bytes = b"bytes", **options: Any) -> TestResponse:
        return self.request("PUT", path, data=body, **options)

    def stored(self, *paths: str) -> None:
        for path in paths:
            answer = self.put(path, path.encode())
            assert answer.status_code == 201, answer.text

    def repository(self, name: str, **settings: str) -> None:
        with self.parts.database.write() as connection:
            connection.execute(
                text(
                    "insert into arkvory_repositories (name, format, kind, public, settings) "
                    "values (:name, 'maven', 'hosted', true, cast(:settings as jsonb))"
                ),
                {"name": name, "settings": json.dumps(settings)},
            )

    def value(self, statement: str) -> Any:
        with self.parts.database.read() as connection:
            return connection.exec_driver_sql(statement).scalar()


@pytest.fixture
def room(database_url: str, tmp_path: Path) -> Iterator[Room]:
    given = {"ARKVORY_DATABASE_URL": database_url, "ARKVORY_DATA_DIR": str(tmp_path / "data"), "ARKVORY_DISK_RESERVE_BYTES": "0"}
    parts = build_parts(Settings.from_environment(given))
    parts.local_secret = "local"
    parts.ownership.acquire(5)
    try:
        made = Room(parts)
        made.repository("mvn")
        yield made
    finally:
        parts.ownership.release()
        parts.database.dispose()
