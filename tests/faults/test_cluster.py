"""Processes of a cluster when mail, heartbeats, network, PostgreSQL or one of them fail: bounded staleness, nothing lost, recovery.

One cluster for most of them: `vm1`, and `vm2` whose way to PostgreSQL can be cut. Each test leaves it well, since that is the promise.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gevent
import pytest

from app.cluster import mailbox
from app.database import embedded
from tests.conftest import MakeCluster, NewDatabase, drop
from tests.faults.test_servers import Observer, until
from tests.support import pace
from tests.support.database import start, take_down
from tests.support.house import eventually
from tests.support.lines import Answer, Line, lines
from tests.support.pace import LATE_SECONDS, PROBED_SECONDS
from tests.support.proxy import Wire
from tests.support.server import Cluster
from tests.support.timeline import DOORS, Timeline
from tests.support.visibility import CHANGES, UNDONE_FIRST, Stage, measure

BACK_SECONDS = 30.0
PATIENT = {"ARKVORY_LOGIN_FAILURES_PER_NAME": "0", "ARKVORY_LOGIN_FAILURES_PER_ADDRESS": "0"}
# Many more are in test_flips.py.
FLIPS = 20
_LOST = "return null;"
_TWICE_AND_LATE = (
    "new.not_before = clock_timestamp() + make_interval(secs => random() * 0.4); if pg_trigger_depth() = 1 then "
    "insert into arkvory_mail (instance_id, body) values (new.instance_id, new.body); end if; return new;"
)


@dataclass
class Town:
    """The cluster with a stage, a wire to `vm2`'s database and a look at the tables."""

    cluster: Cluster
    wire: Wire
    stage: Stage
    observer: Observer

    @property
    def here(self) -> Line:
        return self.stage.lines[0]

    @property
    def there(self) -> Line:
        """Of the process that things happen to."""
        return self.stage.lines[1]

    def look_again(self) -> Town:
        """Workers may be others than before."""
        self.stage.lines = lines(*self.cluster)
        return self

    @contextlib.contextmanager
    def tampered(self, table: str, when: str, body: str) -> Iterator[None]:
        """A trigger of the test's."""
        rows = self.observer.rows
        rows(f"create or replace function tamper() returns trigger language plpgsql as $$ begin {body} end $$")
        rows(f"create trigger tamper before {when} for each row execute function tamper()".replace("for each", f"on {table} for each"))
        try:
            yield
        finally:
            rows(f"drop trigger tamper on {table}")

    def corrections(self) -> int:
        return sum(int(number) for server in self.cluster for number in re.findall(r"the probe found (\d+) change", server.log()))

    def assert_well(self) -> None:
        """The next writes and reads of each process succeed, and the others hear of them by mail."""
        self.look_again()
        for writer in self.stage.lines:
            until(lambda writer=writer: writer.ask("PUT", "/raw/open/a", b"old", self.stage.admin).status in {201, 204}, BACK_SECONDS)
        eventually(lambda: self.online() >= 2, 40)
        overwrite = next(each for each in CHANGES if each.name == "overwrite")
        # What was lost before is found by a probe, perhaps only now.
        for _ in range(3):
            before = self.corrections()
            assert measure(self.stage, overwrite, 2).latest < LATE_SECONDS
            if self.corrections() == before:
                return
        raise AssertionError("the probe goes on finding what no message told")

    def online(self) -> int:
        """Servers of which a process is; the row of one that was killed stays for a while."""
        young = "heartbeat_at > clock_timestamp() - interval '15 s'"
        return int(self.observer.value(f"select count(distinct name) from arkvory_instances where {young}"))


