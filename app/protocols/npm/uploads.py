"""Publishing a version: a tarball, what the document says of it, and whether both agree."""

from __future__ import annotations

import base64
import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from app.database.statements import text
from app.errors import Invalid
from app.protocols.npm import archives
from app.protocols.npm.changes import set_tag, settle_latest
from app.protocols.npm.fragments import Facts, Fragments, fragments, plain
from app.protocols.npm.names import (
    PROVENANCE,
    attestations_reference,
    bare,
    check_new_name,
    check_tag,
    check_version,
    parsed_version,
    tarball_path,
    tarball_reference,
)
from app.protocols.npm.received import Attachment, Document, look_into, stored
from app.protocols.npm.splitting import decode
from app.repository.publishing import NewFile, Package, Published, Session
from app.upload.receiving import Received

TARBALL_TYPE = "application/octet-stream"
MOST_MAINTAINERS = 64 * 1024
_DISAGREE = "the package.json in the tarball and the document disagree"
# A dependency that is no range of versions and no tag.
_ADDRESS = re.compile(r"[:/]")


@dataclass(frozen=True)
class Release:
    """What a document publishes, as far as it can be told without the tarball."""

    package: str
    version: str
    manifest: Mapping[str, Any]
    tarball: Attachment
    provenance: Attachment | None
    tags: tuple[str, ...]

    @classmethod
    def of(cls, package: str, document: Document) -> Release:
        """Raises Invalid for names that disagree and whatever is not one version with one tarball."""
        check_new_name(package)
        document.check_name(package)
        if len(document.manifests) != 1:
            raise Invalid("a document publishes exactly one version", "versions")
        version, manifest = next(iter(document.manifests.items()))
        check_version(version)
        if not isinstance(manifest, dict) or manifest.get("name") != package or manifest.get("version") != version:
            raise Invalid(f"what the document says of {version!r} is not of {package!r} in that version", "versions")
        tarballs = [each for each in document.attachments if each.name.endswith(".tgz")]
        provenance = [each for each in document.attachments if each.name.endswith(PROVENANCE)]
        if len(tarballs) != 1 or len(provenance) > 1 or len(document.attachments) > len(tarballs) + len(provenance):
            raise Invalid(f"a version has one attached tarball, .tgz, and perhaps its {PROVENANCE}", "_attachments")
        if tarballs[0].name not in {f"{name}-{version}.tgz" for name in (package, bare(package))}:
            raise Invalid(f"the attached {tarballs[0].name!r} is not called {package}-{version}.tgz", "_attachments")
        return cls(package, version, manifest, tarballs[0], next(iter(provenance), None), _tags(document, version))


def _tags(document: Document, version: str) -> tuple[str, ...]:
    """Those that the version gets; what a whole document says of others stays as it is."""
    versions = document.versions or {}
    for tag, named in document.tags.items():
        if not isinstance(named, str) or named not in versions:
            raise Invalid(f"the tag {tag!r} names {named!r}, which is not in the document", "dist-tags")
    return tuple(check_tag(tag) for tag, named in document.tags.items() if named == version)


def publish(session: Session, package: str, document: Document, publisher: str) -> Published:
    """Publish what the document brings. Raises Invalid, AlreadyExists and what publishing raises."""
    release = Release.of(package, document)
    received = stored(session, release.tarball)
    found = look_into(received)
    check_tarball(release.package, release.version, release.manifest, found)
    _check_dist(release.manifest.get("dist"), received)
    bundle = None if release.provenance is None else _Bundle.of(release.provenance, received)
    facts = facts_of(release.package, release.version, received, found, None if bundle is None else bundle.predicate)
    made = fragments(release.manifest, facts, publisher, document.value("readme"))
    files = [NewFile(tarball_path(package, release.version), received, TARBALL_TYPE, version=release.version)]
    if bundle is not None:
        files.append(NewFile(files[0].path + PROVENANCE, session.store(bundle.document), "application/json"))
    owners = _maintainers(document.value("maintainers"), publisher)
    write = functools.partial(_write, made, release.tags, owners)
    return session.publish(files, package=Package(package, package, also=write))[0]


