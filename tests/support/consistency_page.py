"""The tables of docs/consistency.md: what a long run measured is printed, and written there when CONSISTENCY_PAGE=write.

Above each table stands a line of when and on what it was measured (`Measured on ...`), which is written with it.
"""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Mapping, Sequence

from tests.support.server import ROOT

PAGE = ROOT / "docs" / "consistency.md"
Rows = Mapping[str, Sequence[str]]


def write(headings: Sequence[str], rows: Rows, *, at: int = 1) -> None:
    """`rows` are cells by the first one, for the columns from `at` on. Rows of which nothing is said stay as they were."""
    print("\n".join(_line((name, *cells)) for name, cells in rows.items()))
    if os.environ.get("CONSISTENCY_PAGE") == "write":
        PAGE.write_text(renewed(PAGE.read_text(), headings, rows, at, measured()))


def renewed(page: str, headings: Sequence[str], rows: Rows, at: int, when: str) -> str:
    """The page with these cells. Raises AssertionError when it has no such table, or no line of the moment above it."""
    head = re.escape(_line(headings))
    found = re.search(rf"^{head}\n\| ---[^\n]*\n((?:\|[^\n]*\n?)*)", page, re.MULTILINE)
    assert found, f"{PAGE.name} has no table with the headings {', '.join(headings)}"
    table = {first: [first, *cells] for first, *cells in map(_cells, found[1].splitlines())}
    for name, cells in rows.items():
        row = table.setdefault(name, [name] + [""] * (len(headings) - 1))
        row[at : at + len(cells)] = cells
    above, below = page[: found.start(1)], page[found.end(1) :]
    section = above.rindex("\n## ")
    dated, count = re.subn(r"Measured on [^:.]*", when, above[section:], count=1)
    assert count, f"{PAGE.name} does not say when that table was measured"
    return above[:section] + dated + "".join(f"{_line(each)}\n" for each in table.values()) + below


def measured() -> str:
    load = os.getloadavg()[0]
    return f"Measured on {datetime.datetime.now(datetime.UTC):%Y-%m-%d} on {os.cpu_count()} cores with a load average of {load:.0f}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(line: str) -> list[str]:
    return [each.strip() for each in line.strip().strip("|").split("|")]