@pytest.fixture(scope="module")
def built(
    postgres: embedded.EmbeddedPostgres, new_database: NewDatabase, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Town]:
    url = new_database(template)
    wire = Wire(url)
    cluster = Cluster(tmp_path_factory.mktemp("town"), url, masters=1, workers=1, **PATIENT)
    cluster.add(ARKVORY_DATABASE_URL=wire.url)
    try:
        cluster.start()
        yield Town(cluster, wire, Stage(cluster[0].admin, lines(*cluster)).prepare(), Observer(cluster[0]))
    finally:
        wire.thaw()
        cluster.close()
        wire.close()
        drop(postgres, url)


@pytest.fixture
def town(built: Town) -> Iterator[Town]:
    yield built.look_again()
    built.assert_well()


def refused_or_right(answer: Answer, *right: bytes) -> bool:
    """While something is broken: an honest 503, or one of these."""
    if answer.status == 503:
        assert "Retry-After" in answer.headers
        return True
    return answer.status == 200 and answer.body in right


def await_right(ask: Callable[[], Any], before: Any, after: Any, since: float) -> None:
    """Nobody says what was before for longer than a probe, whatever else they say meanwhile."""
    while True:
        asked = pace.now()
        found = ask()
        if found == after:
            return
        assert found != before or pace.within(PROBED_SECONDS, since, asked), found
        assert pace.within(BACK_SECONDS, since, asked), found
        gevent.sleep(0.05)


# -- timelines


def close_all(timelines: list[Timeline]) -> None:
    """Whatever a former test left open."""
    for each in timelines:
        if each.door.name in {"token revoked", "role"}:
            each.door.open(each.stage, each.writer)
        each.close()


@pytest.mark.parametrize("door", DOORS, ids=[each.name for each in DOORS])
def test_what_is_closed_is_closed_at_once_where_it_was_closed_and_within_seconds_elsewhere(town: Town, door: Any) -> None:
    """Promises 1 and 2, C8: also nobody ever sees what was stored while it was closed."""
    timeline = Timeline(town.stage, door, town.here)
    close_all([timeline])
    before = town.corrections()
    with timeline.watched(town.stage.lines, 2):
        for _ in range(FLIPS):
            timeline.cycle(0.03)
        # Once for all to see.
        timeline.open()
        eventually(lambda: timeline.is_seen_by(town.stage.lines))
        timeline.close()
        gevent.sleep(0.5)
    assert not timeline.wrong(LATE_SECONDS)
    assert timeline.asked > 4 * FLIPS
    assert town.corrections() == before
    timeline.door.open(town.stage, town.here)


def test_m5_what_is_closed_is_closed_within_a_probe_when_every_message_is_lost(town: Town) -> None:
    timelines = [Timeline(town.stage, each, town.here, fresh=False) for each in DOORS]
    close_all(timelines)
    before = town.corrections()
    with open_and_watched(town, timelines):
        with town.tampered("arkvory_mail", "insert", _LOST):
            for each in timelines:
                each.close()
            eventually(lambda: not any(each.is_shown for each in timelines))
        gevent.sleep(0.5)
    for each in timelines:
        assert not each.wrong(PROBED_SECONDS)
    assert town.corrections() > before


def test_c8_what_is_stored_after_the_closing_is_not_shown_though_nobody_heard_of_the_closing(town: Town) -> None:
    timelines = [Timeline(town.stage, each, town.here) for each in DOORS]
    close_all(timelines)
    with open_and_watched(town, timelines), town.tampered("arkvory_mail", "insert", _LOST):
        for each in timelines:
            each.close()
            each.renew()
        gevent.sleep(0.7)
    for each in timelines:
        assert not each.wrong(PROBED_SECONDS)


@contextlib.contextmanager
def open_and_watched(town: Town, timelines: list[Timeline]) -> Iterator[None]:
    """All of them, seen by every process; at the end they are open, whatever happened."""
    try:
        with contextlib.ExitStack() as watching:
            for each in timelines:
                each.open()
            for each in timelines:
                watching.enter_context(each.watched(town.stage.lines))
            eventually(lambda: all(each.is_seen_by(town.stage.lines) for each in timelines))
            yield
    finally:
        for each in timelines:
            each.door.open(each.stage, each.writer)
        # A new token is no change of its user: nobody would hear of the loss of the former one before the next probe.
        town.stage.call(town.here, "DELETE", "/groups/team/members/ann")


