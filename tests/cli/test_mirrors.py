"""`arkvory mirror`, through a whole server: before an upstream of files, and before another Arkvory, which here is the server itself."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import gevent
import pytest

from tests.cli.test_arkvory import Run, arkvory, document
from tests.support.house import eventually
from tests.support.server import Server
from tests.support.upstreams import FakeUpstream


@pytest.fixture
def here(server: Server) -> Run:
    """In a thread: the upstream answers from this process meanwhile."""

    def run(*arguments: str, **options: Any) -> Any:
        own = {"ARKVORY_DATA_DIR": str(server.data), **options}
        return gevent.get_hub().threadpool.apply(arkvory, arguments, own)

    return run


def test_the_whole_life_of_a_mirror(server: Server, here: Run, upstream: FakeUpstream) -> None:
    upstream.put("/", b'<a href="a.txt">a</a><a href="b/">b</a>')
    upstream.put("/b/", b'<a href="c.txt">c</a>')
    upstream.put("/a.txt", b"from there")
    upstream.put("/b/c.txt", b"too")
    server.repository("followed", kind="proxy", upstream_url=upstream.url, public=True)
    made = document(here("mirror", "set", "followed", "--every", "600", "--exclude", "x*", "--json"))
    assert (made["every_seconds"], made["exclude"], made["source"]) == (600, ["x*"], "index")
    done = here("mirror", "run", "followed", "--wait")
    assert done.stdout == "complete: 2 files are here\n"
    # What is not named stays; what is taken away by its name goes.
    paused = document(here("mirror", "set", "followed", "--disabled", "--name", "a.txt", "--name", "b/", "--json"))
    assert (paused["enabled"], paused["every_seconds"], paused["exclude"], paused["names"]) == (False, 600, ["x*"], ["a.txt", "b/"])
    resumed = document(here("mirror", "set", "followed", "--enabled", "--unset", "name", "--json"))
    assert (resumed["enabled"], resumed["every_seconds"], resumed["exclude"], resumed["names"]) == (True, 600, ["x*"], [])
    assert here("mirror", "set", "followed", "--exclude", "y", "--unset", "exclude", check=False).returncode == 2
    here("mirror", "run", "followed", "--wait")
    assert re.search(r"^followed +mirror/\d+ +every 600 s +complete +\d+ s +2 +0 +0 ", here("mirror", "list").stdout, re.M)
    assert re.search(r"^mirror/\d+ +followed +600 s ", here("jobs").stdout, re.M)
    here("mirror", "set", "followed", "--name", "a.txt", "--name", "none/")
    assert here("mirror", "run", "followed", "--wait", check=False).returncode == 1
    told = here("doctor").stdout
    assert re.search(r"^WARN +mirrors +that of followed \(mirror/\d+\) is incomplete: 1 could not be copied$", told, re.M)
    here("mirror", "set", "followed", "--disabled")
    assert re.search(r"^OK +mirrors +1 are known, 1 of them switched off; none that runs failed ", here("doctor").stdout, re.M)
    here("mirror", "set", "followed", "--enabled", "--unset", "name")
    assert here("mirror", "run", "followed", "--wait").stdout == "complete: 2 files are here\n"
    upstream.stop()
    assert server.get("/raw/followed/b/c.txt", auth=None).content == b"too"
    shown = here("mirror", "show", "followed").stdout
    assert "STATE" in shown and "complete" in shown and "every 600 s" in shown
    assert re.search(r"^CURSOR +(-|b/)$", shown, re.M) and re.search(r"^UPSTREAM USER +-$", shown, re.M)
    metrics = server.get("/metrics", auth=None).text
    assert "arkvory_mirror_files_total 2.0" in metrics
    eventually(lambda: 'arkvory_mirror_done{repository="followed"} 2.0' in server.get("/metrics", auth=None).text, 30)
    assert "follows nothing" in here("mirror", "delete", "followed", "--yes").stdout
    assert here("mirror", "show", "followed", check=False).returncode == 1
    assert server.get("/raw/followed/a.txt", auth=None).content == b"from there"


def test_what_was_refused_is_listed_and_tried_again_by_hand(server: Server, here: Run, upstream: FakeUpstream) -> None:
    told = [{"path": each, "size": 4, "sha256": hashlib.sha256(b"told").hexdigest(), "quarantine": None} for each in ("a", "b")]
    upstream.put("/api/v1/repositories/there/artifacts?limit=500", json.dumps({"items": told, "next": None}).encode())
    upstream.put("/raw/there/a", b"told")
    upstream.put("/raw/there/b", b"sent")
    server.repository("faulty")
    here("mirror", "set", "faulty", "--source", "arkvory", "--upstream", f"{upstream.url}/raw/there")
    for _ in range(2):
        assert here("mirror", "run", "faulty", "--wait", check=False).returncode == 1
    assert upstream.count("/raw/there/b") == 1
    assert re.search(r"^b +4 B +1 +\S+ .*sha256", here("mirror", "refused", "faulty").stdout, re.M)
    (only,) = document(here("mirror", "refused", "faulty", "--json"))
    assert (only["path"], only["refusals"]) == ("b", 1)
    assert re.search(r"^faulty +mirror/\d+ +every 3600 s +incomplete +\d+ s +1 +0 +0 +1 ", here("mirror", "list").stdout, re.M)
    words = r"is incomplete: 1 refused: what the upstream has is at fault$"
    assert re.search(rf"^WARN +mirrors +that of faulty \(mirror/\d+\) {words}", here("doctor").stdout, re.M)
    assert '"refused": 1' in json.dumps(document(here("mirror", "show", "faulty", "--json")))
    eventually(lambda: 'arkvory_mirror_refused{repository="faulty"} 1.0' in server.get("/metrics", auth=None).text, 30)
    upstream.put("/raw/there/b", b"told")
    done = here("mirror", "run", "faulty", "--anew", "--wait")
    assert done.stdout == "complete: 2 files are here\n"
    assert server.get("/api/v1/repositories/faulty/mirror/refused").json() == {"items": [], "next": None}
    wrong = server.request("POST", "/api/v1/repositories/faulty/mirror/run", json={"anew": "yes"})
    assert wrong.status_code == 422


def test_a_mirror_of_another_arkvory_brings_all_of_a_repository(server: Server, here: Run) -> None:
    server.repository("there")
    bodies = {f"d/{number}": f"{number}".encode() for number in range(30)}
    for path, body in bodies.items():
        server.put(f"/raw/there/{path}", body)
    login = {"username": server.admin[0], "password": server.admin[1]}
    server.repository("proxied", kind="proxy", upstream_url=f"{server.url}/raw/there", upstream=login)
    server.repository("hosted")
    assert here("mirror", "set", "proxied", "--source", "arkvory").returncode == 0
    body = {"source": "arkvory", "upstream_url": f"{server.url}/raw/there", "upstream": login}
    answer = server.request("PUT", "/api/v1/repositories/hosted/mirror", json=body)
    assert (answer.status_code, answer.json()["upstream"]) == (201, {"username": "admin", "password": True})
    assert server.request("PUT", "/api/v1/repositories/hosted/mirror", json=body).status_code == 200
    for name in ("proxied", "hosted"):
        assert here("mirror", "run", name, "--wait").stdout == "complete: 30 files are here\n"
        listed = server.get(f"/api/v1/repositories/{name}/artifacts?limit=1000").json()["items"]
        assert {each["path"] for each in listed} == set(bodies)
    assert server.get("/raw/hosted/d/7").content == b"7"


def test_what_cannot_be_followed_is_refused_in_words(server: Server, here: Run) -> None:
    server.repository("plain")
    refused = here("mirror", "set", "plain", check=False)
    assert refused.returncode == 1 and "say what it follows: --upstream URL" in refused.stderr
    answer = server.request("PUT", "/api/v1/repositories/plain/mirror", json={"every_seconds": 60})
    assert answer.status_code == 422 and "say what it follows: upstream_url" in answer.json()["detail"]
    assert server.request("PATCH", "/api/v1/repositories/plain/mirror", json={"every_seconds": 60}).status_code == 404
    answer = server.request("PUT", "/api/v1/repositories/plain/mirror", json={"upstream_url": "http://127.0.0.1:1/x", "every_seconds": 5})
    assert answer.status_code == 422 and "every_seconds" in json.dumps(answer.json())
    assert server.get("/api/v1/repositories/plain/mirror").status_code == 404
    assert server.post("/api/v1/repositories/plain/mirror/run").status_code == 404
    assert server.get("/api/v1/repositories/plain/mirror", auth=None).status_code == 401


def test_a_password_comes_by_standard_input_and_the_user_is_shown(server: Server, here: Run) -> None:
    """Without Python's own words about terminals."""
    server.repository("copied")
    at = ("--upstream", "http://127.0.0.1:1/x", "--upstream-user", "ada")
    for option, given in (("--upstream-password-stdin", "one\n"), ("--upstream-password", "two\n")):
        made = here("mirror", "set", "copied", "--disabled", *at, option, text=given)
        assert made.stderr == "" and re.search(r"^UPSTREAM USER +ada$", made.stdout, re.M)
    shown = server.get("/api/v1/repositories/copied/mirror").json()
    assert (shown["upstream"], shown["enabled"]) == ({"username": "ada", "password": True}, False)
    taken = document(here("mirror", "set", "copied", "--unset", "upstream-password", "--json"))
    assert (taken["upstream"], taken["upstream_url"]) == ({"username": "ada"}, "http://127.0.0.1:1/x")
