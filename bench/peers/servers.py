"""The peers: each knows how it is started, filled and asked. They listen on the loopback interface, with all they write in one folder."""

from __future__ import annotations

import base64
import contextlib
import getpass
import grp
import http.client
import json
import os
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.client import PATIENCE, Step, connect, pieces, request, walk
from bench.peers import installing
from bench.peers.contestants import OCI_FAMILIES, PROJECT, Contestant, of_images
from bench.peers.installing import Unavailable
from bench.publishing import NPM, PIP, blob_upload, image_push, npm_publish, wheel_upload
from bench.server import tree
from bench.small import SIZE
from tests.support.server import free_port

START_SECONDS = 60.0
STOP_SECONDS = 20.0
_VERSION = re.compile(r"\d+(?:\.\d+)+")


class Peer:
    """A server of somebody else; one process tree."""

    name = ""
    families: tuple[str, ...] = ()

    def __init__(self, cache: Path, folder: Path) -> None:
        self.cache = cache
        self.folder = folder / self.name
        self.port = free_port()
        self.version = ""
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        """How it is started; installs what is missing and writes its configuration. Raises Unavailable."""
        raise NotImplementedError

    def contestant(self, files: int) -> Contestant:
        """Fill it, while it runs; indexes get so many files."""
        raise NotImplementedError

    def contestants(self, files: int) -> list[Contestant]:
        """The same for one that takes part in several ways, one for each of its families."""
        return [self.contestant(files)]

    def processes(self) -> list[int]:
        assert self._process is not None
        return tree(self._process.pid)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Raises Unavailable when it does not start."""
        self.folder.mkdir(parents=True)
        command = self.command()
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self.folder, env=self._environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )  # fmt: skip
        try:
            self._await(self._process)
            yield
        finally:
            self._stop(self._process)

    def _environment(self) -> dict[str, str]:
        return {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ} | {"HOME": str(self.folder)}

    def _await(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(ConnectionRefusedError), connect(self.port):
                return
            time.sleep(0.05)
        raise Unavailable("it did not start")

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_SECONDS)

    def _tell(self, command: Sequence[str]) -> None:
        """Its version, by what it says of itself."""
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=self._environment())
        found = _VERSION.search(done.stdout + done.stderr)
        self.version = found[0] if found else ""


class Nginx(Peer):
    """One process that serves files, as Arkvory is one; uploads by WebDAV's PUT."""

    name = "nginx"
    families = ("files",)

    def command(self) -> list[str]:
        program = str(installing.debian_program(self.cache, "nginx"))
        self._tell([program, "-v"])
        (self.folder / "files" / "put").mkdir(parents=True)
        user = "" if os.getuid() else f"user {getpass.getuser()} {grp.getgrgid(os.getgid()).gr_name};"
        (self.folder / "nginx.conf").write_text(_NGINX.format(user=user, port=self.port, folder=self.folder))
        return [program, "-p", str(self.folder), "-e", str(self.folder / "error.log"), "-c", str(self.folder / "nginx.conf")]

    def contestant(self, files: int) -> Contestant:
        (self.folder / "files" / "small").write_bytes(os.urandom(SIZE))

        def put(name: str, size: int) -> list[Step]:
            return [Step("PUT", f"/put/{name}", {}, os.urandom(size), (201,))]

        return Contestant(self.name, self.families[0], self.port, self.processes, request("GET", "/small"), upload=put)

    def store_large(self, size: int) -> bytes:
        """Write a file of so many bytes; the request for it."""
        with (self.folder / "files" / "large").open("wb") as file:
            for piece in pieces(size):
                file.write(piece)
        return request("GET", "/large")


_NGINX = """daemon off;
worker_processes 1;
pid nginx.pid;
{user}
events {{ worker_connections 512; }}
http {{
    access_log {folder}/access.log;
    default_type application/octet-stream;
    sendfile on;
    tcp_nopush on;
    keepalive_requests 1000000000;
    client_max_body_size 0;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        root {folder}/files;
        location /put/ {{ dav_methods PUT; }}
    }}
}}
"""


class DockerRegistry(Peer):
    """Distribution, which serves blobs by all cores."""

    name = "docker-registry"
    families = OCI_FAMILIES

    def command(self) -> list[str]:
        program = str(installing.debian_program(self.cache, self.name))
        self._tell([program, "--version"])
        (self.folder / "config.yml").write_text(_REGISTRY.format(port=self.port, folder=self.folder))
        return [program, "serve", str(self.folder / "config.yml")]

    def contestants(self, files: int) -> list[Contestant]:
        image = image_push("bench", {}, SIZE)
        walk(self.port, image.steps)
        start = Contestant(self.name, "", self.port, self.processes, upload=lambda _, size: blob_upload("bench", {}, size))
        return of_images(image, start)


_REGISTRY = """version: 0.1
http: {{addr: "127.0.0.1:{port}", secret: bench}}
storage: {{filesystem: {{rootdirectory: "{folder}/data"}}}}
"""


