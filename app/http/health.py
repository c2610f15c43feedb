"""`/health/live`, `/health/ready`, and a word at `/`."""

from __future__ import annotations

from flask import Blueprint, Response, jsonify

from app.database.statements import text
from app.errors import ArkvoryError
from app.http.parts import parts

blueprint = Blueprint("health", __name__)


@blueprint.get("/health/live")
def live() -> Response:
    """The process answers; says nothing about what it depends on."""
    return jsonify(status="live")


@blueprint.get("/health/ready")
def ready() -> tuple[Response, int]:
    """200 when a write would succeed: PostgreSQL answers, this process owns the storage and was not told to stop."""
    house = parts()
    checks = {"database": _database_answers(), "storage_owned": house.ownership.held, "staying": not house.stopping}
    return jsonify(status="ready" if all(checks.values()) else "not ready", checks=checks), 200 if all(checks.values()) else 503


@blueprint.get("/")
def root() -> Response:
    return Response("Arkvory artifact repository server. API: /api/v1/openapi.json, health: /health/ready\n", mimetype="text/plain")


def _database_answers() -> bool:
    try:
        with parts().database.read() as connection:
            connection.execute(text("select 1"))
    except ArkvoryError:
        return False
    return True
