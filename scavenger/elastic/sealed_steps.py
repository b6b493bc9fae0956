"""Steps that are proposed, applied and committed exactly once; what both ledgers of samples have in common.

While a step is sealed, its parts are being applied: none of them can be lost or given to others, so a loss that is told
meanwhile waits until the step is committed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from scavenger.elastic.leases import (
    ApplyParts,
    BeginEpoch,
    Committed,
    EpochCommitted,
    Event,
    HolderLost,
    Instruction,
    Proposed,
    RefuseParts,
    RequestSamples,
)


class SealedSteps(ABC):
    """The order of events of a ledger. Not thread-safe; feed it one event at a time.

    Attributes:
        step: The last that was committed.
        epoch: The one under way, or that has just ended.
    """

    def __init__(self) -> None:
        self.epoch = self.step = 0
        self._sealed: Proposed | None = None
        self._deferred: list[HolderLost] = []

    @property
    @abstractmethod
    def ended(self) -> EpochCommitted | None:
        """The instruction sent at the epoch's end, for a new process that cannot know whether it was received."""

    @abstractmethod
    def _open(self, epoch: int) -> None:
        """Begin an epoch."""

    @abstractmethod
    def _ask(self, event: RequestSamples) -> list[Instruction]: ...

    @abstractmethod
    def _refusals(self, event: Proposed) -> list[Instruction]:
        """Why parts cannot be in the next step; empty if all can."""

    @abstractmethod
    def _advance(self, event: Committed) -> None:
        """Take in a committed step."""

    @abstractmethod
    def _lost(self, event: HolderLost) -> list[Instruction]: ...

    def handle(self, event: Event) -> list[Instruction]:
        """Process one event; returns the resulting instructions, in order.

        Raises:
            ValueError: If a step was applied without permission, or an epoch begun out of turn.
        """
        match event:
            case RequestSamples():
                return self._ask(event)
            case Proposed():
                return self._proposed(event)
            case Committed():
                return self._committed(event)
            case HolderLost():
                if self._sealed is not None:
                    self._deferred.append(event)
                    return []
                return self._lost(event)
            case BeginEpoch():
                return self._begin(event)

    def _proposed(self, event: Proposed) -> list[Instruction]:
        if event == self._sealed:
            return [ApplyParts(event.step, event.parts)]
        if self._sealed is not None:
            return [RefuseParts(None, f"step {self._sealed.step} is being applied")]
        if event.step != self.step + 1 or not event.parts:
            words = f"step {event.step} of {len(event.parts)} parts does not follow {self.step}"
            return [RefuseParts(None, words)]
        if refusals := self._refusals(event):
            return refusals
        self._sealed = event
        return [ApplyParts(event.step, event.parts)]

    def _committed(self, event: Committed) -> list[Instruction]:
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

    def _begin(self, event: BeginEpoch) -> list[Instruction]:
        if event.epoch <= self.epoch:
            return []
        if event.epoch != self.epoch + 1 or self.ended is None:
            raise ValueError(f"epoch {event.epoch} cannot begin while {self.epoch} is under way")
        self._open(event.epoch)
        return self._if_over()

    def _if_over(self) -> list[Instruction]:
        ended = self.ended
        return [] if ended is None else [ended]
