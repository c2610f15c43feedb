"""DESIGN 6: groups and their members, in this process; proxies among them ask over real sockets."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import gevent
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.access.deploying import DeployTokens, NewDeployToken
from app.access.identity import Caller
from app.access.tokens import NewToken
from app.errors import ArkvoryError, Forbidden, Invalid, NotAllowedHere, NotFound, Quarantined, RepositoryOffline, Unauthenticated
from app.repository.fetching import SMALL
from app.repository.members import Members
from app.repository.publishing import Target
from app.repository.reading import Ask, Found
from app.repository.registry import NewRepository, RepositoryChange
from tests.conftest import MakeHouse, MakePause
from tests.support.house import ADMIN, NOBODY, House
from tests.support.upstreams import FakeUpstream, noise

LARGE = noise(3 * SMALL + 17, 5)


@pytest.fixture
def grouped(house: House) -> House:
    """`one` and `two`, and a public group `all` of both."""
    house.repository("one"), house.repository("two")
    house.repository("all", kind="group", members=["one", "two"], public=True)
    return house


def find(house: House, path: str, caller: Caller = NOBODY, *, whole: bool = True, name: str = "all") -> Found:
    return house.parts.reader.find(Ask("raw", name, path, caller), whole=whole)


def member(house: House, path: str, caller: Caller = NOBODY) -> str:
    """Which one answers, or the code of the error."""
    try:
        told = find(house, path, caller).told
    except ArkvoryError as error:
        return error.code
    assert told is not None
    return told.member


def members(house: House, name: str = "all") -> list[str]:
    return list(house.registry.show(ADMIN, name).members or ())


# Who belongs to a group


def test_it_is_shown_with_its_members_in_order(grouped: House) -> None:
    assert members(grouped) == ["one", "two"]
    grouped.change("all", members=["two", "one"])
    assert members(grouped) == ["two", "one"]
    assert grouped.registry.show(ADMIN, "one").members is None


@pytest.mark.parametrize("change", [["two", "one"], ["one"], [], ["one", "two", "three"]])
def test_each_change_of_the_members_moves_the_members_epoch_and_no_other(grouped: House, change: list[str]) -> None:
    grouped.repository("three")
    before = grouped.epochs("all")
    grouped.change("all", members=change)
    after = grouped.epochs("all")
    assert (after[3] - before[3], after[:3]) == (1, before[:3])
    grouped.change("all", members=change)
    assert grouped.epochs("all") == after


def test_a_deleted_member_leaves_its_groups_and_moves_their_epochs(grouped: House) -> None:
    grouped.repository("none", kind="group", members=["two"])
    before = {name: grouped.epochs(name)[3] for name in ("all", "none")}
    assert grouped.registry.delete(ADMIN, "one") == ("'one' was a member of the group 'all', which has nothing of it any more",)
    assert (members(grouped), members(grouped, "none")) == (["two"], ["two"])
    assert {name: grouped.epochs(name)[3] - before[name] for name in before} == {"all": 1, "none": 0}
    grouped.clean()
    assert grouped.value("select count(*) from arkvory_members") == 2


def test_a_deleted_group_leaves_its_members_alone(grouped: House) -> None:
    grouped.publish("a", b"1", "one")
    grouped.registry.delete(ADMIN, "all")
    grouped.clean()
    assert grouped.read("a", "one") == b"1"
    assert grouped.value("select count(*) from arkvory_members") == 0
    grouped.registry.delete(ADMIN, "one")


def test_a_group_in_a_group_and_another_format_are_refused_with_the_field(grouped: House) -> None:
    grouped.repository("jars", format="maven")
    for wrong, words in (("all", "is a group itself"), ("jars", "holds maven")):
        with pytest.raises(Invalid, match=words) as refused:
            grouped.repository("more", kind="group", members=["one", wrong])
        assert refused.value.field == "members"
    with pytest.raises(Invalid, match="is a group itself"):
        grouped.change("all", members=["all"])


def test_whoever_adds_a_member_manages_both(grouped: House) -> None:
    """HO-X-1."""
    grouped.user("ann"), grouped.repository("secret")
    ann = grouped.identify(grouped.token("ann"))
    grouped.rule("all", "user:ann", "manage")
    for name in ("secret", "nowhere"):
        with pytest.raises(Forbidden, match="manage permission"):
            grouped.registry.update(ann, "all", RepositoryChange({"members": ["one", "two", name]}))
    # Those that are there already may be ordered, and taken away.
    grouped.registry.update(ann, "all", RepositoryChange({"members": ["two", "one"]}))
    grouped.registry.update(ann, "all", RepositoryChange({"members": ["two"]}))
    with pytest.raises(Forbidden):
        grouped.registry.update(ann, "all", RepositoryChange({"members": ["two", "one"]}))
    grouped.rule("one", "user:ann", "manage")
    grouped.registry.update(ann, "all", RepositoryChange({"members": ["two", "one"]}))
    with pytest.raises(Forbidden):
        grouped.registry.create(ann, NewRepository("mine", "raw", "group", members=["secret"]))


def test_whoever_makes_a_private_member_readable_is_told(grouped: House) -> None:
    """HO-X-1."""
    grouped.repository("open", public=True), grouped.repository("secret")
    made = grouped.registry.create(ADMIN, NewRepository("more", "raw", "group", members=["open", "secret"]))
    assert made.warnings == ("'secret' is private; through this group everyone who may read the group can read it",)
    changed = grouped.registry.update(ADMIN, "all", RepositoryChange({"members": ["one", "two", "secret"]}))
    assert len(changed.warnings) == 1 and "anyone can read it" in changed.warnings[0]
    assert grouped.registry.update(ADMIN, "all", RepositoryChange({"members": ["secret", "one"]})).warnings == ()
    assert len(grouped.registry.update(ADMIN, "more", RepositoryChange({"public": True})).warnings) == 1


def test_a_member_that_is_deleted_while_it_is_added_is_no_member(grouped: House, pause: MakePause) -> None:
    grouped.repository("three")
    stop = pause(grouped.registry, "_still_managed", before=True)
    deleting = gevent.spawn(grouped.registry.delete, ADMIN, "three")
    stop.reached()
    adding = gevent.spawn(grouped.change, "all", members=["one", "three"])
    gevent.sleep(0.2)
    stop.go()
    deleting.get(timeout=10)
    with pytest.raises(ArkvoryError):
        adding.get(timeout=10)
    assert members(grouped) == ["one", "two"]


# Reading


def test_the_first_member_that_has_it_answers_and_the_order_is_the_present_one(grouped: House) -> None:
    grouped.publish("both", b"1", "one"), grouped.publish("both", b"2", "two"), grouped.publish("late", b"2", "two")
    assert [member(grouped, path) for path in ("both", "late", "none")] == ["one", "two", "not_found"]
    grouped.change("all", members=["two", "one"])
    assert (member(grouped, "both"), grouped.read("both", "all")) == ("two", b"2")
    grouped.delete("both", "two")
    assert (member(grouped, "both"), grouped.read("both", "all")) == ("one", b"1")
    grouped.publish("none", b"3", "one")
    assert member(grouped, "none") == "one"
    grouped.change("all", members=["two"])
    assert [member(grouped, path) for path in ("both", "late", "none")] == ["not_found", "two", "not_found"]


def test_a_renamed_member_is_still_the_member(grouped: House) -> None:
    grouped.publish("a", b"1", "one")
    assert member(grouped, "a") == "one"
    grouped.change("one", name="first")
    assert (member(grouped, "a"), members(grouped)) == ("first", ["first", "two"])
    other = grouped.repository("one")
    assert other and member(grouped, "a") == "first"


def test_warm_it_sends_no_statement(grouped: House, upstream: FakeUpstream) -> None:
    grouped.repository("there", kind="proxy", upstream_url=upstream.url)
    upstream.put("/far", b"3")
    grouped.change("all", members=["one", "there", "two"])
    grouped.publish("near", b"1", "one"), grouped.publish("late", b"2", "two")
    paths = ("near", "far", "late")
    assert [member(grouped, each) for each in paths] == ["one", "there", "two"]
    before = grouped.parts.database.statements()
    assert [member(grouped, each) for each in paths] == ["one", "there", "two"]
    assert grouped.parts.database.statements() == before


def test_the_groups_own_rules_decide_and_the_members_own_gates(grouped: House) -> None:
    """HO-X-1: through the group anyone reads, in the member nobody; what is held leaves through neither door."""
    grouped.publish("a", b"1", "one"), grouped.publish("a", b"2", "two")
    assert grouped.read("a", "all", caller=NOBODY) == b"1"
    with pytest.raises(Unauthenticated):
        grouped.read("a", "one", caller=NOBODY)
    grouped.quarantine.hold(ADMIN, "one", "a", "looked at")
    # The first that has it withholds it: no later one is asked.
    with pytest.raises(Quarantined):
        find(grouped, "a")
    grouped.quarantine.release(ADMIN, "one", "a")
    assert member(grouped, "a") == "one"
    grouped.change("all", public=False)
    with pytest.raises(Unauthenticated):
        find(grouped, "a")


@pytest.mark.parametrize("status", ["offline", "maintenance"])
def test_a_member_that_is_away_is_passed_over_but_nothing_is_called_absent(grouped: House, status: str) -> None:
    grouped.publish("a", b"1", "one"), grouped.publish("a", b"2", "two"), grouped.publish("b", b"1", "one")
    assert member(grouped, "a") == "one"
    grouped.change("one", status=status)
    found = find(grouped, "a")
    assert found.told is not None
    assert (found.told.member, found.told.passed_over) == ("two", ("one",))
    for path in ("b", "none"):
        assert member(grouped, path) == f"repository_{status}"
    grouped.change("all", status="offline")
    with pytest.raises(RepositoryOffline, match="'all'"):
        find(grouped, "a")


def test_a_failed_upstream_is_passed_over_and_its_error_is_no_404(grouped: House, upstream: FakeUpstream) -> None:
    """HO-X-3: throttled is not absent; once the upstream is well, it has it."""
    grouped.repository("there", kind="proxy", upstream_url=upstream.url, settings={"miss_ttl": 60})
    grouped.change("all", members=["there", "one"])
    grouped.publish("a", b"1", "one")
    for path in ("a", "b"):
        upstream.put(f"/{path}", status=500)
    assert [member(grouped, path) for path in ("a", "b", "b")] == ["one", "upstream_failed", "upstream_failed"]
    told = find(grouped, "a").told
    assert told is not None and told.passed_over == ("there",)
    for path in ("a", "b"):
        upstream.put(f"/{path}", b"3")
    assert [member(grouped, path) for path in ("a", "b")] == ["there", "there"]
    upstream.stop()
    assert [member(grouped, path) for path in ("a", "b")] == ["there", "there"]


def test_what_an_upstream_has_not_may_be_in_a_later_member(grouped: House, upstream: FakeUpstream) -> None:
    grouped.repository("there", kind="proxy", upstream_url=upstream.url)
    grouped.change("all", members=["there", "one"])
    assert member(grouped, "a") == "not_found"
    grouped.publish("a", b"1", "one")
    assert member(grouped, "a") == "one"
    assert upstream.count("/a") == 1


def test_many_get_a_cold_file_through_a_group_while_it_comes(grouped: House, upstream: FakeUpstream) -> None:
    """HO-X-7."""
    grouped.repository("there", kind="proxy", upstream_url=upstream.url)
    grouped.change("all", members=["one", "there"])
    upstream.put("/file", LARGE, pause=0.005)

    def streamed() -> bytes:
        found = find(grouped, "file", whole=False)
        if found.coming is None:
            return grouped.read("file", "all", caller=NOBODY)
        assert found.told is not None and found.told.member == "there"
        try:
            return b"".join(found.coming.pieces(0, None))
        finally:
            found.coming.close()

    readers = [gevent.spawn(streamed) for _ in range(10)]
    gevent.joinall(readers, timeout=30, raise_error=True)
    assert all(each.value == LARGE for each in readers)
    assert upstream.count("/file") == 1


def test_bytes_that_went_since_are_looked_for_in_all_members(grouped: House) -> None:
    grouped.publish("a", b"1", "one"), grouped.publish("a", b"2", "two")
    ask = Ask("raw", "all", "a", NOBODY)
    found = grouped.parts.reader.find(ask)
    grouped.delete("a", "one")
    grouped.clean(), grouped.clean()
    gevent.sleep(0.05)
    grouped.clean()
    # As memory would have it that missed the deletion.
    again, blob = grouped.parts.reader.open_blob(ask, found)
    blob.close()
    assert again.told is not None and again.told.member == "two"


# C8


def test_c8_a_right_to_the_group_that_went_while_the_gate_was_read_opens_nothing(grouped: House, pause: MakePause) -> None:
    grouped.publish("a", b"1", "two")
    stop = pause(grouped.parts.reader, "_load_gate", before=True)
    reading = gevent.spawn(member, grouped, "a")
    stop.reached()
    # By another process, of which no message has arrived.
    grouped.rows("update arkvory_repositories set public = false, metadata_epoch = metadata_epoch + 1, "
                 "authorization_epoch = authorization_epoch + 1 where name = 'all'")
    stop.go()
    assert reading.get(timeout=10) == "unauthenticated"


def test_c8_a_member_that_left_while_its_gate_was_read_does_not_answer(grouped: House, pause: MakePause) -> None:
    grouped.publish("a", b"2", "two")
    stop = pause(grouped.parts.reader, "_load_gate", before=True)
    reading = gevent.spawn(member, grouped, "a")
    stop.reached()
    grouped.rows("delete from arkvory_members where member_id = (select id from arkvory_repositories where name = 'two')")
    grouped.rows("update arkvory_repositories set members_epoch = members_epoch + 1 where name = 'all'")
    stop.go()
    assert reading.get(timeout=10) == "not_found"


def test_c8_a_member_that_went_offline_meanwhile_does_not_answer(grouped: House, pause: MakePause) -> None:
    grouped.publish("a", b"1", "one"), grouped.publish("a", b"2", "two")
    stop = pause(grouped.parts.reader, "_load_gate", before=True)
    reading = gevent.spawn(member, grouped, "a")
    stop.reached()
    grouped.rows("update arkvory_repositories set status = 'offline', metadata_epoch = metadata_epoch + 1 where name = 'one'")
    stop.go()
    assert reading.get(timeout=10) == "two"


def test_c4_a_row_of_members_counts_only_under_its_own_epochs(grouped: House, make_house: MakeHouse) -> None:
    grouped.publish("a", b"1", "one"), grouped.publish("a", b"2", "two")
    assert member(grouped, "a") == "one"
    assert grouped.value("select count(*) from arkvory_cache_rows where region = 'members'") == 1
    fresh = make_house(owns=False)
    assert member(fresh, "a") == "one"
    grouped.change("all", members=["two", "one"])
    assert grouped.value("select count(*) from arkvory_cache_rows where region = 'members'") == 0
    assert member(grouped, "a") == "two"
    # One that was written late, of the former order.
    grouped.rows("update arkvory_cache_rows set value = replace(value, '[', '[999999,') where region = 'members'")
    grouped.rows("update arkvory_cache_rows set members_epoch = members_epoch - 1 where region = 'members'")
    assert member(make_house(owns=False), "a") == "two"


def test_c4_a_row_of_members_that_is_filled_after_a_change_is_nobodys(grouped: House, make_house: MakeHouse, pause: MakePause) -> None:
    """Whoever read the members before it was slow to keep them, or died before it did."""
    grouped.publish("a", b"1", "one"), grouped.publish("a", b"2", "two")
    late = make_house(owns=False)
    stop = pause(late.parts.reader._memberships._rows, "write", before=True)
    reading = gevent.spawn(member, late, "a")
    stop.reached()
    grouped.change("all", members=["two", "one"])
    stop.go()
    assert reading.get(timeout=10) in ("one", "two")
    assert grouped.value("select members_epoch from arkvory_cache_rows where region = 'members'") < grouped.epochs("all")[3]
    assert (member(grouped, "a"), member(make_house(owns=False), "a")) == ("two", "two")


def test_c2_c4_a_change_of_members_that_is_taken_back_was_none(
    grouped: House, make_house: MakeHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    grouped.publish("a", b"1", "one"), grouped.publish("a", b"2", "two")
    assert member(grouped, "a") == "one"
    before = grouped.epochs("all")
    write = Members.write

    def write_and_fail(*given: Any) -> None:
        write(*given)
        raise RuntimeError

    monkeypatch.setattr(Members, "write", write_and_fail)
    with pytest.raises(RuntimeError):
        grouped.change("all", members=["two"])
    assert (grouped.epochs("all"), members(grouped)) == (before, ["one", "two"])
    statements = grouped.parts.database.statements()
    assert member(grouped, "a") == "one"
    assert grouped.parts.database.statements() == statements, "nothing was forgotten either"
    assert member(make_house(owns=False), "a") == "one"


def test_under_a_members_name_another_repository_is_no_member(grouped: House) -> None:
    """Nobody's right to those that are members already is asked again: that is for the repository, not for its name."""
    grouped.user("ann"), grouped.rule("all", "user:ann", "manage"), grouped.rule("two", "user:ann", "manage")
    ann = grouped.identify(grouped.token("ann"))
    grouped.registry.update(ann, "all", RepositoryChange({"members": ["two", "one"]}))
    grouped.change("one", name="former"), grouped.repository("one")
    with pytest.raises(Forbidden):
        grouped.registry.update(ann, "all", RepositoryChange({"members": ["two", "one"]}))
    grouped.registry.update(ann, "all", RepositoryChange({"members": ["former", "two"]}))
    assert members(grouped) == ["former", "two"]


