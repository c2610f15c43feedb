"""/repositories/{name}/mirror: what a repository follows, and how far that is; /mirrors: all of them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from flask import Response, jsonify

from app.api.answers import Document, page_document
from app.api.blueprints import Blueprint
from app.api.management import management
from app.api.parsing import key_of, one
from app.api.schemas import MirrorOut, MirrorProgressOut, MirrorRefusedOut, MirrorRunIn, MirrorSettingsIn, PageQuery, listed
from app.http.identity import caller
from app.repository.mirrors.settings import Mirror, MirrorSettings

blueprint = Blueprint("mirrors", "Repositories that follow an upstream's list")


@blueprint.route("/mirrors")
@blueprint.arguments(PageQuery, location="query")
@blueprint.response(200, listed(MirrorProgressOut))
def list_mirrors(query: dict[str, Any]) -> Document:
    """Mirrors of repositories that the caller manages, by name: state, lag, next run"""
    after = one(key_of(query["cursor"], str), "")
    return page_document(management().mirrors.list(caller(), query["limit"], after), asdict)


@blueprint.route("/repositories/<name>/mirror")
@blueprint.response(200, MirrorOut)
def show_mirror(name: str) -> Document:
    """What a repository follows, with state, lag and the last errors"""
    return _document(management().mirrors.show(caller(), name))


@blueprint.route("/repositories/<name>/mirror", methods=["PUT"])
@blueprint.arguments(MirrorSettingsIn)
@blueprint.response(200, MirrorOut)
@blueprint.otherwise(201, MirrorOut)
def follow(body: dict[str, Any], name: str) -> Document | Response:
    """Follow an upstream's list on a schedule; the first run begins at once, and what is absent takes its default"""
    mirror = management().mirrors.put(caller(), name, MirrorSettings(**body))
    if not mirror.created:
        return _document(mirror)
    answer = jsonify(MirrorOut().dump(_document(mirror)))
    answer.status_code = 201
    return answer


@blueprint.route("/repositories/<name>/mirror", methods=["PATCH"])
@blueprint.arguments(MirrorSettingsIn)
@blueprint.response(200, MirrorOut)
def update_mirror(body: dict[str, Any], name: str) -> Document:
    """Change what is named of a mirror, and leave the rest as it is; the next run begins at once"""
    return _document(management().mirrors.change(caller(), name, body))


@blueprint.route("/repositories/<name>/mirror", methods=["DELETE"])
@blueprint.response(204)
def unfollow(name: str) -> None:
    """Follow nothing any more; what was copied stays"""
    management().mirrors.delete(caller(), name)


@blueprint.route("/repositories/<name>/mirror/run", methods=["POST"])
@blueprint.arguments(MirrorRunIn)
@blueprint.response(202, MirrorOut)
def run_mirror(body: dict[str, Any], name: str) -> Document:
    """Run it now, whatever the schedule says"""
    return _document(management().mirrors.run(caller(), name, anew=body["anew"]))


@blueprint.route("/repositories/<name>/mirror/refused")
@blueprint.arguments(PageQuery, location="query")
@blueprint.response(200, listed(MirrorRefusedOut))
def list_refused(query: dict[str, Any], name: str) -> Document:
    """Files that the upstream has and the mirror refused, by path: why, and when they are tried again"""
    after = one(key_of(query["cursor"], str), "")
    return page_document(management().mirrors.refused(caller(), name, query["limit"], after), asdict)


def _document(mirror: Mirror) -> Document:
    return asdict(mirror)
