"""What one transaction changed, in numbers, names and paths: told after its commit, here and to other processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Row

from app.cache.view import Epochs


@dataclass(frozen=True)
class RepositoryChange:
    """What one transaction did to one repository; `epochs` are those after it."""

    repository_id: int
    epochs: Epochs
    classes: frozenset[str]
    names: tuple[tuple[str, str], ...]
    paths: tuple[str, ...] | None

    @property
    def touches_snapshot(self) -> bool:
        return bool(self.classes & {"metadata", "authorization", "members"})

    @property
    def touches_documents(self) -> bool:
        return bool(self.classes & {"metadata", "content", "members"})

    @property
    def touches_members(self) -> bool:
        return "members" in self.classes

    @property
    def touches_grants(self) -> bool:
        return "authorization" in self.classes


@dataclass
class Outcome:
    """All changes of one transaction, and its id with the start of PostgreSQL, by which a lost answer to COMMIT is found out."""

    transaction_id: int = 0
    server_started: datetime | None = None
    repositories: list[RepositoryChange] = field(default_factory=list)
    users: dict[int, int] = field(default_factory=dict)
    installation: int | None = None

    @property
    def empty(self) -> bool:
        return not self.repositories and not self.users and self.installation is None

    def remember(self, row: Row[Any]) -> None:
        """Take the transaction's identity from a row that ends with `_IDENTITY`."""
        self.transaction_id, self.server_started = int(row.transaction_id), row.server_started
