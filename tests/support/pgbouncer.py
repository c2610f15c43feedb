"""A real PgBouncer with the configuration of the deployment page, on a port of 127.0.0.1, in front of the tests' PostgreSQL."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

from sqlalchemy import make_url

from tests.support import clients
from tests.support.server import ROOT, free_port

CONFIGURATION = ROOT / "config" / "pgbouncer.ini"
START_SECONDS = 10.0


class PgBouncer:
    """`url` leads through it to the database of `direct`; `changes` are lines of its configuration, by the name of the setting."""

    def __init__(self, direct: str, **changes: str) -> None:
        there = make_url(direct)
        self._account = _account(Path(str(there.query["host"])))
        # Open to be passed through, since it does not run as root.
        self.folder = Path(tempfile.mkdtemp(prefix="arkvory-pgbouncer-"))
        self.folder.chmod(0o755)
        self.port = free_port()
        (self.folder / "users").write_text(f'"{there.username}" "{there.password}"\n')
        (self.folder / "pgbouncer.ini").write_text(self._configuration(str(there.query["host"]), str(there.database), changes))
        self._process: subprocess.Popen[bytes] | None = None
        through = there.set(host="127.0.0.1", port=self.port).difference_update_query(["host"])
        self.url = through.render_as_string(hide_password=False)

    def _configuration(self, socket_folder: str, database: str, changes: dict[str, str]) -> str:
        """The file as it is delivered, with the test's addresses."""
        text = CONFIGURATION.read_text()
        for given, own in (
            ("arkvory = host=db.example.org port=5432 dbname=arkvory ", f"{database} = host={socket_folder} port=5432 dbname={database} "),
            ("listen_port = 6432", f"listen_port = {self.port}"),
            ("/etc/pgbouncer/userlist.txt", str(self.folder / "users")),
            # Without a file it prints.
            ("logfile = /var/log/postgresql/pgbouncer.log\n", ""),
            ("pidfile = /var/run/postgresql/pgbouncer.pid\n", "unix_socket_dir =\n"),
        ):
            assert given in text, given
            text = text.replace(given, own)
        for name, value in changes.items():
            text, count = re.subn(rf"(?m)^{name} = .*$", f"{name} = {value}", text)
            text += "" if count else f"{name} = {value}\n"
        return text

    def start(self) -> Self:
        command = [clients.require("pgbouncer"), *(["-u", self._account] if self._account else []), str(self.folder / "pgbouncer.ini")]
        with open(self.folder / "log", "wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd="/")
        deadline = time.monotonic() + START_SECONDS
        while not self._listens():
            assert self._process.poll() is None, self.log()
            assert time.monotonic() < deadline, "PgBouncer does not listen"
            time.sleep(0.02)
        return self

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(START_SECONDS)
        shutil.rmtree(self.folder)


def _account(socket_folder: Path) -> str | None:
    """Who may enter the folder of PostgreSQL's socket; null where that is who runs the tests."""
    owner = socket_folder.stat().st_uid
    return None if owner == os.geteuid() else pwd.getpwuid(owner).pw_name
