"""What operators start and turn by hand."""

from __future__ import annotations

from typing import Any

from app.access.authority import Authority
from app.access.installation import SwitchChange
from app.api.blueprints import Blueprint
from app.api.management import management
from app.api.schemas import CleanedOut, SwitchesIn, SwitchesOut
from app.http.identity import caller
from app.http.parts import parts

blueprint = Blueprint("operations", "What operators start and turn by hand")


@blueprint.route("/cleanup", methods=["POST"])
@blueprint.response(200, CleanedOut)
def clean_up() -> Any:
    """Run one cleanup now; the answer comes when it is through (administrators)"""
    house = parts()
    with house.database.read() as connection:
        Authority(house.identities).administrator(connection, caller())
    return house.cleanup.run()


@blueprint.route("/installation")
@blueprint.response(200, SwitchesOut)
def show_installation() -> Any:
    """The switches of the whole installation (administrators)"""
    return management().switchboard.show(caller())


@blueprint.route("/installation", methods=["PATCH"])
@blueprint.arguments(SwitchesIn)
@blueprint.response(200, SwitchesOut)
def update_installation(body: dict[str, Any]) -> Any:
    """Turn anonymous access or the read-only switch on or off (administrators); binds on the next request"""
    return management().switchboard.change(caller(), SwitchChange(**body))