# -- mail


def test_m2_messages_that_come_twice_late_and_in_any_order_do_no_harm(town: Town) -> None:
    with town.tampered("arkvory_mail", "insert", _TWICE_AND_LATE):
        for change in CHANGES:
            if change.name in {"status", "public flag", "overwrite", "quarantine", "user disabled", "rename"}:
                assert measure(town.stage, change, 2).latest < LATE_SECONDS + 0.4, change.name


def test_m3_a_mailbox_full_of_what_cannot_be_read_holds_up_nothing(town: Town) -> None:
    rows = town.observer.rows
    dead = town.observer.value("select count(*) from arkvory_dead_letters")
    overwrite = next(each for each in CHANGES if each.name == "overwrite")
    for body in ("{}", "[]", '{"repository": "x"}', '{"users": [[1]], "installation": null}'):
        rows("insert into arkvory_mail (instance_id, body) select id, cast(:body as jsonb) from arkvory_instances", body=body)
        assert measure(town.stage, overwrite, 1).latest < LATE_SECONDS
    count = "select count(*) from arkvory_dead_letters"
    eventually(lambda: town.observer.value(count) >= dead + 8, sum(mailbox.RETRIES) + 30)
    assert town.observer.value("select count(*) from arkvory_mail where attempts > 0") == 0


# -- membership


def test_m4_a_process_that_cannot_write_its_heartbeat_lives_by_the_probe_and_comes_back(town: Town) -> None:
    """Silent for more than 30 s, so that nobody sends it anything."""
    rows = town.observer.rows
    refuse = "if new.heartbeat_at > old.heartbeat_at and old.name = 'vm2' then raise exception 'not now'; end if; return new;"
    assert town.there.get("/raw/open/a").body == b"old"
    with town.tampered("arkvory_instances", "update", refuse):
        rows("update arkvory_instances set heartbeat_at = heartbeat_at - interval '31 s' where name = 'vm2'")
        known = town.observer.value("select count(*) from arkvory_mail")
        town.stage.put(town.here, "/raw/open/a", b"new")
        changed = pace.now()
        assert town.observer.value("select count(*) from arkvory_mail") == known
        await_right(lambda: town.there.get("/raw/open/a").body, b"old", b"new", changed)
    eventually(lambda: "begins anew with empty memory" in town.cluster[1].log())


def test_m7_a_delete_that_was_under_way_when_a_process_joined_does_not_leave_it_stale(town: Town) -> None:
    """The sender has posted, to those that it saw, and waits; meanwhile another joins and reads."""
    town.stage.put(town.here, "/raw/open/gone", b"old")
    late = town.cluster.add()
    observer = town.observer
    from sqlalchemy import create_engine, text
    from sqlalchemy.pool import NullPool

    with create_engine(observer.url, poolclass=NullPool).connect() as holding:
        holding.execute(text("lock table arkvory_uploads in share mode"))
        deleting = gevent.spawn(town.stage.call, town.here, "DELETE", "/repositories/open/artifacts/gone")
        waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%update arkvory_uploads%'"
        eventually(lambda: observer.value(waits) > 0)
        late.start()
        try:
            (line,) = lines(late)
            for _ in range(5):
                assert line.get("/raw/open/gone").body == b"old", "it is not committed"
            holding.rollback()
            deleting.get(timeout=30)
            assert line.get("/raw/open/gone").status == 404, "in its next read"
        finally:
            late.close()
            town.cluster.remove(late)


# -- suspension


