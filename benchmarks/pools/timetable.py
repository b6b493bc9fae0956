"""The slots of an execution cycle: when a node reserves its cores for which job.

`cycles` says how many steps a job makes in a cycle and whether they fit; a `Timetable` says when. Each bucket of
a job belongs to one core of the node. For each of its steps in the cycle a job has slots on each of its cores, as
long together as its buckets there take, which end when the step's last gradient is expected to be summed and
applied. Slots of one core do not overlap. The ends of two steps are at least the job's step time alone apart, so a
job that was served in its slots is ready again for the next ones, and makes all of its steps in every cycle.

Jobs are placed one by one, those with the shortest steps first, because they have the most slots. Their steps are
evenly spaced if there is a shift at which the slots of all of them are free, otherwise unevenly. Where slots do not
fit in one piece, they are divided between buckets. A job for which no room is found has no slots: `serving` serves
it in the time that the others leave, without a promise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace

from scavenger.scheduler.cycles import steps_in_cycle

_ROUNDING = 1e-9
"""Seconds: overlaps that are shorter than this are rounding."""

_SHIFTS = 16
"""Shifts that are tried for the slots of a step, over the time until the next one."""

_WINDOW = 0.5
"""Slots of a step lie in the last part of its time, in which gradients become whole: this share of the step."""

_Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class CyclicJob:
    """A job on a node, as its timetable needs it.

    Attributes:
        step_time_s: Measured alone, above 0.
        executions_s: Processor seconds of each of its buckets on this node, by number.
        due_s: When in the cycle its first step should be complete, as observed; any time if its workers have not
            begun yet.
    """

    name: str
    step_time_s: float
    executions_s: Mapping[int, float]
    due_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Slots:
    """Time that a job has on one core in each cycle.

    Attributes:
        pieces_s: Begin and length of each slot, by begin, which is in `[0, cycle_s)`; never empty. The last one may
            reach into the next cycle.
    """

    cycle_s: float
    pieces_s: tuple[tuple[float, float], ...]

    def slot(self, number: int) -> tuple[float, float]:
        """Begin and end of slot `number`, counted over all cycles from the first slot of cycle 0."""
        cycle, index = divmod(number, len(self.pieces_s))
        begin_s, length_s = self.pieces_s[index]
        begin_s += cycle * self.cycle_s
        return begin_s, begin_s + length_s

    def first_open(self, at_s: float) -> int:
        """Number of the first slot that has not ended at this time."""
        number = (int(at_s // self.cycle_s) - 1) * len(self.pieces_s)
        while self.slot(number)[1] <= at_s + _ROUNDING:
            number += 1
        return number


@dataclass(frozen=True, slots=True)
class Timetable:
    """The slots of a node.

    Attributes:
        cores: Number of cores.
        executions_s: Processor seconds by job and bucket.
        core_of: The core of each job and bucket, from 0.
        slots: By job and core; of a job, on all cores that it uses or on none.
    """

    cycle_s: float = 0.0
    cores: int = 1
    executions_s: Mapping[tuple[str, int], float] = field(default_factory=dict)
    core_of: Mapping[tuple[str, int], int] = field(default_factory=dict)
    slots: Mapping[tuple[str, int], Slots] = field(default_factory=dict)

    @property
    def without_promise(self) -> frozenset[str]:
        """Jobs that have no slots."""
        return frozenset({job for job, _ in self.executions_s} - {job for job, _ in self.slots})

    def without_slots(self) -> Timetable:
        """The same buckets on the same cores, but all in the order of their arrival."""
        return Timetable(self.cycle_s, self.cores, self.executions_s, self.core_of)


def assign_cores(jobs: Iterable[CyclicJob], cores: int) -> dict[tuple[str, int], int]:
    """The core of each bucket: largest first, to the core where the job has least, of those the least used.

    Returns:
        By job and bucket.

    References:
        R. L. Graham, "Bounds on Multiprocessing Timing Anomalies", 1969.
    """
    used = [0.0] * cores
    found = {}
    for job in jobs:
        order = [(0.0, used[core], core) for core in range(cores)]
        heapify(order)
        for bucket, execution_s in sorted(job.executions_s.items(), key=lambda item: (-item[1], item[0])):
            own_s, _, core = order[0]
            used[core] += execution_s / job.step_time_s
            heapreplace(order, (own_s + execution_s, used[core], core))
            found[job.name, bucket] = core
    return found


def plan_timetable(jobs: Sequence[CyclicJob], cycle_s: float, cores: int) -> Timetable:
    """Place the slots of all jobs of a node.

    Args:
        jobs: Each name once.
        cycle_s: At least the longest step time of them.
        cores: At least 1.

    Raises:
        ValueError: If a job makes no step in the cycle, or there is no core.
    """
    if cores < 1:
        raise ValueError("a node needs a core")
    core_of = assign_cores(jobs, cores)
    free = [_Free(cycle_s) for _ in range(cores)]
    slots: dict[tuple[str, int], Slots] = {}
    for job in sorted(jobs, key=lambda job: (job.step_time_s, job.name)):
        steps = steps_in_cycle(cycle_s, job.step_time_s)
        if not steps:
            raise ValueError(
                f"a cycle of {cycle_s} s has no step of job {job.name}, which takes {job.step_time_s} s"
            )
        found = _place(job, _needs(job, core_of), free, cycle_s, steps)
        slots |= {(job.name, core): Slots(cycle_s, pieces) for core, pieces in found.items()}
    executions = {(job.name, bucket): s for job in jobs for bucket, s in job.executions_s.items()}
    return Timetable(cycle_s, cores, executions, core_of, slots)


@dataclass(frozen=True, slots=True)
class _Need:
    """What a job needs of a core in a step: number of buckets, seconds together, and the longest bucket."""

    buckets: int
    length_s: float
    longest_s: float


def _needs(job: CyclicJob, core_of: Mapping[tuple[str, int], int]) -> dict[int, _Need]:
    by_core: dict[int, list[float]] = {}
    for bucket, execution_s in job.executions_s.items():
        if execution_s > 0.0:
            by_core.setdefault(core_of[job.name, bucket], []).append(execution_s)
    return {core: _Need(len(times), sum(times), max(times)) for core, times in by_core.items()}


def _place(
    job: CyclicJob, needs: Mapping[int, _Need], free: Sequence[_Free], cycle_s: float, steps: int
) -> dict[int, tuple[_Interval, ...]]:
    """Take slots for all steps of a job out of what is free; nothing if there is no room."""
    step_s = cycle_s / steps
    shifts_s = [step_s * i / _SHIFTS for i in range(_SHIFTS)]
    for shift_s in shifts_s:
        ends_s = [job.due_s + shift_s + i * step_s for i in range(steps)]
        if (taken := _taken(job, needs, free, ends_s)) is not None:
            return taken
    ends_s = []
    for _ in range(steps):
        earliest_s = ends_s[-1] + job.step_time_s if ends_s else job.due_s
        for shift_s in shifts_s:
            if _taken(job, needs, free, [*ends_s, earliest_s + shift_s], keep=False) is not None:
                ends_s.append(earliest_s + shift_s)
                break
        else:
            return {}
    if ends_s[0] + cycle_s < ends_s[-1] + job.step_time_s - _ROUNDING:
        return {}
    return _taken(job, needs, free, ends_s) or {}


def _taken(
    job: CyclicJob,
    needs: Mapping[int, _Need],
    free: Sequence[_Free],
    ends_s: Sequence[float],
    *,
    keep: bool = True,
) -> dict[int, tuple[_Interval, ...]] | None:
    """Slots on all cores for steps that end then, or None if there is no room.

    Args:
        keep: Whether they are taken from what is free.
    """
    trial = {core: free[core].copy() for core in needs}
    found: dict[int, list[_Interval]] = {core: [] for core in needs}
    for end_s in ends_s:
        for core, need in needs.items():
            pieces = trial[core].take(end_s, job.step_time_s * _WINDOW, need)
            if pieces is None:
                return None
            found[core] += pieces
    if keep:
        for core, rest in trial.items():
            free[core].intervals = rest.intervals
    return {core: tuple(sorted(pieces)) for core, pieces in found.items()}


class _Free:
    """Free time of one core in a cycle: intervals that do not overlap, ascending."""

    def __init__(self, cycle_s: float, intervals: Sequence[_Interval] | None = None) -> None:
        self._cycle_s = cycle_s
        self.intervals = [(0.0, cycle_s)] if intervals is None else list(intervals)

    def copy(self) -> _Free:
        return _Free(self._cycle_s, self.intervals)

    def take(self, end_s: float, window_s: float, need: _Need) -> list[_Interval] | None:
        """Take what is free last before a time, as (begin, length); None if too little is free in the window."""
        end_s %= self._cycle_s
        window_s = min(max(window_s, need.length_s), self._cycle_s)
        left, pieces = need.buckets, []
        for begin, end in self._before(end_s, end_s - window_s):
            if left == need.buckets and end - begin >= need.length_s - _ROUNDING:
                pieces.append((end - need.length_s, need.length_s))
                left = 0
            else:  # any of the buckets may be the next: each takes as long as the longest
                held = min(left, int((end - begin + _ROUNDING) / need.longest_s))
                if held:
                    pieces.append((end - held * need.longest_s, held * need.longest_s))
                left -= held
            if not left:
                break
        if left:
            return None
        for begin, length_s in pieces:
            self._remove(begin, begin + length_s)
        return [(_in_cycle(begin, self._cycle_s), length_s) for begin, length_s in pieces]

    def _before(self, end_s: float, begin_s: float) -> Iterator[_Interval]:
        """What is free between two times, the last first; intervals that meet at the cycle's end are one."""
        unrolled: list[_Interval] = []
        for begin, end in [
            *((b - self._cycle_s, e - self._cycle_s) for b, e in self.intervals),
            *self.intervals,
        ]:
            if unrolled and begin - unrolled[-1][1] <= _ROUNDING:
                unrolled[-1] = unrolled[-1][0], end
            else:
                unrolled.append((begin, end))
        for begin, end in reversed(unrolled):
            begin, end = max(begin, begin_s), min(end, end_s)
            if begin < end:
                yield begin, end

    def _remove(self, begin_s: float, end_s: float) -> None:
        if begin_s < 0.0:  # it lies on both sides of the cycle's begin
            self._remove(begin_s + self._cycle_s, min(end_s + self._cycle_s, self._cycle_s))
            begin_s = 0.0
        left = []
        for interval in self.intervals:
            begin, end = interval
            if end <= begin_s or begin >= end_s:
                left.append(interval)
                continue
            if begin_s - begin > _ROUNDING:
                left.append((begin, begin_s))
            if end - end_s > _ROUNDING:
                left.append((end_s, end))
        self.intervals = left


def _in_cycle(at_s: float, cycle_s: float) -> float:
    found_s = at_s % cycle_s
    return found_s if found_s < cycle_s else 0.0  # -1e-17 % 1.0 is 1.0
