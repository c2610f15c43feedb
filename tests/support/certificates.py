"""Certificates for tests, made by openssl: one for localhost, and those that a server must refuse."""

from __future__ import annotations

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

NAMES = "subjectAltName=DNS:localhost,IP:127.0.0.1"
_AUTHORITY = """
[ca]
default_ca = it
[it]
new_certs_dir = {folder}
database = {folder}/index
serial = {folder}/serial
default_md = sha256
policy = any
[any]
commonName = supplied
"""


@dataclass(frozen=True)
class Pair:
    """Two PEM files."""

    cert: Path
    key: Path

    @property
    def settings(self) -> dict[str, str]:
        return {"ARKVORY_TLS_CERT": str(self.cert), "ARKVORY_TLS_KEY": str(self.key)}

    def client(self) -> ssl.SSLContext:
        """A client that knows this certificate."""
        return ssl.create_default_context(cafile=str(self.cert))

    def server(self) -> ssl.SSLContext:
        """A server that shows it."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.cert, self.key)
        return context

    def copy_over(self, other: Pair) -> None:
        """As a renewing tool does it: one file replaced after the other."""
        for mine, theirs in ((self.cert, other.cert), (self.key, other.key)):
            fresh = theirs.with_name(theirs.name + ".fresh")
            fresh.write_bytes(mine.read_bytes())
            fresh.replace(theirs)


def _openssl(*arguments: str | Path) -> None:
    done = subprocess.run(["openssl", *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def make_key(path: Path) -> Path:
    _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-out", path)
    path.chmod(0o600)
    return path


def make(folder: Path, name: str, *extensions: str) -> Pair:
    """Valid for localhost and 127.0.0.1, for 30 days, signed by itself."""
    pair = Pair(folder / f"{name}.crt", make_key(folder / f"{name}.key"))
    more = [part for each in (NAMES, *extensions) for part in ("-addext", each)]
    _openssl("req", "-x509", "-key", pair.key, "-out", pair.cert, "-days", "30", "-subj", "/CN=localhost", *more)
    return pair


def make_dated(folder: Path, name: str, begins: str, ends: str) -> Pair:
    """Valid from and until these times (YYMMDDHHMMSSZ)."""
    pair = Pair(folder / f"{name}.crt", make_key(folder / f"{name}.key"))
    request = folder / f"{name}.csr"
    (folder / "ca.conf").write_text(_AUTHORITY.format(folder=folder))
    (folder / "index").write_text("")
    (folder / "serial").write_text("01\n")
    _openssl("req", "-new", "-key", pair.key, "-out", request, "-subj", "/CN=localhost")
    _openssl(
        "ca", "-batch", "-selfsign", "-notext", "-config", folder / "ca.conf", "-keyfile", pair.key, "-in", request, "-out", pair.cert,
        "-startdate", begins, "-enddate", ends,
    )  # fmt: skip
    return pair
