"""PostgreSQL that Arkvory starts itself, in its data directory, when no other is configured.

    postgres/              PGDATA; belongs to the account that runs the server
    postgres.new/          a cluster being made; renamed to postgres/ when it is complete
    postgres-run/          the socket; only the server's account (and root) can enter. Where this path is too
                           long for a socket, a private folder in /tmp takes its place
    postgres-bin/VERSION/  copy of the bundled programs, where that account cannot reach the originals
                           (in /var/cache/arkvory/ when it cannot enter the data directory by itself either)
    postgres-state/
        lock               held while a server is looked for, made, started or stopped
        users              each process that uses the server holds a shared lock on it; whoever leaves
                           and gets the exclusive one stops the server. A killed process's lock vanishes with it
        server.json        socket folder and version of the server started last
        server.log         what the server and its tools print; what is beyond 8 MiB at a start moves to server.log.1
    secrets/postgres-password

The server outlives its users' violent ends and is found again by the next one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import signal
import socket
import stat
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from sqlalchemy.engine import URL

from app.database.programs import Account, CannotStart, Programs, cluster_version, find_programs, server_account, user_name
from config.settings import Settings

__all__ = ["CannotStart", "EmbeddedPostgres", "start"]

ROLE = DATABASE = "arkvory"
LOCK_SECONDS = 150.0
READY_SECONDS = 60.0
STOP_SECONDS = 60.0
RETRY_SECONDS = 10.0
PROBE_SECONDS = 5.0
LOG_BYTES = 8 * 1024 * 1024
SOCKET_NAME = ".s.PGSQL.5432"
SOCKET_PATH_BYTES = 107

READY, STARTING, AWAY = "ready", "starting", "away"

SERVER_SETTINGS = {
    "port": "5432",
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "max_wal_size": "512MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
    # psycopg2 puts values into the statement's text, and those do not belong in a log
    "log_min_error_statement": "panic",
}


@dataclass(frozen=True)
class _Place:
    """The data directory, with the names of the map above."""

    data: Path

    def __truediv__(self, name: str) -> Path:
        return self.data / name

    @property
    def cluster(self) -> Path:
        return self / "postgres"

    @property
    def record(self) -> Path:
        return self / "postgres-state" / "server.json"

    @property
    def log(self) -> Path:
        return self / "postgres-state" / "server.log"

    @property
    def password(self) -> Path:
        return self / "secrets" / "postgres-password"

    def make(self) -> None:
        """Make the data directory and the folders that belong to the caller alone."""
        if not self.data.exists():
            self.data.mkdir(parents=True)
            self.data.chmod(0o711)
        for name in ("postgres-state", "secrets"):
            (self / name).mkdir(mode=0o700, exist_ok=True)

    def pid(self) -> int | None:
        """Process id of the server that runs, None without one."""
        try:
            pid = int((self.cluster / "postmaster.pid").read_text().split("\n", 1)[0])
        except (FileNotFoundError, ValueError):
            return None
        return pid if _serves(pid, self.cluster) else None


@dataclass
class EmbeddedPostgres:
    """A running server and this process's share in it.

    `url` is SQLAlchemy's form with the password, `version` as "18.6", `data` the data directory. Made before a fork, it
    keeps the server in use by the children too, whose `leave()` does nothing.
    """

    url: str = field(repr=False)
    version: str
    data: Path
    _users: int
    _owner: int = field(default_factory=os.getpid)

    @property
    def pid(self) -> int | None:
        """Process id of the server, None when it does not run."""
        return _Place(self.data).pid()

    @property
    def log(self) -> Path:
        """File with what the server prints."""
        return _Place(self.data).log

    def leave(self) -> None:
        """Stop using the server; the last user stops it, which ends open sessions and keeps the data.

        Waits at most some minutes (for a start by another process, for the server's last checkpoint); a second call does
        nothing. Raises `CannotStart` when the server does not stop.
        """
        if self._users < 0 or os.getpid() != self._owner:
            return
        users, self._users = self._users, -1
        place = _Place(self.data)
        try:
            with _locked(place):
                if _lock_now(users, fcntl.LOCK_EX):
                    _stop(place)
        finally:
            os.close(users)

    def __enter__(self) -> EmbeddedPostgres:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.leave()


def start(settings: Settings) -> EmbeddedPostgres:
    """Find the running server of `settings.data_dir`, or make and start one, and hold it until `leave()`.

    Attaching takes some milliseconds, a first start about a second. Raises `CannotStart`.
    """
    place = _Place(settings.data_dir.resolve())
    try:
        place.make()
        with _locked(place):
            users = os.open(place / "postgres-state" / "users", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                return _join(settings, place, users)
            except BaseException:
                os.close(users)
                raise
    except (PermissionError, FileNotFoundError, NotADirectoryError) as error:
        raise CannotStart(
            f"the embedded PostgreSQL in {place.data} cannot be used by {user_name(os.geteuid())}: {error}. "
            "Start Arkvory as the user that it was started as before, or set ARKVORY_DATA_DIR to a folder of your own."
        ) from error


def is_its_address(data: Path, url: URL) -> bool:
    """Whether that address leads to the server of this data directory, the one started last."""
    record = _record(_Place(data.resolve()))
    return record is not None and url.query.get("host") == record.get("socket")


def _join(settings: Settings, place: _Place, users: int) -> EmbeddedPostgres:
    # whoever stops the server holds the lock file too, so nobody can be in the way here
    fcntl.flock(users, fcntl.LOCK_SH | fcntl.LOCK_NB)
    _trim(place.log)
    record = _running(place) or _cold_start(settings, place)
    url = URL.create("postgresql+psycopg2", ROLE, _password(place), database=DATABASE, query={"host": record["socket"]})
    return EmbeddedPostgres(url.render_as_string(hide_password=False), record["version"], place.data, users)


# Waiting


@contextlib.contextmanager
def _locked(place: _Place) -> Iterator[None]:
    descriptor = os.open(place / "postgres-state" / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        # polling, since a blocking flock would also block a gevent loop
        if not _until(lambda: _lock_now(descriptor, fcntl.LOCK_EX), LOCK_SECONDS):
            raise CannotStart(f"another process has been starting or stopping PostgreSQL in {place.data} for {LOCK_SECONDS:.0f} s")
        yield
    finally:
        os.close(descriptor)


def _lock_now(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _until(condition: Callable[[], bool], seconds: float, pause: float = 0.02) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True


# The running server


def _running(place: _Place) -> dict[str, str] | None:
    """The record of the server that runs, once it is ready; None when there is none."""
    record = _record(place)
    if record is None or place.pid() is None:
        return None
    folder = Path(record["socket"])
    if not _private(folder, place.cluster.stat().st_uid):
        return None
    if not _until(lambda: _probe(folder) != STARTING, READY_SECONDS, 0.1):
        raise CannotStart(f"PostgreSQL in {place.data} runs but is not ready after {READY_SECONDS:.0f} s; see {place.log}")
    return record if _probe(folder) == READY else None


def _record(place: _Place) -> dict[str, str] | None:
    try:
        record: dict[str, str] = json.loads(place.record.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return record


def _probe(folder: Path) -> str:
    """Ask as pg_isready does. A server that accepts and says nothing counts as starting: it must not get a twin."""
    fields = f"user\0{ROLE}\0database\0{DATABASE}\0\0".encode()
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(PROBE_SECONDS)
        try:
            client.connect(str(folder / SOCKET_NAME))
            client.sendall(struct.pack("!ii", len(fields) + 8, 196608) + fields)
            answer = client.recv(4096)
        except (FileNotFoundError, ConnectionError):
            return AWAY
        except OSError:
            return STARTING
    # 57P03 cannot_connect_now: starting up, recovering or shutting down
    return STARTING if not answer or b"C57P03\0" in answer else READY


def _private(folder: Path, owner: int) -> bool:
    """Whether it is a real folder of that user, closed to all others: nobody else can have put a socket there."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == owner and not found.st_mode & 0o077


def _serves(pid: int, cluster: Path) -> bool:
    """Whether that process is the server of the cluster; after a crash, or in a new container, its number may be anybody's."""
    try:
        return cluster.samefile(f"/proc/{pid}/cwd")
    except PermissionError:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "postgres"
    except FileNotFoundError:
        return not Path("/proc/self").exists() and _alive(pid)


def _alive(pid: int) -> bool:
    """Whether the process runs; one that is dead and not yet buried by its parent does not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _stop(place: _Place) -> None:
    """Stop as `pg_ctl stop -m fast` does, but without a child process: a gunicorn master buries all children itself."""
    pid = place.pid()
    if pid is None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGINT)
    if not _until(lambda: place.pid() != pid, STOP_SECONDS):
        raise CannotStart(f"PostgreSQL (process {pid}) has not stopped within {STOP_SECONDS:.0f} s; see {place.log}")


# A cold start


def _cold_start(settings: Settings, place: _Place) -> dict[str, str]:
    with _log(place) as log:
        account = server_account(place.cluster, inside=place / "postgres-state")
        programs = find_programs(place.cluster, settings.pg_bin, place / "postgres-bin", account)
        if cluster_version(place.cluster) is None:
            _make_cluster(place, account, programs, log)
        _password(place)
        folder = _socket_folder(place, account)
        record = {"socket": str(folder), "version": programs.version}
        # before the start, so that whoever comes after a kill in between finds the server
        _write(place.record, json.dumps(record))
        _launch_until_ready(place, account, programs, folder, log)
    return record


@contextlib.contextmanager
def _log(place: _Place) -> Iterator[int]:
    descriptor = os.open(place.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _trim(log: Path) -> None:
    """Keep the log bounded; it is emptied in place, since a running server keeps its descriptor."""
    with contextlib.suppress(FileNotFoundError):
        if log.stat().st_size > LOG_BYTES:
            shutil.copyfile(log, log.with_suffix(".log.1"))
            os.truncate(log, 0)


def _log_tail(place: _Place) -> str:
    return "\n".join(place.log.read_text(errors="replace").splitlines()[-8:])


def _make_cluster(place: _Place, account: Account, programs: Programs, log: int) -> None:
    """Make a cluster with Arkvory's role and database; a crash half-way leaves nothing that looks like one."""
    if place.cluster.exists() and any(place.cluster.iterdir()):
        raise CannotStart(f"{place.cluster} is neither empty nor a PostgreSQL cluster; move it away or set ARKVORY_DATA_DIR")
    making = place / "postgres.new"
    shutil.rmtree(making, ignore_errors=True)
    account.own(making)
    provider = ["--locale-provider=builtin"] if int(programs.major) >= 17 else []
    options = ["-U", "postgres", "--auth=reject", "--encoding=UTF8", "--locale=C.UTF-8", *provider]
    _must(place, account, [programs.folder / "initdb", "-D", making, *options], log)
    secret = secrets.token_urlsafe(32)
    _write(place.password, secret)
    sql = f"CREATE ROLE {ROLE} LOGIN CREATEDB PASSWORD '{secret}'\nCREATE DATABASE {DATABASE} OWNER {ROLE}\n"
    options = ["-c", "exit_on_error=on", "-c", "log_min_error_statement=panic", "postgres"]
    _must(place, account, [programs.folder / "postgres", "--single", "-D", making, *options], log, sql)
    _must(place, account, ["tee", making / "pg_hba.conf"], log, f"local all {ROLE} scram-sha-256\n")
    making.rename(place.cluster)
    _sync(place.data)


def _must(place: _Place, account: Account, arguments: Sequence[str | Path], log: int, text: str = "") -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        if account.run(arguments, log, text).returncode == 0:
            return
    raise CannotStart(f"{Path(arguments[0]).name} failed; {place.log} ends with:\n{_log_tail(place)}")


def _password(place: _Place) -> str:
    try:
        return place.password.read_text()
    except FileNotFoundError:
        raise CannotStart(f"{place.password} is gone, and with it the way into {place.cluster}: put it back from a backup") from None


def _write(path: Path, text: str) -> None:
    """Replace a file of ours at once, durably, for our eyes only."""
    new = path.with_name(path.name + ".new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    _sync(path.parent)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _socket_folder(place: _Place, account: Account) -> Path:
    """The folder beside the data, or a private one in /tmp where a socket's path would be too long (or hold libpq's comma)."""
    folder = place / "postgres-run"
    path = os.fsencode(folder / SOCKET_NAME)
    if len(path) <= SOCKET_PATH_BYTES and b"," not in path:
        account.own(folder)
        return folder
    before = Path((_record(place) or {}).get("socket", folder))
    owner = os.geteuid() if account.uid is None else account.uid
    if before != folder and _private(before, owner):
        return before
    digest = hashlib.sha256(os.fsencode(place.data)).hexdigest()[:12]
    made = Path(tempfile.mkdtemp(prefix=f"arkvory-{digest}-", dir="/tmp"))
    account.own(made)
    return made


def _launch_until_ready(place: _Place, account: Account, programs: Programs, folder: Path, log: int) -> None:
    """Start the server. After a crash a first try can fail, while the last processes of the dead one still end."""
    deadline = time.monotonic() + RETRY_SECONDS
    while True:
        _forget_dead_server(place, folder)
        pid = _launch(place, account, programs, folder, log)
        if _became_ready(pid, folder, place):
            return
        if time.monotonic() > deadline:
            raise CannotStart(f"PostgreSQL does not start; {place.log} ends with:\n{_log_tail(place)}")
        time.sleep(0.2)


def _became_ready(pid: int, folder: Path, place: _Place) -> bool:
    """Wait until the new server answers (True) or is dead (False)."""
    if not _until(lambda: not _alive(pid) or _probe(folder) == READY, READY_SECONDS):
        raise CannotStart(f"PostgreSQL is not ready after {READY_SECONDS:.0f} s, perhaps recovering after a crash: try again ({place.log})")
    return _alive(pid)


def _forget_dead_server(place: _Place, folder: Path) -> None:
    """Remove what a killed server left; PostgreSQL would refuse while anything at all has its process number."""
    if place.pid() is None:
        for path in (place.cluster / "postmaster.pid", folder / SOCKET_NAME, folder / f"{SOCKET_NAME}.lock"):
            path.unlink(missing_ok=True)


def _launch(place: _Place, account: Account, programs: Programs, folder: Path, log: int) -> int:
    """Start the server as nobody's child and return its process id."""
    quoted = str(folder).replace('"', '""')
    settings = SERVER_SETTINGS | {"unix_socket_directories": f'"{quoted}"'}
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    command: list[str | Path] = [programs.folder / "postgres", "-D", place.cluster, *options]
    # its output goes to the log, never to a pipe, which it would keep open
    answer = account.run(["/bin/sh", "-c", '"$@" </dev/null >&2 & echo $!', "sh", *command], log)
    return int(answer.stdout)
