"""DESIGN 6: explain says of a read what comes of it, why, and by whose leave; it asks no upstream and leaves everything as it is."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from app.access.deploying import DeployTokens, NewDeployToken
from app.access.identity import Caller
from app.access.people import Groups
from app.access.roles import NewRoleRule
from app.access.tokens import NewToken
from app.errors import ArkvoryError, Forbidden, Invalid, NotFound, Unauthenticated
from app.http.listing import FolderListing
from app.repository.explain import ANSWERS, Explain, Report, Wanted
from app.repository.reading import Ask
from app.upstream.breaker import FAILURES
from tests.support.house import ADMIN, NOBODY, House
from tests.support.upstreams import FakeUpstream, noise

BODY = noise(20_000)


@pytest.fixture
def explaining(house: House) -> Explain:
    return explain_of(house)


def explain_of(house: House) -> Explain:
    parts = house.parts
    return Explain(parts.database, parts.cache, parts.access, parts.fetches, {"group": parts.group})


def told(house: House, path: str, *, caller: Caller = ADMIN, subject: str | None = None) -> Report:
    """What is said of a file, after it was seen that nothing else happened (S1: nothing that this process remembers either)."""
    parts, explain = house.parts, explain_of(house)
    before = [(each.name, len(each), each.hits, each.fetches) for each in parts.cache.regions], house.epochs(), parts.fetches.running
    report = explain.report(caller, Wanted("raw", "files", path), subject)
    after = [(each.name, len(each), each.hits, each.fetches) for each in parts.cache.regions], house.epochs(), parts.fetches.running
    assert after == before
    return report


def read(house: House, path: str, caller: Caller = ADMIN) -> str | None:
    """The code of the error that a read ends with."""
    try:
        house.parts.reader.find(Ask("raw", "files", path, caller))
    except ArkvoryError as error:
        return error.code
    return None


def agreed(house: House, path: str, caller: Caller = ADMIN) -> str:
    """The answer that was told, which a read then gave."""
    report = told(house, path, caller=caller)
    code = read(house, path, caller)
    assert report.outcome.answer in ANSWERS
    assert report.outcome.code == code, report.outcome.detail
    assert report.outcome.detail
    return report.outcome.answer


def dated(moment: datetime) -> dict[str, str]:
    return {"Last-Modified": format_datetime(moment, usegmt=True)}


# What comes of it


def test_of_a_hosted_repository_it_says_what_a_read_then_does(house: House) -> None:
    house.repository()
    assert agreed(house, "a") == "absent"
    house.publish("a", BODY)
    assert agreed(house, "a") == "served"
    house.quarantine.hold(ADMIN, "files", "a", "being looked at", "suspicious")
    assert agreed(house, "a") == "refused"
    found = told(house, "a").holding
    assert found is not None and found.quarantine is not None and found.gate is not None
    assert (found.quarantine.reason, found.quarantine.trust, found.gate.size) == ("being looked at", "suspicious", len(BODY))
    for status in ("offline", "maintenance"):
        house.change("files", status=status)
        assert agreed(house, "a") == "unavailable"



def test_of_a_proxy_it_says_what_a_read_then_does_and_the_upstream_is_not_asked(house: House, upstream: FakeUpstream) -> None:
    house.repository(kind="proxy", upstream_url=upstream.url, settings={"minimum_age": 2, "block": ["bad*"]})
    upstream.put("/a", BODY, headers=dated(datetime.now(UTC) - timedelta(days=9)))
    upstream.put("/new", BODY, headers=dated(datetime.now(UTC) - timedelta(hours=1)))
    for path in ("a", "new", "none", "bad"):
        told(house, path)
    assert upstream.asked == []
    assert told(house, "a").outcome.answer == "fetched"
    assert [read(house, each) for each in ("a", "new", "none", "bad")] == [None, "too_young", "not_found", "not_found"]
    upstream.asked.clear()
    assert [agreed(house, each) for each in ("a", "new", "none", "bad")] == ["served", "refused", "absent", "absent"]
    assert upstream.asked == []
    young, bad, none = (told(house, each).holding for each in ("new", "bad", "none"))
    assert young is not None and young.gate is not None and bad is not None and none is not None
    assert young.gate.available_at is not None and young.gate.published_at is not None
    assert young.gate.available_at - young.gate.published_at == timedelta(days=2)
    assert bad.rule == "block 'bad*'"
    assert none.memory.miss is not None and 0 < none.memory.miss <= 60


def test_a_copy_that_is_due_will_be_compared_unless_the_upstream_is_left_alone(house: House, upstream: FakeUpstream) -> None:
    house.repository(kind="proxy", upstream_url=upstream.url, settings={"mutable_ttl": 0})
    upstream.put("/a", BODY, etag='"v1"')
    assert read(house, "a") is None
    found = told(house, "a")
    assert found.outcome.answer == "compared"
    assert found.holding is not None and found.holding.freshness is not None and found.holding.freshness.etag == '"v1"'
    upstream.put("/a", status=500)
    for _ in range(FAILURES):
        assert read(house, "a") is None
    left_alone = told(house, "a")
    assert (left_alone.outcome.answer, told(house, "b").outcome.answer) == ("served", "unavailable")
    assert agreed(house, "b") == "unavailable"
    assert left_alone.holding is not None and left_alone.holding.condition is not None
    condition = left_alone.holding.condition
    assert (condition.state, condition.failures) == ("open", FAILURES)
    assert condition.last_failure is not None and "500" in condition.last_failure.reason
    assert condition.until is not None and condition.until > datetime.now(UTC)
    assert (condition.connections, condition.most_connections) == (0, 16)


def test_a_copy_from_another_address_is_due_whatever_its_age(house: House, upstream: FakeUpstream) -> None:
    house.repository(kind="proxy", upstream_url=upstream.url)
    upstream.put("/a", BODY)
    read(house, "a")
    assert told(house, "a").outcome.answer == "served"
    house.change("files", upstream_url=f"{upstream.url}/other")
    assert told(house, "a").outcome.answer == "compared"


def test_without_caching_the_upstream_is_asked_each_time(house: House, upstream: FakeUpstream) -> None:
    house.repository(kind="proxy", upstream_url=upstream.url)
    upstream.put("/a", BODY)
    read(house, "a")
    house.change("files", settings={"caching": False})
    assert told(house, "a").outcome.answer == "fetched"


def test_what_will_be_held_when_it_comes_is_said_beforehand(house: House, upstream: FakeUpstream) -> None:
    house.repository(kind="proxy", upstream_url=upstream.url)
    upstream.put("/new/a", BODY)
    house.quarantine.add_rule(ADMIN, "files", "new/*", None, "new here")
    before = told(house, "new/a").outcome
    assert before.answer == "fetched" and "new here" in before.detail
    assert read(house, "new/a") == "quarantined"
    assert agreed(house, "new/a") == "refused"


def test_a_document_is_told_from_a_file(house: House, explaining: Explain) -> None:
    house.repository()
    house.publish("folder/a", BODY)
    folder = FolderListing("folder/", "json")
    wanted = Wanted("raw", "files", "folder/", source=folder)
    report = explaining.report(ADMIN, wanted)
    assert report.outcome.answer == "served" and report.holding is not None and list(report.holding.memory.documents) == []
    house.parts.reader.document(Ask("raw", "files", "folder/", ADMIN), folder)
    kept = explaining.report(ADMIN, wanted).holding
    assert kept is not None and list(kept.memory.documents) == [folder.representation]
    house.publish("folder/b", BODY)
    gone = explaining.report(ADMIN, wanted).holding
    assert gone is not None and list(gone.memory.documents) == []
    absent = explaining.report(ADMIN, Wanted("raw", "files", "nowhere/", source=FolderListing("nowhere/", "json")))
    assert (absent.outcome.answer, absent.outcome.code) == ("absent", "not_found")


# What memory has


def test_memory_is_told_as_the_next_read_finds_it(house: House) -> None:
    """C1: under the effective epochs."""
    house.repository()
    house.publish("a", BODY)
    for keeps in (False, True):
        house.parts.cache.keep(keeps)
    cold = told(house, "a").holding
    assert cold is not None and not cold.memory.snapshot and not cold.memory.gate
    read(house, "a"), read(house, "b")
    warm, absent = told(house, "a").holding, told(house, "b").holding
    assert warm is not None and warm.memory.snapshot and warm.memory.gate and not warm.memory.absence
    assert absent is not None and absent.memory.absence and not absent.memory.gate
    house.publish("c", BODY)
    moved = told(house, "a").holding
    assert moved is not None and not moved.memory.gate
    assert (moved.effective, moved.behind) == (house.epochs(), False)


def test_a_process_that_has_not_heard_yet_is_behind(make_house: Any) -> None:
    """M2: another process's commit, before its message was read."""
    one, other = make_house(), make_house(owns=False)
    one.repository()
    one.publish("a", BODY)
    read(one, "a")
    other.publish("a", noise(10))
    found = told(one, "a").holding
    assert found is not None and found.behind and found.memory.gate
    assert found.effective < found.snapshot.epochs


