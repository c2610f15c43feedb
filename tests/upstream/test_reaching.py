"""DESIGN 6: the ways to an upstream: through a company's HTTP proxy, by its own authority, never from https to http, so many at once."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import gevent
import pytest
from gevent.event import Event

from app.errors import UpstreamFailed
from app.repository.reading import Ask
from tests.support import certificates
from tests.support.certificates import Pair
from tests.support.forwarding import ForwardProxy
from tests.support.house import ADMIN, House, eventually
from tests.support.upstreams import FakeUpstream, noise
from tests.upstream.test_client import fetch

BODY = noise(200_000)
LOGIN = "Basic " + base64.b64encode(b"u:secret-word").decode()
PROXY_LOGIN = "Basic " + base64.b64encode(b"me:p@ss/word").decode()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A certificate that no authority has signed."""
    return certificates.make(tmp_path_factory.mktemp("upstream"), "own")


@pytest.fixture
def secure(pair: Pair) -> Iterator[FakeUpstream]:
    running = FakeUpstream(pair).start()
    yield running
    running.stop()


@pytest.fixture
def company() -> Iterator[ForwardProxy]:
    running = ForwardProxy(PROXY_LOGIN)
    yield running
    running.stop()


def through(company: ForwardProxy) -> str:
    return f"http://me:p%40ss%2Fword@{company.address}"


# An HTTP proxy


def test_a_plain_upstream_is_reached_by_whole_addresses_and_does_not_see_the_proxys_login(
    upstream: FakeUpstream, company: ForwardProxy
) -> None:
    upstream.put("/a%2Bb", BODY, auth=LOGIN)
    assert fetch(upstream, "a%2Bb", http_proxy=through(company), username="u", password="secret-word") == BODY
    assert [(each.method, each.target) for each in company.asked] == [("GET", f"{upstream.url}/a%2Bb")]
    assert upstream.asked[0].headers["authorization"] == LOGIN
    assert "proxy-authorization" not in upstream.asked[0].headers


def test_a_secure_upstream_is_reached_by_a_tunnel_that_shows_the_proxy_nothing(
    secure: FakeUpstream, company: ForwardProxy, pair: Pair
) -> None:
    secure.put("/file", BODY, auth=LOGIN)
    assert fetch(secure, http_proxy=through(company), ca=pair.cert.read_text(), username="u", password="secret-word") == BODY
    assert [(each.method, each.target) for each in company.asked] == [("CONNECT", secure.url.removeprefix("https://"))]
    assert "proxy-authorization" not in secure.asked[0].headers
    assert "authorization" not in company.asked[0].headers
    assert b"/file" not in company.seen and LOGIN.encode() not in company.seen


def test_a_redirect_goes_through_the_proxy_too(upstream: FakeUpstream, company: ForwardProxy) -> None:
    upstream.put("/file", status=302, headers={"Location": "/second"})
    upstream.put("/second", BODY)
    assert fetch(upstream, http_proxy=through(company)) == BODY
    assert [each.target for each in company.asked] == [f"{upstream.url}/file", f"{upstream.url}/second"]


def test_a_proxy_inside_is_an_administrators_to_name(upstream: FakeUpstream, secure: FakeUpstream, company: ForwardProxy) -> None:
    """Whoever else may describe an upstream could have it send what they like to what only this machine can reach."""
    for there in (upstream, secure):
        there.put("/file", BODY)
        with pytest.raises(UpstreamFailed, match="its HTTP proxy, is at an address of this machine"):
            fetch(there, http_proxy=through(company), may_lie_inside=False)
    assert not company.seen and not company.asked and not upstream.asked


@pytest.mark.parametrize("login", ["", "me:wrong@"])
def test_a_proxy_that_refuses_is_no_absence(
    secure: FakeUpstream, upstream: FakeUpstream, company: ForwardProxy, pair: Pair, login: str
) -> None:
    upstream.put("/file", BODY)
    for where in (upstream, secure):
        with pytest.raises(UpstreamFailed):
            fetch(where, http_proxy=f"http://{login}{company.address}", ca=pair.cert.read_text())
    assert (upstream.asked, secure.asked) == ([], [])


def test_a_proxy_that_is_away_is_a_failure_at_once(upstream: FakeUpstream, company: ForwardProxy) -> None:
    company.stop()
    with gevent.Timeout(15), pytest.raises(UpstreamFailed):
        fetch(upstream, http_proxy=through(company))
    assert upstream.asked == []


