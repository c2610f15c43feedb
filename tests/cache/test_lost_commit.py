"""C2 when the answer to COMMIT is lost: nothing is believed until PostgreSQL says what became of the transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import gevent
import pytest
from sqlalchemy import text

from app.cache import changes
from app.errors import DatabaseAway, OutcomeUnknown
from tests.support.house import ADMIN, NOBODY, House, eventually
from tests.support.proxy import Wire


@pytest.fixture
def house(wire: Wire, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    monkeypatch.setattr(changes, "OUTCOME_WAIT_SECONDS", 0.5)
    made = House(wire.url, tmp_path / "data")
    made.url = database_url
    made.repository(public=True)
    made.publish("a", b"old")
    assert made.read("a", caller=NOBODY) == b"old"
    yield made
    made.close()


def doubts(house: House) -> int:
    return len(house.parts.cache.doubts.open)


def publish_new(house: House) -> None:
    house.publish("a", b"new!")


def at_the_publish(house: House, wire: Wire, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Let the wire break at the COMMIT of the next publishing transaction, not at the small ones before it."""
    commit = house.parts.transactions._commit

    def last(transaction: changes.Transaction) -> None:
        if transaction.outcome.repositories:
            wire.at_commit = how
        commit(transaction)

    monkeypatch.setattr(house.parts.transactions, "_commit", last)


