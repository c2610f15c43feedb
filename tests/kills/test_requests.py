"""A server, or its database, ended at each step of a publish, an overwrite, a delete and a cleanup (W1 to W5; docs/kills.md)."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from app.database import embedded
from tests.support import kills_page
from tests.support.kills import OPERATIONS, Scene, Stand, Wave, look_after, lose_at, outcome, record, strike, waves

Steps = dict[str, list[str]]


@pytest.fixture(scope="module")
def steps(stand: Stand) -> Steps:
    """Of each operation, as the server takes them; then its leavings are cleaned up."""
    found = {name: record(operation(stand)) for name, operation in OPERATIONS.items()}
    stand.clean_up()
    return found


def note(wave: Wave, scenes: Sequence[Scene], cells: dict[tuple[str, str], str], problems: list[str], *, clean_first: bool) -> None:
    """What is to be seen at once, then all that must be true."""
    cells |= {key: outcome(scene) for key, scene in zip(wave, scenes, strict=True)}
    look_after(scenes, clean_first=clean_first)
    problems += [f"{name}, {step}: {each}" for (name, step), scene in zip(wave, scenes, strict=True) for each in scene.problems]


def strike_all(stand: Stand, steps: Steps, blows: Iterator[Callable[[], None]], *, clean_first: bool) -> dict[tuple[str, str], str]:
    """One blow for each wave; the cells of the page. Fails with everything that is wrong."""
    cells: dict[tuple[str, str], str] = {}
    problems: list[str] = []
    for wave in waves(steps):
        note(wave, strike(stand, wave, next(blows)), cells, problems, clean_first=clean_first)
    assert not problems, "\n".join(problems)
    return cells


@pytest.mark.soak
def test_w1_to_w5_random_blows_at_random_steps(stand: Stand, own_postgres: embedded.EmbeddedPostgres, steps: Steps) -> None:
    """For as long as it is given; what was struck before is not put right by a restart in between."""
    blows: list[Callable[[], None]] = [
        lambda: stand.kill(master=False),
        lambda: stand.kill(master=True),
        lambda: stand.crash(own_postgres, signal.SIGQUIT),
        lambda: stand.crash(own_postgres, signal.SIGKILL),
    ]
    end = time.monotonic() + float(os.environ.get("ARKVORY_SOAK_SECONDS", "60")) / 3
    while time.monotonic() < end:
        wave = random.choice(waves({name: random.sample(each, len(each)) for name, each in steps.items()}))
        print(wave)
        scenes = strike(stand, wave, random.choice(blows))
        look_after(scenes, clean_first=random.random() < 0.5)
        assert not [each for scene in scenes for each in scene.problems]


def check_page(steps: Steps, column: str, cells: dict[tuple[str, str], str]) -> None:
    for name in steps:
        kills_page.check(name.capitalize(), steps[name], column, {step: cell for (of, step), cell in cells.items() if of == name})


def test_w1_to_w5_the_process_killed_at_each_step(stand: Stand, steps: Steps) -> None:
    """Mostly the worker, in whose place the master puts another; sometimes the master with it. Cleanup comes before the same request."""
    blows = (lambda master=number % 6 == 5: stand.kill(master=master) for number in itertools.count())
    check_page(steps, "process killed", strike_all(stand, steps, blows, clean_first=True))


@pytest.mark.soak
def test_w1_to_w5_postgresql_killed_at_each_step(stand: Stand, own_postgres: embedded.EmbeddedPostgres, steps: Steps) -> None:
    """By an immediate shutdown and by SIGKILL in turn; it comes back, the server goes on. The same request comes before the cleanup."""
    hows = itertools.cycle((signal.SIGQUIT, signal.SIGKILL))
    blows = (lambda how=how: stand.crash(own_postgres, how) for how in hows)
    check_page(steps, "PostgreSQL killed", strike_all(stand, steps, blows, clean_first=False))


@pytest.mark.parametrize(("how", "column"), [("lost", "COMMIT lost"), pytest.param("unheard", "its answer lost", marks=pytest.mark.soak)])
def test_w1_to_w5_each_commit_lost_and_its_answer_lost(wired: Stand, steps: Steps, how: str, column: str) -> None:
    commits = {name: [step for step in steps[name] if ": commit" in step] for name in steps}
    cells: dict[tuple[str, str], str] = {}
    problems: list[str] = []
    for wave in waves(commits):
        scenes = [lose_at(OPERATIONS[name](wired), step, how) for name, step in wave]
        note(wave, scenes, cells, problems, clean_first=how == "lost")
    assert not problems, "\n".join(problems)
    check_page(steps, column, cells)
