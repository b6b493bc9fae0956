"""Cyclic execution: which request an aggregator node executes next, on which core.

A *request* is a bucket of a job's step whose gradient is whole. It is executed once, on one core, without being
interrupted. Events in, instructions out:

| event | effect |
|---|---|
| `arrived` | the request gets the next time of its job's slots that is still free; a repeated one is ignored |
| `finished` | the core is idle |
| `planned` | another timetable holds; waiting requests get times in its slots |
| `left` | waiting requests of the job are dropped |

After each event every idle core takes

1. a request of its own whose slot has begun, the one that is due first; if there is none,
2. an *outlier*: any other waiting request, the one that is due first. It came after its slot, before it, is more
   than its slots hold, or its job has none.

So a core is never idle while a request waits. **What a job is promised:** when a request arrives, it reserves its
execution in the slots of its job alone, and is *due* at the end of that reservation. Reservations of one core do not
overlap. Hence a request is complete at most one bucket's execution after it is due, whatever the others do: at the
moment when its slot begins to be used, the core is idle or executes one bucket, and from then on only reservations
that are due earlier precede it, which take no more than the time reserved for them. A job that floods the
node reserves only its own slots, far ahead, so its requests are due later and later, and lose against
the outliers of others. [1]_ also lets late requests use what remains of a cycle, but keeps time for all requests
that are still expected; here a request in its slot goes first, so nothing has to be kept.

References:
    .. [1] Gu et al., "Elastic Model Aggregation with Parameter Service", 2022, section 3.3.1, outliers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from benchmarks.pools.timetable import Timetable

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, order=True)
class Request:
    """One bucket of one step of a job; steps of a bucket only grow."""

    job: str
    bucket: int
    step: int


@dataclass(frozen=True, slots=True)
class Execute:
    """Sum and apply this bucket on this core now.

    Attributes:
        due_s: By when its slot would have served it. It is complete at most one bucket's execution later.
        in_slot: Whether it is executed in its slot; an outlier is executed in time that no slot needs.
    """

    core: int
    request: Request
    execution_s: float
    due_s: float
    in_slot: bool


@dataclass(frozen=True, slots=True, order=True)
class _Waiting:
    """A request, in the order in which requests of a core are due."""

    due_s: float
    arrival: int
    begin_s: float
    request: Request
    execution_s: float


@dataclass(slots=True)
class _Reserved:
    """How much of its slots on a core a job has reserved: all before slot `number`, and that slot up to `until_s`."""

    number: int
    until_s: float


class CyclicExecution:
    """The state of one aggregator node.

    Args:
        timetable: With all jobs that send requests. Times of events are those of its cycles: cycle 0 begins at 0.
    """

    def __init__(self, timetable: Timetable) -> None:
        self._timetable = timetable
        # requests with a slot, by core, and behind them those without
        self._waiting: list[list[_Waiting]] = [[] for _ in range(timetable.cores + 1)]
        self._idle = set(range(timetable.cores))
        self._reserved: dict[tuple[str, int], _Reserved] = {}
        self._last_step: dict[tuple[str, int], int] = {}
        self._arrivals = 0

    def arrived(self, at_s: float, request: Request) -> tuple[Execute, ...]:
        """A gradient is whole.

        Raises:
            KeyError: If the timetable does not have the bucket.
        """
        key = request.job, request.bucket
        execution_s = self._timetable.executions_s[key]
        if request.step <= self._last_step.get(key, -1):
            return ()
        self._last_step[key] = request.step
        self._wait(at_s, request, execution_s, self._arrivals)
        self._arrivals += 1
        return tuple(self._dispatch(at_s))

    def finished(self, at_s: float, core: int) -> tuple[Execute, ...]:
        """A core has executed its request.

        Raises:
            ValueError: If it had none.
        """
        if core in self._idle:
            raise ValueError(f"core {core} executes nothing")
        self._idle.add(core)
        return tuple(self._dispatch(at_s))

    def planned(self, at_s: float, timetable: Timetable) -> tuple[Execute, ...]:
        """Another timetable holds from now on; what is executed goes on.

        Raises:
            ValueError: If it is for another number of cores.
            KeyError: If it lacks a bucket of a waiting request.
        """
        if timetable.cores != self._timetable.cores:
            raise ValueError(f"a timetable of {timetable.cores} cores for {self._timetable.cores}")
        waiting = sorted((one for heap in self._waiting for one in heap), key=lambda one: one.arrival)
        self._timetable, self._reserved = timetable, {}
        self._waiting = [[] for _ in range(timetable.cores + 1)]
        for one in waiting:
            key = one.request.job, one.request.bucket
            self._wait(at_s, one.request, timetable.executions_s[key], one.arrival)
        return tuple(self._dispatch(at_s))

    def left(self, job: str) -> None:
        """A job sends no more requests: those that wait are dropped, and its numbers of steps forgotten."""
        for core, heap in enumerate(self._waiting):
            self._waiting[core] = [one for one in heap if one.request.job != job]
            heapify(self._waiting[core])
        self._reserved = {key: reserved for key, reserved in self._reserved.items() if key[0] != job}
        self._last_step = {key: step for key, step in self._last_step.items() if key[0] != job}

    def _wait(self, at_s: float, request: Request, execution_s: float, arrival: int) -> None:
        core = self._timetable.core_of[request.job, request.bucket]
        found = self._reserve(at_s, (request.job, core), execution_s)
        if found is None:  # it ranks with outliers that are due a cycle later
            begin_s, due_s, core = math.inf, at_s + self._timetable.cycle_s, -1
        else:
            begin_s, due_s = found
        heappush(self._waiting[core], _Waiting(due_s, arrival, begin_s, request, execution_s))

    def _reserve(self, at_s: float, key: tuple[str, int], execution_s: float) -> tuple[float, float] | None:
        """When the slot begins that has time for a request, and when the request is due; None without slots."""
        slots = self._timetable.slots.get(key)
        if slots is None:
            return None
        number = slots.first_open(at_s)
        reserved = self._reserved.get(key)
        if reserved is None or reserved.number < number:
            reserved = self._reserved[key] = _Reserved(number, slots.slot(number)[0])
        begin_s, end_s = slots.slot(reserved.number)
        due_s = max(reserved.until_s, at_s) + execution_s
        while due_s > end_s + _ROUNDING:
            reserved.number += 1
            begin_s, end_s = slots.slot(reserved.number)
            due_s = max(begin_s, at_s) + execution_s
        reserved.until_s = due_s
        return begin_s, due_s

    def _dispatch(self, at_s: float) -> Iterator[Execute]:
        for core in sorted(self._idle):
            heap = self._waiting[core]
            # slots of a core do not overlap: what is due first is also in the slot that begins first
            in_slot = bool(heap) and heap[0].begin_s <= at_s + _ROUNDING
            if not in_slot:
                heap = min((heap for heap in self._waiting if heap), key=lambda heap: heap[0], default=[])
            if not heap:
                return
            one = heappop(heap)
            self._idle.discard(core)
            yield Execute(core, one.request, one.execution_s, one.due_s, in_slot)
