"""What a hosted repository says of a package that its mirror brought: what the upstream says, as far as nobody here said otherwise.

Tags that name a version which somebody else published here stay, and so does all that is said of such versions. A tag that the upstream has
no more goes where it was the mirror who set it: it is a pointer, and what it named can be had by its number.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import gevent
from sqlalchemy import Connection

from app.database.statements import text
from app.errors import Invalid, NotFound
from app.protocols.npm.changes import MOST_DEPRECATION
from app.protocols.npm.fragments import Fragments, plain
from app.protocols.npm.kept import Kept, Place, Source, moment_of
from app.protocols.npm.names import check_tag
from app.protocols.npm.received import LONG_BODY
from app.protocols.npm.uploads import check_maintainers, name_owners, write_version
from app.repository.mirrors.worklist import brought
from app.repository.publishing import Package, Published


@dataclass(frozen=True)
class Told:
    """One version, as the upstream's packument describes it."""

    package: str
    manifest: Mapping[str, Any]
    source: Source
    published_at: datetime | None
    tags: Sequence[str]
    owners: str | None
    readme: Any

    @classmethod
    def of(cls, kept: Kept, package: str, version: str) -> Told:
        """Raises NotFound where the upstream has it no more, and UpstreamUnfit."""
        manifest, place, source = kept.manifest(version), kept.place(version), kept.source(version)
        if manifest is None or place is None or source is None:
            raise NotFound(f"the upstream has no version {version!r} of {package!r} any more")
        tags, about = _tags(kept), kept.about()
        # The package's own is that of its latest version.
        readme = about.get("readme") if tags.get("latest") == version else None
        named = [tag for tag, each in tags.items() if each == version]
        return cls(package, manifest, source, moment_of(place.published), named, _owners(about), readme)

    def as_package(self, made: Fragments) -> Package:
        """What the version's publish writes of it."""
        return Package(self.package, self.package, also=functools.partial(self._write, made))

    def _write(self, made: Fragments, connection: Connection, package_id: int, published: Sequence[Published]) -> None:
        artifact = published[0].id
        write_version(connection, artifact, made, self.published_at)
        if self.owners is not None:
            name_owners(connection, package_id, self.owners)
        connection.execute(_TAG_IT, {"package": package_id, "tags": list(self.tags), "artifact": artifact})


@dataclass(frozen=True)
class Following:
    """See `guides.Amendment`: tags and deprecations (empty: none) by version, owners as JSON (null: the upstream names none)."""

    tags: Mapping[str, str]
    deprecations: Mapping[str, str]
    owners: str | None

    @classmethod
    def of(cls, kept: Kept) -> Following:
        places = kept.places()
        long = sum(each.abbreviated_length for each in places) > LONG_BODY
        found = gevent.get_hub().threadpool.apply(kept.deprecations) if long else kept.deprecations()
        return cls(_tags(kept), _all_of(places, found), _owners(kept.about()))

    def is_due(self, connection: Connection, package_id: int) -> bool:
        return any(connection.execute(text(each), self._values(package_id)).first() is not None for each in _DUE)

    def make(self, connection: Connection, package_id: int) -> None:
        for each in (_SET_TAGS, _TAKE_TAGS, _SET_DEPRECATIONS, _SET_OWNERS):
            connection.execute(each, self._values(package_id))

    def _values(self, package_id: int) -> Mapping[str, Any]:
        return {
            "package": package_id, "owners": self.owners, "tags": list(self.tags), "tagged": list(self.tags.values()),
            "versions": list(self.deprecations), "messages": list(self.deprecations.values()),
        }  # fmt: skip


def _tags(kept: Kept) -> dict[str, str]:
    """Those that can be asked for here."""
    found: dict[str, str] = {}
    for tag, version in kept.table["tags"].items():
        try:
            found[check_tag(tag)] = version
        except Invalid:
            continue
    return found


def _all_of(places: Sequence[Place], deprecations: Mapping[str, str]) -> dict[str, str]:
    return {each.version: plain(deprecations.get(each.version, "")[:MOST_DEPRECATION]) for each in places}


def _owners(about: Mapping[str, Any]) -> str | None:
    try:
        return check_maintainers(about["maintainers"]) if about.get("maintainers") else None
    except Invalid:
        return None


_TAG_ROWS = (
    "left join arkvory_npm_tags t on t.package_id = :package and t.tag = w.tag left join arkvory_artifacts o on o.id = t.artifact_id "
    f"where (o.id is null or {brought('o')})"
)
_INSERT_TAGS = "insert into arkvory_npm_tags (package_id, tag, artifact_id, mirrored)"
_OR_MOVE = "on conflict (package_id, tag) do update set artifact_id = excluded.artifact_id, mirrored = true"
_TAG_IT = text(
    f"{_INSERT_TAGS} select :package, w.tag, :artifact, true from unnest(cast(:tags as text[])) as w(tag) {_TAG_ROWS} {_OR_MOVE}"
)
_TAGS_DUE = (
    "select w.tag, a.id from unnest(cast(:tags as text[]), cast(:tagged as text[])) as w(tag, version) "
    f"join arkvory_artifacts a on a.package_id = :package and a.version = w.version and {brought('a')} "
    f"{_TAG_ROWS} and t.artifact_id is distinct from a.id"
)
# `latest` is always there.
_TAGS_GONE = (
    "select t.tag from arkvory_npm_tags t join arkvory_artifacts o on o.id = t.artifact_id where t.package_id = :package and t.mirrored "
    f"and t.tag <> 'latest' and t.tag <> all(cast(:tags as text[])) and {brought('o')}"
)
_DEPRECATIONS_DUE = (
    "select n.artifact_id as id, nullif(w.message, '') as message "
    "from unnest(cast(:versions as text[]), cast(:messages as text[])) as w(version, message) "
    "join arkvory_artifacts a on a.package_id = :package and a.version = w.version join arkvory_npm_versions n on n.artifact_id = a.id "
    f"where n.deprecated is distinct from nullif(w.message, '') and {brought('a')}"
)
_OWNERS_DUE = (
    "select w.owners from (select cast(:owners as text) as owners) as w where w.owners is not null "
    "and w.owners is distinct from (select o.maintainers from arkvory_npm_packages o where o.package_id = :package) "
    "and not exists (select 1 from arkvory_artifacts a join arkvory_npm_versions n on n.artifact_id = a.id "
    f"where a.package_id = :package and not {brought('a')})"
)
_DUE = (_TAGS_DUE, _TAGS_GONE, _DEPRECATIONS_DUE, _OWNERS_DUE)
_SET_TAGS = text(f"{_INSERT_TAGS} select :package, due.tag, due.id, true from ({_TAGS_DUE}) as due {_OR_MOVE}")
_TAKE_TAGS = text(f"delete from arkvory_npm_tags where package_id = :package and tag in ({_TAGS_GONE})")
_SET_DEPRECATIONS = text(
    f"update arkvory_npm_versions n set deprecated = due.message from ({_DEPRECATIONS_DUE}) as due where n.artifact_id = due.id"
)
_SET_OWNERS = text(
    f"insert into arkvory_npm_packages (package_id, maintainers) select :package, due.owners from ({_OWNERS_DUE}) as due "
    "on conflict (package_id) do update set maintainers = excluded.maintainers"
)
