"""`mirror`: what repositories follow, and how far that is."""

from __future__ import annotations

import sys
import time
from datetime import datetime
from typing import Any, TextIO

import click

from app.cli.connection import Absent, Failed, Server
from app.cli.options import Verbs, ask, confirmed, limit, secret
from app.cli.output import field, on_server, printable, prints, say, show, show_list, size

# How long one look of `--wait` takes.
LOOK_SECONDS = 1.0
# What was stopped goes on by itself, unless the mirror is switched off.
_UNDER_WAY = frozenset({"new", "running", "interrupted", "stopped"})
_MIRROR = (
    field("repository"), field("job"), field("source"), ("NAMES", lambda each: _several(each["names"])), field("include"),
    field("exclude"), field("upstream_url", "UPSTREAM"), ("UPSTREAM USER", lambda each: (each["upstream"] or {}).get("username")),
    ("SCHEDULE", lambda each: _schedule(each)), field("concurrency"), field("state"), field("reason"), field("counts"),
    field("files", "COPIED"), ("BYTES", lambda each: size(each["bytes"])), ("CURSOR", lambda each: each["cursor"] or None),
    ("LAG", lambda each: _lag(each)), field("started_at"), field("ended_at"), field("succeeded_at"), field("next_at"),
)  # fmt: skip
_MIRRORS = (
    field("repository"), field("job"), ("SCHEDULE", lambda each: _schedule(each)), field("state"), ("LAG", lambda each: _lag(each)),
    ("DONE", lambda each: each["counts"].get("done")), ("TODO", lambda each: _left(each["counts"])),
    ("FAILED", lambda each: each["counts"].get("failed")), ("REFUSED", lambda each: each["counts"].get("refused")),
    field("next_at", "NEXT"), field("reason"),
)  # fmt: skip
# Of `--unset`, as the API calls them.
_NOTHING: dict[str, dict[str, Any]] = {
    "name": {"names": []}, "include": {"include": []}, "exclude": {"exclude": []},
    "upstream-user": {"upstream": {"username": None}}, "upstream-password": {"upstream": {"password": None}},
}  # fmt: skip
_REFUSED = (
    field("path"), ("SIZE", lambda each: size(each["size"])), field("refusals", "TIMES"), field("retry_at", "AGAIN"), field("reason"),
)  # fmt: skip
_ERRORS = (field("at"), field("path"), field("message", "ERROR"))


def _several(names: list[str]) -> str:
    return "all" if not names else ",".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def _schedule(mirror: dict[str, Any]) -> str:
    return f"every {mirror['every_seconds']} s" if mirror["enabled"] else "off"


def _lag(mirror: dict[str, Any]) -> str:
    return f"{mirror['lag_seconds']} s"


def _left(counts: dict[str, int]) -> int | None:
    return counts["todo"] + counts["lists"] if counts else None


@click.group(cls=Verbs)
def mirror() -> None:
    """Repositories that follow an upstream's list."""


@mirror.command("set")
@click.argument("repository")
@click.option("--source", type=click.Choice(["index", "arkvory"]), help="Whose list is followed (index).")
@click.option("--name", "names", multiple=True, help="What to follow; several times. Without any: all that the upstream has.")
@click.option("--names-from", type=click.File(), help="More names, one a line.")
@click.option("--include", multiple=True, metavar="PATTERN", help="Only these paths or names; as --allow of a proxy.")
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Not these; as --block of a proxy.")
@click.option("--every", type=click.IntRange(60), metavar="SECONDS", help="How often (3600).")
@click.option("--concurrency", type=click.IntRange(1, 16), help="Files that are copied at once (4).")
@click.option("--enabled/--disabled", default=None, help="Whether it runs by its schedule.")
@click.option("--unset", multiple=True, type=click.Choice(list(_NOTHING)), help="Take away what such options had set; several times.")
@click.option("--upstream", metavar="URL", help="Of a hosted repository: what it follows.")
@click.option("--upstream-user", metavar="NAME", help="User name there.")
@click.option("--upstream-password", is_flag=True, help="Ask for the password there; it is kept encrypted.")
@click.option("--upstream-password-stdin", is_flag=True, help="Read that password from standard input, one line.")
@prints
@on_server
def set_mirror(
    server: Server,
    repository: str,
    source: str | None,
    names: tuple[str, ...],
    names_from: TextIO | None,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    every: int | None,
    concurrency: int | None,
    enabled: bool | None,
    unset: tuple[str, ...],
    upstream: str | None,
    upstream_user: str | None,
    upstream_password: bool,
    upstream_password_stdin: bool,
    as_json: bool,
) -> None:
    """Follow an upstream's list, or change how; what is not named stays as it is.

    What was copied stays. The next run begins at once.
    """
    more = [] if names_from is None else [line.strip() for line in names_from if line.strip()]
    if names_from is not None and not more:
        raise click.UsageError("the file of --names-from names nothing; --unset name follows all that the upstream has")
    given = {
        "source": source, "names": [*names, *more] or None, "include": list(include) or None, "exclude": list(exclude) or None,
        "every_seconds": every, "enabled": enabled, "concurrency": concurrency, "upstream_url": upstream,
    }  # fmt: skip
    body: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    described = {} if upstream_user is None else {"username": upstream_user}
    if upstream_password or upstream_password_stdin:
        described["password"] = secret("Password at the upstream", from_input=upstream_password_stdin)
    if described:
        body["upstream"] = described
    show(_set(server, repository, _without(body, unset)), _MIRROR, as_json=as_json)


