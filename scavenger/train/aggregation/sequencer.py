"""The first aggregator's second role: it sequences the job's steps, as `scavenger.elastic.barrier` decides."""

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
"""Silence after which what is awaited is asked for again."""


class Sequencer:
    """One job's sequencing.

    Args:
        part: The first part.
        barrier: Where the job stands.
        to_worker: Sends to a worker.
        to_aggregator: Sends to one of the other aggregators, by its place.
        report: Sends to whoever leads the job.
        post: Has `from_aggregator` called with a message by the thread that serves; for other threads.
        checkpoint: Where and when to write checkpoints; None for none.
        seed: Of the job, which the order of an epoch follows from.
        quarantined: Samples that are left out already.
    """

    def __init__(
        self,
        part: ModelShard,
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
        self._part, self._barrier = part, barrier
        self._seed, self._quarantined = seed, quarantined
        self._manifest = part.layout.manifest
        self._others = range(1, part.layout.aggregators)
        self._to_worker, self._to_aggregator = to_worker, to_aggregator
        self._report = report
        self._checkpoints = Checkpointing(
            part, checkpoint, to_aggregator=to_aggregator, report=report, post=post, step=barrier.step
        )
        self._said: dict[int, m.Contributed] = {}
        self._sums: dict[int, list[Any]] = {}
        self._summary: dict[str, float] = {}
        self._applied: dict[int, m.PartApplied] = {}
        self._order: m.ApplyPart | None = None
        self._apply: b.Apply | None = None
        self._best_step = best_step
        self._opened_at = 0.0
        self._evaluating_since = 0.0
        self._moved_at = self._repeated_at = time.perf_counter()
        self._failed = False
        self._finishing: m.Finish | None = None
        self._finalising: set[int] = set()
        self._newest_piece = 0
        self._view: m.ViewBody | None = None
        self._told: dict[str, int] = {}
        self.beat = m.Beat(barrier.step)
        """What is awaited, and since when: a value, since another thread asks for it."""

    # ---- what is -------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        return self._barrier.step

    def _new_beat(self) -> m.Beat:
        """What is awaited, and since when."""
        barrier, view = self._barrier, self._barrier.view
        missing = barrier.missing
        behind = tuple(a for a in self._others if a not in self._applied) if self._order else ()
        waiting = time.perf_counter() - self._moved_at if missing or behind else 0.0
        evaluating = barrier.phase in (b.Phase.EVALUATE, b.Phase.SUMMARISE)
        return m.Beat(barrier.step, view.number if view else 0, missing, waiting, behind, evaluating)

    def inform(self, token: int) -> m.Inform:
        """Where the job stands, for a coordinator that takes the lead."""
        self._carry_out(self._barrier.handle(b.Lead(token)))
        view = self._barrier.view
        return m.Inform(
            True, self._barrier.number, None if view is None else m.view_body(view), self._barrier.step
        )

    # ---- messages ------------------------------------------------------------------------------------------

    def from_leader(self, message: m.Message) -> None:
        """From the coordinator or the supervisor."""
        match message:
            case m.Announcement():
                members = tuple(Member(body.worker, body.slot) for body in message.members)
                self._feed(
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
                self._feed(b.Verdict(message.epoch, message.stop))
            case m.Finish() if self._finishing is None:
                self._finishing = message
                self._feed(b.Halt())
                self._order = self._apply = None  # a step that some have not applied is never told of
                self._finish()
            case m.Recorded():
                self._checkpoints.recorded(message.step)
            case _:
                pass

    def from_worker(self, peer: str, message: m.Message, *, complete: bool) -> None:
        """From a worker. `complete`: this aggregator has all of the piece that the message tells of."""
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
                    print(f"refused {peer}: metric sums of another form: {error}", flush=True)
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
        """From one of the other aggregators."""
        match message:
            case m.Held():
                self._feed(
                    b.Contribution(message.worker, message.view, message.step, message.piece, message.index)
                )
            case m.PartApplied() if self._order is not None and message.step == self._order.step:
                self._applied[message.index] = message
                self._complete()
            case m.Finalised():
                self._finalising.discard(message.index)
                self._finished()
            case m.Initialised():
                self._checkpoints.restarted(message.index)
                self.repeat()
            case m.PartSaved():
                self._checkpoints.part_saved(message)
                self._finished()
            case m.CheckpointWritten() | m.CheckpointFailed():
                self._checkpoints.committed()
                self._report(message)
                self._finished()
            case _:
                pass

    def tick(self) -> None:
        """Called every moment: repeats what has had no answer."""
        now = time.perf_counter()
        if now - max(self._moved_at, self._repeated_at) > _REPEAT_S and not self._failed:
            self.repeat()
        self._checkpoints.tick()
        self.beat = self._new_beat()

    def repeat(self) -> None:
        """Ask again for all that is awaited."""
        self._repeated_at = time.perf_counter()
        waiting_since = self._moved_at
        self._feed(b.Tick())
        if self._order is not None or self._barrier.missing:
            self._moved_at = waiting_since  # for whoever asks how long it has been
        if self._finishing is not None and self._finalising:
            self._finalise()

    def repeat_to(self, worker: str) -> None:
        """Send one worker, which has connected or lacks the view, the view and what it is awaited for."""
        self._told.pop(worker, None)
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
            self._said[message.piece] = message
            fail_here("aggregator.received")
        self._carry_out(follows)

    def _feed(self, event: b.Event) -> None:
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
                    # before anybody hears of it: its number must not be given again
                    self._write_record()
                    self._report(m.ViewInstalled(m.view_body(instruction.view)))
                case b.Inform():
                    pass
                case b.Quarantine():
                    self._leave_out(instruction)
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
                (piece.number, self._said[piece.number].samples, piece.slot) for piece in instruction.pieces
            ),
        )
        if order != self._order:
            self._order, self._apply = order, instruction
            self._applied.clear()
            self._moved_at = time.perf_counter()
        for aggregator in instruction.aggregators:
            if aggregator and aggregator not in self._applied:
                self._to_aggregator(aggregator, order)
        if 0 not in self._applied:
            self._applied[0] = self._part.apply(order)
        self._complete()

    def _complete(self) -> None:
        """Once every part is there: the step is applied, or, where it is not finite, refused by all."""
        if self._order is None or self._apply is None or len(self._applied) < self._part.layout.aggregators:
            return
        order, instruction = self._order, self._apply
        plan, view, pieces = instruction.plan, instruction.view, instruction.pieces
        said = [self._said[piece.number] for piece in pieces]
        loss = sum(told.samples * told.loss for told in said) / max(1, sum(told.samples for told in said))
        norms = list(self._applied.values())
        if not (math.isfinite(loss) and all(part.finite for part in norms)):
            self._refuse_step(plan, pieces, loss)
            return
        self._order = self._apply = None
        self._part.sum_metrics(
            plan.step,
            [piece.slot for piece, told in zip(pieces, said, strict=True) if told.samples],
            begins_epoch=plan.shares[0].start == 0,
        )
        report = self._step_report(
            plan, view.number, view.workers, view.global_batch_size, pieces, loss, norms
        )
        self._part.block.write_report(plan.step, m.encode(report))
        self._part.block.write_job(
            JobRecord(plan.step, plan.next_position, self._barrier.number, self._best_step)
        )
        fail_here("aggregator.published")
        self._report(report)
        self._said.clear()
        follows: list[b.Instruction] = []
        for aggregator in range(self._part.layout.aggregators):
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
        said = [self._said[piece.number] for piece in pieces]
        compute: dict[str, float] = {}
        for piece, told in zip(pieces, said, strict=True):
            # waiting for samples grows with the share as computing does, and is no synchronisation
            spent = told.compute_s + told.data_wait_s
            compute[piece.worker] = compute.get(piece.worker, 0.0) + spent
        counted = [told for told in said if told.samples]
        parts, worker_sqnorm = len(counted), sum(part.mean_worker_sqnorm for part in norms)
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
            samples=sum(told.samples for told in said),
            step_time_s=now - self._opened_at,
            compute_s=max(compute.values(), default=0.0),
            update_s=max(part.update_s for part in norms),
            data_wait_s=max((told.data_wait_s for told in said), default=0.0),
            loss=loss,
            mean_worker_sqnorm=worker_sqnorm,
            mean_sqnorm=sum(part.mean_sqnorm for part in norms),
            noise_parts=parts,
            worker_compute_s=compute,
            pieces=tuple((piece.worker, piece.share.start, piece.share.stop) for piece in pieces),
        )
        self._opened_at = self._moved_at = now
        return report

    def _leave_out(self, instruction: b.Quarantine) -> None:
        """Workers died of these again and again: nobody computes them any more."""
        piece = instruction.piece
        order = epoch_order(self._seed, piece.scope, self._manifest.dataset_size)
        samples = tuple(int(index) for index in order[piece.start : piece.stop])
        self._quarantined = tuple(sorted({*self._quarantined, *samples}))
        self._report(m.Quarantined(samples, instruction.reason))

    def _refuse_step(self, plan: StepPlan, pieces: tuple[Piece, ...], loss: float) -> None:
        """A non-finite gradient is not applied: the weights of the step before stay the job's."""
        self._failed = True
        what = "loss" if not math.isfinite(loss) else "gradient"
        value = loss if what == "loss" else math.nan
        names = dict.fromkeys(p.worker for p in pieces if not math.isfinite(self._said[p.number].loss))
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
        newest = max((piece.number for piece in instruction.pieces), default=0)
        if newest > self._newest_piece:  # the wait for it begins now, whatever was before
            self._newest_piece, self._moved_at = newest, now
        self._tell_view(instruction.worker, instruction.view)
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

    def _tell_view(self, worker: str, view: View) -> None:
        """Send a worker the view that its orders name, unless it has been sent it before."""
        if self._view is None or self._view.number != view.number:
            self._view = m.view_body(view)
            members = {member.worker for member in view.members}
            self._told = {name: number for name, number in self._told.items() if name in members}
        if self._told.get(worker) != view.number:
            self._told[worker] = view.number
            self._to_worker(worker, m.TakeView(self._view))

    # ---- epochs --------------------------------------------------------------------------------------------

    def _unpack(self, sums: Sequence[bytes]) -> list[Any]:
        shapes = self._manifest.metrics
        return [np.frombuffer(data).reshape(shape) for data, shape in zip(sums, shapes, strict=True)]

    def _sum(self, instruction: b.Sum) -> None:
        """Have one worker turn the epoch's sums into metrics."""
        self._moved_at = time.perf_counter()
        validation = [np.zeros(shape) for shape in self._manifest.metrics]
        for piece in instruction.pieces:
            for total, value in zip(validation, self._sums[piece.number], strict=True):
                total += value
        self._to_worker(
            instruction.worker,
            m.Summarise(
                instruction.view.number,
                instruction.plan.step,
                tuple(total.tobytes() for total in self._part.metric_sums(instruction.plan.step)),
                tuple(total.tobytes() for total in validation),
            ),
        )

    def _report_epoch(self, plan: StepPlan) -> None:
        self._sums.clear()
        self._moved_at = now = time.perf_counter()
        since = self._evaluating_since or now
        self._report(m.EpochReport(plan.epoch, plan.step, self._summary, now - since))

    def _write_record(self) -> None:
        barrier = self._barrier
        self._part.block.write_job(JobRecord(barrier.step, barrier.position, barrier.number, self._best_step))

    def _keep_best(self) -> None:
        step = self._best_step = self._barrier.step
        self._part.keep_best(step)
        for aggregator in self._others:
            self._to_aggregator(aggregator, m.KeepBest(step))
        self._write_record()

    # ---- end -----------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        assert self._finishing is not None
        if self._finishing.checkpoint:
            # of the state as training left it, which is copied before it is finalised
            self._checkpoints.look(
                self._barrier, best_step=self._best_step, quarantined=self._quarantined, now=True
            )
        self._finalising = set(self._others)
        self._finalise()
        self._finished()

    def _finalise(self) -> None:
        """Have the weights finalised; done again, it gives the same."""
        assert self._finishing is not None
        step, best = self._barrier.step, self._finishing.best and self._best_step > 0
        self._part.finalise(step, best=best)
        for aggregator in sorted(self._finalising):
            self._to_aggregator(aggregator, m.Finalise(step, best))

    def _finished(self) -> None:
        if self._finishing is not None and not self._finalising and not self._checkpoints.busy:
            self._finishing = None
            self._report(m.Done(self._barrier.step))
