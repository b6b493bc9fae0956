"""The best assignment of a few jobs, computed exactly: what the quick schemes are compared with.

Appendix C of AutoPS [1]_ states the assignment as an integer program and calls it infeasible for its
non-linear terms. All of these depend on the cycle of a node alone, and only few cycles come into question.
So a node chooses one of its *modes*, a type and a cycle; how many steps each job makes in it, and what it
loses, are then constants, and the program is linear:

    x[t, s, k] = 1  bucket t is on node s, which is in mode k
    z[s, k]    = 1  node s is used, in mode k

    sum over s, k of x[t, s, k] = 1                             each bucket is on one node
    sum over k of z[s, k] <= 1                                  a node has one mode
    x[t, s, k] <= z[s, k]                                       and its buckets are there in that mode
    sum over t of x[t, s, k] e[t] steps[j(t), k] <= capacity[k] z[s, k]     W_n <= C_n; the same for
                                                                memory and for traffic
    x[t, s, k] = 0 where job j(t) would lose more than the limit in mode k
    sum over t of x[t, s, k] >= z[s, k], over buckets of jobs whose step is long enough for the cycle of k

`cheapest` minimises the price of the nodes used, `least_loss` the greatest loss of any job on given nodes,
the objective of appendix C. HiGHS solves both. A bucket's work counts with the steps that its job makes by
the cycle of that node, not by that of the job's slowest node, as in Pseudocode 1: never less.

References:
    .. [1] Gu et al., "Elastic Model Aggregation with Parameter Service", 2022, appendix C.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_matrix

from scavenger.scheduler.cycles import cyclic_step_time, speed_loss, steps_in_cycle
from scavenger.scheduler.pool import Assignment, JobLoad, NodeType, Rules

_LIMIT_REACHED, _INFEASIBLE = 1, 2
_CLOSE = 1e-9
_SMALL = 1e-6
"""Shares of a node below this count as nothing: the solver's own tolerance is of that size."""


@dataclass(frozen=True, slots=True)
class Solution:
    """A best assignment.

    Attributes:
        value: Of the objective: USD per hour, or the greatest loss.
        nodes: Type and cycle in seconds of each node that is used.
        assignments: Of each job, with nodes named by their index in `nodes`.
        proven: Whether no assignment is better; False if the time limit ended the search.
    """

    value: float
    nodes: tuple[tuple[NodeType, float], ...]
    assignments: tuple[Assignment, ...]
    proven: bool


@dataclass(frozen=True, slots=True)
class _Mode:
    """A node type in a cycle: steps and loss of each job, 0 steps where the job cannot be there."""

    type: NodeType
    cycle_s: float
    steps: tuple[int, ...]
    loss: tuple[float, ...]
    anchors: frozenset[int]
    """Jobs of which one has to be there, for the cycle to be allowed."""

    def dominated_by(self, other: _Mode) -> bool:
        """Whether the other takes each job of this one at no greater rate and loss."""
        return (
            self.type == other.type
            and self.anchors <= other.anchors
            and all(
                mine == 0
                or (
                    theirs > 0
                    and theirs / other.cycle_s <= mine / self.cycle_s * (1.0 + _CLOSE)
                    and other.loss[job] <= max(self.loss[job], 0.0) + _CLOSE
                )
                for job, (mine, theirs) in enumerate(zip(self.steps, other.steps, strict=True))
            )
        )


def cheapest(
    jobs: Sequence[JobLoad],
    types: Sequence[NodeType],
    rules: Rules,
    *,
    nodes_max: int,
    time_limit_s: float = 60.0,
) -> Solution | None:
    """The cheapest nodes that hold all jobs, none of which loses more than the limit.

    Args:
        types: Of which any number of nodes can be used; with a price of 0, they count 1 each.
        nodes_max: Most nodes; a scheme's own number, if only better ones are of interest.

    Returns:
        None if there is none with so many nodes, or none was found in time.
    """
    modes = _modes(jobs, types, rules, judged_by_loss=False)
    program = _Program(jobs, modes, nodes_max, rules)
    free = all(type_.price_usd_per_hour == 0.0 for type_ in types)
    prices = [1.0 if free else mode.type.price_usd_per_hour for mode in modes]
    cost = np.zeros(program.size)
    for slot in range(nodes_max):
        for index, price in enumerate(prices):
            cost[program.used(slot, index)] = price
    return program.solve(cost, time_limit_s)


