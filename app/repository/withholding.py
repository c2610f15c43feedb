"""What a proxy keeps from its clients by its own settings: versions that are too young, and paths that its rules leave out.

    minimum_age              days that must have passed since the upstream published something; 0 or absent: any age will do
    minimum_age_exceptions   patterns of `name` or `name@version` that need no age
    allow, block             patterns of paths, or of folders for all that is below them; what is blocked is not there, nor what is not
                             among the allowed where some are named; versions too, as people write them (`patterns.py`)
    version_policy           (Maven) releases alone, or snapshots: the other kind of versions is not there

The settings stand in the snapshot, so a change binds on the next request. Files are judged by what a copy's metadata says, indexes by
what the upstream's own says of each version.
"""

from __future__ import annotations

import fnmatch
import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from app.cache.snapshots import Snapshot
from app.errors import Blocked, TooYoung
from app.repository.formats import is_of_other_kind
from app.repository.patterns import indexes_of, names_of, paths_of

# Keys of a copy's metadata: when the upstream published it, as far as anybody knows (without it nothing is ever too young), and the name
# and the version that exceptions speak of.
PUBLISHED_AT = "published_at"
PUBLISHED_AS = "published_as"
_MOST_TEXTS, _MOST_PATHS = 1024, 16_384
_NEVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Release:
    """A version that an upstream published, or a file of it: `at` null where nobody knows when."""

    path: str
    at: datetime | None
    name: str = ""
    version: str = ""

    @property
    def words(self) -> str:
        return f"{self.name} {self.version}".strip() or self.path


@dataclass(frozen=True)
class Restrictions:
    """The settings of one proxy; compared by identity, kept for as long as their text stays the same."""

    minimum_age: timedelta | None = None
    exceptions: re.Pattern[str] | None = None
    allow: re.Pattern[str] | None = None
    block: re.Pattern[str] | None = None
    # Whether a path is of a version of the kind that is left out (version_policy); null: none is.
    other_kind: Callable[[str], bool] | None = None
    # Of paths: what goes with the allowed.
    allow_indexes: re.Pattern[str] | None = None
    # Patterns of paths, by how they stand in the settings.
    allowed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    blocked: Mapping[str, Sequence[str]] = field(default_factory=dict)

    # -- paths

    @property
    def are_about_paths(self) -> bool:
        return self.allow is not None or self.block is not None or self.other_kind is not None

    def keep_out(self, path: str) -> str | None:
        """The rule that keeps a path out, in words; null when none does. A folder ends in a slash; what is below it may be allowed."""
        if self.other_kind is not None and self.other_kind(path):
            return "version_policy"
        lines = list(_lines_to(path))
        if self.block is not None and any(map(self.block.fullmatch, lines)):
            return f"block {_first(self.blocked, lines)!r}"
        if self.allow is None or any(map(self.allow.fullmatch, lines)):
            return None
        if self.allow_indexes is not None and self.allow_indexes.fullmatch(path):
            return None
        is_folder = path.endswith("/") or not path
        below = is_folder and any(_may_be_below(path, each) for told in self.allowed.values() for each in told)
        return None if below else "allow, which names other paths"

    # -- age

    def spares(self, release: Release) -> bool:
        """Whether an exception names it."""
        if self.exceptions is None:
            return False
        name = release.name or release.path
        return any(map(self.exceptions.fullmatch, (name, f"{name}@{release.version}")))

    def available_at(self, release: Release) -> datetime | None:
        """When it is old enough; null where age does not matter to it, or is not known."""
        if self.minimum_age is None or release.at is None or self.spares(release):
            return None
        try:
            return release.at + self.minimum_age
        except OverflowError:
            return _NEVER

    def require_age(self, release: Release, now: datetime | None = None) -> None:
        """Raises TooYoung."""
        available_at = self.available_at(release)
        if available_at is None or available_at <= (now or datetime.now(UTC)):
            return
        assert release.at is not None
        raise TooYoung(
            f"{release.words} was published at {_told(release.at)} and is withheld until {_told(available_at)}: "
            f"nothing younger than {self.days:g} days leaves this repository (minimum_age)",
            available_at,
        )

    def require_time(self, release: Release) -> None:
        """For what is not kept, so that nobody will know when it was seen first. Raises TooYoung when it has no time either."""
        if self.minimum_age is not None and release.at is None and not self.spares(release):
            raise TooYoung(
                f"{release.words} is withheld: its upstream does not say when it was published, and this repository, which keeps nothing "
                f"(caching), cannot tell that it is {self.days:g} days old (minimum_age)",
                None,
            )

    @property
    def days(self) -> float:
        return 0.0 if self.minimum_age is None else self.minimum_age / timedelta(days=1)


NONE = Restrictions()


def restrictions_of(snapshot: Snapshot) -> Restrictions:
    """Those of a proxy; `NONE` for others."""
    return NONE if snapshot.restrictions is None else _parsed(snapshot.restrictions, snapshot.format)


def path_rules(format_name: str, allow: Sequence[str], block: Sequence[str]) -> Restrictions:
    """The same patterns for whoever chooses among paths."""
    return _parsed(json.dumps({"allow": list(allow), "block": list(block)}), format_name)


