"""Logins that a program begins and that its user confirms in a browser.

The program gets a secret, the browser an address made of its digest: who sees the address (in a history, over a shoulder) cannot fetch
what the program gets. A login waits ten minutes, in the database, since the two may talk to different processes.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

from app.access.identity import Caller, Identities
from app.cache.changes import Transactions
from app.database.engines import Database
from app.database.locks import Step
from app.database.statements import text
from app.errors import Forbidden, Invalid, NotFound, TooManyLogins

WAIT_SECONDS = 600
# Of all users: anybody may begin one.
MOST_WAITING = 10_000


@dataclass(frozen=True, slots=True)
class Login:
    """`secret` is the program's, `number` the browser's."""

    secret: str
    number: str


class Logins:
    """Begun by anybody, confirmed by a user with their password, redeemed once by who began it."""

    def __init__(self, database: Database, transactions: Transactions, identities: Identities) -> None:
        self._database = database
        self._transactions = transactions
        self._identities = identities

    def begin(self) -> Login:
        """Raises TooManyLogins when very many wait."""
        secret = secrets.token_urlsafe(32)
        login = Login(secret, _number(secret))
        with self._transactions.begin() as transaction:
            transaction.order.reach(Step.PEOPLE)
            transaction.connection.execute(text("delete from arkvory_logins where expires_at < now()"))
            values = {"digest": _digest(login.number), "seconds": WAIT_SECONDS, "most": MOST_WAITING}
            if transaction.connection.execute(_BEGIN, values).rowcount == 0:
                raise TooManyLogins("too many logins wait to be confirmed; try again later", retry_after=60)
        return login

    def check(self, number: str) -> None:
        """Raises NotFound for a login that does not wait any more."""
        with self._database.read() as connection:
            row = connection.execute(_WAITING, {"digest": _digest(number)}).first()
        if row is None:
            raise _over()

    def confirm(self, number: str, caller: Caller) -> None:
        """The caller, who has just given their password, is who logs in. Raises NotFound, and Forbidden for who uses a token."""
        identity = caller.identity
        if identity is None or identity.user_id <= 0 or identity.token is not None:
            raise Forbidden("a login is confirmed with a user's name and password")
        with self._transactions.begin() as transaction:
            transaction.order.reach(Step.PEOPLE)
            values = {"digest": _digest(number), "user": identity.user_id, "revision": identity.revision}
            if transaction.connection.execute(_CONFIRM, values).rowcount == 0:
                raise _over()

    def redeem(self, secret: str, address: str) -> Caller | None:
        """Who confirmed it, once; None while nobody has. Raises NotFound, and Unauthenticated when what they are has changed since."""
        number = _number(secret)
        with self._transactions.begin() as transaction:
            transaction.order.reach(Step.PEOPLE)
            row = transaction.connection.execute(_REDEEM, {"digest": _digest(number)}).first()
            if row is not None:
                return Caller(self._identities.of_user(transaction.connection, row.user_id, row.revision), address)
        self.check(number)
        return None


def _number(secret: str) -> str:
    if len(secret) > 200 or not secret.isascii():
        raise Invalid("that is no login")
    return hashlib.sha256(secret.encode()).hexdigest()


def _digest(number: str) -> bytes:
    return hashlib.sha256(number.encode()).digest()


def _over() -> NotFound:
    return NotFound("this login is not waiting (any more); begin it again")


_BEGIN = text(
    "insert into arkvory_logins (digest, expires_at) select :digest, now() + make_interval(secs => :seconds) "
    "where (select count(*) from arkvory_logins) < :most"
)
_WAITING = text("select 1 from arkvory_logins where digest = :digest and expires_at >= now() and user_id is null")
_CONFIRM = text(
    "update arkvory_logins set user_id = :user, revision = :revision where digest = :digest and expires_at >= now() and user_id is null"
)
_REDEEM = text(
    "delete from arkvory_logins where digest = :digest and expires_at >= now() and user_id is not null returning user_id, revision"
)
