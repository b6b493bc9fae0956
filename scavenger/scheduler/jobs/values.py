"""What is seen of a pool, and what is decided: columns of arrays, one row for each job or node.

| name | meaning |
|---|---|
| slot | room for one worker on a node |
| share | the slots of a job, by node |
| least, asked, most | bounds of a share that is not 0, and what the job's user asked for |
| rate | work that a job does in a second with so many slots, at its best batch size |
| attained | slot-seconds that a job has had; since its promotion, if it was promoted |
| level | the queue of a job, as its policy last said; 0 is the first |
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import inf

import numpy as np

from scavenger.domain.curve import BoolArray, FloatArray, IntArray
from scavenger.scheduler.jobs.filling import Gains


@dataclass(frozen=True)
class Curves:
    """Rates of jobs by their number of slots.

    Attributes:
        rates: Work a second, shape `(curves, most + 1)`: column `k` is with `k` slots, column 0 is 0. A curve need not
            be concave, and may fall.
        others: The same on nodes of the second type, the third and so on; a row of 0 for jobs that cannot run there.

    Raises:
        ValueError: A rate is negative or not finite, or is above 0 without slots; types differ in shape.
    """

    rates: FloatArray
    others: tuple[FloatArray, ...] = ()

    def __post_init__(self) -> None:
        if any(other.shape != self.rates.shape for other in self.others):
            raise ValueError("each type of node has the same curves, up to as many slots")
        if self.rates.ndim != 2 or not np.all(np.isfinite(self.rates)) or np.any(self.rates < 0.0):
            raise ValueError("rates are finite numbers from 0, one row for each curve")
        if np.any(self.rates[:, 0] != 0.0):
            raise ValueError("without slots there is no work")

    @cached_property
    def by_type(self) -> tuple[Curves, ...]:
        """Those of each type of node."""
        return (Curves(self.rates), *(Curves(other) for other in self.others)) if self.others else (self,)

    @cached_property
    def best(self) -> Curves:
        """With so many slots of the type that is fastest then."""
        return Curves(np.maximum.reduce([self.rates, *self.others])) if self.others else self

    @cached_property
    def peak(self) -> IntArray:
        """The fewest slots with the greatest rate, shape `(curves,)`: with more, nothing is gained."""
        peak: IntArray = np.argmax(self.rates, axis=1)
        return peak

    @cached_property
    def fastest(self) -> IntArray:
        """The fewest slots with the greatest rate of all numbers up to so many, shape of `rates`."""
        best = np.maximum.accumulate(self.rates, axis=1)
        first = np.arange(best.shape[1]) * (np.diff(best, axis=1, prepend=-1.0) > 0.0)
        fastest: IntArray = np.maximum.accumulate(first, axis=1)
        return fastest

    @cached_property
    def envelope(self) -> FloatArray:
        """The least concave curve above each, flat from its peak on; shape of `rates`."""
        return np.stack([_hull(row) for row in self.rates])

    @cached_property
    def gains(self) -> Gains:
        """What slot `k + 1` adds to the envelope: never negative."""
        return Gains(np.maximum(np.diff(self.envelope, axis=1), 0.0))

    @cached_property
    def relative_gains(self) -> Gains:
        """`gains` over the envelope with `k` slots; infinite for the first slot."""
        absolute = self.gains.table
        with np.errstate(divide="ignore", invalid="ignore"):
            return Gains(np.where(absolute > 0.0, absolute / self.envelope[:, :-1], 0.0))


def _hull(rates: FloatArray) -> FloatArray:
    """The upper hull of the points `(k, rates[k])` up to the peak, interpolated at each `k`."""
    rates = np.maximum.accumulate(rates)
    kept: list[int] = []
    for k in range(len(rates)):
        while len(kept) > 1:
            i, j = kept[-2], kept[-1]
            if (rates[j] - rates[i]) * (k - i) > (rates[k] - rates[i]) * (j - i):
                break
            kept.pop()
        kept.append(k)
    hull: FloatArray = np.interp(np.arange(len(rates)), kept, rates[kept])
    return hull


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of a pool, one row each.

    Attributes:
        slots: Of each node.
        open: Whether jobs may have slots there: False for a node that is drained or lost.
        type: Number of each node's type, from 0; None if all are of one. A job lies on nodes of one type.
    """

    slots: IntArray
    open: BoolArray
    type: IntArray | None = None

    @classmethod
    def of(cls, *slots: int) -> Nodes:
        """Nodes that are all open, and of one type."""
        return cls(np.array(slots, dtype=np.int64), np.ones(len(slots), dtype=bool))

    @property
    def types(self) -> int:
        """How many types there are."""
        return 1 if self.type is None else 1 + int(self.type.max(initial=0))

    @property
    def room(self) -> IntArray:
        """Slots that jobs may have, of each node."""
        room: IntArray = np.where(self.open, self.slots, 0)
        return room


