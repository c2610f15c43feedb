"""The database as one file, written and read by PostgreSQL's own pg_dump and pg_restore.

    dump      one state of everything but what is derived or belongs to running processes
    restore   into an empty database; what anybody remembers of before is made void (DESIGN 3: epochs, incarnation), sums are recounted

A restore that is broken off leaves tables without their revision, with which no server starts.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import sqlalchemy
from sqlalchemy import Connection, Engine
from sqlalchemy.engine import URL, make_url
from sqlalchemy.pool import NullPool

from app.database import migrate
from app.database.locks import MIGRATION
from app.database.pools import database_errors
from app.database.programs import Programs, find_tools
from app.database.statements import text
from app.errors import Conflict, Invalid, Unavailable

# Sums and memory, which the restore makes anew, and what belongs to the processes of the moment.
LEFT_OUT = (
    "arkvory_upload_bytes", "arkvory_cache_rows", "arkvory_logins", "arkvory_instance_names", "arkvory_instances", "arkvory_mail",
    "arkvory_dead_letters", "arkvory_leases", "arkvory_jobs", "arkvory_pins", "arkvory_pin_sessions",
    "arkvory_download_shares", "arkvory_quota_levels",
)  # fmt: skip
# More than any installation moves its epochs between a dump and the loss of what came after it.
STEP = 2**32
EPOCHS = ("metadata_epoch", "authorization_epoch", "content_epoch", "members_epoch")
_REVISION = re.compile(r"FROM stdin;\n(\S+)\n")
_SHOWN = re.compile(r"^pg_\w+: ((?:dumping contents of|processing data for) table .*|creating INDEX .*)$")
_OPTIONS = ("--no-owner", "--no-privileges", "--verbose")
Tell = Callable[[str], None]


def dump(url: str, pg_bin: Path | None, file: Path, tell: Tell) -> None:
    """Write `file`, which must not be there yet; `tell` hears how far it is. Raises ArkvoryError."""
    if file.exists():
        raise Conflict(f"{file} is there already; it is not replaced")
    with _engine(url) as engine, database_errors(), engine.connect() as connection:
        tools = _tools("pg_dump", connection, pg_bin)
    making = file.with_name(file.name + ".partial")
    try:
        with open(os.open(making, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as output:
            options = [*_OPTIONS, "--format=custom", *(f"--exclude-table-data={name}" for name in LEFT_OUT)]
            _run([tools[0].folder / "pg_dump", *options], url, tell, output.fileno())
            os.fsync(output.fileno())
        making.rename(file)
    except OSError as error:
        raise Unavailable(f"{file} cannot be written: {error.strerror}") from error
    finally:
        making.unlink(missing_ok=True)


def restore(url: str, pg_bin: Path | None, file: Path, tell: Tell) -> None:
    """Put `file` into the database of `url`, which must be empty. Raises ArkvoryError."""
    # Whoever starts meanwhile waits, as for a migration.
    with _engine(url) as engine, database_errors(), engine.connect() as connection:
        connection.execute(text("select pg_advisory_lock(:c, :o)"), {"c": MIGRATION[0], "o": MIGRATION[1]})
        _require_empty(connection)
        connection.commit()
        program, contents = _reader(_tools("pg_restore", connection, pg_bin), file)
        connection.commit()
        revision = _revision(program, file)
        _load(program, file, contents, url, tell)
        _make_void(connection)
        connection.execute(text("insert into alembic_version (version_num) values (:revision)"), {"revision": revision})
        connection.commit()
        connection.execution_options(isolation_level="AUTOCOMMIT").execute(text("analyze"))


@contextlib.contextmanager
def _engine(url: str) -> Iterator[Engine]:
    engine = sqlalchemy.create_engine(url, poolclass=NullPool)
    try:
        yield engine
    finally:
        engine.dispose()


def _tools(name: str, connection: Connection, pg_bin: Path | None) -> list[Programs]:
    server = int(connection.execute(text("select current_setting('server_version_num')::int / 10000")).scalar_one())
    tools = find_tools(name, pg_bin, server)
    if not tools:
        raise Unavailable(
            f"the server is PostgreSQL {server}, and no {name} of that version or a newer one is here: install its client programs "
            f"(postgresql-client-{server}), or set PG_BIN to their folder"
        )
    return tools


def _require_empty(connection: Connection) -> None:
    there = connection.execute(
        text(
            "select c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace "
            "where n.nspname !~ '^pg_' and n.nspname <> 'information_schema' and c.relkind in ('r', 'p', 'v', 'm', 'S') order by 1"
        )
    ).scalars()
    if names := there.all():
        raise Conflict(
            f"the database is not empty: it holds {names[0]} and {len(names) - 1} more. Restore into a new one (createdb); of the embedded "
            "PostgreSQL, stop the server and move `postgres`, `postgres-state` and `secrets` of the data directory away"
        )


def _reader(tools: Sequence[Programs], file: Path) -> tuple[Path, str]:
    """The first pg_restore that can read the file, and the file's table of contents."""
    failed = ""
    for tool in tools:
        program = tool.folder / "pg_restore"
        done = subprocess.run([program, "--list", file], capture_output=True, text=True, env=_environment(None), check=False)
        if done.returncode == 0 and " arkvory_installation " in done.stdout:
            return program, done.stdout
        failed = done.stderr.strip() or "it holds other tables"
    raise Invalid(f"{file} is no dump of Arkvory's, or too new for the programs here: {failed}")


