"""The short path answers as the long one does, byte for byte, and forgets nothing that the long one knows."""

from __future__ import annotations

import base64
import itertools
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from flask import Flask
from werkzeug.test import TestResponse

from app import create_app
from app.access import throttle
from app.access.installation import Switchboard, SwitchChange
from app.cache.outcomes import Outcome, RepositoryChange
from app.cache.view import NO_EPOCHS
from app.http import exchange, shortpath
from app.repository.quarantine import Quarantine
from tests.http.edge import Wire
from tests.protocols.pypi.packages import CONTENT_TYPE, form_of, wheel
from tests.support.bothways import BothWays
from tests.support.descriptors import open_files
from tests.support.house import ADMIN, House
from tests.support.server import Server

ADMINISTRATOR = {"Authorization": "Bearer local"}
WHEEL = "sample-1.0-py3-none-any.whl"
JAR = "org/acme/lib/1.0/lib-1.0.jar"
ODD = "a folder/%C3%9Cb+%5B1%5D~%e5%9c%9f@x.txt"
# What every client of a kind asks for again and again.
WARM = [
    "/raw/open/folder/file.txt",
    f"/raw/open/{ODD}",
    "/raw/open/empty",
    "/raw/open/",
    "/raw/open/folder/",
    "/raw/shut/folder/file.txt",
    f"/maven/mvn/{JAR}",
    f"/maven/mvn/{JAR}.sha1",
    "/maven/mvn/org/acme/lib/maven-metadata.xml",
    "/maven/mvn/org/acme/lib/maven-metadata.xml.SHA-256",
    "/maven/mvn/archetype-catalog.xml",
    "/maven/mvn/org/acme/",
    "/pypi/py/simple/",
    "/pypi/py/simple/sample/",
    f"/pypi/py/files/sample/{WHEEL}",
    f"/pypi/py/files/sample/{WHEEL}.metadata",
    "/pypi/py/pypi/sample/json",
    "/pypi/py/pypi/sample/1.0/json",
]
OTHERS = [
    "/raw/open/nothing",
    "/raw/open/nothing/",
    "/raw/open/held",
    "/raw/open",
    "/raw/open/a%2Fb",
    "/raw/open/folder%2Ffile.txt",
    "/raw/open//folder/file.txt",
    "/raw/open/%2e%2e/x",
    "/raw/open/%zz",
    "/raw/open/%ff",
    "/raw/open/a%00b",
    "/raw/open/folder/file.txt/",
    "/raw/nowhere/x",
    "/raw/o%2Fpen/x",
    "/raw/py/simple/",
    "/raw/away/x",
    "/raw/repaired/x",
    "/maven/mvn",
    "/maven/mvn/no-coordinates",
    f"/maven/mvn/{JAR}.sha1.md5",
    f"/maven/mvn/{JAR}.blake3",
    "/maven/mvn/org/other/maven-metadata.xml",
    "/maven/mvn/org/other/maven-metadata.xml.sha1",
    "/maven/nowhere/a/b/1/b-1.jar",
    "/pypi/py",
    "/pypi/py/",
    "/pypi/py/simple",
    "/pypi/py/simple/Sample/",
    "/pypi/py/simple/sample",
    "/pypi/py/simple/-/",
    "/pypi/py/simple/nothing/",
    "/pypi/py/pypi/Sample/json",
    "/pypi/py/pypi/sample/2.0/json",
    f"/pypi/py/files/sample/{WHEEL}/",
    "/pypi/py/files/sample/nothing.whl",
    "/pypi/py/nothing",
    "/health/live",
    "/nothing",
    "//raw/open/folder/file.txt",
]


@dataclass
class Front:
    """A whole application over one house."""

    house: House
    app: Flask
    both: BothWays
    tokens: dict[str, str]
    rule: int = 0

    def get(self, path: str, *, method: str = "GET", **headers: str) -> TestResponse:
        return self.both.open(path, method=method, headers={name.replace("_", "-"): value for name, value in headers.items()})


