"""/cluster: the processes that work on one database, and what went wrong between them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from app.api.answers import Document
from app.api.blueprints import Blueprint
from app.api.management import management
from app.api.schemas import ClusterOut, ClusterQuery, DeadLettersQuery, DeletedOut
from app.http.identity import caller
from app.http.parts import parts
from app.repository.inspection import Belief

blueprint = Blueprint("cluster", "The processes that work together")


@blueprint.route("/cluster")
@blueprint.arguments(ClusterQuery, location="query")
@blueprint.response(200, ClusterOut)
def show_cluster(query: dict[str, Any]) -> Document:
    """Who is there, what lies unread, what failed; with `repository` also what this process believes of it (administrators)"""
    report = management().inspection.report(caller(), query["repository"])
    shown = asdict(report) | {"repository": None if report.repository is None else _belief_document(report.repository)}
    return shown | {"deployment": "cluster" if parts().settings.cluster else "single"}


@blueprint.route("/cluster/dead-letters", methods=["DELETE"])
@blueprint.arguments(DeadLettersQuery, location="query")
@blueprint.response(200, DeletedOut)
def delete_dead_letters(query: dict[str, Any]) -> Document:
    """Delete messages that failed, once they were looked at; none is ever applied again (administrators)"""
    return {"deleted": management().inspection.delete_dead_letters(caller(), query["up_to"])}


def _belief_document(belief: Belief) -> Document:
    believed = None if belief.believed is None else belief.believed._asdict()
    return asdict(belief) | {"believed": believed, "database": belief.database._asdict(), "behind": belief.behind}
