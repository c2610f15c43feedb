"""/repositories: the repositories themselves, their rules and their usage."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from flask import Response, jsonify, request

from app.access.deploying import NewDeployToken
from app.access.rules import NewRule
from app.api.answers import Document, page_document, repository_document, usage_document
from app.api.blueprints import PREFIX, Blueprint
from app.api.management import management
from app.api.parsing import key_of, one
from app.api.schemas import (
    DeployTokenOut,
    MemberOut,
    NewDeployTokenIn,
    NewDeployTokenOut,
    NewRepositoryIn,
    NewRuleIn,
    PageQuery,
    RepositoriesQuery,
    RepositoryChangeIn,
    RepositoryOut,
    RuleOut,
    UsageOut,
    WarningsOut,
    listed,
)
from app.http.addresses import public_base
from app.http.identity import caller
from app.repository.registry import NewRepository, RepositoryChange

blueprint = Blueprint("repositories", "Repositories, who may use them, and what they take up")
Created = tuple[Document, int, dict[str, str]]


@blueprint.route("/repositories")
@blueprint.arguments(RepositoriesQuery, location="query")
@blueprint.response(200, listed(RepositoryOut))
def list_repositories(query: dict[str, Any]) -> Document:
    """Repositories that the caller may know of, by name"""
    after = one(key_of(query["cursor"], str), "")
    page = management().registry.list(caller(), query["limit"], after, query["format"])
    return page_document(page, repository_document)


@blueprint.route("/repositories", methods=["POST"])
@blueprint.arguments(NewRepositoryIn)
@blueprint.response(201, RepositoryOut)
def create_repository(body: dict[str, Any]) -> Created:
    """Create a repository"""
    made = repository_document(management().registry.create(caller(), NewRepository(**body)))
    return made, 201, {"Location": f"{public_base(request)}{PREFIX}/repositories/{made['name']}"}


@blueprint.route("/repositories/<name>")
@blueprint.response(200, RepositoryOut)
def show_repository(name: str) -> Document:
    """One repository, with its epochs and its client address"""
    return repository_document(management().registry.show(caller(), name))


@blueprint.route("/repositories/<name>", methods=["PATCH"])
@blueprint.arguments(RepositoryChangeIn)
@blueprint.response(200, RepositoryOut)
def update_repository(body: dict[str, Any], name: str) -> Document:
    """Change a repository; binds on the next request"""
    return repository_document(management().registry.update(caller(), name, RepositoryChange(body)))


@blueprint.route("/repositories/<name>", methods=["DELETE"])
@blueprint.response(204)
@blueprint.otherwise(200, WarningsOut)
def delete_repository(name: str) -> Response | None:
    """Delete a repository and all that is in it; 200 with `warnings` where groups lose a member, else 204"""
    losses = management().registry.delete(caller(), name)
    return jsonify({"warnings": list(losses)}) if losses else None


@blueprint.route("/repositories/<name>/usage")
@blueprint.response(200, UsageOut)
def show_usage(name: str) -> Document:
    """Bytes by status, quota and how full it is, number of artifacts, downloads"""
    return usage_document(management().listing.usage(caller(), name))


@blueprint.route("/repositories/<name>/members")
@blueprint.arguments(PageQuery, location="query")
@blueprint.response(200, listed(MemberOut))
def list_members(query: dict[str, Any], name: str) -> Document:
    """Members of a group, in the order in which they are asked; PATCH of the group changes them"""
    page = management().registry.members(caller(), name, query["limit"], one(key_of(query["cursor"], int), 0))
    return page_document(page, asdict)


@blueprint.route("/repositories/<name>/rules")
@blueprint.arguments(PageQuery, location="query")
@blueprint.response(200, listed(RuleOut))
def list_rules(query: dict[str, Any], name: str) -> Document:
    """Access rules, by id"""
    page = management().rules.list(caller(), name, query["limit"], one(key_of(query["cursor"], int), 0))
    return page_document(page, lambda rule: rule)


@blueprint.route("/repositories/<name>/rules", methods=["POST"])
@blueprint.arguments(NewRuleIn)
@blueprint.response(201, RuleOut)
def add_rule(body: dict[str, Any], name: str) -> Any:
    """Add an access rule; binds on the next request"""
    return management().rules.add(caller(), name, NewRule(**body))


@blueprint.route("/repositories/<name>/rules/<int:id>", methods=["DELETE"])
@blueprint.response(204)
def delete_rule(name: str, id: int) -> None:
    """Remove an access rule; binds on the next request"""
    management().rules.delete(caller(), name, min(id, 2**63 - 1))


@blueprint.route("/repositories/<name>/deploy-tokens")
@blueprint.arguments(PageQuery, location="query")
@blueprint.response(200, listed(DeployTokenOut))
def list_deploy_tokens(query: dict[str, Any], name: str) -> Document:
    """Deploy tokens of a repository, by id; never their secrets"""
    page = management().deploy_tokens.list(caller(), name, query["limit"], one(key_of(query["cursor"], int), 0))
    return page_document(page, lambda token: token)


@blueprint.route("/repositories/<name>/deploy-tokens", methods=["POST"])
@blueprint.arguments(NewDeployTokenIn)
@blueprint.response(201, NewDeployTokenOut)
def create_deploy_token(body: dict[str, Any], name: str) -> Created:
    """Create a deploy token, which belongs to the repository; its secret is shown in this answer only"""
    token, secret = management().deploy_tokens.create(caller(), name, NewDeployToken(**body))
    location = f"{public_base(request)}{PREFIX}/repositories/{token.repository}/deploy-tokens/{token.id}"
    return asdict(token) | {"token": secret}, 201, {"Location": location}


@blueprint.route("/repositories/<name>/deploy-tokens/<int:id>")
@blueprint.response(200, DeployTokenOut)
def show_deploy_token(name: str, id: int) -> Any:
    """One deploy token, without its secret"""
    return management().deploy_tokens.show(caller(), name, min(id, 2**63 - 1))


@blueprint.route("/repositories/<name>/deploy-tokens/<int:id>", methods=["DELETE"])
@blueprint.response(204)
def revoke_deploy_token(name: str, id: int) -> None:
    """Revoke a deploy token; binds on the next request"""
    management().deploy_tokens.revoke(caller(), name, min(id, 2**63 - 1))
