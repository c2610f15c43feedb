"""Ending what repositories know of: users, groups and tokens, with the rules and deploy tokens that go with them.

Repositories are locked before people (DESIGN 5), but which ones is known for certain only when whoever is to end is locked. So they
are looked up, locked, and looked up again; when more have come, everything begins again with these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from app.cache.changes import Transaction, Transactions
from app.database.statements import text
from app.errors import Unavailable

TRIES = 5


@dataclass(frozen=True)
class Ending:
    """The query for the repositories that lose something by it, what locks the row that ends, and the end, which gets what `lock` gave."""

    query: str
    values: Mapping[str, Any]
    lock: Callable[[], Any]
    end: Callable[[Any], None]

    def repositories(self, connection: Connection) -> set[int]:
        return set(connection.execute(text(self.query), self.values).scalars())


class _MoreRepositories(Exception):
    """Others have come since the locks were chosen."""

    def __init__(self, repositories: set[int]) -> None:
        super().__init__()
        self.repositories = repositories


def end_with_repositories(transactions: Transactions, prepare: Callable[[Transaction], Ending]) -> None:
    """What `prepare` describes, judged anew at each try; the authorization epochs of its repositories advance. Raises Unavailable."""
    repositories: set[int] = set()
    for _ in range(TRIES):
        try:
            with transactions.begin(*sorted(repositories)) as transaction:
                _end(transaction, prepare(transaction), repositories)
            return
        except _MoreRepositories as more:
            repositories |= more.repositories
    raise Unavailable("rules of this name keep changing; try again shortly", retry_after=2)


def _end(transaction: Transaction, ending: Ending, locked: set[int]) -> None:
    present = ending.repositories(transaction.connection)
    if present - locked:
        raise _MoreRepositories(present)
    for repository_id in sorted(present):
        transaction.advance(repository_id, "authorization")
    row = ending.lock()
    now = ending.repositories(transaction.connection)
    if now - present:
        raise _MoreRepositories(now)
    ending.end(row)
