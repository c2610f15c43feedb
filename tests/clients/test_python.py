"""twine, pip and uv against hosted repositories, with packages from elsewhere and of our own making."""

from __future__ import annotations

import hashlib
import itertools
import sys
from pathlib import Path

import pytest

from tests.clients.conftest import Desk
from tests.protocols.pypi.packages import sdist, wheel
from tests.support.server import Server

FOO = "foo-1.0-py3-none-any.whl"
# Packages of others, with a tree of dependencies, in wheels with compiled parts too.
REAL = "Flask==3.1.3"

# Twine refuses the option for every address but PyPI's before it asks; what it makes of our answer is what is tested.
SKIPPING = """
from twine import settings
settings.Settings.verify_feature_capability = lambda self: None
from twine.__main__ import main
raise SystemExit(main())
"""

_numbers = itertools.count(1)


class Index:
    """A fresh pypi repository, and the clients' way to it."""

    def __init__(self, desk: Desk, *, public: bool = False) -> None:
        self.desk = desk
        self.name = f"python{next(_numbers)}"
        self.url = desk.server.repository(self.name, "pypi", public=public)
        self.simple = desk.with_login(f"{self.url}/simple/")

    def twine(self, *files: Path, check: bool = True, skip_existing: bool = False) -> str:
        name, password = self.desk.server.admin
        login = ("--repository-url", f"{self.url}/", "-u", name, "-p", password, "--non-interactive", "--disable-progress-bar")
        start = ("python", "-c", SKIPPING) if skip_existing else ("twine",)
        more = ("--skip-existing",) if skip_existing else ()
        return self.desk.run(*start, "upload", *login, *more, *files, check=check).stdout

    def pip(self, *requirements: str, into: str = "site", index: str | None = None, check: bool = True) -> str:
        where = ("--index-url", index or self.simple, "--target", self.desk.home / into, "--no-cache-dir", "--disable-pip-version-check")
        return self.desk.run("pip", "-v", "install", *where, *requirements, check=check).stdout

    def uv(self, *requirements: str, into: str = "uv-site") -> str:
        where = ("--index-url", self.simple, "--target", self.desk.home / into, "--python", sys.executable)
        return self.desk.run("uv", "pip", "install", *where, *requirements).stdout


@pytest.fixture
def index(desk: Desk) -> Index:
    return Index(desk)


def test_twine_uploads_and_pip_and_uv_install(index: Index) -> None:
    desk = index.desk
    index.twine(
        desk.file(FOO, wheel("foo", "1.0", "Requires-Python: >=3.8", "Requires-Dist: Bar_Baz>=2")),
        desk.file("bar_baz-2.0-py3-none-any.whl", wheel("bar_baz", "2.0")),
        desk.file("foo-1.0.tar.gz", sdist("foo", "1.0")),
    )
    printed = index.pip("foo")
    assert (desk.home / "site/foo/__init__.py").exists()
    assert (desk.home / "site/bar_baz/__init__.py").exists()
    assert f"{FOO}.metadata" in printed
    index.uv("Foo==1.0")
    assert (desk.home / "uv-site/bar_baz/__init__.py").exists()


def test_a_tree_of_real_packages_goes_in_by_twine_and_comes_out_by_pip_and_uv_unchanged(index: Index) -> None:
    desk = index.desk
    desk.run("pip", "download", "--disable-pip-version-check", "-d", desk.home / "dist", REAL, PIP_CONFIG_FILE="")
    files = sorted((desk.home / "dist").iterdir())
    assert len(files) >= 5
    index.twine(*files)
    index.pip(REAL)
    assert desk.run("python", "-c", "import flask, jinja2, markupsafe", PYTHONPATH=str(desk.home / "site")).returncode == 0
    index.uv(REAL)
    assert (desk.home / "uv-site/flask/app.py").exists()
    desk.run("pip", "download", "--no-cache-dir", "--index-url", index.simple, "-d", desk.home / "again", REAL)
    for file in files:
        assert hashlib.sha256(file.read_bytes()).digest() == hashlib.sha256((desk.home / "again" / file.name).read_bytes()).digest()


