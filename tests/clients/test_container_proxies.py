"""skopeo and podman through OCI proxies and groups, before Debian's docker-registry behind a token service, and before another Arkvory."""

from __future__ import annotations

import gzip
import hashlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import Desk
from tests.clients.test_containers import Containers
from tests.conftest import MakeServer
from tests.support.clients import require_packages
from tests.support.house import eventually
from tests.support.registries import DockerRegistry, TokenService, docker_registry, token_service

CREDENTIALS = ("ci", "secret")
LAYERS = 12


@pytest.fixture
def tokens() -> Iterator[TokenService]:
    with token_service(users=dict([CREDENTIALS]), public=("library/",)) as service:
        yield service


@pytest.fixture
def there(tmp_path: Path, tokens: TokenService) -> Iterator[DockerRegistry]:
    """The upstream."""
    require_packages("containers")
    with docker_registry(tmp_path / "registry", tokens) as running:
        yield running


@pytest.fixture
def containers(desk: Desk, there: DockerRegistry) -> Iterator[Containers]:
    """With a proxy of the upstream, whose copies are always due."""
    with tempfile.TemporaryDirectory(prefix="ark") as folder:
        made = Containers(desk, Path(folder), kind="proxy", upstream_url=there.url, public=True, settings={"mutable_ttl": 0})
        made.auth.write_text("{}")
        yield made
        desk.server.delete(f"/api/v1/repositories/{made.name}")


@pytest.fixture
def grouped(desk: Desk, there: DockerRegistry) -> Iterator[Containers]:
    """The same with a group before it, whose first member takes what is pushed."""
    with tempfile.TemporaryDirectory(prefix="ark") as folder:
        yield group(desk, Path(folder), upstream_url=there.url)


def group(desk: Desk, storage: Path, **upstream: Any) -> Containers:
    """Nobody is logged in to it; the copies are always due."""
    made = Containers(desk, storage, public=True, settings={"mutable_ttl": 0}, make=desk.group, **upstream)
    made.auth.write_text("{}")
    return made


def push_ours(containers: Containers) -> Path:
    """Through the group, an image that the upstream has not, and refuses to speak of."""
    folder = containers.layout("ours", 2)
    login = ("--dest-creds", ":".join(containers.desk.server.admin))
    containers.skopeo("copy", "--dest-tls-verify=false", *login, f"dir:{folder}", f"docker://{containers.at('team/ours:1.0')}")
    return folder


def push(containers: Containers, there: DockerRegistry, image: str, layers: int = LAYERS) -> Path:
    """From a folder, straight to the upstream."""
    folder = containers.layout(image.replace("/", "-").replace(":", "-"), layers)
    login = ("--dest-creds", ":".join(CREDENTIALS))
    containers.skopeo("copy", "--dest-tls-verify=false", *login, f"dir:{folder}", f"docker://127.0.0.1:{there.port}/{image}")
    return folder


def pull(containers: Containers, image: str, name: str, *more: str) -> Path:
    """Through the proxy, into a folder."""
    target = containers.desk.home / name
    containers.skopeo("copy", "--src-tls-verify=false", *more, f"docker://{containers.at(image)}", f"dir:{target}")
    return target


def assert_equal(one: Path, other: Path) -> None:
    names = sorted(each.name for each in one.iterdir() if each.name != "version")
    assert names == sorted(each.name for each in other.iterdir() if each.name != "version")
    assert all((one / each).read_bytes() == (other / each).read_bytes() for each in names)


def reads(there: DockerRegistry, method: str, part: str) -> int:
    """How often the upstream was asked so with success, by its own log."""
    lines = [line for line in there.log.splitlines() if '"response completed"' in line]
    return sum(1 for line in lines if f"http.request.method={method} " in line and part in line and "http.response.status=200" in line)


