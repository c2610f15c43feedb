"""`repo` and `token`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from arkvory.ctl.logins import by_password, connected, is_of_login
from arkvory.ctl.options import Arguments, at_least_one, byte_count, permissions, sure
from arkvory.ctl.output import field, say, show, show_all, size
from arkvory.documents import Token

_REPOSITORIES = (field("name"), field("format"), field("kind"), field("status"), field("public"), field("url"))
_REPOSITORY = (*_REPOSITORIES, size("quota_bytes"), field("settings"), field("upstream_url"), field("members"))
_TOKENS = (field("id"), field("name"), field("user"), field("permissions"), field("repositories"), field("expires_at"), field("made_with"))


def add(verbs: Any) -> None:
    _add_repo(verbs.add_parser("repo", help="repositories").add_subparsers(metavar="VERB", required=True))
    _add_token(verbs.add_parser("token", help="tokens of one's own").add_subparsers(metavar="VERB", required=True))


def _add_repo(verbs: Any) -> None:
    create = verbs.add_parser("create", help="create a repository", description=_create_repository.__doc__)
    create.add_argument("name")
    create.add_argument("--format", default="raw", help="what it holds (raw)")
    create.add_argument("--public", action="store_true", help="let anyone read")
    create.add_argument("--quota", type=byte_count, metavar="BYTES", help="most that it may hold, such as 20G")
    create.add_argument("--upstream", metavar="URL", help="a proxy of that address")
    create.add_argument("--member", action="append", default=[], metavar="NAME", help="a group with that member; in order")
    create.set_defaults(run=_create_repository)
    list_ = verbs.add_parser("list", help="list repositories")
    list_.add_argument("--format", help="only those of this format")
    list_.add_argument("--limit", type=at_least_one, metavar="N", help="show at most so many")
    list_.set_defaults(run=_list_repositories)
    show_ = verbs.add_parser("show", help="show a repository")
    show_.add_argument("name")
    show_.set_defaults(run=_show_repository)
    delete = verbs.add_parser("delete", help="delete a repository and all that is in it")
    delete.add_argument("name")
    delete.add_argument("--yes", action="store_true", help="do not ask")
    delete.set_defaults(run=_delete_repository)


def _add_token(verbs: Any) -> None:
    create = verbs.add_parser("create", help="create a token; its secret is shown this once", description=_create_token.__doc__)
    create.add_argument("name")
    create.add_argument("--permission", type=permissions, required=True, metavar="WORDS", help="such as read,write")
    create.add_argument("--repository", action="append", metavar="NAME", help="only for this one; may be given several times")
    create.add_argument("--days", type=at_least_one, metavar="N", help="until it expires; never longer than the login's own token")
    create.add_argument("--user", metavar="NAME", help="make it with NAME's password, which is asked for: then it outlives this login")
    create.add_argument("--password-stdin", action="store_true", help="with --user: read the password from standard input")
    create.set_defaults(run=_create_token)
    list_ = verbs.add_parser("list", help="list tokens, without their secrets")
    list_.set_defaults(run=_list_tokens)
    revoke = verbs.add_parser("revoke", help="revoke a token by its id, and those made with it")
    revoke.add_argument("id", type=at_least_one)
    revoke.set_defaults(run=_revoke_token)


def _create_repository(given: Arguments) -> None:
    """Create a repository: hosted, with --upstream a proxy, or with --member a group."""
    if given.upstream and given.member:
        raise ValueError("--upstream makes a proxy and --member a group: take one of them")
    fields = {"public": given.public, "quota_bytes": given.quota}
    fields |= {"upstream_url": given.upstream} if given.upstream else {}
    fields |= {"members": given.member} if given.member else {}
    kind = "proxy" if given.upstream else "group" if given.member else "hosted"
    with connected(given) as client:
        show(client.create_repository(given.name, given.format, kind, **fields), _REPOSITORY, as_json=given.json)


def _list_repositories(given: Arguments) -> None:
    with connected(given) as client:
        show_all(islice(client.repositories(given.format), given.limit), _REPOSITORIES, as_json=given.json)


def _show_repository(given: Arguments) -> None:
    with connected(given) as client:
        show(client.repository(given.name), _REPOSITORY, as_json=given.json)


def _delete_repository(given: Arguments) -> None:
    sure(f"Delete {given.name} and all that is in it?", given.yes)
    with connected(given) as client:
        for warning in client.delete_repository(given.name):
            say(warning)
    say(f"Repository {given.name} is gone.")


def _create_token(given: Arguments) -> None:
    """Create a token. Made with a login's token, it ends with that one (at logout, or when its days are over); with --user it does not."""
    if given.password_stdin and given.user is None:
        raise ValueError("--password-stdin is for --user NAME")
    with by_password(given, given.user) if given.user is not None else connected(given) as client:
        made = client.create_token(given.name, given.permission, given.repository, given.days)
    show(made, (*_TOKENS, field("token")), as_json=given.json)
    for line in _how_long(made, client.url, given.days):
        print(line, file=sys.stderr)


def _how_long(made: Token, url: str, days: int | None) -> Iterator[str]:
    """What whoever hands it to a program should know."""
    if made.made_with is None:
        return
    if is_of_login(url, made.made_with):
        yield f"It was made with the login of this machine: arkvoryctl logout ends it{_until(made, days)}."
    else:
        yield f"It was made with token {made.made_with}: when that is revoked, it ends too{_until(made, days)}."
    command = f"arkvoryctl token create {shlex.quote(made.name)} --user {shlex.quote(made.user)} ..."
    yield f"One that lasts: {command}, which asks for the password."


def _until(made: Token, days: int | None) -> str:
    if made.expires_at is None:
        return ""
    lasts, day = datetime.fromisoformat(made.expires_at) - datetime.fromisoformat(made.created_at), made.expires_at[:10]
    if days is not None and lasts > timedelta(days=days, minutes=-5):
        return f", and it expires on {day}"
    return f", and it expires with that one, on {day}" + ("" if days is None else f", instead of in {days} days")


def _list_tokens(given: Arguments) -> None:
    with connected(given) as client:
        show_all(client.tokens(), _TOKENS, as_json=given.json)


def _revoke_token(given: Arguments) -> None:
    with connected(given) as client:
        ended = client.revoke_token(given.id)
    say(f"Token {given.id} is revoked, with those made with it.")
    for line in ended:
        say(line)
