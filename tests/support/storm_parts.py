"""Clients of the storm that send files in parts (ADR 12), and what may become of those while everything is killed.

What was answered is there: a part with the bytes that it was sent with, and of a whole that is to be completed exactly one end, which comes
by itself. An upload that rests is there as long as its session lasts, and no longer.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import time
from dataclasses import dataclass, field
from typing import Any

import gevent

from tests.support.storm import Answer, Line, RawClient, Thing, World, sha256

# Longer than a part whose request never said how it ended is kept for it.
SESSION_SECONDS = 30.0
# Above it the end of an upload is not waited for.
AT_ONCE_BYTES = 200_000
SLACK_SECONDS = 4.0
END_SECONDS = 150.0
LEAST_PART = 1_000
LINES = 3
MOST_LEFT = 8
SETTINGS = {
    "ARKVORY_LEAST_PART_BYTES": str(LEAST_PART),
    "ARKVORY_COMPLETE_AT_ONCE_BYTES": str(AT_ONCE_BYTES),
    "ARKVORY_UPLOAD_SESSION_SECONDS": str(SESSION_SECONDS),
}


@dataclass
class Sending:
    """An upload that was begun. `taken` are the digests of parts by number, as they were answered; `renewed` and `tried` are moments."""

    thing: Thing
    body: bytes
    part: int
    id: str
    renewed: float
    tried: float
    taken: dict[int, str] = field(default_factory=dict)
    # What else a part may hold: bytes that were sent before others.
    others: dict[int, set[str]] = field(default_factory=dict)
    # Parts of which a request was broken off, that the server may read after the one that came later.
    broken_off: set[int] = field(default_factory=set)
    gone: bool = False

    @property
    def numbers(self) -> range:
        return range(1, -(-len(self.body) // self.part) + 1)

    def bytes_of(self, number: int) -> bytes:
        return self.body[(number - 1) * self.part : number * self.part]


class PartsClient(RawClient):
    """Few paths, written again and again: in any order of their parts, over several connections; some are left for later, or for good."""

    repository = "storm-parts"

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number)
        self.lines = [Line(world) for _ in range(LINES)]
        self.left: list[Sending] = []
        self._actions |= {self.go_on: 2, self.cancel: 1, self.look_for_expired: 1}

    @property
    def uploads(self) -> str:
        return f"/api/v1/repositories/{self.repository}/uploads"

    def _ask(self, method: str, path: str, document: Any = None, **headers: str) -> Answer | None:
        body = b"" if document is None else json.dumps(document).encode()
        return self.line.ask(method, f"{self.uploads}{path}", body, Content_Type="application/json", **headers)

    def _fault(self, sending: Sending, words: str) -> None:
        self.world.fault(f"upload {sending.id} of {sending.thing.path}: {words}")

    # -- what is done

    def store(self) -> None:
        sending = self._begin() if len(self.left) < MOST_LEFT else None
        if sending is not None:
            self.left.append(sending)
            self._go_on(sending)

    def go_on(self) -> None:
        """With one that was left, whatever happened meanwhile."""
        if self.left:
            self._go_on(self.random.choice(self.left))

    def cancel(self) -> None:
        if self.left:
            sending = self.left.pop(self.random.randrange(len(self.left)))
            answer = self._ask("DELETE", f"/{sending.id}")
            if answer is not None and answer.status == 404:
                self._check_gone(sending)
            elif answer is not None and not answer.is_later and answer.status != 204:
                self._fault(sending, f"cancelled it is answered by {answer.status} {answer.body[:200]!r}")

    def look_for_expired(self) -> None:
        """What rested for so long is there no more."""
        for sending in [each for each in self.left if time.monotonic() > each.tried + SESSION_SECONDS + SLACK_SECONDS]:
            answer = self._ask("GET", f"/{sending.id}")
            if answer is None or answer.is_later:
                continue
            self.left.remove(sending)
            self.world.done["parts expired"] += 1
            if answer.status != 404:
                self._fault(sending, f"it is there still: {answer.status} {answer.body[:300]!r}")

    def finish(self) -> None:
        for each in self.lines:
            each.hang_up()

    # -- beginning

    def _begin(self) -> Sending | None:
        thing, body = self.random.choice(self.things), self.body()
        part = max(LEAST_PART, self.random.choice((len(body) // 2, len(body) // 7, len(body) // 23, 1_000_000)))
        told = not body or self.random.random() < 0.7
        key = os.urandom(8).hex() if self.random.random() < 0.5 else None
        document = {
            "path": thing.path, "part_size": part, "size": len(body) if told else None,
            "sha256": sha256(body) if self.random.random() < 0.5 else None,
        }  # fmt: skip
        began = time.monotonic()
        for _ in range(3):
            answer = self._ask("POST", "", document, **({} if key is None else {"Idempotency_Key": key}))
            if answer is not None and answer.status in (200, 201):
                now = time.monotonic()
                # With 200 it is there since one of the former requests.
                return Sending(thing, body, part, json.loads(answer.body)["id"], now if answer.status == 201 else began, now)
            if answer is not None and not answer.is_later:
                self.world.fault(f"an upload of {thing.path} was refused: {answer.status} {answer.body[:200]!r}")
                return None
            if key is None:
                # Another one: this one may be there, and is nobody's.
                return None
            gevent.sleep(0.2)
        return None

    # -- going on

    def _go_on(self, sending: Sending) -> None:
        rests = self.random.random() < 0.25
        for _ in range(4):
            missing = self._missing(sending)
            if missing is None:
                break
            if not missing:
                if rests and self.random.random() < 0.5:
                    break
                if self._complete(sending):
                    self.left.remove(sending)
                break
            self.random.shuffle(missing)
            if rests:
                del missing[self.random.randrange(len(missing)) :]
            shares = [missing[number::LINES] for number in range(LINES)]
            gevent.joinall([gevent.spawn(self._send_all, sending, line, each) for line, each in zip(self.lines, shares, strict=True)])
            if rests:
                break
        if sending.gone and sending in self.left:
            self.left.remove(sending)

    def _missing(self, sending: Sending) -> list[int] | None:
        """Numbers of parts that are not there with the bytes that they are to have. Null when nobody could tell."""
        there: dict[int, str] = {}
        cursor = ""
        while True:
            # Not `tried`: to look at an upload does not keep it.
            answer = self._ask("GET", f"/{sending.id}/parts?limit=1000{cursor}")
            if answer is None or answer.is_later:
                return None
            if answer.status == 404:
                self._check_gone(sending)
                return None
            page = json.loads(answer.body)
            there |= {each["number"]: each["sha256"] for each in page["items"]}
            if page["next"] is None:
                break
            cursor = f"&cursor={page['next']}"
        lost = {number for number, digest in sending.taken.items() if there.get(number) != digest}
        self.world.done["parts taken away by a request that was broken off"] += len(lost & sending.broken_off)
        if lost - sending.broken_off:
            self._fault(sending, f"parts {sorted(lost - sending.broken_off)[:5]} were taken, and are not there so")
        right = {number: sha256(sending.bytes_of(number)) for number in sending.numbers}
        for number in lost:
            del sending.taken[number]
        wrong = {number for number, digest in there.items() if digest not in {right.get(number), *sending.others.get(number, ())}}
        if wrong:
            self._fault(sending, f"parts {sorted(wrong)[:5]} hold what nobody sent")
        return [number for number in sending.numbers if there.get(number) != right[number]]

    def _send_all(self, sending: Sending, line: Line, numbers: list[int]) -> None:
        for number in numbers:
            if sending.gone or self.world.is_over:
                return
            body, chance = sending.bytes_of(number), self.random.random()
            if chance < 0.1:
                other = os.urandom(len(body))
                sending.others.setdefault(number, set()).add(sha256(other))
                self._send(sending, line, number, other, sha256(other))
            elif chance < 0.15:
                self._send(sending, line, number, body, "0" * 64)
            elif chance < 0.2:
                self._break_off(sending, number, body)
            self._send(sending, line, number, body, sha256(body) if self.random.random() < 0.7 else None)

    def _send(self, sending: Sending, line: Line, number: int, body: bytes, digest: str | None) -> None:
        wrong = digest == "0" * 64
        sending.taken.pop(number, None)
        headers = {} if digest is None else {"X_Checksum_Sha256": digest}
        answer = line.ask("PUT", f"{self.uploads}/{sending.id}/parts/{number}", body, **headers)
        sending.tried = time.monotonic()
        self.world.done["parts sent"] += 1
        if answer is None or answer.is_later:
            gevent.sleep(0.2)
        elif answer.status == 200 and not wrong:
            sending.renewed = sending.tried
            sending.taken[number] = sha256(body)
            if json.loads(answer.body)["sha256"] != sha256(body):
                self._fault(sending, f"part {number} was taken as other bytes: {answer.body!r}")
        elif answer.status == 404:
            self._check_gone(sending)
        elif not (wrong and answer.status in (400, 422)):
            self._fault(sending, f"part {number} was answered by {answer.status} {answer.body[:200]!r}")

    def _break_off(self, sending: Sending, number: int, body: bytes) -> None:
        """In the midst of a part."""
        sending.taken.pop(number, None)
        sending.broken_off.add(number)
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", self.world.server.port, timeout=10)
            with contextlib.closing(connection):
                connection.putrequest("PUT", f"{self.uploads}/{sending.id}/parts/{number}")
                connection.putheader("Authorization", self.world.authorization)
                connection.putheader("Content-Length", str(len(body)))
                connection.endheaders()
                connection.send(body[: len(body) // 2])
        sending.tried = time.monotonic()

    def _check_gone(self, sending: Sending) -> None:
        sending.gone = True
        if time.monotonic() < sending.renewed + SESSION_SECONDS - SLACK_SECONDS:
            self._fault(sending, "it is unknown, and did not rest so long")

    # -- ending

    def _complete(self, sending: Sending) -> bool:
        """Whether it has ended; else parts of it are to come again. The path's bytes are known afterwards."""
        thing, before = sending.thing, set(sending.thing.bodies)
        thing.bodies.add(sha256(sending.body))
        if self.random.random() < 0.1:
            gevent.spawn(self._complete_beside, sending)
        end = self._end_of(sending)
        if end in ("failed", "sent back", "gone"):
            thing.bodies = before
        return end != "sent back"

    def _end_of(self, sending: Sending) -> str:
        """Ask for it until it is told."""
        told = {"sha256": sha256(sending.body) if self.random.random() < 0.5 else None}
        deadline, asks = time.monotonic() + END_SECONDS, True
        while time.monotonic() < deadline:
            answer = self._ask("POST", f"/{sending.id}/complete", told) if asks else self._ask("GET", f"/{sending.id}")
            sending.tried = time.monotonic()
            end = "later" if answer is None or answer.is_later else self._heard(sending, answer)
            if end not in ("later", "completing", "open"):
                return end
            asks = end == "open" or (end == "later" and self.random.random() < 0.5)
            gevent.sleep(0.2)
        self._fault(sending, f"it comes to no end within {END_SECONDS:.0f} s")
        return "never"

    def _heard(self, sending: Sending, answer: Answer) -> str:
        """What an answer says of its end."""
        if answer.status == 404:
            # The request never came there, and for longer than it is kept nobody could ask.
            self._check_gone(sending)
            return "gone"
        if answer.status == 409 and b"upload_incomplete" in answer.body:
            return self._sent_back(sending, answer.body.decode())
        if answer.status == 409:
            # What there is to know of it is not told here.
            return "completing"
        if answer.status not in (200, 201, 202):
            self._fault(sending, f"it is completed with {answer.status} {answer.body[:300]!r}")
            return "never"
        document = json.loads(answer.body)
        if answer.status == 201 or document["state"] == "published":
            return self._published(sending, document)
        self.world.done["parts waited for"] += answer.status == 202
        if document["state"] == "failed":
            self._fault(sending, f"it failed: {document['error']}")
        if document["state"] == "open" and document["error"] is not None:
            return self._sent_back(sending, str(document["error"]))
        return str(document["state"])

    def _complete_beside(self, sending: Sending) -> None:
        """W4: twice is harmless."""
        line = Line(self.world)
        answer = line.ask("POST", f"{self.uploads}/{sending.id}/complete", b"{}", Content_Type="application/json")
        line.hang_up()
        if answer is not None and not answer.is_later and answer.status not in (201, 202, 404, 409):
            self._fault(sending, f"completed beside it is answered by {answer.status} {answer.body[:200]!r}")

    def _sent_back(self, sending: Sending, words: str) -> str:
        """Only for bytes that are damaged: by a request that was taken for dead."""
        self.world.done["parts sent back"] += 1
        sending.renewed = time.monotonic()
        sending.taken.clear()
        if "damaged" not in words and not sending.broken_off:
            self._fault(sending, f"all parts were there, and some are missing: {words}")
        return "sent back"

    def _published(self, sending: Sending, told: Any) -> str:
        artifact = told.get("artifact", told)
        if artifact is None or artifact["sha256"] != sha256(sending.body):
            self._fault(sending, f"other bytes were published: {artifact}")
        sending.thing.bodies = {sha256(sending.body)}
        self.world.stored += 1
        self.world.done["parts published"] += 1
        return "published"
