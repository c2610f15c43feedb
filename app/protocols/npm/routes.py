"""`/npm/{repository}/`: packages, their tarballs, tags and changes. Addresses are in `names`; what is no package is in `accounts`,
`search` and `audit`.
"""

from __future__ import annotations

import functools
from typing import Any

from flask import Response, request

from app.errors import AlreadyExists, Invalid, NotFound
from app.http.bodies import body_reader, body_size
from app.http.identity import caller
from app.http.negotiation import takes_gzip
from app.http.parts import parts
from app.http.reads import Asked, Description, DocumentRead, FileRead, Otherwise, Read
from app.protocols.npm import accounts, audit, changes, search, uploads
from app.protocols.npm.answers import FRESH, answer, published_before
from app.protocols.npm.blueprint import FORMAT, base_of, blueprint, reads, target_in
from app.protocols.npm.documents import PackumentDocument, TagsDocument, VersionDocument
from app.protocols.npm.kept import index_path
from app.protocols.npm.names import PROVENANCE, OneVersion, Packument, Revision, Tarball, is_name, package_of, parse, tarball_path
from app.protocols.npm.negotiation import wants_abbreviated
from app.protocols.npm.received import Document, parsed, receive, small_document
from app.protocols.npm.upstream import Registry
from app.repository.publishing import Target
from app.repository.reading import Ask, Gate
from app.repository.reading import Document as Made

__all__ = ["Registry", "accounts", "audit", "blueprint", "reads", "search"]

MOST_TAGS = 64 * 1024

_DOCUMENT_HEADERS = FRESH | {"Vary": "Accept, Accept-Encoding"}
_FILE_HEADERS = FRESH | {"Content-Security-Policy": "sandbox; default-src 'none'"}


# Reading


@reads.get("/<segment:repository>/-/package/<artifact:path>")
def tags(asked: Asked, repository: str, path: str) -> Read | Otherwise:
    """The tags of a package."""
    name, _, rest = path.rstrip("/").rpartition("/")
    if rest != "dist-tags":
        return functools.partial(_nothing, repository, path)
    try:
        package = package_of(name)
    except NotFound:
        return functools.partial(_nothing, repository, path)
    return _document(asked, TagsDocument(package, base_of(asked, repository), _coding(asked)))


@reads.get("/<segment:repository>/-/npm/v1/attestations/<artifact:spec>")
def attestations(asked: Asked, repository: str, spec: str) -> Read | Otherwise:
    """What was attested of a version when it was published."""
    package, _, version = spec.rpartition("@")
    if not is_name(package):
        return functools.partial(_nothing, repository, spec)
    return FileRead(f"{tarball_path(package, version)}{PROVENANCE}", _file)


@reads.get("/<segment:repository>/<artifact:path>")
def get(asked: Asked, repository: str, path: str) -> Read | Otherwise:
    """A packument, one version of it, or a tarball."""
    try:
        address = parse(path)
    except NotFound:
        return functools.partial(_nothing, repository, path)
    base, coding = base_of(asked, repository), _coding(asked)
    match address:
        case Packument(package):
            return _document(asked, PackumentDocument(package, base, coding, wants_abbreviated(asked.header("Accept"))))
        case OneVersion(package, wanted):
            return _document(asked, VersionDocument(package, base, coding, wanted))
        case Tarball(_, file):
            return FileRead(file, _file)
    return functools.partial(_nothing, repository, path)


def _document(asked: Asked, source: PackumentDocument | VersionDocument | TagsDocument) -> Read:
    return DocumentRead(f"{source.package}/", source, _DESCRIBED[source.coding], made_of=index_path(source.package))


def _coding(asked: Asked) -> str:
    return "gzip" if takes_gzip(asked.header("Accept-Encoding")) else ""


def _plain(made: Made) -> Description:
    return Description(made.etag, made.content_type, _DOCUMENT_HEADERS, body=made.body)


def _compressed(made: Made) -> Description:
    return Description(made.etag, made.content_type, _DOCUMENT_HEADERS | {"Content-Encoding": "gzip"}, body=made.body)


_DESCRIBED = {"": _plain, "gzip": _compressed}


def _file(gate: Gate) -> Description:
    return Description(gate.digest, gate.content_type, _FILE_HEADERS, gate.updated_at)


def _nothing(repository: str, path: str) -> Response:
    parts().reader.may_read(Ask(FORMAT, repository, path, caller()))
    raise NotFound(f"there is no {path!r} in repository {repository!r}")


# Publishing, and changes that come as a whole document


@blueprint.put("/<segment:repository>/<artifact:path>")
def put(repository: str, path: str) -> Response:
    """Publish a version; or deprecate, name owners, take versions back, by a document that was read and changed."""
    target, address = target_in(repository), parse(path)
    match address:
        case Packument(package):
            return _put(target, package, None)
        case Revision(Packument(package), revision):
            return _put(target, package, revision)
    raise NotFound(f"nothing can be stored at {path!r}; packages are published at their names")


