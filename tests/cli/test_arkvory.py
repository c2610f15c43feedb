"""The command: a client of a running server, or the server's own code when none runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests

from app.cluster import localserver
from tests.support import clients
from tests.support.passwords import CHEAP
from tests.support.server import ROOT, Server, free_port
from tests.support.upstreams import FakeUpstream
from tests.support.warm import Wanted, commands, servers

Run = Callable[..., subprocess.CompletedProcess[str]]


def arkvory(
    *arguments: str, text: str = "", check: bool = True, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the command with these variables and none of the caller's that it would read."""
    given = {name: os.environ[name] for name in ("PATH", "HOME", "PG_BIN") if name in os.environ} | CHEAP
    # Without a server it is the application itself, which takes long to import.
    warm = servers if "ARKVORY_DATABASE_URL" in environment else commands
    done = warm.run(Wanted("arkvory", arguments, given | environment, cwd or ROOT), text, 90)
    assert not check or done.returncode == 0, f"arkvory {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done


@pytest.fixture
def here(server: Server) -> Run:
    """Runs the command on the machine of a running server."""
    return lambda *arguments, **options: arkvory(*arguments, ARKVORY_DATA_DIR=str(server.data), **options)


def document(done: subprocess.CompletedProcess[str]) -> Any:
    return json.loads(done.stdout)


# With a running server


def test_a_command_beside_a_running_server_goes_through_it_without_a_password(server: Server, here: Run) -> None:
    """S1: the server's memory sees the change, since the server itself made it."""
    server.repository("seen", public=True)
    server.put("/raw/seen/a", b"1")
    assert server.get("/raw/seen/a", auth=None).status_code == 200
    here("repo", "update", "seen", "--private")
    assert server.get("/raw/seen/a", auth=None).status_code == 401
    here("repo", "update", "seen", "--public", "--status", "offline")
    assert server.get("/raw/seen/a", auth=None).status_code == 503


def test_a_proxy_is_made_and_changed_without_showing_what_is_secret(here: Run, upstream: FakeUpstream, server: Server) -> None:
    upstream.put("/a", b"from there", auth="Basic dTpw")
    login = ("--upstream-user", "u", "--upstream-password", "--upstream-header", "X-Key: abc")
    done = here("repo", "create", "fetched", "--format", "raw", "--upstream", upstream.url, *login, "--mutable-ttl", "5", text="p\n")
    assert "abc" not in done.stdout
    made = document(here("repo", "show", "fetched", "--json"))
    assert (made["kind"], made["upstream_url"], made["settings"]) == ("proxy", upstream.url, {"mutable_ttl": 5})
    assert made["upstream"] == {"username": "u", "password": True, "headers": ["X-Key"]}
    assert server.get("/raw/fetched/a").content == b"from there"
    assert upstream.asked[-1].headers["x-key"] == "abc"
    changed = document(here("repo", "update", "fetched", "--no-caching", "--connections", "2", "--json"))
    assert (changed["settings"]["caching"], changed["upstream"]["connections"]) == (False, 2)


def test_what_a_proxy_withholds_is_set_and_taken_back_by_options(here: Run, upstream: FakeUpstream, server: Server) -> None:
    given = ("--minimum-age", "2.5", "--minimum-age-exception", "a", "--minimum-age-exception", "b@1.*", "--block", "bad*")
    made = document(here("repo", "create", "withheld", "--format", "raw", "--upstream", upstream.url, *given, "--json"))
    assert made["settings"] == {"minimum_age": 2.5, "minimum_age_exceptions": ["a", "b@1.*"], "block": ["bad*"]}
    changed = document(here("repo", "update", "withheld", "--unset", "minimum-age", "--unset", "block", "--allow", "good", "--json"))
    assert changed["settings"] == {"minimum_age_exceptions": ["a", "b@1.*"], "allow": ["good"]}
    upstream.put("/good/a", b"a")
    assert [server.get(f"/raw/withheld/{path}").status_code for path in ("good/a", "bad")] == [200, 404]


