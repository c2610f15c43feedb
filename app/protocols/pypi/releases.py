"""The documents at `pypi/{project}/json` and `pypi/{project}/{version}/json`, in the shape that PyPI gave them.

No specification rules them; clients read `info.version`, `info.requires_dist`, `releases` and `urls`. What a
repository of this kind does not know (downloads, vulnerabilities, owners) is present and empty, as clients
index into it. Addresses are made from `base`, the address of the repository with a slash at its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from packaging.version import Version

from app.protocols.pypi.metadata import ProjectFile, by_version, dump, in_order, parsed_version, timestamp, version_key
from app.protocols.pypi.names import FileType, file_reference, python_tag

# Fields of the core metadata that are one text each, and those that are lists, under the names of PyPI's document.
_TEXTS = (
    "author",
    "author_email",
    "description_content_type",
    "download_url",
    "home_page",
    "license",
    "license_expression",
    "maintainer",
    "maintainer_email",
    "requires_python",
    "summary",
)
_LISTS = ("dynamic", "license_files", "provides_extra", "requires_dist")


def project_document(name: str, project: str, files: Iterable[ProjectFile], base: str) -> bytes:
    """Everything known of a project, with its newest release in `info` and `urls`; `name` is shown, `project` normalised.

    Needs at least one file; without any there is no project.
    """
    releases = by_version(in_order(files))
    latest = latest_version(releases)
    document = _document(name, project, latest, releases[latest], base)
    document["releases"] = {version: [_entry(project, file, base) for file in group] for version, group in releases.items()}
    return dump(document)


def release_document(name: str, project: str, version: str, files: Iterable[ProjectFile], base: str) -> bytes | None:
    """The same of one release, without `releases`; None when no file has this version (PEP 440 equality)."""
    chosen = find_release(files, version)
    return dump(_document(name, project, chosen[0].version, chosen, base)) if chosen else None


def find_release(files: Iterable[ProjectFile], version: str | None) -> list[ProjectFile]:
    """The files of a version in any spelling (PEP 440 equality), in order; of the newest release for None; empty when there is none."""
    groups = by_version(in_order(files))
    if version is None:
        return groups[latest_version(groups)] if groups else []
    wanted = parsed_version(version)
    return next((group for known, group in groups.items() if parsed_version(known) == wanted), [])


def newest(yanked: Mapping[str, bool]) -> str:
    """The newest release, as one of its spellings, from the versions with files and whether all files of each are yanked."""
    groups: dict[Version | str, list[str]] = {}
    for version in yanked:
        groups.setdefault(parsed_version(version), []).append(version)
    left = {group[0]: all(yanked[version] for version in group) for group in groups.values()}
    return max(left, key=lambda version: _preference(version, yanked=left[version]))


def latest_version(releases: Mapping[str, Sequence[ProjectFile]]) -> str:
    """What an installer would take: not yanked before yanked, then final before pre-release, then the highest."""
    return max(releases, key=lambda version: _preference(version, yanked=_yanked(releases[version])))


def _preference(version: str, *, yanked: bool) -> tuple[bool, bool, tuple[int, Version, str]]:
    key = version_key(version)
    return not yanked, not key[1].is_prerelease, key


def _yanked(files: Sequence[ProjectFile]) -> bool:
    """A release is yanked when nothing else is left of it."""
    return all(file.yanked is not None for file in files)


def _document(name: str, project: str, version: str, files: Sequence[ProjectFile], base: str) -> dict[str, Any]:
    return {
        "info": _info(name, project, version, files, base),
        "urls": [_entry(project, file, base) for file in files],
        "vulnerabilities": [],
        "ownership": {"roles": [], "organization": None},
        "last_serial": 0,
    }


def _info(name: str, project: str, version: str, files: Sequence[ProjectFile], base: str) -> dict[str, Any]:
    """Wheels know best: a source distribution may leave fields open until it is built."""
    source = max(files, key=lambda file: (bool(file.metadata), file.filename.endswith(".whl")))
    fields = source.metadata
    yanked = _yanked(files)
    page = f"{base}simple/{project}/"
    info: dict[str, Any] = {key: fields.get(key) for key in _TEXTS}
    info |= {key: fields.get(key) or None for key in _LISTS}
    info |= {
        "name": name,
        "version": version,
        "classifiers": fields.get("classifiers") or [],
        "description": fields.get("description") or "",
        "keywords": _joined(fields.get("keywords")),
        "platform": _joined(fields.get("platforms")),
        "project_urls": fields.get("project_urls") or None,
        "requires_python": source.requires_python,
        "bugtrack_url": None,
        "docs_url": None,
        "downloads": {"last_day": -1, "last_week": -1, "last_month": -1},
        "package_url": page,
        "project_url": page,
        "release_url": page,
        "yanked": yanked,
        "yanked_reason": _reason(files) if yanked else None,
    }
    return dict(sorted(info.items()))


def _joined(value: Any) -> str | None:
    return ",".join(value) if isinstance(value, (list, tuple)) else value


def _reason(files: Sequence[ProjectFile]) -> str | None:
    return next((file.yanked for file in files if file.yanked), None)


def _entry(project: str, file: ProjectFile, base: str) -> dict[str, Any]:
    uploaded = None if file.uploaded_at is None else timestamp(file.uploaded_at)
    return {
        "comment_text": file.metadata.get("comment") or "",
        "core-metadata": False if file.core_metadata is None else dict(file.core_metadata) or True,
        "digests": dict(file.hashes),
        "downloads": -1,
        "filename": file.filename,
        "has_sig": bool(file.has_signature),
        "packagetype": str(FileType.WHEEL if file.filename.endswith(".whl") else FileType.SDIST),
        "python_version": python_tag(file.filename),
        "requires_python": file.requires_python,
        "size": file.size,
        "upload_time": uploaded and uploaded[:19],
        "upload_time_iso_8601": uploaded,
        "url": base + file_reference(project, file.filename),
        "yanked": file.yanked is not None,
        "yanked_reason": file.yanked or None,
    }
