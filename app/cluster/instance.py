"""Which process of a cluster this is: the name of its gunicorn master and the slot of the worker under it (DESIGN 4).

Both are session locks, so that they go with the process, however it ends. A master's workers share a lock that only they know of (by
the master's token); `arkvory_instance_names` says which master goes by a name, and is rewritten by another one only when nobody holds
that lock any more.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, Row

from app.database.engines import Database
from app.database.locks import master_key, slot_key
from app.database.pools import database_errors
from app.database.statements import text
from app.errors import Unavailable

MOST_SLOTS = 1024


class Instance:
    """`name` is the server's, `slot` null until one was taken."""

    def __init__(self, name: str, master: str) -> None:
        self.name = name
        self.slot: int | None = None
        # Whether the name was another master's when it was asked for last.
        self.taken_by_another = False
        self._master = master

    @property
    def label(self) -> str:
        """`vm1/0`."""
        return f"{self.name}/{'?' if self.slot is None else self.slot}"

    def identify(self) -> tuple[str, int]:
        """Name and slot, which may be another one after the session was lost."""
        assert self.slot is not None, "a slot is taken first"
        return self.name, self.slot

    def take(self, database: Database, session: Connection) -> str | None:
        """Take name and slot for as long as `session` lasts; else who has the name. A slot held before is asked for first."""
        with database_errors():
            obstacle = self._take_name(database, session)
            self.taken_by_another = obstacle is not None
            if obstacle is None:
                self.slot = self._take_slot(session)
        return obstacle

    def _take_name(self, database: Database, session: Connection) -> str | None:
        """Under the row's lock, which masters that want the same name take one after the other."""
        with database.write() as connection:
            former = _claimed(connection, self.name, self._master)
            if former.master != self._master:
                if not _try(session, master_key(self.name, former.master)):
                    return f"another server on {former.host} is ARKVORY_INSTANCE_ID={self.name}"
                _unlock(session, master_key(self.name, former.master))
                connection.execute(
                    text("update arkvory_instance_names set master = :master, host = :host, taken_at = now() where name = :name"),
                    {"master": self._master, "host": socket.gethostname(), "name": self.name},
                )
            # Does not wait: only whoever has the row locked asks for it exclusively.
            session.execute(text("select pg_advisory_lock_shared(hashtextextended(:key, 0))"), {"key": master_key(self.name, self._master)})
        return None

    def _take_slot(self, session: Connection) -> int:
        for slot in self._slots():
            if _try(session, slot_key(self.name, slot)):
                return slot
        raise Unavailable(f"all {MOST_SLOTS} slots of {self.name} are taken")

    def _slots(self) -> Iterator[int]:
        if self.slot is not None:
            yield self.slot
        yield from range(MOST_SLOTS)


def _claimed(connection: Connection, name: str, master: str) -> Row[Any]:
    """The row of that name, locked; made for this master where there is none."""
    values = {"name": name, "master": master, "host": socket.gethostname()}
    connection.execute(
        text("insert into arkvory_instance_names (name, master, host) values (:name, :master, :host) on conflict (name) do nothing"), values
    )
    return connection.execute(text("select master, host from arkvory_instance_names where name = :name for update"), values).one()


def _try(session: Connection, key: str) -> bool:
    return bool(session.execute(text("select pg_try_advisory_lock(hashtextextended(:key, 0))"), {"key": key}).scalar_one())


def _unlock(session: Connection, key: str) -> None:
    session.execute(text("select pg_advisory_unlock(hashtextextended(:key, 0))"), {"key": key})
