"""What npm asks of a registry about who uses it: ping, whoami, the profile, tokens, and logging in by password or by browser.

Tokens that are made here are for this repository and nothing else, as npm keeps them by the registry's address.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any
from urllib.parse import parse_qs

from flask import Response, request

from app.access.decision import WRITE
from app.access.identity import Caller, Credential, Identity
from app.access.logins import Logins
from app.access.people import UserChange, Users
from app.access.tokens import NewToken, Token, Tokens
from app.database.statements import text
from app.errors import ArkvoryError, Forbidden, Invalid, NotFound, TooManyLogins, Unauthenticated
from app.http.addresses import public_base, remote_address
from app.http.bodies import body_reader
from app.http.errors import headers_of, status_of
from app.http.identity import caller, log_fact
from app.http.parts import parts
from app.http.paths import encode_path
from app.http.responses import json_time
from app.protocols.npm.answers import answer
from app.protocols.npm.blueprint import FORMAT, blueprint
from app.protocols.npm.received import small_document
from app.repository.destination import Target, require_right
from app.repository.reading import Ask

MOST_BODY = 64 * 1024
POLL_SECONDS = 2
_USER = "org.couchdb.user:"
_READ_ONLY, _FULL = ("read",), ("read", "write", "delete")
# What tokens of the public registry can be bound to and ours cannot: better none than one that does more than was asked for.
_UNKNOWN_LIMITS = ("cidr_whitelist", "cidr", "packages", "scopes", "orgs")
_PAGE_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


# Who is there


@blueprint.get("/<segment:repository>")
@blueprint.get("/<segment:repository>/")
def root(repository: str) -> Response:
    """The registry itself."""
    _may_read(repository)
    return answer({"db_name": repository})


@blueprint.get("/<segment:repository>/-/ping")
def ping(repository: str) -> Response:
    """Whether the registry answers, and reads are allowed."""
    _may_read(repository)
    return answer({})


@blueprint.get("/<segment:repository>/-/whoami")
def whoami(repository: str) -> Response:
    """The name of who asks."""
    return answer({"username": _identity().name})


@blueprint.get("/<segment:repository>/-/npm/v1/user")
def profile(repository: str) -> Response:
    """As far as it is known here: nothing but the name."""
    return answer(_profile(_identity()))


@blueprint.post("/<segment:repository>/-/npm/v1/user")
def change_profile(repository: str) -> Response:
    """A new password, with the former one; nothing else of a profile is kept here."""
    wanted, identity = _document(), _identity()
    change = wanted.get("password")
    if set(wanted) != {"password"} or not isinstance(change, dict) or not isinstance(change.get("new"), str):
        raise Invalid("of a profile only the password can be changed here", "password")
    house = parts()
    users = Users(house.database, house.transactions, house.identities, house.settings.password_length)
    users.update(_with_password(identity.name, change.get("old")), identity.name, UserChange(password=change["new"]))
    return answer(_profile(identity))


def _profile(identity: Identity) -> dict[str, Any]:
    return {"name": identity.name, "fullname": "", "email": "", "email_verified": False, "tfa": False, "cidr_whitelist": None}


@blueprint.get("/<segment:repository>/-/user/<segment:user>")
def show_user(repository: str, user: str) -> Response:
    """A user who is to be named as an owner; for who may publish here, so that others cannot find out names."""
    name, house, who = _user_name(user), parts(), caller()
    with house.database.read() as connection:
        require_right(connection, house.access, Target(FORMAT, repository, who), WRITE, None)
        if connection.execute(text("select 1 from arkvory_users where name = :name"), {"name": name}).first() is None:
            raise NotFound(f"there is no user {name!r}")
    return answer({"_id": f"{_USER}{name}", "name": name, "email": "", "type": "user"})


# Tokens


@blueprint.get("/<segment:repository>/-/npm/v1/tokens")
def list_tokens(repository: str) -> Response:
    """One's own, without their secrets."""
    page = _tokens().list(caller(), _number("perPage", 100), _after())
    base = f"{public_base(request)}/{FORMAT}/{encode_path(repository)}"
    urls = {"next": f"{base}/-/npm/v1/tokens?after={page.after[0]}"} if page.after else {}
    return answer({"objects": [_token(each) for each in page.items], "urls": urls, "total": len(page.items)})


