"""Every key of every region, and the tags by which entries are dropped together; nobody builds one elsewhere.

Epochs in a key are the effective ones when reading and those that the value's own query read when
writing (C1, C3): an entry of before a change simply is not found any more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable

from app.cache.regions import Tag
from app.cache.view import Epochs

# The entries of the installation's region; its epoch stands in their values.
SWITCHES: Hashable = "switches"
HOSTS: Hashable = "hosts"


def for_snapshot(tenant: str, name: str) -> Hashable:
    return tenant, name


def row_for_snapshot(tenant: str, name: str) -> str:
    """Key of the cache row; tenant and name together stay below its 256 characters."""
    return f"{tenant}/{name}"


def for_snapshot_of(repository_id: int) -> Hashable:
    """Of a repository that is known by its id, as a group knows its members."""
    return repository_id


def for_members(group_id: int, epochs: Epochs) -> Hashable:
    """Under the metadata epoch too: how the group treats names stands among its settings, and is read with them."""
    return group_id, epochs.members, epochs.metadata


def row_for_members(group_id: int) -> str:
    return str(group_id)


def for_identity(credential: bytes) -> Hashable:
    """`credential` is a keyed digest; the user's revision stands in the value and is compared at each hit."""
    return credential


def for_password(credential: bytes, stored_hash: str) -> Hashable:
    return credential, stored_hash


def for_grant(repository_id: int, epochs: Epochs, user_id: int, revision: int, permission: str, installation: int) -> Hashable:
    """`user_id` 0 with revision 0 is the anonymous caller; roles are under the installation's epoch."""
    return repository_id, epochs.authorization, user_id, revision, permission, installation


def for_gate(repository_id: int, epochs: Epochs, path: str) -> Hashable:
    return repository_id, epochs.content, path


def for_miss(repository_id: int, epochs: Epochs, path: str) -> Hashable:
    return repository_id, epochs.metadata, path


def for_document(repository_id: int, epochs: Epochs, document: str, representation: str) -> Hashable:
    return repository_id, epochs.metadata, epochs.content, document, representation


def for_group_document(group_id: int, epochs: Epochs, members: bytes, document: str, representation: str) -> Hashable:
    """`members` is the digest of `members_digest`."""
    return group_id, epochs.metadata, epochs.members, members, document, representation


def members_digest(members: Iterable[tuple[int, Epochs]]) -> bytes:
    """Of a group's members in their order, by id: 32 bytes that change with the content and the description of each."""
    told = [(member_id, epochs.content, epochs.metadata) for member_id, epochs in members]
    return hashlib.sha256(repr(told).encode()).digest()


def named_document(key: Hashable) -> tuple[str, str]:
    """Of a document's key: which document it is, in which representation."""
    assert isinstance(key, tuple)
    return key[-2], key[-1]


def tag_of_repository(repository_id: int) -> Tag:
    return "repository", repository_id


def tag_of_user(user_id: int) -> Tag:
    return "user", user_id
