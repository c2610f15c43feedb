"""The list of another Arkvory: all artifacts of one of its repositories, page by page, by its management API.

What it says of each is enough to know what is here already: a file of the same SHA-256 is not asked for again. Lists are called by the
cursor of their page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from urllib.parse import quote

from app.errors import Invalid, NotFound
from app.repository.formats import FORMATS, is_fixed
from app.repository.mirrors import lists
from app.repository.mirrors.guides import FILE, LIST, Item, Trail
from app.repository.mirrors.pages import Entry
from app.repository.names import check_path
from app.upstream.client import Wanted

PAGE = 500
MOST_BYTES = 16 * 1024 * 1024
ROOT = Item(LIST, "")
_AS_IT_IS = "/!$&'()*+,;=:@~"


def source_of(format_name: str, url: str) -> tuple[str, str]:
    """The address of the other server and the name of its repository. Raises Invalid for an address that is none of an Arkvory's."""
    prefix = "" if format_name == "oci" else f"/{format_name}"
    found = re.fullmatch(rf"(https?://[^/]+(?:/[^/]+)*?){prefix}/([a-z0-9][a-z0-9._-]{{0,63}})(?:/simple)?", url)
    if found is None:
        wanted = f"https://HOST{prefix}/REPOSITORY"
        raise Invalid(f"of another Arkvory the upstream's address is {wanted}, and this is {url}", field="upstream_url")
    return found.group(1), found.group(2)


def items(trail: Trail, cursor: str) -> Iterator[Item]:
    """One page of the list, its next page the last. Raises NotFound, UpstreamFailed, and UpstreamUnfit for what is none."""
    base, repository = source_of(trail.snapshot.format, trail.url)
    query = f"?limit={PAGE}" + (f"&cursor={quote(cursor, safe='')}" if cursor else "")
    body = trail.ask(Wanted(f"{base}/api/v1/repositories/{repository}/artifacts{query}", headers=_JSON), MOST_BYTES)
    if body is None:
        raise NotFound(f"the upstream has no repository {repository!r}, or lets nobody with these credentials know of it")
    page = lists.read("artifacts", body, "", f"the artifacts of {repository!r}")
    for each in page.entries:
        item = _item(trail.snapshot.format, base + FORMATS[trail.snapshot.format].file_address(repository), each)
        if item is not None and trail.wants(item.path):
            yield item
    if page.further is not None:
        yield Item(LIST, page.further)


_JSON: Mapping[str, str] = {"Accept": "application/json"}


def _item(format_name: str, address: str, entry: Entry) -> Item | None:
    """Below that address. Null for what cannot be kept, or whose bytes are not told."""
    if entry.sha256 is None:
        return None
    try:
        check_path(entry.name)
    except Invalid:
        return None
    where = address + quote(entry.name, safe=_AS_IT_IS)
    return Item(FILE, entry.name, entry.size, f"sha256:{entry.sha256}", where, is_fixed(format_name, entry.name))
