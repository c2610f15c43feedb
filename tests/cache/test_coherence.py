"""C1 to C8 against a model: after any sequence of changes, everyone gets exactly what the model says, warm or cold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gevent
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from app.errors import ArkvoryError, OutcomeUnknown
from tests.conftest import NewDatabase
from tests.support.house import ADMIN, House
from tests.support.pauses import Pause

PATHS = ("a", "d/b", "d/c")
NAMES = ("first", "second")
PEOPLE = ("ann", "bob")
EVERYONE = (None, *PEOPLE)

paths, names, people = st.sampled_from(PATHS), st.sampled_from(NAMES), st.sampled_from(PEOPLE)
bodies = st.binary(min_size=1, max_size=4)


class Coherence(RuleBasedStateMachine):
    """The model is one repository with its files, flags and rules, and two people with a token each."""

    house: House
    numbers = 0

    @initialize()
    def begin(self) -> None:
        Coherence.numbers += 1
        number = Coherence.numbers
        self.names = {name: f"{name}-{number}" for name in NAMES}
        self.people = {name: f"{name}-{number}" for name in PEOPLE}
        for each in self.people.values():
            self.house.user(each)
        self.secrets: dict[str, str | None] = {name: self.house.token(each) for name, each in self.people.items()}
        self.name = "first"
        self.id = self.house.repository(self.names["first"])
        self.files: dict[str, bytes] = {}
        self.public = False
        self.status = "online"
        self.rules: dict[int, tuple[str, str | None]] = {}
        self.disabled: set[str] = set()
        self.waiting: list[_SlowReader] = []

    # -- changes

    @rule(path=paths, body=bodies)
    def publish(self, path: str, body: bytes) -> None:
        self._write(lambda: self.house.publish(path, body, self.names[self.name]), lambda: self.files.__setitem__(path, body))

    @rule(path=paths)
    def delete(self, path: str) -> None:
        if path in self.files:
            self._write(lambda: self.house.delete(path, self.names[self.name]), lambda: self.files.pop(path))

    @rule(public=st.booleans())
    def set_public(self, public: bool) -> None:
        self.house.change(self.names[self.name], public=public)
        self.public = public

    @rule(status=st.sampled_from(["online", "offline", "maintenance"]))
    def set_status(self, status: str) -> None:
        self.house.change(self.names[self.name], status=status)
        self.status = status

    @rule(name=names)
    def rename(self, name: str) -> None:
        self.house.change(self.names[self.name], name=self.names[name])
        self.name = name

    @rule(who=st.sampled_from([*PEOPLE, "signed-in", "anonymous"]), prefix=st.sampled_from([None, "d"]))
    def allow(self, who: str, prefix: str | None) -> None:
        subject = f"user:{self.people[who]}" if who in PEOPLE else who
        made = self.house.rule(self.names[self.name], subject, "read", prefix=prefix)
        self.rules[made] = (who, prefix)

    @rule(index=st.integers(0, 9))
    def forbid(self, index: int) -> None:
        if self.rules:
            chosen = sorted(self.rules)[index % len(self.rules)]
            self.house.rules.delete(ADMIN, self.names[self.name], chosen)
            del self.rules[chosen]

    @rule(who=people, disabled=st.booleans())
    def disable(self, who: str, disabled: bool) -> None:
        self.house.disable(self.people[who], disabled)
        (self.disabled.add if disabled else self.disabled.discard)(who)

    @rule(who=people)
    def revoke_or_renew(self, who: str) -> None:
        if who in self.disabled:
            return
        if self.secrets[who] is None:
            self.secrets[who] = self.house.token(self.people[who])
            return
        caller = self.house.identify(self.secrets[who])
        assert caller.identity is not None and caller.identity.token is not None
        self.house.tokens.revoke(caller, caller.identity.token.id)
        self.revoked = self.secrets[who]
        self.secrets[who] = None

    @rule()
    def remove_and_make_again(self) -> None:
        self.house.registry.delete(ADMIN, self.names[self.name])
        self.id = self.house.repository(self.names[self.name])
        self.files, self.rules, self.public, self.status = {}, {}, False, "online"

    @rule(path=paths, body=bodies)
    def roll_back(self, path: str, body: bytes) -> None:
        """C2: whatever fails before its COMMIT has not been."""
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("app.cache.changes.Transaction.before_commit", _fail)
            for change in (
                lambda: self.house.publish(path, body, self.names[self.name]),
                lambda: self.house.change(self.names[self.name], public=not self.public, status="online"),
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
                self.house.change(self.names[self.name], public=not self.public)
                self.public = not self.public
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

    @rule(who=st.sampled_from(EVERYONE), path=paths, where=st.sampled_from(["snapshot", "gate", "row"]))
    def read_slowly(self, who: str | None, path: str, where: str) -> None:
        """Starts now, keeps what it read after whatever comes next (C3)."""
        if len(self.waiting) >= 2:
            return
        owner: Any = self.house.parts.reader if where == "gate" else self.house.parts.snapshots
        name = {"snapshot": "_from_repository", "gate": "_load_gate", "row": "_from_row"}[where]
        with pytest.MonkeyPatch.context() as patched:
            stopped = Pause(getattr(owner, name))
            patched.setattr(owner, name, stopped)
            self.house.parts.cache.gates.clear()
            if where != "gate":
                self.house.parts.cache.snapshots.clear()
            if where == "snapshot":
                self.house.rows("delete from arkvory_cache_rows")
            reader = gevent.spawn(self.house.outcome, path, self.names[self.name], secret=self._secret(who))
            gevent.wait([reader, stopped.there], count=1, timeout=10)
        self.waiting.append(_SlowReader(reader, stopped, who, self._secret(who), self.name, path))
        self._note_what_readers_may_get()

    @rule()
    def let_readers_go(self) -> None:
        """C8: bytes that somebody gets were his at one moment at least between the beginning and the end."""
        for each in self.waiting:
            each.stopped.go()
            got = each.greenlet.get(timeout=10)
            assert isinstance(got, str) or got in each.allowed, f"{each.who} at {each.path} got {got!r}, never allowed: {each.allowed}"
        self.waiting = []

    @rule(
        who=st.sampled_from(EVERYONE), path=paths, where=st.sampled_from(["row", "snapshot", "gate"]), body=bodies, public=st.booleans(),
        change=st.sampled_from(["publish", "close", "forbid", "disable", "revoke", "rename", "again", "offline"]),
    )  # fmt: skip
    def change_under_a_reader(self, who: str | None, path: str, where: str, body: bytes, public: bool, change: str) -> None:
        """A change, then something new that only those may see who still can, while a reader stands between two steps."""
        self.let_readers_go()
        self.set_status("online")
        self.set_public(public)
        if not public and not self._allowed(who, path):
            self.allow(who or "anonymous", None)
        if who in self.disabled:
            self.disable(who, False)
        if who is not None and self.secrets[who] is None:
            self.revoke_or_renew(who)
        self.everyone_gets_what_the_model_says()
        self.read_slowly(who, path, where)
        person = who or "ann"
        {
            "publish": lambda: None, "close": lambda: self.set_public(False), "forbid": lambda: self._forbid_all(),
            "disable": lambda: self.disable(person, True), "revoke": lambda: self.revoke_or_renew(person),
            "rename": lambda: self.rename(NAMES[1 - NAMES.index(self.name)]), "again": self.remove_and_make_again,
            "offline": lambda: None,
        }[change]()  # fmt: skip
        self._note_what_readers_may_get()
        self.publish(path, b"after the change: " + body)
        if change == "offline":
            self.set_status("offline")
        self._note_what_readers_may_get()
        self.everyone_gets_what_the_model_says()
        self.let_readers_go()

    def _forbid_all(self) -> None:
        for _ in range(len(self.rules)):
            self.forbid(0)

    def _note_what_readers_may_get(self) -> None:
        for each in self.waiting:
            if each.name == self.name and (each.who is None or each.secret == self.secrets[each.who]):
                each.allowed.add(self._expected(each.who, each.path))

    def teardown(self) -> None:
        if hasattr(self, "waiting"):
            self.let_readers_go()

    # -- what must be true

    @invariant()
    def everyone_gets_what_the_model_says(self) -> None:
        if not hasattr(self, "files"):
            return
        self._note_what_readers_may_get()
        for path in PATHS:
            for who in EVERYONE:
                expected = self._expected(who, path)
                for attempt in ("first", "warm"):
                    got = self.house.outcome(path, self.names[self.name], secret=self._secret(who))
                    assert got == expected, f"{who} at {path}, {attempt}: {got!r} instead of {expected!r}"
        other = self.names[NAMES[1 - NAMES.index(self.name)]]
        assert self.house.outcome("a", other) == "unauthenticated"

    def _secret(self, who: str | None) -> str | None:
        return None if who is None else self.secrets[who] or "arkv_gone"

    def _expected(self, who: str | None, path: str) -> Any:
        if who is not None and (who in self.disabled or self.secrets[who] is None):
            return "unauthenticated"
        if self.status != "online":
            return f"repository_{self.status}"
        if not self.public and not self._allowed(who, path):
            if who is None:
                return "unauthenticated"
            return "forbidden" if self._allowed(who, None) else "not_found"
        return self.files.get(path, "not_found")

    def _allowed(self, who: str | None, path: str | None) -> bool:
        return any(
            (subject == who or subject == "anonymous" or (subject == "signed-in" and who is not None))
            and (prefix is None or path is None or path.startswith(f"{prefix}/"))
            for subject, prefix in self.rules.values()
        )

    def _write(self, change: Any, learn: Any) -> None:
        self._note_what_readers_may_get()
        if self.status == "online":
            change()
            learn()
            return
        with pytest.raises(ArkvoryError):
            change()


@dataclass
class _SlowReader:
    greenlet: Any
    stopped: Pause
    who: str | None
    secret: str | None
    name: str
    path: str
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


def test_everyone_gets_exactly_what_the_model_says_whatever_happens(
    template: str, new_database: NewDatabase, tmp_path_factory: pytest.TempPathFactory
) -> None:
    Coherence.house = House(new_database(template), tmp_path_factory.mktemp("coherence"), ARKVORY_BLOB_GRACE_SECONDS="3600")
    try:
        run_state_machine_as_test(Coherence, settings=settings(max_examples=25, stateful_step_count=20, deadline=None))
    finally:
        Coherence.house.close()
