"""By which address the client came, and who it is, behind proxies that are trusted and others that are not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.errors import Invalid
from app.http.addresses import base_address, client_address, networks, remote_address
from config.settings import SettingError, Settings
from tests.http.edge import Edge

PROXY = "10.0.0.1"


def settings(**values: str) -> Settings:
    return Settings.from_environment({"ARKVORY_TRUSTED_PROXIES": "10.0.0.0/8, fd00::/8", **values})


def environ(peer: str = PROXY, **fields: str) -> dict[str, Any]:
    return {"REMOTE_ADDR": peer, "HTTP_HOST": "inner:8080", "wsgi.url_scheme": "http", "SCRIPT_NAME": ""} | fields


FORWARDED = {"HTTP_X_FORWARDED_PROTO": "https", "HTTP_X_FORWARDED_HOST": "repo.example", "HTTP_X_FORWARDED_PREFIX": "/artifacts/"}


@pytest.mark.parametrize(("fields", "base"), [
    ({}, "http://inner:8080"),
    (FORWARDED, "https://repo.example/artifacts"),
    ({**FORWARDED, "HTTP_X_FORWARDED_PORT": "8443"}, "https://repo.example:8443/artifacts"),
    ({**FORWARDED, "HTTP_X_FORWARDED_PORT": "443"}, "https://repo.example/artifacts"),
    ({**FORWARDED, "HTTP_X_FORWARDED_HOST": "repo.example:81", "HTTP_X_FORWARDED_PORT": "443"}, "https://repo.example:81/artifacts"),
    ({"HTTP_X_FORWARDED_PROTO": "https"}, "https://inner:8080"),
    ({"HTTP_X_FORWARDED_HOST": "[2001:db8::1]", "HTTP_X_FORWARDED_PORT": "81"}, "http://[2001:db8::1]:81"),
    ({"HTTP_HOST": "[::1]:8080"}, "http://[::1]:8080"),
    ({"HTTP_HOST": "a:80"}, "http://a"),
    ({"SCRIPT_NAME": "/mounted"}, "http://inner:8080/mounted"),
])
def test_links_follow_the_address_by_which_the_client_came(fields: dict[str, str], base: str) -> None:
    assert base_address(environ(**fields), settings()) == base


def test_only_a_trusted_peer_is_believed() -> None:
    assert base_address(environ("192.0.2.1", **FORWARDED), settings()) == "http://inner:8080"
    assert base_address(environ("192.0.2.1", **FORWARDED), settings(ARKVORY_TRUSTED_PROXIES="")) == "http://inner:8080"
    assert base_address(environ("192.0.2.1", **FORWARDED), settings(ARKVORY_TRUSTED_PROXIES="0.0.0.0/0")) == "https://repo.example/artifacts"
    assert base_address(environ("::ffff:10.0.0.1", **FORWARDED), settings()) == "https://repo.example/artifacts"


def test_of_several_values_the_outermost_trusted_proxys_counts() -> None:
    fields = {"HTTP_X_FORWARDED_PROTO": "http, https, http", "HTTP_X_FORWARDED_FOR": "192.0.2.1, 10.0.0.2"}
    assert base_address(environ(**fields), settings()).startswith("https:")
    alone = {"HTTP_X_FORWARDED_HOST": "invented, real", "HTTP_X_FORWARDED_FOR": "192.0.2.1"}
    assert base_address(environ(**alone), settings()) == "http://real"


def test_a_public_url_overrules_everything() -> None:
    assert base_address(environ(HTTP_HOST="x"), settings(ARKVORY_PUBLIC_URL="https://public.example/base/")) == "https://public.example/base"


@pytest.mark.parametrize("fields", [
    {"HTTP_HOST": "a b"}, {"HTTP_HOST": "a/b"}, {"HTTP_HOST": "u@a"}, {"HTTP_HOST": "a:99999"}, {"HTTP_HOST": "[::1"},
    {"HTTP_X_FORWARDED_HOST": "a\"b"}, {"HTTP_X_FORWARDED_PROTO": "javascript"}, {"HTTP_HOST": "a", "HTTP_X_FORWARDED_PORT": "x"},
    {"HTTP_X_FORWARDED_PREFIX": "//evil.example"}, {"HTTP_X_FORWARDED_PREFIX": "/a/../b"}, {"HTTP_X_FORWARDED_PREFIX": "/a\"b"},
])
def test_a_malformed_address_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(Invalid):
        base_address(environ(**fields), settings())


def test_only_allowed_hosts_are_served() -> None:
    allowed = settings(ARKVORY_ALLOWED_HOSTS="Repo.example, [::1]")
    assert base_address(environ(HTTP_HOST="repo.EXAMPLE:81"), allowed) == "http://repo.EXAMPLE:81"
    assert base_address(environ(HTTP_HOST="[::1]:81"), allowed) == "http://[::1]:81"
    with pytest.raises(Invalid):
        base_address(environ(HTTP_HOST="evil.example"), allowed)


@pytest.mark.parametrize(("peer", "forwarded", "client"), [
    ("192.0.2.9", "1.1.1.1", "192.0.2.9"),
    (PROXY, None, PROXY),
    (PROXY, "1.1.1.1", "1.1.1.1"),
    (PROXY, "6.6.6.6, 1.1.1.1, 10.1.1.1", "1.1.1.1"),
    (PROXY, "10.2.2.2, 10.1.1.1", "10.2.2.2"),
    (PROXY, "6.6.6.6, nonsense, 10.1.1.1", "10.1.1.1"),
    (PROXY, "2001:db8::7", "2001:db8::7"),
    (PROXY, "[2001:db8::7]:123", "2001:db8::7"),
    (PROXY, "1.1.1.1:4711", "1.1.1.1"),
    ("fd00::1", "1.1.1.1", "1.1.1.1"),
])
def test_the_client_is_the_first_address_from_the_right_that_is_not_ours(peer: str, forwarded: str | None, client: str) -> None:
    fields = {} if forwarded is None else {"HTTP_X_FORWARDED_FOR": forwarded}
    assert client_address(environ(peer, **fields), networks(settings().trusted_proxies)) == client


def test_an_unusable_list_of_proxies_is_named() -> None:
    for wrong in ("*", "10.0.0.0/33", "proxy.example"):
        with pytest.raises(SettingError, match="ARKVORY_TRUSTED_PROXIES"):
            networks((wrong,))


def test_the_peer_counts_where_our_server_is_not_in_front() -> None:
    assert remote_address({"REMOTE_ADDR": "192.0.2.1", "HTTP_X_FORWARDED_FOR": "1.1.1.1"}) == "192.0.2.1"


def test_the_server_tells_the_application_and_the_log_who_asks(edge: Edge, make_edge: Any) -> None:
    forged = json.loads(edge.ask("GET", "/who", "X-Forwarded-For: 1.1.1.1").body)
    assert forged["address"] == "127.0.0.1"
    trusting = make_edge(ARKVORY_TRUSTED_PROXIES="127.0.0.1")
    answer = trusting.ask("GET", "/who", "X-Forwarded-For: 1.1.1.1")
    assert json.loads(answer.body)["address"] == trusting.log(answer.headers["x-request-id"])["remote"] == "1.1.1.1"
