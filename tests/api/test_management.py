"""The management API over HTTP: shapes, refusals, and what binds on the next request."""

from __future__ import annotations

import itertools
from collections import Counter
from datetime import datetime
from typing import Any

import pytest
import requests
from gevent.pool import Pool

from tests.support.server import Server

PASSWORD = "correct-horse-battery"
_numbers = itertools.count(1)


@pytest.fixture
def name() -> str:
    """A name that nobody else has in this file's server."""
    return f"n{next(_numbers)}"


def create(server: Server, kind: str, **fields: Any) -> Any:
    answer = server.post(f"/api/v1/{kind}", json=fields)
    assert answer.status_code == 201, answer.text
    return answer.json()


def user(server: Server, name: str, **fields: Any) -> tuple[str, str]:
    """Name and password of a new user."""
    create(server, "users", name=name, password=PASSWORD, **fields)
    return name, PASSWORD


def token(server: Server, who: tuple[str, str], *permissions: str, **fields: Any) -> tuple[int, tuple[str, str]]:
    """Id of a new token, and the credential that it makes."""
    answer = server.post("/api/v1/tokens", json={"name": "t", "permissions": list(permissions) or ["read"], **fields}, auth=who)
    assert answer.status_code == 201, answer.text
    return answer.json()["id"], ("anything", answer.json()["token"])


def problem(answer: requests.Response, status: int, code: str, field: str | None = None) -> dict[str, Any]:
    """The answer is this problem, in RFC 9457's form."""
    assert (answer.status_code, answer.headers["Content-Type"]) == (status, "application/problem+json"), answer.text
    document: dict[str, Any] = answer.json()
    assert document["status"] == status
    assert document["code"] == code
    assert document.get("field") == field
    assert document["title"]
    assert document["detail"]
    assert document["type"]
    assert document["request_id"]
    return document


# Shapes (DESIGN 7)


def test_a_repository_is_shown_with_its_epochs_and_its_client_address(server: Server, name: str) -> None:
    answer = server.post("/api/v1/repositories", json={"name": name, "format": "pypi", "kind": "hosted", "quota_bytes": 5})
    assert answer.status_code == 201
    made = answer.json()
    assert made == server.get(answer.headers["Location"].removeprefix(server.url)).json()
    assert made | {"created_at": "", "updated_at": ""} == {
        "name": name, "format": "pypi", "kind": "hosted", "status": "online", "public": False, "quota_bytes": 5, "settings": {},
        "host": None, "upstream_url": None, "upstream": None, "creator": "admin", "members": None, "warnings": [],
        "epochs": {"metadata": 1, "authorization": 1, "content": 1, "members": 1},
        "url": f"{server.url}/pypi/{name}/simple/", "created_at": "", "updated_at": "",
    }  # fmt: skip
    assert made["created_at"].endswith("Z")
    assert datetime.fromisoformat(made["created_at"])


def test_the_members_of_a_group_are_listed_in_their_order_for_who_may_know_of_it(server: Server, name: str) -> None:
    one, two, three = (f"{name}-{each}" for each in "cab")
    for each in (one, two, three):
        create(server, "repositories", name=each, format="raw")
    server.repository(name, kind="group", members=[one, two, three], settings={"write_member": two})
    address = f"/api/v1/repositories/{name}/members"
    expected = [(1, one, False), (2, two, True), (3, three, False)]
    items = [{"position": position, "name": each, "written": written} for position, each, written in expected]
    assert server.get(address).json() == {"items": items, "next": None}
    first = server.get(f"{address}?limit=2").json()
    assert first["items"] == items[:2]
    assert server.get(f"{address}?limit=2&cursor={first['next']}").json() == {"items": items[2:], "next": None}
    assert server.request("PATCH", f"/api/v1/repositories/{name}", json={"members": [three, one], "settings": {"write_member": None}}).ok
    assert [each["name"] for each in server.get(address).json()["items"]] == [three, one]
    problem(server.get(f"/api/v1/repositories/{one}/members"), 404, "not_found")
    problem(server.get(address, auth=None), 401, "unauthenticated")
    problem(server.get(address, auth=user(server, f"{name}-nobody")), 404, "not_found")


