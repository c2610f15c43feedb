"""M1 and M2 with very many instances: what a publish and a poll cost then. The figures stand in docs/consistency.md."""

from __future__ import annotations

import pytest

from app.database.embedded import EmbeddedPostgres
from tests.cluster.conftest import MakeMember
from tests.support import consistency_page
from tests.support.scale import Crowd

# Of the table in docs/consistency.md.
INSTANCES = (0, 10, 50, 200)
PUBLISHING = ("instances", "rows of mail", "WAL, bytes", "median, ms", "99 of 100 below, ms")
POLLING = ("publishes a second", "polls a second", "PostgreSQL, cores", "a poll, µs of CPU", "mail, median, ms", "99 of 100 below, ms")


@pytest.fixture
def crowd(make_member: MakeMember, postgres: EmbeddedPostgres) -> Crowd:
    """Of nobody yet; the one process that is real publishes."""
    member = make_member()
    member.repository(public=True)
    assert postgres.pid is not None
    return Crowd(member, postgres.pid)


def test_m1_a_publish_costs_one_small_row_for_each_instance(crowd: Crowd) -> None:
    alone = crowd.measure_publish(20)
    crowd.grow(100)
    many = crowd.measure_publish(20)
    assert (alone.rows, many.rows) == (0, 100)
    assert many.wal - alone.wal < 100 * 600, "bytes of WAL"
    # How long that takes is measured in long runs, below.


def test_m2_mail_of_many_instances_is_taken_at_their_pace(crowd: Crowd) -> None:
    crowd.grow(50)
    # The best of some: a machine that is shared is slower at times.
    for last in (False, False, False, True):
        found = crowd.measure_polling(3, publishes=5)
        if found.polls > 50 / 0.2 * 0.5 and found.delay < 500:
            return
        assert not last, found


@pytest.mark.soak
def test_the_tables_of_many_instances(crowd: Crowd) -> None:
    publishing = {}
    for count in INSTANCES:
        crowd.grow(count)
        found = crowd.measure_publish(200)
        publishing[f"{count}"] = [f"{found.rows:g}", f"{found.wal:,}", f"{found.median:.1f}", f"{found.slowest:.1f}"]
    consistency_page.write(PUBLISHING, publishing)
    polling = {}
    for publishes in (0, 1, 10):
        each = crowd.measure_polling(15, publishes)
        numbers = (each.polls, each.microseconds, each.delay, each.slowest)
        polls, microseconds, delay, slowest = (f"{number:.0f}" for number in numbers)
        polling[f"{publishes}"] = [polls, f"{each.cores:.2f}", microseconds, delay, slowest]
    consistency_page.write(POLLING, polling)
