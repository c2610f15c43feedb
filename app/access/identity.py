"""From a credential to an identity.

The identity region keeps what a credential stands for, for 30 s, as long as the user's revision has not
risen since. A password's verdict is kept apart, by credential and stored hash: it stays true whatever
else changes, and argon2 is slow on purpose. Verification runs in the thread pool, a few at a time, and not at all
for a name or an address that has guessed too often (`throttle.py`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gevent
from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from gevent.lock import BoundedSemaphore
from sqlalchemy import Connection, Row

from app.access.throttle import Throttle, network
from app.cache import keys
from app.cache.regions import Tag
from app.cache.single import SingleFlight
from app.cache.store import Cache
from app.cache.view import Epochs, Seen
from app.database.engines import Database
from app.database.statements import text
from app.database.turns import Turns
from app.errors import NotFound, Unauthenticated, Unavailable

TOKEN_PREFIX = "arkv_"
WRONG = "wrong user name, password or token"
PASSWORD_CHECKS_AT_ONCE = 2
PASSWORD_WAIT_SECONDS = 10.0
# Of what clients send their credentials in; beyond, those longest unused go.
MOST_FORMS = 10_000
_BUSY = "many logins are being checked; try again shortly"


@dataclass(frozen=True, slots=True)
class Credential:
    """What a client presented; `name` is empty for a bare token."""

    name: str
    secret: str

    @property
    def is_token(self) -> bool:
        return self.secret.startswith(TOKEN_PREFIX)


@dataclass(frozen=True, slots=True)
class Reference:
    """A credential that was presented before: a `token` or `deploy` token by its id, or a `user` with a digest of the stored password."""

    kind: str
    id: int
    proof: str = ""


@dataclass(frozen=True, slots=True)
class TokenScope:
    """What a token allows at most; `repositories` null means all, `expires_at` is seconds since 1970."""

    id: int
    permissions: frozenset[str]
    repositories: frozenset[int] | None
    expires_at: float | None

    @property
    def expired(self) -> bool:
        return _is_over(self.expires_at)


@dataclass(frozen=True, slots=True)
class DeployScope:
    """What a deploy token allows, in the repository that it belongs to and nowhere else.

    `path_prefix` null means all of it; `authorization` is the repository's epoch that the same query read.
    """

    id: int
    repository_id: int
    permissions: frozenset[str]
    path_prefix: str | None
    authorization: int
    expires_at: float | None

    @property
    def expired(self) -> bool:
        return _is_over(self.expires_at)


def _is_over(expires_at: float | None) -> bool:
    return expires_at is not None and expires_at <= time.time()


@dataclass(frozen=True, slots=True)
class Identity:
    """A user as one query read them; `proof` is the stored hash that the password was checked against.

    A deploy token is an identity without a user: its `user_id` is 0, as nobody's, and its name no user can have.
    """

    user_id: int
    name: str
    administrator: bool
    revision: int
    token: TokenScope | None
    proof: str | None
    deploy: DeployScope | None = None


# The owner of uploads that nobody in particular sends.
NOBODYS = "user:0"

# A command on this machine, which proved that it may read the server's secret: the administrator, without a row.
LOCAL = Identity(-1, "local", True, 0, None, None)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: an identity or nobody, and from which address."""

    identity: Identity | None
    address: str

    @property
    def user_id(self) -> int:
        """0 for nobody."""
        return self.identity.user_id if self.identity else 0

    @property
    def revision(self) -> int:
        return self.identity.revision if self.identity else 0

    def holds_at(self, repository_id: int, authorization: int) -> bool:
        """False for a deploy token of that repository that was read under an older authorization epoch."""
        deploy = self.identity.deploy if self.identity else None
        return deploy is None or deploy.repository_id != repository_id or deploy.authorization >= authorization

    @property
    def upload_key(self) -> str:
        """By whom places are shared out: token, else user, else address; of IPv6 its network, within which anyone has as many as wanted."""
        if self.identity is None:
            return f"address:{network(self.address)}"
        if self.identity.deploy is not None:
            return f"deploy-token:{self.identity.deploy.id}"
        if self.identity.token is not None:
            return f"token:{self.identity.token.id}"
        return f"user:{self.identity.user_id}"

    @property
    def upload_owner(self) -> str:
        """Whose the uploads are that take several requests: a user's, by whatever token, a deploy token's, or `NOBODYS`."""
        deploy = self.identity.deploy if self.identity is not None else None
        return f"user:{self.user_id}" if deploy is None else f"deploy-token:{deploy.id}"


