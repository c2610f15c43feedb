"""mvn through a group with a proxy of Debian's Maven repository, which a static server hands out, and behind a proxy of another Arkvory."""

from __future__ import annotations

import hashlib
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.clients.conftest import Desk
from tests.clients.jvm import DEBIAN, SHORT, Maven, dependencies, java, pom
from tests.support import clients
from tests.support.nginx import Files

_numbers = itertools.count(1)
_SETTINGS = (
    "<settings><servers><server><id>arkvory</id><username>{user}</username><password>{password}</password></server></servers>"
    "<mirrors><mirror><id>arkvory</id><url>{url}</url><mirrorOf>*</mirrorOf></mirror></mirrors>"
    "<profiles><profile><id>house</id><repositories><repository>{central}</repository></repositories>"
    "<pluginRepositories><pluginRepository>{central}</pluginRepository></pluginRepositories></profile></profiles>"
    "<activeProfiles><activeProfile>house</activeProfile></activeProfiles></settings>"
)
# The proxy has checksums of everything, which Debian's tree has not.
_CENTRAL = (
    "<id>central</id><url>https://upstream.invalid</url><releases><enabled>true</enabled><checksumPolicy>fail</checksumPolicy></releases>"
)


@pytest.fixture
def debian(tmp_path: Path) -> Iterator[Files]:
    clients.require_packages("mvn")
    clients.require_packages("nginx")
    running = Files(tmp_path / "upstream", DEBIAN).start()
    yield running
    running.stop()


def version_of(folder: str) -> str:
    return max(each.name for each in (DEBIAN / folder).iterdir() if each.is_dir() and each.name[0].isdigit())


class Behind:
    """A private group before the upstream, and machines that know nothing but it."""

    def __init__(self, desk: Desk, upstream: str) -> None:
        self.desk = desk
        self.name = f"central{next(_numbers)}"
        self.url = desk.group(self.name, "maven", upstream_url=upstream)
        user, password = desk.server.admin
        text = _SETTINGS.format(user=user, password=password, url=self.url, central=_CENTRAL)
        self.settings = desk.file("settings.xml", text.encode())
        codec = version_of("commons-codec/commons-codec")
        names = f"<groupId>commons-codec</groupId><artifactId>commons-codec</artifactId><version>{codec}</version>"
        wants = f"<dependencies><dependency>{names}</dependency></dependencies>"
        lib = java("Lib", 'org.apache.commons.codec.digest.DigestUtils.md5Hex("a")')
        self.project("lib", {"pom.xml": pom("lib", "1.0", wants)} | lib)
        self.project("app", {"pom.xml": pom("app", "1.0", dependencies("lib:1.0"))} | java("App", "Lib.say()"))

    def project(self, folder: str, files: dict[str, str]) -> None:
        for name, content in files.items():
            self.desk.file(f"{folder}/{name}", content.encode())

    def build(self, machine: str) -> Path:
        """The app, on a machine with an empty local repository; that folder."""
        shutil.rmtree(self.desk.home / "app/target", ignore_errors=True)
        local = self.mvn(machine, "app", "package")
        assert list((self.desk.home / "app/target").glob("app-1.0.jar"))
        return local

    def deploy(self) -> None:
        """The library of our own, which needs one of the upstream's."""
        self.mvn("publisher", "lib", "deploy", f"-DaltDeploymentRepository=arkvory::default::{self.url}")

    def mvn(self, machine: str, folder: str, *arguments: str) -> Path:
        local = self.desk.home / machine
        self.desk.run(
            "mvn", "-B", "-ntp", "-e", "-s", self.settings, f"-Dmaven.repo.local={local}", "-Dmaven.test.skip=true",
            "-f", self.desk.home / folder, *arguments, MAVEN_OPTS=" ".join(SHORT),
        )  # fmt: skip
        return local


def test_a_build_is_resolved_cold_warm_and_with_the_upstream_stopped(desk: Desk, debian: Files) -> None:
    """DESIGN 6, HO-MVN-1: with checksums enforced, which the upstream does not even have, and a library of our own among the rest."""
    behind = Behind(desk, debian.url)
    behind.deploy()
    cold = behind.build("first")
    asked = debian.asked()
    fetched = {line.split()[1] for line in asked if line.startswith("200 ")}
    assert len(fetched) > 50
    # Each of them once.
    assert len([line for line in asked if line.startswith("200 ")]) == len(fetched)
    warm = behind.build("second")
    assert {line for line in debian.asked()[len(asked) :] if line.startswith("200 ")} == set()
    debian.stop()
    with pytest.raises(requests.ConnectionError):
        requests.get(debian.url, timeout=5)
    alone = behind.build("third")
    files = [{each.relative_to(local): digest(each) for each in jars(local)} for local in (cold, warm, alone)]
    assert files[0] == files[1] == files[2]
    ours = {path for path in files[0] if path.is_relative_to("org/acme")}
    assert {path.name for path in ours} == {"lib-1.0.jar", "lib-1.0.pom"}
    assert {f"/{path}" for path in files[0].keys() - ours} <= fetched
    assert not [line for line in asked if "/org/acme/lib/1.0/" in line], "nobody else is asked for what is ours"
    stored = desk.server.get(f"/api/v1/repositories/{behind.name}-there/usage").json()
    assert stored["artifacts"] == len(fetched)
    assert stored["bytes"]["open"] == 0


def test_snapshots_of_another_arkvory_arrive_with_the_next_update(desk: Desk, tmp_path_factory: pytest.TempPathFactory) -> None:
    """HO-MVN-1, HO-MVN-3: timestamped builds, metadata and checksums of one generation, with a login of its own for the upstream."""
    clients.require_packages("mvn")
    hosted = Maven(desk, tmp_path_factory.mktemp("plugins"))
    user, password = desk.server.admin
    login = {"username": user, "password": password}
    url = desk.server.repository(
        f"{hosted.name}-near", "maven", kind="proxy", upstream_url=hosted.url, upstream=login, settings={"mutable_ttl": 0}
    )
    near = desk.file("near.xml", hosted.settings.read_bytes().replace(hosted.url.encode(), url.encode()))
    hosted.project("app", {"pom.xml": pom("app", "1.0", dependencies("lib:1.1-SNAPSHOT"))} | java("App", "Lib.say()"))
    for text in ("first", "second"):
        hosted.project("lib", {"pom.xml": pom("lib", "1.1-SNAPSHOT")} | java("Lib", f'"{text}"'))
        hosted.deploy("lib")
        hosted.forget()
        hosted.mvn("app", "compile", "-U", settings=near)
        assert hosted.says("app", "App", *hosted.got("lib/1.1-SNAPSHOT/lib-1.1-SNAPSHOT.jar")) == text
        path = "org/acme/lib/1.1-SNAPSHOT/maven-metadata.xml"
        assert desk.server.get(f"/maven/{hosted.name}-near/{path}").content == desk.server.get(f"/maven/{hosted.name}/{path}").content


def jars(local: Path) -> list[Path]:
    return [each for each in local.rglob("*") if each.suffix in {".jar", ".pom"}]


def digest(path: Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()
