"""The model of everything that memory may get wrong, and a machine that compares it with real processes after random changes.

One process is asked by `tests/cache`, several by `tests/cluster`; the rules and the model are the same. The model is one repository
with its files, holds, flags and rules, two people with a token each, and the installation's switches and one role.

What a process may answer follows from the states that it may still believe in (`Member`): of the repository, of each person and of the
installation, each for itself. Who writes a subject knows its newest state at once; on a single node there is never another.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import gevent
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from app.access.installation import SwitchChange
from app.access.roles import NewRoleRule
from app.access.tokens import NewToken
from app.errors import ArkvoryError, OutcomeUnknown
from tests.support.house import ADMIN, House
from tests.support.pauses import Pause

PATHS = ("a", "d/b", "d/c")
NAMES = ("first", "second")
PEOPLE = ("ann", "bob")
EVERYONE = (None, *PEOPLE)
CHANGES = ("publish", "close", "forbid", "disable", "revoke", "rename", "again", "offline", "hold", "unassign", "anonymous")
# Where a reader can be stopped: behind the query that is named.
STOPS = {"snapshot": "_from_repository", "gate": "_load_gate", "row": "_from_row", "filling": "_write_row"}

paths, names, people = st.sampled_from(PATHS), st.sampled_from(NAMES), st.sampled_from(PEOPLE)
bodies = st.binary(min_size=1, max_size=4)


@dataclass(frozen=True)
class Repository:
    """A state of it; `rules` are who and below which folder."""

    name: str
    status: str = "online"
    public: bool = False
    files: Mapping[str, bytes] = field(default_factory=dict)
    held: frozenset[str] = frozenset()
    rules: tuple[tuple[str, str | None], ...] = ()

    def allows(self, who: str | None, path: str | None) -> bool:
        return any(
            (subject == who or subject == "anonymous" or (subject == "signed-in" and who is not None))
            and (prefix is None or path is None or path.startswith(f"{prefix}/"))
            for subject, prefix in self.rules
        )


@dataclass(frozen=True)
class Person:
    """`secret` is of the one token that works, null when there is none."""

    secret: str | None
    disabled: bool = False


@dataclass(frozen=True)
class Switches:
    """`holders` of the role that may read every repository."""

    anonymous: bool = True
    holders: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Question:
    """Who asks (null: nobody) with which secret for a path under which name of the repository."""

    who: str | None
    secret: str | None
    name: str
    path: str


NOBODY = Person(None)


def answer(repository: Repository, person: Person, switches: Switches, asked: Question) -> bytes | str:
    """What DESIGN 3 says: the bytes, or the code of the refusal."""
    who = asked.who
    if who is not None and (person.disabled or person.secret != asked.secret):
        return "unauthenticated"
    if asked.name != repository.name:
        return "unauthenticated" if who is None else "not_found"
    if repository.status != "online":
        return f"repository_{repository.status}"
    if who is None and not switches.anonymous:
        return "unauthenticated"
    by_role = who in switches.holders
    if not (repository.public or by_role or repository.allows(who, asked.path)):
        if who is None:
            return "unauthenticated"
        return "forbidden" if repository.allows(who, None) else "not_found"
    if asked.path not in repository.files:
        return "not_found"
    return "quarantined" if asked.path in repository.held else repository.files[asked.path]


class Member:
    """A process and the states that it may still believe in, oldest first, the newest last."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.repositories: list[Repository] = []
        self.switches: list[Switches] = []
        self.people: dict[str, list[Person]] = {who: [] for who in PEOPLE}

    @property
    def subjects(self) -> Iterator[list[Any]]:
        return iter((self.repositories, self.switches, *self.people.values()))

    @property
    def knows_all(self) -> bool:
        return all(len(each) == 1 for each in self.subjects)

    def know_all(self) -> None:
        """It has heard of everything: the newest states alone."""
        for each in self.subjects:
            del each[:-1]

    def answers(self, asked: Question) -> set[bytes | str]:
        """What it may answer."""
        persons = [NOBODY] if asked.who is None else self.people[asked.who]
        return {answer(*states, asked) for states in itertools.product(self.repositories, persons, self.switches)}


def _then(states: list[Any], newest: Any, *, known: bool) -> None:
    if known:
        states[:] = [newest]
    elif newest != states[-1]:
        states.append(newest)


