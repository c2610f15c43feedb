"""M4, M6 and M7: a process that was silent, stopped, cut off or just born is never more wrong than the bound."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gevent
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from app.cluster import loop as loops
from app.cluster import mailbox, membership, probe
from app.errors import DatabaseAway
from tests.cluster.conftest import Clock, MakeMember
from tests.conftest import MakePause
from tests.support import pace
from tests.support.house import House, eventually
from tests.support.proxy import Wire

Pair = tuple[House, House]
StandStill = Callable[[House], None]


@pytest.fixture
def files(pair: Pair) -> int:
    writer, reader = pair
    number = writer.repository(public=True)
    writer.publish("a", b"old")
    # What a message that comes later tells would drop what the reader remembers.
    eventually(lambda: writer.value("select count(*) from arkvory_mail") == 0)
    assert reader.outcome("a") == b"old"
    return number


# -- the probe


def test_m5_a_change_whose_message_was_lost_is_found_by_the_probe_and_counted(pair: Pair, files: int, stand_still: StandStill) -> None:
    writer, reader = pair
    stand_still(reader)
    writer.publish("a", b"new")
    writer.rows("delete from arkvory_mail")
    assert reader.outcome("a") == b"old", "it cannot know"

    reader.loop._turn_of(reader.loop._probe)

    assert reader.outcome("a") == b"new"
    assert reader.loop.corrections == 1


def test_m5_what_a_message_tells_is_no_correction(pair: Pair, files: int, stand_still: StandStill) -> None:
    writer, reader = pair
    stand_still(reader)
    writer.publish("a", b"new")
    writer.change("files", public=False)
    writer.user("ann")
    writer.disable("ann")
    reader.loop._turn_of(reader.loop._probe)
    assert reader.outcome("a") == "unauthenticated"
    assert reader.loop.corrections == 0


def test_m5_a_deleted_repository_and_a_deleted_user_are_found(pair: Pair, files: int, stand_still: StandStill) -> None:
    writer, reader = pair
    ann = writer.user("ann")
    secret = writer.token("ann")
    # What the mail tells is no correction.
    eventually(lambda: writer.value("select count(*) from arkvory_mail") == 0)
    assert reader.outcome("a", secret=secret) == b"old"
    stand_still(reader)
    writer.rows("update arkvory_repositories set deleted_at = now() where id = :id", id=files)
    writer.rows("delete from arkvory_users where id = :id", id=ann)
    reader.loop._turn_of(reader.loop._probe)
    assert reader.loop.corrections == 2
    assert reader.outcome("a", secret=secret) == "unauthenticated"
    assert reader.outcome("a") == "unauthenticated", "nobody learns that it is gone"
    reader.loop._turn_of(reader.loop._probe)
    assert reader.loop.corrections == 2


def test_m5_own_commits_are_no_corrections(pair: Pair, files: int, pause: MakePause, stand_still: StandStill) -> None:
    """A probe may see a commit before the greenlet that made it goes on."""
    writer, _ = pair
    stand_still(writer)
    assert writer.outcome("a") == b"old"
    told = pause(writer.parts.cache, "apply", before=True)
    closing = gevent.spawn(writer.change, "files", public=False)
    told.reached()
    writer.loop._turn_of(writer.loop._probe)
    assert writer.loop.corrections == 0
    assert writer.outcome("a") == "unauthenticated"
    told.go()
    closing.get()


def test_m5_others_get_their_turns_while_very_much_is_compared(make_member: MakeMember, stand_still: StandStill) -> None:
    """Of so much a probe would otherwise take longer than it may, and every read would be refused (M6)."""
    member, many = make_member(), 30_000
    stand_still(member)
    made = "select 'default', 'r' || g, 'raw', 'hosted' from generate_series(1, :many) g"
    member.rows(f"insert into arkvory_repositories (tenant, name, format, kind) {made}", many=many)
    member.rows("insert into arkvory_users (name, administrator) select 'u' || g, false from generate_series(1, :many) g", many=many)
    cache = member.parts.cache
    for region, kind, table in ((cache.gates, "repository", "arkvory_repositories"), (cache.identities, "user", "arkvory_users")):
        for (number,) in member.rows(f"select id from {table}"):
            region.put((kind, number), True, tags=((kind, number),))
    longest = [0.0]

    def others() -> None:
        while True:
            # Of this thread's own time, so that a busy machine makes no difference.
            began = time.thread_time()
            gevent.sleep(0)
            longest[0] = max(longest[0], time.thread_time() - began)

    turns = gevent.spawn(others)
    gevent.sleep(0)
    with member.parts.database.session.connect() as connection:
        for _ in range(2):
            found = probe.compare(connection, member.loop._listener.believed())
            # Everything at once, then nothing any more.
            member.loop._listener.correct(found)
            first, last = member.rows("select min(id), max(id) from arkvory_repositories")[0]
            assert last - first + 1 == many
    turns.kill()
    assert not found.repositories and not found.users
    assert longest[0] < 0.5


# -- M6


def test_m6_a_process_that_was_stopped_reads_the_epochs_before_it_answers_from_memory(
    pair: Pair, files: int, clock: Clock, stand_still: StandStill
) -> None:
    writer, reader = pair
    stand_still(reader)
    writer.publish("a", b"new")
    writer.rows("delete from arkvory_mail")
    assert reader.outcome("a") == b"old"

    clock.let(loops.OLDEST_POLL_SECONDS)

    assert reader.outcome("a") == b"new"


def test_m6_a_credential_too_is_not_believed_from_old_memory(pair: Pair, files: int, clock: Clock, stand_still: StandStill) -> None:
    writer, reader = pair
    writer.user("ann")
    secret = writer.token("ann")
    assert reader.outcome("a", secret=secret) == b"old"
    stand_still(reader)
    writer.disable("ann")
    writer.rows("delete from arkvory_mail")
    assert reader.outcome("a", secret=secret) == b"old"
    clock.let(loops.OLDEST_POLL_SECONDS)
    assert reader.outcome("a", secret=secret) == "unauthenticated"


def test_m6_nor_are_the_host_names_that_mean_a_repository(pair: Pair, clock: Clock, stand_still: StandStill) -> None:
    writer, reader = pair
    hosts = reader.parts.access.installation.hosts
    writer.repository("images", format="oci")
    writer.change("images", host="mirror.example")
    eventually(lambda: writer.value("select count(*) from arkvory_mail") == 0)
    assert hosts() == {"mirror.example": "images"}
    stand_still(reader)
    writer.change("images", host="other.example")
    writer.rows("delete from arkvory_mail")
    assert hosts() == {"mirror.example": "images"}

    clock.let(loops.OLDEST_POLL_SECONDS)

    assert hosts() == {"other.example": "images"}


def test_m6_when_the_database_cannot_be_asked_old_memory_is_503_and_a_crowd_tries_once(
    pair: Pair, files: int, clock: Clock, monkeypatch: pytest.MonkeyPatch, stand_still: StandStill
) -> None:
    _, reader = pair
    stand_still(reader)
    tries: list[Any] = []

    def hang(_connection: Any) -> None:
        tries.append(1)
        gevent.sleep(30)

    monkeypatch.setattr(reader.loop, "_probe", hang)
    clock.let(loops.OLDEST_POLL_SECONDS)
    crowd = [gevent.spawn(reader.outcome, "a") for _ in range(50)]
    gevent.joinall(crowd, timeout=loops.LONGEST_TURN_SECONDS + 20, raise_error=True)
    assert {each.value for each in crowd} == {DatabaseAway.code}
    assert len(tries) == 1


@contextmanager
def locked(house: House, statement: str) -> Iterator[None]:
    """In a transaction that stays open meanwhile."""
    with create_engine(house.url, poolclass=NullPool).connect() as holding:
        holding.execute(text(statement))
        yield
        holding.rollback()


def test_m6_who_cannot_read_its_mail_compares_the_numbers_and_a_crowd_does_so_once(
    pair: Pair, files: int, clock: Clock, monkeypatch: pytest.MonkeyPatch, stand_still: StandStill
) -> None:
    writer, reader = pair
    stand_still(reader)
    assert reader.outcome("a") == b"old"
    writer.publish("a", b"new")
    compared, real = [], probe.compare
    monkeypatch.setattr(probe, "compare", lambda *asked: (compared.append(asked), real(*asked))[1])
    with locked(writer, "lock table arkvory_mail"):
        clock.let(loops.OLDEST_POLL_SECONDS + 1)
        crowd = [gevent.spawn(reader.outcome, "a") for _ in range(20)]
        gevent.joinall(crowd, raise_error=True)
    assert {each.value for each in crowd} == {b"new"}
    # The writer compares too.
    assert len(compared) <= 5


def test_m6_a_comparison_that_hangs_is_an_honest_refusal(pair: Pair, files: int, clock: Clock, stand_still: StandStill) -> None:
    _, reader = pair
    stand_still(reader)
    assert reader.outcome("a") == b"old"
    pool = reader.parts.database.request
    with locked(reader, "lock table arkvory_repositories"):
        clock.let(loops.OLDEST_POLL_SECONDS + 1)
        for _ in range(2):
            with pytest.raises(DatabaseAway):
                reader.loop.require_synced()
    assert pool.connections == pool.idle, "a connection was lost"
    assert reader.outcome("a") == b"old"


def test_m6_an_operator_may_trade_it_for_availability(make_member: MakeMember, clock: Clock, stand_still: StandStill) -> None:
    reader = make_member(ARKVORY_UNSYNCED_READS_SECONDS="60")
    reader.repository(public=True)
    reader.publish("a", b"old")
    assert reader.outcome("a") == b"old"
    stand_still(reader)
    clock.let(50)
    before = reader.parts.database.statements()
    assert reader.outcome("a") == b"old"
    assert reader.parts.database.statements() == before


# -- its end


@pytest.mark.parametrize("silent", [False, True])
def test_a_loop_ends_within_a_second_also_while_the_database_says_nothing(make_member: MakeMember, wire: Wire, silent: bool) -> None:
    house = make_member(ARKVORY_DATABASE_URL=wire.url)
    if silent:
        wire.freeze()
        # In the middle of a poll.
        gevent.sleep(2 * loops.POLL_SECONDS)
    began = pace.now()
    house.loop.stop()
    ended = pace.now()
    wire.thaw()
    assert pace.within(1.5, began, ended)
    assert not house.loop.online
    # It leaves where PostgreSQL answers within its second.
    assert house.value("select count(*) from arkvory_instances") == int(silent) or pace.lost(began, ended) > 0.5


# -- M4: the heartbeat


def test_m4_a_process_that_was_silent_begins_anew_with_empty_memory(pair: Pair, files: int, stand_still: StandStill) -> None:
    writer, reader = pair
    former = reader.loop.instance_id
    stand_still(reader)
    writer.rows("update arkvory_instances set heartbeat_at = heartbeat_at - interval '26 s' where id = :id", id=former)

    reader.loop._turn_of(reader.loop._beat)

    assert reader.loop.instance_id != former and reader.loop.incarnations == 2
    assert not writer.value("select count(*) from arkvory_instances where id = :id", id=former)
    assert len(reader.parts.cache.gates) == 0 and len(reader.parts.cache.snapshots) == 0


def test_m4_a_silent_process_gets_no_mail_and_one_that_was_deleted_begins_anew(pair: Pair, files: int, stand_still: StandStill) -> None:
    writer, reader = pair
    former = reader.loop.instance_id
    stand_still(reader)
    writer.rows("update arkvory_instances set heartbeat_at = heartbeat_at - interval '31 s' where id = :id", id=former)
    known = writer.value("select count(*) from arkvory_mail where instance_id = :id", id=former)
    writer.publish("a", b"new")
    assert writer.value("select count(*) from arkvory_mail where instance_id = :id", id=former) == known
    with writer.parts.database.write() as connection:
        assert membership.delete_gone(connection) == 0
    writer.rows("delete from arkvory_instances where id = :id", id=former)
    reader.loop._turn_of(reader.loop._beat)
    assert reader.loop.incarnations == 2 and reader.outcome("a") == b"new"


def test_m4_a_new_beginning_that_fails_half_way_keeps_nothing_and_is_tried_again(
    pair: Pair, files: int, monkeypatch: pytest.MonkeyPatch, stand_still: StandStill
) -> None:
    writer, reader = pair
    stand_still(reader)
    writer.rows("update arkvory_instances set heartbeat_at = heartbeat_at - interval '26 s' where id = :id", id=reader.loop.instance_id)

    def fail(*_: Any) -> None:
        raise DatabaseAway("no")

    with monkeypatch.context() as patched:
        patched.setattr(membership, "register", fail)
        reader.loop._turn_of(reader.loop._beat)
        reader.loop._turn_of(reader.loop._poll)
        assert not reader.loop.online and not reader.loop.keeps
    writer.publish("a", b"new")
    reader.loop._turn_of(reader.loop._poll)
    assert reader.loop.online and reader.loop.keeps and reader.outcome("a") == b"new"


def test_m4_a_heartbeat_that_cannot_be_written_ends_the_claim_to_be_online(
    pair: Pair, files: int, monkeypatch: pytest.MonkeyPatch, stand_still: StandStill
) -> None:
    writer, reader = pair
    eventually(lambda: reader.loop.online)
    stand_still(reader)
    monkeypatch.setattr(membership, "HEARTBEAT_SECONDS", 0.1)

    def fail(*_: Any) -> bool:
        raise DatabaseAway("no")

    with monkeypatch.context() as patched:
        patched.setattr(membership, "heartbeat", fail)
        reader.loop._turn_of(reader.loop._beat)
        assert not reader.loop.online
    # It lives by the probe meanwhile, and recovers.
    writer.publish("a", b"new")
    reader.loop._turn_of(reader.loop._probe)
    assert reader.outcome("a") == b"new"
    reader.loop._turn_of(reader.loop._beat)
    assert reader.loop.online


def test_m4_a_heartbeat_that_was_given_up_and_written_after_all_hides_no_silence(
    pair: Pair, files: int, clock: Clock, stand_still: StandStill
) -> None:
    """It waited for its row, and says when it began to wait: senders meanwhile saw the one before it."""
    _, reader = pair
    stand_still(reader)
    clock.let(membership.OLDEST_HEARTBEAT_SECONDS + 2)
    late = "update arkvory_instances set heartbeat_at = clock_timestamp() - interval '15 s' where id = :id"
    reader.rows(late, id=reader.loop.instance_id)
    reader.loop._turn_of(reader.loop._beat)
    assert reader.loop.incarnations == 2


def test_m2_a_full_mailbox_is_emptied_in_one_turn(pair: Pair, files: int, stand_still: StandStill) -> None:
    writer, reader = pair
    stand_still(reader)
    body = json.dumps({"repository": files, "epochs": [1, 1, 1, 1], "classes": ["content"], "names": [], "paths": ["a"]})
    fill = "insert into arkvory_mail (instance_id, body) select :id, cast(:body as jsonb) from generate_series(1, :many)"
    writer.rows(fill, id=reader.loop.instance_id, body=body, many=3 * mailbox.TAKEN_AT_ONCE)
    before = reader.loop.last_poll
    reader.loop._turn_of(reader.loop._poll)
    assert writer.value("select count(*) from arkvory_mail") == 0
    assert reader.loop.last_poll > before


def test_m4_who_leaves_gets_no_mail_and_leaves_none(pair: Pair, files: int) -> None:
    writer, reader = pair
    writer.publish("a", b"new")
    reader.loop.stop()
    writer.publish("a", b"newer")
    assert writer.value("select count(*) from arkvory_instances") == 1
    assert writer.value("select count(*) from arkvory_mail") == 0


# -- M7: transactions that do not know of a process that has just registered


def test_m7_nothing_is_kept_while_a_transaction_runs_that_did_not_see_the_registration(make_member: MakeMember, files: int) -> None:
    """The sender posted before the reader registered, and commits after the reader has read."""
    sender, reader = make_member(), make_member(joined=False)
    with sender.parts.transactions.begin(files) as transaction:
        transaction.advance(files, "metadata", "authorization")
        transaction.connection.execute(text("update arkvory_repositories set public = false where id = :id"), {"id": files})
        transaction.settle_uploads({})
        # The mail is written; now the reader comes.
        reader.loop.start(lambda: ("late", 0))
        gevent.sleep(0.5)
        assert not reader.loop.keeps
        assert reader.outcome("a") == b"old", "it may not see what is not committed"
        assert len(reader.parts.cache.snapshots) == 0
    assert reader.outcome("a") == "unauthenticated", "in the next read, without any mail"
    eventually(lambda: reader.loop.keeps)
    reader.outcome("a")
    assert len(reader.parts.cache.snapshots) == 1


def test_m7_a_transaction_that_began_while_the_registration_was_being_written_counts_too(
    make_member: MakeMember, database_url: str, files: int
) -> None:
    """Its id is younger than the registration's own; the horizon is drawn after the registration is committed."""
    engine = create_engine(database_url, poolclass=NullPool)
    with engine.connect() as registering, engine.connect() as sending:
        registering.execute(
            text("insert into arkvory_instances (name, slot, kind, host, pid, version) values ('late', 0, 'web', 'h', 1, 'v')")
        )
        registration_xid = registering.execute(text("select pg_current_xact_id()::text::bigint")).scalar_one()
        sending_xid = sending.execute(text("select pg_current_xact_id()::text::bigint")).scalar_one()
        assert sending_xid > registration_xid
        registering.commit()
        with engine.connect() as other:
            auto = other.execution_options(isolation_level="AUTOCOMMIT")
            registration = membership.register(auto, "late", 0, "web", "v")
            assert not membership.is_past(auto, registration.horizon), "the sender still runs"
            sending.commit()
            assert membership.is_past(auto, registration.horizon)


def test_m7_the_wait_ends_after_a_minute_whoever_sleeps_in_a_transaction(
    make_member: MakeMember, database_url: str, clock: Clock
) -> None:
    engine = create_engine(database_url, poolclass=NullPool)
    with engine.connect() as sleeping:
        sleeping.execute(text("select pg_current_xact_id()"))
        reader = make_member(joined=False)
        reader.loop.start(lambda: ("late", 0))
        gevent.sleep(0.5)
        assert not reader.loop.keeps
        for _ in range(int(membership.HORIZON_WAIT_SECONDS / membership.HEARTBEAT_SECONDS) + 1):
            clock.let(membership.HEARTBEAT_SECONDS)
            beaten = reader.loop.last_heartbeat
            eventually(lambda beaten=beaten: reader.loop.last_heartbeat > beaten)
        eventually(lambda: reader.loop.keeps)
        assert reader.loop.incarnations == 1


def test_m5_a_process_that_nobody_has_asked_yet_finds_nothing_to_correct(make_member: MakeMember, stand_still: StandStill) -> None:
    member = make_member()
    stand_still(member)
    member.loop._turn_of(member.loop._probe)
    assert member.loop.corrections == 0
