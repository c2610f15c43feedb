"""Deploy tokens: of one repository and of no user, worthless from the request after their revocation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gevent
import pytest

from app.access.deploying import DeployToken, DeployTokens, NewDeployToken
from app.access.identity import Caller
from app.access.tokens import NewToken
from app.errors import Forbidden, Invalid, NotFound, Unauthenticated
from app.repository.listing import Filter, Listing
from tests.conftest import MakePause
from tests.support.house import ADMIN, NOBODY, House
from tests.support.server import Server

Make = Callable[..., tuple[DeployToken, str]]


@pytest.fixture
def deploying(house: House) -> DeployTokens:
    return DeployTokens(house.parts.database, house.parts.transactions, house.parts.access)


@pytest.fixture
def make(deploying: DeployTokens) -> Make:
    def made(
        *permissions: str, caller: Caller = ADMIN, repository: str = "files", prefix: str | None = None, days: int | None = None
    ) -> tuple[DeployToken, str]:
        return deploying.create(caller, repository, NewDeployToken("ci", permissions or ("read",), prefix, days))

    return made


@pytest.fixture
def files(house: House) -> int:
    made = house.repository()
    for path in ("a", "team/a", "teams/a"):
        house.publish(path, path.encode())
    return made


def statements_of(house: House, action: Callable[[], Any]) -> int:
    before = house.parts.database.statements()
    action()
    return house.parts.database.statements() - before


# What it may


def test_it_does_what_it_says_in_its_repository_and_is_nobody_s_user(house: House, files: int, make: Make) -> None:
    _, reader = make("read")
    _, writer = make("write")
    assert (house.outcome("a", secret=reader), house.outcome("a", secret=writer)) == (b"a", "forbidden")
    house.publish("b", b"1", caller=house.identify(writer))
    assert house.value("select created_by from arkvory_artifacts where path = 'b'") is None
    for write in (
        partial(house.publish, "c", b"1", caller=house.identify(reader)),
        partial(house.delete, "b", caller=house.identify(writer)),
        partial(house.tokens.create, house.identify(writer), NewToken("t", ["read"])),
        partial(house.users.list, house.identify(writer), 10),
        partial(house.registry.delete, house.identify(writer), "files"),
    ):
        with pytest.raises(Forbidden):
            write()
    house.delete("b", caller=house.identify(make("delete")[1]))
    assert house.outcome("b", secret=reader) == "not_found"


def test_below_its_prefix_and_nowhere_else(house: House, files: int, make: Make) -> None:
    _, secret = make("read", "write", prefix="team")
    assert [house.outcome(path, secret=secret) for path in ("team/a", "teams/a", "a")] == [b"team/a", "forbidden", "forbidden"]
    caller = house.identify(secret)
    house.publish("team/b", b"1", caller=caller)
    with pytest.raises(Forbidden, match="has no write permission here but below 'team'"):
        house.publish("teams/b", b"1", caller=caller)


def test_other_repositories_do_not_exist_for_it_unless_they_are_public(house: House, files: int, make: Make) -> None:
    _, secret = make("read", "write", "delete")
    for name, subject in (("closed", None), ("anyone", "anonymous"), ("members", "signed-in")):
        house.repository(name)
        house.publish("a", b"1", name)
        if subject:
            house.rule(name, subject, "read", "write")
        assert house.outcome("a", name, secret=secret) == "not_found"
        with pytest.raises(NotFound):
            house.publish("b", b"1", name, caller=house.identify(secret))
    house.repository("open", public=True)
    house.publish("a", b"1", "open")
    assert house.outcome("a", "open", secret=secret) == b"1"
    with pytest.raises(Forbidden):
        house.publish("b", b"1", "open", caller=house.identify(secret))


def test_lists_and_searches_show_what_it_may_read(house: House, files: int, make: Make) -> None:
    house.repository("closed")
    house.publish("team/a", b"1", "closed")
    house.repository("ruled")
    house.rule("ruled", "anonymous", "read")
    listing = Listing(house.parts.database, house.parts.access)
    caller = house.identify(make("read", prefix="team")[1])
    assert [each.name for each in house.registry.list(caller, 10).items] == ["files"]
    assert house.registry.show(caller, "files").name == "files"
    assert [each.path for each in listing.artifacts(caller, "files", Filter(), 10).items] == ["team/a"]
    assert [(each.repository, each.path) for each in listing.search(caller, Filter(words="a"), 10).items] == [("files", "team/a")]
    assert listing.search(house.identify(make("write")[1]), Filter(words="a"), 10).items == []


# What binds when


def test_c1_a_warm_read_sends_no_statement_and_the_next_one_after_a_revocation_is_refused(
    house: House, files: int, make: Make, deploying: DeployTokens
) -> None:
    for _ in range(3):
        token, secret = make("read")
        assert house.outcome("a", secret=secret) == b"a"
        assert statements_of(house, lambda secret=secret: house.outcome("a", secret=secret)) == 0
        deploying.revoke(ADMIN, "files", token.id)
        assert house.outcome("a", secret=secret) == "unauthenticated"
        with pytest.raises(NotFound):
            deploying.revoke(ADMIN, "files", token.id)


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("where", ["identity", "snapshot", "judged"])
def test_c8_a_request_under_way_opens_nothing_published_after_the_revocation(
    house: House, files: int, make: Make, deploying: DeployTokens, pause: MakePause, where: str, warm: bool
) -> None:
    token, secret = make("read")
    owner, name = {
        "identity": (house.parts.identities, "identify"),
        "snapshot": (house.parts.snapshots, "_from_repository"),
        "judged": (house.parts.access, "require"),
    }[where]
    stopped = pause(owner, name)
    reader = gevent.spawn(house.outcome, "a", secret=secret)
    stopped.reached()
    deploying.revoke(ADMIN, "files", token.id)
    house.publish("a", b"secret")
    if warm:
        assert house.read("a", caller=ADMIN) == b"secret"
    stopped.go()
    assert reader.get() == "unauthenticated"


def test_c3_a_token_read_before_its_revocation_and_kept_after_it_is_not_used(
    house: House, files: int, make: Make, deploying: DeployTokens, pause: MakePause
) -> None:
    token, secret = make("read")
    stopped = pause(house.parts.cache, "observe", before=True)
    reader = gevent.spawn(house.outcome, "a", secret=secret)
    stopped.reached()
    deploying.revoke(ADMIN, "files", token.id)
    stopped.go()
    assert reader.get() == "unauthenticated"
    assert house.outcome("a", secret=secret) == "unauthenticated"


def test_c10_a_token_revoked_while_the_body_came_is_noticed_at_the_commit(
    house: House, files: int, make: Make, deploying: DeployTokens, pause: MakePause
) -> None:
    token, secret = make("write")
    stopped = pause(house.parts.publisher, "commit", before=True)
    writer = gevent.spawn(house.publish, "b", b"mine", caller=house.identify(secret))
    stopped.reached()
    deploying.revoke(ADMIN, "files", token.id)
    stopped.go()
    with pytest.raises(Unauthenticated):
        writer.get()
    assert house.outcome("b") == "unauthenticated"
    house.assert_counted()


def test_it_ends_with_its_repository_and_follows_its_name(house: House, files: int, make: Make) -> None:
    _, secret = make("read")
    assert house.outcome("a", secret=secret) == b"a"
    house.change("files", name="others")
    assert house.outcome("a", "others", secret=secret) == b"a"
    house.registry.delete(ADMIN, "others")
    assert house.outcome("a", "others", secret=secret) == "unauthenticated"
    house.repository("others")
    house.publish("a", b"secret", "others")
    assert house.outcome("a", "others", secret=secret) == "unauthenticated"
    house.clean()
    house.clean()
    assert house.rows("select 1 from arkvory_deploy_tokens") == []


def test_another_change_of_the_repository_does_not_end_it(house: House, files: int, make: Make) -> None:
    _, secret = make("read")
    assert house.outcome("a", secret=secret) == b"a"
    house.rule("files", "signed-in", "read")
    assert house.outcome("a", secret=secret) == b"a"
    caller = house.identify(secret)
    house.rule("files", "anonymous", "write")
    assert house.read("a", caller=caller) == b"a", "older than the decision, and still good"


def test_its_time_is_over_when_it_says(house: House, files: int, make: Make) -> None:
    _, secret = make("read", days=1)
    caller = house.identify(secret)
    house.rows("update arkvory_deploy_tokens set expires_at = now() - interval '1 second'")
    house.parts.cache.identities.clear()
    with pytest.raises(Unauthenticated, match="expired"):
        house.identify(secret)
    with pytest.raises(Unauthenticated, match="expired"):
        house.publish("b", b"1", caller=caller)


# Who makes it, and of what it is made


def test_its_secret_is_kept_only_as_a_digest(house: House, files: int, make: Make, deploying: DeployTokens) -> None:
    token, secret = make("write", "read")
    assert token.permissions == ["read", "write"]
    assert secret not in repr(deploying.list(ADMIN, "files", 10).items)
    assert secret not in repr(house.rows("select * from arkvory_deploy_tokens"))
    assert [each.id for each in deploying.list(ADMIN, "files", 10).items] == [deploying.show(ADMIN, "files", token.id).id]


def test_making_and_revoking_needs_manage_for_the_whole_repository(
    house: House, files: int, make: Make, deploying: DeployTokens
) -> None:
    token, secret = make("read")
    house.user("ann")
    house.rule("files", "user:ann", "read", "write", "delete")
    house.rule("files", "user:ann", "manage", prefix="team")
    ann = house.identify(house.token("ann"))
    for caller, refused in ((ann, Forbidden), (house.identify(secret), Forbidden), (NOBODY, Unauthenticated)):
        for attempt in (
            partial(make, caller=caller),
            partial(deploying.list, caller, "files", 10),
            partial(deploying.show, caller, "files", token.id),
            partial(deploying.revoke, caller, "files", token.id),
        ):
            with pytest.raises(refused):
                attempt()
    house.rule("files", "user:ann", "manage")
    assert make(caller=ann)[0].created_by == "ann"


def test_a_token_of_another_repository_is_not_there(house: House, files: int, make: Make, deploying: DeployTokens) -> None:
    house.repository("other")
    token, secret = make("read")
    for attempt in (deploying.show, deploying.revoke):
        with pytest.raises(NotFound):
            attempt(ADMIN, "other", token.id)
    assert house.outcome("a", secret=secret) == b"a"


def test_made_with_a_token_it_can_do_no_more_and_lasts_no_longer(house: House, files: int, make: Make) -> None:
    house.user("root", administrator=True)
    _, secret = house.tokens.create(ADMIN, NewToken("t", ["manage", "read"], expires_in_days=2, user="root"))
    maker = house.identify(secret)
    with pytest.raises(Forbidden, match="cannot allow more"):
        make("write", caller=maker)
    made, _ = make("read", caller=maker, days=30)
    assert made.expires_at == house.value("select expires_at from arkvory_tokens")


@pytest.mark.parametrize("end", ["revoked", "its maker revoked", "its owner deleted"])
def test_made_with_a_token_it_ends_with_it_on_the_next_request(house: House, files: int, make: Make, end: str) -> None:
    """C1: warm too. What a user made with a password stays."""
    house.user("anna")
    house.rule("files", "user:anna", "read", "manage")
    first = house.identify(house.token("anna", "read", "manage"))
    _, second = house.tokens.create(first, NewToken("t", ["read", "manage"]))
    maker = house.identify(second)
    _, secret = make("read", caller=maker)
    _, other = make("read")
    for each in (secret, secret, other):
        assert house.outcome("a", secret=each) == b"a"
    if end == "its owner deleted":
        house.users.delete(ADMIN, "anna")
    else:
        ended = maker if end == "revoked" else first
        assert ended.identity is not None and ended.identity.token is not None
        house.tokens.revoke(ADMIN, ended.identity.token.id)
    assert (house.outcome("a", secret=secret), house.outcome("a", secret=other)) == ("unauthenticated", b"a")
    assert house.value("select count(*) from arkvory_deploy_tokens") == 1


@pytest.mark.parametrize("first", ["made", "revoked"])
def test_made_while_its_maker_is_revoked_it_does_not_outlive_it(
    house: House, files: int, make: Make, pause: MakePause, deploying: DeployTokens, first: str
) -> None:
    """Whichever takes the lock first: the revocation sees the new token's repository, or the maker is gone when it is made."""
    house.user("anna")
    house.rule("files", "user:anna", "read", "manage")
    maker = house.identify(house.token("anna", "read", "manage"))
    assert maker.identity is not None and maker.identity.token is not None
    revoke = partial(house.tokens.revoke, ADMIN, maker.identity.token.id)
    if first == "made":
        stopped = pause(deploying, "_hold_maker")
        making = gevent.spawn(make, "read", caller=maker)
        stopped.reached()
        revoking = gevent.spawn(revoke)
        gevent.sleep(0.3)
        stopped.go()
        assert making.get(timeout=30)
        revoking.get(timeout=30)
    else:
        stopped = pause(deploying, "_hold_maker", before=True)
        making = gevent.spawn(make, "read", caller=maker)
        stopped.reached()
        revoke()
        stopped.go()
        with pytest.raises(Unauthenticated):
            making.get(timeout=30)
    assert house.value("select count(*) from arkvory_deploy_tokens") == 0


