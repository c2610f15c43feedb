from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import ArkvoryError, Invalid, NotFound
from app.protocols.npm.names import (
    OneVersion,
    Packument,
    Revision,
    Tarball,
    check_new_name,
    check_tag,
    check_version,
    highest,
    is_name,
    parse,
    tarball_reference,
)


@pytest.mark.parametrize(
    ("path", "address"),
    [
        ("p", Packument("p")),
        ("p/", Packument("p")),
        ("@s/p", Packument("@s/p")),
        ("p/1.0.0", OneVersion("p", "1.0.0")),
        ("@s/p/latest", OneVersion("@s/p", "latest")),
        ("p/-/p-1.0.0.tgz", Tarball("p", "p/-/p-1.0.0.tgz")),
        ("@s/p/-/p-1.0.0.tgz", Tarball("@s/p", "@s/p/-/p-1.0.0.tgz")),
        ("@s/p/-/@s/p-1.0.0.tgz", Tarball("@s/p", "@s/p/-/p-1.0.0.tgz")),
        ("p/-rev/1-a", Revision(Packument("p"), "1-a")),
        ("p/-/p-1.0.0.tgz/-rev/1-a", Revision(Tarball("p", "p/-/p-1.0.0.tgz"), "1-a")),
    ],
)
def test_addresses(path: str, address: object) -> None:
    assert parse(path) == address


@pytest.mark.parametrize("path", ["", "@s", "@/p", "-", "-/all", "p/-", "p/a/b", ".p", "_p", "@s/p/-/@t/p-1.0.0.tgz", "a b", "@s/.p", "é"])
def test_paths_that_are_no_address(path: str) -> None:
    with pytest.raises(NotFound):
        parse(path)


@pytest.mark.parametrize("name", ["p", "@s/p", "some-package", "example.com", "under_score", "123numeric", "@npm/thingy", "@s/http"])
def test_names_that_may_be_published(name: str) -> None:
    assert check_new_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", None, 5, " p", "p ", "Upper", "http", "node_modules", "favicon.ico", ".p", "_p", "-p", "a/b", "@s/p/q", "p!", "a~b", "@s/.p", "é",
     "x" * 215],
)  # fmt: skip
def test_names_that_may_not(name: object) -> None:
    with pytest.raises(Invalid):
        check_new_name(name)


def test_names_from_former_days_can_be_read() -> None:
    assert all(is_name(name) for name in ("Upper", "http", "p!", "x" * 300))


@given(st.text(max_size=20))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    for look in (parse, check_new_name, check_version, check_tag):
        with contextlib.suppress(ArkvoryError):
            look(text)


@pytest.mark.parametrize("version", ["1.0.0", "0.0.0", "1.0.0-rc.1+b.5", "9007199254740991.0.0"])
def test_versions(version: str) -> None:
    assert check_version(version) == version


@pytest.mark.parametrize(
    "version", ["", "1", "1.0", "v1.0.0", "01.0.0", "1.0.0-", "1.0.0 ", "9007199254740992.0.0", "1.0.0-" + "a" * 260, 5]
)
def test_texts_that_are_no_version(version: object) -> None:
    with pytest.raises(Invalid):
        check_version(version)


def test_the_highest_version_is_a_release_where_there_is_one() -> None:
    assert highest(["1.9.0", "1.10.0", "2.0.0-rc.1"]) == "1.10.0"
    assert highest(["1.0.0-rc.2", "1.0.0-rc.10"]) == "1.0.0-rc.10"


def test_references_are_encoded_once() -> None:
    assert tarball_reference("@s/p", "1.0.0+b") == "@s/p/-/p-1.0.0%2Bb.tgz"