# Permission


def deploy_token(house: House, *permissions: str, prefix: str | None = None) -> Caller:
    tokens = DeployTokens(house.parts.database, house.parts.transactions, house.parts.access)
    return house.identify(tokens.create(ADMIN, "files", NewDeployToken("ci", permissions, prefix))[1])


def scoped(house: House, *permissions: str, repositories: Sequence[str] | None = None) -> Caller:
    new = NewToken("of ada", permissions, user="ada", repositories=repositories)
    return house.identify(house.tokens.create(ADMIN, new)[1])


@pytest.fixture
def people(house: House) -> House:
    """`ada` in the group `devs`, a repository `files` with a file at `a/b`, and another one."""
    house.user("ada")
    groups = Groups(house.parts.database, house.parts.transactions, house.parts.identities)
    groups.create(ADMIN, "devs")
    groups.add_member(ADMIN, "devs", "ada")
    house.repository()
    house.repository("other")
    house.publish("a/b", BODY)
    return house


def test_the_explained_decision_is_the_decision(people: House) -> None:
    """DESIGN 3, for callers of each kind and rules of each: who may not know of the repository is told what everybody is told."""
    callers = [
        NOBODY, scoped(people, "read", "write"), scoped(people, "write"), scoped(people, "read", repositories=["other"]),
        deploy_token(people, "read"), deploy_token(people, "read", prefix="c"), deploy_token(people, "write"),
    ]  # fmt: skip
    told_of = set()
    for rule in (None, *itertools.product(("user:ada", "group:devs", "signed-in", "anonymous"), ("read", "write"), (None, "a", "c"))):
        id_ = None if rule is None else people.rule("files", *rule[:2], prefix=rule[2])
        # A deploy token that memory knows from before a rule counts under its epoch.
        told_of |= {_decided_alike(people, again(people, caller)) for caller in callers}
        if id_ is not None:
            people.rules.delete(ADMIN, "files", id_)
    assert told_of == {None, "forbidden", "not_found", "unauthenticated"}


