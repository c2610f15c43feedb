"""DESIGN 6: what a proxy answers, stores and forgets, whatever its upstream does; the upstream is asked over real sockets."""

from __future__ import annotations

import contextlib
import itertools
import os
from dataclasses import dataclass
from typing import Any

import gevent
import pytest
from gevent.event import Event
from sqlalchemy import Connection

from app.cache.snapshots import Snapshot
from app.errors import ArkvoryError, NotFound, Quarantined, UpstreamFailed
from app.repository.fetching import MOST_SPELLINGS, PLACES, SMALL
from app.repository.publishing import Target
from app.repository.reading import Ask, Draft, Found, Shelf
from tests.support.house import ADMIN, NOBODY, House, eventually
from tests.support.passing import Passing
from tests.support.upstreams import FakeUpstream, noise

BODY, OTHER = noise(200_000), noise(150_000, 2)
LARGE = noise(3 * SMALL + 12345, 3)


@pytest.fixture
def proxied(house: House, upstream: FakeUpstream) -> House:
    """A house with a proxy `files` of the upstream, whose copies are always due."""
    house.repository(kind="proxy", upstream_url=upstream.url, settings={"mutable_ttl": 0, "miss_ttl": 60})
    return house


def find(house: House, path: str, spelling: str = "", *, whole: bool = True) -> Found:
    return house.parts.reader.find(Ask("raw", "files", path, ADMIN, spelling=spelling), whole=whole)


def how(house: House, path: str) -> str:
    """How it was answered, or the code of the error."""
    try:
        told = find(house, path).told
    except ArkvoryError as error:
        return error.code
    assert told is not None
    return told.how


def streamed(house: House, path: str, start: int = 0, stop: int | None = None) -> bytes:
    found = find(house, path, whole=False)
    if found.coming is None:
        return house.read(path)[start:stop]
    try:
        return b"".join(found.coming.pieces(start, stop))
    finally:
        found.coming.close()


def outcomes(house: House) -> dict[str, int]:
    return {name: count for name, count in house.parts.proxy.revalidations.items() if count}


def test_the_first_read_stores_and_the_next_asks_nobody(house: House, upstream: FakeUpstream) -> None:
    house.repository(kind="proxy", upstream_url=upstream.url)
    upstream.put("/a/file.bin", BODY, headers={"Content-Type": "application/x-own"})
    content = house.epochs()[2]
    assert how(house, "a/file.bin") == "miss"
    assert house.epochs()[2] == content + 1
    assert (house.read("a/file.bin"), how(house, "a/file.bin")) == (BODY, "hit")
    assert find(house, "a/file.bin").gate.content_type == "application/x-own"
    assert upstream.count("/a/file.bin") == 1
    house.assert_nothing_is_left()


def test_warm_it_sends_no_statement(house: House, upstream: FakeUpstream) -> None:
    house.repository(kind="proxy", upstream_url=upstream.url)
    upstream.put("/file", BODY)
    find(house, "file"), find(house, "file")
    before = house.parts.database.statements()
    assert how(house, "file") == "hit"
    assert house.parts.database.statements() == before


def test_not_modified_moves_the_next_check_and_no_epoch(house: House, upstream: FakeUpstream) -> None:
    house.repository(kind="proxy", upstream_url=upstream.url, settings={"mutable_ttl": 3600})
    upstream.put("/file", BODY, etag='"v1"')
    assert how(house, "file") == "miss"
    epochs = house.epochs()
    # An hour later, and memory has been lost since.
    house.rows("update arkvory_freshness set checked_at = checked_at - interval '2 h', next_check_at = next_check_at - interval '2 h'")
    house.parts.cache.gates.clear()
    assert [how(house, "file") for _ in range(3)] == ["revalidated", "hit", "hit"]
    assert house.epochs() == epochs
    assert outcomes(house) == {"not_modified": 1}
    assert upstream.asked[-1].headers["if-none-match"] == '"v1"'


def test_the_same_bytes_again_without_a_validator_change_nothing(proxied: House, upstream: FakeUpstream) -> None:
    upstream.put("/file", BODY)
    find(proxied, "file")
    epochs = proxied.epochs()
    assert how(proxied, "file") == "revalidated"
    assert proxied.epochs() == epochs
    proxied.assert_nothing_is_left()