def test_an_artifact_that_moves_between_members_is_never_missing(grouped: House, pause: MakePause) -> None:
    """The walk looked into the first member before it came there, and into the second after it went."""
    grouped.publish("a", b"1", "two")
    find(grouped, "a"), grouped.parts.cache.gates.clear()
    stop = pause(grouped.parts.reader, "_load_gate", before=True)
    reading = gevent.spawn(member, grouped, "a")
    stop.reached()
    grouped.publish("a", b"1", "one"), grouped.delete("a", "two")
    stop.go()
    assert reading.get(timeout=10) == "one"


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("order"), st.lists(st.sampled_from(["one", "two", "three"]), unique=True)),
        st.tuples(st.just("publish"), st.sampled_from(["one", "two", "three"])),
        st.tuples(st.just("delete"), st.sampled_from(["one", "two", "three"])),
        st.tuples(st.just("status"), st.sampled_from([("one", "offline"), ("one", "online"), ("three", "offline"), ("three", "online")])),
        st.tuples(st.just("hold"), st.sampled_from(["one", "two"])),
        st.tuples(st.just("release"), st.sampled_from(["one", "two"])),
        st.tuples(st.just("public"), st.booleans()),
    ),
    max_size=14,
)  # fmt: skip


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=_STEPS)
def test_whatever_changes_the_next_read_sees_it(grouped: House, steps: list[Any]) -> None:
    """Against a model: the first member in the present order that has it, held or not; those that are away are passed over."""
    _Model(grouped).run(steps)


