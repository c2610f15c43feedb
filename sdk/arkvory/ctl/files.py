"""`upload`, `download`, `list`, `search` and `delete`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from arkvory.client import Client
from arkvory.ctl.logins import connected, watched
from arkvory.ctl.options import Arguments, at_least_one, place
from arkvory.ctl.output import document_of, field, say, show_all, size
from arkvory.documents import Downloaded, Uploaded
from arkvory.progress import size_in_words

_ARTIFACTS = (field("path"), size("size"), field("updated_at"), field("sha256"))
_FOUND = (field("repository"), field("path"), size("size"))
_REPOSITORIES = (field("name"), field("format"), field("kind"), field("url"))


def add(verbs: Any) -> None:
    upload = verbs.add_parser("upload", help="send files or folders", description=_upload.__doc__)
    upload.add_argument("files", nargs="+", metavar="FILE", help="a file, a folder, or - for standard input")
    upload.add_argument("to", type=place, metavar="REPOSITORY/PATH", help="with a slash at its end: a folder to put it in")
    upload.add_argument("--only-new", action="store_true", help="refuse to replace what is there")
    upload.add_argument("--content-type", metavar="TYPE", help="instead of what the name's ending says")
    upload.set_defaults(run=_upload)
    download = verbs.add_parser("download", help="fetch a file or a folder", description=_download.__doc__)
    download.add_argument("source", type=place, metavar="REPOSITORY/PATH", help="with a slash at its end: all that is below it")
    download.add_argument("target", nargs="?", metavar="FILE", help="or the folder to put it in (this one)")
    download.set_defaults(run=_download)
    list_ = verbs.add_parser("list", help="what is in a repository", description=_list.__doc__)
    list_.add_argument("what", nargs="?", type=place, metavar="REPOSITORY/PREFIX", help="without it: the repositories")
    list_.add_argument("--limit", type=at_least_one, metavar="N", help="show at most so many")
    list_.set_defaults(run=_list)
    search = verbs.add_parser("search", help="files whose path contains something", description=_search.__doc__)
    search.add_argument("words")
    search.add_argument("--limit", type=at_least_one, metavar="N", help="show at most so many")
    search.set_defaults(run=_search)
    delete = verbs.add_parser("delete", help="delete a file", description=_delete.__doc__)
    delete.add_argument("what", type=place, metavar="REPOSITORY/PATH")
    delete.set_defaults(run=_delete)


def _upload(given: Arguments) -> None:
    """Send files to a raw repository. What a killed command has sent of a large file is not sent again; nor, of a folder, what is there."""
    repository, path = given.to
    if len(given.files) > 1 and path and not path.endswith("/"):
        raise ValueError(f"several files need a folder to go to: {repository}/{path}/")
    with watched(given) as client:
        sent = [each for file in given.files for each in _sent(client, given, file, repository, path)]
    _tell(sent, "uploaded", given.json)


def _sent(client: Client, given: Arguments, file: str, repository: str, path: str) -> Sequence[Uploaded]:
    options: dict[str, Any] = {"content_type": given.content_type, "only_new": given.only_new}
    if file == "-":
        if not path or path.endswith("/"):
            raise ValueError("standard input has no name: say where it is to go, REPOSITORY/PATH")
        return [client.upload_stream(sys.stdin.buffer, repository, path, **options)]
    if Path(file).is_dir():
        if given.only_new or given.content_type:
            raise ValueError("--only-new and --content-type are about files, not about folders")
        return client.upload_folder(file, repository, path)
    return [client.upload(file, repository, path or None, **options)]


def _download(given: Arguments) -> None:
    """Fetch a file, or with a slash at the end a folder. A file has its name only when it is whole; the same command again goes on."""
    repository, path = given.source
    with watched(given) as client:
        if path and not path.endswith("/"):
            fetched: Sequence[Downloaded] = [client.download(repository, path, given.target)]
        else:
            fetched = client.download_folder(repository, path, given.target or ".")
    _tell(fetched, "downloaded", given.json)


def _tell(results: Sequence[Uploaded | Downloaded], verb: str, as_json: bool) -> None:
    if as_json:
        print(json.dumps([document_of(each) for each in results], indent=2, ensure_ascii=False))
        return
    moved = [each for each in results if not each.unchanged]
    there = len(results) - len(moved)
    count = f"{len(moved)} file{'' if len(moved) == 1 else 's'}"
    say(f"{count} {verb}, {size_in_words(sum(each.size for each in moved))}" + (f"; {there} there already" if there else "") + ".")


def _list(given: Arguments) -> None:
    """The files of a repository, those whose path begins with the prefix; without a repository, the repositories."""
    with connected(given) as client:
        if given.what is None:
            show_all(islice(client.repositories(), given.limit), _REPOSITORIES, as_json=given.json)
        else:
            show_all(islice(client.list(*given.what), given.limit), _ARTIFACTS, as_json=given.json)


def _search(given: Arguments) -> None:
    """Files whose path contains the words, in all repositories that you may read."""
    with connected(given) as client:
        show_all(islice(client.search(given.words), given.limit), _FOUND, as_json=given.json)


def _delete(given: Arguments) -> None:
    """Delete one file, and what belongs to it."""
    with connected(given) as client:
        client.delete(*given.what)
    say(f"{'/'.join(given.what)} is gone.")