def test_what_is_taken_away_is_named_as_the_option_that_set_it(here: Run, upstream: FakeUpstream) -> None:
    given = ("--minimum-age", "2", "--minimum-age-exception", "a", "--quota", "5", "--upstream-user", "u", "--upstream-password-stdin")
    made = document(here("repo", "create", "set", "--format", "raw", "--upstream", upstream.url, *given, "--json", text="p\n"))
    assert made["upstream"] == {"username": "u", "password": True}
    unset = ("--unset", "minimum-age-exception", "--unset", "quota", "--unset", "upstream-password", "--unset", "minimum_age")
    changed = document(here("repo", "update", "set", *unset, "--json"))
    assert (changed["settings"], changed["quota_bytes"], changed["upstream"]) == ({}, None, {"username": "u"})
    refused = here("repo", "update", "set", "--unset", "minimal-age", check=False)
    assert refused.returncode == 2 and "'minimal-age'; there is: " in refused.stderr and "minimum-age-exceptions" in refused.stderr


def test_where_images_are_is_shown_as_clients_take_it(here: Run, server: Server) -> None:
    here("repo", "create", "images", "--format", "oci")
    host = f"127.0.0.1:{server.port}"
    assert f" {host}/images/\n" in here("repo", "list").stdout
    here("repo", "update", "images", "--host", "images.example.org")
    assert " images.example.org/\n" in here("repo", "show", "images").stdout
    refused = here("repo", "create", "far", "--format", "oci", "--upstream", f"http://{host}/v2/images/", check=False)
    assert refused.returncode == 1 and f"http://{host}/images" in refused.stderr
    told = here("repo", "promote", "images", "prod", check=False).stderr
    assert "say what to copy: a package" in told
    told = here("repo", "promote", "images", "prod", "--package", "app", "--version", "1", check=False).stderr
    assert "there is no version '1' of 'app' in repository 'images'" in told


def test_explain_says_for_people_and_for_programs_what_a_read_comes_to(here: Run, upstream: FakeUpstream, server: Server) -> None:
    def told(*arguments: str) -> str:
        return " ".join(here(*arguments).stdout.split())

    server.repository("cleared", kind="proxy", upstream_url=upstream.url)
    upstream.put("/a", b"a")
    cold = told("explain", f"http://ann:hidden-word@127.0.0.1:{server.port}/raw/cleared/a")
    assert "ANSWER fetched: there is no copy" in cold and "STATE this process has not asked it yet" in cold and upstream.asked == []
    assert [server.get("/raw/cleared/a").status_code for _ in range(2)] == [200, 200]
    warm = told("explain", "/raw/cleared/a")
    for line in ("ANSWER served: the copy is fresh", "IN MEMORY snapshot, gate", f"UPSTREAM {upstream.url}", "local may read"):
        assert line in warm
    found = document(here("explain", "/raw/cleared/a", "--subject", "anonymous", "--json"))
    assert (found["permission"]["allowed"], found["outcome"]["code"]) == (False, "unauthenticated")
    assert "anonymous may not read" in told("explain", "/raw/cleared/a", "--subject", "anonymous")
    assert "STATE asked as usual" in told("upstream", "cleared")
    assert "ANSWER served" in told("explain", f"ann:hidden-word@127.0.0.1:{server.port}/raw/cleared/a")
    assert "hidden-word" not in server.log()


def test_the_whole_life_of_a_repository(server: Server, here: Run) -> None:
    made = document(here("repo", "create", "files", "--format", "raw", "--quota", "2GiB", "--write-policy", "once", "--json"))
    assert (made["name"], made["quota_bytes"], made["settings"]) == ("files", 2 * 1024**3, {"write_policy": "once"})
    server.put("/raw/files/some/a%20b%25.txt", b"12345")
    assert [each["path"] for each in document(here("artifact", "list", "files", "--json"))] == ["some/a b%.txt"]
    assert document(here("artifact", "show", "files", "some/a b%.txt", "--json"))["size"] == 5
    assert document(here("usage", "files", "--json"))["bytes"]["published"] == 5
    assert "some/a b%.txt" in here("search", "A B").stdout
    here("artifact", "delete", "files", "some/a b%.txt", "--yes")
    assert document(here("artifact", "list", "files", "--json")) == []
    here("repo", "update", "files", "--rename", "others", "--no-quota")
    assert document(here("repo", "show", "others", "--json"))["quota_bytes"] is None
    shown = here("repo", "show", "others").stdout
    assert ("QUOTA BYTES" in shown, "EPOCHS" in shown) == (True, False)
    here("repo", "delete", "others", "--yes")
    assert here("repo", "show", "others", check=False).returncode == 1


