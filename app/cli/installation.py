"""`installation`: the switches of the whole server."""

from __future__ import annotations

import click

from app.cli.connection import Server
from app.cli.output import field, on_server, prints, show

_SWITCHES = (field("anonymous"), field("read_only"))


@click.group()
def installation() -> None:
    """Switches of the whole installation."""


@installation.command("show")
@prints
@on_server
def show_installation(server: Server, as_json: bool) -> None:
    """Show the switches."""
    show(server.get("installation"), _SWITCHES, as_json=as_json)


@installation.command("update")
@click.option("--anonymous/--no-anonymous", default=None, help="Whether anyone without a login may read what is public.")
@click.option("--read-only/--writable", "read_only", default=None, help="Whether nothing is stored, replaced or deleted.")
@prints
@on_server
def update_installation(server: Server, anonymous: bool | None, read_only: bool | None, as_json: bool) -> None:
    """Turn the switches; binds on the next request."""
    wanted = {"anonymous": anonymous, "read_only": read_only}
    body = {name: value for name, value in wanted.items() if value is not None}
    show(server.call("PATCH", "installation", body=body), _SWITCHES, as_json=as_json)


COMMANDS = (installation,)
