"""What one run has read of its upstream a moment ago: what is made of it next asks nobody again.

The latest are kept, whatever their number in all: short ones (manifests of images) in memory, a few long ones (packuments, indexes) in
files without names. Where one went meanwhile it is fetched anew.
"""

from __future__ import annotations

import os
import tempfile
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from app.cache.single import SingleFlight
from app.repository.reading import Brought

SHORT, MOST_SHORT = 32 * 1024, 256
# Each holds a descriptor.
MOST_LONG, MOST_BYTES = 8, 256 * 1024 * 1024


@dataclass(frozen=True)
class _Short:
    body: bytes
    address: str


class Documents:
    """By the path that they are known by."""

    def __init__(self) -> None:
        self._short: OrderedDict[str, _Short] = OrderedDict()
        self._long: OrderedDict[str, Brought] = OrderedDict()
        self._fetching: SingleFlight[None] = SingleFlight()
        self._closed = False

    def open(self, path: str, fetch: Callable[[], Brought]) -> Brought:
        """Close it. Whoever asks for the same at once shares one answer. Raises what `fetch` raises."""
        while (known := self.known(path)) is None and not self._closed:
            self._fetching.run(path, lambda: self.keep(path, fetch()))
        return fetch() if known is None else known

    def has(self, path: str) -> bool:
        return path in self._short or path in self._long

    def known(self, path: str) -> Brought | None:
        if path in self._short:
            self._short.move_to_end(path)
            return _opened(self._short[path])
        if path in self._long:
            self._long.move_to_end(path)
            return _again(self._long[path])
        return None

    def keep(self, path: str, document: Brought) -> None:
        """It is this one's from now on."""
        self._forget(path)
        if self._closed:
            document.close()
        elif document.size <= SHORT:
            self._short[path] = _Short(os.pread(document.fd, SHORT, 0), document.address)
            document.close()
            if len(self._short) > MOST_SHORT:
                self._short.popitem(last=False)
        else:
            self._long[path] = document
            self._make_room()

    def keep_too(self, path: str, document: Brought) -> None:
        """By another path, whoever has it."""
        self.keep(path, _again(document))

    def close(self) -> None:
        self._closed = True
        self._short.clear()
        while self._long:
            self._long.popitem()[1].close()

    def _forget(self, path: str) -> None:
        self._short.pop(path, None)
        former = self._long.pop(path, None)
        if former is not None:
            former.close()

    def _make_room(self) -> None:
        """The latest stays, however long it is."""
        while len(self._long) > 1 and (len(self._long) > MOST_LONG or sum(each.size for each in self._long.values()) > MOST_BYTES):
            self._long.popitem(last=False)[1].close()


def _opened(document: _Short) -> Brought:
    with tempfile.TemporaryFile() as file:
        file.write(document.body)
        file.flush()
        return Brought(os.dup(file.fileno()), len(document.body), document.address)


def _again(document: Brought) -> Brought:
    return Brought(os.dup(document.fd), document.size, document.address)
