"""DESIGN 2: 128 requests of mixed kinds at once, over one process with the default pools: nobody waits long for a connection."""

from __future__ import annotations

import itertools
import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable

import gevent
import pytest
import requests

from tests.conftest import MakeServer
from tests.protocols.pypi.packages import wheel
from tests.support.server import Server

pytestmark = pytest.mark.soak
SECONDS = max(30.0, float(os.environ.get("ARKVORY_SOAK_SECONDS", "60")) * 0.1)
CLIENTS = 128
# Of an upload: done, all places taken for longer than it may wait, there already (a name that two took).
FINE = {200, 201, 202, 204, 304, 404, 429}


class Crowd:
    """Clients of every kind; each asks the next thing as soon as it was answered."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.numbers = itertools.count()
        self.answers: Counter[tuple[str, int]] = Counter()
        self.longest = 0.0
        self.end = 0.0
        self.kinds: dict[str, Callable[[requests.Session], requests.Response]] = {
            "a file": lambda client: client.get(f"{server.url}/raw/files/a"),
            "a file of a private repository": lambda client: client.get(f"{server.url}/raw/secret/a", auth=server.admin),
            "another path each time": lambda client: client.get(f"{server.url}/raw/files/none-{next(self.numbers)}"),
            "a new file": lambda client: self.put(client, f"/raw/files/new/{next(self.numbers)}"),
            "the same file": lambda client: self.put(client, "/raw/files/b"),
            "a listing": lambda client: client.get(f"{server.url}/api/v1/repositories/files/artifacts?limit=20", auth=server.admin),
            "a search": lambda client: client.get(f"{server.url}/api/v1/search?q=new", auth=server.admin),
            "an index": lambda client: client.get(f"{server.url}/pypi/python/simple/tool/", auth=server.admin),
            "a change": self.change,
            "a usage": lambda client: client.get(f"{server.url}/api/v1/repositories/files/usage", auth=server.admin),
            "a chunk": self.chunk,
        }

    def put(self, client: requests.Session, path: str) -> requests.Response:
        return client.put(self.server.url + path, data=os.urandom(20_000), auth=self.server.admin)

    def change(self, client: requests.Session) -> requests.Response:
        """Snapshots go, and are read again by all."""
        body = {"public": bool(next(self.numbers) % 2)}
        return client.patch(f"{self.server.url}/api/v1/repositories/flips", json=body, auth=self.server.admin)

    def chunk(self, client: requests.Session) -> requests.Response:
        began = client.post(f"{self.server.url}/v2/images/app/blobs/uploads/", auth=self.server.admin)
        if began.status_code != 202:
            return began
        place = requests.compat.urljoin(self.server.url, began.headers["Location"])
        sent = client.patch(place, data=b"x" * 50_000, auth=self.server.admin)
        return client.delete(place, auth=self.server.admin) if sent.status_code == 202 else sent

    def run(self) -> None:
        self.end = time.monotonic() + SECONDS
        kinds = itertools.cycle(self.kinds)
        gevent.joinall([gevent.spawn(self._ask, next(kinds)) for _ in range(CLIENTS)], raise_error=True)

    def _ask(self, kind: str) -> None:
        with requests.Session() as client:
            while time.monotonic() < self.end:
                began = time.monotonic()
                self.answers[kind, self.kinds[kind](client).status_code] += 1
                self.longest = max(self.longest, time.monotonic() - began)


def waits(server: Server) -> dict[str, float]:
    """How many requests waited no longer than so many seconds for a connection."""
    text = server.get("/metrics", auth=None).text
    return {bound: float(count) for bound, count in re.findall(r'pool_wait_seconds_bucket\{le="([^"]+)"\} (\S+)', text)}


def test_nobody_of_128_waits_a_second_for_a_connection(make_server: MakeServer) -> None:
    server = make_server()
    for name, format in (("files", "raw"), ("secret", "raw"), ("flips", "raw"), ("python", "pypi"), ("images", "oci")):
        server.repository(name, format=format, public=name == "files")
    for path in ("/raw/files/a", "/raw/files/b", "/raw/secret/a"):
        assert server.put(path, b"x" * 20_000).status_code == 201
    name, body = "tool-1.0-py3-none-any.whl", wheel("tool", "1.0")
    form = {":action": "file_upload", "protocol_version": "1", "name": "tool", "version": "1.0", "filetype": "bdist_wheel"}
    answer = server.post("/pypi/python/", data=form, files={"content": (name, body)})
    assert answer.status_code == 200, answer.text
    crowd = Crowd(server)

    crowd.run()

    counted = waits(server)
    print(json.dumps({f"{kind}: {status}": count for (kind, status), count in sorted(crowd.answers.items())}, indent=1))
    print(f"{sum(crowd.answers.values())} answers in {SECONDS:g} s, the longest after {crowd.longest:.2f} s")
    print(f"waits for a connection: {counted}")
    assert {status for _, status in crowd.answers} <= FINE
    assert {kind for kind, status in crowd.answers if status < 300 or status == 404} == set(crowd.kinds)
    assert counted["1"] == counted["+Inf"] > len(crowd.kinds)
    assert not re.search(r"QueuePool|Traceback| ERROR ", server.log()), server.log()[-4000:]
