"""Clients of the storm that speak npm and OCI, and whoever makes repositories and lets go of them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

import gevent

from tests.protocols.npm.packages import document, tarball
from tests.protocols.oci.conftest import MANIFEST, digest_of, manifest_of
from tests.support.storm import LIVE, SIZES, Answer, Client, Line, Thing, World, sha256
from tests.support.storm_parts import SESSION_SECONDS

CONFIG = b"{}"
TAGS = 12


class NpmClient(Client):
    """A package of its own, with a tarball for each version."""

    format = "npm"
    repository = "storm-npm"

    @property
    def package(self) -> str:
        return f"storm{self.number}"

    def new(self) -> tuple[Thing, bytes]:
        self._count += 1
        thing = self._thing(f"1.{self._count}.0")
        return thing, tarball(self.package, f"1.{self._count}.0", {"package/data": self.body()})

    def _thing(self, version: str) -> Thing:
        path = f"{self.package}/-/{self.package}-{version}.tgz"
        return Thing(self.repository, path, f"/npm/{self.repository}/{path}")

    def send(self, thing: Thing, body: bytes) -> Answer | None:
        version = thing.path.removesuffix(".tgz").rpartition("-")[2]
        published = json.dumps(document(self.package, version, data=body)).encode()
        return self.line.ask("PUT", f"/npm/{self.repository}/{self.package}", published, Content_Type="application/json")

    def deleted_at(self, thing: Thing) -> str:
        return f"/api/v1/repositories/{self.repository}/artifacts/{thing.path}"

    def listed(self) -> set[str] | None:
        answer = self.line.ask("GET", f"/npm/{self.repository}/{self.package}", Accept="application/vnd.npm.install-v1+json")
        if answer is None or answer.status not in (200, 404):
            return None
        versions = json.loads(answer.body)["versions"] if answer.status == 200 else {}
        return {self._thing(version).path for version in versions}


class OciClient(Client):
    """An image of its own, with few tags that are pushed again and again: blobs whole, in chunks, mounted, left behind; then a manifest."""

    format = "oci"
    repository = "storm-oci"
    # What nobody refers to goes after it, so a push that takes longer may have to begin again.
    grace = 10.0

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number)
        self._layers: dict[str, Sequence[bytes]] = {}

    @property
    def image(self) -> str:
        return f"app{self.number}"

    @property
    def _address(self) -> str:
        return f"/v2/{self.repository}/{self.image}"

    def new(self) -> tuple[Thing, bytes]:
        # Small ones, since what has lost its tag stays; no two of them are equal.
        layers = [bytes([self.random.randrange(3)]) * 20_000, os.urandom(self.random.choice(SIZES[1:-1]))]
        manifest = manifest_of(*layers, config=CONFIG)
        self._layers[sha256(manifest)] = layers
        if len(self._layers) > 4 * LIVE:
            del self._layers[next(iter(self._layers))]
        if len(self.things) < TAGS:
            self._count += 1
            path = f"{self.image}/manifests/1.{self._count}"
            return Thing(self.repository, path, f"/v2/{self.repository}/{path}"), manifest
        return self.random.choice(self.things), manifest

    def send(self, thing: Thing, body: bytes) -> Answer | None:
        began = time.monotonic()
        for blob in (CONFIG, *self._layers[sha256(body)]):
            push = self.random.choice((self._whole, self._in_chunks, self._mounted))
            answer = push(blob)
            if answer is None or answer.is_later:
                return answer
            if answer.status != 201:
                self.world.fault(f"a blob of {thing.address} was answered by {answer.status} {answer.body[:200]!r}")
                return answer
        answer = self.line.ask("PUT", thing.address, body, Content_Type=MANIFEST)
        if answer is not None and b"MANIFEST_BLOB_UNKNOWN" in answer.body and time.monotonic() > began + self.grace:
            self.world.done["oci pushed again"] += 1
            return None
        return answer

    # -- blobs

    def _whole(self, body: bytes) -> Answer | None:
        return self.line.ask("POST", f"{self._address}/blobs/uploads/?digest={digest_of(body)}", body)

    def _mounted(self, body: bytes) -> Answer | None:
        """From another client's image, where that has it; else the upload that is begun instead."""
        source = f"{self.repository}/app{self.random.randrange(20)}"
        answer = self.line.ask("POST", f"{self._address}/blobs/uploads/?mount={digest_of(body)}&from={source}")
        if answer is None or answer.status != 202:
            return answer
        if self.random.random() < 0.3:
            # Left behind: it expires by itself.
            return self._whole(body)
        return self._finish(_place(answer), body, 0)

    def _in_chunks(self, body: bytes) -> Answer | None:
        begun = self.line.ask("POST", f"{self._address}/blobs/uploads/")
        if begun is None or begun.status != 202:
            return begun
        place, sent, taken, began = _place(begun), 0, 0, time.monotonic()
        last = len(body) * self.random.random()
        while sent < last:
            # Of one byte nobody could tell whether it is there: see `_received`.
            piece = body[sent : sent + max(2, int(len(body) * self.random.random()))]
            answer = self.line.ask("PATCH", place, piece, Content_Range=f"{sent}-{sent + len(piece) - 1}")
            if answer is not None and answer.status == 202:
                sent = taken = sent + len(piece)
                continue
            if answer is not None and not answer.is_later:
                return answer
            gevent.sleep(0.2)
            state = self.line.ask("GET", place)
            if state is not None and state.status == 404 and time.monotonic() > began + SESSION_SECONDS / 2:
                # Nobody could go on with it for so long.
                return None
            if state is None or state.status != 204:
                return state
            there = _received(state)
            if not taken <= there <= sent + len(piece):
                self.world.fault(f"{place}: {taken} bytes were taken, {sent + len(piece)} sent, {there} are there")
            sent = taken = there
        if self.random.random() < 0.1:
            return self._give_up(place, body)
        return self._finish(place, body, sent)

    def _finish(self, place: str, body: bytes, sent: int) -> Answer | None:
        return self.line.ask("PUT", f"{place}?digest={digest_of(body)}", body[sent:])

    def _give_up(self, place: str, body: bytes) -> Answer | None:
        answer = self.line.ask("DELETE", place)
        if answer is not None and not answer.is_later and answer.status not in (204, 404):
            return answer
        return self._whole(body)

    # -- what else is done

    def look_at(self, thing: Thing) -> bool:
        """With all that the manifest names."""
        if not super().look_at(thing):
            return False
        (digest,) = thing.bodies if len(thing.bodies) == 1 else (None,)
        if digest is None or thing.held != {False}:
            return True
        for blob in (CONFIG, *self._layers.get(digest, ())):
            answer = self.line.ask("GET", f"{self._address}/blobs/{digest_of(blob)}")
            if answer is None or answer.is_later:
                return False
            if answer.status != 200 or answer.body != blob:
                self.world.fault(f"{thing.address} names a blob that is answered by {answer.status} {answer.body[:100]!r}")
        return True

    def deleted_at(self, thing: Thing) -> str:
        """The tag alone, or the manifest with it."""
        known = next(iter(thing.bodies))
        if len(thing.bodies) > 1 or known is None or self.random.random() < 0.3:
            return thing.address
        return f"{self._address}/manifests/sha256:{known}"

    def listed(self) -> set[str] | None:
        answer = self.line.ask("GET", f"{self._address}/tags/list")
        if answer is None or answer.status not in (200, 404):
            return None
        tags = json.loads(answer.body)["tags"] if answer.status == 200 else []
        return {f"{self.image}/manifests/{tag}" for tag in tags}


def _place(answer: Answer) -> str:
    return urlsplit(answer.headers["Location"]).path


def _received(answer: Answer) -> int:
    """Of an upload, by its `Range`; that of nothing is `0-0`."""
    last = int(answer.headers["Range"].rpartition("-")[2])
    return last + 1 if last else 0


def come_and_go(world: World) -> None:
    """Repositories that are made, filled and deleted."""
    line, number = Line(world), 0
    while not world.is_over:
        with world.busily():
            number += 1
            name = f"storm-gone-{number}"
            document = json.dumps({"name": name, "format": "raw", "kind": "hosted"}).encode()
            made = line.ask("POST", "/api/v1/repositories", document, Content_Type="application/json")
            for each in range(3):
                line.ask("PUT", f"/raw/{name}/{each}", os.urandom(5_000 * each))
            gone = line.ask("DELETE", f"/api/v1/repositories/{name}")
            while gone is None or gone.status == 503:
                gevent.sleep(0.5)
                gone = line.ask("DELETE", f"/api/v1/repositories/{name}")
            if made is not None and made.status == 201 and gone.status not in (204, 404):
                world.fault(f"repository {name} was deleted with {gone.status}")
            world.done["repository made and deleted"] += 1
        gevent.sleep(3.0)
