"""Answers that have a validator: conditional requests, ranges and HEAD, the same for files and documents (RFC 9110, 13 and 14)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote

from flask import Request, Response
from werkzeug.http import http_date, parse_etags, quote_etag, unquote_etag

from app.http.files import FileBody

_KEPT_IN_304 = frozenset({"cache-control", "content-location", "date", "etag", "expires", "vary", "x-request-id"})
# These want to know what is there before anything is sent.
PRECONDITIONS = frozenset({"HTTP_IF_MATCH", "HTTP_IF_UNMODIFIED_SINCE"})
# Without any of these the answer is the whole.
CONDITIONS = frozenset({"HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH", "HTTP_IF_MODIFIED_SINCE", "HTTP_IF_UNMODIFIED_SINCE", "HTTP_RANGE"})


class Coming(Protocol):
    """Bytes on their way, `size` of them where that is known."""

    @property
    def size(self) -> int | None: ...

    def pieces(self, start: int, stop: int | None) -> Iterator[bytes]: ...

    def close(self) -> None: ...


class Blob(Protocol):
    """An open file of `size` bytes; `close` gives it back."""

    @property
    def fd(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def check(self) -> Callable[[], None] | None: ...

    def close(self) -> None: ...


def file_response(
    request: Request,
    blob: Blob,
    *,
    etag: str,
    last_modified: datetime,
    content_type: str,
    headers: Mapping[str, str] | None = None,
    download_name: str | None = None,
) -> Response:
    """The answer to GET or HEAD of a file: 200, 206, 304, 412 or 416.

    Owns `blob` from here on: closed when the answer was sent, at once where no byte of it is. `etag` comes without quotes and is strong.
    """
    try:
        fields = header_fields(etag, last_modified, content_type, headers)
        if download_name is not None:
            fields["Content-Disposition"] = content_disposition(download_name)
        decision = decide(request, blob.size, etag, last_modified, fields)
        answer = _answer(decision)
        if decision.status not in (200, 206) or request.method == "HEAD":
            blob.close()
            return answer
        body = FileBody(blob.fd, decision.start, decision.stop - decision.start, blob.close, blob.check)
    except BaseException:
        blob.close()
        raise
    answer.response = body
    answer.direct_passthrough = True
    request.environ["arkvory.file"] = body
    return answer


def coming_response(request: Request, coming: Coming, *, content_type: str, headers: Mapping[str, str] | None = None) -> Response:
    """The answer to GET or HEAD of bytes that are still coming: 200, 206 or 416, without a validator, which nobody knows yet.

    Owns `coming` from here on. A client's own validator matches nothing, so that it gets the whole.
    """
    try:
        fields = {**(headers or {}), "Content-Type": content_type, "Accept-Ranges": "bytes"}
        size = coming.size
        part = None if size is None or "If-Range" in request.headers else _part(request, size, "", None)
        if part is not None and part[0] >= part[1]:
            coming.close()
            return _answer(_refusal(416, f"The file has {size} bytes.", fields | {"Content-Range": f"bytes */{size}"}))
        start, stop = part or (0, size)
        if part is not None:
            fields["Content-Range"] = f"bytes {start}-{part[1] - 1}/{size}"
        if stop is not None:
            fields["Content-Length"] = str(stop - start)
        answer = _answer(Decision(200 if part is None else 206, fields))
        if request.method == "HEAD":
            coming.close()
            return answer
    except BaseException:
        coming.close()
        raise
    answer.response = coming.pieces(start, stop)
    answer.call_on_close(coming.close)
    answer.direct_passthrough = True
    return answer


def document_response(
    request: Request,
    body: bytes,
    *,
    etag: str,
    content_type: str,
    last_modified: datetime | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """The answer to GET or HEAD of bytes in memory, by the same rules as `file_response`."""
    decision = decide(request, len(body), etag, last_modified, header_fields(etag, last_modified, content_type, headers))
    answer = _answer(decision)
    if decision.status in (200, 206) and request.method != "HEAD":
        answer.response = [body[decision.start : decision.stop]]
    return answer


def content_disposition(name: str, kind: str = "attachment") -> str:
    """A Content-Disposition for `name`, in ASCII and, where that is not the whole truth, as UTF-8 too (RFC 6266, 8187)."""
    plain = "".join(char if " " <= char <= "~" and char not in '"\\%' else "_" for char in name)
    extended = "" if plain == name else f"; filename*=UTF-8''{quote(name, safe='!#$&+-.^_`|~')}"
    return f'{kind}; filename="{plain}"{extended}'


def header_fields(etag: str, last_modified: datetime | None, content_type: str, headers: Mapping[str, str] | None) -> dict[str, str]:
    """What an answer's head says in the order in which it is sent, but for Content-Length, which a 200 has behind it."""
    fields = dict(headers or {})
    fields["Content-Type"] = content_type
    fields["ETag"] = quote_etag(etag)
    fields["Accept-Ranges"] = "bytes"
    if last_modified is not None:
        # RFC 9110, 8.8.2.1: never later than the answer's own date.
        fields["Last-Modified"] = http_date(min(last_modified.astimezone(UTC), datetime.now(UTC)))
    return fields


