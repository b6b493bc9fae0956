"""Steps that are proposed, applied and committed exactly once; what both ledgers of samples have in common.

While a step is sealed, its parts are being applied: none of them can be lost or given to others, so a loss that is told
meanwhile waits until the step is committed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from scavenger.elastic import leases as le


class SealedSteps(ABC):
    """The order of events of a ledger. Not thread-safe; feed it one event at a time.

    Attributes:
        step: The last that was committed.
        epoch: The one under way, or that has just ended.
    """

    def __init__(self) -> None:
        self.epoch = self.step = 0
        self._sealed: le.Proposed | None = None
        self._deferred: list[le.HolderLost] = []

    @property
    @abstractmethod
    def ended(self) -> le.EpochCommitted | None:
        """The instruction sent at the epoch's end, for a new process that cannot know whether it was received."""

    @abstractmethod
    def _open(self, epoch: int) -> None:
        """Begin an epoch."""

    @abstractmethod
    def _ask(self, event: le.RequestSamples) -> list[le.Instruction]: ...

    @abstractmethod
    def _refusals(self, event: le.Proposed) -> list[le.Instruction]:
        """Why parts cannot be in the next step; empty if all can."""

    @abstractmethod
    def _advance(self, event: le.Committed) -> None:
        """Take in a committed step."""

    @abstractmethod
    def _lost(self, event: le.HolderLost) -> list[le.Instruction]: ...

    def handle(self, event: le.Event) -> list[le.Instruction]:
        """Process one event; returns the resulting instructions, in order.

        Raises:
            ValueError: If a step was applied without permission, or an epoch begun out of turn.
        """
        match event:
            case le.RequestSamples():
                return self._ask(event)
            case le.Proposed():
                return self._proposed(event)
            case le.Committed():
                return self._committed(event)
            case le.HolderLost():
                if self._sealed is not None:
                    self._deferred.append(event)
                    return []
                return self._lost(event)
            case le.BeginEpoch():
                return self._begin(event)

    def _proposed(self, event: le.Proposed) -> list[le.Instruction]:
        if event == self._sealed:
            return [le.ApplyParts(event.step, event.parts)]
        if self._sealed is not None:
            return [le.RefuseParts(None, f"step {self._sealed.step} is being applied")]
        if event.step != self.step + 1 or not event.parts:
            words = f"step {event.step} of {len(event.parts)} parts does not follow {self.step}"
            return [le.RefuseParts(None, words)]
        if refusals := self._refusals(event):
            return refusals
        self._sealed = event
        return [le.ApplyParts(event.step, event.parts)]

    def _committed(self, event: le.Committed) -> list[le.Instruction]:
        if event.step <= self.step:
            return []
        if self._sealed is None or (event.step, event.parts) != (self._sealed.step, self._sealed.parts):
            raise ValueError(f"step {event.step} was not to be applied with these parts")
        self._sealed = None
        self._advance(event)
        instructions = self._if_over()
        deferred, self._deferred = self._deferred, []
        for lost in deferred:
            instructions += self.handle(lost)
        return instructions

    def _begin(self, event: le.BeginEpoch) -> list[le.Instruction]:
        if event.epoch <= self.epoch:
            return []
        if event.epoch != self.epoch + 1 or self.ended is None:
            raise ValueError(f"epoch {event.epoch} cannot begin while {self.epoch} is under way")
        self._open(event.epoch)
        return self._if_over()

    def _if_over(self) -> list[le.Instruction]:
        ended = self.ended
        return [] if ended is None else [ended]
