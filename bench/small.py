"""Small requests: warm downloads beside a bare application, pip's page, uploads, and memory after many of everything."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from bench import client, floors
from bench.client import request
from bench.publishing import PIP, wheel_upload
from bench.report import Bar, Section, Table, median, megabytes, spread
from bench.server import House, cpu_seconds, house, proportional_bytes, resident_bytes, settle, tree
from tests.support.server import free_port

SIZE = 10240
CONNECTIONS = 16
LEAST_OF_FLOOR = 0.6
LEAST_OF_PUBLIC = 0.85
VERSIONS = 20
PAGE = "/pypi/python/simple/sample/"
FILE = request("GET", "/raw/public/folder/small")

TEXT = """Files of {size} bytes, already asked for once, over {connections} connections that each wait for their answer; one web process,
access log on. The floor is an application of six lines under the same worker class that opens the file and sends it: what is above it is
the price of routing, identity, permission, gate and headers. CPU is that of all gunicorn processes. pip's page is the Simple API's JSON of
a project with {versions} wheels, as pip asks for it."""

PUT_TEXT = """PUTs of {size} bytes each to new paths with a token: each is hashed, fsynced, placed, and committed before its answer. The
floor writes, fsyncs and renames a file and fsyncs its folder, one after the other, without any database."""

MEMORY_TEXT = """A fresh server answers {count:,} requests over 8 connections: 30 % public and 30 % private downloads, 15 % pip's page, 10 %
listings, 5 % HEAD, 5 % for a path that does not exist, 5 % PUTs of {size} bytes to new paths. Memory of gunicorn's processes."""


@dataclass
class Rounds:
    rates: list[float] = field(default_factory=list)
    micros: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Question:
    """A request to repeat, of which server and processes."""

    name: str
    asked: bytes
    port: int
    pids: tuple[int, ...]
    status: int = 200


def run(folder: Path, quick: bool) -> list[Section]:
    with house(folder, "small") as place, client.workers() as pool:
        _fill(place)
        sections = [_warm(pool, place, folder, quick), _puts(pool, place, folder, quick)]
    with house(folder, "mixed") as place, client.workers() as pool:
        _fill(place)
        return [*sections, _mixed(pool, place, 2_000 if quick else 10_000)]


def _fill(place: House) -> None:
    """A file of random bytes in either raw repository and a project with wheels."""
    for repository in ("public", "private"):
        answer = place.server.put(f"/raw/{repository}/folder/small", os.urandom(SIZE))
        assert answer.status_code == 201, answer.text
    headers = dict([place.authorization.split(": ", 1)])
    wheels = [wheel_upload("/pypi/python/", headers, "sample", f"1.{number}", 0) for number in range(VERSIONS)]
    client.walk(place.port, wheels)


# Warm reads


def _warm(pool: ProcessPoolExecutor, place: House, folder: Path, quick: bool) -> Section:
    seconds, rounds = (0.7, 2) if quick else (2.0, 5)
    with bare_server(folder) as (port, pid):
        questions = [Question("floor: bare application", FILE, port, tuple(tree(pid))), *_questions(place)]
        found = {question: Rounds() for question in questions}
        for _ in range(rounds):
            for question, figures in found.items():
                ask(pool, question, figures, seconds)
    table = Table(("warm", "requests per second", "share of the floor's rate", "CPU µs per request", "times the floor's CPU"))
    floor, public, private, *_ = found.values()
    for question, figures in found.items():
        share, cost = f"{share_of(figures, floor):.2f}", f"{median(figures.micros) / median(floor.micros):.2f}"
        table.rows.append((question.name, spread(figures.rates, ".0f"), share, spread(figures.micros, ".0f"), cost))
    section = Section("Small warm downloads", TEXT.format(size=SIZE, connections=CONNECTIONS, versions=VERSIONS), tables=[table])
    for promise, least, measured in (
        ("rate of warm downloads of 10 KiB, beside a bare application", LEAST_OF_FLOOR, share_of(public, floor)),
        ("the same with a token, beside the public rate", LEAST_OF_PUBLIC, share_of(private, public)),
    ):
        section.bars.append(Bar(promise, f"at least {least}", f"{measured:.2f}", measured >= least))
    return section


def share_of(figures: Rounds, of: Rounds) -> float:
    """Median of the rounds' ratios of rates."""
    return median([rate / other for rate, other in zip(figures.rates, of.rates, strict=True)])