class _Model:
    def __init__(self, house: House) -> None:
        self.house = house
        if not house.rows("select 1 from arkvory_repositories where name = 'three'"):
            house.repository("three")
        self.members = ["one", "two"]
        self.has: set[str] = set()
        self.held: set[str] = set()
        self.away: set[str] = set()
        self.open = True
        house.change("all", members=self.members, public=True)
        for name in ("one", "two", "three"):
            house.change(name, status="online")
            for undo in (house.delete, lambda path, name: house.quarantine.release(ADMIN, name, path)):
                with contextlib.suppress(NotFound):
                    undo("a", name)

    def run(self, steps: list[Any]) -> None:
        for verb, what in [("public", True), *steps]:
            getattr(self, verb)(what)
            assert member(self.house, "a") == self.expected(), (verb, what)

    def expected(self) -> str:
        if not self.open:
            return "unauthenticated"
        passed_over = False
        for name in self.members:
            passed_over |= name in self.away
            if name in self.has - self.away:
                return "quarantined" if name in self.held else name
        return "repository_offline" if passed_over else "not_found"

    def order(self, names: list[str]) -> None:
        self.members = names
        self.house.change("all", members=names)

    def publish(self, name: str) -> None:
        if name not in self.away:
            self.house.publish("a", name.encode(), name)
            self.has.add(name)

    def delete(self, name: str) -> None:
        if name in self.has - self.away:
            self.house.delete("a", name)
            self.has.remove(name)

    def status(self, change: tuple[str, str]) -> None:
        name, status = change
        self.house.change(name, status=status)
        (self.away.add if status == "offline" else self.away.discard)(name)

    def hold(self, name: str) -> None:
        self.house.quarantine.hold(ADMIN, name, "a", "looked at")
        self.held.add(name)

    def release(self, name: str) -> None:
        if name in self.held:
            self.house.quarantine.release(ADMIN, name, "a")
            self.held.remove(name)

    def public(self, is_public: bool) -> None:
        self.house.change("all", public=is_public)
        self.open = is_public


