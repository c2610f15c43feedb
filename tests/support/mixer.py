"""A random mix of everything that moves uploads; also a program, to be run as one process more over the same database and folder.

    python -m tests.support.mixer URL FOLDER SEED STEPS GREENLETS
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import gevent
from sqlalchemy import text

from app.errors import ArkvoryError, DatabaseAway
from app.repository.publishing import NewFile, Target
from app.upload.receiving import Expected
from tests.support.house import ADMIN, House, sha256

REPOSITORIES = ("one", "two", "three")
# Few paths and few contents: they meet often.
PATHS = tuple(f"p{number}" for number in range(6))
BODIES = tuple(bytes([65 + number]) * (number * 137) for number in range(8))


class Mixer:
    """Does random things until its steps are done; `done` counts them."""

    def __init__(self, house: House, seed: int) -> None:
        self.house = house
        self.random = random.Random(seed)  # a test's mix
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    def run(self, steps: int) -> None:
        actions: list[tuple[int, Callable[[], None]]] = [
            (6, self.publish),
            (2, self.publish_batch),
            (2, self.delete),
            (2, self.read),
            (2, self.fail_digest),
            (1, self.be_cut_off),
            (1, self.abandon),
            (2, self.clean),
        ]
        weights, calls = [weight for weight, _ in actions], [call for _, call in actions]
        for _ in range(steps):
            (call,) = self.random.choices(calls, weights)
            try:
                call()
                self.done[call.__name__] += 1
            except ArkvoryError as error:
                if isinstance(error, DatabaseAway):
                    raise AssertionError("a deadlock or worse") from error
                self.refused[error.code] += 1

    @property
    def target(self) -> Target:
        return Target("raw", self.random.choice(REPOSITORIES), ADMIN)

    def publish(self) -> None:
        self.house.publish(
            self.random.choice(PATHS), self.random.choice(BODIES), self.random.choice(REPOSITORIES),
            told=self.random.random() < 0.5, pieces=self.random.randint(1, 3),
        )  # fmt: skip

    def publish_batch(self) -> None:
        """Several files in one transaction, in any order of their uploads."""
        paths = self.random.sample(PATHS, 3)
        with self.house.parts.publisher.begin(self.target, None) as session:
            received = [session.store(self.random.choice(BODIES)) for _ in paths]
            files = [NewFile(path, each, "text/plain") for path, each in zip(paths, received, strict=True)]
            self.random.shuffle(files)
            session.publish(files)

    def delete(self) -> None:
        self.house.parts.editor.delete(self.target, self.random.sample(PATHS, self.random.randint(1, 2)))

    def read(self) -> None:
        self.house.read(self.random.choice(PATHS), self.random.choice(REPOSITORIES))

    def fail_digest(self) -> None:
        body = self.random.choice(BODIES)
        with self.house.parts.publisher.begin(self.target, "wrong") as session:
            receiver = session.receiver(Expected({"sha256": sha256(body + b"!")}))
            receiver.feed(body)
            session.publish([NewFile("wrong", receiver.finish(), "text/plain")])

    def be_cut_off(self) -> None:
        """The greenlet ends wherever it is."""
        victim = gevent.spawn(self.publish)
        gevent.sleep(self.random.random() * 0.02)
        victim.kill()
        if victim.exception is not None and not isinstance(victim.exception, (ArkvoryError, gevent.GreenletExit)):
            raise victim.exception

    def abandon(self) -> None:
        """As a process that died would leave it: open, with nobody who answers for it, the lease run out."""
        house = self.house
        repository = house.value("select id from arkvory_repositories where name = :name", name=self.random.choice(REPOSITORIES))
        reservation = house.parts.admission.open(repository, self.random.randint(0, 500), "dead")
        house.parts.admission.forget(reservation.id)
        with house.parts.database.write() as connection:
            expire = text("update arkvory_uploads set lease_until = now() - interval '1 s' where id = cast(:id as uuid)")
            connection.execute(expire, {"id": str(reservation.id)})

    def clean(self) -> None:
        self.house.clean()


def run_greenlets(house: House, seed: int, steps: int, greenlets: int) -> Counter[str]:
    """So many at once; what was done in all."""
    mixers = [Mixer(house, seed * 1000 + number) for number in range(greenlets)]
    gevent.joinall([gevent.spawn(each.run, steps) for each in mixers], raise_error=True)
    return sum((each.done for each in mixers), Counter[str]())


def assert_all_is_well(house: House) -> None:
    """At rest: after a cleanup of what is abandoned, everything counted, nothing left, every artifact whole."""
    assert not house.parts.admission.open_uploads
    # Whoever was killed while its COMMIT was on the way has a row that nobody answers for.
    house.rows("update arkvory_uploads set lease_until = now() - interval '1 s' where status = 'open'")
    for _ in range(2):
        gevent.sleep(0.01)
        house.clean()
    house.assert_counted()
    house.assert_published_is_there()
    house.assert_no_strays()
    assert house.value("select count(*) from arkvory_uploads where status in ('open', 'garbage')") == 0
    for repository, path in house.rows(
        "select r.name, a.path from arkvory_artifacts a join arkvory_repositories r on r.id = a.repository_id"
    ):
        house.read(path, repository)


def main() -> None:
    from app.database.pools import patch_for_gevent

    patch_for_gevent()
    url, folder, seed, steps, greenlets = sys.argv[1:]
    house = House(url, Path(folder), owns=False)
    try:
        run_greenlets(house, int(seed), int(steps), int(greenlets))
    finally:
        house.close()


if __name__ == "__main__":
    from gevent import monkey

    monkey.patch_all()
    main()