def token_digest(secret: str) -> bytes:
    """What is stored of a token: its SHA-256; 240 random bits need no slow hash."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def new_token() -> str:
    """A fresh secret of 240 random bits."""
    return TOKEN_PREFIX + secrets.token_urlsafe(30)


class Passwords:
    """argon2, off the loop; verdicts are kept by credential and stored hash, and wrong ones counted."""

    def __init__(self, cache: Cache, throttle: Throttle, hash_kib: int) -> None:
        self._cache = cache
        self._throttle = throttle
        self._hasher = PasswordHasher(memory_cost=hash_kib)
        self._flights: SingleFlight[bool] = SingleFlight()
        self._hashes: SingleFlight[str] = SingleFlight()
        self._slots = BoundedSemaphore(PASSWORD_CHECKS_AT_ONCE)
        self._turns = Turns(PASSWORD_CHECKS_AT_ONCE, PASSWORD_WAIT_SECONDS, _BUSY)
        self._nobody: str | None = None

    def hash(self, password: str) -> str:
        """The hash to store; some 50 ms in the thread pool."""
        with self._slots:
            value: str = gevent.get_hub().threadpool.apply(self._hasher.hash, (password,))
            return value

    def matches(self, digest: bytes, given: Credential, stored: str | None, address: str) -> bool:
        """Whether the password is the one behind `stored`; the same question asked at once is answered once.

        Null, which no password matches, takes as long: the answer's delay does not tell which names exist.
        Raises TooManyLogins when the name or the address has guessed too often; what is known already needs no guess.
        """
        real = stored if stored is not None else self._nobodys_hash()
        key = keys.for_password(digest, real)
        known = self._cache.passwords.get(key)
        if known is None:
            known = self._flights.run((key, address), lambda: self._judge(given, real, address))
            self._cache.passwords.put(key, known, lifetime=None if known else 30.0)
        elif not known:
            self._throttle.repeat(digest)
        return known and stored is not None

    def _nobodys_hash(self) -> str:
        """Made once, whatever crowd asks for it first."""
        if self._nobody is None:
            self._nobody = self._hashes.run("nobody", lambda: self.hash(secrets.token_hex(16)))
        return self._nobody

    def _judge(self, given: Credential, stored: str, address: str) -> bool:
        self._throttle.check(given.name, address)
        # Whoever sends hundreds at once stands in the queue with a few of them.
        with self._turns.of(network(address)), self._slot():
            # Others may have guessed while this one waited.
            self._throttle.check(given.name, address)
            verdict: bool = gevent.get_hub().threadpool.apply(self._check, (stored, given.secret))
        count = self._throttle.let_in if verdict else self._throttle.count
        count(given.name, address)
        return verdict

    @contextlib.contextmanager
    def _slot(self) -> Iterator[None]:
        if not self._slots.acquire(timeout=PASSWORD_WAIT_SECONDS):
            raise Unavailable(_BUSY)
        try:
            yield
        finally:
            self._slots.release()

    def _check(self, stored: str, password: str) -> bool:
        try:
            return self._hasher.verify(stored, password)
        except (VerificationError, InvalidHashError, UnicodeEncodeError):
            return False


class Digests:
    """Keyed digests of credentials. Memory holds these only: a dump of it does not give away secrets, nor a dictionary for them.

    A form is all that a client sends its credential in (a header, whatever its spelling). Which credential stands in one is remembered by
    a digest too, once that credential was accepted: whoever sends the same again costs one hash. It is no opinion about the credential.
    """

    def __init__(self) -> None:
        self._key = os.urandom(32)
        self._forms: OrderedDict[bytes, bytes] = OrderedDict()

    def of(self, credential: Credential) -> bytes:
        name = "" if credential.is_token else credential.name
        return self._keyed(f"{len(name)}:{name}{credential.secret}", b"credential")

    def of_reference(self, reference: Reference) -> bytes:
        return self._keyed(repr(reference), b"reference")

    def of_form(self, form: str) -> bytes | None:
        """The digest of the credential that stands in it; null for one that was not remembered."""
        key = self._keyed(form, b"form")
        found = self._forms.get(key)
        if found is not None:
            self._forms.move_to_end(key)
        return found

    def remember(self, form: str, credential: Credential) -> None:
        self._forms[self._keyed(form, b"form")] = self.of(credential)
        if len(self._forms) > MOST_FORMS:
            self._forms.popitem(last=False)

    def _keyed(self, message: str, use: bytes) -> bytes:
        return hashlib.blake2b(message.encode("utf-8", "surrogatepass"), digest_size=32, key=self._key, person=use).digest()


class Identities:
    """Answers `who is this`, from memory when it can."""

    def __init__(self, database: Database, cache: Cache, passwords: Passwords) -> None:
        self._database = database
        self._cache = cache
        self.passwords = passwords
        self.digests = Digests()

    def identify(self, credential: Credential, address: str = "") -> Identity:
        """Raises Unauthenticated when the credential is wrong, expired or its user disabled; TooManyLogins after too many guesses."""
        digest = self.digests.of(credential)
        return self.kept(digest) or self.fetch(digest, credential, address)

    def kept(self, digest: bytes) -> Identity | None:
        """Whom memory knows by a credential's digest; whoever is told null goes on to `fetch`. Raises Unavailable (M6)."""
        self._cache.require_synced()
        kept: Identity | None = self._cache.identities.get(keys.for_identity(digest))
        return kept if self.is_current(kept) else None

    def fetch(self, digest: bytes, credential: Credential, address: str) -> Identity:
        """From the database. Raises as `identify`."""
        identity = self._by_token(credential) if credential.is_token else self._by_password(credential, digest, address)
        self._keep(digest, identity)
        return identity

    def _keep(self, digest: bytes, identity: Identity) -> None:
        if identity.deploy is None:
            self._cache.observe_user(identity.user_id, identity.revision)
        if self.is_current(identity):
            self._cache.identities.put(keys.for_identity(digest), identity, tags=(_tag(identity),))

    def read_again(self, connection: Connection, identity: Identity) -> Identity:
        """The same credential judged by what `connection` reads now (C8, C10). Raises Unauthenticated."""
        if identity is LOCAL:
            return identity
        if identity.deploy is not None:
            row = connection.execute(text(f"{_DEPLOY_QUERY} where d.id = :id"), {"id": identity.deploy.id}).first()
            return _deploy_identity(row)
        if identity.token is not None:
            row = connection.execute(text(f"{_TOKEN_QUERY} where t.id = :id"), {"id": identity.token.id}).first()
            return _token_identity(row)
        row = connection.execute(text(f"{_USER_QUERY} where u.id = :id"), {"id": identity.user_id}).first()
        if row is None or row.disabled or row.password_hash != identity.proof:
            raise Unauthenticated(WRONG)
        return _user_identity(row)

    def recall(self, reference: Reference) -> Identity:
        """Whom a reference stands for now. Raises Unauthenticated when the credential that it was made of is not good any more."""
        digest = self.digests.of_reference(reference)
        kept = self.kept(digest)
        if kept is not None:
            return kept
        with self._database.read() as connection:
            identity = _recalled(connection, reference)
        self._keep(digest, identity)
        return identity

    def by_name(self, connection: Connection, name: str) -> Identity:
        """A user as they would be with a password of theirs, for who asks what they may. Raises NotFound, Unauthenticated."""
        row = connection.execute(text(f"{_USER_QUERY} where u.name = :name"), {"name": name}).first()
        if row is None:
            raise NotFound(f"there is no user {name!r}")
        if row.disabled:
            raise Unauthenticated(f"the user {name!r} is disabled")
        return _user_identity(row)

    def of_user(self, connection: Connection, user_id: int, revision: int) -> Identity:
        """A user who said before, with a password, who they are, while nothing has changed since. Raises Unauthenticated."""
        row = connection.execute(text(f"{_USER_QUERY} where u.id = :id"), {"id": user_id}).first()
        if row is None or row.disabled or row.revision != revision:
            raise Unauthenticated("what you logged in with has changed meanwhile; log in again")
        return _user_identity(row)

    def is_current(self, identity: Identity | None) -> bool:
        """Whether nothing that this process knows of has ended or changed it since it was read, nor may have (C2)."""
        if identity is None:
            return True
        deploy = identity.deploy
        if deploy is not None:
            epoch = self._cache.view.repository(deploy.repository_id).authorization
            return not deploy.expired and deploy.authorization >= epoch and self._cache.may_keep(deploy.repository_id)
        if identity.token is not None and identity.token.expired:
            return False
        return identity.revision >= self._cache.view.user(identity.user_id) and identity.user_id not in self._cache.doubts.users

    def _by_token(self, credential: Credential) -> Identity:
        with self._database.read() as connection:
            digest = {"digest": token_digest(credential.secret)}
            row = connection.execute(text(f"{_TOKEN_QUERY} where t.digest = :digest"), digest).first()
            if row is not None:
                return _token_identity(row)
            row = connection.execute(text(f"{_DEPLOY_QUERY} where d.digest = :digest"), digest).first()
        if row is not None:
            self._cache.observe(Seen(row.repository_id, Epochs._make(row[-5:-1]), None, 0, row.installation))
        return _deploy_identity(row)

    def _by_password(self, credential: Credential, digest: bytes, address: str) -> Identity:
        if "\x00" in credential.name:
            raise Unauthenticated(WRONG)
        with self._database.read() as connection:
            row = connection.execute(text(f"{_USER_QUERY} where u.name = :name"), {"name": credential.name}).first()
        stored = None if row is None else row.password_hash
        if not self.passwords.matches(digest, credential, stored, address) or row is None or row.disabled:
            raise Unauthenticated(WRONG)
        return _user_identity(row)


