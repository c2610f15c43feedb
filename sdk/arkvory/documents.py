"""What the server tells, as values. `document` is all that it said, fields of later versions too."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self


class _Told:
    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """From the API's document; what it does not say is null."""
        told = {each.name: document.get(each.name) for each in dataclasses.fields(cls)}  # type: ignore[arg-type]  # each one below is one
        return cls(**(told | {"document": document}))


@dataclass(frozen=True)
class Artifact(_Told):
    """A file of a repository. `size` in bytes, times in ISO 8601, UTC; `quarantine` null unless it is held."""

    path: str
    size: int
    sha256: str
    content_type: str
    created_at: str
    updated_at: str
    quarantine: Mapping[str, Any] | None
    url: str
    document: Mapping[str, Any] = field(repr=False, compare=False)


@dataclass(frozen=True)
class Found(_Told):
    """What a search found, and in which repository."""

    repository: str
    format: str
    path: str
    size: int
    sha256: str
    url: str
    document: Mapping[str, Any] = field(repr=False, compare=False)


@dataclass(frozen=True)
class Repository(_Told):
    """`quota_bytes` null: none. `members` of a group, `upstream_url` of a proxy; `url` is where clients are pointed at."""

    name: str
    format: str
    kind: str
    status: str
    public: bool
    quota_bytes: int | None
    settings: Mapping[str, Any]
    upstream_url: str | None
    members: list[str] | None
    url: str
    warnings: list[str] | None
    document: Mapping[str, Any] = field(repr=False, compare=False)


@dataclass(frozen=True)
class Token(_Told):
    """`token` is the secret, told once, by the call that makes it; null ever after. `repositories` null: all that its owner has.

    `expires_at` null: it lasts until it is revoked. `made_with` is the id of the token that made it, with which it ends; null: a password.
    """

    id: int
    name: str
    user: str
    permissions: list[str]
    repositories: list[str] | None
    created_at: str
    expires_at: str | None
    made_with: int | None
    token: str | None = field(repr=False)
    document: Mapping[str, Any] = field(repr=False, compare=False)


@dataclass(frozen=True)
class Uploaded:
    """`parts` sent by this call (0: one whole PUT, or nothing had to be sent), `unchanged`: the server had the same bytes there."""

    repository: str
    path: str
    size: int
    sha256: str
    parts: int = 0
    unchanged: bool = False


@dataclass(frozen=True)
class Downloaded:
    """`resumed`: bytes that an earlier call had fetched; `unchanged`: the file was there already. `verified`: the server told a digest, and
    it is the file's (else only the length was compared)."""

    path: str
    file: str
    size: int
    sha256: str
    resumed: int = 0
    unchanged: bool = False
    verified: bool = True
