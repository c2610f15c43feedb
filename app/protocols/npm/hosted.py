"""What a hosted repository has of a package, by its rows; see `portions.Holder`.

Of each version there are fragments, as they were made when it was published: nothing of them is parsed, however many they are, and
PostgreSQL joins some hundreds of them before it hands them over. Held versions are left out, and so are tags that name one.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import gevent
from sqlalchemy import Connection, Row, TextClause

from app.cache.snapshots import Snapshot
from app.database.statements import text
from app.errors import NotFound
from app.http.responses import json_time
from app.protocols.npm.fragments import ADDRESS, manifest_of
from app.protocols.npm.names import highest, is_name, tarball_path
from app.protocols.npm.portions import Held, Names, Portion, Read, Wanted, members, separated
from app.repository.reading import Shelf

# Versions from which on pieces are fetched one by one, and a document takes longer to write than the loop may be kept from others; and
# how long a piece is, in bytes.
MANY = 200
PIECE = 1_000_000
# What a packument says of the package itself is what its latest version says.
_OF_THE_LATEST = ("description", "homepage", "keywords", "repository", "contributors", "author", "bugs", "license", "readmeFilename")


def held_by(connection: Connection, members: Iterable[Snapshot], names: Iterable[str]) -> frozenset[str]:
    """Those of these names that hosted members of a group hold, whatever of them is shown, or is there still."""
    values = {"ids": [each.id for each in members if each.upstream_url is None], "names": sorted(filter(is_name, names))}
    return frozenset(connection.execute(_HELD, values).scalars())


_HELD = text("select distinct p.name from arkvory_packages p where p.repository_id = any(:ids) and p.name = any(:names)")


@dataclass(frozen=True)
class _Piece:
    """Some versions, with their fragments and times; the names only where each has a piece of its own."""

    version: str | None
    fragments: bytes
    times: bytes


@dataclass(frozen=True)
class _Rows:
    """See `portions.Opened`."""

    names: Names
    times: Mapping[str, Any]
    about: bytes
    pieces: Sequence[_Piece]

    def fragments(self, but: AbstractSet[str]) -> Iterator[bytes]:
        return separated([each.fragments] for each in self.pieces if each.version not in but)

    def published(self, but: AbstractSet[str]) -> Iterator[bytes]:
        return separated([each.times] for each in self.pieces if each.version not in but)


class Hosted:
    """See `portions.Holder`."""

    def revision(self, connection: Connection, snapshot: Snapshot, package: str) -> int | None:
        row = package_row(connection, snapshot.id, package)
        return None if row is None else int(row.revision)

    def portion(self, connection: Connection, snapshot: Snapshot, shelf: Shelf, wanted: Wanted, *, alone: bool) -> Portion:
        package = _package(connection, snapshot.id, wanted.package)
        names = _names(connection, package.id, alone=alone)
        times = {"created": json_time(_created(connection, package, wanted)), "modified": json_time(package.changed_at)}
        pieces = _pieces(connection, package, wanted, alone=alone)
        about = b"" if wanted.abbreviated else _about(connection, snapshot, package, names.tags.get("latest"))
        rows = _Rows(names, times, about, pieces)
        return Portion(lambda: contextlib.nullcontext(rows), package.artifacts >= MANY, revision_text(package))

    def version(self, connection: Connection, snapshot: Snapshot, shelf: Shelf, wanted: Wanted, which: str) -> Read[bytes]:
        package = _package(connection, snapshot.id, wanted.package)
        row = version_row(connection, snapshot.id, wanted.package, read_tags(connection, package.id).get(which, which))

        held = row is None and connection.execute(_IS_HELD, {"package": package.id, "version": which}).first() is not None

        def write() -> bytes:
            if row is None:
                raise (Held if held else NotFound)(f"there is no version {which!r} of {wanted.package!r}")
            return _with_deprecation(row).replace(ADDRESS, wanted.base).encode()

        return Read(write)

    def tags(self, connection: Connection, snapshot: Snapshot, shelf: Shelf, package: str, *, alone: bool) -> Read[Names]:
        found = _names(connection, _package(connection, snapshot.id, package).id, alone=alone)
        return Read(lambda: found)


def _names(connection: Connection, package_id: int, *, alone: bool) -> Names:
    tags = read_tags(connection, package_id)
    if alone:
        return Names(tags)
    rows = connection.execute(_VERSIONS, {"package": package_id}).all()
    shown, withheld = (frozenset(row.version for row in rows if row.withheld is held) for held in (False, True))
    return Names(tags, shown, withheld)


def _pieces(connection: Connection, package: Row[Any], wanted: Wanted, *, alone: bool) -> list[_Piece]:
    """Many versions in each where nobody asks for single ones; so that they are in memory once, they are made of rows as these come."""
    many = package.artifacts >= MANY
    options = {"stream_results": True, "max_row_buffer": 1} if many and alone else {}
    pieces = []
    for row in connection.execute(_STATEMENTS[wanted.abbreviated, alone], {"package": package.id}, execution_options=options):
        pieces.append(_Piece(row.version, row.versions.replace(ADDRESS, wanted.base).encode(), row.times.encode()))
        if many and alone:
            gevent.sleep(0)
    return pieces


def _created(connection: Connection, package: Row[Any], wanted: Wanted) -> datetime:
    """When an upstream had it, where it came from there. Installers do not ask."""
    first = None if wanted.abbreviated else connection.execute(_FIRST, {"package": package.id}).scalar()
    created: datetime = package.created_at
    return created if first is None else min(first, created)


def _about(connection: Connection, snapshot: Snapshot, package: Row[Any], latest: str | None) -> bytes:
    maintainers = connection.execute(_MAINTAINERS, {"package": package.id}).scalar()
    row = None if latest is None else version_row(connection, snapshot.id, package.name, latest)
    told = {} if row is None else manifest_of(row.fragment)
    return members(
        {
            "maintainers": json.loads(maintainers or "[]"),
            **{key: told[key] for key in _OF_THE_LATEST if key in told},
            "readme": (row.readme if row is not None else None) or "",
        }
    )


def _with_deprecation(row: Row[Any]) -> str:
    fragment: str = row.fragment
    return fragment if row.deprecated is None else f'{{"deprecated":{json.dumps(row.deprecated)},{fragment[1:]}'


def read_tags(connection: Connection, package_id: int) -> dict[str, str]:
    """Versions by tag, in the order of the tags. `latest` is always there: where it names none that is shown, it is the highest."""
    tags = {row.tag: row.version for row in connection.execute(_TAGS, {"package": package_id})}
    if "latest" not in tags:
        versions = list(connection.execute(_NUMBERS, {"package": package_id}).scalars())
        tags |= {"latest": highest(versions)} if versions else {}
    return dict(sorted(tags.items()))


def revision_text(package: Row[Any]) -> str:
    """`_rev`: what a client sends back with a change to what it read. Of several repositories they stand with dots between them."""
    return f"{package.revision}-{package.id:016x}"


def package_row(connection: Connection, repository_id: int, package: str) -> Row[Any] | None:
    """Null where nothing of it is shown."""
    return connection.execute(_PACKAGE, {"id": repository_id, "name": package}).first()


def _package(connection: Connection, repository_id: int, package: str) -> Row[Any]:
    """Whether something of it is shown or not."""
    return connection.execute(_ANY_PACKAGE, {"id": repository_id, "name": package}).one()


def version_row(connection: Connection, repository_id: int, package: str, version: str) -> Row[Any] | None:
    """What is kept of a version that is shown."""
    return connection.execute(_VERSION, {"id": repository_id, "path": tarball_path(package, version)}).first()


_PUBLISHED = "coalesce(n.published_at, a.updated_at) as published"
_ROWS = "from arkvory_artifacts a join arkvory_npm_versions n on n.artifact_id = a.id where not a.withheld"
_SHOWN = f"{_ROWS} and a.package_id = :package"
_NUMBERS = text(f"select a.version {_SHOWN}")
_FRAGMENT = (
    "format('%s:%s', to_json(version), case when deprecated is null then fragment "
    "else format('{\"deprecated\":%s,%s', to_json(deprecated), substr(fragment, 2)) end)"
)
_FIRST = text(f"select min(n.published_at) {_SHOWN}")
_TIME = "format('%s:\"%s\"', to_json(version), to_char(published at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"'))"


def _joined(column: str) -> TextClause:
    """Fragments and times in the order in which the versions were published, some hundreds in each row as a rule."""
    return text(
        f"select null as version, string_agg({_FRAGMENT}, ',' order by id) as versions, string_agg({_TIME}, ',' order by id) as times "
        f"from (select a.id, a.version, {_PUBLISHED}, n.deprecated, n.{column} as fragment, "
        f"sum(octet_length(n.{column})) over (order by a.id) / {PIECE} as piece {_SHOWN}) as shown group by piece order by piece"
    )


def _single(column: str) -> TextClause:
    """The same, one in each row."""
    return text(
        f"select version, {_FRAGMENT} as versions, {_TIME} as times "
        f"from (select a.id, a.version, {_PUBLISHED}, n.deprecated, n.{column} as fragment {_SHOWN}) as shown order by id"
    )


# By whether it is abbreviated, and alone.
_STATEMENTS = {
    (True, True): _joined("abbreviated"),
    (True, False): _single("abbreviated"),
    (False, True): _joined("fragment"),
    (False, False): _single("fragment"),
}
_VERSION = text(
    f"select a.id, a.version, n.deprecated, n.fragment, n.readme {_ROWS} and a.repository_id = :id and a.path = :path"
)
_TAGS = text(
    "select t.tag, a.version from arkvory_npm_tags t join arkvory_artifacts a on a.id = t.artifact_id "
    "where t.package_id = :package and not a.withheld"
)
_ANY = (
    "select id, name, display_name, revision, created_at, changed_at, artifacts from arkvory_packages "
    "where repository_id = :id and name = :name"
)
_ANY_PACKAGE, _PACKAGE = text(_ANY), text(f"{_ANY} and artifacts > 0")
_VERSIONS = text(
    "select a.version, a.withheld from arkvory_artifacts a join arkvory_npm_versions n on n.artifact_id = a.id "
    "where a.package_id = :package"
)
_IS_HELD = text("select 1 from arkvory_artifacts where package_id = :package and version = :version and withheld")
_MAINTAINERS = text("select maintainers from arkvory_npm_packages where package_id = :package")
