"""mvn against maven repositories; its plugins come from Debian, nothing from the Internet."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from tests.clients.conftest import Desk
from tests.clients.jvm import Maven, debians_version, dependencies, java, pom
from tests.support import clients

ALGORITHMS = ("md5", "sha1", "sha256", "sha512")


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    clients.require_packages("mvn")
    return tmp_path_factory.mktemp("plugins")


@pytest.fixture
def maven(desk: Desk, plugins: Path) -> Maven:
    return Maven(desk, plugins)


def assert_sidecars_are_right(maven: Maven, path: str) -> None:
    """HO-MVN-1: bare lower-case hex of exactly the bytes that are served."""
    body = maven.desk.server.get(f"/maven/{maven.name}/{path}").content
    for algorithm in ALGORITHMS:
        assert maven.text(f"{path}.{algorithm}") == hashlib.new(algorithm, body).hexdigest()


def test_a_release_is_deployed_and_resolved_with_checksums_enforced(maven: Maven) -> None:
    sources = (
        f"<build><plugins><plugin><artifactId>maven-source-plugin</artifactId><version>{debians_version('maven-source-plugin')}</version>"
        "<executions><execution><goals><goal>jar-no-fork</goal></goals></execution></executions></plugin></plugins></build>"
    )
    maven.project("lib", {"pom.xml": pom("lib", "1.0", sources)} | java("Lib", '"one"'))
    maven.deploy("lib")
    assert_sidecars_are_right(maven, "org/acme/lib/maven-metadata.xml")
    assert_sidecars_are_right(maven, "org/acme/lib/1.0/lib-1.0-sources.jar")
    maven.forget()
    maven.project("app", {"pom.xml": pom("app", "1.0", dependencies("lib:1.0"))} | java("App", '"app of " + Lib.say()'))
    maven.mvn("app", "compile")
    (jar,) = maven.got("lib/1.0/*.jar")
    assert maven.says("app", "App", jar) == "app of one"
    assert maven.got("lib/1.0/lib-1.0.jar.sha1")[0].read_text() == hashlib.sha1(jar.read_bytes()).hexdigest()
    stored = maven.desk.server.get(f"/api/v1/repositories/{maven.name}/artifacts").json()["items"]
    assert sorted(each["path"].rpartition("/")[2] for each in stored) == ["lib-1.0-sources.jar", "lib-1.0.jar", "lib-1.0.pom"]


def test_each_new_snapshot_is_what_the_next_update_resolves(maven: Maven) -> None:
    """HO-MVN-1, HO-MVN-3."""
    maven.project("app", {"pom.xml": pom("app", "1.0", dependencies("lib:1.1-SNAPSHOT"))} | java("App", "Lib.say()"))
    folder = "org/acme/lib/1.1-SNAPSHOT"
    for number, text in enumerate(("first", "second"), 1):
        maven.project("lib", {"pom.xml": pom("lib", "1.1-SNAPSHOT")} | java("Lib", f'"{text}"'))
        maven.deploy("lib", "-DupdateReleaseInfo=true")
        for path in (f"{folder}/maven-metadata.xml", "org/acme/lib/maven-metadata.xml"):
            assert_sidecars_are_right(maven, path)
        assert maven.values(f"{folder}/maven-metadata.xml", "buildNumber") == [str(number)]
        assert maven.values(f"{folder}/maven-metadata.xml", "extension") == ["jar", "pom"]
        assert len(set(maven.values(f"{folder}/maven-metadata.xml", "value"))) == 1
        maven.forget()
        maven.mvn("app", "compile", "-U")
        assert maven.says("app", "App", *maven.got("lib/1.1-SNAPSHOT/lib-1.1-SNAPSHOT.jar")) == text
    builds = maven.desk.server.get(f"/api/v1/repositories/{maven.name}/artifacts?prefix={folder}/&limit=100").json()["items"]
    assert len([each for each in builds if each["path"].endswith(".jar")]) == 2


def test_modules_of_one_build_are_deployed_together_and_resolve_each_other(maven: Maven) -> None:
    parent = "<parent><groupId>org.acme</groupId><artifactId>parent</artifactId><version>2.0</version></parent>"
    modules = "<modules><module>core</module><module>web</module></modules>"
    maven.project("all", {"pom.xml": pom("parent", "2.0", modules, packaging="pom")})
    maven.project("all/core", {"pom.xml": pom("core", "2.0", parent)} | java("Core", '"core"'))
    maven.project("all/web", {"pom.xml": pom("web", "2.0", parent + dependencies("core:2.0"))} | java("Web", '"web on " + Core.say()'))
    maven.deploy("all", "-T", "2")
    maven.forget()
    maven.project("app", {"pom.xml": pom("app", "1.0", dependencies("web:[2.0,3.0)"))} | java("App", "Web.say()"))
    maven.mvn("app", "compile")
    assert maven.says("app", "App", *maven.got("*/2.0/*.jar")) == "web on core"
    assert [path.name for path in maven.got("parent/2.0/*.pom")] == ["parent-2.0.pom"]


def test_a_release_cannot_be_deployed_again_with_other_bytes(maven: Maven) -> None:
    """W4: what is the same stays; mvn shows why the rest is refused."""
    maven.project("lib", {"pom.xml": pom("lib", "1.0")} | java("Lib", '"one"'))
    maven.deploy("lib")
    before = maven.text("org/acme/lib/1.0/lib-1.0.jar.sha256")
    maven.deploy("lib")
    maven.project("lib", java("Lib", '"another"'))
    printed = " ".join(maven.deploy("lib", check=False).split())
    assert "BUILD FAILURE" in printed
    assert "keeps what was published once" in printed
    assert maven.text("org/acme/lib/1.0/lib-1.0.jar.sha256") == before
    assert maven.values("org/acme/lib/maven-metadata.xml", "version") == ["1.0"]


@pytest.mark.parametrize(
    ("policy", "version", "words"), [("release", "1.0-SNAPSHOT", "takes releases"), ("snapshot", "1.0", "takes snapshots")]
)
def test_mvn_says_that_a_version_is_of_the_wrong_kind(desk: Desk, plugins: Path, policy: str, version: str, words: str) -> None:
    maven = Maven(desk, plugins, version_policy=policy)
    maven.project("lib", {"pom.xml": pom("lib", version)} | java("Lib", '"one"'))
    assert words in " ".join(maven.deploy("lib", check=False).split())
    assert desk.server.get(f"/api/v1/repositories/{maven.name}/artifacts").json()["items"] == []


def test_without_the_login_a_private_repository_gives_nothing(maven: Maven) -> None:
    maven.project("lib", {"pom.xml": pom("lib", "1.0")} | java("Lib", '"one"'))
    maven.deploy("lib")
    maven.forget()
    told = maven.settings.read_bytes()
    stranger = maven.desk.file("stranger.xml", told.replace(b"correct-horse", b"wrong"))
    nobody = maven.desk.file("nobody.xml", told.replace(b"<id>arkvory</id><username>", b"<id>x</id><username>"))
    maven.project("app", {"pom.xml": pom("app", "1.0", dependencies("lib:1.0"))} | java("App", "Lib.say()"))
    for settings in (stranger, nobody):
        printed = maven.mvn("app", "compile", settings=settings, check=False)
        assert "401" in printed or "Unauthorized" in printed, printed[-3000:]
        assert maven.got("lib/1.0/*.jar") == []
        maven.forget()


def test_first_files_of_many_versions_sent_at_once_all_arrive(desk: Desk) -> None:
    """HO-MVN-2, by curl: 50 fresh versions of a new artifact, jar, sources and pom of each."""
    url = desk.server.repository("parallel", "maven")
    lines = [f'user = "{":".join(desk.server.admin)}"']
    for number in range(50):
        for ending in (".jar", "-sources.jar", ".pom"):
            source = desk.file(f"{number}{ending}", f"{number}{ending}".encode())
            lines += [f'upload-file = "{source}"', f'url = "{url}/org/acme/lib/1.{number}/lib-1.{number}{ending}"', 'output = "/dev/null"']
    config = desk.file("config", "\n".join([*lines, 'write-out = "%{http_code}\\n"']).encode())
    printed = desk.run("curl", "-sS", "--no-progress-meter", "--parallel", "--parallel-max", "60", "-K", config).stdout
    assert printed.split() == ["201"] * 150
    metadata = desk.server.get("/maven/parallel/org/acme/lib/maven-metadata.xml").text
    assert re.findall("<version>(.*)</version>", metadata) == [f"1.{number}" for number in range(50)]


def test_a_plugin_is_found_by_its_prefix(maven: Maven) -> None:
    """Plugin-group metadata, from what the plugin's jar says of itself."""
    # mvn gives a plugin that names no plexus-utils a version of it that Debian does not have.
    api = (
        "<dependencies><dependency><groupId>org.apache.maven</groupId><artifactId>maven-plugin-api</artifactId><version>3.x</version>"
        "<scope>provided</scope></dependency><dependency><groupId>org.codehaus.plexus</groupId><artifactId>plexus-utils</artifactId>"
        "<version>debian</version></dependency></dependencies>"
    )
    descriptor = (
        "<plugin><name>Greetings</name><groupId>org.acme</groupId><artifactId>hello-maven-plugin</artifactId><version>1.0</version>"
        "<goalPrefix>hello</goalPrefix><mojos><mojo><goal>say</goal><implementation>acme.Hello</implementation><language>java</language>"
        "<instantiationStrategy>per-lookup</instantiationStrategy><executionStrategy>once-per-session</executionStrategy>"
        "<requiresProject>false</requiresProject></mojo></mojos></plugin>"
    )
    source = (
        "package acme; public class Hello extends org.apache.maven.plugin.AbstractMojo "
        '{ public void execute() { getLog().info("greetings by prefix"); } }'
    )
    files = {"src/main/java/acme/Hello.java": source, "src/main/resources/META-INF/maven/plugin.xml": descriptor}
    maven.project("plugin", {"pom.xml": pom("hello-maven-plugin", "1.0", api)} | files)
    maven.deploy("plugin")
    assert maven.values("org/acme/maven-metadata.xml", "prefix") == ["hello"]
    assert_sidecars_are_right(maven, "org/acme/maven-metadata.xml")
    maven.forget()
    maven.project("empty", {"pom.xml": pom("empty", "1.0", packaging="pom")})
    assert "greetings by prefix" in maven.mvn("empty", "hello:say")
