"""Which type of nodes each job has, in a pool of several types.

A job lies on nodes of one type at a time, and the jobs of a type share its nodes as if there were no others. A job
stays where it is, and one without slots goes where most are left by those before it. Policies that know what a job's
speed is worth then let jobs go to other types, one after the other, as long as the sum of all that grows.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TypeVar

import numpy as np

from scavenger.domain.curve import BoolArray, FloatArray, IntArray
from scavenger.scheduler.jobs.filling import waterline
from scavenger.scheduler.jobs.policies import Patience, Policy, positive
from scavenger.scheduler.jobs.values import Claims, Nodes, PoolSeen, Shares, Standing
from scavenger.scheduler.jobs.worth import alone_s

_TRIES = 64
"""Of jobs that would go to another type, in one round."""

_GAIN = 1e-3
"""Of the sum of what all speeds are worth: for less no job goes to another type."""

_STAYS = 2.0
"""Times the cost of such a move: so much more than elsewhere a job's type is worth to it."""


def of_type(seen: PoolSeen, number: int, rows: IntArray) -> tuple[PoolSeen, IntArray]:
    """The nodes of one type, and these jobs, as a pool of their own; with it the numbers of its nodes here.

    Slots that a job has on nodes of another type do not count.
    """
    assert seen.nodes.type is not None
    nodes = np.flatnonzero(seen.nodes.type == number)
    job_at = np.full(seen.jobs, -1, dtype=np.int64)
    node_at = np.full(len(seen.nodes.slots), -1, dtype=np.int64)
    job_at[rows], node_at[nodes] = np.arange(len(rows)), np.arange(len(nodes))
    shares = seen.shares
    here = (job_at[shares.job] >= 0) & (node_at[shares.node] >= 0)
    part = PoolSeen(
        nodes=Nodes(seen.nodes.slots[nodes], seen.nodes.open[nodes]),
        claims=_of_rows(seen.claims, rows),
        standing=_of_rows(seen.standing, rows),
        shares=Shares(job_at[shares.job[here]], node_at[shares.node[here]], shares.slots[here]),
        curves=seen.curves.by_type[number],
        number=seen.number,
        now_s=seen.now_s,
    )
    return part, nodes


_Columns = TypeVar("_Columns", Claims, Standing)


def _of_rows(columns: _Columns, rows: IntArray) -> _Columns:
    names = type(columns).__dataclass_fields__
    return type(columns)(**{name: getattr(columns, name)[rows] for name in names})


def types_of(seen: PoolSeen, policy: Policy, patience: Patience) -> IntArray:
    """The type of nodes of each job, whether it gets slots there or not."""
    flat = replace(seen, nodes=replace(seen.nodes, type=None), curves=seen.curves.best)
    held = seen.shares.types(seen.jobs, seen.nodes)
    plan = policy.plan(flat, patience)
    worth = policy.types_worth(flat)
    able = _able(seen, plan.gang)
    types = _where_most_is_left(seen, plan.order, plan.gang, held, able)
    if worth is None:
        return types
    move_s = seen.standing.move_s
    rest_s = alone_s(flat) * flat.rate(np.ones_like(held)) / positive(seen.rate_on(seen.shares))
    stays = _STAYS * move_s / np.maximum(rest_s, move_s + 1e-9)
    numbers = np.arange(seen.nodes.types)
    return _Moves(seen, worth, able, np.where(held == numbers[:, None], stays, 0.0), types).types()


def _able(seen: PoolSeen, need: IntArray) -> BoolArray:
    """Whether each type has room for so many slots of a job, and the job gets on there; shape `(types, jobs)`."""
    room = seen.nodes.room
    assert seen.nodes.type is not None
    able = _runs(seen)
    for number in range(seen.nodes.types):
        able[number] &= _fits(room[seen.nodes.type == number], need)
    return able


def _runs(seen: PoolSeen) -> BoolArray:
    """Whether each job gets on with nodes of each type; shape `(types, jobs)`."""
    curve = seen.claims.curve
    return np.stack([(one.rates.max(axis=1) > 0.0)[curve] for one in seen.curves.by_type[: seen.nodes.types]])


