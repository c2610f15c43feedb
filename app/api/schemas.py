"""The documents that come and go, for checking and for OpenAPI."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import marshmallow
from marshmallow import ValidationError, fields, validates_schema
from marshmallow.validate import Length, OneOf, Range, Regexp

from app.access.decision import PERMISSIONS
from app.access.deploying import DEPLOY_PERMISSIONS
from app.api.parsing import is_text
from app.errors import Invalid
from app.http.responses import json_time
from app.repository.formats import FORMATS, NAME_POLICIES, VERSION_POLICIES, WRITE_POLICIES
from app.repository.mirrors.settings import LEAST_SECONDS, MOST_AT_ONCE, MOST_NAMES, MOST_SECONDS, SOURCES
from app.repository.names import check_path
from app.repository.registry import KINDS, LONGEST_PATTERN, LONGEST_TTL, MOST_DAYS, MOST_PATTERNS, MOST_QUOTA, STATUSES
from app.upstream.upstream import MOST_CONNECTIONS

MIB = 1024 * 1024


class Schema(marshmallow.Schema):
    """Whoever misspells a field is told those that there are."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        known = ", ".join(each.data_key or name for name, each in self.load_fields.items())
        self.error_messages["unknown"] = f"Unknown field. Known are: {known}."


class Words(fields.String):
    """Text that the database can hold."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        found = super()._deserialize(value, attr, data, **kwargs)
        if not is_text(found):
            raise ValidationError("Not UTF-8 text without NUL.")
        return found


class Flag(fields.Boolean):
    """`true` or `false`, nothing that only looks like it."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        if not isinstance(value, bool):
            raise self.make_error("invalid", input=value)
        return value


class Instant(fields.DateTime):
    """ISO 8601 in UTC with Z."""

    def _serialize(self, value: datetime | None, attr: str | None, obj: Any, **kwargs: Any) -> Any:
        return None if value is None else json_time(value)


def _whole(least: int, most: int, **options: Any) -> fields.Integer:
    return fields.Integer(strict=True, validate=Range(least, most), **options)


def _permissions(**options: Any) -> fields.List[str]:
    return fields.List(fields.String(validate=OneOf(PERMISSIONS)), validate=Length(1, 16), **options)


def _prefix(value: str) -> None:
    try:
        check_path(value, folder=True)
    except Invalid as error:
        raise ValidationError(error.message) from None


class PageQuery(Schema):
    limit = fields.Integer(load_default=100, validate=Range(1, 1000), metadata={"description": "most items in the answer"})
    cursor = Words(load_default=None, metadata={"description": "`next` of the page before"})


class RepositoriesQuery(PageQuery):
    format = fields.String(load_default=None, validate=OneOf(list(FORMATS)))


class ArtifactsQuery(PageQuery):
    prefix = Words(load_default="", metadata={"description": "how the path begins, exactly"})
    q = Words(load_default="", metadata={"description": "what the path contains, in any case"})


class SearchQuery(PageQuery):
    q = Words(required=True, validate=Length(1, 200), metadata={"description": "what the path contains, in any case"})


class TokensQuery(PageQuery):
    user = Words(load_default=None, metadata={"description": "whose, for administrators"})


def _patterns(description: str) -> fields.List[str]:
    each = Words(validate=Length(1, LONGEST_PATTERN))
    return fields.List(each, allow_none=True, validate=Length(0, MOST_PATTERNS), metadata={"description": description})


class SettingsIn(Schema):
    write_policy = fields.String(allow_none=True, validate=OneOf(WRITE_POLICIES))
    version_policy = fields.String(allow_none=True, validate=OneOf(VERSION_POLICIES), metadata={"description": "of Maven repositories"})
    immutable_tags = _patterns("of OCI repositories: patterns of tags that stay what they are, such as v*")
    mutable_ttl = _whole(
        0, LONGEST_TTL, allow_none=True, metadata={"description": "of proxies: seconds until a copy is compared with the upstream's"}
    )
    miss_ttl = _whole(
        0, LONGEST_TTL, allow_none=True, metadata={"description": "of proxies: seconds for which the upstream's 404 is remembered"}
    )
    caching = Flag(allow_none=True, metadata={"description": "of proxies: whether what is fetched is stored"})
    minimum_age = fields.Float(
        allow_none=True,
        validate=Range(0, MOST_DAYS),
        metadata={"description": "of proxies: days since it was published before which nothing is let out; 0: any age will do"},
    )
    minimum_age_exceptions = _patterns("of proxies: patterns of `name` or `name@version` that need no age")
    allow = _patterns("of proxies: patterns of paths, or of folders; where some are named, nothing else is there for clients")
    block = _patterns("of proxies: patterns of paths, or of folders, that are not there for clients, whatever `allow` says")
    write_member = Words(allow_none=True, metadata={"description": "of groups: the member that what is published through them goes to"})
    name_policy = fields.String(
        allow_none=True,
        validate=OneOf(NAME_POLICIES),
        metadata={"description": "of groups: shield keeps the names of hosted members from proxies, merge does not"},
    )
    merged_names = _patterns("of groups: patterns of names that are merged whatever `name_policy` says")
    short_names = Words(allow_none=True, metadata={"description": "of OCI proxies: where images of one segment are at the upstream"})


