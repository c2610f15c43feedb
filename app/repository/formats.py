"""What the house needs to know of each format; everything else about it is in its own room below `protocols`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

WRITE_POLICIES = ("once", "replace", "read_only")


@dataclass(frozen=True)
class Format:
    """`write_policy` is the default; `companions` are endings of files that come and go with the file before them."""

    name: str
    write_policy: str
    # A path that was used once is never used again, even after it was deleted.
    names_are_for_ever: bool = False
    companions: tuple[str, ...] = ()
    # The folder of the repository's address below which artifacts lie at their paths.
    files: str = ""

    def address(self, repository: str) -> str:
        """The path below the server's address that clients are pointed at."""
        return f"/{self.name}/{repository}/" + ("simple/" if self.name == "pypi" else "")

    def file_address(self, repository: str) -> str:
        """The path below the server's address that the path of an artifact follows."""
        return f"/{self.name}/{repository}/{self.files}"


FORMATS: Mapping[str, Format] = {
    each.name: each
    for each in (
        Format("raw", write_policy="replace"),
        Format("pypi", write_policy="once", names_are_for_ever=True, companions=(".metadata", ".asc", ".provenance")),
    )
}


def write_policy(format_name: str, settings: Mapping[str, object]) -> str:
    """The policy in force: the repository's own, else its format's default."""
    return str(settings.get("write_policy") or FORMATS[format_name].write_policy)
