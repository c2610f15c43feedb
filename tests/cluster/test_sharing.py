"""Sharing the storage: names, slots and the generation of a cluster, in one process (DESIGN 4, 5)."""

from __future__ import annotations

from collections.abc import Callable

import gevent
import pytest

from app.cluster.instance import Instance
from app.cluster.sharing import SharedOwnership
from app.errors import NotOwner
from tests.conftest import MakeHouse
from tests.support.house import House

MakeProcess = Callable[..., House]


@pytest.fixture
def process(make_house: MakeHouse) -> MakeProcess:
    """A process of a cluster that holds its name and slot: process("a", master="1")."""

    def make(name: str = "a", master: str = "1", *, wait: float = 0.0) -> House:
        house = make_house(owns=False, ARKVORY_DEPLOYMENT="cluster", ARKVORY_INSTANCE_ID=name, ARKVORY_DATABASE_POOL_SIZE="4")
        house.parts.instance = shared(house).instance = Instance(name, master)
        house.parts.ownership.generation = None
        shared(house).acquire(wait)
        return house

    return make


def shared(house: House) -> SharedOwnership:
    assert isinstance(house.parts.ownership, SharedOwnership)
    return house.parts.ownership


def label(house: House) -> str:
    assert house.parts.instance is not None
    return house.parts.instance.label


def break_sessions(house: House) -> None:
    """As a restart of PostgreSQL does it, or a network that breaks: every lock is free."""
    assert house.rows(
        "select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and granted and classid = 18471 and objid = 1 "
        "and objsubid = 2 and database = (select oid from pg_database where datname = current_database())"
    )


def check(*houses: House) -> None:
    """What the loop does every two seconds; twice, since a broken session is only found to be broken by the first."""
    for _ in range(2):
        for each in houses:
            shared(each)._check()


def test_each_process_of_a_master_takes_the_lowest_free_slot(process: MakeProcess) -> None:
    first, second, third = process(), process(), process()
    assert [label(each) for each in (first, second, third)] == ["a/0", "a/1", "a/2"]
    second.parts.ownership.release()
    assert label(process()) == "a/1"
    assert label(process("b", "2")) == "b/0"


def test_all_processes_write_under_one_generation(process: MakeProcess, house: House) -> None:
    house.parts.ownership.release()
    first, second = process(), process("b", "2")
    assert shared(first).generation == shared(second).generation == first.value("select generation from arkvory_owner")
    first.repository("files", public=True)
    second.publish("x", b"1")


def test_s1_a_single_node_that_lingers_writes_nothing_once_a_cluster_has_begun(process: MakeProcess, house: House) -> None:
    house.repository("files")
    break_sessions(house)
    member = process()
    with pytest.raises(NotOwner):
        house.publish("late", b"x")
    member.publish("x", b"1")


def test_s1_a_cluster_does_not_begin_beside_a_single_node_nor_the_other_way(
    process: MakeProcess, house: House, make_house: MakeHouse
) -> None:
    with pytest.raises(NotOwner, match=r"a single Arkvory owns this storage \(process \d+ on .+\) and did not leave within 0.3 s"):
        process(wait=0.3)
    house.parts.ownership.release()
    member = process()
    single = make_house(owns=False)
    with pytest.raises(NotOwner, match=r"owns this storage \(a cluster, 1 of its processes run\).*ARKVORY_DEPLOYMENT=cluster"):
        single.parts.ownership.acquire(0.3)
    member.parts.ownership.release()
    single.parts.ownership.acquire(5)


def test_a_name_is_one_masters_while_any_of_its_processes_lives(process: MakeProcess) -> None:
    first, second = process(), process()
    with pytest.raises(NotOwner, match=r"another server on \S+ is ARKVORY_INSTANCE_ID=a and did not leave .* its own ARKVORY_INSTANCE_ID"):
        process(master="2", wait=0.3)
    first.parts.ownership.release()
    waiting = gevent.spawn(process, master="2", wait=10)
    gevent.sleep(0.5)
    assert not waiting.ready()
    second.parts.ownership.release()
    assert label(waiting.get(timeout=10)) == "a/0"


def test_a_lost_session_is_taken_again_with_the_same_slot_and_writing_goes_on_meanwhile(process: MakeProcess) -> None:
    first, second = process(), process()
    first.repository("files")
    first.parts.ownership.release()
    break_sessions(second)
    second.publish("x", b"written without a session")
    check(second)
    assert (label(second), second.parts.ownership.held) == ("a/1", True)
    assert label(process()) == "a/0"
    with pytest.raises(NotOwner):
        process(master="2")


def test_a_slot_that_went_to_another_process_meanwhile_is_left_to_it(process: MakeProcess) -> None:
    first = process()
    break_sessions(first)
    successor = process()
    assert label(successor) == "a/0"
    check(first)
    assert (label(first), first.parts.ownership.held) == ("a/1", True)


def test_a_process_whose_name_went_to_another_master_meanwhile_ends(process: MakeProcess) -> None:
    first, second = process(), process()
    first.repository("files")
    break_sessions(first)
    stranger = process(master="2")
    check(first, second)
    for each in (first, second):
        assert each.parts.ownership.lost
        with pytest.raises(NotOwner):
            each.publish("x", b"1")
    stranger.publish("x", b"2")


def test_a_process_ends_when_a_single_node_took_the_storage_over_meanwhile(process: MakeProcess, make_house: MakeHouse) -> None:
    member = process()
    member.repository("files")
    break_sessions(member)
    single = make_house(owns=False)
    single.parts.ownership.acquire(5)
    with pytest.raises(NotOwner):
        member.publish("x", b"1")
    assert member.parts.ownership.lost
    single.publish("x", b"2")
    single.parts.ownership.release()
    check(member)
    assert member.parts.ownership.lost, "it is replaced, and does not come back with its old memory"


def test_without_a_good_check_for_long_a_process_of_a_cluster_keeps_writing(process: MakeProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """The generation decides: nobody else can have taken the storage without counting it up."""
    member = process()
    member.repository("files")
    monkeypatch.setattr("app.cluster.ownership.LOST_AFTER_SECONDS", 0.0)

    def fail() -> bool:
        raise NotOwner("PostgreSQL does not answer")

    monkeypatch.setattr(member.parts.ownership, "_still_mine", fail)
    check(member)
    member.publish("x", b"1")
