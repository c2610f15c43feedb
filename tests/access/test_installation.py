"""The installation's switches: they bind on the next request, for warm readers and decisions under way too (C8)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gevent
import pytest

from app.access import decision
from app.access.installation import Switchboard, SwitchChange
from app.cache.outcomes import Outcome
from app.errors import Forbidden, ReadOnly, Unauthenticated
from app.repository import publishing
from app.repository.publishing import Target
from tests.conftest import MakePause
from tests.support.house import ADMIN, NOBODY, House
from tests.support.server import Server

Switch = Callable[..., Any]


@pytest.fixture
def switch(house: House) -> Switch:
    parts = house.parts
    board = Switchboard(parts.database, parts.transactions, parts.identities)
    return lambda caller=ADMIN, **changes: board.change(caller, SwitchChange(**changes))


@pytest.fixture
def files(house: House) -> int:
    """A public repository with `a` in it."""
    made = house.repository(public=True)
    house.publish("a", b"old")
    return made


def statements_of(house: House, action: Callable[[], Any]) -> int:
    before = house.parts.database.statements()
    action()
    return house.parts.database.statements() - before


# Anonymous access


def test_without_anonymous_access_nobody_reads_what_is_public_or_has_a_rule_for_anyone(house: House, files: int, switch: Switch) -> None:
    house.repository("ruled")
    house.publish("a", b"ruled", "ruled")
    house.rule("ruled", "anonymous", "read", "write", "delete")
    house.user("ann")
    secret = house.token("ann")
    assert [house.outcome("a", name) for name in ("files", "ruled")] == [b"old", b"ruled"]
    switch(anonymous=False)
    assert [house.outcome("a", name) for name in ("files", "ruled", "absent")] == ["unauthenticated"] * 3
    assert [house.outcome("a", name, secret=secret) for name in ("files", "ruled")] == [b"old", b"ruled"]
    for write in (partial(house.publish, "b", b"1", "ruled", caller=NOBODY), partial(house.delete, "a", "ruled", caller=NOBODY)):
        with pytest.raises(Unauthenticated):
            write()
    with pytest.raises(Unauthenticated):
        house.registry.list(NOBODY, 10)
    switch(anonymous=True)
    assert [house.outcome("a", name) for name in ("files", "ruled")] == [b"old", b"ruled"]
    assert [each.name for each in house.registry.list(NOBODY, 10).items] == ["files", "ruled"]


def test_c1_a_warm_read_knows_the_switch_without_a_statement_and_the_next_one_after_a_commit_sees_it(
    house: House, files: int, switch: Switch
) -> None:
    house.user("ann")
    secret = house.token("ann")
    for _ in range(5):
        house.outcome("a")
        house.outcome("a", secret=secret)
        assert statements_of(house, lambda: house.outcome("a")) == 0
        switch(anonymous=False)
        assert house.outcome("a") == "unauthenticated"
        assert house.outcome("a", secret=secret) == b"old"
        assert statements_of(house, lambda: (house.outcome("a"), house.outcome("a", secret=secret))) == 0
        switch(anonymous=True)
        assert house.outcome("a") == b"old"


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("where", ["switch", "snapshot", "grants", "gate"])
def test_c8_a_decision_under_way_does_not_open_what_was_published_after_the_switch(
    house: House, files: int, switch: Switch, pause: MakePause, where: str, warm: bool
) -> None:
    if where == "grants":
        house.change("files", public=False)
        house.rule("files", "anonymous", "read")
    owner, name = {
        "switch": (house.parts.access.installation, "switches"),
        "snapshot": (house.parts.snapshots, "_from_repository"),
        "grants": (decision, "_read_grants"),
        "gate": (house.parts.access, "require"),
    }[where]
    stopped = pause(owner, name)
    reader = gevent.spawn(house.outcome, "a")
    stopped.reached()
    switch(anonymous=False)
    house.publish("a", b"secret")
    if warm:
        assert house.read("a", caller=ADMIN) == b"secret"
    stopped.go()
    assert reader.get() == "unauthenticated"


def test_c3_switches_read_before_a_change_and_kept_after_it_are_not_used(
    house: House, files: int, switch: Switch, pause: MakePause
) -> None:
    house.read("a")
    switch(read_only=True)
    stopped = pause(house.parts.cache, "observe_installation", before=True)
    reader = gevent.spawn(house.outcome, "a")
    stopped.reached()
    switch(anonymous=False)
    assert house.outcome("a") == "unauthenticated"
    stopped.go()
    assert reader.get() == "unauthenticated"
    assert house.outcome("a") == "unauthenticated"


def test_c2_while_the_outcome_of_a_change_is_unknown_the_database_is_asked(house: House, files: int) -> None:
    house.outcome("a")
    house.rows("update arkvory_installation set anonymous = false")
    assert house.outcome("a") == b"old"
    house.parts.cache.doubt(Outcome(transaction_id=1, installation=2))
    assert house.outcome("a") == "unauthenticated"


def test_a_change_that_changes_nothing_advances_nothing(house: House, switch: Switch) -> None:
    before = house.value("select epoch from arkvory_installation")
    switch(anonymous=True, read_only=False)
    switch()
    assert house.value("select epoch from arkvory_installation") == before
    assert switch(read_only=True).epoch == before + 1


def test_only_administrators_with_all_their_rights_turn_the_switches(house: House, switch: Switch) -> None:
    house.user("ann")
    house.user("root", administrator=True)
    for secret in (house.token("ann"), house.token("root", "read", "write")):
        with pytest.raises(Forbidden):
            switch(house.identify(secret), anonymous=False)
    with pytest.raises(Unauthenticated):
        switch(NOBODY, anonymous=False)
    assert switch(house.identify(house.token("root")), anonymous=False).anonymous is False


# Read only


def test_a_read_only_server_stores_replaces_and_deletes_nothing_and_is_read_as_ever(house: House, files: int, switch: Switch) -> None:
    switch(read_only=True)
    for write in (
        partial(house.publish, "b", b"1"),
        partial(house.publish, "a", b"1"),
        partial(house.delete, "a"),
        partial(house.parts.editor.amend, Target("raw", "files", ADMIN), ["a"], {"yanked": True}),
        partial(house.registry.delete, ADMIN, "files"),
    ):
        with pytest.raises(ReadOnly):
            write()
    assert house.outcome("a") == b"old"
    house.change("files", public=False)
    assert house.outcome("a") == "unauthenticated"
    switch(read_only=False)
    house.publish("a", b"new")
    assert house.read("a") == b"new"
    house.assert_counted()


def test_an_upload_whose_body_came_while_the_server_became_read_only_leaves_nothing(
    house: House, files: int, switch: Switch, pause: MakePause
) -> None:
    """W1."""
    stopped = pause(house.parts.publisher, "commit", before=True)
    writer = gevent.spawn(house.publish, "b", b"mine")
    stopped.reached()
    switch(read_only=True)
    before = house.epochs()
    stopped.go()
    with pytest.raises(ReadOnly):
        writer.get()
    assert (house.outcome("b"), house.epochs()) == ("not_found", before)
    house.assert_counted()
    assert house.counters() == {(files, "published"): 3}
    assert not house.temporary()


def test_once_the_switch_has_answered_what_is_stored_stands_still(house: House, files: int, switch: Switch, pause: MakePause) -> None:
    """A write that was allowed before the switch may still commit; the switch waits for it."""
    stopped = pause(publishing, "apply_rules")
    writer = gevent.spawn(house.publish, "b", b"mine")
    stopped.reached()
    switching = gevent.spawn(switch, read_only=True)
    gevent.sleep(0.3)
    assert not switching.ready()
    stopped.go()
    assert switching.get(timeout=10).read_only is True
    assert house.value("select count(*) from arkvory_artifacts where path = 'b'") == 1
    writer.get(timeout=10)
    assert house.read("b") == b"mine"


# Over HTTP


@pytest.fixture
def turned(server: Server) -> Iterator[Callable[..., Any]]:
    yield lambda **changes: server.patch("/api/v1/installation", json=changes)
    server.patch("/api/v1/installation", json={"anonymous": True, "read_only": False})


def test_no_door_is_open_to_nobody_any_more(server: Server, turned: Callable[..., Any]) -> None:
    server.repository("open", public=True)
    server.repository("python", "pypi", public=True)
    server.put("/raw/open/d/a", b"1")
    doors = (
        "/raw/open/d/a", "/raw/open/d/", "/raw/open/?format=json", "/pypi/python/simple/", "/api/v1/repositories", "/api/v1/search?q=a",
        "/api/v1/repositories/open", "/api/v1/repositories/open/artifacts", "/api/v1/repositories/open/artifacts/d/a",
        "/api/v1/repositories/open/usage",
    )  # fmt: skip
    for _ in range(2):
        assert {server.get(door, auth=None).status_code for door in doors} == {200}
    assert turned(anonymous=False).json()["anonymous"] is False
    for door in doors:
        for method in ("GET", "HEAD"):
            answer = server.request(method, door, auth=None)
            assert (answer.status_code, answer.headers["WWW-Authenticate"][:6]) == (401, "Basic "), door
        assert server.get(door).status_code == 200
    assert server.get("/health/ready", auth=None).status_code == 200
    turned(anonymous=True)
    assert {server.get(door, auth=None).status_code for door in doors} == {200}


def test_a_read_only_server_says_so_in_words_and_can_be_switched_back(server: Server, turned: Callable[..., Any]) -> None:
    server.repository("frozen", public=True)
    assert turned(read_only=True).json()["read_only"] is True
    answer = server.put("/raw/frozen/a", b"1")
    assert (answer.status_code, "read only" in answer.text, answer.headers["Retry-After"]) == (503, True, "60")
    problem = server.delete("/api/v1/repositories/frozen").json()
    assert (problem["status"], problem["code"]) == (503, "read_only")
    assert server.put("/raw/frozen/a", b"1", auth=None).status_code == 401
    assert turned(read_only=False).status_code == 200
    assert server.put("/raw/frozen/a", b"1").status_code == 201


@pytest.mark.parametrize("body", [{"anonymous": "no"}, {"read_only": 1}, {"readonly": True}, []])
def test_a_switch_is_true_or_false(server: Server, body: Any) -> None:
    assert server.patch("/api/v1/installation", json=body).status_code == 422
    assert server.get("/api/v1/installation").json()["read_only"] is False