def test_c2_a_commit_that_arrived_is_found_out_and_answered_as_success(
    house: House, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_the_publish(house, wire, monkeypatch, "unheard")
    publish_new(house)
    assert house.read("a", caller=NOBODY) == b"new!"
    assert doubts(house) == 0
    house.assert_counted()
    house.assert_published_is_there()


def test_c2_a_commit_that_never_arrived_is_answered_as_failure_and_changes_nothing(
    house: House, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs = house.epochs()
    at_the_publish(house, wire, monkeypatch, "lost")
    with pytest.raises(DatabaseAway):
        publish_new(house)
    assert house.read("a", caller=NOBODY) == b"old"
    assert (doubts(house), house.epochs()) == (0, epochs)
    assert house.parts.cache.view.repository(1).content <= epochs[2]
    house.assert_counted()
    house.assert_published_is_there()


def settled(house: House) -> bool:
    """After one more try to find out what became of the transactions that are in doubt."""
    house.parts.transactions.settle_doubts()
    return not doubts(house)


@pytest.mark.parametrize("end", ["committed", "aborted"])
def test_c2_while_the_transaction_is_in_progress_nothing_of_the_repository_is_kept(
    house: House, wire: Wire, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    view = house.parts.cache.view.repository(1)
    at_the_publish(house, wire, monkeypatch, "held")
    with pytest.raises(OutcomeUnknown):
        publish_new(house)
    assert doubts(house) == 1
    for _ in range(2):
        before = house.parts.database.statements()
        assert house.read("a", caller=NOBODY) == b"old"
        assert house.parts.database.statements() > before, "answered from memory in spite of the doubt"
    assert house.parts.cache.view.repository(1) == view, "the view rose to an unconfirmed number"
    house.parts.transactions.settle_doubts()
    assert doubts(house) == 1

    wire.deliver() if end == "committed" else wire.drop()
    eventually(lambda: settled(house))
    assert house.read("a", caller=NOBODY) == (b"new!" if end == "committed" else b"old")
    before = house.parts.database.statements()
    house.read("a", caller=NOBODY)
    assert house.parts.database.statements() == before
    house.assert_counted()
    house.rows("update arkvory_uploads set lease_until = now() - interval '1 hour' where status = 'open'")
    house.parts.admission.open_uploads.clear()
    house.clean()
    house.assert_published_is_there()
    house.assert_no_strays()


def test_w1_an_upload_whose_publishing_is_in_doubt_is_not_given_back_nor_waited_for(
    house: House, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_the_publish(house, wire, monkeypatch, "held")
    with gevent.Timeout(20), pytest.raises(OutcomeUnknown):
        publish_new(house)
    assert house.value("select status from arkvory_uploads order by created_at desc limit 1") == "open"
    wire.deliver()
    eventually(lambda: house.value("select status from arkvory_uploads order by created_at desc limit 1") == "published")
    house.assert_counted()
    house.assert_published_is_there()


@pytest.mark.parametrize("how", ["unheard", "lost"])
def test_c2_a_closed_repository_and_a_disabled_user_are_found_out_too(
    house: House, wire: Wire, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    house.user("ann")
    secret = house.token("ann")
    house.rule("files", "signed-in", "read")
    assert house.outcome("a", secret=secret) == b"old"

    def attempt(change: Callable[[], None]) -> None:
        wire.at_commit = how
        if how == "unheard":
            change()
        else:
            with pytest.raises(DatabaseAway):
                change()

    attempt(lambda: house.change("files", public=False))
    assert house.outcome("a") == ("unauthenticated" if how == "unheard" else b"old")
    attempt(lambda: house.disable("ann"))
    assert house.outcome("a", secret=secret) == ("unauthenticated" if how == "unheard" else b"old")
    assert doubts(house) == 0


def test_c2_an_identity_found_before_a_doubt_is_asked_for_again_while_it_lasts(
    house: House, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.user("ann")
    secret = house.token("ann")
    house.change("files", public=False)
    house.rule("files", "signed-in", "read")
    assert house.outcome("a", secret=secret) == b"old"
    wire.at_commit = "held"
    with pytest.raises(OutcomeUnknown):
        house.disable("ann")
    before = house.parts.database.statements()
    assert house.outcome("a", secret=secret) == b"old"
    assert house.parts.database.statements() > before
    wire.deliver()
    eventually(lambda: house.value("select disabled from arkvory_users where name = 'ann'"))
    assert house.outcome("a", secret=secret) == "unauthenticated"


def test_c2_a_reader_that_began_before_the_doubt_keeps_nothing_of_it(house: House, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its query read the old numbers; by the time it would keep them, the commit is known."""
    keep = house.parts.reader._keep_gate
    go = gevent.event.Event()
    there = gevent.event.Event()

    def slow(*arguments: object) -> object:
        if not there.is_set():
            there.set()
            go.wait(10)
        return keep(*arguments)  # type: ignore[arg-type]

    house.parts.cache.gates.clear()
    monkeypatch.setattr(house.parts.reader, "_keep_gate", slow)
    reader = gevent.spawn(house.read, "a", caller=ADMIN)
    there.wait(10)
    at_the_publish(house, wire, monkeypatch, "unheard")
    publish_new(house)
    go.set()
    reader.get(timeout=10)
    assert house.read("a", caller=NOBODY) == b"new!"


def test_c2_after_a_crash_a_number_that_another_transaction_may_have_taken_is_not_believed(house: House) -> None:
    outcome = changes.Outcome()
    with house.parts.transactions.begin(1) as transaction:
        transaction.advance(1, "content")
        outcome = transaction.outcome
    assert house.parts.transactions._settled_status(outcome) == "committed"
    outcome.server_started = outcome.server_started.replace(year=2001)
    assert house.parts.transactions._settled_status(outcome) == "unknown"
    outcome.transaction_id += 1_000_000
    assert house.parts.transactions._settled_status(outcome) == "aborted"
    with house.parts.database.read() as connection:
        assert connection.execute(text("select 1")).scalar_one() == 1


@pytest.mark.parametrize("behind", [True, False], ids=["committed", "aborted"])
def test_c2_who_is_told_to_end_in_the_middle_of_a_commit_ends_and_it_is_found_out(
    house: House, wire: Wire, monkeypatch: pytest.MonkeyPatch, behind: bool
) -> None:
    """As a job whose lease is lost; going on, it would run beside its successor."""
    commit = house.parts.transactions._commit

    def hold(transaction: changes.Transaction) -> None:
        if transaction.outcome.repositories:
            wire.hold(b"COMMIT", behind=behind)
        commit(transaction)

    monkeypatch.setattr(house.parts.transactions, "_commit", hold)

    def for_ever() -> None:
        while True:
            publish_new(house)

    running = gevent.spawn(for_ever)
    assert wire.stopped.wait(30)
    running.kill(timeout=20)
    assert running.dead
    eventually(lambda: settled(house))
    assert house.read("a", caller=NOBODY) == (b"new!" if behind else b"old")
    house.assert_counted()
    house.assert_published_is_there()
