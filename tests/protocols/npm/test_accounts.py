"""Who is there, tokens, logins by password and by browser, search and audits."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import pytest

from tests.protocols.npm.conftest import Room

PASSWORD = "correct-horse"


def basic(name: str, password: str = PASSWORD) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


@pytest.fixture
def anna(room: Room) -> str:
    """A user who may publish; the header of her password."""
    room.user("anna")
    room.rule("signed-in", "read", "write", "delete")
    return basic("anna")


def log_in(room: Room, name: str = "anna", password: str = PASSWORD) -> Any:
    return room.put(f"-/user/org.couchdb.user:{name}", {"name": name, "password": password, "type": "user"}, as_=None)


def test_a_login_by_password_gives_a_token_for_this_repository_until_it_is_logged_out(room: Room, anna: str) -> None:
    assert room.get("-/whoami", as_=None).status_code == 401
    answer = log_in(room)
    assert (answer.status_code, answer.json["ok"]) == (201, True)
    bearer = f"Bearer {answer.json['token']}"
    assert room.get("-/whoami", as_=bearer).json == {"username": "anna"}
    assert room.put("p", {}, as_=bearer).status_code == 400
    assert room.value("select array_length(repositories, 1) from arkvory_tokens") == 1
    assert room.request("DELETE", f"-/user/token/{answer.json['token']}", as_=bearer).status_code == 200
    assert room.get("-/whoami", as_=bearer).status_code == 401


def test_a_wrong_password_is_told_without_a_challenge_and_makes_nothing(room: Room, anna: str) -> None:
    for name, password in (("anna", "wrong"), ("nobody", PASSWORD), ("anna", "arkv_xyz"), ("anna", "")):
        answer = log_in(room, name, password)
        assert (answer.status_code, "WWW-Authenticate" in answer.headers) == (401, False)
        assert answer.json["error"]
    assert room.put("-/user/org.couchdb.user:anna", {"name": "otto", "password": PASSWORD}, as_=None).status_code == 400
    assert room.put("-/user/anna", {"password": PASSWORD}, as_=None).status_code == 404
    assert room.value("select count(*) from arkvory_tokens") == 0


def test_tokens_are_made_with_the_password_listed_without_secrets_and_revoked_by_their_equals(room: Room, anna: str) -> None:
    login = f"Bearer {log_in(room).json['token']}"
    refused = room.request("POST", "-/npm/v1/tokens", as_=login, data=json.dumps({"password": "wrong"}))
    assert refused.status_code == 401
    for limit in ("cidr_whitelist", "packages", "scopes", "orgs"):
        bound = room.request("POST", "-/npm/v1/tokens", as_=login, data=json.dumps({"password": PASSWORD, limit: ["x"]}))
        assert bound.status_code == 400, "a token that does more than was asked for"
    wanted = {"password": PASSWORD, "readonly": True, "name": "ci", "expires": 7}
    made = room.request("POST", "-/npm/v1/tokens", as_=login, data=json.dumps(wanted))
    assert made.status_code == 201
    reader = f"Bearer {made.json['token']}"
    assert room.put("p", {}, as_=reader).status_code == 403
    listed = room.get("-/npm/v1/tokens", as_=login).json
    assert (len(listed["objects"]), listed["urls"]) == (2, {})
    assert made.json["token"] not in json.dumps(listed)
    told = next(each for each in listed["objects"] if each["key"] == made.json["key"])
    assert (told["readonly"], told["name"], told["cidr_whitelist"]) == (True, "ci", None)
    other = next(each["key"] for each in listed["objects"] if each["key"] != made.json["key"])
    assert room.request("DELETE", f"-/npm/v1/tokens/token/{other}", as_=reader).status_code == 403, "it can do more"
    assert room.request("DELETE", f"-/npm/v1/tokens/token/{made.json['key']}", as_=login).status_code == 204
    assert room.get("-/whoami", as_=reader).status_code == 401
    for key in ("0" * 16, "x", "f" * 16, "arkv_nothing"):
        assert room.request("DELETE", f"-/npm/v1/tokens/token/{key}", as_=login).status_code in (401, 404)


def test_a_list_of_tokens_has_pages(room: Room, anna: str) -> None:
    login = f"Bearer {[log_in(room).json['token'] for _ in range(3)][-1]}"
    first = room.get("-/npm/v1/tokens?perPage=2", as_=login).json
    rest = room.get(first["urls"]["next"].partition("/npm/js/")[2], as_=login).json
    assert (len(first["objects"]), len(rest["objects"]), rest["urls"]) == (2, 1, {})


def test_a_login_by_browser_is_confirmed_with_a_password_and_redeemed_once(room: Room, anna: str) -> None:
    begun = room.request("POST", "-/v1/login", as_=None, data=b"{}").json
    page, done = (begun[key].partition("/npm/js/")[2] for key in ("loginUrl", "doneUrl"))
    assert page.rpartition("/")[2] != done.rpartition("/")[2], "who sees the page's address cannot fetch the token"
    waiting = room.get(done, as_=None)
    assert (waiting.status_code, waiting.headers["Retry-After"]) == (202, "2")
    shown = room.get(page, as_=None)
    assert b'type="password"' in shown.data
    assert "frame-ancestors 'none'" in shown.headers["Content-Security-Policy"]
    wrong = room.request("POST", page, as_=None, data={"name": "<anna>", "password": "wrong"})
    assert (wrong.status_code, "WWW-Authenticate" in wrong.headers, b"<anna>" in wrong.data) == (401, False, False)
    assert room.get(done, as_=None).status_code == 202
    assert room.request("POST", page, as_=None, data={"name": "anna", "password": PASSWORD}).status_code == 200
    assert room.request("POST", page, as_=None, data={"name": "anna", "password": PASSWORD}).status_code == 404
    token = room.once(done).json["token"]
    assert room.get("-/whoami", as_=f"Bearer {token}").json == {"username": "anna"}
    assert room.once(done).status_code == 404
    assert room.value("select count(*) from arkvory_logins") == 0
    for path in ("-/v1/done/nothing", "-/v1/login/nothing"):
        assert room.get(path, as_=None).status_code == 404


def test_a_confirmed_login_is_void_when_the_password_changes_before_it_is_redeemed(room: Room, anna: str) -> None:
    from app.access.logins import Logins
    from app.access.people import UserChange, Users
    from app.errors import Unauthenticated
    from tests.support.house import ADMIN

    house = room.parts
    logins = Logins(house.database, house.transactions, house.identities)
    login = logins.begin()
    room.request("POST", f"-/v1/login/{login.number}", as_=None, data={"name": "anna", "password": PASSWORD})
    Users(house.database, house.transactions, house.identities, 8).update(ADMIN, "anna", UserChange(password="another-horse"))
    with pytest.raises(Unauthenticated):
        logins.redeem(login.secret, "")


def test_logins_end_by_themselves(room: Room) -> None:
    begun = room.request("POST", "-/v1/login", as_=None).json
    room.execute("update arkvory_logins set expires_at = now() - interval '1 second'")
    assert room.get(begun["doneUrl"].partition("/npm/js/")[2], as_=None).status_code == 404
    room.request("POST", "-/v1/login", as_=None)
    assert room.value("select count(*) from arkvory_logins") == 1


def test_the_password_is_changed_with_the_former_one(room: Room, anna: str) -> None:
    login = f"Bearer {log_in(room).json['token']}"
    assert room.get("-/npm/v1/user", as_=login).json["name"] == "anna"
    for change in ({"old": "wrong", "new": "new-horse-1"}, {"old": PASSWORD, "new": "short"}, {"new": "new-horse-1"}, "x"):
        answer = room.request("POST", "-/npm/v1/user", as_=login, data=json.dumps({"password": change}))
        assert answer.status_code in (400, 401), change
    assert room.request("POST", "-/npm/v1/user", as_=login, data=json.dumps({"email": "a@example.org"})).status_code == 400
    change = {"password": {"old": PASSWORD, "new": "another-horse"}}
    assert room.request("POST", "-/npm/v1/user", as_=login, data=json.dumps(change)).status_code == 200
    assert log_in(room).status_code == 401
    assert log_in(room, password="another-horse").status_code == 201


def test_names_of_users_are_told_to_who_may_publish(room: Room, anna: str) -> None:
    assert room.get("-/user/org.couchdb.user:anna").json["name"] == "anna"
    assert room.get("-/user/org.couchdb.user:otto").status_code == 404
    assert room.get("-/user/org.couchdb.user:anna", as_=None).status_code == 401
    room.execute("update arkvory_access_rules set permissions = '{read}'")
    assert room.get("-/user/org.couchdb.user:anna", as_=anna).status_code == 403


def test_a_search_finds_names_descriptions_and_keywords_that_the_caller_may_read(room: Room) -> None:
    room.published("@s/loud", "1.0.0", description="Makes words LOUD")
    room.published("loud", "1.0.0", "1.1.0", keywords=["caps", "words"], author={"name": "Anna"})
    room.published("q", "1.0.0", description='100% of "it"_')

    def found(words: str, **options: Any) -> list[str]:
        answer = room.get("-/v1/search", query_string={"text": words, **options}).json
        return [each["package"]["name"] for each in answer["objects"]]

    assert found("loud") == ["loud", "@s/loud"]
    assert found("words") == ["@s/loud", "loud"]
    assert found("LOUD caps") == ["loud"]
    assert found("100%") == ["q"]
    assert found("_") == ["q"]
    assert found("") == ["@s/loud", "loud", "q"]
    assert found("", size=1) == ["@s/loud"]
    assert found("", size=1, **{"from": 1}) == ["loud"]
    assert found("nothing") == []
    package = room.get("-/v1/search", query_string={"text": "caps"}).json["objects"][0]["package"]
    assert (package["version"], package["scope"], package["author"], package["publisher"]["username"]) == (
        "1.1.0", "unscoped", {"name": "Anna"}, "local",
    )  # fmt: skip
    room.user("anna")
    room.change(public=False)
    room.execute(
        "insert into arkvory_access_rules (repository_id, subject, permissions, path_prefix) "
        "select id, 'signed-in', '{read}', '@s' from arkvory_repositories"
    )
    mine = room.get("-/v1/search?text=", as_=basic("anna")).json
    assert [each["package"]["name"] for each in mine["objects"]] == ["@s/loud"]
    assert room.get("-/v1/search?text=", as_=None).status_code == 401


def test_audits_answer_that_nothing_is_known_in_the_form_that_is_asked(room: Room) -> None:
    packed = gzip.compress(json.dumps({"p": ["1.0.0"]}).encode())
    bulk = room.request("POST", "-/npm/v1/security/advisories/bulk", data=packed, headers={"Content-Encoding": "gzip"})
    assert (bulk.status_code, bulk.json) == (200, {})
    tree = {"name": "app", "dependencies": {"a": {"version": "1.0.0", "dependencies": {"b": {"version": "1.0.0"}}}}}
    for path in ("audits", "audits/quick"):
        report = room.request("POST", f"-/npm/v1/security/{path}", data=json.dumps(tree)).json
        assert (report["actions"], report["advisories"], report["metadata"]["totalDependencies"]) == ([], {}, 2)
        assert set(report["metadata"]["vulnerabilities"].values()) == {0}
    for body, headers, status in [
        (b"no gzip", {"Content-Encoding": "gzip"}, 400),
        (packed[:-9], {"Content-Encoding": "gzip"}, 400),
        (gzip.compress(bytes(9 * 1024 * 1024)), {"Content-Encoding": "gzip"}, 413),
        (b"[]", {}, 400),
        (b"{", {}, 400),
        (b'{"p": "1.0.0"}', {}, 400),
    ]:
        assert room.request("POST", "-/npm/v1/security/advisories/bulk", data=body, headers=headers).status_code == status
    room.change(public=False)
    assert room.request("POST", "-/npm/v1/security/advisories/bulk", data=packed, as_=None).status_code == 401


def test_ping_answers_who_may_read(room: Room) -> None:
    assert room.get("-/ping", as_=None).json == {}
    assert room.get("", as_=None).json == {"db_name": "js"}
    room.change(public=False)
    assert [room.get(path, as_=None).status_code for path in ("", "-/ping", "-/npm/v1/keys")] == [401] * 3
    room.change(status="offline")
    assert [room.get(path).status_code for path in ("", "-/ping", "-/v1/search")] == [503] * 3
