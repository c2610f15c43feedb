"""Docker's token authentication, as a client: request by request, over real sockets (HO-X-9)."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import gevent
import pytest

from app.errors import UpstreamBusy, UpstreamFailed
from app.upstream.breaker import Line
from app.upstream.client import Client, Wanted
from app.upstream.logins import Challenge, Logins, challenges
from app.upstream.upstream import Upstream
from tests.support.registries import SERVICE, TokenService, token_service
from tests.support.upstreams import Asked, FakeUpstream

SCOPE, OTHER_SCOPE = "repository:team/app:pull", "repository:team/other:pull"
BASIC = "Basic " + base64.b64encode(b"ci:secret").decode()
CI = {"username": "ci", "password": "secret"}


@pytest.fixture
def tokens() -> Iterator[TokenService]:
    with token_service(users={"ci": "secret"}, public=("team/",)) as service:
        yield service


@pytest.fixture
def other() -> Iterator[FakeUpstream]:
    running = FakeUpstream().start()
    yield running
    running.stop()


class Guard:
    """Lets an upstream ask for tokens: each path with the challenge for its scope."""

    def __init__(self, upstream: FakeUpstream, tokens: TokenService) -> None:
        self.upstream = upstream
        self.tokens = tokens

    def put(self, path: str, body: bytes, scope: str = SCOPE) -> None:
        rule = self.upstream.put(path, body)
        rule.auth, rule.challenge = "never", self.tokens.challenge(scope)
        self.upstream.arrived = self._look

    def _look(self, asked: Asked) -> None:
        """Any bearer token is good for whatever it comes for; registries that look closer are asked elsewhere."""
        rule = self.upstream.rules.get(asked.target, [None])[0]
        sent = asked.headers.get("authorization", "")
        if rule is not None and rule.auth is not None:
            rule.auth = sent if sent.startswith("Bearer ") else "never"


@pytest.fixture
def guard(upstream: FakeUpstream, tokens: TokenService) -> Guard:
    return Guard(upstream, tokens)


def ask(client: Client, upstream: FakeUpstream, path: str = "file", scope: str = SCOPE, **fields: object) -> bytes:
    described = Upstream(upstream.url, connect_seconds=2, read_seconds=2, **fields)  # type: ignore[arg-type]
    with client.get(described, Wanted(path, scope=scope), Line("it", 8)) as answer:
        return b"".join(iter(answer.read, b""))


def logins(upstream: FakeUpstream) -> list[str]:
    """By which scheme each request logged in."""
    return [each.headers.get("authorization", "none").partition(" ")[0] for each in upstream.asked]


def test_a_token_is_got_where_the_upstream_says_and_used_for_its_scope(upstream: FakeUpstream, tokens: TokenService, guard: Guard) -> None:
    guard.put("/file", b"body")
    guard.put("/second", b"more")
    guard.put("/other", b"else", OTHER_SCOPE)
    client = Client()
    assert ask(client, upstream, **CI) == b"body"
    assert (logins(upstream), len(tokens.asked)) == (["none", "Bearer"], 1)
    assert tokens.asked[0].authorization == BASIC
    assert dict(tokens.asked[0].arguments) == {"service": SERVICE, "scope": SCOPE, "account": "ci"}
    # Known from now on: without a request that is refused first.
    assert ask(client, upstream, "second", **CI) == b"more"
    assert (logins(upstream)[2:], len(tokens.asked)) == (["Bearer"], 1)
    assert ask(client, upstream, "other", OTHER_SCOPE, **CI) == b"else"
    assert dict(tokens.asked[1].arguments)["scope"] == OTHER_SCOPE


def test_without_credentials_there_is_a_token_for_nobody(upstream: FakeUpstream, tokens: TokenService, guard: Guard) -> None:
    guard.put("/file", b"body")
    assert ask(Client(), upstream) == b"body"
    assert (tokens.asked[0].authorization, "account" in dict(tokens.asked[0].arguments)) == (None, False)


def test_other_credentials_have_other_tokens(upstream: FakeUpstream, tokens: TokenService, guard: Guard) -> None:
    guard.put("/file", b"body")
    client = Client()
    ask(client, upstream), ask(client, upstream, **CI)
    with pytest.raises(UpstreamFailed, match="token service answers 401"):
        ask(client, upstream, username="ci", password="wrong")
    assert [each.authorization is not None for each in tokens.asked] == [False, True, True]
    assert ask(client, upstream, **CI) == b"body"
    assert len(tokens.asked) == 3


def test_a_token_that_is_not_good_any_more_is_replaced(upstream: FakeUpstream, tokens: TokenService, guard: Guard) -> None:
    guard.put("/file", b"body")
    client = Client()
    ask(client, upstream, **CI)
    spoilt = upstream.asked[-1].headers["authorization"]

    def refuse_former(asked: Asked) -> None:
        sent = asked.headers.get("authorization", "")
        upstream.rules["/file"][0].auth = sent if sent.startswith("Bearer ") and sent != spoilt else "never"

    upstream.arrived = refuse_former
    assert ask(client, upstream, **CI) == b"body"
    assert len(tokens.asked) == 2


def test_a_token_is_kept_no_longer_than_it_is_good(upstream: FakeUpstream, tokens: TokenService, guard: Guard) -> None:
    guard.put("/file", b"body")
    tokens.seconds = 6
    client = Client()
    ask(client, upstream)
    gevent.sleep(1.5)
    ask(client, upstream)
    assert len(tokens.asked) == 2


def test_a_crowd_asks_for_one_token(upstream: FakeUpstream, tokens: TokenService, guard: Guard) -> None:
    guard.put("/file", b"body")
    client = Client()
    crowd = [gevent.spawn(ask, client, upstream, **CI) for _ in range(8)]
    gevent.joinall(crowd, timeout=20, raise_error=True)
    assert len(tokens.asked) == 1


def test_an_upstream_that_refuses_a_fresh_token_is_not_asked_for_ever(upstream: FakeUpstream, tokens: TokenService) -> None:
    rule = upstream.put("/file", b"body", auth="never")
    rule.challenge = tokens.challenge(SCOPE)
    client = Client()
    for _ in range(2):
        with pytest.raises(UpstreamFailed, match="401"):
            ask(client, upstream, **CI)
    assert len(upstream.asked) <= 5


def test_basic_is_sent_once_it_is_asked_for(upstream: FakeUpstream) -> None:
    upstream.put("/file", b"body", auth=BASIC)
    client = Client()
    assert [ask(client, upstream, **CI) for _ in range(2)] == [b"body"] * 2
    assert logins(upstream) == ["none", "Basic", "Basic"]
    for login in ({}, {"username": "ci", "password": "wrong"}):
        with pytest.raises(UpstreamFailed, match="401"):
            ask(client, upstream, **login)


def test_no_token_follows_to_another_host(upstream: FakeUpstream, tokens: TokenService, guard: Guard, other: FakeUpstream) -> None:
    """HO-X-9."""
    other.put("/signed?sig=1", b"elsewhere")
    upstream.put("/here", b"same origin")
    guard.put("/file", b"")
    guard.put("/near", b"")
    upstream.rules["/file"][0].status, upstream.rules["/file"][0].headers = 307, {"Location": f"{other.url}/signed?sig=1"}
    upstream.rules["/near"][0].status, upstream.rules["/near"][0].headers = 302, {"Location": "/here"}
    client = Client()
    assert ask(client, upstream, **CI) == b"elsewhere"
    assert "authorization" not in other.asked[0].headers
    assert ask(client, upstream, "near", **CI) == b"same origin"
    assert upstream.asked[-1].headers["authorization"].startswith("Bearer ")


def test_another_host_that_wants_a_login_gets_none(upstream: FakeUpstream, tokens: TokenService, other: FakeUpstream) -> None:
    upstream.put("/file", status=302, headers={"Location": f"{other.url}/x"})
    other.put("/x", b"body", auth="never", challenge=tokens.challenge(SCOPE))
    with pytest.raises(UpstreamFailed, match="401"):
        ask(Client(), upstream, **CI)
    assert (tokens.asked, "authorization" in other.asked[0].headers) == ([], False)


def test_a_token_service_that_redirects_elsewhere_does_not_take_the_password_there(upstream: FakeUpstream, other: FakeUpstream) -> None:
    with token_service(users={"ci": "secret"}) as tokens:
        query = "?service=registry.example&scope=repository%3Ateam%2Fapp%3Apull&account=ci"
        other.put(f"/token{query}", status=302, headers={"Location": tokens.realm + query})
        upstream.put("/file", b"body", auth="never", challenge=f'Bearer realm="{other.url}/token",service="{SERVICE}"')
        with pytest.raises(UpstreamFailed):
            ask(Client(), upstream, **CI)
        assert other.asked[0].headers["authorization"] == BASIC
        assert tokens.asked[0].authorization is None


def test_a_token_service_that_is_busy_or_broken_is_an_error_that_passes(
    upstream: FakeUpstream, tokens: TokenService, guard: Guard
) -> None:
    guard.put("/file", b"body")
    client = Client()
    tokens.refuse = [429, 500, 403]
    with pytest.raises(UpstreamBusy):
        ask(client, upstream)
    for _ in range(2):
        with pytest.raises(UpstreamFailed, match="token service"):
            ask(client, upstream)
    assert ask(client, upstream) == b"body"


@pytest.mark.parametrize(
    "realm", ["", "ftp://x/token", "/token", "http://", "http://u:p@127.0.0.1/x", "http://127.0.0.1:0/x", "http://a b/", "http://[x"]
)
def test_a_realm_that_is_no_address_is_an_error(upstream: FakeUpstream, realm: str) -> None:
    upstream.put("/file", b"body", auth="never", challenge=f'Bearer realm="{realm}",service="x"')
    with pytest.raises(UpstreamFailed):
        ask(Client(), upstream, **CI)


@pytest.mark.parametrize(
    "answer", [b"", b"[]", b"{}", b'{"token": 1}', b'{"token": ""}', b'{"token": "a\\nb"}', b'{"token": "a b"}', b"<html>", b"[" * 200_000]
)
def test_what_is_no_token_is_an_error(upstream: FakeUpstream, other: FakeUpstream, answer: bytes) -> None:
    other.put("/token?scope=repository%3Ateam%2Fapp%3Apull", answer)
    upstream.put("/file", b"body", auth="never", challenge=f'Bearer realm="{other.url}/token"')
    with pytest.raises(UpstreamFailed, match="no token"):
        ask(Client(), upstream)


def test_challenges_are_read_in_all_their_forms() -> None:
    """RFC 9110, 11.6.1."""
    one = Challenge("bearer", {"realm": "https://a/b?x=1,2", "service": "s", "scope": "repository:a/b:pull,push"})
    assert challenges(['Bearer realm="https://a/b?x=1,2",service="s",scope="repository:a/b:pull,push"']) == [one]
    both = ['Basic realm="r", Bearer realm="https://a/b?x=1,2" , service=s,scope="repository:a/b:pull,push"']
    assert challenges(both) == [Challenge("basic", {"realm": "r"}), one]
    assert challenges(["Negotiate", 'BASIC Realm="r"']) == [Challenge("negotiate", {}), Challenge("basic", {"realm": "r"})]
    assert challenges(["", ",,"]) == []


def test_credentials_for_an_encrypted_upstream_go_to_no_service_that_is_not() -> None:
    asked: list[object] = []

    def ask_service(address: str, login: str | None) -> bytes:
        asked.append((address, login))
        return b'{"access_token": "t"}'

    upstream = Upstream("https://registry.example", **CI)  # type: ignore[arg-type]
    open_service, closed = ([Challenge("bearer", {"realm": f"{scheme}://tokens.example/t?a=b"})] for scheme in ("http", "https"))
    with pytest.raises(UpstreamFailed, match="https"):
        Logins().get(upstream, SCOPE, open_service, ask_service)
    assert Logins().get(upstream, SCOPE, closed, ask_service) == "Bearer t"
    query = "a=b&scope=repository%3Ateam%2Fapp%3Apull&account=ci"
    assert asked == [(f"https://tokens.example/t?{query}", BASIC)]
