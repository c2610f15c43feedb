"""Tokens: shown once, bound to what made them, worthless from the request after their revocation."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import gevent
import pytest

from app.access.identity import Caller, Credential
from app.access.people import UserChange
from app.access.tokens import NewToken
from app.errors import Forbidden, Invalid, NotFound, Unauthenticated
from tests.support.house import ADMIN, NOBODY, House


def make(
    house: House, maker: Caller, permissions: Sequence[str] = ("read",), repositories: Sequence[str] | None = None, days: int | None = None
) -> str:
    return house.tokens.create(maker, NewToken("made", permissions, repositories, days))[1]


def id_of(house: House, caller: Caller) -> int:
    assert caller.identity is not None
    assert caller.identity.token is not None
    return caller.identity.token.id


def test_the_secret_is_shown_once_and_kept_only_as_its_digest(house: House) -> None:
    house.user("anna")
    token, secret = house.tokens.create(ADMIN, NewToken("t", ["write", "read"], user="anna"))
    assert token.permissions == ["read", "write"]
    assert secret not in repr(house.tokens.list(house.identify(secret), 10).items)
    assert secret not in repr(house.rows("select * from arkvory_tokens"))


def test_a_revoked_token_is_worth_nothing_on_the_next_request(house: House) -> None:
    house.user("anna")
    secret = house.token("anna", "read")
    caller = house.identify(secret)
    house.tokens.revoke(caller, id_of(house, caller))
    with pytest.raises(Unauthenticated):
        house.identify(secret)
    with pytest.raises(NotFound):
        house.tokens.revoke(ADMIN, id_of(house, caller))


def test_a_token_whose_time_is_over_is_worth_nothing(house: House) -> None:
    house.user("anna")
    secret = make(house, house.identify(house.token("anna")), days=1)
    assert house.identify(secret).user_id
    house.rows("update arkvory_tokens set expires_at = now() - interval '1 second' where expires_at is not null")
    house.parts.cache.identities.clear()
    with pytest.raises(Unauthenticated, match="expired"):
        house.identify(secret)


@pytest.mark.parametrize(
    ("permissions", "repositories"),
    [(["read", "write"], ["files"]), (["manage"], ["files"]), (["read"], None), (["read"], ["files", "others"])],
)
def test_a_token_never_makes_one_that_may_do_more(house: House, permissions: list[str], repositories: list[str] | None) -> None:
    house.user("root", administrator=True)
    house.repository("files")
    house.repository("others")
    maker = house.identify(make(house, house.identify(house.token("root")), ["read"], ["files"]))
    with pytest.raises((Forbidden, Invalid)):
        make(house, maker, permissions, repositories)
    assert house.identify(make(house, maker, ["read"], ["files"])).user_id


@pytest.mark.parametrize("days", [None, 7, 30, 1])
def test_a_token_never_makes_one_that_lasts_longer(house: House, days: int | None) -> None:
    house.user("anna")
    maker = house.identify(make(house, house.identify(house.token("anna")), days=7))
    made = house.identify(make(house, maker, days=days))
    ends = [each.identity.token.expires_at for each in (maker, made) if each.identity and each.identity.token]
    assert (ends[1] == ends[0]) if days != 1 else (ends[1] < ends[0])


def test_a_token_made_with_a_token_ends_with_it(house: House) -> None:
    house.user("anna")
    parent = house.identify(house.token("anna", "read"))
    child_secret = make(house, parent)
    child = house.identify(child_secret)
    grandchild_secret = make(house, child)
    assert house.identify(grandchild_secret).user_id
    made_with = [each.made_with for each in house.tokens.list(child, 10).items]
    assert made_with == [None, id_of(house, parent), id_of(house, child)]
    ended = house.tokens.revoke(ADMIN, id_of(house, parent))
    assert [line.split(" was made")[0] for line in ended] == [f"token {id_of(house, child) + more} (made)" for more in (0, 1)]
    for secret in (child_secret, grandchild_secret):
        with pytest.raises(Unauthenticated):
            house.identify(secret)


def test_a_token_made_while_its_maker_is_revoked_does_not_outlive_it(house: House) -> None:
    house.user("anna")
    for _ in range(10):
        maker = house.identify(house.token("anna", "read"))
        made: list[str] = []

        def attempt(maker: Caller = maker, made: list[str] = made) -> None:
            with contextlib.suppress(Unauthenticated):
                made.append(make(house, maker))

        revoking = gevent.spawn(house.tokens.revoke, ADMIN, id_of(house, maker))
        gevent.joinall([gevent.spawn(attempt), revoking], timeout=30, raise_error=True)
        for secret in made:
            with pytest.raises(Unauthenticated):
                house.identify(secret)


def test_others_tokens_do_not_exist_for_anyone_but_administrators(house: House) -> None:
    house.user("anna")
    house.user("bob")
    anna, bob = house.identify(house.token("anna")), house.identify(house.token("bob"))
    for attempt in (house.tokens.show, house.tokens.revoke):
        with pytest.raises(NotFound):
            attempt(bob, id_of(house, anna))
    with pytest.raises(Forbidden):
        house.tokens.list(bob, 10, user="anna")
    assert [each.id for each in house.tokens.list(ADMIN, 10, user="anna").items] == [id_of(house, anna)]
    house.tokens.revoke(ADMIN, id_of(house, anna))


def test_a_narrow_token_revokes_itself_but_not_its_owners_others(house: House) -> None:
    house.user("anna")
    wide, narrow = house.identify(house.token("anna")), house.identify(house.token("anna", "read"))
    with pytest.raises(Forbidden):
        house.tokens.revoke(narrow, id_of(house, wide))
    house.tokens.revoke(narrow, id_of(house, narrow))


def test_a_narrow_token_revokes_its_owners_tokens_that_can_do_no_more(house: House) -> None:
    house.user("anna")
    house.user("otto")
    equal, writer, narrow = (house.identify(house.token("anna", *given)) for given in (("read",), ("read", "write"), ("read",)))
    other = house.identify(house.token("otto", "read"))
    house.tokens.revoke(narrow, id_of(house, equal))
    with pytest.raises(Forbidden):
        house.tokens.revoke(narrow, id_of(house, writer))
    with pytest.raises(NotFound):
        house.tokens.revoke(narrow, id_of(house, other))


def test_a_token_for_another_user_is_not_made_with_a_token(house: House) -> None:
    house.user("root", administrator=True)
    house.user("anna")
    with pytest.raises(Forbidden):
        house.tokens.create(house.identify(house.token("root")), NewToken("t", ["read"], user="anna"))
    with pytest.raises(Forbidden):
        house.tokens.create(house.identify(house.token("anna")), NewToken("t", ["read"], user="root"))


@pytest.mark.parametrize(
    ("new", "field"),
    [
        (NewToken("", ["read"], user="anna"), "name"),
        (NewToken("t", [], user="anna"), "permissions"),
        (NewToken("t", ["fly"], user="anna"), "permissions"),
        (NewToken("t", ["read"], [], user="anna"), "repositories"),
        (NewToken("t", ["read"], ["nope"], user="anna"), "repositories"),
        (NewToken("t", ["read"], None, 0, user="anna"), "expires_in_days"),
        (NewToken("t", ["read"], None, 4000, user="anna"), "expires_in_days"),
        (NewToken("t", ["read"], user="nobody"), "user"),
        (NewToken("t", ["read"]), "user"),
    ],
)
def test_a_token_that_makes_no_sense_is_refused_with_its_field(house: House, new: NewToken, field: str) -> None:
    house.user("anna")
    with pytest.raises(Invalid) as refused:
        house.tokens.create(ADMIN, new)
    assert refused.value.field == field


def test_a_token_tells_nobody_which_repositories_exist(house: House) -> None:
    house.repository("hidden")
    house.user("anna")
    anna = house.identify(house.token("anna"))
    messages = []
    for name in ("hidden", "absent"):
        with pytest.raises(Invalid) as refused:
            make(house, anna, ["read"], [name])
        messages.append(refused.value.message.replace(name, "NAME"))
    assert len(set(messages)) == 1


def test_nobody_has_tokens(house: House) -> None:
    with pytest.raises(Unauthenticated):
        make(house, NOBODY)
    with pytest.raises(Unauthenticated):
        house.tokens.list(NOBODY, 10)


def test_taking_the_administrators_right_away_binds_their_tokens_too(house: House) -> None:
    house.user("root", administrator=True)
    house.user("other", administrator=True)
    secret = house.token("root")
    house.repository()
    house.publish("a", b"1")
    assert house.outcome("a", secret=secret) == b"1"
    house.users.update(ADMIN, "root", UserChange(administrator=False))
    assert house.outcome("a", secret=secret) == "not_found"
    with pytest.raises(Forbidden):
        house.users.list(house.identify(secret), 10)
    assert house.parts.identities.identify(Credential("", secret)).administrator is False


def test_cleanup_takes_what_expired_long_ago_and_nothing_that_others_were_made_with(house: House) -> None:
    house.repository()
    house.user("anna")
    for name in ("fresh", "old", "parent"):
        house.tokens.create(ADMIN, NewToken(name, ["read"], None, 1, user="anna"))
    house.rows("update arkvory_tokens set expires_at = now() - interval '29 days' where name = 'fresh'")
    house.rows("update arkvory_tokens set expires_at = now() - interval '31 days' where name in ('old', 'parent')")
    house.rows(
        "insert into arkvory_deploy_tokens (repository_id, parent_id, name, digest, permissions) "
        "select r.id, t.id, 'child', 'x', '{read}' from arkvory_repositories r, arkvory_tokens t where t.name = 'parent'"
    )
    waiting = "('a', now() - interval '1 second'), ('b', now() + interval '1 hour')"
    house.rows(f"insert into arkvory_logins (digest, expires_at) values {waiting}")
    house.clean()
    left = "select name from arkvory_tokens union select name from arkvory_deploy_tokens"
    assert {row[0] for row in house.rows(left)} == {"fresh", "parent", "child"}
    assert house.value("select count(*) from arkvory_logins") == 1
    house.rows("update arkvory_deploy_tokens set expires_at = now() - interval '31 days'")
    house.clean()
    assert {row[0] for row in house.rows(left)} == {"fresh"}
