"""Changes of a package that is there: tags, deprecation, owners, and taking versions back.

npm sends some of them as the whole document, as it was with the change in it. Only what the document is meant for is taken from it; its
`_rev` says what the client had read, so that nothing which came meanwhile is lost.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Connection

from app.database.statements import text
from app.errors import Invalid, NotFound
from app.protocols.npm.fragments import plain
from app.protocols.npm.names import check_number_of_tags, check_tag, highest, tarball_path
from app.repository.deleting import Editor, PackageState
from app.repository.publishing import Target

MOST_DEPRECATION = 16 * 1024
# See `hosted.revision_text`.
_REVISION = re.compile(r"([0-9]{1,18})-([0-9a-f]{1,16})")


def state_of(package: str, revision: Any) -> PackageState:
    """What the client read, by its `_rev`; None: whatever is there. Raises Invalid."""
    if revision is None:
        return PackageState(package)
    found = [_REVISION.fullmatch(each) for each in str(revision).split(".")]
    if None in found:
        raise Invalid(f"{str(revision)[:80]!r} is no revision of a document", "_rev")
    return PackageState(package, {int(each[2], 16): int(each[1]) for each in found if each is not None})


def anything(package: str) -> str:
    """A path below the package, to ask who may change it."""
    return f"{package}/-"


# Tags


def set_tags(editor: Editor, target: Target, package: str, tags: Mapping[str, Any], *, only: bool = False) -> None:
    """Let these tags name these versions, with `only` no others. Raises Invalid, and NotFound for a version that is not there."""
    for tag in check_number_of_tags(tags):
        check_tag(tag)

    def change(connection: Connection, package_id: int) -> None:
        if only:
            connection.execute(_CLEAR_TAGS, {"package": package_id, "but": ["latest", *tags]})
        for tag, version in tags.items():
            set_tag(connection, package_id, tag, _version_id(connection, package_id, package, version))

    editor.change_package(target, anything(package), PackageState(package), change)


def remove_tag(editor: Editor, target: Target, package: str, tag: str) -> None:
    """Raises NotFound for a tag that is not there, Invalid for `latest`."""
    if tag == "latest":
        raise Invalid("`latest` is always there; let it name another version instead", "tag")

    def change(connection: Connection, package_id: int) -> None:
        if connection.execute(_REMOVE_TAG, {"package": package_id, "tag": tag}).rowcount == 0:
            raise NotFound(f"{package!r} has no tag {tag!r}")

    editor.change_package(target, anything(package), PackageState(package), change)


def set_tag(connection: Connection, package_id: int, tag: str, artifact_id: int) -> None:
    """Under the repository's lock."""
    connection.execute(_SET_TAG, {"package": package_id, "tag": tag, "artifact": artifact_id})


def settle_latest(connection: Connection, package_id: int, published: int) -> None:
    """Whatever is published must not move `latest` unless it says so: where no version is named by it, it stays at the highest one before.

    The very first version of a package is its latest.
    """
    if connection.execute(_LATEST, {"package": package_id}).first() is not None:
        return
    ids = {row.version: row.id for row in connection.execute(_OTHERS, {"package": package_id, "but": published})}
    set_tag(connection, package_id, "latest", ids[highest(list(ids))] if ids else published)


def _version_id(connection: Connection, package_id: int, package: str, version: Any) -> int:
    if not isinstance(version, str):
        raise Invalid("a tag names a version, a text", "dist-tags")
    found = connection.execute(_ONE_VERSION, {"package": package_id, "path": tarball_path(package, version)}).scalar()
    if found is None:
        raise NotFound(f"there is no version {version!r} of {package!r} to be tagged")
    return int(found)


# Deprecation and owners