def test_other_bytes_replace_the_copy(proxied: House, upstream: FakeUpstream) -> None:
    upstream.put("/file", BODY, etag='"v1"')
    find(proxied, "file")
    content = proxied.epochs()[2]
    upstream.put("/file", OTHER, etag='"v2"')
    assert how(proxied, "file") == "miss"
    assert proxied.read("file") == OTHER
    assert proxied.epochs()[2] == content + 1
    assert outcomes(proxied)["updated"] == 1
    proxied.assert_nothing_is_left()


@pytest.mark.parametrize("status", [404, 410])
def test_what_is_gone_upstream_goes_here_too_and_the_miss_is_remembered(proxied: House, upstream: FakeUpstream, status: int) -> None:
    upstream.put("/file", BODY)
    find(proxied, "file")
    upstream.put("/file", status=status)
    asked = len(upstream.asked)
    assert [how(proxied, "file") for _ in range(3)] == ["not_found"] * 3
    assert len(upstream.asked) == asked + 1
    assert proxied.value("select count(*) from arkvory_artifacts") == 0
    assert proxied.value("select count(*) from arkvory_freshness") == 0
    proxied.assert_nothing_is_left()


def test_a_miss_is_remembered_for_its_time(house: House, upstream: FakeUpstream, passing: Passing) -> None:
    house.repository(kind="proxy", upstream_url=upstream.url, settings={"miss_ttl": 60})
    assert [how(house, "file") for _ in range(3)] == ["not_found"] * 3
    assert upstream.count("/file") == 1
    upstream.put("/file", BODY)
    passing.let(59)
    assert how(house, "file") == "not_found"
    passing.let(2)
    assert how(house, "file") == "miss"


@pytest.mark.parametrize("failure", [401, 403, 429, 500, 502, 503, "refused", "cut", "silent"])
def test_only_absence_is_remembered(proxied: House, upstream: FakeUpstream, failure: int | str) -> None:
    """HO-X-3: cold an honest 502, 503 or 504, then the file; warm the copy, and the next check is not pushed."""
    proxied.change("files", upstream={"read_seconds": 0.5, "connect_seconds": 1})
    fail(upstream, failure)
    with pytest.raises(UpstreamFailed) as raised:
        find(proxied, "file")
    assert not isinstance(raised.value, NotFound)
    assert raised.value.retry_after > 0
    recover(upstream)
    assert how(proxied, "file") == "miss"
    check = proxied.value("select next_check_at from arkvory_freshness")
    fail(upstream, failure)
    assert [how(proxied, "file") for _ in range(2)] == ["stale"] * 2
    assert proxied.read("file") == BODY
    assert proxied.value("select next_check_at from arkvory_freshness") == check
    assert outcomes(proxied)["served_existing"] >= 2
    proxied.assert_nothing_is_left()


def fail(upstream: FakeUpstream, failure: int | str) -> None:
    if failure == "refused":
        upstream.stop()
    elif failure == "cut":
        upstream.put("/file", BODY, truncate=70_000)
    elif failure == "silent":
        upstream.put("/file", BODY, delay=5)
    else:
        upstream.put("/file", status=failure, headers={"Retry-After": "1"} if failure in (429, 503) else {})


def recover(upstream: FakeUpstream) -> None:
    upstream.stop()
    upstream.start()
    upstream.put("/file", BODY)


