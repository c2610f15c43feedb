"""https on the server's own worker: what is sent, how long a handshake may take, and certificates that come and go."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.cluster import localserver
from app.cluster.localserver import LocalServer
from app.http import tls
from config.settings import SettingError, Settings
from tests.http.edge import PATIENCE, ROOT, Edge, until
from tests.support import certificates, clients
from tests.support.certificates import Pair
from tests.support.server import Server

BIG = 40 * 1024 * 1024


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return certificates.make(tmp_path_factory.mktemp("tls"), "first")


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, pair: Pair) -> Iterator[Edge]:
    folder = tmp_path_factory.mktemp("edge")
    (folder / "hello.txt").write_bytes(b"hello world")
    (folder / "empty").touch()
    (folder / "big.bin").write_bytes(os.urandom(1024 * 1024) * 40)
    server = Edge(folder, **pair.settings)
    server.tls = pair.client()
    with server:
        yield server


@pytest.fixture
def hasty_secure(tmp_path: Path, pair: Pair) -> Iterator[Edge]:
    server = Edge(tmp_path, **pair.settings, ARKVORY_HEADER_SECONDS="3", ARKVORY_IDLE_SECONDS="1", ARKVORY_KEEPALIVE_SECONDS="0.5")
    server.tls = pair.client()
    with server:
        yield server


def peer_digest(port: int) -> str:
    """Of the certificate that a new handshake shows."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as plain, context.wrap_socket(plain) as connection:
        return digest_of(connection)


def digest_of(connection: ssl.SSLSocket) -> str:
    return hashlib.sha256(connection.getpeercert(binary_form=True) or b"").hexdigest()


def curl(home: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    found = clients.require("curl")
    return subprocess.run([found, "-sS", *arguments], cwd=home, capture_output=True, check=False, timeout=60)


# What is sent


def test_files_of_any_size_and_their_parts_are_the_same_bytes(secure: Edge) -> None:
    whole = (secure.folder / "big.bin").read_bytes()
    with secure.wire() as wire:
        assert wire.ask("GET", "/file/hello.txt").body == b"hello world"
        assert wire.ask("GET", "/file/empty").body == b""
        assert wire.ask("GET", "/file/big.bin").body == whole
        part = wire.ask("GET", "/file/big.bin", "Range: bytes=65535-20000000")
        assert (part.status, part.body) == (206, whole[65535:20000001])
        assert wire.ask("HEAD", "/file/big.bin").headers["content-length"] == str(BIG)
    assert secure.complaints() == ""


def test_many_downloads_at_once_stay_apart(secure: Edge) -> None:
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(secure.wire()) for _ in range(8)]
        for number, wire in enumerate(wires):
            wire.request("GET", "/file/big.bin", f"Range: bytes={number}-")
        whole = (secure.folder / "big.bin").read_bytes()
        for number, wire in enumerate(wires):
            assert wire.answer().body == whole[number:]


def test_an_upload_arrives_whole_told_or_in_chunks(secure: Edge) -> None:
    body = os.urandom(3 * 1024 * 1024 + 7)
    expected = {"size": len(body), "sha256": hashlib.sha256(body).hexdigest()}
    told = secure.ask("PUT", "/upload", f"Content-Length: {len(body)}", body=body)
    assert json.loads(told.body) == expected
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    assert json.loads(secure.ask("PUT", "/upload", "Transfer-Encoding: chunked", body=chunked).body) == expected


def test_an_answer_without_a_length_ends_with_close_notify_and_a_broken_one_does_not(secure: Edge) -> None:
    """A client of HTTP/1.0 knows by nothing else whether it has all of it."""
    with secure.wire() as wire:
        wire.send(b"GET /stream HTTP/1.0\r\n\r\n")
        assert wire.rest().endswith(b"0\n1\n2\n")
    with secure.wire() as wire:
        wire.send(b"GET /breaks-off HTTP/1.0\r\n\r\n")
        with pytest.raises((ssl.SSLEOFError, ConnectionError)):
            wire.rest()


