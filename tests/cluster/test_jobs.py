"""Each job has one runner at a time, is taken over when that one dies, and a failure costs nothing but another try (DESIGN 4)."""

from __future__ import annotations

from collections.abc import Iterator

import gevent
import pytest
from gevent.event import Event
from sqlalchemy import Connection

from app.cluster import leases, schedule
from app.errors import LockLost, Unavailable
from app.jobs import running
from app.jobs.job import Family, Job, Run
from app.jobs.running import JobRunner
from tests.cluster.conftest import MakeMember
from tests.conftest import MakeHouse
from tests.support.house import House, eventually


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "RENEW_SECONDS", 0.05)
    monkeypatch.setattr(running, "LOOK_SECONDS", {"worker": 0.05, "web": 0.05, "single": 0.2})
    monkeypatch.setattr(schedule, "RETRY_SECONDS", 0.1)


class Runners(list[JobRunner]):
    def of(self, house: House, *jobs: Job, kind: str = "worker", families: tuple[Family, ...] = ()) -> JobRunner:
        """One that looks for these jobs from now on."""
        self.append(JobRunner(house.parts, kind, jobs, families))
        self[-1].start()
        return self[-1]


@pytest.fixture
def runners() -> Iterator[Runners]:
    made = Runners()
    yield made
    for each in made:
        each.begin_nothing()


class Work:
    """A job that notes who runs it, and goes on until it is let go."""

    def __init__(self, name: str = "work", every_seconds: float = 60.0) -> None:
        self.name = name
        self.every_seconds = every_seconds
        self.runs: list[str] = []
        self.ended: list[str] = []
        self.go = Event()
        self.go.set()

    def by(self, who: str) -> Job:
        def run(this: Run) -> str:
            self.runs.append(who)
            try:
                self.go.wait()
                return f"{who} did it"
            finally:
                self.ended.append(who)

        return Job(self.name, self.every_seconds, run, "does something")


def entry(house: House, name: str = "work") -> schedule.Entry:
    with house.parts.database.read() as connection:
        return next(each for each in schedule.entries(connection) if each.name == name)


def ended(house: House, name: str = "work") -> bool:
    return any(house.rows("select 1 from arkvory_jobs where name = :name and ended_at is not null and not running", name=name))


def let_run_out(house: House) -> None:
    """As half a minute after the last sign of life."""
    house.rows("update arkvory_leases set until = clock_timestamp() - interval '1 s'")


def test_a_job_of_a_single_node_runs_at_once_and_its_row_tells_what_became_of_it(house: House, runners: Runners, hasty: None) -> None:
    work = Work()
    runners.of(house, work.by("me"))
    eventually(lambda: ended(house))
    found = entry(house)
    assert (found.outcome, found.said, found.runner, found.failures, found.running) == ("done", "me did it", "this server", 0, False)
    assert found.succeeded_at is not None and found.began_at is not None
    assert 55 < (found.next_at - found.began_at).total_seconds() < 61
    gevent.sleep(0.5)
    assert work.runs == ["me"]


def test_a_job_that_fails_is_tried_again_and_stops_no_other(house: House, runners: Runners, hasty: None) -> None:
    tries: list[int] = []
    seen = Event()

    def fail_twice(run: Run) -> str:
        tries.append(1)
        if len(tries) > 1:
            seen.wait()
        if len(tries) < 3:
            raise (Unavailable("the weather is bad") if len(tries) == 1 else ValueError("a fault of the program"))
        return "at last"

    other = Work("other", 0.2)
    runners.of(house, Job("work", 60.0, fail_twice, "fails"), other.by("me"))
    eventually(lambda: house.rows("select 1 from arkvory_jobs where name = 'work' and outcome = 'failed'"))
    assert entry(house).said == "the weather is bad"
    seen.set()
    eventually(lambda: entry(house).outcome == "done")
    assert (len(tries), entry(house).failures, entry(house).said) == (3, 0, "at last")
    assert len(other.runs) >= 1


