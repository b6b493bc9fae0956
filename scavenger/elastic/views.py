"""The view in effect, the one that follows it, and which of their members are lost."""

from __future__ import annotations

from scavenger.elastic.steps import Announce, Death
from scavenger.elastic.view import Member, Position, View


class Views:
    """The views of one job at its sequencer.

    Attributes:
        current: The view in effect; None before the first.
        pending: What takes effect at the next boundary; None if nothing was announced since.
        lost: Members that may still be awaited but will not answer.
    """

    def __init__(self) -> None:
        self.current: View | None = None
        self.pending: Announce | None = None
        self.lost: set[str] = set()
        self._deaths: dict[str, Death] = {}

    def announce(self, event: Announce) -> None:
        """Have a view follow."""
        # another coordinator may not know that one of its members was lost: it is alive, and may be waited for
        self.lost.difference_update(member.worker for member in event.members)
        self.lost.update(event.lost)
        self._deaths |= {death.worker: death for death in event.deaths}
        self.pending = event

    def install(self, announced: Announce, step: int, position: Position) -> tuple[View, list[str]]:
        """Put a view into effect that begins after a step; returns it, and the living workers that it leaves out."""
        before, self.pending = self.current, None
        self.current = View(
            number=announced.number,
            first_step=step + 1,
            global_batch_size=announced.global_batch_size,
            members=announced.members,
            position=position,
            lr_scale=announced.lr_scale,
            reason=announced.reason,
        )
        members = {member.worker for member in announced.members}
        left = (
            []
            if before is None
            else [m.worker for m in before.members if m.worker not in members | self.lost]
        )
        # workers that are no members are no longer waited for
        self.lost &= members
        self._deaths = {worker: death for worker, death in self._deaths.items() if worker in members}
        return self.current, left

    def death_of(self, worker: str) -> Death | None:
        """How a worker died, when this is asked for the first time."""
        return self._deaths.pop(worker, None)

    def is_gone(self, worker: str) -> bool:
        """Whether a worker is lost, or may be: it was given pieces as a member of a view that never took effect."""
        members = (
            *(self.current.members if self.current else ()),
            *(self.pending.members if self.pending else ()),
        )
        return worker in self.lost or all(member.worker != worker for member in members)

    def able(self) -> tuple[Member, ...]:
        """Members that are alive; if there are none, those of the next view."""
        assert self.current is not None
        living = tuple(m for m in self.current.members if m.worker not in self.lost)
        if living or self.pending is None:
            return living
        return tuple(m for m in self.pending.members if m.worker not in self.lost)
