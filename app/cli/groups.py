"""The options of `repo create` and `repo update` that speak of a group's members."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import click

from app.cli.connection import Server
from app.cli.output import printable


@dataclass(frozen=True)
class GroupOptions:
    """What was given of them."""

    member: tuple[str, ...]
    write_member: str | None
    name_policy: str | None
    merged_name: tuple[str, ...]

    def body(self) -> dict[str, Any]:
        """For the API: `members`, where any was named."""
        return {"members": list(self.member)} if self.member else {}

    def settings(self) -> dict[str, Any]:
        found = {"write_member": self.write_member, "name_policy": self.name_policy, "merged_names": list(self.merged_name) or None}
        return {name: value for name, value in found.items() if value is not None}


_OPTIONS = (
    click.option("--member", multiple=True, metavar="NAME", help="Of a group; several times, in the order in which they are asked."),
    click.option("--write-member", metavar="NAME", help="The member that what is published through the group goes to."),
    click.option(
        "--name-policy", type=click.Choice(["shield", "merge"]), help="Whether hosted members keep their names from proxies."
    ),
    click.option("--merged-name", multiple=True, metavar="PATTERN", help="Names that may, whatever the policy, such as left-pad."),
)


def group_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds them, handed over together as `group`."""

    @functools.wraps(command)
    def packed(**given: Any) -> Any:
        own = {each.name: given.pop(each.name) for each in fields(GroupOptions)}
        return command(group=GroupOptions(**own), **given)

    for option in reversed(_OPTIONS):
        packed = option(packed)
    return packed


def tell_warnings(document: Mapping[str, Any]) -> None:
    for each in document["warnings"]:
        click.echo(f"Warning: {printable(each)}", err=True)


def tell_groups(server: Server, member: str) -> None:
    """Of those that the user may know of: which would lose this member."""
    for each in server.items("repositories"):
        if member in (each["members"] or ()):
            written = " and publishes to it" if each["settings"].get("write_member") == member else ""
            click.echo(f"The group {printable(each['name'])} has it as a member{written}.", err=True)
