"""Metrics at `/metrics`: requests by prometheus-flask-exporter, the house's own numbers read when they are asked for.

In a cluster a gunicorn master has several workers, and any of them answers for all: requests by prometheus_client's files, the house's
numbers by ours (numbers.py).
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from flask import Flask
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from prometheus_flask_exporter import PrometheusMetrics

from app.cluster import master
from app.database.delays import Delays
from app.http import numbers
from app.http.parts import Parts
from app.upstream.breaker import Breaker

# Name, kind, labels, meaning: the table in docs/metrics.md is checked against this one. The numbers of several workers are summed by
# label; a label `instance`, which no two share, keeps each worker's own.
METRICS: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("arkvory_cache_hits_total", "counter", ("region",), "answers that a cache region had"),
    ("arkvory_cache_fetches_total", "counter", ("region",), "questions that a cache region could not answer"),
    ("arkvory_cache_evictions_total", "counter", ("region",), "entries that went because the region was full"),
    ("arkvory_cache_entries", "gauge", ("region",), "entries that a cache region holds"),
    ("arkvory_cache_deletion_errors_total", "counter", (), "local deletions that failed; the repository was read from the database next"),
    ("arkvory_cache_row_errors_total", "counter", (), "cache rows that could not be read, written or deleted"),
    ("arkvory_cache_doubts", "gauge", (), "transactions whose outcome is not known yet"),
    ("arkvory_database_pool_connections", "gauge", ("pool",), "open connections, in use or idle"),
    ("arkvory_database_pool_idle", "gauge", ("pool",), "idle connections"),
    ("arkvory_database_pool_waiting", "gauge", ("pool",), "greenlets that wait for a connection"),
    ("arkvory_database_pool_wait_seconds", "histogram", (), "how long requests waited for a connection of the pool `request`"),
    ("arkvory_database_statements_total", "counter", ("pool",), "statements sent to PostgreSQL"),
    ("arkvory_uploads_open", "gauge", (), "uploads in progress"),
    ("arkvory_upload_places_used", "gauge", (), "places in use"),
    ("arkvory_upload_places_waiting", "gauge", (), "uploads that wait for a place"),
    ("arkvory_uploads_refused_total", "counter", (), "uploads in several requests that were not begun: their user has too many open"),
    ("arkvory_cache_mail_delay_seconds", "histogram", (), "cluster: from the sending of a message to the moment it was done"),
    ("arkvory_cache_probe_corrections_total", "counter", (), "cluster: changes that no message had told; 0 when all is well"),
    ("arkvory_cluster_online", "gauge", ("instance",), "cluster: 1 while the process gets mail, 0 while it lives by the probe"),
    ("arkvory_cluster_rejections_total", "counter", (), "cluster: messages that failed, each time"),
    ("arkvory_cluster_dead_letters_total", "counter", (), "cluster: messages that failed every time and were put aside"),
    ("arkvory_proxy_revalidations_total", "counter", ("outcome",), "local copies that were due, by what came of asking the upstream"),
    ("arkvory_proxy_upstreams_left_alone", "gauge", (), "upstreams that failed several times in a row, or asked for a pause"),
    ("arkvory_proxy_upstream_left_alone", "gauge", ("repository",), "processes of this server that leave a proxy's upstream alone"),
    ("arkvory_proxy_upstream_failures_total", "counter", ("repository",), "answers of a proxy's upstream that were none, or a refusal"),
    ("arkvory_proxy_fetches_running", "gauge", (), "files that are being fetched from upstreams"),
    ("arkvory_pins", "gauge", (), "blobs that cleanup spares, since long downloads read them"),
    ("arkvory_pins_lost_total", "counter", (), "long downloads that were stopped, since nothing kept their file any more"),
    ("arkvory_mirrors_running", "gauge", (), "mirrors that this server runs now"),
    ("arkvory_mirror_files_total", "counter", (), "files that mirrors copied"),
    ("arkvory_mirror_bytes_total", "counter", (), "bytes of files that mirrors copied"),
    ("arkvory_mirror_todo", "gauge", ("repository",), "files and lists that a mirror has still to copy or read in its round"),
    ("arkvory_mirror_done", "gauge", ("repository",), "files of a mirror that are here as its upstream has them"),
    ("arkvory_mirror_failed", "gauge", ("repository",), "files and lists of a mirror that failed several times"),
    ("arkvory_mirror_refused", "gauge", ("repository",), "files of a mirror that are at fault as its upstream has them"),
    ("arkvory_mirror_lag_seconds", "gauge", ("repository",), "since the last round that brought everything began, else since it was made"),
    ("arkvory_download_share", "gauge", (), "bytes per second that the processes of this server may send; 0 where no budget is set"),
    ("arkvory_downloads_dropped_total", "counter", (), "downloads that were not counted: too many paths while the database was away"),
    ("arkvory_quota_used_ratio", "gauge", ("repository",), "installation: part of its quota that a repository takes; only from 0.8 on"),
    ("arkvory_capacity_used_ratio", "gauge", (), "installation: part of ARKVORY_CAPACITY_BYTES that is taken; only from 0.8 on"),
    ("arkvory_job_last_success_seconds", "gauge", ("job",), "installation: when a job ended well the last time, in Unix time"),
    ("arkvory_job_duration_seconds", "gauge", ("job",), "installation: how long the last run of a job took"),
    ("arkvory_job_failures", "gauge", ("job",), "installation: failures of a job since it ended well the last time"),
    ("arkvory_storage_owned", "gauge", (), "processes of this server that own the storage and may write"),
)


# Of the whole installation, and the same whichever process tells them: no sums.
_OF_ALL = frozenset(name for name, _, _, meaning in METRICS if meaning.startswith("installation: "))
_GAUGES = frozenset(name for name, kind, _, _ in METRICS if kind == "gauge")
# How old the numbers of the other workers may be.
SHARE_SECONDS = 2.0


class HouseCollector(Collector):
    """Reads the parts' own counters; costs nothing until somebody asks. With a `folder` those of the master's other workers too."""

    def __init__(self, house: Parts, folder: Path | None = None) -> None:
        self._house = house
        self._folder = folder

    def collect(self) -> Iterator[Metric]:
        values = values_of(self._house)
        if self._folder is not None:
            # What was told once stays told, also when this worker is killed in the next moment.
            _leave(self._folder, values)
            values = numbers.with_others(self._folder, values)
        for name, kind, labels, meaning in METRICS:
            yield _metric(name, kind, labels, meaning, values[name])


def _metric(name: str, kind: str, labels: tuple[str, ...], meaning: str, values: list[tuple[str, float]]) -> Metric:
    """A histogram's `values` are its cumulative counts by upper bound, `+Inf` the last, and its `sum`."""
    if kind == "histogram":
        known = dict(values)
        return HistogramMetricFamily(name, meaning, sum_value=known.pop("sum"), buckets=list(known.items()))
    family = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
    metric = family(name.removesuffix("_total"), meaning, labels=labels)
    for label, value in values:
        metric.add_metric([label] if labels else [], value)
    return metric