class UpstreamIn(Schema):
    username = Words(allow_none=True)
    password = Words(allow_none=True, metadata={"description": "kept encrypted, never shown"})
    headers = fields.Dict(Words(), Words(), allow_none=True, metadata={"description": "sent to the upstream alone; values are never shown"})
    ca = Words(allow_none=True, metadata={"description": "PEM text of certificates that the upstream's is checked by too"})
    http_proxy = Words(allow_none=True)
    connect_seconds = fields.Float(allow_none=True)
    read_seconds = fields.Float(allow_none=True)
    connections = _whole(1, MOST_CONNECTIONS, allow_none=True)


class NewRepositoryIn(Schema):
    name = Words(required=True)
    format = fields.String(required=True, validate=OneOf(list(FORMATS)))
    kind = fields.String(load_default="hosted", validate=OneOf(KINDS))
    public = Flag(load_default=False)
    status = fields.String(load_default="online", validate=OneOf(STATUSES))
    quota_bytes = _whole(0, MOST_QUOTA, load_default=None, allow_none=True)
    settings = fields.Nested(SettingsIn, load_default=dict)
    host = Words(load_default=None, allow_none=True, metadata={"description": "of OCI repositories: a host name that means this one"})
    upstream_url = Words(load_default=None, allow_none=True, metadata={"description": "of proxies: where they fetch from"})
    upstream = fields.Nested(UpstreamIn, load_default=None, allow_none=True)
    members = fields.List(Words(), load_default=None, allow_none=True, metadata={"description": "of groups: names, in order"})


class RepositoryChangeIn(Schema):
    name = Words()
    public = Flag()
    status = fields.String(validate=OneOf(STATUSES))
    quota_bytes = _whole(0, MOST_QUOTA, allow_none=True)
    settings = fields.Nested(SettingsIn)
    host = Words(allow_none=True)
    upstream_url = Words()
    upstream = fields.Nested(UpstreamIn)
    members = fields.List(Words(), metadata={"description": "of groups: all of them, in order"})


class EpochsOut(Schema):
    metadata = fields.Integer()
    authorization = fields.Integer()
    content = fields.Integer()
    members = fields.Integer()


class RepositoryOut(Schema):
    name = fields.String()
    format = fields.String()
    kind = fields.String()
    status = fields.String()
    public = fields.Boolean()
    quota_bytes = fields.Integer(allow_none=True)
    settings = fields.Dict()
    host = fields.String(allow_none=True)
    upstream_url = fields.String(allow_none=True)
    upstream = fields.Dict(allow_none=True, metadata={"description": "of proxies, without what is secret"})
    members = fields.List(
        fields.String(), allow_none=True, metadata={"description": "of groups: names, in the order in which they are asked"}
    )
    warnings = fields.List(fields.String(), metadata={"description": "what whoever makes or changes it should know"})
    epochs = fields.Nested(EpochsOut)
    creator = fields.String(allow_none=True)
    created_at = Instant()
    updated_at = Instant()
    url = fields.Url(metadata={"description": "where clients are pointed at"})


class MemberOut(Schema):
    position = fields.Integer(metadata={"description": "from 1 on"})
    name = fields.String()
    written = fields.Boolean(metadata={"description": "whether what is published through the group goes to it (`write_member`)"})


class PromotionIn(Schema):
    to = Words(required=True, metadata={"description": "the repository that it is copied to, of the same format"})
    paths = fields.List(Words(), load_default=list, metadata={"description": "artifacts; one that ends in a slash means all below it"})
    package = Words(load_default=None, allow_none=True, metadata={"description": "in place of paths: an image, a project, a module"})
    version = Words(load_default=None, allow_none=True, metadata={"description": "of the package: a tag, a version; null: all of them"})


