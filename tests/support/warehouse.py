"""A Python index of any size as an upstream: thousands of projects, files in the parts that they are asked for; all bytes are counted."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from dataclasses import dataclass, field

from tests.support.upstreams import Asked, FakeUpstream, Rule, noise

_JSON = {"Content-Type": "application/vnd.pypi.simple.v1+json"}


@dataclass
class Goods:
    """What it has: files by their project and name."""

    projects: int
    files_each: int
    small: int
    # Some files are so long instead, by project.
    long: dict[int, int] = field(default_factory=dict)

    def body(self, project: int, number: int) -> bytes:
        """Wheels begin as archives do."""
        size = self.long.get(project, self.small) if number == 0 else self.small
        return b"PK\x03\x04" + noise(size - 4, 1000 * project + number)

    def name(self, project: int, number: int) -> str:
        return f"p{project:05}-{number + 1}.0-py3-none-any.whl"

    @property
    def count(self) -> int:
        return self.projects * self.files_each


class Warehouse(FakeUpstream):
    """`asked_for` counts requests by path, `sent` bytes of bodies by path."""

    def __init__(self, goods: Goods) -> None:
        super().__init__()
        self.goods = goods
        self.asked_for: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self._digests: dict[tuple[int, int], str] = {}

    def _rule(self, asked: Asked) -> Rule:
        self.asked_for[asked.target] += 1
        rule = self._made(asked)
        if asked.headers.get("if-none-match") == rule.headers.get("ETag", ""):
            return Rule(b"", 304, rule.headers)
        self.sent[asked.target] += len(rule.body)
        return rule

    def _made(self, asked: Asked) -> Rule:
        if asked.target == "/simple/":
            names = [{"name": f"p{number:05}"} for number in range(self.goods.projects)]
            return self._document({"meta": {"api-version": "1.4"}, "projects": names})
        if (found := re.fullmatch(r"/simple/p(\d+)/", asked.target)) is not None:
            return self._page(int(found[1]))
        if (found := re.fullmatch(r"/f/p(\d+)-(\d+)\.0-py3-none-any\.whl", asked.target)) is not None:
            return self._file(asked, int(found[1]), int(found[2]) - 1)
        return Rule(b"nothing here\n", 404)

    def _document(self, document: object) -> Rule:
        body = json.dumps(document).encode()
        return Rule(body, headers=_JSON | {"ETag": f'"{hashlib.sha256(body).hexdigest()[:16]}"'})

    def _page(self, project: int) -> Rule:
        files = [
            {
                "filename": (name := self.goods.name(project, number)), "url": f"../../f/{name}",
                "hashes": {"sha256": self.digest(project, number)},
            }
            for number in range(self.goods.files_each)
        ]  # fmt: skip
        return self._document({"meta": {"api-version": "1.4"}, "name": f"p{project:05}", "files": files})

    def _file(self, asked: Asked, project: int, number: int) -> Rule:
        body = self.goods.body(project, number)
        headers = {"ETag": f'"{self.digest(project, number)[:16]}"', "Accept-Ranges": "bytes"}
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", asked.headers.get("range", ""))
        if found is None or asked.headers.get("if-range") not in (None, headers["ETag"]):
            return Rule(body, headers=headers)
        first, last = int(found[1]), min(int(found[2]), len(body) - 1)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(body)}"
        return Rule(body[first : last + 1], 206, headers)

    def digest(self, project: int, number: int) -> str:
        known = self._digests.get((project, number))
        if known is None:
            known = self._digests[project, number] = hashlib.sha256(self.goods.body(project, number)).hexdigest()
        return known