def test_uv_publishes_and_sees_what_is_there_already(index: Index) -> None:
    name, password = index.desk.server.admin
    path = index.desk.file(FOO, wheel("foo", "1.0"))
    command = ("uv", "publish", "--publish-url", f"{index.url}/legacy/", "--check-url", index.simple, "-u", name, "-p", password, path)
    index.desk.run(*command)
    assert "already exists" in index.desk.run(*command).stdout


def test_twine_skips_what_exists_and_fails_without_being_told_to(index: Index) -> None:
    """HO-PYPI-4, W4: also for other bytes under the same name; the stored ones stay."""
    index.twine(index.desk.file(FOO, wheel("foo", "1.0")))
    before = index.desk.server.get(f"/pypi/{index.name}/files/foo/{FOO}").content
    for data in (wheel("foo", "1.0"), wheel("foo", "1.0", "Summary: other")):
        path = index.desk.file(FOO, data)
        assert "409" in index.twine(path, check=False)
        assert "appears to already exist" in " ".join(index.twine(path, skip_existing=True).split())
    assert index.desk.server.get(f"/pypi/{index.name}/files/foo/{FOO}").content == before


def test_pip_passes_over_a_yanked_release_unless_it_is_pinned(index: Index) -> None:
    """PEP 592."""
    for version in ("1.0", "1.1"):
        index.twine(index.desk.file(f"foo-{version}-py3-none-any.whl", wheel("foo", version)))
    assert index.desk.server.put(f"/pypi/{index.name}/pypi/foo/1.1/yanked", b"leaks <memory>").status_code == 204
    assert "Successfully installed foo-1.0" in index.pip("foo")
    assert "leaks <memory>" in index.pip("foo==1.1", into="pinned")


def test_a_name_in_capitals_is_one_project_whatever_its_spelling(index: Index) -> None:
    """HO-PYPI-1."""
    index.twine(index.desk.file("PyQt5_Qt5-5.15.2-py3-none-any.whl", wheel("PyQt5_Qt5", "5.15.2")))
    page = index.desk.server.get(f"/pypi/{index.name}/simple/pyqt5-qt5/").text
    assert "PyQt5_Qt5-5.15.2-py3-none-any.whl" in page
    assert index.desk.server.get(f"/pypi/{index.name}/simple/").text.count("<a ") == 1
    index.pip("pyqt5.qt5")


def test_the_hash_of_the_metadata_file_is_that_of_its_bytes(index: Index) -> None:
    """HO-PYPI-3."""
    index.twine(index.desk.file(FOO, wheel("foo", "1.0")))
    server = index.desk.server
    page = server.get(f"/pypi/{index.name}/simple/foo/", headers={"Accept": "application/vnd.pypi.simple.v1+json"}).json()
    (file,) = page["files"]
    served = server.get(f"/pypi/{index.name}/files/foo/{FOO}.metadata")
    assert served.status_code == 200
    assert file["core-metadata"]["sha256"] == hashlib.sha256(served.content).hexdigest()


def test_a_private_index_asks_for_the_login_and_a_token_serves_until_it_is_revoked(index: Index, server: Server) -> None:
    """The next request after the revocation sees it."""
    index.twine(index.desk.file(FOO, wheel("foo", "1.0")))
    assert "401" in index.pip("foo", index=f"{index.url}/simple/", check=False) or "User for" in index.pip(
        "foo", index=f"{index.url}/simple/", check=False
    )
    made = server.post("/api/v1/tokens", json={"name": "ci", "permissions": ["read"], "repositories": [index.name]}).json()
    address = index.desk.with_login(f"{index.url}/simple/", "anyone", made["token"])
    index.pip("foo", index=address, into="by-token")
    assert server.delete(f"/api/v1/tokens/{made['id']}").status_code == 204
    printed = index.pip("foo", index=address, into="too-late", check=False)
    assert not (index.desk.home / "too-late/foo").exists(), printed


def test_a_refused_wheel_says_in_twine_what_is_wrong(index: Index) -> None:
    broken = index.desk.file("bad-1.0-py3-none-any.whl", wheel("bad", "2.0"))
    printed = " ".join(index.twine(broken, check=False).split())
    assert "400" in printed
    assert index.desk.server.get(f"/pypi/{index.name}/simple/bad/").status_code == 404
