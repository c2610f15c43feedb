"""The library's face: one server, one login."""

from __future__ import annotations

import base64
import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal, Self
from urllib.parse import unquote, urlsplit

from arkvory import downloads, folders, paths, state, uploads
from arkvory.documents import Artifact, Downloaded, Found, Repository, Token, Uploaded
from arkvory.errors import ArkvoryError, NotArkvory, NotFound
from arkvory.progress import Event, OnEvent, quiet
from arkvory.retry import Retry, Stop
from arkvory.transport import Address, Asked, Login, Timeouts, Transport
from arkvory.version import __version__

MIB = 1024 * 1024
PAGE = 1000
# Of an artifact.
_LOCATED = ("path", "size", "url")


class Client:
    """An Arkvory server. Safe for several threads; to be closed, or used as a context.

    `url` is the server's address; `token`, or `user` and `password`, who asks (without either, anyone). `parallel` parts or files move
    at once. Files from `parts_from` bytes on are sent in parts of `part_size` bytes (8 MiB to 1 GiB). `verify` is what `requests` takes: a
    file with the authority of the server's certificate, or False. `progress` hears each Event; without it the library is quiet. What is
    under way is remembered below `cache`, by default in the user's own cache folder.

    Every method raises ArkvoryError (`arkvory.errors` draws the tree), and ValueError for arguments that cannot be meant.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        user: str | None = None,
        password: str | None = None,
        retry: Retry | None = None,
        timeouts: Timeouts | None = None,
        verify: bool | str = True,
        progress: OnEvent = quiet,
        parallel: int = 4,
        part_size: int | None = None,
        parts_from: int = 64 * MIB,
        cache: Path | str | None = None,
    ) -> None:
        if parallel < 1:
            raise ValueError("parallel is at least 1")
        self._progress = progress
        self._parallel = parallel
        self._part_size = part_size
        self._parts_from = parts_from
        self._remembered = state.Uploads(Path(cache) if cache is not None else state.cache_folder())
        self._transport = Transport(
            Address.of(url), Login(_authorization(token, user, password)), retry=retry or Retry(), timeouts=timeouts or Timeouts(),
            verify=verify, agent=f"arkvory-sdk/{__version__}", on_wait=self._tell_wait,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        self._transport.close()

    @property
    def url(self) -> str:
        return self._transport.address.url

    # Files

    def upload(
        self,
        file: Path | str,
        repository: str,
        path: str | None = None,
        *,
        content_type: str | None = None,
        only_new: bool = False,
        replaces: str | None = None,
    ) -> Uploaded:
        """Send a file to `path` (by default its own name; one that ends in a slash is a folder for it).

        `only_new`: nothing may be there yet; `replaces`: the SHA-256 of what may be, and nothing else. A large file goes in parts, and a
        call that is repeated after whatever interruption goes on with those that are missing.
        """
        source = Path(file)
        wish = uploads.Wish(repository, paths.check_path(_named(path, source.name)), content_type, only_new, replaces)
        return self._upload(source, wish, self._parallel, Stop())

    def upload_stream(
        self, stream: IO[bytes], repository: str, path: str, *, content_type: str | None = None, only_new: bool = False
    ) -> Uploaded:
        """Send what a stream has left, of whatever length. Tried again only where the stream can be wound back."""
        wish = uploads.Wish(repository, paths.check_path(path), content_type, only_new)
        return uploads.upload_stream(self._sending(1, Stop()), stream, wish)

    def upload_folder(
        self, folder: Path | str, repository: str, prefix: str = "", *, follow_links: bool = False
    ) -> Sequence[Uploaded]:
        """Send all files below a folder, to paths below `prefix`; what the server has already is not sent again. Nothing is deleted.

        Symbolic links are skipped, with `follow_links` those alone that lead out of the folder; progress hears of each (`skipped`).
        """
        above = _folder(prefix)

        def skipped(below: str, why: str) -> None:
            self._progress(Event("upload", above + below, "skipped", words=why))

        found = folders.files_below(Path(folder), skipped, follow_links=follow_links)
        return self.upload_files({above + below: file for below, file in found}, repository)

    def upload_files(self, files: Mapping[str, Path | str], repository: str) -> Sequence[Uploaded]:
        """Send many files, each to its path; what the server has already is not sent again."""
        stop = Stop()
        # Lists go by characters, not by folders.
        prefix = os.path.commonprefix(list(files))  # noqa: RUF071
        there = {each.path: each for each in self.list(repository, prefix)} if files else {}

        def job(path: str, file: Path) -> folders.Job[Uploaded]:
            def run(parallel: int) -> Uploaded:
                wish = uploads.Wish(repository, path)
                if folders.is_same(file, there, path):
                    return self._unchanged(wish, there[path])
                with self._telling("upload", path):
                    return self._upload(file, wish, parallel, stop)

            paths.check_path(path)
            return folders.Job(path, file.stat().st_size if file.is_file() else 0, run)

        jobs = [job(path, Path(file)) for path, file in files.items()]
        return folders.do_all(jobs, self._parallel, self._parts_from, stop)

    def download(self, repository: str, path: str, target: Path | str | None = None) -> Downloaded:
        """Fetch a file into `target` (by default its own name, here; a folder takes it in). It has that name only when it is whole and
        has the server's SHA-256. A repeated call goes on with what is missing, and does nothing where the same file is there."""
        file = _target(paths.check_path(path), target)
        try:
            return self._download(paths.raw(repository, path), path, file, self._parallel, Stop())
        except NotFound as error:
            return self._download(self._elsewhere(repository, path, error), path, file, self._parallel, Stop())

    def download_folder(self, repository: str, prefix: str, folder: Path | str) -> Sequence[Downloaded]:
        """Fetch all files below `prefix` (empty: of the whole repository) into a folder, but for what is there already."""
        below, stop = _folder(prefix), Stop()

        def job(artifact: Artifact) -> folders.Job[Downloaded]:
            def run(parallel: int) -> Downloaded:
                with self._telling("download", artifact.path):
                    file = paths.local(Path(folder), artifact.path.removeprefix(below))
                    return self._download(self._address_of(repository, artifact), artifact.path, file, parallel, stop)

            return folders.Job(artifact.path, artifact.size, run)

        jobs = [job(each) for each in self.list(repository, below)]
        if not jobs:
            raise NotFound(f"there is nothing below {prefix!r} in repository {repository!r}", status=404)
        return folders.do_all(jobs, self._parallel, 2 * downloads.LEAST_PIECE, stop)

    def read(self, repository: str, path: str) -> bytes:
        """A small file's bytes, of a raw repository."""
        return self._transport.send(Asked("GET", paths.raw(repository, path))).content

    def delete(self, repository: str, path: str) -> None:
        """Delete one artifact, and what belongs to it."""
        self._gone(paths.api("repositories", repository, "artifacts", path=path))

    # What is there

    def list(self, repository: str, prefix: str = "", contains: str | None = None) -> Iterator[Artifact]:
        """Artifacts by path: those that begin with `prefix`, exactly, and have `contains` in them, in any case."""
        query = {"prefix": prefix or None, "q": contains}
        yield from map(Artifact.of, self._transport.items(paths.api("repositories", repository, "artifacts"), query, PAGE, *_LOCATED))

    def artifact(self, repository: str, path: str) -> Artifact:
        return Artifact.of(self._get(paths.api("repositories", repository, "artifacts", path=path), *_LOCATED))

    def search(self, words: str) -> Iterator[Found]:
        """Artifacts whose path contains the words, in all repositories that this login may read."""
        yield from map(Found.of, self._items(paths.api("search"), q=words))

    # Repositories

    def repositories(self, format: str | None = None) -> Iterator[Repository]:
        yield from map(Repository.of, self._items(paths.api("repositories"), format=format))

    def repository(self, name: str) -> Repository:
        return Repository.of(self._get(paths.api("repositories", name)))

    def create_repository(self, name: str, format: str = "raw", kind: str = "hosted", **fields: Any) -> Repository:
        """`fields` are the API's: `public`, `quota_bytes`, `settings`, `upstream_url`, `upstream`, `members`..."""
        return Repository.of(self._change("POST", paths.api("repositories"), {"name": name, "format": format, "kind": kind} | fields))

    def update_repository(self, name: str, **fields: Any) -> Repository:
        """Binds on the next request."""
        return Repository.of(self._change("PATCH", paths.api("repositories", name), fields))

    def delete_repository(self, name: str) -> Sequence[str]:
        """Delete it with all that is in it; what groups lose by it."""
        return list((self._gone(paths.api("repositories", name)) or {}).get("warnings") or [])

    # Who may

    def whoami(self) -> dict[str, Any]:
        """The API's document of whom this login stands for: `user` (null for nobody's), `administrator`, `token`."""
        return self._get(paths.api("whoami"))

    def tokens(self) -> Iterator[Token]:
        """One's own, without their secrets."""
        yield from map(Token.of, self._items(paths.api("tokens")))

    def create_token(
        self, name: str, permissions: Sequence[str], repositories: Sequence[str] | None = None, expires_in_days: int | None = None
    ) -> Token:
        """Its `token` is the secret, which is told this once. `repositories` null: all that its owner has.

        Made by a client that logs in with a token, it ends with that one, and lasts no longer: `made_with`, `expires_at`.
        """
        wanted = {"name": name, "permissions": list(permissions), "expires_in_days": expires_in_days}
        wanted |= {"repositories": None if repositories is None else list(repositories)}
        return Token.of(self._change("POST", paths.api("tokens"), wanted))

    def revoke_token(self, id: int) -> Sequence[str]:
        """Binds on the next request. What ended with it, a line for each token that was made with it."""
        return list((self._gone(paths.api("tokens", str(id))) or {}).get("warnings") or [])

    # Inside

    def _get(self, path: str, *fields: str) -> dict[str, Any]:
        return self._transport.object(Asked("GET", path), *fields)

    def _change(self, method: str, path: str, document: Any) -> dict[str, Any]:
        return self._transport.object(Asked(method, path, document=document))

    def _gone(self, path: str) -> Any:
        """What is gone when it is asked for the second time went by the first, whose answer was lost."""
        try:
            return self._transport.document(Asked("DELETE", path))
        except NotFound as error:
            if error.attempts == 1:
                raise
            return None

    def _items(self, path: str, **query: Any) -> Iterator[dict[str, Any]]:
        yield from self._transport.items(path, query, PAGE)

    def _sending(self, parallel: int, stop: Stop) -> uploads.Means:
        return uploads.Means(self._transport, self._progress, stop, parallel, self._part_size, self._parts_from, self._remembered)

    def _upload(self, file: Path, wish: uploads.Wish, parallel: int, stop: Stop) -> Uploaded:
        return uploads.upload(self._sending(parallel, stop), file, wish)

    def _unchanged(self, wish: uploads.Wish, there: Artifact) -> Uploaded:
        self._progress(Event("upload", wish.path, "done", there.size, there.size, "was there already"))
        return Uploaded(wish.repository, wish.path, there.size, there.sha256, unchanged=True)

    def _download(self, address: str, name: str, file: Path, parallel: int, stop: Stop) -> Downloaded:
        return downloads.download(downloads.Means(self._transport, self._progress, stop, parallel), address, name, file)

    @contextlib.contextmanager
    def _telling(self, kind: Literal["upload", "download"], name: str) -> Iterator[None]:
        """One file of many: its failure is told when it happens."""
        try:
            yield
        except ArkvoryError as error:
            self._progress(Event(kind, name, "failed", words=str(error)))
            raise

    def _elsewhere(self, repository: str, path: str, error: NotFound) -> str:
        """Where an artifact is whose repository keeps no raw files. Raises the error where there is none."""
        try:
            found = self._address_of(repository, self.artifact(repository, path))
        except ArkvoryError:
            raise error from None
        if found == paths.raw(repository, path):
            raise error
        return found

    def _address_of(self, repository: str, artifact: Artifact) -> str:
        """On this server, by whatever name it calls itself, and below whatever: a login goes nowhere else. Raises NotArkvory."""
        told, above = urlsplit(str(artifact.url)).path, urlsplit(self.url).path
        try:
            plain = paths.raw(repository, artifact.path)
        except ValueError as error:
            raise NotArkvory(f"{self.url} tells of something that is no artifact: {error}") from None
        if unquote(told).endswith(unquote(plain)):
            return plain
        if not told.startswith("/"):
            raise NotArkvory(f"{self.url} says that {artifact.path!r} is at {artifact.url!r}, which is no address")
        return told.removeprefix(above) if told.startswith(f"{above}/") else told

    def _tell_wait(self, asked: Asked, error: ArkvoryError, seconds: float) -> None:
        self._progress(Event("request", "", "waiting", words=f"{error.message}; trying again in {seconds:.{0 if seconds >= 10 else 1}f} s"))


def _authorization(token: str | None, user: str | None, password: str | None) -> str | None:
    """The header's value; null for nobody's."""
    if token is not None:
        if user is not None or password is not None:
            raise ValueError("a token needs neither user nor password")
        return f"Bearer {token}"
    if user is None and password is None:
        return None
    if user is None or password is None or ":" in user:
        raise ValueError("user and password go together, and a user's name has no colon")
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _named(path: str | None, name: str) -> str:
    """Where a file of this name goes."""
    return f"{path or ''}{name}" if not path or path.endswith("/") else path


def _folder(prefix: str) -> str:
    """How the paths below it begin."""
    return paths.check_path(prefix.removesuffix("/")) + "/" if prefix else ""


def _target(path: str, target: Path | str | None) -> Path:
    """The file that a download becomes."""
    name = path.rpartition("/")[2]
    if target is None or Path(target).is_dir() or str(target).endswith("/"):
        return paths.local(Path(target or "."), name)
    return Path(target)
