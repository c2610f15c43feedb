"""`role`: named sets of rules, and who holds them."""

from __future__ import annotations

from typing import Any

import click

from app.cli.connection import Server
from app.cli.options import Verbs, ask, confirmed, limit, permission_arguments
from app.cli.output import field, on_server, prints, say, show, show_list
from app.cli.repositories import PERMISSIONS


def _rules(role: dict[str, Any]) -> str:
    return "; ".join(map(_rule, role["rules"])) or "-"


def _rule(rule: dict[str, Any]) -> str:
    return f"{rule['id']}: {','.join(rule['permissions'])} {rule['repository'] or '*'}/{rule['path_prefix'] or ''}"


_ROLES = (field("name"), ("RULES", _rules), field("holders"))


@click.group(cls=Verbs)
def role() -> None:
    """Roles: named sets of rules for repositories."""


@role.command("create")
@click.argument("name")
@prints
@on_server
def create_role(server: Server, name: str, as_json: bool) -> None:
    """Create a role."""
    show(server.call("POST", "roles", body={"name": name}), _ROLES, as_json=as_json)


@role.command("list")
@limit
@prints
@on_server
def list_roles(server: Server, limit: int | None, as_json: bool) -> None:
    """List roles with their rules and holders."""
    show_list(server.items("roles", most=limit), _ROLES, as_json=as_json)


@role.command("show")
@click.argument("name")
@prints
@on_server
def show_role(server: Server, name: str, as_json: bool) -> None:
    """Show a role."""
    show(server.get("roles", name), _ROLES, as_json=as_json)


@role.command("delete")
@click.argument("name")
@confirmed
@on_server
def delete_role(server: Server, name: str, yes: bool) -> None:
    """Delete a role and what it gave."""
    ask(f"Delete role {name} and what it gave?", yes)
    server.call("DELETE", "roles", name)
    say(f"Role {name} is gone.")


@role.command("add-rule")
@click.argument("name")
@permission_arguments(PERMISSIONS)
@click.option("--repository", help="Only in this one; otherwise in all.")
@click.option("--prefix", help="Only at and below this path.")
@prints
@on_server
def add_role_rule(
    server: Server, name: str, permissions: tuple[str, ...], repository: str | None, prefix: str | None, as_json: bool
) -> None:
    """Let the holders of a role do PERMISSIONS (read, write, delete, manage)."""
    body = {"permissions": list(permissions), "repository": repository, "path_prefix": prefix}
    show(server.call("POST", "roles", name, "rules", body=body), _ROLES, as_json=as_json)


@role.command("remove-rule")
@click.argument("name")
@click.argument("id", type=click.IntRange(1))
@on_server
def remove_role_rule(server: Server, name: str, id: int) -> None:
    """Take a rule out of a role."""
    server.call("DELETE", "roles", name, "rules", str(id))
    say(f"Rule {id} of role {name} is gone.")


@role.command("assign")
@click.argument("name")
@click.argument("subjects", nargs=-1, required=True)
@on_server
def assign_role(server: Server, name: str, subjects: tuple[str, ...]) -> None:
    """Give a role to SUBJECTS (user:NAME or group:NAME)."""
    for each in subjects:
        server.call("PUT", "roles", name, "holders", each)
        say(f"{each} holds role {name}.")


@role.command("unassign")
@click.argument("name")
@click.argument("subjects", nargs=-1, required=True)
@on_server
def unassign_role(server: Server, name: str, subjects: tuple[str, ...]) -> None:
    """Take a role away from SUBJECTS."""
    for each in subjects:
        server.call("DELETE", "roles", name, "holders", each)
        say(f"{each} no longer holds role {name}.")


COMMANDS = (role,)
