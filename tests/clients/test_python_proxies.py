"""pip and uv through groups and proxies of indexes that others wrote, and of another Arkvory: cold, warm, and with the upstream stopped."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.peers import installing
from bench.peers.servers import Devpi, Peer, PypiServer
from tests.clients.conftest import Desk
from tests.conftest import MakeServer
from tests.protocols.pypi.packages import wheel
from tests.support import clients
from tests.support.house import eventually
from tests.support.server import Server, free_port

# A web framework with its tree, in some sixty wheels, compiled ones among them.
LARGE = ("fastapi[standard]==0.163.2", "Flask==3.1.3")
SMALL = ("Flask==3.1.3",)
OURS = "ours"

_numbers = itertools.count(1)


def files_in(folder: Path) -> dict[str, str]:
    """SHA-256 by name."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.is_file()}


@dataclass
class Proxied:
    """A proxy before an upstream, and the clients' way to it."""

    desk: Desk
    upstream: str

    def __post_init__(self) -> None:
        self.name = f"through{next(_numbers)}"
        self.address = self.made()
        self.simple = self.desk.with_login(f"{self.address}/simple/")

    def made(self) -> str:
        """Its address."""
        return self.desk.server.repository(self.name, "pypi", kind="proxy", upstream_url=self.upstream)

    def pip(self, requirements: tuple[str, ...], folder: str) -> dict[str, str]:
        """The files that pip downloads."""
        index = ("--index-url", self.simple, "--no-cache-dir", "--disable-pip-version-check")
        self.desk.run("pip", "download", *index, "-d", self.desk.home / folder, *requirements)
        return files_in(self.desk.home / folder)

    def uv(self, requirements: tuple[str, ...], folder: str) -> set[str]:
        """The packages that uv installs, with an empty cache."""
        where = ("--index-url", self.simple, "--target", self.desk.home / folder, "--python", sys.executable, "--no-cache")
        self.desk.run("uv", "pip", "install", *where, *requirements)
        return {path.name for path in (self.desk.home / folder).glob("*.dist-info")}

    def expire(self) -> None:
        """From now on each page is due."""
        changed = self.desk.server.patch(f"/api/v1/repositories/{self.name}", json={"settings": {"mutable_ttl": 0, "miss_ttl": 0}})
        assert changed.status_code == 200, changed.text


class Grouped(Proxied):
    """A group before it, whose first member has a package of our own: clients know the group alone."""

    def made(self) -> str:
        group, self.name = self.name, f"{self.name}-there"
        return self.desk.group(group, "pypi", upstream_url=self.upstream)

    def publish(self) -> dict[str, str]:
        """By twine, through the group: a wheel that needs one of the upstream's; its SHA-256 by name."""
        data = wheel(OURS, "1.0", "Requires-Dist: flask")
        upload(self.desk, self.address, self.desk.server, self.desk.file(f"ours/{OURS}-1.0-py3-none-any.whl", data))
        return files_in(self.desk.home / "ours")


