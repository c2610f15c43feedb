"""`artifact`, `hold-rule` and `search`: what is in repositories, and what of it is withheld."""

from __future__ import annotations

from typing import Any

import click

from app.cli.connection import Server
from app.cli.options import Verbs, ask, confirmed, limit
from app.cli.output import field, on_server, prints, say, show, show_list, size


def _trust(artifact: dict[str, Any]) -> str | None:
    held = artifact["quarantine"]
    return None if held is None else f"held ({held['trust']})"


def _hold(artifact: dict[str, Any]) -> str | None:
    held = artifact["quarantine"]
    return None if held is None else f"held since {held['held_at']} ({held['trust']}): {held['reason']}"


_ARTIFACTS = (field("path"), ("SIZE", lambda each: size(each["size"])), field("updated_at"), ("QUARANTINE", _trust))
_ARTIFACT = (
    field("path"), field("size"), field("sha256"), field("content_type"), field("package"), field("version"), field("created_by"),
    field("created_at"), field("updated_at"), field("downloads"), field("last_downloaded_at"), ("QUARANTINE", _hold), field("url"),
)  # fmt: skip
# A search finds what leaves through the doors.
_FOUND = (field("repository"), *_ARTIFACTS[:-1])
_HOLDS = (field("path"), field("trust"), field("reason"), field("held_by"), field("held_at"))
_HOLD_RULES = (field("id"), field("pattern"), field("publisher"), field("reason"), field("created_at"))


@click.group(cls=Verbs)
def artifact() -> None:
    """What is in a repository."""


@artifact.command("list")
@click.argument("repository")
@click.option("--prefix", help="How the path begins.")
@click.option("--search", metavar="WORDS", help="What the path contains, in any case.")
@limit
@prints
@on_server
def list_artifacts(server: Server, repository: str, prefix: str | None, search: str | None, limit: int | None, as_json: bool) -> None:
    """List artifacts."""
    found = server.items("repositories", repository, "artifacts", most=limit, prefix=prefix, q=search)
    show_list(found, _ARTIFACTS, as_json=as_json)


@artifact.command("show")
@click.argument("repository")
@click.argument("path")
@prints
@on_server
def show_artifact(server: Server, repository: str, path: str, as_json: bool) -> None:
    """Show an artifact."""
    show(server.get("repositories", repository, "artifacts", *path.split("/")), _ARTIFACT, as_json=as_json)


@artifact.command("delete")
@click.argument("repository")
@click.argument("paths", nargs=-1, required=True)
@confirmed
@on_server
def delete_artifact(server: Server, repository: str, paths: tuple[str, ...], yes: bool) -> None:
    """Delete artifacts."""
    ask(f"Delete {', '.join(paths)} from {repository}?", yes)
    for path in paths:
        server.call("DELETE", "repositories", repository, "artifacts", *path.split("/"))
        say(f"{path} is gone.")


@artifact.command("held")
@click.argument("repository")
@limit
@prints
@on_server
def list_holds(server: Server, repository: str, limit: int | None, as_json: bool) -> None:
    """List what is held in quarantine, with paths where nothing is yet."""
    show_list(server.items("repositories", repository, "holds", most=limit), _HOLDS, as_json=as_json)


@artifact.command("hold")
@click.argument("repository")
@click.argument("path")
@click.option("--reason", required=True, help="What readers are told.")
@click.option("--trust", type=click.Choice(("unknown", "suspicious", "malicious")), default="unknown", show_default=True)
@on_server
def hold_artifact(server: Server, repository: str, path: str, reason: str, trust: str) -> None:
    """Put a path into quarantine; it leaves through no door until it is released."""
    server.call("PUT", "repositories", repository, "artifacts", *path.split("/"), "quarantine", body={"reason": reason, "trust": trust})
    say(f"{path} is held ({trust}): {reason}")


@artifact.command("release")
@click.argument("repository")
@click.argument("paths", nargs=-1, required=True)
@on_server
def release_artifacts(server: Server, repository: str, paths: tuple[str, ...]) -> None:
    """Release paths from quarantine."""
    for path in paths:
        server.call("DELETE", "repositories", repository, "artifacts", *path.split("/"), "quarantine")
        say(f"{path} is released.")


@click.group("hold-rule", cls=Verbs)
def hold_rule() -> None:
    """Rules that hold what is published, until it is released."""


@hold_rule.command("add")
@click.argument("repository")
@click.argument("pattern")
@click.option("--reason", required=True, help="What readers are told.")
@click.option("--publisher", metavar="USER", help="Only what this user publishes; otherwise what anyone does.")
@prints
@on_server
def add_hold_rule(server: Server, repository: str, pattern: str, reason: str, publisher: str | None, as_json: bool) -> None:
    """Hold what is published from now on at a path that PATTERN describes (* stands for anything, slashes too)."""
    body = {"pattern": pattern, "reason": reason, "publisher": publisher}
    show(server.call("POST", "repositories", repository, "hold-rules", body=body), _HOLD_RULES, as_json=as_json)


@hold_rule.command("list")
@click.argument("repository")
@limit
@prints
@on_server
def list_hold_rules(server: Server, repository: str, limit: int | None, as_json: bool) -> None:
    """List the hold rules of a repository."""
    show_list(server.items("repositories", repository, "hold-rules", most=limit), _HOLD_RULES, as_json=as_json)


@hold_rule.command("delete")
@click.argument("repository")
@click.argument("id", type=click.IntRange(1))
@on_server
def delete_hold_rule(server: Server, repository: str, id: int) -> None:
    """Remove a hold rule by its id; what it held stays held."""
    server.call("DELETE", "repositories", repository, "hold-rules", str(id))
    say(f"Hold rule {id} of {repository} is gone; what it held stays held.")


@click.command("search")
@click.argument("words")
@limit
@prints
@on_server
def search_artifacts(server: Server, words: str, limit: int | None, as_json: bool) -> None:
    """Find artifacts by what their path contains, in all repositories."""
    show_list(server.items("search", most=limit, q=words), _FOUND, as_json=as_json)


COMMANDS = (artifact, hold_rule, search_artifacts)
