"""The past of a pool: what its jobs were, for virtual time under other policies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from scavenger.api.calls import Local, call
from scavenger.api.forms import PAGE_MAX
from scavenger.api.values import Answer
from scavenger.domain.pool import MACHINE, RatePoint, pool_of, slots_for
from scavenger.errors import ConfigurationError

if TYPE_CHECKING:
    from scavenger.domain.pool import PoolAllotment
    from scavenger.domain.submission import Submission

LastDays = Annotated[int, Field(ge=1, le=3650, description="Of so many days.")]
PoolKey = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,30}$", description="Name of a pool.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class PastJob:
    """A job that has ended.

    Attributes:
        submitted_s: Since the first job of the list.
        waited_s: From its submission to its beginning.
        lasts_s: From its beginning to its end.
        slot_s: Slot-seconds that it had.
        slots: That it was trained with, on average.
        least, most: Slots that it may have by its file.
        curve: Its speed by slots, relative to any unit, from what was measured of it; empty if that is not known.
    """

    user: str
    priority: int
    submitted_s: float
    waited_s: float
    lasts_s: float
    slot_s: float
    slots: int
    least: int
    most: int
    curve: tuple[RatePoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryAnswer(Answer):
    """Jobs of a pool that have ended, in the order of submission.

    Attributes:
        slots: Of the pool.
        usd_per_slot_hour: Price of a slot.
        left_out: Jobs that never began, or of which it is not known how many workers they had.
    """

    pool: str
    slots: int
    usd_per_slot_hour: float
    jobs: tuple[PastJob, ...]
    left_out: int


@call("get", "pools/history", tag="pools", summary="Jobs of a pool that have ended")
def list_past_jobs(at: Local, pool: PoolKey = MACHINE, days: LastDays = 30) -> HistoryAnswer:
    """What ended jobs of the last days were: submission, duration, workers, and speed by workers where it is known."""
    from scavenger.control.pools.standing import standing_pools

    pools = standing_pools(at.store)
    slots, price = 0, 0.0
    last = None
    if (found := pools.get(pool)) is not None:
        last = found.allotment
        slots, price = found.pool.slots, found.usd_per_slot_hour
    elif pool != MACHINE:
        raise ConfigurationError(f"there is no pool {pool!r}; there are {', '.join(pools)}")
    since = datetime.now(UTC) - timedelta(days=days)
    here = [one for one in _submitted(at, since) if pool_of(one.job.spec, rents=one.job.rents) == pool]
    first = min((one.submitted_at for one in here), default=since)
    past = [_past(at, one, first, last) for one in here]
    jobs = sorted((job for job in past if job is not None), key=lambda job: job.submitted_s)
    return HistoryAnswer(
        pool=pool,
        slots=slots,
        usd_per_slot_hour=price,
        jobs=tuple(jobs),
        left_out=len(past) - len(jobs),
    )


def _submitted(at: Local, since: datetime) -> Iterator[Submission]:
    before: int | None = None
    while True:
        found = at.store.submissions(PAGE_MAX, states=("ended",), user=at.only_of, before=before)
        for one in found:
            if one.submitted_at < since:
                return
            yield one
        if len(found) < PAGE_MAX:
            return
        before = found[-1].number


def _past(at: Local, one: Submission, first: datetime, last: PoolAllotment | None) -> PastJob | None:
    """A job as it was; None if it never began, or nobody knows with how many workers.

    Args:
        last: The newest allotment of its pool.
    """
    from scavenger.control.pools.earlier import curve_of, curve_points
    from scavenger.control.pools.standing import sizes_by_file
    from scavenger.scheduler.jobs.seeing import in_slots, points_in_slots

    if not at.store.has_job(one.id):
        return None
    job = at.store.job(one.id)
    if job.started_at is None or job.ended_at is None:
        return None
    lasts_s = (job.ended_at - job.started_at).total_seconds()
    standing = at.store.standings([one.id]).get(one.id)
    slot_s, vm = (0.0, "") if standing is None else (standing.attained_slot_s, standing.vm)
    per_slot = 1 if last is None else last.per_slot(vm)
    if slot_s <= 0.0 and job.chosen is not None:
        slot_s = slots_for(job.chosen.workers, per_slot) * lasts_s
    if lasts_s <= 0.0 or slot_s <= 0.0:
        return None
    curve, slots = curve_of(job.report), max(1, round(slot_s / lasts_s))
    sizes = in_slots(sizes_by_file(one.job, None), per_slot)
    return PastJob(
        user=one.job.user,
        priority=one.job.priority,
        submitted_s=(one.submitted_at - first).total_seconds(),
        waited_s=max(0.0, (job.started_at - one.submitted_at).total_seconds()),
        lasts_s=lasts_s,
        slot_s=slot_s,
        slots=slots,
        least=min(slots, sizes.least),
        most=max(slots, sizes.most),
        curve=() if curve is None else points_in_slots(curve_points(curve)[0], per_slot),
    )
