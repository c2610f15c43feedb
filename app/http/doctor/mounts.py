"""The file system that the blobs lie on: what several machines need of it (docs/deployment.md, NFS)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from app.http.doctor.findings import Finding, fail, ok, warn
from app.storage.mounts import LOCAL, MOUNTS, Mount, mount_of

OLDEST_NFS = (4, 1)
_CHECK = "mount"


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
