"""DESIGN 6: what a proxy's `allow`, `block` and exceptions of the minimum age mean, in the forms in which people write them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from app.cache.snapshots import Snapshot
from app.cache.view import Epochs
from app.errors import Invalid
from app.repository.withholding import Release, restrictions_of
from tests.support.house import House


def proxy(format_name: str, **settings: Any) -> Snapshot:
    epochs = Epochs(1, 1, 1, 1)
    return Snapshot(1, "default", "it", format_name, "proxy", "online", False, "http://up", True, None, json.dumps(settings), epochs)


NPM, SCOPED, WHEEL = "up-left/-/up-left-1.0.1.tgz", "@acme/x/-/x-1.0.1.tgz", "up-py/Up_Py-1.0.1-py3-none-any.whl"
JAR = "com/up/lib/1.0/lib-1.0.jar"


@pytest.mark.parametrize(
    ("format_name", "pattern", "blocked", "free"),
    [
        ("npm", "up-left@1.0.1", [NPM, f"{NPM}.sigstore"], ["up-left/", "up-left/-/up-left-1.0.10.tgz", "up-left/-/up-left-11.0.1.tgz"]),
        ("npm", "up-left@1.*", [NPM], ["up-left/-/up-left-2.0.0.tgz", "up/-/up-1.0.0.tgz"]),
        ("npm", "@acme/x@1.0.1", [SCOPED], ["@acme/", "@acme/x/", "x/-/x-1.0.1.tgz"]),
        ("npm", "@acme/*@1.0.1", [SCOPED], [NPM, "@acme/x/-/x-1.0.2.tgz"]),
        ("npm", "@acme", [SCOPED, "@acme/y/"], [NPM]),
        ("pypi", "Up_Py", ["up-py/", WHEEL], ["up-py2/"]),
        ("pypi", "Up.*", ["up-py/", WHEEL], ["upper/"]),
        ("pypi", "up-py==1.0.1", [WHEEL, f"{WHEEL}.metadata", "up-py/up.py-1.0.1.tar.gz"], ["up-py/", "up-py/up_py-1.0.10.tar.gz"]),
        ("pypi", "Up_Py@1.*", [WHEEL], ["up-py/up_py-2.0-py3-none-any.whl"]),
        ("pypi", "*.exe", ["up-py/up_py-1.0.win32.exe"], ["up-exe/"]),
        ("maven", "com.up:lib", [JAR, "com/up/lib/maven-metadata.xml"], ["com/up/lib2/1.0/lib2-1.0.jar"]),
        ("maven", "com.up:lib:1.0", [JAR], ["com/up/lib/1.1/lib-1.1.jar", "com/up/lib/maven-metadata.xml"]),
        ("maven", "com.up:lib@1.*", [JAR], ["com/up/lib/2.0/lib-2.0.jar"]),
        ("maven", "com.up.*", [JAR], ["com/other/x/1/x-1.jar"]),
        ("oci", "team/app:1.0", ["team/app/manifests/1.0"], ["team/app", "team/app/manifests/2.0"]),
        ("oci", "team/app", ["team/app/manifests/1.0"], ["team/app2/manifests/1.0"]),
        ("raw", "/internal", ["internal/x"], ["x"]),
        ("raw", "a@1.0", ["a@1.0"], ["a/-/a-1.0.tgz"]),
    ],
)
def test_a_pattern_blocks_what_people_mean_by_it(format_name: str, pattern: str, blocked: list[str], free: list[str]) -> None:
    restrictions = restrictions_of(proxy(format_name, block=[pattern]))
    assert {each: restrictions.keep_out(each) for each in blocked} == dict.fromkeys(blocked, f"block {pattern!r}")
    assert {each: restrictions.keep_out(each) for each in free} == dict.fromkeys(free)


@pytest.mark.parametrize(
    ("format_name", "pattern", "there", "gone"),
    [
        ("npm", "up-left@1.0.1", ["up-left/", NPM], ["other/", "up-left/-/up-left-2.0.0.tgz"]),
        ("pypi", "Up_Py==1.0.1", ["up-py/", WHEEL], ["other/", "up-py/up_py-2.0.tar.gz"]),
        ("maven", "com.up:lib:1.0", [JAR, "com/up/lib/maven-metadata.xml"], ["com/up/lib/1.1/lib-1.1.jar", "com/up/x/maven-metadata.xml"]),
    ],
)
def test_where_a_version_is_allowed_so_is_the_way_to_it(format_name: str, pattern: str, there: list[str], gone: list[str]) -> None:
    restrictions = restrictions_of(proxy(format_name, allow=[pattern]))
    assert not [each for each in there if restrictions.keep_out(each)]
    assert all(restrictions.keep_out(each) for each in gone)


@pytest.mark.parametrize(
    ("format_name", "pattern", "release"),
    [
        ("pypi", "Up_Py", Release("x", None, "up-py", "1.0")),
        ("pypi", "Up_Py==1.0", Release("x", None, "up-py", "1.0")),
        ("oci", "team/app:1.0", Release("x", None, "team/app", "1.0")),
        ("maven", "com.up:lib:1.0", Release(JAR, None)),
        ("npm", "@acme/*", Release("x", None, "@acme/x", "1.0")),
    ],
)
def test_an_exception_spares_what_people_mean_by_it(format_name: str, pattern: str, release: Release) -> None:
    restrictions = restrictions_of(proxy(format_name, minimum_age=7, minimum_age_exceptions=[pattern]))
    assert restrictions.spares(release)
    assert not restrictions.spares(Release("y", datetime.now(UTC), "other", "1.0"))


@pytest.mark.parametrize(
    ("format_name", "settings", "words"),
    [
        ("npm", {"block": ["up-left/1.0.1"]}, "write up-left@1.0.1"),
        ("npm", {"block": ["@acme/x/1.0"]}, "write @acme/x@1.0"),
        ("npm", {"block": ["up-left:1.0"]}, "name@version"),
        ("npm", {"minimum_age_exceptions": ["up-left@^1.0"]}, "such as 1"),
        ("pypi", {"block": ["up-py>=1.0"]}, "name==version"),
        ("maven", {"allow": ["a:b:jar:1.0"]}, "group:artifact:version"),
        ("oci", {"allow": ["team/app:1.0"]}, "its name alone"),
    ],
)
def test_what_could_match_nothing_is_refused_with_what_to_write(
    house: House, format_name: str, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(Invalid, match=words) as refused:
        house.repository(format=format_name, kind="proxy", upstream_url="http://127.0.0.1:1", settings=settings)
    assert refused.value.field == f"settings.{next(iter(settings))}"
