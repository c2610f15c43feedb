"""The room's derived documents: an image's tags, and what refers to a manifest. Both have the revision of the image (C9)."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import Connection, Row

from app.cache.snapshots import Snapshot
from app.database.engines import all_rows
from app.database.statements import text
from app.errors import NotFound
from app.protocols.oci.manifests import OCI_INDEX
from app.protocols.oci.names import MANIFESTS, is_tag, manifest_path, reference_of, referrers_path, tags_path
from app.repository.fetching import UPSTREAM
from app.repository.quarantine import Barred, barred_below
from app.repository.reading import Draft, Headers, Merged, Shelf
from app.repository.withholding import Judge
from app.storage import OpenBlob

DETAILS = "details"
# Most tags of one answer, whoever asks for more.
MOST_TAGS = 10_000
# A list of referrers is a manifest: it ends before 4 MiB.
MOST_REFERRERS = 1000
MOST_REFERRERS_BYTES = 3 * 1024 * 1024
LONG = 1000
_DESCRIPTOR_BYTES = 400
_SPACES = re.compile(r"\s*")
# As the image specification writes them, whatever the algorithm: they stand in addresses.
_DIGEST = re.compile(r"[a-z0-9]+(?:[.+_-][a-z0-9]+)*:[A-Za-z0-9=_-]{1,256}")


@dataclass(frozen=True)
class Part:
    """What one repository says: what it shows by name, and the names that it withholds, which no later one of a group shows then.

    Names behind `bound` may be missing (null: none is).
    """

    told: Callable[[], tuple[Mapping[str, Any], frozenset[str]]]
    long: bool
    judge: Judge | None = None
    bound: str | None = None


@dataclass(frozen=True)
class TagList(Merged):
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
        if is_proxied(snapshot):
            return _content(connection, snapshot)
        return image_revision(connection, snapshot.id, self.image)

    def read(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Draft:
        if is_proxied(snapshot):
            return super().read(connection, snapshot, shelf)
        return self.merge(snapshot, [self._part(connection, snapshot, frozenset())])

    def part(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Part:
        if not is_proxied(snapshot):
            held = connection.execute(_HELD_TAGS, {"id": snapshot.id, "image": self.image}).scalars()
            return self._part(connection, snapshot, frozenset(held))
        listed = shelf.find(connection, snapshot, tags_path(self.image))
        out = _Withheld.of(connection, snapshot, self.image)
        return Part(lambda: out.told({each: None for each in items(listed, "tags") if _is_tag(each)}), True, out.judge)

    def _part(self, connection: Connection, snapshot: Snapshot, held: frozenset[str]) -> Part:
        values = {"id": snapshot.id, "image": self.image, "after": manifest_path(self.image, self.after), "limit": self._most + 1}
        tags = [row.version for row in all_rows(connection.execute(_TAGS, values))] if self._most else []
        return Part(lambda: (dict.fromkeys(tags), held), len(tags) > LONG)

    def merge(self, repository: Snapshot, parts: Sequence[Part]) -> Draft:
        return _draft(parts, lambda: self._document(sorted(each for each in _union(parts) if each > self.after)))

    def _document(self, tags: Sequence[str]) -> tuple[bytes, Headers]:
        headers = self._next(tags[self._most - 1]) if 0 < self._most < len(tags) else ()
        return json.dumps({"name": self.name, "tags": tags[: self._most]}).encode(), headers

    @property
    def _most(self) -> int:
        return MOST_TAGS if self.limit is None else min(self.limit, MOST_TAGS)

    def _next(self, last: str) -> Headers:
        given = {} if self.limit is None else {"n": self.limit}
        return (next_link(f"{self.name}/tags/list", given | {"last": last}),)


@dataclass(frozen=True)
class ReferrerList(Merged):
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
        if is_proxied(snapshot):
            return _content(connection, snapshot)
        return image_revision(connection, snapshot.id, self.image) or 0

    def part(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Part:
        if not is_proxied(snapshot):
            return self._of_rows(connection, snapshot)
        try:
            listed = shelf.find(connection, snapshot, referrers_path(self.image, self.digest))
        except NotFound:
            return Part(lambda: ({}, frozenset()), long=False)
        out = _Withheld.of(connection, snapshot, self.image)
        return Part(lambda: out.told(_by_digest(items(listed, "manifests"))), True, out.judge)

    def _of_rows(self, connection: Connection, snapshot: Snapshot) -> Part:
        values = {
            "id": snapshot.id,
            "subject": manifest_path(self.image, self.digest),
            "after": manifest_path(self.image, self.after),
            "type": self.artifact_type,
            "rows": MOST_REFERRERS,
            "bytes": MOST_REFERRERS_BYTES,
        }
        rows = all_rows(connection.execute(_REFERRERS, values))
        held = frozenset(map(reference_of, connection.execute(_HELD_REFERRERS, values).scalars()))
        bound = reference_of(rows[-1].path) if rows and rows[0].there > len(rows) else None
        long = sum(row.size_told for row in rows) > LONG * 100
        return Part(lambda: ({reference_of(row.path): _descriptor(row) for row in rows}, held), long, bound=bound)

    def merge(self, repository: Snapshot, parts: Sequence[Part]) -> Draft:
        return _draft(parts, lambda: self._document(_union(parts), min((each.bound for each in parts if each.bound), default=None)))

    def _document(self, known: Mapping[str, Any], bound: str | None) -> tuple[bytes, Headers]:
        """In the order of their digests, those of the type that is asked for."""
        there = [known[digest] for digest in sorted(known) if digest > self.after]
        if self.artifact_type:
            there = [each for each in there if each.get("artifactType") == self.artifact_type]
        wanted = [each for each in there if bound is None or each["digest"] <= bound]
        shown = wanted[: max(1, _fitting(wanted))]
        headers: Headers = (("OCI-Filters-Applied", "artifactType"),) if self.artifact_type else ()
        if shown and (len(shown) < len(there) or bound is not None):
            headers += (self._next(shown[-1]["digest"]),)
        return _list_of(shown), headers

    def _next(self, last: str) -> tuple[str, str]:
        filtered = {"artifactType": self.artifact_type} if self.artifact_type else {}
        return next_link(f"{self.name}/referrers/{self.digest}", filtered | {"last": last})


def _union(parts: Sequence[Part]) -> Mapping[str, Any]:
    """By name: of the first that has it, which shows or withholds it."""
    shown: dict[str, Any] = {}
    hidden: set[str] = set()
    for told, withheld in (each.told() for each in parts):
        shown |= {name: each for name, each in told.items() if name not in shown and name not in hidden}
        hidden |= withheld
    return shown


def _draft(parts: Sequence[Part], write: Callable[[], tuple[bytes, Headers]]) -> Draft:
    return Draft(write, any(each.long for each in parts), judges=[each.judge for each in parts if each.judge is not None])


def _is_tag(item: Any) -> bool:
    return isinstance(item, str) and is_tag(item)


def _is_digest(item: Any) -> bool:
    return isinstance(item, str) and _DIGEST.fullmatch(item) is not None


def _by_digest(found: Iterable[Any]) -> dict[str, Any]:
    return {each["digest"]: each for each in found if isinstance(each, dict) and _is_digest(each.get("digest"))}


def next_link(path: str, arguments: Mapping[str, Any]) -> tuple[str, str]:
    """The header that leads to the next page, at a path below `/v2/`."""
    return "Link", f'</v2/{path}?{urlencode(arguments)}>; rel="next"'


def image_revision(connection: Connection, repository_id: int, image: str) -> int | None:
    """The number that moves with an image's manifests and tags; None when it never had any, or none is left."""
    statement = text("select revision from arkvory_packages where repository_id = :id and name = :image and artifacts > 0")
    found: int | None = connection.execute(statement, {"id": repository_id, "image": image}).scalar()
    return found


