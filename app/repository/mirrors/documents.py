"""What one run has read of its upstream a moment ago, in files without names: what is made of it next asks nobody again.

The latest few are kept, whatever their number in all. Where one went meanwhile it is fetched anew.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable

from app.cache.single import SingleFlight
from app.repository.reading import Brought

MOST, MOST_BYTES = 64, 256 * 1024 * 1024


class Documents:
    """By the path that they are known by."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._kept: OrderedDict[str, Brought] = OrderedDict()
        self._fetching: SingleFlight[None] = SingleFlight()
        self._closed = False

    def open(self, path: str, fetch: Callable[[], Brought]) -> Brought:
        """Close it. Whoever asks for the same at once shares one answer. Raises what `fetch` raises."""
        while (known := self.known(path)) is None and not self._closed:
            self._fetching.run(path, lambda: self.keep(path, fetch()))
        return fetch() if known is None else known

    def known(self, path: str) -> Brought | None:
        found = self._kept.get(path)
        if found is None:
            return None
        self._kept.move_to_end(path)
        return _again(found)

    def keep(self, path: str, document: Brought) -> None:
        """It is this one's from now on."""
        if self._closed:
            document.close()
            return
        former = self._kept.pop(path, None)
        if former is not None:
            former.close()
        self._kept[path] = document
        while len(self._kept) > 1 and (len(self._kept) > self._most or sum(each.size for each in self._kept.values()) > MOST_BYTES):
            self._kept.popitem(last=False)[1].close()

    def keep_too(self, path: str, document: Brought) -> None:
        """By another path, whoever has it."""
        self.keep(path, _again(document))

    def close(self) -> None:
        self._closed = True
        while self._kept:
            self._kept.popitem()[1].close()


def _again(document: Brought) -> Brought:
    return Brought(os.dup(document.fd), document.size, document.address)
