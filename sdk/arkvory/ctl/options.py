"""What all commands take alike, in front of the command or behind it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
PERMISSIONS = ("read", "write", "delete", "manage")
_NOT_GIVEN: Any = argparse.SUPPRESS


class Arguments(argparse.Namespace):
    """What the command line said; `run` does it."""

    run: Callable[[Arguments], None]
    url: str | None = None
    token: str | None = None
    ca: str | None = None
    json: bool = False
    quiet: bool = False
    parallel: int = 4
    password_stdin: bool = False
    retry_for: float = 900.0


class Parser(argparse.ArgumentParser):
    """Has the options that all commands have (`shared`: not in its usage)."""

    def __init__(self, *, shared: bool = False, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)
        group = self.add_argument_group("the server, and what is shown")
        group.add_argument("--url", default=_NOT_GIVEN, help="the server, instead of the one of the last login or ARKVORY_URL")
        group.add_argument("--token", default=_NOT_GIVEN, help="instead of the login's or ARKVORY_TOKEN")
        group.add_argument("--ca", metavar="FILE", default=_NOT_GIVEN, help="authority of the server's certificate, a PEM file")
        group.add_argument("--json", action="store_true", default=_NOT_GIVEN, help="print the API's documents as JSON")
        group.add_argument("--quiet", "-q", action="store_true", default=_NOT_GIVEN, help="show no progress")
        group.add_argument("--parallel", type=at_least_one, metavar="N", default=_NOT_GIVEN, help="parts or files at once (4)")
        group.add_argument(
            "--retry-for", type=seconds, metavar="SECONDS", default=_NOT_GIVEN, help="how long to go on trying when refused (900)"
        )


def at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def seconds(text: str) -> float:
    number = float(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError("a number of seconds")
    return number


def byte_count(text: str) -> int:
    """A number of bytes, also as 500M or 2GiB."""
    digits: str = text.rstrip("KMGTiBkmgtb")
    unit = text[len(digits) :].upper().removesuffix("B").removesuffix("I")
    powers = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
    if not (digits.isascii() and digits.isdigit()) or unit not in powers:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 500M or 2GiB")
    return int(digits) << 10 * powers[unit]


def permissions(text: str) -> list[str]:
    """Several with commas between them."""
    given = [each for each in text.split(",") if each]
    if not given or set(given) - set(PERMISSIONS):
        raise argparse.ArgumentTypeError(f"{text!r} are not some of {','.join(PERMISSIONS)}")
    return given


def place(text: str) -> tuple[str, str]:
    """REPOSITORY/PATH, the path perhaps empty."""
    repository, _, path = text.partition("/")
    if not repository:
        raise argparse.ArgumentTypeError(f"{text!r} is not REPOSITORY/PATH")
    return repository, path


def sure(question: str, yes: bool) -> None:
    """Go on only when the user says so. Raises ValueError."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ValueError("there is no terminal to ask whether you are sure: add --yes")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ValueError("nothing was done")
