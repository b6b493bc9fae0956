"""What a loop's workers report of each step and epoch, in the words of the control plane, and what a loop comes to."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field

import numpy as np

from scavenger.elastic.leases import LeasedSamples
from scavenger.elastic.ledger import ShardLedger
from scavenger.elastic.quarantine import Quarantined
from scavenger.elastic.sample_queue import SampleQueue
from scavenger.elastic.steps import Announce
from scavenger.elastic.view import Position, View
from scavenger.errors import TrainingCodeError
from scavenger.train.custom_loop import messages as lm
from scavenger.train.custom_loop.comparing import Sums, differing
from scavenger.train.custom_loop.exchange import StepMean
from scavenger.train.transport import messages as m
from scavenger.train.transport.messages.values import TensorSpec

LOSS = "loss"
"""The name of the metric that `job.notify_batch_end(loss=...)` reports."""


@dataclass(slots=True)
class StepInReport:
    """A step whose mean was formed, until every member has reported that it applied it.

    Attributes:
        view: The view that it was computed under.
        parts: Its samples by worker, in the order of the view.
        step_time_s: Time since the step before.
        global_batch_size: B, samples, of the view.
        awaited: Members that have not reported yet.
        held: Whether their gradients were to be averaged by a process group.
    """

    step: int
    epoch: int
    view: int
    parts: tuple[tuple[str, LeasedSamples], ...]
    step_time_s: float
    averaged: StepMean
    global_batch_size: int
    awaited: set[str]
    held: bool = False
    _exchange_s: float = math.inf
    _sums: dict[str, Sums] = field(default_factory=dict)
    _losses: list[tuple[float, int]] = field(default_factory=list)
    _update_s: float = 0.0

    def add(self, worker: str, stepped: lm.Stepped) -> None:
        """Take a member's report."""
        self.awaited.discard(worker)
        self._update_s = max(self._update_s, stepped.update_s)
        self._exchange_s = min(self._exchange_s, stepped.exchange_s or math.inf)
        if stepped.sums is not None:
            self._sums[worker] = stepped.sums
        if stepped.loss is not None and stepped.samples:
            self._losses.append((stepped.loss, stepped.samples))

    @property
    def exchange_s(self) -> float | None:
        """The exchange's time for the worker that waited the least in it; None if it went another way than meant."""
        as_meant = self.held == self.averaged.reduced and self._exchange_s < math.inf
        return self._exchange_s if as_meant else None

    @property
    def _loss(self) -> float:
        """Mean of the loss over the samples of those that gave one; NaN if nobody did."""
        samples = sum(count for _, count in self._losses)
        return sum(loss * count for loss, count in self._losses) / samples if samples else math.nan

    def report(self, ledger: ShardLedger | SampleQueue) -> m.StepReport:
        """The report of the step; a worker's samples are positions in all shards, one after the other.

        Raises:
            TrainingCodeError: If members have come to other replicas.
        """
        if (differ := differing(self._sums)) is not None:
            one, other, name = differ
            raise TrainingCodeError(
                f"after step {self.step}, the replicas of {one} and {other} differ in {name!r}: change it by averaged "
                "values alone, in the same step at all workers, and have state= return all that this depends on"
            )
        averaged, begins = self.averaged, _begins(ledger.sizes)
        return m.StepReport(
            step=self.step,
            view=self.view,
            epoch=self.epoch,
            workers=len(self.parts),
            global_batch_size=self.global_batch_size,
            samples=sum(part.stop - part.start for _, part in self.parts),
            step_time_s=self.step_time_s,
            compute_s=max(averaged.compute_s.values(), default=0.0),
            update_s=self._update_s,
            data_wait_s=0.0,
            loss=self._loss,
            mean_worker_sqnorm=averaged.worker_sqnorm,
            mean_sqnorm=averaged.sqnorm,
            noise_parts=averaged.noise_parts,
            worker_compute_s=averaged.compute_s,
            pieces=tuple(
                (worker, begins[part.shard] + part.start, begins[part.shard] + part.stop)
                for worker, part in self.parts
            ),
        )


