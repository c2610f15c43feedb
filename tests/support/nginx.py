"""A real nginx: with the configuration of the deployment page in front of servers of the test, or with the files of a folder."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import requests

from tests.support import certificates, clients
from tests.support.server import ROOT, Server, free_port

CONFIGURATION = ROOT / "config" / "nginx.conf"
START_SECONDS = 10.0
# What Debian's main file holds beside the inclusion of ours.
_MAIN = """
{user}
worker_processes 1;
pid {folder}/pid;
error_log {folder}/error.log info;
events {{ worker_connections 1024; }}
http {{
    log_format requests '$status $request_uri';
    access_log {folder}/access.log;
    client_body_temp_path {folder}/bodies;
    proxy_temp_path {folder}/answers;
    fastcgi_temp_path {folder}/unused1;
    uwsgi_temp_path {folder}/unused2;
    scgi_temp_path {folder}/unused3;
    include {folder}/arkvory.conf;
}}
"""


_FILES = """
server {{
    listen 127.0.0.1:{port};
    root {root};
    default_type application/octet-stream;
    access_log {folder}/files.log requests;
}}
"""


class _Running:
    """A process of nginx, whose files are below `folder`; `port` is one that it listens on."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "nginx.conf").write_text(_MAIN.format(folder=folder, user="user root;" if os.geteuid() == 0 else ""))

    def _command(self, *more: str) -> list[str]:
        return [clients.require("nginx"), "-p", str(self.folder), "-c", str(self.folder / "nginx.conf"), *more]

    def start(self) -> Self:
        with open(self.folder / "log", "wb") as log:
            self._process = subprocess.Popen(
                self._command("-g", "daemon off;"), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._listens():
            assert self._process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline, "nginx does not listen"
            time.sleep(0.02)
        return self

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(START_SECONDS)


class Files(_Running):
    """Serves the folder `root` as it is."""

    def __init__(self, folder: Path, root: Path) -> None:
        super().__init__(folder)
        (folder / "arkvory.conf").write_text(_FILES.format(port=self.port, root=root, folder=folder))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def asked(self) -> list[str]:
        """All requests so far, as `200 /path`."""
        return (self.folder / "files.log").read_text().splitlines()


class Nginx(_Running):
    """Listens on two ports of its own below `folder`; `servers` stand for the two of the configuration."""

    def __init__(self, folder: Path, servers: Sequence[Server]) -> None:
        super().__init__(folder)
        self.pair = certificates.make(folder, "nginx")
        self.http_port = free_port()
        (folder / "arkvory.conf").write_text(self._configuration(servers))

    def _configuration(self, servers: Sequence[Server]) -> str:
        """The file as it is delivered, with the test's addresses and certificate."""
        text = CONFIGURATION.read_text()
        for given, own in (
            ("10.0.0.11:8080", f"127.0.0.1:{servers[0].port}"),
            ("10.0.0.12:8080", f"127.0.0.1:{servers[1].port}"),
            ("/etc/ssl/repo.example.org.pem", str(self.pair.cert)),
            ("/etc/ssl/repo.example.org.key", str(self.pair.key)),
            ("listen 443 ", f"listen 127.0.0.1:{self.port} "),
            ("listen 80;", f"listen 127.0.0.1:{self.http_port};"),
            ("server_name repo.example.org;", "server_name localhost;"),
        ):
            assert given in text, given
            text = text.replace(given, own)
        # One address family is enough, and not every machine has the other.
        return re.sub(r" *listen \[::\].*\n", "", text)

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    def check(self) -> str:
        """What `nginx -t` says."""
        done = subprocess.run(self._command("-t"), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stderr

    def request(self, method: str, path: str, **options: Any) -> requests.Response:
        """As one client that trusts the certificate."""
        with requests.Session() as session:
            session.trust_env = False
            return session.request(method, self.url + path, **{"timeout": 60, "verify": str(self.pair.cert), **options})

    def errors(self) -> list[str]:
        """Lines of the error log above `info`."""
        lines = (self.folder / "error.log").read_text().splitlines()
        return [line for line in lines if re.search(r"\[(warn|error|crit|alert|emerg)\]", line)]
