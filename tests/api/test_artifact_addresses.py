"""The `url` of an artifact leads to it, whatever its format: each is followed, as a client would."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

import pytest
import requests

from tests.protocols.npm.packages import document, tarball
from tests.protocols.npm.test_routes import bundle
from tests.protocols.oci.conftest import MANIFEST, digest_of, manifest_of
from tests.protocols.pypi.packages import CONTENT_TYPE, form_of, wheel
from tests.support.server import Server


def publish_raw(server: Server, name: str) -> None:
    for path in ("a.txt", "some/%C3%9C%20%23%25.txt"):
        assert server.put(f"/raw/{name}/{path}", b"raw").status_code == 201


def publish_maven(server: Server, name: str) -> None:
    for path in ("lib-1.0.jar", "lib-1.0.jar.asc", "lib-1.0.pom"):
        assert server.put(f"/maven/{name}/org/acme/lib/1.0/{path}", b"<project/>").status_code == 201


def publish_pypi(server: Server, name: str) -> None:
    fields = {":action": "file_upload", "protocol_version": "1", "name": "foo", "version": "1.0"}
    packed = wheel("foo", "1.0")
    form = form_of([*((key, None, value.encode()) for key, value in fields.items()), ("content", "foo-1.0-py3-none-any.whl", packed)])
    assert server.post(f"/pypi/{name}/", data=form, headers={"Content-Type": CONTENT_TYPE}).status_code == 200


def publish_npm(server: Server, name: str) -> None:
    packed = tarball("@acme/tool", "1.0.0")
    told = document("@acme/tool", "1.0.0", data=packed)
    signed = {"content_type": "application/vnd.dev.sigstore.bundle+json", "data": bundle(packed)}
    told["_attachments"]["@acme/tool-1.0.0.sigstore"] = signed
    assert server.put(f"/npm/{name}/@acme%2ftool", json.dumps(told)).status_code == 201


def publish_oci(server: Server, name: str) -> None:
    for blob in (b"{}", b"a layer"):
        assert server.post(f"/v2/{name}/team/app/blobs/uploads/?digest={digest_of(blob)}", data=blob).status_code == 201
    pushed = server.put(f"/v2/{name}/team/app/manifests/1.0", manifest_of(b"a layer"), headers={"Content-Type": MANIFEST})
    assert pushed.status_code == 201


@pytest.mark.parametrize(
    ("kind", "publish", "least"),
    [("raw", publish_raw, 2), ("maven", publish_maven, 3), ("pypi", publish_pypi, 2), ("npm", publish_npm, 2), ("oci", publish_oci, 2)],
)
def test_the_url_of_every_artifact_leads_to_its_bytes(
    server: Server, kind: str, publish: Callable[[Server, str], None], least: int
) -> None:
    name = f"followed-{kind}"
    server.repository(name, kind)
    publish(server, name)
    listed = server.get(f"/api/v1/repositories/{name}/artifacts").json()["items"]
    assert len(listed) >= least
    for each in listed:
        answer = requests.get(each["url"], auth=server.admin, timeout=10)
        assert answer.status_code == 200, each["url"]
        assert hashlib.sha256(answer.content).hexdigest() == each["sha256"], each["url"]