def test_addresses_are_made_with_https(secure: Edge) -> None:
    with secure.wire() as wire:
        wire.request("GET", "/who")
        assert json.loads(wire.answer().body)["scheme"] == "https"


def test_an_idle_connection_is_woken_by_a_stop_and_one_at_work_finishes(make_secure: Callable[..., Edge]) -> None:
    server = make_secure()
    with server.wire() as idle, server.wire() as busy:
        assert idle.ask("GET", "/ping").status == 200
        busy.request("GET", "/slow?seconds=1")
        time.sleep(0.3)
        assert server.process is not None
        server.process.terminate()
        assert busy.answer().body == b"done"
        assert idle.is_closed()
        server.process.wait(PATIENCE)


@pytest.fixture
def make_secure(tmp_path: Path, pair: Pair) -> Iterator[Callable[..., Edge]]:
    with contextlib.ExitStack() as running:

        def make(used: Pair = pair, **settings: str) -> Edge:
            server = Edge(tmp_path, **used.settings, **settings)
            server.tls = used.client()
            return running.enter_context(server)

        yield make


# Who may speak, and for how long


def test_nothing_older_than_tls_1_2_is_spoken(secure: Edge) -> None:
    for newest, spoken in ((ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True), (ssl.TLSVersion.TLSv1_3, True)):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_ciphers("ALL:@SECLEVEL=0")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            context.minimum_version = ssl.TLSVersion.TLSv1
            context.maximum_version = newest
        with socket.create_connection(("127.0.0.1", secure.port), PATIENCE) as plain:
            if spoken:
                with context.wrap_socket(plain) as connection:
                    assert connection.version() == newest.name.replace("_", ".")
            else:
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    context.wrap_socket(plain)


def test_a_client_that_speaks_http_is_told_to_speak_https(secure: Edge) -> None:
    with socket.create_connection(("127.0.0.1", secure.port), PATIENCE) as plain:
        plain.sendall(b"GET /ping HTTP/1.1\r\nHost: a\r\n\r\n")
        heard = b""
        while piece := plain.recv(65536):
            heard += piece
    assert heard.startswith(b"HTTP/1.1 400 ")
    assert b"https://" in heard


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01", b"\x16\x03\x01\x40\x00\x01" + b"x" * 100])
def test_a_handshake_that_does_not_go_on_is_ended_in_time(hasty_secure: Edge, said: bytes) -> None:
    with socket.create_connection(("127.0.0.1", hasty_secure.port), PATIENCE) as plain:
        began = time.monotonic()
        plain.sendall(said)
        with contextlib.suppress(ConnectionError):
            while plain.recv(65536):
                pass
        assert time.monotonic() - began < 15


def drip(connection: socket.socket, data: bytes, seconds: float) -> float:
    """Send a byte every 0.1 s until the server has enough of it; how long that took."""
    began = time.monotonic()
    connection.settimeout(0.1)
    for number in range(int(seconds * 10)):
        try:
            if not connection.recv(65536):
                break
        except TimeoutError:
            try:
                connection.sendall(data[number : number + 1])
            except ConnectionError:
                break
        except ConnectionError:
            break
    return time.monotonic() - began


def test_a_handshake_that_drips_is_ended_at_the_deadline(hasty_secure: Edge) -> None:
    hello = b"\x16\x03\x01\x40\x00\x01" + b"x" * 1000
    with socket.create_connection(("127.0.0.1", hasty_secure.port), PATIENCE) as plain:
        assert drip(plain, hello, 20) < 12
    assert hasty_secure.ask("GET", "/ping").body == b"pong"


