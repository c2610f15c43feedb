"""What operators start by hand."""

from __future__ import annotations

from typing import Any

from app.access.authority import Authority
from app.api.blueprints import Blueprint
from app.api.schemas import CleanedOut
from app.http.identity import caller
from app.http.parts import parts

blueprint = Blueprint("operations", "What operators start by hand")


@blueprint.route("/cleanup", methods=["POST"])
@blueprint.response(200, CleanedOut)
def clean_up() -> Any:
    """Run one cleanup now; the answer comes when it is through (administrators)"""
    house = parts()
    with house.database.read() as connection:
        Authority(house.identities).administrator(connection, caller())
    return house.cleanup.run()
