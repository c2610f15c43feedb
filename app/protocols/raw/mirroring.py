"""What a mirror of files follows: the upstream's folders, from its root or from those that are named; or files that are."""

from __future__ import annotations

import mimetypes
from collections.abc import Iterable, Iterator, Sequence

from app.errors import Invalid
from app.repository.mirrors import folders
from app.repository.mirrors.guides import FILE, LIST, Item, New, OfFiles, Trail
from app.repository.names import check_path, is_content_type
from app.repository.publishing import NewFile, Session
from app.upload.receiving import Received
from app.upstream.client import Arrived


class Folders(OfFiles):
    """The guide of this room. Names are paths; one that ends in a slash is a folder with all below it."""

    def check(self, names: Sequence[str]) -> None:
        for each in names:
            try:
                check_path(each, folder=each.endswith("/"))
            except Invalid as error:
                raise Invalid(f"names are paths, folders end in a slash: {error.message}", field="names") from None

    def roots(self, names: Sequence[str]) -> Iterable[Item]:
        return [Item(LIST if each.endswith("/") else FILE, each) for each in names] or [Item(LIST, "")]

    def items(self, trail: Trail, path: str) -> Iterator[Item]:
        return folders.items(trail, path)

    def publishable(self, trail: Trail, session: Session, item: Item, received: Received, head: Arrived) -> New:
        told = head.content_type or ""
        kind = told if is_content_type(told) else mimetypes.guess_type(item.path)[0] or "application/octet-stream"
        return New([NewFile(item.path, received, kind)])