def is_proxied(snapshot: Snapshot) -> bool:
    """Whether an upstream says what there is."""
    return snapshot.upstream_url is not None


def items(listed: Callable[[], OpenBlob], name: str) -> list[Any]:
    """Of the upstream's list `name`, as it is kept."""
    with contextlib.closing(listed()) as blob:
        return pages(os.pread(blob.fd, blob.size, 0), name)


def pages(body: bytes, name: str) -> list[Any]:
    """The items of the list `name` of all pages, as `Plan.further` joins them. Raises ValueError."""
    decoder, at, found, document = json.JSONDecoder(), 0, list[Any](), body.decode().rstrip()
    while at < len(document):
        try:
            page, at = decoder.raw_decode(document, _SPACES.match(document, at).end())  # type: ignore[union-attr]  # it matches anywhere
        except RecursionError:
            raise ValueError("nested too deeply") from None
        # Of what has no tags some registries say null.
        if not isinstance(page, dict) or name not in page or not isinstance(page[name], list | None):
            raise ValueError(f"a page without {name}")
        found += page[name] or []
    if not document:
        raise ValueError("nothing")
    return found


def _content(connection: Connection, snapshot: Snapshot) -> int:
    """What the upstream says, and what is held of it, moves this number."""
    statement = text("select content_epoch from arkvory_repositories where id = :id")
    return int(connection.execute(statement, {"id": snapshot.id}).scalar_one())


