"""Bounded regions of the process's memory: least recently used goes first, each entry has a lifetime.

A region knows nothing of epochs: they are part of the keys (`keys.py`). Entries carry tags by which they
can be dropped together. Everything here runs between two switches of greenlets, so nothing needs a lock.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Collection, Hashable, KeysView
from itertools import islice
from typing import Generic, TypeVar

V = TypeVar("V")
# What an entry is about: a kind and an id.
Tag = tuple[str, int]

# Expired entries that one `put` takes away: more than it adds, and no burden.
MOST_DROPPED = 4


class Region(Generic[V]):
    """`capacity` in entries, `lifetime` in seconds, `capacity_bytes` over the weights that `put` was told."""

    def __init__(self, name: str, *, capacity: int, lifetime: float, capacity_bytes: int | None = None) -> None:
        self.name = name
        self.capacity = capacity
        self.capacity_bytes = capacity_bytes
        self.lifetime = lifetime
        self.bytes = 0
        self.hits = 0
        self.fetches = 0
        self.evictions = 0
        # Entries that went, for whatever reason.
        self.removals = 0
        # False: `put` keeps nothing.
        self.keeps = True
        self._entries: OrderedDict[Hashable, tuple[float, int, tuple[Tag, ...], V]] = OrderedDict()
        self._tagged: dict[Tag, set[Hashable]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def tags(self) -> KeysView[Tag]:
        """Of all entries."""
        return self._tagged.keys()

    def get(self, key: Hashable) -> V | None:
        """The value under `key`, or None; None counts as a fetch, since the caller loads it next."""
        entry = self._entries.get(key)
        if entry is None:
            self.fetches += 1
            return None
        if entry[0] < time.monotonic():
            self._remove(key)
            self.fetches += 1
            return None
        self._entries.move_to_end(key)
        self.hits += 1
        return entry[3]

    def peek(self, key: Hashable) -> V | None:
        """As `get`, for whoever only looks: nothing is counted and nothing moves."""
        entry = self._entries.get(key)
        return None if entry is None or entry[0] < time.monotonic() else entry[3]

    def tagged(self, tag: Tag) -> Collection[Hashable]:
        """Keys of the entries that carry it, expired ones too."""
        return frozenset(self._tagged.get(tag, ()))

    def put(self, key: Hashable, value: V, *, tags: tuple[Tag, ...] = (), weight: int = 0, lifetime: float | None = None) -> None:
        """Keep `value`; what no longer fits goes, oldest use first."""
        self._remove(key)
        if not self.keeps:
            return
        if self.capacity_bytes is not None and weight > self.capacity_bytes:
            return
        lifetime = self.lifetime if lifetime is None else min(lifetime, self.lifetime)
        self._entries[key] = (time.monotonic() + lifetime, weight, tags, value)
        self.bytes += weight
        for tag in tags:
            self._tagged.setdefault(tag, set()).add(key)
        self._drop_expired()
        self._shrink()

    def drop(self, key: Hashable) -> None:
        """Remove one entry, if it is there."""
        self._remove(key)

    def drop_tag(self, tag: Tag) -> None:
        """Remove every entry that carries `tag`."""
        for key in self._tagged.pop(tag, ()):
            self._remove(key)

    def clear(self) -> None:
        """Remove every entry of this process's memory; rows in the database are not touched (C7)."""
        self.removals += len(self._entries)
        self._entries.clear()
        self._tagged.clear()
        self.bytes = 0

    def _drop_expired(self) -> None:
        """Those that nobody used for longer than they live; keys of earlier epochs are never asked for again."""
        now = time.monotonic()
        for key in tuple(islice(self._entries, MOST_DROPPED)):
            if self._entries[key][0] >= now:
                return
            self._remove(key)

    def _shrink(self) -> None:
        while len(self._entries) > self.capacity or (self.capacity_bytes is not None and self.bytes > self.capacity_bytes):
            self._remove(next(iter(self._entries)))
            self.evictions += 1

    def _remove(self, key: Hashable) -> None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        self.removals += 1
        self.bytes -= entry[1]
        for tag in entry[2]:
            keys = self._tagged.get(tag)
            if keys is None:
                # All with that tag are going.
                continue
            keys.discard(key)
            if not keys:
                del self._tagged[tag]
