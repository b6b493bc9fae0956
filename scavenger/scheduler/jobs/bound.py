"""How good an allotment of a few jobs that are all there can be: a bound below which no policy comes."""

from __future__ import annotations

from itertools import permutations

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from scavenger.domain.curve import FloatArray

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
