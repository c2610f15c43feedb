"""M1 to M3 and C10: what one process changes, the others hear within a poll; the probe finds nothing that they had not heard."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from app.access.installation import SwitchChange
from app.cluster import mailbox
from app.http.metrics import values_of
from tests.cluster.conftest import MakeMember
from tests.support.house import ADMIN, House, eventually

Pair = tuple[House, House]
StandStill = Callable[[House], None]


@pytest.fixture
def files(pair: Pair) -> int:
    """A repository with one file, of which both have heard: what comes then is news of the test's own."""
    writer, _ = pair
    number = writer.repository(public=True)
    writer.publish("a", b"old")
    eventually(lambda: not messages(writer))
    return number


def statements_of(house: House, read: Callable[[], Any]) -> int:
    before = house.parts.database.request.statements
    read()
    return house.parts.database.request.statements - before


def messages(house: House) -> list[Any]:
    return [row[0] for row in house.rows("select body from arkvory_mail order by id")]


# -- what is changed, by whom it is heard


def test_m2_an_overwrite_is_seen_by_the_other_process_after_a_poll(pair: Pair, files: int) -> None:
    writer, reader = pair
    assert reader.outcome("a") == b"old"
    assert statements_of(reader, lambda: reader.outcome("a")) == 0, "a warm read asks nothing"

    writer.publish("a", b"new")

    eventually(lambda: reader.outcome("a") == b"new")
    assert reader.loop.corrections == 0, "the message told it, not the probe"
    assert sum(reader.loop.delays.counts) > 0


def test_m8_the_delay_of_messages_is_a_histogram(pair: Pair, files: int) -> None:
    writer, reader = pair
    for number in range(3):
        writer.publish(f"new-{number}", b"body")
    eventually(lambda: sum(reader.loop.delays.counts) >= 3)
    eventually(lambda: not messages(writer))

    counted = dict(values_of(reader.parts)["arkvory_cache_mail_delay_seconds"])

    assert counted["+Inf"] == sum(reader.loop.delays.counts) >= counted["0.3"] >= counted["0.025"]
    assert 0 < counted["sum"] <= 60
    assert values_of(reader.parts)["arkvory_cluster_online"] == [("here/?", 1.0)]


@pytest.mark.parametrize(
    ("change", "after"),
    [
        (lambda house: house.change("files", status="offline"), "repository_offline"),
        (lambda house: house.change("files", public=False), "unauthenticated"),
        (lambda house: house.change("files", name="others"), "unauthenticated"),
        (lambda house: house.delete("a"), "not_found"),
        (lambda house: house.registry.delete(ADMIN, "files"), "unauthenticated"),
    ],
    ids=["status", "public to private", "rename", "artifact deleted", "repository deleted"],
)
def test_m2_what_is_changed_of_a_repository_is_changed_in_the_other_process(
    pair: Pair, files: int, change: Callable[[House], None], after: str
) -> None:
    writer, reader = pair
    assert reader.outcome("a") == b"old"

    change(writer)

    eventually(lambda: reader.outcome("a") == after)
    assert reader.loop.corrections == 0


def test_m2_what_is_changed_of_people_is_changed_in_the_other_process(pair: Pair) -> None:
    writer, reader = pair
    writer.repository()
    writer.publish("a", b"secret")
    writer.user("ann")
    secret = writer.token("ann")
    rule = writer.rule("files", "user:ann", "read")
    eventually(lambda: reader.outcome("a", secret=secret) == b"secret")

    writer.rules.delete(ADMIN, "files", rule)
    eventually(lambda: reader.outcome("a", secret=secret) == "not_found")

    writer.rule("files", "signed-in", "read")
    eventually(lambda: reader.outcome("a", secret=secret) == b"secret")

    writer.disable("ann")
    eventually(lambda: reader.outcome("a", secret=secret) == "unauthenticated")
    assert reader.loop.corrections == 0


def test_c10_what_another_process_has_just_stored_is_found_at_once(pair: Pair, files: int) -> None:
    writer, reader = pair
    reader.loop.stop()
    for number in range(5):
        assert reader.outcome(f"new-{number}") == "not_found"
        writer.publish(f"new-{number}", b"body")
        assert reader.outcome(f"new-{number}") == b"body", "without any message"


# -- messages


def test_m1_one_message_for_each_repository_and_receiver_with_all_that_the_transaction_did(make_member: MakeMember) -> None:
    sender = make_member()
    first, second = sender.repository("first"), sender.repository("second")
    ann = sender.user("ann")
    receivers = [make_member(), make_member()]
    for each in receivers:
        each.loop._greenlet.kill()  # type: ignore[union-attr]  # they do not read

    with sender.parts.transactions.begin(first, second) as transaction:
        transaction.advance(first, "content", paths=["a"])
        transaction.advance(first, "metadata", "content", paths=["b"])
        transaction.advance(second, "authorization")
        transaction.advance_users([ann])
        transaction.advance_installation()

    by_receiver = {each.loop.instance_id: [] for each in receivers}
    for receiver, body in sender.rows("select instance_id, body from arkvory_mail order by id"):
        by_receiver[receiver].append(body)
    for bodies in by_receiver.values():
        told = {body.get("repository"): body for body in bodies}
        assert len(bodies) == 3 and set(told) == {first, second, None}
        assert told[first]["classes"] == ["content", "metadata"] and told[first]["paths"] == ["a", "b"]
        assert told[first]["epochs"] == list(sender.epochs("first")), "the numbers after the transaction"
        assert told[second]["classes"] == ["authorization"]
        assert told[None]["users"] == [[ann, 2]]
        assert told[None]["installation"] == sender.value("select epoch from arkvory_installation")


