"""A wire between Arkvory and PostgreSQL that can be cut at the worst moment."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

import gevent
from gevent import socket
from gevent.event import Event
from gevent.server import StreamServer
from sqlalchemy import make_url

# The whole message: BEGIN may speak of READ COMMITTED.
_COMMIT = b"Q\x00\x00\x00\x0bCOMMIT\x00"


class _Moment:
    """When one connection has sent these messages in turn."""

    def __init__(self, messages: tuple[bytes, ...], behind: bool) -> None:
        self.behind = behind
        self._messages = messages
        self._sent: dict[int, int] = {}

    def has_come(self, data: bytes, connection: int) -> bool:
        sent = self._sent.get(connection, 0)
        if self._messages[sent] in data:
            self._sent[connection] = sent = sent + 1
        return sent == len(self._messages)


class Wire:
    """Forwards connections. `at_commit` says what becomes of the next COMMIT, once:

    lost      it never arrives: the connection breaks before it
    unheard   it arrives, and the connection breaks before its answer
    held      Arkvory's side breaks; it arrives when `deliver` is called, or never, when `drop` is

    `freeze` lets nothing through any more, in either direction, without breaking anything, until `thaw`. `cut` breaks what is connected
    now. `hold` stops one connection for good at a chosen moment; `stopped` is set when that has come.
    """

    def __init__(self, url: str) -> None:
        there = make_url(url)
        self._folder = Path(tempfile.mkdtemp(prefix="arkv-wire-"))
        port = there.port or 5432
        self._target = self._address(there)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(self._folder / f".s.PGSQL.{port}"))
        listener.listen(64)
        self._server = StreamServer(listener, self._serve)
        self._server.start()
        self.url = there.set(host=None, query={"host": str(self._folder)}).set(port=port).render_as_string(hide_password=False)
        self.at_commit: str | None = None
        self.commits = 0
        self._deliver, self._drop = Event(), Event()
        self._flows = Event()
        self._flows.set()
        self._moment: _Moment | None = None
        self.stopped = Event()
        self._open: set[Any] = set()

    @staticmethod
    def _address(there: Any) -> str | tuple[str, int]:
        host = str(there.query.get("host") or there.host)
        port = there.port or 5432
        return f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, port)

    def close(self) -> None:
        self._server.stop()
        for each in self._folder.iterdir():
            each.unlink()
        self._folder.rmdir()

    def deliver(self) -> None:
        """Send the COMMIT that was held."""
        self._deliver.set()

    def drop(self) -> None:
        """Break the server's side of it."""
        self._drop.set()

    def freeze(self) -> None:
        """As a network that has gone."""
        self._flows.clear()

    def thaw(self) -> None:
        self._flows.set()

    def cut(self) -> None:
        """Every connection that there is; new ones are let through."""
        for each in list(self._open):
            each.shutdown(socket.SHUT_RDWR)

    def hold(self, *messages: bytes, behind: bool = False) -> None:
        """Stop the first connection that sends these, one after the other, before the last one; `behind`: before its answer."""
        self.stopped.clear()
        self._moment = _Moment(messages, behind)

    def _holds(self, data: bytes, connection: int) -> _Moment | None:
        moment = self._moment
        if moment is None or not moment.has_come(data, connection):
            return None
        self._moment = None
        return moment

    def _serve(self, client: Any, _address: Any) -> None:
        kind = socket.AF_UNIX if isinstance(self._target, str) else socket.AF_INET
        server = socket.socket(kind, socket.SOCK_STREAM)
        server.connect(self._target)
        self._open.add(server)
        back = gevent.spawn(self._pump, server, client)
        try:
            while data := client.recv(65536):
                self._flows.wait()
                moment = self._holds(data, id(client))
                if moment is not None:
                    self._stop(moment, data, back, client, server)
                    return
                if _COMMIT in data:
                    self.commits += 1
                    how, self.at_commit = self.at_commit, None
                    if how is not None:
                        back.kill()
                        self._break(how, data, client, server)
                        return
                server.sendall(data)
        except OSError:
            pass
        finally:
            self._open.discard(server)
            back.kill()
            client.close()
            server.close()

    def _stop(self, moment: _Moment, data: bytes, back: Any, client: Any, server: Any) -> None:
        if moment.behind:
            back.kill()
            server.sendall(data)
            server.recv(65536)
        self.stopped.set()
        # Until whoever waits is gone.
        while client.recv(65536):
            pass

    def _break(self, how: str, data: bytes, client: Any, server: Any) -> None:
        if how == "unheard":
            server.sendall(data)
            server.recv(65536)
        client.close()
        if how == "held":
            gevent.wait([self._deliver, self._drop], count=1)
            if self._deliver.is_set():
                server.sendall(data)
                server.recv(65536)
            self._deliver.clear()
            self._drop.clear()

    def _pump(self, source: Any, target: Any) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._flows.wait()
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)