def test_the_client_address_follows_the_address_by_which_the_client_came(server: Server, name: str) -> None:
    create(server, "repositories", name=name, format="raw")
    shown = server.get(f"/api/v1/repositories/{name}", headers={"Host": "artifacts.example:8443"}).json()
    assert shown["url"] == f"http://artifacts.example:8443/raw/{name}/"


def test_an_artifact_is_listed_shown_downloaded_by_its_link_and_deleted(server: Server, name: str) -> None:
    address = server.repository(name)
    for path in ("d/file%5Ba%23b%5D.log", "%C3%9Cbungen/%E5%9C%9F.txt", "a%2Bb/c%20d%3F"):
        assert server.put(f"/raw/{name}/{path}", b"12345").status_code == 201, path
    base = f"/api/v1/repositories/{name}/artifacts"
    items = server.get(base).json()["items"]
    assert [each["path"] for each in items] == ["a+b/c d?", "d/file[a#b].log", "Übungen/土.txt"]
    for each in items:
        assert (each["size"], each["quarantine"], len(each["sha256"])) == (5, None, 64)
        assert each["url"].startswith(address)
        assert requests.get(each["url"], auth=server.admin, timeout=10).content == b"12345"
    shown = server.get(f"{base}/d/file%5Ba%23b%5D.log")
    assert shown.json() == items[1]
    assert server.delete(f"{base}/d/file%5Ba%23b%5D.log").status_code == 204
    problem(server.get(f"{base}/d/file%5Ba%23b%5D.log"), 404, "not_found")
    problem(server.delete(f"{base}/d/file%5Ba%23b%5D.log"), 404, "not_found")
    assert server.get(f"/raw/{name}/d/file%5Ba%23b%5D.log").status_code == 404


@pytest.mark.parametrize("after", ["%00", "a%00", "%00%2F", "%FF", "%ED%A0%80", "a%2F%00b", "%F4%8F%BF%BF", "x" * 3000])
def test_a_folder_goes_on_behind_any_text_that_a_client_asks_for(server: Server, name: str, after: str) -> None:
    """PostgreSQL takes no NUL, and not every text is Unicode."""
    server.repository(name)
    assert server.put(f"/raw/{name}/a", b"x").status_code == 201
    for form in ("json", "html"):
        answer = server.get(f"/raw/{name}/?format={form}&after={after}")
        assert answer.status_code in {200, 400}, answer.text


def test_usage_and_search_speak_of_what_was_stored(server: Server, name: str) -> None:
    server.repository(name, quota_bytes=100)
    server.put(f"/raw/{name}/some/{name}.bin", b"x" * 7)
    assert server.get(f"/api/v1/repositories/{name}/usage").json() == {
        "bytes": {"open": 0, "published": 7, "garbage": 0}, "quota_bytes": 100, "quota_level": 0, "artifacts": 1,
        "downloads": 0, "last_downloaded_at": None,
    }  # fmt: skip
    found = server.get("/api/v1/search", params={"q": name.upper()}).json()["items"]
    assert [(each["repository"], each["path"]) for each in found] == [(name, f"some/{name}.bin")]


def test_a_quota_of_zero_lets_nothing_in(server: Server, name: str) -> None:
    server.repository(name, quota_bytes=0)
    assert server.put(f"/raw/{name}/a", b"1").status_code == 507
    assert server.patch(f"/api/v1/repositories/{name}", json={"quota_bytes": None}).json()["quota_bytes"] is None
    assert server.put(f"/raw/{name}/a", b"1").status_code == 201


def test_who_am_i_tells_user_administrator_and_token(server: Server, name: str) -> None:
    assert server.get("/api/v1/whoami", auth=None).json() == {"user": None, "administrator": False, "token": None}
    assert server.get("/api/v1/whoami").json() == {"user": "admin", "administrator": True, "token": None}
    number, credential = token(server, user(server, name), "read", expires_in_days=3)
    who = server.get("/api/v1/whoami", auth=credential).json()
    assert (who["user"], who["token"]["id"], who["token"]["permissions"]) == (name, number, ["read"])


