"""Mirrors of registries that others wrote: pypiserver's HTML, verdaccio, Debian's docker-registry."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from bench.peers import installing
from bench.peers.servers import PypiServer, Verdaccio
from tests.protocols.npm.packages import document
from tests.protocols.oci.conftest import MANIFEST, digest_of, manifest_of
from tests.protocols.pypi.packages import sdist, wheel
from tests.support import clients
from tests.support.house import eventually
from tests.support.registries import docker_registry
from tests.support.server import Server
from tests.support.upstreams import noise


@pytest.fixture
def pypiserver(tmp_path: Path) -> Iterator[PypiServer]:
    made = PypiServer(Path(sys.prefix) / "peers", tmp_path / "peer")
    try:
        installing.environment(made.cache, made.name, installing.PYPISERVER)
    except installing.Unavailable as error:
        clients.go_without(str(error))
    with made.running():
        yield made


@pytest.fixture
def verdaccio(tmp_path: Path) -> Iterator[Verdaccio]:
    clients.require_packages("npm")
    made = Verdaccio(Path(sys.prefix) / "peers", tmp_path / "peer")
    running = made.running()
    try:
        running.__enter__()
    except installing.Unavailable as error:
        clients.go_without(f"verdaccio could not be had: {error}")
    yield made
    running.__exit__(None, None, None)


def follow(server: Server, repository: str, **settings: Any) -> dict[str, Any]:
    """Its mirror after the first run."""
    made = server.request("PUT", f"/api/v1/repositories/{repository}/mirror", json=settings)
    assert made.status_code == 201, made.text

    def mirror() -> dict[str, Any]:
        found: dict[str, Any] = server.get(f"/api/v1/repositories/{repository}/mirror").json()
        return found

    eventually(lambda: mirror()["state"] not in {"new", "running"}, 90)
    return mirror()


def stored(server: Server, repository: str) -> set[str]:
    return {each["path"] for each in server.get(f"/api/v1/repositories/{repository}/artifacts?limit=1000").json()["items"]}


def test_a_proxy_and_a_hosted_repository_follow_pypiserver(server: Server, pypiserver: PypiServer) -> None:
    files = {"req-1.0-py3-none-any.whl": wheel("req", "1.0")}
    files |= {f"{name}-{version}.tar.gz": sdist(name, version) for name, version in (("req", "2.0"), ("other", "1.0"))}
    for name, body in files.items():
        (pypiserver.folder / "packages" / name).write_bytes(body)
    url = f"http://127.0.0.1:{pypiserver.port}/simple"
    server.repository("py-proxied", "pypi", kind="proxy", upstream_url=url)
    server.repository("py-hosted", "pypi")
    wanted = {f"{name.split('-')[0]}/{name}" for name in files}
    for name, more in (("py-proxied", {}), ("py-hosted", {"upstream_url": url})):
        after = follow(server, name, **more)
        assert (after["state"], after["counts"]["done"]) == ("complete", len(files)), after
        assert {each for each in stored(server, name) if not each.endswith(".metadata")} == wanted
    log = (pypiserver.folder / "access.log").read_text()
    assert log.count("GET /packages/") == 2 * len(files)
    page = server.get("/pypi/py-hosted/simple/req/", headers={"Accept": "application/vnd.pypi.simple.v1+json"}).json()
    assert {each["filename"] for each in page["files"]} == {name for name in files if name.startswith("req")}


@pytest.mark.soak
def test_a_proxy_follows_verdaccio_by_names(server: Server, verdaccio: Verdaccio) -> None:
    address = f"http://127.0.0.1:{verdaccio.port}"
    for name, version in (("lib", "1.0.0"), ("lib", "1.1.0"), ("@acme/base", "2.0.0")):
        published = requests.put(f"{address}/{name.replace('/', '%2f')}", json=document(name, version), timeout=30)
        assert published.status_code == 201, published.text
    server.repository("js", "npm", kind="proxy", upstream_url=address)
    after = follow(server, "js", names=["lib", "@acme/base"])
    assert after["state"] == "complete", after
    assert stored(server, "js") == {"lib/-/lib-1.0.0.tgz", "lib/-/lib-1.1.0.tgz", "@acme/base/-/base-2.0.0.tgz"}


@pytest.mark.soak
def test_a_proxy_follows_the_catalog_of_docker_registry(server: Server, tmp_path: Path) -> None:
    """With a layer that comes in parts."""
    layers = [noise(20_000), noise(9 * 1024 * 1024, 2)]
    body = manifest_of(*layers)
    with docker_registry(tmp_path / "registry") as there:
        for blob in (b"{}", *layers):
            begun = requests.post(f"{there.url}/v2/team/app/blobs/uploads/", timeout=30)
            where = begun.headers["Location"] + f"&digest={digest_of(blob)}"
            assert requests.put(where, data=blob, headers={"Content-Type": "application/octet-stream"}, timeout=30).status_code == 201
        put = requests.put(f"{there.url}/v2/team/app/manifests/1.0", data=body, headers={"Content-Type": MANIFEST}, timeout=30)
        assert put.status_code == 201, put.text
        server.repository("hub", "oci", kind="proxy", upstream_url=there.url, public=True)
        after = follow(server, "hub")
        assert after["state"] == "complete", json.dumps(after)
    assert server.get("/v2/hub/team/app/manifests/1.0", auth=None).content == body
    for blob in layers:
        assert server.get(f"/v2/hub/team/app/blobs/{digest_of(blob)}", auth=None).content == blob
