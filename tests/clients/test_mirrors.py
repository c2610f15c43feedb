"""Mirrors of registries that others wrote (pypiserver's HTML, verdaccio, Debian's docker-registry) and of another Arkvory."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import sqlalchemy
from sqlalchemy.pool import NullPool

from bench.peers import installing
from bench.peers.servers import PypiServer, Verdaccio
from tests.clients.conftest import Desk
from tests.conftest import MakeServer
from tests.protocols.npm.packages import document
from tests.protocols.oci.conftest import INDEX, MANIFEST, digest_of, index_of, manifest_of
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
    tarballs = {"lib/-/lib-1.0.0.tgz", "lib/-/lib-1.1.0.tgz", "@acme/base/-/base-2.0.0.tgz"}
    assert stored(server, "js") == tarballs
    server.repository("js-own", "npm")
    after = follow(server, "js-own", names=["lib", "@acme/base"], upstream_url=address)
    assert (after["state"], stored(server, "js-own")) == ("complete", tarballs), after
    theirs, ours = (server.get(f"/npm/{name}/lib").json() for name in ("js", "js-own"))
    assert (ours["dist-tags"], ours["time"]["1.0.0"]) == (theirs["dist-tags"], theirs["time"]["1.0.0"])


@pytest.mark.soak
def test_a_proxy_and_a_hosted_repository_follow_the_catalog_of_docker_registry(server: Server, tmp_path: Path) -> None:
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
        server.repository("hub-own", "oci", public=True)
        after = follow(server, "hub-own", upstream_url=there.url)
        assert after["state"] == "complete", json.dumps(after)
    for name in ("hub", "hub-own"):
        assert server.get(f"/v2/{name}/team/app/manifests/1.0", auth=None).content == body
        for blob in layers:
            assert server.get(f"/v2/{name}/team/app/blobs/{digest_of(blob)}", auth=None).content == blob


class Other:
    """Another Arkvory with a private npm repository and one of images, each with two versions of one thing."""

    def __init__(self, server: Server, layers: list[bytes]) -> None:
        self.server = server
        self.layers = layers
        server.repository("js", "npm")
        server.repository("images", "oci")
        for version, tag in (("1.0.0", "latest"), ("1.1.0", "next")):
            put = server.request("PUT", "/npm/js/@acme%2flib", json=document("@acme/lib", version, tag=tag))
            assert put.status_code == 201, put.text
        for body in (b"{}", *layers):
            assert server.post(f"/v2/images/app/blobs/uploads/?digest={digest_of(body)}", data=body).status_code == 201
        self.manifests = [manifest_of(layers[0]), manifest_of(*layers)]
        for tag, body in zip(("1.0", "2.0"), self.manifests, strict=True):
            self.manifest(tag, body)
        self.manifest("all", index_of(*self.manifests), INDEX)

    def manifest(self, tag: str, body: bytes, kind: str = MANIFEST) -> None:
        put = self.server.put(f"/v2/images/app/manifests/{tag}", body, headers={"Content-Type": kind})
        assert put.status_code == 201, put.text

    def upstream(self, below: str) -> dict[str, Any]:
        """Settings of a mirror."""
        user, password = self.server.admin
        return {"upstream_url": f"{self.server.url}/{below}", "upstream": {"username": user, "password": password}}


def test_npm_and_skopeo_read_what_hosted_repositories_have_of_another_arkvory(desk: Desk, make_server: MakeServer) -> None:
    """By the lists of the format, or by the other one's list of all that it has: that is the same."""
    clients.require_packages("npm"), clients.require_packages("containers")
    there, server = Other(make_server(), [noise(20_000, 1), noise(9 * 1024 * 1024, 2)]), desk.server
    theirs = digests(there.server, "images")
    for source in ("index", "arkvory"):
        js, images = f"js-{source}", f"images-{source}"
        server.repository(js, "npm", public=True), server.repository(images, "oci", public=True)
        after = follow(server, js, source=source, **there.upstream("npm/js"))
        assert (after["state"], after["counts"]["done"]) == ("complete", 2), after
        assert follow(server, images, source=source, **there.upstream("images"))["state"] == "complete"
        assert digests(server, images) == theirs
    there.server.stop()
    # The upstream is away: everything is here.
    told = server.get(f"/npm/{js}/@acme/lib").json()
    assert (told["dist-tags"], sorted(told["versions"])) == ({"latest": "1.0.0", "next": "1.1.0"}, ["1.0.0", "1.1.0"])
    desk.file(".npmrc", f"registry={server.url}/npm/{js}/\nupdate-notifier=false\nfund=false\naudit=false\nfetch-retries=0\n".encode())
    desk.file("app/package.json", json.dumps({"name": "app", "version": "0.0.1", "dependencies": {"@acme/lib": "next"}}).encode())
    home = {"npm_config_cache": str(desk.home / "cache"), "npm_config_userconfig": str(desk.home / ".npmrc")}
    desk.run("npm", "--prefix", desk.home / "app", "install", **home)
    installed = json.loads((desk.home / "app/node_modules/@acme/lib/package.json").read_text())
    assert installed["version"] == "1.1.0"
    policy = desk.file("policy.json", json.dumps({"default": [{"type": "insecureAcceptAnything"}]}).encode())
    image = f"docker://127.0.0.1:{server.port}/{images}/app:all"
    desk.run("skopeo", "--policy", policy, "copy", "--all", "--src-tls-verify=false", image, f"dir:{desk.home / 'image'}")
    for each in there.layers:
        assert (desk.home / "image" / digest_of(each).partition(":")[2]).read_bytes() == each


