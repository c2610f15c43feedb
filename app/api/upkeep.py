"""/doctor and /scrub: is the installation well, and what it keeps?"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from app.access.authority import Authority, has_full_scope
from app.api.answers import Document, known_caller
from app.api.blueprints import Blueprint
from app.api.management import management
from app.api.schemas import DoctorOut, ScrubbedOut, ScrubIn
from app.errors import Forbidden
from app.http import doctor
from app.http.identity import caller
from app.http.parts import parts

blueprint = Blueprint("upkeep", "What looks after the installation, and changes nothing")


@blueprint.route("/doctor")
@blueprint.response(200, DoctorOut)
def examine() -> Document:
    """What is wrong with the installation and what to do about it; also without PostgreSQL (administrators)"""
    # From memory: with PostgreSQL away nobody's rights could be read, and nothing is changed here.
    identity = known_caller().identity
    if identity is None or not identity.administrator or not has_full_scope(identity):
        raise Forbidden("this is for administrators, with all of their rights")
    house = parts()
    found = doctor.examine(house.settings, house.database, lambda: house.ownership.held, house.loop)
    settings = doctor.configuration.shown_settings(house.settings)
    return {"status": doctor.worst(found), "checks": [asdict(each) for each in found], "settings": settings}


@blueprint.route("/scrub", methods=["POST"])
@blueprint.arguments(ScrubIn)
@blueprint.response(200, ScrubbedOut)
def scrub(body: dict[str, Any]) -> Any:
    """Hash stored bytes again and report what is damaged, for some seconds; go on with `next` until it is null (administrators)"""
    house = parts()
    with house.database.read() as connection:
        Authority(house.identities).administrator(connection, caller())
    return management().scrub.step(body["start"], body["bytes_per_second"])
