"""How many VMs a pool rents: as many as have slots that are worth their price, each VM one slot.

An hour that a job ends sooner is worth dollars. So with `k` slots a job costs `worth + k * price` in each hour until
its end, and it wants the number with which that is least. A slot on a VM that has still to start is paid for from the
request on, and brings nothing before; a change of size brings nothing while it lasts, either. What jobs want is the
most that a policy may give them, so whatever the policy, a pool with room for all of them rents what is worth its
price, and one without room shares out what it may have.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import floor, inf

import numpy as np

from scavenger.domain.curve import FloatArray, IntArray
from scavenger.scheduler.jobs.allotting import Rules, allot
from scavenger.scheduler.jobs.policies import Policy, positive
from scavenger.scheduler.jobs.values import Allotment, Claims, Nodes, PoolSeen
from scavenger.scheduler.jobs.worth import alone_s

_AHEAD_S = 600.0
"""A VM is rented, and kept, if it can be paid until it has started and for so long: jobs can save what they have."""
END_S = 180.0
"""From the decision to end a VM until it is not paid for any more: until the next decision, with what was not charged
yet (30 s), two looks of a reconciler and its call to the cloud (120 s), and what a cloud takes to end it."""
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Rental:
    """What a pool rents.

    Attributes:
        usd_per_s: Price of a VM, from its request to its end.
        start_s: From the request to its first step.
        least, most: VMs that are kept, and VMs at most.
        idle_s: A VM without a job is kept for so long.
        budget_usd: Never crossed in a month.
        job_usd_per_s: What it is worth that a job ends a second sooner; None for what the slots that it asked for cost.
    """

    usd_per_s: float
    start_s: float
    most: int
    least: int = 0
    idle_s: float = 600.0
    budget_usd: float = inf
    job_usd_per_s: float | None = None

    def affordable(self, left_usd: float) -> int:
        """VMs that may be there if so much of the budget is left."""
        ahead_usd = self.usd_per_s * (self.start_s + _AHEAD_S)
        if left_usd == inf or ahead_usd == 0.0:
            return self.most
        return max(0, min(self.most, floor(left_usd / ahead_usd + _ROUNDING)))

    def fewer_s(self, left_usd: float, vms: int) -> float:
        """Seconds until that many VMs, which are there, are more than is affordable."""
        if left_usd == inf or not vms or self.usd_per_s == 0.0:
            return inf
        return max(0.0, left_usd / (vms * self.usd_per_s) - self.start_s - _AHEAD_S)


@dataclass(frozen=True, slots=True)
class Rented:
    """VMs that are there.

    Attributes:
        up: Those that have started.
        coming: Those that have not.
        left_usd: Of the budget of this month.
    """

    up: int
    coming: int = 0
    left_usd: float = inf


@dataclass(frozen=True, slots=True)
class Renting:
    """What is decided of a pool whose VMs are rented.

    Attributes:
        allotment: Of the VMs that have started.
        wanted: VMs whose slots are worth their price, or that are kept anyway. Those that lack are rented now; what
            is there beyond them ends when it has been idle for its time.
        most: VMs that may be there now: what is there beyond them ends at once.
    """

    allotment: Allotment
    wanted: int
    most: int


def rent(seen: PoolSeen, rules: Rules, rental: Rental, rented: Rented) -> Renting:
    """Share out the VMs that have started, and say how many there shall be.

    Args:
        seen: The pool; its nodes do not count.
    """
    most = rental.affordable(rented.left_usd)
    wished = allot(_priced(seen, rules.policy, rental, most, rental.start_s), rules)
    wanted = min(most, max(rental.least, slots_of(wished)))
    up = min(rented.up, most)
    return Renting(allot(_priced(seen, rules.policy, rental, up, 0.0), rules), wanted, most)


def is_used_up(left_usd: float, usd_per_s: float) -> bool:
    """Whether what is left of a budget pays for no more than the end of the VMs that are there.

    Jobs were to pause before, since VMs are kept only while they can be paid for `_AHEAD_S`.
    """
    return left_usd <= usd_per_s * END_S


def idle_ended(idle: int, over: int, there: int, renting: Renting, lacking: int = 0) -> int:
    """How many VMs without a job end now, those that have been idle for longest first.

    Args:
        idle: VMs without a job.
        over: Of these, those that have been idle for their time.
        there: All VMs.
        lacking: VMs that jobs wait for, which find no room beside those that are there, and cannot use these.
    """
    return max(0, min(idle, max(there - renting.most, lacking, min(over, there - renting.wanted))))


def slots_of(allotment: Allotment) -> int:
    """Slots that are given."""
    return int(allotment.shares.slots.sum())


def _priced(seen: PoolSeen, policy: Policy, rental: Rental, vms: int, start_s: float) -> PoolSeen:
    """The pool with so many VMs, where no job may have slots that are not worth their price."""
    claims = priced_claims(seen, policy, rental, start_s)
    return replace(seen, nodes=Nodes.of(vms), claims=claims)


def priced_claims(seen: PoolSeen, policy: Policy, rental: Rental, start_s: float) -> Claims:
    """Claims of jobs to slots that are worth their price; of policies that give what was asked, beyond that only.

    Args:
        start_s: Until a slot more than a job holds brings anything.
    """
    claims = seen.claims
    most = worthwhile(seen, rental, start_s)
    asked = claims.asked if policy.gives_asked else np.minimum(claims.asked, most)
    most = np.maximum(asked, most)
    return replace(claims, asked=asked, most=most, idle_most=most)


def worthwhile(seen: PoolSeen, rental: Rental, start_s: float) -> IntArray:
    """With how many slots each job costs least until its end, what it is worth to end sooner included.

    One that is in time for its deadline with some number is so with this one. Where the work left is unknown, it is as
    much as the job has had.

    Args:
        start_s: As of `priced_claims`.
    """
    claims, held = seen.claims, seen.held
    if not seen.jobs:
        return held
    end_s = _end_s(seen, start_s)
    worth = rental.job_usd_per_s
    per_s = rental.usd_per_s * claims.asked if worth is None else np.full(seen.jobs, worth)
    slots = np.arange(end_s.shape[1])
    never = np.isinf(end_s)
    cost = (per_s[:, None] + rental.usd_per_s * slots) * np.where(never, 0.0, end_s)
    late = end_s > (claims.deadline_s - seen.now_s)[:, None]
    late[late.all(axis=1)] = False
    no = (slots < claims.least[:, None]) | (slots > claims.most[:, None]) | late | never
    least_cost: IntArray = np.argmin(np.where(no, inf, cost), axis=1)
    fixed = seen.standing.fixed
    return np.clip(np.where(fixed, held, least_cost), claims.least, claims.most)


def _end_s(seen: PoolSeen, start_s: float) -> FloatArray:
    """Seconds until the end of each job with each number of slots, shape `(jobs, most + 1)`; infinite without any."""
    held, change_s = seen.held[:, None], seen.standing.change_s[:, None]
    rates = seen.curves.rates[seen.claims.curve]
    left = (alone_s(seen) * positive(rates[:, 1]))[:, None]
    now = seen.rate(seen.held)[:, None]
    slots = np.arange(rates.shape[1])[None]
    # until further slots are there a job goes on with those that it has
    meanwhile = np.where(slots > held, now * start_s, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        after_s = np.maximum(left - meanwhile, 0.0) / rates
        end_s: FloatArray = (
            np.where(slots > held, start_s, 0.0) + np.where(slots == held, 0.0, change_s) + after_s
        )
    return np.where(rates > 0.0, end_s, inf)
