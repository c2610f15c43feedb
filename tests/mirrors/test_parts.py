"""Files in parts of 8 MiB: what has arrived is not asked for again, and parts of two files never come together."""

from __future__ import annotations

import re
from typing import Any

import pytest
from gevent.event import Event

from app.repository.mirrors import run
from app.repository.parts import PART
from tests.conftest import MakeHouse
from tests.mirrors.conftest import Following
from tests.repository.test_proxy import find
from tests.support.house import eventually, sha256
from tests.support.upstreams import FakeUpstream, noise

LARGE = noise(3 * PART + 12_345)


class Ranged:
    """An upstream with one long file, which it sends in the parts that it is asked for; counts the bytes that it sent."""

    def __init__(self, upstream: FakeUpstream, body: bytes, etag: str | None = '"one"', path: str = "/big") -> None:
        self.upstream = upstream
        self.path = path
        self.body, self.etag = body, etag
        self.sent = 0
        self.asked: list[tuple[str | None, str | None]] = []
        # After so many requests each waits for it.
        self.after, self.gate = 10**9, Event()
        upstream.arrived = self._prepare
        upstream.put("/", b'<a href="big">big</a>')
        upstream.put(path, body)

    def _prepare(self, asked: Any) -> None:
        if asked.target != self.path:
            return
        wanted, condition = asked.headers.get("range"), asked.headers.get("if-range")
        self.asked.append((wanted, condition))
        if len(self.asked) > self.after:
            self.gate.wait()
        headers = {} if self.etag is None else {"ETag": self.etag}
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", wanted or "")
        if found is None or condition not in (None, self.etag):
            self.upstream.put(self.path, self.body, headers=headers)
            self.sent += len(self.body)
            return
        first, last = int(found[1]), min(int(found[2]), len(self.body) - 1)
        part = self.body[first : last + 1]
        self.sent += len(part)
        headers |= {"Content-Range": f"bytes {first}-{last}/{len(self.body)}"}
        self.upstream.put(self.path, part, status=206, headers=headers)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(run, "FIRST_WAIT_SECONDS", 0.05)


@pytest.fixture
def proxied(following: Following, upstream: FakeUpstream) -> Following:
    following.house.repository(kind="proxy", upstream_url=upstream.url, settings={"mutable_ttl": 0})
    following.follow()
    return following


def test_a_long_file_comes_in_parts_each_with_the_validator_of_the_first(proxied: Following, upstream: FakeUpstream) -> None:
    source = Ranged(upstream, LARGE)
    assert proxied.run().state == "complete"
    assert source.asked == [
        (f"bytes={start}-{start + PART - 1}", None if start == 0 else '"one"') for start in range(0, len(LARGE), PART)
    ]
    assert source.sent == len(LARGE)
    assert sha256(proxied.house.read("big")) == sha256(LARGE)
    proxied.house.assert_nothing_is_left()


