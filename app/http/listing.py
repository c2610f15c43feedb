"""Folders as HTML for people and JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from flask import Response
from sqlalchemy import Connection

from app.cache.snapshots import Snapshot
from app.database.statements import text
from app.errors import ArkvoryError, IsFolder
from app.http.errors import text_answer
from app.http.negotiation import prefers_json
from app.http.paths import encode_path
from app.http.reads import Asked, Description, DocumentRead
from app.http.responses import json_time
from app.repository.folders import Entry, Page, Part, held_in_folder, list_folder, united
from app.repository.reading import Document, Draft, Merged, Shelf
from app.repository.withholding import Judge

# Files come from anyone who may publish: a browser must neither guess their type nor run them as ours.
HARMLESS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src 'self'",
}

# Entries from which on a listing takes longer to write than the loop may be kept from others.
LONG_LIST = 200


def refusal(error: ArkvoryError, asked: Asked) -> Response:
    """An error for rooms with folders: who left out the slash of one is sent there, with their query, as long as no file has the name."""
    if not isinstance(error, IsFolder):
        return text_answer(error)
    query = f"?{asked.environ['QUERY_STRING']}" if asked.environ.get("QUERY_STRING") else ""
    return Response(status=302, headers={"Location": f"{encode_path(error.path.rpartition('/')[2])}/{query}"})


def folder(asked: Asked, path: str) -> DocumentRead:
    """A folder (its path empty, or ending in a slash), in the form that the client prefers."""
    representation = "json" if prefers_json(asked.argument("format"), asked.header("Accept")) else "html"
    return DocumentRead(path, FolderListing(path, representation, asked.argument("after") or ""), _page)


def _page(made: Document) -> Description:
    return Description(made.etag, made.content_type, HARMLESS | {"Vary": "Accept"}, body=made.body)


@dataclass(frozen=True)
class FolderListing(Merged):
    """A folder (empty, or ending in a slash) as `html` or `json`, from the entry behind `after` on; of a group the union."""

    folder: str
    representation: str
    after: str = ""

    @property
    def package(self) -> str:
        return ""

    @property
    def key(self) -> str:
        return f"folder {self.after!r} {self.folder}"

    @property
    def content_type(self) -> str:
        return "application/json" if self.representation == "json" else "text/html; charset=utf-8"

    def revision(self, connection: Connection, snapshot: Snapshot) -> int | None:
        """The repository's content epoch; null for a folder without anything below it (the root is always there)."""
        row = connection.execute(
            text(
                "select r.content_epoch, exists (select 1 from arkvory_artifacts a where a.repository_id = r.id and not a.withheld "
                "and a.path > :folder and a.path < :end) as filled from arkvory_repositories r where r.id = :id"
            ),
            {"id": snapshot.id, "folder": self.folder, "end": self.folder[:-1] + "0"},
        ).one()
        return int(row.content_epoch) if row.filled or not self.folder else None

    def read(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Draft:
        judge = Judge(snapshot)
        return self._draft(snapshot.name, list_folder(connection, snapshot.id, self.folder, self.after, judge), [judge])

    def part(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Part:
        judge = Judge(snapshot)
        page = list_folder(connection, snapshot.id, self.folder, self.after, judge)
        young = {path[len(self.folder) :] for path in judge.withheld}
        return Part(page, held_in_folder(connection, snapshot.id, self.folder) | young, judge)

    def merge(self, repository: Snapshot, parts: Sequence[Part]) -> Draft:
        return self._draft(repository.name, united(parts), [each.judge for each in parts])

    def _draft(self, name: str, page: Page, judges: Sequence[Judge]) -> Draft:
        write = (lambda: self._json(page)) if self.representation == "json" else (lambda: self._html(name, page))
        return Draft(write, len(page.entries) >= LONG_LIST, judges=judges)

    def _json(self, page: Page) -> bytes:
        entries = [_json_entry(each) for each in page.entries]
        return json.dumps({"path": self.folder, "items": entries, "next": page.next}, ensure_ascii=False).encode()

    def _html(self, repository: str, page: Page) -> bytes:
        title = escape(f"{repository}/{self.folder}")
        rows = "".join(_html_row(each) for each in page.entries)
        parent = '<tr><td><a href="../">../</a></td></tr>' if self.folder else ""
        more = f'<p><a href="?after={encode_path(page.next).replace("/", "%2F")}">more</a></p>' if page.next else ""
        return (
            f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title></head><body><h1>{title}</h1>'
            f"<table>{parent}{rows}</table>{more}</body></html>"
        ).encode()


def _json_entry(entry: Entry) -> dict[str, Any]:
    if entry.is_folder:
        return {"name": entry.name, "type": "folder"}
    updated = json_time(entry.updated_at) if entry.updated_at else None
    return {"name": entry.name, "type": "file", "size": entry.size, "sha256": entry.sha256, "updated_at": updated}


def _html_row(entry: Entry) -> str:
    # `./` keeps a name with a colon from reading as a scheme.
    link = f'<a href="./{encode_path(entry.name)}">{escape(entry.name)}</a>'
    if entry.is_folder:
        return f"<tr><td>{link}</td></tr>"
    updated = json_time(entry.updated_at) if entry.updated_at else ""
    return f"<tr><td>{link}</td><td>{entry.size}</td><td>{updated}</td></tr>"