class PromotionOut(Schema):
    artifacts = fields.Integer(metadata={"description": "how many were copied"})
    created = fields.Integer(metadata={"description": "how many of them are new there"})


class QuarantineOut(Schema):
    reason = fields.String()
    trust = fields.String()
    held_at = Instant()


class MirrorSettingsIn(Schema):
    """PUT takes the defaults for what is absent, and PATCH leaves it as it is."""

    source = fields.String(
        validate=OneOf(SOURCES),
        metadata={
            "description": "index: the format's own lists; arkvory: another Arkvory's list of the artifacts of a repository",
            "default": "index",
        },
    )
    names = fields.List(
        Words(), validate=Length(0, MOST_NAMES),
        metadata={"description": "what is followed: projects, packages, images, group:artifact, folders; none: all that the upstream has"},
    )  # fmt: skip
    include = fields.List(Words(), metadata={"description": "patterns as `allow` of a proxy; none: everything"})
    # A schema has an `exclude` of its own.
    left_out = fields.List(
        Words(), data_key="exclude", attribute="exclude", metadata={"description": "patterns as `block` of a proxy"}
    )
    every_seconds = _whole(LEAST_SECONDS, MOST_SECONDS, metadata={"default": 3600})
    enabled = Flag(metadata={"default": True})
    concurrency = _whole(1, MOST_AT_ONCE, metadata={"description": "files that are copied at once", "default": 4})
    upstream_url = Words(allow_none=True, metadata={"description": "of hosted repositories: what they follow"})
    upstream = fields.Nested(
        UpstreamIn, allow_none=True, metadata={"description": "of hosted repositories; what is absent in it stays as it was"}
    )


class MirrorErrorOut(Schema):
    at = fields.String()
    path = fields.String()
    message = fields.String()


class MirrorCountsOut(Schema):
    lists = fields.Integer(metadata={"description": "lists that are still to be read in this round"})
    todo = fields.Integer()
    done = fields.Integer()
    skipped = fields.Integer(metadata={"description": "kept out by a rule of the repository, or something else is there"})
    gone = fields.Integer(metadata={"description": "the upstream has them no more"})
    failed = fields.Integer()
    refused = fields.Integer(metadata={"description": "what the upstream has is at fault: not what its list says, invalid, or too large"})


class MirrorRunIn(Schema):
    anew = Flag(
        load_default=False,
        metadata={"description": "read all lists as a whole, and try again what was refused; a run that goes on ends for it"},
    )


class MirrorRefusedOut(Schema):
    path = fields.String()
    reason = fields.String()
    size = fields.Integer(allow_none=True, metadata={"description": "as the upstream's list tells it; so the digest"})
    digest = fields.String(allow_none=True)
    refusals = fields.Integer(metadata={"description": "how often it was had and refused"})
    retry_at = Instant(allow_none=True, metadata={"description": "tried again in the first run after it, unless something changes before"})


class MirrorOut(Schema):
    repository = fields.String()
    job = fields.String(metadata={"description": "which of the jobs it is"})
    source = fields.String()
    names = fields.List(fields.String())
    include = fields.List(fields.String())
    left_out = fields.List(fields.String(), data_key="exclude", attribute="exclude")
    every_seconds = fields.Integer()
    enabled = fields.Boolean()
    concurrency = fields.Integer()
    upstream_url = fields.String(allow_none=True)
    upstream = fields.Dict(allow_none=True, metadata={"description": "of hosted repositories, without what is secret"})
    state = fields.String(
        metadata={"description": "new, running, interrupted (its process died), complete, incomplete, stopped, or failed"}
    )
    reason = fields.String(allow_none=True)
    round = fields.Integer(metadata={"description": "how often the lists were walked"})
    cursor = fields.String(metadata={"description": "the list that was begun last"})
    counts = fields.Nested(MirrorCountsOut)
    files = fields.Integer(metadata={"description": "copied since the mirror was made"})
    bytes = fields.Integer()
    errors = fields.List(fields.Nested(MirrorErrorOut), metadata={"description": "the last ones"})
    lag_seconds = fields.Integer(metadata={"description": "how old what the repository has may be: since the last complete round began"})
    next_at = Instant(allow_none=True)
    started_at = Instant(allow_none=True)
    ended_at = Instant(allow_none=True)
    succeeded_at = Instant(allow_none=True)
    created_at = Instant()


