"""One thing of each format, as clients publish and ask for it, and as an upstream has it: for what must hold whatever the format.

In addresses `{}` is the repository.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.api.test_artifact_addresses import publish_maven, publish_npm, publish_oci, publish_pypi, publish_raw
from tests.protocols.npm.packages import dist_of, tarball
from tests.protocols.oci.conftest import MANIFEST, digest_of, manifest_of
from tests.protocols.pypi.packages import wheel
from tests.support.house import sha256
from tests.support.upstreams import FakeUpstream

WHEEL_NAME = "foo-1.0-py3-none-any.whl"
JAR = b"PK a jar"
# Of one moment: an archive tells the time at which it was made.
WHEEL = wheel("foo", "1.0")


@dataclass(frozen=True)
class Ware:
    """`file` is an artifact at `path`, which an upstream has at `at` as `body`; `index` names it by `marker`; `more` comes with it.

    `of_bytes` are those of `more` that only the file's bytes tell; then other files of the version stand in the index too.
    `publish` is what a client does, with a hosted repository's name; `listed` puts an upstream's index of it, which may say where it lies.
    """

    format: str
    publish: Callable[[Any, str], None]
    path: str
    file: str
    index: str
    marker: str
    more: tuple[str, ...]
    at: str
    body: bytes
    listed: Callable[[FakeUpstream, str], None]
    headers: Mapping[str, str] = field(default_factory=dict)
    of_bytes: tuple[str, ...] = ()

    @property
    def addresses(self) -> tuple[str, ...]:
        return (self.file, self.index, *self.more)

    def put(self, upstream: FakeUpstream, **fields: Any) -> None:
        """The upstream has it, index and file; `fields` are of the file's rule."""
        self.listed(upstream, upstream.url)
        self.put_file(upstream, **fields)

    def put_file(self, upstream: FakeUpstream, **fields: Any) -> None:
        upstream.put(self.at, fields.pop("body", self.body), headers={**self.headers, **fields.pop("headers", {})}, **fields)


def _no_index(upstream: FakeUpstream, where: str) -> None:
    """What lies in a folder of an upstream nobody knows."""


def _metadata(upstream: FakeUpstream, where: str) -> None:
    told = "<metadata><artifactId>lib</artifactId><versioning><versions><version>1.0</version></versions></versioning></metadata>"
    upstream.put("/org/acme/lib/maven-metadata.xml", told.encode())


def _page(upstream: FakeUpstream, where: str) -> None:
    entry = {"filename": WHEEL_NAME, "url": f"{where}/packages/{WHEEL_NAME}", "hashes": {"sha256": sha256(WHEEL)}}
    page = {"meta": {"api-version": "1.1"}, "name": "foo", "files": [entry], "versions": ["1.0"]}
    upstream.put("/simple/foo/", json.dumps(page).encode(), headers={"Content-Type": "application/vnd.pypi.simple.v1+json"})


def _packument(upstream: FakeUpstream, where: str) -> None:
    dist = dist_of(tarball("@acme/tool", "1.0.0")) | {"tarball": f"{where}/@acme/tool/-/tool-1.0.0.tgz"}
    version = {"name": "@acme/tool", "version": "1.0.0", "dist": dist}
    told = {"name": "@acme/tool", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}, "time": {}}
    upstream.put("/@acme%2Ftool", json.dumps(told).encode(), headers={"Content-Type": "application/json"})


def _tags(upstream: FakeUpstream, where: str) -> None:
    upstream.put("/v2/team/app/tags/list", b'{"name": "team/app", "tags": ["1.0"]}', headers={"Content-Type": "application/json"})


def publish_jar(server: Any, name: str) -> None:
    """With the bytes that the upstream has."""
    publish_maven(server, name)
    assert server.put(f"/maven/{name}/org/acme/lib/1.0/lib-1.0-sources.jar", JAR).status_code == 201


WARES = (
    Ware("raw", publish_raw, "a.txt", "/raw/{}/a.txt", "/raw/{}/", "a.txt", ("/raw/{}/?format=json",), "/a.txt", b"raw", _no_index),
    Ware(
        "maven", publish_jar, "org/acme/lib/1.0/lib-1.0-sources.jar", "/maven/{}/org/acme/lib/1.0/lib-1.0-sources.jar",
        "/maven/{}/org/acme/lib/maven-metadata.xml", "<version>1.0<",
        ("/maven/{}/org/acme/lib/1.0/lib-1.0-sources.jar.sha1", "/maven/{}/org/acme/lib/maven-metadata.xml.sha256"),
        "/org/acme/lib/1.0/lib-1.0-sources.jar", JAR, _metadata,
        of_bytes=("/maven/{}/org/acme/lib/1.0/lib-1.0-sources.jar.sha1",),
    ),
    Ware(
        "pypi", publish_pypi, f"foo/{WHEEL_NAME}", f"/pypi/{{}}/files/foo/{WHEEL_NAME}", "/pypi/{}/simple/foo/", WHEEL_NAME,
        (f"/pypi/{{}}/files/foo/{WHEEL_NAME}.metadata", "/pypi/{}/pypi/foo/json"), f"/packages/{WHEEL_NAME}", WHEEL, _page,
    ),
    Ware(
        "npm", publish_npm, "@acme/tool/-/tool-1.0.0.tgz", "/npm/{}/@acme/tool/-/tool-1.0.0.tgz", "/npm/{}/@acme%2ftool", '"1.0.0"',
        ("/npm/{}/@acme%2ftool/1.0.0", "/npm/{}/-/package/@acme%2ftool/dist-tags"),
        "/@acme/tool/-/tool-1.0.0.tgz", tarball("@acme/tool", "1.0.0"), _packument,
    ),
    Ware(
        "oci", publish_oci, "team/app/manifests/1.0", "/v2/{}/team/app/manifests/1.0", "/v2/{}/team/app/tags/list", '"1.0"',
        (f"/v2/{{}}/team/app/manifests/{digest_of(manifest_of(b'a layer'))}",),
        "/v2/team/app/manifests/1.0", manifest_of(b"a layer"), _tags, {"Content-Type": MANIFEST},
    ),
)  # fmt: skip
