"""Reads asked by the short path and by the long one: whatever a test asks for, both must answer with the same bytes."""

from __future__ import annotations

import time
from typing import Any

from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from app.http import shortpath
from app.http.parts import Parts
from app.http.reads import Addresses, Reads


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
        answers, differences = self._ask_each_way(client, path, method, options)
        if "last-modified" in differences:
            # What was stored in this very second is told as of now, until its own has passed.
            time.sleep(2)
            answers, differences = self._ask_each_way(client, path, method, options)
        assert not differences, f"{method} {path}: the short path and the long one differ in {differences}"
        return answers[2]

    def _ask_each_way(self, client: FlaskClient, path: str, method: str, options: Any) -> tuple[list[TestResponse], list[str]]:
        try:
            answers = []
            for self.short.is_open in (True, False, True):
                answers.append(client.open(path, method=method, **options))
        finally:
            self.short.is_open = True
        told = [
            {"": (each.status, each.data, [name for name, _ in each.headers])} | {name.lower(): value for name, value in each.headers}
            for each in answers
        ]
        names = dict.fromkeys(name for each in told for name in each)
        return answers, [name for name in names if any(each.get(name) != told[0].get(name) for each in told)]


def both_ways(app: Flask, parts: Parts, *rooms: Reads) -> BothWays:
    """For an application that a test put together."""
    shortpath.put_before(app, parts, Addresses(rooms), lambda *_: None)
    return BothWays(app)