def test_a_name_like_a_mail_address_is_good_in_every_place(server: Server, name: str) -> None:
    who = user(server, f"{name}+ci@example.org")
    create(server, "groups", name=f"g-{name}")
    for spelling in (who[0], who[0].replace("@", "%40").replace("+", "%2B")):
        assert server.get(f"/api/v1/users/{spelling}", auth=who).json()["name"] == who[0]
        assert server.put(f"/api/v1/groups/g-{name}/members/{spelling}").status_code == 204
    server.repository(name)
    rule = server.post(f"/api/v1/repositories/{name}/rules", json={"subject": f"user:{who[0]}", "permissions": ["write", "read"]})
    assert (rule.status_code, rule.json()["subject"], rule.json()["permissions"]) == (201, f"user:{who[0]}", ["read", "write"])


def test_groups_have_members_that_come_and_go(server: Server, name: str) -> None:
    user(server, name)
    create(server, "groups", name=f"g-{name}")
    member = f"/api/v1/groups/g-{name}/members/{name}"
    assert [server.put(member).status_code for _ in range(2)] == [204, 204]
    assert server.get(f"/api/v1/groups/g-{name}").json()["members"] == [name]
    assert server.get(f"/api/v1/users/{name}").json()["groups"] == [f"g-{name}"]
    assert [server.delete(member).status_code for _ in range(2)] == [204, 204]
    assert server.delete(f"/api/v1/groups/g-{name}").status_code == 204
    problem(server.put(member), 404, "not_found")


def test_a_list_is_read_by_cursor_to_its_end(server: Server, name: str) -> None:
    server.repository(name)
    for number in range(7):
        server.put(f"/raw/{name}/{number}", b"1")
    found, cursor = [], None
    while True:
        page = server.get(f"/api/v1/repositories/{name}/artifacts", params={"limit": 3, "cursor": cursor}).json()
        found.append([each["path"] for each in page["items"]])
        cursor = page["next"]
        if cursor is None:
            break
    assert found == [["0", "1", "2"], ["3", "4", "5"], ["6"]]


# What binds on the next request (C2, C8), by way of a download


def test_everything_that_takes_a_right_away_binds_on_the_next_download(server: Server, name: str) -> None:
    server.repository(name)
    server.put(f"/raw/{name}/a", b"1")
    who = user(server, name)
    rules, path = f"/api/v1/repositories/{name}/rules", f"/raw/{name}/a"
    rule = server.post(rules, json={"subject": f"user:{name}", "permissions": ["read"]}).json()["id"]
    number, credential = token(server, who)

    def download(auth: Any) -> int:
        return server.get(path, auth=auth).status_code

    assert (download(who), download(credential), download(None)) == (200, 200, 401)
    assert server.delete(f"/api/v1/tokens/{number}", auth=who).status_code == 204
    assert (download(who), download(credential)) == (200, 401)
    assert server.delete(f"{rules}/{rule}").status_code == 204
    assert download(who) == 404
    assert server.patch(f"/api/v1/repositories/{name}", json={"public": True}).status_code == 200
    assert (download(who), download(None)) == (200, 200)
    assert server.patch(f"/api/v1/repositories/{name}", json={"public": False}).status_code == 200
    assert (download(who), download(None)) == (404, 401)
    server.post(rules, json={"subject": "signed-in", "permissions": ["read"]})
    assert server.patch(f"/api/v1/users/{name}", json={"password": "another-password"}, auth=who).status_code == 200
    assert (download(who), download((name, "another-password"))) == (401, 200)
    assert server.patch(f"/api/v1/users/{name}", json={"disabled": True}).status_code == 200
    assert download((name, "another-password")) == 401


def test_a_status_binds_on_the_next_download(server: Server, name: str) -> None:
    server.repository(name, public=True)
    server.put(f"/raw/{name}/a", b"1")
    for status, code in (("offline", 503), ("maintenance", 503), ("online", 200)):
        server.patch(f"/api/v1/repositories/{name}", json={"status": status})
        answer = server.get(f"/raw/{name}/a", auth=None)
        assert answer.status_code == code
        assert ("Retry-After" in answer.headers) == (code == 503)