def test_skopeo_pulls_cold_warm_and_with_the_upstream_stopped(grouped: Containers, there: DockerRegistry, tokens: TokenService) -> None:
    containers, ours = grouped, push_ours(grouped)
    assert_equal(ours, pull(containers, "team/ours:1.0", "ours-cold"))
    source = push(containers, there, "library/app:1.0")
    assert_equal(source, pull(containers, "library/app:1.0", "cold"))
    manifests, blobs = reads(there, "GET", "/manifests/"), reads(there, "GET", "/blobs/")
    assert (manifests, blobs) == (1, LAYERS + 1)
    assert_equal(source, pull(containers, "library/app:1.0", "warm"))
    # Compared by HEAD, and nothing but that.
    assert (reads(there, "GET", "/manifests/"), reads(there, "GET", "/blobs/")) == (manifests, blobs)
    assert reads(there, "HEAD", "/manifests/") >= 1
    # One token for all of it, and nobody's: the image is public there.
    pulls = [each for each in tokens.asked if ("scope", "repository:library/app:pull") in each.arguments]
    assert [each.authorization for each in pulls] == [None]
    there.stop()
    assert_equal(source, pull(containers, "library/app:1.0", "alone"))
    assert_equal(ours, pull(containers, "team/ours:1.0", "ours-alone"))
    seen = json.loads(containers.skopeo("inspect", "--tls-verify=false", "--no-tags", f"docker://{containers.at('library/app:1.0')}"))
    assert len(seen["Layers"]) == LAYERS
    assert "manifest unknown" not in containers.skopeo(
        "inspect", "--tls-verify=false", "--retry-times", "0", f"docker://{containers.at('library/app:2.0')}", check=False
    )


def test_private_images_need_the_proxys_credentials_and_a_moved_tag_is_seen(
    containers: Containers, there: DockerRegistry, tokens: TokenService
) -> None:
    first = push(containers, there, "team/app:1.0")
    assert "502" in containers.skopeo("inspect", "--tls-verify=false", f"docker://{containers.at('team/app:1.0')}", check=False)
    name, password = CREDENTIALS
    described = {"upstream": {"username": name, "password": password}}
    assert containers.desk.server.patch(f"/api/v1/repositories/{containers.name}", json=described).status_code == 200
    assert_equal(first, pull(containers, "team/app:1.0", "one"))
    second = containers.layout("another", 3)
    login = ("--dest-creds", ":".join(CREDENTIALS))
    containers.skopeo("copy", "--dest-tls-verify=false", *login, f"dir:{second}", f"docker://127.0.0.1:{there.port}/team/app:1.0")
    assert_equal(second, pull(containers, "team/app:1.0", "two"))
    for tag in ("1.1", "1.2", "0.9"):
        push(containers, there, f"team/app:{tag}", 1)
    listed = json.loads(containers.skopeo("list-tags", "--tls-verify=false", f"docker://{containers.at('team/app')}"))
    assert listed["Tags"] == ["0.9", "1.0", "1.1", "1.2"]
    refused = containers.skopeo("copy", "--dest-tls-verify=false", f"dir:{second}", f"docker://{containers.at('team/app:9')}", check=False)
    assert "denied" in refused or "unsupported" in refused or "unauthorized" in refused or "authentication required" in refused


def test_of_many_platforms_only_one_is_fetched(containers: Containers, there: DockerRegistry) -> None:
    for number in range(3):
        work = containers.stored("buildah", "from", "scratch").strip()
        containers.desk.file(f"file{number}", str(number).encode())
        containers.stored("buildah", "add", work, str(containers.desk.home / f"file{number}"), "/file")
        containers.stored("buildah", "config", "--arch", ("amd64", "arm64", "s390x")[number], work)
        containers.stored("buildah", "commit", work, f"localhost/one:{number}")
    containers.stored("podman", "manifest", "create", "localhost/many:1")
    for number in range(3):
        containers.stored("podman", "manifest", "add", "localhost/many:1", f"containers-storage:localhost/one:{number}")
    login = ("--creds", ":".join(CREDENTIALS))
    target = f"docker://127.0.0.1:{there.port}/library/many:1"
    containers.stored("podman", "manifest", "push", "--all", "--tls-verify=false", *login, "localhost/many:1", target)
    before = reads(there, "GET", "/manifests/")
    seen = containers.stored("podman", "pull", "--tls-verify=false", "--arch", "arm64", containers.at("library/many:1"))
    assert seen.strip()
    assert reads(there, "GET", "/manifests/") == before + 2
    there.stop()
    containers.stored("podman", "rmi", "--force", containers.at("library/many:1"))
    containers.stored("podman", "pull", "--tls-verify=false", "--arch", "arm64", containers.at("library/many:1"))


