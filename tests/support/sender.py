"""A client that sends parts of an upload until none is missing, as a program of its own, so that it can be killed:

    python -m tests.support.sender ADDRESS PASSWORD SIZE PART SENDER SENDERS

It sends each SENDERS-th of the missing parts, of bytes that come from their numbers.
"""

from __future__ import annotations

import hashlib
import random
import sys
import time
from dataclasses import dataclass

import requests

MIB = 1024 * 1024


@dataclass(frozen=True)
class Source:
    """`size` bytes in parts of `part`, which nobody needs to keep."""

    size: int
    part: int

    @property
    def numbers(self) -> range:
        return range(1, -(-self.size // self.part) + 1)

    def bytes_of(self, number: int) -> bytes:
        size = min(self.part, self.size - (number - 1) * self.part)
        return random.Random(number).randbytes(min(size, MIB)) * (size // MIB) + b"x" * (size % MIB)

    def sha256(self) -> str:
        whole = hashlib.sha256()
        for number in self.numbers:
            whole.update(self.bytes_of(number))
        return whole.hexdigest()


@dataclass(frozen=True)
class Sender:
    """One of `senders` clients of the upload at `address`."""

    address: str
    password: str
    source: Source
    sender: int
    senders: int

    def run(self) -> None:
        """Until none of its own is missing, whatever happens to the server."""
        while True:
            try:
                missing = [number for number in self.missing() if number % self.senders == self.sender]
                if not missing:
                    return
                for number in missing:
                    self.send(number)
            except (requests.RequestException, KeyError, ValueError):
                time.sleep(0.1)

    def send(self, number: int) -> None:
        body = self.source.bytes_of(number)
        digest = hashlib.sha256(body).hexdigest()
        headers = {"X-Checksum-Sha256": digest}
        requests.put(f"{self.address}/parts/{number}", body, headers=headers, auth=("admin", self.password), timeout=60)

    def missing(self) -> list[int]:
        there: set[int] = set()
        after = ""
        while True:
            page = requests.get(f"{self.address}/parts?limit=1000{after}", auth=("admin", self.password), timeout=60).json()
            there |= {part["number"] for part in page["items"]}
            if page["next"] is None:
                return sorted(set(self.source.numbers) - there)
            after = f"&cursor={page['next']}"


if __name__ == "__main__":
    address, password, *numbers = sys.argv[1:]
    size, part, sender, senders = map(int, numbers)
    Sender(address, password, Source(size, part), sender, senders).run()
