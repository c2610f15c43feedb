"""Which jobs there are. Each has one runner at a time in the installation, and a row in `arkvory_jobs`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from uuid import UUID

from sqlalchemy import Connection

from app.http.parts import Parts
from app.jobs.job import Family, Job, Run
from app.repository.completing import AT_ONCE, PAUSE_SECONDS
from app.repository.mirrors.settings import JOB
from app.repository.quotas import CHECK_SECONDS
from app.upload.multipart import due


def jobs_of(house: Parts) -> Sequence[Job]:
    return (
        Job("cleanup", house.settings.cleanup_seconds, lambda run: _clean(house, run), "releases and deletes what nobody needs"),
        Job("quotas", CHECK_SECONDS, lambda run: house.quotas.check(), "looks how full quotas and the server's capacity are"),
    )


def families_of(house: Parts) -> Sequence[Family]:
    return (
        Family("completion", lambda connection: [_completion(house, each) for each in due(connection, AT_ONCE)]),
        Family(JOB.rstrip("/"), lambda connection: _mirrors(house, connection)),
    )


def _completion(house: Parts, upload_id: UUID) -> Job:
    """Of an upload whose process ended, or that had to wait; usually the process that was asked does it."""
    return Job(f"completion/{upload_id}", PAUSE_SECONDS, lambda _: house.completions.attempt(upload_id), "puts an upload in parts together")


def _mirrors(house: Parts, connection: Connection) -> Iterator[Job]:
    for each in house.mirroring.look(connection):
        run = partial(house.mirroring.follow, each.id, each.repository_id)
        yield Job(f"{JOB}{each.id}", each.every_seconds, run, f"{each.repository} follows its upstream")


def _clean(house: Parts, run: Run) -> str:
    done = {name: count for name, count in asdict(house.cleanup.run(run.check)).items() if count}
    return ", ".join(f"{name} {count}" for name, count in done.items()) or "nothing to do"
