"""Why a job has its slots: what one more or less would be to it, and to whom a policy would take or give it.

Nothing is known here of how a policy weighs jobs: it is asked again, with the job's number of slots given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from scavenger.domain.curve import IntArray
from scavenger.presentation.formatting import duration, plural
from scavenger.scheduler.jobs.allotting import Rules, allot, with_allotment
from scavenger.scheduler.jobs.values import PoolSeen

NO_MORE = "it may have no more"


@dataclass(frozen=True, slots=True)
class Other:
    """A job whose share changes with that of another.

    Attributes:
        job: Its row.
        slots: How many it has then.
        more: How many more than now; negative for fewer.
        sooner_s: By how much sooner it would end if it kept them; negative for later, NaN if its work left is unknown,
            infinite if it has no slots now, or none then.
    """

    job: int
    slots: int
    more: int
    sooner_s: float


@dataclass(frozen=True, slots=True)
class Step:
    """What another number of slots would be to a job.

    Attributes:
        slots: The number.
        faster: Its speed then over its speed now, less 1; infinite if it has none now.
        sooner_s: As of `Other`, less what the change costs it.
        idle: Slots of the step that nobody has.
        others: Whose slots change.
        fits: Whether it would have them: others may be unable to change.
    """

    slots: int
    faster: float
    sooner_s: float
    idle: int
    others: tuple[Other, ...]
    fits: bool = True


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a job has its slots.

    Attributes:
        slots: That it has by the policy; those that it holds may still be others.
        held: That it holds.
        free: Slots of the pool that nobody has by the policy.
        more: The next number of slots that would make it faster, or with none the first; None if there is none.
        less: The number below; None if it has none, or if it cannot change.
        why_no_more: Why there is no `more`.
    """

    job: int
    slots: int
    held: int
    free: int
    more: Step | None
    less: Step | None
    why_no_more: str = ""


def explain(seen: PoolSeen, rules: Rules, job: int) -> Explanation:
    """Say what one slot more or less is worth to a job.

    Args:
        job: Its row.
    """
    allotment = allot(seen, rules)
    now = with_allotment(seen, allotment)
    slots, free = int(now.held[job]), now.slots - int(now.held[now.runs].sum())
    further, why = _next(now, rules, job)
    more = None if further is None else _step(now, rules, job, further)
    if more is not None and slots and not more.fits:
        more, why = None, "nobody can give up more now"
    fewer = _below(now, rules, job)
    return Explanation(
        job=job,
        slots=slots,
        held=int(seen.held[job]),
        free=free,
        more=more,
        less=None if fewer is None else _step(now, rules, job, fewer),
        why_no_more=why,
    )


def _next(now: PoolSeen, rules: Rules, job: int) -> tuple[int | None, str]:
    """The next number of slots that would make a job faster; None and why if there is none."""
    plan = rules.policy.plan(now, rules.patience)
    slots, gang = int(now.held[job]), int(plan.gang[job])
    if now.standing.fixed[job]:
        return None, "it cannot change now"
    if slots == 0:
        if gang == 0:
            return None, "it may have no slots"
        return (gang, "") if gang <= now.slots else (None, f"it needs {plural(gang, 'slot')} at once")
    if slots >= now.claims.most[job]:
        return None, NO_MORE
    type_ = max(0, int(now.shares.types(now.jobs, now.nodes)[job]))
    rates = now.curves.by_type[type_].rates[now.claims.curve[job], : int(now.claims.most[job]) + 1]
    more = slots + 1 + np.flatnonzero(rates[slots + 1 :] > rates[min(slots, len(rates) - 1)])
    if not len(more):
        return None, "more would not make it faster"
    if plan.most[job] <= slots and not _is_elastic(now, plan.gang):
        return None, "it has what was asked for"
    if slots == now.slots:
        return None, "it has the whole pool"
    return (int(more[0]), "") if more[0] <= now.slots else (None, "more would not make it faster")


def _is_elastic(now: PoolSeen, gang: IntArray) -> bool:
    """Whether the policy gives any job another number than what it begins with."""
    has = now.held > 0
    return bool(np.any(now.held[has] != gang[has]))


def _below(now: PoolSeen, rules: Rules, job: int) -> int | None:
    slots = int(now.held[job])
    if slots == 0 or now.standing.fixed[job]:
        return None
    plan = rules.policy.plan(now, rules.patience)
    elastic = plan.most[job] > plan.gang[job] or _is_elastic(now, plan.gang)
    least = int(now.claims.least[job]) if elastic else slots
    return slots - 1 if slots - 1 >= max(least, 1) else 0


