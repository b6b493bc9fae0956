"""How good an allotment can be: bounds below which no policy comes.

`least_mean` is for a few jobs that are all there: a linear program for each order in which they can end. `srpt_mean`
and `alone_mean` are for traces, `least_usd` for a few jobs with deadlines whose VMs are rented.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import permutations

import numpy as np
from scipy.optimize import LinearConstraint, linprog, milp
from scipy.sparse import coo_array

from scavenger.domain.curve import FloatArray, IntArray
from scavenger.scheduler.jobs.simulation import Workload

JOBS_MAX = 6
"""720 orders: more jobs take minutes."""


def least_mean(rates: FloatArray, work: FloatArray, slots: int) -> float:
    """The least mean time to the end of jobs that are all there from the beginning.

    Between two ends, a job may spend any part of the time with any number of slots. In the mean over such an interval
    no more slots are taken than there are: that it can always be laid out so is not asked for, so this is a bound,
    which is met where sizes fit into each other.

    Args:
        rates: Of each job by its number of slots, shape `(jobs, most + 1)`.
        work: Of each job, above 0.

    Raises:
        ValueError: More than `JOBS_MAX` jobs.
    """
    if len(work) > JOBS_MAX:
        raise ValueError(f"{len(work)} jobs end in too many orders")
    return min(_least_in_order(rates, work, slots, order) for order in permutations(range(len(work)))) / len(
        work
    )


def _least_in_order(rates: FloatArray, work: FloatArray, slots: int, order: tuple[int, ...]) -> float:
    """The least sum of the times to the ends, if jobs end in this order.

    Variables: the length of each interval between two ends, then the seconds of each job at each size in each interval
    up to its end.
    """
    jobs, sizes = len(order), np.arange(1, min(slots, rates.shape[1] - 1) + 1)
    parts = [(job, interval) for at, job in enumerate(order) for interval in range(at + 1)]
    count = jobs + len(parts) * len(sizes)
    costs = np.zeros(count)
    costs[:jobs] = np.arange(jobs, 0, -1)
    above: list[tuple[int, int, float]] = []  # row, column, value of what is at most 0
    equal: list[tuple[int, int, float]] = []
    for number, (job, interval) in enumerate(parts):
        columns = jobs + number * len(sizes) + np.arange(len(sizes))
        for column, size in zip(columns.tolist(), sizes.tolist(), strict=True):
            above += [(interval, column, float(size)), (jobs + number, column, 1.0)]
            equal.append((job, column, float(rates[job, size])))
        above.append((jobs + number, interval, -1.0))
    above += [(interval, interval, -float(slots)) for interval in range(jobs)]
    found = linprog(
        costs,
        A_ub=_matrix(above, jobs + len(parts), count),
        b_ub=np.zeros(jobs + len(parts)),
        A_eq=_matrix(equal, jobs, count),
        b_eq=work,
        method="highs",
    )
    return float(found.fun) if found.success else np.inf


def _matrix(entries: list[tuple[int, int, float]], rows: int, columns: int) -> coo_array:
    row, column, value = zip(*entries, strict=True)
    return coo_array((value, (row, column)), shape=(rows, columns)).tocsr()


def srpt_mean(workload: Workload, slots: int) -> float:
    """The least mean if all slots were one machine, and every job used it as well as it uses any number of slots.

    Shortest remaining work first is the best on one machine [1]_.

    References:
        .. [1] Schrage, "A proof of the optimality of the shortest remaining processing time discipline", 1968.
    """
    rates = workload.curves.rates
    best = (rates[:, 1:] / np.arange(1, rates.shape[1])).max(axis=1)[workload.claims.curve]
    needs_s = workload.work / (best * slots)
    return _srpt(workload.claims.submitted_s, needs_s)


def _srpt(submitted_s: FloatArray, needs_s: FloatArray) -> float:
    waiting: list[tuple[float, float]] = []  # seconds left, submitted
    now = total = 0.0
    for begin, needs in zip([*submitted_s.tolist(), np.inf], [*needs_s.tolist(), 0.0], strict=True):
        while waiting and now < begin:
            left, submitted = heappop(waiting)
            if now + left <= begin:
                now += left
                total += now - submitted
            else:
                heappush(waiting, (left - (begin - now), submitted))
                now = begin
        now = max(now, begin)
        if needs > 0.0:
            heappush(waiting, (needs, begin))
    return total / len(submitted_s)


def alone_mean(workload: Workload, slots: int) -> float:
    """The mean if each job had the pool for itself, at its fastest."""
    most: IntArray = np.minimum(workload.claims.most, slots)
    rates = np.maximum.accumulate(workload.curves.rates, axis=1)
    fastest = rates[workload.claims.curve, np.minimum(most, rates.shape[1] - 1)]
    return float((workload.work / fastest + workload.change_s).mean())


def least_usd(
    rates: FloatArray,
    work: FloatArray,
    submitted_s: FloatArray,
    deadline_s: FloatArray,
    usd_per_s: FloatArray,
    start_s: float,
) -> float | None:
    """The least that VMs of one slot cost with which every job is through by its deadline.

    Time is parted where jobs are submitted and due. A mixed-integer program has the seconds that each job has with
    each number of slots of each type in each part, and how many VMs of each type are started: no fewer than are used
    at once in the mean of any part. Each is paid for while it starts, and while it is used.

    Args:
        rates: Of each job by type and number of slots, shape `(types, jobs, most + 1)`, work a second.
        work: Of each job, shape `(jobs,)`.
        submitted_s, deadline_s: From one beginning, shape `(jobs,)`.
        usd_per_s: Price of a VM of each type, shape `(types,)`.
        start_s: Seconds from the request of a VM until it computes.

    Returns:
        Dollars; None if no number of VMs is enough.
    """
    types, jobs, columns = rates.shape
    cuts = np.unique(np.concatenate([submitted_s, deadline_s]))
    parts_s = np.diff(cuts)
    slots = np.arange(1, columns)
    shape = (types, jobs, len(parts_s), len(slots))
    there = (cuts[:-1] >= submitted_s[:, None]) & (cuts[1:] <= deadline_s[:, None])
    each = np.arange(np.prod(shape)).reshape(shape)
    started = each.size + np.arange(types)
    entries: list[tuple[int, int, float]] = []
    limits: list[float] = []

    def at_most(limit: float, *terms: tuple[IntArray, FloatArray]) -> None:
        row = len(limits)
        entries.extend((row, int(c), float(v)) for cs, vs in terms for c, v in zip(cs, vs, strict=True))
        limits.append(limit)

    for job in range(jobs):
        done = np.broadcast_to(rates[:, job, None, 1:], (types, *shape[2:]))
        at_most(-work[job], (each[:, job].ravel(), -done.ravel()))
        for part, length_s in enumerate(parts_s):
            seconds = each[:, job, part].ravel()
            at_most(length_s * there[job, part], (seconds, np.ones(seconds.size)))
    for type_ in range(types):
        for part, length_s in enumerate(parts_s):
            used = np.broadcast_to(slots, (jobs, len(slots))).ravel() / length_s
            at_most(0.0, (each[type_, :, part].ravel(), used), (started[type_ : type_ + 1], np.full(1, -1.0)))
    price = np.broadcast_to(usd_per_s[:, None, None, None] * slots, shape).ravel()
    found = milp(
        np.concatenate([price, usd_per_s * start_s]),
        integrality=np.concatenate([np.zeros(each.size), np.ones(types)]),
        constraints=LinearConstraint(_matrix(entries, len(limits), each.size + types), -np.inf, limits),
    )
    return float(found.fun) if found.status == 0 else None
