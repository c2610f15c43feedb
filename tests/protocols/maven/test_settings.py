from __future__ import annotations

import pytest

from app.errors import Invalid
from app.repository.registry import NewRepository
from tests.support.house import ADMIN, House


def test_a_maven_repository_has_a_version_policy_that_can_change(house: House) -> None:
    house.repository("mvn", format="maven", settings={"version_policy": "release"})
    house.change("mvn", settings={"version_policy": "snapshot"})
    assert house.registry.show(ADMIN, "mvn").settings == {"version_policy": "snapshot"}
    house.change("mvn", settings={"version_policy": None})
    assert house.registry.show(ADMIN, "mvn").settings == {}


@pytest.mark.parametrize(
    ("format", "settings", "field"),
    [
        ("maven", {"version_policy": "both"}, "settings.version_policy"),
        ("raw", {"version_policy": "release"}, "settings.version_policy"),
        ("pypi", {"version_policy": "release"}, "settings.version_policy"),
    ],
)
def test_other_policies_and_formats_are_refused_with_the_field(house: House, format: str, settings: dict[str, str], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        house.registry.create(ADMIN, NewRepository("files", format, settings=settings))
    assert refused.value.field == field
