"""What each format's client sends when it publishes, with random bytes, and how pip and npm ask."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass

from bench.client import Step
from tests.protocols.npm.packages import tarball as tarball_of
from tests.protocols.pypi.packages import CONTENT_TYPE, form_of, wheel_members

PIP = (
    "Accept: application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html; q=0.1, text/html; q=0.01",
    "Accept-Encoding: gzip, deflate",
)
OCI = ("Accept: application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json",)
NPM = ("Accept: application/vnd.npm.install-v1+json; q=1.0, application/json; q=0.8, */*", "Accept-Encoding: gzip,deflate,br")


def wheel_upload(path: str, headers: Mapping[str, str], project: str, version: str, size: int) -> Step:
    """twine's form with a wheel of about `size` bytes, which no compression makes smaller."""
    filename = f"{project}-{version}-py3-none-any.whl"
    form = form_of([
        (":action", None, b"file_upload"), ("protocol_version", None, b"1"), ("metadata_version", None, b"2.1"),
        ("name", None, project.encode()), ("version", None, version.encode()), ("filetype", None, b"bdist_wheel"),
        ("pyversion", None, b"py3"), ("content", filename, _wheel(project, version, size)),
    ])  # fmt: skip
    return Step("POST", path, {"Content-Type": CONTENT_TYPE, **headers}, form)


def _wheel(project: str, version: str, size: int) -> bytes:
    members = wheel_members(project, version, "Requires-Python: >=3.9")
    without = _stored(members | {f"{project}/data": b""})
    return _stored(members | {f"{project}/data": os.urandom(max(0, size - len(without)))})


def _stored(members: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def blob_upload(repository: str, headers: Mapping[str, str], size: int) -> list[Step]:
    """A blob as docker pushes it: begin, then all of it at once."""
    body = os.urandom(size)
    finish = f"{{location}}&digest=sha256:{hashlib.sha256(body).hexdigest()}"
    plain = {"Content-Type": "application/octet-stream", **headers}
    return [Step("POST", f"/v2/{repository}/blobs/uploads/", headers, b"", (202,)), Step("PUT", finish, plain, body)]


@dataclass(frozen=True)
class Image:
    """An image of one layer: the steps that push it as `latest`, and the addresses of what can be asked for then."""

    steps: list[Step]
    blob: str
    by_tag: str
    by_digest: str


def image_push(repository: str, headers: Mapping[str, str], size: int) -> Image:
    """What a client sends for an image with a layer of `size` bytes."""
    blobs = [blob_upload(repository, headers, each) for each in (size, 200)]
    layer, config = (_descriptor(kind, steps[-1].body) for kind, steps in zip(("layer.v1.tar", "config.v1+json"), blobs, strict=True))
    media_type = f"{_IMAGE}.manifest.v1+json"
    manifest = json.dumps({"schemaVersion": 2, "mediaType": media_type, "config": config, "layers": [layer]}).encode()
    root = f"/v2/{repository}"
    push = Step("PUT", f"{root}/manifests/latest", {"Content-Type": media_type, **headers}, manifest)
    return Image(
        [*blobs[0], *blobs[1], push], f"{root}/blobs/{layer['digest']}", f"{root}/manifests/latest",
        f"{root}/manifests/sha256:{hashlib.sha256(manifest).hexdigest()}",
    )  # fmt: skip


_IMAGE = "application/vnd.oci.image"


def _descriptor(kind: str, body: bytes) -> dict[str, object]:
    return {"mediaType": f"{_IMAGE}.{kind}", "digest": f"sha256:{hashlib.sha256(body).hexdigest()}", "size": len(body)}


def npm_publish(root: str, headers: Mapping[str, str], name: str, size: int, version: str = "1.0.0") -> Step:
    """What `npm publish` sends for a version of a package: its tarball, of about `size` bytes, in base64."""
    without = tarball_of(name, version, {"package/data": b""})
    body = tarball_of(name, version, {"package/data": os.urandom(max(0, size - len(without)))})
    tarball = f"{name}-{version}.tgz"
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(body).digest()).decode()
    about = {
        "name": name, "version": version, "_id": f"{name}@{version}",
        "dist": {"integrity": integrity, "shasum": hashlib.sha1(body).hexdigest(), "tarball": f"http://127.0.0.1/{name}/-/{tarball}"},
    }  # fmt: skip
    attachment = {"content_type": "application/octet-stream", "data": base64.b64encode(body).decode(), "length": len(body)}
    document = {
        "_id": name, "name": name, "dist-tags": {"latest": version}, "versions": {version: about},
        "_attachments": {tarball: attachment},
    }  # fmt: skip
    return Step("PUT", f"{root}/{name}", {"Content-Type": "application/json", **headers}, json.dumps(document).encode())
