"""Several processes that must agree, by the model of `coherence.py`, with everything that can go wrong between them.

Each member is a house with a mailbox and a loop that does not run: the machine takes its turns by hand, and moves the loops' clock.

- Who wrote knows at once. The others know after their next poll, when their mail was left alone.
- When mail was lost, held back or rejected, or never sent since the heartbeat was old, they know after a probe.
- When the clock says that poll or probe lie too far back, they know in their next read (M6).
- The probe corrects nothing of a process whose mail was left alone (M5).
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any

import gevent
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from app.cluster import loop as loops
from tests.support.coherence import CHANGES, EVERYONE, Coherence, Member, bodies, paths
from tests.support.house import House
from tests.support.pauses import Pause

MEMBERS = 3
members = st.integers(0, MEMBERS - 1)


class Clock:
    """Stands in for the loops' clock."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


class Peer(Member):
    """A member with what the machine has done to it."""

    def __init__(self, house: House, clock: Clock) -> None:
        super().__init__(house)
        self.clock = clock
        # It takes no turns: what it knows grows old.
        self.paused = False
        # Its mail was left alone since it last knew everything.
        self.hears_all = True
        self.silent = False
        self.corrections = house.loop.corrections

    @property
    def loop(self) -> loops.Loop:
        return self.house.loop

    @property
    def is_outdated(self) -> bool:
        """M6: whoever reads compares first. Being told that something is so already was a probe too."""
        now = self.clock()
        return now - self.loop.last_poll >= loops.OLDEST_POLL_SECONDS or now - self.loop.last_probe >= loops.OLDEST_PROBE_SECONDS

    def begin(self) -> None:
        """A new example: as just born."""
        self.loop._turn_of(self.loop._begin_anew)
        self._has_begun_anew()

    def _has_begun_anew(self) -> None:
        self.paused = self.silent = False
        self.hears_all = True
        self.corrections = self.loop.corrections

    def poll(self) -> None:
        assert self.loop._turn_of(self.loop._poll)
        if self.hears_all:
            self.know_all()

    def probe(self) -> None:
        assert self.loop._turn_of(self.loop._probe)
        self.has_probed()

    def has_probed(self) -> None:
        if self.hears_all:
            assert self.loop.corrections == self.corrections, "the probe told what no message had"
        self.corrections = self.loop.corrections
        self.know_all()
        self.hears_all = not self.silent

    def beat(self) -> None:
        before = self.loop.incarnations
        assert self.loop._turn_of(self.loop._beat)
        assert (self.loop.incarnations > before) == self.silent
        if self.silent:
            self._has_begun_anew()
            self.know_all()