class Decision(NamedTuple):
    """What conditions make of an answer: its head, and the bytes from `start` to `stop` as its body, or a `message` that is the body."""

    status: int
    fields: dict[str, str]
    start: int = 0
    stop: int = 0
    message: str | None = None


def decide(request: Request, size: int, etag: str, last_modified: datetime | None, fields: dict[str, str]) -> Decision:
    """For something of `size` bytes whose whole answer has these fields (`header_fields`)."""
    if CONDITIONS.isdisjoint(request.environ):
        return Decision(200, fields | {"Content-Length": str(size)}, 0, size)
    modified = None if last_modified is None else last_modified.astimezone(UTC).replace(microsecond=0)
    if _fails_precondition(request, etag, modified):
        return _refusal(412, "The precondition of the request does not hold.", fields)
    if _unchanged(request, etag, modified):
        return Decision(304, {name: value for name, value in fields.items() if name.lower() in _KEPT_IN_304})
    part = _part(request, size, etag, modified)
    if part is None:
        return Decision(200, fields | {"Content-Length": str(size)}, 0, size)
    start, stop = part
    if start >= stop:
        return _refusal(416, f"The file has {size} bytes.", fields | {"Content-Range": f"bytes */{size}"})
    fields = {name: value for name, value in fields.items() if name.lower() != "content-digest"}
    fields |= {"Content-Length": str(stop - start), "Content-Range": f"bytes {start}-{stop - 1}/{size}"}
    return Decision(206, fields, start, stop)


def _fails_precondition(request: Request, etag: str, modified: datetime | None) -> bool:
    """If-Match, else If-Unmodified-Since."""
    if "If-Match" in request.headers:
        return not request.if_match.contains(etag)
    since = request.if_unmodified_since
    return since is not None and modified is not None and modified > since


def _unchanged(request: Request, etag: str, modified: datetime | None) -> bool:
    """If-None-Match, else If-Modified-Since."""
    if "If-None-Match" in request.headers:
        return request.if_none_match.contains_weak(etag)
    since = request.if_modified_since
    return since is not None and modified is not None and modified <= since


def _part(request: Request, size: int, etag: str, modified: datetime | None) -> tuple[int, int] | None:
    """The one range to send; None for the whole, an empty one when it cannot be satisfied."""
    asked = request.range
    if asked is None or asked.units != "bytes" or len(asked.ranges) != 1 or not _range_is_current(request, etag, modified):
        return None
    start, stop = asked.ranges[0]
    if start < 0:
        # RFC 9110, 14.1.2: a suffix longer than the file means all of it.
        return (max(size + start, 0), size) if size else None
    return start, size if stop is None else min(stop, size)


def _range_is_current(request: Request, etag: str, modified: datetime | None) -> bool:
    """If-Range: a strong tag or exactly our date, else the whole file is what the client wants."""
    if "If-Range" not in request.headers:
        return True
    date = request.if_range.date
    if date is not None:
        return date == modified
    # Werkzeug's `if_range.etag` has lost the mark of a weak tag, which never matches here.
    return unquote_etag(request.headers["If-Range"]) == (etag, False)


def _refusal(status: int, message: str, fields: dict[str, str]) -> Decision:
    """It keeps what a cache needs to know."""
    kept = {name: value for name, value in fields.items() if name.lower() in _KEPT_IN_304 or name in ("Content-Range", "Accept-Ranges")}
    return Decision(status, kept, message=f"{message}\n")


def _answer(decision: Decision) -> Response:
    """Without the bytes of what was asked for."""
    answer = Response(decision.message, decision.status, content_type="text/plain; charset=utf-8")
    if decision.message is None:
        del answer.headers["Content-Type"]
    answer.headers.extend(decision.fields)
    return answer


def etags_of(environ: Mapping[str, Any]) -> frozenset[str]:
    """The validators that the client has already (If-None-Match), unquoted."""
    if "HTTP_IF_NONE_MATCH" not in environ:
        return frozenset()
    return frozenset(parse_etags(environ["HTTP_IF_NONE_MATCH"]).as_set(include_weak=True))


def json_time(moment: datetime) -> str:
    """A time as the APIs show it: ISO 8601, UTC, with `Z`."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
