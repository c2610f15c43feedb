"""The numbers that this process believes to be in effect, never evicted (DESIGN, "view").

A number only rises, and only to one that a commit confirmed or a query read (C2, C3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Epochs(NamedTuple):
    """The four epochs of a repository; each only increases."""

    metadata: int
    authorization: int
    content: int
    members: int

    def joined(self, other: Epochs) -> Epochs:
        """The larger of each."""
        return self if self == other else Epochs._make(map(max, self, other))


NO_EPOCHS = Epochs(0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Seen:
    """What one query read beside its values: the epochs of the repository, the user's revision (0: nobody), the installation's epoch.

    `entered` is the group by which the repository was reached, with its epochs.
    """

    repository_id: int
    epochs: Epochs
    user_id: int | None
    user_revision: int
    installation: int
    entered: tuple[int, Epochs] | None = None


class View:
    """Epochs of repositories, revisions of users and the installation's epoch, as known here."""

    def __init__(self) -> None:
        self._repositories: dict[int, Epochs] = {}
        self._users: dict[int, int] = {}
        self.installation = 0
        # How often the numbers of a repository rose.
        self.moves = 0

    def repository(self, repository_id: int) -> Epochs:
        return self._repositories.get(repository_id, NO_EPOCHS)

    def user(self, user_id: int) -> int:
        return self._users.get(user_id, 0)

    def raise_repository(self, repository_id: int, epochs: Epochs) -> Epochs | None:
        """Raise what is larger; the former numbers when any rose over known ones, else None."""
        known = self._repositories.get(repository_id)
        if known is None:
            self._repositories[repository_id] = epochs
            self.moves += 1
            return None
        joined = known.joined(epochs)
        if joined == known:
            return None
        self._repositories[repository_id] = joined
        self.moves += 1
        return known

    def raise_user(self, user_id: int, revision: int) -> bool:
        """True when the revision rose over a known one."""
        known = self._users.get(user_id)
        if known is not None and revision <= known:
            return False
        self._users[user_id] = revision
        return known is not None

    def raise_installation(self, epoch: int) -> bool:
        """True when the epoch rose over a known one."""
        known, self.installation = self.installation, max(self.installation, epoch)
        return 0 < known < epoch
