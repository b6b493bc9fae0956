"""The coordinator's half of the protocol: the states of the workers, and the members of the next view.

    STARTING --Ready--> STANDBY --chosen for a view--> TRAINING --left out of a view--> STANDBY
    any state --Lost--> GONE; --Released--> GONE

A worker that is left out stays warm in STANDBY until it is released, so coming back costs it nothing. One that
was asked to leave (`leaving`) is chosen no more.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from scavenger.elastic.steps import Announce, Death
from scavenger.elastic.view import SLOTS_PER_WORKER, Member, View

_GONE_KEPT = 100
"""Number of workers that are still remembered after they are gone and in no view."""


class WorkerState(Enum):
    STARTING = "starting"
    STANDBY = "standby"
    TRAINING = "training"
    GONE = "gone"


def worker_name(index: int) -> str:
    """The name of a job's worker, numbered from 0 in order of launch; names are never reused."""
    return f"w{index}"


def worker_slot(worker: str) -> int:
    """The first of the worker's own slots.

    Raises:
        ValueError: If this is not a worker's name.
    """
    digits = worker.removeprefix("w")
    if digits == worker or not (digits.isascii() and digits.isdecimal()):
        raise ValueError(f"{worker!r} is no worker's name")
    return int(digits) * SLOTS_PER_WORKER


@dataclass(slots=True)
class _Worker:
    state: WorkerState
    leaving: bool = False
    lost: bool = False
    death: Death | None = None
    awaited_until: int = 0
    """Once GONE: number of the first view without the worker."""


