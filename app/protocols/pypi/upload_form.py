"""The fields of an upload as twine, uv, poetry, pdm, hatch and flit send them: PyPI's "legacy" upload.

Every field is kept; what the server decides with is read here: `:action`, `name`, `version`, `filetype`,
`pyversion`, the digests, `comment`, `attestations`. What indexes tell of a file comes from the file itself
(`inspection`), since a form can claim anything; `name` and `version` must agree with it. A bare form with
`:action`, `name`, `version` and `content` is enough, so that `curl -F` will do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.errors import DigestMismatch, Invalid
from app.protocols.pypi.names import Distribution, check_against, normalised, parse_file_name, shown, version_of

CONTENT_PART = "content"
SIGNATURE_PART = "gpg_signature"
MOST_SIGNATURE_BYTES = 64 * 1024
# Characters of what is kept of a form's fields; the metadata comes from the file.
MOST_COMMENT = 64 * 1024
MOST_ATTESTATIONS = 256 * 1024

# The digests that clients send, the ones that count most first, and their length in hexadecimal digits.
_DIGESTS = {"sha256": ("sha256_digest", 64), "blake2b_256": ("blake2_256_digest", 64), "md5": ("md5_digest", 32)}

_NOT_METADATA = {
    ":action",
    "protocol_version",
    "filetype",
    "pyversion",
    "comment",
    "attestations",
    *(name for name, _ in _DIGESTS.values()),
}

# As old clients say that there is none.
_NOTHING = {"", "UNKNOWN"}


@dataclass(frozen=True)
class UploadForm:
    """What a form says; `digests` by algorithm, lower case hexadecimal; `metadata` are the remaining fields, as lists.

    `filetype` and `pyversion` are None where the client does not say them. `attestations` are JSON objects as sent.
    """

    name: str
    version: str
    filetype: str | None
    pyversion: str | None
    digests: Mapping[str, str]
    comment: str | None
    attestations: Sequence[Mapping[str, Any]]
    metadata: Mapping[str, Sequence[str]]

    @classmethod
    def from_fields(cls, fields: Mapping[str, Sequence[str]]) -> UploadForm:
        """Read the fields; `Invalid` names the one that is missing or wrong."""
        _check_action(fields)
        name, version = _needed(fields, "name"), _needed(fields, "version")
        normalised(name), version_of(version)
        return cls(
            name=name,
            version=version,
            filetype=_one(fields, "filetype"),
            pyversion=_one(fields, "pyversion"),
            digests=_digests(fields),
            comment=_one(fields, "comment", MOST_COMMENT),
            attestations=_attestations(fields),
            metadata={key: tuple(values) for key, values in fields.items() if key not in _NOT_METADATA},
        )

    def distribution(self, filename: str) -> Distribution:
        """What the file's name says, once it is certain that the form says the same."""
        found = parse_file_name(filename)
        check_against(found, "the form", self.name, self.version)
        if self.filetype is not None and self.filetype != found.filetype:
            raise Invalid(f"the form gives the filetype {shown(self.filetype)}, but {filename} is a {found.filetype}", "filetype")
        return found

    @property
    def digest(self) -> tuple[str, str] | None:
        """The most trusted digest that the client sent: algorithm (`sha256`, `blake2b_256`, `md5`) and value."""
        return next(((kind, self.digests[kind]) for kind in _DIGESTS if kind in self.digests), None)

    def check_digest(self, algorithm: str, found: str) -> None:
        """`DigestMismatch` when the client sent another digest of this kind than the bytes have."""
        claimed = self.digests.get(algorithm)
        if claimed is not None and claimed != found:
            field = _DIGESTS[algorithm][0]
            raise DigestMismatch(f"the {algorithm} of the file is {found}, but {field!r} says {claimed}; please send it again", field)


def _check_action(fields: Mapping[str, Sequence[str]]) -> None:
    action = _one(fields, ":action")
    if action != "file_upload":
        raise Invalid(f"the form's ':action' must be 'file_upload', not {shown(action or '')}; projects need no registration", ":action")
    if _one(fields, "protocol_version") not in {None, "1"}:
        raise Invalid("the form's 'protocol_version' must be '1'", "protocol_version")


def _one(fields: Mapping[str, Sequence[str]], name: str, most: int = MOST_COMMENT) -> str | None:
    """The value of a field that stands once, of at most so many characters; a client's ways to say "nothing" are None."""
    values = fields.get(name, ())
    if any(len(value) > most for value in values):
        raise Invalid(f"the form's {name!r} may have {most} characters", name)
    if len(set(values)) > 1:
        raise Invalid(f"the form has the field {name!r} more than once", name)
    return values[0] if values and values[0] not in _NOTHING else None


def _needed(fields: Mapping[str, Sequence[str]], name: str) -> str:
    value = _one(fields, name)
    if value is None:
        raise Invalid(f"the form has no field {name!r}", name)
    return value


def _digests(fields: Mapping[str, Sequence[str]]) -> dict[str, str]:
    return {kind: value for kind, (name, digits) in _DIGESTS.items() if (value := _hexadecimal(fields, name, digits))}


def _hexadecimal(fields: Mapping[str, Sequence[str]], name: str, digits: int) -> str | None:
    value = _one(fields, name)
    if value is None:
        return None
    if len(value) != digits or not set(value.lower()) <= set("0123456789abcdef"):
        raise Invalid(f"the form's {name!r} must have {digits} hexadecimal digits", name)
    return value.lower()


def _attestations(fields: Mapping[str, Sequence[str]]) -> tuple[Mapping[str, Any], ...]:
    """PEP 740: a JSON list of objects, sent as one field. They are kept, not verified."""
    text = _one(fields, "attestations", MOST_ATTESTATIONS)
    if text is None:
        return ()
    try:
        found = json.loads(text)
        # What Python reads beyond JSON (NaN, 1e999) nobody else could read again; nesting must fit with what goes around it.
        json.dumps([[[[found]]]], allow_nan=False)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise Invalid("the form's 'attestations' must be a JSON list of objects", "attestations")
    return tuple(found)


def provenance(attestations: Sequence[Mapping[str, Any]], publisher: Mapping[str, Any]) -> dict[str, Any]:
    """The document that `{file}.provenance` serves: a provenance object of PEP 740, for one publisher."""
    return {"version": 1, "attestation_bundles": [{"publisher": dict(publisher), "attestations": list(attestations)}]}
