"""Names of projects and files, and where things are.

Below the address of a repository, `/pypi/{repository}/`:

    simple/                              the index of all projects
    simple/{project}/                    the page of one project, `project` normalised
    files/{project}/{file name}          the file; with `.metadata`, `.asc` or `.provenance` appended, what goes with it
    pypi/{project}/json                  what is known of the project and its newest release
    pypi/{project}/{version}/json        the same of one release
    legacy/, and the address itself      uploads (POST)

A file is the artifact `{project}/{file name}`, its companions are artifacts beside it. A proxy keeps what its upstream says below
`.upstream/`, which no project is called and no address leads to. There is no
`{project}/json` directly below the repository: a project may be called `simple` or `files`.

Names and versions are read by `packaging`: PEP 503 (normalised names), PEP 440 (versions), PEP 427 and 425
(wheels), PEP 625 (source distributions). Only files that twine knows are accepted: `.whl` (`bdist_wheel`),
`.tar.gz` and `.zip` (`sdist`); eggs and installers are not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import quote

from packaging.utils import (
    InvalidName,
    InvalidSdistFilename,
    InvalidWheelFilename,
    NormalizedName,
    canonicalize_name,
    is_normalized_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

from app.errors import Invalid
from app.repository.names import INTERNAL

SDIST_ENDINGS = (".tar.gz", ".zip")
LONGEST_FILE_NAME = 255
# Characters of a project's name and of a version; a file has both in its own.
LONGEST_NAME = LONGEST_FILE_NAME

# Where a proxy keeps the upstream's index of all projects, and its pages.
INDEX_PATH = f"{INTERNAL}index/simple"
_PAGES = f"{INTERNAL}simple/"

# What may stand in the name of a file at all: the characters that names, versions (also with an epoch or
# a local part) and tags are made of. `packaging` alone would let spaces and other alphabets through.
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*")


class FileType(StrEnum):
    """What twine calls `filetype`."""

    WHEEL = "bdist_wheel"
    SDIST = "sdist"


class Companion(StrEnum):
    """What may stand beside a file, by the ending that is appended to the file's name."""

    METADATA = ".metadata"
    SIGNATURE = ".asc"
    PROVENANCE = ".provenance"


@dataclass(frozen=True)
class Distribution:
    """What the name of a file says. `python_version` is twine's `pyversion`: the Python tag of a wheel, else `source`."""

    filename: str
    project: NormalizedName
    version: Version
    filetype: FileType
    python_version: str

    @property
    def path(self) -> str:
        """The artifact that holds the file."""
        return f"{self.project}/{self.filename}"

    def beside(self, companion: Companion) -> str:
        """The artifact that holds what goes with the file."""
        return self.path + companion


def normalised(name: str) -> NormalizedName:
    """The one spelling of a project's name (PEP 503); `Invalid` when it cannot be a name."""
    try:
        if len(name) > LONGEST_NAME:
            raise InvalidName
        return canonicalize_name(name, validate=True)
    except InvalidName:
        raise Invalid(
            f"{shown(name)} is not a name for a project: letters, digits, '.', '-' and '_' may stand "
            "in it, and it begins and ends with a letter or digit",
            "name",
        ) from None


def is_normalised(name: str) -> bool:
    """Whether this is the spelling that addresses use; others are redirected to it."""
    return is_normalized_name(name)


def version_of(text: str) -> Version:
    """The version that a text means (PEP 440); `Invalid` when it means none."""
    version = parsed_version(text)
    if version is None:
        raise Invalid(f"{shown(text)} is not a version as PEP 440 defines them (an example: 1.2.0rc1)", "version")
    return version


def parsed_version(text: str) -> Version | None:
    """The version that a text means; None when it means none."""
    if len(text) > LONGEST_NAME:
        return None
    try:
        return Version(text)
    except ValueError:  # also what Python says to numbers of thousands of digits
        return None


def pattern_of(text: str) -> str:
    """A pattern for PostgreSQL: the normalised versions that a text equals (PEP 440: zeros at the end of a release say nothing)."""
    version = parsed_version(text)
    if version is None:
        return f"^{re.escape(text)}$"
    epoch, release = f"{version.epoch}!" if version.epoch else "", ".".join(map(str, version.release))
    rest = str(version)[len(epoch + release) :]
    return f"^{re.escape(epoch + re.sub('([.]0)+$', '', release))}([.]0)*{re.escape(rest)}$"


