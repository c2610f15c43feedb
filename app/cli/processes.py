"""Commands that are processes themselves, or work on the tables."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from app.cli.connection import Failed

# The folder that holds `app`, `config` and `wsgi.py`.
HOME = Path(__file__).parents[2]


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on, instead of PORT.")
@click.option("--bind", metavar="ADDRESS", help="Address to listen on, instead of ARKVORY_BIND.")
@click.option("--no-worker", is_flag=True, help="In a cluster, start no worker beside the web processes.")
def serve(port: int | None, bind: str | None, no_worker: bool) -> None:
    """Serve, until SIGTERM; in a cluster with a worker beside."""
    from config import Settings

    if port is not None:
        os.environ["PORT"] = str(port)
    if bind is not None:
        os.environ["ARKVORY_BIND"] = bind
    if no_worker:
        os.environ["ARKVORY_SERVE_WORKER"] = "false"
    else:
        os.environ.setdefault("ARKVORY_SERVE_WORKER", "true")
    # gunicorn looks for modules where it is started, and a `config.py` that lies there is not ours.
    settings = Settings.from_environment()
    os.environ["ARKVORY_DATA_DIR"] = str(settings.data_dir.resolve())
    for variable, path in (("ARKVORY_TLS_CERT", settings.tls_cert), ("ARKVORY_TLS_KEY", settings.tls_key)):
        if path is not None:
            # Not resolved: whoever renews may turn a link to other files.
            os.environ[variable] = str(path.absolute())
    os.chdir(HOME)
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "gunicorn", "-c", "config/gunicorn.py", "wsgi:app"])  # noqa: S606  # this interpreter


@click.command()
def worker() -> None:
    """Run the background jobs of a cluster, until SIGTERM. On a single node the server does: then this idles, for a Procfile."""
    from config import Settings

    settings = Settings.from_environment()
    if not settings.cluster:
        _idle("A single node runs the background jobs in its web process: this worker is not needed, and idles until it is stopped.")
    if settings.instance_id is None:
        raise Failed(
            "a worker of a cluster needs a name: set ARKVORY_INSTANCE_ID, such as vm1 (that of the server on this machine will do)"
        )
    os.environ["ARKVORY_DATA_DIR"] = str(settings.data_dir.resolve())
    os.chdir(HOME)
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "app.jobs"])  # noqa: S606  # this interpreter


def _idle(words: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
    click.echo(words)
    while True:
        signal.pause()


@click.group()
def db() -> None:
    """The database's tables."""


@db.command()
def upgrade() -> None:
    """Bring the tables up to date; safe beside a running server."""
    from app.database import migrate

    with _database() as url:
        before, _ = migrate.state(url)
        migrate.upgrade(url)
        after, _ = migrate.state(url)
    click.echo(f"The tables are at {after}." if before == after else f"The tables went from {before or 'nothing'} to {after}.")


@db.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
def dump(file: Path) -> None:
    """Write the whole database into FILE, beside a running server or without one.

    The blobs are not in it: copy `blobs` of the data directory afterwards. It holds password hashes, and only its owner can read it.
    """
    from app.cli.output import size
    from app.database import backup
    from config import Settings

    settings = Settings.from_environment()
    if settings.database_url is None and not (settings.data_dir / "postgres").exists():
        raise Failed(f"there is no database in {settings.data_dir.resolve()}: set ARKVORY_DATA_DIR or ARKVORY_DATABASE_URL")
    with _database() as url:
        backup.dump(url, settings.pg_bin, file, _tell)
    click.echo(f"{file}: {size(file.stat().st_size)}. The blobs belong to it: copy {settings.data_dir.resolve()}/blobs now.")


@db.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def restore(file: Path) -> None:
    """Put what `arkvory db dump` wrote into an empty database; without one configured, into a new embedded one.

    What clients and servers remember of before counts no more: every epoch rises by a large step. Put the blobs back before the start.
    """
    from app.database import backup
    from config import Settings

    settings = Settings.from_environment()
    with _database() as url:
        backup.restore(url, settings.pg_bin, file, _tell)
    click.echo(f"The database is as it was when {file} was written. Put its blobs to {settings.data_dir.resolve()}/blobs, then start.")


def _tell(line: str) -> None:
    click.echo(line, err=True)


@contextlib.contextmanager
def _database() -> Iterator[str]:
    """The address of the database: the one given, else the embedded one's, started if need be. Raises Failed."""
    from sqlalchemy.exc import SQLAlchemyError

    from app.database import embedded
    from app.database.outage import outage
    from app.errors import ArkvoryError, DatabaseAway
    from config import Settings

    settings = Settings.from_environment()
    url = settings.database_session_url or settings.database_url
    try:
        if url is not None:
            outage.watch(settings, url)
            yield url
            return
        with embedded.start(settings) as running:
            yield running.url
    except DatabaseAway as error:
        raise Failed(outage.words(error)) from None
    except (ArkvoryError, SQLAlchemyError) as error:
        raise Failed(str(getattr(error, "orig", None) or error).strip()) from None


def show_version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    """`--version`, as other commands have it."""
    if wanted:
        click.echo(f"arkvory {importlib.import_module('app').__version__}")
        context.exit()


@click.command()
def version() -> None:
    """Print the version."""
    click.echo(importlib.import_module("app").__version__)


COMMANDS = (serve, worker, db, version)
