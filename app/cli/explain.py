"""`explain`: what a read of an address would come to, and why; `upstream`: how a proxy gets along with its upstream."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

import click

from app.cli.connection import Server
from app.cli.output import field, on_server, prints, show, show_list

_MEMBERS = (
    ("", lambda each: "->" if each["chosen"] else ""), field("repository", "MEMBER"), field("kind"),
    ("ANSWER", lambda each: each["outcome"]["answer"]), ("BECAUSE", lambda each: each["outcome"]["detail"]),
)  # fmt: skip
# In words: the API's are those of a circuit breaker.
_STATES = {
    "closed": "asked as usual",
    "open": "left alone for a moment, after failures in a row",
    "half-open": "tried again with one request",
    "paused": "left alone, as it asked for",
}
_RULES = (
    ("", lambda each: "->" if each["covers"] else ""), field("id", "RULE"), field("role"), field("subject"), field("path_prefix", "BELOW"),
)  # fmt: skip


@click.command("explain")
@click.argument("url")
@click.option("--subject", metavar="user:NAME|anonymous", help="Explain their read instead of your own.")
@prints
@on_server
def explain(server: Server, url: str, subject: str | None, as_json: bool) -> None:
    """Tell what a read of URL (or of the path in it) would come to, and why."""
    found = server.get("explain", url=_without_login(url), subject=subject)
    if as_json:
        click.echo(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        _print(found)


@click.command("upstream")
@click.argument("repository")
@prints
@on_server
def show_upstream(server: Server, repository: str, as_json: bool) -> None:
    """Show how the answering process gets along with the upstream of a proxy."""
    found = server.get("repositories", repository, "upstream")
    if as_json:
        click.echo(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        _print_lines(_of_upstream(found))


def _without_login(url: str) -> str:
    """What a client's configuration has in front of the host is not for a query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    if parts.scheme in {"http", "https"} or parts.netloc:
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    # Without a scheme; an image's digest comes behind an `@` too.
    host, slash, path = url.partition("/")
    return host.rpartition("@")[2] + slash + path


def _print(found: dict[str, Any]) -> None:
    verdict, outcome, holding = found["permission"], found["outcome"], found["found"]
    told = {
        "ANSWER": f"{outcome['answer']}: {outcome['detail']}",
        "ERROR": outcome["code"],
        "REPOSITORY": f"{found['repository']} ({found['format']})",
        "DOCUMENT" if found["document"] else "FILE": found["path"],
        "PERMISSION": f"{verdict['subject']} {'may' if verdict['allowed'] else 'may not'} {verdict['permission']}: {verdict['because']}",
    }
    _print_lines(told | ({} if holding is None else _of_holding(holding)))
    for rows, shape in ((verdict["rules"], _RULES), (found["members"] or (), _MEMBERS)):
        if rows:
            click.echo()
            show_list(rows, shape, as_json=False)


def _print_lines(told: dict[str, Any]) -> None:
    """What is null or empty is left out."""
    known = {title: value for title, value in told.items() if value}
    show(known, [field(title, title) for title in known], as_json=False)


def _of_holding(holding: dict[str, Any]) -> dict[str, Any]:
    return {
        "KIND": f"{holding['kind']}, {holding['status']}, {'public' if holding['public'] else 'not public'}",
        "LOOKED AT": holding["path"],
        "GATE": _except_nulls(holding["gate"]),
        "QUARANTINE": _except_nulls(holding["quarantine"]),
        "PATH RULE": holding["rule"],
        "FRESHNESS": _except_nulls(holding["freshness"]),
        "IN MEMORY": _in_memory(holding["memory"]),
        "EPOCHS": holding["epochs"],
        "BEHIND": "yes: a message to this process is under way" if holding["behind"] else None,
    } | (_of_upstream(holding["upstream"]) if holding["upstream"] else {})


def _of_upstream(upstream: dict[str, Any]) -> dict[str, Any]:
    told = {"UPSTREAM": upstream["url"], "PROCESS": upstream["process"]}
    condition = upstream["condition"]
    if condition is None:
        return told | {"STATE": "this process has not asked it yet"}
    last = condition["last_failure"]
    return told | {
        "STATE": _STATES.get(condition["state"], condition["state"]),
        "ASKED AGAIN": condition["until"],
        "FAILURES": f"{condition['failures']} in a row" + ("" if last is None else " (refusals, such as 401, are not counted)"),
        "LAST FAILURE": None if last is None else f"{last['at']}: {last['reason']}",
        "CONNECTIONS": f"{condition['connections']} of {condition['most_connections']}",
    }


def _except_nulls(document: dict[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (document or {}).items() if value is not None}


def _in_memory(memory: dict[str, Any]) -> str:
    kept = [name for name in ("snapshot", "gate", "absence") if memory[name]]
    kept += [] if memory["miss"] is None else [f"a miss for {memory['miss']:.0f} s"]
    kept += [f"document {each}" for each in memory["documents"]]
    return (", ".join(kept) or "nothing") + ("" if memory["trusted"] else "; not used, since a commit's outcome is unknown")


COMMANDS = (explain, show_upstream)
