"""The head of a request: what may pass, and what it says (RFC 9112). Pure functions, no sockets.

Everything by which two servers could disagree about where a request ends is refused instead of repaired.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

MAX_REQUEST_LINE = 8190

_CONTROLS = bytes({*range(0x20), 0x7F} - set(b"\t\r\n"))
_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_TARGET = re.compile(rb"(?:/|[hH][tT][tT][pP][sS]?://([^/?#]+))[^#\s]*|\*")
_VERSION = re.compile(rb"HTTP/(\d)\.(\d)")
_LENGTH = re.compile(r"[0-9]{1,18}")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")

# A second one of these has no meaning that every server on the way would agree about.
_ONCE = frozenset({"HTTP_HOST", "CONTENT_LENGTH", "CONTENT_TYPE", "HTTP_AUTHORIZATION", "HTTP_EXPECT"})


class BadHead(Exception):
    """A head that never reaches the application; `status` and `message` are the answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(slots=True)
class Head:
    """One request head; `fields` has the names of a WSGI environment, `length` is bytes or None without a body of known length."""

    method: str
    target: str
    version: str
    fields: dict[str, str]
    length: int | None = None
    chunked: bool = False
    keep_alive: bool = True
    expects_continue: bool = False


def _environment_name(name: bytes) -> str:
    text = name.decode("ascii").replace("-", "_").upper()
    return text if text in {"CONTENT_TYPE", "CONTENT_LENGTH"} else f"HTTP_{text}"


def _spellings(name: str) -> dict[bytes, str]:
    key = _environment_name(name.encode())
    return {name.encode(): key, name.lower().encode(): key}


_KNOWN: dict[bytes, str] = {
    spelling: key
    for name in (
        "Host", "User-Agent", "Accept", "Accept-Encoding", "Accept-Language", "Authorization", "Connection", "Cookie",
        "Content-Type", "Content-Length", "Transfer-Encoding", "Expect", "Range", "If-Range", "If-None-Match", "If-Match",
        "If-Modified-Since", "If-Unmodified-Since", "Cache-Control", "Referer", "Origin", "X-Request-Id",
        "X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "X-Forwarded-Port",
    )
    for spelling, key in _spellings(name).items()
}


def split_host(host: str) -> tuple[str, int | None]:
    """The name (IPv6 in brackets) and the port of a Host field; raises `ValueError` when it is malformed."""
    match = _HOST.fullmatch(host)
    if match is None:
        raise ValueError(host)
    name, port = match.group(1), match.group(2)
    if name.startswith("["):
        ipaddress.IPv6Address(name[1:-1])
    if port is not None and int(port) > 65535:
        raise ValueError(host)
    return name.lower(), None if port is None else int(port)


def is_text(data: bytes | bytearray, start: int = 0) -> bool:
    """Whether nothing from `start` on is a control character or half of a line end; a CR at the very end counts as half."""
    if start:
        # A half whose other one stands before `start` is none.
        data = data[start + data.startswith(b"\r\n", start - 1) :]
    # Searching by a regular expression takes several times as long, and every head is looked at.
    return len(data.translate(None, _CONTROLS)) == len(data) and data.count(b"\r") == data.count(b"\n") == data.count(b"\r\n")


def parse_head(data: bytes, max_headers: int) -> Head:
    """`data` is the head without its empty line; raises `BadHead`."""
    if not is_text(data):
        raise BadHead(400, "the request head contains a control character or a broken line end")
    lines = data.split(b"\r\n")
    if len(lines) - 1 > max_headers:
        raise BadHead(431, f"more than {max_headers} header lines")
    head = _request_line(lines[0])
    _read_fields(head, lines)
    _check_host(head)
    _frame(head)
    return head


METHODS = frozenset({b"GET", b"HEAD", b"PUT", b"POST", b"DELETE", b"PATCH", b"OPTIONS"})


def _request_line(line: bytes) -> Head:
    if len(line) > MAX_REQUEST_LINE:
        raise BadHead(414, f"the request line is longer than {MAX_REQUEST_LINE} bytes")
    words = line.split(b" ")
    if len(words) != 3 or not _TOKEN.fullmatch(words[0]):
        raise BadHead(400, "the request line is malformed")
    method, target, version = words
    known = _VERSION.fullmatch(version)
    if known is None:
        raise BadHead(400, "the request line names no HTTP version")
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise BadHead(505, "only HTTP/1.1 and HTTP/1.0 are spoken here")
    absolute = _TARGET.fullmatch(target)
    if absolute is None or (target == b"*" and method != b"OPTIONS"):
        raise BadHead(400, "the request target is malformed")
    if method not in METHODS:
        # Names of methods are labels of metrics: nobody may make up new ones.
        raise BadHead(501, "the method is not one of those that are known here")
    head = Head(method.decode("ascii"), target.decode("latin-1"), version.decode("ascii"), {})
    if absolute.group(1):
        head.fields["arkvory.authority"] = absolute.group(1).decode("latin-1")
    return head


def _read_fields(head: Head, lines: list[bytes]) -> None:
    fields = head.fields
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        key = _KNOWN.get(name)
        if not colon or (key is None and not _TOKEN.fullmatch(name)):
            raise BadHead(400, "a header line is malformed")
        if key is None:
            # `Content_Length` would become CONTENT_LENGTH in a WSGI environment.
            if b"_" in name:
                continue
            key = _environment_name(name)
        text = value.strip(b" \t").decode("latin-1")
        if key not in fields:
            fields[key] = text
        elif key in _ONCE:
            raise BadHead(400, f"the header {name.decode('ascii')} is there twice")
        else:
            fields[key] += ("; " if key == "HTTP_COOKIE" else ", ") + text


def _check_host(head: Head) -> None:
    """RFC 9112, 3.2: exactly one Host in HTTP/1.1, overruled by the authority of an absolute target."""
    host = head.fields.get("HTTP_HOST")
    if host is None and head.version == "HTTP/1.1":
        raise BadHead(400, "the header Host is missing")
    authority = head.fields.pop("arkvory.authority", None)
    for name in (host, authority):
        try:
            if name:
                split_host(name)
        except ValueError:
            raise BadHead(400, "the header Host is malformed") from None
    if authority:
        head.fields["HTTP_HOST"] = authority


def _frame(head: Head) -> None:
    """Where the body ends, and whether another request may follow it."""
    fields = head.fields
    coding, length = fields.get("HTTP_TRANSFER_ENCODING"), fields.get("CONTENT_LENGTH")
    if coding is not None:
        _check_coding(head, coding, length)
        head.chunked = True
    elif length is not None:
        if not _LENGTH.fullmatch(length):
            raise BadHead(400, "the header Content-Length is malformed")
        head.length = int(length)
    options = fields.get("HTTP_CONNECTION", "").lower().replace(" ", "").split(",")
    head.keep_alive = "close" not in options and (head.version == "HTTP/1.1" or "keep-alive" in options)
    expectation = fields.get("HTTP_EXPECT")
    if expectation is not None and head.version == "HTTP/1.1":
        if expectation.lower() != "100-continue":
            raise BadHead(417, "the only expectation met here is 100-continue")
        head.expects_continue = head.chunked or bool(head.length)


def _check_coding(head: Head, coding: str, length: str | None) -> None:
    if length is not None:
        raise BadHead(400, "Content-Length and Transfer-Encoding exclude each other")
    if head.version != "HTTP/1.1":
        raise BadHead(400, "Transfer-Encoding belongs to HTTP/1.1")
    if coding.lower() != "chunked":
        raise BadHead(501, "the only transfer coding understood here is chunked")
