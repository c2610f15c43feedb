from __future__ import annotations

import contextlib
import hashlib
import io
import time
import tracemalloc
from collections.abc import Callable, Iterator

import gevent
import pytest
import requests
from hypothesis import given, settings
from hypothesis import strategies as st
from requests_toolbelt import MultipartEncoder

from app.errors import BodyCutShort, Invalid
from app.http.forms import FilePart, Limits, Readable, boundary_of, read_form
from tests.protocols.pypi.packages import BOUNDARY, CONTENT_TYPE, form_of

# Pieces of content that look like what ends a part.
TRICKY = st.lists(
    st.sampled_from(
        [
            b"\r",
            b"\n",
            b"\r\n",
            b"-",
            b"--",
            BOUNDARY.encode(),
            f"--{BOUNDARY}".encode(),
            f"\r\n--{BOUNDARY[:-1]}".encode(),
            b"x",
            b"\0\xff",
        ]
    ),
    max_size=8,
).map(b"".join)
# A real client picks a boundary that is not in the content.
CONTENT = TRICKY.filter(lambda data: f"\n--{BOUNDARY}".encode() not in b"\n" + data.replace(b"\r", b"\n"))


class InPieces:
    """A body that arrives cut at the given lengths, over and over."""

    def __init__(self, body: bytes, lengths: list[int]) -> None:
        self._body, self._lengths, self._at, self._turn = body, lengths, 0, 0

    def read(self, size: int, /) -> bytes:
        length = min(size, self._lengths[self._turn % len(self._lengths)])
        self._turn += 1
        piece = self._body[self._at : self._at + length]
        self._at += len(piece)
        return piece


def read(
    stream: Readable, content_type: str = CONTENT_TYPE, limits: Limits | None = None
) -> tuple[dict[str, list[str]], dict[str, tuple[str, bytes]]]:
    """Fields, and files with their names."""
    files: dict[str, tuple[str, bytes]] = {}

    def receive(part: FilePart) -> None:
        files[part.name] = (part.filename, part.read())

    return read_form(stream, content_type, receive, limits or Limits()).fields, files


@given(CONTENT, CONTENT, st.lists(st.integers(1, 40), min_size=1, max_size=6), st.booleans(), st.sampled_from(["", " ", "\t  "]))
@settings(max_examples=100)
def test_a_form_means_the_same_however_it_is_cut_and_ordered(
    content: bytes, signature: bytes, lengths: list[int], content_first: bool, padding: str
) -> None:
    files = [("content", "foo-1.0.tar.gz", content), ("gpg_signature", "foo-1.0.tar.gz.asc", signature)]
    fields = [(":action", None, b"file_upload"), ("classifiers", None, b"A"), ("classifiers", None, "ü\r\n--\r\n".encode())]
    body = form_of([*files, *fields] if content_first else [*fields, *files], padding)
    assert read(InPieces(body, lengths)) == (
        {":action": ["file_upload"], "classifiers": ["A", "ü\r\n--\r\n"]},
        {"content": ("foo-1.0.tar.gz", content), "gpg_signature": ("foo-1.0.tar.gz.asc", signature)},
    )


@given(st.integers(0, 300))
def test_a_form_that_ends_early_is_never_taken_for_whole(length: int) -> None:
    """W1: a cut connection leaves nothing."""
    body = form_of([("name", None, b"foo"), ("content", "foo-1.0.tar.gz", b"x" * 100)])
    cut = body[: min(length, len(body) - len("--\r\n"))]
    with pytest.raises((BodyCutShort, Invalid)):
        read(io.BytesIO(cut))


def by_twine() -> tuple[bytes, str]:
    encoder = MultipartEncoder(
        [
            ("name", "foo"),
            ("requires_dist", "a"),
            ("requires_dist", "b"),
            ("content", ("foo-1.0.tar.gz", io.BytesIO(b"bytes"), "application/octet-stream")),
        ]
    )
    return encoder.read(), encoder.content_type


def by_requests() -> tuple[bytes, str]:
    data = [("name", "foo"), ("requires_dist", "a"), ("requires_dist", "b")]
    request = requests.Request("POST", "http://x/", data=data, files={"content": ("foo-1.0.tar.gz", b"bytes")}).prepare()
    assert isinstance(request.body, bytes)
    return request.body, request.headers["Content-Type"]


@pytest.mark.parametrize("client", [by_twine, by_requests])
def test_the_forms_of_real_clients_are_read(client: Callable[[], tuple[bytes, str]]) -> None:
    body, content_type = client()
    fields, files = read(io.BytesIO(body), content_type)
    assert fields == {"name": ["foo"], "requires_dist": ["a", "b"]}
    assert files == {"content": ("foo-1.0.tar.gz", b"bytes")}


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8))
def test_a_file_is_read_in_the_sizes_that_the_reader_asks_for(sizes: list[int]) -> None:
    content = bytes(range(200))
    got: list[bytes] = []

    def receive(part: FilePart) -> None:
        got.extend(part.read(size) for size in sizes)
        got.extend(part.pieces())

    read_form(InPieces(form_of([("content", "x", content)]), [7, 30]), CONTENT_TYPE, receive)
    assert b"".join(got) == content
    assert all(len(piece) == size for piece, size in zip(got, sizes, strict=False) if sum(sizes) <= len(content))


