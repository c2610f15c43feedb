"""An application in this process with a pypi repository `py`, over a real PostgreSQL and the file system."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from werkzeug.test import TestResponse

from app.protocols.pypi import indexes
from app.protocols.pypi.inspection import readers
from app.protocols.pypi.routes import reads
from tests.protocols.pypi.packages import CONTENT_TYPE, form_of
from tests.support import room as room_of


class Room(room_of.Room):
    """Requests to `/pypi/py/`, as the administrator unless `anonymous`."""

    def request(self, method: str, path: str, *, anonymous: bool = False, **options: Any) -> TestResponse:
        return super().request(method, path, **({"as_": None} if anonymous else {}), **options)

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
    indexes.readers.close()


@pytest.fixture
def room(database_url: str, tmp_path: Path) -> Iterator[Room]:
    with room_of.parts_over(database_url, tmp_path) as parts:
        made = Room(parts, reads, "py")
        made.repository("py")
        yield made
