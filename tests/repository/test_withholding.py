"""DESIGN 6: what a proxy keeps from its clients, at the file and in indexes: what is too young, and what its path rules leave out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from sqlalchemy import Connection

from app.cache.snapshots import Snapshot
from app.errors import ArkvoryError, Blocked, Invalid, Quarantined, TooYoung
from app.http.listing import FolderListing
from app.repository.dialects import Library, Order, Plan
from app.repository.fetching import SMALL
from app.repository.reading import Answered, Ask, Draft, Found, Shelf
from app.repository.withholding import PUBLISHED_AT, Judge
from tests.support.house import ADMIN, House
from tests.support.passing import Passing
from tests.support.upstreams import FakeUpstream, noise

BODY, OTHER = noise(50_000), noise(40_000, 2)
LARGE = noise(2 * SMALL, 3)


def ago(*, days: float = 0.0, seconds: float = 0.0) -> datetime:
    return datetime.now(UTC) - timedelta(days=days, seconds=seconds)


def dated(moment: datetime) -> dict[str, str]:
    return {"Last-Modified": format_datetime(moment.astimezone(UTC), usegmt=True)}


@pytest.fixture
def proxied(house: House, upstream: FakeUpstream) -> House:
    """A house with a proxy `files` of the upstream that withholds what is younger than a week."""
    house.repository(kind="proxy", upstream_url=upstream.url, settings={"mutable_ttl": 0, "minimum_age": 7})
    return house


def find(house: House, path: str, *, whole: bool = True) -> Found:
    return house.parts.reader.find(Ask("raw", "files", path, ADMIN), whole=whole)


def how(house: House, path: str, *, whole: bool = True) -> str:
    """How it was answered, or the code of the error."""
    try:
        found = find(house, path, whole=whole)
    except ArkvoryError as error:
        return error.code
    if found.coming is not None:
        found.coming.close()
    assert found.told is not None
    return found.told.how


def listing(house: House, folder: str = "") -> list[str]:
    answered = house.parts.reader.document(Ask("raw", "files", folder, ADMIN), FolderListing(folder, "json"))
    return [each["name"] for each in json.loads(answered.document.body)["items"]]


# Files


def test_what_is_younger_than_the_minimum_age_is_refused_with_the_reason_and_the_time(proxied: House, upstream: FakeUpstream) -> None:
    published = ago(days=2).replace(microsecond=0)
    upstream.put("/new", BODY, headers=dated(published))
    upstream.put("/old", BODY, headers=dated(ago(days=8)))
    with pytest.raises(TooYoung) as refused:
        find(proxied, "new")
    assert refused.value.available_at == published + timedelta(days=7)
    assert (published + timedelta(days=7)).strftime("%Y-%m-%dT%H:%M:%SZ") in refused.value.message
    assert how(proxied, "old") == "miss"


def test_a_copy_that_is_too_young_is_refused_without_asking_anybody(proxied: House, upstream: FakeUpstream) -> None:
    upstream.put("/new", BODY, headers=dated(ago(days=2)))
    assert [how(proxied, "new") for _ in range(3)] == ["too_young"] * 3
    assert upstream.count("/new") == 1
    before = proxied.parts.database.statements()
    assert how(proxied, "new") == "too_young"
    assert proxied.parts.database.statements() == before


@pytest.mark.parametrize("whole", [True, False])
def test_bytes_that_are_coming_are_judged_too(proxied: House, upstream: FakeUpstream, whole: bool) -> None:
    upstream.put("/new", LARGE, headers=dated(ago(days=2)), pause=0.01)
    assert how(proxied, "new", whole=whole) == "too_young"
    upstream.put("/old", LARGE, headers=dated(ago(days=20)), pause=0.01)
    assert how(proxied, "old", whole=whole) == "miss"


def test_time_releases_a_copy(house: House, upstream: FakeUpstream, passing: Passing) -> None:
    house.repository(kind="proxy", upstream_url=upstream.url, settings={"minimum_age": 3, "mutable_ttl": 864_000})
    upstream.put("/file", BODY, headers=dated(ago(days=1)))
    assert how(house, "file") == "too_young"
    passing.let(days=1.9)
    assert how(house, "file") == "too_young"
    passing.let(days=0.2)
    assert how(house, "file") == "hit"
    assert upstream.count("/file") == 1


def test_where_the_upstream_tells_no_time_the_first_sight_counts(house: House, upstream: FakeUpstream, passing: Passing) -> None:
    house.repository(kind="proxy", upstream_url=upstream.url, settings={"minimum_age": 2, "mutable_ttl": 864_000})
    upstream.put("/file", BODY)
    assert how(house, "file") == "too_young"
    passing.let(days=2.1)
    assert how(house, "file") == "hit"


def test_the_setting_binds_on_the_next_request(house: House, upstream: FakeUpstream) -> None:
    """C1: copies of before it are judged as well."""
    house.repository(kind="proxy", upstream_url=upstream.url)
    upstream.put("/file", BODY, headers=dated(ago(days=2)))
    assert [how(house, "file") for _ in range(2)] == ["miss", "hit"]
    house.change("files", settings={"minimum_age": 7})
    assert how(house, "file") == "too_young"
    house.change("files", settings={"minimum_age": 1.5})
    assert how(house, "file") == "hit"
    house.change("files", settings={"minimum_age": None})
    assert how(house, "file") == "hit"


@pytest.mark.parametrize("pattern", ["tools/new", "tools/*", "*@*"])
def test_an_exception_releases_at_once(proxied: House, upstream: FakeUpstream, pattern: str) -> None:
    upstream.put("/tools/new", BODY, headers=dated(ago(days=2)))
    assert how(proxied, "tools/new") == "too_young"
    proxied.change("files", settings={"minimum_age_exceptions": ["other", pattern]})
    # The copy was kept meanwhile.
    assert how(proxied, "tools/new") == "revalidated"
    proxied.change("files", settings={"minimum_age_exceptions": None})
    assert how(proxied, "tools/new") == "too_young"


def test_a_new_file_does_not_take_the_place_of_an_old_one_before_it_is_of_age(
    house: House, upstream: FakeUpstream, passing: Passing
) -> None:
    house.repository(kind="proxy", upstream_url=upstream.url, settings={"mutable_ttl": 0, "minimum_age": 3})
    upstream.put("/latest", BODY, etag='"v1"', headers=dated(ago(days=8)))
    assert how(house, "latest") == "miss"
    upstream.put("/latest", OTHER, etag='"v2"', headers=dated(ago(seconds=0)))
    assert [how(house, "latest"), how(house, "latest")] == ["revalidated", "revalidated"]
    assert house.read("latest") == BODY
    # By the validator of what is here.
    assert upstream.asked[-1].headers["if-none-match"] == '"v1"'
    passing.let(days=3.1)
    assert how(house, "latest") == "miss"
    assert house.read("latest") == OTHER
    house.assert_counted()


def test_what_is_not_stored_is_judged_too(house: House, upstream: FakeUpstream) -> None:
    house.repository(kind="proxy", upstream_url=upstream.url, settings={"caching": False, "minimum_age": 7})
    upstream.put("/new", BODY, headers=dated(ago(days=2)))
    upstream.put("/old", BODY, headers=dated(ago(days=8)))
    upstream.put("/undated", BODY)
    assert [how(house, path, whole=False) for path in ("new", "old", "undated")] == ["too_young", "miss", "too_young"]
    with pytest.raises(TooYoung, match="caching") as refused:
        find(house, "undated", whole=False)
    assert refused.value.available_at is None
    house.change("files", settings={"minimum_age_exceptions": ["undated"]})
    assert how(house, "undated", whole=False) == "miss"


@dataclass
class Index:
    """A dialect whose index says when each path was published."""

    published_at: datetime

    def plan(self, library: Library, order: Order) -> Plan:
        if order.path == "index":
            return Plan("index", ageless=True)
        return Plan(order.path, published_at=self.published_at, name="lib", version=order.path.removeprefix("lib-"))


def test_what_the_index_says_is_judged_before_the_upstream_is_asked(proxied: House, upstream: FakeUpstream) -> None:
    proxied.parts.fetches.dialects["raw"] = Index(ago(days=2))
    upstream.put("/lib-1.0", BODY, headers=dated(ago(days=90)))
    assert how(proxied, "lib-1.0") == "too_young"
    assert upstream.count("/lib-1.0") == 0
    proxied.change("files", settings={"minimum_age_exceptions": ["lib@1.*"]})
    assert [how(proxied, "lib-1.0"), how(proxied, "lib-2.0")] == ["miss", "too_young"]
    # The copy knows as which version it came.
    proxied.change("files", settings={"minimum_age_exceptions": ["lib@2.*"], "mutable_ttl": 60})
    assert how(proxied, "lib-1.0") == "too_young"


def test_an_index_is_never_too_young(proxied: House, upstream: FakeUpstream) -> None:
    proxied.parts.fetches.dialects["raw"] = Index(ago(days=2))
    upstream.put("/index", BODY, headers=dated(ago(days=0)))
    assert [how(proxied, "index"), how(proxied, "index")] == ["miss", "revalidated"]
    assert PUBLISHED_AT not in find(proxied, "index").gate.metadata


# Indexes


@dataclass(frozen=True)
class Names:
    """A document of the versions that the repository's clients may have."""

    versions: dict[str, datetime]
    written: list[int]
    key: str = "names"
    representation: str = "text"
    content_type: str = "text/plain"

    def revision(self, connection: Connection, snapshot: Snapshot) -> int | None:
        return 1

    def read(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Draft:
        judge = Judge(snapshot)

        def write() -> bytes:
            self.written.append(1)
            seen = [each for each, at in self.versions.items() if not judge.leaves_out(f"lib/{each}", at, "lib", each)]
            return " ".join(seen).encode()

        return Draft(write, long=True, judges=(judge,))


def documents(house: House, source: Names) -> Callable[[frozenset[str]], Answered]:
    return lambda known=frozenset(): house.parts.reader.document(Ask("raw", "files", "lib/", ADMIN), source, known)


def test_an_index_leaves_out_what_is_too_young_until_it_is_of_age(house: House, upstream: FakeUpstream, passing: Passing) -> None:
    """C9: the validator has the age boundary, the kept document ends with it."""
    house.repository(kind="proxy", upstream_url=upstream.url, settings={"minimum_age": 3})
    source = Names({"1.0": ago(days=9), "2.0": ago(days=1), "3.0": ago(days=-60)}, [])
    ask = documents(house, source)
    first, again = ask(frozenset()).document, ask(frozenset()).document
    assert (first.body, again) == (b"1.0", first)
    assert len(source.written) == 1
    passing.let(days=2.1)
    later = ask(frozenset()).document
    assert later.body == b"1.0 2.0"
    assert later.etag != first.etag
    assert len(source.written) == 2


def test_a_validator_is_known_without_making_the_document_again(house: House, upstream: FakeUpstream) -> None:
    house.repository(kind="proxy", upstream_url=upstream.url, settings={"minimum_age": 7})
    source = Names({"1.0": ago(days=10), "2.0": ago(days=1)}, [])
    ask = documents(house, source)
    made = ask(frozenset()).document
    house.parts.cache.documents.clear()
    known = ask(frozenset({made.etag})).document
    assert (known.etag, known.body) == (made.etag, b"")
    assert len(source.written) == 1


def test_exceptions_and_path_rules_hold_in_an_index(house: House, upstream: FakeUpstream) -> None:
    house.repository(kind="proxy", upstream_url=upstream.url, settings={"minimum_age": 7, "minimum_age_exceptions": ["lib@2.*"]})
    source = Names({"1.0": ago(days=10), "2.0": ago(days=1), "2.1": ago(days=1), "3.0": ago(days=1)}, [])
    ask = documents(house, source)
    assert ask(frozenset()).document.body == b"1.0 2.0 2.1"
    house.change("files", settings={"block": ["lib/2.1"]})
    assert ask(frozenset()).document.body == b"1.0 2.0"
    house.change("files", settings={"block": None, "minimum_age": None})
    assert ask(frozenset()).document.body == b"1.0 2.0 2.1 3.0"


def test_folders_leave_out_what_is_withheld(proxied: House, upstream: FakeUpstream) -> None:
    for path, days in {"a/new": 2, "a/old": 9, "b/old": 9}.items():
        upstream.put(f"/{path}", BODY, headers=dated(ago(days=days)))
        how(proxied, path)
    assert (listing(proxied), listing(proxied, "a/")) == (["a/", "b/"], ["old"])
    proxied.change("files", settings={"block": ["b"], "minimum_age": None})
    assert (listing(proxied), listing(proxied, "a/")) == (["a/"], ["new", "old"])
    with pytest.raises(Blocked):
        listing(proxied, "b/")


# Path rules


def test_what_is_blocked_is_not_there_and_the_upstream_is_not_asked(house: House, upstream: FakeUpstream) -> None:
    house.repository(kind="proxy", upstream_url=upstream.url)
    for path in ("internal/secret/x", "tools/x", "tools/x.exe"):
        upstream.put(f"/{path}", BODY)
        assert how(house, path) == "miss"
    asked = len(upstream.asked)
    house.change("files", settings={"block": ["internal", "*.exe"]})
    # Copies too.
    assert [how(house, path) for path in ("internal/secret/x", "internal/y", "tools/x.exe")] == ["not_found"] * 3
    assert how(house, "tools/x") == "hit"
    assert len(upstream.asked) == asked
    with pytest.raises(Blocked, match="block 'internal'"):
        find(house, "internal/secret/x")
    house.change("files", settings={"block": None})
    assert how(house, "internal/secret/x") == "hit"


def test_where_paths_are_allowed_nothing_else_is_there(house: House, upstream: FakeUpstream) -> None:
    house.repository(kind="proxy", upstream_url=upstream.url, settings={"allow": ["tools/", "docs/*.html"], "block": ["tools/old/*"]})
    for path in ("tools/x", "tools/old/x", "docs/a/b.html", "docs/a/b.pdf", "other"):
        upstream.put(f"/{path}", BODY)
    paths = ("tools/x", "tools/old/x", "docs/a/b.html", "docs/a/b.pdf", "other")
    assert [how(house, path) for path in paths] == ["miss", "not_found", "miss", "not_found", "not_found"]
    assert {each.target for each in upstream.asked} == {"/tools/x", "/docs/a/b.html"}
    assert (listing(house), listing(house, "docs/")) == (["docs/", "tools/"], ["a/"])


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"minimum_age": -1}, "settings.minimum_age"),
        ({"minimum_age": True}, "settings.minimum_age"),
        ({"minimum_age": "7"}, "settings.minimum_age"),
        ({"minimum_age_exceptions": "lib"}, "settings.minimum_age_exceptions"),
        ({"allow": [""]}, "settings.allow"),
        ({"block": [1]}, "settings.block"),
    ],
)
def test_settings_that_mean_nothing_are_refused(house: House, settings: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        house.repository(kind="proxy", upstream_url="http://127.0.0.1:1", settings=settings)
    assert refused.value.field == field


# Hold rules


def test_a_hold_rule_holds_what_is_fetched_until_somebody_releases_it(house: House, upstream: FakeUpstream) -> None:
    """W5: at the file, small and large, and in folders; released by hand, without another look at the upstream."""
    house.repository(kind="proxy", upstream_url=upstream.url, settings={"mutable_ttl": 3600})
    house.quarantine.add_rule(ADMIN, "files", "tools/*.exe", None, "executables are looked at first")
    for name, body in (("small.exe", BODY), ("large.exe", LARGE), ("a.txt", OTHER)):
        upstream.put(f"/tools/{name}", body)
    for whole in (False, True):
        assert [how(house, f"tools/{name}", whole=whole) for name in ("small.exe", "large.exe")] == ["quarantined"] * 2
    assert how(house, "tools/a.txt") == "miss"
    assert listing(house, "tools/") == ["a.txt"]
    with pytest.raises(Quarantined, match="executables are looked at first"):
        find(house, "tools/small.exe")
    assert [each.path for each in house.quarantine.holds(ADMIN, "files", 10).items] == ["tools/large.exe", "tools/small.exe"]
    asked = len(upstream.asked)
    house.quarantine.release(ADMIN, "files", "tools/small.exe")
    assert [how(house, f"tools/{name}") for name in ("small.exe", "large.exe")] == ["hit", "quarantined"]
    assert house.read("tools/small.exe") == BODY
    assert listing(house, "tools/") == ["a.txt", "small.exe"]
    assert len(upstream.asked) == asked


def test_what_was_released_stays_so_until_other_bytes_come(house: House, upstream: FakeUpstream) -> None:
    house.repository(kind="proxy", upstream_url=upstream.url, settings={"mutable_ttl": 0})
    house.quarantine.add_rule(ADMIN, "files", "*", None, "new here")
    upstream.put("/file", BODY, etag='"v1"')
    assert how(house, "file") == "quarantined"
    house.quarantine.release(ADMIN, "files", "file")
    assert [how(house, "file") for _ in range(2)] == ["revalidated"] * 2
    upstream.put("/file", OTHER, etag='"v2"')
    assert [how(house, "file") for _ in range(2)] == ["quarantined"] * 2
    house.quarantine.release(ADMIN, "files", "file")
    assert house.read("file") == OTHER


def test_a_rule_that_goes_lets_new_files_out_and_none_that_it_held(house: House, upstream: FakeUpstream) -> None:
    house.repository(kind="proxy", upstream_url=upstream.url)
    rule = house.quarantine.add_rule(ADMIN, "files", "*", None, "new here")
    for name in ("a", "b"):
        upstream.put(f"/{name}", BODY)
    assert how(house, "a") == "quarantined"
    house.quarantine.remove_rule(ADMIN, "files", rule.id)
    assert [how(house, name) for name in ("a", "b")] == ["quarantined", "miss"]


def test_a_rule_for_a_publisher_is_not_about_what_is_fetched(house: House, upstream: FakeUpstream) -> None:
    house.user("ada")
    house.repository(kind="proxy", upstream_url=upstream.url)
    house.quarantine.add_rule(ADMIN, "files", "*", "ada", "hers")
    upstream.put("/a", BODY)
    assert how(house, "a") == "miss"


def test_an_index_leaves_out_what_a_rule_held_when_it_was_fetched(house: House, upstream: FakeUpstream) -> None:
    house.repository(kind="proxy", upstream_url=upstream.url)
    house.quarantine.add_rule(ADMIN, "files", "dist/*", None, "new here")
    for name in ("dist/a", "lib/b"):
        upstream.put(f"/{name}", BODY)
        how(house, name)
    assert listing(house) == ["lib/"]
    house.quarantine.release(ADMIN, "files", "dist/a")
    assert listing(house) == ["dist/", "lib/"]