def test_a_process_that_dies_leaves_what_has_arrived_to_the_next(
    make_house: MakeHouse, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first one was doing stands still meanwhile; when it goes on, it changes nothing any more."""
    first = Following(make_house())
    first.house.repository(kind="proxy", upstream_url=upstream.url)
    first.follow()
    source = Ranged(upstream, LARGE)
    source.after = 2
    first.begin()
    eventually(lambda: len(source.asked) == 3)
    with monkeypatch.context() as silent:
        silent.setattr(run.Run, "_tell_end", lambda *_: None)
        first.stop()
    assert first.show().state == "running"
    first.house.rows("update arkvory_mirrors set seen_at = now() - interval '1 minute'")
    assert first.show().state == "interrupted"
    # As a single node's next process begins.
    second = Following(make_house(owns=False))
    second.house.parts.sessions.free_all()
    source.after = 10**9
    second.begin()
    second.wait()
    assert second.show().state == "complete"
    assert [each for each, _ in source.asked[3:]] == [f"bytes={start}-{start + PART - 1}" for start in range(2 * PART, len(LARGE), PART)]
    source.gate.set()
    eventually(lambda: not first.house.parts.fetches.running)
    assert sha256(second.house.read("big")) == sha256(LARGE)
    second.house.assert_counted()


def test_a_connection_that_breaks_costs_no_more_than_its_part(proxied: Following, upstream: FakeUpstream) -> None:
    source = Ranged(upstream, LARGE)
    real = upstream.arrived

    def break_once(asked: Any) -> None:
        real(asked)
        if asked.target == "/big" and len(source.asked) == 3:
            upstream.rules["/big"][0].truncate = 1_000

    upstream.arrived = break_once
    assert proxied.run().state == "complete"
    # What came of the broken part is kept too.
    assert [each for each, _ in source.asked[3:4]] == [f"bytes={2 * PART + 1_000}-{3 * PART + 999}"]
    assert sha256(proxied.house.read("big")) == sha256(LARGE)


def test_another_file_in_its_place_begins_anew(proxied: Following, upstream: FakeUpstream) -> None:
    source = Ranged(upstream, LARGE)
    source.after = 2
    proxied.begin()
    eventually(lambda: len(source.asked) == 3)
    other = noise(2 * PART, 5)
    source.body, source.etag, source.after = other, '"two"', 10**9
    source.gate.set()
    proxied.wait()
    assert proxied.run().state == "complete"
    assert sha256(proxied.house.read("big")) == sha256(other)
    proxied.house.assert_nothing_is_left()


@pytest.mark.parametrize("etag", [None, 'W/"weak"'])
def test_without_a_strong_validator_it_comes_as_a_whole(proxied: Following, upstream: FakeUpstream, etag: str | None) -> None:
    source = Ranged(upstream, LARGE, etag)
    assert proxied.run().state == "complete"
    assert [each for each, _ in source.asked] == [f"bytes=0-{PART - 1}", None]
    assert sha256(proxied.house.read("big")) == sha256(LARGE)


def test_a_short_file_is_its_own_only_part(proxied: Following, upstream: FakeUpstream) -> None:
    source = Ranged(upstream, b"short")
    assert proxied.run().state == "complete"
    assert (source.asked, source.sent) == ([(f"bytes=0-{PART - 1}", None)], 5)
    assert proxied.house.read("big") == b"short"


def test_of_an_empty_file_there_are_no_parts(proxied: Following, upstream: FakeUpstream) -> None:
    Ranged(upstream, b"")

    def answer(asked: Any) -> None:
        unsatisfied = "range" in asked.headers
        upstream.put("/big", status=416 if unsatisfied else 200, headers={"Content-Range": "bytes */0"} if unsatisfied else {})

    upstream.arrived = answer
    assert proxied.run().state == "complete"
    assert proxied.house.read("big") == b""


def test_a_client_that_waits_for_it_gets_all_of_it_though_the_mirror_ends(proxied: Following, upstream: FakeUpstream) -> None:
    source = Ranged(upstream, LARGE)
    source.after = 2
    proxied.begin()
    eventually(lambda: len(source.asked) == 3)
    found = find(proxied.house, "big", whole=False)
    assert found.coming is not None
    proxied.stop()
    source.after = 10**9
    source.gate.set()
    assert sha256(b"".join(found.coming.pieces(0, None))) == sha256(LARGE)
    found.coming.close()


def test_parts_that_nobody_can_use_are_asked_for_as_a_whole(proxied: Following, upstream: FakeUpstream) -> None:
    """Encoded, or not saying which bytes they are."""
    for headers in ({"Content-Encoding": "gzip", "Content-Range": "bytes 0-4/5"}, {"Content-Range": "bytes of something"}, {}):
        Ranged(upstream, b"whole")

        def answer(asked: Any, headers: dict[str, str] = headers) -> None:
            ranged = "range" in asked.headers
            upstream.put("/big", b"wrong" if ranged else b"whole", status=206 if ranged else 200, headers=headers if ranged else {})

        upstream.arrived = answer
        assert proxied.run().state == "complete"
        upstream.arrived = lambda asked: None
        upstream.put("/big", b"whole")
        assert proxied.house.read("big") == b"whole"
        proxied.house.rows("delete from arkvory_artifacts")


def test_an_upstream_that_sends_byte_by_byte_is_asked_for_the_whole(proxied: Following, upstream: FakeUpstream) -> None:
    """Each part costs a request, a write to the disk and one to the database."""
    source = Ranged(upstream, LARGE)

    def answer(asked: Any) -> None:
        source._prepare(asked)
        rule = upstream.rules["/big"][0]
        if rule.status == 206:
            first = int(str(rule.headers["Content-Range"]).split()[1].partition("-")[0])
            told = {**rule.headers, "Content-Range": f"bytes {first}-{first}/{len(LARGE)}"}
            upstream.put("/big", LARGE[first : first + 1], status=206, headers=told)

    upstream.arrived = answer
    assert proxied.run().state == "complete"
    assert len(source.asked) == 2 and proxied.house.read("big") == LARGE


def test_clients_who_come_meanwhile_are_fed_from_what_arrives(proxied: Following, upstream: FakeUpstream) -> None:
    source = Ranged(upstream, LARGE)
    source.after = 2
    proxied.begin()
    eventually(lambda: len(source.asked) == 3)
    found = find(proxied.house, "big", whole=False)
    assert found.coming is not None and found.coming.size == len(LARGE)
    pieces = found.coming.pieces(0, None)
    taken = b""
    while len(taken) < PART:
        taken += next(pieces)
    source.after = 10**9
    source.gate.set()
    taken += b"".join(pieces)
    found.coming.close()
    assert sha256(taken) == sha256(LARGE)
    proxied.wait()
    assert proxied.show().state == "complete"
    assert source.sent == len(LARGE)
