"""Typed settings, read once from the environment.

Every setting stands in `SETTINGS` with its variable, its default and a sentence for the table in the
README; a test keeps that table and this list the same.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

MIB = 1024 * 1024
# A download budget below that keeps answers waiting for seconds.
LEAST_RATE = 64 * 1024
# Behind a server's name, which cannot have a colon, in that of its workers.
WORKER_SUFFIX = ":worker"
# The cluster's loop, ownership and pins stay in the session pool; one more is for who comes and goes.
LEAST_SESSIONS = 4
# Most connections of a worker: it answers nobody, and a job holds one for a transaction.
WORKER_POOL_SIZE = 6
WORKER_SESSION_POOL_SIZE = LEAST_SESSIONS


class SettingError(ValueError):
    """A variable of the environment holds something that Arkvory cannot use."""


@dataclass(frozen=True)
class Setting:
    """One row of the table: the field of `Settings`, its variables (the first one set wins) and how to read it."""

    field: str
    variables: tuple[str, ...]
    default: Any
    read: Callable[[str], Any]
    meaning: str


def _text(value: str) -> str:
    return value


def _flag(value: str) -> bool:
    lowered = value.strip().lower()
    if lowered in {"1", "true", "yes", "on"}:
        return True
    if lowered in {"0", "false", "no", "off", ""}:
        return False
    raise ValueError("expected true or false")


def _count(least: int, most: int | None = None) -> Callable[[str], int]:
    def read(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            raise ValueError("expected a whole number") from None
        if number < least or (most is not None and number > most):
            bounds = f"at least {least}" if most is None else f"from {least} to {most}"
            raise ValueError(f"expected a number {bounds}")
        return number

    return read


def _seconds(value: str) -> float:
    number = float(value)
    if not 0 < number < 10**7:
        raise ValueError("expected a positive number of seconds")
    return number


def _patience(value: str) -> float:
    """As `_seconds`, or zero."""
    return 0.0 if value.strip() in {"0", "0.0"} else _seconds(value)


_UNITS = {"": 1, "B": 1, "K": 1024, "M": MIB, "G": 1024**3, "T": 1024**4}


def _bytes(value: str) -> int:
    """A number of bytes, also with a unit: `500M`, `20GiB`, `1T` (powers of 1024)."""
    text = value.strip().upper().removesuffix("IB").removesuffix("B")
    unit = text[-1:] if text[-1:] in _UNITS and not text[-1:].isdigit() else ""
    try:
        number = float(text.removesuffix(unit))
    except ValueError:
        raise ValueError("expected a size such as 500M or 20G") from None
    if number < 0:
        raise ValueError("expected a size of zero or more")
    return int(number * _UNITS[unit])


def _rate(value: str) -> int:
    rate = _bytes(value)
    if rate < LEAST_RATE:
        raise ValueError(f"expected at least {LEAST_RATE >> 10}K")
    return rate


def _names(value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(",") if part.strip())


def _deployment(value: str) -> str:
    if value not in {"single", "cluster"}:
        raise ValueError("expected single or cluster")
    return value


def _pins(value: str) -> str:
    if value not in {"auto", "on", "off"}:
        raise ValueError("expected auto, on or off")
    return value


_INSTANCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def _instance(value: str) -> str:
    if not _INSTANCE.fullmatch(value):
        raise ValueError("expected letters, digits, dots, hyphens and underscores, at most 63, a letter or digit first")
    return value


def _creators(value: str) -> str:
    if value not in {"administrators", "signed-in"}:
        raise ValueError("expected administrators or signed-in")
    return value


def _database_url(value: str) -> str:
    """Heroku-style `postgres://` means the same as `postgresql://`."""
    scheme, separator, rest = value.partition("://")
    if not separator or scheme.split("+")[0] not in {"postgres", "postgresql"}:
        raise ValueError("expected postgresql://...")
    return f"postgresql+psycopg2://{rest}"


SETTINGS: tuple[Setting, ...] = (
    Setting("bind", ("ARKVORY_BIND",), "0.0.0.0", _text, "address to listen on"),
    Setting("port", ("PORT",), 8080, _count(0, 65535), "port to listen on"),
    Setting("tls_cert", ("ARKVORY_TLS_CERT",), None, Path,
            "certificate with its chain, a PEM file; with the key, the server speaks https and nothing else"),
    Setting("tls_key", ("ARKVORY_TLS_KEY",), None, Path, "the certificate's key, a PEM file without a passphrase"),
    Setting("data_dir", ("ARKVORY_DATA_DIR",), Path("var"), Path, "folder of the blobs, the embedded database and its secrets"),
    Setting("database_url", ("ARKVORY_DATABASE_URL", "DATABASE_URL"), None, _database_url,
            "PostgreSQL to use; without it the embedded one starts in the data directory"),
    Setting("database_session_url", ("ARKVORY_DATABASE_SESSION_URL",), None, _database_url,
            "direct address for long-lived sessions, where the other goes through a transaction pooler"),
    Setting("database_pool_size", ("ARKVORY_DATABASE_POOL_SIZE",), 20, _count(4), "connections of the request pool"),
    Setting("session_pool_size", ("ARKVORY_SESSION_POOL_SIZE",), 8, _count(LEAST_SESSIONS), "connections of the session pool"),
    Setting("database_wait_seconds", ("ARKVORY_DATABASE_WAIT_SECONDS",), 5.0, _seconds,
            "longest wait for a connection before the answer is 503"),
    Setting("database_connect_seconds", ("ARKVORY_DATABASE_CONNECT_SECONDS",), 5.0, _seconds, "longest wait for PostgreSQL to accept a connection"),
    Setting("database_statement_seconds", ("ARKVORY_DATABASE_STATEMENT_SECONDS",), 30.0, _seconds, "longest run of one statement of a request"),
    Setting("deployment", ("ARKVORY_DEPLOYMENT",), None, _deployment, "`single` (default): one web process; `cluster`: any number of processes and machines"),
    Setting("instance_id", ("ARKVORY_INSTANCE_ID", "DYNO", "POD_NAME"), None, _instance,
            "cluster: name of this server among the others; default: the dyno's or pod's"),
    Setting("web_concurrency", ("WEB_CONCURRENCY",), None, _count(1, 256), "web processes of this server; `single` runs one"),
    Setting("serve_worker", ("ARKVORY_SERVE_WORKER",), False, _flag,
            "cluster: whether a worker starts and ends with this server; `arkvory serve` says true, unless told otherwise (`--no-worker`)"),
    Setting("public_url", ("ARKVORY_PUBLIC_URL",), None, _text, "address under which clients reach the server, for links in answers"),
    Setting("trusted_proxies", ("ARKVORY_TRUSTED_PROXIES",), (), _names,
            "addresses or networks (comma separated) whose `X-Forwarded-*` headers are believed"),
    Setting("allowed_hosts", ("ARKVORY_ALLOWED_HOSTS",), (), _names,
            "host names (comma separated) that a request may name; empty: any well-formed one"),
    Setting("capacity_bytes", ("ARKVORY_CAPACITY_BYTES",), None, _bytes, "most bytes of all repositories together, uploads and garbage included; what several have counts for each; empty: the disk decides"),
    Setting("disk_reserve_bytes", ("ARKVORY_DISK_RESERVE_BYTES",), 256 * MIB, _bytes, "bytes of the disk that uploads leave free"),
    Setting("max_upload_bytes", ("ARKVORY_MAX_UPLOAD_BYTES",), None, _bytes, "largest file that is accepted; empty: no limit of its own"),
    Setting("max_uploads", ("ARKVORY_MAX_UPLOADS",), 8, _count(1, 32), "uploads that move bytes at once"),
    Setting("max_uploads_per_key", ("ARKVORY_MAX_UPLOADS_PER_KEY",), None, _count(1, 32),
            "the same for one token, user or address; default: 4, or all when fewer"),
    Setting("max_open_uploads_per_user", ("ARKVORY_MAX_OPEN_UPLOADS_PER_USER",), 1000, _count(1),
            "uploads in several requests (in parts, or of layers) that one user, deploy token or network without a login may have open"),
    Setting("place_wait_seconds", ("ARKVORY_PLACE_WAIT_SECONDS",), 10.0, _seconds, "longest wait of an upload for its turn before the answer is 429"),
    Setting("blob_grace_seconds", ("ARKVORY_BLOB_GRACE_SECONDS",), 3600.0, _seconds, "age at which replaced and unreferenced bytes leave the disk"),
    Setting("pins", ("ARKVORY_PINS",), "auto", _pins,
            "`on`: cleanup spares what long downloads read, also on other machines; `auto`: where the blobs lie on a shared file system; or `off`"),
    Setting("pin_seconds", ("ARKVORY_PIN_SECONDS",), 60.0, _seconds, "age from which a download is pinned"),
    Setting("download_bytes_per_second", ("ARKVORY_DOWNLOAD_BYTES_PER_SECOND",), None, _rate,
            "most bytes that all processes together send in a second, shared out fairly among clients; empty: no limit"),
    Setting("cleanup_seconds", ("ARKVORY_CLEANUP_SECONDS",), 60.0, _seconds, "pause between two runs of the cleanup"),
    Setting("upload_lease_seconds", ("ARKVORY_UPLOAD_LEASE_SECONDS",), 120.0, _seconds, "age at which an upload of a dead process counts as abandoned"),
    Setting("upload_session_seconds", ("ARKVORY_UPLOAD_SESSION_SECONDS",), 3600.0, _seconds,
            "longest pause between two requests of an upload that takes several; then its bytes are given back"),
    Setting("least_part_bytes", ("ARKVORY_LEAST_PART_BYTES",), 8 * MIB, _bytes, "smallest size of the parts that an upload may come in"),
    Setting("complete_at_once_bytes", ("ARKVORY_COMPLETE_AT_ONCE_BYTES",), 64 * MIB, _bytes,
            "largest upload in parts that is put together while its client waits; beyond, the answer is 202"),
    Setting("header_seconds", ("ARKVORY_HEADER_SECONDS",), 20.0, _seconds, "longest time a client may take to send its request headers"),
    Setting("idle_seconds", ("ARKVORY_IDLE_SECONDS",), 60.0, _seconds, "longest silence of a client while a body moves"),
    Setting("least_body_rate", ("ARKVORY_LEAST_BODY_RATE",), 1024, _count(0), "bytes per second below which a request body counts as stalled"),
    Setting("keepalive_seconds", ("ARKVORY_KEEPALIVE_SECONDS",), 15.0, _seconds, "longest pause between two requests of one connection"),
    Setting("graceful_seconds", ("ARKVORY_GRACEFUL_SECONDS",), 60.0, _seconds, "longest time that running requests get to finish at a stop"),
    Setting("max_connections", ("ARKVORY_MAX_CONNECTIONS",), 2000, _count(8), "client connections at once"),
    Setting("max_header_bytes", ("ARKVORY_MAX_HEADER_BYTES",), 32768, _count(1024), "largest request head"),
    Setting("max_header_count", ("ARKVORY_MAX_HEADER_COUNT",), 100, _count(10), "most header lines of a request"),
    Setting("ownership_wait_seconds", ("ARKVORY_OWNERSHIP_WAIT_SECONDS",), 30.0, _seconds, "longest wait for a predecessor to give up the storage or the instance's name"),
    Setting("unsynced_reads_seconds", ("ARKVORY_UNSYNCED_READS_SECONDS",), 0.0, _patience,
            "cluster: for how long a process that is cut off from the database answers reads from memory, at least; never less than 5"),
    Setting("repository_creation", ("ARKVORY_REPOSITORY_CREATION",), "administrators", _creators, "who may create repositories: `administrators` or `signed-in`"),
    Setting("admin_password", ("ARKVORY_ADMIN_PASSWORD",), None, _text, "password of `admin` at the first start; empty: a random one, printed once"),
    Setting("secret_key", ("ARKVORY_SECRET_KEY",), None, _text,
            "signs the short-lived tokens of container clients, encrypts credentials of upstreams; empty: a key that is made beside the blobs"),
    Setting("password_length", ("ARKVORY_PASSWORD_LENGTH",), 1, _count(1, 256), "fewest characters of a new password"),
    Setting("password_hash_kib", ("ARKVORY_PASSWORD_HASH_KIB",), 65536, _count(32, 4 * 1024 * 1024),
            "memory that the hash of a new password takes (argon2id), in KiB; with less, guessing what a stolen one was is cheaper"),
    Setting("login_failures_per_name", ("ARKVORY_LOGIN_FAILURES_PER_NAME",), 20, _count(0),
            "wrong passwords of one user name before the answer is 429; 0: no limit"),
    Setting("login_failures_per_address", ("ARKVORY_LOGIN_FAILURES_PER_ADDRESS",), 100, _count(0),
            "the same for one client address (IPv6: one /64)"),
    Setting("login_window_seconds", ("ARKVORY_LOGIN_WINDOW_SECONDS",), 300.0, _seconds, "time after which so many wrong passwords are forgotten"),
    Setting("log_level", ("ARKVORY_LOG_LEVEL",), "info", _text, "`debug`, `info`, `warning` or `error`"),
    Setting("access_log", ("ARKVORY_ACCESS_LOG",), True, _flag, "one line of JSON for each request on standard output"),
    Setting("url", ("ARKVORY_URL",), None, _text, "command line: address of the server"),
    Setting("token", ("ARKVORY_TOKEN",), None, _text, "command line: token to use there"),
    Setting("pg_bin", ("PG_BIN",), None, Path, "folder of PostgreSQL's programs, where the bundled ones do not run"),
)


# What each process of a cluster may have as it needs it: its own address, names, connections, patience with clients and logs. All others
# decide about what the processes share, and are to be the same everywhere.
OWN = frozenset(
    {
        "bind", "port", "tls_cert", "tls_key", "data_dir", "database_url", "database_session_url", "database_pool_size", "session_pool_size",
        "database_wait_seconds", "database_connect_seconds", "database_statement_seconds", "deployment", "instance_id", "web_concurrency",
        "serve_worker", "trusted_proxies", "header_seconds", "idle_seconds", "least_body_rate", "keepalive_seconds", "graceful_seconds",
        "max_connections", "max_header_bytes", "max_header_count", "ownership_wait_seconds", "admin_password", "log_level", "access_log",
        "url", "token", "pg_bin",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """What `SETTINGS` says of each; sizes are bytes, times seconds."""

    bind: str
    port: int
    tls_cert: Path | None
    tls_key: Path | None
    data_dir: Path
    database_url: str | None
    database_session_url: str | None
    database_pool_size: int
    session_pool_size: int
    database_wait_seconds: float
    database_connect_seconds: float
    database_statement_seconds: float
    deployment: str | None
    instance_id: str | None
    web_concurrency: int | None
    serve_worker: bool
    public_url: str | None
    trusted_proxies: tuple[str, ...]
    allowed_hosts: tuple[str, ...]
    capacity_bytes: int | None
    disk_reserve_bytes: int
    max_upload_bytes: int | None
    max_uploads: int
    max_uploads_per_key: int | None
    max_open_uploads_per_user: int
    place_wait_seconds: float
    blob_grace_seconds: float
    pins: str
    pin_seconds: float
    download_bytes_per_second: int | None
    cleanup_seconds: float
    upload_lease_seconds: float
    upload_session_seconds: float
    least_part_bytes: int
    complete_at_once_bytes: int
    header_seconds: float
    idle_seconds: float
    least_body_rate: int
    keepalive_seconds: float
    graceful_seconds: float
    max_connections: int
    max_header_bytes: int
    max_header_count: int
    ownership_wait_seconds: float
    unsynced_reads_seconds: float
    repository_creation: str
    admin_password: str | None
    secret_key: str | None
    password_length: int
    password_hash_kib: int
    login_failures_per_name: int
    login_failures_per_address: int
    login_window_seconds: float
    log_level: str
    access_log: bool
    url: str | None
    token: str | None
    pg_bin: Path | None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Read every setting; raises `SettingError` naming the variable, its value and what was expected."""
        environment = _with_pod_name(os.environ if environment is None else environment)
        return cls(**{setting.field: _value(setting, environment) for setting in SETTINGS})

    @property
    def cluster(self) -> bool:
        """Whether other processes may change what this one remembers."""
        return self.deployment == "cluster"

    @property
    def processes(self) -> int:
        """Web processes of this gunicorn master."""
        return (self.web_concurrency or 1) if self.cluster else 1

    def of_worker(self) -> Settings:
        """Those of a worker with this server's."""
        return replace(self, instance_id=f"{self.instance_id}{WORKER_SUFFIX}", web_concurrency=None)

    @property
    def is_worker(self) -> bool:
        return self.instance_id is not None and self.instance_id.endswith(WORKER_SUFFIX)

    def pool_sizes(self, *, worker: bool) -> dict[str, int]:
        """Most connections of each process, by pool."""
        sizes = {"request": self.database_pool_size, "session": self.session_pool_size}
        most = {"request": WORKER_POOL_SIZE, "session": WORKER_SESSION_POOL_SIZE}
        return {name: min(size, most[name]) for name, size in sizes.items()} if worker else sizes

    @property
    def scheme(self) -> str:
        """What the server itself speaks, `http` or `https`."""
        return "http" if self.tls_cert is None else "https"

    @property
    def uploads_per_key(self) -> int:
        """Uploads that one key (token, user or address) may have moving at once."""
        return self.max_uploads_per_key or min(4, self.max_uploads)


