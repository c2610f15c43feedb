"""The real clients: found in the virtual environment or on the PATH, run with nothing of the user's own configuration."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

CONFIGURATION = ("PIP_", "UV_", "TWINE_", "CURL_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


def find(name: str) -> str | None:
    """Path of a client, the virtual environment's first."""
    return shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]))


def require(name: str) -> str:
    """Path of a client. Without it the test is skipped with a message, in CI it fails."""
    found = find(name)
    if found is None:
        message = f"the client {name} is not installed"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return found


def run(
    *command: str | Path, home: Path, environment: Mapping[str, str] | None = None, seconds: float = 120, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a client (the first word is its name) in the folder `home`, which is its home too.

    Fails with all that it printed when its exit code is not 0, unless `check` is false.
    """
    name, *arguments = map(str, command)
    kept = {key: value for key, value in os.environ.items() if not key.upper().startswith(CONFIGURATION)}
    own = {"HOME": str(home), "PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1", "PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring"}
    done = subprocess.run(
        [require(name), *arguments], cwd=home, env=kept | own | dict(environment or {}), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds, check=False,
    )  # fmt: skip
    assert not check or done.returncode == 0, f"{' '.join([name, *arguments])} ended with {done.returncode}:\n{done.stdout}"
    return done
