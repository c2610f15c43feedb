"""Several things at once: the first failure ends them all, and is the one that is raised."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait

from arkvory.retry import Stop, Stopped


def run_all(jobs: Iterable[Callable[[Stop], None]], parallel: int, outer: Stop) -> None:
    """Each job once, at most `parallel` at a time, with the word that stops them. All have ended when this returns or raises, but for an
    interruption (Ctrl-C), which waits for no server."""
    stop = outer.within()
    if parallel == 1:
        for job in jobs:
            stop.check()
            job(stop)
        return
    pool = ThreadPoolExecutor(parallel, thread_name_prefix="arkvory")
    try:
        done, _ = wait([pool.submit(job, stop) for job in jobs], return_when=FIRST_EXCEPTION)
        _raise_first(done)
    except BaseException as error:
        stop.set()
        pool.shutdown(wait=isinstance(error, Exception), cancel_futures=True)
        raise
    pool.shutdown()


def _raise_first(done: Iterable[Future[None]]) -> None:
    """The reason, rather than what stopped because of it."""
    errors = [error for each in done if (error := each.exception()) is not None]
    if errors:
        raise min(errors, key=lambda error: isinstance(error, Stopped))
