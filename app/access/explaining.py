"""Why somebody may do something in a repository, or why not: what `decision.py` says, and what it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from app.access.decision import READ, Grant, refusal_now
from app.access.identity import LOCAL, Caller, Identity
from app.access.visibility import APPLIES
from app.cache.installation import read_switches
from app.cache.snapshots import Snapshot
from app.database.statements import text
from app.errors import ArkvoryError, Unauthenticated


@dataclass(frozen=True, slots=True)
class Applied:
    """A rule that speaks of the caller and gives the permission somewhere; `role` null: it is the repository's own, with this id."""

    id: int
    role: str | None
    subject: str
    path_prefix: str | None
    # Whether it gives it for the path that was asked about.
    covers: bool

    @property
    def words(self) -> str:
        whose = f"rule {self.id}" if self.role is None else f"the role {self.role!r}"
        return f"{whose} gives it to {self.subject}{_below(self.path_prefix)}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether `subject` may, and why or why not; `error` is what they get when not."""

    permission: str
    subject: str
    because: str
    error: ArkvoryError | None
    rules: Sequence[Applied]

    @property
    def allowed(self) -> bool:
        return self.error is None


def explain(connection: Connection, caller: Caller, snapshot: Snapshot, permission: str, path: str) -> Verdict:
    """For a caller and a snapshot that `connection` read."""
    asked = _Asked(snapshot, caller.identity, permission, _rules(connection, snapshot, caller, permission, path))
    if caller.identity is None and not read_switches(connection).anonymous:
        return asked.verdict("this server lets nobody in without a login", Unauthenticated("this server needs a login"))
    error = refusal_now(connection, caller, snapshot, permission, path)
    return asked.verdict(asked.why if error is None else asked.why_not, error)


@dataclass(frozen=True, slots=True)
class _Asked:
    snapshot: Snapshot
    identity: Identity | None
    permission: str
    rules: Sequence[Applied]

    def verdict(self, because: str, error: ArkvoryError | None) -> Verdict:
        return Verdict(self.permission, _subject(self.identity), because, error, self.rules)

    @property
    def why(self) -> str:
        """In the order of the decision."""
        identity = self.identity
        if self.permission == READ and self.snapshot.public:
            return "the repository is public: anyone may read"
        if identity is not None and identity.deploy is not None:
            return f"the deploy token was made for it{_below(identity.deploy.path_prefix)}"
        if identity is not None and identity.administrator:
            return "administrators may do everything"
        if identity is not None and identity.user_id == self.snapshot.creator_id:
            return "who created a repository may do everything in it"
        return "; ".join(each.words for each in self.rules if each.covers)

    @property
    def why_not(self) -> str:
        identity = self.identity
        if identity is not None and identity.deploy is not None:
            return self._limit_of_deploy_token(identity)
        return self._limit_of_token or self._lack_of_rules

    def _limit_of_deploy_token(self, identity: Identity) -> str:
        assert identity.deploy is not None
        if identity.deploy.repository_id != self.snapshot.id:
            return "the deploy token is another repository's"
        if self.permission not in identity.deploy.permissions:
            return f"the deploy token gives {', '.join(sorted(identity.deploy.permissions))} alone"
        return f"the deploy token gives it{_below(identity.deploy.path_prefix)} alone"

    @property
    def _limit_of_token(self) -> str | None:
        """What a token leaves out of what its owner may; null when it leaves this in."""
        scope = None if self.identity is None else self.identity.token
        if scope is None:
            return None
        if self.permission not in scope.permissions:
            return f"the token gives {', '.join(sorted(scope.permissions))} alone"
        is_elsewhere = scope.repositories is not None and self.snapshot.id not in scope.repositories
        return "the token is for other repositories" if is_elsewhere else None

    @property
    def _lack_of_rules(self) -> str:
        if self.rules:
            return f"rules give it elsewhere alone: {'; '.join(each.words for each in self.rules)}"
        return "no rule and no role gives it" + ("" if self.snapshot.public else ", and the repository is not public")


def _subject(identity: Identity | None) -> str:
    if identity is None:
        return "anonymous"
    if identity is LOCAL or identity.deploy is not None:
        return identity.name
    return f"user:{identity.name}" + ("" if identity.token is None else f" by the token {identity.token.id}")


def _below(prefix: str | None) -> str:
    return f" below {prefix!r}" if prefix else ""


def _rules(connection: Connection, snapshot: Snapshot, caller: Caller, permission: str, path: str) -> list[Applied]:
    if caller.identity is not None and caller.identity.deploy is not None:
        return []
    rows = connection.execute(_RULES, {"repository": snapshot.id, "user": caller.user_id, "permission": permission})
    return [
        Applied(row.id, row.role, row.subject, row.path_prefix, not row.path_prefix or Grant(prefixes=(row.path_prefix,)).covers(path))
        for row in rows
    ]


# As the view `arkvory_rules`, with what each is called.
_RULES = text(
    "select a.id, a.role, a.path_prefix, case a.subject when 'user' then 'user:' || u.name when 'group' then 'group:' || g.name "
    "else a.subject end as subject from ("
    "select id, null as role, repository_id, subject, user_id, group_id, permissions, path_prefix from arkvory_access_rules union all "
    "select e.id, r.name, e.repository_id, case when h.user_id is null then 'group' else 'user' end, h.user_id, h.group_id, "
    "e.permissions, e.path_prefix from arkvory_role_rules e join arkvory_role_holders h on h.role_id = e.role_id "
    "join arkvory_roles r on r.id = e.role_id) a left join arkvory_users u on u.id = a.user_id "
    "left join arkvory_groups g on g.id = a.group_id where (a.repository_id = :repository or a.repository_id is null) "
    f"and :permission = any(a.permissions) and {APPLIES} order by a.role nulls first, a.id"
)
