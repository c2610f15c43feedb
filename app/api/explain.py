"""/explain: what a read of an address would come to, and why; and how a proxy gets along with its upstream."""

from __future__ import annotations

import os
import socket
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from app.api.answers import Document
from app.api.blueprints import Blueprint
from app.api.management import management
from app.api.schemas import ExplainedOut, ExplainQuery, UpstreamStateOut
from app.cache.snapshots import Snapshot
from app.http.identity import caller
from app.http.locating import wanted_at
from app.http.parts import parts
from app.repository.explain import Holding, Report
from app.upstream.breaker import Condition
from app.upstream.freshness import Freshness

blueprint = Blueprint("explain", "What a read would come to")


@blueprint.route("/explain")
@blueprint.arguments(ExplainQuery, location="query")
@blueprint.response(200, ExplainedOut)
def explain(query: dict[str, Any]) -> Document:
    """What a read of this address would come to, and why; asks no upstream and changes nothing"""
    return _report_document(management().explain.report(caller(), wanted_at(query["url"]), query["subject"]))


@blueprint.route("/repositories/<name>/upstream")
@blueprint.response(200, UpstreamStateOut)
def show_upstream(name: str) -> Document:
    """How the answering process gets along with the upstream of a proxy; other processes find out for themselves"""
    return _upstream_document(*management().explain.upstream(caller(), name))


def _report_document(report: Report) -> Document:
    verdict, members = report.verdict, report.members
    return {
        "format": report.wanted.format,
        "repository": report.wanted.repository,
        "path": report.wanted.path,
        "document": report.wanted.source is not None,
        "outcome": report.outcome,
        "permission": asdict(verdict) | {"allowed": verdict.allowed},
        "found": None if report.holding is None else _holding_document(report.holding),
        "members": None if members is None else [_holding_document(each) for each in members],
    }


def _holding_document(holding: Holding) -> Document:
    snapshot = holding.snapshot
    facts = {name: getattr(snapshot, name) for name in ("kind", "status", "public")}
    found = {name: getattr(holding, name) for name in ("path", "chosen", "outcome", "behind", "memory", "gate", "quarantine", "rule")}
    return facts | found | {
        "repository": snapshot.name,
        "epochs": holding.effective._asdict(),
        "freshness": None if holding.freshness is None else _copy_document(holding.freshness, snapshot),
        "upstream": _upstream_document(snapshot, holding.condition) if holding.shown and snapshot.kind == "proxy" else None,
    }


def _copy_document(known: Freshness, snapshot: Snapshot) -> Document:
    checked_at, next_check_at = (datetime.fromtimestamp(each, UTC) for each in (known.checked, known.next_check))
    return {
        "age": known.age,
        "checked_at": checked_at,
        "next_check_at": None if known.immutable else next_check_at,
        "due": known.is_due(snapshot.upstream_url, datetime.now(UTC).timestamp()),
        "etag": known.etag,
        "last_modified": known.last_modified,
    }


def _upstream_document(snapshot: Snapshot, condition: Condition | None) -> Document:
    instance = parts().instance
    process = f"{socket.gethostname()}/{os.getpid()}" if instance is None else instance.label
    return {"url": snapshot.upstream_url, "process": process, "condition": condition}