class Verdaccio(Peer):
    """Packages as npm's clients ask for them; anybody may publish, so that no password is checked."""

    name = "verdaccio"
    families = ("npm",)

    def command(self) -> list[str]:
        program = installing.node_program(self.cache, self.name, installing.VERDACCIO)
        self._tell([*program, "--version"])
        (self.folder / "config.yaml").write_text(_VERDACCIO)
        return [*program, "--config", str(self.folder / "config.yaml"), "--listen", f"127.0.0.1:{self.port}"]

    def contestant(self, files: int) -> Contestant:
        walk(self.port, [npm_publish("", {}, PROJECT, SIZE, f"1.0.{number}") for number in range(files)])
        tarball, packument = request("GET", f"/{PROJECT}/-/{PROJECT}-1.0.0.tgz"), request("GET", f"/{PROJECT}", *NPM)
        return Contestant(
            self.name, self.families[0], self.port, self.processes, tarball, packument,
            upload=lambda name, size: [npm_publish("", {}, name, size)],
        )  # fmt: skip


_VERDACCIO = """storage: ./storage
auth: {htpasswd: {file: ./htpasswd}}
uplinks: {}
packages: {'**': {access: $all, publish: $all}}
max_body_size: 200mb
log: {type: file, path: ./access.log, level: http, format: json}
web: {enable: false}
"""


class Devpi(Peer):
    """Uploads come with a login token, as its own client sends them: each check of the password would cost it half a second."""

    name = "devpi-server"
    families = ("python",)

    def command(self) -> list[str]:
        programs = installing.environment(self.cache, self.name, installing.DEVPI)
        self._tell([str(programs / self.name), "--version"])
        data, secret = str(self.folder / "data"), str(self.folder / "secret")
        for prepare in (
            ["devpi-init", "--serverdir", data, "--no-root-pypi", "--root-passwd", _PASSWORD],
            ["devpi-gen-secret", "--secretfile", secret],
        ):
            with (self.folder / "log").open("ab") as log:
                subprocess.run([str(programs / prepare[0]), *prepare[1:]], stdout=log, stderr=log, check=True, timeout=START_SECONDS)
        # The costs are those of deriving a key, once, at the start: up to a minute of it.
        quick = ["--argon2-memory-cost", "8192", "--argon2-time-cost", "1"]
        serve = [str(programs / self.name), "--serverdir", data, "--secretfile", secret, "--offline-mode"]
        return [*serve, "--host", "127.0.0.1", "--port", str(self.port), *quick]

    def contestant(self, files: int) -> Contestant:
        headers = {"X-Devpi-Auth": self._login()}
        index = Step("PUT", "/root/dev", headers | _JSON, json.dumps({"type": "stage", "bases": [], "volatile": True}).encode())
        wheels = [wheel_upload("/root/dev/", headers, PROJECT, f"1.{number}", SIZE) for number in range(files)]
        walk(self.port, [index, *wheels])
        page = f"/root/dev/+simple/{PROJECT}/"
        listed = json.loads(_ask(self.port, "GET", page, {"Accept": "application/vnd.pypi.simple.v1+json"}))
        wheel = listed["files"][0]["url"].replace("../../", "/root/dev/")
        return Contestant(
            self.name, self.families[0], self.port, self.processes, request("GET", wheel), request("GET", page, *PIP),
            lambda name, size: [wheel_upload("/root/dev/", headers, name, "1.0", size)],
        )  # fmt: skip

    def _login(self) -> str:
        told = _ask(self.port, "POST", "/+login", _JSON, json.dumps({"user": "root", "password": _PASSWORD}).encode())
        return base64.b64encode(f"root:{json.loads(told)['result']['password']}".encode()).decode()


_PASSWORD = "bench-bench"
_JSON = {"Content-Type": "application/json"}


class PypiServer(Peer):
    """Under gunicorn, one process with threads; anybody may upload."""

    name = "pypiserver"
    families = ("python",)

    def command(self) -> list[str]:
        programs = installing.environment(self.cache, self.name, installing.PYPISERVER)
        self._tell([str(programs / "pypi-server"), "--version"])
        (self.folder / "packages").mkdir()
        application = 'pypiserver:app(roots=["packages"], authenticate=[], password_file=".", disable_fallback=True)'
        threads = ["--workers", "1", "--threads", "16", "--access-logfile", str(self.folder / "access.log")]
        return [str(programs / "gunicorn"), *threads, "--bind", f"127.0.0.1:{self.port}", application]

    def contestant(self, files: int) -> Contestant:
        walk(self.port, [wheel_upload("/", {}, PROJECT, f"1.{number}", SIZE) for number in range(files)])
        wheel = request("GET", f"/packages/{PROJECT}-1.0-py3-none-any.whl")
        return Contestant(
            self.name, self.families[0], self.port, self.processes, wheel, request("GET", f"/simple/{PROJECT}/", *PIP),
            lambda name, size: [wheel_upload("/", {}, name, "1.0", size)],
        )  # fmt: skip


ALL: tuple[type[Peer], ...] = (Nginx, DockerRegistry, Verdaccio, Devpi, PypiServer)


def _ask(port: int, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    """The body of its answer; raises RuntimeError unless it is 200."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    with contextlib.closing(connection):
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        said = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{method} {path}: {answer.status} {said[:200]!r}")
    return said