def least_loss(
    jobs: Sequence[JobLoad],
    types: Sequence[NodeType],
    rules: Rules,
    *,
    nodes: int,
    time_limit_s: float = 60.0,
) -> Solution | None:
    """The assignment to at most so many nodes whose greatest loss of any job is least, whatever the limit is.

    Returns:
        None if the jobs do not fit, or none was found in time.
    """
    modes = _modes(jobs, types, rules, judged_by_loss=True)
    program = _Program(jobs, modes, nodes, rules)
    cost = np.zeros(program.size)
    cost[program.worst] = 1.0
    program.bound_losses()
    return program.solve(cost, time_limit_s)


def _modes(
    jobs: Sequence[JobLoad], types: Sequence[NodeType], rules: Rules, *, judged_by_loss: bool
) -> tuple[_Mode, ...]:
    """The modes that can be best, of each type.

    Between two multiples of the step times the losses grow with the cycle: so only multiples are tried.
    """
    alone = [job.step_time_s for job in jobs]
    cycles = {
        multiple * longest
        for longest in alone
        for multiple in range(1, int(max(alone) * rules.cycle_max / longest * (1.0 + _CLOSE)) + 1)
    }
    found: list[_Mode] = []
    for type_ in types:
        of_type: list[_Mode] = []
        for cycle_s in sorted(cycles):
            losses = tuple(speed_loss(cyclic_step_time(cycle_s, time_s), time_s) for time_s in alone)
            steps = tuple(
                steps_in_cycle(cycle_s, time_s) if judged_by_loss or rules.allows(loss) else 0
                for time_s, loss in zip(alone, losses, strict=True)
            )
            anchors = frozenset(
                job
                for job, time_s in enumerate(alone)
                if steps[job] and time_s * rules.cycle_max >= cycle_s * (1.0 - _CLOSE)
            )
            if anchors:
                judged = losses if judged_by_loss else (0.0,) * len(losses)
                of_type.append(_Mode(type_, cycle_s, steps, judged, anchors))
        for index, mode in enumerate(of_type):
            others = (
                other
                for at, other in enumerate(of_type)
                if at != index and (at < index or not other.dominated_by(mode))
            )
            if not any(mode.dominated_by(other) for other in others):
                found.append(mode)
    return tuple(found)


