"""`/pypi/{repository}/`: the Simple API, the files, the JSON documents, uploads, and taking back. Addresses are in `names`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from flask import Blueprint, Response, redirect, request

from app.errors import ArkvoryError, Conflict, Invalid, NotFound
from app.http.bodies import body_reader, body_size, body_stream
from app.http.errors import text_answer
from app.http.identity import caller, log_fact
from app.http.negotiation import takes_gzip
from app.http.parts import parts
from app.http.paths import encode_path
from app.http.reads import Asked, Description, DocumentRead, FileRead, Loaded, Otherwise, Read, Reads
from app.protocols.pypi.documents import ProjectIndex, ProjectPage, ReleaseDocument
from app.protocols.pypi.names import INDEX_PATH, companion_of, is_normalised, normalised, page_path
from app.protocols.pypi.negotiation import Representation, negotiate, unacceptable
from app.protocols.pypi.parts import YANKED, files_of, release_rows
from app.protocols.pypi.uploads import store_upload
from app.repository.publishing import Target
from app.repository.reading import Ask, Document, DocumentSource, Gate, Reader

FORMAT = "pypi"
blueprint = Blueprint(FORMAT, __name__, url_prefix="/pypi")
reads = Reads(blueprint)

MOST_REASON_BYTES = 2000
MOST_STATUS_WORDS = 200

# A client may keep what it got, but asks each time whether it still holds: the next request sees the commit.
_FRESH = {"Cache-Control": "no-cache"}
_PAGE = _FRESH | {
    "Vary": "Accept, Accept-Encoding",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'",
}
_FILE = _FRESH | {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox; default-src 'none'"}


# Reading


@blueprint.get("/<segment:repository>")
@blueprint.get("/<segment:repository>/")
def to_index(repository: str) -> Response:
    """People open the address of the repository itself."""
    return _moved("simple/" if request.path.endswith("/") else f"{encode_path(repository)}/simple/")


@reads.get("/<segment:repository>/simple")
@reads.get("/<segment:repository>/simple/")
def index(asked: Asked, repository: str) -> Read | Otherwise:
    """All projects (PEP 503, 691)."""
    if not asked.path.endswith("/"):
        return lambda: _moved("simple/")
    return _page(asked, repository, "", ProjectIndex, INDEX_PATH)


@reads.get("/<segment:repository>/simple/<segment:project>")
@reads.get("/<segment:repository>/simple/<segment:project>/")
def project_page(asked: Asked, repository: str, project: str) -> Read | Otherwise:
    """All files of a project."""
    slash = asked.path.endswith("/")
    if not is_normalised(project) or not slash:
        return lambda: _moved(f"{'../' if slash else ''}{_project(project)}/")
    base = _base(asked, repository)
    origin = base if base.startswith("https://") else ""
    return _page(asked, repository, f"{project}/", lambda form, coding: ProjectPage(form, coding, project, origin), page_path(project))


@reads.get("/<segment:repository>/files/<segment:project>/<segment:filename>")
def file(asked: Asked, repository: str, project: str, filename: str) -> Read:
    """A file, or what stands beside it."""
    return FileRead(f"{project}/{filename}", _file)


@reads.get("/<segment:repository>/pypi/<segment:project>/json")
def project_json(asked: Asked, repository: str, project: str) -> Read | Otherwise:
    """What is known of a project and its newest release."""
    if not is_normalised(project):
        return lambda: _moved(f"../{_project(project)}/json")
    return _release_document(asked, repository, project, None)


@reads.get("/<segment:repository>/pypi/<segment:project>/<segment:version>/json")
def release_json(asked: Asked, repository: str, project: str, version: str) -> Read | Otherwise:
    """The same of one release."""
    if not is_normalised(project):
        return lambda: _moved(f"../../{_project(project)}/{encode_path(version)}/json")
    return _release_document(asked, repository, project, version)


def _release_document(asked: Asked, repository: str, project: str, version: str | None) -> Read:
    coding = _coding(asked)
    source = ReleaseDocument(project, version, _base(asked, repository), coding)
    return DocumentRead(f"{project}/", source, _DOCUMENT[coding], made_of=page_path(project))


class _IndexRead(DocumentRead):
    """An upstream may have no index: then what is known of it makes one."""

    def load(self, reader: Reader, ask: Ask, environ: Mapping[str, Any]) -> Loaded:
        try:
            return DocumentRead.load(self, reader, ask, environ)
        except NotFound:
            return DocumentRead.load(replace(self, made_of=""), reader, ask, environ)


def _page(
    asked: Asked, repository: str, path: str, source: Callable[[Representation, str], DocumentSource], made_of: str
) -> Read | Otherwise:
    form = negotiate(asked.header("Accept"), asked.argument("format"))
    if form is None:
        return lambda: _unacceptable(repository, path)
    coding, read = _coding(asked), DocumentRead if path else _IndexRead
    return read(path, source(form, coding), _DOCUMENT[coding], made_of=made_of)


def _unacceptable(repository: str, path: str) -> Response:
    parts().reader.may_read(Ask(FORMAT, repository, path, caller()))
    return Response(f"{unacceptable()}\n", 406, {"Vary": "Accept"}, content_type="text/plain; charset=utf-8")


def _file(gate: Gate) -> Description:
    return Description(gate.digest, gate.content_type, _FILE, gate.updated_at)


def _plain(made: Document) -> Description:
    return Description(made.etag, made.content_type, _PAGE, body=made.body)


def _compressed(made: Document) -> Description:
    return Description(made.etag, made.content_type, _PAGE | {"Content-Encoding": "gzip"}, body=made.body)


_DOCUMENT = {"": _plain, "gzip": _compressed}


# Writing


@blueprint.post("/<segment:repository>")
@blueprint.post("/<segment:repository>/")
@blueprint.post("/<segment:repository>/legacy")
@blueprint.post("/<segment:repository>/legacy/")
def upload(repository: str) -> Response:
    """An upload form as twine sends it; 200 is what clients take for success."""
    try:
        return _upload(repository)
    except ArkvoryError as error:
        return _refused(error)


def _refused(error: ArkvoryError) -> Response:
    """With the message in the status line too, where twine looks for it and nowhere else."""
    answer = text_answer(error)
    words = "".join(character if " " <= character <= "~" else "?" for character in error.message)
    answer.status = f"{answer.status_code} {words[:MOST_STATUS_WORDS]}"
    return answer


def _upload(repository: str) -> Response:
    with parts().publisher.begin(_target(repository), None) as session:
        published = store_upload(session, body_stream(), request.headers.get("Content-Type"), body_size())
    return Response(f"{published.path} is stored\n", 200, content_type="text/plain; charset=utf-8")


@blueprint.delete("/<segment:repository>/files/<segment:project>/<segment:filename>")
def delete_file(repository: str, project: str, filename: str) -> Response:
    """Take away a file and what stands beside it; its name stays used."""
    target, path = _target(repository), f"{project}/{filename}"
    if companion_of(path)[1] is not None:
        raise Conflict(f"{filename!r} belongs to a file and goes with it")
    parts().editor.delete(target, [path])
    return Response(status=204)


@blueprint.delete("/<segment:repository>/pypi/<segment:project>/<segment:version>")
def delete_release(repository: str, project: str, version: str) -> Response:
    """Take away all files of a release."""
    target = _target(repository)
    parts().editor.delete(target, _release(target, project, version))
    return Response(status=204)


@blueprint.put("/<segment:repository>/pypi/<segment:project>/<segment:version>/yanked")
def yank(repository: str, project: str, version: str) -> Response:
    """Yank a release (PEP 592); the body is the reason, in UTF-8, and may be empty."""
    target, reason = _target(repository), _reason()
    parts().editor.amend(target, _release(target, project, version), {YANKED: reason})
    return Response(status=204)


@blueprint.delete("/<segment:repository>/pypi/<segment:project>/<segment:version>/yanked")
def unyank(repository: str, project: str, version: str) -> Response:
    """Take the yank of a release back."""
    target = _target(repository)
    parts().editor.amend(target, _release(target, project, version), {YANKED: None})
    return Response(status=204)


# What they share


def _target(repository: str) -> Target:
    log_fact("repository", repository)
    return Target(FORMAT, repository, caller())


def _base(asked: Asked, repository: str) -> str:
    """The repository's absolute address, as the client sees it."""
    return f"{asked.base}/{FORMAT}/{encode_path(repository)}/"