class MirrorProgressOut(Schema):
    repository = fields.String()
    job = fields.String()
    enabled = fields.Boolean()
    every_seconds = fields.Integer()
    state = fields.String()
    reason = fields.String(allow_none=True)
    counts = fields.Nested(MirrorCountsOut)
    lag_seconds = fields.Integer()
    next_at = Instant(allow_none=True)
    succeeded_at = Instant(allow_none=True)
    failures = fields.Integer(metadata={"description": "of its job in a row"})


class HoldIn(Schema):
    reason = Words(required=True)
    trust = Words(load_default="unknown", metadata={"description": "unknown, suspicious or malicious"})


class HoldOut(QuarantineOut):
    path = fields.String()
    held_by = fields.String(allow_none=True)


class NewHoldRuleIn(Schema):
    pattern = Words(required=True, metadata={"description": "over the path; * stands for anything, slashes too"})
    publisher = Words(load_default=None, allow_none=True, metadata={"description": "a user's name; null for anyone"})
    reason = Words(required=True)


class HoldRuleOut(Schema):
    id = fields.Integer()
    pattern = fields.String()
    publisher = fields.String(allow_none=True)
    reason = fields.String()
    created_at = Instant()


class ArtifactOut(Schema):
    path = fields.String()
    member = fields.String(allow_none=True, metadata={"description": "of a group: the member that has it"})
    size = fields.Integer(metadata={"description": "bytes"})
    sha256 = fields.String()
    content_type = fields.String()
    package = fields.String(allow_none=True)
    version = fields.String(allow_none=True)
    created_by = fields.String(allow_none=True)
    created_at = Instant()
    updated_at = Instant()
    quarantine = fields.Nested(QuarantineOut, allow_none=True, metadata={"description": "null unless it is held"})
    downloads = fields.Integer(metadata={"description": "answers that brought its first byte, up to half a minute ago"})
    last_downloaded_at = Instant(allow_none=True)
    url = fields.Url(metadata={"description": "where the bytes are"})


SHA256 = Regexp(r"[0-9a-f]{64}\Z", error="Not 64 lower-case hexadecimal digits.")


class NewUploadIn(Schema):
    path = Words(required=True)
    size = _whole(0, MOST_QUOTA, load_default=None, allow_none=True, metadata={"description": "bytes; null: told by the parts, at the end"})
    sha256 = fields.String(load_default=None, allow_none=True, validate=SHA256, metadata={"description": "of the whole"})
    content_type = Words(load_default=None, allow_none=True, metadata={"description": "null: what the path's ending says"})
    part_size = _whole(
        1,
        MOST_QUOTA,
        load_default=None,
        allow_none=True,
        metadata={"description": "bytes of each part but the last; null: the server's choice"},
    )


class CompletionIn(Schema):
    sha256 = fields.String(load_default=None, allow_none=True, validate=SHA256, metadata={"description": "of the whole"})


class ErrorOut(Schema):
    code = fields.String()
    detail = fields.String()


class UploadOut(Schema):
    id = fields.String()
    repository = fields.String()
    path = fields.String()
    size = fields.Integer(allow_none=True, metadata={"description": "bytes"})
    sha256 = fields.String(allow_none=True)
    content_type = fields.String()
    part_size = fields.Integer(metadata={"description": "bytes of each part but the last"})
    received = fields.Integer(metadata={"description": "bytes of the parts that are there"})
    state = fields.String(metadata={"description": "open, completing, published or failed"})
    expires_at = Instant(allow_none=True, metadata={"description": "when it is cancelled by itself, unless something comes"})
    error = fields.Nested(ErrorOut, allow_none=True, metadata={"description": "why it failed, has to come again in parts, or waits"})
    artifact = fields.Nested(ArtifactOut, allow_none=True, metadata={"description": "once it is published, as long as it is there"})


class PartOut(Schema):
    number = fields.Integer()
    size = fields.Integer(metadata={"description": "bytes"})
    sha256 = fields.String()


class FoundOut(ArtifactOut):
    repository = fields.String()
    format = fields.String()


class BytesOut(Schema):
    open = fields.Integer()
    published = fields.Integer()
    garbage = fields.Integer()


class WarningsOut(Schema):
    warnings = fields.List(fields.String(), metadata={"description": "what whoever did it should know"})


