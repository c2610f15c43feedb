"""Uploads in parts against a model of one file: whatever comes, goes, breaks off or lingers, what is published is what the parts said."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import BodyCutShort, DigestMismatch, Invalid, UploadGivenUp, UploadIncomplete
from app.upload.multipart import Upload
from tests.support.house import House, sha256
from tests.support.multipart import Client, filler

PART, COUNT = 8, 4
SIZE = PART * COUNT - 3

number = st.integers(1, COUNT)
step = st.one_of(
    st.tuples(st.just("send"), number, st.integers(0, 3)),
    st.tuples(st.just("send"), number, st.integers(0, 3)),
    st.tuples(st.just("cut off"), number, st.integers(0, 4)),
    st.tuples(st.just("wrong digest"), number, st.integers(0, 3)),
    st.tuples(st.just("wrong length"), number, st.integers(0, 3)),
    st.tuples(st.just("linger"), number, st.integers(0, 3)),
    st.tuples(st.just("write late"), number, st.integers(0, 3)),
    st.tuples(st.just("end late"), number, st.just(0)),
    st.tuples(st.just("change owners"), number, st.just(0)),
    st.tuples(st.just("complete"), number, st.just(0)),
    st.tuples(st.just("clean"), number, st.just(0)),
)


@dataclass
class Late:
    """A request that was taken for dead, and where it stands."""

    number: int
    block: Any
    range: Any
    written: int


@dataclass
class Model:
    """One upload, and what its file and its rows should hold."""

    client: Client
    upload: Upload
    file: bytearray = field(default_factory=lambda: bytearray(SIZE))
    said: dict[int, str] = field(default_factory=dict)
    late: list[Late] = field(default_factory=list)
    done: bool = False

    def length(self, number: int) -> int:
        return min(PART, SIZE - (number - 1) * PART)

    def write(self, number: int, at: int, body: bytes) -> None:
        start = (number - 1) * PART + at
        self.file[start : start + len(body)] = body

    def bytes_of(self, number: int) -> bytes:
        return bytes(self.file[(number - 1) * PART : (number - 1) * PART + self.length(number)])

    @property
    def damaged(self) -> set[int]:
        return {each for each, digest in self.said.items() if sha256(self.bytes_of(each)) != digest}

    @property
    def missing(self) -> set[int]:
        return set(range(1, COUNT + 1)) - set(self.said)

    def check(self) -> None:
        assert set(self.client.numbers(self.upload)) == set(self.said)
        assert self.client.show(self.upload).received == sum(self.length(each) for each in self.said)
        self.client.house.assert_counted()

    # -- what can happen

    def do(self, kind: str, number: int, seed: int) -> None:
        body = bytes([seed + 1]) * self.length(number)
        getattr(self, kind.replace(" ", "_"))(number, body, seed)

    def send(self, number: int, body: bytes, _: int) -> None:
        if self.said.get(number) != sha256(body):
            self.write(number, 0, body)
        self.said[number] = sha256(body)
        self.client.send(self.upload, number, body)

    def cut_off(self, number: int, body: bytes, count: int) -> None:
        with pytest.raises(BodyCutShort):
            self.client.send(self.upload, number, body, digest=None, fill=filler(body[:count], cut=True))
        self.said.pop(number, None)
        self.write(number, 0, self.on_disk(number)[:count])

    def wrong_digest(self, number: int, body: bytes, _: int) -> None:
        with pytest.raises(DigestMismatch):
            self.client.send(self.upload, number, body, digest="0" * 64)
        self.said.pop(number, None)
        self.write(number, 0, body)

    def wrong_length(self, number: int, body: bytes, _: int) -> None:
        with pytest.raises(Invalid):
            self.client.send(self.upload, number, body[1:])

    def linger(self, number: int, body: bytes, _: int) -> None:
        block = self.client.house.parts.part_holds.hold(self.upload, number, self.length(number))
        _attempt, range = block.__enter__()
        self.said.pop(number, None)
        self.late.append(Late(number, block, range, 0))
        self.client.house.rows("update arkvory_parts set held_until = now() - interval '1 second' where holder is not null")

    def write_late(self, _: int, __: bytes, seed: int) -> None:
        for each in self.late:
            body = bytes([100 + seed]) * min(2, self.length(each.number) - each.written)
            each.range.write(body)
            self.write(each.number, each.written, body)
            each.written += len(body)

    def end_late(self, *_: Any) -> None:
        for each in self.late:
            each.range.discard()
            with contextlib.suppress(UploadGivenUp):
                each.block.__exit__(None, None, None)
        self.late = []

    def change_owners(self, *_: Any) -> None:
        self.client.house.parts.part_holds.free_all()

    def clean(self, *_: Any) -> None:
        self.client.house.clean()

    def complete(self, *_: Any) -> None:
        wrong = self.missing or self.damaged
        if not wrong:
            assert self.client.complete(self.upload).state == "published"
            self.done = True
            return
        with pytest.raises(UploadIncomplete) as told:
            self.client.complete(self.upload)
        assert all(str(each) in told.value.message for each in wrong)
        if not self.missing:
            self.said = {each: digest for each, digest in self.said.items() if each not in wrong}

    def on_disk(self, number: int) -> bytes:
        (path,) = [each for each in self.client.house.temporary() if each.name == str(self.upload.id)]
        return path.read_bytes()[(number - 1) * PART :][: self.length(number)]


@settings(max_examples=40)
@given(steps=st.lists(step, max_size=14))
def test_what_is_published_is_what_the_parts_said(shared: House, steps: list[Any]) -> None:
    """W1, W4."""
    if not shared.rows("select 1 from arkvory_repositories"):
        shared.repository("files")
    client = Client(shared)
    model = Model(client, client.create(size=SIZE, part_size=PART))
    try:
        for each in steps:
            if not model.done:
                model.do(*each)
        if not model.done:
            model.check()
            for each in sorted(model.missing | model.damaged):
                # Other bytes than those that it said: the same ones would not be read.
                model.send(each, bytes([50]) * model.length(each), 0)
            model.complete()
        assert model.done
        expected = bytes(model.file)
        assert shared.read("big.bin") == expected
        model.write_late(0, b"", 3)
        assert shared.read("big.bin") == expected
    finally:
        model.end_late()
    shared.assert_counted()
    shared.assert_published_is_there()
    shared.assert_no_strays()