@blueprint.post("/<segment:repository>/-/npm/v1/tokens")
def create_token(repository: str) -> Response:
    """A token of one's own for this repository; needs the password."""
    wanted = _document()
    permissions = _permissions(wanted)
    days = wanted.get("expires")
    if days is not None and (not isinstance(days, int) or isinstance(days, bool)):
        raise Invalid("a token expires after a number of days", "expires")
    who = _with_password(_identity().name, wanted.get("password"))
    name = str(wanted.get("name") or _dated("npm token"))
    token, secret = _tokens().create(who, NewToken(name, permissions, [repository], days))
    return answer(_token(token) | {"token": secret}, 201)


def _permissions(wanted: Mapping[str, Any]) -> Sequence[str]:
    """Raises Invalid for a token that is to do less than ours can be told."""
    for limit in _UNKNOWN_LIMITS:
        if wanted.get(limit):
            raise Invalid(f"tokens cannot be bound by {limit} here", limit)
    permission = wanted.get("packages_and_scopes_permission")
    if permission not in (None, "read-only", "read-write"):
        raise Invalid("a token is read-only or read-write here", "packages_and_scopes_permission")
    return _READ_ONLY if wanted.get("readonly") or permission == "read-only" else _FULL


@blueprint.delete("/<segment:repository>/-/npm/v1/tokens/token/<segment:key>")
def revoke_token(repository: str, key: str) -> Response:
    """By its key in the list, or by the token itself."""
    _revoke(key)
    return Response(status=204)


@blueprint.delete("/<segment:repository>/-/user/token/<segment:secret>")
def log_out(repository: str, secret: str) -> Response:
    """Revoke the token that `npm login` made."""
    _revoke(secret)
    return answer({"ok": True})


def _revoke(key: str) -> None:
    credential = Credential("", key)
    if not credential.is_token:
        _tokens().revoke(caller(), _id_of(key))
        return
    token = parts().identities.identify(credential).token
    if token is None:
        raise Forbidden("a deploy token is taken away where it was made, in the repository's settings")
    _tokens().revoke(caller(), token.id)


def _token(token: Token) -> dict[str, Any]:
    created = json_time(token.created_at)
    return {
        "key": _key_of(token.id),
        # Where others show how the secret begins: all begin so, and more is not kept.
        "token": "arkv_",
        "name": token.name,
        "readonly": tuple(token.permissions) == _READ_ONLY,
        "cidr_whitelist": None,
        "created": created,
        "updated": created,
        "expires": None if token.expires_at is None else json_time(token.expires_at),
    }


def _key_of(token_id: int) -> str:
    """npm asks for unique beginnings: so the last digits come first."""
    return f"{token_id:016x}"[::-1]


def _id_of(key: str) -> int:
    try:
        if len(key) == 16:
            return min(int(key[::-1], 16), 2**63 - 1)
    except ValueError:
        pass
    raise NotFound(f"there is no token {key!r}")


def _tokens() -> Tokens:
    house = parts()
    return Tokens(house.database, house.transactions, house.identities)


# Logging in


@blueprint.put("/<segment:repository>/-/user/<segment:user>")
@blueprint.put("/<segment:repository>/-/user/<segment:user>/-rev/<segment:revision>")
def log_in(repository: str, user: str, revision: str = "") -> Response:
    """A token for a name and a password. Accounts are made by administrators, not by this."""
    log_fact("repository", repository)
    name, wanted = _user_name(user), _document()
    if wanted.get("name", name) != name:
        raise Invalid("the document is of another user than the address", "name")
    try:
        secret = _session_token(_with_password(name, wanted.get("password")), repository)
    except Unauthenticated as error:
        # Without a challenge, so that npm shows the words.
        return answer({"error": error.message, "reason": error.code}, 401)
    return answer({"ok": True, "id": f"{_USER}{name}", "rev": "1-0", "token": secret}, 201)


@blueprint.post("/<segment:repository>/-/v1/login")
def begin_login(repository: str) -> Response:
    """A login by browser: where the user confirms it, and where npm asks whether they have."""
    login = _logins().begin()
    base = f"{public_base(request)}/{FORMAT}/{encode_path(repository)}/-/v1"
    return answer({"loginUrl": f"{base}/login/{login.number}", "doneUrl": f"{base}/done/{login.secret}"})