def test_what_is_held_is_marked_listed_and_released(server: Server, here: Run) -> None:
    server.repository("held")
    server.put("/raw/held/a/x", b"1")
    assert here("artifact", "hold", "held", "a/x", "--reason", "looked at", "--trust", "malicious").stdout == (
        "a/x is held (malicious): looked at\n"
    )
    assert "held (malicious)" in here("artifact", "list", "held").stdout
    shown = next(line for line in here("artifact", "show", "held", "a/x").stdout.splitlines() if line.startswith("QUARANTINE"))
    assert shown.endswith("(malicious): looked at")
    assert [(each["path"], each["held_by"]) for each in document(here("artifact", "held", "held", "--json"))] == [("a/x", None)]
    assert here("artifact", "release", "held", "a/x").stdout == "a/x is released.\n"
    assert "held (" not in here("artifact", "list", "held").stdout


def test_the_whole_life_of_a_hold_rule(server: Server, here: Run) -> None:
    server.repository("watched")
    options = ("--reason", "new here", "--publisher", "admin", "--json")
    made = document(here("hold-rule", "add", "watched", "drafts/*", *options))
    assert (made["pattern"], made["publisher"], made["reason"]) == ("drafts/*", "admin", "new here")
    assert [each["id"] for each in document(here("hold-rule", "list", "watched", "--json"))] == [made["id"]]
    server.put("/raw/watched/drafts/a", b"1")
    assert "drafts/a" in here("artifact", "held", "watched").stdout
    assert "stays held" in here("hold-rule", "delete", "watched", str(made["id"])).stdout
    server.put("/raw/watched/drafts/b", b"1")
    assert [each["path"] for each in document(here("artifact", "held", "watched", "--json"))] == ["drafts/a"]


def test_permissions_may_have_commas_between_them(server: Server, here: Run) -> None:
    server.repository("listed")
    both = ["read", "write"]
    assert document(here("rule", "add", "listed", "anonymous", "read,write", "--json"))["permissions"] == both
    assert document(here("token", "create", "t", "--permission", "read,write", "--permission", "read", "--user", "admin", "--json"))[
        "permissions"
    ] == both
    assert document(here("deploy-token", "create", "listed", "t", "--permission", "read,write", "--json"))["permissions"] == both
    assert here("rule", "add", "listed", "anonymous", "read,fly", check=False).returncode == 2


def test_words_for_the_same_are_understood(server: Server, here: Run) -> None:
    server.repository("said")
    made = document(here("rule", "create", "said", "anonymous", "read", "--json"))
    assert here("rule", "remove", "said", str(made["id"])).stdout == f"Rule {made['id']} of said is gone.\n"
    here("group", "create", "sayers")
    assert "sayers" in here("group", "show", "sayers").stdout
    assert here("group", "remove", "sayers", check=False).returncode == 2, "that takes members out of it"
    assert here("rule", "destroy", "said", "1", check=False).returncode == 2


def test_without_a_terminal_nothing_is_deleted_unless_it_was_said_to_be_meant(server: Server, here: Run) -> None:
    server.repository("kept")
    server.put("/raw/kept/a", b"1")
    here("group", "create", "keepers")
    for arguments in (("artifact", "delete", "kept", "a"), ("repo", "delete", "kept"), ("group", "delete", "keepers")):
        refused = here(*arguments, check=False, text="y\n")
        assert (refused.returncode, "add --yes" in refused.stderr) == (2, True), arguments
    assert server.get("/raw/kept/a").status_code == 200
    assert here("artifact", "delete", "kept", "a", "--yes").stdout == "a is gone.\n"
    assert here("repo", "delete", "kept", "--yes").stdout == "Repository kept is gone.\n"


def test_an_address_of_this_machine_is_explained(server: Server, here: Run) -> None:
    assert "ARKVORY_PUBLIC_URL" in here("repo", "create", "explained", "--format", "raw").stderr
    assert here("repo", "create", "explained-too", "--format", "raw", "--json").stderr == ""


def test_the_first_start_says_where_its_commands_find_the_server(make_server: Callable[..., Server]) -> None:
    server = make_server()
    assert f"export ARKVORY_DATA_DIR={server.data.resolve()}\n" in server.log()


def test_every_format_can_be_chosen() -> None:
    from app.cli.repositories import FORMAT
    from app.repository.formats import FORMATS

    assert set(FORMAT.choices) == set(FORMATS)


