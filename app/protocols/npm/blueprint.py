"""The room's blueprint, which its modules of routes share, and what these need to know of a request."""

from __future__ import annotations

from flask import Blueprint

from app.http.identity import caller, log_fact
from app.http.paths import encode_path
from app.http.reads import Asked, Reads
from app.protocols.npm.answers import refusal
from app.repository.publishing import Target

FORMAT = "npm"
blueprint = Blueprint(FORMAT, __name__, url_prefix="/npm")
reads = Reads(blueprint, refusal)


def base_of(asked: Asked, repository: str) -> str:
    """The repository's absolute address, as the client sees it, with a slash at its end."""
    return f"{asked.base}/{FORMAT}/{encode_path(repository)}/"


def target_in(repository: str) -> Target:
    """Where the present request wants to change something."""
    log_fact("repository", repository)
    return Target(FORMAT, repository, caller())
