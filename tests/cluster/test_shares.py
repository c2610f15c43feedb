"""The download budget of a cluster: what its processes are granted never exceeds it, and is fair between clients (DESIGN 5)."""

from __future__ import annotations

import random

import pytest

from app.cluster import shares
from app.cluster.shares import Shares, Wish, fair_share
from app.http.parts import build_parts
from tests.conftest import MakeHouse
from tests.support.house import House

BUDGET = 1_000_000


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here nobody renews once a second, and on a slow machine nobody's lease is to run out for that."""
    monkeypatch.setattr(shares, "LEASE_SECONDS", 50.0)
    monkeypatch.setattr(shares, "BELIEVED_SECONDS", 40.0)


def wish(*hungry: str, calm: float = 0.0) -> Wish:
    return Wish(frozenset(hungry), calm)


def make(house: House, label: str) -> Shares:
    return Shares(house.parts.database, lambda: label, BUDGET)


def granted(house: House) -> float:
    """By all leases that have not run out."""
    return float(house.value("select coalesce(sum(granted), 0) from arkvory_download_shares where until >= clock_timestamp()"))


@pytest.mark.parametrize(
    ("mine", "others", "expected"),
    [
        (wish("a"), [], 0.95),
        (wish("a"), [wish("b")], 0.475),
        (wish("a"), [wish("b", "c")], 0.95 / 3),
        (wish("a", "b"), [wish("c")], 0.95 * 2 / 3),
        # A client that is here and there is one client.
        (wish("a"), [wish("a"), wish("b")], 0.95 / 4),
        # Whoever does not wait comes first, and leaves the rest to those who do.
        (wish("a"), [wish(calm=80_000)], 0.85),
        (wish(calm=80_000), [wish("a")], 0.1),
        (wish(calm=0), [wish("a")], 0.0),
    ],
)
def test_each_client_gets_the_same_wherever_it_is(mine: Wish, others: list[Wish], expected: float) -> None:
    """But for the little that a process keeps that nobody downloads from."""
    assert fair_share(mine, others, BUDGET) / BUDGET == pytest.approx(expected, abs=0.021)


@pytest.mark.parametrize("seed", range(20))
def test_fair_shares_are_within_the_budget_and_leave_some_of_it_to_who_comes(seed: int) -> None:
    dice = random.Random(seed)
    wishes = [
        wish(*dice.sample("abcdefgh", dice.randrange(0, 5)), calm=dice.choice([0.0, 1e3, 1e5, 1e7])) for _ in range(dice.randrange(1, 40))
    ]
    sums = [fair_share(each, wishes[:at] + wishes[at + 1 :], BUDGET) for at, each in enumerate(wishes)]
    assert 0 <= sum(sums) <= BUDGET * 0.951
    assert min(sums) > 0, "the first download of a process does not stand still"


def test_what_is_granted_never_exceeds_the_budget_whoever_comes_goes_and_wants(house: House) -> None:
    dice = random.Random(3)
    present: list[Shares] = []
    for number in range(60):
        if not present or (len(present) < 6 and dice.random() < 0.3):
            present.append(make(house, f"p{number}"))
        at = dice.choice(present)
        at.renew(wish(*dice.sample("abcdefgh", dice.randrange(0, 4)), calm=dice.choice([0.0, 1e4, 2e6])))
        assert granted(house) <= BUDGET * 1.000001
        assert sum(each.rate() for each in present) <= BUDGET * 1.000001
        if dice.random() < 0.1:
            present.remove(at)
            at.leave()


def settle(*wishes: tuple[Shares, Wish]) -> list[float]:
    """What they have after a second or two, as parts of the budget."""
    for _ in range(3):
        for each, wanted in wishes:
            each.renew(wanted)
    return [each.rate() / BUDGET for each, _ in wishes]


def test_a_newcomer_waits_for_what_the_others_give_up_and_has_something_at_once(house: House) -> None:
    first, second = make(house, "a"), make(house, "b")
    assert settle((first, wish("x"))) == [pytest.approx(0.95, abs=0.02)]
    second.renew(wish("y"))
    assert 0.02 < second.rate() / BUDGET < 0.06
    first.renew(wish("x"))
    second.renew(wish("y"))
    assert first.rate() == pytest.approx(second.rate(), rel=0.05)


def test_the_share_of_a_process_that_died_goes_to_the_others_once_its_lease_has_run_out(house: House) -> None:
    first, dead = make(house, "a"), make(house, "b")
    assert settle((first, wish("x")), (dead, wish("y"))) == [pytest.approx(0.475, abs=0.02)] * 2
    assert settle((first, wish("x"))) == [pytest.approx(0.475, abs=0.02)], "it may be alive"
    house.rows("update arkvory_download_shares set until = now() - interval '1 s' where holder like 'b %'")
    assert settle((first, wish("x"))) == [pytest.approx(0.95, abs=0.02)]
    assert house.value("select count(*) from arkvory_download_shares") == 1


def test_a_process_that_stops_gives_its_share_up_at_once(house: House) -> None:
    first, second = make(house, "a"), make(house, "b")
    settle((first, wish("x")), (second, wish("y")))
    second.leave()
    assert settle((first, wish("x"))) == [pytest.approx(0.95, abs=0.02)]


def test_a_process_that_cannot_renew_its_lease_goes_on_with_an_equal_part_at_most(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lease may be another one's by now; downloads do not stand still for that."""
    first, second = make(house, "a"), make(house, "b")
    settle((first, wish("x", "y", "z")), (second, wish()))
    assert first.rate() > BUDGET * 0.9
    monkeypatch.setattr(shares, "now", lambda: 1e12)
    assert first.rate() == BUDGET / 2
    assert second.rate() < BUDGET * 0.05


def test_a_worker_has_no_share(make_house: MakeHouse) -> None:
    """It sends nothing; and those that do would share the budget with it while PostgreSQL is away."""
    web = make_house(ARKVORY_DEPLOYMENT="cluster", ARKVORY_INSTANCE_ID="vm1", ARKVORY_DOWNLOAD_BYTES_PER_SECOND="100M").parts
    worker = build_parts(web.settings.of_worker())
    assert web.shares is not None and web.pacing is not None
    assert (worker.shares, worker.pacing) == (None, None)
    worker.database.dispose()