class UsageOut(Schema):
    bytes = fields.Nested(BytesOut)
    quota_bytes = fields.Integer(allow_none=True)
    quota_level = fields.Integer(
        allow_none=True, metadata={"description": "the highest of 80, 95 and 100 % that open and published bytes reach, else 0"}
    )
    artifacts = fields.Integer()
    downloads = fields.Integer(metadata={"description": "also of what is gone since"})
    last_downloaded_at = Instant(allow_none=True)


class NewRuleIn(Schema):
    subject = Words(required=True, validate=Length(1, 200), metadata={"description": "user:NAME, group:NAME, signed-in or anonymous"})
    permissions = _permissions(required=True)
    path_prefix = Words(load_default=None, allow_none=True, validate=_prefix)


class RuleOut(Schema):
    id = fields.Integer()
    subject = fields.String()
    permissions = fields.List(fields.String())
    path_prefix = fields.String(allow_none=True)
    created_at = Instant()


class NewDeployTokenIn(Schema):
    name = Words(required=True, validate=Length(1, 200))
    permissions = fields.List(fields.String(validate=OneOf(DEPLOY_PERMISSIONS)), required=True, validate=Length(1, 16))
    path_prefix = Words(load_default=None, allow_none=True, validate=_prefix)
    expires_in_days = _whole(1, 3650, load_default=None, allow_none=True)


class DeployTokenOut(Schema):
    id = fields.Integer()
    name = fields.String()
    repository = fields.String()
    permissions = fields.List(fields.String())
    path_prefix = fields.String(allow_none=True)
    created_by = fields.String(allow_none=True)
    created_at = Instant()
    expires_at = Instant(allow_none=True)


class NewDeployTokenOut(DeployTokenOut):
    token = fields.String(metadata={"description": "the secret, shown this once"})


class NewUserIn(Schema):
    name = Words(required=True)
    password = Words(load_default=None, metadata={"description": "required, unless it is a robot"})
    administrator = Flag(load_default=False)
    robot = Flag(load_default=False, metadata={"description": "signs in by tokens alone, which administrators make for it"})

    @validates_schema(skip_on_field_errors=False)
    def _check_password(self, data: dict[str, Any], **_: Any) -> None:
        if data.get("password") is None and not data.get("robot"):
            raise ValidationError("Missing data for required field.", "password")


class UserChangeIn(Schema):
    disabled = Flag(load_default=None)
    password = Words(load_default=None)
    administrator = Flag(load_default=None)


class UserOut(Schema):
    name = fields.String()
    administrator = fields.Boolean()
    robot = fields.Boolean()
    disabled = fields.Boolean()
    groups = fields.List(fields.String())
    created_at = Instant()


class NewGroupIn(Schema):
    name = Words(required=True)


class GroupOut(Schema):
    name = fields.String()
    members = fields.List(fields.String())
    created_at = Instant()


class NewRoleIn(Schema):
    name = Words(required=True)


class NewRoleRuleIn(Schema):
    repository = Words(load_default=None, allow_none=True, metadata={"description": "null: in every one"})
    permissions = _permissions(required=True)
    path_prefix = Words(load_default=None, allow_none=True, validate=_prefix)


class RoleRuleOut(Schema):
    id = fields.Integer()
    repository = fields.String(allow_none=True)
    permissions = fields.List(fields.String())
    path_prefix = fields.String(allow_none=True)


class RoleOut(Schema):
    name = fields.String()
    rules = fields.List(fields.Nested(RoleRuleOut))
    holders = fields.List(fields.String(), metadata={"description": "user:NAME or group:NAME"})
    created_at = Instant()


class NewTokenIn(Schema):
    name = Words(required=True, validate=Length(1, 200))
    permissions = _permissions(required=True)
    repositories = fields.List(Words(), load_default=None, allow_none=True, validate=Length(1, 1000))
    expires_in_days = _whole(1, 3650, load_default=None, allow_none=True)
    user = Words(load_default=None, allow_none=True, metadata={"description": "whose, for administrators; null: one's own"})


class TokenOut(Schema):
    id = fields.Integer()
    name = fields.String()
    user = fields.String()
    permissions = fields.List(fields.String())
    repositories = fields.List(fields.String(), allow_none=True)
    created_at = Instant()
    expires_at = Instant(allow_none=True, metadata={"description": "null: it lasts until it is revoked; never later than its maker's"})
    made_with = fields.Integer(allow_none=True, metadata={"description": "the token that made it, with which it ends; null: a password"})


