"""The gunicorn worker: gunicorn keeps the processes, our own handler on gevent speaks HTTP.

What happens to a request is in `handler.py` (the connection), `head.py` (what may pass), `body.py` (`wsgi.input`) and `exchange.py` (the
answer). Beside the usual WSGI keys the application finds in its environment `RAW_URI` (the request target as it was sent),
`arkvory.request_id`, `arkvory.client` (the client's address) and `arkvory.log`, a dict whose entries go into the access log's line;
it may set `arkvory.file` to a `FileBody` that it returns as its iterable, and `arkvory.lane` to the `Lane` in which the answer goes out.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterable
from typing import Any

from gevent import event, get_hub, monkey, pool, pywsgi, socket, spawn_later
from gunicorn.http.wsgi import base_environ
from gunicorn.workers.ggevent import GeventPyWSGIWorker

from app.http.accesslog import AccessLog, request_ids
from app.http.addresses import networks
from app.http.handler import FIRST_REQUEST_SECONDS, Handler
from app.http.tls import Greeting, Tls, TlsSocket
from config.settings import Settings

_SPARE_FILES = 512


class Server(pywsgi.WSGIServer):  # type: ignore[misc]  # gevent has no types
    """Accepts connections and gives each to a `Handler`; `idle` holds those that wait for a request, longest first."""

    def __init__(self, listener: Any, settings: Settings, logger: Any, tls: Tls | None = None, **arguments: Any) -> None:
        self.settings = settings
        self.logger = logger
        self.tls = tls
        self.trusted = networks(settings.trusted_proxies)
        self.idle: dict[Handler, None] = {}
        # In the middle of a handshake or of a request's head, longest first.
        self.listening: dict[Handler | Greeting, None] = {}
        self.stopping = False
        self.request_id = request_ids()
        self.access_log = AccessLog() if settings.access_log else None
        super().__init__(listener, handler_class=Handler, **arguments)

    def handle(self, sock: Any, address: Any) -> None:
        """Serve one connection. Whoever takes the last free place costs the longest idle one its own, so that the next finds room.

        Without an idle one it is the one that has been sending its head for longest: a byte of a head is no title to a place.
        """
        waiting: Iterable[Handler | Greeting] = self.idle or self.listening
        if self.pool.full() and waiting:
            next(iter(waiting)).stop_waiting()
        if self.tls is None:
            Handler(sock, address, self).handle()
        elif (secure := self._greet(sock, self.tls)) is not None:
            try:
                Handler(secure, address, self).handle()
            finally:
                secure.close()

    def _greet(self, sock: Any, tls: Tls) -> TlsSocket | None:
        greeting = Greeting(sock, tls.certificate.context)
        self.listening[greeting] = None
        try:
            return greeting.finish(self.settings.header_seconds)
        finally:
            self.listening.pop(greeting, None)

    def wants_places(self) -> bool:
        """Whether connections should not be kept after their present request."""
        return self.stopping or self.pool.full()

    def refuse_new(self) -> None:
        """Stop listening, wake the idle connections and let those at work finish; who has just come is still served."""
        self.stopping = True
        self._accept_waiting()
        self.close()
        for handler in list(self.idle):
            if not handler.fresh:
                handler.stop_waiting()
        spawn_later(FIRST_REQUEST_SECONDS, self._wake_idle)

    def _accept_waiting(self) -> None:
        """The kernel has let them in already; closing the listener would reset them, and what they sent would be lost."""
        while not self.pool.full() and (client := self.do_read()) is not None:
            self.do_handle(*client)

    def _wake_idle(self) -> None:
        for handler in list(self.idle):
            handler.stop_waiting()


class Worker(GeventPyWSGIWorker):  # type: ignore[misc]  # gunicorn has no types
    """`worker_class` of Arkvory; the settings come from the environment."""

    server_class = Server
    wsgi_handler = Handler

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.settings = Settings.from_environment()
        # From the master, by config/gunicorn.py.
        self.tls: Tls | None = None
        self._stop: event.Event | None = None
        self.alive: bool = True
        self.sockets: list[Any] = self.sockets

    def patch(self) -> None:
        """Without `config/gunicorn.py` nothing is patched yet, with it all but what the master had to keep."""
        if monkey.is_module_patched("socket"):
            monkey.patch_os()
            monkey.patch_signal()
            monkey.patch_subprocess()
        else:
            monkey.patch_all()
        self.sockets = [socket.socket(listener.FAMILY, socket.SOCK_STREAM, fileno=listener.sock.detach()) for listener in self.sockets]

    def init_process(self) -> None:
        _raise_file_limit(self.settings.max_connections * 2 + _SPARE_FILES)
        super().init_process()

    def notify(self) -> None:
        """The heartbeat; without a master the work is finished, not dropped."""
        self.tmp.notify()
        if self.alive and self.ppid != os.getppid():
            self.log.info("Parent changed, shutting down: %s", self)
            self.alive = False

    def handle_exit(self, sig: int, frame: Any) -> None:
        self.alive = False
        if self._stop is None:
            # Still starting, perhaps waiting for a predecessor: nobody has been served yet.
            sys.exit(0)
        # A signal arrives anywhere, also inside the loop: only this way in is safe.
        get_hub().loop.run_callback_threadsafe(self._stop.set)

    def run(self) -> None:
        self._stop = event.Event()
        servers = [self._server(listener) for listener in self.sockets]
        for server in servers:
            server.start()
        while self.alive:
            self.notify()
            if self.tls is not None:
                self.tls.renew()
            self._stop.wait(1.0)
        self._drain(servers)

    def _server(self, listener: Any) -> Server:
        listener.setblocking(1)
        environ = base_environ(self.cfg)
        name = listener.getsockname()
        host, port = name[:2] if isinstance(name, tuple) else ("localhost", 0)
        # gevent would ask the resolver for the name of 0.0.0.0.
        environ.update({"wsgi.multithread": True, "SERVER_SOFTWARE": "arkvory", "SERVER_NAME": str(host), "SERVER_PORT": str(port)})
        server = Server(listener, self.settings, self.log, self.tls, application=self.wsgi, spawn=pool.Pool(self.settings.max_connections),
                        log=None, error_log=self.log, environ=environ)
        if self.tls is not None:
            server.environ["wsgi.url_scheme"] = "https"
        return server

    def _drain(self, servers: list[Server]) -> None:
        for server in servers:
            server.refuse_new()
        self._tell("arkvory_stopping")
        left = self.settings.graceful_seconds
        while left > 0 and any(server.pool for server in servers):
            self.notify()
            servers[0].pool.join(timeout=min(left, 1.0))
            left -= 1.0
        for server in servers:
            if server.pool:
                self.log.warning("%d requests did not finish within %g seconds", len(server.pool), self.settings.graceful_seconds)
                server.pool.kill(timeout=1)
            if server.access_log is not None:
                server.access_log.flush()

    def _tell(self, hook: str) -> None:
        """Call what the application offers for this moment; its failure must not keep the process from stopping."""
        call = getattr(self.wsgi, hook, None)
        if call is None:
            return
        try:
            call()
        except Exception:
            self.log.exception("%s failed", hook)


def _raise_file_limit(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


