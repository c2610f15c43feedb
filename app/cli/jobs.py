"""`jobs`: what runs by itself."""

from __future__ import annotations

from typing import Any

import click

from app.cli.connection import Server
from app.cli.output import field, on_server, prints, say, show_list


def _seconds(document: Any) -> str | None:
    return None if document["seconds"] is None else f"{document['seconds']:.1f} s"


_JOBS = (
    field("name", "JOB"), field("repository"), ("EVERY", lambda each: f"{each['every_seconds']:g} s"), field("state"), field("runner"),
    field("began_at"), ("TOOK", _seconds), field("outcome"), field("failures"), field("next_at", "NEXT"), field("said"),
)  # fmt: skip


@click.group(invoke_without_command=True)
@prints
@click.pass_context
def jobs(context: click.Context, as_json: bool) -> None:
    """Show what runs by itself, who ran it last, and what came of it."""
    if context.invoked_subcommand is None:
        context.invoke(_list, as_json=as_json)


@click.command()
@on_server
def _list(server: Server, as_json: bool) -> None:
    show_list(server.items("jobs"), _JOBS, as_json=as_json)


@jobs.command("run")
@click.argument("name")
@on_server
def run(server: Server, name: str) -> None:
    """Let the job NAME run now, or once more when it runs already."""
    server.call("POST", "jobs", "runs", body={"name": name})
    say(f"{name} begins within seconds, or when its present run has ended: arkvory jobs")


COMMANDS = (jobs,)
