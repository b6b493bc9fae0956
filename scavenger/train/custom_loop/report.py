"""Events and the final report of a custom training loop."""

from __future__ import annotations

from dataclasses import dataclass

from scavenger.elastic.leases import Part
from scavenger.elastic.quarantine import Quarantined
from scavenger.train.custom_loop.messages import Array
from scavenger.train.supervisor.events import Lost, Started

__all__ = ["EpochDone", "LoopEvent", "LoopReport", "RolledBack", "Snapshotted", "StepDone"]


@dataclass(frozen=True, slots=True)
class StepDone:
    """A step was applied; `parts` are its samples by worker, in the order of the view."""

    step: int
    epoch: int
    view: int
    parts: tuple[tuple[str, Part], ...]


@dataclass(frozen=True, slots=True)
class EpochDone:
    """An epoch ended: every sample was used in exactly one step, except for those quarantined."""

    epoch: int
    step: int
    quarantined: tuple[Quarantined, ...]


@dataclass(frozen=True, slots=True)
class Snapshotted:
    """A checkpoint of the replica after this step was written."""

    step: int


@dataclass(frozen=True, slots=True)
class RolledBack:
    """Every replica was lost: training continues from the checkpoint of this step, and later steps are undone."""

    step: int


LoopEvent = StepDone | EpochDone | Snapshotted | RolledBack | Started | Lost


@dataclass(frozen=True, slots=True)
class LoopReport:
    """The results of a finished loop.

    Attributes:
        steps: Number of applied steps, including those before the checkpoint that it was resumed from.
        epochs: Number of epochs that were read to their end.
        losses: Sample-weighted mean of the reported losses, by epoch; for an epoch in which the loop was resumed,
            only of the samples after that.
        state: The replica after the last step, by name.
        replicas_equal: Whether every worker ended with the same bits. If not, some of the state does not come
            from the mean, such as statistics of the forward pass.
        lost: Workers that died.
        quarantined: Samples that were left out because workers died of them.
    """

    steps: int
    epochs: int
    losses: dict[int, float]
    state: dict[str, Array]
    replicas_equal: bool
    lost: tuple[str, ...]
    quarantined: tuple[Quarantined, ...]