@dataclass(frozen=True)
class _Withheld:
    """Tags and digests of a proxy's image that no list shows: those that are held, or will be when they are fetched; those that its rules
    leave out; of those that are here, too young ones."""

    image: str
    judge: Judge
    barred: Barred
    copies: Mapping[str, Any]

    @classmethod
    def of(cls, connection: Connection, snapshot: Snapshot, image: str) -> _Withheld:
        judge, copies = Judge(snapshot), {}
        values = {"id": snapshot.id, "first": f"{image}/{MANIFESTS}/", "last": f"{image}/{MANIFESTS}0"}
        barred = barred_below(connection, snapshot.id, f"{image}/{MANIFESTS}/", UPSTREAM)
        if not judge.is_idle:
            copies = {row.path: row.metadata for row in all_rows(connection.execute(_COPIES, values))}
        return cls(image, judge, barred, copies)

    def told(self, there: Mapping[str, Any]) -> tuple[Mapping[str, Any], frozenset[str]]:
        """What is shown of what is there, and the names of the rest."""
        out = frozenset(each for each in there if self._withholds(each))
        return {name: each for name, each in there.items() if name not in out}, out

    def _withholds(self, reference: str) -> bool:
        path = manifest_path(self.image, reference)
        return self.barred.holds(path) or self.judge.leaves_out_copy(path, self.copies.get(path, {}))


def _fitting(descriptors: Sequence[Any]) -> int:
    """How many of them make up one answer."""
    sizes = itertools.accumulate(len(json.dumps(each)) for each in descriptors[:MOST_REFERRERS])
    return sum(1 for size in sizes if size <= MOST_REFERRERS_BYTES)


def _list_of(descriptors: Sequence[Any]) -> bytes:
    return json.dumps({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": descriptors}).encode()


def _descriptor(row: Row[Any]) -> dict[str, Any]:
    return {"mediaType": row.content_type, "size": row.size, "digest": reference_of(row.path)} | (row.details or {})


_COPIES = text(
    "select path, metadata - 'details' as metadata from arkvory_artifacts where repository_id = :id and path > :first and path < :last"
)
_TAGS = text(
    "select a.version from arkvory_packages p join arkvory_artifacts a on a.package_id = p.id where p.repository_id = :id "
    "and p.name = :image and a.version is not null and not a.withheld and a.path > :after order by a.path limit :limit"
)
_HELD_TAGS = text(
    "select a.version from arkvory_packages p join arkvory_artifacts a on a.package_id = p.id where p.repository_id = :id "
    "and p.name = :image and a.version is not null and a.withheld"
)
_HELD_REFERRERS = text(
    "select a.path from arkvory_references r join arkvory_artifacts a on a.id = r.artifact_id "
    "where r.repository_id = :id and r.path = :subject and r.kind = 'subject' and a.withheld"
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
