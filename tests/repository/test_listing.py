"""Lists, search and sums: each caller sees the paths that they may read, and pages miss nothing."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.access.decision import Grant
from app.access.identity import Caller
from app.access.tokens import NewToken
from app.errors import Forbidden, NotFound, Unauthenticated
from app.repository import listing as module
from app.repository.listing import Filter, Listing, _ranges
from tests.support.house import ADMIN, NOBODY, House

PATHS = ["a", "a/b", "a/b/c", "a/bc", "a0", "b", "team/x", "team/y.whl", "teams", "Über/土.txt", "z[1]#?.tar.gz", "\U0010ffff/x"]


@pytest.fixture
def filled(house: House) -> House:
    house.repository()
    for path in PATHS:
        house.publish(path, path.encode())
    house.user("anna")
    return house


def listing(house: House) -> Listing:
    return Listing(house.parts.database, house.parts.access)


def paths(house: House, caller: Caller, wanted: Filter | None = None, limit: int = 1000) -> list[str]:
    """All of them, page by page."""
    found: list[str] = []
    after = ""
    while True:
        page = listing(house).artifacts(caller, "files", wanted or Filter(), limit, after)
        assert len(page.items) <= limit
        found += [each.path for each in page.items]
        if page.after is None:
            return found
        after = str(page.after[0])


@pytest.mark.parametrize("limit", [1, 2, 5, len(PATHS), 1000])
def test_pages_of_any_size_make_up_the_whole_list_in_order(filled: House, limit: int) -> None:
    assert paths(filled, ADMIN, limit=limit) == sorted(PATHS)


@pytest.mark.parametrize("prefix", ["", "a", "a/", "team", "Ü", "nothing", "\U0010ffff"])
def test_a_prefix_is_taken_exactly(filled: House, prefix: str) -> None:
    assert paths(filled, ADMIN, Filter(prefix=prefix), limit=2) == [each for each in sorted(PATHS) if each.startswith(prefix)]


@pytest.mark.parametrize("words", ["A", "x", ".WHL", "土", "%", "nothing"])
def test_words_are_found_anywhere_in_any_case(filled: House, words: str) -> None:
    assert paths(filled, ADMIN, Filter(words=words), limit=2) == [each for each in sorted(PATHS) if words.lower() in each.lower()]


@pytest.mark.parametrize("prefixes", [["a"], ["a/b", "team"], ["a", "a/b", "team/x"], ["absent"]])
def test_a_reader_below_some_paths_sees_these_in_lists_and_searches_and_nothing_else(filled: House, prefixes: list[str]) -> None:
    for prefix in prefixes:
        filled.rule("files", "user:anna", "read", prefix=prefix)
    anna = filled.identify(filled.token("anna", "read"))
    readable = [each for each in sorted(PATHS) if filled.outcome(each, secret=filled.token("anna", "read")) == each.encode()]
    assert paths(filled, anna, limit=2) == readable
    assert [each.path for each in listing(filled).search(anna, Filter(words="a"), 100).items] == [
        each for each in readable if "a" in each.lower()
    ]
    with pytest.raises(Forbidden):
        listing(filled).artifact(anna, "files", "b")
    with pytest.raises(Forbidden):
        listing(filled).usage(anna, "files")


@given(st.lists(st.text("ab/0", min_size=1, max_size=4), max_size=4), st.text("ab/0", max_size=3), st.text("ab/0", min_size=1, max_size=5))
def test_the_ranges_that_a_list_reads_are_what_the_decision_covers(prefixes: list[str], prefix: str, path: str) -> None:
    grant = Grant(prefixes=tuple(prefixes))
    ranges = list(_ranges(grant, prefix))
    assert any(low <= path < high for low, high in ranges) == (grant.covers(path) and path.startswith(prefix))
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(ranges))


def test_a_search_that_finds_little_looks_at_a_bounded_number_of_paths_for_each_page(
    filled: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOKED_AT", 3)
    first = listing(filled).artifacts(ADMIN, "files", Filter(words="zzz"), 10)
    assert (first.items, first.after is not None) == ([], True)
    assert paths(filled, ADMIN, Filter(words="tar")) == ["z[1]#?.tar.gz"]


def test_a_search_goes_through_all_repositories_that_the_caller_may_read(filled: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REPOSITORIES_LOOKED_AT", 2)
    for number in range(5):
        filled.repository(f"r{number}", public=number % 2 == 0)
        filled.publish("shared/x", b"1", f"r{number}")
    for caller, expected in ((ADMIN, ["files", "r0", "r1", "r2", "r3", "r4"]), (NOBODY, ["r0", "r2", "r4"])):
        found: list[str] = []
        after = ("", "")
        while True:
            page = listing(filled).search(caller, Filter(words="X"), 1, after)
            found += [each.repository for each in page.items if each.path in {"shared/x", "team/x"}]
            if page.after is None:
                break
            after = (str(page.after[0]), str(page.after[1]))
        assert found == expected


def test_what_stands_beside_a_file_is_found_by_its_own_name_alone(house: House) -> None:
    house.repository(format="maven")
    signed = ["org/lib/1.0/lib-1.0.jar", "org/lib/1.0/lib-1.0.jar.asc", "org/lib/1.0/lib-1.0.jar.asc.asc"]
    for each in signed:
        house.publish(each, each.encode(), format="maven")

    def found(words: str) -> list[str]:
        return [each.path for each in listing(house).search(ADMIN, Filter(words=words), 100).items]

    assert (found("LIB"), found(".asc"), found("jar.asc.a")) == (signed[:1], signed[1:2], signed[2:])
    assert paths(house, ADMIN, Filter(words="lib")) == signed


def test_a_token_without_read_finds_nothing_but_what_is_public(filled: House) -> None:
    filled.repository("open", public=True)
    filled.publish("a", b"1", "open")
    filled.rule("files", "user:anna", "read", "write")
    writer = filled.identify(filled.tokens.create(ADMIN, NewToken("w", ["write"], user="anna"))[1])
    assert {each.repository for each in listing(filled).search(writer, Filter(words="a"), 100).items} == {"open"}


def test_one_artifact_is_shown_with_its_bytes_digest_and_size(filled: House) -> None:
    found = listing(filled).artifact(ADMIN, "files", "team/x")
    assert (found.path, found.size, len(found.sha256), found.content_type) == ("team/x", 6, 64, "application/octet-stream")
    with pytest.raises(NotFound):
        listing(filled).artifact(ADMIN, "files", "absent")
    with pytest.raises(Unauthenticated):
        listing(filled).artifact(NOBODY, "files", "team/x")


def test_usage_is_what_admission_counts(filled: House) -> None:
    filled.publish("a", b"longer than before")
    filled.delete("b")
    usage = listing(filled).usage(ADMIN, "files")
    bytes_now = sum(len(each.encode()) for each in PATHS if each not in {"a", "b"}) + len(b"longer than before")
    assert (usage.open, usage.published, usage.garbage, usage.artifacts) == (0, bytes_now, 2, len(PATHS) - 1)
    filled.assert_counted()
