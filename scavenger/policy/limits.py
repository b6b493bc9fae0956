"""The limits policy: never crosses budget or deadline, and changes the size early enough to meet both."""

from __future__ import annotations

from dataclasses import dataclass

from scavenger.domain.decision import Decision, Hold, Stop
from scavenger.domain.figures import rounded
from scavenger.domain.snapshot import JobSnapshot
from scavenger.policy.projection import HEADROOM, Misfit, Projection, misfit, project
from scavenger.policy.schedule import Schedule
from scavenger.presentation.formatting import plural


@dataclass(frozen=True, slots=True)
class StayWithinLimits:
    """Stop before budget or deadline is crossed; before that, change to a size that is projected to meet both.

    The stop does not depend on predictions: it comes when the cost or the time until the end of the drain after the
    next decision would cross a limit, at the current cost rate of all workers that are paid for. So the limits hold
    even if predictions are wrong, provided that decisions are no further apart than the snapshot states, and that
    later policies add no worker that `projection.affords` refuses.

    Attributes:
        schedule: The sizes that the job may change to; None to stop only.
    """

    schedule: Schedule | None = None

    def decide(self, job: JobSnapshot) -> Decision:
        ahead_s = job.delays.look_every_s + job.delays.drain_s
        if job.limits.budget_usd is not None:
            rate = job.costs.rate_usd_per_s(max(len(job.cluster.workers), job.configuration.workers))
            if job.costs.cost_usd + ahead_s * rate > job.limits.budget_usd:
                return Stop(
                    f"${rounded(job.costs.cost_usd)} are spent, and ${rounded(ahead_s * rate)} more until the next "
                    f"look and the end of the drain would cross the budget of ${job.limits.budget_usd:.6g}",
                    "budget",
                )
        if job.limits.deadline_s is not None and job.progress.elapsed_s + ahead_s > job.limits.deadline_s:
            return Stop(
                f"{rounded(job.progress.elapsed_s)} s have passed, and {rounded(ahead_s)} s more until the next look "
                f"and the end of the drain would cross the deadline of {job.limits.deadline_s:.6g} s",
                "deadline",
            )
        if job.limits.budget_usd is None and job.limits.deadline_s is None:
            return Hold("there is neither budget nor deadline")
        if self.schedule is None or job.changing:
            return Hold("budget and deadline are far enough")
        return _steer(job, self.schedule)


def _steer(job: JobSnapshot, schedule: Schedule) -> Decision:
    now = job.configuration.workers
    known = schedule.known(job)
    projection = project(job, now, known[now]) if now in known else None
    if projection is None:
        return Hold("budget and deadline are far enough; where the job will end is not known yet")
    missed = misfit(job, projection)
    outlook = (
        f"with {plural(now, 'worker')} it is projected to end after {rounded(projection.time_s)} s for "
        f"${rounded(projection.cost_usd)}"
    )
    if missed[0] == 0:
        return Hold(f"{outlook}, within the limits")
    outlook += f", which misses the {_LIMIT[missed[0]]}"
    others = {size: (project(job, size, rate), rate) for size, rate in known.items() if size != now}
    fits = {size: misfit(job, end, headroom=HEADROOM) for size, (end, _) in others.items()}
    meeting = [size for size, fit in fits.items() if fit[0] == 0]
    if meeting:
        # the nearest one changes least
        size = min(meeting, key=lambda size: (abs(size - now), size))
        return schedule.move(job, size, f"{outlook}; {plural(size, 'worker')} would meet it")
    untried = _untried(job, schedule, known, missed)
    if untried is not None:
        reason = f"{outlook}; {plural(untried, 'worker')} may meet it, which is not known yet"
        return schedule.move(job, untried, reason)
    better = [size for size, fit in fits.items() if _better(job, fit, missed, others[size][0], projection)]
    if better:
        size = min(better, key=lambda size: (fits[size], size))
        reason = f"{outlook}; no known size meets it, {plural(size, 'worker')} would miss it by least"
        return schedule.move(job, size, reason)
    return Hold(f"{outlook}; no other size is known to do better, and the job will be stopped before it")


_LIMIT = {1: "deadline", 2: "budget"}


def _untried(job: JobSnapshot, schedule: Schedule, known: dict[int, float], missed: Misfit) -> int | None:
    """A size to try: a smaller one if the budget is short, a larger one if the time is.

    A smaller one costs less per sample wherever throughput grows less than in proportion, so it takes the job
    further for the same money even if that does not take it to its goal. A larger one is tried only if
    perfect scaling would meet both limits, since missing the deadline at a higher cost has no benefit.
    """
    now = job.configuration.workers
    unknown = [size for size in schedule.sizes(job) if size not in known]
    if missed[0] == 2:
        return max((size for size in unknown if size < now), default=None)
    hopeful = (
        size
        for size in unknown
        if size > now and misfit(job, project(job, size, known[now] * size / now), headroom=HEADROOM)[0] == 0
    )
    return min(hopeful, default=None)


def _better(
    job: JobSnapshot, fit: Misfit, missed: Misfit, end: Projection | None, present: Projection
) -> bool:
    """Whether a size is better: over budget, cheaper by more than the projection error; else a smaller misfit."""
    if end is None or fit[0] != missed[0]:
        return end is not None and fit[0] < missed[0]
    left_usd, present_usd = end.cost_usd - job.costs.cost_usd, present.cost_usd - job.costs.cost_usd
    return fit[0] == 2 and left_usd < HEADROOM * present_usd