def share(house: Parts, folder: Path) -> None:
    """Called every two seconds: leave this worker's numbers to those that are asked for them."""
    _leave(folder, values_of(house))


def _leave(folder: Path, values: numbers.Rows) -> None:
    own = {name: rows for name, rows in values.items() if name not in _OF_ALL}
    numbers.write(
        folder,
        counters={name: rows for name, rows in own.items() if name not in _GAUGES},
        gauges={name: rows for name, rows in own.items() if name in _GAUGES},
    )


def values_of(house: Parts) -> numbers.Rows:
    """This process's own, by metric."""
    cache = house.cache
    regions, pools, waits = cache.regions, house.database.pools, house.database.request.waits
    return {
        **_of_the_cluster(house),
        **_of_the_installation(house),
        "arkvory_cache_hits_total": [(each.name, each.hits) for each in regions],
        "arkvory_cache_fetches_total": [(each.name, each.fetches) for each in regions],
        "arkvory_cache_evictions_total": [(each.name, each.evictions) for each in regions],
        "arkvory_cache_entries": [(each.name, len(each)) for each in regions],
        "arkvory_cache_deletion_errors_total": [("", cache.deletion_errors)],
        "arkvory_cache_row_errors_total": [("", cache.row_errors)],
        "arkvory_cache_doubts": [("", len(cache.doubts.open))],
        "arkvory_database_pool_connections": [(each.name, each.connections) for each in pools],
        "arkvory_database_pool_idle": [(each.name, each.idle) for each in pools],
        "arkvory_database_pool_waiting": [(each.name, each.waiting) for each in pools],
        "arkvory_database_pool_wait_seconds": [*waits.cumulative(), ("sum", waits.sum)],
        "arkvory_database_statements_total": [(each.name, each.statements) for each in pools],
        "arkvory_uploads_open": [("", len(house.admission.open_uploads))],
        "arkvory_upload_places_used": [("", house.places.held)],
        "arkvory_upload_places_waiting": [("", house.places.waiting)],
        "arkvory_uploads_refused_total": [("", house.admission.refused)],
        "arkvory_proxy_revalidations_total": list(house.proxy.revalidations.items()),
        "arkvory_proxy_upstreams_left_alone": [("", house.fetches.left_alone)],
        "arkvory_proxy_upstream_left_alone": _by_repository(house, lambda breaker: breaker.leaves_alone),
        "arkvory_proxy_upstream_failures_total": _by_repository(house, lambda breaker: breaker.disappointments),
        "arkvory_proxy_fetches_running": [("", house.fetches.running)],
        "arkvory_pins": [("", house.pins.count if house.pins else 0)],
        "arkvory_pins_lost_total": [("", house.pins.stopped if house.pins else 0)],
        **_of_mirrors(house),
        "arkvory_download_share": [("", house.pacing.rate() if house.pacing else 0.0)],
        "arkvory_downloads_dropped_total": [("", house.downloads.dropped)],
        "arkvory_storage_owned": [("", float(house.ownership.held))],
    }