def upload(desk: Desk, address: str, server: Server, *files: Path) -> None:
    """By twine, as the administrator of that server."""
    login = ("-u", server.admin[0], "-p", server.admin[1], "--non-interactive", "--disable-progress-bar")
    desk.run("twine", "upload", "--repository-url", f"{address}/", *login, *files)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that `LARGE` needs."""
    home = tmp_path_factory.mktemp("tree")
    clients.run(
        "pip", "download", "--disable-pip-version-check", "-d", home / "dist", *LARGE, home=home, environment={"PIP_CONFIG_FILE": ""}
    )
    assert len(files_in(home / "dist")) > 40
    return home / "dist"


def peer(kind: type[Peer], folder: Path) -> Peer:
    """It is installed beside the clients. Where it cannot be had the test is skipped, in CI it fails."""
    made = kind(Path(sys.prefix) / "peers", folder)
    try:
        installing.environment(made.cache, made.name, installing.DEVPI if kind is Devpi else installing.PYPISERVER)
    except installing.Unavailable as error:
        clients.go_without(str(error))
    return made


@pytest.fixture
def pypiserver(tmp_path: Path, tree: Path) -> Iterator[Peer]:
    made = peer(PypiServer, tmp_path / "peer")
    with made.running():
        for each in tree.iterdir():
            shutil.copy(each, made.folder / "packages")
        # Somebody took our name, and a higher version.
        (made.folder / "packages" / f"{OURS}-9.0-py3-none-any.whl").write_bytes(wheel(OURS, "9.0"))
        yield made


@pytest.fixture
def devpi(tmp_path: Path, tree: Path) -> Iterator[Peer]:
    made = peer(Devpi, tmp_path / "peer")
    with made.running():
        made.contestant(3)
        address = f"http://127.0.0.1:{made.port}/root/dev/"
        files = [each for each in tree.iterdir() if each.name.split("-")[0].lower() in FLASK]
        login = ("-u", "root", "-p", "bench-bench", "--non-interactive", "--disable-progress-bar")
        clients.run("twine", "upload", "--repository-url", address, *login, *files, home=tmp_path)
        yield made


FLASK = {"flask", "werkzeug", "jinja2", "itsdangerous", "click", "blinker", "markupsafe"}


def end(upstream: Peer) -> None:
    process = upstream._process
    assert process is not None
    process.terminate()
    process.wait(20)


def test_a_large_tree_comes_through_pypiserver_cold_warm_and_without_it(desk: Desk, pypiserver: Peer, tree: Path) -> None:
    """pip and uv, by HTML; what comes out is what went in, byte for byte. What is ours comes along, and from nowhere else."""
    proxied = Grouped(desk, f"http://127.0.0.1:{pypiserver.port}/simple/")
    everything = files_in(tree) | proxied.publish()
    wanted = (*LARGE, OURS)
    assert proxied.pip(wanted, "cold") == everything
    installed = proxied.uv(wanted, "warm")
    assert len(installed) == len(everything)
    assert f"{OURS}-1.0.dist-info" in installed
    log = (pypiserver.folder / "access.log").read_text()
    assert log.count("GET /packages/") == len(files_in(tree)), "each file is fetched once"
    assert f"/{OURS}" not in log
    proxied.expire()
    end(pypiserver)
    assert proxied.pip(wanted, "stopped") == everything


def test_pypiserver_by_its_bare_address_has_an_index_too(desk: Desk, pypiserver: Peer) -> None:
    proxied = Proxied(desk, f"http://127.0.0.1:{pypiserver.port}")
    page = desk.server.get(f"/pypi/{proxied.name}/simple/", headers={"Accept": "application/vnd.pypi.simple.v1+json"}).json()
    assert {each["name"] for each in page["projects"]} > FLASK
    assert list(proxied.pip(("itsdangerous",), "bare")) == [each.name for each in (pypiserver.folder / "packages").glob("itsdangerous-*")]


@pytest.mark.soak
def test_devpi_gives_json_with_its_hashes(desk: Desk, devpi: Peer) -> None:
    proxied = Grouped(desk, f"http://127.0.0.1:{devpi.port}/root/dev/+simple/")
    proxied.publish()
    wanted = (*SMALL, OURS)
    cold = proxied.pip(wanted, "cold")
    assert f"{OURS}-1.0-py3-none-any.whl" in cold
    page = desk.server.get(f"/pypi/{proxied.name}/simple/flask/", headers={"Accept": "application/vnd.pypi.simple.v1+json"}).json()
    (flask,) = page["files"]
    assert flask["hashes"]["sha256"] == cold[flask["filename"]]
    assert flask["requires-python"] == ">=3.9"
    end(devpi)
    proxied.expire()
    assert proxied.pip(wanted, "stopped") == cold
    assert len(proxied.uv(wanted, "by-uv")) == len(cold)


def test_another_arkvory_is_an_upstream_as_any_other(desk: Desk, make_server: MakeServer, tree: Path) -> None:
    """By an address without `simple`, with a login; metadata files come along, before the wheels."""
    there = make_server()
    address = there.repository("python", "pypi")
    files = [each for each in tree.iterdir() if each.name.split("-")[0].lower() in FLASK]
    upload(desk, address, there, *files)
    proxied = Grouped(desk, address)
    ours = proxied.publish()
    wanted = (*SMALL, OURS)
    refused = desk.server.get(f"/pypi/{proxied.name}/simple/flask/")
    assert refused.status_code == 502
    upstream = {"username": there.admin[0], "password": there.admin[1]}
    assert desk.server.patch(f"/api/v1/repositories/{proxied.name}", json={"upstream": upstream}).status_code == 200
    assert len(proxied.uv(wanted, "by-uv")) == len(files) + 1
    assert proxied.pip(wanted, "cold") == {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in files} | ours
    mine, theirs = (pages(server, name) for server, name in ((desk.server, proxied.name), (there, "python")))
    assert mine == theirs
    proxied.expire()
    assert there.stop() == 0
    assert len(proxied.pip(wanted, "stopped")) == len(files) + 1


def pages(server: Server, repository: str) -> list[object]:
    """What a page tells of its files, as JSON and as HTML; links are relative in both."""
    told = [server.get(f"/pypi/{repository}/simple/flask/", headers={"Accept": accept}) for accept in (JSON, "text/html")]
    return [told[0].json()["files"], told[1].text]


JSON = "application/vnd.pypi.simple.v1+json"


def test_uv_holds_itself_to_a_date_by_the_upload_times_of_the_upstream(desk: Desk, tmp_path: Path) -> None:
    """HO-PYPI-2: `--exclude-newer` needs `upload-time`, which JSON alone tells."""
    files = tmp_path / "static"
    page = files / "simple" / "dated"
    page.mkdir(parents=True)
    entries = []
    for version, day in (("1.0", "2026-01-01"), ("2.0", "2026-06-01")):
        name, data = f"dated-{version}-py3-none-any.whl", wheel("dated", version)
        (files / name).write_bytes(data)
        hashes = f'{{"sha256": "{hashlib.sha256(data).hexdigest()}"}}'
        entries.append(
            f'{{"filename": "{name}", "url": "/{name}", "hashes": {hashes}, "size": {len(data)}, "upload-time": "{day}T00:00:00Z"}}'
        )
    (page / "index.html").write_text(f'{{"meta": {{"api-version": "1.1"}}, "name": "dated", "files": [{", ".join(entries)}]}}')
    with static(files) as address:
        proxied = Proxied(desk, address)
        where = ("--index-url", proxied.simple, "--target", desk.home / "dated", "--python", sys.executable, "--no-cache")
        desk.run("uv", "pip", "install", *where, "--exclude-newer", "2026-03-01", "dated")
    assert [path.name for path in (desk.home / "dated").glob("*.dist-info")] == ["dated-1.0.dist-info"]


@contextlib.contextmanager
def static(folder: Path) -> Iterator[str]:
    """The address of Python's own server of static files, which calls everything HTML."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(folder)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        eventually(lambda: answers(port))
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
