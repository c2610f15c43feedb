"""One format's room in an application in this process, over a real PostgreSQL and the file system."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flask import Flask
from sqlalchemy import text
from werkzeug.test import TestResponse

from app.http import errors
from app.http.parts import Parts, build_parts
from app.http.paths import route_on_raw_paths
from app.http.reads import Reads
from config.settings import Settings
from tests.support.bothways import both_ways
from tests.support.passwords import CHEAP

ADMINISTRATOR = "Bearer local"


class Room:
    """Requests to the room `reads` of `blueprint`, as the administrator unless the header `as_` says otherwise (None: nobody).

    Reads go by both paths.
    """

    def __init__(self, parts: Parts, reads: Reads, repository: str) -> None:
        self.parts = parts
        self.repository_name = repository
        self.format = reads.format
        self.app = Flask("arkvory", static_folder=None)
        route_on_raw_paths(self.app)
        self.app.extensions["arkvory"] = parts
        errors.register(self.app)
        self.app.register_blueprint(reads.blueprint)
        self.client = both_ways(self.app, parts, reads)

    def request(self, method: str, path: str, *, as_: str | None = ADMINISTRATOR, repository: str = "", **options: Any) -> TestResponse:
        headers = dict(options.pop("headers", {}))
        if as_ is not None:
            headers["Authorization"] = as_
        return self.client.open(f"/{self.format}/{repository or self.repository_name}/{path}", method=method, headers=headers, **options)

    def get(self, path: str, **options: Any) -> TestResponse:
        return self.request("GET", path, **options)

    def execute(self, statement: str, **values: Any) -> list[Any]:
        with self.parts.database.write() as connection:
            result = connection.execute(text(statement), values)
            return list(result) if result.returns_rows else []

    def value(self, statement: str, **values: Any) -> Any:
        return self.execute(statement, **values)[0][0]

    def repository(self, name: str) -> None:
        """A public one."""
        statement = "insert into arkvory_repositories (name, format, kind, public) values (:name, :format, 'hosted', true)"
        self.execute(statement, name=name, format=self.format)


@contextlib.contextmanager
def parts_over(database_url: str, folder: Path, **environment: str) -> Iterator[Parts]:
    """The parts of an application that owns its storage."""
    given = {
        "ARKVORY_DATABASE_URL": database_url, "ARKVORY_DATA_DIR": str(folder / "data"), "ARKVORY_DISK_RESERVE_BYTES": "0",
        # Two hundred at once have to wait for longer than the usual, on a busy machine.
        "ARKVORY_PLACE_WAIT_SECONDS": "120", "ARKVORY_DATABASE_WAIT_SECONDS": "60", **CHEAP,
    }  # fmt: skip
    parts = build_parts(Settings.from_environment(given | environment))
    parts.local_secret = "local"
    parts.ownership.acquire(5)
    try:
        yield parts
    finally:
        parts.ownership.release()
        parts.database.dispose()