# Refusals


def test_of_many_who_create_the_same_repository_at_once_one_gets_201_and_the_others_409(server: Server, name: str) -> None:
    answers = Pool(8).map(lambda _: server.post("/api/v1/repositories", json={"name": name, "format": "raw"}), range(8))
    assert Counter(each.status_code for each in answers) == {201: 1, 409: 7}
    for each in answers:
        if each.status_code == 409:
            problem(each, 409, "already_exists")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"name": "A"}, "name"),
        ({"name": 5}, "name"),
        ({"name": None}, "name"),
        ({"name": "a\x00"}, "name"),
        ({"name": "\ud800"}, "name"),
        ({"format": "zip"}, "format"),
        ({"kind": "proxy"}, "upstream_url"),
        ({"kind": "proxy", "upstream_url": "https://example.org/", "upstream": {"surprise": 1}}, "upstream.surprise"),
        ({"kind": "cluster"}, "kind"),
        ({"members": []}, "members"),
        ({"public": "yes"}, "public"),
        ({"public": 1}, "public"),
        ({"quota_bytes": -1}, "quota_bytes"),
        ({"quota_bytes": 1.5}, "quota_bytes"),
        ({"quota_bytes": True}, "quota_bytes"),
        ({"quota_bytes": 2**64}, "quota_bytes"),
        ({"settings": {"write_policy": "x"}}, "settings.write_policy"),
        ({"settings": {"mutable_ttl": 5}}, "settings.mutable_ttl"),
        ({"settings": []}, "settings"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_wrong_field_is_422_and_named(server: Server, fields: dict[str, Any], field: str) -> None:
    document = problem(server.post("/api/v1/repositories", json={"name": "good", "format": "raw"} | fields), 422, "invalid", field)
    assert document["fields"][field]
    if field == "surprise":
        assert "Known are: name, format, kind, public" in document["detail"]
    problem(server.get("/api/v1/repositories/good"), 404, "not_found")


def test_a_missing_field_is_422_and_all_of_them_are_named(server: Server) -> None:
    assert set(problem(server.post("/api/v1/users", json={}), 422, "invalid", "name")["fields"]) == {"name", "password"}


@pytest.mark.parametrize(
    ("body", "content_type", "status", "code"),
    [
        (b"{", "application/json", 400, "invalid"),
        (b"\xff\xfe", "application/json", 400, "invalid"),
        (b"[" * 100_000, "application/json", 400, "invalid"),
        (b'{"name":' + b"9" * 5000 + b"}", "application/json", 400, "invalid"),
        (b"name=a", "application/x-www-form-urlencoded", 415, "unsupported_media_type"),
        (b"{}", "", 415, "unsupported_media_type"),
        (b" " * (1024 * 1024 + 1), "application/json", 413, "too_large"),
    ],
)
def test_a_body_that_is_no_good_is_refused_in_words(server: Server, body: bytes, content_type: str, status: int, code: str) -> None:
    problem(server.post("/api/v1/repositories", data=body, headers={"Content-Type": content_type}), status, code)


@pytest.mark.parametrize("body", [b"[]", b"null", b"5", b'"x"', b""])
def test_a_body_that_is_no_object_is_422(server: Server, body: bytes) -> None:
    answer = server.post("/api/v1/repositories", data=body, headers={"Content-Type": "application/json"})
    assert problem(answer, 422, "invalid", answer.json()["field"])


def test_an_address_of_nothing_says_where_things_are(server: Server) -> None:
    for path in ("/nothing", "/nothing/here", "/api"):
        answer = server.get(path, auth=None)
        assert answer.status_code == 404
        assert answer.text.startswith("There is nothing at this address: repositories are below /raw/NAME/, "), answer.text
        assert "/v2/NAME/" in answer.text


def test_a_chunked_body_is_read_and_bounded(server: Server, name: str) -> None:
    headers = {"Content-Type": "application/json"}
    document = f'{{"name": "{name}", "format": "raw"}}'.encode()
    assert server.post("/api/v1/repositories", data=iter([document[:5], document[5:]]), headers=headers).status_code == 201
    pieces = iter([b" " * 65536] * 17)
    problem(server.post("/api/v1/repositories", data=pieces, headers=headers), 413, "too_large")


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "limit=-1", "cursor=x", "cursor=W10", "cursor=WzFd", "format=zip"])
def test_a_wrong_parameter_is_422_and_named(server: Server, query: str) -> None:
    problem(server.get(f"/api/v1/repositories?{query}"), 422, "invalid", query.partition("=")[0])