def _questions(place: House) -> list[Question]:
    port, pids = place.port, tuple(place.processes())
    page = place.server.get(PAGE, auth=None, headers=dict(line.split(": ", 1) for line in PIP))
    unchanged = f"If-None-Match: {page.headers['ETag']}"
    return [
        Question("public file", FILE, port, pids),
        Question("private file, token, access rule", request("GET", "/raw/private/folder/small", place.authorization), port, pids),
        Question("pip's page of a project", request("GET", PAGE, *PIP), port, pids),
        Question("the same, unchanged (304)", request("GET", PAGE, *PIP, unchanged), port, pids, 304),
        Question("`/health/live`", request("GET", "/health/live"), port, pids),
    ]


def ask(pool: ProcessPoolExecutor, question: Question, figures: Rounds, seconds: float) -> None:
    pool.submit(client.load, question.port, [question.asked], 1, 0.1, (question.status,)).result()
    before = cpu_seconds(question.pids)
    found = pool.submit(client.load, question.port, [question.asked], CONNECTIONS, seconds, (question.status,)).result()
    figures.rates.append(found.rate)
    figures.micros.append((cpu_seconds(question.pids) - before) / found.count * 1e6)


@contextlib.contextmanager
def bare_server(folder: Path) -> Iterator[tuple[int, int]]:
    """`bench.bare` under gunicorn with Arkvory's worker class: (port, process id of the master)."""
    file, port = folder / "bare-file", free_port()
    file.write_bytes(os.urandom(SIZE))
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    with (folder / "bare.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", "--worker-class", "app.http.worker.Worker", "--bind", f"127.0.0.1:{port}", "bench.bare:app"],
            cwd=floors.ROOT, env=environment | {"ARKVORY_BENCH_FILE": str(file)}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        client.wait_for(port)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait(30)


# Small uploads


def _puts(pool: ProcessPoolExecutor, place: House, folder: Path, quick: bool) -> Section:
    count, rounds = (60, 2) if quick else (200, 3)
    floor, one, four = Rounds(), Rounds(), Rounds()
    for number in range(rounds):
        seconds = pool.submit(floors.small_files_seconds, folder / "small-files", count, SIZE).result()
        floor.rates.append(count / seconds)
        for connections, figures in ((1, one), (4, four)):
            settle(place.processes, 2.0)
            requests = [_put(place, f"puts/{number}/{connections}/{each}") for each in range(count)]
            before = cpu_seconds(place.processes())
            figures.rates.append(pool.submit(client.load, place.port, requests, connections, 0, (201,)).result().rate)
            figures.micros.append((cpu_seconds(place.processes()) - before) / count * 1e6)
    table = Table(("PUT", "per second", "CPU µs each", "share of the floor's speed"))
    for name, each in (("one connection", one), ("four connections", four), ("floor: files alone", floor)):
        micros = spread(each.micros, ".0f") if each.micros else "-"
        table.rows.append((name, spread(each.rates, ".0f"), micros, f"{median(each.rates) / median(floor.rates):.2f}"))
    return Section("Small uploads", PUT_TEXT.format(size=SIZE), tables=[table])


def _put(place: House, path: str) -> bytes:
    return request("PUT", f"/raw/private/{path}", place.authorization, body=os.urandom(SIZE))


# Memory


def _mixed(pool: ProcessPoolExecutor, place: House, count: int) -> Section:
    table = Table(("requests", "resident, MB", "PSS, MB"))
    done = 0
    for wanted in (0, count // 10, count // 2, count):
        if wanted > done:
            pool.submit(client.load, place.port, _mix(place, done, wanted), 8, 0, (200, 201, 404)).result()
            done = wanted
        pids = place.processes()
        table.rows.append((f"{done:,}", megabytes(resident_bytes(pids)), megabytes(proportional_bytes(pids))))
    return Section("Memory after many requests", MEMORY_TEXT.format(count=count, size=SIZE), tables=[table])


def _mix(place: House, start: int, end: int) -> list[bytes]:
    chooser = random.Random(start)
    kinds = chooser.choices(list(_KINDS), list(_KINDS.values()), k=end - start)
    return [_one_of(place, kind, number) for number, kind in enumerate(kinds, start)]


_KINDS = {"public": 30, "private": 30, "page": 15, "listing": 10, "head": 5, "nothing": 5, "put": 5}


def _one_of(place: House, kind: str, number: int) -> bytes:
    match kind:
        case "private":
            return request("GET", "/raw/private/folder/small", place.authorization)
        case "page":
            return request("GET", PAGE, *PIP)
        case "listing":
            return request("GET", "/raw/public/folder/")
        case "head":
            return request("HEAD", "/raw/public/folder/small")
        case "nothing":
            return request("GET", f"/raw/public/nothing/{number}")
        case "put":
            return _put(place, f"mixed/{number}")
        case _:
            return FILE
