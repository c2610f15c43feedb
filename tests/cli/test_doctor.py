"""`arkvory doctor` with a server, without one, and without PostgreSQL; each fault is made for real and must be named."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from app.database.embedded import EmbeddedPostgres
from app.http.doctor import configuration, storage
from config.settings import Settings, overruled_variables, unknown_variables
from tests.cli.test_arkvory import arkvory
from tests.support import certificates
from tests.support.certificates import Pair
from tests.support.database import take_down
from tests.support.server import Server, free_port

MakeServer = Callable[..., Server]


class Report:
    """What the command printed with --json; `of` are the findings of one check."""

    def __init__(self, **environment: str) -> None:
        done = arkvory("doctor", "--json", check=False, **environment)
        assert "Traceback" not in done.stderr, done.stderr
        self.code = done.returncode
        self.document: dict[str, Any] = json.loads(done.stdout)

    def of(self, check: str) -> list[dict[str, str]]:
        return [each for each in self.document["checks"] if each["check"] == check]

    def status(self, check: str) -> str:
        found = self.of(check)
        assert len(found) == 1, found
        return found[0]["status"]


def stopped(server: Server, **environment: str) -> Report:
    return Report(ARKVORY_DATA_DIR=str(server.data), ARKVORY_DATABASE_URL=str(server.database_url), **environment)


def run(url: str | None, statement: str) -> None:
    with create_engine(str(url), isolation_level="AUTOCOMMIT", poolclass=NullPool).connect() as connection:
        connection.execute(text(statement))


# With a running server


def test_a_server_that_is_well_gets_a_line_for_each_check_and_no_fail(server: Server) -> None:
    report = Report(ARKVORY_DATA_DIR=str(server.data))
    assert report.code == 0
    well = "server database migrations connections clock ownership switches counters capacity uploads blobs storage"
    for check in well.split():
        assert report.status(check) == "ok", report.of(check)
    assert server.url in report.of("server")[0]["message"]
    # The server of the tests was started with a password in its environment.
    assert report.status("administrator") == "warn"
    assert all(bool(each["advice"]) == (each["status"] != "ok") for each in report.document["checks"])


def test_for_people_each_line_begins_with_the_status_and_the_advice_stands_below(server: Server) -> None:
    done = arkvory("doctor", ARKVORY_DATA_DIR=str(server.data))
    lines = done.stdout.splitlines()
    assert any(line.startswith("OK    database") for line in lines)
    at = next(number for number, line in enumerate(lines) if line.startswith("WARN  administrator"))
    assert "take it out of the environment" in lines[at + 1]


def test_the_report_is_for_administrators_alone(server: Server) -> None:
    server.post("/api/v1/users", json={"name": "eve", "password": "eves-password"})
    assert server.get("/api/v1/doctor", auth=None).status_code == 401
    assert server.get("/api/v1/doctor", auth=("eve", "eves-password")).status_code == 403
    narrow = server.post("/api/v1/tokens", json={"name": "narrow", "permissions": ["read"]}).json()["token"]
    assert server.get("/api/v1/doctor", auth=("x", narrow)).status_code == 403
    shown = server.get("/api/v1/doctor")
    assert shown.status_code == 200
    assert server.password not in shown.text
    assert str(server.database_url) not in shown.text


def test_it_asks_a_server_elsewhere_with_an_administrators_token(server: Server, tmp_path: Path) -> None:
    every = ["read", "write", "delete", "manage"]
    token = server.post("/api/v1/tokens", json={"name": "whole", "permissions": every}).json()["token"]
    there = {"ARKVORY_DATA_DIR": str(tmp_path / "none"), "ARKVORY_URL": server.url}
    report = Report(**there, ARKVORY_TOKEN=token, ARKVORY_MAX_UPLOADS="4")
    assert (report.code, report.status("server"), report.status("counters"), report.of("drift")) == (0, "ok", "ok", [])
    refused = Report(**there, ARKVORY_TOKEN="arkv_wrong")
    assert (refused.code, refused.status("server")) == (1, "fail")
    weak = server.post("/api/v1/tokens", json={"name": "weak", "permissions": ["read"]}).json()["token"]
    refused = Report(**there, ARKVORY_TOKEN=weak)
    assert (refused.code, "administrator" in refused.of("server")[0]["advice"]) == (1, True)
    assert "it runs, and refuses" in refused.of("server")[0]["message"]


def test_a_counter_that_differs_from_its_sum_is_a_fail_and_stays_as_it_is(make_server: MakeServer) -> None:
    """DESIGN 5, Counters: read only, so that the fault can still be looked into."""
    server = make_server()
    server.repository("files")
    server.put("/raw/files/a", b"12345")
    run(server.database_url, "update arkvory_upload_bytes set bytes = bytes + 7 where status = 'published'")
    for _ in range(2):
        report = Report(ARKVORY_DATA_DIR=str(server.data))
        assert (report.code, report.status("counters")) == (1, "fail")
        assert "12 bytes of 1 uploads counted, 5 of 1 summed" in report.of("counters")[0]["message"]


def test_uploads_and_deletions_that_were_left_are_named(make_server: MakeServer) -> None:
    server = make_server(ARKVORY_CLEANUP_SECONDS="3600")
    run(
        server.database_url,
        "insert into arkvory_uploads (id, repository_id, status, bytes, lease_until) "
        "values (gen_random_uuid(), 1, 'open', 3, now() - interval '1 day')",
    )
    run(
        server.database_url,
        f"insert into arkvory_blobs (digest, size, status, candidate_at) values ('{'0' * 64}', 1, 'deleting', now() - interval '1 day')",
    )
    report = Report(ARKVORY_DATA_DIR=str(server.data))
    assert (report.code, report.status("uploads"), report.status("blobs")) == (0, "warn", "warn")


def test_the_read_only_switch_is_named_and_hinders_neither_the_doctor_nor_a_scrub(make_server: MakeServer) -> None:
    server = make_server()
    assert server.patch("/api/v1/installation", json={"read_only": True}).status_code == 200
    report = Report(ARKVORY_DATA_DIR=str(server.data))
    assert (report.code, report.status("switches")) == (0, "warn")
    assert server.post("/api/v1/scrub", json={}).status_code == 200
    server.stop()
    assert stopped(server).status("switches") == "warn"


def test_a_setting_changed_since_the_start_is_drift(server: Server) -> None:
    same = {"ARKVORY_DATA_DIR": str(server.data), "ARKVORY_MAX_UPLOADS": "8"}
    assert Report(**same).of("drift") == []
    report = Report(**same | {"ARKVORY_MAX_UPLOADS": "4"})
    assert report.status("drift") == "warn"
    assert "ARKVORY_MAX_UPLOADS is 4 here, and 8 in the running server" in report.of("drift")[0]["message"]
    networks = "10.0.0.0/8,fd00::/8"
    (found,) = Report(**same, ARKVORY_TRUSTED_PROXIES=networks).of("drift")
    assert f"ARKVORY_TRUSTED_PROXIES is {networks} here, and not set in the running server" in found["message"]


def test_the_running_server_says_so_when_postgresql_is_away(private_postgres: EmbeddedPostgres, make_server: MakeServer) -> None:
    server = make_server(ARKVORY_DATABASE_URL=private_postgres.url)
    take_down(private_postgres, signal.SIGKILL)
    report = Report(ARKVORY_DATA_DIR=str(server.data))
    assert (report.code, report.status("server"), report.status("database")) == (1, "ok", "fail")
    assert report.of("counters") == []
    assert report.status("disk") in {"ok", "warn"}


# Without a server


def test_without_a_server_it_looks_for_itself_and_changes_nothing(make_server: MakeServer) -> None:
    server = make_server()
    server.stop()
    before = sorted(str(path) for path in server.data.rglob("*"))
    report = stopped(server)
    assert (report.code, report.status("database"), report.status("ownership"), report.status("counters")) == (0, "ok", "ok", "ok")
    assert "none runs" in report.of("server")[0]["message"]
    assert sorted(str(path) for path in server.data.rglob("*")) == before


def test_before_the_first_start_there_is_nothing_wrong_and_nothing_is_made(tmp_path: Path) -> None:
    report = Report(ARKVORY_DATA_DIR=str(tmp_path / "none"))
    assert (report.code, report.status("database"), report.status("storage")) == (0, "ok", "ok")
    assert not (tmp_path / "none").exists()


def test_an_owner_that_no_command_finds_is_a_fail(server: Server, tmp_path: Path) -> None:
    report = Report(ARKVORY_DATA_DIR=str(tmp_path), ARKVORY_DATABASE_URL=str(server.database_url))
    assert (report.code, report.status("ownership")) == (1, "fail")
    assert "owns this storage, but no server answers here" in report.of("ownership")[0]["message"]


def test_tables_that_are_behind_are_a_fail_that_names_the_command(empty_database_url: str, tmp_path: Path) -> None:
    report = Report(ARKVORY_DATA_DIR=str(tmp_path), ARKVORY_DATABASE_URL=empty_database_url)
    assert (report.code, report.status("migrations")) == (1, "fail")
    assert "arkvory db upgrade" in report.of("migrations")[0]["advice"]
    assert report.of("counters") == []


def test_pools_larger_than_postgresql_are_a_fail(database_url: str, tmp_path: Path) -> None:
    report = Report(ARKVORY_DATA_DIR=str(tmp_path), ARKVORY_DATABASE_URL=database_url, ARKVORY_DATABASE_POOL_SIZE="500")
    assert (report.code, report.status("connections")) == (1, "fail")
    assert "request 500" in report.of("connections")[0]["message"]


def test_postgresql_away_is_a_line_and_no_traceback(tmp_path: Path) -> None:
    report = Report(ARKVORY_DATA_DIR=str(tmp_path), ARKVORY_DATABASE_URL=f"postgresql://nobody:hidden-word@127.0.0.1:{free_port()}/none")
    assert (report.code, report.status("database")) == (1, "fail")
    assert "hidden-word" not in json.dumps(report.document)
    assert report.status("storage") == "ok"


def test_a_setting_that_cannot_be_read_is_a_line_too(tmp_path: Path) -> None:
    report = Report(ARKVORY_DATA_DIR=str(tmp_path), PORT="eighty")
    assert (report.code, report.status("configuration")) == (1, "fail")


def test_a_server_elsewhere_that_does_not_answer_is_a_line(tmp_path: Path) -> None:
    report = Report(ARKVORY_DATA_DIR=str(tmp_path), ARKVORY_URL=f"http://127.0.0.1:{free_port()}")
    assert (report.code, report.status("server")) == (1, "fail")


# The data directory


def findings(**environment: str) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for each in storage.examine_storage(Settings.from_environment(environment), storage.Expected()):
        found.setdefault(each.check, []).append(each)
    return found


@pytest.mark.parametrize(("name", "mode", "status"), [("secrets", 0o750, "fail"), (".", 0o777, "fail"), (".", 0o770, "warn")])
def test_modes_that_let_others_in_are_named_with_the_command(tmp_path: Path, name: str, mode: int, status: str) -> None:
    (tmp_path / "secrets").mkdir(mode=0o700)
    tmp_path.chmod(0o711)
    assert [each.status for each in findings(ARKVORY_DATA_DIR=str(tmp_path))["permissions"]] == ["ok"]
    (tmp_path / name).chmod(mode)
    found = findings(ARKVORY_DATA_DIR=str(tmp_path))["permissions"]
    assert [each.status for each in found] == [status]
    assert found[0].advice.startswith("chmod ")


def test_a_secret_that_others_can_read_is_a_fail(tmp_path: Path) -> None:
    (tmp_path / "server.json").touch(mode=0o644)
    assert [each.status for each in findings(ARKVORY_DATA_DIR=str(tmp_path))["permissions"]] == ["fail"]


@pytest.fixture
def closed_folder() -> Iterator[Path]:
    """A data directory that this user may enter and not write; root becomes nobody for it."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    (folder / "postgres").mkdir()
    (folder / "postgres-state").mkdir(mode=0o000)
    folder.chmod(0o555)
    me = os.geteuid()
    if me == 0:
        os.seteuid(65534)
    try:
        yield folder
    finally:
        os.seteuid(me)
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_a_folder_of_somebody_else_is_a_fail_and_no_traceback(closed_folder: Path) -> None:
    given = {"ARKVORY_DATA_DIR": str(closed_folder), "ARKVORY_DATABASE_URL": "postgresql://h/d"}
    found = findings(**given)["storage"]
    assert [each.status for each in found] == ["fail"]
    assert "cannot write" in found[0].message
    assert configuration.examine_configuration(Settings.from_environment(given))


