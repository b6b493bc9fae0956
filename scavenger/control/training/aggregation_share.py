"""Records a job's share of the pool of aggregators, for its bill."""

from __future__ import annotations

from dataclasses import asdict

from scavenger.domain.cost import AggregationShare
from scavenger.store import Store

__all__ = ["record_share", "recorded_share"]

_KIND = "aggregation"
"""Kind of the event that holds a job's share so far."""


def recorded_share(store: Store, job_id: str) -> AggregationShare:
    """What all attempts of a job have used of the pool, as far as recorded."""
    found = store.events(job_id, limit=1, kind=_KIND)
    if not found:
        return AggregationShare()
    data = found[0].data
    return AggregationShare(float(data["cpu_s"]), float(data["usd"]), float(data["usd_per_cpu_hour"]))


def record_share(store: Store, job_id: str, share: AggregationShare) -> None:
    """Record what all attempts of a job have used.

    Raises:
        StoreBusyError, StoreReadOnlyError, StoreUnavailableError: Try again later.
    """
    text = f"{share.cpu_s:.4g} processor-seconds of the pool: ${share.usd:.4f}"
    store.add_event(job_id, _KIND, text, data=asdict(share), replacing=True)
