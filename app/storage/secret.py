"""The installation's secret: ARKVORY_SECRET_KEY, else a file beside the blobs, where all machines of a cluster look."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from config import Settings


def secret_of(settings: Settings) -> bytes:
    """Keys are made from it, another one for each purpose. Raises OSError when the file can be neither read nor made."""
    given = settings.secret_key
    return given.encode() if given else _kept_secret(_place(settings))


def fingerprint_of(settings: Settings) -> str:
    """By which two processes find out whether they have the same one; it tells nothing of it. Empty while there is none: none is made."""
    if not settings.secret_key and not _place(settings).exists():
        return ""
    try:
        return hmac.digest(hashlib.sha256(secret_of(settings)).digest(), b"fingerprint", "sha256").hex()[:8]
    except OSError:
        return ""


def _place(settings: Settings) -> Path:
    return settings.data_dir / "blobs" / "secret.key"


def _kept_secret(path: Path) -> bytes:
    """Made at the first need; whoever comes second finds the first one's."""
    if not path.exists():
        fresh = path.with_name(f"secret.key.{secrets.token_hex(8)}")
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(32))
        try:
            os.link(fresh, path)
        except FileExistsError:
            pass
        finally:
            fresh.unlink()
    return path.read_bytes()
