"""Each kind of change moves the counters by exactly its bytes, and leaves them equal to the sums (DESIGN 5, Counters; W1)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gevent
import pytest

from app.errors import ArkvoryError, BodyCutShort, DigestMismatch, Invalid
from app.repository.promoting import Selection
from app.repository.publishing import NewFile, Target
from app.upload.admission import FIRST_STEP
from app.upload.receiving import Expected
from tests.conftest import MakeHouse
from tests.mirrors.conftest import Following
from tests.protocols.oci.conftest import Registry, digest_of, manifest_of, place
from tests.support.house import ADMIN, House, sha256
from tests.support.multipart import SMALL_PARTS, Client, filler
from tests.support.upstreams import FakeUpstream
from tests.support.wares import WARES

LAYER = b"a layer of an image"
MANIFEST = manifest_of(LAYER)
IMAGE = len(LAYER) + len(b"{}")
TO_ZERO = "all of it"
MIRRORS = ("followed", "imported")


@dataclass
class Books:
    """One process and all that changes what it stores; `kept` is what one change leaves for another."""

    house: House
    registry: Registry
    following: Following
    client: Client
    upstream: FakeUpstream
    kept: dict[str, Any] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)

    def create(self, name: str, **fields: Any) -> None:
        self.names[self.house.repository(name, **fields)] = name

    def id(self, name: str) -> int:
        return next(id for id, each in self.names.items() if each == name)

    def counters(self) -> dict[tuple[str, str], int]:
        return {(self.names[id], status): size for (id, status), size in self.house.counters().items()}

    def stored(self, name: str) -> int:
        """Bytes of all artifacts of a repository."""
        sizes = "select coalesce(sum(size), 0) from arkvory_artifacts a join arkvory_blobs b on b.id = a.blob_id where repository_id = :id"
        return int(self.house.value(sizes, id=self.id(name)))

    # -- uploads as such

    def open(self, size: int | None) -> None:
        reservation = self.house.parts.admission.open(self.id("files"), size, "k")
        self.kept.setdefault("open", []).append(reservation)

    def grow(self) -> None:
        self.house.parts.admission.grow(self.kept["open"][-1], FIRST_STEP + 5, exactly=True)

    def cancel(self) -> None:
        self.house.parts.admission.release([each.id for each in self.kept["open"]])

    def abandon(self) -> None:
        """Its process died, and its lease has run out."""
        self.house.parts.admission.forget(self.house.parts.admission.open(self.id("files"), 50, "k").id)
        self.house.rows("update arkvory_uploads set lease_until = now() - interval '1 s' where status = 'open'")

    def clean(self) -> None:
        for _ in range(3):
            gevent.sleep(0.01)
            self.house.clean()

    # -- artifacts

    def publish_several(self) -> None:
        with self.house.parts.publisher.begin(Target("raw", "files", ADMIN), None) as session:
            received = [session.store(body) for body in (b"one", b"three")]
            session.publish([NewFile(f"several/{each.size}", each, "text/plain") for each in received])

    def receive(self, expected: Expected, body: bytes, *, cut: bool = False) -> None:
        """And publish it. Raises what is wrong with it."""
        with self.house.parts.publisher.begin(Target("raw", "files", ADMIN), "wrong") as session:
            receiver = session.receiver(expected)
            receiver.drain_into(filler(body, cut=cut))
            session.publish([NewFile("wrong", receiver.finish(), "text/plain")])

    def fail(self) -> None:
        with pytest.raises(DigestMismatch):
            self.receive(Expected({"sha256": sha256(b"other")}), b"body")

    def be_cut_off(self) -> None:
        with pytest.raises(BodyCutShort):
            self.receive(Expected(size=9), b"body", cut=True)

    def promote(self) -> None:
        self.house.parts.promoter.promote(ADMIN, "files", "released", Selection(paths=["a"]))

    # -- uploads in parts

    def begin(self, name: str, **wanted: Any) -> None:
        self.kept[name] = self.client.create(f"parts/{name}", part_size=8, **wanted)

    def part(self, name: str, number: int, body: bytes) -> None:
        self.client.send(self.kept[name], number, body)

    def cut_part(self, name: str, number: int) -> None:
        with pytest.raises(BodyCutShort):
            self.client.send(self.kept[name], number, b"8 bytes.", digest=None, fill=filler(b"half", cut=True))

    def complete(self, name: str) -> None:
        assert self.client.complete(self.kept[name]).state == "published"

    def complete_in_vain(self, name: str) -> None:
        with pytest.raises((DigestMismatch, Invalid)):
            self.client.complete(self.kept[name])

    def expire(self) -> None:
        self.house.rows("update arkvory_uploads set lease_until = now() - interval '1 s' where status = 'open'")
        self.clean()

    # -- images

    def session(self) -> None:
        self.kept["session"] = self.registry.begin()

    def chunk(self) -> None:
        assert self.registry.patch(self.kept["session"], LAYER[:5]).status_code == 202

    def last_chunk(self) -> None:
        assert self.registry.put(f"{self.kept['session']}?digest={digest_of(LAYER)}", LAYER[5:]).status_code == 201

    def mount(self) -> None:
        self.registry.blob(b"{}")
        answer = self.registry.post(f"oci/other/blobs/uploads/?mount={digest_of(LAYER)}&from=oci/app")
        assert answer.status_code == 201, answer.text

    def cancel_session(self) -> None:
        upload = place(self.registry.patch(self.registry.begin(), LAYER))
        assert self.registry.delete(upload).status_code == 204

    def tag(self) -> None:
        assert self.registry.manifest(MANIFEST, "1.0").status_code == 201

    # -- proxies and mirrors

    def put(self, body: bytes, **more: Any) -> None:
        """The upstream has it."""
        self.upstream.put("/f", body, etag=f'"{sha256(body)}"', **more)

    def fetch(self) -> None:
        with contextlib.suppress(ArkvoryError):
            self.house.read("f", "proxied")

    def serve(self, *bodies: bytes) -> None:
        names = [f"m{number}" for number in range(len(bodies))]
        self.upstream.put("/", "".join(f'<a href="{each}">{each}</a>' for each in names).encode(), headers={"Content-Type": "text/html"})
        for name, body in zip(names, bodies, strict=True):
            self.upstream.put(f"/{name}", body, etag=f'"{sha256(body)}"')

    def follow(self) -> None:
        self.following.follow("followed")
        self.following.follow("imported", upstream_url=self.upstream.url)
        self.run_mirrors()

    def run_mirrors(self) -> None:
        self.following.begin()
        self.following.wait()
        assert {self.following.show(name).state for name in MIRRORS} == {"complete"}

    def delete_repository(self, name: str) -> None:
        self.house.registry.delete(ADMIN, name)


@pytest.fixture
def books(make_house: MakeHouse, database_url: str, tmp_path: Path, upstream: FakeUpstream) -> Iterator[Books]:
    house = make_house(**SMALL_PARTS | {"ARKVORY_BLOB_GRACE_SECONDS": "0.001"})
    made = Books(house, Registry(house, database_url, tmp_path / "data"), Following(house), Client(house), upstream)
    made.create("oci", format="oci")
    for name in ("files", "released", "imported"):
        made.create(name)
    for name in ("proxied", "followed"):
        made.create(name, kind="proxy", upstream_url=upstream.url, settings={"mutable_ttl": 0, "miss_ttl": 0})
    yield made
    made.registry.close()


Moved = Mapping[tuple[str, str], int | str]
OPEN, PUBLISHED, GARBAGE = (("files", status) for status in ("open", "published", "garbage"))


def changes(books: Books) -> Iterator[tuple[str, Callable[[], object], Moved]]:
    """What is done, one after the other, and by how many bytes each counter of a repository moves."""
    house = books.house
    yield "an upload is opened", lambda: books.open(100), {OPEN: 100}
    yield "one of unknown length is opened", lambda: books.open(None), {OPEN: FIRST_STEP}
    yield "it grows", books.grow, {OPEN: 5}
    yield "both are cancelled", books.cancel, {OPEN: -(FIRST_STEP + 105)}
    yield "a publish", lambda: house.publish("a", b"12345"), {PUBLISHED: 5}
    yield "a publish whose length is not told", lambda: house.publish("b", b"1234567", told=False), {PUBLISHED: 7}
    yield "an empty file", lambda: house.publish("empty", b""), {}
    yield "several at once", books.publish_several, {PUBLISHED: 8}
    yield "an overwrite", lambda: house.publish("a", b"123456789"), {PUBLISHED: 4, GARBAGE: 5}
    yield "an overwrite with the same bytes", lambda: house.publish("a", b"123456789"), {GARBAGE: 9}
    yield "a second path to the same bytes", lambda: house.publish("a too", b"123456789"), {PUBLISHED: 9}
    yield "a wrong digest", books.fail, {}
    yield "a body that is cut off", books.be_cut_off, {}
    yield "a promotion", books.promote, {("released", "published"): 9}
    yield "a delete", lambda: house.delete("b"), {PUBLISHED: -7, GARBAGE: 7}
    yield "a process dies with an upload", books.abandon, {OPEN: 50}
    yield "expiry and the end of the grace", books.clean, {OPEN: -50, GARBAGE: TO_ZERO}

    yield "parts of a known size are begun", lambda: books.begin("known", size=20), {OPEN: 20}
    yield "a part of them", lambda: books.part("known", 2, b"8 bytes."), {}
    yield "the same part, replaced", lambda: books.part("known", 2, b"another."), {}
    yield "the other parts", lambda: (books.part("known", 3, b"four"), books.part("known", 1, b"8 bytes.")), {}
    yield "they are completed", lambda: books.complete("known"), {OPEN: -20, PUBLISHED: 20}
    yield "parts of an unknown size are begun", lambda: books.begin("untold"), {}
    yield "the first of them", lambda: books.part("untold", 1, b"8 bytes."), {OPEN: 8}
    yield "the second", lambda: books.part("untold", 2, b"8 bytes."), {OPEN: 8}
    yield "a third that is cut off", lambda: books.cut_part("untold", 3), {OPEN: 8}
    yield "the third again", lambda: books.part("untold", 3, b"five."), {OPEN: -3}
    yield "the third, replaced by a shorter one", lambda: books.part("untold", 3, b"3 b"), {OPEN: -2}
    yield "they are cancelled", lambda: books.client.cancel(books.kept["untold"]), {OPEN: -19}
    yield "parts for a path that is there", lambda: books.client.send_all(_again(books), b"x" * 12), {OPEN: 12}
    yield "their end replaces it", lambda: books.complete("again"), {OPEN: -12, PUBLISHED: 12 - 20, GARBAGE: 20}
    yield "parts whose whole will be wrong", lambda: books.begin("wrong", size=4, sha256="0" * 64), {OPEN: 4}
    yield "all of them", lambda: books.part("wrong", 1, b"four"), {}
    yield "their end, in vain", lambda: books.complete_in_vain("wrong"), {OPEN: -4}
    yield "parts that nobody goes on with", lambda: books.begin("left", size=33), {OPEN: 33}
    yield "they expire", books.expire, {OPEN: -33, GARBAGE: TO_ZERO}

    yield "an upload of a layer begins", books.session, {("oci", "open"): FIRST_STEP}
    yield "a chunk of it", books.chunk, {}
    yield "its last chunk", books.last_chunk, {("oci", "open"): -FIRST_STEP, ("oci", "published"): len(LAYER)}
    yield "one that is cancelled", books.cancel_session, {}
    yield "a mount", books.mount, {("oci", "published"): IMAGE}
    yield "a manifest with its tag", books.tag, {("oci", "published"): 2 * len(MANIFEST)}
    gone = 2 * len(MANIFEST)
    yield "it is deleted", lambda: books.registry.delete(f"oci/app/manifests/{digest_of(MANIFEST)}"), {
        ("oci", "published"): -gone, ("oci", "garbage"): gone,
    }  # fmt: skip
    yield "what nobody refers to any more goes", books.clean, {("oci", "published"): TO_ZERO, ("oci", "garbage"): TO_ZERO}

    proxied, garbage = ("proxied", "published"), ("proxied", "garbage")
    books.put(b"of the upstream")
    yield "a fetch", books.fetch, {proxied: 15}
    yield "a copy that has not changed", books.fetch, {}
    books.put(b"changed")
    yield "a copy that has changed", books.fetch, {proxied: 7 - 15, garbage: 15}
    books.put(b"more than that", truncate=3)
    yield "a body that breaks off", books.fetch, {}
    books.put(b"its length untold", chunked=True)
    yield "a copy whose length is not told", books.fetch, {proxied: 17 - 7, garbage: 7}
    books.upstream.forget("/f")
    yield "the upstream has it no more", books.fetch, {proxied: -17, garbage: 17}

    books.serve(b"one", b"three")
    yield "mirrors, of a proxy and of a hosted repository", books.follow, {(name, "published"): 8 for name in MIRRORS}
    yield "they run again", books.run_mirrors, {}
    books.serve(b"one", b"thirteen", b"four")
    replaced = {(name, "published"): 7 for name in MIRRORS} | {(name, "garbage"): 5 for name in MIRRORS}
    yield "what they follow has changed", books.run_mirrors, replaced
    yield "all graces end", books.clean, {(name, "garbage"): TO_ZERO for name in (*MIRRORS, "proxied")}

    yield "a repository is deleted", lambda: books.delete_repository("files"), {}
    yield "and swept", books.clean, {PUBLISHED: TO_ZERO}


def _again(books: Books) -> Any:
    books.kept["again"] = books.client.create("parts/known", size=12, part_size=8)
    return books.kept["again"]


def test_w1_each_kind_of_change_is_counted_by_repository_and_status(books: Books) -> None:
    after: dict[tuple[str, str], int] = {}
    for name, change, moved in changes(books):
        before = after
        change()
        after = books.counters()
        found = {key: after.get(key, 0) - before.get(key, 0) for key in before.keys() | after.keys()}
        expected = {key: -before.get(key, 0) if size is TO_ZERO else size for key, size in moved.items()}
        assert {key: size for key, size in found.items() if size} == {key: size for key, size in expected.items() if size}, name
        books.house.assert_counted()
        books.house.assert_published_is_there()
    books.house.assert_nothing_is_left()


def test_w1_what_clients_of_each_format_publish_and_delete_is_counted(books: Books) -> None:
    """Also what goes with a file: signatures, metadata, indexes."""
    for ware in WARES:
        name = f"ours-{ware.format}"
        books.create(name, format=ware.format)
        for _ in range(2):
            # Once more: the same again, or refused.
            with contextlib.suppress(AssertionError):
                ware.publish(books.registry, name)
        assert books.counters()[name, "published"] == books.stored(name) > 0
        books.registry.manage("DELETE", f"repositories/{name}/artifacts/{ware.path}")
        assert books.counters().get((name, "published"), 0) == books.stored(name)
        books.house.assert_counted()
        books.house.assert_published_is_there()
        books.delete_repository(name)
    books.clean()
    assert not books.counters()
    books.house.assert_nothing_is_left()
