"""The costs of stored jobs, from their records, their VMs and the ledger."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scavenger.control.provisioning.bill import JobCost
    from scavenger.domain.intent import Intent
    from scavenger.domain.metrics import VmSums
    from scavenger.store import Store
    from scavenger.store.records import JobRecord

BILLS_MAX = 20_000
"""Most bills of ended jobs that are kept."""
_bills: dict[tuple[object, ...], JobRecord] = {}
"""Ended jobs as billed, by all that a bill depends on. A list shows 50 jobs, and to bill one with 20 VMs takes 4 ms."""


def cost_of(store: Store, job: JobRecord, at: datetime, intents: Sequence[Intent] | None = None) -> JobCost:
    """Predicted and actual cost of a job up to a time, with its VMs; the job comes with its report.

    Args:
        store: Holds job and VMs.
        at: With a time zone.
        intents: Its VMs; None: they are read.
    """
    from scavenger.control.provisioning.bill import job_cost

    intents = store.intents(job.id) if intents is None else intents
    cost = job_cost(job, intents, at=at, entries=store.entries(job.id))
    if job.ended:
        return cost
    return replace(cost, alive=store.is_alive(job), has_runner=store.has_runner(job.id))


def billed(store: Store, job: JobRecord) -> JobRecord:
    """A job with the bill of its VMs, if it rented any.

    It stands in place of what the job's process counted last, as that may have ended before its VMs.
    """
    intents = store.intents(job.id)
    if not intents:
        return job
    usd = cost_of(store, job, datetime.now(UTC), intents).actual_usd
    actual = job.actual
    if actual is not None and usd is not None and job.ended:
        actual = replace(actual, cost_usd=usd)
    return replace(job, cost_usd=usd, actual=actual)


def all_billed(store: Store, jobs: Sequence[JobRecord], alive: Collection[str]) -> list[JobRecord]:
    """The same for several jobs; those whose VMs are all gone are billed once a day.

    A job whose process lives keeps what that counts, every few seconds: a list would take long to bill all of them.

    Args:
        store: Holds jobs and VMs.
        alive: Ids of those whose process lives.
    """
    sums = store.vm_sums([job.id for job in jobs if job.id not in alive])
    today = datetime.now(UTC).date()  # by which the catalogue's prices age
    return [_billed_once(store, job, sums[job.id], today) if job.id in sums else job for job in jobs]


def _billed_once(store: Store, job: JobRecord, sums: VmSums, today: date) -> JobRecord:
    if sums.living or not job.ended:
        return billed(store, job)
    key = (store.name, job.id, job.attempts, job.ended_at, job.actual, sums, today)
    if (found := _bills.get(key)) is None:
        if len(_bills) >= BILLS_MAX:
            _bills.clear()
        found = _bills[key] = billed(store, job)
    return found
