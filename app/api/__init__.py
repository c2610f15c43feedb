"""The management API, /api/v1: routes that parse, make one call and render.

- `repositories`: the repositories, their rules, their usage
- `artifacts`: what is in them, search
- `uploads`: files that come in parts
- `people`: users, groups, tokens, who am I
- `roles`: named sets of rules
- `mirrors`: what repositories follow
- `operations`: cleanup, the switches of the installation
- `explain`: what a read of an address would come to, and why
- `upkeep`: the doctor, scrubbing
- `cluster`: the processes that work together
- `jobs`: what runs by itself
- `problems`: every error below /api
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flask import Flask

__all__ = ["register"]


def register(app: Flask) -> None:
    """Add the rooms of the API and its OpenAPI document. Call it after the other handlers of errors are registered."""
    from app.api import (
        artifacts,
        blueprints,
        cluster,
        explain,
        jobs,
        mirrors,
        operations,
        people,
        problems,
        quarantine,
        repositories,
        roles,
        upkeep,
        uploads,
    )

    api = blueprints.Api(app)
    for room in (repositories, artifacts, uploads, mirrors, quarantine, people, roles, operations, upkeep, cluster, jobs, explain):
        api.register_blueprint(room.blueprint)
    problems.register(app)
