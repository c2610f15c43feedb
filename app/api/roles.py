"""/roles: named sets of rules, and who holds them."""

from __future__ import annotations

from typing import Any

from flask import request

from app.access.roles import NewRoleRule
from app.api.answers import Document, page_document
from app.api.blueprints import PREFIX, Blueprint
from app.api.management import management
from app.api.parsing import key_of, one
from app.api.schemas import NewRoleIn, NewRoleRuleIn, PageQuery, RoleOut, listed
from app.http.addresses import public_base
from app.http.identity import caller

blueprint = Blueprint("roles", "Roles: named sets of rules")


@blueprint.route("/roles")
@blueprint.arguments(PageQuery, location="query")
@blueprint.response(200, listed(RoleOut))
def list_roles(query: dict[str, Any]) -> Document:
    """Roles with their rules and holders, by name (administrators)"""
    return page_document(management().roles.list(caller(), query["limit"], one(key_of(query["cursor"], str), "")), lambda role: role)


@blueprint.route("/roles", methods=["POST"])
@blueprint.arguments(NewRoleIn)
@blueprint.response(201, RoleOut)
def create_role(body: dict[str, Any]) -> tuple[Any, int, dict[str, str]]:
    """Create a role (administrators)"""
    role = management().roles.create(caller(), body["name"])
    return role, 201, {"Location": f"{public_base(request)}{PREFIX}/roles/{role.name}"}


@blueprint.route("/roles/<name>")
@blueprint.response(200, RoleOut)
def show_role(name: str) -> Any:
    """One role with its rules and holders (administrators)"""
    return management().roles.show(caller(), name)


@blueprint.route("/roles/<name>", methods=["DELETE"])
@blueprint.response(204)
def delete_role(name: str) -> None:
    """Delete a role and what it gave (administrators); binds on the next request"""
    management().roles.delete(caller(), name)


@blueprint.route("/roles/<name>/rules", methods=["POST"])
@blueprint.arguments(NewRoleRuleIn)
@blueprint.response(201, RoleOut)
def add_role_rule(body: dict[str, Any], name: str) -> Any:
    """Add a rule to a role, for one repository or all (administrators); binds on the next request"""
    return management().roles.add_rule(caller(), name, NewRoleRule(**body))


@blueprint.route("/roles/<name>/rules/<int:id>", methods=["DELETE"])
@blueprint.response(204)
def remove_role_rule(name: str, id: int) -> None:
    """Take a rule out of a role (administrators); binds on the next request"""
    management().roles.remove_rule(caller(), name, min(id, 2**63 - 1))


@blueprint.route("/roles/<name>/holders/<subject>", methods=["PUT"])
@blueprint.response(204)
def assign_role(name: str, subject: str) -> None:
    """Give a role to user:NAME or group:NAME (administrators); binds on the next request"""
    management().roles.assign(caller(), name, subject)


@blueprint.route("/roles/<name>/holders/<subject>", methods=["DELETE"])
@blueprint.response(204)
def unassign_role(name: str, subject: str) -> None:
    """Take a role away from user:NAME or group:NAME (administrators); binds on the next request"""
    management().roles.unassign(caller(), name, subject)
