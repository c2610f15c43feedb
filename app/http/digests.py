"""Digests that clients send and get: `Repr-Digest`, `Content-Digest` (RFC 9530) and `X-Checksum-*`."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

from werkzeug.datastructures import Headers

from app.errors import Invalid

# RFC 9530's names, and ours; it wants no others for new content, but old clients do.
_RFC_NAMES = {"sha-256": "sha256", "sha-512": "sha512", "sha": "sha1", "md5": "md5"}
_CHECKSUM_HEADERS = {"X-Checksum-Sha256": "sha256", "X-Checksum-Sha512": "sha512", "X-Checksum-Sha1": "sha1", "X-Checksum-Md5": "md5"}
_HEX_LENGTH = {"md5": 32, "sha1": 40, "sha256": 64, "sha512": 128}


def announced(headers: Headers) -> dict[str, str]:
    """Lower-case hex digests by algorithm that the request announces. Raises Invalid for a malformed or contradictory one."""
    found: dict[str, str] = {}
    for field in ("Repr-Digest", "Content-Digest"):
        for name, value in _dictionary(field, headers.get(field, "")):
            _add(found, name, value, field)
    for field, name in _CHECKSUM_HEADERS.items():
        if field in headers:
            _add(found, name, headers[field].strip().lower(), field)
    return found


def _add(found: dict[str, str], name: str, value: str, field: str) -> None:
    if len(value) != _HEX_LENGTH[name] or not set(value) <= set("0123456789abcdef"):
        raise Invalid(f"{field} holds no {name} digest", field=field)
    if found.setdefault(name, value) != value:
        raise Invalid(f"{field} contradicts another digest of the request", field=field)


def _dictionary(field: str, value: str) -> list[tuple[str, str]]:
    """Members of a dictionary of byte sequences (RFC 8941, 3.2); algorithms that are not ours are ignored (RFC 9530, 2)."""
    members = []
    for member in filter(None, (each.strip() for each in value.split(","))):
        name, separator, item = member.partition("=")
        item = item.partition(";")[0].strip()
        if not separator or len(item) < 2 or item[0] != ":" or item[-1] != ":":
            raise Invalid(f"{field} is not of the form sha-256=:base64:", field=field)
        if name.strip().lower() not in _RFC_NAMES:
            continue
        try:
            members.append((_RFC_NAMES[name.strip().lower()], base64.b64decode(item[1:-1], validate=True).hex()))
        except binascii.Error:
            raise Invalid(f"{field} holds no base64", field=field) from None
    return members


def digest_headers(checksums: Mapping[str, str]) -> dict[str, str]:
    """What is known of a file, for its answers."""
    fields = {field: checksums[name] for field, name in _CHECKSUM_HEADERS.items() if name in checksums}
    if "sha256" in checksums:
        fields["Repr-Digest"] = f"sha-256=:{base64.b64encode(bytes.fromhex(checksums['sha256'])).decode()}:"
    return fields
