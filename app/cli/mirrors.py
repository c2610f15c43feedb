"""`mirror`: what repositories follow, and how far that is."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

import click

from app.cli.connection import Failed, Server
from app.cli.options import Verbs, ask, confirmed
from app.cli.output import field, on_server, printable, prints, say, show, show_list, size

# How long one look of `--wait` takes.
LOOK_SECONDS = 1.0
_UNDER_WAY = frozenset({"new", "running", "interrupted"})
_MIRROR = (
    field("repository"), field("source"), ("NAMES", lambda each: _several(each["names"])), field("include"), field("exclude"),
    ("UPSTREAM", lambda each: each["upstream_url"]), ("SCHEDULE", lambda each: _schedule(each)), field("concurrency"), field("state"),
    field("reason"), field("counts"), field("files", "COPIED"), ("BYTES", lambda each: size(each["bytes"])), field("cursor"),
    ("LAG", lambda each: f"{each['lag_seconds']} s"), field("started_at"), field("ended_at"), field("succeeded_at"), field("next_at"),
)  # fmt: skip
_ERRORS = (field("at"), field("path"), field("message", "ERROR"))


def _several(names: list[str]) -> str:
    return "all" if not names else ",".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def _schedule(mirror: dict[str, Any]) -> str:
    return f"every {mirror['every_seconds']} s" if mirror["enabled"] else "off"


@click.group(cls=Verbs)
def mirror() -> None:
    """Repositories that follow an upstream's list."""


@mirror.command("set")
@click.argument("repository")
@click.option("--source", type=click.Choice(["index", "arkvory"]), default="index", show_default=True, help="Whose list is followed.")
@click.option("--name", "names", multiple=True, help="What to follow; several times. Without it: all that the upstream has.")
@click.option("--names-from", type=click.File(), help="More names, one a line.")
@click.option("--include", multiple=True, metavar="PATTERN", help="Only these paths or names; as --allow of a proxy.")
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Not these; as --block of a proxy.")
@click.option("--every", type=click.IntRange(60), default=3600, show_default=True, metavar="SECONDS", help="How often.")
@click.option("--concurrency", type=click.IntRange(1, 16), default=4, show_default=True, help="Files that are copied at once.")
@click.option("--enabled/--disabled", default=True, help="Whether it runs by its schedule.")
@click.option("--upstream", metavar="URL", help="Of a hosted repository: what it follows.")
@click.option("--upstream-user", metavar="NAME", help="User name there.")
@click.option("--upstream-password", is_flag=True, help="Ask for the password there; it is kept encrypted.")
@prints
@on_server
def set_mirror(
    server: Server,
    repository: str,
    source: str,
    names: tuple[str, ...],
    names_from: TextIO | None,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    every: int,
    concurrency: int,
    enabled: bool,
    upstream: str | None,
    upstream_user: str | None,
    upstream_password: bool,
    as_json: bool,
) -> None:
    """Follow an upstream's list; what is there already stays. The first run begins at once."""
    more = [] if names_from is None else [line.strip() for line in names_from if line.strip()]
    body: dict[str, Any] = {
        "source": source, "names": [*names, *more], "include": list(include), "exclude": list(exclude), "every_seconds": every,
        "enabled": enabled, "concurrency": concurrency, "upstream_url": upstream,
    }  # fmt: skip
    described = _described(upstream_user, upstream_password)
    if described:
        body["upstream"] = described
    show(server.call("PUT", "repositories", repository, "mirror", body=body), _MIRROR, as_json=as_json)


def _described(user: str | None, password: bool) -> dict[str, Any]:
    found = {} if user is None else {"username": user}
    if password:
        found["password"] = click.prompt("Password at the upstream", hide_input=True)
    return found


@mirror.command("show")
@click.argument("repository")
@prints
@on_server
def show_mirror(server: Server, repository: str, as_json: bool) -> None:
    """Show what a repository follows, how far that is, and the last errors."""
    found = server.get("repositories", repository, "mirror")
    show(found, _MIRROR, as_json=as_json)
    if found["errors"] and not as_json:
        click.echo()
        show_list(found["errors"], _ERRORS, as_json=False)


@mirror.command("run")
@click.argument("repository")
@click.option("--wait", is_flag=True, help="Until the run is over; exit code 1 unless all is copied.")
@on_server
def run_mirror(server: Server, repository: str, wait: bool) -> None:
    """Run it now, whatever the schedule says."""
    before = server.get("repositories", repository, "mirror")
    server.call("POST", "repositories", repository, "mirror", "run")
    if not wait:
        say(f"The mirror of {repository} begins.")
        return
    after = _awaited(server, repository, before["ended_at"])
    say(f"{after['state']}: {after['counts'].get('done', 0)} files are here" + (f"; {after['reason']}" if after["reason"] else ""))
    if after["state"] != "complete":
        sys.exit(1)


def _awaited(server: Server, repository: str, ended_at: str | None) -> dict[str, Any]:
    while True:
        found: dict[str, Any] = server.get("repositories", repository, "mirror")
        if not found["enabled"]:
            raise Failed(f"the mirror of {printable(repository)} was switched off")
        if found["ended_at"] != ended_at and found["state"] not in _UNDER_WAY:
            return found
        time.sleep(LOOK_SECONDS)


@mirror.command("delete")
@click.argument("repository")
@confirmed
@on_server
def delete_mirror(server: Server, repository: str, yes: bool) -> None:
    """Follow nothing any more; what was copied stays."""
    ask(f"Let {repository} follow nothing any more?", yes)
    server.call("DELETE", "repositories", repository, "mirror")
    say(f"Repository {repository} follows nothing any more.")


COMMANDS = (mirror,)
