from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from app.protocols.pypi.metadata import ProjectFile
from app.protocols.pypi.releases import newest, project_document, release_document

BASE = "https://packages.example/pypi/py/"
FIELDS = {
    "metadata_version": "2.1",
    "name": "Foo",
    "version": "1.0",
    "summary": "A thing",
    "requires_dist": ["bar>=1", "baz; extra == 'x'"],
    "provides_extra": ["x"],
    "keywords": ["a", "b"],
    "project_urls": {"Source": "https://example.org"},
    "classifiers": ["Topic :: Software Development"],
    "description": "long",
}
AT = datetime(2026, 11, 30, 12, 0, 5, 123, tzinfo=UTC)
WHEEL = ProjectFile(
    "foo-1.0-py3-none-any.whl", "1.0", 321, {"sha256": "a" * 64}, AT, ">=3.8", core_metadata={"sha256": "b" * 64}, metadata=FIELDS
)
SDIST = ProjectFile("foo-1.0.tar.gz", "1.0", 99, {"sha256": "c" * 64}, AT, metadata={"requires_dist": []})


def document(*files: ProjectFile) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(project_document("Foo", "foo", files, BASE))
    return found


def versions(**yanked: str | None) -> list[ProjectFile]:
    """Files of versions (`v1_0` for 1.0) with the reason for which each was yanked."""
    names = {name[1:].replace("_", "."): reason for name, reason in yanked.items()}
    return [replace(SDIST, filename=f"foo-{name}.tar.gz", version=name, yanked=reason) for name, reason in names.items()]


def test_the_document_tells_of_the_newest_release_and_lists_all() -> None:
    found = document(SDIST, WHEEL, *versions(v0_9=None))
    assert found["info"]["name"] == "Foo"
    assert found["info"]["version"] == "1.0"
    assert found["info"]["requires_dist"] == FIELDS["requires_dist"]
    assert found["info"]["requires_python"] == ">=3.8"
    assert found["info"]["keywords"] == "a,b"
    assert found["info"]["description"] == "long"
    assert [entry["filename"] for entry in found["urls"]] == ["foo-1.0-py3-none-any.whl", "foo-1.0.tar.gz"]
    assert {version: len(files) for version, files in found["releases"].items()} == {"0.9": 1, "1.0": 2}


def test_a_file_is_told_as_clients_know_it() -> None:
    assert document(WHEEL)["urls"][0] == {
        "comment_text": "",
        "core-metadata": {"sha256": "b" * 64},
        "digests": {"sha256": "a" * 64},
        "downloads": -1,
        "filename": "foo-1.0-py3-none-any.whl",
        "has_sig": False,
        "packagetype": "bdist_wheel",
        "python_version": "py3",
        "requires_python": ">=3.8",
        "size": 321,
        "upload_time": "2026-11-30T12:00:05",
        "upload_time_iso_8601": "2026-11-30T12:00:05.000123Z",
        "url": BASE + "files/foo/foo-1.0-py3-none-any.whl",
        "yanked": False,
        "yanked_reason": None,
    }


@pytest.mark.parametrize(
    ("given", "latest"),
    [
        ({"v1_0": None, "v2_0rc1": None}, "1.0"),
        ({"v1_0": None, "v2_0": "bad"}, "1.0"),
        ({"v1_0": "bad", "v2_0rc1": None}, "2.0rc1"),
        ({"v1_0": "bad", "v2_0": ""}, "2.0"),
        ({"v1_9": None, "v1_10": None}, "1.10"),
    ],
)
def test_the_newest_release_is_what_an_installer_would_take(given: dict[str, str | None], latest: str) -> None:
    found = document(*versions(**given))
    assert found["info"]["version"] == latest
    assert newest({name[1:].replace("_", "."): reason is not None for name, reason in given.items()}) == latest
    assert found["info"]["yanked"] is (given["v" + latest.replace(".", "_")] is not None)


def test_spellings_of_one_version_are_one_release() -> None:
    """It is yanked when the files of all of them are."""
    assert newest({"1": True, "1.0": False, "0.9": False}) == "1"
    assert newest({"1": True, "1.0": True, "0.9": False}) == "0.9"


def test_a_release_is_found_in_any_spelling_of_its_version_and_only_then() -> None:
    found = json.loads(release_document("Foo", "foo", "1.0.0", [WHEEL, SDIST], BASE) or b"")
    assert found["info"]["version"] == "1.0"
    assert "releases" not in found
    assert release_document("Foo", "foo", "1.1", [WHEEL], BASE) is None
    assert release_document("Foo", "foo", "nonsense", [WHEEL], BASE) is None
