"""What a mirror of Maven artifacts follows: those that are named, else all that the upstream's folders list.

    {folder}/, (empty)       a folder of the upstream, with all below it
    {group}:{artifact}       its metadata: the versions, each a list
    {group}:{artifact}:{v}   what the version's folder lists; of an upstream that lists no folders, what modules usually have

Checksums are made of what is stored, and metadata from rows; a proxy keeps the upstream's metadata too.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from xml.etree.ElementTree import Element, ParseError

import gevent
from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring

from app.errors import Invalid, NotFound, UpstreamUnfit, UpstreamUntrue
from app.protocols.maven.names import ALGORITHMS, METADATA, SNAPSHOT, File, Sidecar, is_snapshot, parse_any
from app.protocols.maven.uploads import MOST_METADATA, MOST_SIDECAR, checksum_in, new_file
from app.protocols.maven.upstream import told_in
from app.repository.mirrors import folders
from app.repository.mirrors.guides import FILE, LIST, Item, New, OfFiles, Trail
from app.repository.names import check_path
from app.repository.publishing import Session
from app.upload.receiving import Received
from app.upstream.client import Arrived, Wanted

# Where no folder is listed: the descriptor says what else there is.
_USUAL = (".pom", ".module", "-sources.jar", "-javadoc.jar")
# By `packaging`; whatever else it says is the extension itself.
_EXTENSIONS = dict.fromkeys(("bundle", "maven-plugin", "ejb", "eclipse-plugin", "hk2-jar", "test-jar"), "jar") | {"pom": ""}
MOST_TAGS = 400_000
_PACKAGING = re.compile(r"[a-z0-9-]{1,20}")
_PART = re.compile(r"[^\s/:\\]{1,200}")


class Modules(OfFiles):
    """The guide of this room."""

    checksums: Sequence[str] = ALGORITHMS

    def check(self, names: Sequence[str]) -> None:
        for each in names:
            parts = each.split(":")
            if each.endswith("/"):
                check_path(each, folder=True)
            elif not 2 <= len(parts) <= 3 or not _is_place(*parts):
                told = f"names are group:artifact, group:artifact:version, or a folder with a slash at its end: {each!r}"
                raise Invalid(told, field="names")

    def takes(self, kind: str, path: str) -> bool:
        address = parse_any(path)
        return isinstance(address, File) or (kind == "proxy" and not isinstance(address, Sidecar))

    def roots(self, names: Sequence[str]) -> Iterable[Item]:
        return [Item(LIST, each) for each in names] or [Item(LIST, "")]

    def items(self, trail: Trail, path: str) -> Iterator[Item]:
        if ":" not in path:
            yield from folders.items(trail, path)
        elif path.count(":") == 1:
            yield from _versions(trail, *path.split(":"))
        else:
            yield from _files(trail, *path.split(":"))

    def publishable(self, trail: Trail, session: Session, item: Item, received: Received, head: Arrived) -> New:
        address = parse_any(item.path)
        if not isinstance(address, File):
            raise Invalid(f"{item.path!r} is no file of layout 2")
        if item.digest is None:
            _compare(trail, item, received, head)
        return New([new_file(address, received)])


def _is_place(group: str, *parts: str) -> bool:
    """Whether these make up a folder, and none that lies above or elsewhere."""
    try:
        check_path("/".join((group.replace(".", "/"), *parts)))
    except Invalid:
        return False
    return all(map(_PART.fullmatch, (group, *parts)))


def _compare(trail: Trail, item: Item, received: Received, head: Arrived) -> None:
    """With the checksum that the upstream tells, in the head of its answer or beside the file. Raises UpstreamUntrue for another one."""
    known = dict(told_in(head))
    if not known:
        beside = trail.ask(Wanted(f"{item.address or item.path}.sha1"), MOST_SIDECAR)
        found = None if beside is None else checksum_in("sha1", beside)
        known = {} if found is None else {"sha1": found}
    for algorithm, checksum in known.items():
        if received.checksums.get(algorithm, checksum) != checksum:
            raise UpstreamUntrue(f"what the upstream sent for {item.path!r} has another {algorithm} than the upstream says")


def _versions(trail: Trail, group: str, artifact: str) -> Iterator[Item]:
    folder = f"{group.replace('.', '/')}/{artifact}"
    path = f"{folder}/{METADATA}"
    root = _document(trail.ask_list, path)
    if trail.snapshot.kind == "proxy" and trail.wants(path):
        yield Item(FILE, path)
    for version in _texts(root, "versioning/versions/version"):
        if _is_place(group, artifact, version) and trail.wants(f"{folder}/{version}/"):
            yield Item(LIST, f"{group}:{artifact}:{version}")


def _files(trail: Trail, group: str, artifact: str, version: str) -> Iterator[Item]:
    folder = f"{group.replace('.', '/')}/{artifact}/{version}/"
    try:
        listed = [each for each in folders.items(trail, folder) if each.kind == FILE]
    except (NotFound, UpstreamUnfit):
        listed = []
    for each in listed or _usual(trail, folder, artifact, version):
        if trail.wants(each.path):
            yield each


def _usual(trail: Trail, folder: str, artifact: str, version: str) -> Iterator[Item]:
    """By the names that files have. Which of them the upstream has, it says when it is asked."""
    if is_snapshot(version):
        yield from _builds(trail, folder, artifact, version)
        return
    stem = f"{folder}{artifact}-{version}"
    extension = _extension(trail, f"{stem}.pom")
    for ending in (*_USUAL, *((f".{extension}",) if extension else ())):
        yield Item(FILE, stem + ending, lasting=True)


def _builds(trail: Trail, folder: str, artifact: str, version: str) -> Iterator[Item]:
    """The newest build of each file of a snapshot, as its own metadata names them."""
    path = f"{folder}{METADATA}"
    root = _document(trail.ask, path)
    if trail.snapshot.kind == "proxy":
        yield Item(FILE, path)
    for each in root.iterfind("versioning/snapshotVersions/snapshotVersion"):
        extension, value, classifier = (each.findtext(name, "").strip() for name in ("extension", "value", "classifier"))
        path = f"{folder}{artifact}-{value}{f'-{classifier}' if classifier else ''}.{extension}"
        with contextlib.suppress(Invalid):
            if value.startswith(version[: -len(SNAPSHOT)]) and isinstance(parse_any(check_path(path)), File):
                yield Item(FILE, path, lasting=True)


def _extension(trail: Trail, path: str) -> str:
    """Of the main file, by the descriptor; empty where there is none."""
    try:
        root = _document(trail.ask, path)
    except (NotFound, UpstreamUnfit):
        return "jar"
    packaging = next((each.text for each in root if _bare(each.tag) == "packaging" and each.text), "jar").strip()
    return _EXTENSIONS.get(packaging, packaging if _PACKAGING.fullmatch(packaging) else "jar")


def _document(ask: Callable[[Wanted, int], bytes | None], path: str) -> Element:
    body = ask(Wanted(path), MOST_METADATA)
    if body is None:
        raise NotFound(f"the upstream has no {path!r}")
    root: Element | None = gevent.get_hub().threadpool.apply(_parsed, (body,))
    if root is None:
        raise UpstreamUnfit(f"the upstream's {path!r} is no XML that can be used")
    return root


def _parsed(body: bytes) -> Element | None:
    """Null for what is none, and for more elements than any list has: each takes more memory than its bytes."""
    if body.count(b"<") > MOST_TAGS:
        return None
    try:
        found: Element = fromstring(body, forbid_dtd=True)
    except (ParseError, DefusedXmlException, ValueError, LookupError):
        return None
    return found


def _texts(root: Element, path: str) -> list[str]:
    return [each.text.strip() for each in root.iterfind(path) if each.text]


def _bare(tag: object) -> str:
    return str(tag).rpartition("}")[2]


