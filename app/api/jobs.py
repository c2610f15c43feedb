"""/jobs: what runs by itself, who ran it last, and how that went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection

from app.access.authority import Authority
from app.api.answers import Document, page_document
from app.api.blueprints import Blueprint
from app.api.parsing import key_of, one
from app.api.schemas import JobOut, JobRunIn, PageQuery, listed
from app.cluster import schedule
from app.cluster.schedule import Entry
from app.database.paging import Page
from app.errors import NotFound
from app.http.identity import caller
from app.http.parts import parts
from app.repository.mirrors.settings import followers

blueprint = Blueprint("jobs", "What runs by itself")


@blueprint.route("/jobs")
@blueprint.arguments(PageQuery, location="query")
@blueprint.response(200, listed(JobOut))
def list_jobs(query: dict[str, Any]) -> Document:
    """Jobs by name: how often, who ran it last, when, how long, what came of it, and when it runs next (administrators)"""
    house, after, limit = parts(), one(key_of(query["cursor"], str), ""), query["limit"]
    with house.database.read() as connection:
        _require_administrator(connection)
        found, names = [each for each in schedule.entries(connection) if each.name > after], followers(connection)
    page = Page(found[:limit], (found[limit - 1].name,) if len(found) > limit else None)
    return page_document(page, lambda entry: _job_document(entry, names))


@blueprint.route("/jobs/runs", methods=["POST"])
@blueprint.arguments(JobRunIn)
@blueprint.response(202, JobOut)
def run_job(body: dict[str, Any]) -> Document:
    """Let a job run within seconds, or once more when it runs already; the answer does not wait for it (administrators)"""
    house, name = parts(), body["name"]
    with house.database.write() as connection:
        _require_administrator(connection)
        if not schedule.ask(connection, name):
            raise NotFound(f"there is no job {name!r}; GET /api/v1/jobs lists those that there are")
        found, names = next(each for each in schedule.entries(connection) if each.name == name), followers(connection)
    house.schedule.changed.set()
    return _job_document(found, names)


def _require_administrator(connection: Connection) -> None:
    Authority(parts().identities).administrator(connection, caller())


def _job_document(entry: Entry, followers: Mapping[str, str]) -> Document:
    return asdict(entry) | {"repository": followers.get(entry.name), "state": _state(entry)}


def _state(entry: Entry) -> str:
    if not entry.running:
        return "waiting"
    # In a cluster a runner that lives has a lease that is not over.
    return "running" if entry.due_in > 0 or not parts().settings.cluster else "lost"
