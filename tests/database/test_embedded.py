"""The embedded PostgreSQL: made, shared, found again, stopped by its last user (STACK.md, "Embedded PostgreSQL")."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.pool import NullPool

from app.database import embedded
from app.database.embedded import EmbeddedPostgres
from config.settings import Settings

ROOT = Path(__file__).parents[2]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root changes users")

USER = """
import sys, time
from app.database import embedded
from config.settings import Settings
running = embedded.start(Settings.from_environment({"ARKVORY_DATA_DIR": sys.argv[1]}))
print(running.pid, running.url, flush=True)
if sys.stdin.readline().strip() == "leave":
    running.leave()
"""
GREEN_USER = "from gevent import monkey; monkey.patch_all()\n" + USER


@pytest.fixture
def data() -> Iterator[Path]:
    """A data directory that every account can reach."""
    folder = Path(tempfile.mkdtemp(prefix="arkvory-embedded-"))
    folder.chmod(0o711)
    yield folder / "data"
    end(folder / "data")
    shutil.rmtree(folder)


def end(data: Path) -> None:
    if (data / "postgres" / "postmaster.pid").exists():
        start(data).leave()


def start(data: Path) -> EmbeddedPostgres:
    return embedded.start(Settings.from_environment({"ARKVORY_DATA_DIR": str(data)}))


def sql(running: EmbeddedPostgres | str, statement: str) -> str | None:
    url = running if isinstance(running, str) else running.url
    with create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool).connect() as connection:
        result = connection.execute(text(statement))
        return str(result.scalar()) if result.returns_rows else None


class User:
    """Another process that uses the server."""

    def __init__(self, data: Path, *, program: str = USER, prefix: tuple[str, ...] = (), python: str = sys.executable) -> None:
        self.process = subprocess.Popen(
            [*prefix, python, "-c", program, str(data)], cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def wait_until_started(self) -> tuple[int, str]:
        """Process id of PostgreSQL and its address."""
        assert self.process.stdout is not None
        pid, url = self.process.stdout.readline().split()
        return int(pid), url

    def leave(self) -> int:
        self.process.communicate("leave\n", timeout=60)
        return self.process.returncode

    def kill9(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=60)


def test_a_first_start_makes_a_database_with_the_settings_that_arkvory_wants(data: Path) -> None:
    with start(data) as running:
        assert running.version == "18.6"
        assert sql(running, "show listen_addresses") == ""
        assert sql(running, "show max_connections") == "200"
        assert sql(running, "show timezone") == "UTC"
        assert sql(running, "show fsync") == "on"
        assert sql(running, "show server_encoding") == "UTF8"
        assert sql(running, "select datlocale from pg_database where datname = current_database()") == "C.UTF-8"
        assert sql(running, "select rolsuper from pg_roles where rolname = current_user") == "False"


def test_the_socket_and_the_password_are_closed_to_other_users(data: Path) -> None:
    with start(data):
        for closed in ("postgres", "postgres-run", "postgres-state", "secrets"):
            assert (data / closed).stat().st_mode & 0o077 == 0, closed
        assert (data / "secrets" / "postgres-password").stat().st_mode & 0o777 == 0o600


def test_a_wrong_password_is_refused_over_the_socket(data: Path) -> None:
    with start(data) as running:
        wrong = make_url(running.url).set(password="wrong", drivername="postgresql").render_as_string(hide_password=False)
        with pytest.raises(psycopg2.OperationalError, match="password authentication failed"):
            psycopg2.connect(wrong)
        with pytest.raises(psycopg2.OperationalError, match="no pg_hba"):
            psycopg2.connect(make_url(wrong).set(username="postgres").render_as_string(hide_password=False))


def test_a_second_user_attaches_at_once_and_the_last_to_leave_stops_the_server(data: Path) -> None:
    first = start(data)
    second = start(data)
    assert second.url == first.url
    pid = first.pid
    first.leave()
    first.leave()
    assert second.pid == pid
    assert sql(second, "select 1") == "1"
    second.leave()
    assert second.pid is None


def test_data_survives_a_stop(data: Path) -> None:
    with start(data) as running:
        sql(running, "create table kept as select 42 as answer")
    with start(data) as running:
        assert sql(running, "select answer from kept") == "42"


def test_the_server_outlives_its_killed_users_and_is_found_again(data: Path) -> None:
    users = [User(data), User(data)]
    pids = {user.wait_until_started()[0] for user in users}
    for user in users:
        user.kill9()
    found = start(data)
    assert {found.pid} == pids
    found.leave()
    assert found.pid is None


def test_a_killed_postmaster_is_replaced_and_committed_rows_are_there(data: Path) -> None:
    holder = start(data)
    sql(holder, "create table kept as select 42 as answer")
    dead = holder.pid
    assert dead is not None
    os.kill(dead, signal.SIGKILL)
    with start(data) as running:
        assert running.pid not in {None, dead}
        assert sql(running, "select answer from kept") == "42"
        holder.leave()
        assert running.pid is not None


def test_a_stale_process_number_that_belongs_to_another_program_is_no_obstacle(data: Path) -> None:
    start(data).leave()
    (data / "postgres" / "postmaster.pid").write_text(f"{os.getpid()}\n")
    with start(data) as running:
        assert sql(running, "select 1") == "1"


def test_first_starts_at_the_same_time_share_one_server(data: Path) -> None:
    users = [User(data), User(data, program=GREEN_USER), User(data)]
    assert len({user.wait_until_started() for user in users}) == 1
    assert [user.leave() for user in users] == [0, 0, 0]
    assert not (data / "postgres" / "postmaster.pid").exists()


def test_a_first_start_that_was_killed_half_way_is_begun_anew(data: Path) -> None:
    (data / "postgres.new" / "base").mkdir(parents=True)
    with start(data) as running:
        assert sql(running, "select 1") == "1"
    assert not (data / "postgres.new").exists()


def test_a_child_after_a_fork_keeps_the_server_in_use_and_does_not_stop_it(data: Path) -> None:
    running = start(data)
    child = os.fork()
    if child == 0:
        running.leave()
        time.sleep(60)
        os._exit(0)
    try:
        os.close(running._users)
        running._users = -1
        other = start(data)
        other.leave()
        assert other.pid is not None
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_the_server_does_not_hear_the_terminals_signals(data: Path) -> None:
    with start(data) as running:
        assert running.pid is not None
        assert os.getsid(running.pid) != os.getsid(0)
        assert os.getpgid(running.pid) != os.getpgid(0)


def test_another_major_version_is_refused_with_both_versions_and_the_way_out(data: Path) -> None:
    start(data).leave()
    (data / "postgres" / "PG_VERSION").write_text("11\n")
    with pytest.raises(embedded.CannotStart) as refusal:
        start(data)
    for said in ("PostgreSQL 11", "18.6", "PG_BIN", "db dump"):
        assert said in refusal.value.message
    (data / "postgres" / "PG_VERSION").write_text("18\n")
    start(data).leave()


def test_a_lost_password_is_refused_before_anything_starts(data: Path) -> None:
    start(data).leave()
    (data / "secrets" / "postgres-password").unlink()
    with pytest.raises(embedded.CannotStart, match="postgres-password is gone"):
        start(data)
    assert not (data / "postgres" / "postmaster.pid").exists()


@pytest.mark.parametrize("name", ["d" * 100, "a, b 'c' \"d\" $e ü %40"], ids=["too long for a socket", "odd characters"])
def test_any_data_directory_will_do(data: Path, name: str) -> None:
    data = data / name
    with start(data) as running:
        assert sql(running, "select 1") == "1"
        socket_folder = Path(str(make_url(running.url).query["host"]))
        assert socket_folder.parent == Path("/tmp")
        assert socket_folder.stat().st_mode & 0o777 == 0o700
        with start(data) as second:
            assert second.url == running.url
    with start(data) as again:
        assert again.url == running.url
    socket_folder.rmdir()


def test_a_socket_folder_that_others_may_write_is_not_trusted(data: Path) -> None:
    data = data / ("d" * 100)
    with start(data) as running:
        folder = Path(str(make_url(running.url).query["host"]))
    folder.chmod(0o777)
    with start(data) as again:
        other = Path(str(make_url(again.url).query["host"]))
    assert other != folder
    for made in (folder, other):
        made.rmdir()


def test_the_log_is_bounded_and_keeps_no_statements(data: Path) -> None:
    with start(data) as running:
        with pytest.raises(Exception, match="no_such_table"):
            sql(running, "select 'a-secret' from no_such_table")
        assert "no_such_table" in running.log.read_text()
        assert "a-secret" not in running.log.read_text()
        with running.log.open("a") as log:
            log.truncate(embedded.LOG_BYTES + 1)
        with start(data):
            assert running.log.stat().st_size < 1024 * 1024


def may_read_all() -> bool:
    """Whether CAP_DAC_READ_SEARCH is there to be handed on; plain containers lack it."""
    bounds = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapBnd:"))
    return bool(int(bounds.split()[1], 16) & 1 << 2)


@as_root
@pytest.mark.skipif(not may_read_all(), reason="CAP_DAC_READ_SEARCH is not in this container's bounds")
def test_root_below_a_closed_folder_starts_it_too(data: Path) -> None:
    data.mkdir(mode=0o700)
    with start(data / "closed" / "data") as running:
        assert sql(running, "select 1") == "1"
        assert (data / "closed" / "data" / "postgres").stat().st_uid != 0
    end(data / "closed" / "data")


@as_root
def test_root_is_told_what_to_set_when_the_servers_account_cannot_enter(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data.mkdir(mode=0o700)
    # a machine without util-linux
    monkeypatch.setenv("PATH", str(data))
    monkeypatch.setattr("app.database.programs.SYSTEM_PATH", str(data))
    with pytest.raises(embedded.CannotStart, match="ARKVORY_DATA_DIR"):
        start(data / "data")


@as_root
def test_a_normal_user_starts_it_and_root_joins_and_revives_it_under_that_users_account(data: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    data.mkdir()
    os.chown(data, nobody.pw_uid, nobody.pw_gid)
    user = User(data, prefix=("setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"))
    pid, url = user.wait_until_started()
    joined = start(data)
    assert (joined.pid, joined.url) == (pid, url)
    assert user.leave() == 0
    joined.leave()
    with start(data) as revived:
        assert sql(revived, "select 1") == "1"
        assert (data / "postgres" / "postmaster.pid").stat().st_uid == nobody.pw_uid


@as_root
def test_a_normal_user_is_told_that_the_data_is_anothers(data: Path) -> None:
    start(data).leave()
    nobody = pwd.getpwnam("nobody")
    done = subprocess.run(
        ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups", sys.executable, "-c", USER, str(data)],
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert "Start Arkvory as the user that it was started as before" in done.stderr
