"""A small application for the tests of the server: each route shows one thing that a real one does."""

from __future__ import annotations

import hashlib
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gevent
from flask import Flask, Response, request

from app.errors import ArkvoryError, BodyCutShort, Invalid
from app.http.paths import encode_path, remote_address, route_on_raw_paths
from app.http.responses import document_response, file_response

MIB = 1024 * 1024
FOLDER = Path(os.environ.get("SAMPLE_FOLDER", "."))
MODIFIED = datetime(2024, 2, 29, 12, 30, 45, 999, UTC)

app = Flask(__name__)
route_on_raw_paths(app)


class Blob:
    check = None

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDONLY)
        self.size = os.fstat(self.fd).st_size

    def close(self) -> None:
        os.close(self.fd)


@app.errorhandler(ArkvoryError)
def refused(error: ArkvoryError) -> tuple[str, int]:
    return f"{error.code}: {error.message}\n", 400 if isinstance(error, Invalid) else 500


@app.get("/ping")
def ping() -> str:
    return "pong"


@app.get("/file/<segment:name>")
def file(name: str) -> Response:
    headers = {"Cache-Control": "no-cache", "Vary": "Accept", "Content-Digest": "sha-256=:x:", "X-Checksum-Sha256": "abc"}
    return file_response(request, Blob(FOLDER / name), etag="v1", last_modified=MODIFIED, content_type="application/x-test",
                         headers=headers, download_name=request.args.get("as"))


@app.get("/document")
def document() -> Response:
    return document_response(request, b"0123456789", etag="d1", content_type="text/x-test", last_modified=MODIFIED)


@app.get("/replaced/<segment:name>")
def replaced(name: str) -> Response:
    file_response(request, Blob(FOLDER / name), etag="v1", last_modified=MODIFIED, content_type="text/plain")
    raise RuntimeError("after the file was opened")


@app.get("/short-file/<segment:name>")
def short_file(name: str) -> Response:
    blob = Blob(FOLDER / name)
    blob.size += 10
    return file_response(request, blob, etag="v1", last_modified=MODIFIED, content_type="text/plain")


@app.route("/path/<artifact:path>", methods=["GET", "PUT"])
def path(path: str) -> Response:
    return Response(path.encode() + b"\n" + encode_path(path).encode(), content_type="application/octet-stream")


@app.route("/segment/<name>/end", methods=["GET"])
def segment(name: str) -> Response:
    return Response(name.encode(), content_type="application/octet-stream")


@app.route("/upload", methods=["PUT", "POST"])
def upload() -> dict[str, Any]:
    size, digest = 0, hashlib.sha256()
    pool = gevent.get_hub().threadpool
    stream = request.environ["wsgi.input"]
    while piece := stream.read(MIB):
        pool.apply(digest.update, (piece,))
        size += len(piece)
    return {"size": size, "sha256": digest.hexdigest()}


@app.route("/swallow", methods=["PUT", "POST"])
def swallow() -> str:
    """Catches a cut body, as an upload does that cleans up, and says so in a file."""
    try:
        data = request.environ["wsgi.input"].read()
    except BodyCutShort:
        (FOLDER / "cut").write_text("cut short")
        raise
    (FOLDER / "cut").write_text(f"complete {len(data)}")
    return str(len(data))


@app.route("/refuse/<int:status>", methods=["PUT", "POST"])
def refuse(status: int) -> tuple[str, int]:
    return "no\n", status


@app.route("/lines", methods=["POST"])
def lines() -> dict[str, list[str]]:
    return {"lines": [line.decode() for line in request.environ["wsgi.input"]]}


@app.get("/stream")
def stream() -> Response:
    return Response((b"%d\n" % number for number in range(3)), content_type="text/plain")


@app.get("/big-stream")
def big_stream() -> Response:
    return Response((b"x" * 65536 for _ in range(4096)), content_type="text/plain")


@app.get("/slow")
def slow() -> str:
    gevent.sleep(float(request.args.get("seconds", "1")))
    return "done"


@app.get("/mistake")
def mistake() -> str:
    raise RuntimeError("a mistake")


@app.get("/breaks-off")
def breaks_off() -> Response:
    def pieces() -> Any:
        yield b"some"
        raise RuntimeError("in the middle")

    return Response(pieces(), content_type="text/plain")


@app.get("/bad-header")
def bad_header() -> Any:
    def application(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", [("X-Injected", "a\r\nSet-Cookie: b")])
        return [b"x"]

    return application


@app.get("/wrong-length")
def wrong_length() -> Any:
    claimed = request.args["claimed"]

    def application(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Content-Length", claimed)])
        return [b"12345"]

    return application


@app.get("/who")
def who() -> dict[str, Any]:
    request.environ["arkvory.log"].update(user="ann", repository="files")
    return {"address": remote_address(request.environ), "id": request.environ["arkvory.request_id"], "raw": request.environ["RAW_URI"],
            "host": request.environ.get("HTTP_HOST"), "scheme": request.environ["wsgi.url_scheme"], "keys": sorted(request.environ)}


def _note(word: str) -> None:
    with open(FOLDER / "life", "a") as notes:
        notes.write(f"{word}\n")


app.arkvory_start = lambda worker: _note("start")  # type: ignore[attr-defined]  # the seams of config/gunicorn.py
app.arkvory_stopping = lambda: _note("stopping")  # type: ignore[attr-defined]  # as above
app.arkvory_stop = lambda: _note("stop")  # type: ignore[attr-defined]  # as above
