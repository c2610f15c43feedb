"""`repo`, `rule`, `deploy-token`, `usage` and `cleanup`."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import click

from app.cli.connection import Server
from app.cli.groups import GroupOptions, group_options, tell_groups, tell_warnings
from app.cli.options import Verbs, ask, confirmed, limit, permission_arguments, permission_option
from app.cli.output import field, on_server, prints, say, show, show_list, size
from app.cli.unsetting import taken_back
from app.cli.upstreams import UpstreamOptions, upstream_options

FORMAT = click.Choice(["raw", "maven", "npm", "oci", "pypi"])
PERMISSIONS = ("read", "write", "delete", "manage")
DEPLOY_PERMISSIONS = ("read", "write", "delete")
STATUS = click.Choice(["online", "offline", "maintenance"])
WRITE_POLICY = click.Choice(["once", "replace", "read_only"])
VERSION_POLICY = click.Choice(["release", "snapshot", "mixed"])

def _address(repository: Any) -> str:
    """What clients are given; those of containers put the rest of the API's address in front themselves."""
    if repository["format"] != "oci":
        return str(repository["url"])
    return repository["host"] + "/" if repository["host"] else f"{urlsplit(repository['url']).netloc}/{repository['name']}/"


_REPOSITORIES = (field("name"), field("format"), field("kind"), field("status"), field("public"), ("URL", _address))
_REPOSITORY = (
    *_REPOSITORIES, field("quota_bytes"), field("settings"), field("host"), field("upstream_url"), field("upstream"), field("members"),
    field("creator"), field("created_at"), field("updated_at"),
)  # fmt: skip
_RULES = (field("id"), field("subject"), field("permissions"), field("path_prefix"))
_DEPLOY_TOKENS = (
    field("id"), field("name"), field("permissions"), field("path_prefix"), field("created_by"), field("created_at"), field("expires_at"),
)  # fmt: skip
_USAGE = (
    ("PUBLISHED", lambda usage: size(usage["bytes"]["published"])),
    ("OPEN", lambda usage: size(usage["bytes"]["open"])),
    ("GARBAGE", lambda usage: size(usage["bytes"]["garbage"])),
    ("QUOTA", lambda usage: size(usage["quota_bytes"])),
    ("QUOTA IS AT", lambda usage: f"{usage['quota_level']} % or above" if usage["quota_level"] else None),
    field("artifacts"), field("downloads"), field("last_downloaded_at"),
)  # fmt: skip
_CLEANED = tuple(field(name) for name in ("abandoned", "garbage", "parts", "blobs", "artifacts", "temporary"))
_immutable_tags = click.option(
    "--immutable-tag", "immutable_tags", multiple=True, metavar="PATTERN", help="Tags of images that stay what they are, such as v*."
)
_PROMOTED = (field("artifacts"), field("created"))


class Bytes(click.ParamType[int]):
    """A number of bytes, also as 500M or 2GiB."""

    name = "bytes"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> int:
        from config.settings import _bytes

        if isinstance(value, int):
            return value
        try:
            return _bytes(value)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a size such as 500M or 2GiB", parameter, context)


@click.group(cls=Verbs)
def repo() -> None:
    """Repositories."""


@repo.command("create")
@click.argument("name")
@click.option("--format", "format_", required=True, type=FORMAT, help="What it holds.")
@click.option("--group", "is_group", is_flag=True, help="A group, also without members yet.")
@click.option("--public", is_flag=True, help="Let anyone read.")
@click.option("--quota", type=Bytes(), help="Most bytes that it may hold, such as 20G.")
@click.option("--write-policy", type=WRITE_POLICY, help="Instead of the format's own.")
@click.option("--version-policy", type=VERSION_POLICY, help="Which versions a Maven repository takes (mixed).")
@_immutable_tags
@click.option("--host", help="A host name that means this OCI repository: images without a prefix.")
@upstream_options
@group_options
@prints
@on_server
def create_repository(
    server: Server,
    name: str,
    format_: str,
    is_group: bool,
    public: bool,
    quota: int | None,
    write_policy: str | None,
    version_policy: str | None,
    immutable_tags: tuple[str, ...],
    host: str | None,
    upstream: UpstreamOptions,
    group: GroupOptions,
    as_json: bool,
) -> None:
    """Create a repository: hosted, with --upstream a proxy, or with --member a group."""
    settings = _given(write_policy=write_policy, version_policy=version_policy, immutable_tags=list(immutable_tags) or None)
    settings |= upstream.settings() | group.settings()
    body = {"name": name, "format": format_, "public": public, "quota_bytes": quota, "settings": settings}
    body |= {"kind": _kind(upstream, group, is_group)} | _given(host=host) | upstream.body() | group.body()
    made = server.call("POST", "repositories", body=body)
    show(made, _REPOSITORY, as_json=as_json)
    tell_warnings(made)
    if not as_json and urlsplit(made["url"]).hostname in {"127.0.0.1", "::1", "localhost"}:
        click.echo("The address is the one that this command used; the server's ARKVORY_PUBLIC_URL sets what is shown.", err=True)


