"""HO-X-6 for as long as it is given (`make soak`): images are pushed and pulled beside a cleanup that runs every second."""

from __future__ import annotations

import json
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest

from tests.conftest import MakeServer
from tests.protocols.oci.conftest import MANIFEST, digest_of, manifest_of
from tests.support.house import House
from tests.support.server import Server

pytestmark = pytest.mark.soak
SECONDS = float(os.environ.get("ARKVORY_SOAK_SECONDS", "60")) * 0.1
PUSHERS = 6
# Longer than the longest pause of a pusher.
GRACE_SECONDS = 8.0


@dataclass
class Pusher:
    """One client with an image of its own: each turn pushes it anew, with a layer that others have too, and lets go of the former."""

    server: Server
    number: int
    chance: random.Random
    former: str | None = None
    turns: int = 0

    @property
    def image(self) -> str:
        return f"/v2/images/app{self.number}"

    def turn(self) -> None:
        shared = bytes([self.chance.randrange(4)]) * 30_000
        layers = [shared, self.chance.randbytes(20_000)]
        self.blob(b"{}")
        self.share(shared)
        self.chunked(layers[1])
        self.rest()
        for each in (b"{}", *layers):
            assert self.server.head(f"{self.image}/blobs/{digest_of(each)}").status_code == 200
        self.rest()
        self.push(manifest_of(*layers))
        self.pull()

    def rest(self) -> None:
        """Longer than cleanup takes from run to run, and shorter than the grace, with room for a slow machine."""
        time.sleep(self.chance.uniform(0, GRACE_SECONDS / 4))

    def blob(self, body: bytes) -> None:
        pushed = self.server.post(f"{self.image}/blobs/uploads/?digest={digest_of(body)}", data=body)
        assert pushed.status_code == 201, pushed.text

    def share(self, body: bytes) -> None:
        other = f"images/app{self.chance.randrange(PUSHERS)}"
        mounted = self.server.post(f"{self.image}/blobs/uploads/?mount={digest_of(body)}&from={other}")
        assert mounted.status_code in (201, 202), mounted.text
        if mounted.status_code == 202:
            assert self.server.delete(urlsplit(mounted.headers["Location"]).path).status_code == 204
            self.blob(body)

    def chunked(self, body: bytes) -> None:
        place = urlsplit(self.server.post(f"{self.image}/blobs/uploads/").headers["Location"]).path
        half = len(body) // 2
        sent = self.server.patch(place, data=body[:half], headers={"Content-Range": f"0-{half - 1}"})
        assert sent.status_code == 202, sent.text
        done = self.server.put(f"{place}?digest={digest_of(body)}", body[half:])
        assert done.status_code == 201, done.text

    def push(self, manifest: bytes) -> None:
        put = self.server.put(f"{self.image}/manifests/latest", manifest, headers={"Content-Type": MANIFEST})
        assert put.status_code == 201, put.text
        if self.former not in (None, digest_of(manifest)):
            assert self.server.delete(f"{self.image}/manifests/{self.former}").status_code == 202
        self.former = digest_of(manifest)
        self.turns += 1

    def pull(self) -> None:
        pulled = json.loads(self.server.get(f"{self.image}/manifests/latest").content)
        for each in [pulled["config"], *pulled["layers"]]:
            assert digest_of(self.server.get(f"{self.image}/blobs/{each['digest']}").content) == each["digest"]


def test_x_6_no_push_fails_and_no_pull_is_broken_while_cleanup_runs(make_server: MakeServer) -> None:
    """W3. What nobody refers to any more goes all the same, and counters equal sums at the end."""
    server = make_server(ARKVORY_CLEANUP_SECONDS="1", ARKVORY_BLOB_GRACE_SECONDS=str(GRACE_SECONDS))
    server.repository("images", format="oci")
    end, seed = time.monotonic() + SECONDS, int(time.time())
    print("seed", seed)
    pushers = [Pusher(server, number, random.Random(seed + number)) for number in range(PUSHERS)]

    def run(pusher: Pusher) -> None:
        while time.monotonic() < end or pusher.turns < 2:
            pusher.turn()

    with ThreadPoolExecutor(PUSHERS) as pool:
        list(pool.map(run, pushers))
    print("pushes", sum(each.turns for each in pushers))
    # Longer than the grace: of parts, then of the uploads and blobs that these leave.
    time.sleep(GRACE_SECONDS + 1)
    assert server.post("/api/v1/cleanup").status_code == 200
    time.sleep(GRACE_SECONDS + 1)
    assert server.post("/api/v1/cleanup").status_code == 200
    for each in pushers:
        each.pull()
    house = House(str(server.database_url), server.data, owns=False)
    try:
        house.assert_counted()
        house.assert_published_is_there()
        house.assert_no_strays()
        # Of each image its manifest and its own layer; the configuration and the shared layers.
        assert len(list(house.files())) <= 2 * PUSHERS + 1 + 4
    finally:
        house.close()