def reference_to(identity: Identity) -> Reference:
    """What stands for the credential by which this identity was found. Raises Unauthenticated for one that cannot be referred to."""
    if identity is LOCAL:
        raise Unauthenticated("a command of this machine has no credential that another client could use")
    if identity.deploy is not None:
        return Reference("deploy", identity.deploy.id)
    if identity.token is not None:
        return Reference("token", identity.token.id)
    return Reference("user", identity.user_id, _proof_digest(identity.proof))


def _proof_digest(proof: str | None) -> str:
    return hashlib.sha256((proof or "").encode()).hexdigest()[:32]


def _recalled(connection: Connection, reference: Reference) -> Identity:
    number = {"id": reference.id}
    if reference.kind == "deploy":
        return _deploy_identity(connection.execute(text(f"{_DEPLOY_QUERY} where d.id = :id"), number).first())
    if reference.kind == "token":
        return _token_identity(connection.execute(text(f"{_TOKEN_QUERY} where t.id = :id"), number).first())
    row = connection.execute(text(f"{_USER_QUERY} where u.id = :id"), number).first()
    if row is None or row.disabled or row.password_hash is None or _proof_digest(row.password_hash) != reference.proof:
        raise Unauthenticated(WRONG)
    return _user_identity(row)


_USER_QUERY = "select u.id, u.name, u.administrator, u.disabled, u.revision, u.password_hash from arkvory_users u"
_TOKEN_QUERY = (
    "select u.id, u.name, u.administrator, u.disabled, u.revision, t.id as token_id, t.permissions, t.repositories, "
    "extract(epoch from t.expires_at)::float8 as expires_at from arkvory_tokens t join arkvory_users u on u.id = t.user_id"
)