@repo.command("list")
@click.option("--format", "format_", type=FORMAT, help="Only those of this format.")
@limit
@prints
@on_server
def list_repositories(server: Server, format_: str | None, limit: int | None, as_json: bool) -> None:
    """List repositories."""
    show_list(server.items("repositories", most=limit, format=format_), _REPOSITORIES, as_json=as_json)


@repo.command("show")
@click.argument("name")
@prints
@on_server
def show_repository(server: Server, name: str, as_json: bool) -> None:
    """Show a repository."""
    show(server.get("repositories", name), _REPOSITORY, as_json=as_json)


@repo.command("update")
@click.argument("name")
@click.option("--rename", metavar="NAME", help="Another name; clients must follow.")
@click.option("--status", type=STATUS)
@click.option("--public/--private", default=None, help="Whether anyone may read.")
@click.option("--quota", type=Bytes(), help="Most bytes that it may hold, such as 20G; 0: nothing fits.")
@click.option("--no-quota", is_flag=True, help="Take the quota away.")
@click.option("--write-policy", type=WRITE_POLICY)
@click.option("--version-policy", type=VERSION_POLICY)
@_immutable_tags
@click.option("--no-immutable-tags", is_flag=True, help="Let all tags move again.")
@click.option("--host", help="A host name that means this OCI repository.")
@click.option("--no-host", is_flag=True, help="Let no host name mean it.")
@click.option("--unset", multiple=True, metavar="SETTING", help="Take away what an option set, such as allow; may be repeated.")
@upstream_options
@group_options
@prints
@on_server
def update_repository(
    server: Server,
    name: str,
    rename: str | None,
    status: str | None,
    public: bool | None,
    quota: int | None,
    no_quota: bool,
    write_policy: str | None,
    version_policy: str | None,
    immutable_tags: tuple[str, ...],
    no_immutable_tags: bool,
    host: str | None,
    no_host: bool,
    unset: tuple[str, ...],
    upstream: UpstreamOptions,
    group: GroupOptions,
    as_json: bool,
) -> None:
    """Change a repository; binds on the next request."""
    for given, taken_away, option in (
        (quota is not None, no_quota, "quota"), (bool(immutable_tags), no_immutable_tags, "immutable-tags"), (bool(host), no_host, "host"),
    ):  # fmt: skip
        if given and taken_away:
            raise click.UsageError(f"--{option.removesuffix('s')} and --no-{option} contradict each other")
    body = _given(name=rename, status=status, public=public, quota_bytes=quota, host=host)
    body |= {"quota_bytes": None} if no_quota else {}
    body |= {"host": None} if no_host else {}
    settings = _given(write_policy=write_policy, version_policy=version_policy, immutable_tags=list(immutable_tags) or None)
    settings |= {"immutable_tags": None} if no_immutable_tags else {}
    taken = taken_back(unset)
    settings = taken.settings | settings | upstream.settings() | group.settings()
    body = taken.body | body | group.body()
    described = upstream.body()
    if "upstream" in body and "upstream" in described:
        described["upstream"] = body["upstream"] | described["upstream"]
    body |= described
    if settings:
        body["settings"] = settings
    changed = server.call("PATCH", "repositories", name, body=body)
    show(changed, _REPOSITORY, as_json=as_json)
    tell_warnings(changed)


def _kind(upstream: UpstreamOptions, group: GroupOptions, is_group: bool) -> str:
    if is_group or group.member:
        return "group"
    return "hosted" if upstream.upstream is None else "proxy"


def _given(**options: Any) -> dict[str, Any]:
    """Those that were on the command line."""
    return {name: value for name, value in options.items() if value is not None}


@repo.command("delete")
@click.argument("name")
@confirmed
@on_server
def delete_repository(server: Server, name: str, yes: bool) -> None:
    """Delete a repository and all that is in it."""
    if not yes:
        tell_groups(server, name)
    ask(f"Delete repository {name} and all that is in it?", yes)
    told = server.call("DELETE", "repositories", name)
    say(f"Repository {name} is gone.")
    tell_warnings(told or {"warnings": []})