class Agreement(Coherence):
    """Turns go round; so do polls, except at members that are paused."""

    clock: Clock
    # Another process in place of that one.
    replace: Callable[[int], House]
    members: list[Any]

    @initialize()
    def begin(self) -> None:
        # What was sent before this example is no concern of it.
        self.houses[0].rows("delete from arkvory_mail")
        peers = [Peer(each, self.clock) for each in self.houses]
        for each in peers:
            each.begin()
        self._peers = peers
        self.letters: list[str] = []
        super().begin()
        for each in peers:
            each.poll()

    def _members(self) -> list[Member]:
        return list(self._peers)

    @property
    def peers(self) -> list[Peer]:
        return self.members

    # -- turns

    @rule(member=members)
    def take_over(self, member: int) -> None:
        self.at = member

    @rule(member=members)
    def pause(self, member: int) -> None:
        self.peers[member].paused = True

    @rule(member=members)
    def go_on(self, member: int) -> None:
        self.peers[member].paused = False
        self.peers[member].poll()

    @rule(member=members)
    def probe(self, member: int) -> None:
        self.peers[member].probe()

    @rule(member=members)
    def beat(self, member: int) -> None:
        self.peers[member].beat()

    @rule(seconds=st.sampled_from([3, 4.9, 7]))
    def let_time_pass(self, seconds: float) -> None:
        self.clock.seconds += seconds

    @invariant()
    def everyone_gets_what_the_model_says(self) -> None:
        if hasattr(self, "repository"):
            self._keep_alive()
            self._remember_letters()
            for each in self.peers:
                if not each.paused:
                    each.poll()
            super().everyone_gets_what_the_model_says()
            self.another_turn()

    def _ask(self, number: int, member: Any, asked: Any) -> None:
        if member.is_outdated:
            # The read itself compares.
            member.house.outcome(asked.path, self.names[asked.name], secret=asked.secret)
            assert member.loop.last_probe == self.clock.seconds, "it believed its memory"
            member.has_probed()
        super()._ask(number, member, asked)

    def _keep_alive(self) -> None:
        """The clock of heartbeats is the database's: nobody grows old by the time that a test takes."""
        ids = [each.loop.instance_id for each in self.peers if not each.silent]
        self.house.rows("update arkvory_instances set heartbeat_at = clock_timestamp() where id = any(:ids)", ids=ids)

    # -- mail

    def _remember_letters(self) -> None:
        rows = self.house.rows("select distinct body::text from arkvory_mail order by 1 limit 20")
        self.letters = sorted({*self.letters, *(row[0] for row in rows)})[-60:]

    @rule(member=members)
    def lose_mail(self, member: int) -> None:
        peer = self.peers[member]
        if self.house.rows("delete from arkvory_mail where instance_id = :id returning 1", id=peer.loop.instance_id):
            peer.hears_all = False

    @rule(member=members, seed=st.integers(0, 99))
    def lose_some_and_shuffle(self, member: int, seed: int) -> None:
        """What is left comes in another order, twice."""
        peer = self.peers[member]
        rows = self.house.rows("delete from arkvory_mail where instance_id = :id returning body::text", id=peer.loop.instance_id)
        letters = [row[0] for row in rows] * 2
        random.Random(seed).shuffle(letters)
        self._send(peer, letters[: len(letters) - seed % 3])
        peer.hears_all = peer.hears_all and set(letters[: len(letters) - seed % 3]) == set(letters)

    @rule(member=members, seed=st.integers(0, 99))
    def repeat_old_letters(self, member: int, seed: int) -> None:
        self._send(self.peers[member], random.Random(seed).sample(self.letters, min(5, len(self.letters))))

    @rule(member=members, body=st.sampled_from(["{}", "[]", "null", '{"repository": 1}', '{"users": [[1]], "installation": null}']))
    def send_nonsense(self, member: int, body: str) -> None:
        """M3: it goes its own way, and holds up nothing."""
        self._send(self.peers[member], [body])

    def _send(self, peer: Peer, letters: list[str]) -> None:
        for body in letters:
            self.house.rows(
                "insert into arkvory_mail (instance_id, body) values (:id, cast(:body as jsonb))", id=peer.loop.instance_id, body=body
            )

    @rule(member=members)
    def reject_everything_once(self, member: int) -> None:
        """M3: what failed is tried again later; until then the probe tells."""
        peer = self.peers[member]
        if not self.house.value("select count(*) from arkvory_mail where instance_id = :id", id=peer.loop.instance_id):
            return
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(peer.loop._listener, "hear", _reject)
            peer.hears_all = False
            peer.poll()

    # -- membership

    @rule(member=members)
    def fall_silent(self, member: int) -> None:
        """M4: whoever was not heard of for 30 s gets no mail."""
        peer = self.peers[member]
        peer.silent, peer.hears_all = True, False
        self.house.rows(
            "update arkvory_instances set heartbeat_at = clock_timestamp() - interval '31 s' where id = :id", id=peer.loop.instance_id
        )

    @rule(member=members, change=st.sampled_from(CHANGES), body=bodies, path=paths)
    def change_across_a_registration(self, member: int, change: str, body: bytes, path: str) -> None:
        """M7: the sender posted before the other registered, and commits after it has read."""
        if self.at == member or change in {"again", "offline"} or self.repository.status != "online":
            return
        self.everyone_gets_what_the_model_says()
        if self.at == member:
            self.another_turn()
        peer, sender = self.peers[member], self.house.parts.transactions
        with pytest.MonkeyPatch.context() as patched:
            stopped = Pause(sender._commit, before=True)
            patched.setattr(sender, "_commit", stopped)
            known = self._states()
            changing = gevent.spawn(self.publish, path, body) if change == "publish" else gevent.spawn(self._close, change, "ann", path)
            gevent.wait([changing, stopped.there], count=1, timeout=10)
            peer.loop._turn_of(peer.loop._begin_anew)
            peer._has_begun_anew()
            if not changing.ready():
                assert not peer.loop.keeps
            peer.know_all()
            assert changing.ready() or known == self._states()
            self._read_all(member)
            stopped.go()
            changing.get(timeout=10)
        # In its next read, without any mail.
        peer.know_all()
        self._read_all(member)
        peer.poll()
        assert peer.loop.keeps

    def _states(self) -> list[Any]:
        return list(self._newest())

    def _read_all(self, member: int) -> None:
        for path in ("a", "d/b"):
            for who in EVERYONE:
                self._ask(member, self.members[member], self._question(who, path))

    # -- deaths

    @rule(change=st.sampled_from(CHANGES), body=bodies, path=paths)
    def die_behind_the_commit(self, change: str, body: bytes, path: str) -> None:
        """Committed, and nobody invalidated anything here: the process is gone, the others have their mail."""
        if self.at == 0 or self.waiting or self.repository.status != "online" or change in {"again", "offline"}:
            return
        dying = self.house
        with pytest.MonkeyPatch.context() as patched:
            died = _Death(dying.parts.cache.apply)
            patched.setattr(dying.parts.cache, "apply", died)
            with contextlib.suppress(_Killed):
                self.publish(path, body) if change == "publish" else self._close(change, "ann", path)
            if died.happened:
                self._learn_what_was_committed(change, path, body)
        self._make_another()

    def _learn_what_was_committed(self, change: str, path: str, body: bytes) -> None:
        """What the machine would have noted behind the call that did not return."""
        notes: dict[str, Callable[[], None]] = {
            "publish": lambda: self._now(files={**self.repository.files, path: body}),
            "close": lambda: self._now(public=False),
            "forbid": lambda: self._now(rules=self.repository.rules[1:]),
            "disable": lambda: self._person_now("ann", disabled=True),
            "revoke": self._learn_of_the_token,
            "rename": lambda: self._now(name=self._other_name),
            "hold": lambda: self._now(held=self.repository.held | {path}),
            "unassign": lambda: self._switched(holders=self.switches.holders - {"ann"}),
            "anonymous": lambda: self._switched(anonymous=False),
        }
        notes[change]()

    def _learn_of_the_token(self) -> None:
        assert self.people["ann"].secret is not None, "making a token changes nothing that is cached"
        self._person_now("ann", secret=None)

    @rule()
    def die_between_reading_and_filling_a_row(self) -> None:
        """C4: nothing is left behind that anybody would use."""
        if self.at == 0 or self.waiting:
            return
        dying = self.house
        dying.rows("delete from arkvory_cache_rows")
        dying.parts.cache.snapshots.clear()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(dying.parts.snapshots, "_write_row", _Death(dying.parts.snapshots._write_row))
            with pytest.raises(_Killed):
                dying.outcome("a", self.name)
        self._make_another()

    def _make_another(self) -> None:
        """Another process takes its slot; its mailbox stays behind unread."""
        successor = Peer(self.replace(self.at), self.clock)
        self.members[self.at] = successor
        successor.begin()
        self._start(successor)


def _reject(_: Any) -> None:
    raise RuntimeError("this mailbox rejects")


class _Killed(BaseException):
    pass


class _Death:
    """In place of a function: who calls it is no more."""

    def __init__(self, _: Any) -> None:
        self.happened = False

    def __call__(self, *_: Any) -> None:
        self.happened = True
        raise _Killed


def stand(house: House, number: int) -> House:
    """Registered, with a loop that takes no turns by itself."""
    house.loop.start(lambda: ("here", number))
    house.loop._greenlet.kill()  # type: ignore[union-attr]
    return house
