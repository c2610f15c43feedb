"""/repositories/{name}/artifacts/{path}/quarantine, /holds and /hold-rules: what is withheld, and why."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from app.api.answers import Document, page_document
from app.api.blueprints import Blueprint
from app.api.management import management
from app.api.parsing import key_of, one
from app.api.schemas import HoldIn, HoldOut, HoldRuleOut, NewHoldRuleIn, PageQuery, listed
from app.http.identity import caller

blueprint = Blueprint("quarantine", "Quarantine")


@blueprint.route("/repositories/<name>/artifacts/<artifact:path>/quarantine", methods=["PUT"])
@blueprint.arguments(HoldIn)
@blueprint.response(200, HoldOut)
def hold(body: dict[str, Any], name: str, path: str) -> Document:
    """Hold a path, whether something is there yet or not; binds on the next request"""
    return asdict(management().quarantine.hold(caller(), name, path, body["reason"], body["trust"]))


@blueprint.route("/repositories/<name>/artifacts/<artifact:path>/quarantine", methods=["DELETE"])
@blueprint.response(204)
def release(name: str, path: str) -> None:
    """Release a path; binds on the next request"""
    management().quarantine.release(caller(), name, path)


@blueprint.route("/repositories/<name>/holds")
@blueprint.arguments(PageQuery, location="query")
@blueprint.response(200, listed(HoldOut))
def list_holds(query: dict[str, Any], name: str) -> Document:
    """What is held, by path"""
    after = one(key_of(query["cursor"], str), "")
    return page_document(management().quarantine.holds(caller(), name, query["limit"], after), asdict)


@blueprint.route("/repositories/<name>/hold-rules")
@blueprint.response(200, listed(HoldRuleOut))
def list_hold_rules(name: str) -> Document:
    """Rules that hold what is published, by id"""
    return {"items": [asdict(each) for each in management().quarantine.rules(caller(), name)], "next": None}


@blueprint.route("/repositories/<name>/hold-rules", methods=["POST"])
@blueprint.arguments(NewHoldRuleIn)
@blueprint.response(201, HoldRuleOut)
def add_hold_rule(body: dict[str, Any], name: str) -> Document:
    """Hold what is published from now on and matches, until someone releases it"""
    return asdict(management().quarantine.add_rule(caller(), name, body["pattern"], body["publisher"], body["reason"]))


@blueprint.route("/repositories/<name>/hold-rules/<int:id>", methods=["DELETE"])
@blueprint.response(204)
def remove_hold_rule(name: str, id: int) -> None:
    """Remove a hold rule; what it held stays held"""
    management().quarantine.remove_rule(caller(), name, id)