class Coherence(RuleBasedStateMachine):
    """Changes at the member whose turn it is (`at`); after each step every member is asked for everything."""

    houses: list[House]
    numbers = 0

    @initialize()
    def begin(self) -> None:
        Coherence.numbers += 1
        number = Coherence.numbers
        self.at = 0
        self.members = self._members()
        self.names = {name: f"{name}-{number}" for name in NAMES}
        self.who = {name: f"{name}-{number}" for name in PEOPLE}
        self.role = f"readers-{number}"
        self.token_ids: dict[str, int] = {}
        self.secrets: dict[str, str] = {}
        for each in self.who.values():
            self.house.user(each)
        self.people = {name: Person(self._new_token(name)) for name in PEOPLE}
        self.house.roles.create(ADMIN, self.role)
        self.house.roles.add_rule(ADMIN, self.role, NewRoleRule(["read"]))
        self.house.switchboard.change(ADMIN, SwitchChange(anonymous=True))
        self.switches = Switches()
        self.repository = Repository("first")
        self.rule_ids: list[int] = []
        self.house.repository(self.names["first"])
        self.waiting: list[_SlowReader] = []
        for member in self.members:
            self._start(member)

    def _members(self) -> list[Member]:
        return [Member(each) for each in self.houses]

    def _start(self, member: Member) -> None:
        """It has heard of everything up to now."""
        for states, newest in zip(member.subjects, self._newest(), strict=True):
            states[:] = [newest]

    def _newest(self) -> Iterator[Any]:
        return iter((self.repository, self.switches, *self.people.values()))

    @property
    def house(self) -> House:
        """Whose turn it is."""
        return self.members[self.at].house

    @property
    def name(self) -> str:
        return self.names[self.repository.name]

    def _new_token(self, who: str) -> str:
        token, secret = self.house.tokens.create(ADMIN, NewToken(f"of {who}", ("read", "write"), user=self.who[who]))
        self.token_ids[who], self.secrets[who] = token.id, secret
        return secret

    # -- what the model learns

    def _now(self, **changes: Any) -> None:
        """The repository was changed, by whose turn it is."""
        self.repository = Repository(**{**vars(self.repository), **changes})
        for member in self.members:
            _then(member.repositories, self.repository, known=member is self.members[self.at])

    def _switched(self, **changes: Any) -> None:
        self.switches = Switches(**{**vars(self.switches), **changes})
        for member in self.members:
            _then(member.switches, self.switches, known=member is self.members[self.at])

    def _person_now(self, who: str, **changes: Any) -> None:
        self.people[who] = Person(**{**vars(self.people[who]), **changes})
        for member in self.members:
            _then(member.people[who], self.people[who], known=member is self.members[self.at])

    # -- changes

    @rule(path=paths, body=bodies)
    def publish(self, path: str, body: bytes) -> None:
        self._write(lambda: self.house.publish(path, body, self.name), {**self.repository.files, path: body})

    @rule(path=paths)
    def delete(self, path: str) -> None:
        files = dict(self.repository.files)
        if files.pop(path, None) is not None:
            self._write(lambda: self.house.delete(path, self.name), files)

    def _write(self, change: Callable[[], Any], files: Mapping[str, bytes]) -> None:
        if self.repository.status == "online":
            change()
            self._now(files=files)
            return
        with pytest.raises(ArkvoryError):
            change()

    @rule(path=paths, held=st.booleans())
    def hold(self, path: str, held: bool) -> None:
        if held:
            self.house.quarantine.hold(ADMIN, self.name, path, "looks wrong")
            self._now(held=self.repository.held | {path})
        elif path in self.repository.held:
            self.house.quarantine.release(ADMIN, self.name, path)
            self._now(held=self.repository.held - {path})

    @rule(public=st.booleans())
    def set_public(self, public: bool) -> None:
        self.house.change(self.name, public=public)
        self._now(public=public)

    @rule(status=st.sampled_from(["online", "offline", "maintenance"]))
    def set_status(self, status: str) -> None:
        self.house.change(self.name, status=status)
        self._now(status=status)

    @rule(name=names)
    def rename(self, name: str) -> None:
        self.house.change(self.name, name=self.names[name])
        self._now(name=name)

    @rule(who=st.sampled_from([*PEOPLE, "signed-in", "anonymous"]), prefix=st.sampled_from([None, "d"]))
    def allow(self, who: str, prefix: str | None) -> None:
        subject = f"user:{self.who[who]}" if who in PEOPLE else who
        self.rule_ids.append(self.house.rule(self.name, subject, "read", prefix=prefix))
        self._now(rules=(*self.repository.rules, (who, prefix)))

    @rule(index=st.integers(0, 9))
    def forbid(self, index: int) -> None:
        rules = list(self.repository.rules)
        if rules:
            index %= len(rules)
            self.house.rules.delete(ADMIN, self.name, self.rule_ids.pop(index))
            del rules[index]
            self._now(rules=tuple(rules))

    @rule(who=people, disabled=st.booleans())
    def disable(self, who: str, disabled: bool) -> None:
        self.house.disable(self.who[who], disabled)
        self._person_now(who, disabled=disabled)

    @rule(who=people)
    def revoke_or_renew(self, who: str) -> None:
        if self.people[who].disabled:
            return
        if self.people[who].secret is None:
            self._person_now(who, secret=self._new_token(who))
        else:
            self.house.tokens.revoke(ADMIN, self.token_ids[who])
            self._person_now(who, secret=None)

    @rule(who=people, holds=st.booleans())
    def assign(self, who: str, holds: bool) -> None:
        change = self.house.roles.assign if holds else self.house.roles.unassign
        change(ADMIN, self.role, f"user:{self.who[who]}")
        self._switched(holders=self.switches.holders | {who} if holds else self.switches.holders - {who})

    @rule(anonymous=st.booleans())
    def let_in_anyone(self, anonymous: bool) -> None:
        self.house.switchboard.change(ADMIN, SwitchChange(anonymous=anonymous))
        self._switched(anonymous=anonymous)

    @rule()
    def remove_and_make_again(self) -> None:
        self.house.registry.delete(ADMIN, self.name)
        self.another_turn()
        self.house.repository(self.name)
        self.rule_ids = []
        self._now(files={}, rules=(), held=frozenset(), public=False, status="online")

    def another_turn(self) -> None:
        """Where there are others, one of them is next."""
        self.at = (self.at + 1) % len(self.members)

    @rule(path=paths, body=bodies)
    def roll_back(self, path: str, body: bytes) -> None:
        """C2: whatever fails before its COMMIT has not been."""
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("app.cache.changes.Transaction.before_commit", _fail)
            for change in (
                lambda: self.house.publish(path, body, self.name),
                lambda: self.house.change(self.name, public=not self.repository.public, status="online"),
            ):
                with pytest.raises((_Failure, ArkvoryError)):
                    change()

    @rule(arrived=st.booleans())
    def lose_an_answer(self, arrived: bool) -> None:
        """C2: the answer to COMMIT is lost, after it arrived or before."""
        commit = _Lost(arrived)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("sqlalchemy.Connection.commit", commit)
            try:
                self.house.change(self.name, public=not self.repository.public)
                self._now(public=not self.repository.public)
            except OutcomeUnknown:
                raise
            except ArkvoryError:
                assert not arrived

    @rule(region=st.sampled_from(["snapshots", "grants", "gates", "absences", "identities", "rows"]))
    def forget(self, region: str) -> None:
        """Whatever is evicted only costs time."""
        if region == "rows":
            self.house.rows("delete from arkvory_cache_rows")
        else:
            getattr(self.house.parts.cache, region).clear()

    # -- readers that are stopped in the middle

    @rule(who=st.sampled_from(EVERYONE), path=paths, where=st.sampled_from(sorted(STOPS)))
    def read_slowly(self, who: str | None, path: str, where: str) -> None:
        """Starts now, keeps what it read after whatever comes next (C3, C4)."""
        if len(self.waiting) >= 2:
            return
        parts = self.house.parts
        owner: Any = parts.reader if where == "gate" else parts.snapshots
        asked = self._question(who, path)
        with pytest.MonkeyPatch.context() as patched:
            stopped = Pause(getattr(owner, STOPS[where]), before=where == "filling")
            patched.setattr(owner, STOPS[where], stopped)
            parts.cache.gates.clear()
            if where != "gate":
                parts.cache.snapshots.clear()
            if where in {"snapshot", "filling"}:
                self.house.rows("delete from arkvory_cache_rows")
            reader = gevent.spawn(self.house.outcome, path, self.name, secret=asked.secret)
            gevent.wait([reader, stopped.there], count=1, timeout=10)
        self.waiting.append(_SlowReader(reader, stopped, asked, self.members[self.at]))
        self._note_what_readers_may_get()

    @rule()
    def let_readers_go(self) -> None:
        """C8: bytes that somebody gets were theirs at one moment at least between the beginning and the end."""
        self._note_what_readers_may_get()
        for each in self.waiting:
            each.stopped.go()
            got = each.greenlet.get(timeout=10)
            assert isinstance(got, str) or got in each.allowed, f"{each.asked} got {got!r}, never allowed: {each.allowed}"
        self.waiting = []

    @rule(
        who=st.sampled_from(EVERYONE), path=paths, where=st.sampled_from(sorted(STOPS)), body=bodies, public=st.booleans(),
        by_role=st.booleans(), change=st.sampled_from(CHANGES),
    )  # fmt: skip
    def change_under_a_reader(
        self, who: str | None, path: str, where: str, body: bytes, public: bool, by_role: bool, change: str
    ) -> None:
        """A change, then something new that only those may see who still can, while a reader stands between two steps."""
        self.let_readers_go()
        self._let_in(who, path, public=public, by_role=by_role)
        self.everyone_gets_what_the_model_says()
        self.read_slowly(who, path, where)
        self.another_turn()
        self._close(change, who or "ann", path)
        self._note_what_readers_may_get()
        self.publish(path, b"after the change: " + body)
        if change == "offline":
            self.set_status("offline")
        self._note_what_readers_may_get()
        self.everyone_gets_what_the_model_says()
        self.let_readers_go()

    def _let_in(self, who: str | None, path: str, *, public: bool, by_role: bool) -> None:
        """By the public flag, by the role, or by a rule."""
        self.set_status("online")
        self.set_public(public)
        if who is None:
            self.let_in_anyone(True)
        else:
            self.disable(who, False)
            if self.people[who].secret is None:
                self.revoke_or_renew(who)
            if by_role:
                self.assign(who, True)
        if not public and not (by_role and who is not None) and not self.repository.allows(who, path):
            self.allow(who or "anonymous", None)

    def _close(self, change: str, person: str, path: str) -> None:
        {
            "publish": lambda: None, "close": lambda: self.set_public(False), "forbid": self._forbid_all,
            "disable": lambda: self.disable(person, True), "revoke": lambda: self.revoke_or_renew(person),
            "rename": lambda: self.rename(NAMES[1 - NAMES.index(self.repository.name)]), "again": self.remove_and_make_again,
            "offline": lambda: None, "hold": lambda: self.hold(path, True), "unassign": lambda: self.assign(person, False),
            "anonymous": lambda: self.let_in_anyone(False),
        }[change]()  # fmt: skip

    def _forbid_all(self) -> None:
        for _ in range(len(self.repository.rules)):
            self.forbid(0)

    def _note_what_readers_may_get(self) -> None:
        for each in self.waiting:
            each.allowed |= each.member.answers(each.asked)

    def teardown(self) -> None:
        if hasattr(self, "waiting"):
            self.let_readers_go()

    # -- what must be true

    @invariant()
    def everyone_gets_what_the_model_says(self) -> None:
        if not hasattr(self, "repository"):
            return
        self._note_what_readers_may_get()
        for number, member in enumerate(self.members):
            for path in PATHS:
                for who in EVERYONE:
                    self._ask(number, member, self._question(who, path))
        other = self.names[NAMES[1 - NAMES.index(self.repository.name)]]
        assert self.house.outcome("a", other) in self.members[self.at].answers(Question(None, None, self._other_name, "a"))

    @property
    def _other_name(self) -> str:
        return NAMES[1 - NAMES.index(self.repository.name)]

    def _question(self, who: str | None, path: str) -> Question:
        """Under the name of now, with the last secret, whether it still works or not."""
        return Question(who, None if who is None else self.secrets[who], self.repository.name, path)

    def _ask(self, number: int, member: Member, asked: Question) -> None:
        allowed = member.answers(asked)
        for attempt in ("first", "warm") if number == self.at else ("once",):
            got = member.house.outcome(asked.path, self.names[asked.name], secret=asked.secret)
            assert got in allowed, f"member {number}, {asked}, {attempt}: {got!r} instead of {allowed!r}"


@dataclass
class _SlowReader:
    greenlet: Any
    stopped: Pause
    asked: Question
    member: Member
    allowed: set[Any] = field(default_factory=set)


class _Failure(Exception):
    pass


def _fail(*_: Any) -> None:
    raise _Failure


class _Lost:
    """In place of `Connection.commit`: the first one breaks its connection."""

    def __init__(self, arrived: bool) -> None:
        from sqlalchemy import Connection

        self._commit = Connection.commit
        self._arrived = arrived
        self._armed = True

    def __get__(self, connection: Any, _kind: type) -> Any:
        return lambda: self._lose(connection)

    def _lose(self, connection: Any) -> None:
        import psycopg2
        from sqlalchemy.exc import OperationalError

        if not self._armed:
            self._commit(connection)
            return
        self._armed = False
        if self._arrived:
            self._commit(connection)
        else:
            connection.rollback()
        raise OperationalError("COMMIT", {}, psycopg2.OperationalError("server closed the connection"), connection_invalidated=True)
