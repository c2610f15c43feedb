"""The core of one process without HTTP: the parts over a real database, with the verbs that tests speak in."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gevent
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from app.access.identity import LOCAL, Caller, Credential
from app.access.installation import Switchboard
from app.access.people import UserChange, Users
from app.access.roles import Roles
from app.access.rules import NewRule, Rules
from app.access.tokens import NewToken, Tokens
from app.cluster.loop import Loop
from app.errors import ArkvoryError
from app.http.parts import Parts, build_parts
from app.repository.publishing import Conditions, NewFile, Package, Published, Target
from app.repository.quarantine import Quarantine
from app.repository.reading import Ask
from app.repository.registry import NewRepository, Registry, RepositoryChange
from app.upload.receiving import Expected
from config.settings import Settings
from tests.support.passwords import CHEAP

ADMIN = Caller(LOCAL, "127.0.0.1")
NOBODY = Caller(None, "127.0.0.1")
QUICK = {
    "ARKVORY_BLOB_GRACE_SECONDS": "0.001",
    "ARKVORY_UPLOAD_LEASE_SECONDS": "60",
    "ARKVORY_DISK_RESERVE_BYTES": "0",
    "ARKVORY_DATABASE_POOL_SIZE": "12",
    **CHEAP,
}
_ADDRESS = re.compile(r"[0-9a-f]{64}-(\d+)")


def eventually(true: Callable[[], Any], seconds: float = 30.0) -> None:
    """Wait until it is true. The bound is there for what never is: a machine may stand still for some seconds."""
    with gevent.Timeout(seconds, AssertionError(f"not within {seconds:g} s")):
        while not true():
            gevent.sleep(0.01)


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


class House:
    """One process's core. `owns`: whether it takes the storage; a lodger shares the generation of the owner, as one process more would."""

    def __init__(self, url: str, folder: Path, *, owns: bool = True, **environment: str) -> None:
        self.url = url
        self.folder = folder
        given = {"ARKVORY_DATABASE_URL": url, "ARKVORY_DATA_DIR": str(folder)} | QUICK | environment
        self.parts: Parts = self._built(Settings.from_environment(given))
        parts = self.parts
        self.registry = Registry(parts.settings, parts.database, parts.transactions, parts.access)
        self.rules = Rules(parts.database, parts.transactions, parts.access)
        self.users = Users(parts.database, parts.transactions, parts.identities, password_length=8)
        self.tokens = Tokens(parts.database, parts.transactions, parts.identities)
        self.roles = Roles(parts.database, parts.transactions, parts.identities)
        self.switchboard = Switchboard(parts.database, parts.transactions, parts.identities)
        self.quarantine = Quarantine(parts.database, parts.transactions, parts.access)
        if owns:
            parts.ownership.acquire(5)
        else:
            parts.ownership.generation = int(self.value("select generation from arkvory_owner"))

    def _built(self, settings: Settings) -> Parts:
        return build_parts(settings)

    def join(self, name: str = "here", slot: int = 0) -> House:
        """Begin to hear what others of the cluster change; needs ARKVORY_DEPLOYMENT=cluster."""
        self.loop.start(lambda: (name, slot))
        eventually(lambda: self.loop.keeps)
        return self

    @property
    def loop(self) -> Loop:
        assert self.parts.loop is not None
        return self.parts.loop

    def close(self) -> None:
        if self.parts.loop is not None:
            self.parts.loop.stop()
        if self.parts.pins is not None:
            self.parts.pins.stop()
        self.parts.ownership.release()
        self.parts.database.dispose()

    # -- the database, by a connection that no pool knows of

    def rows(self, statement: str, **values: Any) -> list[Any]:
        engine = create_engine(self.url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
        with engine.connect() as connection:
            result = connection.execute(text(statement), values)
            return list(result) if result.returns_rows else []

    def value(self, statement: str, **values: Any) -> Any:
        return self.rows(statement, **values)[0][0]

    # -- changes

    def repository(self, name: str = "files", *, format: str = "raw", **fields: Any) -> int:
        self.registry.create(ADMIN, NewRepository(name, format, **fields))
        return int(self.value("select id from arkvory_repositories where name = :name and deleted_at is null", name=name))

    def change(self, repository: str, **values: Any) -> None:
        self.registry.update(ADMIN, repository, RepositoryChange(values))

    def user(self, name: str, *, administrator: bool = False) -> int:
        statement = "insert into arkvory_users (name, administrator) values (:name, :administrator) returning id"
        return int(self.value(statement, name=name, administrator=administrator))

    def token(self, user: str, *permissions: str) -> str:
        """A token of that user; its secret."""
        return self.tokens.create(ADMIN, NewToken(f"of {user}", permissions or ("read", "write", "delete", "manage"), user=user))[1]

    def rule(self, repository: str, subject: str, *permissions: str, prefix: str | None = None) -> int:
        return self.rules.add(ADMIN, repository, NewRule(subject, permissions, prefix)).id

    def disable(self, user: str, disabled: bool = True) -> None:
        self.users.update(ADMIN, user, UserChange(disabled=disabled))

    def identify(self, secret: str | None) -> Caller:
        """The caller that a request with this token has."""
        return NOBODY if secret is None else Caller(self.parts.identities.identify(Credential("", secret)), "127.0.0.1")

    # -- artifacts

    def publish(
        self,
        path: str,
        body: bytes,
        repository: str = "files",
        *,
        caller: Caller = ADMIN,
        told: bool = True,
        conditions: Conditions | None = None,
        pieces: int = 1,
        format: str = "raw",
        package: str = "",
    ) -> Published:
        """As the raw route does it; `told`: whether the length is known beforehand."""
        expected = Expected(size=len(body) if told else None)
        with self.parts.publisher.begin(Target(format, repository, caller), path, conditions) as session:
            receiver = session.receiver(expected)
            step = max(1, -(-len(body) // pieces))
            for start in range(0, len(body), step):
                receiver.feed(body[start : start + step])
                gevent.sleep(0)
            file = NewFile(path, receiver.finish(), "application/octet-stream", package=Package(package, package) if package else None)
            return session.publish([file], conditions)[0]

    def delete(self, path: str, repository: str = "files", *, caller: Caller = ADMIN, conditions: Conditions | None = None) -> None:
        self.parts.editor.delete(Target("raw", repository, caller), [path], conditions)

    def read(self, path: str, repository: str = "files", *, caller: Caller = ADMIN) -> bytes:
        """The bytes that a request would get."""
        ask = Ask("raw", repository, path, caller)
        found, blob = self.parts.reader.open_blob(ask, self.parts.reader.find(ask))
        try:
            with open(blob.fd, "rb", closefd=False) as file:
                body = file.read()
        finally:
            blob.close()
        assert (len(body), sha256(body)) == (found.gate.size, found.gate.digest), "a mix of two files, or a part of one"
        return body

    def outcome(self, path: str, repository: str = "files", *, secret: str | None = None) -> bytes | str:
        """What a request gets: the bytes, or the code of its refusal."""
        try:
            return self.read(path, repository, caller=self.identify(secret))
        except ArkvoryError as error:
            return error.code

    def clean(self) -> None:
        self.parts.cleanup.run()

    # -- what must be true

    def counters(self) -> dict[tuple[int, str], int]:
        rows = self.rows("select repository_id, status, bytes from arkvory_upload_bytes where bytes <> 0")
        return {(row[0], row[1]): row[2] for row in rows}

    def sums(self) -> dict[tuple[int, str], int]:
        rows = self.rows(
            "select repository_id, status, sum(bytes)::bigint from arkvory_uploads where status <> 'released' "
            "group by 1, 2 having sum(bytes) <> 0"
        )
        return {(row[0], row[1]): row[2] for row in rows}

    def assert_counted(self) -> None:
        """W1 and DESIGN 5, Counters: equal to the sums, and what is published is what is there."""
        both = self.rows(
            "with kept as (select repository_id, status, bytes, uploads from arkvory_upload_bytes where bytes <> 0 or uploads <> 0), "
            "summed as (select repository_id, status, sum(bytes)::bigint as bytes, count(*) as uploads from arkvory_uploads "
            "where status <> 'released' group by 1, 2) "
            "(select 'counter', * from kept except select 'counter', * from summed) "
            "union all (select 'sum', * from summed except select 'sum', * from kept)"
        )
        assert not both, f"counters and sums differ: {both}"

    def assert_published_is_there(self) -> None:
        """Each artifact has its published upload of the blob's size, and no other upload is published."""
        strays = self.rows(
            "select a.path, u.id, u.status, u.bytes, b.size from arkvory_artifacts a join arkvory_blobs b on b.id = a.blob_id "
            "full join (select * from arkvory_uploads where status = 'published') u on u.id = a.upload_id "
            "where a.id is null or u.id is null or u.bytes <> b.size"
        )
        assert not strays, f"artifacts and published uploads differ: {strays}"

    def assert_rows_and_files(self) -> None:
        """W1, at any time: no file without a row, no live row without its file."""
        files = {int(match.group(1)) for path in self.files() if (match := _ADDRESS.fullmatch(path.name))}
        rows = {row[0]: row[1] for row in self.rows("select id, status from arkvory_blobs")}
        assert not files - set(rows), f"files without a row: {files - set(rows)}"
        assert not {each for each, status in rows.items() if status == "live"} - files, "live blobs without their file"

    def assert_no_strays(self) -> None:
        """W1, after a cleanup: nor any temporary file."""
        self.assert_rows_and_files()
        assert not self.temporary(), "temporary files are left"

    def assert_nothing_is_left(self) -> None:
        """W1, once all that runs has ended: no upload, and neither rows nor files that nobody needs."""
        eventually(lambda: not self.parts.admission.open_uploads)
        self.clean()
        self.assert_counted()
        self.assert_published_is_there()
        self.assert_no_strays()

    def files(self) -> Iterator[Path]:
        return (path for path in (self.folder / "blobs" / "sha256").rglob("*") if path.is_file())

    def temporary(self) -> list[Path]:
        return list((self.folder / "blobs" / "incoming").iterdir())

    def epochs(self, name: str = "files") -> tuple[int, ...]:
        row = self.rows(
            "select metadata_epoch, authorization_epoch, content_epoch, members_epoch from arkvory_repositories "
            "where name = :name and deleted_at is null",
            name=name,
        )[0]
        return tuple(row)