def test_a_disk_within_its_reserve_is_a_fail(tmp_path: Path) -> None:
    found = findings(ARKVORY_DATA_DIR=str(tmp_path), ARKVORY_DISK_RESERVE_BYTES="900T")["disk"][0]
    assert (found.status, "507" in found.message) == ("fail", True)


# The configuration


@pytest.mark.parametrize(
    ("environment", "status", "words"),
    [
        ({"ARKVORY_DEPLOYMENT": "single", "WEB_CONCURRENCY": "4"}, "fail", "WEB_CONCURRENCY=4"),
        ({"WEB_CONCURRENCY": "4"}, "warn", "WEB_CONCURRENCY=4"),
        ({"ARKVORY_DEPLOYMENT": "cluster"}, "fail", "without ARKVORY_INSTANCE_ID"),
        ({"ARKVORY_PUBLIC_URL": "repo.example.org"}, "fail", "ARKVORY_PUBLIC_URL"),
        ({"ARKVORY_PUBLIC_URL": "https://repo.example.org/?a=b"}, "fail", "ARKVORY_PUBLIC_URL"),
        ({"ARKVORY_TRUSTED_PROXIES": "10.0.0.0/33"}, "fail", "ARKVORY_TRUSTED_PROXIES"),
        ({"ARKVORY_TRUSTED_PROXIES": "0.0.0.0/0"}, "warn", "believes everybody"),
        ({"ARKVORY_MAX_UPLOADS": "2", "ARKVORY_MAX_UPLOADS_PER_KEY": "8"}, "warn", "ARKVORY_MAX_UPLOADS_PER_KEY"),
        ({"ARKVORY_CAPACITY_BYTES": "1G", "ARKVORY_MAX_UPLOAD_BYTES": "2G"}, "warn", "ARKVORY_MAX_UPLOAD_BYTES"),
        ({"ARKVORY_DATABASE_SESSION_URL": "postgresql://h/d"}, "warn", "ARKVORY_DATABASE_SESSION_URL"),
        ({"ARKVORY_LOG_LEVEL": "loud"}, "fail", "ARKVORY_LOG_LEVEL"),
    ],
)
def test_settings_that_contradict_each_other_are_named(environment: dict[str, str], status: str, words: str, tmp_path: Path) -> None:
    found = configuration.examine_configuration(Settings.from_environment({"ARKVORY_DATA_DIR": str(tmp_path)} | environment))
    assert [(each.status, words in each.message) for each in found if words in each.message] == [(status, True)]


