"""Repositories: names, who may know of them, and which epochs a change moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import gevent
import pytest

from app.access.identity import Caller
from app.errors import AlreadyExists, ArkvoryError, Forbidden, Invalid, NotFound, Unauthenticated, Unavailable, UpstreamFailed
from app.repository.registry import NewRepository, RepositoryChange
from tests.support.house import ADMIN, NOBODY, House
from tests.support.upstreams import FakeUpstream


def names(house: House, caller: Caller) -> list[str]:
    return [each.name for each in house.registry.list(caller, 1000).items]


def test_of_many_who_create_the_same_name_at_once_one_succeeds(house: House) -> None:
    def attempt() -> str:
        try:
            house.registry.create(ADMIN, NewRepository("files", "raw"))
        except AlreadyExists:
            return "taken"
        return "made"

    runs = [gevent.spawn(attempt) for _ in range(8)]
    gevent.joinall(runs, timeout=30, raise_error=True)
    assert Counter(run.value for run in runs) == {"made": 1, "taken": 7}
    assert house.value("select count(*) from arkvory_repositories") == 1


@pytest.mark.parametrize("name", ["", "A", "-a", ".a", "a/b", "a b", "a" * 65, "ä", "a\x00", "..", "a\n", "\ud800"])
def test_a_name_that_is_no_name_is_refused(house: House, name: str) -> None:
    with pytest.raises(Invalid) as refused:
        house.registry.create(ADMIN, NewRepository(name, "raw"))
    assert refused.value.field == "name"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"format": "zip"}, "format"),
        ({"kind": "proxy"}, "upstream_url"),
        ({"kind": "proxy", "upstream_url": "https://u:p@there"}, "upstream_url"),
        ({"kind": "proxy", "upstream_url": "ftp://there"}, "upstream_url"),
        ({"kind": "proxy", "upstream_url": "https://there/?a=b"}, "upstream_url"),
        ({"kind": "proxy", "upstream_url": "https://there", "settings": {"short_names": "library"}}, "settings.short_names"),
        ({"kind": "proxy", "upstream_url": "https://there", "upstream": {"colour": "red"}}, "upstream.colour"),
        ({"kind": "proxy", "upstream_url": "https://there", "upstream": {"password": "p"}}, "upstream.username"),
        ({"kind": "proxy", "upstream_url": "https://there", "upstream": {"headers": {"Host": "x"}}}, "upstream.headers"),
        ({"kind": "proxy", "upstream_url": "https://there", "upstream": {"headers": {"X": "a\r\nb"}}}, "upstream.headers"),
        ({"kind": "proxy", "upstream_url": "https://there", "upstream": {"ca": "none"}}, "upstream.ca"),
        ({"kind": "proxy", "upstream_url": "https://there", "upstream": {"read_seconds": 0}}, "upstream.read_seconds"),
        ({"kind": "proxy", "upstream_url": "https://there", "settings": {"mutable_ttl": -1}}, "settings.mutable_ttl"),
        ({"kind": "proxy", "upstream_url": "https://there", "settings": {"write_policy": "once"}}, "settings.write_policy"),
        ({"upstream_url": "https://there"}, "upstream_url"),
        ({"upstream": {"username": "u"}}, "upstream"),
        ({"members": ["other"]}, "members"),
        ({"kind": "group", "members": ["files", "files"]}, "members"),
        ({"kind": "group", "members": ["nowhere"]}, "members"),
        ({"kind": "group", "settings": {"write_member": "files"}}, "settings.write_member"),
        ({"kind": "group", "settings": {"write_policy": "once"}}, "settings.write_policy"),
        ({"kind": "group", "settings": {"name_policy": "shield"}}, "settings.name_policy"),
        ({"kind": "group", "upstream_url": "https://there"}, "upstream_url"),
        ({"kind": "other"}, "kind"),
        ({"status": "asleep"}, "status"),
        ({"quota_bytes": -1}, "quota_bytes"),
        ({"quota_bytes": 2**63}, "quota_bytes"),
        ({"settings": {"colour": "red"}}, "settings.colour"),
        ({"settings": {"write_policy": "sometimes"}}, "settings.write_policy"),
    ],
)
def test_what_a_repository_cannot_be_is_refused_with_its_field(house: House, fields: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        house.registry.create(ADMIN, NewRepository(**({"name": "files", "format": "raw"} | fields)))
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("change", "moved"),
    [
        ({"name": "renamed"}, (1, 0, 0, 0)),
        ({"status": "offline"}, (1, 0, 0, 0)),
        ({"settings": {"write_policy": "once"}}, (1, 0, 0, 0)),
        ({"public": True}, (1, 1, 0, 0)),
        ({"public": True, "status": "offline"}, (1, 1, 0, 0)),
        ({"quota_bytes": 5}, (0, 0, 0, 0)),
        ({"status": "online", "public": False, "name": "files"}, (0, 0, 0, 0)),
        ({}, (0, 0, 0, 0)),
    ],
)
def test_a_change_moves_the_epochs_that_it_affects_by_one(house: House, change: dict[str, Any], moved: tuple[int, ...]) -> None:
    house.repository("files")
    before = house.epochs("files")
    made = house.registry.update(ADMIN, "files", RepositoryChange(change))
    assert tuple(made.epochs) == tuple(old + step for old, step in zip(before, moved, strict=True))
    for key, value in change.items():
        assert getattr(made, key) == value


def test_a_setting_set_to_null_goes_back_to_the_formats_own(house: House) -> None:
    house.repository("files", settings={"write_policy": "once"})
    house.change("files", settings={"write_policy": None})
    assert house.registry.show(ADMIN, "files").settings == {}


def test_a_renamed_repository_is_there_under_its_new_name_alone_on_the_next_request(house: House) -> None:
    house.repository("old", public=True)
    house.publish("a", b"1", "old")
    assert house.outcome("a", "old") == b"1"
    house.change("old", name="new")
    assert (house.outcome("a", "new"), house.outcome("a", "old")) == (b"1", "unauthenticated")
    house.repository("old", public=True)
    house.publish("a", b"2", "old")
    assert (house.outcome("a", "new"), house.outcome("a", "old")) == (b"1", b"2")


def test_a_name_that_is_taken_cannot_be_taken_by_renaming(house: House) -> None:
    house.repository("one")
    house.repository("two")
    with pytest.raises(AlreadyExists):
        house.change("one", name="two")
    assert names(house, ADMIN) == ["one", "two"]


def test_two_repositories_that_want_each_others_names_do_not_wait_in_a_circle(house: House) -> None:
    house.repository("one")
    house.repository("two")

    def rename(old: str, new: str) -> str:
        try:
            house.change(old, name=new)
        except ArkvoryError as error:
            return error.code
        return "done"

    for _ in range(10):
        runs = [gevent.spawn(rename, "one", "two"), gevent.spawn(rename, "two", "one")]
        gevent.joinall(runs, timeout=30, raise_error=True)
        assert {run.value for run in runs} == {"already_exists"}
    assert house.value("select deadlocks from pg_stat_database where datname = current_database()") == 0


def test_a_deleted_repository_is_gone_on_the_next_request_and_its_name_is_free(house: House) -> None:
    first = house.repository("files", public=True)
    house.publish("a", b"1")
    assert house.outcome("a") == b"1"
    house.registry.delete(ADMIN, "files")
    assert house.outcome("a") == "unauthenticated"
    assert names(house, ADMIN) == []
    assert house.repository("files", public=True) > first
    assert house.outcome("a") == "not_found"


def test_repositories_are_made_by_administrators_unless_the_installation_says_otherwise(make_house: Any) -> None:
    strict = make_house()
    strict.user("anna")
    anna = strict.identify(strict.token("anna"))
    with pytest.raises(Forbidden):
        strict.registry.create(anna, NewRepository("files", "raw"))
    open_house = make_house(owns=False, ARKVORY_REPOSITORY_CREATION="signed-in")
    assert open_house.registry.create(anna, NewRepository("files", "raw")).creator == "anna"
    with pytest.raises(Forbidden):
        open_house.registry.create(open_house.identify(open_house.token("anna", "read", "write")), NewRepository("others", "raw"))
    with pytest.raises(Unauthenticated):
        open_house.registry.create(NOBODY, NewRepository("others", "raw"))
    # The creator needs no rule.
    open_house.registry.delete(anna, "files")


def test_a_list_holds_exactly_what_could_be_shown(house: House) -> None:
    """For each caller: `list` and `show` agree, and searching finds in exactly these that are readable."""
    for name in ("closed", "public", "ruled", "below", "anyone", "everybody", "written"):
        house.repository(name, public=name == "public")
    house.user("anna")
    house.user("root", administrator=True)
    house.rule("ruled", "user:anna", "read")
    house.rule("below", "user:anna", "read", prefix="x")
    house.rule("anyone", "anonymous", "read")
    house.rule("everybody", "signed-in", "read")
    house.rule("written", "user:anna", "write")
    narrow = house.tokens.create(house.identify(house.token("anna")), _narrow())[1]
    callers = [ADMIN, NOBODY, *(house.identify(each) for each in (house.token("anna"), house.token("root"), narrow))]
    for caller in callers:
        assert names(house, caller) == [name for name in names(house, ADMIN) if _shows(house, caller, name)]
    assert names(house, NOBODY) == ["anyone", "public"]
    assert names(house, callers[2]) == ["anyone", "below", "everybody", "public", "ruled", "written"]
    assert names(house, callers[4]) == ["public", "ruled"]


def _narrow() -> Any:
    from app.access.tokens import NewToken

    return NewToken("narrow", ["read"], ["ruled"])


def _shows(house: House, caller: Caller, name: str) -> bool:
    try:
        house.registry.show(caller, name)
    except (NotFound, Unauthenticated, Forbidden):
        return False
    return True


def test_a_list_read_page_by_page_misses_and_repeats_nothing_that_was_there_all_along(house: House) -> None:
    for number in range(0, 20, 2):
        house.repository(f"r{number:02}")
    seen: list[str] = []
    after = ""
    for number in range(1, 20, 2):
        page = house.registry.list(ADMIN, 3, after)
        seen += [each.name for each in page.items]
        # Others come, before and behind where we are.
        house.repository(f"r{number:02}")
        if page.after is None:
            break
        after = str(page.after[0])
    assert seen == sorted(set(seen))
    assert {f"r{number:02}" for number in range(0, 20, 2)} <= set(seen)


def test_credentials_of_an_upstream_are_kept_encrypted_and_never_shown(house: House) -> None:
    described = {"username": "u", "password": "pass-word", "headers": {"X-Key": "key-value"}, "http_proxy": "http://a:secret@proxy:3128"}
    house.repository("there", kind="proxy", upstream_url="https://there/x/", upstream=described, settings={"caching": False})
    shown = house.registry.show(ADMIN, "there")
    assert (shown.upstream_url, shown.kind) == ("https://there/x", "proxy")
    assert shown.upstream == {"username": "u", "password": True, "headers": ["X-Key"], "http_proxy": "http://proxy:3128"}
    stored = str(house.rows("select * from arkvory_upstreams")) + str(house.rows("select * from arkvory_repositories"))
    assert not any(each in stored for each in ("pass-word", "key-value", "secret@"))
    assert house.value("select caching_allowed from arkvory_repositories") is False
    assert oct((house.folder / "blobs" / "secret.key").stat().st_mode)[-3:] == "600"


def test_a_change_of_an_upstream_moves_the_metadata_epoch_and_keeps_the_rest(house: House) -> None:
    house.repository("there", kind="proxy", upstream_url="https://there", upstream={"username": "u", "password": "p"})
    before = house.epochs("there")
    house.change("there", upstream={"connections": 4})
    assert house.registry.show(ADMIN, "there").upstream == {"username": "u", "password": True, "connections": 4}
    house.change("there", upstream_url="https://there/elsewhere")
    assert house.registry.show(ADMIN, "there").upstream == {"username": "u", "password": True, "connections": 4}
    assert house.epochs("there") == (before[0] + 2, *before[1:])


def test_credentials_do_not_follow_to_another_host(house: House) -> None:
    """Who may change the address could otherwise have them sent to a host of their own."""
    house.repository("there", kind="proxy", upstream_url="https://there", upstream={"username": "u", "password": "p", "connections": 4})
    house.change("there", upstream_url="https://other")
    assert house.registry.show(ADMIN, "there").upstream == {"connections": 4}
    house.change("there", upstream_url="https://third", upstream={"username": "v", "password": "q"})
    assert house.registry.show(ADMIN, "there").upstream == {"username": "v", "password": True, "connections": 4}
    house.change("there", upstream={"http_proxy": "http://elsewhere:3128"})
    assert house.registry.show(ADMIN, "there").upstream == {"http_proxy": "http://elsewhere:3128", "connections": 4}


INSIDE = ("http://127.0.0.1:8081/x", "http://localhost", "http://[::1]:9", "http://169.254.169.254/latest", "http://[::ffff:127.0.0.1]/")


def test_only_administrators_name_what_only_this_machine_can_reach(house: House, upstream: FakeUpstream) -> None:
    """Else whoever manages a repository reads what this machine alone may: the secrets that clouds give their machines, for one."""
    house.repository("there", kind="proxy", upstream_url="https://there", settings={"mutable_ttl": 0})
    house.user("anna"), house.rule("there", "user:anna", "manage", "read")
    anna = house.identify(house.token("anna"))
    for url in INSIDE:
        for values in ({"upstream_url": url}, {"upstream": {"http_proxy": url}}):
            with pytest.raises(Forbidden, match="only an administrator"):
                house.registry.update(anna, "there", RepositoryChange(values))
    assert house.registry.show(ADMIN, "there").upstream_url == "https://there"
    upstream.put("/secret", b"secret"), upstream.put("/a", b"a")
    port = upstream.url.rpartition(":")[2]
    # A name of this machine, which nobody can tell before it is asked for; and whoever lies there leads nowhere inside either.
    for name in (f"http://2130706433:{port}", f"http://0x7f.1:{port}"):
        house.registry.update(anna, "there", RepositoryChange({"upstream_url": name}))
        with pytest.raises(UpstreamFailed, match="an administrator may name such a one"):
            house.read("secret", "there")
    assert upstream.asked == []
    # What an administrator named stays where it is, until somebody else moves it.
    house.change("there", upstream_url=upstream.url)
    house.registry.update(anna, "there", RepositoryChange({"upstream": {"connections": 3}, "settings": {"miss_ttl": 0}}))
    assert house.read("a", "there") == b"a"
    for values in ({"upstream_url": f"{upstream.url}/secret"}, {"upstream": {"http_proxy": None}}):
        with pytest.raises(Forbidden):
            house.registry.update(anna, "there", RepositoryChange(values))
    assert house.read("a", "there") == b"a"


def test_who_may_create_repositories_names_nothing_inside_either(make_house: Callable[..., House]) -> None:
    house = make_house(ARKVORY_REPOSITORY_CREATION="signed-in")
    house.user("anna")
    anna = house.identify(house.token("anna"))
    for url in INSIDE:
        with pytest.raises(Forbidden, match="only an administrator"):
            house.registry.create(anna, NewRepository("there", "raw", kind="proxy", upstream_url=url))
    house.registry.create(anna, NewRepository("there", "raw", kind="proxy", upstream_url="https://there"))
    assert house.value("select may_lie_inside from arkvory_upstreams") is False


def test_secrets_under_another_key_are_unreadable_and_said_so(make_house: Callable[..., House]) -> None:
    first = make_house(ARKVORY_SECRET_KEY="one")
    first.repository("there", kind="proxy", upstream_url="https://there", upstream={"username": "u", "password": "p"})
    second = make_house(owns=False, ARKVORY_SECRET_KEY="another")
    with pytest.raises(Unavailable, match="ARKVORY_SECRET_KEY"):
        second.change("there", upstream={"connections": 4})
