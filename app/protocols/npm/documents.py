"""The room's derived documents, put together from rows (see `repository.reading.DocumentSource`).

A packument is its versions' fragments, one behind the other, as they are stored: nothing of them is parsed, however many they are, and
PostgreSQL joins some hundreds of them before it hands them over. All documents of a package have the revision of its row. Held versions
are left out, and so are tags that name one.
"""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gevent
from sqlalchemy import Connection, Row, TextClause, text

from app.cache.snapshots import Snapshot
from app.http.responses import json_time
from app.protocols.npm.fragments import ADDRESS, manifest_of
from app.protocols.npm.names import highest, tarball_path
from app.repository.reading import Draft, Shelf

FULL_TYPE = "application/json"
ABBREVIATED_TYPE = "application/vnd.npm.install-v1+json"

# Versions from which on pieces are fetched one by one, and a document takes longer to write than the loop may be kept from others; and
# how long a piece is, in bytes.
MANY = 200
PIECE = 1_000_000
# What a packument says of the package itself is what its latest version says.
_OF_THE_LATEST = ("description", "homepage", "keywords", "repository", "contributors", "author", "bugs", "license", "readmeFilename")
# Of long documents the time to compress them would be most of the time to send them.
_LEVEL, _LONG_LEVEL, _LONG = 6, 1, 256 * 1024


@dataclass(frozen=True)
class _OfPackage:
    """`base` is the repository's absolute address with a slash at its end, `coding` is `gzip` or empty."""

    package: str
    base: str
    coding: str

    @property
    def representation(self) -> str:
        return f"{self.content_type} {self.coding} {self.base}"

    @property
    def content_type(self) -> str:
        return FULL_TYPE

    def revision(self, connection: Connection, snapshot: Snapshot) -> int | None:
        return _revision(connection, snapshot.id, self.package)

    def _draft(self, write: Callable[[], bytes], *, long: bool) -> Draft:
        def work() -> bytes:
            body = write()
            return gzip.compress(body, _LEVEL if len(body) <= _LONG else _LONG_LEVEL, mtime=0) if self.coding else body

        return Draft(work, long)

    def _placed(self, fragment: str) -> str:
        return fragment.replace(ADDRESS, self.base)


