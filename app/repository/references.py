"""What artifacts refer to: rows of `arkvory_references`, by path within one repository.

    part      kept alive by what refers to it, and by nothing else once its grace is over: an image's layers
    member    an artifact that lives by itself: the images of an index
    same      the same bytes under another path: a tag and its manifest
    subject   what it is about; need not be there

Rows come and go with the artifact that refers, in its own transaction, under the repository's lock: so a part that a publish has seen
cannot be cleaned up before the publish has referred to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from app.database.statements import text
from app.errors import MissingParts

PART, MEMBER, SAME, SUBJECT = "part", "member", "same", "subject"


@dataclass(frozen=True, slots=True)
class Reference:
    """To `path`; what is not `optional` must be there. `otherwise` is a part that does as well where nothing is at the path."""

    path: str
    kind: str
    optional: bool = False
    otherwise: str | None = None


def resolved(
    connection: Connection, repository_id: int, wanted: Mapping[str, Sequence[Reference]], brought: Iterable[str]
) -> dict[str, list[tuple[str, str]]]:
    """By the path that refers: path and kind of each, without repetition; `brought` comes in the same publish. Raises MissingParts."""
    references = [each for some in wanted.values() for each in some]
    asked = {each.path for each in references} | {each.otherwise for each in references if each.otherwise}
    rows = connection.execute(
        text("select path from arkvory_artifacts where repository_id = :id and path = any(:paths)"),
        {"id": repository_id, "paths": list(asked)},
    )
    there = {*rows.scalars(), *brought}
    missing = sorted({each.path for each in references if not (each.optional or each.path in there or each.otherwise in there)})
    if missing:
        raise MissingParts(f"{len(missing)} of what it refers to is not here, the first: {missing[0]!r}", missing)
    return {path: sorted({_target(each, there) for each in some}) for path, some in wanted.items()}


def _target(reference: Reference, there: set[str]) -> tuple[str, str]:
    if reference.otherwise is not None and reference.path not in there and reference.otherwise in there:
        return reference.otherwise, PART
    return reference.path, reference.kind


def write(connection: Connection, repository_id: int, found: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Let the artifacts at these paths refer to this, and to nothing else; their parts are kept from now on."""
    rows = [(path, target, kind) for path, targets in found.items() for target, kind in targets]
    values = {"id": repository_id, "owners": list(found)}
    let_go(connection, repository_id, _ids(connection, repository_id, list(found)))
    connection.execute(
        text(
            "delete from arkvory_references where artifact_id in "
            "(select id from arkvory_artifacts where repository_id = :id and path = any(:owners))"
        ),
        values,
    )
    values |= {"paths": [row[0] for row in rows], "targets": [row[1] for row in rows], "kinds": [row[2] for row in rows]}
    connection.execute(
        text(
            "insert into arkvory_references (artifact_id, repository_id, path, kind) select a.id, :id, r.target, r.kind "
            "from unnest(cast(:paths as text[]), cast(:targets as text[]), cast(:kinds as text[])) as r(path, target, kind) "
            "join arkvory_artifacts a on a.repository_id = :id and a.path = r.path"
        ),
        values,
    )
    connection.execute(
        text(
            "update arkvory_artifacts set candidate_at = null "
            "where repository_id = :id and path = any(:parts) and candidate_at is not null"
        ),
        {"id": repository_id, "parts": [target for _, target, kind in rows if kind == PART]},
    )


def _ids(connection: Connection, repository_id: int, paths: Sequence[str]) -> list[int]:
    statement = text("select id from arkvory_artifacts where repository_id = :id and path = any(:paths)")
    return list(connection.execute(statement, {"id": repository_id, "paths": list(paths)}).scalars())


def let_go(connection: Connection, repository_id: int, artifact_ids: Sequence[int]) -> None:
    """These artifacts go, or refer to something else: whether their parts are still needed is for the cleanup to see."""
    connection.execute(
        text(
            "update arkvory_artifacts set candidate_at = now() where repository_id = :id and candidate_at is null "
            "and path in (select path from arkvory_references where artifact_id = any(:ids) and kind = 'part')"
        ),
        {"id": repository_id, "ids": list(artifact_ids)},
    )


def is_part(connection: Connection, repository_id: int, path: str, leaving: Sequence[int] = ()) -> bool:
    """Whether something other than the artifacts `leaving` keeps it."""
    statement = text(
        "select 1 from arkvory_references where repository_id = :id and path = :path and kind = 'part' "
        "and not (artifact_id = any(:leaving)) limit 1"
    )
    return connection.execute(statement, {"id": repository_id, "path": path, "leaving": list(leaving)}).first() is not None


def followers(connection: Connection, repository_id: int, paths: Sequence[str]) -> list[str]:
    """The paths that stand for the bytes at these."""
    statement = text(
        "select a.path from arkvory_references r join arkvory_artifacts a on a.id = r.artifact_id "
        "where r.repository_id = :id and r.path = any(:paths) and r.kind = 'same' order by a.path"
    )
    return list(connection.execute(statement, {"id": repository_id, "paths": list(paths)}).scalars())


def same_bytes(connection: Connection, repository_id: int, paths: Sequence[str]) -> set[str]:
    """These paths with all others that stand for the same bytes by reference: a tag, its manifest, and the manifest's other tags."""
    statement = text(
        "with targets as (select unnest(cast(:paths as text[])) as path union "
        "select r.path from arkvory_references r join arkvory_artifacts a on a.id = r.artifact_id "
        "where a.repository_id = :id and a.path = any(:paths) and r.kind = 'same') "
        "select path from targets union select a.path from arkvory_references r join arkvory_artifacts a on a.id = r.artifact_id "
        "where r.repository_id = :id and r.kind = 'same' and r.path in (select path from targets)"
    )
    return set(connection.execute(statement, {"id": repository_id, "paths": list(paths)}).scalars())


def closure(connection: Connection, repository_id: int, paths: Sequence[str]) -> list[str]:
    """What is there of these paths and of all that they need, in no order."""
    statement = text(
        "with recursive needed(path) as (select unnest(cast(:paths as text[])) collate \"C\" union "
        "select r.path from needed n join arkvory_artifacts a on a.repository_id = :id and a.path = n.path "
        "join arkvory_references r on r.artifact_id = a.id and r.kind <> 'subject') select n.path from needed n "
        "join arkvory_artifacts a on a.repository_id = :id and a.path = n.path"
    )
    return list(connection.execute(statement, {"id": repository_id, "paths": list(paths)}).scalars())