def _coding(asked: Asked) -> str:
    return "gzip" if takes_gzip(asked.header("Accept-Encoding")) else ""


def _moved(reference: str) -> Response:
    """To a relative address, which is right behind every proxy; the query goes along."""
    query = request.query_string.decode("latin-1")
    return cast(Response, redirect(reference + (f"?{query}" if query else ""), 308))


def _project(name: str) -> str:
    """The normalised name to redirect to."""
    try:
        return normalised(name)
    except Invalid as error:
        raise NotFound(error.message) from None


def _release(target: Target, project: str, version: str) -> list[str]:
    """The paths of a release's files. Raises NotFound, and what a reader of the project may not know of."""
    with parts().reader.look(Ask(FORMAT, target.repository, f"{_project(project)}/", target.caller)) as (connection, snapshot):
        files = files_of(release_rows(connection, snapshot.id, _project(project), version))
    if not files:
        raise NotFound(f"there is no version {version!r} of {project!r} in repository {target.repository!r}")
    return [f"{_project(project)}/{file.filename}" for file in files]


def _reason() -> str:
    data = body_reader()(MOST_REASON_BYTES + 1)
    try:
        reason = data.decode()
    except UnicodeDecodeError:
        raise Invalid("the reason is not UTF-8") from None
    if len(data) > MOST_REASON_BYTES or not all(character.isprintable() for character in reason.strip()):
        raise Invalid(f"a reason is one line of at most {MOST_REASON_BYTES} bytes")
    return reason.strip()
