"""Container images by hand, through any processes of a cluster."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from tests.protocols.oci.conftest import MANIFEST, digest_of, manifest_of
from tests.support.server import Server


def push_and_pull(servers: Sequence[Server], image: str, layer: bytes, pause: float) -> None:
    """An image with one layer, with so many seconds between its steps, each through the next server (HO-X-6)."""
    first, second, *_ = (*servers, *servers)
    for body, server in ((b"{}", first), (layer, second)):
        pushed = server.post(f"/v2/{image}/blobs/uploads/?digest={digest_of(body)}", data=body)
        assert pushed.status_code == 201, pushed.text
    time.sleep(pause)
    assert first.head(f"/v2/{image}/blobs/{digest_of(layer)}").status_code == 200
    time.sleep(pause)
    put = first.put(f"/v2/{image}/manifests/latest", manifest_of(layer), headers={"Content-Type": MANIFEST})
    assert put.status_code == 201, put.text
    pulled = first.get(f"/v2/{image}/manifests/latest").json()
    for each in [pulled["config"], *pulled["layers"]]:
        for server in (first, second):
            assert digest_of(server.get(f"/v2/{image}/blobs/{each['digest']}").content) == each["digest"]
    # Elsewhere the tag is the new one after a poll.
    assert json.loads(second.get(f"/v2/{image}/manifests/{digest_of(manifest_of(layer))}").content) == pulled
