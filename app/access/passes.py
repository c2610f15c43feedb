"""Passes: short-lived tokens that a client gets for a credential, to show in its place (the Docker token flow).

A pass is signed, and names the credential and what it may be used for at most. It allows nothing by itself: at each use the credential
is looked up as if it had been presented again, so that what was revoked since is worth nothing, and the rights are those of now.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import os
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from app.access.identity import Identities, Identity, Reference, reference_to
from app.errors import Unauthenticated
from app.storage.secret import secret_of
from config import Settings

PREFIX = "arkp_"
# Passes that are not taken apart again each time.
MOST_KNOWN = 10_000
# What is signed is cut to this many bytes; nobody guesses half a SHA-256.
_SIGNATURE_BYTES = 16
_UNUSABLE = "this token has expired or is not one of this server's; get a new one"


@dataclass(frozen=True, slots=True)
class Pass:
    """`reference` null stands for nobody; `access` are actions by name. One that `renews` is good for getting others, no more."""

    reference: Reference | None
    access: Mapping[str, frozenset[str]]
    renews: bool = False


class Passes:
    """Makes and reads them."""

    def __init__(self, settings: Settings, identities: Identities) -> None:
        self._settings = settings
        self._identities = identities
        self._key: bytes | None = None
        self._memory_key = os.urandom(32)
        self._known: OrderedDict[bytes, tuple[Pass, float]] = OrderedDict()

    def make(self, identity: Identity | None, access: Mapping[str, frozenset[str]], seconds: float, *, renews: bool = False) -> str:
        """Raises Unauthenticated for an identity without a credential."""
        reference = None if identity is None else reference_to(identity)
        content = {
            "of": None if reference is None else [reference.kind, reference.id, reference.proof],
            "may": {name: sorted(actions) for name, actions in access.items()},
            "until": int(time.time() + seconds),
            "renews": renews,
        }
        body = base64.urlsafe_b64encode(json.dumps(content, separators=(",", ":")).encode()).rstrip(b"=")
        return f"{PREFIX}{body.decode()}.{self._signature(body)}"

    def read(self, secret: str) -> Pass:
        """Raises Unauthenticated for what was not made here, or is over."""
        # Memory holds keyed digests only, as for other credentials.
        digest = hashlib.blake2b(secret.encode("utf-8", "surrogatepass"), digest_size=32, key=self._memory_key).digest()
        known = self._known.get(digest)
        if known is None:
            known = self._known[digest] = self._opened(secret)
            if len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)
        shown, until = known
        if until <= time.time():
            raise Unauthenticated(_UNUSABLE)
        return shown

    def _opened(self, secret: str) -> tuple[Pass, float]:
        """With the time until which it may be used."""
        body, _, signature = secret.removeprefix(PREFIX).partition(".")
        if not secret.isascii() or not hmac.compare_digest(self._signature(body.encode()), signature):
            raise Unauthenticated(_UNUSABLE)
        try:
            content = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        except (ValueError, binascii.Error):
            raise Unauthenticated(_UNUSABLE) from None
        reference = None if content["of"] is None else Reference(*content["of"])
        access = {name: frozenset(actions) for name, actions in content["may"].items()}
        return Pass(reference, access, content["renews"]), content["until"]

    def bearer(self, shown: Pass) -> Identity | None:
        """Whom it stands for now. Raises Unauthenticated."""
        return None if shown.reference is None else self._identities.recall(shown.reference)

    def _signature(self, body: bytes) -> str:
        if self._key is None:
            self._key = hashlib.sha256(secret_of(self._settings)).digest()
        made = hmac.digest(self._key, body, "sha256")[:_SIGNATURE_BYTES]
        return base64.urlsafe_b64encode(made).rstrip(b"=").decode()
