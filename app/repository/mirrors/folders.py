"""Folders of upstreams as they list them: Arkvory's and nginx's JSON, and the HTML of whatever serves files (`pages`).

Lists are called by the folder's path, empty or ending in a slash; behind a line feed stands where a further page goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote, urlencode

from app.errors import Invalid, NotFound
from app.repository.mirrors import lists
from app.repository.mirrors.guides import FILE, LIST, Item, Trail
from app.repository.mirrors.pages import Entry
from app.repository.names import check_path
from app.upstream.client import Wanted

MOST_BYTES = 32 * 1024 * 1024
_ACCEPTED = {"Accept": "application/json, text/html;q=0.5"}
_AS_IT_IS = "/!$&'()*+,;=:@~"


def items(trail: Trail, path: str) -> Iterator[Item]:
    """What is in a folder. Raises NotFound, UpstreamFailed, and UpstreamUnfit for what is no list of a folder; Unchanged."""
    folder, _, after = path.partition("\n")
    where = quote(folder, safe=_AS_IT_IS) + (f"?{urlencode({'after': after})}" if after else "")
    body = trail.ask_list(Wanted(where, headers=_ACCEPTED), MOST_BYTES)
    if body is None:
        raise NotFound(f"the upstream lists no folder {folder!r}")
    page = lists.read("folder", body, f"{trail.url}/{where}", f"the folder {folder!r}")
    for each in page.entries:
        item = _item(folder, each)
        if item is not None and trail.wants(item.path):
            yield item
    if page.further is not None:
        yield Item(LIST, f"{folder}\n{page.further}")


def _item(folder: str, entry: Entry) -> Item | None:
    """Null for what cannot be a path here."""
    path = folder + entry.name
    try:
        check_path(path, folder=path.endswith("/"))
    except Invalid:
        return None
    if path.endswith("/"):
        return Item(LIST, path)
    return Item(FILE, path, entry.size, None if entry.sha256 is None else f"sha256:{entry.sha256}", quote(path, safe=_AS_IT_IS))
