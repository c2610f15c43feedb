"""Pages of long lists, by the key of the last item and never by an offset: what arrives or goes meanwhile moves nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Page(Generic[T]):
    """Some items of a list; `after` is the key that the next page begins behind, null at the end."""

    items: Sequence[T]
    after: Sequence[str | int] | None = None


def page(rows: Sequence[R], limit: int, item: Callable[[R], T], key: Callable[[R], Sequence[str | int]]) -> Page[T]:
    """From rows that were asked for with `limit + 1`: one too many means that there is more."""
    shown = rows[:limit]
    return Page([item(row) for row in shown], key(shown[-1]) if len(rows) > limit else None)
