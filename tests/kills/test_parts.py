"""A server, or its database, ended at each step of a part and of the end of an upload in parts (W1, W4, ADR 12)."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests

from app.database import embedded
from tests.support.house import eventually
from tests.support.kills import BREAKS, PATH, Scene, Stand, assert_clean, record, stop_at

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

    def again(self) -> None:
        self.expect(self.send().status_code in (201, 202), "the same again is refused")
        self.settle()


def strike_each(stand: Stand, kind: type[SendPart], blows: Iterator[Callable[[], None]]) -> None:
    problems: list[str] = []
    for step in record(kind(stand)):
        scene = kind(stand)
        stopped = stop_at(scene, step)
        next(blows)()
        stopped.go()
        stand.server.wait_until_ready()
        scene.check()
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


@pytest.mark.parametrize("kind", [SendPart, Complete])
def test_the_process_killed_at_each_step(stand: Stand, kind: type[SendPart]) -> None:
    strike_each(stand, kind, (lambda master=number % 4 == 3: stand.kill(master=master) for number in itertools.count()))


@pytest.mark.parametrize("kind", [SendPart, Complete])
def test_postgresql_killed_at_each_step(stand: Stand, own_postgres: embedded.EmbeddedPostgres, kind: type[SendPart]) -> None:
    hows = itertools.cycle((signal.SIGQUIT, signal.SIGKILL))
    strike_each(stand, kind, (lambda how=how: stand.crash(own_postgres, how) for how in hows))