def test_what_the_receiver_leaves_is_skipped_and_the_form_goes_on() -> None:
    body = form_of([("content", "x", b"a" * 500_000), ("name", None, b"foo"), ("other", "y", b"b")])
    form = read_form(io.BytesIO(body), CONTENT_TYPE, lambda part: part.read(10))
    assert (form.fields, form.files) == ({"name": ["foo"]}, ["content", "other"])


def test_what_the_receiver_raises_ends_the_reading() -> None:
    def refuse(part: FilePart) -> None:
        raise Invalid("no")

    with pytest.raises(Invalid, match=r"^no$"):
        read_form(io.BytesIO(form_of([("content", "x", b"a")])), CONTENT_TYPE, refuse)


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "",
        "text/plain",
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/mixed; boundary=x",
        f"multipart/form-data; boundary={'x' * 71}",
        'multipart/form-data; boundary="a\0b"',
        "multipart/form-data; boundary*=utf-8''%FC",
    ],
)
def test_what_is_no_form_is_refused(content_type: str | None) -> None:
    with pytest.raises(Invalid):
        boundary_of(content_type)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"x" * 100_000, "longer than"),
        (f"--{BOUNDARY}\r\n".encode() + b"X: " + b"y" * 100_000, "longer than"),
        (f"--{BOUNDARY}\r\nX: y\r\n\r\nz\r\n--{BOUNDARY}--\r\n".encode(), "not a proper"),
        (f"--{BOUNDARY}\r\nContent-Disposition: form-data\r\n\r\nz\r\n--{BOUNDARY}--\r\n".encode(), "no name"),
        (f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="a\xff"\r\n\r\nz\r\n--{BOUNDARY}--\r\n'.encode("latin-1"), "not a proper"),
        (form_of([("a", None, b"z")]).replace(b"\r\n\r\n", b"\r\nContent-Transfer-Encoding: base64\r\n\r\n"), "RFC 7578"),
        (form_of([("name", None, b"\xff\xfe")]), "not UTF-8"),
        (form_of([("description", None, b"x" * 3000)]), "larger than"),
        (form_of([("description", None, b"x" * 900)] * 9), "larger than"),
        (form_of([("x", None, b"")] * 30), "more than 20 parts"),
        (b"", "before its last boundary"),
    ],
)
def test_a_hostile_form_is_refused_with_the_reason(body: bytes, words: str) -> None:
    for stream in (io.BytesIO(body), InPieces(body, [1000, 3])):
        with pytest.raises(Invalid, match=words):
            read(stream, limits=Limits(parts=20, field_bytes=1000, all_field_bytes=5000))


@given(st.binary(max_size=400))
def test_random_bytes_are_invalid_and_nothing_worse(noise: bytes) -> None:
    body = form_of([("name", None, b"foo"), ("content", "x", b"yz")])
    for spoilt in (noise, body[:60] + noise + body[60:], body[:20] + noise):
        with contextlib.suppress(Invalid):
            read(io.BytesIO(spoilt))


class Large:
    """A form with one part of `size` bytes, made while it is read; `block` repeats."""

    def __init__(self, size: int, block: bytes) -> None:
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="content"; filename="x"\r\n\r\n'.encode()
        self._pieces: Iterator[bytes] = iter((head, *(block for _ in range(size // len(block))), f"\r\n--{BOUNDARY}--\r\n".encode()))

    def read(self, size: int, /) -> bytes:
        return next(self._pieces, b"")


@pytest.mark.parametrize(
    "block",
    [hashlib.sha512(b"x").digest() * 1024, f"\r\n--{BOUNDARY[:-1]}_".encode() * 2048, b"-" * 65536],
    ids=["noise", "near", "dashes"],
)
def test_a_large_file_is_read_in_flat_memory_and_fast(block: bytes) -> None:
    size = 0

    def receive(part: FilePart) -> None:
        nonlocal size
        size += sum(len(piece) for piece in part.pieces())

    started = time.process_time()
    read_form(Large(64 * 1024 * 1024, block), CONTENT_TYPE, receive)
    # 800 MB/s where nothing else runs
    assert time.process_time() - started < 0.5
    assert size == 64 * 1024 * 1024 // len(block) * len(block)
    tracemalloc.start()
    try:
        read_form(Large(16 * 1024 * 1024, block), CONTENT_TYPE, receive)
        assert tracemalloc.get_traced_memory()[1] < 2 * 1024 * 1024
    finally:
        tracemalloc.stop()


def test_boundaries_that_are_never_finished_are_content_and_do_not_fill_the_memory() -> None:
    unfinished = f"\n--{BOUNDARY}-".encode()
    content = unfinished * 5_000
    tracemalloc.start()
    try:
        sizes: list[int] = []
        read_form(
            InPieces(form_of([("content", "x", content)]), [len(unfinished)]),
            CONTENT_TYPE,
            lambda part: sizes.extend(map(len, part.pieces())),
        )
        assert tracemalloc.get_traced_memory()[1] < 1024 * 1024
    finally:
        tracemalloc.stop()
    assert sum(sizes) == len(content)


def test_a_form_of_thousands_of_fields_lets_others_have_their_turns() -> None:
    turns: list[int] = []

    def other() -> None:
        while True:
            turns.append(1)
            gevent.sleep(0)

    running = gevent.spawn(other)
    form = form_of([(f"f{number}", None, b"x") for number in range(4000)])
    assert len(read_form(io.BytesIO(form), CONTENT_TYPE, lambda part: None).fields) == 4000
    running.kill()
    assert len(turns) > 40
