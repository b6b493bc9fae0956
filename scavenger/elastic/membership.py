"""The coordinator's half of the protocol: which workers there are, and which of them the next view has.

    STARTING --Ready--> STANDBY --chosen for a view--> TRAINING --left out of a view--> STANDBY
    any state --Lost--> GONE; --Released--> GONE

A worker that is left out stays warm in STANDBY until it is released, so coming back costs it nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from scavenger.elastic.barrier import Announce
from scavenger.elastic.view import Member

__all__ = ["Membership", "WorkerState"]


class WorkerState(Enum):
    STARTING = "starting"
    STANDBY = "standby"
    TRAINING = "training"
    GONE = "gone"


@dataclass(slots=True)
class _Worker:
    slot: int
    state: WorkerState
    awaited_until: int = 0
    """Once GONE: no view from this one on has the worker."""


class Membership:
    """Members of one job. Whatever changes who should train returns the view to announce, or None."""

    def __init__(self) -> None:
        self._workers: dict[str, _Worker] = {}
        self._number = 0
        self._announced: Announce | None = None
        self._target: tuple[int, int] | None = None
        self._installed = 0
        self._stranded = False

    # ---- what is ------------------------------------------------------------------------------------------

    def state(self, worker: str) -> WorkerState:
        """The worker's state; `KeyError` for a stranger."""
        return self._workers[worker].state

    def count(self, *states: WorkerState) -> int:
        return sum(1 for worker in self._workers.values() if worker.state in states)

    def workers(self, *states: WorkerState) -> tuple[str, ...]:
        """Names of the workers in any of the states, in order of their launch."""
        return tuple(name for name, worker in self._workers.items() if worker.state in states)

    @property
    def alive(self) -> tuple[str, ...]:
        return self.workers(WorkerState.STARTING, WorkerState.STANDBY, WorkerState.TRAINING)

    @property
    def announced(self) -> Announce | None:
        """The newest view."""
        return self._announced

    @property
    def settled(self) -> bool:
        """The newest view has taken effect, so whoever it leaves out is no longer waited for."""
        return self._installed == self._number

    def forgotten(self, worker: str) -> bool:
        """The worker is gone, and a view without it has taken effect: nobody will read its slot any more."""
        entry = self._workers[worker]
        return entry.state is WorkerState.GONE and self._installed >= entry.awaited_until

    # ---- what happens -------------------------------------------------------------------------------------

    def launch(self) -> Member:
        """A new worker: a name and a slot that nobody has had before."""
        slot = len(self._workers)
        member = Member(f"w{slot}", slot)
        self._workers[member.worker] = _Worker(slot, WorkerState.STARTING)
        return member

    def ready(self, worker: str) -> Announce | None:
        """A worker has warmed up. It joins at once only where a view is short of members."""
        entry = self._workers[worker]
        if entry.state is not WorkerState.STARTING:
            return None
        entry.state = WorkerState.STANDBY
        if self._target is None or self.count(WorkerState.TRAINING) >= self._target[0]:
            return None
        return self._announce(urgent=False, reason=f"{worker} joins")

    def resize(self, workers: int, global_batch_size: int, reason: str) -> Announce | None:
        """Aim for K workers and batch B; members stay, ready workers join, the newest leave first.

        Raises:
            ValueError: If B < K or K < 1.
        """
        if workers < 1 or global_batch_size < workers:
            raise ValueError(f"no view of {workers} workers with batch {global_batch_size}")
        self._target = (workers, global_batch_size)
        return self._announce(urgent=False, reason=reason)

    def lost(self, worker: str) -> Announce | None:
        """A worker is gone. If any view may wait for it, the unfinished step begins again without it.

        One in standby may still be a member of the view that is in effect, when the newest one is not yet.
        """
        entry = self._workers[worker]
        awaited = entry.state is WorkerState.TRAINING or (
            entry.state is WorkerState.STANDBY and not self.settled
        )
        entry.state = WorkerState.GONE
        if not awaited:
            return None
        entry.awaited_until = self._number + 1
        return self._announce(urgent=True, reason=f"{worker} was lost")

    def installed(self, number: int) -> None:
        """The aggregator says that a view took effect."""
        self._installed = max(self._installed, number)

    def release(self, worker: str) -> None:
        """A worker in standby is let go.

        Raises:
            ValueError: If a view may still wait for it: it must be left out of one that has taken effect.
        """
        entry = self._workers[worker]
        if entry.state is WorkerState.TRAINING or (entry.state is WorkerState.STANDBY and not self.settled):
            raise ValueError(f"{worker} is a member of the view")
        entry.state = WorkerState.GONE

    def _announce(self, *, urgent: bool, reason: str) -> Announce | None:
        assert self._target is not None
        workers, batch = self._target
        able = self.workers(WorkerState.TRAINING) + self.workers(WorkerState.STANDBY)
        members = able[: min(workers, batch)]
        if not members:
            self._announced, self._stranded = None, True
            return None
        for name in able:
            self._workers[name].state = WorkerState.TRAINING if name in members else WorkerState.STANDBY
        self._number += 1
        self._announced = Announce(
            number=self._number,
            members=tuple(Member(name, self._workers[name].slot) for name in members),
            global_batch_size=batch,
            # a view without a living member never reaches a boundary
            urgent=urgent or self._stranded,
            reason=reason,
        )
        self._stranded = False
        return self._announced
