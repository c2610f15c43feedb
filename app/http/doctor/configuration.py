"""Settings that contradict each other, are ignored, or weaken what they were meant to protect."""

from __future__ import annotations

import logging
import stat
import time
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from sqlalchemy import make_url

from app.database import embedded
from app.http import tls
from app.http.addresses import networks
from app.http.doctor.findings import Finding, fail, ok, warn
from config.settings import SETTINGS, SettingError, Settings, overruled_variables, unknown_variables, written

_CHECK = "configuration"
SOON_SECONDS = 14 * 24 * 3600
# Not shown to anyone, or different for each process without meaning anything.
_NOT_COMPARED = {
    "admin_password", "bind", "data_dir", "database_session_url", "database_url", "instance_id", "pg_bin", "port", "token", "url",
}  # fmt: skip


def examine_configuration(settings: Settings) -> list[Finding]:
    """What can be told from the settings and the environment alone."""
    checks = (_processes, _https, _public_url, _proxies, _limits, _database, _log)
    found = [*_variables(), *(each for check in checks for each in check(settings))]
    return found or [ok(_CHECK, "no setting is ignored or contradicts another")]


def shown_settings(settings: Settings) -> dict[str, str]:
    """By variable, as it is written in the environment, for comparing two processes; without secrets and what differs rightly."""
    return {each.variables[0]: written(getattr(settings, each.field)) for each in SETTINGS if each.field not in _NOT_COMPARED}


def drift(here: Settings, given: Mapping[str, str], running: Mapping[str, str]) -> Iterator[Finding]:
    """Variables that are `given` here and say something else than the `running` server's settings."""
    for variable, value in shown_settings(here).items():
        if given.get(variable) and running.get(variable, value) != value:
            words = f"{variable} is {value or 'not set'} here, and {running[variable] or 'not set'} in the running server"
            yield warn("drift", words, "restart the server to let it see the change, or correct the variable here")


def _variables() -> Iterator[Finding]:
    for name, meant in unknown_variables().items():
        yield warn(_CHECK, f"{name} is no setting and is ignored", f"did you mean {meant}?" if meant else "take it away")
    for name, counts in overruled_variables().items():
        yield warn(_CHECK, f"{name} is ignored, since {counts} is set to something else", "take one of the two away")


def _processes(settings: Settings) -> Iterator[Finding]:
    if settings.cluster:
        if settings.instance_id is None:
            words = "ARKVORY_DEPLOYMENT=cluster without ARKVORY_INSTANCE_ID: the server does not start"
            yield fail(_CHECK, words, "give each server a name of its own, such as ARKVORY_INSTANCE_ID=vm1")
    elif (settings.web_concurrency or 1) > 1:
        words = f"WEB_CONCURRENCY={settings.web_concurrency}, but without ARKVORY_DEPLOYMENT=cluster one web process runs"
        if settings.deployment == "single":
            yield fail(_CHECK, f"{words} and refuses more with ARKVORY_DEPLOYMENT=single", "set WEB_CONCURRENCY to 1, or leave it unset")
        else:
            yield warn(_CHECK, f"{words}: it is ignored", "set it to 1, or leave it unset")


def _https(settings: Settings) -> Iterator[Finding]:
    try:
        files = tls.files_of(settings)
        if files is None:
            return
        certificate = tls.load(*files)
    except SettingError as error:
        yield fail("certificate", str(error), "a running server goes on with the one that it has; the next start refuses this one")
        return
    yield _expiry(certificate.expires)
    if (mode := stat.S_IMODE(files[1].stat().st_mode)) & 0o007:
        yield fail("certificate", f"{files[1]} has mode {mode:03o}: anyone here can read the key", f"chmod 600 {files[1]}")
    if (settings.public_url or "").startswith("http://"):
        yield warn(_CHECK, "ARKVORY_PUBLIC_URL begins with http://, but the server speaks https", "begin it with https://")


def _expiry(expires: float) -> Finding:
    words = f"valid until {tls.day(expires)}"
    if expires - time.time() < SOON_SECONDS:
        return warn("certificate", words, "renew it; a running server takes the new files by itself")
    return ok("certificate", words)


def _public_url(settings: Settings) -> Iterator[Finding]:
    if not settings.public_url:
        return
    address = urlsplit(settings.public_url)
    if address.scheme not in {"http", "https"} or not address.hostname:
        words = f"ARKVORY_PUBLIC_URL={settings.public_url} is no address: clients would be sent astray"
        yield fail(_CHECK, words, "begin it with http:// or https://")
    elif address.query or address.fragment or address.username:
        yield fail(_CHECK, "ARKVORY_PUBLIC_URL has more than scheme, host, port and path", "leave out query, fragment and login")


def _proxies(settings: Settings) -> Iterator[Finding]:
    try:
        trusted = networks(settings.trusted_proxies)
    except SettingError as error:
        yield fail(_CHECK, str(error), "the server does not start with it")
        return
    if any(network.prefixlen == 0 for network in trusted):
        yield warn(_CHECK, "ARKVORY_TRUSTED_PROXIES believes everybody: any client may claim any address", "name the proxies alone")


def _limits(settings: Settings) -> Iterator[Finding]:
    if settings.max_uploads_per_key is not None and settings.max_uploads_per_key > settings.max_uploads:
        yield warn(
            _CHECK, "ARKVORY_MAX_UPLOADS_PER_KEY is larger than ARKVORY_MAX_UPLOADS, which decides", "lower the one or raise the other"
        )
    if settings.capacity_bytes is not None and (settings.max_upload_bytes or 0) > settings.capacity_bytes:
        yield warn(
            _CHECK, "ARKVORY_MAX_UPLOAD_BYTES is larger than ARKVORY_CAPACITY_BYTES, which decides", "lower the one or raise the other"
        )
    if settings.idle_seconds > settings.graceful_seconds:
        words = "ARKVORY_IDLE_SECONDS is longer than ARKVORY_GRACEFUL_SECONDS: a silent client may be cut off at a stop"
        yield warn(_CHECK, words, "make the second one the longer")


def _database(settings: Settings) -> Iterator[Finding]:
    url = settings.database_url
    if url is None:
        if settings.database_session_url:
            yield warn(
                _CHECK, "ARKVORY_DATABASE_SESSION_URL without ARKVORY_DATABASE_URL is ignored by the embedded database", "set both or none"
            )
    elif _leaves_embedded_aside(settings, url):
        words = f"{settings.data_dir / 'postgres'} holds an embedded database that is not used, since ARKVORY_DATABASE_URL is set"
        yield warn(_CHECK, words, "move it away if nothing in it is needed, or unset the variable")


def _leaves_embedded_aside(settings: Settings, url: str) -> bool:
    """Not said of a folder that we cannot look into."""
    try:
        return (settings.data_dir / "postgres").exists() and not embedded.is_its_address(settings.data_dir, make_url(url))
    except OSError:
        return False


def _log(settings: Settings) -> Iterator[Finding]:
    if settings.log_level.upper() not in logging.getLevelNamesMapping():
        yield fail(
            _CHECK, f"ARKVORY_LOG_LEVEL={settings.log_level} is no level: the server does not start", "use debug, info, warning or error"
        )
