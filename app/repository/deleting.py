"""Deleting artifacts, and changing what is said about them, under the same locks as publishing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row

from app.access.decision import DELETE, WRITE, Access
from app.cache.changes import Transaction, Transactions, UploadState
from app.cache.snapshots import Snapshot
from app.database.engines import Database
from app.database.locks import Step
from app.database.statements import text
from app.errors import Conflict, NotAllowedHere, NotFound, StillNeeded
from app.repository.blobs import Blobs
from app.repository.destination import Target, destination
from app.repository.formats import FORMATS, immutable_tag, write_policy
from app.repository.publishing import Conditions, delete_rows
from app.repository.references import followers, is_part, let_go
from app.repository.writable import require_writable, settings_for_writing


@dataclass(frozen=True)
class PackageState:
    """A package that is to be changed, as the client knows it; `revisions` by the ids of packages, null: whatever it is now.

    What was read through a group has those of all members of which all was told.
    """

    name: str
    revisions: Mapping[int, int] | None = None


class Editor:
    """Takes artifacts away and amends their metadata; what readers see moves with the commit."""

    def __init__(self, database: Database, transactions: Transactions, access: Access, blobs: Blobs) -> None:
        self._database = database
        self._transactions = transactions
        self._access = access
        self._blobs = blobs

    def delete(
        self, target: Target, paths: Sequence[str], conditions: Conditions | None = None, state: PackageState | None = None
    ) -> int:
        """Delete these paths and their companions, all or none; how many went. Raises NotFound when one is not there.

        With `state` only while their package is as the client knows it; else Conflict.
        """
        snapshot = self._find(target, DELETE, paths)
        with self._transactions.begin(snapshot.id) as transaction:
            connection = transaction.connection
            now = self._check(connection, target, snapshot, DELETE, paths)
            if state is not None:
                find_package(connection, now.id, state)
            going = _with_companions(now.format, paths)
            if FORMATS[now.format].references:
                going += self._tags_of(connection, target, now, paths)
                _check_tags(connection, now, going)
            rows = _artifacts(connection, now.id, going)
            _check_present(rows, paths, conditions or Conditions())
            if FORMATS[now.format].names_are_for_ever:
                _remember_names(connection, now.id, rows)
            _check_parts(connection, now, rows)
            self._take_away(transaction, now, rows)
        return len(rows)

    def hosted(self, target: Target) -> Snapshot:
        """Where that lies which is changed here. Raises NotAllowedHere where nothing is changed; no right is asked."""
        return self._find(target, DELETE, [])

    def drop_copy(self, snapshot: Snapshot, path: str, upload_id: Any, *, described: int | None = None) -> None:
        """A proxy's upstream has no such file any more: the copy that this upload brought goes. Another one stays.

        With a metadata epoch as `described`, only while that is the repository's: afterwards it may be another upstream.
        """
        with self._transactions.begin(snapshot.id) as transaction:
            require_writable(transaction.connection)
            rows = [row for row in _artifacts(transaction.connection, snapshot.id, [path]) if row.upload_id == upload_id]
            if rows and described in (None, transaction.connection.execute(_DESCRIBED, {"id": snapshot.id}).scalar()):
                # What names it goes on naming it: in a proxy, what is not here may come again.
                self._take_away(transaction, snapshot, rows)

    def _take_away(self, transaction: Transaction, now: Snapshot, rows: Sequence[Row[Any]]) -> None:
        """The last steps of a deletion."""
        if FORMATS[now.format].references:
            let_go(transaction.connection, now.id, [row.id for row in rows])
        epochs = transaction.advance(now.id, "content", paths=[row.path for row in rows])
        _leave_packages(transaction, rows, epochs.content)
        self._blobs.let_go(transaction, sorted({row.blob_id for row in rows}))
        delete_rows(transaction.connection, now.id, [row.upload_id for row in rows])
        transaction.settle_uploads({row.upload_id: UploadState("garbage") for row in rows})

    def amend(self, target: Target, paths: Sequence[str], changes: Mapping[str, Any]) -> None:
        """Merge `changes` into the metadata of these artifacts (null removes a key). Raises NotFound when one is not there."""
        snapshot = self._find(target, WRITE, paths)
        with self._transactions.begin(snapshot.id) as transaction:
            connection = transaction.connection
            now = self._check(connection, target, snapshot, WRITE, paths)
            rows = _artifacts(connection, now.id, paths)
            _check_present(rows, paths, Conditions())
            epochs = transaction.advance(now.id, "content", paths=paths)
            _leave_packages(transaction, rows, epochs.content, leaving=False)
            connection.execute(
                text("update arkvory_artifacts set metadata = jsonb_strip_nulls(metadata || cast(:changes as jsonb)) where id = any(:ids)"),
                {"changes": json.dumps(dict(changes)), "ids": [row.id for row in rows]},
            )

    def _tags_of(self, connection: Connection, target: Target, now: Snapshot, paths: Sequence[str]) -> list[str]:
        """What stands for these bytes goes with them: the tags of a manifest."""
        found = [each for each in followers(connection, now.id, paths) if each not in set(paths)]
        destination(connection, self._access, target, DELETE, found)
        return found

    def change_package(self, target: Target, path: str, state: PackageState, change: Callable[[Connection, int], None]) -> None:
        """What a format keeps about a package in its own tables, for who may write `path`: `change` is called with the package's id.

        The package's documents move with it. Raises NotFound, Conflict when the package is not as the client knows it, and what `change`
        raises, which takes it back.
        """
        snapshot = self._find(target, WRITE, [path])
        with self._transactions.begin(snapshot.id) as transaction:
            now = self._check(transaction.connection, target, snapshot, WRITE, [path])
            amend_package(transaction, now.id, state, change)

    def _find(self, target: Target, permission: str, paths: Sequence[str]) -> Snapshot:
        with self._database.read() as connection:
            return destination(connection, self._access, target, permission, paths)

    def _check(self, connection: Connection, target: Target, snapshot: Snapshot, permission: str, paths: Sequence[str]) -> Snapshot:
        """C10: all of it from the database, under the repository's lock."""
        now = destination(connection, self._access, target, permission, paths)
        if now.id != snapshot.id:
            raise NotFound(f"repository {snapshot.name!r} was deleted meanwhile")
        settings = settings_for_writing(connection, now.id)
        if write_policy(now.format, settings) == "read_only":
            raise NotAllowedHere(f"repository {now.name!r} is read only")
        return now