class NewTokenOut(TokenOut):
    token = fields.String(metadata={"description": "the secret, shown this once"})


class WhoOut(Schema):
    user = fields.String(allow_none=True)
    administrator = fields.Boolean()
    token = fields.Nested(TokenOut, allow_none=True)
    deploy_token = fields.Nested(DeployTokenOut, metadata={"description": "only where it is one"})


class SwitchesIn(Schema):
    anonymous = Flag(load_default=None, metadata={"description": "false: nobody without a login reads anything"})
    read_only = Flag(load_default=None, metadata={"description": "true: nothing is stored, replaced or deleted"})


class SwitchesOut(Schema):
    anonymous = fields.Boolean()
    read_only = fields.Boolean()
    epoch = fields.Integer()


class CleanedOut(Schema):
    abandoned = fields.Integer(metadata={"description": "uploads given up"})
    parts = fields.Integer(metadata={"description": "parts that nothing refers to any more"})
    garbage = fields.Integer(metadata={"description": "uploads whose bytes were replaced or deleted"})
    blobs = fields.Integer(metadata={"description": "blobs deleted from the disk"})
    artifacts = fields.Integer(metadata={"description": "artifacts of deleted repositories"})
    temporary = fields.Integer(metadata={"description": "temporary files"})


class FindingOut(Schema):
    check = fields.String(metadata={"description": "what was looked at"})
    status = fields.String(metadata={"description": "ok, warn or fail"})
    message = fields.String()
    advice = fields.String(metadata={"description": "what to do about it; empty when all is well"})


class DoctorOut(Schema):
    status = fields.String(metadata={"description": "the worst of all: ok, warn or fail"})
    checks = fields.List(fields.Nested(FindingOut))
    settings = fields.Dict(
        keys=fields.String(), values=fields.String(), metadata={"description": "with which the server runs, by variable; without secrets"}
    )


class ScrubIn(Schema):
    start = fields.String(
        load_default="",
        data_key="from",
        validate=Regexp("[0-9a-f]{0,64}\\Z", error="Not a digest or the beginning of one."),
        metadata={"description": "digest, or its beginning, to begin at"},
    )
    bytes_per_second = _whole(MIB, MOST_QUOTA, load_default=64 * MIB)


class UseOut(Schema):
    repository = fields.String()
    path = fields.String()


class DamageOut(Schema):
    digest = fields.String(metadata={"description": "SHA-256 that the bytes should have"})
    size = fields.Integer()
    problem = fields.String(metadata={"description": "missing, size, corrupt or unreadable"})
    detail = fields.String()
    uses = fields.Integer(metadata={"description": "artifacts that need these bytes"})
    artifacts = fields.List(fields.Nested(UseOut), metadata={"description": "the first 100 of them"})


class ScrubbedOut(Schema):
    blobs = fields.Integer()
    bytes = fields.Integer()
    damages = fields.List(fields.Nested(DamageOut))
    next = fields.String(allow_none=True, metadata={"description": "`from` of the next step; null at the end"})


class ClusterQuery(Schema):
    repository = Words(load_default=None, metadata={"description": "show also what the answering process believes of this one"})


class ProcessOut(Schema):
    instance = fields.String(allow_none=True, metadata={"description": "name/slot; null on a single node"})
    instance_id = fields.Integer(allow_none=True)
    host = fields.String()
    pid = fields.Integer()
    online = fields.Boolean(allow_none=True, metadata={"description": "false: it gets no mail at the moment and lives by the probe"})
    last_poll_age = fields.Float(allow_none=True, metadata={"description": "seconds since the last good look into its mailbox began"})
    last_probe_age = fields.Float(allow_none=True, metadata={"description": "the same of the probe"})
    corrections = fields.Integer(metadata={"description": "differences that only the probe found, since the start; 0 where all is well"})
    dead_letters = fields.Integer(metadata={"description": "messages that this process could not apply, since the start"})


class InstanceOut(Schema):
    id = fields.Integer()
    name = fields.String()
    slot = fields.Integer()
    kind = fields.String(metadata={"description": "web or worker"})
    host = fields.String()
    pid = fields.Integer()
    version = fields.String()
    started_at = Instant()
    heartbeat_at = Instant()
    heartbeat_age = fields.Float(metadata={"description": "seconds, by the database's clock"})
    online = fields.Boolean(metadata={"description": "younger than 30 s, and not replaced"})
    replaced = fields.Boolean(metadata={"description": "a younger process has its slot: this one is gone"})
    unread = fields.Integer(metadata={"description": "messages in its mailbox"})
    oldest_unread = fields.Float(allow_none=True, metadata={"description": "seconds"})