# Publishing through a group


def test_what_is_published_through_a_group_goes_to_the_member_that_it_names(grouped: House) -> None:
    grouped.change("all", settings={"write_member": "two"})
    assert grouped.registry.show(ADMIN, "all").settings == {"write_member": "two"}
    grouped.publish("a", b"1", "all")
    assert (grouped.read("a", "two"), member(grouped, "a")) == (b"1", "two")
    grouped.change("two", name="second")
    assert grouped.registry.show(ADMIN, "all").settings == {"write_member": "second"}
    grouped.publish("a", b"2", "all")
    grouped.delete("a", "all")
    assert member(grouped, "a") == "not_found"
    grouped.assert_counted()


def test_without_such_a_member_it_is_refused_clearly(grouped: House) -> None:
    for verb in (lambda: grouped.publish("a", b"1", "all"), lambda: grouped.delete("a", "all")):
        with pytest.raises(NotAllowedHere, match="group without a write_member"):
            verb()
    with pytest.raises(Invalid) as refused:
        grouped.change("all", settings={"write_member": "three"})
    assert refused.value.field == "settings.write_member"
    grouped.change("all", settings={"write_member": "two"})
    with pytest.raises(Invalid):
        grouped.change("all", members=["one"])
    grouped.change("all", members=["one"], settings={"write_member": None})
    with pytest.raises(NotAllowedHere):
        grouped.publish("a", b"1", "all")


