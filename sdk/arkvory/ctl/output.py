"""What commands print: tables for people, JSON for programs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from arkvory.progress import size_in_words

Column = tuple[str, Callable[[Any], Any]]
# Rows that decide how wide the columns are.
MEASURED = 200


def document_of(thing: Any) -> Any:
    """As the API tells it; of what only the library knows, its fields."""
    document = getattr(thing, "document", None)
    return document if document is not None else dataclasses.asdict(thing)


def show(thing: Any, columns: Sequence[Column], *, as_json: bool) -> None:
    """One thing: a line for each column, or the document."""
    if as_json:
        print(json.dumps(document_of(thing), indent=2, ensure_ascii=False))
        return
    width = max(len(title) for title, _ in columns)
    for title, value in columns:
        print(f"{title.ljust(width)}  {_cell(value(thing))}".rstrip())


def show_all(things: Iterable[Any], columns: Sequence[Column], *, as_json: bool) -> None:
    """Many things as they come: a table, or one JSON array with a document in each line."""
    if as_json:
        _show_array(things)
        return
    rows = ([_cell(value(thing)) for _, value in columns] for thing in things)
    first = [[title for title, _ in columns], *islice(rows, MEASURED)]
    widths = [max(map(len, column)) for column in zip(*first, strict=True)]
    for lines in (first, rows):
        for row in lines:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _show_array(things: Iterable[Any]) -> None:
    lines = (json.dumps(document_of(thing), ensure_ascii=False) for thing in things)
    first = next(lines, None)
    print("[" if first is None else f"[\n{first}", end="")
    for line in lines:
        print(f",\n{line}", end="")
    print("]" if first is None else "\n]")


def field(name: str) -> Column:
    """A column that shows an attribute."""
    return name.replace("_", " ").upper(), lambda thing: getattr(thing, name)


def size(name: str) -> Column:
    """The same of a number of bytes."""
    return name.replace("_bytes", "").upper(), lambda thing: None if getattr(thing, name) is None else size_in_words(getattr(thing, name))


def say(words: str) -> None:
    """One line about what was done."""
    print(printable(words))


def printable(words: str) -> str:
    """A name or path may hold what a terminal would obey."""
    return "".join(char if char.isprintable() else "\ufffd" for char in words)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_cell(inner)}" for key, inner in value.items()) or "-"
    if isinstance(value, list | tuple):
        return ",".join(map(_cell, value)) or "-"
    return printable(str(value))