def test_the_whole_life_of_a_user_with_groups_rules_and_tokens(server: Server, here: Run) -> None:
    here("repo", "create", "team", "--format", "raw")
    here("user", "create", "anna", "--password-stdin", text="annas-password\n")
    here("group", "create", "devs")
    here("group", "add", "devs", "anna")
    here("rule", "add", "team", "group:devs", "read", "write", "--prefix", "a/")
    rules = document(here("rule", "list", "team", "--json"))
    assert [(each["subject"], each["permissions"], each["path_prefix"]) for each in rules] == [("group:devs", ["read", "write"], "a/")]
    made = document(
        here("token", "create", "ci", "--permission", "write", "--repository", "team", "--days", "2", "--user", "anna", "--json")
    )
    assert server.put("/raw/team/a/x", b"1", auth=("x", made["token"])).status_code == 201
    assert made["token"] not in here("token", "list", "--user", "anna").stdout
    here("token", "revoke", str(made["id"]))
    assert server.put("/raw/team/a/x", b"1", auth=("x", made["token"])).status_code == 401
    here("user", "update", "anna", "--password-stdin", text="another-password\n")
    assert server.get("/api/v1/whoami", auth=("anna", "another-password")).status_code == 200
    here("rule", "delete", "team", str(rules[0]["id"]))
    here("user", "update", "anna", "--disable")
    assert server.get("/api/v1/whoami", auth=("anna", "another-password")).status_code == 401
    here("group", "delete", "devs", "--yes")
    here("user", "delete", "--yes", "anna")
    assert "anna" not in here("user", "list").stdout


def test_the_whole_life_of_a_deploy_token(server: Server, here: Run) -> None:
    here("repo", "create", "deployed", "--format", "raw")
    options = ("--permission", "write", "--permission", "read", "--prefix", "a/", "--days", "2", "--json")
    made = document(here("deploy-token", "create", "deployed", "ci", *options))
    assert (made["permissions"], made["path_prefix"], made["created_by"]) == (["read", "write"], "a/", None)
    assert server.put("/raw/deployed/a/x", b"1", auth=("x", made["token"])).status_code == 201
    assert server.put("/raw/deployed/b", b"1", auth=("x", made["token"])).status_code == 403
    assert made["token"] not in here("deploy-token", "list", "deployed").stdout
    here("deploy-token", "revoke", "deployed", str(made["id"]))
    assert server.get("/raw/deployed/a/x", auth=("x", made["token"])).status_code == 401
    assert document(here("deploy-token", "list", "deployed", "--json")) == []


def test_a_robot_gets_tokens_for_several_repositories(server: Server, here: Run) -> None:
    for name in ("first", "second", "third"):
        here("repo", "create", name, "--format", "raw")
    assert document(here("user", "create", "builder", "--robot", "--json"))["robot"] is True
    for name in ("first", "second", "third"):
        here("rule", "add", name, "user:builder", "write", "read")
    options = ("--user", "builder", "--permission", "write", "--repository", "first", "--repository", "second", "--json")
    made = document(here("token", "create", "ci", *options))
    stored = {name: server.put(f"/raw/{name}/a", b"1", auth=("x", made["token"])).status_code for name in ("first", "second", "third")}
    assert stored == {"first": 201, "second": 201, "third": 403}
    refused = here("user", "update", "builder", "--password-stdin", text="a-password\n", check=False)
    assert (refused.returncode, "tokens alone" in refused.stderr) == (1, True)


def test_the_whole_life_of_a_role(server: Server, here: Run) -> None:
    here("repo", "create", "ruled", "--format", "raw")
    here("user", "create", "rolf", "--password-stdin", text="rolfs-password\n")
    here("role", "create", "builder")
    made = document(here("role", "add-rule", "builder", "read", "write", "--repository", "ruled", "--prefix", "a", "--json"))
    here("role", "assign", "builder", "user:rolf")
    assert server.put("/raw/ruled/a/x", b"1", auth=("rolf", "rolfs-password")).status_code == 201
    assert server.put("/raw/ruled/b", b"1", auth=("rolf", "rolfs-password")).status_code == 403
    assert "read,write ruled/a" in here("role", "list").stdout
    here("role", "remove-rule", "builder", str(made["rules"][0]["id"]))
    assert server.get("/raw/ruled/a/x", auth=("rolf", "rolfs-password")).status_code == 404
    here("role", "unassign", "builder", "user:rolf")
    assert document(here("role", "show", "builder", "--json"))["holders"] == []
    here("role", "delete", "builder", "--yes")
    assert document(here("role", "list", "--json")) == []


def test_the_switches_are_turned_from_the_command_line(server: Server, here: Run) -> None:
    server.repository("switched", public=True)
    server.put("/raw/switched/a", b"1")
    here("installation", "update", "--no-anonymous", "--read-only")
    try:
        assert server.get("/raw/switched/a", auth=None).status_code == 401
        assert server.put("/raw/switched/a", b"2").status_code == 503
        shown = document(here("installation", "show", "--json"))
        assert (shown["anonymous"], shown["read_only"]) == (False, True)
    finally:
        here("installation", "update", "--anonymous", "--writable")
    assert server.get("/raw/switched/a", auth=None).status_code == 200


