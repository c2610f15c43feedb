"""Repositories for clients that run in Java, and the projects that tests build with them."""

from __future__ import annotations

import itertools
import os
import re
import shutil
from pathlib import Path
from textwrap import dedent

from tests.clients.conftest import Desk

DEBIAN = Path("/usr/share/maven-repo")
PLUGINS = DEBIAN.as_uri()
# For programs that end before a better compiler, or several threads for garbage, have paid for themselves.
SHORT = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")
_numbers = itertools.count(1)
_POM = dedent("""\
    <project xmlns="http://maven.apache.org/POM/4.0.0">
      <modelVersion>4.0.0</modelVersion>
      <groupId>org.acme</groupId><artifactId>{artifact}</artifactId><version>{version}</version><packaging>{packaging}</packaging>
      <properties>
        <maven.compiler.source>11</maven.compiler.source><maven.compiler.target>11</maven.compiler.target>
        <project.build.sourceEncoding>UTF-8</project.build.sourceEncoding>
      </properties>
      {more}
    </project>
    """)


def pom(artifact: str, version: str, more: str = "", packaging: str = "jar") -> str:
    return _POM.format(artifact=artifact, version=version, packaging=packaging, more=more)


def dependencies(*coordinates: str) -> str:
    """Dependencies in `org.acme` as `artifact:version`."""
    parts = (each.split(":") for each in coordinates)
    entries = "".join(
        f"<dependency><groupId>org.acme</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>"
        for name, version in parts
    )
    return f"<dependencies>{entries}</dependencies>"


def debians_version(plugin: str) -> str:
    """The version of a plugin that mvn would not find by itself: Debian's repository has no metadata."""
    return max(folder.name for folder in (DEBIAN / "org/apache/maven/plugins" / plugin).iterdir())


def java(name: str, text: str) -> dict[str, str]:
    """A class that says something."""
    say = f"public static String say() {{ return {text}; }}"
    main = "public static void main(String[] arguments) { System.out.print(say()); }"
    return {f"src/main/java/acme/{name}.java": f"package acme; public class {name} {{ {say} {main} }}\n"}


class Maven:
    """A fresh maven repository, private, and mvn's way to it: the login stands in its settings, whose checksum policy is `fail`.

    `shared` is a local repository that keeps mvn's plugins from one test to the next.
    """

    def __init__(self, desk: Desk, shared: Path, **settings: str) -> None:
        self.desk = desk
        self.local = shared
        self.name = f"mvn{next(_numbers)}"
        self.url = desk.server.repository(self.name, "maven", settings=settings)
        self.settings = desk.file("settings.xml", self._settings(*desk.server.admin).encode())
        self.forget()

    def _settings(self, user: str, password: str) -> str:
        policy = "<enabled>true</enabled><updatePolicy>never</updatePolicy><checksumPolicy>{}</checksumPolicy>"
        repositories = "".join(
            f"<{kind}><id>{name}</id><url>{url}</url><releases>{policy.format(check)}</releases>"
            f"<snapshots>{policy.format(check)}</snapshots></{kind}>"
            for kind, name, url, check in (
                ("repository", "central", PLUGINS, "ignore"),
                ("repository", "arkvory", self.url, "fail"),
            )
        )
        plugins = repositories.replace("repository>", "pluginRepository>")
        return (
            f"<settings><servers><server><id>arkvory</id><username>{user}</username><password>{password}</password></server></servers>"
            "<pluginGroups><pluginGroup>org.acme</pluginGroup></pluginGroups>"
            f"<profiles><profile><id>house</id><repositories>{repositories}</repositories>"
            f"<pluginRepositories>{plugins}</pluginRepositories></profile></profiles>"
            "<activeProfiles><activeProfile>house</activeProfile></activeProfiles></settings>"
        )

    def project(self, folder: str, files: dict[str, str]) -> Path:
        for name, content in files.items():
            self.desk.file(f"{folder}/{name}", content.encode())
        return self.desk.home / folder

    def mvn(self, folder: str, *arguments: str, check: bool = True, settings: Path | None = None) -> str:
        """What mvn printed."""
        return self.desk.run(
            "mvn", "-B", "-ntp", "-e", "-s", settings or self.settings, f"-Dmaven.repo.local={self.local}",
            "-Dmaven.test.skip=true", "-f", self.desk.home / folder, *arguments, check=check, MAVEN_OPTS=" ".join(SHORT),
        ).stdout  # fmt: skip

    def deploy(self, folder: str, *arguments: str, check: bool = True) -> str:
        return self.mvn(folder, "deploy", f"-DaltDeploymentRepository=arkvory::default::{self.url}", *arguments, check=check)

    def forget(self) -> None:
        """Another machine: nothing of ours is in its local repository."""
        shutil.rmtree(self.local / "org/acme", ignore_errors=True)

    def got(self, pattern: str) -> list[Path]:
        """What of ours is in the local repository."""
        return sorted((self.local / "org/acme").glob(pattern))

    def says(self, folder: str, name: str, *jars: Path) -> str:
        """What the class `name` of a built project says."""
        built = self.desk.home / folder / "target/classes"
        return self.desk.run("java", *SHORT, "-cp", os.pathsep.join(map(str, [built, *jars])), f"acme.{name}").stdout

    def text(self, path: str) -> str:
        answer = self.desk.server.get(f"/maven/{self.name}/{path}")
        assert answer.status_code == 200, answer.text
        return answer.text

    def values(self, path: str, tag: str) -> list[str]:
        """The texts of an element in a document of the repository."""
        return re.findall(f"<{tag}>([^<]*)</{tag}>", self.text(path))
