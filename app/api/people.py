"""/users, /groups, /tokens and /whoami."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from flask import Response, jsonify, request

from app.access.people import UserChange
from app.access.tokens import NewToken
from app.api.answers import Document, page_document
from app.api.blueprints import PREFIX, Blueprint
from app.api.management import management
from app.api.parsing import key_of, one
from app.api.schemas import (
    GroupOut,
    NewGroupIn,
    NewTokenIn,
    NewTokenOut,
    NewUserIn,
    PageQuery,
    TokenOut,
    TokensQuery,
    UserChangeIn,
    UserOut,
    WarningsOut,
    WhoOut,
    listed,
)
from app.errors import NotFound
from app.http.addresses import public_base
from app.http.identity import caller

blueprint = Blueprint("people", "Users, groups and tokens")
Created = tuple[Any, int, dict[str, str]]


@blueprint.route("/whoami")
@blueprint.response(200, WhoOut)
def whoami() -> Document:
    """Whom the credential of this request stands for"""
    identity = caller().identity
    if identity is None:
        return {"user": None, "administrator": False, "token": None}
    if identity.deploy is not None:
        return {"user": None, "administrator": False, "token": None, "deploy_token": management().deploy_tokens.own(caller())}
    token = None if identity.token is None else management().tokens.show(caller(), identity.token.id)
    return {"user": identity.name, "administrator": identity.administrator, "token": token}


# Users


@blueprint.route("/users")
@blueprint.arguments(PageQuery, location="query")
@blueprint.response(200, listed(UserOut))
def list_users(query: dict[str, Any]) -> Document:
    """Users, by name (administrators)"""
    return page_document(management().users.list(caller(), query["limit"], one(key_of(query["cursor"], str), "")), lambda user: user)


@blueprint.route("/users", methods=["POST"])
@blueprint.arguments(NewUserIn)
@blueprint.response(201, UserOut)
def create_user(body: dict[str, Any]) -> Created:
    """Create a user, or a robot that signs in by tokens alone (administrators)"""
    user = management().users.create(
        caller(), body["name"], body["password"], administrator=body["administrator"], robot=body["robot"]
    )
    return user, 201, {"Location": f"{public_base(request)}{PREFIX}/users/{user.name}"}


@blueprint.route("/users/<name>")
@blueprint.response(200, UserOut)
def show_user(name: str) -> Any:
    """One user: oneself, or anyone for administrators"""
    return management().users.show(caller(), name)


@blueprint.route("/users/<name>", methods=["PATCH"])
@blueprint.arguments(UserChangeIn)
@blueprint.response(200, UserOut)
def update_user(body: dict[str, Any], name: str) -> Any:
    """Change a user (administrators), or one's own password; binds on the next request"""
    return management().users.update(caller(), name, UserChange(**body))


@blueprint.route("/users/<name>", methods=["DELETE"])
@blueprint.response(204)
def delete_user(name: str) -> None:
    """Delete a user with their tokens, memberships and rules (administrators)"""
    management().users.delete(caller(), name)


# Groups


@blueprint.route("/groups")
@blueprint.arguments(PageQuery, location="query")
@blueprint.response(200, listed(GroupOut))
def list_groups(query: dict[str, Any]) -> Document:
    """Groups, by name (administrators)"""
    return page_document(management().groups.list(caller(), query["limit"], one(key_of(query["cursor"], str), "")), lambda group: group)


@blueprint.route("/groups", methods=["POST"])
@blueprint.arguments(NewGroupIn)
@blueprint.response(201, GroupOut)
def create_group(body: dict[str, Any]) -> Created:
    """Create a group (administrators)"""
    group = management().groups.create(caller(), body["name"])
    return group, 201, {"Location": f"{public_base(request)}{PREFIX}/groups/{group.name}"}


@blueprint.route("/groups/<name>")
@blueprint.response(200, GroupOut)
def show_group(name: str) -> Any:
    """One group with its members (administrators)"""
    return management().groups.show(caller(), name)


@blueprint.route("/groups/<name>", methods=["DELETE"])
@blueprint.response(204)
def delete_group(name: str) -> None:
    """Delete a group with the rules that name it (administrators)"""
    management().groups.delete(caller(), name)


@blueprint.route("/groups/<name>/members/<user>", methods=["PUT"])
@blueprint.response(204)
def add_member(name: str, user: str) -> None:
    """Make a user a member (administrators); binds on the next request"""
    management().groups.add_member(caller(), name, user)


@blueprint.route("/groups/<name>/members/<user>", methods=["DELETE"])
@blueprint.response(204)
def remove_member(name: str, user: str) -> None:
    """End a membership (administrators); binds on the next request"""
    management().groups.remove_member(caller(), name, user)


# Tokens


@blueprint.route("/tokens")
@blueprint.arguments(TokensQuery, location="query")
@blueprint.response(200, listed(TokenOut))
def list_tokens(query: dict[str, Any]) -> Document:
    """One's own tokens, or a user's (administrators), by id; never their secrets"""
    after = one(key_of(query["cursor"], int), 0)
    return page_document(management().tokens.list(caller(), query["limit"], after, query["user"]), lambda token: token)


@blueprint.route("/tokens", methods=["POST"])
@blueprint.arguments(NewTokenIn)
@blueprint.response(201, NewTokenOut)
def create_token(body: dict[str, Any]) -> Created:
    """Create a token of one's own; its secret is shown in this answer only. Made with a token, it ends with that, at the latest"""
    token, secret = management().tokens.create(caller(), NewToken(**body))
    return asdict(token) | {"token": secret}, 201, {"Location": f"{public_base(request)}{PREFIX}/tokens/{token.id}"}


@blueprint.route("/tokens/<int:id>")
@blueprint.response(200, TokenOut)
def show_token(id: int) -> Any:
    """One token, without its secret"""
    return management().tokens.show(caller(), _existing(id))


@blueprint.route("/tokens/<int:id>", methods=["DELETE"])
@blueprint.response(204)
@blueprint.otherwise(200, WarningsOut)
def revoke_token(id: int) -> Response | None:
    """Revoke a token, and those that were made with it; 200 with `warnings` that name these, else 204; binds on the next request"""
    ended = management().tokens.revoke(caller(), _existing(id))
    return jsonify({"warnings": list(ended)}) if ended else None


def _existing(number: int) -> int:
    if number >= 2**63:
        raise NotFound(f"there is no token {number}")
    return number