def deprecate(
    editor: Editor, target: Target, package: str, revision: Any, wanted: Mapping[str, Any], others: Callable[[], Mapping[str, Any]]
) -> None:
    """Deprecations by version, as they are to be; an empty one takes it back. Versions that are not spoken of stay as they are.

    Of a document that was read through a group, `others` are those that all members' versions have: what stays as it is need not be here.
    """
    here = editor.hosted(target)
    if here.name != target.repository:
        unchanged = others()
        wanted = {version: message for version, message in wanted.items() if (message or "") != (unchanged.get(version) or "")}
    for message in wanted.values():
        if message is not None and (not isinstance(message, str) or len(message) > MOST_DEPRECATION):
            raise Invalid(f"a deprecation is a text of at most {MOST_DEPRECATION} characters", "deprecated")
    messages = {version: plain(message or "") for version, message in wanted.items()}

    def change(connection: Connection, package_id: int) -> None:
        rows = connection.execute(_DEPRECATIONS, {"package": package_id}).all()
        if unknown := messages.keys() - {row.version for row in rows}:
            raise NotFound(f"there is no version {min(unknown)!r} of {package!r} in repository {here.name!r}")
        changed = [(row.id, messages[row.version]) for row in rows if messages.get(row.version, row.deprecated) != row.deprecated]
        values = {"ids": [each for each, _ in changed], "messages": [message for _, message in changed]}
        connection.execute(_DEPRECATE, values)

    editor.change_package(target, anything(package), state_of(package, revision), change)


def set_owners(editor: Editor, target: Target, package: str, revision: Any, maintainers: str) -> None:
    """Whom the package names as its owners, as JSON."""

    def change(connection: Connection, package_id: int) -> None:
        connection.execute(_SET_OWNERS, {"package": package_id, "maintainers": maintainers})

    editor.change_package(target, anything(package), state_of(package, revision), change)


# Taking back


def unpublish(editor: Editor, target: Target, state: PackageState, paths: list[str]) -> None:
    """Take these tarballs back, with what stands beside them, while the package is as the client read it."""
    editor.delete(target, paths, state=state)


def shown_versions(connection: Connection, repository_id: int, package: str) -> dict[str, str]:
    """Paths of the tarballs by version."""
    return {row.version: row.path for row in connection.execute(_VERSIONS, {"id": repository_id, "name": package})}


_NOT_HELD = "join arkvory_npm_versions n on n.artifact_id = a.id where not a.withheld"
_LATEST = text("select 1 from arkvory_npm_tags where package_id = :package and tag = 'latest'")
_OTHERS = text(f"select a.id, a.version from arkvory_artifacts a {_NOT_HELD} and a.package_id = :package and a.id <> :but")
_ONE_VERSION = text(f"select a.id from arkvory_artifacts a {_NOT_HELD} and a.package_id = :package and a.path = :path")
_SET_TAG = text(
    "insert into arkvory_npm_tags (package_id, tag, artifact_id) values (:package, :tag, :artifact) "
    "on conflict (package_id, tag) do update set artifact_id = excluded.artifact_id, mirrored = false"
)
_REMOVE_TAG = text("delete from arkvory_npm_tags where package_id = :package and tag = :tag")
_CLEAR_TAGS = text("delete from arkvory_npm_tags where package_id = :package and tag <> all(:but)")
_DEPRECATIONS = text(
    f"select a.id, a.version, coalesce(n.deprecated, '') as deprecated from arkvory_artifacts a {_NOT_HELD} and a.package_id = :package"
)
_DEPRECATE = text(
    "update arkvory_npm_versions n set deprecated = nullif(v.message, '') "
    "from unnest(cast(:ids as bigint[]), cast(:messages as text[])) as v(id, message) where n.artifact_id = v.id"
)
_SET_OWNERS = text(
    "insert into arkvory_npm_packages (package_id, maintainers) values (:package, :maintainers) "
    "on conflict (package_id) do update set maintainers = excluded.maintainers"
)
_VERSIONS = text(
    f"select a.version, a.path from arkvory_packages p join arkvory_artifacts a on a.package_id = p.id {_NOT_HELD} "
    "and p.repository_id = :id and p.name = :name"
)