def test_of_several_processes_one_runs_a_job(make_member: MakeMember, runners: Runners, hasty: None) -> None:
    work = Work(every_seconds=0.6)
    work.go.clear()
    members = [make_member(), make_member()]
    for number, each in enumerate(members):
        runners.of(each, work.by(str(number)))
    eventually(lambda: work.runs)
    for _ in range(3):
        # As if most of its lease were over.
        members[0].rows("update arkvory_leases set until = clock_timestamp() + interval '5 s'")
        gevent.sleep(0.1)
        eventually(lambda: members[0].value("select until > clock_timestamp() + interval '15 s' from arkvory_leases"))
    assert len(work.runs) == 1, "longer than a lease, which is renewed"
    work.go.set()
    eventually(lambda: len(work.runs) >= 3)


def test_what_a_runner_that_died_left_is_gone_on_with_elsewhere(make_member: MakeMember, runners: Runners, hasty: None) -> None:
    """Killed, it neither renews its lease nor writes the end of its run."""
    first, second = make_member(), make_member()
    work = Work()
    assert first.parts.leases is not None
    first.parts.schedule.plan([schedule.Planned("work", 60.0, "")])
    assert first.parts.leases._take("work", "here/0 dead", 30.0)
    begun = first.parts.schedule.begin("work", "here/0")
    assert begun is not None
    runners.of(second, work.by("second"))
    gevent.sleep(0.4)
    assert not work.runs, "the lease of the dead has not run out yet"
    let_run_out(first)
    eventually(lambda: ended(second))
    assert (work.runs, entry(second).outcome) == (["second"], "done")
    assert not first.parts.schedule.end("work", begun.number, "done", "late"), "only the latest run writes its end"
    assert entry(second).said == "second did it"


