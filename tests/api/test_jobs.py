"""`/api/v1/jobs` and `arkvory jobs`: what runs by itself, beside a running server and without one."""

from __future__ import annotations

import json

from tests.api.test_management import problem, user
from tests.cli.test_arkvory import arkvory
from tests.support.house import eventually
from tests.support.server import Server


def job(server: Server, name: str) -> dict[str, object]:
    found = server.get("/api/v1/jobs").json()["items"]
    return next((each for each in found if each["name"] == name), {})


def test_jobs_show_what_ran_and_when_it_runs_next(server: Server) -> None:
    eventually(lambda: job(server, "cleanup").get("outcome") == "done", 20)
    found = job(server, "cleanup")
    assert (found["state"], found["runner"], found["failures"], found["every_seconds"]) == ("waiting", "this server", 0, 60.0)
    assert str(found["next_at"]) > str(found["succeeded_at"]) >= str(found["began_at"])


def test_an_administrator_lets_a_job_run_at_once(server: Server) -> None:
    eventually(lambda: job(server, "cleanup").get("outcome") == "done", 20)
    before = str(job(server, "cleanup")["began_at"])
    there = {"ARKVORY_DATA_DIR": str(server.data)}
    assert arkvory("jobs", "run", "cleanup", **there).stdout.startswith("cleanup begins within seconds")
    eventually(lambda: str(job(server, "cleanup")["began_at"]) > before, 20)
    shown = arkvory("jobs", **there).stdout.splitlines()
    assert shown[0].split()[:5] == ["JOB", "REPOSITORY", "EVERY", "STATE", "RUNNER"] and any(line.startswith("cleanup  ") for line in shown)
    assert {each["name"] for each in json.loads(arkvory("jobs", "--json", **there).stdout)} >= {"cleanup"}
    problem(server.post("/api/v1/jobs/runs", json={"name": "none"}), 404, "not_found")


def test_jobs_are_for_administrators(server: Server) -> None:
    someone = user(server, "watcher")
    problem(server.get("/api/v1/jobs", auth=someone), 403, "forbidden")
    problem(server.post("/api/v1/jobs/runs", json={"name": "cleanup"}, auth=someone), 403, "forbidden")
    problem(server.get("/api/v1/jobs", auth=None), 401, "unauthenticated")
