"""Several things at once: the first failure ends them all, and is the one that is raised."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait

from arkvory.retry import Stop, Stopped


def run_all(jobs: Iterable[Callable[[Stop], None]], parallel: int, outer: Stop) -> None:
    """Each job once, at most `parallel` at a time, with the word that stops them. An interruption (Ctrl-C) does too; all have ended when
    this returns or raises."""
    stop = outer.within()
    if parallel == 1:
        for job in jobs:
            stop.check()
            job(stop)
        return
    with ThreadPoolExecutor(parallel, thread_name_prefix="arkvory") as pool:
        running = [pool.submit(job, stop) for job in jobs]
        try:
            done, _ = wait(running, return_when=FIRST_EXCEPTION)
            _raise_first(done)
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _raise_first(done: Iterable[Future[None]]) -> None:
    """The reason, rather than what stopped because of it."""
    errors = [error for each in done if (error := each.exception()) is not None]
    if errors:
        raise min(errors, key=lambda error: isinstance(error, Stopped))
