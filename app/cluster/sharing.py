"""Ownership in a cluster: its processes share the storage, each under a name and a slot of its own (DESIGN 4, 5).

The shared lock keeps `single` away, as its exclusive one keeps the cluster away. The generation is one for all: the first process of
a cluster counts it up, so that a lingering `single` writes nothing, and the others find it so. Whoever loses its session takes
everything again as soon as PostgreSQL answers; until then the generation alone decides whether it may write.
"""

from __future__ import annotations

from sqlalchemy import Connection

from app.cluster.instance import Instance
from app.cluster.ownership import Ownership
from app.database.engines import Database
from app.database.locks import OWNERSHIP
from app.database.pools import database_errors
from app.database.statements import text

_LOCK = {"c": OWNERSHIP[0], "o": OWNERSHIP[1]}
HOLDER = "a cluster"


class SharedOwnership(Ownership):
    """Of one process of a cluster; a command on its own has no `instance`."""

    def __init__(self, database: Database, instance: Instance | None) -> None:
        super().__init__(database)
        self.instance = instance

    def _take(self) -> str | None:
        session = self._opened()
        obstacle = self._share(session) or (self.instance and self.instance.take(self._database, session))
        if obstacle:
            self._close_session()
            if self.held and self.instance and self.instance.taken_by_another:
                self._lose(obstacle)
        return obstacle or None

    def _share(self, session: Connection) -> str | None:
        with database_errors():
            shared = session.execute(text("select pg_try_advisory_lock_shared(:c, :o)"), _LOCK).scalar_one()
        return None if shared else f"a single Arkvory owns this storage ({self._holder() or 'unknown'})"

    def _advice(self) -> str:
        if self.instance and self.instance.taken_by_another:
            return "give each server its own ARKVORY_INSTANCE_ID"
        return "stop it first, or give this one another database and data directory"

    def _fresh_generation(self) -> int:
        return self._count_up(HOLDER, shared=True)