def again(house: House, caller: Caller) -> Caller:
    """As the next request finds them."""
    if caller.identity is None:
        return caller
    with house.parts.database.read() as connection:
        return replace(caller, identity=house.parts.identities.read_again(connection, caller.identity))


def _decided_alike(house: House, caller: Caller) -> str | None:
    code, report = read(house, "a/b", caller), told_to_whom_may_know(house, caller)
    if isinstance(report, Report):
        assert (report.verdict.allowed, report.outcome.code) == (code is None, code)
        assert report.verdict.because
    else:
        assert report == code
    return code


def told_to_whom_may_know(house: House, caller: Caller) -> Report | str:
    """The report, or the code of the refusal."""
    try:
        return told(house, "a/b", caller=caller)
    except (NotFound, Unauthenticated) as error:
        return error.code


def test_the_rule_that_gives_it_is_named_to_who_manages_the_repository(people: House) -> None:
    elsewhere = people.rule("files", "signed-in", "read", prefix="c")
    rule = people.rule("files", "group:devs", "read", "write", prefix="a")
    verdict = told(people, "a/b", subject="user:ada").verdict
    assert (verdict.allowed, verdict.subject) == (True, "user:ada")
    assert verdict.because == f"rule {rule} gives it to group:devs below 'a'"
    assert [(each.id, each.covers) for each in verdict.rules] == [(elsewhere, False), (rule, True)]
    refused = told(people, "b", subject="user:ada")
    assert (refused.outcome.answer, refused.outcome.code) == ("refused", "forbidden")
    assert f"rule {elsewhere}" in refused.verdict.because