def test_the_proxy_of_the_environment_is_nobodys(upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    upstream.put("/file", BODY)
    assert fetch(upstream) == BODY


# Certificates


def test_an_upstream_of_its_own_authority_is_believed_where_that_was_said(secure: FakeUpstream, pair: Pair, tmp_path: Path) -> None:
    secure.put("/file", BODY)
    other = certificates.make(tmp_path, "other")
    for ca in (None, other.cert.read_text()):
        with pytest.raises(UpstreamFailed):
            fetch(secure, ca=ca)
    assert secure.asked == []
    assert fetch(secure, ca=pair.cert.read_text()) == BODY
    assert fetch(secure, ca=other.cert.read_text() + pair.cert.read_text()) == BODY


def test_the_name_must_be_the_certificates_too(secure: FakeUpstream, pair: Pair) -> None:
    """127.0.0.2 is this machine as well, and stands in no certificate."""
    secure.put("/file", BODY)
    elsewhere = secure.url.replace("127.0.0.1", "127.0.0.2")
    with pytest.raises(UpstreamFailed):
        fetch(elsewhere, ca=pair.cert.read_text())
    assert secure.asked == []


def test_a_certificate_that_has_expired_is_refused_whoever_vouches_for_it(tmp_path: Path) -> None:
    begins, ends = (f"{datetime.now(UTC) - timedelta(days=days):%y%m%d%H%M%SZ}" for days in (30, 1))
    expired = certificates.make_dated(tmp_path, "expired", begins, ends)
    running = FakeUpstream(expired).start()
    try:
        running.put("/file", BODY)
        with pytest.raises(UpstreamFailed):
            fetch(running, ca=expired.cert.read_text())
        assert running.asked == []
    finally:
        running.stop()


# From https to http


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_from_https_to_http_is_refused(secure: FakeUpstream, upstream: FakeUpstream, pair: Pair, status: int) -> None:
    secure.put("/file", status=status, headers={"Location": f"{upstream.url}/file"})
    upstream.put("/file", BODY)
    with pytest.raises(UpstreamFailed) as refused:
        fetch(secure, ca=pair.cert.read_text(), username="u", password="secret-word")
    assert "https to http" in refused.value.message
    assert upstream.asked == []


def test_a_redirect_to_https_is_followed_without_the_credentials(upstream: FakeUpstream, secure: FakeUpstream, pair: Pair) -> None:
    """HO-X-9: another scheme is another origin."""
    upstream.put("/file", status=301, headers={"Location": f"{secure.url}/file"})
    secure.put("/file", BODY)
    assert fetch(upstream, ca=pair.cert.read_text(), username="u", password="secret-word", headers={"X-Key": "k"}) == BODY
    assert {"authorization", "x-key"}.isdisjoint(secure.asked[0].headers)


# As a repository is set


def test_a_proxy_is_made_with_all_of_it(house: House, secure: FakeUpstream, company: ForwardProxy, pair: Pair) -> None:
    """The description is kept encrypted, read for the fetch, and shown without secrets."""
    secure.put("/file", BODY, auth=LOGIN)
    described = {"username": "u", "password": "secret-word", "ca": pair.cert.read_text(), "http_proxy": through(company)}
    house.repository(kind="proxy", upstream_url=secure.url, upstream=described)
    assert house.parts.reader.find(Ask("raw", "files", "file", ADMIN)).gate.size == len(BODY)
    assert company.asked[0].method == "CONNECT"
    shown = house.registry.show(ADMIN, "files").upstream
    assert shown is not None
    assert (shown["password"], shown["http_proxy"]) == (True, f"http://{company.address}")
    kept = house.value("select shown::text || coalesce(secret, '') from arkvory_upstreams")
    assert "secret-word" not in kept and "p%40ss" not in kept


@pytest.mark.parametrize("connections", [1, 3])
def test_the_upstream_sees_no_more_requests_at_once_than_the_repository_allows(
    house: House, upstream: FakeUpstream, connections: int
) -> None:
    house.repository(kind="proxy", upstream_url=upstream.url, upstream={"connections": 16})
    upstream.put("/before", b"1")
    house.parts.reader.find(Ask("raw", "files", "before", ADMIN))
    house.change("files", upstream={"connections": connections})
    upstream.asked.clear()
    names, gate = [f"file{number}" for number in range(12)], Event()
    for name in names:
        upstream.put(f"/{name}", noise(5000), piece=1000, gate=gate)
    readers = [gevent.spawn(house.parts.reader.find, Ask("raw", "files", name, ADMIN)) for name in names]
    eventually(lambda: len(upstream.asked) == connections)
    gevent.sleep(0.5)
    assert len(upstream.asked) == connections
    gate.set()
    gevent.joinall(readers, raise_error=True)
    assert len(upstream.asked) == len(names)