def test_podman_uses_the_proxy_as_a_mirror_without_a_prefix(containers: Containers, there: DockerRegistry) -> None:
    """A host name that means the proxy; the registry that it stands in for does not exist."""
    source = push(containers, there, "library/app:1.0", 2)
    port = containers.desk.server.port
    changed = containers.desk.server.patch(f"/api/v1/repositories/{containers.name}", json={"host": "localhost"})
    assert changed.status_code == 200
    lines = f'[[registry]]\nlocation = "images.example"\n[[registry.mirror]]\nlocation = "localhost:{port}"\ninsecure = true\n'
    containers.desk.file(".config/containers/registries.conf", lines.encode())
    containers.skopeo("copy", "docker://images.example/library/app:1.0", f"dir:{containers.desk.home / 'out'}")
    assert_equal(source, containers.desk.home / "out")
    there.stop()
    containers.skopeo("inspect", "--no-tags", "docker://images.example/library/app:1.0")
    # Its image is too odd to be unpacked: what is asked for is what matters.
    assert "404" not in containers.stored("podman", "pull", "images.example/library/app:1.0", check=False)


def test_names_of_one_segment_are_looked_for_where_the_upstream_has_them(containers: Containers, there: DockerRegistry) -> None:
    source = push(containers, there, "library/app:1.0", 2)
    changed = containers.desk.server.patch(f"/api/v1/repositories/{containers.name}", json={"settings": {"short_names": "library"}})
    assert changed.status_code == 200
    assert_equal(source, pull(containers, "app:1.0", "short"))


def test_another_arkvory_is_an_upstream(desk: Desk, make_server: MakeServer) -> None:
    """Of a private repository, by the token flow and by its prefix; its referrers and tags too."""
    require_packages("containers")
    far = make_server()
    far.repository("images", format="oci")
    name, password = far.admin
    fields: dict[str, Any] = {"upstream_url": f"{far.url}/images", "upstream": {"username": name, "password": password}}
    with tempfile.TemporaryDirectory(prefix="ark") as folder:
        containers = group(desk, Path(folder), **fields)
        ours = push_ours(containers)
        source = containers.layout("app", LAYERS)
        login = ("--dest-creds", f"{name}:{password}")
        containers.skopeo("copy", "--dest-tls-verify=false", *login, f"dir:{source}", f"docker://127.0.0.1:{far.port}/images/team/app:1.0")
        assert_equal(source, pull(containers, "team/app:1.0", "cold"))
        listed = json.loads(containers.skopeo("list-tags", "--tls-verify=false", f"docker://{containers.at('team/app')}"))
        assert listed["Tags"] == ["1.0"]
        digest = json.loads(containers.skopeo("inspect", "--tls-verify=false", f"docker://{containers.at('team/app:1.0')}"))["Digest"]
        referrers = desk.server.get(f"/v2/{containers.name}/team/app/referrers/{digest}")
        assert (referrers.status_code, referrers.json()["manifests"]) == (200, [])
        far.stop()
        assert_equal(source, pull(containers, "team/app:1.0", "alone"))
        assert_equal(ours, pull(containers, "team/ours:1.0", "ours-alone"))


def test_a_large_blob_comes_through_while_it_is_fetched(containers: Containers, there: DockerRegistry) -> None:
    folder = containers.layout("large", 1)
    big = gzip.compress(b"0" * 100 + bytes(range(256)) * 200_000, 0, mtime=0)
    manifest = json.loads((folder / "manifest.json").read_text())
    digest = hashlib.sha256(big).hexdigest()
    (folder / digest).write_bytes(big)
    manifest["layers"].append({**manifest["layers"][0], "digest": f"sha256:{digest}", "size": len(big)})
    (folder / "manifest.json").write_text(json.dumps(manifest))
    login = ("--dest-creds", ":".join(CREDENTIALS))
    containers.skopeo("copy", "--dest-tls-verify=false", *login, f"dir:{folder}", f"docker://127.0.0.1:{there.port}/library/large:1")
    assert_equal(folder, pull(containers, "library/large:1", "through"))
    address = f"/v2/{containers.name}/library/large/blobs/sha256:{digest}"
    eventually(lambda: containers.desk.server.head(address).headers["X-Arkvory-Cache"] == "hit")
