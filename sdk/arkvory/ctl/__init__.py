"""`arkvoryctl`: files to and from a server, from any machine.

    login, logout, whoami                     who asks                   (logins.py)
    upload, download, list, search, delete    files                      (files.py)
    repo, token                               what the server is told    (management.py)

Exit codes: 0 done, 1 refused or failed, 2 wrong use, 3 a login is missing or may not do that, 4 there is no such thing,
5 the server does not answer or says later (the same command may do in a while), 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from arkvory.ctl import files, logins, management
from arkvory.ctl.options import Arguments, Parser
from arkvory.ctl.output import printable
from arkvory.errors import (
    ArkvoryError,
    CapacitySpent,
    Forbidden,
    Incomplete,
    Later,
    LocalFile,
    NoAnswer,
    NotFound,
    TooManyLogins,
    Unauthenticated,
    Untrusted,
)
from arkvory.version import __version__

FAILED, WRONG_USE, NOT_ALLOWED, NOT_THERE, LATER, INTERRUPTED = 1, 2, 3, 4, 5, 130
# The first class that an error is of decides.
_CODES: tuple[tuple[type[ArkvoryError], int, str], ...] = (
    (Unauthenticated, NOT_ALLOWED, "Log in: arkvoryctl login URL (or set ARKVORY_URL and ARKVORY_TOKEN)."),
    (Forbidden, NOT_ALLOWED, "Ask who manages the repository; with another login: arkvoryctl login URL."),
    (NotFound, NOT_THERE, "What there is: arkvoryctl repo list, arkvoryctl list REPOSITORY."),
    (TooManyLogins, LATER, "Wait, or take a token: arkvoryctl login URL --token-stdin."),
    (Later, LATER, "The same command goes on later; --retry-for SECONDS waits longer by itself."),
    (Untrusted, FAILED, "An authority of your own: --ca FILE, or REQUESTS_CA_BUNDLE=FILE."),
    (NoAnswer, LATER, "Is the server's address right (--url, ARKVORY_URL), and is it running?"),
    (CapacitySpent, FAILED, "Delete what is not needed, or ask for a larger quota: arkvory repo update NAME --quota 20G."),
    (LocalFile, FAILED, ""),
    (Incomplete, FAILED, ""),
    (ArkvoryError, FAILED, ""),
)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry of `arkvoryctl`; ends the process."""
    try:
        code = run(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("arkvoryctl: interrupted; the same command again goes on where this one was", file=sys.stderr, flush=True)
        # Not waiting for threads that wait for a server.
        os._exit(INTERRUPTED)
    except BrokenPipeError:
        # `arkvoryctl ... | head` has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)


def run(arguments: Sequence[str] | None = None) -> int:
    """The exit code. Raises SystemExit for --help and wrong use, KeyboardInterrupt."""
    given = parser().parse_args(arguments, Arguments())
    try:
        given.run(given)
    except ArkvoryError as error:
        return _told(error)
    except (ValueError, logins.NoServer) as error:
        print(f"arkvoryctl: {error}", file=sys.stderr)
        return WRONG_USE
    return 0


def parser() -> argparse.ArgumentParser:
    made = Parser(prog="arkvoryctl", description="Files to and from an Arkvory server.", shared=True)
    made.add_argument("--version", action="version", version=f"arkvoryctl {__version__}")
    verbs = made.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for room in (logins, files, management):
        room.add(verbs)
    return made


def _told(error: ArkvoryError) -> int:
    """Say what was wrong and what to do next."""
    _, code, advice = next(row for row in _CODES if isinstance(error, row[0]))
    # It quotes what a server said.
    print(f"arkvoryctl: {printable(str(error))}", file=sys.stderr)
    if advice:
        print(advice, file=sys.stderr)
    return code
