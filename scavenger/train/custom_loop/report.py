"""Events and the final report of a custom training loop."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from scavenger.elastic.barrier import Announce
from scavenger.elastic.leases import LeasedSamples
from scavenger.elastic.quarantine import Quarantined
from scavenger.train.custom_loop.messages import Array
from scavenger.train.supervisor.events import Lost, PreemptionNotice, Refused, Started


@dataclass(frozen=True, slots=True)
class LoopStepDone:
    """The mean of a step was formed.

    Attributes:
        view: The view that it was computed under.
        parts: Its samples by worker, in the order of the view.
        step_time_s: Time since the step before.
        compute_s: How long each worker has read and computed.
        worker_sqnorm, sqnorm, noise_parts: As in `scavenger.domain.measurement.StepRecord`.
        members: Workers that apply it.
    """

    step: int
    epoch: int
    view: int
    parts: tuple[tuple[str, LeasedSamples], ...]
    step_time_s: float = 0.0
    compute_s: dict[str, float] = field(default_factory=dict)
    worker_sqnorm: float = 0.0
    sqnorm: float = 0.0
    noise_parts: int = 1
    members: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LoopViewChanged:
    """Other members, or another batch, from `first_step` on, whose samples are of `epoch`."""

    view: Announce
    first_step: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Reported:
    """A worker has applied a step, in `update_s`; `loss` is over its samples, None if it gave none."""

    worker: str
    step: int
    loss: float | None
    samples: int
    update_s: float


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A worker has evaluated its replica after an epoch."""

    worker: str
    epoch: int
    metrics: dict[str, float]
    took_s: float


@dataclass(frozen=True, slots=True)
class Released:
    """A worker that no view needs is being ended."""

    worker: str


@dataclass(frozen=True, slots=True)
class EpochDone:
    """An epoch ended: every sample was used in exactly one step, except for those quarantined."""

    epoch: int
    step: int
    quarantined: tuple[Quarantined, ...]


@dataclass(frozen=True, slots=True)
class Snapshotted:
    """A checkpoint of the replica after this step, which is in `epoch`, was written."""

    step: int
    epoch: int = 0
    written_s: float = 0.0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class SnapshotFailed:
    """A checkpoint of the replica after this step could not be written; training goes on."""

    step: int
    message: str


@dataclass(frozen=True, slots=True)
class LoopRolledBack:
    """Every replica was lost: training continues from the checkpoint of this step, and later steps are undone."""

    step: int


LoopEvent = (
    LoopStepDone
    | Reported
    | EpochDone
    | Evaluated
    | Snapshotted
    | SnapshotFailed
    | LoopRolledBack
    | Started
    | Released
    | Lost
    | Refused
    | PreemptionNotice
    | LoopViewChanged
)


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


class LoopResults:
    """What a loop comes to: the losses of its epochs, and the replicas with which its workers end."""

    def __init__(self) -> None:
        self._losses: dict[int, tuple[float, int]] = {}
        self._state: dict[str, Array] | None = None
        self._equal = True

    def loss(self, epoch: int, loss: float, samples: int) -> None:
        """Add the mean loss that a worker has reported over some samples."""
        total, before = self._losses.get(epoch, (0.0, 0))
        self._losses[epoch] = (total + loss * samples, before + samples)

    def undo_from(self, epoch: int) -> None:
        """Forget the losses of this epoch and later ones, which are repeated."""
        self._losses = {earlier: sums for earlier, sums in self._losses.items() if earlier < epoch}

    def finished(self, state: dict[str, Array]) -> None:
        """Add the replica of a worker that has finished."""
        if self._state is None:
            self._state = state
        self._equal = self._equal and _same(self._state, state)

    def report(
        self, *, steps: int, epochs: int, lost: tuple[str, ...], quarantined: tuple[Quarantined, ...]
    ) -> LoopReport:
        """Return the report; see there for the arguments.

        Raises:
            RuntimeError: If no worker has finished.
        """
        if self._state is None:
            raise RuntimeError("the loop is not done")
        return LoopReport(
            steps=steps,
            epochs=epochs,
            losses={epoch: total / samples for epoch, (total, samples) in sorted(self._losses.items())},
            state=self._state,
            replicas_equal=self._equal,
            lost=lost,
            quarantined=quarantined,
        )


def _same(a: dict[str, Array], b: dict[str, Array]) -> bool:
    # compare bits, so that a NaN equals itself and -0.0 differs from 0.0
    return a.keys() == b.keys() and all(np.array_equal(_bits(a[name]), _bits(b[name])) for name in a)


def _bits(array: Array) -> Array:
    return np.frombuffer(array.tobytes(), dtype=np.uint8)
