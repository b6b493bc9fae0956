"""Which nodes the slots of a plan are on.

A job of `K` slots lies on at most `ceil(K / m)` nodes, where `m` is the slots of the largest node. Whose number of
slots stays the same stays where it is; whoever shall have fewer gives them up. The others take their turn in the order
of the plan: where they are, else on the node where they fit best. One without slots that fits nowhere takes the place
of jobs that come later in that order, which are placed anew; and if that does not help, the slots go to others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Literal

import numpy as np

from scavenger.domain.curve import BoolArray, IntArray
from scavenger.scheduler.jobs.values import Plan, PoolSeen, Shares

Fit = Literal["best", "roomiest"]
Part = dict[int, int]
"""Slots of one job by node."""

_PASSES = 4
"""So often at most those who fell short try again, because others have moved since."""


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
    shares, held = seen.shares, seen.held
    stays = (plan.slots == held) & seen.runs
    changes = (plan.slots > 0) & ~stays
    nodes = np.flatnonzero(seen.nodes.room)
    if len(nodes) == 1:
        if not changes.any() and np.array_equal(plan.slots, held):
            return shares
        jobs = np.flatnonzero(plan.slots)
        return Shares(jobs, np.full(len(jobs), nodes[0]), plan.slots[jobs])
    kept = stays[shares.job]
    if not changes.any():
        return shares if kept.all() else Shares(shares.job[kept], shares.node[kept], shares.slots[kept])
    return _Placing(seen, plan, how, kept).shares(np.flatnonzero(changes))


class _Room:
    """Slots that are free, by node, and the nodes of each room as the bits of a number."""

    def __init__(self, free: list[int], fit: Fit) -> None:
        self.free = free
        self.largest = max(free, default=0)
        self._best = fit == "best"
        self._nodes = [0] * (self.largest + 1)
        for node, slots in enumerate(free):
            self._nodes[slots] |= 1 << node

    def add(self, node: int, slots: int) -> None:
        """So many more are free; fewer if below 0."""
        before = self.free[node]
        after = self.free[node] = before + slots
        if after >= len(self._nodes):
            self._nodes += [0] * (after + 1 - len(self._nodes))
        self._nodes[before] ^= 1 << node
        self._nodes[after] |= 1 << node

    def one(self, slots: int, without: Part | None = None) -> int | None:
        """A node with so much room."""
        others = -1
        for node in without or ():
            others ^= 1 << node
        nodes, end = self._nodes, len(self._nodes)
        for room in range(slots, end) if self._best else range(end - 1, slots - 1, -1):
            if fits := nodes[room] & others:
                return (fits & -fits).bit_length() - 1
        return None

    def roomiest(self) -> Iterator[int]:
        """Nodes with any room, those with most of it first."""
        for room in range(len(self._nodes) - 1, 0, -1):
            fits = self._nodes[room]
            while fits:
                low = fits & -fits
                yield low.bit_length() - 1
                fits ^= low

    def most(self, count: int) -> int:
        """Slots on that many nodes."""
        nodes = self.roomiest()
        return sum(self.free[node] for node, _ in zip(nodes, range(count), strict=False))


class _Placing:
    """One `place`: what is free changes with each job."""

    def __init__(self, seen: PoolSeen, plan: Plan, how: Placement, kept: BoolArray) -> None:
        self._seen, self._plan, self._how = seen, plan, how
        room, shares = seen.nodes.room, seen.shares
        self._kept = kept
        self._largest = max(1, int(room.max(initial=1)))
        self._position = np.empty(seen.jobs, dtype=np.int64)
        self._position[plan.order] = np.arange(seen.jobs)
        self._placed: dict[int, Part] = {}
        self._had: dict[int, Part] = {}
        """What jobs held on open nodes that do not stay where they are."""
        self._freed = False
        self._failed: dict[int, int] = {}
        """By number of nodes: so many slots found no nodes, and since then no slot became free."""
        self._free = room - np.bincount(shares.node[kept], shares.slots[kept], len(room)).astype(np.int64)
        self._lower(np.flatnonzero(~kept & seen.nodes.open[shares.node]))
        self._room = _Room(self._free.tolist(), how.fit)

    def _lower(self, rows: IntArray) -> None:
        """What is left to jobs whose numbers change, before any takes more."""
        plan, shares = self._plan, self._seen.shares
        jobs, nodes = shares.job[rows], shares.node[rows]
        for job, node, slots in zip(jobs.tolist(), nodes.tolist(), shares.slots[rows].tolist(), strict=True):
            self._had.setdefault(job, {})[node] = slots
        left = np.minimum(shares.slots[rows], plan.slots[jobs])
        goes_on = (left >= plan.gang[jobs]) & (left > 0) & self._seen.runs[jobs]
        several = np.bincount(jobs, minlength=self._seen.jobs)[jobs] > 1
        alone = np.flatnonzero(goes_on & ~several)
        self._free -= np.bincount(nodes[alone], left[alone], len(self._free)).astype(np.int64)
        for job, node, slots in zip(
            jobs[alone].tolist(), nodes[alone].tolist(), left[alone].tolist(), strict=True
        ):
            self._placed[job] = {node: slots}
        for job in dict.fromkeys(jobs[several].tolist()):
            part = _reduced(self._had[job], int(plan.slots[job]), self._largest)
            if part and self._seen.runs[job] and sum(part.values()) >= plan.gang[job]:
                self._placed[job] = part
                for node, slots in part.items():
                    self._free[node] -= slots

    def shares(self, changes: IntArray) -> Shares:
        """Each of these takes its turn, and what is idle then goes to others."""
        plan = self._plan
        queue = [
            (at, job)
            for at, job, slots in zip(
                self._position[changes].tolist(), changes.tolist(), plan.slots[changes].tolist(), strict=True
            )
            if job not in self._placed or sum(self._placed[job].values()) < slots
        ]
        closed = False
        for _ in range(_PASSES):
            heapify(queue)
            short = list[tuple[int, int]]()
            self._freed = False
            self._failed.clear()
            while queue:
                at, job = heappop(queue)
                if closed and job not in self._placed and self._seen.held[job] == 0:
                    continue
                self._turn(job, at, queue)
                if job not in self._placed:
                    closed = closed or bool(plan.keeps[job])
                    short.append((at, job))
                elif sum(self._placed[job].values()) < plan.slots[job]:
                    short.append((at, job))
            queue = short
            if not (queue and self._freed):
                break
        if plan.by_speed:
            for _, job in queue:
                self._shrink(job)
        if queue and not closed:
            self._others()
        self._grow()
        return self._all()

    def _turn(self, job: int, at: int, queue: list[tuple[int, int]]) -> None:
        """The slots planned for a job, or as many as there are."""
        slots, part = int(self._plan.slots[job]), self._placed.get(job)
        if part is None:
            self._begin(job, slots, at, queue)
            return
        had = sum(part.values())
        if slots <= self._largest and len(part) == 1:
            ((node, _),) = part.items()
            room = had + self._room.free[node]
            if room >= slots or self._room.one(room + 1) is None:
                if room > had:
                    self._take(job, {node: min(slots, room) - had})
                return
        self._leave(job)
        found = self._part(slots, had + 1, part)
        self._take(job, found or part)
        if found is not None and any(slots > found.get(node, 0) for node, slots in part.items()):
            self._frees()

    def _begin(self, job: int, slots: int, at: int, queue: list[tuple[int, int]]) -> None:
        least = int(self._plan.gang[job])
        nodes = -(-least // self._largest)
        if least >= self._failed.get(nodes, least + 1):
            return
        part = self._part(slots, least, self._had.get(job, {}))
        if part is None and self._how.displace:
            part = self._displacing(job, at, queue)
        if part is None:
            self._failed[nodes] = least
        else:
            self._take(job, part)

    def _frees(self) -> None:
        self._freed = True
        self._failed.clear()

    def _take(self, job: int, part: Part) -> None:
        mine = self._placed.setdefault(job, {})
        for node, slots in part.items():
            mine[node] = mine.get(node, 0) + slots
            self._room.add(node, -slots)

    def _leave(self, job: int) -> None:
        for node, slots in self._placed.pop(job).items():
            self._room.add(node, slots)

    def _shrink(self, job: int) -> None:
        """A job that has not got all that was planned gives up what makes it slower."""
        if (part := self._placed.get(job)) is None:
            return
        slots = max(int(self._plan.gang[job]), self._seen.fastest_of(job, sum(part.values())))
        if slots < sum(part.values()):
            self._leave(job)
            self._take(job, _reduced(part, slots, self._largest))

    def _part(self, slots: int, least: int, held: Part) -> Part | None:
        """Nodes for so many slots, or for as many as there are, down to `least`."""
        for count in range(-(-slots // self._largest), 0, -1):
            part = self._on(count, slots, held)
            if part is not None:
                return part
            if slots <= least:
                return None
            # fewer slots: as many as that number of nodes has
            fewer = min(slots, self._room.most(count))
            if fewer >= least and -(-fewer // self._largest) == count:
                return self._on(count, fewer, held)
            slots = max(least, min(slots, (count - 1) * self._largest))
        return None

    def _on(self, count: int, slots: int, held: Part) -> Part | None:
        """So many slots on at most so many nodes, those that it has first."""
        free = self._room.free
        if count == 1:
            for node in held:
                if free[node] >= slots:
                    return {node: slots}
            one = self._room.one(slots)
            return None if one is None else {one: slots}
        if held:
            own = sorted(held, key=lambda node: (-min(held[node], free[node]), node))
            part = self._several(count, slots, own[:count])
            if part is not None:
                return part
        return self._several(count, slots, [])

    def _several(self, count: int, slots: int, first: list[int]) -> Part | None:
        """These nodes first, then the roomiest; the last part of it goes where it fits best."""
        free, part, rest = self._room.free, dict[int, int](), slots
        for node in _chained(first, self._room.roomiest()):
            if len(part) == count - 1 and (last := self._room.one(rest, part)) is not None:
                return {**part, last: rest}
            taken = min(rest, free[node])
            if taken > 0:
                part[node] = taken
                rest -= taken
            if rest == 0 or len(part) == count:
                break
        return part if rest == 0 else None

    def _displacing(self, job: int, at: int, queue: list[tuple[int, int]]) -> Part | None:
        """Nodes for the least of a job in place of jobs that come later: where fewest slots have to move."""
        slots, shares = int(self._plan.gang[job]), self._seen.shares
        later = self._kept & (self._position > at)[shares.job]
        free = np.array(self._room.free)
        movable = free + np.bincount(shares.node[later], shares.slots[later], len(free)).astype(np.int64)
        for other, part in self._placed.items():
            if self._position[other] > at:
                for node, count in part.items():
                    movable[node] += count
        count = -(-slots // self._largest)
        if int(np.sort(movable)[::-1][:count].sum()) < slots:
            return None
        chosen, rest = list[int](), slots
        while rest > 0 and len(chosen) < count:
            want = min(rest, self._largest)
            fits = movable >= want
            fits[chosen] = False
            if not fits.any():
                want = int(np.delete(movable, chosen).max())
                fits = movable >= want
                fits[chosen] = False
            node = int(np.argmax(np.where(fits, self._room.free, -1)))
            chosen.append(node)
            rest -= want
            self._empty(node, want, at, queue)
        return self._part(slots, slots, {})

    def _empty(self, node: int, slots: int, at: int, queue: list[tuple[int, int]]) -> None:
        """Take jobs that come later off a node, the last first, until so many slots are free."""
        shares = self._seen.shares
        there = shares.job[self._kept & (shares.node == node)].tolist()
        there += [job for job, part in self._placed.items() if node in part]
        for position, job in sorted(((int(self._position[job]), job) for job in there), reverse=True):
            if position <= at or self._room.free[node] >= slots:
                return
            self._give_up(job)
            self._leave(job)
            self._frees()
            heappush(queue, (position, job))

    def _give_up(self, job: int) -> None:
        """A job that stays where it is does so no longer."""
        if job not in self._placed:
            shares = self._seen.shares
            mine = np.flatnonzero(shares.job == job)
            self._kept[mine] = False
            self._placed[job] = dict(
                zip(shares.node[mine].tolist(), shares.slots[mine].tolist(), strict=True)
            )

    def _others(self) -> None:
        """Slots that are idle because others fit nowhere go to jobs that have none, in their order."""
        plan, room = self._plan, self._room
        idle = sum(room.free)
        wants = (plan.gang > 0) & (plan.gang <= idle)
        wants[self._seen.shares.job[self._kept]] = False
        wants[list(self._placed)] = False
        order = plan.order[wants[plan.order]]
        failed: dict[int, int] = {}
        for job, slots in zip(order.tolist(), plan.gang[order].tolist(), strict=True):
            nodes = -(-slots // self._largest)
            if slots > idle or slots >= failed.get(nodes, slots + 1):
                continue
            part = self._part(slots, slots, self._had.get(job, {}))
            if part is None:
                failed[nodes] = slots
                continue
            self._take(job, part)
            idle -= slots
            if idle == 0:
                return

    def _grow(self) -> None:
        """Slots that are still idle go to jobs that lie on the same node and can take more, first come first served."""
        plan, shares, room = self._plan, self._seen.shares, self._room
        if not sum(room.free) or not (plan.most > plan.slots).any():
            return
        idle = np.array(room.free) > 0
        wants = (plan.most > plan.slots)[shares.job] & idle[shares.node] & self._kept
        there = list(zip(shares.job[wants].tolist(), shares.node[wants].tolist(), strict=True))
        there += [(job, node) for job, part in self._placed.items() for node in part if room.free[node]]
        submitted, most = self._seen.claims.submitted_s, plan.most
        for _, job, node in sorted((float(submitted[job]), job, node) for job, node in there):
            total = sum(self._placed[job].values()) if job in self._placed else int(plan.slots[job])
            more = min(room.free[node], int(most[job]) - total)
            if plan.by_speed and more > 0:
                more = self._seen.fastest_of(job, total + more) - total
            if more > 0:
                self._give_up(job)
                self._take(job, {node: more})

    def _all(self) -> Shares:
        shares, kept = self._seen.shares, self._kept
        rows = [(job, node, slots) for job, part in self._placed.items() for node, slots in part.items()]
        placed = np.array(rows, dtype=np.int64).reshape(-1, 3)
        return Shares(
            np.concatenate([shares.job[kept], placed[:, 0]]),
            np.concatenate([shares.node[kept], placed[:, 1]]),
            np.concatenate([shares.slots[kept], placed[:, 2]]),
        )


def _reduced(part: Part, slots: int, largest: int) -> Part:
    """At most so many of these slots, on no more nodes than so many may lie on: small parts are given up first."""
    rest, kept = slots, dict[int, int]()
    if len(part) == 1:
        return {node: min(slots, count) for node, count in part.items()}
    count = -(-slots // largest)
    for node, there in sorted(part.items(), key=lambda item: (-item[1], item[0])):
        if rest == 0 or len(kept) == count:
            break
        kept[node] = min(rest, there)
        rest -= kept[node]
    # with what is left it may lie on fewer
    have = slots - rest
    return kept if -(-have // largest) >= len(kept) else _reduced(kept, have, largest)


def _chained(first: list[int], rest: Iterator[int]) -> Iterator[int]:
    yield from first
    yield from (node for node in rest if node not in first)