class _Program:
    """The rows of the program, filled in by `__init__`; variables are numbered x, then z, then the worst loss."""

    def __init__(self, jobs: Sequence[JobLoad], modes: Sequence[_Mode], slots: int, rules: Rules) -> None:
        self._jobs, self._modes, self._slots = jobs, modes, slots
        self._buckets = [(job, index) for job, load in enumerate(jobs) for index in range(len(load.buckets))]
        self._in_slot = len(self._buckets) * len(modes)
        self.worst = slots * (self._in_slot + len(modes))
        self.size = self.worst + 1
        self._rows: list[tuple[dict[int, float], float, float]] = []
        self._require_places()
        for slot in range(slots):
            self._require_order(slot)
            for index, mode in enumerate(modes):
                self._require_capacity(slot, index, mode, rules)

    def _at(self, slot: int, mode: int, bucket: int) -> int:
        return slot * self._in_slot + mode * len(self._buckets) + bucket

    def used(self, slot: int, mode: int) -> int:
        """The number of the variable z of a slot and mode."""
        return self._slots * self._in_slot + slot * len(self._modes) + mode

    def _require_places(self) -> None:
        for bucket in range(len(self._buckets)):
            row = {
                self._at(slot, mode, bucket): 1.0
                for slot in range(self._slots)
                for mode in range(len(self._modes))
            }
            self._rows.append((row, 1.0, 1.0))

    def _require_order(self, slot: int) -> None:
        """One mode a node; equal nodes in the order of their modes, so that no two solutions differ by names."""
        modes = range(len(self._modes))
        self._rows.append(({self.used(slot, mode): 1.0 for mode in modes}, 0.0, 1.0))
        if slot:
            row = {self.used(slot - 1, mode): float(len(self._modes) - mode) for mode in modes}
            row |= {self.used(slot, mode): -float(len(self._modes) - mode) for mode in modes}
            self._rows.append((row, 0.0, np.inf))

    def _require_capacity(self, slot: int, index: int, mode: _Mode, rules: Rules) -> None:
        z = self.used(slot, index)
        work: dict[int, float] = {}
        memory: dict[int, float] = {}
        traffic: dict[int, float] = {}
        anchors: dict[int, float] = {}
        type_ = mode.type
        for number, (job, which) in enumerate(self._buckets):
            bucket, x = self._jobs[job].buckets[which], self._at(slot, index, number)
            if not mode.steps[job]:
                self._rows.append(({x: 1.0}, 0.0, 0.0))
                continue
            self._rows.append(({x: 1.0, z: -1.0}, -np.inf, 0.0))
            per_s = mode.steps[job] / mode.cycle_s
            work[x] = bucket.execution_s * per_s / (rules.fill_max * type_.cores)
            memory[x] = bucket.memory_bytes / type_.memory_bytes
            traffic[x] = bucket.traffic_bytes * per_s / (rules.fill_max * type_.bandwidth_bytes_per_s)
            if job in mode.anchors:
                anchors[x] = 1.0
        for shares in (work, memory, traffic):
            shares = {x: share for x, share in shares.items() if share > _SMALL}
            if shares:
                self._rows.append(({**shares, z: -1.0}, -np.inf, 0.0))
        self._rows.append(({**anchors, z: -1.0}, 0.0, np.inf))

    def bound_losses(self) -> None:
        """No bucket is where its job loses more than the worst loss."""
        for slot in range(self._slots):
            for index, mode in enumerate(self._modes):
                for number, (job, _) in enumerate(self._buckets):
                    if mode.loss[job] > _CLOSE:
                        row = {self._at(slot, index, number): mode.loss[job], self.worst: -1.0}
                        self._rows.append((row, -np.inf, 0.0))

    def solve(self, cost: np.ndarray, time_limit_s: float) -> Solution | None:
        """The solution of least cost.

        Raises:
            RuntimeError: If the solver fails for another reason than the time.
        """
        at = [
            (row, column, value)
            for row, (cells, _, _) in enumerate(self._rows)
            for column, value in cells.items()
        ]
        rows, columns, values = zip(*at, strict=True)
        matrix = csr_matrix((values, (rows, columns)), shape=(len(self._rows), self.size))
        integrality = np.ones(self.size)
        integrality[self.worst] = 0.0
        found = milp(
            cost,
            integrality=integrality,
            bounds=Bounds(0.0, 1.0),
            constraints=LinearConstraint(
                matrix, [low for _, low, _ in self._rows], [high for _, _, high in self._rows]
            ),
            options={"time_limit": time_limit_s},
        )
        if found.status == _INFEASIBLE or (found.status == _LIMIT_REACHED and found.x is None):
            return None
        if found.x is None:
            raise RuntimeError(f"the solver failed: {found.message}")
        return self._read(found.x > 0.5, float(found.fun), proven=found.status == 0)

    def _read(self, chosen: np.ndarray, value: float, *, proven: bool) -> Solution:
        nodes: list[tuple[NodeType, float]] = []
        names: dict[int, str] = {}
        for slot in range(self._slots):
            for index, mode in enumerate(self._modes):
                if chosen[self.used(slot, index)]:
                    names[slot] = str(len(nodes))
                    nodes.append((mode.type, mode.cycle_s))
        placed: list[list[str]] = [[] for _ in self._jobs]
        for number, (job, _) in enumerate(self._buckets):
            (slot,) = {
                slot
                for slot in range(self._slots)
                for index in range(len(self._modes))
                if chosen[self._at(slot, index, number)]
            }
            placed[job].append(names[slot])
        return Solution(value, tuple(nodes), tuple(tuple(each) for each in placed), proven)