@blueprint.get("/<segment:repository>/-/v1/done/<segment:secret>")
def login_done(repository: str, secret: str) -> Response:
    """202 until the login is confirmed, then the token, once."""
    who = _logins().redeem(secret, caller().address)
    if who is None:
        return answer({}, 202, **{"Retry-After": str(POLL_SECONDS)})
    return answer({"token": _session_token(who, repository)})


@blueprint.get("/<segment:repository>/-/v1/login/<segment:number>")
def login_page(repository: str, number: str) -> Response:
    """The page on which a login is confirmed."""
    try:
        _logins().check(number)
    except ArkvoryError as error:
        return _page(_said(error.message), error)
    return _page(_form(repository))


@blueprint.post("/<segment:repository>/-/v1/login/<segment:number>")
def confirm_login(repository: str, number: str) -> Response:
    """What the page's form sends."""
    fields = parse_qs(body_reader()(MOST_BODY).decode(errors="replace"), keep_blank_values=True)
    try:
        who = _with_password(fields.get("name", [""])[0], fields.get("password", [""])[0])
        _logins().confirm(number, who)
    except (Unauthenticated, TooManyLogins) as error:
        return _page(_said(error.message) + _form(repository), error)
    except ArkvoryError as error:
        return _page(_said(error.message), error)
    return _page(_said("You are logged in. Close this page and go back to your terminal."))


def _page(body: str, error: ArkvoryError | None = None) -> Response:
    page = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Log in</title>'
        '<meta name="viewport" content="width=device-width"><style>body{font:16px/1.5 sans-serif;max-width:24em;margin:4em auto;'
        "padding:0 1em}label,input,button{display:block;width:100%;box-sizing:border-box;font:inherit}input,button{padding:.5em;"
        f"margin:.2em 0 1em}}</style></head><body>{body}</body></html>\n"
    )
    headers = dict(_PAGE_HEADERS)
    if error is not None and not isinstance(error, Unauthenticated):
        headers |= headers_of(error)
    return Response(page, 200 if error is None else status_of(error), headers, content_type="text/html; charset=utf-8")


def _said(words: str) -> str:
    return f"<p><strong>{escape(words)}</strong></p>"


def _form(repository: str) -> str:
    return (
        f"<h1>Log in</h1><p>A program wants to use the npm repository <b>{escape(repository)}</b> as you. "
        "Go on only if you have just started that yourself.</p>"
        '<form method="post"><label>Name <input name="name" autocomplete="username" autofocus required></label>'
        '<label>Password <input name="password" type="password" autocomplete="current-password" required></label>'
        "<button>Log in</button></form>"
    )


def _session_token(who: Caller, repository: str) -> str:
    """Raises NotFound for a repository that they may not know of."""
    try:
        return _tokens().create(who, NewToken(_dated("npm login"), _FULL, [repository]))[1]
    except Invalid as error:
        raise NotFound(error.message) from None


def _logins() -> Logins:
    house = parts()
    return Logins(house.database, house.transactions, house.identities)


# What they share


def _may_read(repository: str) -> None:
    log_fact("repository", repository)
    parts().reader.may_read(Ask(FORMAT, repository, "", caller()))


def _identity() -> Identity:
    """Raises Unauthenticated for nobody."""
    identity = caller().identity
    if identity is None:
        raise Unauthenticated("you are not logged in")
    return identity


def _with_password(name: str, password: Any) -> Caller:
    """Raises Unauthenticated, and TooManyLogins for who guesses."""
    credential = Credential(name, password if isinstance(password, str) else "")
    if credential.is_token:
        raise Unauthenticated("this needs a password, not a token")
    address = remote_address(request.environ)
    return Caller(parts().identities.identify(credential, address), address)


def _document() -> dict[str, Any]:
    told = small_document(body_reader(), MOST_BODY)
    if not isinstance(told, dict):
        raise Invalid("the body is no JSON object")
    return told


def _user_name(user: str) -> str:
    if not user.startswith(_USER):
        raise NotFound(f"there is no {user!r}; users are at {_USER}NAME")
    return user.removeprefix(_USER)


def _dated(what: str) -> str:
    return f"{what} {datetime.now(UTC):%Y-%m-%d %H:%M}"


def _number(argument: str, otherwise: int) -> int:
    value = request.args.get(argument, type=int)
    return max(1, min(value if value is not None else otherwise, 1000))


def _after() -> int:
    return max(0, min(request.args.get("after", default=0, type=int), 2**63 - 1))

