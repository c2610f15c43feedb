from __future__ import annotations

import re
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from app.errors import Invalid
from app.protocols.pypi.names import (
    Companion,
    FileType,
    check_against,
    companion_of,
    file_reference,
    is_normalised,
    normalised,
    parse_file_name,
    parsed_version,
    pattern_of,
    version_of,
)

PROJECTS = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,20}[A-Za-z0-9])?", fullmatch=True)
VERSIONS = st.from_regex(
    r"([1-9]!)?[0-9]{1,3}(\.[0-9]{1,3}){0,3}((a|b|rc)[0-9]{1,2})?(\.post[0-9])?(\.dev[0-9])?(\+[a-z0-9]{1,5}(\.[a-z0-9]{1,4})?)?",
    fullmatch=True,
)


@given(PROJECTS)
def test_a_name_is_normalised_as_pep_503_says_and_only_once(name: str) -> None:
    project = normalised(name)
    assert project == re.sub(r"[-_.]+", "-", name).lower()
    assert normalised(project) == project
    assert is_normalised(project)


def test_upper_case_and_underscores_are_one_project_with_their_normalised_spelling() -> None:
    """HO-PYPI-1."""
    found = parse_file_name("PyQt5_Qt5-5.15.2-py3-none-any.whl")
    assert (found.project, str(found.version), found.filetype) == ("pyqt5-qt5", "5.15.2", FileType.WHEEL)
    assert found.path == "pyqt5-qt5/PyQt5_Qt5-5.15.2-py3-none-any.whl"
    check_against(found, "the form", "PyQt5-Qt5", "5.15.2.0")


@pytest.mark.parametrize("name", ["", "-x", "x-", ".x", "a b", "ü", "a/b", "..", "a\nb", "x\n", "\uff41"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(Invalid):
        normalised(name)


@given(PROJECTS, VERSIONS)
def test_the_name_of_a_wheel_gives_back_project_and_version(name: str, version: str) -> None:
    filename = f"{normalised(name).replace('-', '_')}-{version}-py2.py3-none-any.whl"
    found = parse_file_name(filename)
    assert (found.project, found.version, found.python_version) == (normalised(name), version_of(version), "py2.py3")
    assert companion_of(found.beside(Companion.METADATA)) == (found.path, Companion.METADATA)


@given(PROJECTS, VERSIONS, st.sampled_from([".tar.gz", ".zip"]))
def test_the_name_of_a_source_distribution_gives_back_project_and_version(name: str, version: str, ending: str) -> None:
    found = parse_file_name(f"{name}-{version}{ending}")
    assert (found.project, found.version) == (normalised(name), version_of(version))
    assert (found.filetype, found.python_version) == (FileType.SDIST, "source")


@pytest.mark.parametrize(
    "filename",
    [
        "foo-1.0-py3.8.egg",
        "foo-1.0.tar.bz2",
        "foo-1.0.exe",
        "foo-1.0.rpm",
        "foo.whl",
        "foo-1.0-py3-none.whl",
        "foo-1.0-x-py3-none-any.whl",
        "foo-bar-py3-none-any.whl",
        "foo__bar-1.0-py3-none-any.whl",
        "foo.tar.gz",
        "foo-latest.tar.gz",
        ".tar.gz",
        ".whl",
        "-1.0.tar.gz",
        "föö-1.0-py3-none-any.whl",
        "foo-\uff11.0-py3-none-any.whl",
        "foo- 1.0-py3-none-any.whl",
        "foo-1.0\n.tar.gz",
        "foo-1.0.tar.gz\n",
        "../foo-1.0.tar.gz",
        "a/foo-1.0.tar.gz",
        "a\\foo-1.0.tar.gz",
        "foo-1.0%2f.tar.gz",
        "foo\0-1.0.tar.gz",
        "_-1.0-py3-none-any.whl",
        "foo-1.0.tar.gz.asc",
        "foo-1.0-py3-none-any.whl.metadata",
        "f" * 300 + "-1.0.tar.gz",
        "",
        "foo-1.0-py3-none-any.WHL",
    ],
)
def test_what_names_no_distribution_is_refused_with_the_name_in_the_sentence(filename: str) -> None:
    with pytest.raises(Invalid) as refusal:
        parse_file_name(filename)
    assert "\n" not in refusal.value.message
    assert len(refusal.value.message) < 400


def test_a_form_that_names_another_project_or_version_is_refused_with_what_differs() -> None:
    found = parse_file_name("foo_bar-1.0-py3-none-any.whl")
    with pytest.raises(Invalid, match=r"names the project 'bar', but foo_bar-1.0-py3-none-any.whl belongs to 'foo-bar'"):
        check_against(found, "the form", "bar", "1.0")
    with pytest.raises(Invalid, match=r"gives the version '1.1', but foo_bar-1.0-py3-none-any.whl is version '1.0'"):
        check_against(found, "the form", "foo.bar", "1.1")


@given(PROJECTS, st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,40}", fullmatch=True))
def test_a_link_is_encoded_exactly_once(project: str, filename: str) -> None:
    reference = file_reference(project, filename)
    assert unquote(reference) == f"files/{project}/{filename}"
    assert re.fullmatch(r"[A-Za-z0-9._~/%-]+", reference)


SPELLINGS = st.builds(
    lambda epoch, release, rest: f"{epoch}{'.'.join(map(str, release))}{rest}",
    st.sampled_from(["", "1!"]),
    st.lists(st.sampled_from([0, 1, 10]), min_size=1, max_size=4),
    st.sampled_from(["", "rc1", ".post1", ".dev0", "a1.post2.dev3", "+local", "+1.0", "-1", "_RC_0", "+UBUNTU-1"]),
)


@given(SPELLINGS, SPELLINGS)
def test_the_pattern_of_a_version_finds_its_other_spellings_and_nothing_else(asked: str, published: str) -> None:
    found = re.search(pattern_of(asked), str(Version(published)))
    assert (found is not None) is (Version(asked) == Version(published))


@pytest.mark.parametrize("text", ["", "nonsense", "1.0 or so", "(", "9" * 5000, "***:.*"])
def test_what_is_no_version_finds_nothing_but_itself(text: str) -> None:
    assert parsed_version(text) is None
    assert not re.search(pattern_of(text), "1.0")
    assert re.search(pattern_of(text), text)
