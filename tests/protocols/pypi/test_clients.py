"""The room before its real clients, over real sockets: twine, pip and uv."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest
from gevent.pywsgi import WSGIServer

from tests.protocols.pypi.conftest import Room
from tests.protocols.pypi.packages import sdist, wheel
from tests.support import clients

FOO = "foo-1.0-py3-none-any.whl"


class Address:
    """The room at a port, and clients run against it from a folder of their own."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder

    def run(self, *command: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        """In a thread, since the server lives in the loop of this one."""
        environment = {"UV_CACHE_DIR": str(self.folder / "uv"), "UV_HTTP_TIMEOUT": "20"}
        done: subprocess.CompletedProcess[str] = gevent.get_hub().threadpool.apply(
            clients.run, command, {"home": self.folder, "environment": environment, "check": check}
        )
        return done

    def twine(self, *files: Path, options: tuple[str, ...] = (), check: bool = True) -> subprocess.CompletedProcess[str]:
        login = ("--repository-url", f"{self.url}legacy/", "-u", "local", "-p", "x", "--non-interactive", "--disable-progress-bar")
        return self.run("twine", "upload", *login, *options, *files, check=check)

    def pip(self, *requirements: str, into: str = "site") -> subprocess.CompletedProcess[str]:
        where = ("--index-url", f"{self.url}simple/", "--target", self.folder / into, "--no-cache-dir", "--disable-pip-version-check")
        return self.run("pip", "-v", "install", *where, *requirements)

    def file(self, name: str, data: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(data)
        return path


@pytest.fixture
def address(room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Address]:
    # The administrator of this machine, whatever Basic credential the client sends.
    monkeypatch.setattr("app.http.identity._identity", lambda house, asked: clients_identity() if "Authorization" in asked.headers else None)
    server = WSGIServer(("127.0.0.1", 0), room.app, log=None)
    server.start()
    try:
        yield Address(f"http://127.0.0.1:{server.server_port}/pypi/py/", tmp_path)
    finally:
        server.stop()


def clients_identity() -> object:
    from app.access.identity import LOCAL

    return LOCAL


def test_twine_uploads_and_pip_and_uv_install(address: Address) -> None:
    address.twine(
        address.file(FOO, wheel("foo", "1.0", "Requires-Python: >=3.8", "Requires-Dist: Bar_Baz>=2")),
        address.file("bar_baz-2.0-py3-none-any.whl", wheel("bar_baz", "2.0")),
        address.file("foo-1.0.tar.gz", sdist("foo", "1.0")),
    )
    done = address.pip("foo")
    assert (address.folder / "site" / "foo" / "__init__.py").exists()
    assert (address.folder / "site" / "bar_baz" / "__init__.py").exists()
    assert f"{FOO}.metadata" in done.stdout
    address.run("uv", "pip", "install", "--target", address.folder / "uv-site", "--index-url", f"{address.url}simple/", "Foo==1.0")
    assert (address.folder / "uv-site" / "bar_baz" / "__init__.py").exists()


def test_uv_publishes_and_sees_what_is_there_already(address: Address) -> None:
    path = address.file(FOO, wheel("foo", "1.0"))
    command = ("uv", "publish", "--publish-url", f"{address.url}legacy/", "--check-url", f"{address.url}simple/", "-u", "local", "-p", "x", path)
    address.run(*command)
    assert "already exists" in address.run(*command).stdout


def test_twine_skips_what_exists_and_fails_without_being_told_to(address: Address) -> None:
    """HO-PYPI-4: also for other bytes under the same name."""
    address.twine(address.file(FOO, wheel("foo", "1.0")))
    for data in (wheel("foo", "1.0"), wheel("foo", "1.0", "Summary: other")):
        path = address.file(FOO, data)
        assert "409" in address.twine(path, check=False).stdout
        assert "appears to already exist" in " ".join(address.twine(path, options=("--skip-existing",)).stdout.split())


def test_pip_passes_over_a_yanked_release_unless_it_is_pinned(address: Address, room: Room) -> None:
    """PEP 592."""
    for version in ("1.0", "1.1"):
        address.twine(address.file(f"foo-{version}-py3-none-any.whl", wheel("foo", version)))
    assert room.request("PUT", "pypi/foo/1.1/yanked", data="leaks <memory>".encode()).status_code == 204
    assert "Successfully installed foo-1.0" in address.pip("foo").stdout
    done = address.pip("foo==1.1", into="pinned")
    assert "leaks <memory>" in done.stdout
