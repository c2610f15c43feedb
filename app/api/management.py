"""The domain's services that only management needs, made from the parts once in each process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from flask import current_app

from app.access.deploying import DeployTokens
from app.access.installation import Switchboard
from app.access.people import Groups, Users
from app.access.roles import Roles
from app.access.rules import Rules
from app.access.tokens import Tokens
from app.http.parts import parts
from app.repository.explain import Explain
from app.repository.inspection import Inspection
from app.repository.listing import Listing
from app.repository.mirrors.settings import Mirrors
from app.repository.quarantine import Quarantine
from app.repository.registry import Registry
from app.repository.scrub import Scrub

_KEY = "arkvory.management"


@dataclass(frozen=True)
class Management:
    """What routes of the management API call."""

    switchboard: Switchboard
    users: Users
    groups: Groups
    tokens: Tokens
    rules: Rules
    roles: Roles
    deploy_tokens: DeployTokens
    registry: Registry
    listing: Listing
    quarantine: Quarantine
    scrub: Scrub
    inspection: Inspection
    explain: Explain
    mirrors: Mirrors


def management() -> Management:
    """Those of the application that answers this request."""
    known = current_app.extensions.get(_KEY)
    if known is None:
        known = current_app.extensions[_KEY] = _build()
    return cast(Management, known)


def _build() -> Management:
    house = parts()
    return Management(
        switchboard=Switchboard(house.database, house.transactions, house.identities),
        users=Users(house.database, house.transactions, house.identities, house.settings.password_length),
        groups=Groups(house.database, house.transactions, house.identities),
        tokens=Tokens(house.database, house.transactions, house.identities),
        rules=Rules(house.database, house.transactions, house.access),
        roles=Roles(house.database, house.transactions, house.identities),
        deploy_tokens=DeployTokens(house.database, house.transactions, house.access),
        registry=Registry(house.settings, house.database, house.transactions, house.access),
        listing=house.listing,
        quarantine=Quarantine(house.database, house.transactions, house.access),
        scrub=Scrub(house.database, house.store),
        inspection=Inspection(house.database, house.identities, house.cache, house.snapshots, lambda: house.loop),
        explain=Explain(house.database, house.cache, house.access, house.fetches, {"group": house.group}),
        mirrors=house.mirrors,
    )
