"""From what the domain returns to the documents of the API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from flask import request

from app.access.identity import Caller
from app.api.parsing import cursor_of
from app.database.paging import Page
from app.errors import Unauthenticated
from app.http.addresses import public_base
from app.http.identity import caller
from app.http.paths import encode_path
from app.repository.formats import FORMATS
from app.repository.listing import Artifact, Usage
from app.repository.registry import Repository
from app.upload.multipart import Upload

T = TypeVar("T")
Document = Mapping[str, Any]


def known_caller() -> Caller:
    """The caller, who must have said who they are. Raises Unauthenticated."""
    found = caller()
    if found.identity is None:
        raise Unauthenticated("this needs a login")
    return found


def page_document(page: Page[T], item: Callable[[T], Any]) -> Document:
    """`{"items": [...], "next": cursor or null}`."""
    return {"items": [item(each) for each in page.items], "next": cursor_of(page.after)}


def repository_document(repository: Repository) -> Document:
    """With its client address, as the client of this request reaches it."""
    return asdict(repository) | {"epochs": repository.epochs._asdict(), "url": public_base(request) + repository.address}


def artifact_document(artifact: Artifact) -> Document:
    """With the address of its bytes; `quarantine` is null unless it is held."""
    address = public_base(request) + FORMATS[artifact.format].file_address(artifact.repository) + encode_path(artifact.path)
    facts = asdict(artifact)
    reason, trust, held_at = (facts.pop(name) for name in ("held", "trust", "held_at"))
    held = None if reason is None else {"reason": reason, "trust": trust, "held_at": held_at}
    return facts | {"quarantine": held, "url": address}


def upload_document(upload: Upload, repository: str, artifact: Artifact | None) -> Document:
    """An upload in parts, and what became of it."""
    plan = upload.plan
    facts = {name: getattr(plan, name) for name in ("path", "size", "sha256", "content_type", "part_size")}
    state = {"received": upload.received, "state": upload.state, "expires_at": upload.expires_at, "error": upload.error}
    became = None if artifact is None else artifact_document(artifact)
    return {"id": str(upload.id), "repository": repository, **facts, **state, "artifact": became}


def usage_document(usage: Usage) -> Document:
    facts = asdict(usage)
    return {"bytes": {name: facts.pop(name) for name in ("open", "published", "garbage")}} | facts
