"""A whole Arkvory in a process of its own, as a person would start it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests

from tests.support.passwords import CHEAP
from tests.support.warm import Started, Wanted, servers

ROOT = Path(__file__).parents[2]
READY_SECONDS = 60.0
STOP_SECONDS = 30.0
SERVES = "Arkvory serves at"


# Sockets that keep ports for whoever was told their numbers.
_kept: dict[int, socket.socket] = {}


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on, and that is given to nobody else until `let_go`.

    A socket stays bound to it that does not listen. Servers say that they share addresses (SO_REUSEADDR), so they may listen beside it;
    who asks for any port, or connects from any, gets another one.
    """
    kept = socket.socket()
    kept.bind(("127.0.0.1", 0))
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port: int = kept.getsockname()[1]
    _kept[port] = kept
    return port


def let_go(port: int) -> None:
    """Who had it from `free_port` has ended."""
    kept = _kept.pop(port, None)
    if kept is not None:
        kept.close()


@dataclass
class Server:
    """gunicorn with its data below `folder`; `environment` is all that Arkvory's settings see. Requests go out as the administrator.

    `database_url` is the database that it was given, None when it starts an embedded PostgreSQL of its own. `cold`: it begins in an
    interpreter of its own, and its passwords cost what they cost elsewhere, for who measures it.
    """

    folder: Path
    environment: Mapping[str, str]
    database_url: str | None = field(default=None, repr=False)
    password: str = "correct-horse-battery"
    port: int = field(default_factory=free_port)
    process: Started | subprocess.Popen[bytes] | None = None
    _log_began: int = 0
    configuration: str = "config/gunicorn.py"
    cold: bool = False

    @property
    def url(self) -> str:
        return f"{'https' if self.certificate else 'http'}://127.0.0.1:{self.port}"

    @property
    def certificate(self) -> str | None:
        """The file by which clients know it, null where it speaks http."""
        return self.environment.get("ARKVORY_TLS_CERT")

    @property
    def data(self) -> Path:
        """The data directory."""
        return Path(self.environment.get("ARKVORY_DATA_DIR", self.folder / "data"))

    @property
    def admin(self) -> tuple[str, str]:
        """Name and password of the administrator."""
        return "admin", self.password

    @property
    def pid(self) -> int:
        """Process id of the gunicorn master."""
        assert self.process is not None, "the server is not running"
        return self.process.pid

    def start(self, ready: bool = True) -> Server:
        """Start it and (if `ready`) wait until it says that it is ready."""
        self._log_began = len(self.log())
        self.process = self._begin(["-c", self.configuration, "wsgi:app"], self._log_file())
        if ready:
            self.wait_until_ready()
        return self

    def _begin(self, arguments: list[str], log: int) -> Started | subprocess.Popen[bytes]:
        if not self.cold:
            return servers.start(Wanted("gunicorn", arguments, self._environment()), log)
        with os.fdopen(log) as file:
            return subprocess.Popen(
                [sys.executable, "-m", "gunicorn", *arguments], cwd=ROOT, env=self._environment(), stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def _environment(self) -> dict[str, str]:
        given = {name: os.environ[name] for name in ("PATH", "HOME", "PG_BIN", "LANG") if name in os.environ}
        own = {
            "PORT": str(self.port),
            "ARKVORY_BIND": "127.0.0.1",
            "ARKVORY_DATA_DIR": str(self.data),
            "ARKVORY_ADMIN_PASSWORD": self.password,
            "PYTHONUNBUFFERED": "1",
            **({} if self.cold else CHEAP),
        }
        database = {"ARKVORY_DATABASE_URL": self.database_url} if self.database_url else {}
        return given | own | database | dict(self.environment)

    def _log_file(self) -> int:
        self.folder.mkdir(parents=True, exist_ok=True)
        return os.open(self.folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def log(self) -> str:
        """All that it printed, over restarts too."""
        file = self.folder / "log"
        return file.read_text(errors="replace") if file.exists() else ""

    def wait_until_ready(self, seconds: float = READY_SECONDS) -> None:
        """Wait for 200 of /health/ready from each worker; fails with the log's end when it dies or takes longer."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.process is not None and self.process.poll() is None:
            with contextlib.suppress(requests.RequestException):
                if self.log().count(SERVES, self._log_began) >= self.web_processes and self.get("/health/ready", auth=None, timeout=5).ok:
                    return
            time.sleep(0.05)
        raise AssertionError(f"the server is not ready; its log ends with:\n{self.log()[-4000:]}")

    @property
    def web_processes(self) -> int:
        """Workers that it is asked to run."""
        return int(self.environment.get("WEB_CONCURRENCY", 1)) if self.environment.get("ARKVORY_DEPLOYMENT") == "cluster" else 1

    def request(self, method: str, path: str, **options: Any) -> requests.Response:
        """An HTTP request by `requests`, as the administrator unless `auth` says otherwise (None: nobody)."""
        given: dict[str, Any] = {"auth": self.admin, "timeout": 60, "verify": self.certificate or True, **options}
        with requests.Session() as session:
            # the caller's proxies and netrc are none of the server's business
            session.trust_env = False
            return session.request(method, self.url + path, **given)

    def get(self, path: str, **options: Any) -> requests.Response:
        return self.request("GET", path, **options)

    def head(self, path: str, **options: Any) -> requests.Response:
        return self.request("HEAD", path, **options)

    def put(self, path: str, data: Any = b"", **options: Any) -> requests.Response:
        return self.request("PUT", path, data=data, **options)

    def post(self, path: str, **options: Any) -> requests.Response:
        return self.request("POST", path, **options)

    def patch(self, path: str, **options: Any) -> requests.Response:
        return self.request("PATCH", path, **options)

    def delete(self, path: str, **options: Any) -> requests.Response:
        return self.request("DELETE", path, **options)

    def repository(self, name: str, format: str = "raw", **fields: Any) -> str:
        """Create a hosted repository by the management API; returns its address."""
        answer = self.post("/api/v1/repositories", json={"name": name, "format": format, "kind": "hosted"} | fields)
        assert answer.status_code == 201, answer.text
        return f"{self.url}/{format}/{name}"

    def workers(self) -> list[int]:
        """Process ids of the master's children."""
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def stop(self, seconds: float = STOP_SECONDS) -> int:
        """End it as an administrator does (SIGTERM); returns the exit code, fails when it takes longer than `seconds`."""
        assert self.process is not None
        self.process.terminate()
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill9()
            raise AssertionError(f"the server did not stop within {seconds:.0f} s; its log ends with:\n{self.log()[-4000:]}") from None

    def kill9(self) -> None:
        """Kill master and workers at once; an embedded PostgreSQL lives on."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(STOP_SECONDS)

    def restart(self) -> Server:
        """Stop it, unless it is dead already, and start it again with the same data and port."""
        if self.process is not None and self.process.poll() is None:
            self.stop()
        return self.start()

    def close(self) -> None:
        """End it whatever its state; an embedded PostgreSQL that a kill left behind too."""
        if self.process is not None and self.process.poll() is None:
            try:
                self.stop()
            finally:
                self.kill9()
        if (self.data / "postgres").exists():
            self._stop_postgres()
        let_go(self.port)

    def _stop_postgres(self) -> None:
        from app.database import embedded
        from config.settings import Settings

        with contextlib.suppress(embedded.CannotStart):
            embedded.start(Settings.from_environment({"ARKVORY_DATA_DIR": str(self.data)})).leave()


class Cluster(list[Server]):
    """Several masters (`vm1`, `vm2`...) over one database and one data directory, each with some workers."""

    def __init__(self, folder: Path, database_url: str | None, masters: int = 2, workers: int = 2, **environment: str) -> None:
        super().__init__()
        self.folder = folder
        self.database_url = database_url
        self.workers = workers
        self._environment = environment
        for _ in range(masters):
            self.add()

    def add(self, **environment: str) -> Server:
        """One more master, not started yet."""
        name = f"vm{len(self) + 1}"
        own = {
            "ARKVORY_DEPLOYMENT": "cluster",
            "ARKVORY_INSTANCE_ID": name,
            "ARKVORY_DATA_DIR": str(self.folder / "data"),
            "WEB_CONCURRENCY": str(self.workers),
            # Several processes on one PostgreSQL of the tests.
            "ARKVORY_DATABASE_POOL_SIZE": "8",
            "ARKVORY_SESSION_POOL_SIZE": "4",
        }
        made = Server(self.folder / name, own | self._environment | environment, database_url=self.database_url)
        self.append(made)
        return made

    def start(self, ready: bool = True) -> Cluster:
        """All at once; `ready`: wait until each worker is."""
        for each in self:
            each.start(ready=False)
        if ready:
            for each in self:
                each.wait_until_ready()
        return self

    def close(self) -> None:
        """End all, whatever their state."""
        for each in self:
            if each.process is not None and each.process.poll() is None:
                each.process.terminate()
        for each in self:
            each.close()
