"""The tables, as SQLAlchemy Core knows them; `migrations/` makes them and a check in CI compares the two.

Identifiers of repositories and users are never reused (identity columns). Everything of one repository
changes under that repository's lock; the order of all locks is in `locks.py`.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, UUID

from app.database.uploads import GARBAGE_BY_AGE, OPEN_BY_LEASE, OPEN_BY_OWNER, RELEASED_BY_AGE

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# Paths, names and digests compare by their bytes: prefix scans use the index and no locale has a say.
EXACT = Text(collation="C")
NOW = text("now()")


def _id() -> Column[int]:
    return Column("id", BigInteger, Identity(always=True), primary_key=True)


def _at(name: str, *, nullable: bool = False) -> Column[object]:
    return Column(name, DateTime(timezone=True), nullable=nullable, server_default=None if nullable else NOW)


def _epoch(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False, server_default=text("1"))


# One row. `incarnation` changes when a backup is restored, so that no validator of before matches.
installation = Table(
    "arkvory_installation",
    metadata,
    Column("id", Integer, CheckConstraint("id = 1", name="one_row"), primary_key=True),
    Column("incarnation", Text, nullable=False),
    _epoch("epoch"),
    # Off: nobody without a login reads anything. On: nothing is stored, replaced or deleted.
    Column("anonymous", Boolean, nullable=False, server_default=text("true")),
    Column("read_only", Boolean, nullable=False, server_default=text("false")),
)

# One row. Each holder of the storage counts `generation` up; its write transactions share-lock the row
# `where generation = mine`, so that a predecessor that lingers can write nothing.
owner = Table(
    "arkvory_owner",
    metadata,
    Column("id", Integer, CheckConstraint("id = 1", name="one_row"), primary_key=True),
    Column("generation", BigInteger, nullable=False, server_default=text("0")),
    Column("holder", Text, nullable=False, server_default=text("''")),
    _at("acquired_at", nullable=True),
)

users = Table(
    "arkvory_users",
    metadata,
    _id(),
    Column("name", EXACT, nullable=False),
    Column("password_hash", Text),
    Column("administrator", Boolean, nullable=False, server_default=text("false")),
    Column("disabled", Boolean, nullable=False, server_default=text("false")),
    # Signs in by tokens alone: it has no password, ever.
    Column("robot", Boolean, nullable=False, server_default=text("false")),
    Column("revision", BigInteger, nullable=False, server_default=text("1")),
    _at("created_at"),
    UniqueConstraint("name"),
)

groups = Table(
    "arkvory_groups",
    metadata,
    _id(),
    Column("name", EXACT, nullable=False),
    _at("created_at"),
    UniqueConstraint("name"),
)

group_members = Table(
    "arkvory_group_members",
    metadata,
    Column("group_id", BigInteger, ForeignKey("arkvory_groups.id", ondelete="CASCADE"), primary_key=True),
    Column("user_id", BigInteger, ForeignKey("arkvory_users.id", ondelete="CASCADE"), primary_key=True),
    Index(None, "user_id"),
)

# A token is kept as its SHA-256 (it has 240 random bits: no slow hash is needed). `repositories` null: all
# that its owner has.
tokens = Table(
    "arkvory_tokens",
    metadata,
    _id(),
    Column("user_id", BigInteger, ForeignKey("arkvory_users.id", ondelete="CASCADE"), nullable=False),
    # The token that it was made with: revoking that one revokes this one.
    Column("parent_id", BigInteger, ForeignKey("arkvory_tokens.id", ondelete="CASCADE")),
    Column("name", Text, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("permissions", ARRAY(Text), nullable=False),
    Column("repositories", ARRAY(BigInteger)),
    _at("created_at"),
    _at("expires_at", nullable=True),
    UniqueConstraint("digest"),
    Index(None, "user_id"),
    Index(None, "parent_id"),
)

# Logins that a program has begun and that its user confirms in a browser. `user_id` null: not confirmed yet; `revision` is the user's
# at that moment, so that what ends their credentials ends this too. Kept as the SHA-256 of the address that the browser is given.
logins = Table(
    "arkvory_logins",
    metadata,
    Column("digest", LargeBinary, primary_key=True),
    Column("user_id", BigInteger, ForeignKey("arkvory_users.id", ondelete="CASCADE")),
    Column("revision", BigInteger),
    _at("expires_at"),
    Index(None, "user_id"),
    Index(None, "expires_at"),
)

repositories = Table(
    "arkvory_repositories",
    metadata,
    _id(),
    Column("tenant", EXACT, nullable=False, server_default=text("'default'")),
    Column("name", EXACT, nullable=False),
    Column("format", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("status", Text, nullable=False, server_default=text("'online'")),
    Column("public", Boolean, nullable=False, server_default=text("false")),
    # A fact, without a foreign key: deleting a user would lock rows of repositories against the order.
    Column("creator_id", BigInteger),
    Column("upstream_url", Text),
    Column("caching_allowed", Boolean, nullable=False, server_default=text("true")),
    Column("quota_bytes", BigInteger),
    Column("settings", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    _epoch("metadata_epoch"),
    _epoch("authorization_epoch"),
    _epoch("content_epoch"),
    _epoch("members_epoch"),
    _at("created_at"),
    _at("updated_at"),
    _at("deleted_at", nullable=True),
    # The latest date that a deleted artifact showed: what is stored after it gets a later second.
    _at("last_date_deleted", nullable=True),
    # A host name whose addresses all mean this repository (a registry mirror).
    Column("host", EXACT),
    CheckConstraint("status in ('online', 'offline', 'maintenance')", name="status"),
    CheckConstraint("kind in ('hosted', 'proxy', 'group')", name="kind"),
    CheckConstraint("quota_bytes >= 0", name="quota"),
    # A deleted repository keeps its row until the sweep is through; its name is free at once.
    Index("uq_arkvory_repositories_live_name", "tenant", "name", unique=True, postgresql_where=text("deleted_at is null")),
    Index("uq_arkvory_repositories_live_host", "host", unique=True, postgresql_where=text("deleted_at is null and host is not null")),
    Index("ix_arkvory_repositories_deleted", "id", postgresql_where=text("deleted_at is not null")),
)

# Of group repositories, in their order. `written`: the one that what is published through the group goes to.
members = Table(
    "arkvory_members",
    metadata,
    Column("group_id", BigInteger, ForeignKey("arkvory_repositories.id", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("member_id", BigInteger, ForeignKey("arkvory_repositories.id", ondelete="CASCADE"), nullable=False),
    Column("written", Boolean, nullable=False, server_default=text("false")),
    UniqueConstraint("group_id", "member_id"),
    Index(None, "member_id"),
)

access_rules = Table(
    "arkvory_access_rules",
    metadata,
    _id(),
    Column("repository_id", BigInteger, ForeignKey("arkvory_repositories.id", ondelete="CASCADE"), nullable=False),
    Column("subject", Text, nullable=False),
    Column("user_id", BigInteger, ForeignKey("arkvory_users.id", ondelete="CASCADE")),
    Column("group_id", BigInteger, ForeignKey("arkvory_groups.id", ondelete="CASCADE")),
    Column("permissions", ARRAY(Text), nullable=False),
    Column("path_prefix", EXACT),
    _at("created_at"),
    CheckConstraint("subject in ('user', 'group', 'signed-in', 'anonymous')", name="subject"),
    CheckConstraint("(subject = 'user') = (user_id is not null)", name="user"),
    CheckConstraint("(subject = 'group') = (group_id is not null)", name="group"),
    Index(None, "repository_id"),
    Index(None, "user_id"),
    Index(None, "group_id"),
)

# Named sets of rules. The view `arkvory_rules` (migrations) is all rules that speak of somebody: these by their holders, and access rules.
roles = Table(
    "arkvory_roles",
    metadata,
    _id(),
    Column("name", EXACT, nullable=False),
    _at("created_at"),
    UniqueConstraint("name"),
)

# `repository_id` null: every repository.
role_rules = Table(
    "arkvory_role_rules",
    metadata,
    _id(),
    Column("role_id", BigInteger, ForeignKey("arkvory_roles.id", ondelete="CASCADE"), nullable=False),
    Column("repository_id", BigInteger, ForeignKey("arkvory_repositories.id", ondelete="CASCADE")),
    Column("permissions", ARRAY(Text), nullable=False),
    Column("path_prefix", EXACT),
    Index(None, "role_id"),
    Index(None, "repository_id"),
)

role_holders = Table(
    "arkvory_role_holders",
    metadata,
    _id(),
    Column("role_id", BigInteger, ForeignKey("arkvory_roles.id", ondelete="CASCADE"), nullable=False),
    Column("user_id", BigInteger, ForeignKey("arkvory_users.id", ondelete="CASCADE")),
    Column("group_id", BigInteger, ForeignKey("arkvory_groups.id", ondelete="CASCADE")),
    CheckConstraint("(user_id is null) <> (group_id is null)", name="holder"),
    UniqueConstraint("role_id", "user_id"),
    UniqueConstraint("role_id", "group_id"),
    Index(None, "user_id"),
    Index(None, "group_id"),
)

# Tokens that belong to a repository and to no user; kept as their SHA-256, as the others.
deploy_tokens = Table(
    "arkvory_deploy_tokens",
    metadata,
    _id(),
    Column("repository_id", BigInteger, ForeignKey("arkvory_repositories.id", ondelete="CASCADE"), nullable=False),
    # The token it was made with, and ends with.
    Column("parent_id", BigInteger, ForeignKey("arkvory_tokens.id", ondelete="CASCADE")),
    Column("name", Text, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("permissions", ARRAY(Text), nullable=False),
    Column("path_prefix", EXACT),
    # A fact, as `creator_id`.
    Column("created_by", BigInteger),
    _at("created_at"),
    _at("expires_at", nullable=True),
    UniqueConstraint("digest"),
    Index(None, "repository_id"),
    Index(None, "parent_id"),
)

# What a repository's index groups by (a Python project, later a Maven module...). `revision` is the
# validator of its documents (C9): the content epoch of the change that moved it, so that it never
# repeats, even after the package went and came again.
packages = Table(
    "arkvory_packages",
    metadata,
    _id(),
    Column("repository_id", BigInteger, ForeignKey("arkvory_repositories.id"), nullable=False),
    Column("name", EXACT, nullable=False),
    Column("display_name", Text, nullable=False),
    Column("artifacts", BigInteger, nullable=False, server_default=text("0")),
    Column("revision", BigInteger, nullable=False),
    _at("created_at"),
    # When `revision` moved; a trigger keeps it, whoever moves it.
    _at("changed_at"),
    UniqueConstraint("repository_id", "name"),
)

# `candidate_at`: since when nothing may refer to the blob any more (null while something surely does);
# only a hint for cleanup, which looks again under the row's lock (W3).
blobs = Table(
    "arkvory_blobs",
    metadata,
    _id(),
    Column("digest", EXACT, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("status", Text, nullable=False),
    Column("checksums", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    _at("created_at"),
    _at("last_used_at"),
    _at("candidate_at", nullable=True),
    CheckConstraint("status in ('placing', 'live', 'deleting')", name="status"),
    CheckConstraint("digest ~ '^[0-9a-f]{64}$'", name="digest"),
    UniqueConstraint("digest"),
    Index("ix_arkvory_blobs_candidates", "candidate_at", postgresql_where=text("candidate_at is not null")),
)

artifacts = Table(
    "arkvory_artifacts",
    metadata,
    _id(),
    Column("repository_id", BigInteger, ForeignKey("arkvory_repositories.id"), nullable=False),
    Column("path", EXACT, nullable=False),
    Column("blob_id", BigInteger, ForeignKey("arkvory_blobs.id"), nullable=False),
    Column("upload_id", UUID(as_uuid=True), nullable=False),
    Column("package_id", BigInteger, ForeignKey("arkvory_packages.id")),
    Column("version", Text),
    Column("content_type", Text, nullable=False),
    # A hold covers the path (arkvory_holds); kept in the same transactions, so that indexes leave it out by one condition.
    Column("withheld", Boolean, nullable=False, server_default=text("false")),
    Column("metadata", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("created_by", BigInteger),
    _at("created_at"),
    _at("updated_at"),
    # What Last-Modified says: like `updated_at`, but never twice the same second for other bytes.
    _at("dated_at"),
    # Of what only references keep: since when none may be left (null while one surely is); a hint, as for blobs.
    _at("candidate_at", nullable=True),
    CheckConstraint("octet_length(path) between 1 and 1024", name="path"),
    UniqueConstraint("repository_id", "path"),
    Index(None, "blob_id"),
    Index("ix_arkvory_artifacts_package", "package_id", "path", postgresql_where=text("package_id is not null")),
    # Plugins and archetypes: few among many.
    Index("ix_arkvory_artifacts_maven", "repository_id", "path", postgresql_where=text("metadata ? 'maven'")),
    Index("ix_arkvory_artifacts_candidates", "candidate_at", postgresql_where=text("candidate_at is not null")),
)

# How a proxy speaks with its upstream: what anyone may see, and what is encrypted (upstream/upstream.py).
upstreams = Table(
    "arkvory_upstreams",
    metadata,
    Column("repository_id", BigInteger, ForeignKey("arkvory_repositories.id", ondelete="CASCADE"), primary_key=True),
    Column("shown", JSONB, nullable=False),
    Column("secret", Text),
    # An administrator said where it is (upstream/outward.py).
    Column("may_lie_inside", Boolean, nullable=False, server_default=text("true")),
)

# What a proxy knows of a local copy: the upstream's own validators, when it was compared last and is to be next. `source` is the
# upstream's address then, `spelling` the encoded path by which it was asked.
freshness = Table(
    "arkvory_freshness",
    metadata,
    Column("artifact_id", BigInteger, ForeignKey("arkvory_artifacts.id", ondelete="CASCADE"), primary_key=True),
    Column("source", Text, nullable=False),
    Column("spelling", Text, nullable=False),
    Column("etag", Text),
    Column("last_modified", Text),
    Column("immutable", Boolean, nullable=False),
    _at("checked_at"),
    _at("next_check_at"),
)

# What an artifact refers to, by path in its own repository; the kinds are told in `repository/references.py`.
references = Table(
    "arkvory_references",
    metadata,
    Column("artifact_id", BigInteger, ForeignKey("arkvory_artifacts.id", ondelete="CASCADE"), primary_key=True),
    Column("repository_id", BigInteger, nullable=False),
    Column("path", EXACT, primary_key=True),
    Column("kind", Text, primary_key=True),
    CheckConstraint("kind in ('part', 'member', 'same', 'subject')", name="kind"),
    Index(None, "repository_id", "path"),
)

# Of answers that brought an artifact's first byte (repository/downloads.py); a repository's are those of what it had before, too.
downloads = Table(
    "arkvory_downloads",
    metadata,
    Column("artifact_id", BigInteger, ForeignKey("arkvory_artifacts.id", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("count", BigInteger, nullable=False),
    Column("last_at", DateTime(timezone=True), nullable=False),
)

# No foreign key: whoever counts waits for nobody who changes or deletes a repository.
repository_downloads = Table(
    "arkvory_repository_downloads",
    metadata,
    Column("repository_id", BigInteger, primary_key=True, autoincrement=False),
    Column("count", BigInteger, nullable=False),
    Column("last_at", DateTime(timezone=True), nullable=False),
)

# Of which quota, or (0) of the server's capacity, 80, 95 or 100 % are taken: what was found a minute ago at most.
quota_levels = Table(
    "arkvory_quota_levels",
    metadata,
    Column("repository_id", BigInteger, primary_key=True, autoincrement=False),
    Column("level", Integer, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("quota_bytes", BigInteger, nullable=False),
    _at("since"),
)

# npm: a row for each version, of which the package's documents are put together as they are. Each text is JSON of which the version's
# part of the document is made; U+0001 in it stands for the address of the repository. `words` is what a search looks at beside the name;
# it and `readme` and `deprecated` are plain text.
npm_versions = Table(
    "arkvory_npm_versions",
    metadata,
    Column("artifact_id", BigInteger, ForeignKey("arkvory_artifacts.id", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("fragment", Text, nullable=False),
    Column("abbreviated", Text, nullable=False),
    Column("words", Text, nullable=False),
    Column("readme", Text),
    Column("deprecated", Text),
    # By its upstream, of what a mirror brought; null: here, when its artifact says.
    Column("published_at", DateTime(timezone=True)),
)

npm_tags = Table(
    "arkvory_npm_tags",
    metadata,
    Column("package_id", BigInteger, ForeignKey("arkvory_packages.id", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("tag", EXACT, primary_key=True),
    # A tag goes with the version that it names.
    Column("artifact_id", BigInteger, ForeignKey("arkvory_artifacts.id", ondelete="CASCADE"), nullable=False),
    # By the upstream's word, and not by somebody's here.
    Column("mirrored", Boolean, nullable=False, server_default=text("false")),
    Index(None, "artifact_id"),
)

# Who is named as an owner (JSON, as clients send it); nothing is allowed by it.
npm_packages = Table(
    "arkvory_npm_packages",
    metadata,
    Column("package_id", BigInteger, ForeignKey("arkvory_packages.id", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("maintainers", Text, nullable=False),
)

# What a repository follows, and how far that is (`repository/mirrors/`); when it runs next is told by the job of its name. A hosted one's
# upstream stands here: `shown` and `secret` as in `arkvory_upstreams`.
mirrors = Table(
    "arkvory_mirrors",
    metadata,
    _id(),
    Column("repository_id", BigInteger, ForeignKey("arkvory_repositories.id", ondelete="CASCADE"), nullable=False),
    Column("source", Text, nullable=False),
    Column("names", JSONB, nullable=False),
    Column("include", JSONB, nullable=False),
    Column("exclude", JSONB, nullable=False),
    Column("every_seconds", Integer, nullable=False),
    Column("enabled", Boolean, nullable=False),
    Column("concurrency", Integer, nullable=False),
    Column("upstream_url", Text),
    Column("shown", JSONB),
    Column("secret", Text),
    Column("may_lie_inside", Boolean, nullable=False, server_default=text("false")),
    # Moves with the settings; `walked` is the one that the round went by, `whole` whether all of that round is done with.
    Column("revision", BigInteger, nullable=False, server_default=text("1")),
    Column("walked", BigInteger, nullable=False, server_default=text("0")),
    Column("round", BigInteger, nullable=False, server_default=text("0")),
    Column("whole", Boolean, nullable=False, server_default=text("true")),
    Column("state", Text, nullable=False, server_default=text("'new'")),
    # Whoever runs it.
    Column("runner", Text),
    Column("reason", Text),
    Column("cursor", Text, nullable=False, server_default=text("''")),
    Column("counts", JSONB, nullable=False, server_default=text("'{}'")),
    Column("errors", JSONB, nullable=False, server_default=text("'[]'")),
    # Since the mirror was made: what it copied.
    Column("files", BigInteger, nullable=False, server_default=text("0")),
    Column("bytes", BigInteger, nullable=False, server_default=text("0")),
    # The upstream wants to be left alone until then.
    _at("not_before", nullable=True),
    # The last sign of life of its runner.
    _at("seen_at", nullable=True),
    _at("started_at", nullable=True),
    _at("ended_at", nullable=True),
    _at("succeeded_at", nullable=True),
    _at("round_at", nullable=True),
    # The beginning of the last round that copied all of it: as of when the repository has what the upstream has.
    _at("current_at", nullable=True),
    _at("created_at"),
    UniqueConstraint("repository_id"),
)

# The work of a mirror, one row for each list that it reads and each file. No foreign key: a mirror with millions goes at once, these follow
# in batches.
mirror_items = Table(
    "arkvory_mirror_items",
    metadata,
    Column("mirror_id", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", EXACT, primary_key=True),
    Column("path", EXACT, primary_key=True),
    # The one in which it was named last.
    Column("round", BigInteger, nullable=False),
    Column("state", Text, nullable=False, server_default=text("'todo'")),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    _at("next_try_at"),
    # What the list said of it: where it is, `size` in bytes, `digest` as algorithm:hex.
    Column("address", Text),
    Column("size", BigInteger),
    Column("digest", Text),
    # It never changes once it is there.
    Column("lasting", Boolean, nullable=False, server_default=text("false")),
    # Paths of files that come first, each in a line.
    Column("needs", Text),
    # The list that named it last; null: a round begins with it.
    Column("named_by", EXACT),
    # Of a list: how, and in which round, it was read to its end last.
    Column("basis", Text),
    Column("read_in", BigInteger),
    # Of what was copied; of a list its validators then.
    Column("sha256", Text),
    Column("etag", Text),
    Column("last_modified", Text),
    # Of what has arrived in part: the upload that keeps it, and the validator that the rest must have.
    Column("upload_id", UUID(as_uuid=True)),
    Column("validator", Text),
    Column("error", Text),
    # How often it was refused, by the `basis` of then, and until when, unless something changes. Its validators are those of what was.
    Column("refusals", Integer, nullable=False, server_default=text("0")),
    _at("refused_until", nullable=True),
    CheckConstraint("kind in ('file', 'list')", name="kind"),
    CheckConstraint("state in ('todo', 'done', 'skipped', 'gone', 'failed', 'refused')", name="state"),
    Index("ix_arkvory_mirror_items_todo", "mirror_id", "kind", "next_try_at", "path", postgresql_where=text("state = 'todo'")),
    Index("ix_arkvory_mirror_items_refused", "mirror_id", "path", postgresql_where=text("state = 'refused'")),
    Index("ix_arkvory_mirror_items_named_by", "mirror_id", "named_by", postgresql_where=text("named_by is not null")),
)

# Quarantine: by path, outliving the artifact (W5). `main_path` is the path that somebody held; the files beside it are covered too.
holds = Table(
    "arkvory_holds",
    metadata,
    Column("repository_id", BigInteger, ForeignKey("arkvory_repositories.id"), primary_key=True),
    Column("path", EXACT, primary_key=True),
    Column("main_path", EXACT, nullable=False),
    Column("reason", Text, nullable=False),
    Column("trust", Text, nullable=False),
    Column("held_by", BigInteger),
    _at("held_at"),
)

# What is held as soon as it is published: `pattern` over the path, `publisher` a user's name or null for anyone.
hold_rules = Table(
    "arkvory_hold_rules",
    metadata,
    _id(),
    Column("repository_id", BigInteger, ForeignKey("arkvory_repositories.id", ondelete="CASCADE"), nullable=False),
    Column("pattern", EXACT, nullable=False),
    Column("publisher", EXACT),
    Column("reason", Text, nullable=False),
    _at("created_at"),
    Index(None, "repository_id"),
)

# File names that were used and may never be used again (PyPI: a file name is for ever).
used_paths = Table(
    "arkvory_used_paths",
    metadata,
    Column("repository_id", BigInteger, ForeignKey("arkvory_repositories.id"), primary_key=True),
    Column("path", EXACT, primary_key=True),
    _at("deleted_at"),
)

# No foreign key to repositories: deleting one would make admission wait (DESIGN 5).
uploads = Table(
    "arkvory_uploads",
    metadata,
    Column("id", UUID(as_uuid=True), primary_key=True),
    Column("repository_id", BigInteger, nullable=False),
    Column("status", Text, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("key", Text, nullable=False, server_default=text("''")),
    _at("created_at"),
    _at("changed_at"),
    # Open: until when its process, or a client that goes on with it, answers for it.
    _at("lease_until", nullable=True),
    # Of an upload that takes several requests: what it is for, who began it, how many bytes have arrived (the rest of the file
    # does not count), and the request that is moving bytes now.
    Column("target", EXACT),
    Column("owner", Text),
    Column("received", BigInteger),
    Column("holder", UUID(as_uuid=True)),
    _at("held_until", nullable=True),
    CheckConstraint("status in ('open', 'published', 'garbage', 'released')", name="status"),
    CheckConstraint("bytes >= 0", name="bytes"),
    Index("ix_arkvory_uploads_open_by_lease", "lease_until", postgresql_where=text(OPEN_BY_LEASE)),
    Index("ix_arkvory_uploads_open_by_owner", "owner", "key", postgresql_where=text(f"{OPEN_BY_OWNER} and owner is not null")),
    Index("ix_arkvory_uploads_garbage_by_age", "changed_at", postgresql_where=text(GARBAGE_BY_AGE)),
    Index("ix_arkvory_uploads_released_by_age", "changed_at", postgresql_where=text(RELEASED_BY_AGE)),
)

# Uploads that come in parts (upload/multipart.py): what each is to become. Whether it is open, and how long, its row of `arkvory_uploads`
# says. `door_id` is the repository as the client addressed it, `repository_id` the one that is published to. A fact, all of it: no
# foreign keys, as for uploads.
multiparts = Table(
    "arkvory_multiparts",
    metadata,
    Column("upload_id", UUID(as_uuid=True), primary_key=True),
    Column("repository_id", BigInteger, nullable=False),
    Column("door_id", BigInteger, nullable=False),
    Column("owner", Text, nullable=False),
    Column("path", EXACT, nullable=False),
    Column("size", BigInteger),
    Column("sha256", EXACT),
    Column("content_type", Text, nullable=False),
    Column("part_size", BigInteger, nullable=False),
    # What is demanded of the path's present state, as ETags; null: nothing.
    Column("if_match", ARRAY(Text)),
    Column("if_none_match", ARRAY(Text)),
    Column("idempotency_key", EXACT),
    # A digest of what was asked for under that key.
    Column("request", EXACT, nullable=False),
    _at("created_at"),
    # All parts are there, and it is to be published: since when, by whose credential, and not before when it is tried again.
    _at("completing_at", nullable=True),
    Column("asked_by", JSONB),
    _at("not_before", nullable=True),
    # Why it ended, or did not end yet: `code` and `detail`.
    Column("error", JSONB),
    _at("ended_at", nullable=True),
    CheckConstraint("part_size > 0 and size >= 0", name="sizes"),
    Index(None, "repository_id", "upload_id"),
    Index(
        "uq_arkvory_multiparts_key",
        "door_id",
        "owner",
        "idempotency_key",
        unique=True,
        postgresql_where=text("idempotency_key is not null"),
    ),
    Index("ix_arkvory_multiparts_completing", "completing_at", postgresql_where=text("completing_at is not null and ended_at is null")),
)

# Their parts. One without `sha256` is not there; `holder` is the request that sends it now, on a `machine`. `strays`: machines on which a
# request began to send it and never told how it ended, so that it may still write. `bytes` are reserved for it where the size of the
# whole is not known.
parts = Table(
    "arkvory_parts",
    metadata,
    Column("upload_id", UUID(as_uuid=True), ForeignKey("arkvory_multiparts.upload_id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("bytes", BigInteger, nullable=False, server_default=text("0")),
    Column("size", BigInteger),
    Column("sha256", EXACT),
    Column("holder", UUID(as_uuid=True)),
    _at("held_until", nullable=True),
    Column("machine", Text),
    Column("strays", ARRAY(Text), nullable=False, server_default=text("'{}'::text[]")),
    CheckConstraint("number > 0", name="number"),
    CheckConstraint("sha256 is null or (size is not null and holder is null)", name="whole"),
    Index("ix_arkvory_parts_held", "upload_id", postgresql_where=text("holder is not null")),
)

# Sums of the uploads' bytes and how many they are, kept by a trigger in the transaction of each change; no calling code writes
# it. Derived: not in backups, recounted by the restore.
upload_bytes = Table(
    "arkvory_upload_bytes",
    metadata,
    Column("repository_id", BigInteger, primary_key=True, autoincrement=False),
    Column("status", Text, primary_key=True),
    Column("bytes", BigInteger, nullable=False),
    Column("uploads", BigInteger, nullable=False, server_default="0"),
)

# Values of the shared regions, to warm a process that has just started; used only when the epochs equal
# those of the repository's row, read in the same statement (C4).
cache_rows = Table(
    "arkvory_cache_rows",
    metadata,
    Column("region", Text, primary_key=True),
    Column("key", EXACT, CheckConstraint("char_length(key) <= 256", name="key"), primary_key=True),
    Column("value", Text, nullable=False),
    Column("repository_id", BigInteger, nullable=False),
    Column("metadata_epoch", BigInteger, nullable=False),
    Column("authorization_epoch", BigInteger, nullable=False),
    Column("members_epoch", BigInteger, nullable=False),
    Column("expires_at", DateTime(timezone=True), nullable=False),
    Index(None, "repository_id"),
    Index(None, "expires_at"),
)

# Cluster mode (DESIGN 4). Which gunicorn master goes by a name; whether it lives is told by its session lock, not by the row.
instance_names = Table(
    "arkvory_instance_names",
    metadata,
    Column("name", EXACT, primary_key=True),
    Column("master", Text, nullable=False),
    Column("host", Text, nullable=False),
    _at("taken_at"),
)

# One incarnation of a process: its mailbox is the mail with its id, and nobody gets that id again.
instances = Table(
    "arkvory_instances",
    metadata,
    _id(),
    Column("name", EXACT, nullable=False),
    Column("slot", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("pid", BigInteger, nullable=False),
    Column("version", Text, nullable=False),
    Column("started_at", DateTime(timezone=True), nullable=False, server_default=text("clock_timestamp()")),
    Column("heartbeat_at", DateTime(timezone=True), nullable=False, server_default=text("clock_timestamp()")),
    # Those that are to be the same in all processes; null: of an older version.
    Column("settings", JSONB),
)

# No foreign key: whoever sends does not lock the receiver's row.
mail = Table(
    "arkvory_mail",
    metadata,
    _id(),
    Column("instance_id", BigInteger, nullable=False),
    Column("sent_at", DateTime(timezone=True), nullable=False, server_default=text("clock_timestamp()")),
    # After a rejection: when it is tried again.
    _at("not_before", nullable=True),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("body", JSONB, nullable=False),
    Index(None, "instance_id"),
)

# Messages that failed every time, for whoever looks into it; nobody applies them again.
dead_letters = Table(
    "arkvory_dead_letters",
    metadata,
    _id(),
    Column("instance", Text, nullable=False),
    Column("sent_at", DateTime(timezone=True), nullable=False),
    Column("died_at", DateTime(timezone=True), nullable=False, server_default=text("clock_timestamp()")),
    Column("error", Text, nullable=False),
    Column("body", JSONB, nullable=False),
)

# Who runs a job of the whole cluster, and until when nobody else may.
leases = Table(
    "arkvory_leases",
    metadata,
    Column("name", EXACT, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("until", DateTime(timezone=True), nullable=False),
)

# Jobs, one row each: the latest run (`running` until it wrote its end, which one that died never does), and when it is due.
jobs = Table(
    "arkvory_jobs",
    metadata,
    Column("name", EXACT, primary_key=True),
    Column("description", Text, nullable=False),
    Column("every_seconds", Double, nullable=False),
    Column("run", BigInteger, nullable=False, server_default=text("0")),
    Column("running", Boolean, nullable=False, server_default=text("false")),
    Column("runner", Text),
    _at("began_at", nullable=True),
    _at("ended_at", nullable=True),
    Column("seconds", Double),
    Column("outcome", Text),
    # What the latest run did or is at, or why it failed.
    Column("said", Text),
    # In a row.
    Column("failures", Integer, nullable=False, server_default=text("0")),
    _at("succeeded_at", nullable=True),
    # Somebody wants it to run at once.
    _at("asked_at", nullable=True),
    _at("next_at"),
    CheckConstraint("outcome in ('done', 'failed', 'stopped', 'lost')", name="outcome"),
)

# Blobs that long downloads read (DESIGN 5, W3). A row counts as long as its session holds its lock, and a little longer.
pin_sessions = Table(
    "arkvory_pin_sessions",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("holder", Text, nullable=False),
    Column("seen_at", DateTime(timezone=True), nullable=False, server_default=text("clock_timestamp()")),
)

# No foreign key to blobs: cleanup deletes those that nobody pins, and does not wait.
pins = Table(
    "arkvory_pins",
    metadata,
    Column("blob_id", BigInteger, primary_key=True, autoincrement=False),
    Column("session_id", BigInteger, ForeignKey("arkvory_pin_sessions.id", ondelete="CASCADE"), primary_key=True),
    Index(None, "session_id"),
)

# What each process may send of the download budget, while its lease lasts; `hungry` are keys of clients.
download_shares = Table(
    "arkvory_download_shares",
    metadata,
    Column("holder", EXACT, primary_key=True),
    Column("hungry", ARRAY(Text), nullable=False),
    Column("calm", Double, nullable=False),
    Column("granted", Double, nullable=False),
    Column("until", DateTime(timezone=True), nullable=False),
)