def test_lists_of_another_arkvory_are_not_sent_again(make_server: MakeServer) -> None:
    """A packument, tags, a folder: as they stand, each is 304; what comes there comes here."""
    there, server = Other(make_server(), [noise(2_000, 1), noise(2_000, 2)]), make_server()
    there.server.repository("files")
    there.server.put("/raw/files/d/a", b"a")
    for name, (format_name, names, below) in FOLLOWED.items():
        server.repository(name, format_name)
        assert follow(server, name, names=names, **there.upstream(below))["state"] == "complete"
        run(server, name)
        told, before = not_modified(there.server), digests(server, name)
        run(server, name)
        assert not_modified(there.server) > told, name
        assert digests(server, name) == before
    there.manifest("later", there.manifests[0])
    there.server.put("/raw/files/d/b", b"b")
    assert there.server.request("PUT", "/npm/js/@acme%2flib", json=document("@acme/lib", "1.2.0")).status_code == 201
    for name, path in (("js", "@acme/lib/-/lib-1.2.0.tgz"), ("images", "app/manifests/later"), ("files", "d/b")):
        run(server, name)
        assert path in stored(server, name)


FOLLOWED = {"js": ("npm", ["@acme/lib"], "npm/js"), "images": ("oci", ["app"], "images"), "files": ("raw", ["d/"], "raw/files")}


def run(server: Server, repository: str) -> None:
    """One more round, to its end."""
    where = f"/api/v1/repositories/{repository}/mirror"
    before = server.get(where).json()["ended_at"]
    assert server.post(f"{where}/run").status_code == 202
    eventually(lambda: (now := server.get(where).json())["ended_at"] != before and now["state"] == "complete", 90)


def not_modified(server: Server) -> float:
    """How often it said so."""
    counted = [each for each in server.get("/metrics").text.splitlines() if each.startswith("flask_http_request_total{")]
    return sum(float(each.rpartition(" ")[2]) for each in counted if 'status="304"' in each)


def digests(server: Server, repository: str) -> dict[str, str]:
    items = server.get(f"/api/v1/repositories/{repository}/artifacts?limit=1000").json()["items"]
    return {each["path"]: each["sha256"] for each in items}


@pytest.mark.soak
def test_a_hosted_mirror_of_images_that_is_killed_goes_on_and_fetches_no_layer_twice(make_server: MakeServer) -> None:
    there, server = Other(make_server(), [noise(3 * 1024 * 1024, number) for number in range(40)]), make_server()
    server.repository("hub", "oci")
    wanted = {"concurrency": 2, "names": ["app"], **there.upstream("images")}
    assert server.request("PUT", "/api/v1/repositories/hub/mirror", json=wanted).status_code == 201
    eventually(lambda: len(stored(server, "hub")) >= 5, 90)
    server.kill9()
    here = count(server.database_url)
    assert here < 43
    server.start()
    eventually(lambda: server.get("/api/v1/repositories/hub/mirror").json()["state"] == "complete", 120)
    assert stored(server, "hub") == stored(there.server, "images")
    # What was counted is written at the end.
    there.server.stop()
    downloads = "select coalesce(sum(d.count), 0) from arkvory_downloads d join arkvory_artifacts a on a.id = d.artifact_id"
    blobs = count(there.server.database_url, f"{downloads} where a.path like 'app/blobs/%'")
    print(f"\n{here} artifacts before the kill; {blobs} downloads of {len(there.layers) + 1} blobs")
    assert len(there.layers) + 1 <= blobs <= len(there.layers) + 1 + 2


def count(url: str | None, statement: str = "select count(*) from arkvory_artifacts") -> int:
    engine = sqlalchemy.create_engine(str(url), poolclass=NullPool)
    with engine.connect() as connection:
        return int(connection.execute(sqlalchemy.text(statement)).scalar_one())