def test_the_member_is_hosted(grouped: House, upstream: FakeUpstream) -> None:
    grouped.repository("there", kind="proxy", upstream_url=upstream.url)
    with pytest.raises(Invalid, match="name a hosted member"):
        grouped.change("all", members=["one", "there"], settings={"write_member": "there"})


def test_the_right_to_write_is_that_of_the_member(grouped: House) -> None:
    grouped.change("all", settings={"write_member": "two"}, public=False)
    for name in ("ann", "bob", "eve"):
        grouped.user(name)
    ann, bob, eve = (grouped.identify(grouped.token(name)) for name in ("ann", "bob", "eve"))
    grouped.rule("two", "user:ann", "write"), grouped.rule("all", "user:bob", "read", "write")
    grouped.publish("a", b"1", "all", caller=ann)
    refusals: dict[Caller, type[ArkvoryError]] = {bob: Forbidden, eve: NotFound, NOBODY: Unauthenticated}
    for caller, refusal in refusals.items():
        with pytest.raises(refusal) as refused:
            grouped.publish("a", b"1", "all", caller=caller)
        # Only who may know of the group learns where it publishes to.
        assert ("member 'two', and 'bob' has no write permission" in refused.value.message) == (caller is bob)
        with pytest.raises(refusal):
            grouped.parts.editor.delete(Target("raw", "all", caller), ["a"])


