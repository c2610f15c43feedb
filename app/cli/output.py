"""What commands print: tables for people, JSON for programs."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import click

from app.cli.connection import Server, Target

F = TypeVar("F", bound=Callable[..., Any])
Column = tuple[str, Callable[[Any], Any]]

_json_option = click.option("--json", "as_json", is_flag=True, help="Print the API's documents as JSON.")
# Rows measured before the first is printed: enough for even columns, few enough to begin at once.
MEASURED = 200


def on_server(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the server as its first argument."""

    @click.pass_obj
    @functools.wraps(function)
    def run(target: Target, /, *arguments: Any, **options: Any) -> Any:
        with target.connect() as server:
            return function(server, *arguments, **options)

    return run


def prints(function: F) -> F:
    """Add `--json`, handed over as `as_json`."""
    return _json_option(function)


def show(document: Any, columns: Sequence[Column], *, as_json: bool) -> None:
    """One thing: a line for each column, or the document."""
    if as_json:
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    width = max(len(title) for title, _ in columns)
    for title, value in columns:
        click.echo(f"{title.ljust(width)}  {_cell(value(document))}".rstrip())


def show_list(documents: Iterable[Any], columns: Sequence[Column], *, as_json: bool) -> None:
    """Many things as they come: a table, or one JSON array with a document in each line."""
    if as_json:
        _show_array(documents)
        return
    batch: list[list[str]] = [[title for title, _ in columns]]
    widths: list[int] = []
    for document in documents:
        batch.append([_cell(value(document)) for _, value in columns])
        if len(batch) > MEASURED:
            widths = _print_rows(batch, widths)
            batch = []
    _print_rows(batch, widths)


def _show_array(documents: Iterable[Any]) -> None:
    separator = "["
    for document in documents:
        click.echo(separator)
        click.echo(json.dumps(document, ensure_ascii=False), nl=False)
        separator = ","
    click.echo("[]" if separator == "[" else "\n]")


def _print_rows(rows: list[list[str]], widths: list[int]) -> list[int]:
    widths = widths or [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return widths


def field(name: str, title: str | None = None) -> Column:
    """A column that shows a field of the document."""
    return (title or name.replace("_", " ").upper(), lambda document: document.get(name))


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ",".join(map(str, value)) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{key}={_cell(inner)}" for key, inner in value.items()) or "-"
    return printable(str(value))


def printable(words: str) -> str:
    """A name or path may hold what a terminal would obey."""
    return "".join(char if char.isprintable() else "\ufffd" for char in words)


def say(words: str) -> None:
    """One line about what was done."""
    click.echo(printable(words))


def size(number: int | None) -> str:
    """Bytes for people, in powers of 1024."""
    if number is None:
        return "-"
    amount = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{number} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


__all__ = ["Server", "field", "on_server", "printable", "prints", "say", "show", "show_list", "size"]
