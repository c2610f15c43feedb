"""Warm reads through a proxy and through groups, beside the same file in a hosted repository."""

from __future__ import annotations

import os
from pathlib import Path

from bench import client, floors
from bench.client import request
from bench.report import Bar, Section, Table, median, spread
from bench.server import House, house
from bench.small import CONNECTIONS, SIZE, Question, Rounds, ask, share_of

# A warm read through a group or a proxy costs at most 1.3 hosted ones.
LEAST_OF_HOSTED = 1 / 1.3
PATH = "folder/small"
EMPTY = ("first", "second", "third", "fourth")

TEXT = """A file of {size} bytes, already asked for once, over {connections} connections that each wait for their answer; one web process,
access log on. The proxy has its copy of it. One group has it in its first member, which is hosted; the other in the last of five, the
proxy, behind four hosted members that do not have it. Each request walks through the members anew."""


def run(folder: Path, quick: bool) -> Section:
    seconds, rounds = (0.7, 2) if quick else (2.0, 5)
    file = folder / "upstream-file"
    file.write_bytes(os.urandom(SIZE))
    with house(folder, "kinds") as place, floors.sendfile_server(file) as (port, _), client.workers() as pool:
        _fill(place, port)
        found = {question: Rounds() for question in _questions(place)}
        for _ in range(rounds):
            for question, figures in found.items():
                ask(pool, question, figures, seconds)
    return _section(found)


def _fill(place: House, upstream: int) -> None:
    server = place.server
    answer = server.put(f"/raw/public/{PATH}", os.urandom(SIZE))
    assert answer.status_code == 201, answer.text
    for name in EMPTY:
        server.repository(name)
    settings = {"mutable_ttl": 3600}
    server.repository("copies", kind="proxy", public=True, upstream_url=f"http://127.0.0.1:{upstream}", settings=settings)
    server.repository("near", kind="group", public=True, members=["public", "copies"])
    server.repository("far", kind="group", public=True, members=[*EMPTY, "copies"])
    for name in ("copies", "far"):
        answer = server.get(f"/raw/{name}/{PATH}")
        assert (answer.status_code, len(answer.content)) == (200, SIZE), answer.text


def _questions(place: House) -> list[Question]:
    pids = tuple(place.processes())
    names = {
        "hosted": "public", "proxy": "copies", "group, in its first member": "near", "group of five, in the last, a proxy": "far",
    }  # fmt: skip
    return [Question(title, request("GET", f"/raw/{name}/{PATH}"), place.port, pids) for title, name in names.items()]


def _section(found: dict[Question, Rounds]) -> Section:
    table = Table(("warm", "requests per second", "share of the hosted rate", "CPU µs per request", "times the hosted CPU"))
    hosted, *others = found.values()
    for question, figures in found.items():
        share, cost = f"{share_of(figures, hosted):.2f}", f"{median(figures.micros) / median(hosted.micros):.2f}"
        table.rows.append((question.name, spread(figures.rates, ".0f"), share, spread(figures.micros, ".0f"), cost))
    worst = min(share_of(each, hosted) for each in others)
    promise = "rate of warm downloads of 10 KiB through a proxy or a group, beside a hosted repository"
    bar = Bar(promise, f"at least {LEAST_OF_HOSTED:.2f}", f"{worst:.2f}", worst >= LEAST_OF_HOSTED)
    return Section("Through proxies and groups", TEXT.format(size=SIZE, connections=CONNECTIONS), [bar], [table])