def test_a_token_for_the_group_counts_where_it_publishes_to_as_far_as_its_owner_may_write_there(grouped: House) -> None:
    """By the group's door alone, for both writing and deleting; a deploy token has no owner whose right could be asked."""
    grouped.change("all", settings={"write_member": "two"}, public=False)
    for name in ("ann", "bob"):
        grouped.user(name)
        grouped.rule("all", f"user:{name}", "read", "write")
    grouped.rule("two", "user:ann", "read", "write", "delete")

    def with_token(owner: str, *permissions: str, of: str = "all") -> Caller:
        return grouped.identify(grouped.tokens.create(ADMIN, NewToken("t", permissions, [of], user=owner))[1])

    ann, bob = (with_token(owner, "read", "write", "delete") for owner in ("ann", "bob"))
    grouped.publish("a", b"1", "all", caller=ann)
    assert grouped.read("a", "two") == b"1"
    grouped.parts.editor.delete(Target("raw", "all", ann), ["a"])
    grouped.publish("a", b"1", "all", caller=with_token("ann", "write", of="two"))
    reading, elsewhere = with_token("ann", "read"), with_token("ann", "write", of="one")
    refusals = {
        ("two", ann): "write permission here with this token",
        ("all", bob): "publishes to its member 'two', and 'bob' has no write permission for that there; who manages 'two' can give it",
        ("all", reading): "this token gives no write permission there; make one with write for 'all' or for 'two'",
        ("all", elsewhere): "this token gives no write permission there; make one with write for 'all' or for 'two'",
        ("all", grouped.identify(deploy_token(grouped, "all"))): "this deploy token gives no write permission for that there; make one of",
    }
    for (repository, caller), words in refusals.items():
        with pytest.raises(Forbidden, match=words):
            grouped.publish("b", b"2", repository, caller=caller)
    grouped.publish("b", b"2", "all", caller=grouped.identify(deploy_token(grouped, "two")))
    grouped.disable("ann")
    with pytest.raises(Unauthenticated):
        grouped.publish("c", b"3", "all", caller=ann)