def test_long_lists_are_read_to_their_end(server: Server, here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    server.repository("many")
    with requests.Session() as session:
        session.auth = server.admin
        for number in range(12):
            session.put(f"{server.url}/raw/many/{number:03}", data=b"1")
    from app.cli import connection

    monkeypatch.setattr(connection, "PAGE", 5)
    found = localserver.read(server.data)
    assert found is not None
    client = connection.Server(connection._http(found.url, found.secret, local=True))
    assert len(list(client.items("repositories", "many", "artifacts"))) == 12
    assert len(list(client.items("repositories", "many", "artifacts", most=7))) == 7
    assert len(here("artifact", "list", "many").stdout.splitlines()) == 13


def test_a_refusal_is_one_line_on_standard_error_and_exit_code_1(here: Run) -> None:
    done = here("repo", "show", "absent", check=False)
    words = "arkvory: there is no repository 'absent' at this address, or you may not know of it\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", words)


@pytest.mark.parametrize(
    "arguments",
    [
        "nonsense",
        "repo create x",
        "repo create x --format zip",
        "repo create x --format raw --quota lots",
        "repo update x --quota 1G --no-quota",
        "rule add x anonymous",
    ],
)
def test_wrong_use_is_exit_code_2(here: Run, arguments: str) -> None:
    assert here(*arguments.split(), check=False).returncode == 2


def test_the_secret_is_for_its_owner_alone_and_gone_with_the_server(make_server: Callable[..., Server]) -> None:
    server = make_server()
    file = server.data / "server.json"
    assert file.stat().st_mode & 0o777 == 0o600
    left = json.loads(file.read_text())
    bearer = {"Authorization": f"Bearer {left['secret']}"}
    assert server.get("/api/v1/whoami", auth=None, headers=bearer).json()["user"] == "local"
    server.stop()
    assert not file.exists()
    file.write_text(json.dumps(left))
    assert localserver.read(server.data) is None
    server.start()
    assert server.get("/api/v1/whoami", auth=None, headers=bearer).status_code == 401


# Elsewhere


def test_a_command_elsewhere_uses_an_address_and_a_token(server: Server, tmp_path: Path) -> None:
    made = server.post("/api/v1/tokens", json={"name": "remote", "permissions": ["manage", "read"]}).json()
    there = {"ARKVORY_DATA_DIR": str(tmp_path / "none"), "ARKVORY_URL": server.url + "/", "ARKVORY_TOKEN": made["token"]}
    assert document(arkvory("repo", "create", "remote", "--format", "pypi", "--json", **there))["creator"] == "admin"
    assert arkvory("repo", "show", "remote", **there | {"ARKVORY_TOKEN": "arkv_wrong"}, check=False).returncode == 1
    by_option = ("--url", server.url, "--token", made["token"], "repo", "show", "remote", "--json")
    assert document(arkvory(*by_option, ARKVORY_DATA_DIR=str(tmp_path / "none")))["name"] == "remote"


def test_an_address_that_does_not_answer_is_said_to_be_so(tmp_path: Path) -> None:
    done = arkvory("repo", "list", ARKVORY_DATA_DIR=str(tmp_path), ARKVORY_URL=f"http://127.0.0.1:{free_port()}", check=False)
    assert (done.returncode, "does not answer" in done.stderr, "Traceback" in done.stderr) == (1, True, False)


def test_what_something_else_answers_is_shown(server: Server, tmp_path: Path) -> None:
    done = arkvory("repo", "list", ARKVORY_DATA_DIR=str(tmp_path), ARKVORY_URL=f"{server.url}/raw", check=False)
    assert done.stderr.startswith("arkvory: the server answered 401; is it an Arkvory? It says: repository 'api' does not exist or")


# Without a server


def test_without_a_server_a_command_does_the_same_by_itself_and_the_server_finds_it(make_server: Callable[..., Server]) -> None:
    server = make_server(start=False)
    alone = {"ARKVORY_DATA_DIR": str(server.data), "ARKVORY_DATABASE_URL": str(server.database_url)}
    first = arkvory("repo", "create", "early", "--format", "raw", "--public", **alone)
    assert "admin / " in first.stderr
    password = first.stderr.split("admin / ")[1].split()[0]
    assert document(arkvory("repo", "list", "--json", **alone))[0]["name"] == "early"
    refused = arkvory("repo", "create", "early", "--format", "raw", check=False, **alone)
    assert (refused.returncode, refused.stderr) == (1, "arkvory: there is a repository 'early' already\n")
    server.start()
    assert server.put("/raw/early/a", b"1", auth=("admin", password)).status_code == 201