class DeadLetterOut(Schema):
    id = fields.Integer()
    instance = fields.String(metadata={"description": "whose message it was"})
    sent_at = Instant()
    died_at = Instant()
    error = fields.String()
    body = fields.Dict(metadata={"description": "the message, for looking at: it is never applied again"})


class DeadLettersOut(Schema):
    count = fields.Integer()
    latest = fields.List(fields.Nested(DeadLetterOut), metadata={"description": "at most 20, the latest first"})


class LeaseOut(Schema):
    name = fields.String()
    holder = fields.String(metadata={"description": "the process that runs it, or ran it last"})
    until = Instant()
    held = fields.Boolean(metadata={"description": "nobody else begins it before `until`"})


class BeliefOut(Schema):
    name = fields.String()
    believed = fields.Nested(EpochsOut, allow_none=True, metadata={"description": "null: the answering process knows nothing of it yet"})
    database = fields.Nested(EpochsOut)
    behind = fields.Boolean(metadata={"description": "the database has larger numbers than this process believes"})
    snapshot_kept = fields.Boolean(metadata={"description": "the next read takes its description from memory"})


class ClusterOut(Schema):
    deployment = fields.String(metadata={"description": "single or cluster"})
    process = fields.Nested(ProcessOut, metadata={"description": "the one that answers; behind a proxy another one may the next time"})
    instances = fields.List(fields.Nested(InstanceOut))
    dead_letters = fields.Nested(DeadLettersOut)
    leases = fields.List(fields.Nested(LeaseOut))
    repository = fields.Nested(BeliefOut, allow_none=True, metadata={"description": "null unless one is asked for"})


class JobRunIn(Schema):
    name = Words(required=True)


class JobOut(Schema):
    name = fields.String()
    repository = fields.String(allow_none=True, metadata={"description": "of a mirror: what follows its upstream"})
    description = fields.String()
    every_seconds = fields.Float(metadata={"description": "from beginning to beginning"})
    state = fields.String(metadata={"description": "waiting, running, or lost: its runner died, and another one takes it over"})
    runner = fields.String(allow_none=True, metadata={"description": "the process that runs it, or ran it last"})
    began_at = Instant(allow_none=True)
    ended_at = Instant(allow_none=True, metadata={"description": "of the last run that ended"})
    seconds = fields.Float(allow_none=True, metadata={"description": "how long that took"})
    outcome = fields.String(allow_none=True, metadata={"description": "done, failed, or stopped or lost with its process"})
    said = fields.String(allow_none=True, metadata={"description": "what it did or is at, or why it failed"})
    failures = fields.Integer(metadata={"description": "in a row"})
    succeeded_at = Instant(allow_none=True)
    next_at = Instant(metadata={"description": "when it is due"})


class ExplainQuery(Schema):
    url = Words(required=True, validate=Length(1, 8192), metadata={"description": "an address of this server, whole, or the path in it"})
    subject = Words(
        load_default=None, metadata={"description": "whose read: user:NAME or anonymous, for who manages the repository"}
    )


class OutcomeOut(Schema):
    answer = fields.String(
        metadata={
            "description": "served: from what is stored; compared: the upstream is asked about the copy first; fetched: the upstream is "
            "asked, and nobody knows what it says; refused, absent or unavailable"
        }
    )
    code = fields.String(allow_none=True, metadata={"description": "of the error"})
    detail = fields.String()


class AppliedRuleOut(Schema):
    id = fields.Integer()
    role = fields.String(allow_none=True, metadata={"description": "null: it is the repository's own"})
    subject = fields.String()
    path_prefix = fields.String(allow_none=True)
    covers = fields.Boolean(metadata={"description": "whether it gives the permission for this path"})


class VerdictOut(Schema):
    permission = fields.String()
    subject = fields.String()
    allowed = fields.Boolean()
    because = fields.String()
    rules = fields.List(
        fields.Nested(AppliedRuleOut), metadata={"description": "that give it to the subject; for who manages the repository"}
    )


