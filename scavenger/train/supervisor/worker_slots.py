"""Gives workers names such that no two workers' gradients share a slot of the shared-memory block."""

from __future__ import annotations

from scavenger.elastic.membership import worker_name, worker_slot
from scavenger.errors import WorkersLostError
from scavenger.presentation.formatting import plural
from scavenger.train.transport.layout import Layout
from scavenger.train.transport.messages import Roster


class WorkerSlots:
    """The worker slots of one job. A name is never used twice; a slot is used again once it is free.

    A slot is free when its worker's process has ended, since one that is only presumed lost might wake up and write,
    and when a view without the worker holds, since until then a step may use the gradients that it wrote.

    Attributes:
        layout: The block's layout; None until the model is known.
    """

    def __init__(self) -> None:
        self.layout: Layout | None = None
        self._named = 0
        self._in_use: set[str] = set()
        self._ended: set[str] = set()

    def next_worker(self) -> str:
        """Return the name of the next worker to launch.

        Raises:
            WorkersLostError: If no slot is free.
        """
        if self.layout is not None:
            taken = {self.layout.place_of(worker_slot(name)) for name in self._in_use}
            if len(taken) >= self.layout.workers_max:
                raise self._too_many(self.layout)
            while self.layout.place_of(worker_slot(worker_name(self._named))) in taken:
                self._named += 1
        name = worker_name(self._named)
        self._in_use.add(name)
        self._named += 1
        return name

    def set_layout(self, layout: Layout) -> None:
        """Set the block's layout, once a worker has built the model.

        Raises:
            WorkersLostError: If more workers have been named than the layout has slots for.
        """
        if self._named > layout.workers_max:
            raise self._too_many(layout)
        self.layout = layout

    def ended(self, worker: str) -> None:
        """Note that a worker's process has ended, so that it no longer writes to its slot."""
        self._ended.add(worker)

    def freed(self, roster: Roster) -> tuple[str, ...]:
        """Free the slots of ended workers that no view needs, and return those workers; each is returned once."""
        free = tuple(
            name
            for name in sorted(self._ended)
            # a coordinator does not know workers that died before it started and were not members of its first view
            if name in roster.forgotten or (roster.settled and name not in roster.states)
        )
        self._ended.difference_update(free)
        self._in_use.difference_update(free)
        return free

    @staticmethod
    def _too_many(layout: Layout) -> WorkersLostError:
        return WorkersLostError(
            f"for a model of this size, there is room for the gradients of {plural(layout.workers_max, 'worker')}; "
            "lost workers count until training goes on without them"
        )
