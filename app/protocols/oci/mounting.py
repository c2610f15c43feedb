"""What a manifest names that was pushed through a group, and that is in another of its members than the one that takes pushes.

HEAD says of a group's blobs and manifests that they are there, whichever member has them, so clients do not send them. They are mounted, as
a client may ask for it with blobs: the same publish links them, counted as any others. No bytes move, but for those of which a proxy has no
copy yet: these it fetches first.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence, Set
from dataclasses import dataclass

from app.errors import ArkvoryError, Later, MissingParts
from app.http.parts import parts
from app.protocols.oci.manifests import MOST_BYTES, Manifest
from app.protocols.oci.names import Digest, blob_path, is_manifest, parse_digest, reference_of
from app.protocols.oci.uploads import BLOB_TYPE, manifest_file, parsed
from app.repository.publishing import KnownBlob, NewFile, Session, Target
from app.repository.reading import Ask, Found

# Each may be a question to an upstream.
MOST_MOUNTED = 1000


@dataclass(frozen=True)
class Mount:
    """Something that another member has at `path`; `manifest` null: a part of others."""

    image: str
    path: str
    blob: KnownBlob
    manifest: Manifest | None

    @property
    def digest(self) -> Digest:
        return parse_digest(reference_of(self.path))


def found_elsewhere(target: Target, image: str, missing: MissingParts, known: Set[str]) -> dict[str, Mount]:
    """What is missing, by its path: all of it, or `missing` is raised, and Later when a member that may have it cannot tell.

    `known` was found before and did not help. Call it without a place: a proxy that fetches takes one.
    """
    if len(missing.paths) > MOST_MOUNTED or known & set(missing.paths):
        raise missing
    found: dict[str, Mount] = {}
    for path in missing.paths:
        mount = _mount(target, image, path)
        if mount is None:
            raise missing
        found[path] = mount
    return found


def _mount(target: Target, image: str, path: str) -> Mount | None:
    """Null where the pusher could not read it either, for whatever reason."""
    if not is_manifest(path):
        return _found(target, image, path)
    # What an index names may be a part of it, as layers of build caches are.
    return _found(target, image, path) or _found(target, image, blob_path(image, reference_of(path)))


def _found(target: Target, image: str, path: str) -> Mount | None:
    ask = Ask(target.format, target.repository, path, target.caller, target.tenant)
    try:
        found = parts().reader.find(ask)
        manifest = _manifest(ask, image, found) if is_manifest(path) else None
    except Later:
        raise
    except ArkvoryError:
        return None
    gate = found.gate
    return Mount(image, path, KnownBlob(gate.digest, gate.size, gate.checksums), manifest)


def _manifest(ask: Ask, image: str, found: Found) -> Manifest:
    """Raises BadManifest for one that nobody could push here."""
    found, blob = parts().reader.open_blob(ask, found)
    with contextlib.closing(blob):
        return parsed(image, os.pread(blob.fd, MOST_BYTES, 0), found.gate.content_type)


def mounted(session: Session, mounts: Sequence[Mount]) -> list[NewFile]:
    """As files of this publish. Raises CapacitySpent."""
    linked = session.link([each.blob for each in mounts]) if mounts else []
    return [
        NewFile(each.path, room, BLOB_TYPE, is_part=True)
        if each.manifest is None
        else manifest_file(each.image, each.digest, each.manifest, room)
        for each, room in zip(mounts, linked, strict=True)
    ]