@dataclass(frozen=True, slots=True)
class Claims:
    """What does not change while a job waits and runs.

    Attributes:
        user: Number of the job's user.
        priority: A job of greater priority goes first.
        submitted_s: On any clock; no two are the same where order shall be certain.
        least: Fewest slots with which it runs.
        asked: What its user asked for: all that it gets from policies without elasticity.
        most: No more, whatever is idle; one for which nothing can be paid has 0 everywhere.
        curve: Row of `Curves`.
        deadline_s: On the same clock as `submitted_s`, infinite for none; none for nobody if it is left out.
        idle_most: No more, of slots that would else stay idle; at least `most`, and that if it is left out.
    """

    user: IntArray
    priority: IntArray
    submitted_s: FloatArray
    least: IntArray
    asked: IntArray
    most: IntArray
    curve: IntArray
    deadline_s: FloatArray = field(default_factory=lambda: np.zeros(0))
    idle_most: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def __post_init__(self) -> None:
        if len(self.deadline_s) != len(self.user):
            object.__setattr__(self, "deadline_s", np.full(len(self.user), inf))
        if len(self.idle_most) != len(self.user):
            object.__setattr__(self, "idle_most", self.most)
        if ((self.least > self.asked) | (self.asked > self.most) | (self.least < 0)).any():
            raise ValueError("0 <= least <= asked <= most")


@dataclass(frozen=True, slots=True)
class Standing:
    """How jobs stand now; whoever keeps it writes down what an `Allotment` says of `level` and `promoted`.

    Attributes:
        level: The queue that the last allotment said; 0 for a new job.
        attained_slot_s: Since its arrival, or since it was promoted.
        waited_s: Its present wait, or the last one if it has slots.
        ran_s: Since it has slots; 0 without any.
        left: Work that it has still to do, in the unit of its curve; NaN if unknown.
        left_log_sd: Standard deviation of `ln(left)`; 0 if it is known.
        change_s: Seconds without progress that a change of its share costs it.
        fixed: Whether its share cannot change now: it searches, saves, changes, or has not answered.
        worker_s: Seconds for which a slot that it gets is idle, until its worker has started; none if it is left out.
        move_s: Seconds without progress that it costs to go to another type of nodes; `change_s` if it is left out.
    """

    level: IntArray
    attained_slot_s: FloatArray
    waited_s: FloatArray
    ran_s: FloatArray
    left: FloatArray
    left_log_sd: FloatArray
    change_s: FloatArray
    fixed: BoolArray
    worker_s: FloatArray = field(default_factory=lambda: np.zeros(0))
    move_s: FloatArray = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        if len(self.worker_s) != len(self.level):
            object.__setattr__(self, "worker_s", np.zeros(len(self.level)))
        if len(self.move_s) != len(self.level):
            object.__setattr__(self, "move_s", self.change_s)


@dataclass(frozen=True, slots=True)
class Shares:
    """Who has how many slots where: one row for each job on each of its nodes, all above 0."""

    job: IntArray
    node: IntArray
    slots: IntArray

    @classmethod
    def none(cls) -> Shares:
        """Nobody has a slot."""
        empty = np.zeros(0, dtype=np.int64)
        return cls(empty, empty, empty)

    def by_job(self, jobs: int) -> IntArray:
        """Slots of each job, shape `(jobs,)`."""
        return np.bincount(self.job, self.slots, jobs).astype(np.int64)

    def by_node(self, nodes: int) -> IntArray:
        """Slots that are taken of each node, shape `(nodes,)`."""
        return np.bincount(self.node, self.slots, nodes).astype(np.int64)

    def types(self, jobs: int, nodes: Nodes) -> IntArray:
        """Type of the nodes of each job, -1 for one without slots; shape `(jobs,)`."""
        types = np.full(jobs, -1, dtype=np.int64)
        types[self.job] = 0 if nodes.type is None else nodes.type[self.node]
        return types

    def of(self, job: int) -> dict[int, int]:
        """The slots of one job by node."""
        rows = np.flatnonzero(self.job == job)
        return dict(zip(self.node[rows].tolist(), self.slots[rows].tolist(), strict=True))