@pytest.mark.parametrize("seconds", [6, pytest.param(45, marks=pytest.mark.soak)])
def test_m6_a_process_that_was_stopped_answers_nothing_old_when_it_goes_on(town: Town, seconds: int) -> None:
    assert town.there.get("/raw/open/a").body == b"old"
    begun = town.cluster[1].log().count("begins anew with empty memory")
    patient = Line(town.there.server, town.there.worker, seconds + 30)
    assert patient.get("/raw/open/a").body == b"old"
    os.kill(town.there.worker, signal.SIGSTOP)
    try:
        gevent.sleep(0.5)
        town.stage.put(town.here, "/raw/open/a", b"new")
        # Asked while it is stopped, and waiting in its socket.
        waiting = gevent.spawn(patient.get, "/raw/open/a")
        gevent.sleep(seconds - 0.5)
    finally:
        os.kill(town.there.worker, signal.SIGCONT)
    assert waiting.get(timeout=30).body == b"new"
    for _ in range(20):
        assert town.there.get("/raw/open/a").body == b"new"
    if seconds > 30:
        # Nobody sent it anything any more: its next heartbeat makes another incarnation of it (M4).
        eventually(lambda: town.cluster[1].log().count("begins anew with empty memory") > begun, 15)


# -- the way to PostgreSQL


def test_m6_a_process_that_is_cut_off_says_so_rather_than_answer_from_old_memory(town: Town) -> None:
    assert town.there.get("/raw/open/a").body == b"old"
    town.wire.freeze()
    try:
        town.stage.put(town.here, "/raw/open/a", b"new")
        changed = pace.now()
        while True:
            began = pace.now()
            answer = town.there.get("/raw/open/a")
            assert refused_or_right(answer, b"old") and pace.within(6, began)
            if answer.status == 503:
                break
            assert pace.within(PROBED_SECONDS, changed, began), "it cannot know"
            gevent.sleep(0.1)
    finally:
        town.wire.thaw()
    eventually(lambda: town.there.get("/raw/open/a").status == 200, BACK_SECONDS)
    assert town.there.get("/raw/open/a").body == b"new"


@pytest.mark.parametrize("pause", [0.0, 3.0], ids=["its connections broken", "its network gone for 3 s"])
def test_x_2_what_was_revoked_is_revoked_though_a_process_has_just_lost_its_mailbox(town: Town, pause: float) -> None:
    """HO-X-2, M2: the message waits for it; 503 until it has it, or its memory for no longer than a probe."""
    stage = town.stage
    # It would be another way in.
    town.here.ask("DELETE", "/api/v1/roles/readers/holders/user:ann", auth=stage.admin)
    for change in (each for each in CHANGES if each.name in {"token revoked", "user disabled", "public flag", "group membership"}):
        change.undo(stage, town.here)
        eventually(lambda change=change: change.ask(stage, town.there) == change.before, BACK_SECONDS)
        town.wire.freeze() if pause else town.wire.cut()
        try:
            change.make(stage, town.here)
            closed = pace.now()
            assert change.ask(stage, town.here) == change.after
            gevent.sleep(pause)
        finally:
            town.wire.thaw()
        await_right(lambda change=change: change.ask(stage, town.there), change.before, change.after, closed)
        if change.name not in UNDONE_FIRST:
            change.undo(stage, town.here)


# -- death


@contextlib.contextmanager
def dying(town: Town, act: Callable[[Line], Any], *messages: bytes, behind: bool) -> Iterator[None]:
    """`vm2` does it, and is killed at that moment; inside, it is dead, and afterwards its successor serves."""
    line = town.there
    town.wire.hold(*messages, behind=behind)
    doing = gevent.spawn(lambda: contextlib.suppress(Exception).__enter__() or act(line))
    assert town.wire.stopped.wait(30), "it never came there"
    os.kill(line.worker, signal.SIGKILL)
    with contextlib.suppress(Exception):
        doing.get(timeout=30)
    yield
    eventually(lambda: town.cluster[1].workers() not in ([], [line.worker]))
    town.cluster[1].wait_until_ready()
    town.look_again()