def deploy_token(house: House, repository: str) -> str:
    """Its secret."""
    made = DeployTokens(house.parts.database, house.parts.transactions, house.parts.access)
    return made.create(ADMIN, repository, NewDeployToken("d", ("read", "write")))[1]


def test_a_deleted_write_member_takes_the_setting_along(grouped: House) -> None:
    grouped.change("all", settings={"write_member": "two"})
    (told,) = grouped.registry.delete(ADMIN, "two")
    assert told.endswith("nothing of it any more, and takes no publishes until it has another write_member")
    assert grouped.registry.show(ADMIN, "all").settings == {}
    with pytest.raises(NotAllowedHere):
        grouped.publish("a", b"1", "all")


def changed(name: str, **values: Any) -> Callable[[House], None]:
    return lambda house: house.change(name, **values)


# What closes something, and what opens it again.
CLOSINGS: dict[str, tuple[Callable[[House], Any], Callable[[House], Any]]] = {
    "the group made private": (changed("all", public=False), changed("all", public=True)),
    "the group offline": (changed("all", status="offline"), changed("all", status="online")),
    "the member taken away": (changed("all", members=["two"]), changed("all", members=["two", "there"])),
    "the member offline": (changed("there", status="offline"), changed("there", status="online")),
    "the path blocked": (changed("there", settings={"block": ["file"]}), changed("there", settings={"block": None})),
    "too young": (changed("there", settings={"minimum_age": 3}), changed("there", settings={"minimum_age": None})),
    "the path held": (
        lambda house: house.quarantine.hold(ADMIN, "there", "file", "looked at"),
        lambda house: house.quarantine.release(ADMIN, "there", "file"),
    ),
}


@pytest.mark.parametrize("kind", CLOSINGS)
def test_closed_under_load_not_one_answer_is_late(house: House, upstream: FakeUpstream, kind: str) -> None:
    """C8, for a file of a proxy through a group: while it is fetched, compared, handed on, or served because the upstream refuses."""
    close, reopen = CLOSINGS[kind]
    house.repository("two"), house.repository("there", kind="proxy", upstream_url=upstream.url, settings={"mutable_ttl": 0})
    house.repository("all", kind="group", members=["two", "there"], public=True)
    upstream.put("/file", LARGE, pause=0.002, etag='"v1"')
    changes, answers, late, running = 0, 0, list[str](), True
    closed_since: float | None = None

    def read(form: dict[str, Any], whole: bool) -> None:
        nonlocal answers
        while running:
            began = time.monotonic()
            with contextlib.suppress(ArkvoryError):
                found = house.parts.reader.find(Ask("raw", "all", "file", NOBODY, **form), whole=whole)
                answers += 1
                if closed_since is not None and began > closed_since:
                    late.append(f"{found.told} after {time.monotonic() - closed_since:.3f} s")
                if found.coming is not None:
                    found.coming.close()
            gevent.sleep(0.001)

    readers = [gevent.spawn(read, {"bodiless": bodiless}, whole) for bodiless in (False, True) for whole in (False, True) for _ in range(2)]
    deadline = time.monotonic() + 60
    while (changes < 5 or answers < 5) and time.monotonic() < deadline:
        upstream.put("/file", LARGE[changes % 7 :], pause=0.002, etag=f'"{changes}"', status=(200, 200, 403, 200, 404)[changes % 5])
        gevent.sleep(0.2)
        close(house)
        closed_since, changes = time.monotonic(), changes + 1
        gevent.sleep(0.03)
        closed_since = None
        reopen(house)
    running = False
    gevent.joinall(readers, raise_error=True)
    assert not late
    assert changes >= 5 and answers >= 5