def certificate_findings(pair: Pair, tmp_path: Path, **more: str) -> list[tuple[str, str]]:
    settings = Settings.from_environment({"ARKVORY_DATA_DIR": str(tmp_path)} | pair.settings | more)
    return [(each.status, each.message) for each in configuration.examine_configuration(settings)]


def test_a_certificate_that_ends_soon_or_is_wrong_is_named_and_so_is_an_open_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = certificates.make(tmp_path, "it")
    found = certificate_findings(pair, tmp_path)
    assert [(status, message[:11]) for status, message in found] == [("ok", "valid until")]
    assert certificate_findings(pair, tmp_path, ARKVORY_PUBLIC_URL="http://repo.example.org")[-1][0] == "warn"
    monkeypatch.setattr(configuration, "SOON_SECONDS", 31 * 86400)
    assert certificate_findings(pair, tmp_path)[0][0] == "warn"
    pair.key.chmod(0o604)
    assert certificate_findings(pair, tmp_path)[1][0] == "fail"
    pair.key.write_text("nonsense")
    assert certificate_findings(pair, tmp_path)[0][0] == "fail"


def test_an_embedded_database_that_is_passed_over_is_named(tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()
    found = configuration.examine_configuration(
        Settings.from_environment({"ARKVORY_DATA_DIR": str(tmp_path), "ARKVORY_DATABASE_URL": "postgresql://h/d"})
    )
    assert any("that is not used" in each.message for each in found)


def test_variables_that_nothing_reads_are_found_with_the_one_that_was_meant() -> None:
    assert unknown_variables({"ARKVORY_MAX_UPLOAD": "3", "ARKVORY_NONSENSE_XYZ": "1", "PORT": "1", "ARKVORY_BIND": "::"}) == {
        "ARKVORY_MAX_UPLOAD": "ARKVORY_MAX_UPLOADS",
        "ARKVORY_NONSENSE_XYZ": None,
    }
    both = {"ARKVORY_DATABASE_URL": "postgresql://a/b", "DATABASE_URL": "postgresql://c/d"}
    assert overruled_variables(both) == {"DATABASE_URL": "ARKVORY_DATABASE_URL"}
    assert overruled_variables(both | {"DATABASE_URL": "postgresql://a/b"}) == {}