@pytest.fixture
def front(house: House, monkeypatch: pytest.MonkeyPatch) -> Front:
    house.parts.local_secret = "local"
    monkeypatch.setattr("app.http.parts.build_parts", lambda settings: house.parts)
    app = create_app(house.parts.settings)
    house.repository("open", public=True)
    house.repository("shut")
    house.repository("away", public=True)
    house.repository("repaired", public=True)
    house.repository("mvn", format="maven", public=True)
    house.repository("py", format="pypi", public=True)
    made = Front(house, app, BothWays(app), {"one": "", "of folder": "", "stranger": ""})
    _fill(made)
    house.change("away", status="offline")
    house.change("repaired", status="maintenance")
    for name in ("one", "of folder", "stranger"):
        house.user(name)
        made.tokens[name] = house.token(name)
    made.rule = house.rule("shut", "user:one", "read")
    house.rule("shut", "user:of folder", "read", prefix="folder")
    return made


def _fill(front: Front) -> None:
    def put(path: str, body: bytes) -> None:
        answer = front.both.open(path, method="PUT", data=body, headers=ADMINISTRATOR)
        assert answer.status_code == 201, (path, answer.text)

    for path in ("folder/file.txt", ODD, "empty", "held"):
        put(f"/raw/open/{path}", b"" if path == "empty" else f"the file {path}".encode())
    for path in ("folder/file.txt", "other.txt"):
        put(f"/raw/shut/{path}", b"private")
    put(f"/maven/mvn/{JAR}", b"jar")
    house = front.house
    Quarantine(house.parts.database, house.parts.transactions, house.parts.access).hold(ADMIN, "open", "held", "not looked at")
    form = form_of([
        (":action", None, b"file_upload"), ("protocol_version", None, b"1"), ("name", None, b"sample"), ("version", None, b"1.0"),
        ("content", WHEEL, wheel("sample", "1.0")),
    ])  # fmt: skip
    done = front.both.open("/pypi/py/", method="POST", data=form, content_type=CONTENT_TYPE, headers=ADMINISTRATOR)
    assert done.status_code == 200, done.text


def asked(front: Front, paths: Iterable[str], variants: Iterable[dict[str, str]], methods: Iterable[str] = ("GET", "HEAD")) -> set[int]:
    """Each of them both ways; the statuses that came."""
    found = set()
    for path, headers, method in itertools.product(paths, list(variants), methods):
        found.add(front.both.open(path, method=method, headers=headers).status_code)
    return found


def test_every_address_is_answered_alike(front: Front) -> None:
    assert asked(front, WARM, [ADMINISTRATOR]) == {200}
    assert asked(front, OTHERS, [{}, ADMINISTRATOR]) == {200, 308, 400, 401, 403, 404, 503}


def test_every_caller_is_answered_alike(front: Front) -> None:
    one = front.tokens["one"]
    basic = [base64.b64encode(pair.encode()).decode() for pair in (f"any:{one}", "one:wrong", "nobody:wrong", "no colon")]
    credentials = [*(f"Bearer {token}" for token in front.tokens.values()), *(f"Basic {each}" for each in basic)]
    credentials += ["Bearer arkv_wrong", "Bearer other", "Bearer local", "Basic !", "Digest x=y", "", "Bearer"]
    paths = ["/raw/open/folder/file.txt", *(f"/raw/shut/{name}" for name in ("folder/file.txt", "other.txt", "folder/", "", "x"))]
    assert asked(front, paths, [{}, *({"Authorization": each} for each in credentials)], ["GET"]) == {200, 401, 403, 404}


@pytest.mark.parametrize("path", ["/raw/open/folder/file.txt", "/raw/open/folder/", f"/maven/mvn/{JAR}.sha1", "/pypi/py/simple/sample/"])
def test_every_condition_is_answered_alike(front: Front, path: str) -> None:
    whole = front.get(path)
    etag, modified = whole.headers["ETag"], whole.headers.get("Last-Modified", "Thu, 29 Feb 2024 12:30:45 GMT")
    tags = [etag, f"W/{etag}", '"x"', f'"x", {etag}', "*", "", "nonsense"]
    dates = [modified, "Thu, 29 Feb 2024 12:30:45 GMT", "Thu, 29 Feb 2199 12:30:45 GMT", "nonsense"]
    ranges = [*(f"bytes={each}" for each in ("0-0", "4-", "-3", "-500", "0-9999", "9999-", "0-1,3-4", "5-2")), "lines=0-1", ""]
    variants = [{"If-None-Match": each} for each in tags] + [{"If-Match": each} for each in tags] + [{"Range": each} for each in ranges]
    variants += [{name: each} for name in ("If-Modified-Since", "If-Unmodified-Since") for each in dates]
    variants += [{"Range": "bytes=1-2", "If-Range": each} for each in (*tags, *dates)]
    variants += [{"If-None-Match": etag, "Range": "bytes=1-2"}, {"If-Match": '"x"', "If-None-Match": etag}]
    assert {200, 206, 304, 412, 416} <= asked(front, [path], variants)


