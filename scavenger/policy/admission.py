"""Decides which submitted jobs begin next, under limits on jobs at once and on money, and why the others wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType

from scavenger.domain.pool import pool_of
from scavenger.domain.submission import Backlog, StoredBudgets, Submission
from scavenger.policy.funds import funds_of
from scavenger.presentation.formatting import plural


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Limits of one server, of one machine and account; budgets count all jobs in the store, however they were begun.

    Attributes:
        jobs_max: Most jobs at once.
        user_max: Most jobs at once of one user; None for no limit.
        budget_usd: Most that all jobs of the period may cost together; None for no limit.
        user_budget_usd: Most that the jobs of one user may cost; None for no limit.
        user_budgets_usd: The same by user, instead of `user_budget_usd`.
    """

    jobs_max: int = 16
    user_max: int | None = None
    budget_usd: float | None = None
    user_budget_usd: float | None = None
    user_budgets_usd: Mapping[str, float] = field(default_factory=dict)

    @property
    def has_budgets(self) -> bool:
        """Whether money is limited, so that spending must be counted."""
        return bool(self.user_budgets_usd) or not (self.budget_usd is None and self.user_budget_usd is None)

    def under(self, budgets: StoredBudgets) -> QueueLimits:
        """These limits with the budgets of the store, which hold for every server, before those of the settings."""
        mine, each = budgets.budget_usd, budgets.user_budget_usd
        return replace(
            self,
            budget_usd=self.budget_usd if mine is None else mine,
            user_budget_usd=self.user_budget_usd if each is None else each,
        )

    def budget_of(self, user: str) -> float | None:
        """The budget of one user; None for no limit."""
        return self.user_budgets_usd.get(user, self.user_budget_usd)


def budget_period(now: datetime) -> datetime:
    """Begin of the period whose costs count for budgets: the calendar month, in UTC."""
    return now.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)


@dataclass(frozen=True, slots=True)
class BacklogDecision:
    """What is decided on a backlog.

    Attributes:
        begin: Submissions whose runners are started now, in this order.
        waiting: Why each of the others waits, by its id.
    """

    begin: tuple[Submission, ...]
    waiting: Mapping[str, str]


def slotted(
    backlog: Backlog, limits: QueueLimits, resting: Collection[str] = ()
) -> tuple[frozenset[str], frozenset[str]]:
    """Ids of the queued submissions that need slots of a pool, and of those among them that lack nothing else."""
    state = _State(backlog, limits)
    pooled = [one for one in backlog.queued if pool_of(one.job.spec, rents=one.job.rents)]
    able = (one.id for one in pooled if one.id not in resting and not state.obstacle(one))
    return frozenset(one.id for one in pooled), frozenset(able)


def admit(
    backlog: Backlog,
    limits: QueueLimits,
    resting: Collection[str] = (),
    slotless: Mapping[str, str] = MappingProxyType({}),
) -> BacklogDecision:
    """Decide which queued submissions begin.

    Higher priorities go first; among equals, users who run fewer jobs; then the order of submission. One that must
    wait holds up none behind it: what it lacks is its own (its file, its user's limits), or is lacking to all.
    A job may begin if what it can still cost at most fits into what is left of each budget, beside what running jobs
    may still cost. Without a limit of its own it could cost anything, so under a budget it needs one; what rents
    nothing costs nothing here.

    Args:
        backlog: What waits and runs.
        limits: The server's.
        resting: Ids of submissions that could not begin a moment ago.
        slotless: Why submissions have no slots of their pool, by their ids.
    """
    state = _State(backlog, limits)
    waiting = {
        one.id: "it could not begin, and is tried again soon" for one in backlog.queued if one.id in resting
    }
    left = [one for one in backlog.queued if one.id not in resting]
    begun: list[Submission] = []
    while left:
        one = min(left, key=lambda each: (-each.job.priority, state.running[each.job.user], each.number))
        left.remove(one)
        if (reason := state.obstacle(one)) or one.id in slotless:
            reason = reason or slotless[one.id]
            waiting[one.id] = reason
        else:
            begun.append(one)
            state.begin(one)
    return BacklogDecision(tuple(begun), waiting)


class _State:
    """What runs, uses files and costs, with the submissions that were admitted so far."""

    def __init__(self, backlog: Backlog, limits: QueueLimits) -> None:
        self._limits = limits
        jobs = [seen.submission.job for seen in backlog.running]
        self.running = Counter(job.user for job in jobs)
        self._files = {
            **dict(backlog.busy_files),
            **{seen.submission.job.job_file: seen.submission.id for seen in backlog.running},
        }
        self._spending = backlog.spending

    def begin(self, one: Submission) -> None:
        job = one.job
        self.running[job.user] += 1
        self._files[job.job_file] = one.id
        reserved = self._spending.reserved
        usd = reserved.get(job.user, 0.0) + (self._still_usd(one) or 0.0)
        self._spending = replace(self._spending, reserved={**reserved, job.user: usd})

    def _still_usd(self, one: Submission) -> float | None:
        """The most that a job may cost besides what is counted already; None without a limit."""
        most_usd = one.job.reserved_usd
        return None if most_usd is None else max(0.0, most_usd - self._spending.of_waiting.get(one.id, 0.0))

    def obstacle(self, one: Submission) -> str:
        """Why a submission cannot begin now; empty if it can."""
        job, limits = one.job, self._limits
        if (other := self._files.get(job.job_file)) is not None:
            return f"job {other[:8]} of the same job file runs"
        if self.running.total() >= limits.jobs_max:
            return f"{plural(limits.jobs_max, 'job')} at once may run"
        if limits.user_max is not None and self.running[job.user] >= limits.user_max:
            return f"{plural(limits.user_max, 'job')} of {job.user} at once may run"
        return self._short_of_money(one)

    def _short_of_money(self, one: Submission) -> str:
        job, limits, still_usd = one.job, self._limits, self._still_usd(one)
        if not (job.rents or job.reserved_usd):
            return ""
        budgets = (
            (funds_of(self._spending, limits.budget_of(job.user), job.user), f"{job.user}'s budget"),
            (funds_of(self._spending, limits.budget_usd), "the budget of all users"),
        )
        for funds, name in budgets:
            if funds.pays(still_usd):
                continue
            left = f"${funds.left_usd:.2f} is left of {name}, ${funds.budget_usd:.2f}"
            if still_usd is None:
                return f"it needs a limit, constraints.budget: {left}"
            return f"it may cost ${still_usd:.2f}, and {left}"
        return ""
