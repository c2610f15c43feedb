"""The whole application in this process with an OCI repository `oci`, over a real PostgreSQL and the file system."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from werkzeug.test import TestResponse

from app import create_app
from app.http.parts import Parts
from config.settings import Settings
from tests.support.bothways import BothWays
from tests.support.house import House
from tests.support.passwords import CHEAP

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


def digest_of(body: bytes, algorithm: str = "sha256") -> str:
    return f"{algorithm}:{hashlib.new(algorithm, body).hexdigest()}"


def descriptor(body: bytes, media_type: str = "application/vnd.oci.image.layer.v1.tar", **more: Any) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest_of(body), "size": len(body), **more}


def manifest_of(*layers: bytes, config: bytes = b"{}", media_type: str = MANIFEST, **more: Any) -> bytes:
    """An image's manifest, as a client might write it."""
    config_type = "application/vnd.oci.image.config.v1+json"
    document = {"schemaVersion": 2, "mediaType": media_type, "config": descriptor(config, config_type)}
    return json.dumps(document | {"layers": [descriptor(each) for each in layers]} | more, indent=1).encode()


def index_of(*manifests: bytes, **more: Any) -> bytes:
    listed = [descriptor(each, MANIFEST) for each in manifests]
    return json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": listed, **more}).encode()


class Registry:
    """Requests to `/v2/`, as the administrator unless `auth` says otherwise (None: nobody); reads by both paths."""

    def __init__(self, house: House, url: str, folder: Path, **environment: str) -> None:
        given = {"ARKVORY_DATABASE_URL": url, "ARKVORY_DATA_DIR": str(folder), "ARKVORY_DISK_RESERVE_BYTES": "0", **CHEAP, **environment}
        self.app = create_app(Settings.from_environment(given))
        self.house = house
        self.parts: Parts = self.app.extensions["arkvory"]
        self.parts.local_secret = "local"
        self.parts.ownership.generation = house.parts.ownership.generation
        self.client = BothWays(self.app)

    def request(self, method: str, path: str, *, auth: str | None = "Bearer local", **options: Any) -> TestResponse:
        headers = dict(options.pop("headers", {}))
        if auth is not None:
            headers["Authorization"] = auth
        path = path if path.startswith("/") else f"/v2/{path}"
        if path.startswith("/v2/token"):
            # Each answer is another one.
            return self.app.test_client().open(path, method=method, headers=headers, **options)
        return self.client.open(path, method=method, headers=headers, **options)

    def get(self, path: str, **options: Any) -> TestResponse:
        return self.request("GET", path, **options)

    def head(self, path: str, **options: Any) -> TestResponse:
        return self.request("HEAD", path, **options)

    def post(self, path: str, **options: Any) -> TestResponse:
        return self.request("POST", path, **options)

    def put(self, path: str, body: bytes = b"", **options: Any) -> TestResponse:
        return self.request("PUT", path, data=body, **options)

    def patch(self, path: str, body: bytes = b"", **options: Any) -> TestResponse:
        return self.request("PATCH", path, data=body, **options)

    def delete(self, path: str, **options: Any) -> TestResponse:
        return self.request("DELETE", path, **options)

    def manage(self, method: str, path: str, **options: Any) -> Any:
        """The management API, as the administrator; the document that it answers with."""
        answer = self.app.test_client().open(f"/api/v1/{path}", method=method, headers={"Authorization": "Bearer local"}, **options)
        assert answer.status_code < 300, answer.text
        return answer.get_json(silent=True)

    # -- what clients do

    def begin(self, image: str = "oci/app", query: str = "", **options: Any) -> str:
        """A new upload's address."""
        answer = self.post(f"{image}/blobs/uploads/{query}", **options)
        assert answer.status_code == 202, answer.text
        return place(answer)

    def blob(self, body: bytes, image: str = "oci/app", **options: Any) -> str:
        """Push a blob; its digest."""
        answer = self.post(f"{image}/blobs/uploads/?digest={digest_of(body)}", data=body, **options)
        assert answer.status_code == 201, answer.text
        return digest_of(body)

    def manifest(self, body: bytes, reference: str, image: str = "oci/app", media_type: str = MANIFEST, **options: Any) -> TestResponse:
        return self.put(f"{image}/manifests/{reference}", body, headers={"Content-Type": media_type}, **options)

    def image(self, reference: str, *layers: bytes, image: str = "oci/app", **more: Any) -> bytes:
        """Push an image with its blobs; its manifest."""
        for each in (b"{}", *layers):
            self.blob(each, image)
        body = manifest_of(*layers, **more)
        answer = self.manifest(body, reference, image)
        assert answer.status_code == 201, answer.text
        return body

    def tags(self, image: str = "oci/app") -> list[str]:
        answer = self.get(f"{image}/tags/list")
        assert answer.status_code == 200, answer.text
        return list(answer.get_json()["tags"])

    def close(self) -> None:
        self.parts.database.dispose()


def place(answer: TestResponse) -> str:
    """The path and query of its Location."""
    return answer.headers["Location"].removeprefix("http://localhost")


def refused(answer: TestResponse) -> tuple[int, str]:
    """Status and code of an error's envelope."""
    document = answer.get_json()
    assert set(document) == {"errors"}, document
    assert set(document["errors"][0]) == {"code", "message", "detail"}
    return answer.status_code, document["errors"][0]["code"]


@pytest.fixture
def registry(house: House, database_url: str, tmp_path: Path) -> Iterator[Registry]:
    house.repository("oci", format="oci")
    made = Registry(house, database_url, tmp_path / "data")
    yield made
    made.close()
