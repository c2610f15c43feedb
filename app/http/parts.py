"""The parts of a running Arkvory, put together once in each process, after the fork."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import cast

from flask import current_app

from app.access.decision import Access
from app.access.identity import Identities, Passwords
from app.access.passes import Passes
from app.access.throttle import Throttle
from app.cache.changes import Transactions
from app.cache.installation import Installation
from app.cache.listening import Listening
from app.cache.members import Memberships
from app.cache.snapshots import Snapshots
from app.cache.store import Cache
from app.cluster import master
from app.cluster.instance import Instance
from app.cluster.leases import Leases
from app.cluster.loop import OLDEST_PROBE_SECONDS, Loop
from app.cluster.ownership import Ownership, SingleOwnership
from app.cluster.pins import Pins
from app.cluster.schedule import Schedule
from app.cluster.shares import Shares
from app.cluster.sharing import SharedOwnership
from app.database.engines import Database
from app.http.pacing import Pacing
from app.repository.blobs import Blobs
from app.repository.cleanup import Cleanup
from app.repository.completing import Completions
from app.repository.deleting import Editor
from app.repository.downloads import Downloads
from app.repository.fetching import Deposits, Fetches
from app.repository.group import Group
from app.repository.listing import Listing
from app.repository.mirrors.follower import Mirroring
from app.repository.mirrors.importing import Imports
from app.repository.mirrors.settings import Mirrors
from app.repository.multipart import MultipartUploads
from app.repository.promoting import Promoter
from app.repository.proxy import Proxy
from app.repository.publishing import Publisher
from app.repository.quotas import Quotas
from app.repository.reading import Reader
from app.repository.uses import Uses
from app.storage import BlobStore
from app.storage.filesystem import FileStore
from app.storage.mounts import is_shared
from app.storage.secret import fingerprint_of
from app.upload.admission import Admission
from app.upload.multipart import Multiparts
from app.upload.parts import PartHolds
from app.upload.places import Places
from app.upload.sessions import Sessions
from app.upload.shared_places import SharedPlaces
from app.upstream.secrets import Secrets
from config import Settings
from config.settings import SettingError, common


@dataclass
class Parts:
    """Everything that a route may call."""

    settings: Settings
    database: Database
    cache: Cache
    ownership: Ownership
    # Which process of a cluster this is; null on a single node, and in a command.
    instance: Instance | None
    # Null on a single node: nobody else changes anything.
    loop: Loop | None
    leases: Leases | None
    schedule: Schedule
    transactions: Transactions
    snapshots: Snapshots
    identities: Identities
    passes: Passes
    access: Access
    store: BlobStore
    places: Places
    admission: Admission
    blobs: Blobs
    sessions: Sessions
    part_holds: PartHolds
    completions: Completions
    uploads: MultipartUploads
    uses: Uses
    downloads: Downloads
    quotas: Quotas
    reader: Reader
    fetches: Fetches
    proxy: Proxy
    group: Group
    publisher: Publisher
    promoter: Promoter
    listing: Listing
    editor: Editor
    # Null where an open file keeps its bytes.
    pins: Pins | None
    # Null where no download budget is set; the shares of a cluster's processes too, on a single node.
    pacing: Pacing | None
    shares: Shares | None
    cleanup: Cleanup
    mirrors: Mirrors
    mirroring: Mirroring
    # The secret by which a command on this machine is the administrator; empty: nobody is.
    local_secret: str = ""
    # From SIGTERM on.
    stopping: bool = False


def build_parts(settings: Settings) -> Parts:
    """Connects to nothing yet. Raises SettingError when no database is configured."""
    if settings.database_url is None:
        raise SettingError("ARKVORY_DATABASE_URL is not set, and no embedded PostgreSQL was started for this process")
    database = Database(settings, settings.database_url)
    cache = Cache()
    instance = Instance(settings.instance_id, master.current().token) if settings.cluster and settings.instance_id else None
    ownership = SharedOwnership(database, instance) if settings.cluster else SingleOwnership(database)
    loop = _loop(settings, database, cache) if settings.cluster else None
    transactions = Transactions(database, cache, ownership, loop)
    snapshots = Snapshots(database, cache)
    throttle = Throttle(settings.login_failures_per_name, settings.login_failures_per_address, settings.login_window_seconds)
    identities = Identities(database, cache, Passwords(cache, throttle, settings.password_hash_kib))
    installation = Installation(database, cache)
    access = Access(database, cache, identities, installation)
    store = FileStore(settings.data_dir / "blobs")

    def label() -> str:
        return instance.label if instance else "a command"

    places = _places(settings, database, label)
    admission = Admission(settings, transactions, store)
    blobs = Blobs(transactions, store)
    sessions = Sessions(settings, database, transactions, admission, store)
    uses = Uses(settings, transactions)
    publisher = Publisher(database, transactions, access, places, admission, store, blobs, sessions)
    multiparts = Multiparts(settings, database, transactions, admission, store)
    part_holds = PartHolds(settings, transactions, admission, store)
    schedule = Schedule(database)
    completions = Completions(settings, database, identities, publisher, multiparts, schedule.changed.set)
    leases = Leases(database, label) if settings.cluster else None
    memberships = Memberships(database, cache)
    pins = _pins(settings, database, label)
    # A worker sends nothing: a share of its own would be nobody's.
    budget = None if settings.is_worker else settings.download_bytes_per_second
    shares = Shares(database, label, budget) if budget and settings.cluster else None
    reader = Reader(database, cache, snapshots, memberships, access, store, uses, pins)
    editor = Editor(database, transactions, access, blobs)
    deposits = Deposits(database, transactions, access, places, admission, store, blobs, sessions)
    secrets = Secrets(settings)
    fetches = Fetches(database, cache, secrets, deposits, editor, leases)
    imports = Imports(database, transactions, access, places, admission, store, blobs, sessions)
    mirrors = Mirrors(database, transactions, access, secrets, schedule)
    proxy = reader.sources["proxy"] = Proxy(reader, fetches)
    group = reader.sources["group"] = Group(reader, cache, snapshots, memberships, proxy)
    return Parts(
        settings=settings,
        database=database,
        cache=cache,
        ownership=ownership,
        instance=instance,
        loop=loop,
        leases=leases,
        schedule=schedule,
        transactions=transactions,
        snapshots=snapshots,
        identities=identities,
        passes=Passes(settings, identities),
        access=access,
        store=store,
        places=places,
        admission=admission,
        blobs=blobs,
        sessions=sessions,
        part_holds=part_holds,
        completions=completions,
        uploads=MultipartUploads(settings, database, access, publisher, places, multiparts, part_holds, completions),
        uses=uses,
        downloads=Downloads(database),
        quotas=Quotas(settings, database),
        reader=reader,
        fetches=fetches,
        proxy=proxy,
        group=group,
        publisher=publisher,
        promoter=Promoter(database, access, publisher),
        listing=Listing(database, access),
        editor=editor,
        pins=pins,
        pacing=Pacing(_rate(settings, shares)) if budget else None,
        shares=shares,
        cleanup=Cleanup(
            settings, database, transactions, admission, blobs, store, multiparts, _unpinned_seconds(settings) if pins else 0.0
        ),
        mirrors=mirrors,
        mirroring=Mirroring(database, snapshots, fetches, imports, mirrors),
    )


def _pins(settings: Settings, database: Database, label: Callable[[], str]) -> Pins | None:
    wanted = is_shared(settings.data_dir / "blobs") if settings.pins == "auto" else settings.pins == "on"
    return Pins(database, label, settings.pin_seconds) if wanted else None


def _unpinned_seconds(settings: Settings) -> float:
    """A process of a cluster may open what lost its last path some seconds ago, and pins it before it is twice as old as it must be."""
    stale = max(OLDEST_PROBE_SECONDS, settings.unsynced_reads_seconds) if settings.cluster else 0.0
    return stale + 2 * settings.pin_seconds


def _rate(settings: Settings, shares: Shares | None) -> Callable[[], float]:
    return shares.rate if shares is not None else lambda: float(settings.download_bytes_per_second or 0)


def _places(settings: Settings, database: Database, label: Callable[[], str]) -> Places:
    numbers = settings.max_uploads, settings.uploads_per_key, settings.place_wait_seconds
    return SharedPlaces(database, *numbers, label) if settings.cluster else Places(*numbers)


def _loop(settings: Settings, database: Database, cache: Cache) -> Loop:
    key = fingerprint_of(settings)
    told = common(settings) | ({"ARKVORY_SECRET_KEY": key} if key else {})
    loop = Loop(database, Listening(cache), version("arkvory"), told, settings.unsynced_reads_seconds)
    cache.require_synced = loop.require_synced
    cache.believes_absences = False
    return loop


def parts() -> Parts:
    """Those of the application that answers this request."""
    return cast(Parts, current_app.extensions["arkvory"])
