"""Login throttling: wrong passwords only, by name and by address, in bounded memory."""

from __future__ import annotations

from collections import Counter

import gevent
import pytest

from app.access import throttle
from app.access.identity import Credential
from app.access.throttle import Buckets, Throttle
from app.errors import ArkvoryError, TooManyLogins, Unauthenticated
from tests.conftest import MakeHouse, MakeServer
from tests.support.house import ADMIN, House
from tests.support.passing import Passing

PASSWORD = "correct-horse-battery"
HERE, THERE = "10.0.0.1", "10.0.0.2"


@pytest.fixture
def strict(make_house: MakeHouse) -> House:
    made = make_house(ARKVORY_LOGIN_FAILURES_PER_NAME="3", ARKVORY_LOGIN_FAILURES_PER_ADDRESS="5")
    for name in ("anna", "bob"):
        made.users.create(ADMIN, name, PASSWORD)
    return made


def login(house: House, name: str, password: str, address: str = HERE) -> str:
    try:
        return house.parts.identities.identify(Credential(name, password), address).name
    except ArkvoryError as error:
        return error.code


def checks(house: House, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The passwords that argon2 is asked about from now on."""
    asked: list[str] = []
    passwords = house.parts.identities.passwords
    check = passwords._check

    def noted(stored: str, password: str) -> bool:
        asked.append(password)
        return check(stored, password)

    monkeypatch.setattr(passwords, "_check", noted)
    return asked


@pytest.mark.parametrize("name", ["anna", "nobody-of-that-name"])
def test_a_name_that_was_guessed_at_too_often_is_not_checked_any_more_from_anywhere(
    strict: House, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    asked = checks(strict, monkeypatch)
    assert [login(strict, name, f"wrong {number}") for number in range(5)] == ["unauthenticated"] * 3 + ["too_many_logins"] * 2
    assert login(strict, name, PASSWORD, THERE) == "too_many_logins"
    assert asked == ["wrong 0", "wrong 1", "wrong 2"]
    assert login(strict, "bob", PASSWORD) == "bob"


def test_an_address_that_guessed_too_often_is_not_listened_to_and_others_are(strict: House) -> None:
    names = [f"somebody{number}" for number in range(7)]
    assert [login(strict, name, "wrong") for name in names] == ["unauthenticated"] * 5 + ["too_many_logins"] * 2
    assert login(strict, "anna", PASSWORD) == "too_many_logins"
    assert login(strict, "anna", PASSWORD, THERE) == "anna"


def test_who_was_let_in_from_an_address_is_not_kept_out_by_guesses_from_elsewhere(strict: House) -> None:
    assert login(strict, "anna", PASSWORD, HERE) == "anna"
    for number in range(5):
        login(strict, "anna", f"wrong {number}", THERE)
    # As after a change of the password: no verdict is known.
    strict.parts.cache.passwords.clear()
    strict.parts.cache.identities.clear()
    assert login(strict, "anna", PASSWORD, "10.0.0.3") == "too_many_logins"
    assert login(strict, "anna", PASSWORD, HERE) == "anna"
    # There too it may be guessed three times, no more.
    answers = [login(strict, "anna", f"wrong again {number}", HERE) for number in range(4)]
    assert answers == ["unauthenticated"] * 3 + ["too_many_logins"]


def test_an_address_that_asks_hundreds_of_times_at_once_does_not_keep_others_waiting(
    make_house: MakeHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = make_house(ARKVORY_LOGIN_FAILURES_PER_ADDRESS="0", ARKVORY_PASSWORD_HASH_KIB="65536")
    house.users.create(ADMIN, "anna", PASSWORD)
    asked = checks(house, monkeypatch)
    crowd = [gevent.spawn(login, house, f"somebody{number}", "wrong", HERE) for number in range(30)]
    while len(asked) < 2:
        gevent.sleep(0)
    assert login(house, "anna", PASSWORD, THERE) == "anna"
    assert asked.index(PASSWORD) <= 6
    gevent.killall(crowd)
    assert not waiting(house)


def waiting(house: House) -> object:
    """What is kept of those that wait, or are being checked."""
    return house.parts.identities.passwords._turns._turns


def test_guesses_at_once_are_counted_as_those_one_after_another(strict: House, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = checks(strict, monkeypatch)
    guesses = [gevent.spawn(login, strict, "anna", f"wrong {number}") for number in range(40)]
    gevent.joinall(guesses, timeout=60, raise_error=True)
    codes = Counter(each.value for each in guesses)
    # One more may be under way while the last allowed one is judged.
    assert 3 <= len(asked) <= 4
    assert codes == {"unauthenticated": len(asked), "too_many_logins": 40 - len(asked)}


def test_right_passwords_are_never_counted(strict: House, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(10):
        assert login(strict, "anna", PASSWORD) == "anna"
        strict.parts.cache.identities.clear()
        strict.parts.cache.passwords.clear()
    assert login(strict, "anna", "wrong") == "unauthenticated"


def test_a_login_that_is_known_to_be_right_and_a_token_go_on_while_others_guess(strict: House) -> None:
    secret = strict.token("anna", "read")
    assert login(strict, "anna", PASSWORD) == "anna"
    for number in range(5):
        login(strict, "anna", f"wrong {number}")
    assert login(strict, "anna", "wrong") == "too_many_logins"
    strict.parts.cache.identities.clear()
    assert login(strict, "anna", PASSWORD) == "anna"
    assert login(strict, "anna", secret) == "anna"


def test_wrong_tokens_fill_nothing(strict: House) -> None:
    assert {login(strict, "anna", f"arkv_wrong{number}") for number in range(10)} == {"unauthenticated"}
    assert login(strict, "anna", PASSWORD) == "anna"


def test_a_machine_with_an_old_password_locks_nobody_out_but_itself(strict: House) -> None:
    answers = [login(strict, "anna", "old password") for _ in range(8)]
    assert answers == ["unauthenticated"] * 4 + ["too_many_logins"] * 4
    assert login(strict, "anna", PASSWORD) == "anna"


def test_time_empties_a_bucket(make_house: MakeHouse, passing: Passing) -> None:
    house = make_house(ARKVORY_LOGIN_FAILURES_PER_NAME="2", ARKVORY_LOGIN_WINDOW_SECONDS="2")
    house.users.create(ADMIN, "anna", PASSWORD)
    for number in range(2):
        login(house, "anna", f"wrong {number}")
    with pytest.raises(TooManyLogins) as refused:
        house.parts.identities.identify(Credential("anna", PASSWORD), HERE)
    assert refused.value.retry_after == 1
    passing.let(1.1)
    assert login(house, "anna", PASSWORD) == "anna"


def test_a_limit_of_zero_limits_nothing(make_house: MakeHouse) -> None:
    house = make_house(ARKVORY_LOGIN_FAILURES_PER_NAME="0", ARKVORY_LOGIN_FAILURES_PER_ADDRESS="0")
    house.users.create(ADMIN, "anna", PASSWORD)
    assert {login(house, "anna", f"wrong {number}") for number in range(8)} == {"unauthenticated"}


def test_memory_is_bounded_whatever_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle, "MOST_BUCKETS", 10)
    buckets = Buckets(3, 60)
    for number in range(100):
        buckets.fill(throttle._key("x" * number))
    assert len(buckets) == 10
    made = Throttle(3, 3, 60)
    for number in range(100):
        made.let_in(f"x{number}", HERE)
    assert len(made._let_in) == 10
    assert {len(key) for key in buckets._levels} == {16}


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("unix:1", "unix:2", False),
    ],
)
def test_an_ipv6_network_guesses_as_one(first: str, second: str, together: bool) -> None:
    counted = Throttle(0, 1, 60)
    counted.count("anna", first)
    with pytest.raises(TooManyLogins):
        counted.check("bob", first)
    if together:
        with pytest.raises(TooManyLogins):
            counted.check("bob", second)
    else:
        counted.check("bob", second)


def test_whoever_has_no_address_does_not_share_a_bucket_with_all_others() -> None:
    counted = Throttle(0, 1, 60)
    counted.count("anna", "")
    counted.check("bob", "")


def test_over_http_it_is_429_with_the_time_to_wait(make_server: MakeServer) -> None:
    server = make_server(ARKVORY_LOGIN_FAILURES_PER_NAME="2", ARKVORY_LOGIN_FAILURES_PER_ADDRESS="10")
    server.post("/api/v1/users", json={"name": "anna", "password": PASSWORD})
    made = server.post("/api/v1/tokens", json={"name": "t", "permissions": ["read"], "user": "anna"})
    assert made.status_code == 201
    server.repository("open", public=True)
    server.put("/raw/open/a", b"1")
    for number in range(2):
        assert server.get("/raw/open/a", auth=("anna", f"wrong {number}")).status_code == 401
    for path in ("/raw/open/a", "/api/v1/whoami"):
        answer = server.get(path, auth=("anna", "wrong again"))
        assert answer.status_code == 429
        assert 1 <= int(answer.headers["Retry-After"]) <= 150
    assert server.get("/api/v1/whoami", auth=("anna", "wrong again")).json()["code"] == "too_many_logins"
    assert server.get("/raw/open/a", auth=("anna", made.json()["token"])).status_code == 200
    assert server.get("/raw/open/a").status_code == 200
    assert server.get("/raw/open/a", auth=None).status_code == 200


def test_whoever_may_not_sign_in_learns_nothing_from_the_throttle(strict: House) -> None:
    """Names that exist and names that do not are answered alike."""
    answers = {name: [login(strict, name, f"wrong {number}", name) for number in range(5)] for name in ("anna", "absent")}
    assert answers["anna"] == answers["absent"]
    with pytest.raises(Unauthenticated):
        strict.parts.identities.identify(Credential("absent\x00", "x"), HERE)
