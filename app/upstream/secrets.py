"""The key under which credentials of upstreams lie in the database.

It comes from ARKVORY_SECRET_KEY (any text; its digest is the key), else from a file of the data directory that only its owner reads and
that is made when the first secret is kept. Processes that do not share a data directory need the setting.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken

from app.errors import Unavailable
from config import Settings

FILE = "secret.key"


class Secrets:
    """Encrypts and decrypts; looks for the key when it is first needed."""

    def __init__(self, settings: Settings) -> None:
        self._given = settings.secret_key
        self._file = settings.data_dir / FILE
        self._fernet: Fernet | None = None

    def encrypt(self, value: str) -> str:
        """Raises Unavailable when the key's file can be neither read nor made."""
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
            self._fernet = Fernet(self._given_key() if self._given else _key_in(self._file))
        return self._fernet

    def _given_key(self) -> bytes:
        assert self._given is not None
        return base64.urlsafe_b64encode(hashlib.sha256(self._given.encode()).digest())


def _key_in(file: Path) -> bytes:
    try:
        if not file.exists():
            _make(file)
        return file.read_bytes().strip()
    except OSError as error:
        raise Unavailable(f"the key of the upstreams' credentials cannot be read: {error.strerror}", retry_after=60) from error


def _make(file: Path) -> None:
    """Whole or not at all; whoever comes second takes the first one's."""
    fresh = file.with_name(f"{file.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        out.write(Fernet.generate_key() + b"\n")
        out.flush()
        os.fsync(out.fileno())
    with contextlib.suppress(FileExistsError):
        os.link(fresh, file)
    fresh.unlink()
