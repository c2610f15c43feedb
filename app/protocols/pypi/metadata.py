"""The index pages of the Simple API, version 1.4, as HTML and as JSON.

PEP 503 (pages), 592 (yank), 629 (version), 658 and 714 (metadata files), 691 (JSON), 700 (size, time,
versions), 740 (provenance), 792 (project status); the living text is "Simple repository API" of the PyPA
specifications. Equal rows give equal bytes: files stand in the order of their versions (PEP 440), then of
their names.

Links are relative, so a page is right behind any proxy and under any address. Only provenance must be a
fully qualified secure address, so it is left out where the server's own address is not https.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from typing import Any

from packaging.version import Version

from app.protocols.pypi import names
from app.protocols.pypi.names import Companion, file_reference

API_VERSION = "1.4"

# From a project's page, `simple/{project}/`, up to the repository's address.
_UP = "../../"

# Elements of a list that are written at once.
_PART = 100

_NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True)
class ProjectFile:
    """One file of a project, as its rows tell, or the index of an upstream, which may leave size, time and hashes open.

    `size` is in bytes; `version` is the normalised text, empty where the name says none; `hashes` in hexadecimal by algorithm;
    `yanked` is None, or the reason, which may be empty; `core_metadata` are the hashes of what `{file}.metadata` serves (empty: they
    are not known), None when nothing is served there; `has_signature` None: it is not known;
    `metadata` has the fields of its core metadata, only needed for the documents of `releases`.
    """

    filename: str
    version: str
    size: int | None
    hashes: Mapping[str, str]
    uploaded_at: datetime | None
    requires_python: str | None = None
    yanked: str | None = None
    core_metadata: Mapping[str, str] | None = None
    has_signature: bool | None = False
    has_provenance: bool = False
    metadata: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True)
class ProjectStatus:
    """A status marker (PEP 792): `active`, `archived`, `quarantined` or `deprecated`, and why."""

    status: str
    reason: str | None = None


@dataclass(frozen=True)
class Project:
    """What a page tells of a project; `versions` are those that are listed whether they have files or not."""

    files: Sequence[ProjectFile]
    versions: Sequence[str] = ()
    status: ProjectStatus | None = None
    # As it is shown; empty: nothing but the normalised name is known.
    name: str = ""
    # Names of files that are there, and not to be had.
    withheld: frozenset[str] = frozenset()


def merged(projects: Sequence[Project]) -> Project:
    """One page of several repositories' pages: of files with the same name the first one's, the status of the first that has one.

    What one withholds, no later one shows.
    """
    if len(projects) == 1:
        return projects[0]
    files: dict[str, ProjectFile] = {}
    withheld: frozenset[str] = frozenset()
    for project in projects:
        files = {file.filename: file for file in project.files if file.filename not in withheld} | files
        withheld |= project.withheld
    versions = list(dict.fromkeys(version for project in projects for version in project.versions))
    status = next((project.status for project in projects if project.status), None)
    return Project(list(files.values()), versions, status, next((project.name for project in projects if project.name), ""))


def in_order(files: Iterable[ProjectFile]) -> list[ProjectFile]:
    """By version (PEP 440, what is none before all others), then by file name."""
    rows = list(files)
    keys = {text: version_key(text) for text in {file.version for file in rows}}
    return sorted(rows, key=lambda file: (keys[file.version], file.filename))


def version_key(text: str) -> tuple[int, Version, str]:
    """For sorting; two spellings of one version (1.0 and 1.0.0) differ in the last part only."""
    parsed = parsed_version(text)
    return (1, parsed, text) if isinstance(parsed, Version) else (0, Version("0"), text)


def parsed_version(text: str) -> Version | str:
    """Equal for all spellings of one version; what is no version stands for itself."""
    return names.parsed_version(text) or text


def by_version(ordered: Iterable[ProjectFile]) -> dict[str, list[ProjectFile]]:
    """The files of each version in order, under the first of its spellings."""
    parsed: dict[str, Version | str] = {}
    groups: dict[Version | str, list[ProjectFile]] = {}
    for file in ordered:
        if file.version not in parsed:
            parsed[file.version] = parsed_version(file.version)
        groups.setdefault(parsed[file.version], []).append(file)
    return {group[0].version: group for group in groups.values()}


def project_json(name: str, project: Project, *, origin: str | None = None) -> bytes:
    """The page of a project as JSON; `origin` as for `project_html`."""
    ordered = in_order(project.files)
    status = project.status
    document: dict[str, Any] = {"meta": {"api-version": _version_of(ordered)}, "name": name}
    if status:
        document["project-status"] = {"status": status.status} | ({"reason": status.reason} if status.reason else {})
    document["versions"] = _versions(ordered, project.versions)
    document["files"] = [_file_json(name, file, origin) for file in ordered]
    return dump(document)


def _version_of(files: Iterable[ProjectFile]) -> str:
    """From 1.1 on each file has a size (PEP 700), which not every upstream tells."""
    return API_VERSION if all(file.size is not None for file in files) else "1.0"


def _versions(ordered: Sequence[ProjectFile], listed: Iterable[str]) -> list[str]:
    """Those of files, and those that are listed besides, in order."""
    found = {parsed_version(version): version for version in by_version(ordered) if version}
    for version in listed:
        found.setdefault(parsed_version(version), version)
    return sorted(found.values(), key=version_key)


def _file_json(project: str, file: ProjectFile, origin: str | None) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "filename": file.filename,
        "url": _UP + file_reference(project, file.filename),
        "hashes": dict(file.hashes),
        "yanked": False if file.yanked is None else file.yanked or True,
    }
    if file.size is not None:
        entry["size"] = file.size
    if file.uploaded_at is not None:
        entry["upload-time"] = timestamp(file.uploaded_at)
    if file.has_signature is not None:
        entry["gpg-sig"] = file.has_signature
    if file.requires_python:
        entry["requires-python"] = file.requires_python
    if file.core_metadata is not None:
        entry["core-metadata"] = dict(file.core_metadata) or True
    if provenance := _provenance(project, file, origin):
        entry["provenance"] = provenance
    return entry


def project_html(name: str, project: Project, *, origin: str | None = None) -> bytes:
    """The page of a project as HTML.

    `origin` is the absolute address of the repository, with a slash at its end, as the client sees it; it is
    used for provenance alone.
    """
    title = f"Links for {escape(name)}"
    anchors = "".join([_anchor(name, file, origin) for file in in_order(project.files)])
    return _page(title, _status_tags(project.status), f"    <h1>{title}</h1>\n{anchors}")


def _status_tags(status: ProjectStatus | None) -> str:
    if not status:
        return ""
    reason = f'    <meta name="pypi:project-status-reason" content="{escape(status.reason)}">\n' if status.reason else ""
    return f'    <meta name="pypi:project-status" content="{escape(status.status)}">\n{reason}'


def _anchor(project: str, file: ProjectFile, origin: str | None) -> str:
    digest = _best_hash(file.hashes)
    href = file_reference(project, file.filename)
    href = f"{_UP}{href}#{digest}" if digest else f"{_UP}{href}"
    return f'    <a href="{escape(href)}"{_attributes(project, file, origin)}>{escape(file.filename)}</a><br>\n'


def _best_hash(hashes: Mapping[str, str]) -> str | None:
    """The one for which HTML has room: SHA-256, which every installer knows, else the longest."""
    if not hashes:
        return None
    best = "sha256" if "sha256" in hashes else max(hashes, key=lambda algorithm: (len(hashes[algorithm]), algorithm))
    return f"{best}={hashes[best]}"


def _attributes(project: str, file: ProjectFile, origin: str | None) -> str:
    text = "" if file.has_signature is None else f' data-gpg-sig="{"true" if file.has_signature else "false"}"'
    if file.requires_python:
        text += f' data-requires-python="{escape(file.requires_python)}"'
    if file.yanked is not None:
        text += f' data-yanked="{escape(file.yanked)}"'
    if file.core_metadata is not None:
        value = _best_hash(file.core_metadata) or "true"
        text += f' data-core-metadata="{value}" data-dist-info-metadata="{value}"'
    if provenance := _provenance(project, file, origin):
        text += f' data-provenance="{escape(provenance)}"'
    return text


def _provenance(project: str, file: ProjectFile, origin: str | None) -> str | None:
    if not file.has_provenance or not origin or not origin.startswith("https://"):
        return None
    return origin + file_reference(project, file.filename) + Companion.PROVENANCE


def index_json(projects: Iterable[str]) -> bytes:
    """The index of all projects as JSON; takes normalised names."""
    return dump({"meta": {"api-version": API_VERSION}, "projects": [{"name": name} for name in sorted(projects)]})


def index_html(projects: Iterable[str]) -> bytes:
    """The index of all projects as HTML; takes normalised names."""
    anchors = "".join([f'    <a href="{escape(name)}/">{escape(name)}</a><br>\n' for name in sorted(projects)])
    return _page("Simple index", "", anchors)


def _page(title: str, meta: str, body: str) -> bytes:
    return (
        '<!DOCTYPE html>\n<html lang="en">\n  <head>\n    <meta charset="utf-8">\n'
        f'    <meta name="pypi:repository-version" content="{API_VERSION}">\n{meta}    <title>{title}</title>\n'
        f"  </head>\n  <body>\n{body}  </body>\n</html>\n"
    ).encode("utf-8", "xmlcharrefreplace")


def timestamp(at: datetime) -> str:
    """`yyyy-mm-ddThh:mm:ss.ffffffZ`, in UTC; a time without a zone is taken as UTC."""
    utc = at.astimezone(UTC) if at.tzinfo else at
    return utc.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def dump(document: Mapping[str, Any] | Sequence[Any]) -> bytes:
    """JSON without spaces, in UTF-8.

    `json` lets no other thread run until it is done, so long documents are written in parts.
    """
    return _dumped(document).encode("utf-8", "backslashreplace")


def _dumped(value: Any, depth: int = 2) -> str:
    """As `_dumps` writes it; `depth` levels may be taken apart."""
    if depth and isinstance(value, Mapping):
        return "{" + ",".join([f"{_dumps(key)}:{_dumped(each, depth - 1)}" for key, each in value.items()]) + "}"
    if depth and isinstance(value, list) and len(value) > _PART:
        return "[" + ",".join([_dumps(value[at : at + _PART])[1:-1] for at in range(0, len(value), _PART)]) + "]"
    return _dumps(value)


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