def view_installed(view: Announce, first_step: int, epoch: int) -> m.ViewInstalled:
    """The report of a view that has taken effect: from `first_step` on, whose samples are of `epoch`."""
    return m.ViewInstalled(
        View(
            number=view.number,
            first_step=first_step,
            global_batch_size=view.global_batch_size,
            members=view.members,
            position=Position(epoch),
            lr_scale=view.lr_scale,
            reason=view.reason,
        )
    )


def manifest_of(described: lm.ReplicaBuilt) -> m.Manifest:
    """Describe a loop as a model is described: its state are the tensors, and it has no optimizer."""
    tensors = tuple(TensorSpec(t.name, t.shape, t.dtype, "trainable") for t in described.tensors)
    shapes = sorted((t.name, t.shape, t.dtype) for t in described.tensors)
    return m.Manifest(
        tensors=tensors,
        metrics=(),
        optimizer='{"class_name": "loop", "config": {}}',
        architecture=hashlib.sha256(repr(shapes).encode()).hexdigest()[:32],
        parameters=sum(math.prod(t.shape) for t in described.tensors),
        dataset_size=sum(described.sizes),
        validation_size=0,
        sample_bytes=0,
        metric_names=tuple(dict.fromkeys((LOSS, *described.metrics))),
    )


def quarantined_samples(ledger: ShardLedger | SampleQueue) -> dict[int, str]:
    """Positions of the samples that are left out, in all shards one after the other, with the reason of each."""
    begins = _begins(ledger.sizes)
    return {
        begins[entry.piece.scope] + at: entry.reason
        for entry in ledger.quarantined
        for at in range(entry.piece.start, entry.piece.stop)
    }


def _begins(sizes: tuple[int, ...]) -> list[int]:
    begins, at = [], 0
    for size in sizes:
        begins.append(at)
        at += size
    return begins


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
    state: dict[str, lm.Array]
    replicas_equal: bool
    lost: tuple[str, ...]
    quarantined: tuple[Quarantined, ...]


class EpochLosses:
    """The mean loss of each epoch, over the samples of those that gave one."""

    def __init__(self) -> None:
        self._sums: dict[int, tuple[float, int]] = {}

    def add(self, epoch: int, loss: float | None, samples: int) -> None:
        """Add the mean loss over some samples; None if it is not known."""
        if loss is not None and samples:
            total, before = self._sums.get(epoch, (0.0, 0))
            self._sums[epoch] = (total + loss * samples, before + samples)

    def undo_from(self, epoch: int) -> None:
        """Forget this epoch and later ones, which are repeated."""
        self._sums = {earlier: sums for earlier, sums in self._sums.items() if earlier < epoch}

    @property
    def means(self) -> dict[int, float]:
        """The mean by epoch."""
        return {epoch: total / samples for epoch, (total, samples) in sorted(self._sums.items())}

    def metrics(self, epoch: int) -> dict[str, float]:
        """The metrics of an epoch; none if nobody reported a loss."""
        return {LOSS: self.means[epoch]} if epoch in self._sums else {}


class Replicas:
    """The replicas with which a loop's workers end.

    Attributes:
        first: The first of them; None before.
        equal: Whether all have the same bits.
    """

    def __init__(self) -> None:
        self.first: dict[str, lm.Array] | None = None
        self.equal = True

    def add(self, state: dict[str, lm.Array]) -> None:
        """Add the replica of a worker that has finished."""
        if self.first is None:
            self.first = state
        self.equal = self.equal and _same(self.first, state)


def _same(a: dict[str, lm.Array], b: dict[str, lm.Array]) -> bool:
    # compare bits, so that a NaN equals itself and -0.0 differs from 0.0
    return a.keys() == b.keys() and all(np.array_equal(_bits(a[name]), _bits(b[name])) for name in a)


def _bits(array: lm.Array) -> lm.Array:
    return np.frombuffer(array.tobytes(), dtype=np.uint8)