def check_tarball(package: str, version: str, manifest: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Whether what `look_into` found is of the version that the manifest describes. Raises Invalid."""
    if found["name"] != package or not _is_same_version(version, str(found["version"])):
        raise Invalid(
            f"the package.json in the tarball is of {found['name']!r} {found['version']!r}, the document of {package!r} {version!r}",
            "_attachments",
        )
    _check_installs(archives.installs(manifest), found["installs"], gyp=found["gyp"])


def _is_same_version(version: str, packed: str) -> bool:
    """npm cleans a version before it publishes it: no `v`, no build metadata. Upstreams may have some that are older than the rules."""
    told, cleaned = parsed_version(version), parsed_version(packed.strip().lstrip("v="))
    if told is None or cleaned is None:
        return version == packed
    return told.replace(build=None) == cleaned.replace(build=None)


def _check_installs(told: Mapping[str, Mapping[str, str]], packed: Mapping[str, Mapping[str, str]], *, gyp: bool) -> None:
    """Installers act upon the one and scanners look at the other, so they say the same. Raises Invalid.

    npm itself adds a script where there is a `binding.gyp`, and writes addresses of dependencies in another way.
    """
    added = {"install": "node-gyp rebuild"} if gyp else {}
    if told["scripts"] not in (packed["scripts"], {**added, **packed["scripts"]}):
        raise Invalid(f"{_DISAGREE} about the scripts that run when it is installed", "versions")
    ranges, others = told["dependencies"], packed["dependencies"]
    differing = ranges.keys() ^ others.keys() | {
        name for name, wanted in others.items() if not _ADDRESS.search(wanted) and ranges.get(name, wanted) != wanted
    }
    if differing:
        raise Invalid(f"{_DISAGREE} about its dependency {min(differing)!r}", "versions")


def _check_dist(dist: Any, received: Received) -> None:
    """Integrity (SRI, each of the algorithms that we make) and shasum, where the client says them. Raises Invalid."""
    told = dist if isinstance(dist, dict) else {}
    integrity, shasum = told.get("integrity"), told.get("shasum")
    for each in str(integrity or "").split():
        algorithm, _, value = each.partition("?")[0].partition("-")
        if algorithm in received.checksums and value != _base64(received.checksums[algorithm]):
            raise Invalid(f"the tarball has not the integrity that the document tells ({algorithm})", "dist.integrity")
    if shasum is not None and shasum != received.checksums["sha1"]:
        raise Invalid("the tarball has not the shasum that the document tells", "dist.shasum")


def _base64(digest: str) -> str:
    return base64.b64encode(bytes.fromhex(digest)).decode()


def facts_of(package: str, version: str, received: Received, found: Mapping[str, Any], predicate: str | None) -> Facts:
    """Of what `look_into` found; `predicate`: the type of its provenance, null: it has none."""
    return Facts(
        reference=tarball_reference(package, version),
        integrity=f"sha512-{_base64(received.checksums['sha512'])}",
        shasum=received.checksums["sha1"],
        files=found["files"],
        unpacked=found["unpacked"],
        shrinkwrap=found["shrinkwrap"],
        gyp=found["gyp"],
        attestations=None if predicate is None else attestations_reference(package, version),
        predicate=predicate,
    )


@dataclass(frozen=True)
class _Bundle:
    """A provenance statement in its sigstore bundle; `document` is what clients ask for later."""

    predicate: str
    document: bytes

    @classmethod
    def of(cls, attachment: Attachment, tarball: Received) -> _Bundle:
        """Raises Invalid for what is no bundle, or one about other bytes. Who signed it is for the clients to find out."""
        try:
            bundle = archives.parse(attachment.text)
            statement = archives.parse(decode(bundle["dsseEnvelope"]["payload"]))
            predicate, subjects = statement["predicateType"], [each["digest"]["sha512"] for each in statement["subject"]]
        except (ValueError, KeyError, TypeError):
            raise Invalid("the provenance is no sigstore bundle with a statement in it", "_attachments") from None
        if not isinstance(predicate, str) or tarball.checksums["sha512"] not in subjects:
            raise Invalid("the provenance is about other bytes than the tarball's", "_attachments")
        attestations = {"attestations": [{"predicateType": predicate, "bundle": bundle}]}
        return cls(predicate, json.dumps(attestations).encode())


def _maintainers(told: Any, publisher: str) -> str:
    """Who is named as owner of a new package: who publishes it, unless the document names others."""
    return check_maintainers(told) if told else json.dumps([{"name": publisher, "email": ""}])


def check_maintainers(told: Any) -> str:
    """A list of people as JSON. Raises Invalid."""
    people = told if isinstance(told, list) else [told]
    if not people or any(not isinstance(each, dict) or not isinstance(each.get("name"), str) for each in people):
        raise Invalid("maintainers is a list of objects with a name", "maintainers")
    written = plain(json.dumps(people, ensure_ascii=False))
    if len(written) > MOST_MAINTAINERS:
        raise Invalid(f"maintainers has more than {MOST_MAINTAINERS} characters", "maintainers")
    return written


def _write(
    made: Fragments, tags: Sequence[str], owners: str, connection: Connection, package_id: int, published: Sequence[Published]
) -> None:
    """The rows of the version, in the publish's transaction."""
    write_version(connection, published[0].id, made)
    name_owners(connection, package_id, owners)
    for tag in tags:
        set_tag(connection, package_id, tag, published[0].id)
    settle_latest(connection, package_id, published[0].id)


def write_version(connection: Connection, artifact_id: int, made: Fragments, published_at: datetime | None = None) -> None:
    """`published_at`: by an upstream, where it came from there."""
    connection.execute(_VERSION, {"artifact": artifact_id, "published": published_at, **asdict(made)})


def name_owners(connection: Connection, package_id: int, owners: str) -> None:
    """Of a package that is new."""
    connection.execute(_OWNERS, {"package": package_id, "maintainers": owners})


_VERSION = text(
    "insert into arkvory_npm_versions (artifact_id, fragment, abbreviated, words, readme, deprecated, published_at) "
    "values (:artifact, :full, :abbreviated, :words, :readme, :deprecated, :published) on conflict (artifact_id) do update set fragment = "
    "excluded.fragment, abbreviated = excluded.abbreviated, words = excluded.words, readme = excluded.readme, "
    "deprecated = excluded.deprecated, published_at = excluded.published_at"
)
_OWNERS = text("insert into arkvory_npm_packages (package_id, maintainers) values (:package, :maintainers) on conflict do nothing")