def _with_companions(format_name: str, paths: Sequence[str]) -> list[str]:
    return [path + ending for path in paths for ending in ("", *FORMATS[format_name].companions)]


def _check_tags(connection: Connection, now: Snapshot, going: Sequence[str]) -> None:
    """Raises Conflict for a tag that stays what it is: once deleted, it could be another."""
    settings = settings_for_writing(connection, now.id)
    for path in going:
        tag = immutable_tag(now.format, settings, path)
        if tag is not None:
            raise Conflict(f"{tag}, so neither it nor its manifest is deleted; whoever manages the repository can take the pattern away")


def _check_parts(connection: Connection, now: Snapshot, rows: Sequence[Row[Any]]) -> None:
    """Raises StillNeeded for a part that something else refers to."""
    if not FORMATS[now.format].references:
        return
    leaving = [row.id for row in rows]
    for row in rows:
        if is_part(connection, now.id, row.path, leaving):
            raise StillNeeded(f"{row.path!r} is part of something that is still there; delete that first")


def _artifacts(connection: Connection, repository_id: int, paths: Sequence[str]) -> Sequence[Row[Any]]:
    return connection.execute(
        text(
            "select a.id, a.path, a.blob_id, a.upload_id, a.package_id, a.withheld, b.digest, p.name as package from arkvory_artifacts a "
            "join arkvory_blobs b on b.id = a.blob_id left join arkvory_packages p on p.id = a.package_id "
            "where a.repository_id = :id and a.path = any(:paths)"
        ),
        {"id": repository_id, "paths": list(paths)},
    ).all()


def _check_present(rows: Sequence[Row[Any]], paths: Sequence[str], conditions: Conditions) -> None:
    digests = {row.path: row.digest for row in rows}
    for path in paths:
        if path not in digests:
            raise NotFound(f"there is no {path!r}")
        conditions.check(path, digests[path])


def _leave_packages(transaction: Transaction, rows: Sequence[Row[Any]], revision: int, *, leaving: bool = True) -> None:
    """Move the revisions of the packages (C9), in the order of their names, and count what goes."""
    packages = sorted({(row.package, row.package_id) for row in rows if row.package_id is not None})
    if not packages:
        return
    transaction.order.reach(Step.PACKAGE)
    for _, package_id in packages:
        gone = sum(1 for row in rows if row.package_id == package_id and not row.withheld) if leaving else 0
        transaction.connection.execute(_MOVE_PACKAGE, {"revision": revision, "gone": gone, "id": package_id})


_DESCRIBED = text("select metadata_epoch from arkvory_repositories where id = :id")
_MOVE_PACKAGE = text("update arkvory_packages set revision = :revision, artifacts = artifacts - :gone where id = :id")


def amend_package(transaction: Transaction, repository_id: int, state: PackageState, change: Callable[[Connection, int], None]) -> None:
    """The last step of `Editor.change_package`, for whoever may. Raises the same."""
    connection = transaction.connection
    package = find_package(connection, repository_id, state)
    epochs = transaction.advance(repository_id, "content", paths=[])
    transaction.order.reach(Step.PACKAGE)
    connection.execute(_MOVE_PACKAGE, {"revision": epochs.content, "gone": 0, "id": package.id})
    change(connection, package.id)


def find_package(connection: Connection, repository_id: int, state: PackageState) -> Row[Any]:
    """Under the repository's lock. Raises NotFound where it has nothing that is shown, Conflict when it is not what the client saw."""
    statement = text("select id, revision from arkvory_packages where repository_id = :id and name = :name and artifacts > 0")
    row = connection.execute(statement, {"id": repository_id, "name": state.name}).first()
    if row is None:
        raise NotFound(f"there is no package {state.name!r}")
    if state.revisions is not None and row.id not in state.revisions:
        raise Conflict(f"what you read of {state.name!r} is not all of it, or another repository's; read it where it is to be changed")
    if state.revisions is not None and state.revisions[row.id] != row.revision:
        raise Conflict(f"{state.name!r} was changed meanwhile; read it again, then send your change again")
    return row


def _remember_names(connection: Connection, repository_id: int, rows: Sequence[Row[Any]]) -> None:
    connection.execute(
        text(
            "insert into arkvory_used_paths (repository_id, path) select :id, path from unnest(cast(:paths as text[])) as path "
            "on conflict do nothing"
        ),
        {"id": repository_id, "paths": [row.path for row in rows]},
    )
