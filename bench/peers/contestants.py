"""What is compared: a door of Arkvory's or of a peer's, and what is asked of it.

To set a further format of Arkvory's beside its peer, give it a contestant of one of the peer's families in `ours.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from bench.client import Step, request
from bench.publishing import OCI, Image

PROJECT = "sample"
OCI_FAMILIES = ("oci", "oci, by tag", "oci, by digest")


@dataclass(frozen=True, eq=False)
class Contestant:
    """`file` and `page` are whole requests; `upload` makes the steps that store so many random bytes under a name that is used once."""

    name: str
    family: str
    port: int
    processes: Callable[[], list[int]]
    file: bytes | None = None
    page: bytes | None = None
    upload: Callable[[str, int], list[Step]] | None = None
    ours: bool = False


def of_images(image: Image, start: Contestant) -> list[Contestant]:
    """Three of one registry, after `start`: a blob, and a manifest by its tag and by its digest. The image was pushed."""
    asked = {"manifest by tag": image.by_tag, "manifest by digest": image.by_digest}
    manifests = [
        replace(start, name=f"{start.name}: a {what}", family=family, page=request("GET", path, *OCI), upload=None)
        for (what, path), family in zip(asked.items(), OCI_FAMILIES[1:], strict=True)
    ]
    return [replace(start, name=f"{start.name}: a blob", family=OCI_FAMILIES[0], file=request("GET", image.blob)), *manifests]