class Membership:
    """Workers of one job. Methods that change which of them should train return the view to announce, or None.

    Args:
        token: The coordinator's fencing token, which every view carries.
        gone_kept: Number of workers remembered after they are gone and no view waits for them; others are deleted.
    """

    def __init__(self, token: int = 1, *, gone_kept: int = _GONE_KEPT) -> None:
        self.token, self._gone_kept = token, gone_kept
        self._workers: dict[str, _Worker] = {}
        self._number = 0
        self._announced: Announce | None = None
        self._target: tuple[int, int] | None = None
        self._lr_scale = 1.0
        self._installed = 0

    # ---- what is ------------------------------------------------------------------------------------------

    def state(self, worker: str) -> WorkerState:
        """The worker's state; `KeyError` for an unknown worker."""
        return self._workers[worker].state

    def knows(self, worker: str) -> bool:
        return worker in self._workers

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
        """The newest view; None if there was no possible member."""
        return self._announced

    @property
    def number(self) -> int:
        """Number of the newest view."""
        return self._number

    @property
    def settled(self) -> bool:
        """Whether the newest view has taken effect, so that workers outside it are no longer waited for."""
        return self._installed == self._number

    def forgotten(self, worker: str) -> bool:
        """Whether the worker is gone and a view without it is in effect, so that its slots will not be read again."""
        entry = self._workers[worker]
        return entry.state is WorkerState.GONE and self._installed >= entry.awaited_until

    # ---- what happens -------------------------------------------------------------------------------------

    def launch(self, worker: str) -> None:
        """Add a new worker, under a name that was never used.

        Raises:
            ValueError: If the name was used before.
        """
        if worker in self._workers:
            raise ValueError(f"there has been a {worker} already")
        self._workers[worker] = _Worker(WorkerState.STARTING)

    def restore(self, number: int, view: View | None, present: Collection[str]) -> None:
        """Take up a job that another coordinator led.

        Args:
            number: Number of the newest view that the sequencer has received.
            view: The view in effect; None if there has been none.
            present: Known workers that have reported that they are ready.
        """
        self._number = number
        self._installed = 0 if view is None else view.number
        members = set() if view is None else {member.worker for member in view.members}
        for name, entry in self._workers.items():
            if entry.state is WorkerState.GONE:  # before it was known which views may wait for it
                entry.lost, entry.awaited_until = True, number + 1
            elif name in members:
                entry.state = WorkerState.TRAINING
            elif name in present and entry.state is WorkerState.STARTING:
                entry.state = WorkerState.STANDBY
        if view is not None:
            self._target = self._target or (view.workers, view.global_batch_size)
            self._lr_scale = view.lr_scale
            for member in view.members:
                if member.worker not in self._workers:  # it died while there was no coordinator
                    self._workers[member.worker] = _Worker(
                        WorkerState.GONE, lost=True, awaited_until=number + 1
                    )

    def ready(self, worker: str) -> Announce | None:
        """A worker has warmed up. It joins at once only if the view has too few members."""
        entry = self._workers[worker]
        if entry.state is not WorkerState.STARTING:
            return None
        entry.state = WorkerState.STANDBY
        staying = sum(not self._workers[name].leaving for name in self.workers(WorkerState.TRAINING))
        if self._target is None or staying >= self._target[0]:
            return None
        return self._announce(f"{worker} joins")

    def resize(
        self,
        workers: int,
        global_batch_size: int,
        reason: str,
        *,
        without: Collection[str] = (),
        lr_scale: float = 1.0,
    ) -> Announce | None:
        """Aim for K workers and batch B; members stay, ready workers join, the newest leave first.

        Args:
            without: Workers that leave first, and for good; with as many ready ones, that is a migration.

        Raises:
            ValueError: If B < K or K < 1.
        """
        if workers < 1 or global_batch_size < workers:
            raise ValueError(f"no view of {workers} workers with batch {global_batch_size}")
        self._target, self._lr_scale = (workers, global_batch_size), lr_scale
        for name in without:
            if name in self._workers:
                self._workers[name].leaving = True
        return self._announce(reason)

    def lost(self, worker: str, death: Death | None = None) -> Announce | None:
        """A worker is gone. If a view may wait for it, others do its part of the unfinished step.

        While the newest view is not in effect yet, that can be any worker: one in standby was left out of it but is
        a member of the one before, and what another coordinator announced last is not known.
        """
        entry = self._workers[worker]
        awaited = entry.state is WorkerState.TRAINING or not self.settled
        if entry.state is WorkerState.GONE:
            return None
        entry.state, entry.death = WorkerState.GONE, death
        if not awaited:
            self._forget_some()
            return None
        entry.lost, entry.awaited_until = True, self._number + 1
        return self._announce(f"{worker} was lost")

    def installed(self, number: int, members: Collection[str]) -> Announce | None:
        """The sequencer reports that a view took effect, with these members."""
        self._installed = max(self._installed, number)
        self._forget_some()
        for name in members if number == self._number else ():
            # another coordinator's view may have a worker that has not yet reported to this one
            if name in self._workers and self._workers[name].state is not WorkerState.GONE:
                self._workers[name].state = WorkerState.TRAINING
        if number != self._installed:
            return None
        # another coordinator's view with a worker that died when there was no coordinator or replacement
        newest = self._announced
        said = () if newest is None or newest.number <= number else newest.lost
        dead = [name for name in members if self._gone(name) and name not in said]
        for name in dead:
            entry = self._workers.setdefault(name, _Worker(WorkerState.GONE))
            entry.lost, entry.awaited_until = True, max(number, self._number) + 1
        return self._announce(f"{dead[0]} was lost") if dead else None

    def _gone(self, worker: str) -> bool:
        return worker not in self._workers or self._workers[worker].state is WorkerState.GONE

    def release(self, worker: str) -> None:
        """Release a worker in standby.

        Raises:
            ValueError: If a view may still wait for it: it must be left out of one that has taken effect.
        """
        entry = self._workers[worker]
        if entry.state is WorkerState.TRAINING or (entry.state is WorkerState.STANDBY and not self.settled):
            raise ValueError(f"{worker} is a member of the view")
        entry.state = WorkerState.GONE
        self._forget_some()

    def _forget_some(self) -> None:
        """Forget the oldest workers that are gone, since a job may use any number of workers over time."""
        if not self._installed:
            return  # a coordinator that has only begun does not know yet which views may wait for them
        gone = [name for name in self.workers(WorkerState.GONE) if self.forgotten(name)]
        for name in gone[: max(0, len(gone) - self._gone_kept)]:
            del self._workers[name]

    def spare(self, keep: int) -> tuple[str, ...]:
        """Workers in standby that may go so that `keep` stay: those asked to leave, then the newest."""
        if not self.settled:
            return ()
        standby = self.workers(WorkerState.STANDBY)
        leaving = tuple(name for name in standby if self._workers[name].leaving)
        others = tuple(name for name in standby if name not in leaving)
        # a worker that is to leave, and trains only until another is ready, does not count
        staying = sum(not self._workers[name].leaving for name in self.alive)
        excess = max(0, min(staying - keep, len(others)))
        return leaving + others[len(others) - excess :]

    def announce_again(self) -> Announce | None:
        """The newest view, if it has not taken effect, to be sent again: a message may have been lost."""
        return None if self.settled else self._announced

    def renew(self) -> Announce | None:
        """The newest view under a new number, for a sequencer that has been restarted."""
        return self._announce("the aggregator was restarted")

    def _announce(self, reason: str) -> Announce | None:
        if self._target is None:
            return None
        workers, batch = self._target
        able = self.workers(WorkerState.TRAINING) + self.workers(WorkerState.STANDBY)
        staying = tuple(name for name in able if not self._workers[name].leaving)
        # a worker that is to leave stays until another is ready
        members = dict.fromkeys((staying or able)[: min(workers, batch)])
        if not members:
            self._announced = None
            return None
        for name in able:
            self._workers[name].state = WorkerState.TRAINING if name in members else WorkerState.STANDBY
        lost = {n: w for n, w in self._workers.items() if w.lost and not self.forgotten(n)}
        self._number += 1
        self._announced = Announce(
            number=self._number,
            members=tuple(Member(name, worker_slot(name)) for name in members),
            global_batch_size=batch,
            lost=tuple(lost),
            deaths=tuple(entry.death for entry in lost.values() if entry.death is not None),
            token=self.token,
            lr_scale=self._lr_scale,
            reason=reason,
        )
        return self._announced
