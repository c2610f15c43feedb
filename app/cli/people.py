"""`user`, `group` and `token`."""

from __future__ import annotations

import sys
from typing import Any

import click

from app.cli.connection import Server
from app.cli.groups import tell_warnings
from app.cli.options import Verbs, ask, confirmed, limit, line_of_input, permission_option
from app.cli.output import field, on_server, prints, say, show, show_list
from app.cli.repositories import PERMISSIONS

_USERS = (field("name"), field("administrator"), field("robot"), field("disabled"), field("groups"), field("created_at"))
_GROUPS = (field("name"), field("members"), field("created_at"))
_TOKENS = (
    field("id"), field("name"), field("user"), field("permissions"), field("repositories"), field("created_at"), field("expires_at"),
    field("made_with"),
)  # fmt: skip
_from_stdin = click.option("--password-stdin", is_flag=True, help="Read the password from standard input, one line.")


def _read_password(from_stdin: bool) -> str:
    if from_stdin:
        return line_of_input()
    if not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask for the password: use --password-stdin")
    return str(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))


@click.group(cls=Verbs)
def user() -> None:
    """Users."""


@user.command("create")
@click.argument("name")
@click.option("--administrator", is_flag=True, help="May do everything.")
@click.option("--robot", is_flag=True, help="Has no password: it signs in by tokens alone (arkvory token create --user NAME).")
@_from_stdin
@prints
@on_server
def create_user(server: Server, name: str, administrator: bool, robot: bool, password_stdin: bool, as_json: bool) -> None:
    """Create a user; asks for the password."""
    body: dict[str, Any] = {"name": name, "administrator": administrator, "robot": robot}
    if not robot or password_stdin:
        body["password"] = _read_password(password_stdin)
    show(server.call("POST", "users", body=body), _USERS, as_json=as_json)


@user.command("list")
@limit
@prints
@on_server
def list_users(server: Server, limit: int | None, as_json: bool) -> None:
    """List users."""
    show_list(server.items("users", most=limit), _USERS, as_json=as_json)


@user.command("show")
@click.argument("name")
@prints
@on_server
def show_user(server: Server, name: str, as_json: bool) -> None:
    """Show a user."""
    show(server.get("users", name), _USERS, as_json=as_json)


@user.command("update")
@click.argument("name")
@click.option("--disable/--enable", "disabled", default=None, help="Whether they may sign in.")
@click.option("--administrator/--no-administrator", default=None, help="Whether they may do everything.")
@click.option("--password", is_flag=True, help="Ask for a new password.")
@_from_stdin
@prints
@on_server
def update_user(
    server: Server, name: str, disabled: bool | None, administrator: bool | None, password: bool, password_stdin: bool, as_json: bool
) -> None:
    """Change a user; binds on their next request."""
    wanted: dict[str, Any] = {"disabled": disabled, "administrator": administrator}
    if password or password_stdin:
        wanted["password"] = _read_password(password_stdin)
    body = {key: value for key, value in wanted.items() if value is not None}
    show(server.call("PATCH", "users", name, body=body), _USERS, as_json=as_json)


@user.command("delete")
@click.argument("name")
@confirmed
@on_server
def delete_user(server: Server, name: str, yes: bool) -> None:
    """Delete a user with their tokens, memberships and rules."""
    ask(f"Delete {name} with their tokens, memberships and rules?", yes)
    server.call("DELETE", "users", name)
    say(f"User {name} is gone.")


@click.group(cls=Verbs)
def group() -> None:
    """Groups of users."""


@group.command("create")
@click.argument("name")
@prints
@on_server
def create_group(server: Server, name: str, as_json: bool) -> None:
    """Create a group."""
    show(server.call("POST", "groups", body={"name": name}), _GROUPS, as_json=as_json)


@group.command("list")
@limit
@prints
@on_server
def list_groups(server: Server, limit: int | None, as_json: bool) -> None:
    """List groups with their members."""
    show_list(server.items("groups", most=limit), _GROUPS, as_json=as_json)


@group.command("show")
@click.argument("name")
@prints
@on_server
def show_group(server: Server, name: str, as_json: bool) -> None:
    """Show a group with its members."""
    show(server.get("groups", name), _GROUPS, as_json=as_json)


@group.command("add")
@click.argument("name")
@click.argument("users", nargs=-1, required=True)
@on_server
def add_members(server: Server, name: str, users: tuple[str, ...]) -> None:
    """Make USERS members of a group."""
    for each in users:
        server.call("PUT", "groups", name, "members", each)
        say(f"{each} is a member of {name}.")


@group.command("remove")
@click.argument("name")
@click.argument("users", nargs=-1, required=True)
@on_server
def remove_members(server: Server, name: str, users: tuple[str, ...]) -> None:
    """End the membership of USERS."""
    for each in users:
        server.call("DELETE", "groups", name, "members", each)
        say(f"{each} is no longer a member of {name}.")


@group.command("delete")
@click.argument("name")
@confirmed
@on_server
def delete_group(server: Server, name: str, yes: bool) -> None:
    """Delete a group with the rules that name it."""
    ask(f"Delete group {name} with the rules that name it?", yes)
    server.call("DELETE", "groups", name)
    say(f"Group {name} is gone.")


@click.group(cls=Verbs)
def token() -> None:
    """Personal tokens."""


@token.command("create")
@click.argument("name")
@permission_option(PERMISSIONS)
@click.option("--repository", "repositories", multiple=True, help="Only for this one; may be given several times.")
@click.option("--days", type=click.IntRange(1, 3650), help="Until it expires; otherwise it lasts until it is revoked. Ends with its maker.")
@click.option("--user", "owner", metavar="NAME", help="Whose it is to be, for administrators.")
@prints
@on_server
def create_token(
    server: Server,
    name: str,
    permissions: tuple[str, ...],
    repositories: tuple[str, ...],
    days: int | None,
    owner: str | None,
    as_json: bool,
) -> None:
    """Create a token; its secret is shown this once."""
    body = {"name": name, "permissions": list(permissions), "repositories": list(repositories) or None, "expires_in_days": days}
    made = server.call("POST", "tokens", body=body | ({} if owner is None else {"user": owner}))
    show(made, (*_TOKENS, field("token")), as_json=as_json)


@token.command("list")
@click.option("--user", "owner", metavar="NAME", help="Whose, for administrators.")
@limit
@prints
@on_server
def list_tokens(server: Server, owner: str | None, limit: int | None, as_json: bool) -> None:
    """List tokens, without their secrets."""
    show_list(server.items("tokens", most=limit, user=owner), _TOKENS, as_json=as_json)


@token.command("revoke")
@click.argument("id", type=click.IntRange(1))
@on_server
def revoke_token(server: Server, id: int) -> None:
    """Revoke a token by its id, and those made with it."""
    told = server.call("DELETE", "tokens", str(id))
    say(f"Token {id} is revoked, with those made with it.")
    tell_warnings(told or {"warnings": []})


COMMANDS = (user, group, token)
