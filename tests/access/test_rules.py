"""Access rules: they bind on the next request, and nobody gives themselves more than they have."""

from __future__ import annotations

import pytest

from app.access.rules import NewRule
from app.errors import Forbidden, Invalid, NotFound, Unauthenticated
from tests.support.house import ADMIN, NOBODY, House


@pytest.fixture
def filled(house: House) -> House:
    house.repository()
    for path in ("a", "team/a", "team/b/c", "teams/a"):
        house.publish(path, path.encode())
    house.user("anna")
    return house


def test_a_rule_binds_on_the_next_request_when_it_comes_and_when_it_goes(filled: House) -> None:
    secret = filled.token("anna", "read")
    assert filled.outcome("a", secret=secret) == "not_found"
    rule = filled.rule("files", "user:anna", "read")
    assert filled.outcome("a", secret=secret) == b"a"
    filled.rules.delete(ADMIN, "files", rule)
    assert filled.outcome("a", secret=secret) == "not_found"


@pytest.mark.parametrize(
    ("subject", "nobody", "somebody"),
    [("anonymous", b"a", b"a"), ("signed-in", "unauthenticated", b"a"), ("user:anna", "unauthenticated", b"a")],
)
def test_each_subject_means_whom_it_says(filled: House, subject: str, nobody: object, somebody: object) -> None:
    filled.rule("files", subject, "read")
    assert (filled.outcome("a"), filled.outcome("a", secret=filled.token("anna", "read"))) == (nobody, somebody)


def test_a_prefix_ends_at_a_separator(filled: House) -> None:
    filled.rule("files", "user:anna", "read", prefix="team")
    secret = filled.token("anna", "read")
    found = [filled.outcome(path, secret=secret) for path in ("team/a", "team/b/c", "teams/a", "a")]
    assert found == [b"team/a", b"team/b/c", "forbidden", "forbidden"]


def test_the_public_flag_taken_away_binds_on_the_next_request(filled: House) -> None:
    filled.change("files", public=True)
    assert filled.outcome("a") == b"a"
    filled.change("files", public=False)
    assert filled.outcome("a") == "unauthenticated"


def test_manage_below_a_path_does_not_manage_the_repository(filled: House) -> None:
    filled.rule("files", "user:anna", "manage", prefix="team")
    anna = filled.identify(filled.token("anna"))
    with pytest.raises(Forbidden):
        filled.rules.add(anna, "files", NewRule("user:anna", ["read"]))
    with pytest.raises(Forbidden):
        filled.registry.delete(anna, "files")
    filled.rule("files", "user:anna", "manage")
    assert filled.rules.add(anna, "files", NewRule("user:anna", ["read"])).subject == "user:anna"


def test_a_token_without_manage_does_not_manage(filled: House) -> None:
    filled.rule("files", "user:anna", "manage", "read")
    with pytest.raises(Forbidden):
        filled.rules.list(filled.identify(filled.token("anna", "read")), "files", 10)


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        (NewRule("user:", ["read"]), "subject"),
        (NewRule("bob", ["read"]), "subject"),
        (NewRule("robot:x", ["read"]), "subject"),
        (NewRule("anonymous:x", ["read"]), "subject"),
        (NewRule("user:nobody", ["read"]), "subject"),
        (NewRule("group:nobody", ["read"]), "subject"),
        (NewRule("signed-in", []), "permissions"),
        (NewRule("signed-in", ["all"]), "permissions"),
    ],
)
def test_a_rule_that_means_nobody_or_nothing_is_refused_and_moves_no_epoch(filled: House, rule: NewRule, field: str) -> None:
    before = filled.epochs()
    with pytest.raises(Invalid) as refused:
        filled.rules.add(ADMIN, "files", rule)
    assert (refused.value.field, filled.epochs()) == (field, before)


def test_rules_of_a_repository_that_one_may_not_know_of_do_not_exist(filled: House) -> None:
    anna = filled.identify(filled.token("anna"))
    for name in ("files", "absent"):
        with pytest.raises(NotFound):
            filled.rules.list(anna, name, 10)
        with pytest.raises(Unauthenticated):
            filled.rules.list(NOBODY, name, 10)


def test_deleting_a_rule_that_is_not_there_moves_no_epoch(filled: House) -> None:
    before = filled.epochs()
    with pytest.raises(NotFound):
        filled.rules.delete(ADMIN, "files", 12345)
    assert filled.epochs() == before


def test_a_list_of_rules_pages_by_id(filled: House) -> None:
    made = [filled.rule("files", "signed-in", "read", prefix=f"p{number}") for number in range(5)]
    first = filled.rules.list(ADMIN, "files", 2)
    assert first.after is not None
    second = filled.rules.list(ADMIN, "files", 3, int(first.after[0]))
    assert ([each.id for each in (*first.items, *second.items)], second.after) == (made, None)
