"""https on our own sockets: the certificate, its renewal while we run, and a socket whose waits all have an end.

A certificate is tried out before it is used: the server shakes hands with itself, in memory. That finds everything that clients would
find (expired, not for servers, a key of another certificate), and needs nothing that parses certificates.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import functools
import hashlib
import logging
import socket as sockets
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from gevent import socket as gevent_sockets

from app.http.connection import Connection
from config.settings import SettingError, Settings

log = logging.getLogger(__name__)

T = TypeVar("T")
CERT, KEY = "ARKVORY_TLS_CERT", "ARKVORY_TLS_KEY"
_HANDSHAKE_TURNS = 20
_HANDSHAKE = b"\x16"
_WORDS = b"This is https: use an address that begins with https://\n"
_SPEAK_TLS = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(_WORDS), _WORDS)
)


@dataclass(frozen=True)
class Certificate:
    """A certificate that works: `context` for new handshakes, `fingerprint` the SHA-256 of its DER form, `expires` seconds since 1970."""

    context: ssl.SSLContext
    fingerprint: str
    expires: float


def files_of(settings: Settings) -> tuple[Path, Path] | None:
    """Certificate and key, null without https. Raises SettingError when one is set without the other."""
    if settings.tls_cert is None and settings.tls_key is None:
        return None
    if settings.tls_cert is None or settings.tls_key is None:
        given, missing = (CERT, KEY) if settings.tls_key is None else (KEY, CERT)
        raise SettingError(f"{given} is set without {missing}; https needs both")
    return settings.tls_cert, settings.tls_key


def load(cert: Path, key: Path) -> Certificate:
    """Read both files and try them out. Raises SettingError, saying which file is wrong and how."""
    text = _read(cert, CERT)
    _read(key, KEY)
    try:
        der = ssl.PEM_cert_to_DER_cert(text[text.index(ssl.PEM_HEADER) : text.index(ssl.PEM_FOOTER) + len(ssl.PEM_FOOTER)])
    except ValueError:
        raise SettingError(f"{CERT}: {cert} holds no certificate in PEM form (-----BEGIN CERTIFICATE-----)") from None
    context = _context(cert, key)
    return Certificate(context, hashlib.sha256(der).hexdigest(), _try_out(context, der, cert))


def _read(path: Path, variable: str) -> str:
    try:
        # A pipe would be waited for, and everybody with it.
        if path.exists() and not path.is_file():
            raise SettingError(f"{variable}: {path} is no file")
        return path.read_text("latin-1")
    except OSError as error:
        raise SettingError(f"{variable}: cannot read {path}: {error.strerror}") from None


def _context(cert: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A stream that ends without close_notify is ended all the same: requests say how long they are. Else OpenSSL answers with an alert,
    # also where it is we who stop listening to an idle client.
    context.options |= ssl.OP_IGNORE_UNEXPECTED_EOF
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except SettingError:
        raise
    except ssl.SSLError as error:
        raise SettingError(_reason(error, cert, key)) from None
    return context


def _no_password() -> bytes:
    """OpenSSL would ask for it on the terminal."""
    raise SettingError(f"{KEY}: the key is encrypted, and a server cannot be asked for its passphrase; store it without one, mode 600")


def _reason(error: ssl.SSLError, cert: Path, key: Path) -> str:
    if error.reason == "KEY_VALUES_MISMATCH" or error.reason == "KEY_TYPE_MISMATCH":
        return f"{KEY}: {key} is not the key of the certificate in {cert}"
    if error.reason in {"EE_KEY_TOO_SMALL", "CA_KEY_TOO_SMALL", "CA_MD_TOO_WEAK"}:
        return f"{CERT}: {cert} is too weak for clients of today ({error.reason})"
    return f"{KEY}: {key} holds no private key in PEM form, or {cert} holds something broken ({error.reason or error})"


def _try_out(context: ssl.SSLContext, der: bytes, cert: Path) -> float:
    """Shake hands with ourselves; when the certificate expires, in seconds since 1970. Raises SettingError."""
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname = False
    # The certificate itself is what this client trusts, whoever signed it.
    client_context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client_context.load_verify_locations(cadata=der)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client, server = client_context.wrap_bio(back, there), context.wrap_bio(there, back, server_side=True)
    try:
        for _ in range(_HANDSHAKE_TURNS):
            for side in (client, server):
                with contextlib.suppress(ssl.SSLWantReadError):
                    side.do_handshake()
    except ssl.SSLCertVerificationError as error:
        raise SettingError(f"{CERT}: {cert} would be refused by clients: {error.verify_message}") from None
    except ssl.SSLError as error:
        raise SettingError(f"{CERT}: a handshake with {cert} fails ({error.reason or error})") from None
    shown = client.getpeercert() or {}
    return float(ssl.cert_time_to_seconds(str(shown["notAfter"])))


class Tls:
    """The certificate in use. `renew` takes a new one over; connections that are open keep theirs."""

    def __init__(self, cert: Path, key: Path) -> None:
        self._cert = cert
        self._key = key
        self._seen = self._signature()
        self.certificate = load(cert, key)
        # Called with the new certificate before it is used.
        self.on_renewal: Callable[[Certificate], None] | None = None

    def renew(self) -> bool:
        """Look at the files; True when they hold a new certificate, which is used from now on. What does not work is logged, once."""
        seen = self._signature()
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            fresh = load(self._cert, self._key)
        except SettingError as error:
            log.error("the certificate in use stays: %s", error)
            return False
        self._announce(fresh)
        self.certificate = fresh
        log.warning("a new certificate is in use, valid until %s", day(fresh.expires))
        return True

    def _announce(self, fresh: Certificate) -> None:
        """Clients wait for the new certificate; whoever else wants to know must not be in their way."""
        try:
            if self.on_renewal is not None:
                self.on_renewal(fresh)
        except Exception:
            log.exception("a new certificate could not be announced")

    def _signature(self) -> tuple[Any, ...]:
        """Renewing tools replace files, or turn links to others; half of a pair is tried again when the other half comes."""
        return tuple(_state(path) for path in (self._cert, self._key))


@functools.lru_cache(maxsize=1)
def shared(cert: Path, key: Path) -> Tls:
    """The one of this process and of those forked from it; raises SettingError the first time."""
    return Tls(cert, key)


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def day(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


class Greeting:
    """A client's handshake, from its first byte on. Takes the socket over."""

    def __init__(self, socket: gevent_sockets.socket, context: ssl.SSLContext) -> None:
        self._socket: Any = socket
        self._context = context

    def stop_waiting(self) -> None:
        """End it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(sockets.SHUT_RD)

    def finish(self, seconds: float) -> TlsSocket | None:
        """The socket after a handshake that took at most `seconds`; null when nobody is there to serve."""
        deadline = time.monotonic() + seconds
        try:
            self._socket.settimeout(seconds)
            first = self._socket.recv(1, sockets.MSG_PEEK)
            if first.isupper():
                _send_away(self._socket)
            if first != _HANDSHAKE:
                return None
            secure = self._socket = TlsSocket(self._socket, self._context)
        except OSError:
            return None
        try:
            secure.handshake(max(deadline - time.monotonic(), 0.001))
        except BaseException as error:
            secure.close()
            if not isinstance(error, OSError):
                raise
            log.debug("a handshake failed: %s", error)
            return None
        return secure


def _send_away(socket: gevent_sockets.socket) -> None:
    """A client that speaks HTTP where https is spoken is told so, in its own words."""
    connection = Connection(socket, 1.0)
    connection.send(_SPEAK_TLS)
    connection.linger(1.0, 0.5, 65536)


class TlsSocket:
    """A server's end of TLS, with the methods of a socket that `Connection` uses.

    A timeout bounds each call as a whole, not each byte that arrives: whoever drips a record is given up like whoever is silent.
    """

    def __init__(self, socket: gevent_sockets.socket, context: ssl.SSLContext) -> None:
        self._timeout = 0.0
        self._farewell = True
        socket.settimeout(0.0)
        self._socket = context.wrap_socket(socket, server_side=True, do_handshake_on_connect=False)

    def handshake(self, seconds: float) -> None:
        """Raises OSError, TimeoutError among them."""
        self._timeout = seconds
        self._farewell = False
        self._patiently(self._socket.do_handshake)
        self._farewell = True

    def settimeout(self, seconds: float) -> None:
        self._timeout = seconds

    def recv(self, size: int) -> bytes:
        return self._patiently(lambda: self._socket.recv(size))

    def recv_into(self, view: memoryview) -> int:
        return self._patiently(lambda: self._socket.recv_into(view))

    def send(self, view: memoryview) -> int:
        """At most one record (16 KiB) goes out at a time."""
        return self._patiently(lambda: self._socket.write(view))

    def setsockopt(self, *option: Any) -> None:
        self._socket.setsockopt(*option)

    def shutdown(self, how: int) -> None:
        """Below TLS, whose state a reader may still need; whoever stops writing says so in TLS first."""
        if how != sockets.SHUT_RD:
            self._say_farewell()
        gevent_sockets.socket.shutdown(self._socket, how)

    def vanish(self) -> None:
        """Let the end look like what it is, an answer cut short."""
        self._farewell = False

    def close(self) -> None:
        self._say_farewell()
        self._socket.close()

    def _say_farewell(self) -> None:
        """`close_notify`, once and without waiting for the client's: by it, a client knows a complete answer from a broken connection."""
        if self._farewell:
            self._farewell = False
            with contextlib.suppress(OSError, ValueError):
                self._socket.unwrap()

    def _patiently(self, step: Callable[[], T]) -> T:
        """Repeat a step until it can be done; raises TimeoutError when that takes longer than the timeout."""
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                wait = gevent_sockets.wait_read
            except ssl.SSLWantWriteError:
                wait = gevent_sockets.wait_write
            except ValueError as error:
                # Both sides have said farewell.
                raise OSError(errno.ENOTCONN, "TLS has ended") from error
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("TLS took too long")
            wait(self._socket.fileno(), left, TimeoutError("TLS took too long"))
