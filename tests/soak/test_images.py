"""HO-X-6 for as long as it is given (`make soak`): images are pushed and pulled beside a cleanup that runs every second."""

from __future__ import annotations

import json
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conftest import MakeServer
from tests.protocols.oci.conftest import MANIFEST, digest_of, manifest_of
from tests.support.server import Server

pytestmark = pytest.mark.soak
SECONDS = float(os.environ.get("ARKVORY_SOAK_SECONDS", "60")) * 0.1
PUSHERS = 6
# Longer than the longest pause of a pusher.
GRACE_SECONDS = 4.0


def push_and_pull(server: Server, image: str, layer: bytes, pause: float) -> None:
    for body in (b"{}", layer):
        pushed = server.post(f"/v2/images/{image}/blobs/uploads/?digest={digest_of(body)}", data=body)
        assert pushed.status_code == 201, pushed.text
    time.sleep(pause)
    assert server.head(f"/v2/images/{image}/blobs/{digest_of(layer)}").status_code == 200
    time.sleep(pause)
    manifest = manifest_of(layer)
    put = server.put(f"/v2/images/{image}/manifests/latest", manifest, headers={"Content-Type": MANIFEST})
    assert put.status_code == 201, put.text
    pulled = server.get(f"/v2/images/{image}/manifests/latest").content
    for each in [json.loads(pulled)["config"], *json.loads(pulled)["layers"]]:
        assert digest_of(server.get(f"/v2/images/{image}/blobs/{each['digest']}").content) == each["digest"]


def test_x_6_no_push_fails_and_no_pull_is_broken_while_cleanup_runs(make_server: MakeServer) -> None:
    server = make_server(ARKVORY_CLEANUP_SECONDS="1", ARKVORY_BLOB_GRACE_SECONDS=str(GRACE_SECONDS))
    server.repository("images", format="oci")
    end, seed = time.monotonic() + SECONDS, int(time.time())
    print("seed", seed)

    def pusher(number: int) -> int:
        chance, turns = random.Random(seed + number), 0
        while time.monotonic() < end or not turns:
            push_and_pull(server, f"app{number}", chance.randbytes(20_000), chance.uniform(0, GRACE_SECONDS / 2))
            turns += 1
        return turns

    with ThreadPoolExecutor(PUSHERS) as pool:
        assert min(pool.map(pusher, range(PUSHERS))) >= 1
