"""The steps of a request, seen from inside of a real server: each place where it changes something outside of its own memory.

A step is a statement that writes, a COMMIT, or a call that changes the blob store; the last one is the answer. Between two of them
nothing changes (a lock ends with its connection), so whatever ends the process there leaves what it leaves right before the later one.
They are not listed anywhere: they are what the product does, named by the function that does it, such as
`Admission.open: insert arkvory_uploads`. A second one of the same name gets `#2`.

A server started with `tests/support/stepped.py` writes the steps of each request with a header `X-Steps: ID` into the file `ID.steps` of
the folder STEPS_FOLDER. With a header `X-Stop: STEP` it stops right before that step, says so by the file `ID.there`, and goes on when
there is a file `ID.go`. `tests/support/upgrader.py` does the same for `arkvory db upgrade`.
"""

from __future__ import annotations

import contextvars
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import gevent
from gevent.monkey import get_original
from gevent.threadpool import ThreadPool
from sqlalchemy import Engine, event

APP = str(Path(__file__).parents[2] / "app") + "/"
ROOMS_BELOW = ("cache/changes.py", "cluster/", "database/engines.py", "database/pools.py", "database/turns.py")
# What stands for its caller.
HELPERS = {"Cleanup._release", "Admission.locked", "_insert", "put", "sync_folder", "_source", "disk_errors", "_write_artifact"}
GIVEN_UP_SECONDS = 60.0

_ident = get_original("_thread", "get_ident")
_main = _ident()
_real_open = os.open
_current: contextvars.ContextVar[Run | None] = contextvars.ContextVar("steps", default=None)


class Run:
    """The steps of one request or program; `file` is the beginning of the names of its files."""

    def __init__(self, file: Path, stop: str | None) -> None:
        self._file = file
        self._stop = stop
        self._counts: Counter[str] = Counter()

    def reach(self, step: str) -> None:
        """Note that this step comes next, and stop there if asked to."""
        self._counts[step] += 1
        if self._counts[step] > 1:
            step = f"{step} #{self._counts[step]}"
        with open(_real_open(f"{self._file}.steps", os.O_WRONLY | os.O_CREAT | os.O_APPEND), "w") as file:
            file.write(step + "\n")
        if step == self._stop:
            os.close(_real_open(f"{self._file}.there", os.O_CREAT))
            self._wait()

    def _wait(self) -> None:
        sleep = gevent.sleep if _ident() == _main else get_original("time", "sleep")
        deadline = time.monotonic() + GIVEN_UP_SECONDS
        while not os.path.exists(f"{self._file}.go"):
            assert time.monotonic() < deadline, "nobody let it go on"
            sleep(0.002)


def reach(effect: str) -> None:
    """Called before each effect; a step only for those who are followed."""
    run = _current.get()
    if run is not None:
        run.reach(f"{_who()}: {effect}")


def _who() -> str:
    """The function of the application that does this, without the rooms that do it for everyone."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_qualname.partition(".<locals>")[0]
        file = frame.f_code.co_filename
        if file.startswith(APP) and not file.removeprefix(APP).startswith(ROOMS_BELOW) and name not in HELPERS and "<" not in name:
            return name
        frame = frame.f_back
    return "?"


# -- what is watched


_WRITES = re.compile(r"\b(insert|update|delete)(?: into| from)? (arkvory_\w+)")


def effect_of(statement: str) -> str | None:
    """What a statement changes, in two words; null when it only reads or locks."""
    written = _WRITES.search(statement.lower())
    return None if written is None else f"{written[1]} {written[2]}"


def _before_statement(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
    effect = effect_of(statement)
    if effect is not None:
        reach(effect)


def _before_commit(_connection: Any) -> None:
    reach("commit")


def install() -> None:
    """In the process that is to be watched, once, before it opens its database."""
    global _main
    _main = _ident()
    event.listen(Engine, "before_cursor_execute", _before_statement)
    event.listen(Engine, "commit", _before_commit)
    for name in ("write", "fsync", "link", "rename", "unlink", "mkdir"):
        setattr(os, name, _watched(getattr(os, name), name))
    os.open = _watched_open  # type: ignore[assignment]
    spawn = ThreadPool.spawn

    def spawn_followed(self: ThreadPool, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        return spawn(self, contextvars.copy_context().run, function, *arguments, **named)

    ThreadPool.spawn = spawn_followed


def _in_the_store() -> bool:
    """Whether the blob store does it: others have files too, a log or a socket."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and not frame.f_code.co_filename.startswith(APP):
        frame = frame.f_back
    return frame is not None and "/app/storage/" in frame.f_code.co_filename


def _watched(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    def watched(*arguments: Any, **named: Any) -> Any:
        if _current.get() is not None and _in_the_store():
            reach(name)
        return function(*arguments, **named)

    return watched


def _watched_open(path: Any, flags: int, *arguments: Any, **named: Any) -> int:
    if flags & os.O_CREAT and _current.get() is not None and _in_the_store():
        reach("create")
    return _real_open(path, flags, *arguments, **named)


def watch(app: Any) -> None:
    """The requests of a Flask application, before its first one."""

    def begin() -> None:
        from flask import request

        name = request.headers.get("X-Steps")
        _current.set(Run(Path(os.environ["STEPS_FOLDER"]) / name, request.headers.get("X-Stop")) if name else None)

    def answer(response: Any) -> Any:
        run = _current.get()
        if run is not None:
            run.reach("the answer")
        return response

    app.before_request_funcs.setdefault(None, []).insert(0, begin)
    app.after_request(answer)