@dataclass(frozen=True)
class PackumentDocument(_OfPackage):
    """All versions: everything that is known, or abbreviated for installers."""

    abbreviated: bool

    @property
    def key(self) -> str:
        return f"packument {self.package}"

    @property
    def content_type(self) -> str:
        return ABBREVIATED_TYPE if self.abbreviated else FULL_TYPE

    def read(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Draft:
        package = _package(connection, snapshot.id, self.package)
        tags = read_tags(connection, package.id)
        moments = {"created": json_time(package.created_at), "modified": json_time(package.changed_at)}
        pieces, times = self._pieces(connection, package)
        around = {"name": package.display_name, "dist-tags": tags}
        if self.abbreviated:
            head, tail = around, {"modified": moments["modified"]}
        else:
            head = {"_id": package.display_name, "_rev": revision_text(package), **around}
            tail = self._of_the_package(connection, snapshot, package.id, tags.get("latest"))
        before, between, behind = _dumps(head)[:-1] + b',"versions":{', b'},"time":', b"}," + _dumps(tail)[1:]

        def write() -> bytes:
            commas = [b","] * len(pieces)
            # Joined once: what is long must not be in memory a third time.
            versions = list(itertools.chain.from_iterable(zip(pieces, commas, strict=True)))[:-1]
            return b"".join([before, *versions, between, b",".join([_dumps(moments)[:-1], *times]), behind])

        return self._draft(write, long=package.artifacts >= MANY)

    def _pieces(self, connection: Connection, package: Row[Any]) -> tuple[list[bytes], list[bytes]]:
        """Versions and their times, many in each piece, so that they are in memory once."""
        many = package.artifacts >= MANY
        options = {"stream_results": True, "max_row_buffer": 1} if many else {}
        pieces, times = [], []
        for row in connection.execute(_ABBREVIATED if self.abbreviated else _FULL, {"package": package.id}, execution_options=options):
            pieces.append(self._placed(row.versions).encode())
            times.append(row.times.encode())
            if many:
                gevent.sleep(0)
        return pieces, times

    def _of_the_package(self, connection: Connection, snapshot: Snapshot, package_id: int, latest: str | None) -> dict[str, Any]:
        maintainers = connection.execute(_MAINTAINERS, {"package": package_id}).scalar()
        row = None if latest is None else version_row(connection, snapshot.id, self.package, latest)
        told = {} if row is None else manifest_of(row.fragment)
        return {
            "maintainers": json.loads(maintainers or "[]"),
            **{key: told[key] for key in _OF_THE_LATEST if key in told},
            "readme": (row.readme if row is not None else None) or "",
        }


def _with_deprecation(row: Row[Any]) -> str:
    fragment: str = row.fragment
    return fragment if row.deprecated is None else f'{{"deprecated":{json.dumps(row.deprecated)},{fragment[1:]}'


@dataclass(frozen=True)
class VersionDocument(_OfPackage):
    """One version, by its number or a tag."""

    wanted: str

    @property
    def key(self) -> str:
        return f"version {self.wanted} {self.package}"

    def revision(self, connection: Connection, snapshot: Snapshot) -> int | None:
        found = _revision(connection, snapshot.id, self.package)
        return found if found is not None and self._row(connection, snapshot) is not None else None

    def read(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Draft:
        row = self._row(connection, snapshot)
        assert row is not None
        return self._draft(lambda: self._placed(_with_deprecation(row)).encode(), long=False)

    def _row(self, connection: Connection, snapshot: Snapshot) -> Row[Any] | None:
        package = _package(connection, snapshot.id, self.package)
        version = read_tags(connection, package.id).get(self.wanted, self.wanted)
        return version_row(connection, snapshot.id, self.package, version)


@dataclass(frozen=True)
class TagsDocument(_OfPackage):
    """`-/package/{package}/dist-tags`."""

    @property
    def key(self) -> str:
        return f"tags {self.package}"

    def read(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Draft:
        tags = read_tags(connection, _package(connection, snapshot.id, self.package).id)
        return self._draft(lambda: _dumps(tags), long=False)


def read_tags(connection: Connection, package_id: int) -> dict[str, str]:
    """Versions by tag, in the order of the tags. `latest` is always there: where it names none that is shown, it is the highest."""
    tags = {row.tag: row.version for row in connection.execute(_TAGS, {"package": package_id})}
    if "latest" not in tags:
        versions = list(connection.execute(_NUMBERS, {"package": package_id}).scalars())
        tags |= {"latest": highest(versions)} if versions else {}
    return dict(sorted(tags.items()))


def revision_text(package: Row[Any]) -> str:
    """`_rev`: what a client sends back with a change to what it read."""
    return f"{package.revision}-{package.id:016x}"


def _revision(connection: Connection, repository_id: int, package: str) -> int | None:
    row = connection.execute(_PACKAGE, {"id": repository_id, "name": package}).first()
    return None if row is None else int(row.revision)


def _package(connection: Connection, repository_id: int, package: str) -> Row[Any]:
    return connection.execute(_PACKAGE, {"id": repository_id, "name": package}).one()


def version_row(connection: Connection, repository_id: int, package: str, version: str) -> Row[Any] | None:
    """What is kept of a version that is shown."""
    return connection.execute(_VERSION, {"id": repository_id, "path": tarball_path(package, version)}).first()


def _dumps(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


_ROWS = "from arkvory_artifacts a join arkvory_npm_versions n on n.artifact_id = a.id where not a.withheld"
_SHOWN = f"{_ROWS} and a.package_id = :package"
_NUMBERS = text(f"select a.version {_SHOWN}")


def _joined(column: str) -> TextClause:
    """Fragments and times in the order in which the versions were published, some hundreds in each row as a rule."""
    return text(
        "select string_agg(format('%s:%s', to_json(version), case when deprecated is null then fragment "
        "else format('{\"deprecated\":%s,%s', to_json(deprecated), substr(fragment, 2)) end), ',' order by id) as versions, "
        "string_agg(format('%s:\"%s\"', to_json(version), "
        "to_char(updated_at at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')), ',' order by id) as times "
        f"from (select a.id, a.version, a.updated_at, n.deprecated, n.{column} as fragment, "
        f"sum(octet_length(n.{column})) over (order by a.id) / {PIECE} as piece {_SHOWN}) as shown group by piece order by piece"
    )


_ABBREVIATED, _FULL = _joined("abbreviated"), _joined("fragment")
_VERSION = text(
    f"select a.id, a.version, a.updated_at, n.deprecated, n.fragment, n.readme {_ROWS} and a.repository_id = :id and a.path = :path"
)
_TAGS = text(
    "select t.tag, a.version from arkvory_npm_tags t join arkvory_artifacts a on a.id = t.artifact_id "
    "where t.package_id = :package and not a.withheld"
)
_PACKAGE = text(
    "select id, display_name, revision, created_at, changed_at, artifacts from arkvory_packages "
    "where repository_id = :id and name = :name and artifacts > 0"
)
_MAINTAINERS = text("select maintainers from arkvory_npm_packages where package_id = :package")
