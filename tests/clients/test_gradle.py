"""Gradle against maven repositories: a build that publishes, and one that resolves."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.clients.conftest import Desk
from tests.clients.jvm import SHORT
from tests.support import clients

_numbers = itertools.count(1)


class Gradle:
    """A fresh, private maven repository, and Gradle's way to it."""

    def __init__(self, desk: Desk, home: Path) -> None:
        self.desk = desk
        self.home = home
        self.name = f"gradle{next(_numbers)}"
        self.url = desk.server.repository(self.name, "maven")

    @property
    def repository(self) -> str:
        user, password = self.desk.server.admin
        return f"""maven {{ url '{self.url}'; credentials {{ username '{user}'; password '{password}' }} }}"""

    def build(self, folder: str, script: str, *tasks: str, check: bool = True) -> str:
        self.desk.file(f"{folder}/settings.gradle", f"rootProject.name = '{folder}'".encode())
        self.desk.file(f"{folder}/build.gradle", script.encode())
        command = ("gradle", "--no-daemon", "-g", self.home, "-p", self.desk.home / folder, "-S", *tasks)
        return self.desk.run(*command, check=check, JAVA_OPTS=" ".join(SHORT)).stdout


@pytest.fixture(scope="module")
def gradle_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    clients.require_packages("gradle")
    return tmp_path_factory.mktemp("gradle")


@pytest.fixture
def gradle(desk: Desk, gradle_home: Path) -> Gradle:
    return Gradle(desk, gradle_home)


# Its blocks for publishing need an older Java than the one that runs it; and the Maven publisher of Debian's Gradle 4.4
# speaks no HTTP (its resolver lacks a transporter). So it publishes through its own transport, which writes Ivy's descriptor.
PUBLISHING = """
    apply plugin: 'java'; apply plugin: 'ivy-publish'; group = 'org.acme'; version = '1.5'
    def publishing = project.extensions.getByName('publishing')
    publishing.publications.create('it', IvyPublication).from(components.java)
    publishing.repositories.ivy({{
        it.url = '{url}'; it.layout('maven')
        it.credentials({{ c -> c.username = '{user}'; c.password = '{password}' }} as Action)
    }} as Action)
"""
RESOLVING = """
    repositories {{ {repository} }}
    configurations {{ wanted }}
    dependencies {{ wanted '{wanted}' }}
    task files {{ doLast {{ configurations.wanted.each {{ println it.name + ' holds ' + it.text }} }} }}
"""
POM = "<project><modelVersion>4.0.0</modelVersion><groupId>org.acme</groupId><artifactId>lib</artifactId><version>{}</version></project>"


def publish(gradle: Gradle, *, check: bool = True) -> str:
    gradle.desk.file("lib/src/main/java/acme/Lib.java", b"package acme; public class Lib { }")
    user, password = gradle.desk.server.admin
    return gradle.build("lib", PUBLISHING.format(url=gradle.url, user=user, password=password), "publish", check=check)


def test_what_gradle_publishes_it_resolves(gradle: Gradle) -> None:
    publish(gradle)
    text = gradle.desk.server.get(f"/maven/{gradle.name}/org/acme/lib/maven-metadata.xml").text
    assert "<version>1.5</version>" in text
    resolver = gradle.repository.replace("maven {", "ivy { layout 'maven';")
    assert "lib-1.5.jar holds PK" in gradle.build("app", RESOLVING.format(repository=resolver, wanted="org.acme:lib:1.5"), "files")


@pytest.mark.soak
def test_gradle_resolves_ranges_and_snapshots_by_the_metadata(gradle: Gradle) -> None:
    """HO-MVN-3: it asks for exactly the files that the metadata names."""
    builds = ("2.0-20200513.061306-4", "2.0-20200514.061306-5")
    for folder, version in (("1.9", "1.9"), ("1.10", "1.10"), *(("2.0-SNAPSHOT", build) for build in builds)):
        base = f"/maven/{gradle.name}/org/acme/lib/{folder}/lib-{version}"
        assert gradle.desk.server.put(f"{base}.pom", POM.format(folder).encode()).status_code == 201
        assert gradle.desk.server.put(f"{base}-all.tar.gz", version.encode()).status_code == 201
    for wanted, found in (("1.+", "1.10"), ("2.0-SNAPSHOT", builds[1])):
        printed = gradle.build("app", RESOLVING.format(repository=gradle.repository, wanted=f"org.acme:lib:{wanted}:all@tar.gz"), "files")
        assert f".tar.gz holds {found}" in printed


def test_gradle_says_why_a_release_is_not_replaced(gradle: Gradle) -> None:
    """W4."""
    gradle.desk.server.put(f"/maven/{gradle.name}/org/acme/lib/1.5/lib-1.5.jar", b"another")
    assert "keeps what was published once" in publish(gradle, check=False)
