"""gunicorn's settings: `gunicorn -c config/gunicorn.py wsgi:app`.

The application takes part in the life of its process through four seams, all optional:

- `arkvory_start(worker)`     an attribute of the WSGI application, called in the worker before its first request
- `arkvory_stopping()`        the same, at the beginning of a graceful stop: no new requests, those at work go on
- `arkvory_stop()`            the same, after the last request, or at once when the stop is not graceful
- `app.database.embedded`     started here in the master when no database is configured, its address handed down in the environment
"""

# Everything imported below, and gunicorn's own loop, must see the cooperative versions. The master keeps the ordinary `subprocess` and
# `os`: gevent's waits for SIGCHLD, which gunicorn takes for itself, and its `close` for a loop that does not turn there. Workers patch
# both (app/http/worker.py).
from gevent import monkey

monkey.patch_all(subprocess=False, os=False, signal=False)

import atexit  # noqa: E402  # after the patches
import importlib  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import socket  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from config.settings import SettingError, Settings  # noqa: E402

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # gunicorn's heartbeat file, made with mkstemp


def _settings() -> Settings:
    try:
        settings = Settings.from_environment()
    except SettingError as error:
        raise SystemExit(f"arkvory: {error}") from None
    if settings.cluster and settings.instance_id is None:
        raise SystemExit(
            "arkvory: ARKVORY_DEPLOYMENT=cluster needs a name for this server, unlike that of every other: set ARKVORY_INSTANCE_ID, "
            "such as ARKVORY_INSTANCE_ID=vm1"
        )
    if settings.deployment == "single" and (settings.web_concurrency or 1) > 1:
        raise SystemExit(
            "arkvory: ARKVORY_DEPLOYMENT=single runs one web process; set WEB_CONCURRENCY to 1, or leave it unset, "
            "or set ARKVORY_DEPLOYMENT=cluster with a name of this server, such as ARKVORY_INSTANCE_ID=vm1"
        )
    return settings


# After a SIGHUP this file is read again, as another module: what the master keeps hangs on gunicorn's own object.
_arkvory = _settings()

bind = [f"[{_arkvory.bind}]:{_arkvory.port}" if ":" in _arkvory.bind else f"{_arkvory.bind}:{_arkvory.port}"]
backlog = 2048
worker_class = "app.http.worker.Worker"
workers = _arkvory.processes
worker_connections = _arkvory.max_connections
preload_app = False
# Only a process that hangs misses this many seconds of heartbeat; slow clients and long requests do not.
timeout = 120
graceful_timeout = int(_arkvory.graceful_seconds) + 10
keepalive = max(int(_arkvory.keepalive_seconds), 1)
worker_tmp_dir = str(_SHARED_MEMORY) if os.access(_SHARED_MEMORY, os.W_OK) else None
loglevel = _arkvory.log_level
errorlog = "-"
# The worker writes its own, in JSON.
accesslog = None
# For the words of its log; the worker has its own way (app/http/tls.py).
certfile = None if _arkvory.tls_cert is None else str(_arkvory.tls_cert)
keyfile = None if _arkvory.tls_key is None else str(_arkvory.tls_key)
control_socket_disable = True
proc_name = "arkvory"


def on_starting(server: Any) -> None:
    """In the master, before it listens."""
    if server.cfg.workers != _arkvory.processes:
        raise SystemExit(f"arkvory: leave out --workers: {_what_decides()}")
    if (_arkvory.web_concurrency or 1) > _arkvory.processes:
        server.log.warning("WEB_CONCURRENCY=%d is ignored: %s", _arkvory.web_concurrency, _what_decides())
    try:
        importlib.import_module("app.http.addresses").networks(_arkvory.trusted_proxies)
    except SettingError as error:
        raise SystemExit(f"arkvory: {error}") from None
    _check_address()
    _load_certificate(server)
    importlib.import_module("app.cluster.master").begin(_metrics_folder())
    _halt_in_peace(server)
    if _arkvory.database_url is None:
        server.embedded_database = _start_embedded()
        # Also when gunicorn ends before its own hook; in children it does nothing.
        atexit.register(server.embedded_database.leave)
        os.environ["ARKVORY_DATABASE_URL"] = server.embedded_database.url
    if _arkvory.cluster and _arkvory.serve_worker:
        _work_beside(server)


def _work_beside(server: Any) -> None:
    """A worker with the web processes: gunicorn's master looks after it whenever it looks after them."""
    beside = server.beside = importlib.import_module("app.jobs.beside").Beside(server.log, _master().metrics)
    manage_workers, stop = server.manage_workers, server.stop

    def manage_all() -> None:
        manage_workers()
        # A server that is refused (its name is another one's) runs no jobs meanwhile.
        if _master().board.serves:
            beside.look()

    def stop_all(graceful: bool = True) -> None:
        beside.end()
        stop(graceful)
        beside.wait()

    server.manage_workers, server.stop = manage_all, stop_all


