"""What a training loop of one's own tells of itself: events on the way, a report at its end."""

from __future__ import annotations

from dataclasses import dataclass

from scavenger.elastic.leases import Part
from scavenger.elastic.quarantine import Quarantined
from scavenger.train.custom_loop.messages import Array
from scavenger.train.supervisor.events import Lost, Started

__all__ = ["EpochDone", "LoopEvent", "LoopReport", "RolledBack", "Snapshotted", "StepDone"]


@dataclass(frozen=True, slots=True)
class StepDone:
    """A step was applied, of these samples; its workers in the order of the view."""

    step: int
    epoch: int
    view: int
    parts: tuple[tuple[str, Part], ...]


@dataclass(frozen=True, slots=True)
class EpochDone:
    """Every sample of an epoch is in one step, but for those quarantined."""

    epoch: int
    step: int
    quarantined: tuple[Quarantined, ...]


@dataclass(frozen=True, slots=True)
class Snapshotted:
    """A checkpoint of the replica after this step was written."""

    step: int


@dataclass(frozen=True, slots=True)
class RolledBack:
    """Every replica was lost: training goes on behind this step, from a checkpoint. Later steps count no more."""

    step: int


LoopEvent = StepDone | EpochDone | Snapshotted | RolledBack | Started | Lost


@dataclass(frozen=True, slots=True)
class LoopReport:
    """What a loop came to.

    Attributes:
        steps: Applied, also before a checkpoint that it was resumed from.
        epochs: Read to their end.
        losses: Sample-weighted mean of what was notified, by epoch; of a resumed one, of what followed.
        state: The replica after the last step, by name.
        replicas_equal: Whether every worker ended with the same bits. If not, something is in the state that does
            not come from the mean, such as statistics of the forward pass.
        lost: Workers that died.
        quarantined: Samples left out, since workers died of them.
    """

    steps: int
    epochs: int
    losses: dict[int, float]
    state: dict[str, Array]
    replicas_equal: bool
    lost: tuple[str, ...]
    quarantined: tuple[Quarantined, ...]
