"""When a refused client comes back. Pure: time and chance are the test's."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from arkvory.errors import (
    ArkvoryError,
    Later,
    NoAnswer,
    NotFound,
    Quarantined,
    Refused,
    RepositoryOffline,
    TooManyLogins,
    TooManyUploads,
    Unavailable,
    refusal,
    seconds_of,
)
from arkvory.retry import NEVER, Attempts, Retry

CHANCE = random.Random(7)


def waits(policy: Retry, failures: int, retry_after: float | None, elapsed: float = 0.0) -> list[float | None]:
    return [policy.wait(failures, retry_after, elapsed, CHANCE) for _ in range(500)]


def told(policy: Retry, failures: int, retry_after: float | None, elapsed: float = 0.0) -> list[float]:
    found = [each for each in waits(policy, failures, retry_after, elapsed) if each is not None]
    assert len(found) == 500
    return found


def test_the_pause_is_what_the_server_says_and_a_share_of_up_to_half_of_it() -> None:
    found = told(Retry(), 1, 10.0)
    assert min(found) >= 10.0 and max(found) <= 15.0
    assert min(found) < 10.5 and max(found) > 14.5, "the share is spread over all of its range"
    assert sum(each >= 12.5 for each in found) in range(200, 300)


def test_the_share_never_goes_beyond_the_longest_wait_and_stays_a_spread_below_it() -> None:
    found = told(Retry(longest_wait=11.0), 1, 10.0)
    assert min(found) >= 10.0 and max(found) <= 11.0
    assert max(found) - min(found) > 0.8


def test_nobody_comes_back_earlier_than_asked_because_the_policy_ends_before() -> None:
    assert set(waits(Retry(longest_wait=9.0), 1, 10.0)) == {None}
    assert set(waits(Retry(total=60.0), 3, 10.0, elapsed=55.0)) == {None}


def test_the_total_time_bounds_the_last_pause() -> None:
    assert max(told(Retry(total=60.0), 3, 10.0, elapsed=48.0)) <= 12.0


def test_without_a_word_of_the_server_pauses_double_and_keep_a_random_half() -> None:
    policy = Retry(first_wait=1.0, longest_wait=8.0)
    for failures, most in ((1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0), (9, 8.0)):
        found = told(policy, failures, None)
        assert most / 2 <= min(found) and max(found) <= most
        assert max(found) - min(found) > most / 3


@pytest.mark.parametrize("retry_after", [None, 0.0, 3.0])
def test_the_attempts_have_an_end(retry_after: float | None) -> None:
    assert set(waits(Retry(attempts=4), 4, retry_after)) == {None}
    assert set(waits(NEVER, 1, retry_after)) == {None}
    assert told(Retry(attempts=4), 3, retry_after)


def test_a_policy_without_bounds_overflows_nothing() -> None:
    found = told(Retry(attempts=10**9, longest_wait=1e9, total=1e12), 100_000, None)
    assert max(found) <= 1e9


def test_zero_says_nothing_about_when_it_will_be_better() -> None:
    assert min(told(Retry(first_wait=1.0), 3, 0.0)) >= 2.0


NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("retry_after", "expected"),
    [
        ("5", 5.0), (" 120 ", 120.0), ("0", 0.0), ("9" * 5000, 999999999.0),
        (None, None), ("", None), ("soon", None), ("-5", None), ("1.5", None),
        (format_datetime(NOW + timedelta(seconds=90), usegmt=True), 90.0), (format_datetime(NOW - timedelta(seconds=90), usegmt=True), 0.0),
    ],
)  # fmt: skip
def test_retry_after_is_seconds_or_a_date_by_the_servers_own_clock(retry_after: str | None, expected: float | None) -> None:
    assert seconds_of(retry_after, format_datetime(NOW, usegmt=True)) == expected


def problem(code: str) -> bytes:
    return b'{"code": "%s", "detail": "words"}' % code.encode()


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (429, problem("too_many_uploads"), TooManyUploads), (429, b"", Later), (503, problem("repository_offline"), RepositoryOffline),
        (503, b"<html>", Unavailable), (500, b"", Unavailable), (599, b"", Unavailable), (502, problem("new"), Unavailable),
    ],
)  # fmt: skip
def test_what_passes_is_asked_again(status: int, body: bytes, kind: type[ArkvoryError]) -> None:
    error = refusal(status, {"Retry-After": "4"}, body)
    assert type(error) is kind and isinstance(error, Later) and error.retry_after == 4.0
    assert 4.0 <= Attempts(Retry()).pause(error) <= 6.0


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 410, 412, 413, 416, 418, 422, 501, 507])
def test_what_stays_as_it_is_is_not_asked_again(status: int) -> None:
    error = refusal(status, {"Retry-After": "1"}, b"")
    assert isinstance(error, Refused) and error.status == status
    with pytest.raises(type(error)):
        Attempts(Retry()).pause(error)


def test_a_wrong_password_is_not_sent_again_by_itself() -> None:
    with pytest.raises(TooManyLogins):
        Attempts(Retry()).pause(refusal(429, {"Retry-After": "1"}, problem("too_many_logins")))


def test_errors_tell_code_status_and_detail() -> None:
    error = refusal(403, {}, b'{"code": "quarantined", "detail": "held: looked at", "request_id": "r1"}')
    assert isinstance(error, Quarantined) and str(error) == error.detail == "held: looked at"
    assert (error.code, error.status, error.request_id) == ("quarantined", 403, "r1")
    plain = refusal(404, {}, b"there is no 'a' here\n")
    assert isinstance(plain, NotFound) and str(plain) == "there is no 'a' here" and plain.code == "not_found"
    assert str(refusal(404, {}, b"<html>")) == "the server answered 404"
    invalid = refusal(422, {}, b'{"code": "invalid", "detail": "name: no", "fields": {"name": ["no"]}}')
    assert isinstance(invalid, Refused) and invalid.fields == {"name": ["no"]}


def test_an_address_where_nobody_is_has_fewer_attempts_than_a_server_that_says_later() -> None:
    row = Attempts(Retry(attempts=30, unheard=3, first_wait=0.001))
    for error in (NoAnswer("cut off"), NoAnswer("cut off"), refusal(503, {}, b"later"), NoAnswer("cut off"), NoAnswer("cut off")):
        row.pause(error)
    with pytest.raises(NoAnswer, match="after 6 attempts"):
        row.pause(NoAnswer("cut off"))


def test_what_arrives_ends_a_row_of_failures() -> None:
    attempts = Attempts(Retry(attempts=2, first_wait=0.01))
    for _ in range(20):
        attempts.pause(NoAnswer("cut off"))
        attempts.progress()
    attempts.pause(NoAnswer("cut off"))
    with pytest.raises(NoAnswer, match="after 2 attempts"):
        attempts.pause(NoAnswer("cut off"))
