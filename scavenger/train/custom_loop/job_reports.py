"""Puts together what a loop's workers report of each step and epoch, in the words of the control plane."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field

from scavenger.elastic.ledger import ShardLedger
from scavenger.elastic.view import Position, View
from scavenger.train.custom_loop import messages as lm
from scavenger.train.custom_loop.report import LoopStepDone, LoopViewChanged, Reported
from scavenger.train.transport import messages as m
from scavenger.train.transport.messages.values import TensorSpec, view_body

LOSS = "loss"
"""The name of the metric that `job.notify_batch_end(loss=...)` reports."""


@dataclass(slots=True)
class StepInReport:
    """A step whose mean was formed, until every member has reported that it applied it.

    Attributes:
        global_batch_size: B, samples, of the view that it was computed under.
        awaited: Members that have not reported yet.
    """

    done: LoopStepDone
    global_batch_size: int
    awaited: set[str]
    _losses: list[tuple[float, int]] = field(default_factory=list)
    _update_s: float = 0.0

    def add(self, report: Reported) -> None:
        """Take a member's report."""
        self.awaited.discard(report.worker)
        self._update_s = max(self._update_s, report.update_s)
        if report.loss is not None and report.samples:
            self._losses.append((report.loss, report.samples))

    @property
    def loss(self) -> float | None:
        """Mean of the loss over the samples of those that gave one; None if nobody did."""
        samples = sum(count for _, count in self._losses)
        return sum(loss * count for loss, count in self._losses) / samples if samples else None

    def report(self, ledger: ShardLedger) -> m.StepReport:
        """The report of the step; a worker's samples are positions in all shards, one after the other."""
        done, loss = self.done, self.loss
        begins = _begins(ledger.sizes)
        return m.StepReport(
            step=done.step,
            view=done.view,
            epoch=done.epoch,
            workers=len(done.parts),
            global_batch_size=self.global_batch_size,
            samples=sum(part.stop - part.start for _, part in done.parts),
            step_time_s=done.step_time_s,
            compute_s=max(done.compute_s.values(), default=0.0),
            update_s=self._update_s,
            data_wait_s=0.0,
            loss=math.nan if loss is None else loss,
            mean_worker_sqnorm=done.worker_sqnorm,
            mean_sqnorm=done.sqnorm,
            noise_parts=done.noise_parts,
            worker_compute_s=done.compute_s,
            pieces=tuple(
                (worker, begins[part.shard] + part.start, begins[part.shard] + part.stop)
                for worker, part in done.parts
            ),
        )


class EpochLosses:
    """The mean loss of the epoch in progress."""

    def __init__(self) -> None:
        self._epoch = -1
        self._total, self._samples = 0.0, 0

    def add(self, epoch: int, loss: float | None, samples: int) -> None:
        """Add the mean loss of a step over its samples."""
        if epoch != self._epoch:
            self._epoch, self._total, self._samples = epoch, 0.0, 0
        if loss is not None:
            self._total += loss * samples
            self._samples += samples

    def metrics(self, epoch: int) -> dict[str, float]:
        """The metrics of an epoch; none if nobody reported a loss."""
        known = epoch == self._epoch and self._samples > 0
        return {LOSS: self._total / self._samples} if known else {}


def view_installed(change: LoopViewChanged) -> m.ViewInstalled:
    """The report of a view that has taken effect."""
    view = change.view
    return m.ViewInstalled(
        view_body(
            View(
                number=view.number,
                first_step=change.first_step,
                global_batch_size=view.global_batch_size,
                members=view.members,
                position=Position(change.epoch),
                lr_scale=view.lr_scale,
                reason=view.reason,
            )
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


def quarantined_samples(ledger: ShardLedger) -> dict[int, str]:
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
