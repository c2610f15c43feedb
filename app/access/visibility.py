"""Which repositories a caller may know of, or manages, as conditions of SQL for lists; one at a time it is `Access`."""

from __future__ import annotations

from typing import Any

from app.access.identity import Identity

# Rules that speak of the caller, with the rule as `a`; needs `user` of `subject`.
APPLIES = (
    "(a.subject = 'anonymous' or (:user > 0 and (a.subject = 'signed-in' or a.user_id = :user "
    "or a.group_id in (select m.group_id from arkvory_group_members m where m.user_id = :user))))"
)
# With the repository as `r`; needs all of `subject`. A token for certain repositories still reads what anyone may.
KNOWN = (
    "(r.public or r.id = :deployed or ((cast(:scope as bigint[]) is null or r.id = any(cast(:scope as bigint[]))) "
    "and (:everything or r.creator_id = :user "
    f"or exists (select 1 from arkvory_rules a where a.repository_id = r.id and {APPLIES}))))"
)
# As `Access.require_whole` for `manage`, of a user whose token may manage.
MANAGED = (
    "((cast(:scope as bigint[]) is null or r.id = any(cast(:scope as bigint[]))) and (:everything or r.creator_id = :user "
    "or exists (select 1 from arkvory_rules a where a.repository_id = r.id and 'manage' = any(a.permissions) "
    f"and coalesce(a.path_prefix, '') = '' and {APPLIES})))"
)


def subject(identity: Identity | None) -> dict[str, Any]:
    """The parameters of these for somebody or nobody."""
    scope = identity.token.repositories if identity is not None and identity.token is not None else None
    deploy = identity.deploy if identity is not None else None
    if deploy is not None:
        # Its own repository, and what is public.
        scope = frozenset()
    return {
        "deployed": 0 if deploy is None else deploy.repository_id,
        "user": identity.user_id if identity is not None else 0,
        "everything": identity is not None and identity.administrator,
        "scope": None if scope is None else sorted(scope),
    }