def _revision(program: Path, file: Path) -> str:
    """That of the tables in the file. Raises Invalid when this program does not know it."""
    command: list[str | Path] = [program, "--data-only", "--table=alembic_version", "--file=-", file]
    found = _REVISION.search(subprocess.run(command, capture_output=True, text=True, env=_environment(None), check=False).stdout)
    if found is None or not migrate.knows(found.group(1)):
        raise Invalid(f"{file} has the tables of a newer Arkvory ({found.group(1) if found else 'unknown'}): restore it with that one")
    return found.group(1)


def _load(program: Path, file: Path, contents: str, url: str, tell: Tell) -> None:
    """All but the revision, in one transaction."""
    wanted = "\n".join(line for line in contents.splitlines() if "TABLE DATA public alembic_version " not in line)
    read, write = os.pipe()
    with open(write, "w") as sent:
        # Some kilobytes, which a pipe takes in.
        sent.write(wanted + "\n")
    try:
        options = [*_OPTIONS, "--single-transaction", "--exit-on-error", f"--use-list=/dev/fd/{read}"]
        _run([program, *options, file], url, tell, subprocess.DEVNULL, (read,))
    finally:
        os.close(read)


def _make_void(connection: Connection) -> None:
    """What a process, a client or a proxy in between kept of before meets numbers that it has not seen."""
    for statement in (
        f"update arkvory_repositories set {', '.join(f'{name} = {name} + :step' for name in EPOCHS)}",
        "update arkvory_users set revision = revision + :step",
        "update arkvory_installation set epoch = epoch + :step, incarnation = gen_random_uuid()::text",
        "update arkvory_owner set generation = generation + :step",
    ):
        connection.execute(text(statement), {"step": STEP})
    connection.execute(
        text(
            "insert into arkvory_upload_bytes (repository_id, status, bytes, uploads) "
            "select repository_id, status, sum(bytes), count(*) from arkvory_uploads where status <> 'released' "
            "group by repository_id, status"
        )
    )


def _run(command: Sequence[str | Path], url: str, tell: Tell, output: int, descriptors: Sequence[int] = ()) -> None:
    """Run one of the programs on that database. Raises Unavailable with what it says of its failure."""
    address = make_url(url)
    target = URL.create("postgresql", address.username, None, address.host, address.port, address.database, address.query)
    last = ""
    process = subprocess.Popen(
        [*command, f"--dbname={target.render_as_string()}"], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE, text=True,
        env=_environment(str(address.password or "")), pass_fds=descriptors,
    )  # fmt: skip
    with process:
        assert process.stderr is not None
        for line in process.stderr:
            last = line.strip() or last
            if (shown := _SHOWN.match(last)) is not None:
                tell(shown.group(1))
    if process.returncode:
        raise Unavailable(f"{Path(command[0]).name} failed: {last}")


def _environment(password: str | None) -> dict[str, str]:
    """None of the caller's PG* variables but those that name files; the password is no argument, which others could see."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG") or name in {"PGPASSFILE", "PGSSLROOTCERT"}}
    return kept | {"LC_ALL": "C"} | ({"PGPASSWORD": password} if password else {})