def parse_file_name(filename: str) -> Distribution:
    """What the name of an uploaded file says; `Invalid` when it is neither a wheel's nor a source distribution's."""
    _check_characters(filename)
    if filename.endswith(".whl"):
        return _wheel(filename)
    if filename.endswith(SDIST_ENDINGS):
        return _sdist(filename)
    raise Invalid(f"{shown(filename)} is neither a wheel (.whl) nor a source distribution (.tar.gz or .zip)", "content")


def _check_characters(filename: str) -> None:
    if len(filename) > LONGEST_FILE_NAME:
        raise Invalid(f"the file's name has {len(filename)} characters, more than {LONGEST_FILE_NAME}", "content")
    if not _FILE_NAME.fullmatch(filename):
        raise Invalid(f"{shown(filename)} cannot be the name of a file here: only letters, digits and ._+!- may stand in it", "content")


def _wheel(filename: str) -> Distribution:
    try:
        project, version, _build, _tags = parse_wheel_filename(filename)
    except InvalidWheelFilename as error:
        raise Invalid(f"{shown(filename)} does not name a wheel: {_reason(error)}", "content") from None
    return Distribution(filename, normalised(project), version, FileType.WHEEL, python_tag(filename))


def _sdist(filename: str) -> Distribution:
    try:
        project, version = parse_sdist_filename(filename)
    except InvalidSdistFilename as error:
        raise Invalid(f"{shown(filename)} does not name a source distribution: {_reason(error)}", "content") from None
    return Distribution(filename, normalised(project), version, FileType.SDIST, python_tag(filename))


def python_tag(filename: str) -> str:
    """Twine's `pyversion` of a file: the Python tag of a wheel, else `source`."""
    parts = filename.split("-")
    return parts[-3] if filename.endswith(".whl") and len(parts) >= 5 else "source"


def version_in(filename: str, project: str) -> str:
    """The version, normalised where it is one, that the name of any file says which an index lists for a project; empty when it says none.

    Old indexes have names that `packaging` refuses, and eggs and installers, where a platform follows behind the version.
    """
    pieces = _stem(filename).split("-")
    if filename.endswith(".whl"):
        return _written(pieces[1]) if len(pieces) >= 5 else ""
    for count in range(min(len(pieces) - 1, project.count("-") + 1), 0, -1):
        if canonicalize_name("-".join(pieces[:count])) == project:
            return _written("-".join(pieces[count:])) or _written(pieces[count])
    return ""


def _stem(filename: str) -> str:
    lower = filename.lower()
    ending = next((each for each in (".tar.gz", ".tar.bz2", ".tar.xz", ".tar.z") if lower.endswith(each)), "")
    return filename[: -len(ending)] if ending else filename.rpartition(".")[0]


def _written(text: str) -> str:
    version = parsed_version(text)
    return "" if version is None else str(version)


def check_against(distribution: Distribution, source: str, name: str, version: str) -> None:
    """`Invalid` unless the name and version that `source` gives are those of the file's name (PEP 503 and 440)."""
    if normalised(name) != distribution.project:
        raise Invalid(f"{source} names the project {shown(name)}, but {distribution.filename} belongs to '{distribution.project}'", "name")
    if version_of(version) != distribution.version:
        raise Invalid(
            f"{source} gives the version {shown(version)}, but {distribution.filename} is version '{distribution.version}'", "version"
        )


def companion_of(path: str) -> tuple[str, Companion | None]:
    """The artifact of the file that a path belongs to, and which companion it names (none: the file itself)."""
    for companion in Companion:
        if path.endswith(companion):
            return path.removesuffix(companion), companion
    return path, None


def page_path(project: str) -> str:
    """Where a proxy keeps the upstream's page of a project."""
    return _PAGES + project


def project_at(path: str) -> str | None:
    """The project whose page is kept at the path; null for any other path."""
    return path.removeprefix(_PAGES) if path.startswith(_PAGES) else None


def file_reference(project: str, filename: str) -> str:
    """Address of a file below the repository's, percent-encoded once."""
    return f"files/{quote(project, safe='')}/{quote(filename, safe='')}"


def shown(text: str, most: int = 120) -> str:
    """A client's text in quotes for a message: on one line, not endless."""
    short = text if len(text) <= most else text[:most] + "..."
    return ascii(short) if any(ord(c) < 32 or 127 <= ord(c) < 160 for c in short) else f"'{short}'"


def _reason(error: Exception) -> str:
    """The library's reason without its first words, which repeat ours."""
    text = str(error)
    inner = re.search(r"\((.+?)\):", text)
    return inner.group(1) if inner else text.split(":")[0].lower()
