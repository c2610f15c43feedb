"""The options of `repo create` and `repo update` that speak of a proxy: of its upstream, and of what it keeps from its clients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TextIO

import click

from app.cli.options import secret


@dataclass(frozen=True)
class UpstreamOptions:
    """What was given of them; `password` true: to be asked for."""

    upstream: str | None
    upstream_user: str | None
    upstream_password: bool
    upstream_password_stdin: bool
    upstream_header: tuple[str, ...]
    upstream_ca: TextIO | None
    http_proxy: str | None
    connections: int | None
    mutable_ttl: int | None
    miss_ttl: int | None
    caching: bool | None
    minimum_age: float | None
    minimum_age_exception: tuple[str, ...]
    allow: tuple[str, ...]
    block: tuple[str, ...]
    short_names: str | None

    def body(self) -> dict[str, Any]:
        """For the API: `upstream_url` and `upstream`, where something was said of them."""
        described: dict[str, Any] = {"username": self.upstream_user, "http_proxy": self.http_proxy, "connections": self.connections}
        if self.upstream_password or self.upstream_password_stdin:
            described["password"] = secret("Password at the upstream", from_input=self.upstream_password_stdin)
        if self.upstream_header:
            described["headers"] = dict(_header(each) for each in self.upstream_header)
        if self.upstream_ca is not None:
            described["ca"] = self.upstream_ca.read()
        described = {name: value for name, value in described.items() if value is not None}
        told = {} if self.upstream is None else {"upstream_url": self.upstream}
        return told | ({"upstream": described} if described else {})

    def settings(self) -> dict[str, Any]:
        found = {
            "mutable_ttl": self.mutable_ttl, "miss_ttl": self.miss_ttl, "caching": self.caching, "minimum_age": self.minimum_age,
            "minimum_age_exceptions": list(self.minimum_age_exception) or None, "allow": list(self.allow) or None,
            "block": list(self.block) or None, "short_names": self.short_names,
        }  # fmt: skip
        return {name: value for name, value in found.items() if value is not None}


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise click.UsageError("--upstream-header is NAME:VALUE")
    return name.strip(), value.strip()


_OPTIONS = (
    click.option("--upstream", metavar="URL", help="Makes it a proxy of what is there."),
    click.option("--upstream-user", metavar="NAME", help="User name at the upstream."),
    click.option("--upstream-password", is_flag=True, help="Ask for the password at the upstream; it is kept encrypted."),
    click.option("--upstream-password-stdin", is_flag=True, help="Read that password from standard input, one line."),
    click.option("--upstream-header", multiple=True, metavar="NAME:VALUE", help="Sent to the upstream; may be given several times."),
    click.option("--upstream-ca", type=click.File(), help="PEM file of certificates that the upstream's is checked by too."),
    click.option("--http-proxy", metavar="URL", help="The HTTP proxy by which the upstream is reached."),
    click.option("--connections", type=click.IntRange(1, 64), help="Most connections to the upstream at once (16)."),
    click.option("--mutable-ttl", type=click.IntRange(0), metavar="SECONDS", help="Until a copy is compared with the upstream's (60)."),
    click.option("--miss-ttl", type=click.IntRange(0), metavar="SECONDS", help="For which the upstream's 404 is remembered (60)."),
    click.option("--caching/--no-caching", default=None, help="Whether what is fetched is stored."),
    click.option("--minimum-age", type=click.FloatRange(0), metavar="DAYS", help="Withhold what was published less long ago; 0: nothing."),
    click.option("--minimum-age-exception", multiple=True, metavar="PATTERN", help="NAME or NAME@VERSION that needs no age."),
    click.option("--allow", multiple=True, metavar="PATTERN", help="Paths or folders: nothing else is there."),
    click.option("--block", multiple=True, metavar="PATTERN", help="Paths or folders that are not there."),
    click.option("--short-names", metavar="FOLDER", help="Where OCI images of one segment are at the upstream, such as library."),
)


def upstream_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds them, handed over together as `upstream`."""

    @functools.wraps(command)
    def packed(**given: Any) -> Any:
        own = {each.name: given.pop(each.name) for each in fields(UpstreamOptions)}
        return command(upstream=UpstreamOptions(**own), **given)

    for option in reversed(_OPTIONS):
        packed = option(packed)
    return packed
