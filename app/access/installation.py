"""The switches of the whole installation: whether nobody may read, whether anything may be stored. The administrators'."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

import gevent

from app.access.authority import Authority
from app.access.identity import Caller, Identities
from app.cache.changes import Transaction, Transactions
from app.cache.installation import Switches, read_switches
from app.database.engines import Database
from app.database.locks import Step
from app.database.statements import text

log = logging.getLogger(__name__)

# A write waits at most 10 s for its repository; the rest of it takes milliseconds.
WRITERS_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class SwitchChange:
    """What to change; null leaves it as it is."""

    anonymous: bool | None = None
    read_only: bool | None = None


class Switchboard:
    """Shows and turns the switches; each change binds on the next request."""

    def __init__(self, database: Database, transactions: Transactions, identities: Identities) -> None:
        self._database = database
        self._transactions = transactions
        self._authority = Authority(identities)

    def show(self, caller: Caller) -> Switches:
        """Raises Forbidden or Unauthenticated."""
        with self._database.consistent() as connection:
            self._authority.administrator(connection, caller)
            return read_switches(connection)

    def change(self, caller: Caller, change: SwitchChange) -> Switches:
        """What changes nothing advances nothing. Raises Forbidden or Unauthenticated.

        When it becomes read only, this returns once the writes that were allowed before have ended: what is stored stands still then.
        """
        before, after = self._turn(caller, change)
        if after.read_only and not before.read_only:
            self._wait_for_writers()
        return after

    def _turn(self, caller: Caller, change: SwitchChange) -> tuple[Switches, Switches]:
        with self._transactions.begin() as transaction:
            self._authority.administrator(transaction.connection, caller)
            before = _lock(transaction)
            after = (_either(change.anonymous, before.anonymous), _either(change.read_only, before.read_only))
            if after != (before.anonymous, before.read_only):
                transaction.advance_installation()
                transaction.connection.execute(
                    text("update arkvory_installation set anonymous = :anonymous, read_only = :read_only where id = 1"),
                    {"anonymous": after[0], "read_only": after[1]},
                )
            shown = read_switches(transaction.connection)
        if transaction.changed_nothing:
            self._transactions.catch_up()
        return before, shown

    def _wait_for_writers(self) -> None:
        """Every transaction that writes has its number from its first statement on (the owner's row); none of now may be left."""
        deadline = time.monotonic() + WRITERS_SECONDS
        with self._database.read() as connection:
            newest = connection.execute(text("select pg_snapshot_xmax(pg_current_snapshot())::text::bigint")).scalar_one()
        while time.monotonic() < deadline:
            with self._database.read() as connection:
                oldest = connection.execute(text("select pg_snapshot_xmin(pg_current_snapshot())::text::bigint")).scalar_one()
            if oldest >= newest:
                return
            gevent.sleep(0.05)
        log.warning("read only, but a transaction of before has not ended within %g s", WRITERS_SECONDS)


def _lock(transaction: Transaction) -> Switches:
    transaction.order.reach(Step.PEOPLE)
    transaction.connection.execute(text("select 1 from arkvory_installation where id = 1 for no key update"))
    return read_switches(transaction.connection)


def _either(changed: bool | None, before: bool) -> bool:
    return before if changed is None else changed