def test_m1_what_was_committed_is_known_to_all_though_its_process_died_before_it_forgot_anything(town: Town) -> None:
    assert [each.get("/raw/open/a").body for each in town.stage.lines] == [b"old", b"old"]
    close = lambda line: line.ask("PATCH", "/api/v1/repositories/open", {"public": False}, town.stage.admin)  # noqa: E731
    with dying(town, close, b"insert into arkvory_mail", b"COMMIT", behind=True):
        closed = pace.now()
        await_right(lambda: town.here.get("/raw/open/a").status, 200, 401, closed)
    assert town.there.get("/raw/open/a").status == 401
    town.stage.call(town.here, "PATCH", "/repositories/open", {"public": True})


def test_c4_a_process_that_dies_between_reading_a_repository_and_filling_its_row_leaves_nothing_wrong(town: Town) -> None:
    town.observer.rows("delete from arkvory_cache_rows")
    # Its memory forgets, so that it reads again.
    town.stage.call(town.here, "PATCH", "/repositories/open", {"status": "offline"})
    eventually(lambda: town.there.get("/raw/open/a").status == 503)
    town.stage.call(town.here, "PATCH", "/repositories/open", {"status": "online"})
    town.observer.rows("delete from arkvory_cache_rows")
    with dying(town, lambda line: _read_until_killed(line), b"insert into arkvory_cache_rows", behind=False):
        town.stage.call(town.here, "PATCH", "/repositories/open", {"public": False})
        assert town.here.get("/raw/open/a").status == 401
    assert town.there.get("/raw/open/a").status == 401
    town.stage.call(town.here, "PATCH", "/repositories/open", {"public": True})


def _read_until_killed(line: Line) -> None:
    while True:
        line.get("/raw/open/a")
        gevent.sleep(0.01)


# -- PostgreSQL


@pytest.mark.parametrize("away", [7, pytest.param(60, marks=pytest.mark.soak)])
def test_postgresql_restarts_or_is_away_and_everything_goes_on(
    private_postgres: embedded.EmbeddedPostgres, make_cluster: MakeCluster, away: int
) -> None:
    """Bounded: nothing hangs, nothing old, nothing lost; then writes, reads and mail go on in every process."""
    cluster = make_cluster(masters=2, workers=1, database_url=private_postgres.url, **PATIENT)
    stage = Stage(cluster[0].admin, lines(*cluster)).prepare()
    for how, seconds in ((signal.SIGINT, 1), (signal.SIGQUIT, away)):
        stage.put(stage.lines[0], "/raw/open/a", b"old")
        for line in stage.lines:
            eventually(lambda line=line: line.get("/raw/open/a").body == b"old")
        take_down(private_postgres, how)
        down = pace.now()
        while time.monotonic() - down < seconds:
            _ask_while_it_is_away(stage, down)
        start(private_postgres.data)
        for line in stage.lines:
            until(lambda line=line: line.ask("PUT", "/raw/open/b", b"x", stage.admin).status in {201, 204}, BACK_SECONDS)
            assert line.get("/raw/open/a").body == b"old"
        overwrite = next(each for each in CHANGES if each.name == "overwrite")
        until(lambda overwrite=overwrite: measure(stage, overwrite, 1).latest < LATE_SECONDS, BACK_SECONDS)


def _ask_while_it_is_away(stage: Stage, down: float) -> None:
    for line in stage.lines:
        began = pace.now()
        answer = line.get("/raw/open/a")
        assert refused_or_right(answer, b"old")
        assert answer.status == 503 or pace.within(PROBED_SECONDS, down, began), "its memory is too old"
        refused = line.ask("PUT", "/raw/open/b", b"new", stage.admin)
        assert refused.status == 503 and "Retry-After" in refused.headers
        assert pace.within(15, began)
    gevent.sleep(0.1)
