"""`arkvory db upgrade` in a process of its own, again and again, stopped at a step; a program that tests/kills/test_migration.py starts.

Each line of its input is a JSON object: `url` of the database, `file` (the beginning of the names of tests/support/steps.py's files), and
`stop`, a step or null. It forks, so that nothing is imported twice, and answers with two lines: the process, and how it ended.

The steps are the statements of each migration, counted, then that which notes its revision, then its COMMIT: `0002: statement 3`,
`0002: revision`, `0002: commit`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event

from app.cli import main as arkvory
from app.database import migrate
from tests.support.steps import Run

VERSIONS = "/migrations/versions/"


class Statements:
    """What alembic sends, as steps."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._revision = ""
        self._count = 0

    def before_statement(self, _connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        revision = _revision()
        if revision is not None:
            self._count = self._count + 1 if revision == self._revision else 1
            self._revision = revision
            self._run.reach(f"{revision}: statement {self._count}")
        elif self._revision and "alembic_version" in statement and not statement.lstrip().upper().startswith("SELECT"):
            self._run.reach(f"{self._revision}: revision")

    def before_commit(self, _connection: Any) -> None:
        if self._revision:
            self._run.reach(f"{self._revision}: commit")


def _revision() -> str | None:
    """Of the migration that is being run, as the beginning of its file's name says."""
    frame = sys._getframe(2)
    while frame is not None:
        if VERSIONS in frame.f_code.co_filename:
            return Path(frame.f_code.co_filename).name.partition("_")[0]
        frame = frame.f_back  # type: ignore[assignment]
    return None


def upgrade(url: str, file: str, stop: str | None) -> None:
    """In the child: what a person's command does."""
    os.environ["ARKVORY_DATABASE_URL"] = url
    log = os.open(f"{file}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    statements = Statements(Run(Path(file), stop))
    event.listen(Engine, "before_cursor_execute", statements.before_statement)
    event.listen(Engine, "commit", statements.before_commit)
    arkvory(["db", "upgrade"])


def main() -> None:
    assert migrate.upgrade  # imported before the forks
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                upgrade(**json.loads(line))
                code = 0
            except SystemExit as end:
                code = int(end.code or 0)
            except BaseException:
                sys.excepthook(*sys.exc_info())
                code = 99
            os._exit(code)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