def test_a_record_that_drips_is_ended_at_the_deadline_of_the_head(hasty_secure: Edge, pair: Pair) -> None:
    """Each byte of a record wakes whoever waits for it: the deadline must hold all the same."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = pair.client().wrap_bio(back, there, server_hostname="localhost")
    with socket.create_connection(("127.0.0.1", hasty_secure.port), PATIENCE) as plain:
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                plain.sendall(there.read())
                back.write(plain.recv(65536))
        plain.sendall(there.read())
        client.write(b"GET /ping HTTP/1.1\r\nX: " + b"y" * 8000)
        assert drip(plain, there.read(), 20) < 12


def test_a_handshake_is_no_title_to_a_place(make_secure: Callable[..., Edge]) -> None:
    """Eight that never finish theirs are all places there are; the ninth client finds one all the same."""
    server = make_secure(ARKVORY_MAX_CONNECTIONS="8")
    with contextlib.ExitStack() as silent:
        for number in range(8):
            plain = silent.enter_context(socket.create_connection(("127.0.0.1", server.port), PATIENCE))
            plain.sendall(b"\x16\x03\x01" if number % 2 else b"")
        for _ in range(3):
            began = time.monotonic()
            assert server.ask("GET", "/ping").body == b"pong"
            assert time.monotonic() - began < 15


def test_a_body_that_stops_moving_is_cut_short(hasty_secure: Edge) -> None:
    with hasty_secure.wire() as wire:
        wire.request("PUT", "/swallow", "Content-Length: 100", body=b"x" * 50)
        assert wire.answer().body.startswith(b"body_cut_short")
    assert (hasty_secure.folder / "cut").read_text() == "cut short"


# Certificates that come and go


def test_a_renewed_certificate_is_used_by_new_handshakes_while_open_connections_go_on(
    make_secure: Callable[..., Edge], tmp_path: Path
) -> None:
    used, next_one = certificates.make(tmp_path, "used"), certificates.make(tmp_path, "next")
    server = make_secure(used)
    (server.folder / "big.bin").write_bytes(os.urandom(1024 * 1024) * 40)
    before = peer_digest(server.port)
    with server.wire() as wire:
        wire.request("GET", "/file/big.bin")
        next_one.copy_over(used)
        after = until(lambda: (found := peer_digest(server.port)) != before and found)
        assert wire.answer().body == (server.folder / "big.bin").read_bytes()
        assert wire.ask("GET", "/ping").body == b"pong"
    assert after == hashlib.sha256(ssl.PEM_cert_to_DER_cert(next_one.cert.read_text())).hexdigest()
    assert "a new certificate is in use" in server.errors.read_text()


def test_a_renewal_that_does_not_fit_changes_nothing_until_it_does(make_secure: Callable[..., Edge], tmp_path: Path) -> None:
    used, next_one = certificates.make(tmp_path, "used"), certificates.make(tmp_path, "next")
    server = make_secure(used)
    before = peer_digest(server.port)
    shutil.copyfile(next_one.cert, used.cert)
    until(lambda: "is not the key of the certificate" in server.errors.read_text())
    assert peer_digest(server.port) == before
    shutil.copyfile(next_one.key, used.key)
    until(lambda: peer_digest(server.port) != before)


def test_after_a_sighup_it_is_still_https_whatever_became_of_the_files(make_secure: Callable[..., Edge], tmp_path: Path) -> None:
    used = certificates.make(tmp_path, "used")
    server = make_secure(used)
    before, worker = peer_digest(server.port), server.worker.pid
    used.cert.write_text("half of a certif")
    assert server.process is not None
    server.process.send_signal(signal.SIGHUP)
    until(lambda: (children := server.children()) and worker not in children)
    assert peer_digest(server.port) == before


def refusal(settings: dict[str, str], tmp_path: Path) -> str:
    """What the server says when it does not start."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ARKVORY_", "WEB_", "DATABASE_"))}
    environment |= {"PORT": "0", "ARKVORY_BIND": "127.0.0.1", "ARKVORY_DATABASE_URL": "postgresql://127.0.0.1:1/none", **settings}
    done = subprocess.run(
        [clients.sys.executable, "-m", "gunicorn", "-c", "config/gunicorn.py", "tests.http.sample:app"],
        cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_the_server_does_not_start_with_a_certificate_that_has_expired(tmp_path: Path) -> None:
    old = certificates.make_dated(tmp_path, "old", "200101000000Z", "210101000000Z")
    assert "certificate has expired" in refusal(old.settings, tmp_path)


def test_the_server_does_not_start_with_one_of_two_settings(tmp_path: Path, pair: Pair) -> None:
    assert "ARKVORY_TLS_CERT is set without ARKVORY_TLS_KEY" in refusal({"ARKVORY_TLS_CERT": str(pair.cert)}, tmp_path)


def test_each_kind_of_wrong_file_is_named(tmp_path: Path, pair: Pair) -> None:
    other = certificates.make(tmp_path, "other")
    early = certificates.make_dated(tmp_path, "early", "400101000000Z", "410101000000Z")
    not_for_servers = certificates.make(tmp_path, "client", "extendedKeyUsage=clientAuth")
    secret = tmp_path / "secret.key"
    certificates._openssl("pkcs8", "-topk8", "-in", pair.key, "-out", secret, "-passout", "pass:x")
    nonsense = tmp_path / "nonsense"
    nonsense.write_bytes(os.urandom(64))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for cert, key, words in (
        (pipe, pair.key, "is no file"),
        (pair.cert, pipe, "is no file"),
        (pair.cert, tmp_path, "is no file"),
        (tmp_path / "none", pair.key, "cannot read"),
        (pair.cert, tmp_path / "none", "cannot read"),
        (pair.cert, other.key, "is not the key of the certificate"),
        (nonsense, pair.key, "no certificate in PEM form"),
        (pair.key, pair.key, "no certificate in PEM form"),
        (pair.cert, nonsense, "no private key in PEM form"),
        (pair.cert, secret, "encrypted"),
        (early.cert, early.key, "not yet valid"),
        (not_for_servers.cert, not_for_servers.key, "would be refused by clients"),
    ):
        with pytest.raises(SettingError, match=words):
            tls.load(cert, key)


def test_the_day_of_expiry_is_read_from_the_certificate(pair: Pair) -> None:
    left = tls.load(pair.cert, pair.key).expires - time.time()
    assert 29 * 86400 < left <= 30 * 86400
    assert tls.files_of(Settings.from_environment({})) is None


# Real clients, and the command


@pytest.fixture(scope="module")
def https_server(
    pair: Pair, postgres: object, new_database: Callable[[str | None], str], template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("server"), pair.settings, database_url=new_database(template))
    try:
        yield running.start()
    finally:
        running.close()


def test_curl_publishes_and_fetches(https_server: Server, tmp_path: Path, pair: Pair) -> None:
    made = https_server.repository("files", public=True)
    assert made.startswith("https://")
    assert https_server.get("/api/v1/repositories/files").json()["url"].startswith("https://127.0.0.1:")
    (tmp_path / "sent").write_bytes(os.urandom(5_000_000))
    trusted = ("--cacert", str(pair.cert), "-f")
    assert curl(tmp_path, *trusted, "-u", ":".join(https_server.admin), "-T", "sent", f"{made}/a/b").returncode == 0
    assert curl(tmp_path, *trusted, "-o", "got", f"{made}/a/b").returncode == 0
    assert (tmp_path / "got").read_bytes() == (tmp_path / "sent").read_bytes()
    assert curl(tmp_path, f"{made}/a/b").returncode == 60, "a client that does not know the certificate"


def test_openssl_verifies_the_certificate(https_server: Server, pair: Pair) -> None:
    options = ("-verify_return_error", "-brief", "-ign_eof")
    done = subprocess.run(
        ["openssl", "s_client", "-connect", f"127.0.0.1:{https_server.port}", "-CAfile", pair.cert, *options],
        input=b"GET /health/live HTTP/1.0\r\n\r\n", capture_output=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert b"Verification: OK" in done.stderr
    assert b"live" in done.stdout


def test_pip_installs_over_https(https_server: Server, tmp_path: Path, pair: Pair) -> None:
    from tests.protocols.pypi.packages import wheel

    made = https_server.repository("python", format="pypi", public=True)
    name, body = "tiny_tls-1.0-py3-none-any.whl", wheel("tiny-tls", "1.0")
    form = {":action": "file_upload", "protocol_version": "1", "name": "tiny-tls", "version": "1.0"}
    assert https_server.post("/pypi/python/", data=form, files={"content": (name, body)}).status_code == 200
    # Where the machine has a bundle of its own, requests believes the variable before the option.
    known = {"REQUESTS_CA_BUNDLE": str(pair.cert)}
    options = ("--cert", pair.cert, "--no-deps", "--no-cache-dir", "-i", f"{made}/simple/")
    clients.run("pip", "download", *options, "tiny-tls", home=tmp_path, environment=known)
    assert (tmp_path / name).read_bytes() == body


def test_the_command_finds_the_server_by_its_certificate_and_no_other(https_server: Server, database_url: str, tmp_path: Path) -> None:
    from tests.cli.test_arkvory import arkvory

    left = json.loads((https_server.data / "server.json").read_text())
    assert left["url"] == f"https://127.0.0.1:{https_server.port}"
    assert arkvory("repo", "create", "by-command", "--format", "raw", ARKVORY_DATA_DIR=str(https_server.data)).returncode == 0
    assert https_server.get("/api/v1/repositories/by-command").status_code == 200
    report = json.loads(arkvory("doctor", "--json", ARKVORY_DATA_DIR=str(https_server.data)).stdout)
    assert [each["status"] for each in report["checks"] if each["check"] == "certificate"] == ["ok"]
    # From elsewhere: by the wrong scheme, and without knowing the certificate.
    elsewhere = {"ARKVORY_DATA_DIR": str(tmp_path / "none")}
    plain = arkvory("--url", f"http://127.0.0.1:{https_server.port}", "repo", "list", check=False, **elsewhere)
    assert "use an address that begins with https://" in plain.stderr
    strange = arkvory("--url", left["url"], "repo", "list", check=False, **elsewhere)
    assert "SSL_CERT_FILE" in strange.stderr
    # Somebody else at that address must not see the secret.
    (tmp_path / "server.json").write_text(json.dumps(left | {"certificates": ["0" * 64]}))
    refused = arkvory("repo", "list", check=False, ARKVORY_DATA_DIR=str(tmp_path))
    assert refused.returncode == 1
    assert "no server runs" in refused.stderr
    # With a database at hand the command goes on by itself, though it has loaded TLS by then.
    alone = arkvory("repo", "list", "--json", ARKVORY_DATA_DIR=str(tmp_path), ARKVORY_DATABASE_URL=database_url)
    assert json.loads(alone.stdout) == []
    assert "Warning" not in alone.stderr


def test_the_command_follows_a_renewed_certificate(make_server: Callable[..., Server], tmp_path: Path) -> None:
    from tests.cli.test_arkvory import arkvory

    used, next_one = certificates.make(tmp_path, "used"), certificates.make(tmp_path, "next")
    server = make_server(**used.settings)
    before = peer_digest(server.port)
    next_one.copy_over(used)
    while peer_digest(server.port) == before:
        assert arkvory("repo", "list", ARKVORY_DATA_DIR=str(server.data)).returncode == 0
    assert arkvory("repo", "list", ARKVORY_DATA_DIR=str(server.data)).returncode == 0


def test_a_server_whose_certificate_was_replaced_while_it_was_looked_for_is_found(
    make_server: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it left is read, it tells of the new one and uses it, and only then it is asked."""
    server = make_server(**certificates.make(tmp_path, "used").settings)
    now = localserver.read(server.data)
    assert now is not None
    localserver.write(server.data, replace(now, certificates=("0" * 64,)))
    answers = localserver._answers

    def late(found: LocalServer) -> bool:
        localserver.write(server.data, now)
        return answers(found)

    monkeypatch.setattr(localserver, "_answers", late)
    assert localserver.read(server.data) == now