def test_who_could_have_the_copy_does_not_wait_for_a_slow_upstream(
    proxied: House, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.repository.proxy.PATIENCE_SECONDS", 0.2)
    upstream.put("/file", BODY)
    find(proxied, "file")
    upstream.put("/file", OTHER)
    go = Event()
    upstream.arrived = lambda asked: go.wait()
    assert [how(proxied, "file") for _ in range(2)] == ["stale"] * 2
    assert upstream.count("/file") == 2
    go.set()
    eventually(lambda: proxied.read("file") == OTHER)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("body", [BODY, LARGE])
def test_a_body_that_breaks_off_is_never_stored_nor_whole_for_anyone(
    proxied: House, upstream: FakeUpstream, body: bytes, chunked: bool
) -> None:
    """HO-X-4."""
    upstream.put("/file", body, truncate=len(body) - 70_000, chunked=chunked)
    with pytest.raises(UpstreamFailed):
        streamed(proxied, "file")
    assert proxied.value("select count(*) from arkvory_artifacts") == 0
    proxied.assert_nothing_is_left()
    upstream.put("/file", body, chunked=chunked)
    assert streamed(proxied, "file") == body
    eventually(lambda: proxied.read("file") == body)


def test_a_spelling_goes_out_as_it_came_and_is_missing_for_itself(proxied: House, upstream: FakeUpstream) -> None:
    """HO-RAW-1."""
    upstream.put("/w/a%2Bb.whl", BODY)
    with pytest.raises(NotFound):
        find(proxied, "w/a+b.whl", "w/a+b.whl")
    assert find(proxied, "w/a+b.whl", "w/a%2Bb.whl").gate.size == len(BODY)
    assert [each.target for each in upstream.asked] == ["/w/a+b.whl", "/w/a%2Bb.whl"]
    # The copy is compared by the spelling that brought it.
    find(proxied, "w/a+b.whl", "w/a+b.whl")
    assert upstream.asked[-1].target == "/w/a%2Bb.whl"


def test_many_who_want_a_cold_file_are_one_request_and_all_get_it_while_it_comes(proxied: House, upstream: FakeUpstream) -> None:
    """HO-X-7."""
    gate = Event()
    upstream.put("/file", LARGE, gate=gate, piece=2 * SMALL)
    readers = [gevent.spawn(streamed, proxied, "file") for _ in range(30)]
    found = find(proxied, "file", whole=False)
    assert found.coming is not None
    pieces = found.coming.pieces(0, None)
    first = next(pieces)
    assert LARGE.startswith(first)
    assert not any(each.ready() for each in readers)
    gate.set()
    assert first + b"".join(pieces) == LARGE
    gevent.joinall(readers, timeout=20, raise_error=True)
    assert all(each.value == LARGE for each in readers)
    assert upstream.count("/file") == 1
    eventually(lambda: proxied.read("file") == LARGE)
    proxied.assert_nothing_is_left()


def test_the_last_bytes_are_withheld_until_the_commit(proxied: House, upstream: FakeUpstream, pause: Any) -> None:
    upstream.put("/file", LARGE)
    stop = pause(proxied.parts.blobs, "place", before=True)
    found = find(proxied, "file", whole=False)
    assert found.coming is not None
    taken = bytearray()

    def read() -> None:
        assert found.coming is not None
        for piece in found.coming.pieces(0, None):
            taken.extend(piece)

    reading = gevent.spawn(read)
    stop.reached()
    eventually(lambda: len(LARGE) - 8192 <= len(taken))
    gevent.sleep(0.1)
    assert len(taken) < len(LARGE)
    assert not reading.ready()
    stop.go()
    reading.get(timeout=10)
    assert bytes(taken) == LARGE


def test_a_part_of_what_is_coming(proxied: House, upstream: FakeUpstream) -> None:
    proxied.change("files", settings={"mutable_ttl": 60})
    upstream.put("/file", LARGE, pause=0.01)
    assert streamed(proxied, "file", 100, 70_000) == LARGE[100:70_000]
    assert streamed(proxied, "file", len(LARGE) - 10, len(LARGE)) == LARGE[-10:]
    assert upstream.count("/file") == 1


def test_who_asked_first_may_leave(proxied: House, upstream: FakeUpstream) -> None:
    upstream.put("/file", LARGE, pause=0.01)
    found = find(proxied, "file", whole=False)
    assert found.coming is not None
    found.coming.close()
    eventually(lambda: proxied.value("select count(*) from arkvory_artifacts") == 1)
    assert upstream.count("/file") == 1


def test_without_room_it_is_handed_on_and_not_stored(proxied: House, upstream: FakeUpstream) -> None:
    proxied.change("files", quota_bytes=1000)
    upstream.put("/file", BODY)
    assert streamed(proxied, "file") == BODY
    assert proxied.value("select count(*) from arkvory_artifacts") == 0
    upstream.put("/long", LARGE, chunked=True)
    assert streamed(proxied, "long") == LARGE
    upstream.put("/cut", LARGE, truncate=len(LARGE) - 5)
    with pytest.raises(UpstreamFailed):
        streamed(proxied, "cut")
    proxied.assert_nothing_is_left()


def test_without_caching_nothing_is_stored(proxied: House, upstream: FakeUpstream) -> None:
    upstream.put("/file", BODY)
    find(proxied, "file")
    proxied.change("files", settings={"caching": False})
    upstream.put("/file", OTHER)
    assert [streamed(proxied, "file"), streamed(proxied, "file", 5, 100)] == [OTHER, OTHER[5:100]]
    with pytest.raises(NotFound):
        streamed(proxied, "nothing")
    assert proxied.value("select count(*) from arkvory_artifacts") == 1


def test_while_the_installation_is_read_only_nothing_is_stored(proxied: House, upstream: FakeUpstream) -> None:
    upstream.put("/file", BODY)
    proxied.rows("update arkvory_installation set read_only = true")
    assert streamed(proxied, "file") == BODY
    assert proxied.value("select count(*) from arkvory_artifacts") == 0


def test_another_address_voids_copies_and_misses(house: House, upstream: FakeUpstream) -> None:
    house.repository(kind="proxy", upstream_url=upstream.url)
    upstream.put("/file", BODY, etag='"same"')
    assert [how(house, each) for each in ("file", "none", "file")] == ["miss", "not_found", "hit"]
    upstream.put("/other/file", OTHER, etag='"same"')
    upstream.put("/other/none", OTHER)
    house.change("files", upstream_url=f"{upstream.url}/other")
    assert [how(house, each) for each in ("file", "none", "file")] == ["miss", "miss", "hit"]
    assert house.read("file") == OTHER


def test_what_is_held_leaves_by_no_door(proxied: House, upstream: FakeUpstream) -> None:
    """W5, before anything was fetched; by a rule; and where nothing is stored."""
    upstream.put("/held", LARGE)
    upstream.put("/by/rule", LARGE)
    proxied.quarantine.hold(ADMIN, "files", "held", "looked at")
    proxied.quarantine.add_rule(ADMIN, "files", "by/*", None, "looked at")
    for path in ("held", "by/rule"):
        with pytest.raises(Quarantined):
            streamed(proxied, path)
    proxied.change("files", settings={"caching": False})
    for path in ("held", "by/rule"):
        with pytest.raises(Quarantined):
            streamed(proxied, path)


@dataclass(frozen=True)
class Shouted:
    """A document that is made of an upstream's."""

    key: str = "shouted"
    representation: str = "text"
    content_type: str = "text/plain"

    def revision(self, connection: Connection, snapshot: Snapshot) -> int | None:
        return 1

    def read(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Draft:
        opened = shelf.find(connection, snapshot, "index")

        def write() -> bytes:
            with contextlib.closing(opened()) as blob:
                return os.pread(blob.fd, blob.size, 0).upper()

        return Draft(write, long=True)


def test_copies_whose_bytes_went_from_the_disk_are_fetched_anew(house: House, upstream: FakeUpstream) -> None:
    house.repository(kind="proxy", upstream_url=upstream.url)
    upstream.put("/file", BODY)
    upstream.put("/index", b"words")

    def lose() -> None:
        for each in list(house.files()):
            each.unlink()

    assert how(house, "file") == "miss"
    lose()
    assert house.read("file") == BODY
    asked = Ask("raw", "files", "shouted", ADMIN)
    assert how(house, "index") == "miss"
    lose()
    assert house.parts.reader.document(asked, Shouted(), made_of="index").document.body == b"WORDS"
    assert house.read("index") == b"words"
    lose()
    upstream.put("/file", status=500)
    with pytest.raises(UpstreamFailed):
        house.read("file")
    house.clean()
    house.assert_counted()


def test_publishing_into_a_proxy_is_refused(proxied: House) -> None:
    with pytest.raises(ArkvoryError) as refused:
        proxied.publish("file", BODY)
    assert refused.value.code == "not_allowed_here"
    with pytest.raises(ArkvoryError) as refused:
        proxied.parts.editor.delete(Target("raw", "files", ADMIN), ["file"])
    assert refused.value.code in {"not_allowed_here", "not_found"}


def test_a_404_that_is_late_does_not_hide_what_was_stored_meanwhile(proxied: House, upstream: FakeUpstream) -> None:
    """DESIGN 6: unless the path was stored since the fetch began. By the other spelling, which is another fetch."""
    upstream.put("/a+b", status=404)
    upstream.put("/a%2Bb", BODY)
    go = Event()
    upstream.arrived = lambda asked: go.wait() if asked.target == "/a+b" else None
    late = gevent.spawn(lambda: find(proxied, "a+b", "a+b").gate.size)
    eventually(lambda: upstream.count("/a+b") == 1)
    find(proxied, "a+b", "a%2Bb")
    go.set()
    assert late.get(timeout=30) == len(BODY)
    assert len(proxied.parts.cache.misses) == 0


def test_a_deleted_repository_takes_its_copies_along(proxied: House, upstream: FakeUpstream) -> None:
    upstream.put("/file", BODY)
    find(proxied, "file")
    proxied.registry.delete(ADMIN, "files")
    proxied.clean()
    proxied.clean()
    assert proxied.value("select (select count(*) from arkvory_freshness) + (select count(*) from arkvory_upstreams)") == 0


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("by_rule", [True, False])
def test_what_is_held_while_it_comes_goes_to_nobody_who_asks_from_then_on(
    house: House, upstream: FakeUpstream, stored: bool, by_rule: bool
) -> None:
    """W5, for bytes that another one is getting just now."""
    house.repository(kind="proxy", upstream_url=upstream.url, settings={"caching": stored})
    gate = Event()
    upstream.put("/file", LARGE, gate=gate, piece=2 * SMALL)
    began = find(house, "file", whole=False)
    if by_rule:
        house.quarantine.add_rule(ADMIN, "files", "fi*", None, "looked at")
    else:
        house.quarantine.hold(ADMIN, "files", "file", "looked at")
    with pytest.raises(Quarantined):
        streamed(house, "file")
    with pytest.raises(Quarantined):
        house.parts.reader.find(Ask("raw", "files", "file", ADMIN, bodiless=True), whole=False)
    gate.set()
    assert began.coming is not None
    assert b"".join(began.coming.pieces(0, None)) == LARGE, "who had it begun gets it whole"
    began.coming.close()
    with pytest.raises(Quarantined):
        streamed(house, "file")


@pytest.mark.parametrize("change", [{"upstream_url": "/other"}, {"upstream": {"username": "u", "password": "p"}}])
def test_what_the_former_upstream_has_not_the_new_one_may_have(house: House, upstream: FakeUpstream, change: dict[str, Any]) -> None:
    """Its answer comes when it is not asked any more, or would be with other credentials."""
    house.repository(kind="proxy", upstream_url=upstream.url, settings={"miss_ttl": 60, "mutable_ttl": 0})
    upstream.put("/kept", BODY)
    find(house, "kept")
    gate = Event()

    def late(asked: Any) -> None:
        if asked.method == "GET":
            gate.wait()

    upstream.arrived = late
    upstream.rules.clear()
    asking = [gevent.spawn(how, house, path) for path in ("file", "kept")]
    eventually(lambda: upstream.count("/file") == upstream.count("/kept", "GET") - 1 == 1)
    house.change("files", **({"upstream_url": upstream.url + change["upstream_url"]} if "upstream_url" in change else change))
    gate.set()
    assert [each.get(timeout=30) for each in asking] == ["unavailable", "stale"]
    upstream.arrived = lambda asked: None
    for path in ("/file", "/kept", "/other/file", "/other/kept"):
        upstream.put(path, OTHER)
    assert [how(house, each) for each in ("file", "kept")] == ["miss", "miss"]


def test_another_upstream_is_not_left_alone_for_what_the_former_one_did(house: House, upstream: FakeUpstream) -> None:
    house.repository(kind="proxy", upstream_url=upstream.url)
    upstream.put("/file", status=503, headers={"Retry-After": "200"})
    upstream.put("/other/file", BODY)
    assert [how(house, "file") for _ in range(2)] == ["upstream_busy", "upstream_busy"]
    assert upstream.count("/file") == 1
    house.change("files", settings={"miss_ttl": 5})
    assert how(house, "file") == "upstream_busy", "other settings make no other upstream"
    house.change("files", upstream_url=f"{upstream.url}/other")
    assert how(house, "file") == "miss"


def test_who_waits_for_a_slow_upstream_takes_no_place_from_others(
    house: House, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crowd that wants many files of one upstream, which has few connections, and never answers."""
    monkeypatch.setattr("app.upstream.breaker.CONNECTION_WAIT_SECONDS", 60.0)
    other = FakeUpstream().start()
    try:
        house.repository("slow", kind="proxy", upstream_url=upstream.url, upstream={"connections": 2})
        house.repository(kind="proxy", upstream_url=other.url)
        upstream.arrived = lambda asked: gevent.sleep(60)
        other.put("/file", BODY)
        ask = house.parts.reader.find
        crowd = [gevent.spawn(ask, Ask("raw", "slow", f"file-{number}", ADMIN)) for number in range(2 * PLACES)]
        eventually(lambda: house.parts.fetches.running == 2 * PLACES and upstream.connections == 2)
        with gevent.Timeout(20):
            assert how(house, "file") == "miss"
        gevent.killall(crowd)
        upstream.stop()
        eventually(lambda: house.parts.fetches.running == 0)
    finally:
        other.stop()


def test_what_is_not_to_be_had_is_served_from_the_copy_to_those_who_may_still_read(house: House, upstream: FakeUpstream) -> None:
    """C8: a slow upstream fails after the repository was closed, or the copy held."""
    house.repository(kind="proxy", upstream_url=upstream.url, settings={"mutable_ttl": 0}, public=True)
    house.repository("all", kind="group", members=["files"], public=True)
    upstream.put("/file", BODY)

    def read(repository: str) -> str:
        try:
            told = house.parts.reader.find(Ask("raw", repository, "file", NOBODY)).told
        except ArkvoryError as error:
            return error.code
        assert told is not None
        return told.how

    def closing() -> None:
        house.change("all", public=False)
        house.change("files", public=False)

    assert read("files") == "miss"
    upstream.put("/file", status=500)
    fails = Event()
    upstream.arrived = lambda asked: fails.wait()
    asking = [gevent.spawn(read, name) for name in ("files", "all")]
    eventually(lambda: upstream.count("/file") == 2)
    gevent.sleep(0.1)
    closing()
    fails.set()
    assert [each.get(timeout=30) for each in asking] == ["unauthenticated", "unauthenticated"]
    house.change("all", public=True)
    fails.clear()
    asking = [gevent.spawn(read, "all")]
    eventually(lambda: upstream.count("/file") == 3)
    house.quarantine.hold(ADMIN, "files", "file", "looked at")
    fails.set()
    assert asking[0].get(timeout=30) == "quarantined"


def test_misses_of_one_path_by_many_spellings_are_bounded(proxied: House, upstream: FakeUpstream) -> None:
    spellings = ["".join(each) for each in itertools.product(("+", "%2B"), repeat=6)]
    for spelling in spellings:
        with pytest.raises(NotFound):
            find(proxied, "++++++", spelling)
    misses = proxied.parts.cache.misses
    (key,) = {key for tag in misses.tags for key in misses.tagged(tag)}
    known = misses.peek(key)
    assert known is not None and 1 <= len(known) <= MOST_SPELLINGS
    asked = len(upstream.asked)
    with pytest.raises(NotFound):
        find(proxied, "++++++", spellings[-1])
    assert len(upstream.asked) == asked


@pytest.mark.parametrize("told", [f"Fri, 31 Dec {year} 23:59:59 GMT" for year in (9999, 10**19)])
@pytest.mark.parametrize("days", [0, 7])
def test_no_date_of_an_upstream_breaks_anything(house: House, upstream: FakeUpstream, told: str, days: int) -> None:
    house.repository(kind="proxy", upstream_url=upstream.url, settings={"minimum_age": days})
    upstream.put("/file", BODY, headers={"Last-Modified": told})
    assert how(house, "file") in ({"too_young"} if days else {"miss"})
    assert how(house, "file") in ({"too_young"} if days else {"hit"})


@pytest.mark.parametrize(("path", "target"), [("?", "/%3F"), ("a?b", "/a%3Fb"), ("a#b", "/a%23b"), ("a%41", "/a%2541"), ("a b", "/a%20b")])
def test_without_a_spelling_it_is_asked_for_what_was_meant(proxied: House, upstream: FakeUpstream, path: str, target: str) -> None:
    upstream.put(target, BODY)
    assert find(proxied, path).gate.path == path
    assert {each.target for each in upstream.asked} == {target}
