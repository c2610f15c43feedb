"""Routing on the path as it was sent, decoded exactly once where a route takes it apart.

    app = Flask(...); route_on_raw_paths(app)          before the first route is added
    @app.get("/raw/<segment:name>/<artifact:path>")    both arrive decoded and checked

A route's text is matched against the still encoded path, so that `%2F` never becomes a separator by accident.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from flask import Flask
from werkzeug.exceptions import BadRequest
from werkzeug.routing import BaseConverter, Rule

from app.errors import InvalidPath
from app.http.addresses import public_base, remote_address
from app.http.exchange import Application, StartResponse
from app.repository.names import check_path

_AUTHORITY = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_LITERAL = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_SAFE = "/@!$*,=()"


class RefusedPath(InvalidPath, BadRequest):  # type: ignore[misc]  # `code` is the domain's here; the status is fixed below
    """`InvalidPath` as routing raises it: Flask hands only HTTP exceptions to the handlers of errors while it matches a route."""

    def get_response(self, *arguments: Any, **named: Any) -> Any:
        """The answer where nobody handles `InvalidPath`."""
        return BadRequest(self.message).get_response(*arguments, **named)


class RawPath:
    """WSGI wrapper: PATH_INFO becomes the normalised, still encoded path of the request target."""

    def __init__(self, application: Application) -> None:
        self._application = application

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Any:
        environ["PATH_INFO"] = raw_path(environ)
        return self._application(environ, start_response)


def raw_path(environ: dict[str, Any]) -> str:
    """The path as it was sent, in ASCII, with unreserved characters literal and other escapes in upper case (RFC 3986, 6.2.2)."""
    target = environ.get("RAW_URI")
    if target is None:
        target = quote(environ.get("PATH_INFO", "").encode("latin-1"), safe=_SAFE + "~")
    path = target if target.startswith("/") else _AUTHORITY.sub("", target, count=1)
    path = path.partition("?")[0] or "/"
    return path if path.isascii() and "%" not in path else _ESCAPE.sub(_normal_escape, _escape_bytes(path))


def encode_path(path: str) -> str:
    """A path encoded once, for links; slashes separate."""
    return quote(path, safe=_SAFE)


def decode_path(text: str) -> str:
    """An encoded path or segment decoded once; raises `InvalidPath` where no artifact can be at it. A slash at the end stays."""
    if "%" not in text and text.isascii():
        return check_path(text, folder=True)
    if _BROKEN_ESCAPE.search(text):
        raise InvalidPath("The path has a % that is not followed by two hexadecimal digits.")
    try:
        path = unquote_to_bytes(text).decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidPath("The path is not UTF-8.") from None
    return check_path(path, folder=True)


@functools.lru_cache(1024)
def decode_segment(text: str) -> str:
    """One segment decoded once; raises `InvalidPath`, for a `%2F` in it too."""
    segment = decode_path(text)
    if "/" in segment:
        raise InvalidPath("A name in the path contains an encoded slash.")
    return segment


class SegmentConverter(BaseConverter):
    """One segment, decoded; a `%2F` in it is refused."""

    regex = "[^/]+"

    def to_python(self, value: str) -> str:
        return _refusing(decode_segment, value)

    def to_url(self, value: Any) -> str:
        return quote(str(value), safe=_SAFE.replace("/", ""))


class ArtifactConverter(BaseConverter):
    """The rest of the path, many segments, decoded; a slash at the end is kept and means a folder."""

    regex = ".+"
    part_isolating = False
    weight = 200

    def to_python(self, value: str) -> str:
        return _refusing(decode_path, value)

    def to_url(self, value: Any) -> str:
        return encode_path(str(value))


def _refusing(decode: Callable[[str], str], value: str) -> str:
    try:
        return decode(value)
    except InvalidPath as error:
        raise RefusedPath(error.message) from None


class _Route(Rule):
    """A rule that compiles what builds its addresses when one is asked for. We ask for none, and it takes half of `create_app`."""

    def _compile_builder(self, append_unknown: bool = True) -> Callable[..., tuple[str, str]]:
        compiled = functools.cache(functools.partial(super()._compile_builder, append_unknown))
        return lambda rule, /, **values: compiled()(rule, **values)


def route_on_raw_paths(app: Flask) -> None:
    """Wrap `app` and let its routes take encoded paths apart; call before the first route is added.

    No route redirects because of slashes: Werkzeug's redirect would encode the path a second time.
    """
    segments = dict.fromkeys(("default", "string", "segment"), SegmentConverter)
    app.url_map.converters = {**app.url_map.converters, **segments, "path": ArtifactConverter, "artifact": ArtifactConverter}
    app.url_rule_class = _Route
    app.url_map.merge_slashes = False
    app.url_map.strict_slashes = False
    app.wsgi_app = RawPath(app.wsgi_app)  # type: ignore[assignment,method-assign]  # Flask documents this way to wrap it


def _normal_escape(match: re.Match[str]) -> str:
    char = chr(int(match.group(1), 16))
    return char if char in _LITERAL else match.group(0).upper()


def _escape_bytes(path: str) -> str:
    """Clients such as curl send UTF-8 unencoded."""
    return path if path.isascii() else "".join(char if char < "\x80" else f"%{ord(char):02X}" for char in path)


__all__ = ["ArtifactConverter", "RawPath", "RefusedPath", "SegmentConverter", "decode_path", "encode_path", "public_base",
           "raw_path", "remote_address", "route_on_raw_paths"]
