"""skopeo, podman and buildah against OCI repositories."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clients.conftest import Desk
from tests.support.clients import require_packages

_numbers = itertools.count(1)
_POLICY = {"default": [{"type": "insecureAcceptAnything"}]}


class Containers:
    """A fresh OCI repository, and the clients' way to it: storage and configuration of their own, no daemon. `make` makes it."""

    def __init__(self, desk: Desk, storage: Path, *, make: Callable[..., str] | None = None, **fields: object) -> None:
        self.desk = desk
        self.storage = storage
        self.name = f"images{next(_numbers)}"
        (make or desk.server.repository)(self.name, format="oci", **fields)
        self.host = f"127.0.0.1:{desk.server.port}"
        self.policy = desk.file("policy.json", json.dumps(_POLICY).encode())
        self.auth = desk.home / "auth.json"

    def at(self, image: str) -> str:
        return f"{self.host}/{self.name}/{image}"

    def skopeo(self, *arguments: str, check: bool = True) -> str:
        done = self.desk.run("skopeo", "--policy", self.policy, *arguments, check=check, REGISTRY_AUTH_FILE=str(self.auth))
        return done.stdout

    def stored(self, client: str, *arguments: str | Path, check: bool = True) -> str:
        """podman or buildah, on a storage of this desk."""
        folders = ("--root", self.storage / "root", "--runroot", self.storage / "run", "--storage-driver", "vfs")
        environment = {"REGISTRY_AUTH_FILE": str(self.auth), "CONTAINERS_POLICY": str(self.policy), "BUILDAH_ISOLATION": "chroot"}
        return self.desk.run(client, *folders, *arguments, check=check, **environment).stdout

    def login(self, user: str | None = None, password: str | None = None) -> None:
        name, secret = self.desk.server.admin
        self.skopeo("login", "--tls-verify=false", "-u", user or name, "-p", password or secret, self.host)

    def layout(self, name: str = "made", layers: int = 3) -> Path:
        """An image as a folder of skopeo's `dir:` form."""
        folder = self.desk.home / name
        folder.mkdir()
        bodies = [gzip.compress(f"{name} {number}".encode() * 5000, mtime=0) for number in range(layers)]
        config = json.dumps({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": []}, "config": {}}).encode()
        for body in (config, *bodies):
            (folder / hashlib.sha256(body).hexdigest()).write_bytes(body)
        kinds = "application/vnd.oci.image"
        document = {
            "schemaVersion": 2,
            "mediaType": f"{kinds}.manifest.v1+json",
            "config": _descriptor(config, f"{kinds}.config.v1+json"),
            "layers": [_descriptor(each, f"{kinds}.layer.v1.tar+gzip") for each in bodies],
        }
        (folder / "manifest.json").write_text(json.dumps(document))
        (folder / "version").write_text("Directory Transport Version: 1.1\n")
        return folder


def _descriptor(body: bytes, media_type: str) -> dict[str, object]:
    return {"mediaType": media_type, "digest": f"sha256:{hashlib.sha256(body).hexdigest()}", "size": len(body)}


@pytest.fixture
def storage() -> Iterator[Path]:
    """A folder with a short name: podman takes no other."""
    with tempfile.TemporaryDirectory(prefix="ark") as folder:
        yield Path(folder)


@pytest.fixture
def containers(desk: Desk, storage: Path) -> Containers:
    require_packages("containers")
    return Containers(desk, storage)


def test_skopeo_copies_an_image_in_and_out_without_a_changed_byte(containers: Containers) -> None:
    source, target = containers.layout(), containers.desk.home / "back"
    containers.login()
    containers.skopeo("copy", "--dest-tls-verify=false", f"dir:{source}", f"docker://{containers.at('team/app:1.0')}")
    containers.skopeo("copy", "--src-tls-verify=false", f"docker://{containers.at('team/app:1.0')}", f"dir:{target}")
    names = sorted(each.name for each in source.iterdir() if each.name != "version")
    assert names == sorted(each.name for each in target.iterdir() if each.name != "version")
    assert all((source / each).read_bytes() == (target / each).read_bytes() for each in names)


def test_skopeo_lists_inspects_and_deletes(containers: Containers) -> None:
    source = containers.layout()
    containers.login()
    for tag in ("1.0", "1.1"):
        containers.skopeo("copy", "--dest-tls-verify=false", f"dir:{source}", f"docker://{containers.at(f'app:{tag}')}")
    listed = json.loads(containers.skopeo("list-tags", "--tls-verify=false", f"docker://{containers.at('app')}"))
    assert listed["Tags"] == ["1.0", "1.1"]
    seen = json.loads(containers.skopeo("inspect", "--tls-verify=false", f"docker://{containers.at('app:1.0')}"))
    assert seen["Digest"] == f"sha256:{hashlib.sha256((source / 'manifest.json').read_bytes()).hexdigest()}"
    # skopeo deletes the manifest, and so all of its tags.
    containers.skopeo("delete", "--tls-verify=false", f"docker://{containers.at('app:1.0')}")
    assert "manifest unknown" in containers.skopeo("inspect", "--tls-verify=false", f"docker://{containers.at('app:1.1')}", check=False)


def test_skopeo_copies_between_images_by_mounting(containers: Containers) -> None:
    containers.login()
    source = containers.layout()
    first, second = f"docker://{containers.at('app:1')}", f"docker://{containers.at('copy/of/app:1')}"
    containers.skopeo("copy", "--dest-tls-verify=false", f"dir:{source}", first)
    containers.skopeo("copy", "--src-tls-verify=false", "--dest-tls-verify=false", first, second)
    assert json.loads(containers.skopeo("inspect", "--tls-verify=false", second))["Layers"]


def test_skopeo_reads_a_public_image_without_a_login_and_is_told_of_a_wrong_one(desk: Desk, storage: Path) -> None:
    require_packages("containers")
    containers = Containers(desk, storage, public=True)
    containers.login()
    containers.skopeo("copy", "--dest-tls-verify=false", f"dir:{containers.layout()}", f"docker://{containers.at('app:1')}")
    containers.skopeo("logout", containers.host)
    containers.skopeo("inspect", "--tls-verify=false", f"docker://{containers.at('app:1')}")
    refused = containers.skopeo("login", "--tls-verify=false", "-u", "admin", "-p", "wrong", containers.host, check=False)
    assert "invalid username/password" in refused
    pushed = containers.skopeo(
        "copy", "--dest-tls-verify=false", f"dir:{containers.layout('other')}", f"docker://{containers.at('app:2')}", check=False
    )
    assert "unauthorized" in pushed or "authentication required" in pushed or "needs a login" in pushed


def test_a_private_image_is_for_those_who_may_read_it(containers: Containers) -> None:
    containers.login()
    containers.skopeo("copy", "--dest-tls-verify=false", f"dir:{containers.layout()}", f"docker://{containers.at('app:1')}")
    containers.skopeo("logout", containers.host)
    assert "unauthorized" in containers.skopeo("inspect", "--tls-verify=false", f"docker://{containers.at('app:1')}", check=False)


def test_buildah_builds_pushes_and_podman_pulls_and_reads(containers: Containers) -> None:
    containers.login()
    containers.desk.file("hello.txt", b"hello\n")
    work = containers.stored("buildah", "from", "scratch").strip()
    containers.stored("buildah", "add", work, str(containers.desk.home / "hello.txt"), "/hello.txt")
    containers.stored("buildah", "commit", work, "localhost/hello:1")
    containers.stored("buildah", "push", "--tls-verify=false", "localhost/hello:1", f"docker://{containers.at('hello:1')}")
    containers.stored("podman", "rmi", "--force", "localhost/hello:1")
    containers.stored("podman", "pull", "--tls-verify=false", containers.at("hello:1"))
    seen = json.loads(containers.stored("podman", "image", "inspect", containers.at("hello:1")))
    assert seen[0]["RepoTags"] == [containers.at("hello:1")]
    work = containers.stored("buildah", "from", containers.at("hello:1")).strip().splitlines()[-1]
    folder = Path(containers.stored("buildah", "mount", work).strip())
    assert (folder / "hello.txt").read_bytes() == b"hello\n"


def test_podman_pushes_a_list_of_images_and_a_search_of_the_catalogue_finds_it(containers: Containers) -> None:
    containers.login()
    containers.stored("buildah", "commit", containers.stored("buildah", "from", "scratch").strip(), "localhost/one:1")
    containers.stored("podman", "manifest", "create", "localhost/many:1")
    containers.stored("podman", "manifest", "add", "localhost/many:1", "containers-storage:localhost/one:1")
    containers.stored("podman", "manifest", "push", "--all", "--tls-verify=false", "localhost/many:1", f"docker://{containers.at('many:1')}")
    seen = json.loads(containers.skopeo("inspect", "--raw", "--tls-verify=false", f"docker://{containers.at('many:1')}"))
    assert len(seen["manifests"]) == 1
    found = containers.stored("podman", "search", "--tls-verify=false", f"{containers.host}/{containers.name}")
    assert containers.at("many") in found
