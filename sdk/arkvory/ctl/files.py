"""`upload`, `download`, `list`, `search` and `delete`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from arkvory import folders
from arkvory.client import Client
from arkvory.ctl.logins import connected, watched
from arkvory.ctl.options import Arguments, at_least_one, place
from arkvory.ctl.output import document_of, field, printable, say, show_all, size
from arkvory.documents import Downloaded, Uploaded
from arkvory.errors import SentElsewhere
from arkvory.progress import size_in_words

_ARTIFACTS = (field("path"), size("size"), field("updated_at"), field("sha256"))
_FOUND = (field("repository"), field("path"), size("size"))
_REPOSITORIES = (field("name"), field("format"), field("kind"), field("url"))


def add(verbs: Any) -> None:
    upload = verbs.add_parser("upload", help="send files or folders", description=_upload.__doc__)
    upload.add_argument("files", nargs="+", metavar="FILE", help="a file, a folder (with a slash at its end: what is in it), or -")
    upload.add_argument("to", type=place, metavar="REPOSITORY/PATH", help="with a slash at its end: a folder to put it in")
    upload.add_argument("--only-new", action="store_true", help="refuse to replace what is there")
    upload.add_argument("--content-type", metavar="TYPE", help="instead of what the name's ending says")
    upload.add_argument("--follow-links", action="store_true", help="of folders: also what symbolic links within the folder lead to")
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
    """Send files and folders to a raw repository.

    As `cp -r` does, a folder keeps its own name below REPOSITORY/PATH/; with a slash at its end (build/) what is in it goes there, without
    that name. A PATH without a slash at its end is the new name itself. Symbolic links within folders are skipped, and named; empty folders
    leave nothing. What a killed command has sent of a large file is not sent again; nor, of a folder, what is there.
    """
    repository, path = given.to
    if len(given.files) > 1 and path and not path.endswith("/"):
        raise ValueError(f"several files need a folder to go to: {repository}/{path}/")
    sources = [_looked_at(given, each, path) for each in given.files]
    _require_one_each(repository, sources)
    with watched(given) as client:
        sent = [each for source in sources for each in _sent(client, given, source, repository)]
    _tell(sent, "uploaded", given.json)


@dataclass(frozen=True)
class _Source:
    """What was named: the files that are to be sent, by path; of standard input its path alone."""

    name: str
    files: Mapping[str, Path]
    is_folder: bool = False


def _looked_at(given: Arguments, name: str, path: str) -> _Source:
    """Before anything is sent. Raises ValueError, LocalFile."""
    if name == "-":
        if not path or path.endswith("/"):
            raise ValueError("standard input has no name: say where it is to go, REPOSITORY/PATH")
        return _Source(name, {path: Path("-")})
    if not Path(name).is_dir():
        return _Source(name, {path if path and not path.endswith("/") else path + Path(name).name: Path(name)})
    if given.only_new or given.content_type:
        raise ValueError("--only-new and --content-type are about files, not about folders")
    above = _below(path, name)
    skipped = partial(_tell_skipped, name)
    found = folders.files_below(Path(name), skipped, follow_links=given.follow_links)
    return _Source(name, {above + below: file for below, file in found}, is_folder=True)


def _below(path: str, folder: str) -> str:
    """How the paths of a folder's files begin."""
    if path and not path.endswith("/"):
        return f"{path}/"
    own = os.path.basename(folder)  # noqa: PTH119  # `Path` forgets the slash at its end
    return path if own in ("", ".", "..") else f"{path}{own}/"


def _tell_skipped(folder: str, below: str, why: str) -> None:
    print(printable(f"{os.path.join(folder, below)}: {why}"), file=sys.stderr)


def _require_one_each(repository: str, sources: Sequence[_Source]) -> None:
    """Raises ValueError where two sources would give one path."""
    seen: dict[str, Path] = {}
    for source in sources:
        for path, file in source.files.items():
            if path in seen:
                words = f"{seen[path]} and {file} would both be {repository}/{path}: upload them to different folders"
                raise ValueError(f"{words}; nothing was sent")
            seen[path] = file


def _sent(client: Client, given: Arguments, source: _Source, repository: str) -> Sequence[Uploaded]:
    if source.is_folder:
        return client.upload_files(source.files, repository)
    options: dict[str, Any] = {"content_type": given.content_type, "only_new": given.only_new}
    ((path, file),) = source.files.items()
    if source.name == "-":
        return [client.upload_stream(sys.stdin.buffer, repository, path, **options)]
    return [client.upload(file, repository, path, **options)]


def _download(given: Arguments) -> None:
    """Fetch a file, or with a slash at the end a folder. Folders that FILE needs are made. A file has its name only when it is whole; the
    same command again goes on."""
    repository, path = given.source
    with watched(given) as client:
        if path and not path.endswith("/"):
            fetched: Sequence[Downloaded] = [_downloaded(client, repository, path, given.target)]
        else:
            fetched = client.download_folder(repository, path, given.target or ".")
    _tell(fetched, "downloaded", given.json)


def _downloaded(client: Client, repository: str, path: str, target: str | None) -> Downloaded:
    try:
        return client.download(repository, path, target)
    except SentElsewhere as error:
        if unquote(error.location).endswith(path.rpartition("/")[2] + "/"):
            raise ValueError(f"{path} is a folder: with a slash, {repository}/{path}/, all that is below it is fetched") from None
        raise


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
    """Delete one file, and what belongs to it. Folders are not deleted as a whole: list them, and delete their files."""
    repository, path = given.what
    if not path or path.endswith("/"):
        words = f"{repository}/{path} is a folder, and folders are not deleted as a whole: name a file"
        raise ValueError(f"{words} (arkvoryctl list {repository}/{path})")
    with connected(given) as client:
        client.delete(*given.what)
    say(f"{'/'.join(given.what)} is gone.")
