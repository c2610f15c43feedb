"""`/raw/{repository}/{path}`: GET HEAD PUT POST DELETE of files, folders as listings."""

from __future__ import annotations

from flask import Blueprint, Response, request

from app.errors import Invalid, InvalidPath
from app.http.addresses import public_base
from app.http.bodies import body_filler, body_size, body_stream
from app.http.digests import announced, digest_headers
from app.http.forms import FilePart, Limits, read_form
from app.http.identity import caller, log_fact
from app.http.listing import HARMLESS, folder, refusal
from app.http.parts import parts
from app.http.paths import encode_path
from app.http.preconditions import conditions
from app.http.reads import Asked, Description, FileRead, Read, Reads
from app.http.responses import content_disposition
from app.repository.names import check_path, guessed_type, is_content_type
from app.repository.publishing import NewFile, Published, Target
from app.repository.reading import Gate
from app.upload.receiving import Expected

blueprint = Blueprint("raw", __name__, url_prefix="/raw")
reads = Reads(blueprint, refusal)

MOST_FILES = 100
# What clients say when they have not been told what the body is.
_UNTOLD = {"", "application/x-www-form-urlencoded"}


@blueprint.get("/<segment:repository>")
def to_root(repository: str) -> Response:
    return Response(status=308, headers={"Location": f"{encode_path(repository)}/"})


@reads.get("/<segment:repository>/", path="")
@reads.get("/<segment:repository>/<artifact:path>")
def get(asked: Asked, repository: str, path: str) -> Read:
    """A file with its validators and digests, or (path ending in a slash) a folder."""
    return folder(asked, path) if not path or path.endswith("/") else FileRead(path, _file, spelling=asked.spelling())


def _file(gate: Gate) -> Description:
    disposition = {"Content-Disposition": content_disposition(gate.path.rsplit("/", 1)[-1], "inline")}
    return Description(gate.digest, gate.content_type, HARMLESS | digest_headers(gate.checksums) | disposition, gate.updated_at)


@blueprint.put("/<segment:repository>/<artifact:path>")
def put(repository: str, path: str) -> Response:
    """Store the body at the path: 201 when it is new, 204 when it replaces what was there."""
    log_fact("repository", repository)
    if path.endswith("/"):
        raise InvalidPath("a file's path does not end in a slash")
    expected, demanded = Expected(announced(request.headers), body_size()), conditions()
    with parts().publisher.begin(Target("raw", repository, caller()), path, demanded) as session:
        receiver = session.receiver(expected, when_small=("md5", "sha1"))
        receiver.drain_into(body_filler())
        file = NewFile(path, receiver.finish(), _known_type(request.headers.get("Content-Type", ""), path))
        (published,) = session.publish([file], demanded)
    return _stored(published)


@blueprint.post("/<segment:repository>/", defaults={"path": ""})
@blueprint.post("/<segment:repository>/<artifact:path>")
def post(repository: str, path: str) -> Response:
    """Store the files of a form in a folder, under the names that they have there; all or none."""
    log_fact("repository", repository)
    folder = check_path(path if path.endswith("/") or not path else path + "/", folder=True)
    with parts().publisher.begin(Target("raw", repository, caller()), None) as session:
        files: list[NewFile] = []

        def receive(part: FilePart) -> None:
            receiver = session.receiver(Expected(), when_small=("md5", "sha1"), at_most=body_size())
            receiver.drain(part.read)
            target = check_path(folder + part.filename)
            files.append(NewFile(target, receiver.finish(), _known_type(part.content_type or "", target)))

        read_form(body_stream(), request.headers.get("Content-Type"), receive, Limits(parts=MOST_FILES))
        if not files:
            raise Invalid("the form has no file")
        stored = session.publish(files)
    return Response("".join(f"{each.path}\n" for each in stored), 201, content_type="text/plain; charset=utf-8")


@blueprint.delete("/<segment:repository>/<artifact:path>")
def delete(repository: str, path: str) -> Response:
    log_fact("repository", repository)
    parts().editor.delete(Target("raw", repository, caller()), [path], conditions())
    return Response(status=204)


def _known_type(told: str, path: str) -> str:
    """What the client said, else what the name's ending says."""
    if is_content_type(told) and told.partition(";")[0].strip().lower() not in _UNTOLD:
        return told
    return guessed_type(path)


def _stored(published: Published) -> Response:
    headers = digest_headers(published.checksums) | {"ETag": f'"{published.sha256}"'}
    if published.created:
        headers["Location"] = public_base(request) + request.path
        return Response(f"{published.path} is stored\n", 201, headers, content_type="text/plain; charset=utf-8")
    return Response(status=204, headers=headers)