@pytest.mark.parametrize("path", ["..%2Fx", "%2e%2e", "a%00b", "a%5Cb", "%ff", "a%2Fb", "x%", "%0A", "a" * 1100])
@pytest.mark.parametrize("place", ["repositories", "users", "groups"])
def test_a_hostile_name_in_a_path_is_a_4xx_problem(server: Server, place: str, path: str) -> None:
    answer = server.get(f"/api/v1/{place}/{path}")
    assert answer.status_code in {400, 404}
    problem(answer, answer.status_code, answer.json()["code"])


@pytest.mark.parametrize("number", ["0", "99999999999999999999999999", "9223372036854775807", "abc"])
def test_numbers_that_name_nothing_are_404(server: Server, name: str, number: str) -> None:
    server.repository(name)
    problem(server.delete(f"/api/v1/tokens/{number}"), 404, "not_found")
    problem(server.delete(f"/api/v1/repositories/{name}/rules/{number}"), 404, "not_found")


@pytest.mark.parametrize("prefix", ["/a", "a//b", "../a", "a\x00", "a\\b", "x" * 1100])
def test_a_prefix_that_no_path_can_have_is_422(server: Server, name: str, prefix: str) -> None:
    server.repository(name)
    body = {"subject": "signed-in", "permissions": ["read"], "path_prefix": prefix}
    problem(server.post(f"/api/v1/repositories/{name}/rules", json=body), 422, "invalid", "path_prefix")


def test_nobody_learns_which_names_exist(server: Server, name: str) -> None:
    """401 with a challenge before 404, for what exists and what does not."""
    server.repository(name)
    for path in (
        f"repositories/{name}",
        "repositories/absent",
        "users/admin",
        "users/absent",
        "groups/absent",
        "tokens/1",
        "users",
        "tokens",
    ):
        answer = server.get(f"/api/v1/{path}", auth=None)
        problem(answer, 401, "unauthenticated")
        assert answer.headers["WWW-Authenticate"].startswith("Basic ")
    who = user(server, name)
    for path in (name, "absent"):
        problem(server.get(f"/api/v1/repositories/{path}", auth=who), 404, "not_found")
        problem(server.patch(f"/api/v1/repositories/{path}", json={}, auth=who), 404, "not_found")


def test_a_wrong_credential_is_401_even_where_nobody_needs_one(server: Server) -> None:
    for auth in (("admin", "wrong"), ("nobody", "wrong"), ("x", "arkv_wrong")):
        problem(server.get("/api/v1/whoami", auth=auth), 401, "unauthenticated")
    problem(server.get("/api/v1/whoami", auth=None, headers={"Authorization": "Bearer wrong"}), 401, "unauthenticated")


def test_who_may_not_is_told_so(server: Server, name: str) -> None:
    who = user(server, name)
    for kind, body in (
        ("users", {"name": "x", "password": PASSWORD}),
        ("groups", {"name": "x"}),
        ("repositories", {"name": "x", "format": "raw"}),
    ):
        problem(server.post(f"/api/v1/{kind}", json=body, auth=who), 403, "forbidden")
    server.repository(name, public=True)
    problem(server.delete(f"/api/v1/repositories/{name}", auth=who), 403, "forbidden")
    problem(server.post("/api/v1/cleanup", auth=who), 403, "forbidden")


def test_anonymous_is_asked_who_they_are_before_their_body_is_judged(server: Server) -> None:
    problem(server.post("/api/v1/repositories", data=b"{", headers={"Content-Type": "application/json"}, auth=None), 401, "unauthenticated")


