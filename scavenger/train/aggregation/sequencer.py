"""The sequencer, a second role of the first aggregator: executes the steps that `scavenger.elastic.barrier` decides."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from scavenger.elastic import barrier as b
from scavenger.elastic.order import epoch_order
from scavenger.elastic.quarantine import Cause
from scavenger.elastic.view import Member, Piece, StepPlan, View
from scavenger.train.aggregation.checkpointing import Checkpointing
from scavenger.train.aggregation.model_shard import ModelShard
from scavenger.train.failpoints import fail_here
from scavenger.train.transport import messages as m
from scavenger.train.transport.shared_memory import JobRecord

__all__ = ["Sequencer"]

_REPEAT_S = 1.0
"""Time without progress after which pending requests are repeated."""


class Sequencer:
    """Sequencer of one job.

    Args:
        shard: The first aggregator's model shard.
        barrier: State machine of the job's steps.
        to_worker: Sends a message to a worker.
        to_aggregator: Sends a message to another aggregator, by index.
        report: Sends a message to the coordinator and the supervisor.
        post: Passes a message from another thread to `from_aggregator` on the serving thread.
        checkpoint: Where and when to write checkpoints; None for no checkpoints.
        best_step: Step after which the weights were best so far; 0 if unknown.
        seed: The job's seed, which determines the sample order of each epoch.
        quarantined: Indices of samples that are left out already.
    """

    def __init__(
        self,
        shard: ModelShard,
        barrier: b.Barrier,
        *,
        to_worker: Callable[[str, m.Message], None],
        to_aggregator: Callable[[int, m.Message], None],
        report: Callable[[m.Message], None],
        post: Callable[[m.Message], None],
        checkpoint: m.CheckpointPlan | None,
        best_step: int,
        seed: int,
        quarantined: tuple[int, ...],
    ) -> None:
        self._shard, self._barrier = shard, barrier
        self._seed, self._quarantined = seed, quarantined
        self._manifest = shard.layout.manifest
        self._others = range(1, shard.layout.aggregators)
        self._to_worker, self._to_aggregator = to_worker, to_aggregator
        self._report = report
        self._checkpoints = Checkpointing(
            shard, checkpoint, to_aggregator=to_aggregator, report=report, post=post, step=barrier.step
        )
        self._contributions: dict[int, m.Contributed] = {}
        self._sums: dict[int, list[Any]] = {}
        self._summary: dict[str, float] = {}
        self._applied: dict[int, m.PartApplied] = {}
        self._order: m.ApplyPart | None = None
        self._apply: b.Apply | None = None
        self._best_step = best_step
        self._opened_at = 0.0
        self._evaluating_since = 0.0
        self._progress_at = self._repeated_at = time.perf_counter()
        self._failed = False
        self._finishing: m.Finish | None = None
        self._finalising: set[int] = set()
        self._ordered: set[int] = set()
        self._view: m.ViewBody | None = None
        self._views_sent: dict[str, int] = {}
        self.beat = m.Beat(barrier.step)
        """The current heartbeat message; an immutable value, because another thread reads it."""

    # ---- state ---------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """The last step that was applied."""
        return self._barrier.step

    def _new_beat(self) -> m.Beat:
        """Build a heartbeat: which workers and aggregators are awaited, and for how long."""
        barrier, view = self._barrier, self._barrier.view
        missing = barrier.missing
        behind = tuple(a for a in self._others if a not in self._applied) if self._order else ()
        waiting = time.perf_counter() - self._progress_at if missing or behind else 0.0
        evaluating = barrier.phase in (b.Phase.EVALUATE, b.Phase.SUMMARISE)
        return m.Beat(barrier.step, view.number if view else 0, missing, waiting, behind, evaluating)

    def inform(self, token: int) -> m.Inform:
        """Return the job's state for a coordinator that takes over."""
        self._carry_out(self._barrier.handle(b.Lead(token)))
        view = self._barrier.view
        return m.Inform(
            True, self._barrier.number, None if view is None else m.view_body(view), self._barrier.step
        )

    # ---- messages ------------------------------------------------------------------------------------------

    def from_control(self, message: m.Message) -> None:
        """Handle a message from the coordinator or the supervisor."""
        match message:
            case m.Announcement():
                members = tuple(Member(body.worker, body.slot) for body in message.members)
                self._handle(
                    b.Announce(
                        number=message.number,
                        members=members,
                        global_batch_size=message.global_batch_size,
                        lost=message.lost,
                        deaths=tuple(
                            b.Death(death.worker, death.host, Cause(death.cause), death.hosts)
                            for death in message.deaths
                        ),
                        token=message.token,
                        lr_scale=message.lr_scale,
                        reason=message.reason,
                    )
                )
            case m.VerdictGiven():
                if message.keep_best and self._barrier.phase is b.Phase.VERDICT:
                    self._keep_best()
                self._handle(b.Verdict(message.epoch, message.stop))
            case m.Finish() if self._finishing is None:
                self._finishing = message
                self._handle(b.Halt())
                self._order = self._apply = (
                    None  # a step that only some aggregators have applied is never reported
                )
                self._finish()
            case m.Recorded():
                self._checkpoints.recorded(message.step)
            case _:
                pass

    def from_worker(self, peer: str, message: m.Message, *, complete: bool) -> None:
        """Handle a message from a worker.

        Args:
            peer: Name of the worker.
            message: The message.
            complete: Whether this aggregator has received all of the piece that the message announces.
        """
        if self._failed:
            return
        match message:
            case m.Contributed():
                held = {*message.held, 0} if complete else {*message.held} - {0}
                for aggregator in sorted(held & {0, *self._others}):
                    self._contributed(peer, message, aggregator)
            case m.Evaluation():
                try:
                    sums = self._unpack(message.sums)
                except ValueError as error:
                    print(f"refused {peer}: metric sums of the wrong shape: {error}", flush=True)
                    return
                follows = self._barrier.handle(b.Evaluated(peer, message.view, message.step, message.piece))
                if not any(isinstance(instruction, b.Refuse) for instruction in follows):
                    self._sums[message.piece] = sums
                self._carry_out(follows)
            case m.AskView():
                self.repeat_to(peer)
            case m.Summary():
                follows = self._barrier.handle(b.Summed(peer, message.view, message.step))
                if not any(isinstance(instruction, b.Refuse) for instruction in follows):
                    self._summary = message.metrics
                self._carry_out(follows)
            case _:
                pass

    def from_aggregator(self, message: m.Message) -> None:
        """Handle a message from another aggregator."""
        match message:
            case m.Held():
                self._handle(
                    b.Contribution(message.worker, message.view, message.step, message.piece, message.index)
                )
            case m.PartApplied() if self._order is not None and message.step == self._order.step:
                self._applied[message.index] = message
                self._complete()
            case m.Finalised():
                self._finalising.discard(message.index)
                self._report_if_done()
            case m.Initialised():
                self._checkpoints.restarted(message.index)
                self.repeat()
            case m.PartSaved():
                self._checkpoints.part_saved(message)
                self._report_if_done()
            case m.CheckpointWritten() | m.CheckpointFailed():
                self._checkpoints.committed()
                self._report(message)
                self._report_if_done()
            case _:
                pass

    def tick(self) -> None:
        """Repeat what was not answered and update the heartbeat; called several times a second."""
        now = time.perf_counter()
        if now - max(self._progress_at, self._repeated_at) > _REPEAT_S and not self._failed:
            self.repeat()
        self._checkpoints.tick()
        self.beat = self._new_beat()

    def repeat(self) -> None:
        """Repeat the requests for everything that is awaited."""
        self._repeated_at = time.perf_counter()
        waiting_since = self._progress_at
        self._handle(b.Tick())
        if self._order is not None or self._barrier.missing:
            self._progress_at = waiting_since  # the heartbeat reports the time since the first request
        if self._finishing is not None and self._finalising:
            self._finalise()

    def repeat_to(self, worker: str) -> None:
        """Send the view and all pending orders to one worker, which has just connected or lacks the view."""
        self._views_sent.pop(worker, None)
        self._carry_out(
            [
                instruction
                for instruction in self._barrier.handle(b.Tick())
                if isinstance(instruction, b.Proceed | b.Sum) and instruction.worker == worker
            ]
        )

    def _contributed(self, peer: str, message: m.Contributed, aggregator: int) -> None:
        follows = self._barrier.handle(
            b.Contribution(peer, message.view, message.step, message.piece, aggregator)
        )
        if not any(isinstance(instruction, b.Refuse) for instruction in follows):
            self._contributions[message.piece] = message
            fail_here("aggregator.received")
        self._carry_out(follows)

    def _handle(self, event: b.Event) -> None:
        self._carry_out(self._barrier.handle(event))

    def _carry_out(self, instructions: Sequence[b.Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case b.Apply():
                    self._begin_apply(instruction)
                case b.Proceed():
                    self._proceed(instruction)
                case b.Sum():
                    self._sum(instruction)
                case b.Report():
                    self._report_epoch(instruction.plan)
                case b.Installed():
                    # recorded before it is reported, because its number must not be used again
                    self._write_record()
                    self._report(m.ViewInstalled(m.view_body(instruction.view)))
                case b.Inform():
                    pass
                case b.Quarantine():
                    self._quarantine_samples(instruction)
                case b.Despair():
                    self._failed = True
                    self._report(m.Failed("data", instruction.reason))
                case b.Refuse():
                    print(f"refused {instruction.sender}: {instruction.reason}", flush=True)

    # ---- steps ---------------------------------------------------------------------------------------------

    def _begin_apply(self, instruction: b.Apply) -> None:
        order = m.ApplyPart(
            step=instruction.plan.step,
            view=instruction.view.number,
            lr_scale=instruction.view.lr_scale,
            pieces=tuple(
                (piece.number, self._contributions[piece.number].samples, piece.slot)
                for piece in instruction.pieces
            ),
        )
        if order != self._order:
            self._order, self._apply = order, instruction
            self._applied.clear()
            self._progress_at = time.perf_counter()
        for aggregator in instruction.aggregators:
            if aggregator and aggregator not in self._applied:
                self._to_aggregator(aggregator, order)
        if 0 not in self._applied:
            self._applied[0] = self._shard.apply(order)
        self._complete()

    def _complete(self) -> None:
        """Finish the step once every shard is updated; refuse it if a value is not finite."""
        if self._order is None or self._apply is None or len(self._applied) < self._shard.layout.aggregators:
            return
        order, instruction = self._order, self._apply
        plan, view, pieces = instruction.plan, instruction.view, instruction.pieces
        contributions = [self._contributions[piece.number] for piece in pieces]
        loss = sum(each.samples * each.loss for each in contributions) / max(
            1, sum(each.samples for each in contributions)
        )
        norms = list(self._applied.values())
        if not (math.isfinite(loss) and all(shard.finite for shard in norms)):
            self._refuse_step(plan, pieces, loss)
            return
        self._order = self._apply = None
        self._shard.sum_metrics(
            plan.step,
            [piece.slot for piece, each in zip(pieces, contributions, strict=True) if each.samples],
            begins_epoch=plan.shares[0].start == 0,
        )
        report = self._step_report(
            plan, view.number, view.workers, view.global_batch_size, pieces, loss, norms
        )
        self._shard.block.write_report(plan.step, m.encode(report))
        self._shard.block.write_job(
            JobRecord(plan.step, plan.next_position, self._barrier.number, self._best_step)
        )
        fail_here("aggregator.published")
        self._report(report)
        self._contributions.clear()
        self._ordered.clear()
        follows: list[b.Instruction] = []
        for aggregator in range(self._shard.layout.aggregators):
            follows += self._barrier.handle(b.Applied(order.step, aggregator))
        if plan.ends_epoch:
            self._evaluating_since = self._opened_at
        self._checkpoints.look(self._barrier, best_step=self._best_step, quarantined=self._quarantined)
        self._carry_out(follows)

    def _step_report(
        self,
        plan: StepPlan,
        view: int,
        workers: int,
        batch: int,
        pieces: tuple[Piece, ...],
        loss: float,
        norms: list[m.PartApplied],
    ) -> m.StepReport:
        contributions = [self._contributions[piece.number] for piece in pieces]
        compute: dict[str, float] = {}
        for piece, each in zip(pieces, contributions, strict=True):
            # waiting for samples grows with the share, like computing, and is not synchronisation
            spent = each.compute_s + each.data_wait_s
            compute[piece.worker] = compute.get(piece.worker, 0.0) + spent
        counted = [each for each in contributions if each.samples]
        parts, worker_sqnorm = len(counted), sum(shard.mean_worker_sqnorm for shard in norms)
        if parts == 1:
            worker_sqnorm = counted[0].half_sqnorm
            parts = 2 if worker_sqnorm > 0 else 0
        now = time.perf_counter()
        report = m.StepReport(
            step=plan.step,
            view=view,
            epoch=plan.epoch,
            workers=workers,
            global_batch_size=batch,
            samples=sum(each.samples for each in contributions),
            step_time_s=now - self._opened_at,
            compute_s=max(compute.values(), default=0.0),
            update_s=max(shard.update_s for shard in norms),
            data_wait_s=max((each.data_wait_s for each in contributions), default=0.0),
            loss=loss,
            mean_worker_sqnorm=worker_sqnorm,
            mean_sqnorm=sum(shard.mean_sqnorm for shard in norms),
            noise_parts=parts,
            worker_compute_s=compute,
            pieces=tuple((piece.worker, piece.share.start, piece.share.stop) for piece in pieces),
        )
        self._opened_at = self._progress_at = now
        return report

    def _quarantine_samples(self, instruction: b.Quarantine) -> None:
        """Exclude samples on which workers crashed repeatedly."""
        piece = instruction.piece
        order = epoch_order(self._seed, piece.scope, self._manifest.dataset_size)
        samples = tuple(int(index) for index in order[piece.start : piece.stop])
        self._quarantined = tuple(sorted({*self._quarantined, *samples}))
        self._report(m.Quarantined(samples, instruction.reason))

    def _refuse_step(self, plan: StepPlan, pieces: tuple[Piece, ...], loss: float) -> None:
        """Fail the job at a non-finite loss or gradient, keeping the weights of the step before."""
        self._failed = True
        what = "loss" if not math.isfinite(loss) else "gradient"
        value = loss if what == "loss" else math.nan
        names = dict.fromkeys(
            p.worker for p in pieces if not math.isfinite(self._contributions[p.number].loss)
        )
        where = f" (on {', '.join(names)})" if names else ""
        self._report(
            m.Failed(
                "nonfinite",
                f"the {what} became {value} at step {plan.step}, epoch {plan.epoch + 1}{where}; the step was "
                "not applied. Lower the learning rate, or check the data",
            )
        )

    def _proceed(self, instruction: b.Proceed) -> None:
        now = time.perf_counter()
        if instruction.action == "train" and self._evaluating_since:
            self._evaluating_since, self._opened_at = 0.0, now
        elif self._opened_at == 0.0:
            self._opened_at = now
        numbers = {piece.number for piece in instruction.pieces}
        if not numbers <= self._ordered:  # the wait for the new piece begins now
            self._ordered |= numbers
            self._progress_at = now
        self._send_view(instruction.worker, instruction.view)
        self._to_worker(
            instruction.worker,
            m.Order(
                instruction.action,
                instruction.step,
                instruction.view.number,
                tuple(m.piece_body(piece) for piece in instruction.pieces),
                self._quarantined,
                self._barrier.suspicious,
            ),
        )

    def _send_view(self, worker: str, view: View) -> None:
        """Send a worker the view that its orders refer to, unless it was sent before."""
        if self._view is None or self._view.number != view.number:
            self._view = m.view_body(view)
            members = {member.worker for member in view.members}
            self._views_sent = {name: number for name, number in self._views_sent.items() if name in members}
        if self._views_sent.get(worker) != view.number:
            self._views_sent[worker] = view.number
            self._to_worker(worker, m.TakeView(self._view))

    # ---- epochs --------------------------------------------------------------------------------------------

    def _unpack(self, sums: Sequence[bytes]) -> list[Any]:
        shapes = self._manifest.metrics
        return [np.frombuffer(data).reshape(shape) for data, shape in zip(sums, shapes, strict=True)]

    def _sum(self, instruction: b.Sum) -> None:
        """Ask one worker to compute the epoch's metrics from their sums."""
        self._progress_at = time.perf_counter()
        validation = [np.zeros(shape) for shape in self._manifest.metrics]
        for piece in instruction.pieces:
            for total, value in zip(validation, self._sums[piece.number], strict=True):
                total += value
        self._to_worker(
            instruction.worker,
            m.Summarise(
                instruction.view.number,
                instruction.plan.step,
                tuple(total.tobytes() for total in self._shard.metric_sums(instruction.plan.step)),
                tuple(total.tobytes() for total in validation),
            ),
        )

    def _report_epoch(self, plan: StepPlan) -> None:
        self._sums.clear()
        self._progress_at = now = time.perf_counter()
        since = self._evaluating_since or now
        self._report(m.EpochReport(plan.epoch, plan.step, self._summary, now - since))

    def _write_record(self) -> None:
        barrier = self._barrier
        self._shard.block.write_job(
            JobRecord(barrier.step, barrier.position, barrier.number, self._best_step)
        )

    def _keep_best(self) -> None:
        step = self._best_step = self._barrier.step
        self._shard.keep_best(step)
        for aggregator in self._others:
            self._to_aggregator(aggregator, m.KeepBest(step))
        self._write_record()

    # ---- shutdown ------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        assert self._finishing is not None
        if self._finishing.checkpoint:
            # a checkpoint of the state before `finalise`; the copy is made first
            self._checkpoints.look(
                self._barrier, best_step=self._best_step, quarantined=self._quarantined, now=True
            )
        self._finalising = set(self._others)
        self._finalise()
        self._report_if_done()

    def _finalise(self) -> None:
        """Finalise the weights on all aggregators; idempotent."""
        assert self._finishing is not None
        step, best = self._barrier.step, self._finishing.best and self._best_step > 0
        self._shard.finalise(step, best=best)
        for aggregator in sorted(self._finalising):
            self._to_aggregator(aggregator, m.Finalise(step, best))

    def _report_if_done(self) -> None:
        if self._finishing is not None and not self._finalising and not self._checkpoints.busy:
            self._finishing = None
            self._report(m.Done(self._barrier.step))