@pytest.mark.parametrize(("permissions", "field"), [(("manage",), "permissions"), ((), "permissions"), (("read", "fly"), "permissions")])
def test_it_never_manages(house: House, files: int, deploying: DeployTokens, permissions: Sequence[str], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        deploying.create(ADMIN, "files", NewDeployToken("ci", permissions))
    assert refused.value.field == field


def test_places_are_shared_out_by_token(house: House, files: int, make: Make) -> None:
    first, second = (house.identify(make("write")[1]) for _ in range(2))
    assert len({first.upload_key, second.upload_key, ADMIN.upload_key, NOBODY.upload_key}) == 4


# Over HTTP


def test_the_whole_of_it_over_http(server: Server) -> None:
    server.repository("deployed")
    base = "/api/v1/repositories/deployed/deploy-tokens"
    asked = {"name": "ci", "permissions": ["write", "read"], "path_prefix": "a/", "expires_in_days": 3}
    answer = server.post(base, json=asked)
    assert answer.status_code == 201
    made = answer.json()
    secret = made.pop("token")
    assert made == server.get(answer.headers["Location"].removeprefix(server.url)).json() == server.get(base).json()["items"][0]
    assert (made["repository"], made["created_by"], made["permissions"]) == ("deployed", "admin", ["read", "write"])
    bearer = {"auth": None, "headers": {"Authorization": f"Bearer {secret}"}}
    assert server.put("/raw/deployed/a/x", b"1", auth=("anything", secret)).status_code == 201
    assert server.get("/raw/deployed/a/x", **bearer).content == b"1"
    assert server.put("/raw/deployed/b", b"1", **bearer).status_code == 403
    who = server.get("/api/v1/whoami", **bearer).json()
    assert (who["user"], who["deploy_token"]) == (None, made)
    for path in ("users", "tokens", "tokens/1", "users/admin", "groups"):
        assert server.get(f"/api/v1/{path}", **bearer).status_code == 403, path
    assert server.post("/api/v1/tokens", json={"name": "t", "permissions": ["read"]}, **bearer).status_code == 403
    assert server.delete(f"{base}/{made['id']}").status_code == 204
    assert server.get("/raw/deployed/a/x", **bearer).status_code == 401
    assert server.get("/api/v1/whoami", **bearer).status_code == 401


@pytest.mark.parametrize(
    "change",
    [
        {"permissions": ["manage"]},
        {"permissions": []},
        {"name": ""},
        {"name": "x" * 201},
        {"path_prefix": "../x"},
        {"expires_in_days": 0},
        {"user": "x"},
    ],
)
def test_bad_input_names_its_field(server: Server, change: dict[str, Any]) -> None:
    server.post("/api/v1/repositories", json={"name": "bad", "format": "raw", "kind": "hosted"})
    answer = server.post("/api/v1/repositories/bad/deploy-tokens", json={"name": "ci", "permissions": ["read"]} | change)
    assert (answer.status_code, answer.json()["field"].partition(".")[0]) == (422, next(iter(change)))
