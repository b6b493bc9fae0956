"""What jobs cost, as `scavenger cost` shows it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from scavenger.api.bills import cost_of
from scavenger.api.calls import Local, call
from scavenger.api.forms import Cursor, JobKey, Limit
from scavenger.api.jobs import next_jobs
from scavenger.api.paging import job_place
from scavenger.api.values import Answer
from scavenger.control.provisioning.bill import JobCost


@dataclass(frozen=True, slots=True, kw_only=True)
class CostAnswer(Answer):
    """What a job costs."""

    job: JobCost


@dataclass(frozen=True, slots=True, kw_only=True)
class CostsPage(Answer):
    """What jobs cost, newest first.

    Attributes:
        next: Cursor of the next page; null on the last.
    """

    jobs: tuple[JobCost, ...]
    next: str | None


@call("get", "jobs/{job}/cost", tag="jobs", summary="What a job costs")
def show_cost(at: Local, job: JobKey) -> CostAnswer:
    """Predicted and actual cost, item by item and VM by VM."""
    with at.store.at_one_moment():
        return CostAnswer(job=cost_of(at.store, at.find_job(job), datetime.now(UTC)))


@call("get", "costs", tag="jobs", summary="What the latest jobs cost")
def list_costs(at: Local, limit: Limit = 20, cursor: Cursor = None) -> CostsPage:
    """Costs of the jobs that the caller may see, newest first."""
    store, now = at.store, datetime.now(UTC)
    found = store.jobs(limit + 1, user=at.only_of, after=job_place(cursor))
    # pages come without reports
    costs = tuple(cost_of(store, store.job(job.id), now) for job in found[:limit])
    return CostsPage(jobs=costs, next=next_jobs(found, limit))
