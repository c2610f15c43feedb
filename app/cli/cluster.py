"""`cluster`: the processes that work together, and what went wrong between them."""

from __future__ import annotations

import json
from typing import Any

import click

from app.cli.connection import Server
from app.cli.output import Column, field, on_server, prints, show, show_list

_SINGLE = "A single node: one process, with nobody to agree with."


def _seconds(name: str, title: str) -> Column:
    return title, lambda each: None if each[name] is None else f"{each[name]:.1f} s"


_PROCESS = (
    field("instance", "THIS PROCESS"), field("host"), field("pid"), field("online"), _seconds("last_poll_age", "LAST POLL"),
    _seconds("last_probe_age", "LAST PROBE"), field("corrections"), field("dead_letters"),
)  # fmt: skip
_INSTANCES = (
    ("INSTANCE", lambda each: f"{each['name']}/{each['slot']}"), field("kind"), field("host"), field("pid"), field("version"),
    ("ONLINE", lambda each: "replaced" if each["replaced"] else each["online"]), _seconds("heartbeat_age", "HEARTBEAT"),
    field("unread"), _seconds("oldest_unread", "OLDEST"), field("started_at"),
)  # fmt: skip
_LEASES = (("JOB", lambda each: each["name"]), field("holder"), field("held"), field("until"))
_LETTERS = (field("id"), field("instance"), field("died_at"), field("error"))
_REPOSITORY = (field("name", "REPOSITORY"), field("believed"), field("database"), field("behind"), field("snapshot_kept"))


@click.group()
def cluster() -> None:
    """The processes that work on one database."""


@cluster.command("status")
@click.option("--repository", metavar="NAME", help="Show also what the answering process believes of this one.")
@prints
@on_server
def show_status(server: Server, repository: str | None, as_json: bool) -> None:
    """Show who is there, what lies unread, what failed, and who runs which job."""
    found = server.get("cluster", repository=repository)
    if as_json:
        click.echo(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        _print(found)


def _print(found: dict[str, Any]) -> None:
    if found["deployment"] == "single":
        click.echo(_SINGLE)
    else:
        show(found["process"], _PROCESS, as_json=False)
    for documents, columns in ((found["instances"], _INSTANCES), (found["leases"], _LEASES)):
        if documents:
            click.echo()
            show_list(documents, columns, as_json=False)
    if letters := found["dead_letters"]["count"]:
        click.echo(f"\n{letters} dead letters, see: arkvory cluster dead-letters")
    if found["repository"] is not None:
        click.echo()
        show(found["repository"], _REPOSITORY, as_json=False)


@cluster.command("dead-letters")
@prints
@on_server
def show_dead_letters(server: Server, as_json: bool) -> None:
    """Show the latest messages that failed every time; with --json what they said. None is applied again."""
    show_list(server.get("cluster")["dead_letters"]["latest"], _LETTERS, as_json=as_json)


@cluster.command("forget")
@click.option("--up-to", type=click.IntRange(1), metavar="ID", help="Only dead letters up to this id.")
@on_server
def forget_dead_letters(server: Server, up_to: int | None) -> None:
    """Delete dead letters, once they were looked at."""
    gone = server.call("DELETE", "cluster", "dead-letters", query={"up_to": up_to})
    click.echo(f"{gone['deleted']} dead letters are gone.")


COMMANDS = (cluster,)