def test_a_role_is_named_like_a_rule(people: House) -> None:
    people.roles.create(ADMIN, "reader")
    people.roles.add_rule(ADMIN, "reader", NewRoleRule(("read",)))
    people.roles.assign(ADMIN, "reader", "group:devs")
    verdict = told(people, "a/b", subject="user:ada").verdict
    assert verdict.allowed and verdict.because == "the role 'reader' gives it to group:devs"


@pytest.mark.parametrize(("change", "because"), [
    ({"public": True}, "public"),
    ({}, "not public"),
])
def test_anonymous_is_a_subject_too(people: House, change: dict[str, Any], because: str) -> None:
    people.change("files", **change)
    verdict = told(people, "a/b", subject="anonymous").verdict
    assert (verdict.subject, verdict.allowed) == ("anonymous", bool(change)) and because in verdict.because


def test_a_closed_server_lets_nobody_in_whatever_is_public(people: House) -> None:
    people.change("files", public=True)
    people.rows("update arkvory_installation set anonymous = false")
    report = told(people, "a/b", subject="anonymous")
    assert (report.verdict.allowed, report.outcome.code) == (False, "unauthenticated")
    assert "login" in report.verdict.because


def test_a_token_that_may_less_is_the_reason(people: House) -> None:
    people.rule("files", "user:ada", "read", "write")
    assert "write alone" in told(people, "a/b", caller=scoped(people, "write")).verdict.because


# Who is told what


def test_who_may_read_sees_what_comes_of_it_and_no_rules_and_no_upstream(house: House, upstream: FakeUpstream) -> None:
    house.user("ada")
    house.repository(kind="proxy", upstream_url=upstream.url)
    house.rule("files", "user:ada", "read")
    report = told(house, "a", caller=house.identify(house.token("ada")))
    assert (report.outcome.answer, report.verdict.rules) == ("fetched", ())
    assert report.holding is not None and not report.holding.shown
    assert told(house, "a").holding.shown  # type: ignore[union-attr]  # the administrator sees it


def test_who_may_not_read_is_told_why_and_nothing_of_what_is_there(people: House) -> None:
    people.rule("files", "user:ada", "write")
    report = told(people, "a/b", caller=people.identify(people.token("ada")))
    assert (report.outcome.answer, report.holding, report.members) == ("refused", None, None)
    assert "no rule" in report.verdict.because


def test_who_may_not_know_of_the_repository_is_told_nothing(people: House) -> None:
    with pytest.raises(NotFound):
        told(people, "a/b", caller=people.identify(people.token("ada")))
    with pytest.raises(Unauthenticated):
        told(people, "a/b", caller=NOBODY)


def test_only_who_manages_the_repository_asks_about_others(people: House) -> None:
    people.rule("files", "user:ada", "read")
    with pytest.raises(Forbidden):
        told(people, "a/b", caller=people.identify(people.token("ada")), subject="anonymous")
    with pytest.raises(NotFound):
        told(people, "a/b", subject="user:nobody")
    with pytest.raises(Invalid):
        told(people, "a/b", subject="group:devs")


# An upstream by itself


