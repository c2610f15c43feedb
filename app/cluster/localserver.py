"""How a command on this machine finds the running server: its address and a secret in the data directory."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path


def write(data_dir: Path, url: str) -> str:
    """Leave address and a fresh secret in `server.json` (0600); the secret."""
    secret = secrets.token_urlsafe(32)
    target, fresh = data_dir / "server.json", data_dir / "server.json.new"
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump({"url": url, "secret": secret}, file)
    fresh.rename(target)
    return secret


def remove(data_dir: Path) -> None:
    """The server is going."""
    (data_dir / "server.json").unlink(missing_ok=True)
