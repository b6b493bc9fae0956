"""The sequencer, a second role of the first aggregator: executes the steps that `scavenger.elastic.barrier` decides."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence

from scavenger.elastic import migration as mig
from scavenger.elastic import steps as st
from scavenger.elastic.barrier import Barrier, BarrierPhase
from scavenger.elastic.view import StepPlan
from scavenger.train.aggregation.checkpointing import Checkpointing
from scavenger.train.aggregation.evaluation import EpochEvaluation
from scavenger.train.aggregation.finalisation import Finalisation
from scavenger.train.aggregation.left_out import LeftOut
from scavenger.train.aggregation.model_shard import ModelShard
from scavenger.train.aggregation.step_in_progress import StepInProgress
from scavenger.train.aggregation.step_timer import SequencerTimer
from scavenger.train.aggregation.worker_orders import Terms, WorkerOrders
from scavenger.train.failpoints import fail_here
from scavenger.train.transport import messages as m
from scavenger.train.transport.shared_memory import ProgressRecord


@functools.lru_cache(maxsize=64)
def _in_turn(held: tuple[int, ...], count: int, taking_part: frozenset[int]) -> tuple[int | None, ...]:
    """The aggregators that have a piece; last those without which the step is not complete.

    The others may hold something before it is.
    """
    known = {*held}.intersection(range(count))
    return tuple(sorted(known, key=lambda index: index in taking_part)) or (None,)


class Sequencer:
    """Sequencer of one job.

    Args:
        shard: The first aggregator's model shard.
        barrier: State machine of the job's steps.
        to_worker: Sends a message to a worker.
        to_aggregator: Sends a message to another aggregator, by index; of migrations, also to this one.
        report: Sends a message to the coordinator and the supervisor.
        post: Passes a message from another thread to `from_aggregator` on the serving thread.
        checkpoint: Where and when to write checkpoints; None for no checkpoints.
        best_step: Step after which the weights were best so far; 0 if unknown.
        seed: The job's seed, which determines the sample order of each epoch.
        quarantined: Indices of samples that are left out already.
        rate_scale: The learning rate that callbacks have set, over the one that the model was compiled with.
        expect: Has the first aggregator form sums of a list of pieces.
        apply: Has the first aggregator apply a step; returns None if it answers later, by `from_aggregator`.
        loaded: Indices of the other aggregators that hold their shards; others are added as they tell so.
    """

    def __init__(
        self,
        shard: ModelShard,
        barrier: Barrier,
        *,
        to_worker: Callable[[str, m.Message], None],
        to_aggregator: Callable[[int, m.Message], None],
        report: Callable[[m.Message], None],
        post: Callable[[m.Message], None],
        checkpoint: m.CheckpointPlan | None,
        best_step: int,
        seed: int,
        quarantined: tuple[int, ...],
        expect: Callable[[m.ExpectPieces], None],
        apply: Callable[[m.ApplyPart], m.PartApplied | None],
        loaded: Collection[int],
        rate_scale: float = 1.0,
    ) -> None:
        self._shard, self._barrier = shard, barrier
        self._left_out = LeftOut(shard.layout.manifest, seed, quarantined)
        self._aggregators = shard.layout.aggregators
        self._to_aggregator, self._report = to_aggregator, report
        self._expect_here, self._apply_here = expect, apply
        self._checkpoints = Checkpointing(
            shard, checkpoint, to_aggregator=to_aggregator, report=report, post=post, step=barrier.step
        )
        self._step, self._timer = StepInProgress(), SequencerTimer()
        self._workers = WorkerOrders(to_worker, shard.layout.manifest.dataset_size)
        self._evaluation = EpochEvaluation(shard.layout.manifest.metrics)
        self._finalisation: Finalisation | None = None
        self._request: m.Finish | None = None
        self._best_step, self._rate_scale = best_step, rate_scale
        self._failed = False
        self._loaded = loaded
        self._announced: m.Announcement | None = None
        """A view that is to wait until all aggregators hold their shards."""
        self.beat = m.Beat(barrier.step)
        """The current heartbeat message; an immutable value, because another thread reads it."""

    # ---- state ---------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """The last step that was applied."""
        return self._barrier.step

    def _new_beat(self) -> m.Beat:
        """Build a heartbeat: which workers and aggregators are awaited, and for how long."""
        barrier, view, missing = self._barrier, self._barrier.view, self._barrier.missing
        behind = self._step.behind() or barrier.migration.releasing
        waiting = self._timer.waiting_s if missing or behind else 0.0
        evaluating = barrier.phase in (BarrierPhase.EVALUATE, BarrierPhase.SUMMARISE)
        return m.Beat(barrier.step, view.number if view else 0, missing, waiting, behind, evaluating)

    def inform(self, token: int) -> m.SequencerState:
        """Return the job's state for a coordinator that takes over."""
        self._carry_out(self._barrier.handle(st.Lead(token)))
        return m.SequencerState(True, self._barrier.number, self._barrier.view, self._barrier.step)

    # ---- messages ------------------------------------------------------------------------------------------

    def from_control(self, message: m.Message) -> None:
        """Handle a message from the coordinator or the supervisor."""
        match message:
            case m.Announcement():
                self._announced = message
                self._begin_view()
            case m.VerdictGiven():
                verdict = st.EpochDecision(message.epoch, message.stop, message.step)
                if self._barrier.awaits(verdict):
                    self._take_verdict(message)
                self._handle(verdict)
            case m.MoveBuckets():
                self._handle(mig.RequestMigration(message.request, message.holders))
            case m.Finish() if self._finalisation is None:
                self._request = message
                self._finish_if_possible()
            case m.Recorded():
                self._checkpoints.recorded(message.step)
            case _:
                pass

    def _begin_view(self) -> None:
        """Take the view that is announced, once all aggregators hold their shards.

        Workers read the weights of an aggregator in their own memory as they are, so before it has restored them, they
        would compute with those of another step.
        """
        if (announced := self._announced) is None or len(self._loaded) < self._aggregators - 1:
            return
        self._announced = None
        self._handle(announced.view)

    def from_worker(self, peer: str, message: m.Message) -> None:
        """Handle a message from a worker."""
        if self._failed:
            return
        match message:
            case m.Contributed() if message.rows and not self._shard.layout.accepts(message.rows):
                print(f"refused {peer}: rows that do not fit into a slot", flush=True)
            case m.Contributed():
                for aggregator in _in_turn(message.held, self._aggregators, self._barrier.participants):
                    self._contributed(peer, message, aggregator)
            case m.Evaluation():
                try:
                    sums = self._evaluation.unpack(message.sums)
                except ValueError as error:
                    print(f"refused {peer}: metric sums of the wrong shape: {error}", flush=True)
                    return
                evaluated = st.PieceEvaluated(peer, message.view, message.step, message.piece)
                follows = self._barrier.handle(evaluated)
                if not any(isinstance(instruction, st.Refuse) for instruction in follows):
                    self._evaluation.add(message.piece, sums)
                self._carry_out(follows)
            case m.AskView():
                self.repeat_to(peer)
            case m.Summary():
                follows = self._barrier.handle(st.Summed(peer, message.view, message.step))
                if not any(isinstance(instruction, st.Refuse) for instruction in follows):
                    self._evaluation.metrics = message.metrics
                self._carry_out(follows)
            case _:
                pass

    def from_aggregator(self, message: m.Message) -> None:
        """Handle a message from another aggregator."""
        match message:
            case m.SumsFormed():
                self._step.formed(message)
                self._handle(st.Formed(message.view, message.step, message.number, message.index))
            case m.BucketsCopied():
                self._handle(mig.Copied(message.index, message.number))
            case m.MapTaken():
                self._handle(mig.Taken(message.index, message.number))
            case m.PartApplied():
                self._step.applied(message)
                self._complete()
            case m.Finalised():
                if self._finalisation is not None:
                    self._finalisation.answered(message.index)
                self._report_if_done()
            case m.Initialised():
                self._checkpoints.restarted(message.index)
                self.repeat()
                self._begin_view()
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
        if self._timer.is_repeat_due() and not self._failed:
            self.repeat()
        self._checkpoints.tick()
        self.beat = self._new_beat()

    def repeat(self) -> None:
        """Repeat the requests for everything that is awaited."""
        with self._timer.repeating():
            self._handle(st.Tick())
        if self._finalisation is not None and not self._finalisation.complete:
            self._finalisation.carry_out()

    def repeat_to(self, worker: str) -> None:
        """Send the view and all pending orders to one worker, which has just connected or lacks the view."""
        self._workers.lacks_view(worker)
        self._carry_out(
            [
                instruction
                for instruction in self._barrier.handle(st.Tick())
                if isinstance(instruction, st.Proceed | st.Sum) and instruction.worker == worker
            ]
        )

    def _contributed(self, peer: str, message: m.Contributed, aggregator: int | None) -> None:
        follows = self._barrier.handle(
            st.Contribution(peer, message.view, message.step, message.piece, aggregator)
        )
        if not (follows and isinstance(follows[0], st.Refuse)):  # a refusal comes alone
            self._step.contributed(message)
            if aggregator is not None:
                fail_here("aggregator.received")
        if follows:
            self._carry_out(follows)

    def _handle(self, event: st.Event) -> None:
        self._carry_out(self._barrier.handle(event))

    def _carry_out(self, instructions: Sequence[st.Instruction]) -> None:
        terms, action = None, ""
        for instruction in instructions:
            if isinstance(instruction, st.Proceed):
                if terms is None or instruction.action != action:
                    terms, action = self._terms(instruction.step), instruction.action
                    self._timer.ordered(action)
                self._proceed(instruction, terms)
                continue
            terms = None
            match instruction:
                case st.Apply():
                    self._begin_apply(instruction)
                case st.Expect():
                    self._expect(instruction)
                case st.Sum():
                    self._sum(instruction)
                case st.ReportMetrics():
                    self._report_end(instruction.plan)
                case st.Installed():
                    # recorded before it is reported, because its number must not be used again
                    self._write_record()
                    self._report(m.ViewInstalled(instruction.view))
                case mig.Copy() | mig.AdoptMap() | mig.Take() | mig.MigrationEnded():
                    self._migrate(instruction)
                case st.Inform():
                    pass
                case st.QuarantineSamples():
                    self._quarantine_samples(instruction)
                case st.Despair():
                    self._failed = True
                    self._report(m.Failed("data", instruction.reason))
                case st.Refuse():
                    print(f"refused {instruction.sender}: {instruction.reason}", flush=True)

    # ---- steps ---------------------------------------------------------------------------------------------

    def _begin_apply(self, instruction: st.Apply) -> None:
        if self._fails(instruction):
            return
        plan, manifest, at = instruction.plan, self._shard.layout.manifest, None
        if manifest.schedule_batch:
            at = manifest.schedule_step(plan.step - 1, plan.epoch, plan.shares[0].start)
        if self._step.begin_apply(
            instruction, lr_scale=self._lr_scale, best_step=self._best_step, schedule_step=at
        ):
            self._timer.progressed()
        order, behind = self._step.order, self._step.behind()
        assert order is not None
        for aggregator in instruction.aggregators:
            if aggregator and aggregator in behind:
                self._to_aggregator(aggregator, order)
        if 0 in behind and (applied := self._apply_here(order)) is not None:
            self._step.applied(applied)
        self._complete()

    def _expect(self, instruction: st.Expect) -> None:
        """Have aggregators form the sums of a list of pieces; what was applied of an earlier list is void."""
        self._step.abandon()
        plan, pieces = instruction.plan, instruction.pieces
        counts = self._left_out.counts(plan.epoch, pieces)
        for aggregator, held in instruction.aggregators:
            message = m.ExpectPieces(
                plan.step,
                instruction.view.number,
                instruction.number,
                instruction.view.workers,
                tuple((piece.number, piece.slot, count) for piece, count in zip(pieces, counts, strict=True)),
                self._step.rows_of(held),
                instruction.map.number,
                instruction.map.if_begun(plan.step),
            )
            if aggregator:
                self._to_aggregator(aggregator, message)
            else:
                self._expect_here(message)

    def _complete(self) -> None:
        """Finish the step once every shard is updated; refuse it if a value is not finite."""
        instruction = self._step.completed()
        if instruction is None:
            return
        if self._fails(instruction):
            return
        plan = instruction.plan
        self._shard.sum_metrics(
            plan.step,
            self._step.counted_slots(instruction.pieces),
            begins_epoch=plan.shares[0].start == 0,
        )
        report = self._step.report(instruction, self._timer.step_ended())
        self._step.close()
        self._shard.block.write_report(plan.step, m.encode(report))
        number, best = self._barrier.number, self._best_step
        record = ProgressRecord(plan.step, plan.next_position, number, best, self._rate_scale)
        self._shard.block.write_job(record)
        fail_here("aggregator.published")
        self._report(report)
        follows: list[st.Instruction] = []
        for aggregator in instruction.map.participants:
            follows += self._barrier.handle(st.Applied(plan.step, aggregator))
        if plan.ends_epoch:
            self._timer.evaluation_began()
        self._look_for_checkpoint()
        self._carry_out(follows)
        self._finish_if_possible()

    def _fails(self, instruction: st.Apply) -> bool:
        """Whether the job fails with a step, and keeps the weights of the step before, since a value is not finite."""
        if what := self._step.not_finite(instruction, scales_loss=self._shard.scales_loss):
            self._failed = True
            advice = "the step was not applied. Lower the learning rate, or check the data"
            self._report(m.Failed("nonfinite", f"{what}; {advice}"))
        return bool(what)

    def _migrate(self, instruction: mig.MigrationInstruction) -> None:
        match instruction:
            case mig.Copy():
                fail_here("sequencer.copying")
                order = m.CopyBuckets(
                    instruction.number,
                    instruction.step,
                    instruction.target,
                    instruction.buckets,
                    self._best_step,
                )
                for aggregator in sorted({instruction.target, *(holder for _, holder in order.buckets)}):
                    self._to_aggregator(aggregator, order)
            case mig.AdoptMap():
                fail_here("sequencer.adopting")
                self._shard.block.write_map(instruction.map, instruction.before)
                fail_here("sequencer.adopted")
                self._report(m.MapChanged(instruction.map))
            case mig.Take():
                for aggregator in instruction.aggregators:
                    self._to_aggregator(aggregator, m.TakeMap(instruction.map))
            case mig.MigrationEnded():
                self._report(m.Migrated(instruction.request, instruction.map, instruction.reason))

    def _others(self) -> list[int]:
        """Indices of the other aggregators that hold something of the last step's state."""
        return [index for index in self._barrier.migration.settled.participants if index]

    def _quarantine_samples(self, instruction: st.QuarantineSamples) -> None:
        """Exclude samples on which workers crashed repeatedly."""
        piece = instruction.piece
        samples = self._left_out.add(piece.scope, piece.start, piece.stop)
        self._report(m.SamplesQuarantined(samples, instruction.reason))

    def _terms(self, step: int) -> Terms:
        """What the orders that follow a step have in common."""
        settled = self._barrier.migration.settled
        return Terms(self._left_out.samples, self._barrier.suspicious, self._shard.loss_scale(step), settled)

    def _proceed(self, instruction: st.Proceed, terms: Terms) -> None:
        if self._step.is_new(instruction.pieces):
            self._timer.progressed()
        self._workers.order(instruction, terms)

    # ---- epochs --------------------------------------------------------------------------------------------

    def _sum(self, instruction: st.Sum) -> None:
        """Ask one worker to compute the epoch's metrics from their sums."""
        self._timer.progressed()
        self._workers.send(
            instruction.worker,
            m.Summarise(
                instruction.view.number,
                instruction.plan.step,
                self._training_sums(instruction.plan.step),
                self._evaluation.total(instruction.pieces),
            ),
        )

    def _training_sums(self, step: int) -> tuple[bytes, ...]:
        """The epoch's sums of the metric variables as of a step."""
        return tuple(total.tobytes() for total in self._shard.metric_sums(step))

    def _report_end(self, plan: StepPlan) -> None:
        """Report an epoch, or a step whose end is waited for; workers may be asked for the weights."""
        if self._barrier.map.number:
            self._workers.tell_map(self._barrier.migration.settled)
        if plan.ends_epoch:
            self._report_epoch(plan)
        else:
            self._report(m.BatchReport(plan.epoch, plan.step, self._training_sums(plan.step)))

    def _report_epoch(self, plan: StepPlan) -> None:
        evaluation_s = self._timer.evaluation_ended()
        manifest = self._shard.layout.manifest
        self._report(
            m.EpochReport(
                plan.epoch,
                plan.step,
                self._evaluation.metrics,
                evaluation_s,
                callbacks=bool(manifest.callbacks),
                batch_hooks=manifest.batch_hooks,
            )
        )
        # the message is repeated until it is answered, so only the sums may go
        self._evaluation.forget_sums()

    def _write_record(self) -> None:
        barrier = self._barrier
        self._shard.block.write_job(
            ProgressRecord(barrier.step, barrier.position, barrier.number, self._best_step, self._rate_scale)
        )

    def _take_verdict(self, verdict: m.VerdictGiven) -> None:
        """Take what a verdict says about the weights and the learning rate, before the next step begins."""
        if verdict.rate_scale != self._rate_scale:
            self._rate_scale = verdict.rate_scale
            self._write_record()
        if verdict.keep_best:
            self._keep_best()

    @property
    def _lr_scale(self) -> float:
        """Factor on the learning rate of the step in progress: that of the view times that of callbacks."""
        view = self._barrier.view
        return self._rate_scale if view is None else view.lr_scale * self._rate_scale

    def _look_for_checkpoint(self, *, now: bool = False) -> None:
        self._checkpoints.look(
            self._barrier,
            best_step=self._best_step,
            quarantined=self._left_out.samples,
            rate_scale=self._rate_scale,
            now=now,
        )

    def _keep_best(self) -> None:
        step = self._best_step = self._barrier.step
        self._shard.keep_best(step)
        for aggregator in self._others():
            self._to_aggregator(aggregator, m.KeepBest(step))
        self._write_record()

    # ---- shutdown ------------------------------------------------------------------------------------------

    def _finish_if_possible(self) -> None:
        """End the training if that was requested, unless the state after the last step is being overwritten."""
        request, applying = self._request, self._barrier.in_place and self._step.order is not None
        if request is None or self._finalisation is not None or (applying and not self._failed):
            return
        self._request = None
        self._handle(st.Halt())
        self._step.abandon()
        if request.checkpoint and not applying:
            # a checkpoint of the state before `finalise`; the copy is made first
            self._look_for_checkpoint(now=True)
        order = m.Finalise(self._barrier.step, request.best and self._best_step > 0, self._best_step)
        self._finalisation = Finalisation(self._shard, self._others(), order, send=self._to_aggregator)
        self._finalisation.carry_out()
        self._report_if_done()

    def _report_if_done(self) -> None:
        if self._finalisation is not None and self._finalisation.complete and not self._checkpoints.busy:
            self._finalisation = None
            self._report(m.Done(self._barrier.step, self._lr_scale))
