"""The command `arkvoryctl`: what it prints, keeps, and ends with."""

from __future__ import annotations

import contextlib
import io
import json
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from arkvory import ctl
from tests.support.server import ROOT, Server
from tests.support.upstreams import FakeUpstream

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def arkvoryctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command in the test's folder, as somebody who has never used it."""

    def run(*arguments: str | Path, text: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        out, err = io.StringIO(), io.StringIO()
        with monkeypatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            for name in ("ARKVORY_URL", "ARKVORY_TOKEN", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
                patch.delenv(name, raising=False)
            for name, value in {"HOME": str(tmp_path), "COLUMNS": "200", **environment}.items():
                patch.setenv(name, value)
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
            patch.chdir(tmp_path)
            try:
                code = ctl.run([str(each) for each in arguments])
            except SystemExit as end:
                code = int(end.code or 0)
        return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())

    return run


@pytest.fixture
def here(arkvoryctl: Run, server: Server) -> Run:
    """The same with the administrator's login in the environment."""
    token = server.post("/api/v1/tokens", json={"name": "ctl", "permissions": ["read", "write", "delete", "manage"]}).json()["token"]

    def run(*arguments: str | Path, code: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
        done = arkvoryctl(*arguments, **({"ARKVORY_URL": server.url, "ARKVORY_TOKEN": token} | options))
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return run


def test_a_login_makes_a_token_and_keeps_it_where_nobody_else_can_read_it(arkvoryctl: Run, server: Server, tmp_path: Path) -> None:
    done = arkvoryctl("login", server.url + "/", "--user", "admin", "--password-stdin", text=f"{server.password}\n")
    assert done.returncode == 0 and f"Logged in to {server.url} as admin" in done.stdout, done.stderr
    kept = tmp_path / ".config" / "arkvory" / "logins.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600 and server.password not in kept.read_text()
    token = json.loads(kept.read_text())["servers"][server.url]["token"]
    assert arkvoryctl("repo", "create", "loggedin").returncode == 0
    assert "loggedin" in arkvoryctl("list").stdout
    done = arkvoryctl("logout")
    assert done.returncode == 0 and token not in kept.read_text()
    assert server.get("/api/v1/whoami", auth=None, headers={"Authorization": f"Bearer {token}"}).status_code == 401
    done = arkvoryctl("list")
    assert done.returncode == 2 and "no server is known: arkvoryctl login URL" in done.stderr
    assert arkvoryctl("logout").returncode == 2


def test_a_token_that_hangs_on_the_login_says_so_and_one_made_with_a_password_lasts(arkvoryctl: Run, server: Server) -> None:
    arkvoryctl("login", server.url, "--user", "admin", "--password-stdin", "--days", "2", text=f"{server.password}\n")
    assert "admin, administrator, by token" in arkvoryctl("whoami").stdout
    create = ("token", "create", "ci", "--permission", "read", "--json")
    hanging = arkvoryctl(*create, "--days", "365")
    document = json.loads(hanging.stdout)
    day = document["expires_at"][:10]
    assert f"arkvoryctl logout ends it, and it expires with that one, on {day}, instead of in 365 days.\n" in hanging.stderr
    assert "One that lasts: arkvoryctl token create ci --user admin" in hanging.stderr
    short = arkvoryctl(*create, "--days", "1")
    assert f"logout ends it, and it expires on {json.loads(short.stdout)['expires_at'][:10]}.\n" in short.stderr
    lasting = arkvoryctl(*create, "--days", "365", "--user", "admin", "--password-stdin", text=f"{server.password}\n")
    kept = json.loads(lasting.stdout)
    assert (lasting.stderr, kept["made_with"], kept["expires_at"] > document["expires_at"]) == ("", None, True)
    by_token = arkvoryctl(*create, ARKVORY_TOKEN=kept["token"])
    assert f"It was made with token {kept['id']}: when that is revoked, it ends too" in by_token.stderr
    assert f"token {document['id']} (ci) was made with it, and has ended too\n" in arkvoryctl("logout").stdout
    codes = [arkvoryctl("list", "--url", server.url, "--token", each["token"]).returncode for each in (document, kept)]
    assert codes == [3, 0]
    server.delete(f"/api/v1/tokens/{kept['id']}")
    assert arkvoryctl(*create, "--password-stdin").returncode == 2


def test_after_a_logout_no_command_goes_to_another_server(arkvoryctl: Run, server: Server) -> None:
    other = server.url.replace("127.0.0.1", "localhost")
    for url in (other, server.url):
        arkvoryctl("login", url, "--user", "admin", "--password-stdin", text=f"{server.password}\n")
    assert arkvoryctl("logout").stdout == f"Logged out of {server.url}.\n"
    done = arkvoryctl("list")
    assert done.returncode == 2 and f"(--url {other})" in done.stderr
    assert arkvoryctl("list", "--url", other).returncode == 0
    assert arkvoryctl("logout").returncode == 2 and arkvoryctl("logout", other).returncode == 0


def test_folders_keep_their_names_unless_a_slash_says_otherwise(here: Run, repository: str, tmp_path: Path) -> None:
    for name in ("m1/same", "m2/same", "m1/sub/deep"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    clash = here("upload", "m1/", "m2/", f"{repository}/both/", code=2)
    assert f"m1/same and m2/same would both be {repository}/both/same" in clash.stderr
    here("upload", "m1/same", "m2/same", f"{repository}/both/", code=2)
    assert json.loads(here("list", repository, "--json").stdout) == []
    here("upload", "m1", "m2", f"{repository}/both/")
    here("upload", "m1/", f"{repository}/slash/")
    here("upload", "m1", f"{repository}/renamed")
    here("upload", "m2", repository)
    found = [each["path"] for each in json.loads(here("list", repository, "--json").stdout)]
    assert found == sorted(found) == [
        "both/m1/same", "both/m1/sub/deep", "both/m2/same", "m2/same", "renamed/same", "renamed/sub/deep", "slash/same", "slash/sub/deep",
    ]  # fmt: skip
    assert "folders are not deleted as a whole" in here("delete", f"{repository}/both/", code=2).stderr
    assert f"with a slash, {repository}/both/m1/" in here("download", f"{repository}/both/m1", "out", code=2).stderr


def test_links_in_a_folder_are_skipped_and_named_or_followed_within_it(here: Run, repository: str, tmp_path: Path) -> None:
    (tmp_path / "f" / "sub").mkdir(parents=True)
    (tmp_path / "outside").write_text("secret")
    (tmp_path / "f" / "sub" / "a").write_text("a")
    for name, target in (("out", "../outside"), ("file", "sub/a"), ("folder", "sub"), ("sub/up", ".."), ("gone", "nowhere")):
        (tmp_path / "f" / name).symlink_to(target)
    done = here("upload", "f", f"{repository}/plain/", "--quiet")
    assert {line.split(":")[0] for line in done.stderr.splitlines()} == {"f/out", "f/file", "f/folder", "f/sub/up", "f/gone"}
    (tmp_path / "f" / "gone").unlink()
    done = here("upload", "f", f"{repository}/followed/", "--follow-links", "--quiet")
    assert "f/out: a symbolic link out of the folder" in done.stderr
    assert "f/sub/up: a symbolic link to a folder that it is in" in done.stderr
    found = [each["path"] for each in json.loads(here("list", repository, "--json").stdout)]
    assert found == ["followed/f/file", "followed/f/folder/a", "followed/f/sub/a", "plain/f/sub/a"]


def test_tokens_that_others_can_read_are_not_used(arkvoryctl: Run, server: Server, tmp_path: Path) -> None:
    arkvoryctl("login", server.url, "--user", "admin", "--password-stdin", text=f"{server.password}\n")
    kept = tmp_path / ".config" / "arkvory" / "logins.json"
    kept.chmod(0o644)
    done = arkvoryctl("list")
    assert done.returncode == 1 and f"chmod 600 {kept}" in done.stderr


def test_a_token_of_elsewhere_is_taken_and_a_wrong_one_is_not(arkvoryctl: Run, server: Server) -> None:
    token = server.post("/api/v1/tokens", json={"name": "made", "permissions": ["read"]}).json()["token"]
    assert arkvoryctl("login", server.url, "--token-stdin", text=f"{token}\n").returncode == 0
    done = arkvoryctl("login", server.url, "--token-stdin", text="arkv_wrong\n")
    assert done.returncode == 3 and "Log in: arkvoryctl login URL" in done.stderr
    done = arkvoryctl("login", server.url, "--user", "admin", "--password-stdin", text="wrong\n")
    assert done.returncode == 3 and "Traceback" not in done.stderr


def test_nobody_is_asked_where_there_is_no_terminal(arkvoryctl: Run, server: Server) -> None:
    for arguments, words in (
        (("login", server.url), "--user"),
        (("login", server.url, "--user", "ada"), "--password-stdin"),
        (("repo", "delete", "files", "--url", server.url), "--yes"),
    ):
        done = arkvoryctl(*arguments)
        assert done.returncode == 2 and words in done.stderr


def test_files_go_up_are_listed_found_fetched_and_deleted(here: Run, repository: str, tmp_path: Path) -> None:
    (tmp_path / "report.pdf").write_bytes(b"report")
    (tmp_path / "build" / "sub").mkdir(parents=True)
    (tmp_path / "build" / "sub" / "a.txt").write_bytes(b"a" * 2048)
    done = here("upload", "report.pdf", "build/", f"{repository}/2026/")
    assert done.stdout == "2 files uploaded, 2.0 KiB.\n"
    assert "Uploaded 2026/report.pdf (6 B)" in done.stderr.splitlines()
    listed = here("list", f"{repository}/2026/").stdout.splitlines()
    assert listed[0].split() == ["PATH", "SIZE", "UPDATED", "AT", "SHA256"] and listed[1].startswith("2026/report.pdf  6 B ")
    found = json.loads(here("search", "report.pdf", "--json").stdout)
    assert "2026/report.pdf" in {each["path"] for each in found if each["repository"] == repository}
    assert here("download", f"{repository}/2026/report.pdf", "--quiet").stderr == ""
    assert (tmp_path / "report.pdf").read_bytes() == b"report"
    done = here("download", f"{repository}/2026/", "out", "--json")
    assert [(each["path"], each["verified"]) for each in json.loads(done.stdout)] == [("2026/report.pdf", True), ("2026/sub/a.txt", True)]
    assert (tmp_path / "out" / "sub" / "a.txt").read_bytes() == b"a" * 2048
    done = here("download", f"{repository}/2026/", "out")
    assert done.stdout == "0 files downloaded, 0 B; 2 there already.\n" and "2026/report.pdf was there already (6 B)\n" in done.stderr
    here("delete", f"{repository}/2026/report.pdf")
    done = here("download", f"{repository}/2026/report.pdf", code=4)
    assert done.stderr.startswith("arkvoryctl: ") and "What there is: arkvoryctl repo list" in done.stderr


def test_standard_input_goes_up_under_a_name(here: Run, repository: str, tmp_path: Path) -> None:
    here("upload", "-", f"{repository}/from/stdin", text="typed")
    here("download", f"{repository}/from/stdin", "got")
    assert (tmp_path / "got").read_text() == "typed"
    assert "standard input has no name" in here("upload", "-", f"{repository}/", code=2).stderr


def test_only_new_replaces_nothing(here: Run, repository: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    here("upload", "a", repository, "--only-new")
    assert "exists already" in here("upload", "a", repository, "--only-new", code=1).stderr


def test_repositories_and_tokens_are_made_shown_and_taken_away(here: Run) -> None:
    made = here("repo", "create", "ctlmade", "--public", "--quota", "2GiB").stdout
    assert "FORMAT        raw\n" in made and "QUOTA         2.0 GiB\n" in made
    assert json.loads(here("--json", "repo", "show", "ctlmade").stdout)["quota_bytes"] == 2 << 30
    assert "ctlmade" in here("repo", "list", "--format", "raw").stdout
    assert here("repo", "create", "ctlmade", code=1).stderr.count("ctlmade") == 1
    here("repo", "create", "ctlgroup", "--member", "ctlmade")
    assert "Repository ctlmade is gone." in here("repo", "delete", "ctlmade", "--yes").stdout
    token = json.loads(here("token", "create", "bot", "--permission", "read,write", "--days", "7", "--json").stdout)
    assert token["token"].startswith("arkv_") and token["permissions"] == ["read", "write"]
    assert token["token"] not in here("token", "list").stdout
    here("token", "revoke", str(token["id"]))
    here("token", "revoke", str(token["id"]), code=4)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("list", "nowhere"), 4, "What there is: arkvoryctl repo list"),
        (("list", "files", "--token", "arkv_wrong"), 3, "Log in: arkvoryctl login"),
        (("list", "--url", "http://127.0.0.1:9", "--retry-for", "0"), 5, "Is the server's address right"),
        (("list", "--url", "ftp://x"), 2, "is not an address of a server"),
        (("list", "--url", "http://a:b@x"), 2, "neither a login nor a query"),
        (("upload", "missing", "files/a"), 1, "cannot be read: No such file"), (("upload", "a", "b", "files/c"), 2, "files/c/"),
        (("download", "/a"), 2, "is not REPOSITORY/PATH"), (("frobnicate",), 2, "invalid choice"), ((), 2, "required"),
        (("token", "create", "x", "--permission", "fly"), 2, "'fly' are not some of read,write,delete,manage"),
        (("repo", "create", "x", "--quota", "much"), 2, "is not a size such as 500M or 2GiB"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_in_a_line_with_what_to_do(here: Run, arguments: tuple[str, ...], code: int, words: str) -> None:
    done = here(*arguments, code=code)
    assert words in done.stderr and "Traceback" not in done.stderr and done.stdout == ""


def test_a_reader_that_has_seen_enough_is_no_error(server: Server, arkvoryctl: Run, repository: str, tmp_path: Path) -> None:
    command = f"{sys.executable} -m arkvory --help | head -1"
    done = subprocess.run(["bash", "-c", command], env={"PYTHONPATH": str(ROOT / "sdk")}, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("usage: arkvoryctl") and done.stderr == ""


def test_names_that_a_terminal_would_obey_are_shown_harmlessly(here: Run, server: Server, repository: str) -> None:
    server.put(f"/raw/{repository}/a%1b%5b31mred", b"x")
    assert "\x1b" not in here("list", repository).stdout


def test_all_commands_explain_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("login", "logout", "whoami", "upload", "download", "list", "search", "delete", "repo", "token"):
        with pytest.raises(SystemExit) as told:
            ctl.run([verb, "--help"])
        assert told.value.code == 0 and f"usage: arkvoryctl {verb}" in capsys.readouterr().out


def test_what_a_server_says_is_nothing_that_a_terminal_obeys(arkvoryctl: Run, upstream: FakeUpstream) -> None:
    upstream.put("/api/v1/repositories/x", b'{"detail": "\\u001b]0;owned\\u0007"}', status=403)
    done = arkvoryctl("--url", upstream.url, "repo", "show", "x")
    assert done.returncode == 3 and "owned" in done.stderr and not {"\x1b", "\x07"} & set(done.stderr)
