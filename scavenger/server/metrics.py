"""Metrics in the text format of Prometheus, with units in the names [1]_.

References:
    .. [1] Prometheus, "Metric and label naming".
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from datetime import datetime

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from scavenger.domain.metrics import Census
from scavenger.version import __version__

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
STREAMS_MAX = 200
"""Most clients that follow events at once: each asks the store twice a second."""


class Metrics:
    """Counts of requests and indicators of this process; what is on record comes with each reading."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._lock, self._streaming = threading.Lock(), 0
        self._requests = Histogram(
            "scavenger_http_request_duration_seconds",
            "Time until the answer was sent.",
            ("method", "route", "status"),
            registry=self._registry,
            buckets=_BUCKETS_S,
        )
        self._indicators = Counter(
            "scavenger_indicators", "Indicators that were taken in.", registry=self._registry
        )

    def count_request(self, method: str, route: str, status: int, took_s: float) -> None:
        """Count one request; an unknown method counts as `OTHER`, so that clients cannot make names."""
        known = method if method in ("GET", "HEAD", "POST", "PUT", "DELETE") else "OTHER"
        self._requests.labels(known, route, str(status)).observe(took_s)

    def begin_stream(self) -> bool:
        """Count a client that follows events; False if there are too many."""
        with self._lock:
            if self._streaming >= STREAMS_MAX:
                return False
            self._streaming += 1
            return True

    def end_stream(self) -> None:
        """A client follows no longer."""
        with self._lock:
            self._streaming -= 1

    def count_indicators(self, count: int) -> None:
        """Count indicators that were taken in."""
        self._indicators.inc(count)

    def text(self, census: Census, now: datetime) -> bytes:
        """All metrics."""
        registry = CollectorRegistry()
        registry.register(_OfStore(census, now))
        return generate_latest(registry) + generate_latest(self._registry)


class _OfStore(Collector):
    """Metrics of what is on record."""

    def __init__(self, census: Census, now: datetime) -> None:
        self._census, self._now = census, now

    def collect(self) -> Iterable[Metric]:
        census = self._census
        build = GaugeMetricFamily("scavenger_build_info", "The version that runs.", labels=["version"])
        build.add_metric([__version__], 1)
        yield build
        jobs = GaugeMetricFamily("scavenger_jobs", "Jobs on record.", labels=["state"])
        for state, count in sorted(census.jobs.items()):
            jobs.add_metric([state], count)
        yield jobs
        queue = GaugeMetricFamily("scavenger_submissions", "Submitted jobs.", labels=["state"])
        for state, count in sorted(census.submissions.items()):
            queue.add_metric([state], count)
        yield queue
        vms = GaugeMetricFamily(
            "scavenger_vms", "VMs that are paid for.", labels=["provider", "region", "state"]
        )
        for (provider, region, state), count in sorted(census.vms.items()):
            vms.add_metric([provider, region, state], count)
        yield vms
        notes = GaugeMetricFamily(
            "scavenger_notifications", "Notifications on record.", labels=["webhook", "state"]
        )
        for (webhook, state), count in sorted(census.notifications.items()):
            notes.add_metric([webhook, state], count)
        yield notes
        yield from self._of_jobs()

    def _of_jobs(self) -> Iterable[Metric]:
        """Of live jobs only: of those that have ended there may be many, and nothing changes."""
        labels = ["job", "name"]
        duration = CounterMetricFamily(
            "scavenger_job_duration_seconds", "Time since the job began.", labels=labels
        )
        cost = CounterMetricFamily("scavenger_job_cost_dollars", "What the job has cost.", labels=labels)
        price = GaugeMetricFamily(
            "scavenger_job_price_dollars_per_hour", "Price of the job's VMs.", labels=labels
        )
        steps = CounterMetricFamily("scavenger_job_steps", "Applied steps.", labels=labels)
        workers = GaugeMetricFamily("scavenger_job_workers", "Workers of the job that live.", labels=labels)
        spent = GaugeMetricFamily(
            "scavenger_job_budget_spent_ratio", "Share of the job's budget that is spent.", labels=labels
        )
        for job in self._census.live:
            names = [job.id, job.name]
            duration.add_metric(names, max(0.0, (self._now - job.created_at).total_seconds()))
            cost.add_metric(names, job.cost_usd)
            price.add_metric(names, job.price_usd_per_hour)
            steps.add_metric(names, job.steps)
            workers.add_metric(names, job.workers)
            if job.budget_usd:
                spent.add_metric(names, job.cost_usd / job.budget_usd)
        yield from (duration, cost, price, steps, workers, spent)