def test_every_representation_is_answered_alike(front: Front) -> None:
    accept = ["application/json", "text/html", "*/*", "application/vnd.pypi.simple.v1+json", "application/vnd.pypi.simple.v1+html;q=0.1",
              "application/json;q=0.9, text/html", "image/png", "", "nonsense;;"]  # fmt: skip
    coding = ["gzip", "identity", "gzip;q=0", "*", "br, gzip"]
    variants = [{"Accept": each} for each in accept] + [{"Accept-Encoding": each} for each in coding]
    variants += [{"Host": each} for each in ("other.test:8443", "bad host", "[::1]:1")]
    paths = ["/raw/open/", "/raw/open/folder/", "/pypi/py/simple/", "/pypi/py/simple/sample/", "/pypi/py/pypi/sample/json"]
    paths += ["/raw/open/?format=json", "/raw/open/?after=empty", "/pypi/py/simple/?format=text/html", "/raw/open/folder/file.txt?x=1"]
    assert asked(front, paths, variants) == {200, 400, 406}


def test_other_methods_are_flasks(front: Front) -> None:
    for method in ("OPTIONS", "PATCH", "POST", "TRACE"):
        assert front.both.open("/pypi/py/simple/sample/", method=method).status_code in (200, 405)


def refuse(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    raise AssertionError(f"Flask was asked for {environ['RAW_URI']}")


def test_warm_reads_and_their_refusals_never_reach_flask(front: Front) -> None:
    long, front.both.short.application = front.both.short.application, refuse
    client = front.app.test_client()
    for path in WARM:
        whole = client.get(path, headers=ADMINISTRATOR)
        assert whole.status_code == 200, path
        assert client.head(path, headers=ADMINISTRATOR).status_code == 200
        assert client.get(path, headers={**ADMINISTRATOR, "If-None-Match": whole.headers["ETag"]}).status_code == 304
    assert client.get(WARM[0], headers={"Range": "bytes=0-1"}).status_code == 206
    assert client.get("/raw/shut/folder/file.txt").status_code == 401
    assert client.get("/raw/open/nothing").status_code == 404
    assert client.get("/raw/open/held").status_code == 403
    with pytest.raises(AssertionError):
        client.get("/raw/open/folder/file.txt?x=1")
    front.both.short.application = long


def test_warm_reads_send_no_statement(front: Front) -> None:
    client = front.app.test_client()
    bearer = {"Authorization": f"Bearer {front.tokens['one']}"}
    for path in WARM:
        client.get(path, headers=bearer)
    before = statements(front)
    for path in WARM:
        assert client.get(path, headers=bearer).status_code == 200
    assert statements(front) == before


def statements(front: Front) -> int:
    return sum(pool.statements for pool in front.house.parts.database.pools)


# What memory may be used for


def test_c1_c2_the_next_request_sees_the_commit(front: Front) -> None:
    house, path = front.house, "/raw/open/folder/file.txt"
    former = front.get(path)
    house.publish("folder/file.txt", b"other", "open")
    assert front.get(path).data == b"other"
    assert front.get(path, If_None_Match=former.headers["ETag"]).status_code == 200
    quarantine = Quarantine(house.parts.database, house.parts.transactions, house.parts.access)
    quarantine.hold(ADMIN, "open", "folder/file.txt", "why")
    assert (front.get(path).status_code, front.get(path, method="HEAD").status_code) == (403, 403)
    assert b"file.txt" not in front.get("/raw/open/folder/").data
    quarantine.release(ADMIN, "open", "folder/file.txt")
    assert front.get(path).data == b"other"
    house.change("open", status="offline")
    assert front.get(path).status_code == 503
    house.change("open", status="online", public=False)
    assert front.get(path).status_code == 401
    house.delete("folder/file.txt", "open")
    assert front.get(path, **ADMINISTRATOR).status_code == 404


def test_c8_an_old_permission_opens_nothing(front: Front) -> None:
    house, path = front.house, "/raw/shut/folder/file.txt"
    bearer = {"Authorization": f"Bearer {front.tokens['one']}"}
    assert front.get(path, **bearer).data == b"private"
    house.rules.delete(ADMIN, "shut", front.rule)
    assert front.get(path, **bearer).status_code == 404
    house.rule("shut", "user:one", "read")
    assert front.get(path, **bearer).status_code == 200
    house.disable("one")
    assert front.get(path, **bearer).status_code == 401


def test_c1_the_anonymous_switch_binds_the_next_request(front: Front) -> None:
    parts = front.house.parts
    board = Switchboard(parts.database, parts.transactions, parts.identities)
    paths = ["/raw/open/folder/file.txt", "/raw/open/", f"/maven/mvn/{JAR}", "/pypi/py/simple/sample/"]
    assert asked(front, paths, [{}]) == {200}
    board.change(ADMIN, SwitchChange(anonymous=False))
    assert asked(front, paths, [{}]) == {401}
    assert asked(front, paths, [ADMINISTRATOR]) == {200}
    board.change(ADMIN, SwitchChange(anonymous=True))
    assert asked(front, paths, [{}]) == {200}


def test_a_wrong_password_counts_once_against_guessing(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    # Time would empty the bucket on a machine where each guess takes long.
    monkeypatch.setattr(throttle, "time", SimpleNamespace(monotonic=lambda: 0.0))
    allowed = front.house.parts.settings.login_failures_per_name
    client = front.app.test_client()
    found = []
    for number in range(allowed + 1):
        wrong = {"Authorization": "Basic " + base64.b64encode(f"guessed:wrong {number}".encode()).decode()}
        found.append(client.get("/raw/open/folder/file.txt", headers=wrong).status_code)
    assert found == [401] * allowed + [429]


@pytest.mark.parametrize("doubted", ["repository", "user", "installation"])
def test_c2_what_is_in_doubt_is_not_answered_from_memory(front: Front, doubted: str) -> None:
    house, path = front.house, "/raw/shut/folder/file.txt"
    bearer = {"Authorization": f"Bearer {front.tokens['one']}"}
    short = front.app.test_client()
    assert short.get(path, headers=bearer).status_code == 200
    id = house.value("select id from arkvory_repositories where name = 'shut'")
    user = house.value("select id from arkvory_users where name = 'one'")
    outcome = Outcome(transaction_id=1)
    if doubted == "repository":
        outcome.repositories.append(RepositoryChange(id, NO_EPOCHS, frozenset({"content"}), (), None))
    elif doubted == "user":
        outcome.users[user] = 2
    else:
        outcome.installation = 2
    house.parts.cache.doubts.add(outcome)
    for _ in range(2):
        before = statements(front)
        assert short.get(path, headers=bearer).status_code == 200
        assert statements(front) > before


def test_c5_a_void_snapshot_is_read_again(front: Front) -> None:
    path, cache = "/raw/open/folder/file.txt", front.house.parts.cache
    assert front.get(path).status_code == 200
    id = front.house.value("select id from arkvory_repositories where name = 'open'")
    front.house.rows("update arkvory_repositories set status = 'offline', metadata_epoch = metadata_epoch + 1 where id = :id", id=id)
    cache._void.add(id)  # as a deletion that failed leaves it
    assert front.get(path).status_code == 503


# What the log and the metrics are told


def test_the_access_log_is_told_the_same(front: Front) -> None:
    bearer = {"Authorization": f"Bearer {front.tokens['of folder']}"}
    for path, headers in itertools.product([*WARM, *OTHERS], [{}, bearer]):
        told = []
        for front.both.short.is_open in (True, False):
            environ: dict[str, Any] = {"arkvory.log": {}}
            front.app.test_client().get(path, headers=headers, environ_overrides=environ)
            told.append(environ["arkvory.log"])
        # A path that Flask refuses while it matches is no address of any repository; of the others it knows as much.
        assert told[0] == told[1], path
    front.both.short.is_open = True
    seen: dict[str, Any] = {"arkvory.log": {}}
    front.app.test_client().get("/raw/shut/folder/file.txt", headers=bearer, environ_overrides=seen)
    assert seen["arkvory.log"] == {"repository": "shut", "user": "of folder"}


def test_the_metrics_count_the_same(front: Front) -> None:
    def numbers() -> dict[str, float]:
        lines = front.app.test_client().get("/metrics").text.splitlines()
        wanted = [line for line in lines if line.startswith(("flask_http_request_total", "flask_http_request_duration_seconds_count"))]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in wanted) if "prometheus" not in name}

    def counted(is_open: bool) -> dict[str, float]:
        front.both.short.is_open = is_open
        before = numbers()
        for path in [*WARM, *OTHERS]:
            front.app.test_client().get(path)
            front.app.test_client().head(path)
        after = numbers()
        return {name: value - before.get(name, 0) for name, value in after.items() if value != before.get(name, 0)}

    short, long = counted(True), counted(False)
    assert short == long
    name = 'flask_http_request_duration_seconds_count{endpoint="raw.get",method="GET",status="200"}'
    assert long[name] >= 5