def test_the_condition_of_an_upstream_is_what_this_process_found_out(house: House, explaining: Explain, upstream: FakeUpstream) -> None:
    house.repository(kind="proxy", upstream_url=upstream.url)
    house.repository("hosted")
    assert explaining.upstream(ADMIN, "files")[1] is None
    upstream.put("/a", status=429, headers={"Retry-After": "60"})
    read(house, "a")
    condition = explaining.upstream(ADMIN, "files")[1]
    assert condition is not None and condition.state == "paused" and condition.last_failure is not None
    assert condition.until is not None and 50 < (condition.until - datetime.now(UTC)).total_seconds() <= 60
    with pytest.raises(NotFound):
        explaining.upstream(ADMIN, "hosted")
    with pytest.raises((Unauthenticated, NotFound)):
        explaining.upstream(NOBODY, "files")


def test_refused_credentials_are_told_and_do_not_count_as_failures(house: House, explaining: Explain, upstream: FakeUpstream) -> None:
    house.repository(kind="proxy", upstream_url=upstream.url)
    upstream.put("/a", status=401)
    read(house, "a")
    condition = explaining.upstream(ADMIN, "files")[1]
    assert condition is not None and condition.last_failure is not None and "401" in condition.last_failure.reason
    assert (condition.state, condition.failures) == ("closed", 0)


# Groups


@pytest.fixture
def grouped(house: House, upstream: FakeUpstream) -> House:
    """The group `files` of two hosted repositories, and a proxy `dl`."""
    for name in ("one", "two"):
        house.repository(name)
    house.repository("dl", kind="proxy", upstream_url=upstream.url)
    house.repository("files", kind="group", members=["one", "two"])
    return house


Walked = dict[str, tuple[str, bool]]


def walked(house: House, path: str) -> tuple[str, Walked]:
    """The answer, which a read then gave too unless the upstream is still to be asked; by member what it says and whether it answers."""
    report = told(house, path)
    assert report.members is not None
    chosen = [each.snapshot.name for each in report.members if each.chosen]
    if report.outcome.answer != "fetched":
        assert agreed(house, path) == report.outcome.answer
    if report.outcome.answer in {"served", "compared"}:
        found = house.parts.reader.find(Ask("raw", "files", path, ADMIN)).told
        assert found is not None and [found.member] == chosen
    return report.outcome.answer, {each.snapshot.name: (each.outcome.answer, each.chosen) for each in report.members}


def why(house: House, wanted: Wanted) -> dict[str, str]:
    """By member what is said of it."""
    return {each.snapshot.name: each.outcome.detail for each in explain_of(house).report(ADMIN, wanted).members or ()}


def test_the_first_member_that_has_it_answers(grouped: House) -> None:
    grouped.change("files", members=["one", "two", "dl"])
    grouped.publish("a", BODY, "two")
    assert walked(grouped, "a") == ("served", {"one": ("absent", False), "two": ("served", True), "dl": ("fetched", False)})
    grouped.change("files", members=["two", "one"])
    grouped.publish("a", BODY, "one")
    assert walked(grouped, "a") == ("served", {"two": ("served", True), "one": ("served", False)})


def test_a_member_that_withholds_it_ends_the_walk(grouped: House) -> None:
    for name in ("one", "two"):
        grouped.publish("a", BODY, name)
    grouped.quarantine.hold(ADMIN, "one", "a", "looked at")
    assert walked(grouped, "a") == ("refused", {"one": ("refused", True), "two": ("served", False)})
    grouped.quarantine.hold(ADMIN, "two", "b", "looked at")
    assert walked(grouped, "b") == ("absent", {"one": ("absent", False), "two": ("absent", False)})


def test_what_is_too_young_in_the_first_member_ends_the_walk(grouped: House, upstream: FakeUpstream) -> None:
    grouped.change("files", members=["dl", "one"])
    grouped.change("dl", settings={"minimum_age": 2})
    upstream.put("/a", BODY, headers=dated(datetime.now(UTC) - timedelta(hours=1)))
    grouped.publish("a", BODY, "one")
    assert walked(grouped, "a")[0] == "fetched"
    assert read(grouped, "a") == "too_young"
    assert walked(grouped, "a") == ("refused", {"dl": ("refused", True), "one": ("served", False)})


