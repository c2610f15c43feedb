"""Files are taken out of a document wherever the pieces in which it comes end."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import BodyCutShort, Invalid, TooLarge
from app.protocols.npm import splitting
from app.protocols.npm.splitting import Rest, Splitter, Take, marker


def split(document: bytes, step: int) -> tuple[Any, list[bytes], bool]:
    """The rest parsed, the files, and whether the rest was handed on."""
    body, files, spilled = io.BytesIO(document), [bytearray()], bytearray()
    files.clear()
    handed: list[bool] = []

    def attach() -> Take:
        files.append(bytearray())
        return files[-1].extend

    def spill() -> Take:
        handed.append(True)
        return spilled.extend

    rest = Rest(spill)
    Splitter(rest, attach).read(lambda _: body.read(step))
    return json.loads(bytes(spilled) if handed else bytes(rest.kept)), [bytes(each) for each in files], bool(handed)


def document_of(content: bytes, *, slashes: bool = False, **more: Any) -> bytes:
    attached = {"data": base64.b64encode(content).decode(), "length": len(content)}
    text = json.dumps({**more, "_attachments": {"p.tgz": attached}, "last": '"\\'})
    return (text.replace("/", "\\/") if slashes else text).encode()


@settings(max_examples=60)
@given(
    length=st.integers(48 * 1024, 200_000),
    step=st.sampled_from([1000, 4096, 65_536, 65_537, 1 << 20]),
    slashes=st.booleans(),
    text=st.text(max_size=200),
)
def test_a_long_file_is_taken_out_and_the_rest_is_left_as_it_is(length: int, step: int, slashes: bool, text: str) -> None:
    data = (b"\xff\xef\xbe" * (length // 3 + 1))[:length]
    rest, files, _ = split(document_of(data, slashes=slashes, readme=text), step)
    sent = base64.b64encode(data).replace(b"/", b"\\/" if slashes else b"/")
    taken = len(sent) >= splitting.LONG_TEXT
    told = rest["_attachments"]["p.tgz"]["data"]
    assert files == ([data] if taken else [])
    assert told == marker(0) if taken else base64.b64decode(told) == data
    assert (rest["readme"], rest["last"]) == (text, '"\\')


def test_other_long_texts_stay_and_a_long_rest_is_handed_on() -> None:
    readme = 'x "data": "' * 100_000
    rest, files, handed = split(document_of(bytes(300_000), readme=readme, data={"data": "short"}), 10_000)
    assert (rest["readme"], rest["data"], files, handed) == (readme, {"data": "short"}, [bytes(300_000)], True)


def test_a_bundle_that_is_no_base64_stays_in_the_document() -> None:
    bundle = json.dumps({"payload": "A" * 200_000})
    rest, files, _ = split(json.dumps({"_attachments": {"p.sigstore": {"data": bundle}}}).encode(), 10_000)
    assert (rest["_attachments"]["p.sigstore"]["data"], files) == (bundle, [])


@pytest.mark.parametrize(
    "wrong", ["A" * 100_001, "A" * 100_000 + "=A==", "A" * 70_000 + "*" + "A" * 70_000, "AA==" * 40_000, "A" * 99_998 + "\\n"]
)
@pytest.mark.parametrize("step", [30_000, 1 << 20])
def test_broken_base64_is_refused_or_left_for_who_decodes_it(wrong: str, step: int) -> None:
    document = b'{"data": "' + wrong.encode() + b'"}'
    try:
        rest, files, _ = split(document, step)
    except Invalid:
        return
    assert files == []
    with pytest.raises(Invalid):
        splitting.decode(rest["data"])


@pytest.mark.parametrize("end", [20, 100_000])
def test_a_document_that_ends_in_a_text_was_cut_short(end: int) -> None:
    with pytest.raises(BodyCutShort):
        split(document_of(bytes(300_000), readme="x" * 40)[:end], 10_000)


def test_what_is_not_a_file_is_bounded() -> None:
    with pytest.raises(TooLarge):
        split(b'{"readme": "' + b"x" * (splitting.LONGEST_TEXT + 2_000_000), 1 << 20)
    rest = Rest(lambda: lambda _: None)
    for _ in range(64):
        rest.add(bytes(1 << 20))
    with pytest.raises(TooLarge):
        rest.add(b"x")
