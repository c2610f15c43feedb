"""/repositories/{name}/artifacts and /search: what is in repositories."""

from __future__ import annotations

from typing import Any

from app.api.answers import Document, artifact_document, page_document
from app.api.blueprints import Blueprint
from app.api.management import management
from app.api.parsing import key_of, one
from app.api.schemas import ArtifactOut, ArtifactsQuery, FoundOut, PromotionIn, PromotionOut, SearchQuery, listed
from app.http.identity import caller
from app.http.parts import parts
from app.repository.listing import Filter
from app.repository.promoting import Selection
from app.repository.publishing import Target

blueprint = Blueprint("artifacts", "What is in repositories")


@blueprint.route("/repositories/<name>/artifacts")
@blueprint.arguments(ArtifactsQuery, location="query")
@blueprint.response(200, listed(ArtifactOut))
def list_artifacts(query: dict[str, Any], name: str) -> Document:
    """Artifacts that the caller may read, by path"""
    wanted = Filter(query["prefix"], query["q"])
    page = management().listing.artifacts(caller(), name, wanted, query["limit"], one(key_of(query["cursor"], str), ""))
    return page_document(page, artifact_document)


@blueprint.route("/repositories/<name>/artifacts/<artifact:path>")
@blueprint.response(200, ArtifactOut)
def show_artifact(name: str, path: str) -> Document:
    """One artifact; its path may have many segments"""
    return artifact_document(management().listing.artifact(caller(), name, path))


@blueprint.route("/repositories/<name>/artifacts/<artifact:path>", methods=["DELETE"])
@blueprint.response(204)
def delete_artifact(name: str, path: str) -> None:
    """Delete one artifact, and what belongs to it"""
    format_name = management().listing.format(caller(), name)
    parts().editor.delete(Target(format_name, name, caller()), [path])


@blueprint.route("/repositories/<name>/promotions", methods=["POST"])
@blueprint.arguments(PromotionIn)
@blueprint.response(200, PromotionOut)
def promote(body: dict[str, Any], name: str) -> Any:
    """Copy artifacts, or a version of a package, to another repository without moving bytes; all or nothing"""
    selection = Selection(body["paths"], body["package"], body["version"])
    return parts().promoter.promote(caller(), name, body["to"], selection)


@blueprint.route("/search")
@blueprint.arguments(SearchQuery, location="query")
@blueprint.response(200, listed(FoundOut))
def search(query: dict[str, Any]) -> Document:
    """Artifacts by what their path contains, in all repositories that the caller may read; a page may be short and still have a next one"""
    after = key_of(query["cursor"], str, str) or ("", "")
    page = management().listing.search(caller(), Filter(words=query["q"]), query["limit"], tuple(after))
    return page_document(page, artifact_document)
