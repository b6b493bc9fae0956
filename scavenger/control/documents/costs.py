"""What jobs cost, as `scavenger cost` shows it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from scavenger.control.documents.plain import plain
from scavenger.errors import ConfigurationError

if TYPE_CHECKING:
    from scavenger.control.provisioning.bill import JobCost
    from scavenger.domain.intent import Intent
    from scavenger.store import Store
    from scavenger.store.records import JobRecord

__all__ = ["all_billed", "billed", "cost_document", "cost_of"]

log = logging.getLogger(__name__)


def cost_of(store: Store, job: JobRecord, at: datetime) -> JobCost:
    """Predicted and actual cost of a job up to a time, with its VMs; the job comes with its report."""
    from scavenger.control.provisioning.bill import job_cost
    from scavenger.control.provisioning.leader_meter import recorded_leader
    from scavenger.control.provisioning.traffic_counter import recorded_traffic
    from scavenger.control.training.aggregation_share import recorded_share

    intents = store.intents(job.id)
    traffic = recorded_traffic(store, job.id) if intents else None
    share = None if intents else recorded_share(store, job.id)
    leader = recorded_leader(store, job.id) if intents else None
    prices = _disk_prices(intents)
    return job_cost(job, intents, at=at, disk_prices=prices, traffic=traffic, share=share, leader=leader)


def billed(store: Store, job: JobRecord) -> JobRecord:
    """A job with the bill of its VMs, if it rented any.

    It stands in place of what the job's process counted last, as that may have ended before its VMs.
    """
    if not store.intents(job.id):
        return job
    usd = cost_of(store, job, datetime.now(UTC)).actual_usd
    actual = job.actual
    if actual is not None and usd is not None and job.ended:
        actual = replace(actual, cost_usd=usd)
    return replace(job, cost_usd=usd, actual=actual)


def all_billed(store: Store, jobs: Sequence[JobRecord]) -> list[JobRecord]:
    """The same for several jobs; asks once which of them rented VMs.

    A job whose process lives keeps what that counts, every few seconds: a list would take long to bill all of them.
    """
    renting = store.jobs_with_vms([job.id for job in jobs])
    return [billed(store, job) if job.id in renting and not store.is_alive(job) else job for job in jobs]


def cost_document(cost: JobCost) -> dict[str, Any]:
    """The cost of one job as JSON values."""
    document: dict[str, Any] = plain(cost)
    if cost.estimate is not None:
        document["estimate"]["total_usd"] = cost.estimate.total_usd
    return document


def _disk_prices(intents: Iterable[Intent]) -> dict[tuple[str, str], float | None]:
    """Disk prices, US dollars per hour, by (provider, region) of the VMs; None where the catalogue has no price."""
    places = {(intent.provider, intent.region) for intent in intents}
    if not places:
        return {}
    from scavenger.control.provisioning.prices import open_catalog

    try:
        catalog = open_catalog()
    except ConfigurationError as error:
        log.warning("disks are not counted: %s", error)
        return {}
    prices = {place: catalog.disk_price(*place) for place in places}
    return {place: None if price is None else price.usd_per_hour for place, price in prices.items()}
