"""Which nodes the slots of a plan are on.

A job of `K` slots lies on at most `ceil(K / m)` nodes, where `m` is the slots of the largest node. Whose number of
slots stays the same stays where it is. The others are placed in the order of the plan: where they have slots already,
else on the node where they fit best. One that fits nowhere takes the place of jobs that come later in that order, which
are placed anew; and if that does not help, the slots go to others.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Literal

import numpy as np

from scavenger.domain.curve import BoolArray, IntArray
from scavenger.scheduler.jobs.values import Plan, PoolSeen, Shares

Fit = Literal["best", "roomiest"]
Part = dict[int, int]
"""Slots of one job by node."""


@dataclass(frozen=True, slots=True)
class Placement:
    """How nodes are chosen.

    Attributes:
        fit: The node with the least room that suffices, or the one with the most.
        displace: Whether jobs that come later in a plan are moved to other nodes for one that fits nowhere.
    """

    fit: Fit = "best"
    displace: bool = True


def place(seen: PoolSeen, plan: Plan, how: Placement) -> Shares:
    """The shares of a plan; a job that fits no nodes has fewer slots than planned, or none."""
    shares = seen.shares
    stays = (plan.slots == seen.held) & seen.runs
    changes = plan.order[(plan.slots > 0)[plan.order] & ~stays[plan.order]]
    kept = stays[shares.job]
    if not len(changes):
        return shares if kept.all() else Shares(shares.job[kept], shares.node[kept], shares.slots[kept])
    return _Placing(seen, plan, how, stays, kept).shares(changes)


class _Placing:
    """One `place`: what is free changes with each job."""

    def __init__(self, seen: PoolSeen, plan: Plan, how: Placement, stays: BoolArray, kept: BoolArray) -> None:
        self._seen, self._plan, self._how, self._stays = seen, plan, how, stays
        room = seen.nodes.room
        shares = seen.shares
        self._kept = Shares(shares.job[kept], shares.node[kept], shares.slots[kept])
        self._free = room - np.bincount(self._kept.node, self._kept.slots, len(room)).astype(np.int64)
        self._largest = max(1, int(room.max(initial=1)))
        self._placed: dict[int, Part] = {}
        self._position: IntArray | None = None

    def shares(self, changes: IntArray) -> Shares:
        plan = self._plan
        queue = [(at, int(job)) for at, job in enumerate(changes.tolist())]
        if self._how.displace:
            self._position = np.empty(self._seen.jobs, dtype=np.int64)
            self._position[plan.order] = np.arange(self._seen.jobs)
            queue = [(int(self._position[job]), job) for _, job in queue]
        heapify(queue)
        failed = closed = False
        while queue:
            at, job = heappop(queue)
            if closed and self._seen.held[job] == 0:
                continue
            part = self._part(job, int(plan.slots[job]))
            if part is None and self._position is not None:
                part = self._displacing(job, at, queue)
            if part is None:
                failed = True
                closed = closed or bool(plan.keeps[job])
            else:
                self._take(job, part)
        if failed and not closed:
            self._others()
        if (plan.most > plan.slots).any():
            self._grow()
        return self._all()

    def _take(self, job: int, part: Part) -> None:
        self._placed[job] = part
        for node, slots in part.items():
            self._free[node] -= slots

    def _part(self, job: int, slots: int) -> Part | None:
        """Nodes for so many slots, or for as many as there are if the job can do with fewer."""
        held = {
            node: count
            for node, count in (self._seen.shares.of(job) if self._seen.held[job] else {}).items()
            if self._seen.nodes.open[node]
        }
        least = int(self._plan.gang[job])
        for count in range(-(-slots // self._largest), 0, -1):
            part = self._on(count, slots, held)
            if part is not None:
                return part
            if slots > least:
                # fewer slots: as many as that number of nodes has
                most = int(np.sort(self._free)[::-1][:count].sum())
                fewer = min(slots, most)
                if fewer >= least and -(-fewer // self._largest) == count:
                    return self._on(count, fewer, held)
                slots = max(least, min(slots, (count - 1) * self._largest))
            else:
                return None
        return None

    def _on(self, count: int, slots: int, held: Part) -> Part | None:
        """So many slots on at most so many nodes."""
        free = self._free
        if count == 1:
            for node in held:
                if free[node] >= slots:
                    return {node: slots}
            return self._one(slots)
        if held:
            own = sorted(held, key=lambda node: (-min(held[node], int(free[node])), node))
            for keep in (own[:count], []):
                part = self._several(count, slots, keep)
                if part is not None:
                    return part
            return None
        return self._several(count, slots, [])

    def _one(self, slots: int, without: Part | None = None) -> Part | None:
        free = self._free
        fits = np.flatnonzero(free >= slots)
        if without:
            fits = np.array([node for node in fits.tolist() if node not in without], dtype=np.int64)
        if not len(fits):
            return None
        room = free[fits]
        best = int(fits[int(room.argmin() if self._how.fit == "best" else room.argmax())])
        return {best: slots}

    def _several(self, count: int, slots: int, first: list[int]) -> Part | None:
        """These nodes first, then the roomiest; the last part of it goes where it fits best."""
        free, part, rest = self._free, dict[int, int](), slots
        roomiest = np.argsort(-free, kind="stable")[: count + len(first)].tolist()
        for node in [*first, *(node for node in roomiest if node not in first)]:
            if rest == 0 or len(part) == count:
                break
            if len(part) == count - 1 and (last := self._one(rest, part)) is not None:
                return {**part, **last}
            taken = min(rest, int(free[node]))
            if taken > 0:
                part[node] = taken
                rest -= taken
        return part if rest == 0 else None

    def _displacing(self, job: int, at: int, queue: list[tuple[int, int]]) -> Part | None:
        """Nodes for the least of a job in place of jobs that come later: where fewest slots have to move."""
        assert self._position is not None
        slots = int(self._plan.gang[job])
        later = self._position[self._kept.job] > at
        movable = self._free + np.bincount(
            self._kept.node[later], self._kept.slots[later], len(self._free)
        ).astype(np.int64)
        for other, part in self._placed.items():
            if self._position[other] > at:
                for node, count in part.items():
                    movable[node] += count
        count = -(-slots // self._largest)
        if int(np.sort(movable)[::-1][:count].sum()) < slots:
            return None
        chosen, rest = list[int](), slots
        while rest > 0:
            want = min(rest, self._largest)
            fits = movable >= want
            fits[chosen] = False
            if not fits.any():
                want = int(np.delete(movable, chosen).max())
                fits = movable >= want
                fits[chosen] = False
            node = int(np.argmax(np.where(fits, self._free, -1)))
            chosen.append(node)
            rest -= want
            self._empty(node, want, at, queue)
            if len(chosen) == count and rest > 0:
                return self._part(job, slots)  # unequal nodes: whatever has become free
        return self._part(job, slots)

    def _empty(self, node: int, slots: int, at: int, queue: list[tuple[int, int]]) -> None:
        """Take jobs that come later off a node, the last first, until so many slots are free."""
        assert self._position is not None
        there = [
            (int(self._position[job]), int(job)) for job in self._kept.job[self._kept.node == node].tolist()
        ]
        there += [(int(self._position[job]), job) for job, part in self._placed.items() if node in part]
        for position, job in sorted(there, reverse=True):
            if position <= at or self._free[node] >= slots:
                return
            part = self._placed.pop(job, None)
            if part is None:
                mine = self._kept.job == job
                part = dict(zip(self._kept.node[mine].tolist(), self._kept.slots[mine].tolist(), strict=True))
                self._kept = Shares(self._kept.job[~mine], self._kept.node[~mine], self._kept.slots[~mine])
            for where, count in part.items():
                self._free[where] += count
            heappush(queue, (position, job))

    def _others(self) -> None:
        """Slots that are idle because others fit nowhere go to jobs that have none, in their order."""
        plan = self._plan
        has = np.zeros(self._seen.jobs, dtype=bool)
        has[self._kept.job] = True
        has[list(self._placed)] = True
        order = plan.order[~has[plan.order] & (plan.gang[plan.order] > 0)]
        need = plan.gang[order]
        too_many = np.iinfo(np.int64).max
        while len(order):
            fits = (need <= int(self._free.sum())) & (need < too_many)
            order, need = order[fits], need[fits]
            if not len(order):
                return
            job, slots = int(order[0]), int(need[0])
            part = self._part(job, slots)
            if part is None:
                too_many = slots
            else:
                self._take(job, part)
            order, need = order[1:], need[1:]

    def _grow(self) -> None:
        """Slots that are still idle go to jobs that lie on the same node and can take more, in their order."""
        plan = self._plan
        total = self._kept.by_job(self._seen.jobs)
        for job, part in self._placed.items():
            total[job] = sum(part.values())
        for node in np.flatnonzero(self._free > 0).tolist():
            there = set(self._kept.job[self._kept.node == node].tolist())
            there |= {job for job, part in self._placed.items() if node in part}
            wants = [job for job in there if 0 < total[job] < plan.most[job]]
            for job in sorted(wants, key=lambda job: int(np.flatnonzero(plan.order == job)[0])):
                more = min(int(self._free[node]), int(plan.most[job] - total[job]))
                if more <= 0:
                    continue
                if job not in self._placed:
                    mine = self._kept.job == job
                    self._placed[job] = dict(
                        zip(self._kept.node[mine].tolist(), self._kept.slots[mine].tolist(), strict=True)
                    )
                    self._kept = Shares(
                        self._kept.job[~mine], self._kept.node[~mine], self._kept.slots[~mine]
                    )
                self._placed[job][node] += more
                total[job] += more
                self._free[node] -= more

    def _all(self) -> Shares:
        if not self._placed:
            return self._kept
        rows = [
            (job, node, slots) for job, part in self._placed.items() for node, slots in sorted(part.items())
        ]
        job, node, slots = np.array(rows, dtype=np.int64).T
        kept = self._kept
        return Shares(
            np.concatenate([kept.job, job]),
            np.concatenate([kept.node, node]),
            np.concatenate([kept.slots, slots]),
        )