def written(value: Any) -> str:
    """As it stands in the environment; empty for what is not set."""
    if value is None:
        return ""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def common(settings: Settings) -> dict[str, str]:
    """What is to be the same in all processes of a cluster, by variable; the secret key is not among them (storage/secret.py)."""
    values = {each.variables[0]: getattr(settings, each.field) for each in SETTINGS if each.field not in OWN | {"secret_key"}}
    # With and without saying so.
    values["ARKVORY_MAX_UPLOADS_PER_KEY"] = settings.uploads_per_key
    return {variable: written(value) for variable, value in values.items()}


def _with_pod_name(environment: Mapping[str, str]) -> Mapping[str, str]:
    """In Kubernetes a container's host name is the pod's name."""
    if environment.get("KUBERNETES_SERVICE_HOST") and environment.get("HOSTNAME") and not environment.get("POD_NAME"):
        return {**environment, "POD_NAME": environment["HOSTNAME"]}
    return environment


def unknown_variables(environment: Mapping[str, str] | None = None) -> dict[str, str | None]:
    """Variables named like ours that nothing reads, with the one that was perhaps meant."""
    environment = os.environ if environment is None else environment
    known = [variable for setting in SETTINGS for variable in setting.variables]
    strange = sorted(name for name in environment if name.startswith("ARKVORY_") and name not in known)
    return {name: next(iter(difflib.get_close_matches(name, known, 1, 0.8)), None) for name in strange}


# Set by the platform, whatever else is.
_OF_PLATFORMS = {"DYNO", "POD_NAME"}


def overruled_variables(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables that are set and not read, with the one of the same setting that is set otherwise and comes first."""
    environment = os.environ if environment is None else environment
    overruled: dict[str, str] = {}
    for setting in SETTINGS:
        given = [name for name in setting.variables if environment.get(name) and name not in _OF_PLATFORMS]
        overruled |= {name: given[0] for name in given[1:] if environment[name] != environment[given[0]]}
    return overruled


def _value(setting: Setting, environment: Mapping[str, str]) -> Any:
    for variable in setting.variables:
        text = environment.get(variable, "")
        if not text:
            continue
        try:
            return setting.read(text)
        except ValueError as error:
            shown = "its value" if "PASSWORD" in variable or "URL" in variable or "TOKEN" in variable or "SECRET" in variable else repr(text)
            raise SettingError(f"{variable}: cannot use {shown}: {error} ({setting.meaning})") from None
    return setting.default


assert {setting.field for setting in SETTINGS} == {field.name for field in fields(Settings)}