def _fits(free: IntArray, need: IntArray) -> BoolArray:
    """Whether as few nodes as can be have so many free slots."""
    largest = int(free.max(initial=0))
    if largest == 0:
        return np.zeros(len(need), dtype=bool)
    most = np.r_[0, np.cumsum(np.sort(free)[::-1])]
    fits: BoolArray = most[np.minimum(-(-need // largest), len(free))] >= need
    return fits


def _where_most_is_left(
    seen: PoolSeen, order: IntArray, need: IntArray, held: IntArray, able: BoolArray
) -> IntArray:
    types = seen.nodes.types
    left = np.bincount(seen.nodes.type, seen.nodes.room, types)  # type: ignore[arg-type]
    chosen, runs = np.where(held >= 0, held, 0), _runs(seen)
    for job in order.tolist():
        where = int(held[job])
        if where < 0 or not (able[where, job] or seen.standing.fixed[job]):
            there = able[:, job]  # where it fits nowhere, it waits for nodes on which it runs
            where = int(np.argmax(np.where(there, left, -inf) if there.any() else runs[:, job]))
        chosen[job] = where
        left[where] -= need[job]
    return chosen


class _Moves:
    """Jobs go from type to type as long as the sum of what their speeds are worth grows.

    A slot of a type has a price: what the last one given there brings, nothing if some are idle. The job that would
    be left most above the price elsewhere, compared with where it is, goes there, and both types are filled anew.
    """

    def __init__(
        self, seen: PoolSeen, worth: FloatArray, able: BoolArray, stays: FloatArray, types: IntArray
    ) -> None:
        assert seen.nodes.type is not None
        self._seen, self._worth, self._able, self._stays, self._types = seen, worth, able, stays, types.copy()
        self._room = np.bincount(seen.nodes.type, seen.nodes.room, seen.nodes.types).astype(np.int64)
        most = np.minimum(seen.claims.most, seen.curves.rates.shape[1] - 1)
        fixed = seen.standing.fixed
        self._least = np.where(fixed, np.minimum(seen.held, most), 0)
        self._top = np.where(fixed, self._least, most)
        self._slots = np.zeros_like(types)
        self._price, self._sum = np.zeros(len(self._room)), np.zeros(len(self._room))
        for number in range(len(self._room)):
            self._fill(number)

    def types(self) -> IntArray:
        """The type of each job, once none would go."""
        gain = self._gains()
        for _ in range(_TRIES):
            number, job = divmod(int(np.argmax(gain)), gain.shape[1])
            if not gain[number, job] > _GAIN * self._sum.sum():
                break
            if self._goes(job, number):
                gain = self._gains()
            else:
                gain[number, job] = -inf
        return self._types

    def _fill(self, number: int) -> None:
        """Share the slots of one type out among its jobs."""
        rows = np.flatnonzero((self._types == number) & (self._able[number] | (self._least > 0)))
        curves, curve = self._seen.curves.by_type[number], self._seen.claims.curve[rows]
        worth = self._worth[rows] * (1.0 + self._stays[number, rows])
        least, room = self._least[rows], max(int(self._room[number]), int(self._least[rows].sum()))
        slots = waterline(least, self._top[rows], room, gains=curves.gains, curve=curve, weight=worth)
        self._slots[self._types == number] = 0
        self._slots[rows] = slots
        self._sum[number] = float((worth * curves.envelope[curve, slots]).sum())
        last = slots > least
        gained = worth[last] * curves.gains.table[curve[last], slots[last] - 1]
        self._price[number] = float(gained.min(initial=inf)) if int(slots.sum()) >= room else 0.0

    def _above_price(self, number: int) -> FloatArray:
        """What is left to each job above the price of one type, with the slots that leave it most."""
        curves, curve, price = self._seen.curves.by_type[number], self._seen.claims.curve, self._price[number]
        if price == inf:
            return np.where(self._types == number, 0.0, -inf)
        worth = self._worth * (1.0 + self._stays[number])
        reach = curves.gains.reach(curve, np.log(worth))(float(np.log(max(price, 1e-200))))
        here = self._types == number
        slots = np.where(here, self._slots, np.clip(reach, 0, np.minimum(self._top, self._room[number])))
        above: FloatArray = worth * curves.envelope[curve, slots] - price * slots
        return np.where(self._able[number] | here, above, -inf)

    def _gains(self) -> FloatArray:
        """What each job gains above the prices if it goes to each type."""
        above = np.stack([self._above_price(number) for number in range(len(self._room))])
        gain = above - above[self._types, np.arange(len(self._types))]
        gain[:, self._seen.standing.fixed] = -inf
        return gain

    def _goes(self, job: int, number: int) -> bool:
        """Move a job if that adds to the sum, by itself or with one more that follows; whether it does."""
        before = self._types.copy(), self._slots.copy(), self._price.copy(), self._sum.copy()
        for _ in range(2):
            here, self._types[job] = int(self._types[job]), number
            self._fill(here)
            self._fill(number)
            if self._sum.sum() > (1.0 + _GAIN) * before[3].sum():
                return True
            gain = self._gains()
            gain[:, job] = -inf
            number, job = divmod(int(np.argmax(gain)), len(self._types))
            if not gain[number, job] > 0.0:
                break
        self._types, self._slots, self._price, self._sum = before
        return False


def elsewhere(
    seen: PoolSeen, shares: Shares, types: IntArray, policy: Policy, patience: Patience
) -> IntArray | None:
    """Types with which jobs that wait get idle slots of another type; None if nobody would."""
    assert seen.nodes.type is not None
    slots = shares.by_job(seen.jobs)
    flat = replace(seen, nodes=replace(seen.nodes, type=None), curves=seen.curves.best)
    plan = policy.plan(flat, patience)
    waits = (slots == 0) & (plan.gang > 0) & ~seen.standing.fixed
    if not waits.any():
        return None
    idle = seen.nodes.room - shares.by_node(len(seen.nodes.slots))
    able, found = _able(seen, plan.gang), types.copy()
    for job in plan.order[waits[plan.order]].tolist():
        for number in range(seen.nodes.types):
            here = seen.nodes.type == number
            if number == types[job] or not able[number, job]:
                continue
            largest = int(seen.nodes.room[here].max())
            roomiest = np.flatnonzero(here)[np.argsort(-idle[here], kind="stable")]
            roomiest = roomiest[: -(-int(plan.gang[job]) // largest)]
            if int(idle[roomiest].sum()) >= plan.gang[job]:
                found[job] = number
                idle[roomiest] = 0
                break
    return None if np.array_equal(found, types) else found