def test_m1_a_transaction_that_rolls_back_tells_nothing(pair: Pair, files: int) -> None:
    writer, reader = pair
    reader.loop._greenlet.kill()  # type: ignore[union-attr]
    known = len(messages(writer))
    with contextlib.suppress(ZeroDivisionError), writer.parts.transactions.begin(files) as transaction:
        transaction.advance(files, "content")
        transaction.settle_uploads({})
        raise ZeroDivisionError
    assert len(messages(writer)) == known


def test_m1_a_message_about_very_many_paths_goes_without_them(pair: Pair, files: int) -> None:
    writer, reader = pair
    reader.loop._greenlet.kill()  # type: ignore[union-attr]
    with writer.parts.transactions.begin(files) as transaction:
        transaction.advance(files, "content", paths=[f"path/{number}" for number in range(10_000)])
    (body,) = [each for each in messages(writer) if each["epochs"] == list(writer.epochs())]
    assert body["paths"] is None and len(json.dumps(body)) < 500


def test_m2_the_same_messages_twice_and_in_any_order_change_nothing_more(pair: Pair, files: int) -> None:
    writer, reader = pair
    reader.loop._greenlet.kill()  # type: ignore[union-attr]
    for number in range(5):
        writer.publish("a", b"version %d" % number)
    writer.change("files", public=False)
    writer.change("files", public=True)
    letters = messages(writer)
    assert len(letters) >= 7
    for body in (*reversed(letters), *letters, *reversed(letters)):
        reader.parts.loop._listener.hear(body)  # type: ignore[union-attr]
    assert reader.outcome("a") == b"version 4"
    assert reader.parts.cache.view.repository(files) == writer.epochs()


@pytest.mark.parametrize(
    "body", [{}, {"repository": "x"}, [], None, {"users": [[1]], "installation": None}, {"repository": 1, "epochs": [1]}]
)
def test_m3_a_message_that_fails_is_tried_again_and_then_kept_as_a_dead_letter(pair: Pair, files: int, body: Any) -> None:
    writer, reader = pair
    writer.rows(
        "insert into arkvory_mail (instance_id, body) values (:receiver, cast(:body as jsonb))",
        receiver=reader.loop.instance_id, body=json.dumps(body),
    )  # fmt: skip
    writer.publish("a", b"new")
    eventually(lambda: reader.outcome("a") == b"new")  # the others are not held up

    eventually(lambda: reader.loop.dead_letters == 1)

    assert reader.loop.rejections == len(mailbox.RETRIES) + 1
    ((instance, error, kept),) = writer.rows("select instance, error, body from arkvory_dead_letters")
    assert (instance, kept) == ("here/1", body) and error
    assert not writer.value("select count(*) from arkvory_mail where instance_id = :id", id=reader.loop.instance_id)


def test_m4_mail_that_nobody_will_read_is_deleted_and_later_the_row_of_its_reader(pair: Pair, files: int) -> None:
    writer, reader = pair
    reader.loop._greenlet.kill()  # type: ignore[union-attr]
    writer.publish("a", b"new")
    gone = "update arkvory_instances set heartbeat_at = now() - make_interval(secs => :seconds) where id = :id"

    writer.clean()
    assert messages(writer), "its receiver lives"
    writer.rows(gone, id=reader.loop.instance_id, seconds=61)
    writer.clean()
    assert not messages(writer)
    assert writer.value("select count(*) from arkvory_instances") == 2
    writer.rows(gone, id=reader.loop.instance_id, seconds=601)
    writer.clean()
    assert writer.value("select count(*) from arkvory_instances") == 1


# -- what a process knows of what it did itself, however late its mail is


@pytest.fixture
def late(stand_still: StandStill) -> StandStill:
    """Its mail is lost, and no probe comes."""
    return stand_still


def test_who_makes_a_repository_knows_it_though_the_message_that_its_name_was_free_is_late(
    pair: Pair, files: int, late: StandStill
) -> None:
    writer, reader = pair
    assert reader.outcome("a") == b"old"
    late(reader)
    writer.registry.delete(ADMIN, "files")
    reader.repository(public=False)
    assert reader.outcome("a") == "unauthenticated"


@pytest.mark.parametrize("how", ["made again", "renamed"])
def test_who_publishes_reads_it_though_the_message_that_the_name_is_another_repositorys_is_late(
    pair: Pair, files: int, how: str, late: StandStill
) -> None:
    writer, reader = pair
    assert reader.outcome("a") == b"old"
    late(reader)
    if how == "renamed":
        writer.change("files", name="former")
    else:
        writer.registry.delete(ADMIN, "files")
    writer.repository(public=True)
    reader.publish("a", b"new")
    assert reader.outcome("a") == b"new"


def test_who_is_told_that_it_is_so_already_finds_it_so(pair: Pair, files: int, late: StandStill) -> None:
    """Another process has just made the same change; this one answers 200, and must not go on as before."""
    writer, reader = pair
    writer.user("ann")
    secret = writer.token("ann")
    assert reader.outcome("a", secret=secret) == b"old"
    late(reader)
    writer.disable("ann")
    reader.disable("ann")
    assert reader.outcome("a", secret=secret) == "unauthenticated"
    assert reader.outcome("a") == b"old"
    writer.switchboard.change(ADMIN, SwitchChange(anonymous=False))
    reader.switchboard.change(ADMIN, SwitchChange(anonymous=False))
    assert reader.outcome("a") == "unauthenticated"
    writer.switchboard.change(ADMIN, SwitchChange(anonymous=True))
    reader.switchboard.change(ADMIN, SwitchChange(anonymous=True))
    assert reader.outcome("a") == b"old"
    writer.change("files", public=False)
    reader.change("files", public=False)
    assert reader.outcome("a") == "unauthenticated"
    assert reader.loop.corrections == 0, "the messages told it"
