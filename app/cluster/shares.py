"""The download budget of a cluster, shared out between its processes by leases (DESIGN 5).

A row for each process says what it was granted and until when. Once a second each says what its clients want, and takes its new share:
no more than what the others' rows leave of the budget. So what is granted never exceeds it, at any moment: whoever is to have more
waits until the others have said that they have less. Of a process that dies the share comes free with its lease.

A fair share is one for each client: a client at several processes counts once. What those want who have not had to wait comes first; a
process that nobody downloads from keeps a little, so that the first one does not wait for its second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import uuid4

from app.cluster.leases import BEYOND, short
from app.database.clock import now
from app.database.engines import Database
from app.database.locks import DOWNLOADS
from app.database.statements import text
from app.errors import ArkvoryError

RENEW_SECONDS = 1.0
LEASE_SECONDS = 5.0
# Of its lease, for how long a process believes in it.
BELIEVED_SECONDS = 4.0
# Of the budget: what stays free for those who come; and what each keeps, as long as these are few.
SPARE = 0.05
IDLE = 0.01
# What somebody sends who does not wait may grow by so much until the next time.
GROWTH = 1.25


@dataclass(frozen=True)
class Wish:
    """What the clients of one process want: those that had to wait, and what all others sent, in bytes per second."""

    hungry: frozenset[str]
    calm: float


def fair_share(mine: Wish, others: Sequence[Wish], budget: float) -> float:
    """What the process with the wish `mine` should have, in bytes per second."""
    wishes = [mine, *others]
    floor = budget * min(IDLE, SPARE / len(wishes))
    room = budget * (1 - SPARE)
    calm = [each.calm * GROWTH + floor for each in wishes]
    scale = min(1.0, room / sum(calm))
    places = Counter(key for each in wishes for key in each.hungry)
    if not places:
        return calm[0] * scale
    left = room - sum(calm) * scale
    return calm[0] * scale + left * sum(1 / places[key] for key in mine.hungry) / len(places)


class Shares:
    """That of one process of `budget` bytes per second; `label` names it for whoever looks into the table."""

    def __init__(self, database: Database, label: Callable[[], str], budget: int) -> None:
        self._database = database
        self._label = label
        self._budget = budget
        self._incarnation = uuid4().hex[:12]
        self._holder = ""
        self._granted = 0.0
        self._processes = 1
        self._believed_until = 0.0

    def rate(self) -> float:
        """Bytes per second that this process may send now. Cut off from PostgreSQL, it goes on with an equal part at most."""
        if now() < self._believed_until:
            return self._granted
        return min(self._granted, self._budget / self._processes)

    def renew(self, wish: Wish) -> None:
        """Called once a second. Raises ArkvoryError."""
        self._holder = self._holder or f"{self._label()} {self._incarnation}"
        mine = Wish(frozenset(map(short, wish.hungry)), wish.calm)
        began = now()
        with self._database.write() as connection:
            connection.execute(text("select pg_advisory_xact_lock(:c, :o)"), {"c": DOWNLOADS[0], "o": DOWNLOADS[1]})
            # Statements of their own: they see what others committed before they gave the lock up.
            connection.execute(text(f"delete from arkvory_download_shares where until < clock_timestamp() or until > {BEYOND}"))
            others = connection.execute(
                text("select hungry, calm, granted from arkvory_download_shares where holder <> :holder"), {"holder": self._holder}
            ).all()
            share = fair_share(mine, [Wish(frozenset(row.hungry), row.calm) for row in others], self._budget)
            granted = max(0.0, min(share, self._budget - sum(row.granted for row in others)))
            values = {"holder": self._holder, "hungry": sorted(mine.hungry), "calm": mine.calm, "granted": granted}
            connection.execute(_RENEW, values | {"seconds": LEASE_SECONDS})
            # Before anybody else can have it.
            self._granted = min(self._granted, granted)
        self._granted, self._processes = granted, len(others) + 1
        self._believed_until = began + BELIEVED_SECONDS

    def leave(self) -> None:
        """After the last download."""
        try:
            with self._database.write() as connection:
                connection.execute(text("delete from arkvory_download_shares where holder = :holder"), {"holder": self._holder})
        except ArkvoryError:
            # Its lease runs out.
            return


_RENEW = text(
    "insert into arkvory_download_shares (holder, hungry, calm, granted, until) "
    "values (:holder, :hungry, :calm, :granted, clock_timestamp() + make_interval(secs => :seconds)) on conflict (holder) do update "
    "set hungry = excluded.hungry, calm = excluded.calm, granted = excluded.granted, until = excluded.until"
)
