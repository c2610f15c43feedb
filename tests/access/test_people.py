"""Users and groups: what binds when, who may, and the last administrator."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial

import gevent
import pytest

from app.access.identity import Caller, Credential
from app.access.people import Groups, UserChange
from app.access.rules import NewRule
from app.access.tokens import NewToken
from app.errors import AlreadyExists, ArkvoryError, Conflict, Forbidden, Invalid, NotFound, Unauthenticated
from app.repository.registry import NewRepository, RepositoryChange
from config.settings import Settings
from tests.conftest import MakeHouse
from tests.support.house import ADMIN, NOBODY, House

PASSWORD = "correct-horse-battery"


def signed_in(house: House, name: str, password: str = PASSWORD) -> Caller:
    return Caller(house.parts.identities.identify(Credential(name, password)), "127.0.0.1")


def groups_of(house: House) -> Groups:
    return Groups(house.parts.database, house.parts.transactions, house.parts.identities)


def administrators(house: House) -> list[str]:
    return [row[0] for row in house.rows("select name from arkvory_users where administrator and not disabled order by name")]


def test_passwords_are_hashed_by_argon2id_with_64_mib_unless_it_was_set_and_stay_good_when_it_is(make_house: MakeHouse) -> None:
    memory = Settings.from_environment({}).password_hash_kib
    house, cheap = make_house(ARKVORY_PASSWORD_HASH_KIB=str(memory)), make_house(owns=False, ARKVORY_PASSWORD_HASH_KIB="32")
    house.users.create(ADMIN, "anna", PASSWORD)
    cheap.users.create(ADMIN, "bob", PASSWORD)
    stored = [row[0].split("$")[1:4] for row in house.rows("select password_hash from arkvory_users order by name")]
    assert stored == [["argon2id", "v=19", "m=65536,t=3,p=4"], ["argon2id", "v=19", "m=32,t=3,p=4"]]
    for each in (house, cheap):
        assert [signed_in(each, name).identity.name for name in ("anna", "bob")] == ["anna", "bob"]  # type: ignore[union-attr]
        with pytest.raises(Unauthenticated):
            signed_in(each, "anna", "wrong")


# Who may


def test_only_administrators_create_list_and_delete_users(house: House) -> None:
    house.users.create(ADMIN, "anna", PASSWORD)
    anna = signed_in(house, "anna")
    for attempt in (
        partial(house.users.create, anna, "bob", PASSWORD),
        partial(house.users.list, anna, 10),
        partial(house.users.delete, anna, "anna"),
        partial(house.users.show, anna, "somebody"),
        partial(house.users.update, anna, "anna", UserChange(administrator=True)),
        partial(house.users.update, anna, "somebody", UserChange(password="another-one")),
    ):
        with pytest.raises(Forbidden):
            attempt()
    with pytest.raises(Unauthenticated):
        house.users.list(NOBODY, 10)
    assert house.users.show(anna, "anna").name == "anna"


def test_a_user_changes_their_own_password_but_no_token_does_it_for_them(house: House) -> None:
    house.users.create(ADMIN, "anna", PASSWORD)
    with pytest.raises(Forbidden, match="former password"):
        house.users.update(house.identify(house.token("anna")), "anna", UserChange(password="another-password"))
    house.users.update(signed_in(house, "anna"), "anna", UserChange(password="another-password"))
    assert signed_in(house, "anna", "another-password").user_id


def test_an_administrators_token_without_manage_does_not_administer(house: House) -> None:
    house.user("root", administrator=True)
    reader, manager = (house.identify(house.token("root", *each)) for each in (("read", "write"), ("read", "manage")))
    with pytest.raises(Forbidden):
        house.users.create(reader, "anna", PASSWORD)
    assert house.users.create(manager, "anna", PASSWORD).name == "anna"


# Names and passwords


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "a\x00b", "ä", "a" * 129, "a:b", "\ud800", "../x"])
def test_a_name_that_means_something_elsewhere_is_refused(house: House, name: str) -> None:
    with pytest.raises(Invalid) as refused:
        house.users.create(ADMIN, name, PASSWORD)
    assert refused.value.field == "name"


@pytest.mark.parametrize("name", ["a", "Anna.B", "anna@example.org", "a+b_c-d", "a" * 128])
def test_names_such_as_mail_addresses_are_good(house: House, name: str) -> None:
    house.users.create(ADMIN, name, PASSWORD)
    assert signed_in(house, name).user_id
    with pytest.raises(AlreadyExists):
        house.users.create(ADMIN, name, PASSWORD)


@pytest.mark.parametrize("password", ["", "short", "x" * 1025, "ä" * 513, "with\x00a-nul", "\ud800" * 8, "arkv_like-a-token"])
def test_a_password_that_could_not_be_checked_later_is_refused(house: House, password: str) -> None:
    with pytest.raises(Invalid) as refused:
        house.users.create(ADMIN, "anna", password)
    assert refused.value.field == "password"


# What binds when (C2, C8)


def test_a_changed_password_binds_on_the_next_request(house: House) -> None:
    house.users.create(ADMIN, "anna", PASSWORD)
    assert signed_in(house, "anna").user_id
    house.users.update(ADMIN, "anna", UserChange(password="another-password"))
    with pytest.raises(Unauthenticated):
        signed_in(house, "anna")
    assert signed_in(house, "anna", "another-password").user_id


def test_a_disabled_user_is_nobody_on_the_next_request_and_back_when_enabled(house: House) -> None:
    house.users.create(ADMIN, "anna", PASSWORD)
    secret = house.token("anna", "read")
    assert signed_in(house, "anna").user_id == house.identify(secret).user_id
    house.disable("anna")
    for credential in (Credential("anna", PASSWORD), Credential("", secret)):
        with pytest.raises(Unauthenticated):
            house.parts.identities.identify(credential)
    house.disable("anna", False)
    assert signed_in(house, "anna").user_id == house.identify(secret).user_id


def test_a_deleted_user_is_nobody_on_the_next_request_and_a_namesake_inherits_nothing(house: House) -> None:
    house.repository()
    house.publish("a", b"1")
    house.users.create(ADMIN, "anna", PASSWORD)
    house.rule("files", "user:anna", "read")
    secret = house.token("anna", "read")
    assert house.outcome("a", secret=secret) == b"1"
    before = house.epochs()
    house.users.delete(ADMIN, "anna")
    with pytest.raises(Unauthenticated):
        house.identify(secret)
    assert house.epochs()[1] == before[1] + 1
    house.users.create(ADMIN, "anna", PASSWORD)
    assert house.outcome("a", secret=house.token("anna", "read")) == "not_found"


def test_membership_binds_on_the_next_request_both_ways(house: House) -> None:
    groups = groups_of(house)
    house.repository()
    house.publish("a", b"1")
    house.user("anna")
    secret = house.token("anna", "read")
    groups.create(ADMIN, "readers")
    house.rule("files", "group:readers", "read")
    assert house.outcome("a", secret=secret) == "not_found"
    groups.add_member(ADMIN, "readers", "anna")
    groups.add_member(ADMIN, "readers", "anna")
    assert house.outcome("a", secret=secret) == b"1"
    groups.remove_member(ADMIN, "readers", "anna")
    groups.remove_member(ADMIN, "readers", "anna")
    assert house.outcome("a", secret=secret) == "not_found"


def test_deleting_a_group_takes_its_rules_with_it_and_binds_on_the_next_request(house: House) -> None:
    groups = groups_of(house)
    for name in ("files", "others"):
        house.repository(name)
        house.publish("a", b"1", name)
    house.user("anna")
    secret = house.token("anna", "read")
    groups.create(ADMIN, "readers")
    groups.add_member(ADMIN, "readers", "anna")
    for name in ("files", "others"):
        house.rule(name, "group:readers", "read")
        assert house.outcome("a", name, secret=secret) == b"1"
    groups.delete(ADMIN, "readers")
    assert [house.outcome("a", name, secret=secret) for name in ("files", "others")] == ["not_found", "not_found"]
    assert house.rows("select 1 from arkvory_access_rules") == []
    with pytest.raises(NotFound):
        groups.delete(ADMIN, "readers")


def test_a_change_that_changes_nothing_advances_nothing(house: House) -> None:
    house.user("anna")
    house.users.update(ADMIN, "anna", UserChange(disabled=False, administrator=False))
    assert house.value("select revision from arkvory_users where name = 'anna'") == 1


# The last administrator


@pytest.mark.parametrize("change", [UserChange(disabled=True), UserChange(administrator=False)])
def test_the_last_administrator_stays_one(house: House, change: UserChange) -> None:
    house.user("root", administrator=True)
    house.user("asleep", administrator=True)
    house.disable("asleep")
    with pytest.raises(Conflict):
        house.users.update(ADMIN, "root", change)
    with pytest.raises(Conflict):
        house.users.delete(ADMIN, "root")
    assert administrators(house) == ["root"]
    house.users.update(ADMIN, "asleep", change)


@pytest.mark.parametrize("how", ["disable", "demote", "delete"])
def test_administrators_who_remove_each_other_at_once_leave_exactly_one(house: House, how: str) -> None:
    names = ["ann", "ben", "cat", "dan"]
    for name in names:
        house.user(name, administrator=True)
    remove = {
        "disable": lambda name: house.users.update(ADMIN, name, UserChange(disabled=True)),
        "demote": lambda name: house.users.update(ADMIN, name, UserChange(administrator=False)),
        "delete": lambda name: house.users.delete(ADMIN, name),
    }[how]

    def attempt(name: str) -> str:
        try:
            remove(name)
        except Conflict:
            return "refused"
        return "done"

    runs = [gevent.spawn(attempt, name) for name in names]
    gevent.joinall(runs, timeout=30, raise_error=True)
    assert Counter(run.value for run in runs) == {"done": 3, "refused": 1}
    assert len(administrators(house)) == 1


# The order of locks


def test_a_rule_that_comes_while_its_user_is_deleted_either_goes_too_or_is_refused(house: House) -> None:
    house.repository()
    for number in range(15):
        name = f"user{number}"
        house.user(name)
        before = house.epochs()[1]
        adding = gevent.spawn(_code, lambda name=name: house.rule("files", f"user:{name}", "read"))
        deleting = gevent.spawn(_code, lambda name=name: house.users.delete(ADMIN, name))
        gevent.joinall([adding, deleting], timeout=30, raise_error=True)
        assert deleting.value == "done"
        assert adding.value in {"done", "invalid"}
        # A rule that was there has moved the epoch twice: when it came and when it went.
        assert house.epochs()[1] == before + (2 if adding.value == "done" else 0)
    assert house.rows("select 1 from arkvory_access_rules") == []


def _code(call: Callable[[], object]) -> str:
    try:
        call()
    except ArkvoryError as error:
        return error.code
    return "done"


def test_management_in_parallel_never_waits_in_a_circle(house: House) -> None:
    """DESIGN 5, order of locks: PostgreSQL has no deadlock to resolve, and only answers of the domain come back."""
    groups, dice = groups_of(house), random.Random(7)
    house.user("root", administrator=True)
    root = house.identify(house.token("root"))
    people, teams, stores = [f"u{n}" for n in range(4)], [f"g{n}" for n in range(3)], [f"r{n}" for n in range(4)]
    operations = [
        lambda: house.users.create(ADMIN, dice.choice(people), PASSWORD, administrator=dice.random() < 0.5),
        lambda: house.users.delete(ADMIN, dice.choice(people)),
        lambda: house.users.update(ADMIN, dice.choice(people), UserChange(disabled=dice.random() < 0.5, administrator=dice.random() < 0.5)),
        lambda: groups.create(ADMIN, dice.choice(teams)),
        lambda: groups.delete(root, dice.choice(teams)),
        lambda: groups.add_member(ADMIN, dice.choice(teams), dice.choice(people)),
        lambda: groups.remove_member(ADMIN, dice.choice(teams), dice.choice(people)),
        lambda: house.registry.create(ADMIN, NewRepository(dice.choice(stores), "raw")),
        lambda: house.registry.delete(ADMIN, dice.choice(stores)),
        lambda: house.change(dice.choice(stores), name=dice.choice(stores)),
        lambda: house.registry.update(root, dice.choice(stores), RepositoryChange({"public": dice.random() < 0.5})),
        lambda: house.rules.add(ADMIN, dice.choice(stores), NewRule(f"user:{dice.choice(people)}", ["read"])),
        lambda: house.rules.add(ADMIN, dice.choice(stores), NewRule(f"group:{dice.choice(teams)}", ["read"], "a/")),
        lambda: house.rules.delete(ADMIN, dice.choice(stores), dice.randrange(1, 60)),
        lambda: house.tokens.create(ADMIN, NewToken("t", ["read"], None, None, dice.choice(people))),
        lambda: house.tokens.revoke(ADMIN, dice.randrange(1, 60)),
        lambda: house.publish(f"a/{dice.randrange(5)}", b"x", dice.choice(stores)),
    ]
    codes: Counter[str] = Counter()

    def work() -> None:
        for _ in range(40):
            codes[_code(dice.choice(operations))] += 1

    gevent.joinall([gevent.spawn(work) for _ in range(6)], timeout=90, raise_error=True)
    assert set(codes) <= {"done", "not_found", "already_exists", "conflict", "invalid"}, codes
    assert codes["done"] > 60
    assert house.value("select deadlocks from pg_stat_database where datname = current_database()") == 0
    house.assert_counted()