class PointedOut(Schema):
    size = fields.Integer()
    sha256 = fields.String()
    content_type = fields.String()
    updated_at = Instant()
    published_at = Instant(allow_none=True, metadata={"description": "at the upstream, as far as that is known"})
    available_at = Instant(allow_none=True, metadata={"description": "when it is old enough; null: it is, or age does not matter"})


class MemoryOut(Schema):
    trusted = fields.Boolean(metadata={"description": "false while a commit of unknown outcome may have changed the repository"})
    snapshot = fields.Boolean()
    gate = fields.Boolean()
    absence = fields.Boolean(metadata={"description": "that nothing is stored there"})
    miss = fields.Float(allow_none=True, metadata={"description": "seconds for which the upstream's 404 still counts"})
    documents = fields.List(fields.String(), metadata={"description": "representations of the document"})


class CopyOut(Schema):
    age = fields.Integer(metadata={"description": "seconds since the upstream vouched for it"})
    checked_at = Instant()
    next_check_at = Instant(allow_none=True, metadata={"description": "null: it is never compared again"})
    due = fields.Boolean()
    etag = fields.String(allow_none=True)
    last_modified = fields.String(allow_none=True)


class FailureOut(Schema):
    at = Instant()
    reason = fields.String()


class ConditionOut(Schema):
    state = fields.String(metadata={"description": "closed, open, half-open, or paused as the upstream wished"})
    until = Instant(allow_none=True, metadata={"description": "when it is asked again; null: that may be now"})
    failures = fields.Integer(metadata={"description": "in a row"})
    last_failure = fields.Nested(FailureOut, allow_none=True)
    connections = fields.Integer(metadata={"description": "in use"})
    most_connections = fields.Integer()


class UpstreamStateOut(Schema):
    url = fields.String()
    process = fields.String(metadata={"description": "each process finds out for itself; this is the one that answers"})
    condition = fields.Nested(ConditionOut, allow_none=True, metadata={"description": "null: this process has not asked it yet"})


class HoldingOut(Schema):
    repository = fields.String()
    kind = fields.String()
    status = fields.String()
    public = fields.Boolean()
    path = fields.String(metadata={"description": "which is looked at: of a proxy's document, that of the upstream's own"})
    chosen = fields.Boolean(metadata={"description": "it answers, or has a part in the document"})
    outcome = fields.Nested(OutcomeOut)
    epochs = fields.Nested(EpochsOut, metadata={"description": "that the next read of the answering process goes by"})
    behind = fields.Boolean(metadata={"description": "the database's are larger: a message is under way"})
    memory = fields.Nested(MemoryOut, metadata={"description": "of the answering process"})
    gate = fields.Nested(PointedOut, allow_none=True)
    quarantine = fields.Nested(QuarantineOut, allow_none=True)
    rule = fields.String(allow_none=True, metadata={"description": "the path rule that leaves it out"})
    freshness = fields.Nested(CopyOut, allow_none=True)
    upstream = fields.Nested(UpstreamStateOut, allow_none=True, metadata={"description": "for who manages the repository"})


class ExplainedOut(Schema):
    format = fields.String()
    repository = fields.String()
    path = fields.String()
    document = fields.Boolean(metadata={"description": "whether it is made of what is stored; else it is a file"})
    outcome = fields.Nested(OutcomeOut)
    permission = fields.Nested(VerdictOut)
    found = fields.Nested(HoldingOut, allow_none=True, metadata={"description": "null for who may not see it"})
    members = fields.List(fields.Nested(HoldingOut), allow_none=True, metadata={"description": "of a group, in order; null: it is none"})


class DeadLettersQuery(Schema):
    up_to = fields.Integer(
        load_default=None, validate=Range(1, MOST_QUOTA), metadata={"description": "the newest id that goes; without it all go"}
    )


class DeletedOut(Schema):
    deleted = fields.Integer()


class ProblemOut(Schema):
    type = fields.String()
    title = fields.String()
    status = fields.Integer()
    detail = fields.String()
    code = fields.String()
    field = fields.String()
    fields_ = fields.Dict(keys=fields.String(), values=fields.List(fields.String()), data_key="fields")
    request_id = fields.String()


def listed(item: type[Schema]) -> type[marshmallow.Schema]:
    """The schema of a page of these items."""
    name = item.__name__.removesuffix("Out") + "ListOut"
    next_ = fields.String(allow_none=True, metadata={"description": "cursor of the next page; null at the end"})
    return Schema.from_dict({"items": fields.List(fields.Nested(item)), "next": next_}, name=name)