def _without(body: dict[str, Any], unset: tuple[str, ...]) -> dict[str, Any]:
    """With what is to be taken away. Raises click.UsageError for what is set by the same command."""
    for option in unset:
        for name, nothing in _NOTHING[option].items():
            if name != "upstream" and name in body:
                raise click.UsageError(f"--{option} and --unset {option} contradict each other")
            body[name] = {**nothing, **body.get(name, {})} if name == "upstream" else nothing
    return body


def _set(server: Server, repository: str, body: dict[str, Any]) -> Any:
    try:
        return server.call("PATCH", "repositories", repository, "mirror", body=body)
    except Absent:
        if server.get("repositories", repository)["kind"] == "hosted" and "upstream_url" not in body:
            raise Failed("say what it follows: --upstream URL") from None
    return server.call("PUT", "repositories", repository, "mirror", body=body)


@mirror.command("list")
@limit
@prints
@on_server
def list_mirrors(server: Server, limit: int | None, as_json: bool) -> None:
    """List what follows an upstream: state, lag, next run."""
    show_list(server.items("mirrors", most=limit), _MIRRORS, as_json=as_json)


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


@mirror.command("refused")
@click.argument("repository")
@limit
@prints
@on_server
def list_refused(server: Server, repository: str, limit: int | None, as_json: bool) -> None:
    """List the files that were refused: why, and when they are tried again."""
    show_list(server.items("repositories", repository, "mirror", "refused", most=limit), _REFUSED, as_json=as_json)


@mirror.command("run")
@click.argument("repository")
@click.option("--anew", is_flag=True, help="Read all lists as a whole, and try again what was refused.")
@click.option("--wait", is_flag=True, help="Until the run is over; exit code 1 unless all is copied.")
@on_server
def run_mirror(server: Server, repository: str, anew: bool, wait: bool) -> None:
    """Run it now, whatever the schedule says."""
    before = server.get("repositories", repository, "mirror")
    server.call("POST", "repositories", repository, "mirror", "run", body={"anew": True} if anew else None)
    if not wait:
        say(f"The mirror of {repository} begins.")
        return
    after = _awaited(server, repository, before["ended_at"])
    if datetime.fromisoformat(after["next_at"]) <= datetime.fromisoformat(after["ended_at"]):
        # That one had begun before it was asked for, and what was asked for follows.
        after = _awaited(server, repository, after["ended_at"])
    say(f"{after['state']}: {after['counts'].get('done', 0)} files are here" + (f"; {after['reason']}" if after["reason"] else ""))
    if after["state"] != "complete":
        sys.exit(1)


def _awaited(server: Server, repository: str, ended_at: str | None) -> dict[str, Any]:
    while True:
        found: dict[str, Any] = server.get("repositories", repository, "mirror")
        if not found["enabled"]:
            raise Failed(f"the mirror of {printable(repository)} was switched off")
        # As long as its job runs, there is no next time.
        if found["ended_at"] != ended_at and found["state"] not in _UNDER_WAY and found["next_at"] is not None:
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
