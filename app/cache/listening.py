"""What this process does about what the others changed: the same as after a commit of its own (DESIGN 4, M2)."""

from __future__ import annotations

from typing import Any

from app.cache.messages import outcome_of
from app.cache.store import Cache
from app.cache.view import Epochs
from app.cluster.probe import Believed, Differences, Numbers
from app.database.turns import paced


class Listening:
    """The `Listener` of the loop (cluster/loop.py) over this process's cache."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def hear(self, body: Any) -> None:
        """Twice is harmless, and so is any order: numbers only rise, entries only go."""
        self._cache.apply(outcome_of(body))

    def believed(self) -> Believed:
        cache = self._cache
        repositories: dict[int, Numbers] = {each: cache.view.repository(each) for each in paced(cache.cached("repository"))}
        users = {each: cache.view.user(each) for each in paced(cache.cached("user")) if each > 0}
        return Believed(repositories, users, cache.view.installation)

    def correct(self, found: Differences) -> int:
        """M5. What a transaction of this process commits right now is told by itself, a moment later."""
        repositories = sum(self._correct_repository(*each) for each in paced(found.repositories.items()))
        users = sum(self._correct_user(*each) for each in paced(found.users.items()))
        return repositories + users + self._correct_installation(found.installation)

    def _correct_repository(self, repository_id: int, numbers: Numbers | None) -> bool:
        cache = self._cache
        if numbers is None:
            news = cache.has_snapshot(repository_id)
        else:
            news = cache.view.raise_repository(repository_id, Epochs(*numbers)) is not None
        if news or numbers is None:
            cache.drop_repository(repository_id)
        return news and not cache.is_own(repository_id=repository_id)

    def _correct_user(self, user_id: int, revision: int | None) -> bool:
        cache = self._cache
        news = revision is None or revision > cache.view.user(user_id)
        if revision is not None:
            cache.view.raise_user(user_id, revision)
        if news:
            cache.drop_user(user_id)
        return news and not cache.is_own(user_id=user_id)

    def _correct_installation(self, epoch: int | None) -> bool:
        """Whoever has not asked for it yet was not told anything wrong."""
        known = self._cache.view.installation
        if epoch is not None:
            self._cache.observe_installation(epoch)
        return epoch is not None and 0 < known < epoch and not self._cache.is_own()

    def keep(self, keeps: bool) -> None:
        self._cache.keep(keeps)