def test_a_member_that_cannot_answer_is_passed_over_and_nothing_is_absent_then(grouped: House) -> None:
    grouped.change("one", status="offline")
    assert walked(grouped, "a") == ("unavailable", {"one": ("unavailable", False), "two": ("absent", False)})
    grouped.publish("a", BODY, "two")
    assert walked(grouped, "a") == ("served", {"one": ("unavailable", False), "two": ("served", True)})
    grouped.change("files", status="offline")
    assert told(grouped, "a").outcome.code == read(grouped, "a") == "repository_offline"


def test_a_proxy_that_was_not_asked_yet_may_have_it_before_others(grouped: House, upstream: FakeUpstream) -> None:
    grouped.change("files", members=["dl", "two"])
    grouped.publish("a", BODY, "two")
    assert walked(grouped, "a")[0] == "fetched"
    assert upstream.asked == []
    assert read(grouped, "a") is None
    assert walked(grouped, "a") == ("served", {"dl": ("absent", False), "two": ("served", True)})


def test_a_group_without_members_has_nothing(grouped: House) -> None:
    grouped.change("files", members=[])
    assert walked(grouped, "a") == ("absent", {})


def test_a_proxy_that_a_path_rule_keeps_out_of_it_says_which(grouped: House) -> None:
    grouped.change("files", members=["dl", "two"])
    grouped.change("dl", settings={"block": ["bad*"]})
    grouped.publish("bad", BODY, "two")
    assert walked(grouped, "bad") == ("served", {"dl": ("absent", False), "two": ("served", True)})
    assert "bad*" in why(grouped, Wanted("raw", "files", "bad"))["dl"]


def test_a_shielded_name_is_asked_of_no_proxy(house: House, upstream: FakeUpstream) -> None:
    """Dependency confusion: also while the hosted member that holds the name is offline."""
    house.repository("ours", format="maven")
    house.repository("theirs", format="maven", kind="proxy", upstream_url=upstream.url)
    house.repository("all", format="maven", kind="group", members=["theirs", "ours"], settings={"name_policy": "shield"})
    house.publish("org/acme/lib/1.0/lib-1.0.jar", BODY, "ours", format="maven", package="org.acme:lib")
    newer, other = (Wanted("maven", "all", f"org/acme/{each}/2.0/{each}-2.0.jar") for each in ("lib", "tool"))
    assert why(house, newer)["theirs"] == (
        "a hosted member holds the name 'org.acme:lib', or held it once, so no proxy is asked (shield; merged_names gives it free)"
    )
    assert "shield" not in why(house, other)["theirs"]
    house.change("ours", status="offline")
    report = explain_of(house).report(ADMIN, newer)
    assert (report.outcome.answer, report.outcome.code) == ("unavailable", "repository_offline")
    house.change("all", settings={"name_policy": "merge"})
    assert "shield" not in why(house, newer)["theirs"]
    assert upstream.asked == []


def test_of_a_merged_document_all_that_have_a_part_answer(grouped: House) -> None:
    grouped.change("files", members=["one", "two", "dl"])
    for name in ("one", "two"):
        grouped.publish(f"folder/{name}", BODY, name)
    wanted = Wanted("raw", "files", "folder/", source=FolderListing("folder/", "json"))
    report = explain_of(grouped).report(ADMIN, wanted)
    assert report.outcome.answer == "served" and report.members is not None
    assert {each.snapshot.name: each.chosen for each in report.members} == {"one": True, "two": True, "dl": False}


def test_who_may_read_the_group_is_shown_its_members_but_no_upstream(grouped: House) -> None:
    """DESIGN 3: members' own rules are not asked."""
    grouped.user("ada")
    grouped.change("files", members=["dl", "two"])
    grouped.publish("a", BODY, "two")
    grouped.rule("files", "user:ada", "read")
    report = told(grouped, "a", caller=grouped.identify(grouped.token("ada")))
    assert report.members is not None and not any(each.shown for each in report.members)
    assert report.verdict.allowed and report.outcome.answer == "fetched"
