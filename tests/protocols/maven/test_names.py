from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidPath
from app.protocols.maven.names import ALGORITHMS, Catalog, Coordinates, File, Metadata, Sidecar, parse
from app.repository.formats import is_made

WORDS = st.text(string.ascii_letters + string.digits + "_-éжア", min_size=1, max_size=6)
NAMES = st.lists(WORDS, min_size=1, max_size=3).map(".".join)
VERSIONS = NAMES.filter(lambda version: not version.upper().endswith("SNAPSHOT"))
EXTENSIONS = st.sampled_from(["jar", "pom", "module", "tar.gz", "tar.bz2", "cpio.gz", "7z", "jar.asc", "pom.asc", "tar.gz.asc", "xml"])
CLASSIFIERS = st.one_of(st.just(""), st.from_regex(r"[a-z]{1,5}(-[a-z0-9]{1,4}){0,2}", fullmatch=True))
BUILDS = st.tuples(st.from_regex(r"20[0-9]{6}\.[0-2][0-9]{5}", fullmatch=True), st.integers(1, 9999))


@st.composite
def coordinates(draw: st.DrawFn) -> Coordinates:
    group, artifact, stem = draw(NAMES), draw(NAMES), draw(VERSIONS)
    kind, extension, classifier = draw(st.sampled_from(["release", "plain", "build"])), draw(EXTENSIONS), draw(CLASSIFIERS)
    if kind == "release":
        return Coordinates(group, artifact, stem, stem, extension, classifier)
    base = f"{stem}-SNAPSHOT"
    if kind == "plain":
        return Coordinates(group, artifact, base, base, extension, classifier)
    timestamp, number = draw(BUILDS)
    return Coordinates(group, artifact, base, f"{stem}-{timestamp}-{number}", extension, classifier, timestamp, number)


@given(coordinates())
def test_coordinates_come_back_from_their_path(given_: Coordinates) -> None:
    address = parse(given_.path)
    assert isinstance(address, File)
    assert address.coordinates == given_
    assert (address.package, address.base_version) == (f"{given_.group}:{given_.artifact}", given_.base_version)


@given(coordinates(), st.sampled_from(ALGORITHMS))
def test_a_sidecar_belongs_to_the_file_before_it(given_: Coordinates, algorithm: str) -> None:
    address = parse(f"{given_.path}.{algorithm}")
    assert address == Sidecar(algorithm, parse(given_.path), given_.path)


@pytest.mark.parametrize(
    "path", ["org/maven-metadata.xml", "org/acme/lib/maven-metadata.xml", "org/acme/lib/1-SNAPSHOT/maven-metadata.xml"]
)
def test_metadata_lies_at_three_levels_with_its_sidecars(path: str) -> None:
    assert parse(path) == Metadata(path.rpartition("/")[0])
    assert parse(f"{path}.sha512") == Sidecar("sha512", parse(path), path)


def test_the_catalog_lies_at_the_root() -> None:
    assert parse("archetype-catalog.xml") == Catalog()
    assert parse("archetype-catalog.xml.md5") == Sidecar("md5", Catalog(), "archetype-catalog.xml")


@pytest.mark.parametrize(
    ("name", "classifier", "extension"),
    [
        ("lib-1.0.tar.gz", "", "tar.gz"),
        ("lib-1.0-bin.tar.gz", "bin", "tar.gz"),
        ("lib-1.0-linux-x86_64-2.1.jar", "linux-x86_64-2.1", "jar"),
        ("lib-1.0-sources.jar.asc", "sources", "jar.asc"),
        ("lib-1.0.jar.sigstore.json", "", "jar.sigstore.json"),
        ("lib-1.0-jar-with-dependencies.jar", "jar-with-dependencies", "jar"),
    ],
)
def test_where_a_classifier_ends(name: str, classifier: str, extension: str) -> None:
    address = parse(f"org/acme/lib/1.0/{name}")
    assert isinstance(address, File)
    assert address.coordinates is not None
    assert (address.coordinates.classifier, address.coordinates.extension) == (classifier, extension)


@pytest.mark.parametrize(
    "path",
    ["org/acme/lib/1.0/ivy-1.0.xml", "org/acme/sbt-x_2.12_1.0/0.1/sbt-x-0.1.jar", "org/acme/sbt-x_2.12_1.0/0.1/sbt-x-0.1-sources.jar"],
)
def test_names_of_ivy_and_of_older_sbt_plugins_belong_to_their_version(path: str) -> None:
    address = parse(path)
    assert isinstance(address, File)
    assert address.coordinates is None
    assert address.base_version == path.split("/")[-2]


@pytest.mark.parametrize(
    "path",
    [
        "lib.jar",
        "lib/1.0/lib-1.0.jar",
        "maven-metadata.xml",
        "org/acme/lib/1.0/other-1.0.jar",
        "org/acme/lib/1.0/lib-1.1.jar",
        "org/acme/lib/1.0/lib-1.0.1.jar",
        "org/acme/lib/1.0/lib-1.0",
        "org/acme/lib/1.0/lib-1.0.",
        "org/acme/lib/1.0/lib-1.0-.jar",
        "org/acme/lib/1.0/lib-1.0-20200513.061306-4.jar.sha1.md5",
        "org/acme/lib/1.0-SNAPSHOT/lib-1.1-20200513.061306-4.jar",
        "org/acme/lib/1.0-SNAPSHOT/lib-1.0-2020.0613-4.jar",
        "org/acme/lib/1.0-20200513.061306-4/lib-1.0-20200513.061306-4.jar",
        "org.acme/lib/1.0/lib-1.0.jar",
        "org/acme/lib/${revision}/lib-${revision}.jar",
        "org/acme/lib/1:0/lib-1:0.jar",
        "org/acme/lib/[1,2)/lib-[1,2).jar",
        "org/acme/lib/1 0/lib-1 0.jar",
        "org/acme/lib/1\u22150/lib-1\u22150.jar",
        "org/acme/lib/1\uff0f0/lib-1\uff0f0.jar",
        "org/acme/lib/1\u202e0/lib-1\u202e0.jar",
        "org/acme/lib/1\u200b0/lib-1\u200b0.jar",
        "org/ac:me/lib/1.0/lib-1.0.jar",
    ],
)
def test_what_no_client_can_mean_is_refused(path: str) -> None:
    with pytest.raises(InvalidPath):
        parse(path)


@given(st.text(max_size=60))
def test_any_text_is_an_address_or_refused(path: str) -> None:
    try:
        address = parse(path)
    except InvalidPath:
        return
    assert isinstance(address, File | Metadata | Catalog | Sidecar)


@pytest.mark.parametrize(
    "path",
    [
        "org/acme/lib/1.0/lib-1.0.jar",
        "org/acme/lib/1.0/lib-1.0.jar.asc",
        "org/acme/lib/1.0/lib-1.0.sha1.jar",
        "org/acme/lib/1.0/lib-1.0.jar.md5",
        "org/acme/lib/1.0/lib-1.0.jar.SHA-512",
        "org/maven-metadata.xml",
        "org/maven-metadata.xml.sha256",
        "archetype-catalog.xml",
        "archetype-catalog.xml.sha1",
    ],
)
def test_the_house_knows_what_is_made_as_this_room_does(path: str) -> None:
    assert is_made("maven", path) is not isinstance(parse(path), File)
