"""Registries that nobody here wrote, behind a token service as Docker's token specification describes it, all on real sockets."""

from __future__ import annotations

import base64
import contextlib
import datetime
import json
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl
from uuid import uuid4

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID
from gevent import socket
from gevent.pywsgi import WSGIServer

from bench.peers import installing
from tests.support import clients
from tests.support.server import ROOT, free_port

ISSUER, SERVICE = "tokens.example", "registry.example"
START_SECONDS = 30.0


@dataclass(frozen=True)
class AskedToken:
    """One request to the service: the arguments of its query, and what was sent to log in (null: nothing)."""

    arguments: list[tuple[str, str]]
    authorization: str | None


@dataclass
class TokenService:
    """Gives tokens to `users` (passwords by name), and to nobody for what is `public`: prefixes of names."""

    users: Mapping[str, str] = field(default_factory=dict)
    public: tuple[str, ...] = ()
    seconds: int = 300
    # Statuses to answer with instead, one after the other.
    refuse: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.asked: list[AskedToken] = []
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._certificate = _certificate(self._key)
        self._server: WSGIServer | None = None
        self._port = free_port()

    @property
    def realm(self) -> str:
        return f"http://127.0.0.1:{self._port}/token"

    @property
    def certificate(self) -> bytes:
        """PEM, for registries that are to believe its tokens."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def challenge(self, scope: str) -> str:
        return f'Bearer realm="{self.realm}",service="{SERVICE}",scope="{scope}"'

    def start(self) -> TokenService:
        self._server = WSGIServer(("127.0.0.1", self._port), self._answer, log=None, error_log=None)
        self._server.start()
        return self

    def stop(self) -> None:
        assert self._server is not None
        self._server.stop(timeout=0.1)

    def token(self, name: str | None, scopes: Iterable[str]) -> str:
        """For that user, or for nobody; with what they may do of the scopes."""
        now = int(time.time())
        access = [found for each in scopes if (found := self._access(name, each))]
        chain = [base64.b64encode(self._certificate.public_bytes(serialization.Encoding.DER)).decode()]
        header = {"typ": "JWT", "alg": "RS256", "x5c": chain}
        claims = {
            "iss": ISSUER, "sub": name or "", "aud": SERVICE, "exp": now + self.seconds + 30, "nbf": now - 30, "iat": now,
            "jti": uuid4().hex, "access": access,
        }  # fmt: skip
        signed = f"{_encoded(header)}.{_encoded(claims)}"
        signature = self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"

    def _access(self, name: str | None, scope: str) -> dict[str, Any] | None:
        kind, image, actions = scope.split(":")
        may = actions.split(",") if name is not None else ["pull"] if image.startswith(self.public or "?") else []
        wanted = [each for each in actions.split(",") if each in may]
        return {"type": kind, "name": image, "actions": wanted} if wanted else None

    def _answer(self, environ: Mapping[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        arguments = parse_qsl(environ["QUERY_STRING"])
        authorization = environ.get("HTTP_AUTHORIZATION")
        self.asked.append(AskedToken(arguments, authorization))
        status, document = self._judged(arguments, authorization)
        start_response(f"{status} Because", [("Content-Type", "application/json"), *([("Retry-After", "1")] if status == 429 else [])])
        return [json.dumps(document).encode()]

    def _judged(self, arguments: list[tuple[str, str]], authorization: str | None) -> tuple[int, dict[str, Any]]:
        if self.refuse:
            return self.refuse.pop(0), {}
        if ("service", SERVICE) not in arguments:
            return 400, {"details": "for which service?"}
        name = None
        if authorization is not None:
            name, _, password = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
            if self.users.get(name) != password:
                return 401, {"details": "wrong password"}
        token = self.token(name, [value for key, value in arguments if key == "scope"])
        issued = datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z")
        return 200, {"token": token, "expires_in": self.seconds, "issued_at": issued}


def _encoded(document: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(document).encode()).decode().rstrip("=")


def _certificate(key: rsa.RSAPrivateKey) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, ISSUER)])
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=30))
        .sign(key, hashes.SHA256())
    )  # fmt: skip


class DockerRegistry:
    """Debian's docker-registry, a process of its own that believes the tokens of `tokens` (null: everybody may do everything)."""

    def __init__(self, folder: Path, tokens: TokenService | None = None) -> None:
        self._folder = folder
        self._tokens = tokens
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """What it printed."""
        return (self._folder / "log").read_text()

    def start(self) -> DockerRegistry:
        """Without the program, which cannot be had everywhere, the test is skipped; in CI it fails."""
        try:
            program = installing.debian_program(ROOT / "var" / "bench-peers", "docker-registry")
        except installing.Unavailable as error:
            clients.go_without(str(error))
        self._folder.mkdir(parents=True, exist_ok=True)
        configuration = self._folder / "config.yml"
        configuration.write_text(json.dumps(self._configuration()))
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen([program, "serve", configuration], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._await()
        return self

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            process.wait(20)

    def _configuration(self) -> dict[str, Any]:
        """YAML may be JSON."""
        found: dict[str, Any] = {
            "version": "0.1",
            "http": {"addr": f"127.0.0.1:{self.port}", "secret": "tests"},
            "storage": {"filesystem": {"rootdirectory": str(self._folder / "data")}, "delete": {"enabled": True}},
        }
        if self._tokens is not None:
            bundle = self._folder / "bundle.pem"
            bundle.write_bytes(self._tokens.certificate)
            realm = {"realm": self._tokens.realm, "service": SERVICE, "issuer": ISSUER, "rootcertbundle": str(bundle)}
            found["auth"] = {"token": realm}
        return found

    def _await(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", self.port), 5):
                return
            time.sleep(0.05)
        raise AssertionError(f"docker-registry did not start: {self.log}")


@contextlib.contextmanager
def token_service(**fields: Any) -> Iterator[TokenService]:
    service = TokenService(**fields).start()
    try:
        yield service
    finally:
        service.stop()


@contextlib.contextmanager
def docker_registry(folder: Path, tokens: TokenService | None = None) -> Iterator[DockerRegistry]:
    registry = DockerRegistry(folder, tokens).start()
    try:
        yield registry
    finally:
        registry.stop()
