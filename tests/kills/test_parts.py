"""A server, or its database, ended at each step of a part and of the end of an upload in parts (W1, W4, ADR 12; docs/kills.md)."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gevent
import pytest
import requests

from app.database import embedded
from tests.support import kills_page
from tests.support.house import eventually
from tests.support.kills import BREAKS, PATH, Scene, Stand, assert_clean, lose_at, record, stop_at

pytestmark = pytest.mark.soak
SIZE, PART = 60, 40


class SendPart(Scene):
    """The second part of two; what the whole has to be is known by then."""

    known = (200,)
    first_missing = 2

    def prepare(self) -> None:
        self.new = self.stand.a_body_for_a_new_folder(SIZE)
        self.uploads = f"/api/v1/repositories/{self.name}/uploads"
        made = self.stand.server.post(self.uploads, json={"path": PATH, "size": SIZE, "part_size": PART}).json()
        self.upload = f"{self.uploads}/{made['id']}"
        for number in range(1, self.first_missing):
            assert self.send_part(number).status_code == 200

    def send_part(self, number: int, **headers: str) -> requests.Response:
        assert self.new is not None
        body = self.new[(number - 1) * PART : number * PART]
        return self.stand.server.put(f"{self.upload}/parts/{number}", body, headers=headers)

    def send(self, **headers: str) -> requests.Response:
        return self.send_part(2, **headers)

    def complete(self, **headers: str) -> requests.Response:
        return self.stand.server.post(f"{self.upload}/complete", headers=headers)

    def state(self) -> Any:
        return self.stand.server.get(self.upload).json()

    def numbers(self) -> list[int]:
        return [part["number"] for part in self.stand.server.get(f"{self.upload}/parts").json()["items"]]

    def assert_whole(self) -> None:
        """What is answered here is not yet about the path."""
        answer, self.answer = self.answer, ""
        super().assert_whole()
        self.answer = answer

    def check(self) -> None:
        """What was answered is there; what is there is counted."""
        numbers = self.numbers()
        self.expect(self.answer != "200" or 2 in numbers, "a part was answered and is missing")
        self.expect(self.state()["received"] == (SIZE if 2 in numbers else PART), "other bytes are told than are there")
        self.assert_whole()

    def outcome(self) -> str:
        """A cell of the page."""
        return f"{self.answer}, {'there' if 2 in self.numbers() else 'missing'}"

    def again(self) -> None:
        """W4: the client asks once more, and comes to its end."""
        self.expect(self.send().status_code == 200, "the same part again is refused")
        self.expect(self.complete().status_code == 201, "it cannot be completed")
        self.settle()

    def settle(self) -> None:
        eventually(lambda: self.state()["state"] != "completing", 60)
        self.assert_whole()


class Complete(SendPart):
    """All parts are there."""

    known = (201,)
    first_missing = 3

    def send(self, **headers: str) -> requests.Response:
        return self.complete(**headers)

    def check(self) -> None:
        """A promise that was written is kept, whether the client asks or not."""
        state = self.state()["state"]
        if state == "completing":
            self.settle()
            self.expect(self.is_through(), "it goes on, and comes to no end")
        self.expect(self.answer != "201" or state == "published", "it was answered, and is not there")
        self.assert_whole()

    def outcome(self) -> str:
        """Once it has gone on by itself as far as it does: what comes after the COMMIT that others see takes a moment."""
        gevent.sleep(0.5)
        return f"{self.answer}, {self.content()}, {'parts' if self.state()['state'] == 'open' else self.left() or 'nothing'}"

    def again(self) -> None:
        self.expect(self.send().status_code in (201, 202), "the same again is refused")
        self.settle()


OPERATIONS: dict[str, type[SendPart]] = {"A part": SendPart, "Complete": Complete}
# Brings a request to its step, and strikes.
Strike = Callable[[SendPart, str], Scene]


@pytest.fixture(scope="module")
def steps(stand: Stand) -> dict[str, list[str]]:
    return {name: record(operation(stand)) for name, operation in OPERATIONS.items()}


def strike_each(stand: Stand, name: str, steps: Sequence[str], strike: Strike) -> dict[str, str]:
    """The cells of the page. Fails with everything that is wrong."""
    cells: dict[str, str] = {}
    problems: list[str] = []
    for step in steps:
        scene = OPERATIONS[name](stand)
        strike(scene, step)
        stand.server.wait_until_ready()
        scene.check()
        cells[step] = scene.outcome()
        stand.assert_counted()
        stand.assert_published_is_there()
        stand.assert_rows_and_files()
        scene.again()
        scene.expect(scene.is_through(), "it did not come to its end")
        problems += [f"{step}: {each}" for each in scene.problems]
        assert scene.answer in (BREAKS, "503", *map(str, scene.known)), scene.answer
    stand.clean_up()
    assert_clean(stand)
    assert not problems, problems
    return cells


def with_blows(blows: Iterator[Callable[[], None]]) -> Strike:
    def strike(scene: SendPart, step: str) -> Scene:
        stopped = stop_at(scene, step)
        next(blows)()
        stopped.go()
        return scene

    return strike


each_operation = pytest.mark.parametrize("name", OPERATIONS)


@each_operation
def test_w1_w4_the_process_killed_at_each_step(stand: Stand, steps: dict[str, list[str]], name: str) -> None:
    blows = with_blows(lambda master=number % 4 == 3: stand.kill(master=master) for number in itertools.count())
    kills_page.check(name, steps[name], "process killed", strike_each(stand, name, steps[name], blows))


@each_operation
def test_w1_w4_postgresql_killed_at_each_step(
    stand: Stand, own_postgres: embedded.EmbeddedPostgres, steps: dict[str, list[str]], name: str
) -> None:
    blows = with_blows(lambda how=how: stand.crash(own_postgres, how) for how in itertools.cycle((signal.SIGQUIT, signal.SIGKILL)))
    kills_page.check(name, steps[name], "PostgreSQL killed", strike_each(stand, name, steps[name], blows))


@each_operation
@pytest.mark.parametrize(("how", "column"), [("lost", "COMMIT lost"), ("unheard", "its answer lost")])
def test_w1_w4_each_commit_lost_and_its_answer_lost(wired: Stand, steps: dict[str, list[str]], name: str, how: str, column: str) -> None:
    commits = [step for step in steps[name] if ": commit" in step]
    kills_page.check(name, steps[name], column, strike_each(wired, name, commits, lambda scene, step: lose_at(scene, step, how)))
