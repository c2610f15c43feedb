"""What a transaction tells the other processes (DESIGN 4, M1), as bodies of JSON and back.

One message for each repository, with all that the transaction did to it, and one for users and the installation. It says the new
numbers, names and paths; no bytes, no secrets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from app.cache.outcomes import Outcome, RepositoryChange
from app.cache.view import Epochs

# Beyond, a message goes without them: it then counts for the whole repository.
MOST_PATHS = 200


def bodies_of(outcome: Outcome) -> list[dict[str, Any]]:
    """The messages of a transaction, before its commit."""
    bodies = [_repository_body(each) for each in merged(outcome.repositories)]
    if outcome.users or outcome.installation is not None:
        bodies.append({"users": sorted(outcome.users.items()), "installation": outcome.installation})
    return bodies


def merged(changes: Iterable[RepositoryChange]) -> list[RepositoryChange]:
    """One for each repository; the numbers of the last one, since they only rise."""
    found: dict[int, RepositoryChange] = {}
    for each in changes:
        former = found.get(each.repository_id)
        found[each.repository_id] = each if former is None else _joined(former, each)
    return list(found.values())


def _joined(former: RepositoryChange, later: RepositoryChange) -> RepositoryChange:
    paths = None if former.paths is None or later.paths is None else (*former.paths, *later.paths)
    names = tuple(dict.fromkeys((*former.names, *later.names)))
    return RepositoryChange(later.repository_id, former.epochs.joined(later.epochs), former.classes | later.classes, names, paths)


def _repository_body(change: RepositoryChange) -> dict[str, Any]:
    few = change.paths is not None and len(change.paths) <= MOST_PATHS
    return {
        "repository": change.repository_id,
        "epochs": list(change.epochs),
        "classes": sorted(change.classes),
        "names": [list(each) for each in change.names],
        "paths": list(change.paths or ()) if few else None,
    }


def outcome_of(body: Mapping[str, Any]) -> Outcome:
    """What to do about a message. Raises ValueError, KeyError or TypeError for a body that is none."""
    if "repository" in body:
        return Outcome(repositories=[_change(body)])
    users = {int(user_id): int(revision) for user_id, revision in body["users"]}
    installation = body["installation"]
    return Outcome(users=users, installation=None if installation is None else int(installation))


def _change(body: Mapping[str, Any]) -> RepositoryChange:
    epochs = Epochs(*(int(each) for each in body["epochs"]))
    names = tuple((str(tenant), str(name)) for tenant, name in body["names"])
    paths = None if body["paths"] is None else tuple(str(each) for each in body["paths"])
    return RepositoryChange(int(body["repository"]), epochs, frozenset(map(str, body["classes"])), names, paths)
