from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocols.pypi.negotiation import HTML, HTML_V1, JSON, Representation, negotiate, unacceptable

PIP = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html; q=0.1, text/html; q=0.01"
UV = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.01"
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
V1 = "application/vnd.pypi.simple.v1"
LATEST = "application/vnd.pypi.simple.latest"


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (PIP, JSON),
        (UV, JSON),
        (BROWSER, HTML),
        (None, HTML),
        ("", HTML),
        ("  ", HTML),
        ("*/*", HTML),
        ("*/*;q=0.1", HTML),
        ("text/html", HTML),
        ("TEXT/HTML", HTML),
        ("text/*", HTML),
        ("text/html; charset=utf-8", HTML),
        (f"{V1}+json", JSON),
        (f"{V1}+html", HTML_V1),
        (f"{LATEST}+json", JSON),
        (f"{LATEST}+html", HTML_V1),
        ("application/*", JSON),
        (f"{V1}+json;q=0.2, {V1}+html;q=0.9", HTML_V1),
        (f"{V1}+json;q=0, {LATEST}+html", HTML_V1),
        (f"{V1}+json;q=0, */*", HTML),
        (f"text/html;q=0, {V1}+json;q=0, */*;q=0.5", HTML_V1),
        ("text/html;q=0.5, */*", JSON),
        (f"{V1}+json, */*", JSON),
        (f"{V1}+json, text/html", JSON),
        (f"*/*, {V1}+html;q=0.5", HTML),
        ("text/*, application/*;q=0.9", HTML),
        (f"{V1}+json;q=0.001, text/plain", JSON),
        (f"text/html;q=0.3, {V1}+json;q=0.301, text/*;q=0.9", JSON),
        ("application/vnd.pypi.simple.v2+json, text/html;q=0.1", HTML),
        (f"nonsense, ;;;, {V1}+json", JSON),
    ],
)
def test_the_client_gets_the_form_that_it_weighs_most(accept: str | None, expected: Representation) -> None:
    assert negotiate(accept) is expected


@pytest.mark.parametrize(
    "accept",
    [
        "application/vnd.pypi.simple.v2+json",
        "application/json",
        "image/png",
        "text/html;q=0",
        "*/*;q=0",
        f"{V1}+json;q=0, application/*;q=0",
        "nonsense",
    ],
)
def test_who_accepts_none_of_our_forms_gets_none(accept: str) -> None:
    assert negotiate(accept) is None
    assert JSON.media_type in unacceptable()


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (f"{V1}+json", JSON),
        (f"{V1} json", JSON),
        (f"{LATEST}+html", HTML_V1),
        ("text/html", HTML),
        ("application/vnd.pypi.simple.v2+json", None),
        ("", None),
    ],
)
def test_the_address_goes_before_the_header(wanted: str, expected: Representation | None) -> None:
    assert negotiate("text/html", wanted) is expected
    assert negotiate(f"{V1}+json", wanted) is expected


@given(
    st.text(max_size=60)
    | st.lists(st.sampled_from(["text/html", "*/*", ";q=", "0.5", ",", f"{V1}+json", '"', " ", "q"]), max_size=12).map("".join)
)
def test_no_header_is_an_error(accept: str) -> None:
    assert negotiate(accept) in (JSON, HTML_V1, HTML, None)