_DEPLOY_QUERY = (
    "select d.id, d.name, d.repository_id, d.permissions, d.path_prefix, extract(epoch from d.expires_at)::float8 as expires_at, "
    "r.metadata_epoch, r.authorization_epoch, r.content_epoch, r.members_epoch, i.epoch as installation "
    "from arkvory_deploy_tokens d join arkvory_repositories r on r.id = d.repository_id and r.deleted_at is null "
    "cross join arkvory_installation i"
)


def _tag(identity: Identity) -> Tag:
    if identity.deploy is not None:
        return keys.tag_of_repository(identity.deploy.repository_id)
    return keys.tag_of_user(identity.user_id)


def _user_identity(row: Row[Any]) -> Identity:
    return Identity(row.id, row.name, row.administrator, row.revision, None, row.password_hash)


def _token_identity(row: Row[Any] | None) -> Identity:
    if row is None or row.disabled:
        raise Unauthenticated(WRONG)
    repositories = None if row.repositories is None else frozenset(row.repositories)
    scope = TokenScope(row.token_id, frozenset(row.permissions), repositories, row.expires_at)
    _check_time(scope)
    return Identity(row.id, row.name, row.administrator, row.revision, scope, None)


def _deploy_identity(row: Row[Any] | None) -> Identity:
    if row is None:
        raise Unauthenticated(WRONG)
    scope = DeployScope(
        row.id, row.repository_id, frozenset(row.permissions), row.path_prefix, row.authorization_epoch, row.expires_at
    )  # fmt: skip
    _check_time(scope)
    return Identity(0, f"deploy-token:{row.name}", False, 0, None, None, scope)


def _check_time(scope: TokenScope | DeployScope) -> None:
    if scope.expired:
        raise Unauthenticated("this token has expired; make a new one")
