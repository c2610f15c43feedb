"""Reads asked by the short path and by the long one: whatever a test asks for, both must answer with the same bytes."""

from __future__ import annotations

from typing import Any

from flask import Flask
from werkzeug.test import TestResponse

from app.http import shortpath
from app.http.parts import Parts
from app.http.reads import Reads


class BothWays:
    """A client of an application that asks each GET and HEAD three times: short and perhaps cold, long, short and warm."""

    def __init__(self, app: Flask) -> None:
        self.app = app
        self.short: shortpath.ShortPath = app.extensions["arkvory.shortpath"]

    def open(self, path: str, *, method: str, **options: Any) -> TestResponse:
        """The last answer, after it was seen to be like the others; to other methods the only one."""
        client = self.app.test_client()
        if method not in ("GET", "HEAD"):
            return client.open(path, method=method, **options)
        try:
            answers = []
            for self.short.is_open in (True, False, True):
                answers.append(client.open(path, method=method, **options))
        finally:
            self.short.is_open = True
        told = [(each.status, list(each.headers), each.data) for each in answers]
        assert told[0] == told[1] == told[2], f"{method} {path}: the short path and the long one differ"
        return answers[2]


def both_ways(app: Flask, parts: Parts, *rooms: Reads) -> BothWays:
    """For an application that a test put together."""
    shortpath.put_before(app, parts, rooms, lambda *_: None)
    return BothWays(app)