@dataclass(frozen=True)
class PoolSeen:
    """A pool as it is seen.

    Attributes:
        shares: What jobs hold or is on its way to them: of each node the larger of both, until a job has answered and
            its process is gone.
        number: Of the allotment that led here.
        now_s: On the clock of deadlines.
    """

    nodes: Nodes
    claims: Claims
    standing: Standing
    shares: Shares
    curves: Curves
    number: int = 0
    now_s: float = 0.0

    @cached_property
    def held(self) -> IntArray:
        """Slots of each job, shape `(jobs,)`."""
        return self.shares.by_job(self.jobs)

    @cached_property
    def runs(self) -> BoolArray:
        """Who has slots, all of them on open nodes: the others are placed like those that wait."""
        shares = self.shares
        if self.nodes.open.all():
            return self.held > 0
        lost = np.bincount(shares.job[~self.nodes.open[shares.node]], minlength=self.jobs) > 0
        return (self.held > 0) & ~lost

    @cached_property
    def arrival(self) -> IntArray:
        """Rows in the order of submission: who has more of what cannot be parted evenly, whoever has slots now."""
        return np.argsort(self.claims.submitted_s, kind="stable")

    @property
    def jobs(self) -> int:
        """How many there are."""
        return len(self.claims.user)

    @cached_property
    def slots(self) -> int:
        """Slots of all open nodes."""
        return int(self.nodes.room.sum())

    @cached_property
    def useful(self) -> IntArray:
        """Slots beyond which a job gains nothing on any type, or may have no more; its `asked` where that is more."""
        claims = self.claims
        return np.minimum(claims.most, np.maximum(self.curves.best.peak[claims.curve], claims.asked))

    @cached_property
    def gainful(self) -> IntArray:
        """Slots beyond which a job gains nothing, or may have no more."""
        claims = self.claims
        return np.minimum(claims.most, np.maximum(self.curves.peak[claims.curve], claims.least))

    def fastest(self, slots: IntArray) -> IntArray:
        """With how many of so many slots each job is fastest; the fewest of them."""
        columns = np.minimum(slots, self.curves.rates.shape[1] - 1)
        fewest: IntArray = self.curves.fastest[self.claims.curve, columns]
        return fewest

    def fastest_of(self, job: int, slots: int) -> int:
        """The same of one job."""
        table = self.curves.fastest
        return int(table[self.claims.curve[job], min(slots, table.shape[1] - 1)])

    def rate(self, slots: IntArray) -> FloatArray:
        """Rate of each job with so many slots where it has some, else on the first type; beyond the end of its curve,
        that at its end.
        """
        return self._rate(slots, self.shares)

    def rate_on(self, shares: Shares) -> FloatArray:
        """Rate of each job with these shares, on nodes of whichever type they are."""
        return self._rate(shares.by_job(self.jobs), shares)

    def _rate(self, slots: IntArray, shares: Shares) -> FloatArray:
        columns = np.minimum(slots, self.curves.rates.shape[1] - 1)
        rates: FloatArray = self.curves.rates[self.claims.curve, columns]
        if self.curves.others:
            types = shares.types(self.jobs, self.nodes)
            for number, other in enumerate(self.curves.others, 1):
                rows = types == number
                rates[rows] = other[self.claims.curve[rows], columns[rows]]
        return rates


@dataclass(frozen=True, slots=True)
class Plan:
    """What a policy says: how many slots each job shall have, before nodes are chosen.

    Attributes:
        slots: Of each job.
        order: Rows of all jobs, first served first: who comes later makes way where nodes are short.
        gang: Slots that a job without any takes if some stay idle, because others fit no node; 0 for none.
        most: Up to so many a job takes of slots that stay idle.
        keeps: Whether no job behind this one begins while no nodes fit it.
        level: The queue of each job.
        promoted: Whose `attained_slot_s` begins at 0 again.
        by_speed: Whether slots that would make a job slower stay idle.
        by_number: Whether the policy would say something else if a job had another number of slots, and not only if
            other jobs had any.
        tentative: Whether it might say something else once its own numbers are held.
    """

    slots: IntArray
    order: IntArray
    gang: IntArray
    most: IntArray
    keeps: BoolArray
    level: IntArray
    promoted: BoolArray
    by_speed: bool = False
    by_number: bool = False
    tentative: bool = False


@dataclass(frozen=True, slots=True)
class Allotment:
    """The shares of all jobs that shall be.

    Attributes:
        shares: Rows are those of the `PoolSeen` that was decided on.
        level: As in `Standing`, from now on.
        promoted: Whose `attained_slot_s` begins at 0 again.
        again_s: Seconds after which to decide again if nothing happens.
        number: One more than that of what was seen if a share changes, the same otherwise.
    """

    shares: Shares
    level: IntArray
    promoted: BoolArray
    again_s: float
    number: int