def _step(now: PoolSeen, rules: Rules, job: int, slots: int) -> Step:
    before = now.held
    after = allot(_with_slots(now, job, slots), rules).shares.by_job(now.jobs)
    others = tuple(
        Other(row, int(after[row]), int(after[row] - before[row]), sooner_s(now, row, int(after[row])))
        for row in np.flatnonzero(after != before).tolist()
        if row != job
    )
    change = slots - int(before[job])
    rates = now.rate(before)[job], now.rate(np.full(now.jobs, slots))[job]
    given = -sum(one.more for one in others)
    return Step(
        slots=slots,
        faster=float(rates[1] / rates[0] - 1.0) if rates[0] > 0.0 else np.inf,
        sooner_s=sooner_s(now, job, slots) - float(now.standing.change_s[job]),
        idle=change - given,
        others=others,
        fits=int(after[job]) == slots,
    )


def _with_slots(now: PoolSeen, job: int, slots: int) -> PoolSeen:
    """The pool with a job that has so many slots, whatever others want."""
    claims = now.claims

    def but(column: IntArray, value: int) -> IntArray:
        changed = column.copy()
        changed[job] = value
        return changed

    least, asked, most = (but(column, slots) for column in (claims.least, claims.asked, claims.most))
    first = but(claims.priority, int(claims.priority.max()) + 1)
    return replace(
        now, claims=replace(claims, least=least, asked=asked, most=most, idle_most=most, priority=first)
    )


def sooner_s(now: PoolSeen, job: int, slots: int) -> float:
    """By how much sooner a job would end with so many slots from now on than with those that it has."""
    left = float(now.standing.left[job])
    before = float(now.rate(now.held)[job])
    after = float(now.rate(np.full(now.jobs, slots))[job])
    if np.isnan(left):
        return np.nan
    if before == after:
        return 0.0
    if before == 0.0 or after == 0.0:
        return np.inf if after > before else -np.inf
    return left / before - left / after


def further_slot(seen: PoolSeen, rules: Rules, node: int) -> tuple[Other, ...]:
    """What one slot more on a node would bring now: whose slots would change."""
    now = with_allotment(seen, allot(seen, rules))
    slots = now.nodes.slots.copy()
    slots[node] += 1
    larger = replace(now, nodes=replace(now.nodes, slots=slots))
    after = allot(larger, rules).shares.by_job(now.jobs)
    return tuple(
        Other(row, int(after[row]), int(after[row] - now.held[row]), sooner_s(now, row, int(after[row])))
        for row in np.flatnonzero(after != now.held).tolist()
    )


def in_words(found: Explanation, names: Sequence[str], *, known: bool = True, most: str = "") -> str:
    """The reason for a share in a sentence; see `further`."""
    has = f"has {plural(found.slots, 'slot')}" if found.slots else "waits"
    then = "; " if found.slots and found.more is not None else ": "
    return has + then + further(found, names, known=known, most=most)


def further(found: Explanation, names: Sequence[str], *, known: bool = True, most: str = "") -> str:
    """What the next slots would bring a job, and who has them; or why there are none.

    Args:
        names: Of all jobs, by row.
        known: Whether the job's speed with other numbers of slots is known.
        most: Why it may have no more than its most.
    """
    more = found.more
    if more is None:
        return found.why_no_more + (most if found.why_no_more == NO_MORE else "")
    if found.slots == 0:
        needs = f"needs {plural(more.slots, 'slot')}, {found.free} free"
        return needs + (f", and would take from {_owners(more.others, names)}" if more.others else "")
    count = more.slots - found.slots
    brings = ("one more makes it " if count == 1 else f"{count} more make it ") + (
        f"{more.faster:.1%} faster" if known else "faster by nobody knows how much"
    )
    if known and np.isfinite(more.sooner_s):
        brings += f", {duration(abs(more.sooner_s))} {'sooner' if more.sooner_s >= 0.0 else 'later'}"
    if not more.others:
        return f"{brings}, and is idle elsewhere" if more.idle else brings
    return f"{brings}, and would come from {_owners(more.others, names)}"


def _owners(others: tuple[Other, ...], names: Sequence[str]) -> str:
    """Who would have fewer slots, and what that is to them."""
    fewer = sorted((one for one in others if one.more < 0), key=lambda one: one.more)
    words = [f"{names[one.job]} ({_loss(one)})" for one in fewer[:3]]
    return ", ".join(words) + (f" and {len(fewer) - 3} more" if len(fewer) > 3 else "")


def _loss(one: Other) -> str:
    then = f"{one.slots - one.more} to {one.slots}"
    if one.slots == 0:
        return f"{then}: it would wait"
    return f"{then}: {duration(-one.sooner_s)} later" if -np.inf < one.sooner_s < 0.0 else then
