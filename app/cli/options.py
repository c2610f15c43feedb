"""What several commands take alike: limits, permissions, names of verbs, a question before something goes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

limit = click.option("--limit", type=click.IntRange(1), help="Show at most so many.")
confirmed = click.option("--yes", is_flag=True, help="Do not ask.")

# Words for the same: whoever takes the other one means this one.
_SYNONYMS = (("create", "add"), ("delete", "remove", "revoke"))


class Verbs(click.Group):
    """A group whose `remove` is found as `delete`, `add` as `create` and the other way round, where it has but one of them."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        names = (cmd_name, *_others(cmd_name))
        return next((found for name in names if (found := super(Verbs, self).get_command(ctx, name)) is not None), None)


def _others(name: str) -> list[str]:
    verb, dash, rest = name.partition("-")
    return [f"{each}{dash}{rest}" for same in _SYNONYMS if verb in same for each in same if each != verb]


class _Listed(click.ParamType[list[str]]):
    """One or several of some words, with commas between them."""

    name = "words"

    def __init__(self, words: Sequence[str]) -> None:
        self._one = click.Choice(words)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        return [str(self._one.convert(each, param, ctx)) for each in value.split(",")]


def _flat(_context: click.Context, _parameter: click.Parameter, lists: Iterable[list[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each for words in lists for each in words))


def permission_option(words: Sequence[str]) -> Callable[[F], F]:
    """`--permission read,write`, or each by an option of its own; handed over as `permissions`."""
    return click.option(
        "--permission",
        "permissions",
        multiple=True,
        required=True,
        type=_Listed(words),
        callback=_flat,
        metavar=f"[{'|'.join(words)}]",
        help="Several with commas, or given several times.",
    )


def permission_arguments(words: Sequence[str]) -> Callable[[F], F]:
    """`read write` or `read,write`, handed over as `permissions`."""
    return click.argument("permissions", nargs=-1, required=True, type=_Listed(words), callback=_flat, metavar="PERMISSIONS...")


def ask(question: str, yes: bool) -> None:
    """Go on only when the user says so. Raises click.Abort, and UsageError where nobody can be asked."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask whether you are sure: add --yes")
    click.confirm(question, abort=True)


def secret(question: str, *, from_input: bool) -> str:
    """Asked for, or one line of standard input where that is no terminal."""
    if from_input or not sys.stdin.isatty():
        return line_of_input()
    return str(click.prompt(question, hide_input=True))


def line_of_input() -> str:
    """One line of standard input, such as a password that a program hands over."""
    return sys.stdin.readline().rstrip("\r\n")
