"""Rights that belong to no repository: being signed in, being the administrator. Decided from the database (C10)."""

from __future__ import annotations

from sqlalchemy import Connection

from app.access.decision import MANAGE
from app.access.identity import Caller, Identities, Identity
from app.errors import Forbidden, Unauthenticated


def has_full_scope(identity: Identity) -> bool:
    """False for a token that stands for less than its owner's account: it may not manage, or only some repositories."""
    scope = identity.token
    return scope is None or (MANAGE in scope.permissions and scope.repositories is None)


class Authority:
    """What an account as such may do."""

    def __init__(self, identities: Identities) -> None:
        self._identities = identities

    def signed_in(self, connection: Connection, caller: Caller) -> Identity:
        """The user who calls, as they are now.

        Raises Unauthenticated for nobody, and for whom may not sign in any more; Forbidden for a deploy token.
        """
        identity = self.present(connection, caller)
        if identity is None:
            raise Unauthenticated("this needs a login")
        if identity.deploy is not None:
            raise Forbidden("a deploy token stands for a repository, not for a user")
        return identity

    def present(self, connection: Connection, caller: Caller) -> Identity | None:
        """Whoever calls, as they are now; null for nobody. Raises Unauthenticated for a credential that is not good any more."""
        return None if caller.identity is None else self._identities.read_again(connection, caller.identity)

    def administrator(self, connection: Connection, caller: Caller) -> Identity:
        """The caller, an administrator with all of their rights. Raises Unauthenticated or Forbidden."""
        identity = self.signed_in(connection, caller)
        if not identity.administrator:
            raise Forbidden(f"{identity.name!r} is not an administrator")
        return self.unlimited(identity)

    def unlimited(self, identity: Identity) -> Identity:
        """Raises Forbidden when a token stands for less than the account of `identity`."""
        if not has_full_scope(identity):
            raise Forbidden("this token may not do that: it needs `manage` for all repositories")
        return identity
