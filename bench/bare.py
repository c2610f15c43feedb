"""A bare WSGI application under Arkvory's own worker class: opens the file and sends it. The floor of a small download."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from app.http.files import FileBody

FILE = os.environ["ARKVORY_BENCH_FILE"]


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    fd = os.open(FILE, os.O_RDONLY | os.O_CLOEXEC)
    body = FileBody(fd, 0, os.fstat(fd).st_size)
    environ["arkvory.file"] = body
    start_response("200 OK", [("Content-Type", "application/octet-stream"), ("Content-Length", str(body.length))])
    return body
