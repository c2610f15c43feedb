"""A folder from which real clients work against the module's server."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support import clients
from tests.support.server import Server


@dataclass
class Desk:
    """Somebody's machine: a home folder, and commands that run in it."""

    server: Server
    home: Path

    def run(self, *command: str | Path, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a client; it fails the test with all that it printed unless `check` is false."""
        variables = {"UV_CACHE_DIR": str(self.home / "uv"), "UV_HTTP_TIMEOUT": "20"} | environment
        return clients.run(*command, home=self.home, environment=variables, check=check)

    def file(self, name: str, data: bytes) -> Path:
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def token(self) -> str:
        """Of the administrator, for anything."""
        made = self.server.post("/api/v1/tokens", json={"name": "desk", "permissions": ["read", "write"], "repositories": None})
        return str(made.json()["token"])

    def group(self, name: str, format: str, *, public: bool = False, **upstream: Any) -> str:
        """A group of a hosted repository `NAME-own`, which takes what is published through it, and the proxy `NAME-there`; its address."""
        self.server.repository(f"{name}-own", format)
        self.server.repository(f"{name}-there", format, kind="proxy", **upstream)
        members = {"members": [f"{name}-own", f"{name}-there"], "settings": {"write_member": f"{name}-own"}}
        return self.server.repository(name, format, kind="group", public=public, **members)

    def with_login(self, address: str, name: str | None = None, password: str | None = None) -> str:
        """The address with a login in it, the administrator's by default."""
        user, secret = self.server.admin
        return address.replace("://", f"://{name or user}:{password or secret}@", 1)


@pytest.fixture
def desk(server: Server, tmp_path: Path) -> Desk:
    return Desk(server, tmp_path)
