"""Where the peers' programs come from: the PATH, else a cache folder, which nothing but this benchmark uses.

    nginx, docker-registry    Debian's packages, unpacked and not installed
    devpi-server, pypiserver  pip, each in a virtual environment of its own
    verdaccio                 npm, in a folder of its own; node and npm themselves are installed by apt-get where this runs as root

What is in the cache is used again the next time.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

APT_SECONDS = 240
PIP_SECONDS = 180
NPM_SECONDS = 240
LEAST_NODE = 18

DEVPI = ("devpi-server==6.20.3",)
# The server by which its own documentation runs it in earnest, and what it needs to notice changes instead of looking at each request.
PYPISERVER = ("pypiserver[cache]==2.4.2", "gunicorn==23.0.0")
# The newest that runs with Debian's node; one of its parts asks for a tag that not every mirror carries.
VERDACCIO = {"private": True, "dependencies": {"verdaccio": "6.5.2"}, "overrides": {"node-fetch": "2.7.0"}}


class Unavailable(Exception):
    """Why a peer cannot take part."""


def debian_program(cache: Path, package: str) -> Path:
    """The program of that name. Raises Unavailable."""
    found = _which(package) or _unpacked(cache / package)
    if found is None:
        folder = cache / package
        folder.mkdir(parents=True, exist_ok=True)
        if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
            raise Unavailable(f"{package} is not installed, and there is no apt-get to bring it")
        _apt(["download", package], folder)
        for archive in folder.glob("*.deb"):
            _run(["dpkg-deb", "-x", str(archive), str(folder)], folder, APT_SECONDS)
        found = _unpacked(folder)
    if found is None:
        raise Unavailable(f"Debian's package {package} holds no such program here")
    return found


def environment(cache: Path, name: str, requirements: Sequence[str]) -> Path:
    """The programs' folder of a virtual environment with these packages. Raises Unavailable."""
    folder, wanted = cache / name, "\n".join(requirements)
    if not _is_ready(folder, wanted):
        _run([sys.executable, "-m", "venv", str(folder)], cache, PIP_SECONDS)
        _run([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *requirements], folder, PIP_SECONDS)
        (folder / "ready").write_text(wanted)
    return folder / "bin"


def node_program(cache: Path, name: str, package: dict[str, object]) -> list[str]:
    """The command of a package of npm's. Raises Unavailable."""
    folder, wanted = cache / name, json.dumps(package)
    node = _node(cache)
    if not _is_ready(folder, wanted):
        (folder / "package.json").write_text(wanted)
        _run(["npm", "install", "--no-audit", "--no-fund", "--no-update-notifier", "--ignore-scripts"], folder, NPM_SECONDS)
        (folder / "ready").write_text(wanted)
    return [node, str((folder / "node_modules" / ".bin" / name).resolve())]


def _which(program: str) -> Path | None:
    """Servers stand where users do not look."""
    found = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin")
    return None if found is None else Path(found)


def _unpacked(folder: Path) -> Path | None:
    return next((path for path in (folder / each / folder.name for each in ("usr/sbin", "usr/bin")) if path.exists()), None)


def _is_ready(folder: Path, wanted: str) -> bool:
    """Otherwise it is empty afterwards."""
    marker = folder / "ready"
    if marker.exists() and marker.read_text() == wanted:
        return True
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return False


def _node(cache: Path) -> str:
    if shutil.which("node") is None or shutil.which("npm") is None:
        if os.getuid() or shutil.which("apt-get") is None:
            raise Unavailable("node and npm are not installed (as root they would be, by apt-get)")
        _apt(["install", "-y", "--no-install-recommends", "nodejs", "npm"], cache)
    told = subprocess.run(["node", "--version"], capture_output=True, text=True, check=False, timeout=30).stdout.strip()
    if not told.startswith("v") or int(told[1:].split(".", 1)[0]) < LEAST_NODE:
        raise Unavailable(f"it needs node {LEAST_NODE}, and here is {told or 'one that does not run'}")
    return str(shutil.which("node"))


def _apt(command: Sequence[str], folder: Path) -> None:
    """Again with fresh lists of packages, where we may fetch them."""
    try:
        _run(["apt-get", "-qq", *command], folder, APT_SECONDS)
    except Unavailable:
        if os.getuid():
            raise
        _run(["apt-get", "-qq", "update"], folder, APT_SECONDS)
        _run(["apt-get", "-qq", *command], folder, APT_SECONDS)


def _run(command: Sequence[str], folder: Path, seconds: float) -> None:
    """What it says goes to a log, since it may name whatever mirror is used here."""
    folder.mkdir(parents=True, exist_ok=True)
    what = " ".join([Path(command[0]).name, *(each for each in command[1:] if not each.startswith("-"))])[:60]
    with (folder / "install.log").open("ab") as log:
        try:
            done = subprocess.run(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=seconds, check=False,
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise Unavailable(f"`{what}` took longer than {seconds:.0f} s") from None
    if done.returncode:
        raise Unavailable(f"`{what}` failed; `{folder.name}/install.log` in the cache says why")
