"""An application in this process with a pypi repository `py`, over a real PostgreSQL and the file system."""

from __future__ import annotations

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
from app.protocols.pypi.inspection import readers
from app.protocols.pypi.routes import blueprint, reads
from config.settings import Settings
from tests.protocols.pypi.packages import CONTENT_TYPE, form_of
from tests.support.bothways import both_ways


class Room:
    """Requests to `/pypi/py/`, as the administrator unless `anonymous`; reads by both paths."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.app = Flask("arkvory", static_folder=None)
        route_on_raw_paths(self.app)
        self.app.extensions["arkvory"] = parts
        errors.register(self.app)
        self.app.register_blueprint(blueprint)
        self.client = both_ways(self.app, parts, reads)

    def request(self, method: str, path: str, *, anonymous: bool = False, **options: Any) -> TestResponse:
        headers = dict(options.pop("headers", {}))
        if not anonymous:
            headers["Authorization"] = "Bearer local"
        return self.client.open(f"/pypi/py/{path}", method=method, headers=headers, **options)

    def get(self, path: str, **options: Any) -> TestResponse:
        return self.request("GET", path, **options)

    def upload(self, filename: str, content: bytes, *more: tuple[str, str | None, bytes], **fields: str) -> TestResponse:
        """A form as twine sends it; name and version come from the file's name unless they are given."""
        name, version = filename.removesuffix(".tar.gz").split("-")[:2]
        sent = {":action": "file_upload", "protocol_version": "1", "name": name, "version": version} | fields
        form = form_of([*((key, None, value.encode()) for key, value in sent.items()), *more, ("content", filename, content)])
        return self.request("POST", "legacy/", data=form, content_type=CONTENT_TYPE)


@pytest.fixture(scope="session", autouse=True)
def _end_readers() -> Iterator[None]:
    yield
    readers.close()


@pytest.fixture
def room(database_url: str, tmp_path: Path) -> Iterator[Room]:
    parts = build_parts(Settings.from_environment({"ARKVORY_DATABASE_URL": database_url, "ARKVORY_DATA_DIR": str(tmp_path / "data")}))
    parts.local_secret = "local"
    parts.ownership.acquire(5)
    with parts.database.write() as connection:
        connection.execute(text("insert into arkvory_repositories (name, format, kind, public) values ('py', 'pypi', 'hosted', true)"))
    try:
        yield Room(parts)
    finally:
        parts.ownership.release()
        parts.database.dispose()