@functools.lru_cache(_MOST_TEXTS)
def _parsed(text: str, format_name: str) -> Restrictions:
    told: Mapping[str, Any] = json.loads(text)
    days = told.get("minimum_age")
    exceptions, allowed, blocked = (
        {each: read(format_name, each) for each in told.get(name) or ()}
        for name, read in (("minimum_age_exceptions", names_of), ("allow", paths_of), ("block", paths_of))
    )
    other_kind = functools.partial(is_of_other_kind, format_name, told["version_policy"]) if "version_policy" in told else None
    return Restrictions(
        timedelta(days=days) if days else None, _any_of(exceptions), _any_of(allowed), _any_of(blocked), other_kind,
        _any_of({each: indexes_of(format_name, each) for each in allowed}), allowed, blocked,
    )  # fmt: skip


def _any_of(patterns: Mapping[str, Sequence[str]]) -> re.Pattern[str] | None:
    """`*` stands for anything, slashes too."""
    found = [each for told in patterns.values() for each in told]
    return re.compile("|".join(fnmatch.translate(each.rstrip("/") or each) for each in found)) if found else None


def _lines_to(path: str) -> Iterable[str]:
    """The path, and every folder that it is in."""
    path = path.rstrip("/")
    while path:
        yield path
        path = path.rpartition("/")[0]


def _may_be_below(folder: str, pattern: str) -> bool:
    plain = re.split(r"[*?\[]", pattern)[0]
    return plain.startswith(folder) or (plain != pattern and folder.startswith(plain))


def _first(patterns: Mapping[str, Sequence[str]], lines: Sequence[str]) -> str:
    return next(
        said for said, told in patterns.items() for each in told for line in lines if fnmatch.fnmatchcase(line, each.rstrip("/") or each)
    )


def require_path(snapshot: Snapshot, path: str) -> None:
    """Raises Blocked for a path that a rule of this proxy keeps out."""
    if snapshot.restrictions is None:
        return
    rule = _keeping_out(snapshot.restrictions, snapshot.format, path)
    if rule is not None:
        raise Blocked(f"there is no {path!r} in repository {snapshot.name!r}: its path rules leave it out ({rule})", rule)


def keeps_out(snapshot: Snapshot, path: str) -> bool:
    """Whether a rule of this proxy does."""
    return snapshot.restrictions is not None and _keeping_out(snapshot.restrictions, snapshot.format, path) is not None


@functools.lru_cache(_MOST_PATHS)
def _keeping_out(text: str, format_name: str, path: str) -> str | None:
    restrictions = _parsed(text, format_name)
    return restrictions.keep_out(path) if restrictions.are_about_paths else None


def release_of(path: str, metadata: Mapping[str, Any]) -> Release | None:
    """What the metadata of a copy says; null for what has no age, such as an index."""
    at = metadata.get(PUBLISHED_AT)
    if at is None:
        return None
    name, version = metadata.get(PUBLISHED_AS) or ("", "")
    return Release(path, datetime.fromisoformat(at), name, version)


def told_of(release: Release | None) -> dict[str, Any]:
    """The same for a copy's metadata."""
    if release is None or release.at is None:
        return {}
    known_as = {PUBLISHED_AS: [release.name, release.version]} if release.name else {}
    return {PUBLISHED_AT: release.at.astimezone(UTC).isoformat()} | known_as


class Judge:
    """For one making of a document: says of each entry whether it is to be left out, and remembers until when that holds."""

    def __init__(self, snapshot: Snapshot, now: datetime | None = None) -> None:
        self._restrictions = restrictions_of(snapshot)
        self._now = now or datetime.now(UTC)
        # When the next of those that were left out comes of age; null: none was.
        self.until: datetime | None = None
        # Paths that were left out for their age: a group has them from no later member.
        self.withheld: set[str] = set()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left out, whatever it is asked."""
        return self._restrictions is NONE

    def leaves_out(self, path: str, published_at: datetime | None = None, name: str = "", version: str = "") -> bool:
        """Whether path rules or the minimum age withhold what is at `path`; without a time it has no age, and only its file will tell."""
        restrictions = self._restrictions
        if restrictions is NONE:
            return False
        if restrictions.are_about_paths and restrictions.keep_out(path) is not None:
            return True
        return self._is_young(Release(path, published_at, name, version))

    def leaves_out_copy(self, path: str, metadata: Mapping[str, Any]) -> bool:
        """The same for a copy at `path` with this metadata, or for a folder that one is in."""
        release = None if path.endswith("/") else release_of(path, metadata)
        if release is None:
            return self.leaves_out(path)
        return self.leaves_out(path, release.at, release.name, release.version)

    def _is_young(self, release: Release) -> bool:
        available_at = self._restrictions.available_at(release)
        if available_at is None or available_at <= self._now:
            return False
        self.until = available_at if self.until is None else min(self.until, available_at)
        self.withheld.add(release.path)
        return True


def until_of(judges: Iterable[Judge]) -> datetime | None:
    """Until when a document of theirs holds; null: for as long as its content."""
    return min((each.until for each in judges if each.until is not None), default=None)


def _told(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