def test_a_runner_that_stood_still_for_too_long_does_nothing_more(
    make_member: MakeMember, runners: Runners, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after SIGSTOP: its lease is another one's, and it knows so by its clock before it does anything else."""
    first, second = make_member(), make_member()
    assert first.parts.leases is not None
    refused: list[type[Exception]] = []
    stands_still, goes_on = Event(), Event()

    def job(run: Run) -> str:
        run.check()
        stands_still.set()
        goes_on.wait()
        try:
            run.check()
        except LockLost as error:
            refused.append(type(error))
            raise
        return "did what it may not"

    monkeypatch.setattr(first.parts.leases, "_keep", lambda name, holder, working: working.join())
    runners.of(first, Job("work", 60.0, job, ""))
    assert stands_still.wait(30)
    work = Work()
    runners.of(second, work.by("second"))
    let_run_out(first)
    eventually(lambda: work.ended)
    eventually(lambda: ended(second))
    real = leases.now
    monkeypatch.setattr(leases, "now", lambda: real() + leases.LEASE_SECONDS)
    goes_on.set()
    eventually(lambda: refused)
    eventually(lambda: not runners[0].running)
    assert (entry(second).said, entry(second).outcome) == ("second did it", "done")


def test_a_runner_that_is_told_to_stop_leaves_its_job_to_the_next_at_once(make_member: MakeMember, runners: Runners) -> None:
    first, second = make_member(), make_member()
    work = Work()
    work.go.clear()
    leaving = runners.of(first, work.by("first"))
    eventually(lambda: work.runs)
    leaving.begin_nothing()
    assert (work.ended, entry(first).outcome, entry(first).running) == (["first"], "stopped", False)
    work.go.set()
    runners.of(second, work.by("second"))
    eventually(lambda: work.ended == ["first", "second"])


def test_web_processes_run_what_no_worker_does(
    make_member: MakeMember, runners: Runners, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    web = make_member()
    work = Work(every_seconds=0.2)
    runners.of(web, work.by("web"), kind="web")
    eventually(lambda: len(work.runs) >= 2)
    web.rows("insert into arkvory_instances (name, slot, kind, host, pid, version) values ('there', 0, 'worker', 'x', 1, '1')")
    gevent.sleep(0.5)
    before = len(work.runs)
    gevent.sleep(1)
    assert len(work.runs) == before, "a worker lives: its work is left to it"
    monkeypatch.setattr(running, "PATIENCE_SECONDS", 0.3)
    eventually(lambda: len(work.runs) > before)


def test_a_job_that_somebody_asks_for_runs_at_once_and_once_more_when_it_is_at_work(
    make_house: MakeHouse, runners: Runners, hasty: None
) -> None:
    house = make_house()
    work = Work()
    runners.of(house, work.by("me"))
    eventually(lambda: ended(house))
    work.go.clear()

    def ask() -> None:
        with house.parts.database.write() as connection:
            assert schedule.ask(connection, "work")
            assert not schedule.ask(connection, "another")
        house.parts.schedule.changed.set()

    ask()
    eventually(lambda: len(work.runs) == 2)
    ask()
    gevent.sleep(0.3)
    assert len(work.runs) == 2
    work.go.set()
    eventually(lambda: len(work.ended) == 3)


def test_jobs_of_a_family_come_and_go_with_their_rows(make_member: MakeMember, runners: Runners, hasty: None) -> None:
    member = make_member()
    names = {"one", "two"}
    ran: list[str] = []

    def of(name: str) -> Job:
        return Job(f"mirror/{name}", 60.0, lambda run: ran.append(name), "")

    runners.of(member, families=(Family("mirror", lambda connection: [of(each) for each in sorted(names)]),))
    eventually(lambda: sorted(ran) == ["one", "two"])
    names.remove("two")
    eventually(lambda: [row[0] for row in member.rows("select name from arkvory_jobs")] == ["mirror/one"])


def test_a_family_of_which_too_many_run_keeps_no_other_from_its_turn_and_the_longest_wait_ends_first(
    make_member: MakeMember, runners: Runners, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "MOST_OF_FAMILY", 2)
    member = make_member()
    works = [Work(f"mirror/{number}") for number in range(4)]
    for each in works:
        each.go.clear()
    other = Work("completion/1")
    mirrors = Family("mirror", lambda connection: [each.by("me") for each in works])
    member.parts.schedule.plan([schedule.Planned(each.name, 60.0, "") for each in works])
    member.rows("update arkvory_jobs set next_at = now() - make_interval(mins => substring(name from 8)::int)")
    runners.of(member, families=(mirrors, Family("completion", lambda connection: [other.by("me")])))
    eventually(lambda: other.ended and works[3].runs and works[2].runs)
    gevent.sleep(0.3)
    assert not works[0].runs and not works[1].runs
    works[3].go.set()
    eventually(lambda: works[1].runs)
    assert not works[0].runs
    for each in works:
        each.go.set()
    eventually(lambda: works[0].ended)


def test_a_family_that_cannot_be_told_stops_no_other_job_and_loses_none(make_member: MakeMember, runners: Runners, hasty: None) -> None:
    member = make_member()
    good = [True]
    ran: list[str] = []

    def find(connection: Connection) -> list[Job]:
        if not good[0]:
            raise ValueError("a fault of the program")
        return [Job("mirror/one", 60.0, lambda run: ran.append("one"), "")]

    work = Work(every_seconds=0.2)
    runners.of(member, work.by("me"), families=(Family("mirror", find),))
    eventually(lambda: ran)
    good[0] = False
    before = len(work.runs)
    eventually(lambda: len(work.runs) > before + 1)
    assert [row[0] for row in member.rows("select name from arkvory_jobs order by name")] == ["mirror/one", "work"]


def test_a_run_says_what_it_is_at(make_member: MakeMember, runners: Runners, hasty: None) -> None:
    member = make_member()
    go = Event()

    def job(run: Run) -> None:
        run.tell("3 of 10")
        go.wait()

    runners.of(member, Job("work", 60.0, job, ""))
    eventually(lambda: entry(member).said == "3 of 10" if member.rows("select 1 from arkvory_jobs") else False)
    assert entry(member).running
    go.set()
    eventually(lambda: ended(member))
    assert entry(member).said == "3 of 10", "until it says something else"


def test_a_clock_that_was_set_back_puts_nothing_off(house: House, runners: Runners, hasty: None) -> None:
    """Times of before lie in the future by then."""
    work = Work()
    runner = runners.of(house, work.by("me"))
    eventually(lambda: ended(house))
    runner.begin_nothing()
    house.rows("update arkvory_jobs set next_at = next_at + interval '1 day', began_at = began_at + interval '1 day'")
    runners.of(house, work.by("again"))
    eventually(lambda: work.runs == ["me", "again"] and ended(house))
    gevent.sleep(0.5)
    assert work.runs == ["me", "again"], "and then it rests as ever"