@repo.command("promote")
@click.argument("source")
@click.argument("target")
@click.option("--package", help="An image, a Python project, a Maven module (group:artifact).")
@click.option("--version", help="Of the package: a tag, a version. Without it: all of them.")
@click.option("--path", "paths", multiple=True, help="Instead of a package: an artifact; with a slash at its end, all below it.")
@prints
@on_server
def promote(
    server: Server, source: str, target: str, package: str | None, version: str | None, paths: tuple[str, ...], as_json: bool
) -> None:
    """Copy from SOURCE to TARGET, of the same format, without moving bytes."""
    body = {"to": target, "paths": list(paths), "package": package, "version": version}
    show(server.call("POST", "repositories", source, "promotions", body=body), _PROMOTED, as_json=as_json)


@click.group(cls=Verbs)
def rule() -> None:
    """Access rules of a repository."""


@rule.command("add")
@click.argument("repository")
@click.argument("subject")
@permission_arguments(PERMISSIONS)
@click.option("--prefix", help="Only at and below this path.")
@prints
@on_server
def add_rule(server: Server, repository: str, subject: str, permissions: tuple[str, ...], prefix: str | None, as_json: bool) -> None:
    """Let SUBJECT (user:NAME, group:NAME, signed-in or anonymous) do PERMISSIONS (read, write, delete, manage)."""
    body = {"subject": subject, "permissions": list(permissions), "path_prefix": prefix}
    show(server.call("POST", "repositories", repository, "rules", body=body), _RULES, as_json=as_json)


@rule.command("list")
@click.argument("repository")
@limit
@prints
@on_server
def list_rules(server: Server, repository: str, limit: int | None, as_json: bool) -> None:
    """List the rules of a repository."""
    show_list(server.items("repositories", repository, "rules", most=limit), _RULES, as_json=as_json)


@rule.command("delete")
@click.argument("repository")
@click.argument("id", type=click.IntRange(1))
@on_server
def delete_rule(server: Server, repository: str, id: int) -> None:
    """Remove a rule by its id."""
    server.call("DELETE", "repositories", repository, "rules", str(id))
    say(f"Rule {id} of {repository} is gone.")


@click.group("deploy-token", cls=Verbs)
def deploy_token() -> None:
    """Tokens that belong to a repository and to no user."""


@deploy_token.command("create")
@click.argument("repository")
@click.argument("name")
@permission_option(DEPLOY_PERMISSIONS)
@click.option("--prefix", help="Only at and below this path.")
@click.option("--days", type=click.IntRange(1, 3650), help="Until it expires; otherwise it lasts until it is revoked.")
@prints
@on_server
def create_deploy_token(
    server: Server, repository: str, name: str, permissions: tuple[str, ...], prefix: str | None, days: int | None, as_json: bool
) -> None:
    """Create a deploy token; its secret is shown this once."""
    body = {"name": name, "permissions": list(permissions), "path_prefix": prefix, "expires_in_days": days}
    made = server.call("POST", "repositories", repository, "deploy-tokens", body=body)
    show(made, (*_DEPLOY_TOKENS, field("token")), as_json=as_json)


@deploy_token.command("list")
@click.argument("repository")
@limit
@prints
@on_server
def list_deploy_tokens(server: Server, repository: str, limit: int | None, as_json: bool) -> None:
    """List the deploy tokens of a repository, without their secrets."""
    show_list(server.items("repositories", repository, "deploy-tokens", most=limit), _DEPLOY_TOKENS, as_json=as_json)


@deploy_token.command("revoke")
@click.argument("repository")
@click.argument("id", type=click.IntRange(1))
@on_server
def revoke_deploy_token(server: Server, repository: str, id: int) -> None:
    """Revoke a deploy token by its id."""
    server.call("DELETE", "repositories", repository, "deploy-tokens", str(id))
    say(f"Deploy token {id} of {repository} is revoked.")


@click.command("usage")
@click.argument("repository")
@prints
@on_server
def show_usage(server: Server, repository: str, as_json: bool) -> None:
    """Show the bytes that a repository takes up, and how often it was downloaded from."""
    show(server.get("repositories", repository, "usage"), _USAGE, as_json=as_json)


@click.command("cleanup")
@prints
@on_server
def clean_up(server: Server, as_json: bool) -> None:
    """Run one cleanup now."""
    show(server.call("POST", "cleanup"), _CLEANED, as_json=as_json)


COMMANDS = (repo, rule, deploy_token, show_usage, clean_up)
