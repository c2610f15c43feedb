"""Which jobs there are. Each has one runner at a time in the installation, and a row in `arkvory_jobs`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from app.http.parts import Parts
from app.jobs.job import Family, Job, Run


def jobs_of(house: Parts) -> Sequence[Job]:
    return (Job("cleanup", house.settings.cleanup_seconds, lambda run: _clean(house, run), "releases and deletes what nobody needs"),)


def families_of(house: Parts) -> Sequence[Family]:
    return ()


def _clean(house: Parts, run: Run) -> str:
    done = {name: count for name, count in asdict(house.cleanup.run(run.check)).items() if count}
    return ", ".join(f"{name} {count}" for name, count in done.items()) or "nothing to do"
