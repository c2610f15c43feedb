from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
import requests_toolbelt
from twine.package import PackageFile
from twine.repository import Repository

from app.errors import DigestMismatch, Invalid
from app.http.forms import FilePart, read_form
from app.protocols.pypi.upload_form import UploadForm, provenance
from tests.protocols.pypi.packages import wheel

BARE = {":action": ["file_upload"], "name": ["PyQt5_Qt5"], "version": ["5.15.2"]}
FILENAME = "PyQt5_Qt5-5.15.2-py3-none-any.whl"


def form(**changes: Any) -> UploadForm:
    """The bare form with these fields instead; `None` takes one away."""
    fields = {name: [value] if isinstance(value, str) else value for name, value in {**BARE, **changes}.items() if value is not None}
    return UploadForm.from_fields(fields)


def test_a_bare_form_as_curl_sends_it_is_enough() -> None:
    """HO-PYPI-1."""
    found = form()
    assert found.distribution(FILENAME).path == f"pyqt5-qt5/{FILENAME}"
    assert (found.filetype, found.digest, found.attestations) == (None, None, ())


def test_everything_that_twine_sends_is_understood_and_kept(tmp_path: Path) -> None:
    path = tmp_path / FILENAME
    path.write_bytes(
        wheel(
            "PyQt5_Qt5",
            "5.15.2",
            "Requires-Python: >=3.8",
            "Requires-Dist: a",
            "Requires-Dist: b",
            "Classifier: Topic :: Software Development",
        )
    )
    package = PackageFile.from_filename(str(path), "a comment")
    package.attestations = [{"version": "1"}]
    data = Repository._convert_metadata_to_list_of_tuples(package.metadata_dictionary())
    data += [
        (":action", "file_upload"),
        ("protocol_version", "1"),
        ("content", (path.name, io.BytesIO(path.read_bytes()), "application/octet-stream")),
    ]
    encoder = requests_toolbelt.MultipartEncoder(data)
    digests: list[str] = []

    def receive(part: FilePart) -> None:
        digests.append(hashlib.sha256(part.read()).hexdigest())

    found = UploadForm.from_fields(read_form(io.BytesIO(encoder.read()), encoder.content_type, receive).fields)
    assert found.distribution(path.name).python_version == found.pyversion == "py3"
    assert (found.filetype, found.comment, found.attestations) == ("bdist_wheel", "a comment", ({"version": "1"},))
    assert found.digest == ("sha256", digests[0])
    assert found.metadata["requires_dist"] == ("a", "b")
    assert found.metadata["requires_python"] == (">=3.8",)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({":action": None}, ":action"),
        ({":action": "submit"}, ":action"),
        ({"name": None}, "name"),
        ({"name": "UNKNOWN"}, "name"),
        ({"name": ["a", "b"]}, "name"),
        ({"version": ""}, "version"),
        ({"version": "latest"}, "version"),
        ({"name": "a b"}, "name"),
        ({"protocol_version": "2"}, "protocol_version"),
        ({"sha256_digest": "abc"}, "sha256_digest"),
        ({"md5_digest": "g" * 32}, "md5_digest"),
        ({"sha256_digest": "²" * 64}, "sha256_digest"),
        ({"attestations": "{"}, "attestations"),
        ({"attestations": "{}"}, "attestations"),
        ({"attestations": "[1]"}, "attestations"),
        ({"attestations": "[" * 100_000}, "attestations"),
        ({"attestations": '[{"a": NaN}]'}, "attestations"),
        ({"attestations": '[{"a": -Infinity}]'}, "attestations"),
        ({"attestations": '[{"a": 1e999}]'}, "attestations"),
        ({"attestations": '[{"a": %s}]' % ("9" * 5000)}, "attestations"),
        ({"attestations": "[%s{}]" % ("{}," * 100_000)}, "attestations"),
        ({"comment": "a" * 65_537}, "comment"),
        ({"version": "9" * 5000}, "version"),
        ({"version": "1." * 130 + "0"}, "version"),
        ({"name": "a" * 300}, "name"),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refusal:
        form(**changes)
    assert refusal.value.field == field


@pytest.mark.parametrize(
    ("changes", "filename", "words"),
    [
        ({"version": "5.15.3"}, FILENAME, "the form gives the version '5.15.3'"),
        ({"name": "pyqt6"}, FILENAME, "the form names the project 'pyqt6'"),
        ({"filetype": "sdist"}, FILENAME, "filetype 'sdist'"),
        ({}, "PyQt5_Qt5-5.15.2.egg", "neither a wheel"),
        ({}, "../PyQt5_Qt5-5.15.2.tar.gz", "cannot be the name"),
    ],
)
def test_a_form_that_does_not_fit_its_file_is_refused(changes: dict[str, Any], filename: str, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        form(**changes).distribution(filename)


def test_the_most_trusted_digest_counts_and_a_wrong_one_is_a_mismatch() -> None:
    found = form(md5_digest="A" * 32, blake2_256_digest="b" * 64)
    assert found.digest == ("blake2b_256", "b" * 64)
    found.check_digest("sha256", "c" * 64)
    found.check_digest("md5", "a" * 32)
    with pytest.raises(DigestMismatch, match="md5_digest"):
        found.check_digest("md5", "b" * 32)


def test_attestations_are_served_as_a_provenance_object() -> None:
    document = provenance([{"version": 1}], {"kind": "arkvory", "claims": None})
    assert json.loads(json.dumps(document)) == {
        "version": 1,
        "attestation_bundles": [{"publisher": {"kind": "arkvory", "claims": None}, "attestations": [{"version": 1}]}],
    }