# When it fails


@pytest.mark.parametrize("broken", [(shortpath, "header_fields"), (shortpath, "Fields"), (exchange, "_is_unsendable")])
def test_its_own_failure_is_answered_by_flask_and_keeps_no_file_open(
    front: Front, monkeypatch: pytest.MonkeyPatch, broken: tuple[Any, str]
) -> None:
    def fail(*arguments: Any, **named: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(*broken, fail)
    client = front.app.test_client()
    client.get("/raw/open/folder/file.txt").close()
    before = open_files()
    for _ in range(5):
        with client.get("/raw/open/folder/file.txt") as answer:
            assert answer.data == b"the file folder/file.txt"
    assert not open_files() - before


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_no_file_stays_open(front: Front, method: str) -> None:
    client = front.app.test_client()
    variants: list[dict[str, str]] = [{}, {"If-None-Match": "*"}, {"If-Match": '"x"'}, {"Range": "bytes=0-1"}, {"Range": "bytes=999-"}]
    before = open_files()
    for headers in variants:
        client.open("/raw/open/folder/file.txt", method=method, headers=headers).close()
    assert not open_files() - before


def test_what_is_kept_beside_gates_goes_with_them(front: Front) -> None:
    heads = front.both.short._heads
    for path in WARM:
        front.app.test_client().get(path, headers=ADMINISTRATOR)
    assert len(heads) > 10
    cache = front.house.parts.cache
    for region in cache.regions:
        region.clear()
    assert len(heads) == 0


@pytest.mark.parametrize("more", [
    [], [("Content-Length", "1")] * 2, [("Content-Length", "1"), ("A name", "x")], [("Content-Length", "1"), ("A", "x\r\nB: y")],
    [("Content-Length", "1"), ("Connection", "close")], [("Content-Length", "1"), ("Transfer-Encoding", "chunked")],
])  # fmt: skip
def test_a_head_that_could_not_be_sent_as_it_is_is_not_kept(more: list[tuple[str, str]]) -> None:
    assert exchange.Fields([("A", "b"), ("Content-Length", "12")]).text == "A: b\r\nContent-Length: 12\r\n"
    with pytest.raises(exchange.AnswerError):
        exchange.Fields([("A", "b"), *more])


# On the wire


@pytest.fixture(scope="module")
def filled(server: Server) -> Server:
    server.repository("open", public=True)
    assert server.put("/raw/open/folder/file.txt", b"bytes").status_code == 201
    assert server.put("/raw/open/large.bin", b"0123456789" * 100_000).status_code == 201
    return server


@pytest.mark.parametrize("lines", [(), ("Range: bytes=2-3",), ("If-None-Match: *",), ('If-Match: "x"',), ("Connection: close",)])
@pytest.mark.parametrize("path", ["/raw/open/folder/file.txt", "/raw/open/large.bin", "/raw/open/folder/", "/raw/open/nothing"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_the_wire_carries_the_same_bytes(filled: Server, method: str, path: str, lines: tuple[str, ...]) -> None:
    """A query makes the same question one for the long path."""
    told = [exchanged(filled, method, path + query, lines) for query in ("", "", "?x=1")]
    assert told[0] == told[1] == told[2]


def exchanged(server: Server, method: str, target: str, lines: tuple[str, ...]) -> tuple[list[bytes], bytes]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        answer = Wire(connection).ask(method, target, *lines)
    head = [line for line in answer.raw_head.split(b"\r\n") if not line.startswith((b"Date:", b"X-Request-Id:"))]
    return head, answer.body
