"""The file system that a folder lies on: whose kernel keeps a file that was deleted while it is open."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

MOUNTS = Path("/proc/self/mounts")
# Of one machine alone, unless a cluster's containers share that machine. Whatever is not among them may be several machines'.
LOCAL = {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "tmpfs", "xfs", "zfs"}
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


def is_shared(folder: Path) -> bool:
    """Whether other machines may delete files in that folder; false where the system has no table of its mounts."""
    try:
        mount = mount_of(folder.resolve(), MOUNTS.read_text())
    except OSError:
        return False
    return mount is not None and mount.kind not in LOCAL
