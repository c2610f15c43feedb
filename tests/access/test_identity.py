"""From what a client sends to who it is: remembered by digests alone, and never longer than memory may."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from app.access import identity
from app.access.identity import LOCAL, Credential, Digests
from app.access.people import UserChange
from app.errors import TooManyLogins, Unauthenticated
from app.http.identity import caller_of
from tests.support.house import ADMIN, House
from tests.support.passing import Passing

PASSWORD = "correct-horse"


def basic(name: str, secret: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{secret}".encode()).decode()


def who(house: House, form: str) -> str:
    """The name of whoever sends this header, or why there is none."""
    try:
        found = caller_of(house.parts, {"HTTP_AUTHORIZATION": form, "REMOTE_ADDR": "10.0.0.1"}).identity
    except (Unauthenticated, TooManyLogins) as error:
        return error.code
    assert found is not None
    return found.name


@pytest.fixture
def forms(house: House) -> list[str]:
    """Headers of one user: a token in several spellings, and the password."""
    house.users.create(ADMIN, "anna", PASSWORD)
    token = house.token("anna", "read")
    return [f"Bearer {token}", f"bearer  {token}", basic("any", token), basic("", token), basic("anna", PASSWORD)]


def counted(house: House, action: Callable[[], Any]) -> tuple[int, int]:
    """Hits and fetches of the identity region meanwhile."""
    region = house.parts.cache.identities
    hits, fetches = region.hits, region.fetches
    action()
    return region.hits - hits, region.fetches - fetches


def test_each_spelling_is_the_same_credential_and_counts_once(house: House, forms: list[str]) -> None:
    assert [counted(house, lambda form=form: who(house, form)) for form in forms] == [(0, 1), (1, 0), (1, 0), (1, 0), (0, 1)]
    before = house.parts.database.statements()
    for form in forms:
        assert who(house, form) == "anna"
        assert counted(house, lambda form=form: who(house, form)) == (1, 0)
    assert house.parts.database.statements() == before
    house.parts.cache.identities.clear()
    assert [counted(house, lambda form=form: who(house, form)) for form in forms] == [(0, 1), (1, 0), (1, 0), (1, 0), (0, 1)]


def test_the_identity_lives_30_s_however_often_it_is_asked_for(house: House, forms: list[str], passing: Passing) -> None:
    for seconds, expected in ((0, (0, 1)), (20, (1, 0)), (9, (1, 0)), (2, (0, 1)), (29, (1, 0))):
        passing.let(seconds)
        assert counted(house, lambda: who(house, forms[0])) == expected, seconds


def test_what_ends_a_user_ends_every_spelling_on_the_next_request(house: House, forms: list[str]) -> None:
    for change, ended in ((UserChange(password="another-horse"), forms[4:]), (UserChange(disabled=True), forms)):
        assert {who(house, form) for form in forms} >= {"anna"}
        house.users.update(ADMIN, "anna", change)
        assert {who(house, form) for form in ended} == {"unauthenticated"}
        assert {who(house, form) for form in forms if form not in ended} <= {"anna"}
    house.users.update(ADMIN, "anna", UserChange(disabled=False))
    assert [who(house, form) for form in forms] == ["anna"] * 4 + ["unauthenticated"]


def test_a_revoked_token_ends_in_every_spelling(house: House, forms: list[str]) -> None:
    caller = caller_of(house.parts, {"HTTP_AUTHORIZATION": forms[0]})
    assert [who(house, form) for form in forms] == ["anna"] * 5
    house.tokens.revoke(ADMIN, caller.identity.token.id)  # type: ignore[union-attr]
    assert [who(house, form) for form in forms] == ["unauthenticated"] * 4 + ["anna"]


def test_only_what_was_accepted_is_remembered_and_guesses_count_each_time(house: House, forms: list[str]) -> None:
    digests = house.parts.identities.digests
    house.parts.local_secret = "local"
    wrong = ["Bearer arkv_wrong", "Bearer other", "Bearer", "Digest x=y", "", basic("any", "arkv_wrong"), basic("nobody", PASSWORD)]
    assert {who(house, form) for form in wrong} == {"unauthenticated"}
    allowed = house.parts.settings.login_failures_per_name
    # Time empties the bucket meanwhile, on a slow machine by some guesses.
    guesses = [basic("anna", f"wrong {number}") for number in range(allowed * 2)]
    outcomes = [who(house, form) for form in guesses]
    assert outcomes[:allowed] == ["unauthenticated"] * allowed
    assert "too_many_logins" in outcomes
    assert who(house, "Bearer local") == LOCAL.name
    assert [digests.of_form(form) for form in [*wrong, *guesses, "Bearer local"]] == [None] * (len(wrong) + len(guesses) + 1)
    house.parts.local_secret = "another"
    assert who(house, "Bearer local") == "unauthenticated"


def test_memory_holds_digests_under_a_key_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "MOST_FORMS", 3)
    one, other, credential = Digests(), Digests(), Credential("", "arkv_secret")
    for digests in (one, other):
        for number in range(5):
            digests.remember(f"Bearer {number}", credential)
            digests.of_form("Bearer 0")
    assert [one.of_form(f"Bearer {number}") is not None for number in range(5)] == [True, False, False, True, True]
    assert one.of_form("Bearer 0") == one.of(credential) != other.of(credential)
    assert {len(each) for pair in one._forms.items() for each in pair} == {32}
    assert not set(one._forms) & set(other._forms)
    # What is sent is never taken for a credential, nor the other way round.
    assert one.of(Credential("", "x")) != one._keyed("0:x", b"form")
