"""docs/kills.md, read and, when KILLS_PAGE=write, written."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from tests.support.server import ROOT

PAGE = ROOT / "docs" / "kills.md"
COLUMNS = ("process killed", "PostgreSQL killed", "COMMIT lost", "its answer lost")
Cells = Mapping[str, str]


def _table(heading: str, section: str = ".*?") -> dict[str, list[str]]:
    """Cells of the section's table with that heading by their first one."""
    text = PAGE.read_text()
    found = re.search(rf"^## {section}\n.*?^\| {heading} \|.*?\n\| ---[^\n]*\n(.*?)(?:\n\n|\Z)", text, re.DOTALL | re.MULTILINE)
    assert found, f"{PAGE.name} has no such table: {section}, {heading}"
    cells = [[each.strip().strip("`") for each in line.strip("|").split("|")] for line in found[1].splitlines()]
    return {first: others for first, *others in cells}


def _rows(section: str) -> dict[str, list[str]]:
    return _table("step", section)


def column(section: str, name: str) -> dict[str, str]:
    """What the page says of each step; steps of which it says nothing are left out."""
    index = COLUMNS.index(name)
    return {step: cells[index] for step, cells in _rows(section).items() if cells[index]}


def check(section: str, steps: list[str], name: str, observed: Cells) -> None:
    """The page has these steps, and says of them what was observed; or it is written so."""
    if os.environ.get("KILLS_PAGE") == "write":
        _write(section, steps, name, observed)
    assert set(_rows(section)) == set(steps), f"{PAGE.name} names other steps than there are; {HOW}"
    assert column(section, name) == observed, HOW
    letters = {each for cell in observed.values() for word in cell.split(", ") if word.isupper() for each in word}
    assert letters <= set(_table("letter")), "a letter that the page does not explain"


HOW = "look whether that is right; then `make kills-page` writes the tables anew"


def _write(section: str, steps: list[str], name: str, observed: Cells) -> None:
    known, index = _rows(section), COLUMNS.index(name)
    lines = []
    for step in steps:
        cells = list(known.get(step, [""] * len(COLUMNS)))
        cells[index] = observed.get(step, "")
        lines.append(" | ".join(["", f"`{step}`", *cells, ""]).strip())
    head = f"| step | {' | '.join(COLUMNS)} |\n|{' --- |' * (len(COLUMNS) + 1)}\n"
    text = PAGE.read_text()
    pattern = re.compile(rf"(^## {section}\n(?:(?!^## ).)*?)^\| step \|.*?(\n\n|\n?\Z)", re.DOTALL | re.MULTILINE)
    table = head + "\n".join(lines)
    PAGE.write_text(pattern.sub(lambda found: found[1] + table + (found[2] or "\n"), text))
