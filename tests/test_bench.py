"""The benchmark's own client: an answer counts once it is whole, whatever way a peer ends it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import gevent
import pytest
from gevent.server import StreamServer

from bench import client, publishing
from bench.client import Step, request

ANSWERS = {
    b"/length": b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n0\r\n",
    b"/chunked": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n5\r\n0\r\n\r\n\r\n0\r\n\r\n",
    b"/closing": b"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
    b"/begin": b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\nLocation: http://elsewhere.test/finish?state=1\r\n\r\n",
    b"/finish?state=1&digest=x": b"HTTP/1.1 201 Created\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
    b"/broken": b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n",
}
asked: list[bytes] = []


def serve(socket: gevent.socket.socket, _address: object) -> None:
    """Answers piece by piece, so that no answer arrives whole."""
    buffer = b""
    while True:
        while b"\r\n\r\n" not in buffer:
            data = socket.recv(65536)
            if not data:
                return
            buffer += data
        head, _, buffer = buffer.partition(b"\r\n\r\n")
        length = re.search(rb"Content-Length: (\d+)", head)
        while length and len(buffer) < int(length[1]):
            buffer += socket.recv(65536)
        buffer = buffer[int(length[1]) :] if length else buffer
        path = head.split(b" ")[1]
        asked.append(path)
        answer = ANSWERS[path]
        for start in range(0, len(answer), 40):
            socket.sendall(answer[start : start + 40])
            gevent.sleep(0.001)
        if b"Connection: close" in answer:
            return


@pytest.fixture
def port() -> Iterator[int]:
    server = StreamServer(("127.0.0.1", 0), serve)
    server.start()
    asked.clear()
    yield server.server_port
    server.stop()


def test_load_counts_whole_answers_however_they_end(port: int) -> None:
    with client.workers() as pool:
        requests = [request("GET", path) for path in ("/length", "/chunked", "/closing")] * 4
        found = gevent.get_hub().threadpool.apply(pool.submit(client.load, port, requests, 2, 0).result)
        assert (found.count, len(asked)) == (12, 12)
        failing = pool.submit(client.load, port, [request("GET", "/broken")], 1, 0)
        with pytest.raises(RuntimeError, match="unexpected answer"):
            gevent.get_hub().threadpool.apply(failing.result)


def test_walk_goes_where_the_answer_before_said(port: int) -> None:
    steps = [Step("POST", "/begin", {}, b"", (202,)), Step("PUT", "{location}&digest=x", {}, b"body"), Step("GET", "/length", {}, b"")]
    assert client.walk(port, steps) > 0
    assert asked == [b"/begin", b"/finish?state=1&digest=x", b"/length"]
    with pytest.raises(RuntimeError, match="500"):
        client.walk(port, [Step("GET", "/broken", {}, b"")])


@pytest.mark.parametrize("size", [10240, 1_000_000])
def test_a_wheel_has_the_size_that_was_asked_for(size: int) -> None:
    step = publishing.wheel_upload("/", {}, "sample", "1.0", size)
    content = step.body.split(b'filename="sample-1.0-py3-none-any.whl"\r\n\r\n', 1)[1]
    assert content.rindex(b"\r\n--") == size
