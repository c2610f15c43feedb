"""One line of the doctor's report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

OK, WARN, FAIL = "ok", "warn", "fail"
_ORDER = (OK, WARN, FAIL)


@dataclass(frozen=True)
class Finding:
    """`check` is what was looked at, `status` one of ok, warn, fail; `advice` says what to do, empty when all is well."""

    check: str
    status: str
    message: str
    advice: str = ""


def ok(check: str, message: str) -> Finding:
    return Finding(check, OK, message)


def warn(check: str, message: str, advice: str) -> Finding:
    return Finding(check, WARN, message, advice)


def fail(check: str, message: str, advice: str) -> Finding:
    return Finding(check, FAIL, message, advice)


def worst(findings: Iterable[Finding]) -> str:
    """The status of all of them together."""
    return max((each.status for each in findings), key=_ORDER.index, default=OK)


def shown(size: int) -> str:
    """Bytes for people."""
    amount = float(size)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{size} bytes" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