def on_reload(server: Any) -> None:
    """In the master, after SIGHUP."""
    beside = getattr(server, "beside", None)
    if beside is not None:
        beside.restart()


def _halt_in_peace(server: Any) -> None:
    """gunicorn halts for a child that could not start; a second such child in the middle of that would break it off with a traceback."""
    halt = server.halt

    def halt_once(reason: str | None = None, exit_status: int = 0) -> None:
        server.WORKER_BOOT_ERROR = server.APP_LOAD_ERROR = -1
        # The last line is the one that is read: not that a worker failed to boot, but why.
        halt(reason and (_master().board.refusal or reason), exit_status)

    server.halt = halt_once


def _metrics_folder() -> Path | None:
    """In a cluster any worker answers for all."""
    if not _arkvory.cluster:
        return None
    numbers = importlib.import_module("app.http.numbers")
    folder: Path = numbers.make_folder()
    master = os.getpid()
    atexit.register(lambda: os.getpid() == master and numbers.remove_folder(folder))
    # By this prometheus_client knows that its counts are shared.
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
    return folder


def _what_decides() -> str:
    if _arkvory.cluster:
        return "WEB_CONCURRENCY says how many web processes run"
    return "one web process runs; several need ARKVORY_DEPLOYMENT=cluster, ARKVORY_INSTANCE_ID (any name, such as vm1) and WEB_CONCURRENCY"


def _load_certificate(server: Any) -> None:
    """Here once, so that a wrong one is refused at the start; a worker inherits it, and looks for a newer one."""
    if (server.cfg.certfile, server.cfg.keyfile) != (certfile, keyfile):
        raise SystemExit("arkvory: set ARKVORY_TLS_CERT and ARKVORY_TLS_KEY instead of gunicorn's --certfile and --keyfile")
    try:
        _certificate()
    except SettingError as error:
        raise SystemExit(f"arkvory: {error}") from None


def _certificate() -> Any:
    """Null without https. After a SIGHUP this file is read again, but the certificate is still the one of the start."""
    tls = importlib.import_module("app.http.tls")
    files = tls.files_of(_arkvory)
    return None if files is None else tls.shared(*files)


def _check_address() -> None:
    """Before anything is started: gunicorn tries for five seconds and says less."""
    family = socket.AF_INET6 if ":" in _arkvory.bind else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_arkvory.bind, _arkvory.port))
        except OSError as error:
            raise SystemExit(
                f"arkvory: cannot listen on {_arkvory.bind} port {_arkvory.port}: {error.strerror}; choose another, such as PORT=9000"
            ) from None


def _start_embedded() -> Any:
    embedded = importlib.import_module("app.database.embedded")
    try:
        return embedded.start(_arkvory)
    except embedded.CannotStart as error:
        raise SystemExit(f"arkvory: {error}") from None


def nworkers_changed(server: Any, new_value: int, old_value: int | None) -> None:
    """A signal (TTIN) may ask for more processes; on a single node a second one would serve from a memory that nobody keeps right (S1)."""
    if new_value > 1 and old_value is not None and not _arkvory.cluster:
        server.log.warning(_what_decides())
        server.num_workers = 1


def post_fork(server: Any, worker: Any) -> None:
    """In the worker, before it loads the application."""
    # Until it has its own, the master's stand: they would note the signal in a queue that nobody reads, and the master would wait in vain.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    importlib.import_module("app.database.pools").patch_for_gevent()
    worker.tls = _certificate()
    # The worker looks after the embedded database, the master cannot.
    worker.embedded_database = getattr(server, "embedded_database", None)


def post_worker_init(worker: Any) -> None:
    """In the worker, after it loaded the application and before the first request."""
    start = getattr(worker.wsgi, "arkvory_start", None)
    if start is not None:
        start(worker)


def worker_exit(server: Any, worker: Any) -> None:
    """In the worker, after its last request. The master calls it too for a worker that it finds gone."""
    stop = getattr(getattr(worker, "wsgi", None), "arkvory_stop", None)
    if stop is not None:
        stop()


def child_exit(server: Any, worker: Any) -> None:
    """In the master, when a worker has ended, however it did."""
    folder = _master().metrics
    if folder is not None:
        importlib.import_module("app.http.numbers").bury(folder, worker.pid)


def _master() -> Any:
    return importlib.import_module("app.cluster.master").current()


def on_exit(server: Any) -> None:
    """In the master, after the last worker."""
    localserver = importlib.import_module("app.cluster.localserver")
    localserver.remove(_arkvory.data_dir, _master().secret, _arkvory.instance_id if _arkvory.cluster else None)
    embedded = getattr(server, "embedded_database", None)
    if embedded is not None:
        embedded.leave()
