"""`repo update --unset`: what an option set is taken away, named by the option or by the API's own name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

_SETTINGS = (
    "write_policy", "version_policy", "immutable_tags", "mutable_ttl", "miss_ttl", "caching", "minimum_age", "minimum_age_exceptions",
    "allow", "block", "short_names", "write_member", "name_policy", "merged_names",
)  # fmt: skip
# Options whose name is another one.
_OPTIONS: Mapping[str, str] = {
    "immutable_tag": "immutable_tags", "minimum_age_exception": "minimum_age_exceptions", "merged_name": "merged_names",
    "no_caching": "caching",
}  # fmt: skip
_FIELDS: Mapping[str, str] = {"quota": "quota_bytes", "quota_bytes": "quota_bytes", "host": "host"}
_UPSTREAM: Mapping[str, str] = {
    "upstream_user": "username", "upstream_password": "password", "upstream_header": "headers", "upstream_ca": "ca",
    "http_proxy": "http_proxy", "connections": "connections",
}  # fmt: skip


@dataclass(frozen=True)
class TakenBack:
    """Nulls for the API: of settings, and of what stands beside them."""

    settings: dict[str, None] = field(default_factory=dict)
    body: dict[str, Any] = field(default_factory=dict)


def taken_back(names: Sequence[str]) -> TakenBack:
    """Raises click.UsageError for a name that there is not."""
    taken = TakenBack()
    for given in names:
        name = given.strip("-").replace("-", "_")
        name = _OPTIONS.get(name, name)
        if name in _SETTINGS:
            taken.settings[name] = None
        elif name in _FIELDS:
            taken.body[_FIELDS[name]] = None
        elif name in _UPSTREAM:
            taken.body.setdefault("upstream", {})[_UPSTREAM[name]] = None
        else:
            known = ", ".join(each.replace("_", "-") for each in (*_SETTINGS, "quota", "host", *_UPSTREAM))
            raise click.UsageError(f"--unset knows no {given!r}; there is: {known}")
    return taken
