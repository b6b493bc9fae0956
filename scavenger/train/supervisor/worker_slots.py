"""Names for a supervisor's workers, so that their gradients have places in the block that nobody else has."""

from __future__ import annotations

from scavenger.elastic.membership import worker_name, worker_slot
from scavenger.errors import WorkersLostError
from scavenger.train.transport.messages import Roster
from scavenger.train.transport.shared_memory import Layout

__all__ = ["WorkerSlots"]


class WorkerSlots:
    """Those of one job. A name is never given twice; its place is given again once it is free.

    It is when the process has ended, since one that was only given up might wake up and write, and when a view without
    the worker holds, since until then a step may count what it wrote.

    Attributes:
        layout: Of the block; None before it is known what the model is.
    """

    def __init__(self) -> None:
        self.layout: Layout | None = None
        self._named = 0
        self._kept: set[str] = set()
        self._ended: set[str] = set()

    def next_worker(self) -> str:
        """The name of a worker that is to be launched.

        Raises:
            WorkersLostError: If there is no place left.
        """
        if self.layout is not None:
            taken = {self.layout.place_of(worker_slot(name)) for name in self._kept}
            if len(taken) >= self.layout.workers_max:
                raise self._too_many(self.layout)
            while self.layout.place_of(worker_slot(worker_name(self._named))) in taken:
                self._named += 1
        name = worker_name(self._named)
        self._kept.add(name)
        self._named += 1
        return name

    def know(self, layout: Layout) -> None:
        """It is known what the model is.

        Raises:
            WorkersLostError: If more workers have been named than it leaves room for.
        """
        if self._named > layout.workers_max:
            raise self._too_many(layout)
        self.layout = layout

    def ended(self, worker: str) -> None:
        """Its process writes no more."""
        self._ended.add(worker)

    def freed(self, roster: Roster) -> tuple[str, ...]:
        """Workers whose places are free by what the coordinator says now, each told once."""
        free = tuple(
            name
            for name in sorted(self._ended)
            # a coordinator does not know of who had died before it, and was no member of the view that it found
            if name in roster.forgotten or (roster.settled and name not in roster.states)
        )
        self._ended.difference_update(free)
        self._kept.difference_update(free)
        return free

    @staticmethod
    def _too_many(layout: Layout) -> WorkersLostError:
        return WorkersLostError(
            f"there is room for the gradients of {layout.workers_max} workers of a model of this size, lost ones "
            "counted until a view without them holds"
        )
