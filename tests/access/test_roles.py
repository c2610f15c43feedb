"""Roles: named sets of rules. They bind on the next request of every holder, for warm readers and decisions under way too (C8)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gevent
import pytest

from app.access import decision
from app.access.people import Groups
from app.access.roles import NewRoleRule, Roles
from app.access.rules import NewRule
from app.cache.regions import Region
from app.errors import AlreadyExists, Forbidden, Invalid, NotFound, Unauthenticated
from app.repository.listing import Filter, Listing
from tests.conftest import MakePause
from tests.support.house import ADMIN, NOBODY, House
from tests.support.server import Server


@pytest.fixture
def roles(house: House) -> Roles:
    """With a role `reader` that gives nothing yet; anna holds it."""
    house.user("anna")
    for name in ("files", "others"):
        house.repository(name)
        for path in ("a", "team/a"):
            house.publish(path, b"old", name)
    made = Roles(house.parts.database, house.parts.transactions, house.parts.identities)
    made.create(ADMIN, "reader")
    made.assign(ADMIN, "reader", "user:anna")
    return made


def statements_of(house: House, action: Callable[[], Any]) -> int:
    before = house.parts.database.statements()
    action()
    return house.parts.database.statements() - before


def give(roles: Roles, *permissions: str, repository: str | None = None, prefix: str | None = None) -> int:
    """Id of a new rule of the role."""
    return int(roles.add_rule(ADMIN, "reader", NewRoleRule(permissions, repository, prefix)).rules[-1]["id"])


@pytest.mark.parametrize(
    ("repository", "prefix", "expected"),
    [
        (None, None, [b"old", b"old", b"old"]),
        ("files", None, [b"old", b"old", "not_found"]),
        ("files", "team", ["forbidden", b"old", "not_found"]),
        (None, "team", ["forbidden", b"old", "forbidden"]),
    ],
)
def test_a_rule_is_for_one_repository_or_all_and_below_its_path(
    house: House, roles: Roles, repository: str | None, prefix: str | None, expected: Sequence[object]
) -> None:
    give(roles, "read", repository=repository, prefix=prefix)
    secret = house.token("anna")
    asked = (("a", "files"), ("team/a", "files"), ("a", "others"))
    assert [house.outcome(*each, secret=secret) for each in asked] == expected
    house.user("bob")
    assert house.outcome("a", secret=house.token("bob")) == "not_found"
    assert house.outcome("a") == "unauthenticated"


def test_a_repository_made_later_is_among_all(house: House, roles: Roles) -> None:
    give(roles, "read")
    house.repository("later")
    house.publish("a", b"1", "later")
    assert house.outcome("a", "later", secret=house.token("anna")) == b"1"


@pytest.mark.parametrize("change", ["rule", "holder", "role", "membership", "group"])
def test_c1_what_a_role_gave_is_gone_on_the_next_request_and_warm_reads_send_no_statement(
    house: House, roles: Roles, change: str
) -> None:
    groups = Groups(house.parts.database, house.parts.transactions, house.parts.identities)
    groups.create(ADMIN, "devs")
    secret = house.token("anna")
    if change in {"membership", "group"}:
        roles.unassign(ADMIN, "reader", "user:anna")
        roles.assign(ADMIN, "reader", "group:devs")
        groups.add_member(ADMIN, "devs", "anna")
    assert house.outcome("a", secret=secret) == "not_found"
    rule = give(roles, "read", repository="files")
    assert house.outcome("a", secret=secret) == b"old"
    assert statements_of(house, lambda: house.outcome("a", secret=secret)) == 0
    take: Callable[[], Any] = {
        "rule": partial(roles.remove_rule, ADMIN, "reader", rule),
        "holder": partial(roles.unassign, ADMIN, "reader", "user:anna"),
        "role": partial(roles.delete, ADMIN, "reader"),
        "membership": partial(groups.remove_member, ADMIN, "devs", "anna"),
        "group": partial(groups.delete, ADMIN, "devs"),
    }[change]
    take()
    assert house.outcome("a", secret=secret) == "not_found"


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("where", ["grants", "judged"])
def test_c8_a_decision_under_way_opens_nothing_published_after_the_role_was_taken(
    house: House, roles: Roles, pause: MakePause, where: str, warm: bool
) -> None:
    give(roles, "read")
    secret = house.token("anna")
    house.identify(secret)
    stopped = pause(decision, "_read_grants") if where == "grants" else pause(house.parts.access, "require")
    reader = gevent.spawn(house.outcome, "a", secret=secret)
    stopped.reached()
    roles.unassign(ADMIN, "reader", "user:anna")
    house.publish("a", b"secret")
    if warm:
        assert house.read("a", caller=ADMIN) == b"secret"
    stopped.go()
    assert reader.get() == "not_found"


def test_c5_when_local_deletion_fails_an_old_grant_is_not_found_all_the_same(
    house: House, roles: Roles, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(roles, "read")
    secret = house.token("anna")
    assert house.outcome("a", secret=secret) == b"old"

    def fail(*_: Any) -> None:
        raise MemoryError

    broken: Region[Any] = house.parts.cache.grants
    for name in ("drop", "drop_tag", "clear"):
        monkeypatch.setattr(broken, name, fail)
    roles.unassign(ADMIN, "reader", "user:anna")
    assert house.outcome("a", secret=secret) == "not_found"


def test_c10_a_role_taken_away_while_the_body_came_is_noticed_at_the_commit(house: House, roles: Roles, pause: MakePause) -> None:
    give(roles, "write")
    stopped = pause(house.parts.publisher, "commit", before=True)
    writer = gevent.spawn(house.publish, "b", b"mine", caller=house.identify(house.token("anna")))
    stopped.reached()
    roles.unassign(ADMIN, "reader", "user:anna")
    stopped.go()
    with pytest.raises((Forbidden, NotFound)):
        writer.get()
    house.assert_counted()


def test_lists_and_searches_show_what_a_role_gives(house: House, roles: Roles) -> None:
    give(roles, "read", repository="files", prefix="team")
    anna = house.identify(house.token("anna"))
    listing = Listing(house.parts.database, house.parts.access)
    assert [each.name for each in house.registry.list(anna, 10).items] == ["files"]
    assert [(each.repository, each.path) for each in listing.search(anna, Filter(words="a"), 10).items] == [("files", "team/a")]


def test_a_token_gets_no_more_from_a_role_than_it_allows(house: House, roles: Roles) -> None:
    give(roles, "read", "write")
    reader = house.identify(house.token("anna", "read"))
    assert house.read("a", caller=reader) == b"old"
    with pytest.raises(Forbidden):
        house.publish("b", b"1", caller=reader)


def test_whoever_held_it_is_deleted_with_what_they_held(house: House, roles: Roles) -> None:
    give(roles, "read", repository="files")
    house.users.delete(ADMIN, "anna")
    assert roles.show(ADMIN, "reader").holders == []
    house.registry.delete(ADMIN, "files")
    assert roles.show(ADMIN, "reader").rules == []
    house.clean()
    assert house.rows("select 1 from arkvory_role_rules") == []


def test_only_administrators_touch_roles(house: House, roles: Roles) -> None:
    give(roles, "read", "write", "delete", "manage")
    anna = house.identify(house.token("anna"))
    for caller, refused in ((anna, Forbidden), (NOBODY, Unauthenticated)):
        for attempt in (
            partial(roles.create, caller, "other"),
            partial(roles.list, caller, 10),
            partial(roles.show, caller, "reader"),
            partial(roles.delete, caller, "reader"),
            partial(roles.add_rule, caller, "reader", NewRoleRule(["read"])),
            partial(roles.assign, caller, "reader", "user:anna"),
            partial(roles.unassign, caller, "reader", "user:anna"),
        ):
            with pytest.raises(refused):
                attempt()


def test_what_is_not_there_and_what_is_there_already(house: House, roles: Roles) -> None:
    with pytest.raises(AlreadyExists):
        roles.create(ADMIN, "reader")
    for attempt in (
        partial(roles.show, ADMIN, "absent"),
        partial(roles.delete, ADMIN, "absent"),
        partial(roles.remove_rule, ADMIN, "reader", 99),
    ):
        with pytest.raises(NotFound):
            attempt()
    for subject in ("user:absent", "group:absent", "anonymous", "signed-in", "user:", "anna"):
        with pytest.raises(Invalid):
            roles.assign(ADMIN, "reader", subject)
    with pytest.raises(Invalid):
        give(roles, "read", repository="absent")
    roles.assign(ADMIN, "reader", "user:anna")
    roles.unassign(ADMIN, "reader", "user:anna")
    roles.unassign(ADMIN, "reader", "user:anna")
    assert roles.show(ADMIN, "reader").holders == []


def test_changes_of_roles_beside_all_else_never_wait_in_a_circle(house: House, roles: Roles) -> None:
    """DESIGN 5, order of locks."""
    codes: set[str] = set()

    def attempt(action: Callable[[], Any]) -> None:
        for _ in range(12):
            try:
                action()
            except (NotFound, Invalid, AlreadyExists) as error:
                codes.add(error.code)

    actions: list[Callable[[], Any]] = [
        lambda: roles.add_rule(ADMIN, "reader", NewRoleRule(("read",), "others", None)),
        lambda: (roles.assign(ADMIN, "reader", "user:bob"), roles.unassign(ADMIN, "reader", "user:bob")),
        lambda: (house.users.create(ADMIN, "bob", None, robot=True), house.users.delete(ADMIN, "bob")),
        lambda: (house.registry.delete(ADMIN, "others"), house.clean(), house.repository("others")),
        lambda: house.rules.add(ADMIN, "files", NewRule("user:anna", ["read"])),
        lambda: house.publish("c", b"x"),
    ]
    gevent.joinall([gevent.spawn(attempt, action) for action in actions], timeout=90, raise_error=True)
    assert codes <= {"not_found", "invalid", "already_exists"}
    assert house.value("select deadlocks from pg_stat_database where datname = current_database()") == 0


def test_the_whole_of_it_over_http(server: Server) -> None:
    server.repository("roled")
    server.put("/raw/roled/a", b"1")
    server.post("/api/v1/users", json={"name": "rita", "password": "ritas-password"})
    made = server.post("/api/v1/roles", json={"name": "fetcher"})
    assert (made.status_code, made.json()["rules"], made.json()["holders"]) == (201, [], [])
    role = server.post("/api/v1/roles/fetcher/rules", json={"permissions": ["read"], "repository": "roled"}).json()
    assert role["rules"] == [{"id": role["rules"][0]["id"], "repository": "roled", "permissions": ["read"], "path_prefix": None}]
    assert server.put("/api/v1/roles/fetcher/holders/user:rita").status_code == 204
    assert server.get("/api/v1/roles/fetcher").json()["holders"] == ["user:rita"]
    assert server.get("/raw/roled/a", auth=("rita", "ritas-password")).status_code == 200
    assert server.delete("/api/v1/roles/fetcher/holders/user:rita").status_code == 204
    assert server.get("/raw/roled/a", auth=("rita", "ritas-password")).status_code == 404
    assert server.delete(f"/api/v1/roles/fetcher/rules/{role['rules'][0]['id']}").status_code == 204
    assert server.delete("/api/v1/roles/fetcher").status_code == 204
    assert server.get("/api/v1/roles").json()["items"] == []


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"permissions": []}, "permissions"),
        ({"permissions": ["fly"]}, "permissions"),
        ({"permissions": ["read"], "repository": "absent"}, "repository"),
        ({"permissions": ["read"], "path_prefix": "../x"}, "path_prefix"),
    ],
)
def test_bad_input_names_its_field(server: Server, body: dict[str, Any], field: str) -> None:
    server.post("/api/v1/roles", json={"name": "bad"})
    answer = server.post("/api/v1/roles/bad/rules", json=body)
    assert (answer.status_code, answer.json()["field"].partition(".")[0]) == (422, field)