def _put(target: Target, package: str, revision: str | None) -> Response:
    house = parts()
    with house.publisher.begin(target, changes.anything(package)) as session:
        document = receive(session, body_reader(), body_size(), house.settings.max_upload_bytes)
        if document.attachments:
            return _publish(session, package, document)
    document.check_name(package)
    if revision is not None and document.versions is not None and _take_back(target, package, revision, document):
        return answer({"ok": True, "id": package}, 201)
    _change(target, package, revision if revision is not None else document.value("_rev"), document)
    return answer({"ok": True, "id": package}, 201)


def _publish(session: Any, package: str, document: Document) -> Response:
    identity = caller().identity
    try:
        uploads.publish(session, package, document, identity.name if identity is not None else "anonymous")
    except AlreadyExists as error:
        return published_before(error, next(iter(document.manifests)), request.headers.get("User-Agent", ""))
    return answer({"ok": True, "id": package, "success": True}, 201)


def _take_back(target: Target, package: str, revision: str, document: Document) -> bool:
    """Whether the document lacks versions, which are then taken back."""
    paths = _shown(target, package)
    gone = [path for version, path in paths.items() if version not in (document.versions or {})]
    if gone:
        changes.unpublish(parts().editor, target, changes.state_of(package, revision), gone)
    return bool(gone)


def _change(target: Target, package: str, revision: Any, document: Document) -> None:
    editor = parts().editor
    if document.versions:
        changes.deprecate(editor, target, package, revision, document.versions, functools.partial(_deprecated, target, package))
    elif document.value("maintainers") is not None:
        maintainers = uploads.check_maintainers(document.value("maintainers"))
        changes.set_owners(editor, target, package, revision, maintainers)
    else:
        raise Invalid("the document brings no version, and changes none and no maintainers", "versions")


def _deprecated(target: Target, package: str) -> dict[str, Any]:
    """What the packument of a group says of each version."""
    source = PackumentDocument(package)
    ask = Ask(FORMAT, target.repository, f"{package}/", target.caller)
    packument = parsed(parts().reader.document(ask, source, made_of=index_path(package)).document.body)
    return {version: told.get("deprecated") for version, told in packument["versions"].items()}


@blueprint.delete("/<segment:repository>/<artifact:path>")
def delete(repository: str, path: str) -> Response:
    """Take back all of a package, or a tarball whose version is perhaps gone already, as npm asks for it after taking the version back."""
    target, address = target_in(repository), parse(path)
    match address:
        case Revision(Packument(package), revision):
            _unpublish(target, package, revision)
        case Revision(Tarball(_, file), _):
            _delete_file(target, file)
        case _:
            raise NotFound(f"{path!r} can only be deleted with the revision that was read: {path}/-rev/...")
    return answer({"ok": True})


def _unpublish(target: Target, package: str, revision: str) -> None:
    paths = list(_shown(target, package).values())
    if not paths:
        raise NotFound(f"there is no package {package!r} in repository {target.repository!r}")
    changes.unpublish(parts().editor, target, changes.state_of(package, revision), paths)


def _delete_file(target: Target, path: str) -> None:
    """W4: twice is as good as once."""
    try:
        parts().editor.delete(target, [path])
    except NotFound:
        parts().reader.may_read(Ask(FORMAT, target.repository, path, target.caller))


def _shown(target: Target, package: str) -> dict[str, str]:
    """The tarballs by version, for who may read the package. Raises NotAllowedHere where none can be taken back."""
    snapshot = parts().editor.hosted(target)
    parts().reader.may_read(Ask(FORMAT, target.repository, f"{package}/", target.caller))
    with parts().database.read() as connection:
        return changes.shown_versions(connection, snapshot.id, package)


# Tags


@blueprint.route("/<segment:repository>/-/package/<artifact:path>", methods=["PUT", "POST", "DELETE"])
def change_tags(repository: str, path: str) -> Response:
    """Set or remove one tag (`.../dist-tags/{tag}`); set some (POST) or all (PUT) by an object of versions."""
    target, editor = target_in(repository), parts().editor
    name, _, tag = path.rpartition("/dist-tags")
    package = package_of(name)
    if tag and not tag.startswith("/"):
        raise NotFound(f"there is no {path!r} in repository {repository!r}")
    tag = tag.strip("/")
    if not tag and request.method == "DELETE":
        raise NotFound(f"there is no {path!r}: say which tag to remove")
    if request.method == "DELETE":
        changes.remove_tag(editor, target, package, tag)
    elif tag:
        changes.set_tags(editor, target, package, {tag: small_document(body_reader(), MOST_TAGS)})
    else:
        told = small_document(body_reader(), MOST_TAGS)
        if not isinstance(told, dict):
            raise Invalid("tags are an object of versions by tag", "dist-tags")
        changes.set_tags(editor, target, package, told, only=request.method == "PUT")
    return answer({"ok": True}, 200 if request.method == "DELETE" else 201)
