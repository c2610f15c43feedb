"""The real clients: found in the virtual environment or on the PATH, run with nothing of the user's own configuration."""

from __future__ import annotations

import fcntl
import functools
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

CONFIGURATION = ("PIP_", "UV_", "TWINE_", "CURL_", "NPM_", "YARN_", "PNPM_", "BUN_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


# What Debian calls them. mvn finds its plugins below /usr/share/maven-repo and compiles with a JDK; nothing of it needs the Internet.
PACKAGES = {
    "mvn": (
        "maven", "default-jdk-headless", "libmaven-compiler-plugin-java", "libmaven-deploy-plugin-java", "libmaven-install-plugin-java",
        "libmaven-jar-plugin-java", "libmaven-resources-plugin-java", "libmaven-source-plugin-java", "libsurefire-java",
    ),
    "gradle": ("gradle", "default-jdk-headless"),
    "ivy": ("ivy", "default-jre-headless"),
    "containers": ("skopeo", "podman", "buildah"),
    "nginx": ("nginx-light",),
    "npm": ("npm",),
    "pgbouncer": ("pgbouncer",),
    "systemd-analyze": ("systemd",),
}  # fmt: skip
# Often there from elsewhere, where Debian's package would not go with what it came with.
PROGRAMS = frozenset({"npm"})
# Clients that are npm packages, put into the virtual environment.
NODE_CLIENTS = {"pnpm": "10.34.9", "yarn": "1.22.22", "@yarnpkg/cli-dist": "4.18.1"}
BUN = f"@oven/bun-linux-{'aarch64' if platform.machine() == 'aarch64' else 'x64-baseline'}"
NODE_CLIENTS |= {BUN: "1.4.5"}


def find(name: str) -> str | None:
    """Path of a client, the virtual environment's first; servers count as clients too."""
    return shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath), "/usr/sbin"]))


def require(name: str) -> str:
    """Path of a client. Without it the test is skipped with a message, in CI it fails."""
    found = find(name)
    if found is None:
        go_without(f"the client {name} is not installed")
        raise AssertionError
    return found


def require_packages(name: str) -> None:
    """All Debian packages of a client in `PACKAGES`, installed now where we may. Without them the test is skipped, in CI it fails."""
    if not _installed(name) and not _install(name):
        go_without(f"the client {name} needs: apt-get install {' '.join(PACKAGES[name])}")


def go_without(message: str) -> None:
    """The test is skipped with the message, in CI it fails."""
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


def node_client(name: str, program: str) -> Path:
    """The program of a client among `NODE_CLIENTS`, all of which are installed when the first one is asked for."""
    require_packages("npm")
    folder = Path(sys.prefix) / "node-clients"
    with (folder.parent / "node-clients.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not all(_has_node_client(folder, each) for each in NODE_CLIENTS):
            wanted = [f"{each}@{version}" for each, version in NODE_CLIENTS.items()]
            command = [require("npm"), "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--silent", *wanted]
            subprocess.run(command, capture_output=True, check=False, timeout=120)
    if not _has_node_client(folder, name):
        go_without(f"the client {name} could not be had from the npm registry")
    return folder / "node_modules" / name / program


def _has_node_client(folder: Path, name: str) -> bool:
    manifest = folder / "node_modules" / name / "package.json"
    return manifest.exists() and json.loads(manifest.read_text())["version"] == NODE_CLIENTS[name]


def _installed(name: str) -> bool:
    if name in PROGRAMS and find(name) is not None:
        return True
    if shutil.which("dpkg-query") is None:
        return False
    done = subprocess.run(["dpkg-query", "-W", "-f", "${Status}\n", *PACKAGES[name]], capture_output=True, text=True, check=False)
    return done.returncode == 0 and done.stdout.count("install ok installed") == len(PACKAGES[name])


def main() -> None:
    """`python -m tests.support.clients`: the Debian packages that are missing for all clients' tests to run."""
    print(*sorted({package for name in PACKAGES if not _installed(name) for package in PACKAGES[name]}))


@functools.cache
def _install(name: str) -> bool:
    """Once; False for whoever may not, or where the packages cannot be had."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return False
    quietly = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", *PACKAGES[name]]):
        if subprocess.run(["apt-get", "-qq", *command], env=quietly, capture_output=True, check=False).returncode != 0:
            return False
    return _installed(name)


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


if __name__ == "__main__":
    main()
