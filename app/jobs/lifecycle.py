"""The life of a process, web or worker: what happens before the first request and around the last.

    start      migrate, check the connection budget, own the storage, make the administrator, join, begin the jobs
    stopping   not ready any more; ownership is given up after the last write, before downloads drain
    stop       what is left, at once

On a single node and in a cluster alike: what differs are the parts (http/parts.py).
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import gevent

from app.cluster import localserver, master
from app.cluster.inspection import WORKER, census
from app.cluster.localserver import LocalServer
from app.database import embedded, migrate
from app.database.embedded import EmbeddedPostgres
from app.database.greenlets import end
from app.database.outage import outage
from app.database.statements import text
from app.errors import ArkvoryError, DatabaseAway, DatabaseRefuses
from app.http import metrics
from app.http.parts import Parts
from app.jobs.catalog import families_of, jobs_of
from app.jobs.job import Job
from app.jobs.periodic import PeriodicJobs
from app.jobs.running import JobRunner
from app.repository.presence import require_shared_folder
from app.upload.archives.tars import Unreadable
from config import Settings

log = logging.getLogger(__name__)

# gunicorn's exit code for a worker that cannot start: the master stops instead of trying for ever.
CANNOT_START = 3
DATABASE_RETRY_SECONDS = 1.0
REVIVE_SECONDS = 1.0
ADMINISTRATOR = "admin"


class Reviver:
    """Starts the embedded PostgreSQL again when it died under the running server (killed, out of memory)."""

    def __init__(self, settings: Settings, running: EmbeddedPostgres) -> None:
        self._settings = settings
        self._running = running

    def __call__(self) -> None:
        if self._running.pid is None:
            log.error("the embedded PostgreSQL is gone; starting it again")
            self._running = embedded.start(self._settings)


@dataclass(frozen=True)
class FirstStart:
    """The administrator was made; `password` where it was made up here, to be shown once."""

    password: str | None

    @property
    def shown(self) -> str:
        if self.password is None:
            return f"The administrator is {ADMINISTRATOR}, with the password of ARKVORY_ADMIN_PASSWORD."
        return f"The administrator's password, shown this once:   {ADMINISTRATOR} / {self.password}"


class Lifecycle:
    """Start and end of one process; `worker` is gunicorn's, or `worker.Process`, or null for a command."""

    def __init__(self, house: Parts) -> None:
        self._house = house
        self._periodic = PeriodicJobs(house)
        self._jobs: JobRunner | None = None
        self._worker: Any = None
        self._release: gevent.Greenlet | None = None
        self._revive: Callable[[], None] = lambda: None
        self._share: Callable[[], None] = lambda: None

    def start(self, worker: Any = None) -> None:
        """Everything before the first request. Ends the process, saying why, when it must not serve."""
        self._worker = worker
        _leave_to_who_waits(gevent.get_hub())
        embedded_database = getattr(worker, "embedded_database", None)
        if embedded_database is not None:
            self._revive = Reviver(self._house.settings, embedded_database)
            self._periodic.add(REVIVE_SECONDS, self._revive)
        folder = master.current().metrics
        if folder is not None:
            self._share = partial(metrics.share, self._house, folder)
            self._periodic.add(metrics.SHARE_SECONDS, self._share)
        logging.basicConfig(level=self._house.settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        try:
            first_start = self._begin()
        except DatabaseAway as error:
            _refuse(outage.words(error))
        except ArkvoryError as error:
            _refuse(str(error))
        master.current().board.note_serving()
        self._periodic.start()
        self._jobs = JobRunner(self._house, self._kind, jobs_of(self._house), families_of(self._house))
        self._jobs.start()
        if self._worker is not None and self._kind == "web":
            self._announce(first_start)

    @property
    def jobs(self) -> Sequence[Job]:
        """Those that there always are."""
        return jobs_of(self._house)

    @property
    def _kind(self) -> str:
        return getattr(self._worker, "kind", "web")

    def _begin(self) -> FirstStart | None:
        """The steps that need PostgreSQL, from the first again while it is away. Raises ArkvoryError when waiting does not help."""
        while True:
            try:
                # First of all, since migrations have no limit of time: one that accepts connections and says nothing.
                with self._house.database.read() as connection:
                    connection.execute(text("select 1"))
                self.own()
                if self._house.settings.cluster:
                    require_shared_folder(self._house.database, self._house.settings.data_dir)
                first_start = self.make_administrator() if self._kind == "web" else None
                self._join()
                return first_start
            except DatabaseRefuses as error:
                # In place of one that served, it waits: whoever else serves should not end with it.
                if self._is_first:
                    raise
                self._wait_for_database(error)
            except DatabaseAway as error:
                self._wait_for_database(error)

    @property
    def _is_first(self) -> bool:
        """Whether no process of this server was here before; gunicorn counts them."""
        return getattr(self._worker, "age", 0) <= self._house.settings.processes

    def _wait_for_database(self, error: DatabaseAway) -> None:
        outage.missed(error)
        self._house.ownership.release()
        self._revive()
        if self._worker is not None:
            # It is at work, as far as the master is concerned.
            self._worker.notify()
        if self._told_to_stop():
            sys.exit(0)
        gevent.sleep(DATABASE_RETRY_SECONDS)

    def own(self) -> None:
        """Bring the tables up to date and become the owner. Raises NotOwner or Unavailable."""
        settings = self._house.settings
        assert settings.database_url is not None
        migrate.upgrade(settings.database_session_url or settings.database_url)
        self._house.mirroring.expect()
        self._check_budget()
        self._house.ownership.acquire(settings.ownership_wait_seconds, self._told_to_stop)
        if not self._house.ownership.held:
            sys.exit(0)
        if not settings.cluster:
            self._house.sessions.free_all()
            self._house.part_holds.free_all()

    def _told_to_stop(self) -> bool:
        return self._worker is not None and not self._worker.alive

    def _check_budget(self) -> None:
        """Those that are to run here, the worker beside them too, and all others of a cluster that are online. Raises Unavailable."""
        settings, database = self._house.settings, self._house.database
        own = {settings.instance_id or "this server": settings.processes}
        if not settings.cluster:
            database.check_budget(own)
            return
        with database.read() as connection:
            others = census(connection, apart_from=settings.instance_id)
        beside = settings.of_worker().instance_id
        # A command starts none.
        serves = self._worker is not None and self._kind == "web"
        comes = serves and settings.serve_worker and beside not in others.servers
        coming = {str(beside): 1} if comes else {}
        runners = others.runners + comes + (self._kind == WORKER)
        database.check_budget(Counter(own) + Counter(coming) + Counter(others.servers), runners)

    def _join(self) -> None:
        """An owner from now on: the session is watched, and in a cluster others send mail. Raises DatabaseAway."""
        house = self._house
        house.ownership.watch(self._replace_process)
        if house.loop is not None and house.instance is not None:
            house.loop.kind = self._kind
            house.loop.start(house.instance.identify)
        if house.pins is not None:
            house.pins.start()

    def _leave(self) -> None:
        """After the last write."""
        # What it promised to spare; where that cannot be written, half of the grace is left.
        with contextlib.suppress(ArkvoryError):
            self._house.uses.flush()
        if self._house.loop is not None:
            self._house.loop.stop()
        self._house.ownership.release()

    def stopping(self) -> None:
        """At the beginning of a graceful stop, before running requests drain."""
        self._house.stopping = True
        self._end_jobs()
        self._house.completions.stop()
        if not self._house.settings.cluster:
            # A successor waits for the storage. In a cluster nobody does, and a write that was just let in finds it still shared.
            self._release = gevent.spawn(self._leave_after_last_write)

    def stop(self) -> None:
        """After the last request."""
        if self._release is not None:
            end(self._release)
        self._end_jobs()
        self._periodic.stop()
        if self._house.pins is not None:
            self._house.pins.stop()
        if self._house.shares is not None:
            self._house.shares.leave()
        with contextlib.suppress(ArkvoryError):
            self._house.downloads.flush()
        self._leave()
        self._share()
        self._house.database.dispose()

    def _end_jobs(self) -> None:
        if self._jobs is not None:
            self._jobs.begin_nothing()

    def _leave_after_last_write(self) -> None:
        house = self._house
        while house.transactions.active or house.admission.open_uploads or house.places.used:
            gevent.sleep(0.05)
        self._leave()

    def _replace_process(self) -> None:
        """Ownership is lost and PostgreSQL answers again: whoever started this process starts a fresh one in its place."""
        if self._worker is not None:
            log.warning("this process is replaced by a fresh one")
            self._worker.handle_exit(None, None)

    def make_administrator(self) -> FirstStart | None:
        """At the very first start; null at every later one."""
        house = self._house
        with house.database.read() as connection:
            if connection.execute(text("select 1 from arkvory_users limit 1")).first() is not None:
                return None
        given = house.settings.admin_password
        password = given or secrets.token_urlsafe(15)
        stored = house.identities.passwords.hash(password)
        with house.transactions.begin() as transaction:
            made = transaction.connection.execute(
                text(
                    "insert into arkvory_users (name, password_hash, administrator) values (:name, :hash, true) "
                    "on conflict (name) do nothing returning id"
                ),
                {"name": ADMINISTRATOR, "hash": stored},
            ).first()
        return None if made is None else FirstStart(None if given else password)

    def _announce(self, first_start: FirstStart | None) -> None:
        settings = self._house.settings
        port = self._port()
        self._leave_address(f"{settings.scheme}://{_reachable(settings.bind)}:{port}")
        address = settings.public_url or f"{settings.scheme}://localhost:{port}"
        instance = self._house.instance
        print(f"Arkvory serves at {address}{f' as {instance.label}' if instance else ''}", flush=True)
        if first_start is not None:
            scheme, _, host = address.partition("://")
            words = {"address": address, "password": first_start.password or "PASSWORD", "scheme": scheme, "host": host}
            print(_WELCOME.format(shown=first_start.shown, data=settings.data_dir, where=_where(settings), **words), flush=True)

    def _leave_address(self, url: str) -> None:
        """For commands of this machine; over https with the certificate by which they know this server, and no other."""
        house, settings = self._house, self._house.settings
        house.local_secret = master.current().secret
        name = settings.instance_id if settings.cluster else None

        def leave(*certificates: str) -> None:
            localserver.write(settings.data_dir, LocalServer(url, house.local_secret, certificates), name)

        tls = getattr(self._worker, "tls", None)
        if tls is None:
            leave()
            return
        leave(tls.certificate.fingerprint)
        # Both: connections that are being made now end up with either.
        tls.on_renewal = lambda fresh: leave(fresh.fingerprint, tls.certificate.fingerprint)

    def _port(self) -> int:
        try:
            return int(self._worker.sockets[0].getsockname()[1])
        except (AttributeError, IndexError, TypeError):
            return self._house.settings.port


_WELCOME = """
  {shown}
  Everything is kept in {data}. Ctrl-C stops the server. A lost password: .venv/bin/arkvory user update admin --password

{where}  curl   .venv/bin/arkvory repo create files --format raw
         curl -u admin:{password} -T FILE {address}/raw/files/some/path
         curl -u admin:{password} -O {address}/raw/files/some/path
  twine  .venv/bin/arkvory repo create python --format pypi
         twine upload --repository-url {address}/pypi/python/ -u admin -p {password} dist/*
  pip    pip install --index-url {scheme}://admin:{password}@{host}/pypi/python/simple/ PACKAGE

  Maven, npm, container images, proxies and groups: README.md. All commands: .venv/bin/arkvory --help
"""


def _refuse(reason: str) -> NoReturn:
    """The master repeats it at its end, behind what it says itself."""
    log.error("cannot start: %s", reason)
    master.current().board.note_refusal(reason)
    sys.exit(CANNOT_START)


def _leave_to_who_waits(hub: Any) -> None:
    """What a thread raises in the domain's words is raised again where it is waited for: gevent's log would say it twice, at length."""
    print_all: Callable[..., None] = hub.handle_error

    def handle_error(context: Any, kind: Any, value: Any, trace: Any) -> None:
        # Of a thread's task the context is a pair.
        if not (isinstance(context, tuple) and isinstance(value, ArkvoryError | Unreadable)):
            print_all(context, kind, value, trace)

    hub.handle_error = handle_error


def _where(settings: Settings) -> str:
    """What commands have to be told; nothing where they look by themselves."""
    folder = settings.data_dir.resolve()
    if folder == Settings.from_environment({}).data_dir.resolve():
        return ""
    return f"  First  export ARKVORY_DATA_DIR={shlex.quote(str(folder))}\n"


def _reachable(bind: str) -> str:
    """The address by which a command on this machine reaches a server that listens on `bind`."""
    host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(bind, bind)  # compared, not bound
    return f"[{host}]" if ":" in host else host


def attach(app: object, house: Parts) -> Lifecycle:
    """Give gunicorn's configuration its seams (config/gunicorn.py) on the WSGI application."""
    lifecycle = Lifecycle(house)
    for name, call in (
        ("arkvory_start", lifecycle.start),
        ("arkvory_stopping", lifecycle.stopping),
        ("arkvory_stop", lifecycle.stop),
    ):
        setattr(app, name, call)
    return lifecycle