def test_a_command_does_not_touch_a_database_that_another_server_owns(server: Server, tmp_path: Path) -> None:
    """S1: a data directory without `server.json` does not help around the ownership lock."""
    elsewhere = {"ARKVORY_DATA_DIR": str(tmp_path), "ARKVORY_DATABASE_URL": str(server.database_url), "ARKVORY_OWNERSHIP_WAIT_SECONDS": "1"}
    done = arkvory("repo", "create", "sneaky", "--format", "raw", check=False, **elsewhere)
    assert done.returncode == 1
    assert "owns this storage" in done.stderr
    assert server.get("/api/v1/repositories/sneaky").status_code == 404


def test_without_a_server_and_a_database_the_embedded_one_is_used_and_stopped(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    refused = arkvory("repo", "list", check=False, ARKVORY_DATA_DIR=str(folder))
    assert refused.returncode == 1
    assert "there is no data" in refused.stderr
    assert "ARKVORY_DATABASE_URL where the server has it" in refused.stderr
    assert not folder.exists()
    assert "from nothing to" in arkvory("db", "upgrade", ARKVORY_DATA_DIR=str(folder)).stdout
    made = arkvory("repo", "create", "files", "--format", "raw", "--json", ARKVORY_DATA_DIR=str(folder))
    assert document(made)["name"] == "files"
    assert not (folder / "postgres" / "postmaster.pid").exists()
    assert "The tables are at" in arkvory("db", "upgrade", ARKVORY_DATA_DIR=str(folder)).stdout


@pytest.mark.parametrize("command", ["repo list", "db upgrade"])
def test_a_database_that_does_not_answer_is_one_line_with_its_address_and_setting(command: str, tmp_path: Path) -> None:
    port = free_port()
    url = f"postgresql://me:secret@127.0.0.1:{port}/nodb"
    done = arkvory(*command.split(), check=False, ARKVORY_DATA_DIR=str(tmp_path), ARKVORY_DATABASE_URL=url)
    assert done.returncode == 1
    assert f"arkvory: PostgreSQL at 127.0.0.1:{port}, database nodb (ARKVORY_DATABASE_URL) does not answer: " in done.stderr
    assert (done.stderr.count("\n"), "secret" in done.stderr) == (1, False)


def test_db_upgrade_makes_the_tables_and_needs_no_lock(empty_database_url: str, tmp_path: Path) -> None:
    alone = {"ARKVORY_DATA_DIR": str(tmp_path), "ARKVORY_DATABASE_URL": empty_database_url}
    assert "from nothing to" in arkvory("db", "upgrade", **alone).stdout
    assert "are at" in arkvory("db", "upgrade", **alone).stdout


# Processes


def test_serve_starts_from_any_folder_even_one_with_a_module_of_that_name(make_server: Callable[..., Server], tmp_path: Path) -> None:
    server = make_server(start=False)
    for name in ("wsgi.py", "app.py", "config.py"):
        (tmp_path / name).write_text("raise SystemExit('the wrong module')")
    script = clients.require("arkvory")
    server.folder.mkdir(exist_ok=True)
    with open(server.folder / "log", "ab") as log:
        server.process = subprocess.Popen(
            [script, "serve", "--port", str(server.port)], cwd=tmp_path, env=server._environment() | {"PORT": "1"},
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    server.wait_until_ready()
    assert server.stop() == 0


def test_a_worker_says_that_it_is_not_needed_and_idles_until_it_is_stopped(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "app.cli", "worker"], cwd=ROOT, env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert "not needed" in process.stdout.readline()
    time.sleep(0.2)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def test_a_setting_that_cannot_be_used_is_exit_code_2_in_words() -> None:
    done = arkvory("repo", "list", PORT="many", check=False)
    assert (done.returncode, "PORT" in done.stderr, "Traceback" in done.stderr) == (2, True, False)


def test_help_needs_nothing_heavy() -> None:
    listed = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "app.cli", "--help"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30
    ).stderr
    for module in ("sqlalchemy", "flask", "gevent", "psycopg2"):
        assert f" {module}\n" not in listed
