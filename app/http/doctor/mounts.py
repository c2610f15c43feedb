"""The file system that the blobs lie on: what several machines need of it (docs/deployment.md, NFS)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from app.http.doctor.findings import Finding, fail, ok, warn

MOUNTS = Path("/proc/self/mounts")
# Of one machine alone, unless a cluster's containers share that machine.
LOCAL = {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "tmpfs", "xfs", "zfs"}
OLDEST_NFS = (4, 1)
_CHECK = "mount"
_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Mount:
    """One line of the kernel's table; an option without a value has an empty one."""

    point: str
    kind: str
    options: dict[str, str]


def mount_of(path: Path, table: str) -> Mount | None:
    """The mount that `path` lies on, the last one where several lie over each other."""
    found: Mount | None = None
    for line in table.splitlines():
        _, point, kind, options, *_ = line.split(" ")
        mount = Mount(_plain(point), kind, dict(_option(each) for each in options.split(",")))
        if path.is_relative_to(mount.point) and (found is None or len(mount.point) >= len(found.point)):
            found = mount
    return found


def _plain(point: str) -> str:
    """The table writes a space as \\040."""
    return _ESCAPED.sub(lambda match: chr(int(match.group(1), 8)), point)


def _option(option: str) -> tuple[str, str]:
    name, _, value = option.partition("=")
    return name, value


def examine_mount(blobs: Path, hosts: frozenset[str], table: str | None = None) -> list[Finding]:
    """`hosts` are the machines of the cluster, empty on a single node. Nothing where the system has no such table."""
    try:
        mount = mount_of(blobs.resolve(), MOUNTS.read_text() if table is None else table)
    except OSError:
        return []
    if mount is None:
        return []
    found = list(_nfs(mount, bool(hosts)) if mount.kind in {"nfs", "nfs4"} else _other(mount, hosts))
    return found or [ok(_CHECK, f"the blobs lie on {mount.kind} ({mount.point})")]


def _other(mount: Mount, hosts: frozenset[str]) -> Iterator[Finding]:
    if len(hosts) > 1 and mount.kind in LOCAL:
        yield warn(
            _CHECK,
            f"the blobs lie on {mount.kind}, a file system of this machine, but the cluster runs on {', '.join(sorted(hosts))}",
            "mount one shared file system at `blobs` in each data directory, unless these are containers of one machine",
        )


def _nfs(mount: Mount, cluster: bool) -> Iterator[Finding]:
    where = f"{mount.point} (NFS)"
    version = mount.options.get("vers", "")
    if _number(version) < OLDEST_NFS:
        words = f"{where} speaks version {version or 'unknown'}: a rename whose answer was lost is done twice, and fails the second time"
        yield warn(_CHECK, words, "mount it with nfsvers=4.1 or newer, whose sessions do everything once")
    if "soft" in mount.options or "softerr" in mount.options:
        words = f"{where} is mounted soft: what takes long is given up, and bytes may be lost that were said to be written"
        yield fail(_CHECK, words, "mount it hard")
    if cluster and mount.options.get("lookupcache") not in {"positive", "pos", "none"}:
        words = f"{where} remembers for up to a minute that a file was not there: what another machine stored since seems to be missing"
        yield warn(_CHECK, words, "mount it with lookupcache=positive")


def _number(version: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, version.split(".")))
    except ValueError:
        return ()