def test_the_last_administrator_cannot_be_lost(server: Server) -> None:
    for change in ({"disabled": True}, {"administrator": False}):
        problem(server.patch("/api/v1/users/admin", json=change), 409, "conflict")
    problem(server.delete("/api/v1/users/admin"), 409, "conflict")


def test_cleanup_can_be_run_by_hand(server: Server) -> None:
    answer = server.post("/api/v1/cleanup")
    assert answer.status_code == 200
    assert set(answer.json()) == {"abandoned", "garbage", "parts", "blobs", "artifacts", "temporary"}


def test_secrets_do_not_come_back(server: Server, name: str) -> None:
    """Neither password nor hash nor token in any list."""
    who = user(server, name)
    _, (_, secret) = token(server, who)
    shown = "".join(
        server.get(f"/api/v1/{path}", auth=server.admin).text for path in ("users?limit=1000", f"tokens?user={name}", f"users/{name}")
    )
    assert secret not in shown
    assert "argon2" not in shown


# The description


def operations(server: Server) -> list[tuple[str, str]]:
    paths = server.get("/api/v1/openapi.json", auth=None).json()["paths"]
    return [(method, path) for path, methods in paths.items() for method in methods if method != "parameters"]


def test_the_description_names_every_operation_once_and_each_of_them_answers(server: Server) -> None:
    document = server.get("/api/v1/openapi.json", auth=None).json()
    assert document["openapi"].startswith("3.1")
    ids = [document["paths"][path][method]["operationId"] for method, path in operations(server)]
    assert len(ids) == len(set(ids)) > 25
    for method, path in operations(server):
        address = path.replace("{id}", "1").replace("{number}", "1").replace("{path}", "a/b")
        address = address.replace("{name}", "absent").replace("{user}", "absent")
        answer = server.request(method.upper(), address, auth=None)
        assert answer.status_code in {200, 401, 422}, (method, path, answer.text)
        problem_or_document = "application/problem+json" if answer.status_code >= 400 else "application/json"
        assert answer.headers["Content-Type"] == problem_or_document


def test_every_error_of_every_operation_is_a_problem(server: Server) -> None:
    """Nonsense in every place: never a 5xx, always this form."""
    nonsense = [
        b"",
        b"{}",
        b"[]",
        b'{"name": {"a": [1]}, "permissions": [null], "subject": "\\u0000", "password": "\\ud800aaaaaaaa"}',
        b"\x00",
    ]

    def tried(case: tuple[tuple[str, str], bytes]) -> None:
        (method, path), body = case
        address = path.replace("{id}", "7").replace("{path}", "%5B/x").replace("{name}", "abs%65nt").replace("{user}", "%C3%A4")
        answer = server.request(
            method.upper(), f"{address}?cursor=%00&q=%00&limit=9&prefix=%00", data=body, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code < 500, (method, path, body, answer.text)
        if answer.status_code >= 400:
            problem(answer, answer.status_code, answer.json()["code"], answer.json().get("field"))

    Pool(4).map(tried, list(itertools.product(operations(server), nonsense)))


@pytest.mark.parametrize(("method", "path", "status", "code"), [
    ("GET", "/api/v1/absent", 404, "not_found"), ("GET", "/api/v1", 404, "not_found"), ("GET", "/api/v2/users", 404, "not_found"),
    ("PUT", "/api/v1/repositories", 405, "method_not_allowed"), ("DELETE", "/api/v1/whoami", 405, "method_not_allowed"),
    ("POST", "/api/v1/search?q=a", 405, "method_not_allowed"),
])  # fmt: skip
def test_what_there_is_not_is_a_problem_too(server: Server, method: str, path: str, status: int, code: str) -> None:
    answer = server.request(method, path)
    problem(answer, status, code)
    assert ("Allow" in answer.headers) == (status == 405)


def test_head_answers_as_get_without_a_body(server: Server) -> None:
    for path in ("/api/v1/repositories", "/api/v1/repositories/absent"):
        get, head = server.get(path), server.head(path)
        assert (head.status_code, head.headers["Content-Type"], head.content) == (get.status_code, get.headers["Content-Type"], b"")
