"""Ivy against maven repositories, as a user of its command line."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.clients.conftest import Desk
from tests.clients.jvm import SHORT
from tests.support import clients

JAR = Path("/usr/share/java/ivy.jar")


class Ivy:
    """A fresh maven repository, and Ivy's way to it."""

    def __init__(self, desk: Desk, name: str) -> None:
        self.desk = desk
        self.name = name
        self.url = desk.server.repository(name, "maven", public=True)

    def settings(self, resolver: str) -> Path:
        return self.desk.file(
            "settings.xml",
            f'<ivysettings><settings defaultResolver="arkvory"/><resolvers>{resolver}</resolvers></ivysettings>'.encode(),
        )

    def __call__(self, *arguments: str | Path) -> str:
        user, password = self.desk.server.admin
        login = ("-realm", "Arkvory", "-host", "127.0.0.1", "-username", user, "-passwd", password)
        return self.desk.run(
            "java", *SHORT, "-jar", JAR, "-settings", self.desk.home / "settings.xml", "-cache", self.desk.home / "cache",
            *arguments, *login,
        ).stdout


@pytest.fixture
def ivy(desk: Desk, request: pytest.FixtureRequest) -> Ivy:
    clients.require_packages("ivy")
    return Ivy(desk, f"ivy{abs(hash(request.node.name)) % 10**6}")


MODULE = """<ivy-module version="2.0"><info organisation="org.acme" module="{module}" revision="1.2"/>
<configurations><conf name="default"/></configurations>{more}</ivy-module>"""


def descriptor(ivy: Ivy, module: str, more: str) -> Path:
    return ivy.desk.file(f"{module}.xml", MODULE.format(module=module, more=more).encode())


def publish(ivy: Ivy, resolver: str, data: bytes) -> None:
    ivy.settings(resolver)
    ivy.desk.file("dist/lib.jar", data)
    module = descriptor(ivy, "lib", '<publications><artifact name="lib" ext="jar" conf="default"/></publications>')
    pattern = f"{ivy.desk.home}/dist/[artifact].[ext]"
    ivy("-ivy", module, "-deliverto", f"{ivy.desk.home}/dist/ivy-[revision].xml", "-publish", "arkvory",
        "-publishpattern", pattern, "-revision", "1.2", "-status", "release", "-overwrite")  # fmt: skip


def retrieve(ivy: Ivy) -> bytes:
    wanted = descriptor(ivy, "app", '<dependencies><dependency org="org.acme" name="lib" rev="1.+" conf="default"/></dependencies>')
    ivy("-ivy", wanted, "-retrieve", f"{ivy.desk.home}/got/[artifact]-[revision].[ext]")
    return (ivy.desk.home / "got/lib-1.2.jar").read_bytes()


@pytest.mark.parametrize("checksums", ["sha1,md5", "SHA-256"])
def test_ivy_publishes_and_resolves_with_patterns_of_layout_2(ivy: Ivy, checksums: str) -> None:
    root = f"{ivy.url}/[organisation]/[module]/[revision]"
    resolver = (
        f'<url name="arkvory" m2compatible="true" checksums="{checksums}"><ivy pattern="{root}/ivy-[revision].xml"/>'
        f'<artifact pattern="{root}/[artifact]-[revision](-[classifier]).[ext]"/></url>'
    )
    publish(ivy, resolver, b"from ivy")
    assert retrieve(ivy) == b"from ivy"
    served = ivy.desk.server.get(f"/maven/{ivy.name}/org/acme/lib/1.2/lib-1.2.jar.sha512").text
    assert served == hashlib.sha512(b"from ivy").hexdigest()
    assert "<version>1.2</version>" in ivy.desk.server.get(f"/maven/{ivy.name}/org/acme/lib/maven-metadata.xml").text


def test_ivy_resolves_what_stands_in_the_metadata_of_a_maven_repository(ivy: Ivy) -> None:
    """The resolver that reads poms and `maven-metadata.xml`."""
    base = f"/maven/{ivy.name}/org/acme/lib/1.2/lib-1.2"
    coordinates = "<groupId>org.acme</groupId><artifactId>lib</artifactId><version>1.2</version>"
    pom = f"<project><modelVersion>4.0.0</modelVersion>{coordinates}</project>".encode()
    assert ivy.desk.server.put(f"{base}.pom", pom).status_code == 201
    assert ivy.desk.server.put(f"{base}.jar", b"by pom").status_code == 201
    ivy.settings(f'<ibiblio name="arkvory" m2compatible="true" root="{ivy.url}/"/>')
    assert retrieve(ivy) == b"by pom"