def _by_repository(house: Parts, number: Callable[[Breaker], int]) -> list[tuple[str, float]]:
    """Summed: one that was deleted and another one may have had the same name."""
    sums: collections.Counter[str] = collections.Counter()
    for line in house.fetches.lines:
        sums[line.breaker.name] += number(line.breaker)
    return list(sums.items())


def _of_mirrors(house: Parts) -> numbers.Rows:
    """Of all processes of a master the first that answers requests tells what stands in the rows: their numbers are summed."""
    mirroring, instance = house.mirroring, house.instance
    tells = instance is None or (instance.slot == 0 and not house.settings.is_worker)
    known = mirroring.known if tells else ()
    return {
        "arkvory_mirrors_running": [("", mirroring.running)],
        "arkvory_mirror_files_total": [("", mirroring.files)],
        "arkvory_mirror_bytes_total": [("", mirroring.bytes)],
        "arkvory_mirror_todo": [(each.repository, each.todo) for each in known],
        "arkvory_mirror_done": [(each.repository, each.done) for each in known],
        "arkvory_mirror_failed": [(each.repository, each.failed) for each in known],
        "arkvory_mirror_refused": [(each.repository, each.refused) for each in known],
        "arkvory_mirror_lag_seconds": [(each.repository, each.lag_seconds) for each in known],
    }


def _of_the_cluster(house: Parts) -> numbers.Rows:
    loop, instance = house.loop, house.instance
    delays = loop.delays if loop is not None else Delays()
    return {
        "arkvory_cache_mail_delay_seconds": [*delays.cumulative(), ("sum", delays.sum)],
        "arkvory_cache_probe_corrections_total": [("", loop.corrections if loop is not None else 0)],
        "arkvory_cluster_online": [(instance.label, float(loop.online))] if loop is not None and instance is not None else [],
        "arkvory_cluster_rejections_total": [("", loop.rejections if loop is not None else 0)],
        "arkvory_cluster_dead_letters_total": [("", loop.dead_letters if loop is not None else 0)],
    }


def _of_the_installation(house: Parts) -> numbers.Rows:
    """As this process read it from the tables last."""
    # Of those that come and go with rows there may be very many; mirrors have numbers of their own.
    jobs, fillings = [each for each in house.schedule.latest.values() if "/" not in each.name], house.quotas.latest
    return {
        "arkvory_quota_used_ratio": [(each.name, each.ratio) for each in fillings if each.name],
        "arkvory_capacity_used_ratio": [("", each.ratio) for each in fillings if not each.name],
        "arkvory_job_last_success_seconds": [(each.name, each.succeeded_at.timestamp()) for each in jobs if each.succeeded_at],
        "arkvory_job_duration_seconds": [(each.name, each.seconds) for each in jobs if each.seconds is not None],
        "arkvory_job_failures": [(each.name, each.failures) for each in jobs],
    }


class _Registry(CollectorRegistry):
    """Knows by name what the exporter keeps to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.named: dict[str, Any] = {}

    def register(self, collector: Collector) -> None:
        super().register(collector)
        if isinstance(collector, (Counter, Histogram)):
            self.named |= {metric.name: collector for metric in collector.describe()}


class _SharedMetrics(PrometheusMetrics):  # type: ignore[misc]  # the exporter has no types
    """Answers with what all workers of the master counted."""

    def __init__(self, house: HouseCollector, *arguments: Any, **named: Any) -> None:
        self._house = house
        super().__init__(*arguments, **named)

    def generate_metrics(self, accept_header: str | None = None, names: list[str] | None = None) -> tuple[str, str]:
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # prometheus_client's own
        registry.register(self._house)
        generate, content_type = choose_encoder(accept_header or "")
        return generate(registry.restricted_registry(names) if names else registry).decode(), content_type


class RequestCounts:
    """The exporter's own counter and histogram, for answers that Flask does not see."""

    def __init__(self, total: Counter, durations: Histogram) -> None:
        self._total = total
        self._durations = durations
        self._known: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def count(self, endpoint: str, method: str, status: int, seconds: float) -> None:
        """One more answer, which took so long to be ready."""
        known = self._known.get((endpoint, method, status))
        if known is None:
            durations = self._durations.labels(method=method, endpoint=endpoint, status=status)
            known = self._known[endpoint, method, status] = self._total.labels(method=method, status=status), durations
        known[0].inc()
        known[1].observe(seconds)


def register(app: Flask, house: Parts) -> RequestCounts:
    """Count requests by endpoint (never by path: there are millions) and serve `/metrics`."""
    registry = _Registry()
    folder = master.current().metrics
    collector = HouseCollector(house, folder)
    exporter = PrometheusMetrics if folder is None else partial(_SharedMetrics, collector)
    exporter(app, path="/metrics", registry=registry, group_by="endpoint", export_defaults=True)
    registry.register(collector)
    return RequestCounts(registry.named["flask_http_request"], registry.named["flask_http_request_duration_seconds"])
