"""The room's derived documents: an image's tags, and what refers to a manifest. Both have the revision of the image (C9)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import Connection, Row, text

from app.cache.snapshots import Snapshot
from app.database.engines import all_rows
from app.protocols.oci.manifests import OCI_INDEX
from app.protocols.oci.names import manifest_path, reference_of
from app.repository.reading import Draft, Headers, Shelf

DETAILS = "details"
# Most tags of one answer, whoever asks for more.
MOST_TAGS = 10_000
# A list of referrers is a manifest: it ends before 4 MiB.
MOST_REFERRERS = 1000
MOST_REFERRERS_BYTES = 3 * 1024 * 1024
LONG = 1000
_DESCRIPTOR_BYTES = 400


@dataclass(frozen=True)
class TagList:
    """`{image}/tags/list`: tags in the order of their bytes, at most `limit` behind `after`; `name` is what the client calls the image."""

    image: str
    name: str
    limit: int | None
    after: str
    content_type: str = "application/json"

    @property
    def key(self) -> str:
        return f"tags {self.image}"

    @property
    def package(self) -> str:
        return self.image

    @property
    def representation(self) -> str:
        return f"{self.name} {self.limit} {self.after}"

    def revision(self, connection: Connection, snapshot: Snapshot) -> int | None:
        return image_revision(connection, snapshot.id, self.image)

    def read(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Draft:
        limit = MOST_TAGS if self.limit is None else min(self.limit, MOST_TAGS)
        after = manifest_path(self.image, self.after)
        values = {"id": snapshot.id, "image": self.image, "after": after, "limit": limit + 1}
        tags = [row.version for row in all_rows(connection.execute(_TAGS, values))] if limit else []
        shown = tags[:limit]
        headers = self._next(shown[-1]) if len(tags) > limit else ()
        return Draft(lambda: json.dumps({"name": self.name, "tags": shown}).encode(), len(shown) >= LONG, headers)

    def _next(self, last: str) -> Headers:
        given = {} if self.limit is None else {"n": self.limit}
        return (next_link(f"{self.name}/tags/list", given | {"last": last}),)


@dataclass(frozen=True)
class ReferrerList:
    """`{image}/referrers/{digest}`: the manifests that name it as their subject, those of one type where that is asked for."""

    image: str
    name: str
    digest: str
    artifact_type: str
    after: str
    content_type: str = OCI_INDEX

    @property
    def key(self) -> str:
        return f"referrers {self.image}"

    @property
    def package(self) -> str:
        return self.image

    @property
    def representation(self) -> str:
        return f"{self.name} {self.digest} {self.artifact_type} {self.after}"

    def revision(self, connection: Connection, snapshot: Snapshot) -> int | None:
        """Never null: of what nobody refers to the list is empty."""
        return image_revision(connection, snapshot.id, self.image) or 0

    def read(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Draft:
        values = {
            "id": snapshot.id,
            "subject": manifest_path(self.image, self.digest),
            "after": manifest_path(self.image, self.after),
            "type": self.artifact_type,
            "rows": MOST_REFERRERS,
            "bytes": MOST_REFERRERS_BYTES,
        }
        rows = all_rows(connection.execute(_REFERRERS, values))
        headers: Headers = (("OCI-Filters-Applied", "artifactType"),) if self.artifact_type else ()
        if rows and rows[0].there > len(rows):
            headers += (self._next(reference_of(rows[-1].path)),)
        return Draft(lambda: _index(rows), sum(row.size_told for row in rows) > LONG * 100, headers)

    def _next(self, last: str) -> tuple[str, str]:
        filtered = {"artifactType": self.artifact_type} if self.artifact_type else {}
        return next_link(f"{self.name}/referrers/{self.digest}", filtered | {"last": last})


def next_link(path: str, arguments: Mapping[str, Any]) -> tuple[str, str]:
    """The header that leads to the next page, at a path below `/v2/`."""
    return "Link", f'</v2/{path}?{urlencode(arguments)}>; rel="next"'


def image_revision(connection: Connection, repository_id: int, image: str) -> int | None:
    """The number that moves with an image's manifests and tags; None when it never had any, or none is left."""
    statement = text("select revision from arkvory_packages where repository_id = :id and name = :image and artifacts > 0")
    found: int | None = connection.execute(statement, {"id": repository_id, "image": image}).scalar()
    return found


def _index(rows: Sequence[Row[Any]]) -> bytes:
    return json.dumps({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [_descriptor(row) for row in rows]}).encode()


def _descriptor(row: Row[Any]) -> dict[str, Any]:
    return {"mediaType": row.content_type, "size": row.size, "digest": reference_of(row.path)} | (row.details or {})


_TAGS = text(
    "select a.version from arkvory_packages p join arkvory_artifacts a on a.package_id = p.id where p.repository_id = :id "
    "and p.name = :image and a.version is not null and not a.withheld and a.path > :after order by a.path limit :limit"
)
# Annotations may be as long as manifests: a page ends before their sum is too much, and has at least one.
_REFERRERS = text(
    "select * from (select a.path, a.content_type, b.size, a.metadata -> 'details' as details, count(*) over () as there, "
    f"octet_length(cast(a.metadata as text)) + {_DESCRIPTOR_BYTES} as size_told, row_number() over (order by a.path) as number, "
    f"sum(octet_length(cast(a.metadata as text)) + {_DESCRIPTOR_BYTES}) over (order by a.path) as total "
    "from arkvory_references r join arkvory_artifacts a on a.id = r.artifact_id join arkvory_blobs b on b.id = a.blob_id "
    "where r.repository_id = :id and r.path = :subject and r.kind = 'subject' and not a.withheld and a.path > :after "
    "and (:type = '' or a.metadata -> 'details' ->> 'artifactType' = :type)) as found "
    "where number = 1 or (number <= :rows and total <= :bytes) order by path"
)
