"""Credentials of upstreams as they lie in the database: encrypted under a key made from the installation's secret."""

from __future__ import annotations

import base64
import hashlib
import hmac

from cryptography.fernet import Fernet, InvalidToken

from app.errors import Unavailable
from app.storage.secret import secret_of
from config import Settings


class Secrets:
    """Encrypts and decrypts; looks for the key when it is first needed."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._fernet: Fernet | None = None

    def encrypt(self, value: str) -> str:
        """Raises Unavailable when there is no key to be had."""
        return self._key().encrypt(value.encode()).decode()

    def decrypt(self, value: str) -> str:
        """Raises Unavailable when it was encrypted under another key."""
        try:
            return self._key().decrypt(value.encode()).decode()
        except InvalidToken:
            raise Unavailable(
                "the upstream's credentials were kept under another key: set ARKVORY_SECRET_KEY as it was, or set them again",
                retry_after=60,
            ) from None

    def _key(self) -> Fernet:
        if self._fernet is None:
            try:
                secret = secret_of(self._settings)
            except OSError as error:
                raise Unavailable(f"the key of the upstreams' credentials cannot be read: {error.strerror}", retry_after=60) from error
            self._fernet = Fernet(base64.urlsafe_b64encode(hmac.digest(hashlib.sha256(secret).digest(), b"upstreams", "sha256")))
        return self._fernet
