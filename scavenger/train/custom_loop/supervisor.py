"""Makes the steps of a custom training loop on a changing number of workers, and reports them.

`poll` drives it; it owns no thread, and `scavenger.elastic.rounds` makes its decisions. This process computes the
means of what workers push and holds the shard ledger; when it ends, all workers end too, and the job can only be
resumed from a checkpoint. There is neither a coordinator nor an aggregator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from scavenger.elastic import recovery
from scavenger.elastic import round_events as r
from scavenger.elastic.exchange_ways import ExchangeWays
from scavenger.elastic.leases import EpochCommitted, Found, Grant, LeaseAttempt, LeasedSamples
from scavenger.elastic.ledger import ShardLedger
from scavenger.elastic.quarantine import Cause, NotTheData, Suspects, cause_of_death
from scavenger.elastic.rounds import Rounds
from scavenger.elastic.sample_queue import SampleQueue
from scavenger.errors import (
    ConfigurationError,
    NotSupportedError,
    ScavengerError,
    TrainingCodeError,
    TrainingHungError,
    TransientError,
)
from scavenger.train.custom_loop import messages as lm
from scavenger.train.custom_loop.comparing import COMPARED_AFTER
from scavenger.train.custom_loop.epoch_ends import EpochEnds
from scavenger.train.custom_loop.exchange import Exchange, KeptMeans, StepMean, unpack
from scavenger.train.custom_loop.gradient_memory import MEAN, STATES
from scavenger.train.custom_loop.held_gradients import HeldGradients
from scavenger.train.custom_loop.reports import (
    EpochLosses,
    Replicas,
    StepInReport,
    manifest_of,
    quarantined_samples,
    view_installed,
)
from scavenger.train.custom_loop.snapshot import LoopCheckpointer, LoopSnapshot
from scavenger.train.custom_loop.watching import LoopWatch, Overdue
from scavenger.train.custom_loop.workers import LoopWorkers
from scavenger.train.engines.base import Exit
from scavenger.train.failure import error_of
from scavenger.train.job_source import JobSource, Timeouts
from scavenger.train.supervisor.events import Leaving, Lost, Refused, Started, Told
from scavenger.train.supervisor.without_aggregators import WithoutAggregators
from scavenger.train.transport import messages as m
from scavenger.train.transport.messages import Failed

BEHIND_MIN, BEHIND_MAX, BEHIND_BYTES, BEHIND_STATES = 2, 20, 256 << 20, 2
"""By how many steps a worker that joins may be behind; how many bytes of means may lie there for it, and how many
times the bytes of its state, if that is more: a large state takes long to load."""


class LoopSupervisor(WithoutAggregators):
    """Makes the steps of a loop; a subclass decides how many workers there are, and when training goes on.

    Args:
        source: The training function.
        workers: Starts, ends and reaches the workers.
        checkpointer: Writes checkpoints and holds the newest one.
        timeouts: Limits on starting; and on a step, which includes what the function does between two epochs.
        clock: Monotonic seconds.
        waits: Whether members wait at the end of an epoch for a verdict; False where the training function alone
            decides how many epochs there are.

    Attributes:
        manifest: Description of the loop; None before a worker has built its replica.
        quarantined: Samples that are left out, by their positions in all shards.
    """

    model_file = "model.safetensors"

    def __init__(
        self,
        source: JobSource,
        workers: LoopWorkers,
        checkpointer: LoopCheckpointer,
        *,
        timeouts: Timeouts,
        clock: Callable[[], float],
        waits: bool,
    ) -> None:
        super().__init__(workers.registry)
        self._source, self._workers, self._checkpointer, self._clock = source, workers, checkpointer, clock
        self._rounds: Rounds | None = None
        self._apart = False
        self._ends = EpochEnds(waits=waits)
        self._wanted: r.Resized | None = None
        self._view = 0
        self._exchange = Exchange(workers, measures_alone=waits)
        if source.exchange == "process_group" and workers.memory is None:
            raise ConfigurationError(
                "process_group is for workers on this machine: between machines, groups would neither encrypt "
                "gradients nor know whose they are; leave it out",
                key="elastic.exchange",
            )
        ways = ExchangeWays(source.exchange if workers.memory is not None else "leader")
        self._held = HeldGradients(workers, ways, limit_s=timeouts.step_s / 2.0, clock=clock)
        self._donation: dict[str, lm.Array] = {}
        self._state_bytes = 0
        """Of the newest state that was donated."""
        self._states = 0
        """States that members were asked to put into the shared memory."""
        self._kept_means = KeptMeans(workers.memory)
        self._place_of_state = -1
        self._loading: dict[int, tuple[int, set[str]]] = {}
        """By place of a state its bytes, and who loads it."""
        self._watch = LoopWatch(workers, timeouts, self._ends, clock)
        self._losses, self._replicas = EpochLosses(), Replicas()
        self._step: StepInReport | None = None
        self._group = 0
        """Of the workers that hold their gradients of the present step; 0 if none do."""
        self._steps_of_view = (-1, 0)
        """The newest view, and the steps under it."""
        self._paused = False
        checkpointer.recorded = lambda step: step <= self._returned_step and self.recorded()

    # ---- the state of the job ------------------------------------------------------------------------------

    @property
    def members(self) -> tuple[str, ...]:
        """Workers that train, or will from the next step on."""
        return () if self._rounds is None else self._rounds.members

    @property
    def step(self) -> int:
        """The last step that was applied."""
        return 0 if self._rounds is None else self._rounds.step

    @property
    def done(self) -> bool:
        """Whether the training function has returned at every member."""
        return self._rounds is not None and self._rounds.done

    @property
    def settled(self) -> bool:
        return self._rounds is not None and self._rounds.settled

    # ---- the loop ------------------------------------------------------------------------------------------

    def _update(self, timeout_s: float) -> None:
        self._write()
        self._workers.wait(timeout_s)
        self._receive()
        for ended in self._workers.ended():
            self._ended(ended)
        self._look_at_held()
        if not self.done:
            self._events += self.engine.preemption_notices()
            self._look()
        self._memory.look(self.engine, self._clock())
        self._report_step(complete=self.done)
        self._end_epoch()
        self._report_quarantine()
        self._set_roster()

    def _launch(self, vm: str, threads: int | None) -> str:
        name = self._workers.launch(vm, threads=threads)
        self._handle(r.WorkerLaunched(name))
        return name

    def _let_go(self, worker: str, reason: str) -> None:
        """Have a worker end that no view needs."""
        self._workers.leave(worker, reason)
        self._ends.gone(worker)
        self._handle(r.WorkerGone(worker, Cause.EVICTED))
        self._events.append(Leaving(worker))

    # ---- messages of workers -------------------------------------------------------------------------------

    def _receive(self) -> None:
        for name, message, frames in self._workers.take():
            match message:
                case Failed():
                    raise error_of(
                        message.kind,
                        message.message,
                        process=name,
                        log=self.engine.log(name),
                        frames=message.frames,
                    )
                case lm.ReplicaBuilt() if name in self._workers.starting:
                    self._arrived(name, message)
                case lm.AskMessage():
                    self._loaded({name})
                    if not self._ends.holds(name, message.step, message.epoch, left=message.left):
                        self._handle(r.Asked(name, message.step, message.epoch))
                case lm.Push():
                    part = LeasedSamples(
                        message.shard, LeaseAttempt(*message.attempt), message.start, message.stop
                    )
                    self._exchange.take(name, message, frames)
                    self._pushed(r.Pushed(name, message.view, message.step, part), message)
                case lm.Reduced():
                    self._held.answered(name, message)
                case lm.DonatedState():
                    self._donated(name, message, frames)
                case lm.Stepped():
                    self._losses.add(message.epoch, message.loss, message.samples)
                    if self._step is not None and self._step.step == message.step:
                        self._step.add(name, message)
                        self._report_step()
                case lm.EvaluatedMessage():
                    if name == self._ends.evaluator and message.epoch == self._ends.epoch:
                        self._ends.evaluator = ""
                        self._report_epoch(message.epoch, message.metrics, message.took_s)
                case lm.FinishedMessage() if self._trains(name):
                    self._replicas.add(unpack(name, message.tensors, frames))
                    self._handle(r.WorkerFinished(name))
                    self._workers.leave(name, "training has ended")
                case _:
                    pass

    def _pushed(self, pushed: r.Pushed, message: lm.Push) -> None:
        self._held.ways.pushed(pushed.worker, message.device, message.group, message.failure)
        if message.held and message.shared and pushed.worker in self.members:
            self._held.hold(pushed, message.tensors)
            return
        self._held.gone(pushed.worker)
        self._handle(pushed)

    def _look_at_held(self) -> None:
        if self._rounds is None:
            return
        for pushed in self._held.look(self._rounds):
            self._handle(pushed)
        self._events += map(Told, self._held.ways.said())

    def _arrived(self, name: str, described: lm.ReplicaBuilt) -> None:
        if self._rounds is None:
            self._apart = described.apart
            self._open(described.sizes)
            self.manifest, self._ends.evaluates = manifest_of(described), bool(described.metrics)
            self._returned_step = self.step  # of the checkpoint that it begins with
        assert self._rounds is not None
        if described.sizes != self._rounds.ledger.sizes:
            raise TrainingCodeError(
                f"the shards of {name} differ from those of the workers before it, or of the checkpoint"
            )
        self._workers.arrive(name)
        self._events.append(Started(name, self._workers.age_s(name)))
        self._handle(r.WorkerArrived(name, self.engine.host(name)))

    def _donated(self, name: str, donated: lm.DonatedState, frames: Sequence[bytes]) -> None:
        memory, place = self._workers.memory, donated.place
        if memory is not None and STATES <= place < STATES + self._states:
            state = memory.of_states().arrays(place, donated.tensors)
            self._place_of_state = place
            self._loading[place] = sum(header.bytes for header in donated.tensors), set()
        else:
            state = unpack(name, donated.tensors, frames)
        self._donation, self._state_bytes = state, sum(header.bytes for header in donated.tensors)
        self._handle(r.Donated(name, donated.step))
        if self._place_of_state < 0:
            self._keep(donated.step, state)
        self._donation, self._place_of_state = {}, -1
        self._loaded(set())

    def _keep(self, step: int, state: dict[str, lm.Array]) -> None:
        """Take a state that was sent."""
        self._checkpointer.take(step, state)

    def _loaded(self, workers: set[str]) -> None:
        """Note that workers have loaded their states, and give back the memory that nobody reads any more."""
        alive = set(self.alive) - workers if self._loading else set()
        for place, (size, readers) in list(self._loading.items()):
            readers &= alive
            if not readers and self._workers.memory is not None:
                self._workers.memory.give_back(place, size)
                del self._loading[place]

    def _state_place(self, step: int) -> int:
        """Where a member is to put its state; -1 if it is to send it, as where it is written as a checkpoint."""
        if self._workers.memory is None or self._checkpointer.due(step):
            return -1
        self._states += 1
        return STATES + self._states - 1

    def _write(self) -> None:
        """Write the checkpoint that is ready, if there is one."""
        try:
            written = self._checkpointer.write()
        except (ConfigurationError, NotSupportedError, TransientError) as error:
            self._not_written(error)
            return
        if written is not None:
            self._events.append(written)

    def _not_written(self, error: ScavengerError) -> None:
        """Go on after a checkpoint could not be written."""
        self._events.append(m.CheckpointFailed(self.step, str(error)))

    # ---- reports -------------------------------------------------------------------------------------------

    def _report_step(self, *, complete: bool = False) -> None:
        """Report the newest step if every member that is left has applied it, or has to have by now."""
        step = self._step
        if step is None or self._rounds is None:
            return
        if complete or not step.awaited & set(self.alive):
            self._step = None
            self._events.append(step.report(self._rounds.ledger))
            if step.exchange_s is not None:
                self._held.ways.stepped(by_group=step.held, exchange_s=step.exchange_s)

    def _end_epoch(self) -> None:
        """Have a member evaluate when an epoch has ended and its last step is reported."""
        ends = self._ends
        if not ends.held or ends.evaluator or ends.reported or self._step is not None:
            return
        if self._apart and not set(self.members) <= set(ends.held):
            return  # each of them may leave its loop over epochs
        if ends.evaluates:
            ends.evaluator = ends.held[0]
            self._workers.send(ends.evaluator, lm.Evaluate(ends.epoch))
        else:
            self._report_epoch(ends.epoch, {}, 0.0)

    def _report_epoch(self, epoch: int, metrics: dict[str, float], took_s: float) -> None:
        self._ends.reported = True
        metrics = {**self._losses.metrics(epoch), **metrics}
        stopped_by = "the script" if self._ends.left else ""
        self._events.append(m.EpochReport(epoch, self.step, metrics, took_s, stopped_by=stopped_by))

    def _report_quarantine(self) -> None:
        found = {} if self._rounds is None else quarantined_samples(self._rounds.ledger)
        if new := [at for at in found if at not in self.quarantined]:
            self.quarantined = tuple(sorted({*self.quarantined, *new}))
            self._events.append(m.SamplesQuarantined(tuple(new), found[new[0]]))

    def _set_roster(self) -> None:
        """Tell the registry which of the workers that have built their replicas train."""
        members = set(self.members)
        states = {
            name: "training" if name in members else "ready"
            for name in self._workers.arrived
            if self._registry[name].stays
        }
        self._registry.roster = m.Roster(0, states, self.settled, 0, ())

    # ---- events and actions of the rounds ------------------------------------------------------------------

    def _open(self, sizes: tuple[int, ...]) -> None:
        """Begin from the newest checkpoint, or from the start if there is none, with the present workers."""
        held, before = self._checkpointer.held, self._rounds
        if held is None:
            incarnation, view, suspects = 0, 0, None
            if before is not None:
                incarnation, view = before.ledger.incarnation + 1, before.view
                if not self._apart:
                    suspects = Suspects.restore(before.ledger.snapshot()["suspects"])
            ledger: ShardLedger | SampleQueue
            if self._apart:
                ledger = SampleQueue(sizes[0], self._source.seed, incarnation=incarnation)
            else:
                ledger = ShardLedger(sizes, self._source.seed, incarnation=incarnation, suspects=suspects)
            self._rounds = Rounds(ledger, view=view)
        else:
            snapshot, view = held.ledger, held.view
            incarnation = snapshot["incarnation"]
            if before is not None:
                incarnation, view = max(incarnation, before.ledger.incarnation), max(view, before.view)
                # a rollback undoes steps, but keeps the suspicions about samples
                snapshot = {**snapshot, "suspects": before.ledger.snapshot()["suspects"]}
            kind = SampleQueue if self._apart else ShardLedger
            ledger = kind.restore(snapshot, incarnation=incarnation + 1)
            self._rounds = Rounds(ledger, held=True, view=view)
        self._exchange.clear()
        self._held.clear()
        self._ends.begin(self._rounds.ledger.epoch)
        self._checkpointer.discard_requests()
        for name in self.alive:
            self._rounds.handle(r.WorkerLaunched(name))

    def _resize(self, wanted: r.Resized) -> None:
        """Train with so many workers and so large a batch from the next step boundary on."""
        self._wanted = replace(wanted, without=())
        self._handle(wanted)

    def _handle(self, event: r.Happening) -> None:
        if self._rounds is not None:
            self._carry_out(self._rounds.handle(event))

    def _carry_out(self, actions: Sequence[r.Order]) -> None:
        rounds = self._rounds
        assert rounds is not None
        if (view := rounds.in_effect) is not None and view.number != self._view:
            self._report_step(complete=True)
            self._view = view.number
            self._events.append(view_installed(view, rounds.step + 1, rounds.epoch))
        for action in actions:
            match action:
                case r.Average():
                    if not self._paused:
                        self._average(action)
                case Grant():
                    number = (action.attempt.incarnation, action.attempt.number)
                    granted = lm.GrantMessage(action.shard, number, action.start, action.stop, action.stride)
                    self._workers.send(action.worker, granted)
                case r.Over():
                    self._workers.send(action.worker, lm.OverMessage(action.epoch))
                case r.StartWorker():
                    self._start(action, len(rounds.members))
                case r.Donate():
                    self._want_checkpoint(action.step)
                    donate = lm.DonateMessage(action.step, self._state_place(action.step))
                    self._workers.send(action.worker, donate)
                case r.Leave():
                    self._let_go(action.worker, action.reason)
                case r.Evict():
                    self._lose(action.worker, action.reason, Cause.EVICTED)
                case r.Stranded():
                    self._roll_back()
                    return
                case Found(finding=NotTheData() as finding):
                    raise TrainingCodeError(finding.reason)
                case EpochCommitted():
                    self._epoch_over(action)
                case _:
                    pass

    def _epoch_over(self, ended: EpochCommitted) -> None:
        """Note that every sample of an epoch was used in exactly one step, except for those quarantined."""

    def _want_checkpoint(self, step: int) -> None:
        """Have the state of a worker after this step, when it arrives, be written as a checkpoint if one is due."""
        if self._rounds is not None:
            launched, ledger = self._workers.launched, self._rounds.ledger.snapshot()
            self._checkpointer.asked(LoopSnapshot(step, self._rounds.view, launched, ledger, {}))

    def _average(self, action: r.Average) -> None:
        rounds = self._rounds
        assert rounds is not None
        assert rounds.in_effect is not None
        step, epoch, view = action.step, rounds.ledger.epoch, rounds.view
        batch = rounds.in_effect.global_batch_size
        formed, self._held.formed = self._held.formed, {}
        averaged = self._exchange.average(step, action.contributions, formed)
        gradient_bytes = sum(header.bytes for header in averaged.headers)
        may_lie = max(BEHIND_BYTES, BEHIND_STATES * self._state_bytes)
        rounds.behind_max = max(BEHIND_MIN, min(BEHIND_MAX, may_lie // max(1, gradient_bytes)))
        step_time_s = self._watch.timer.stepped(self._clock())
        actions, held = rounds.handle(r.Averaged(step)), self._group > 0
        members: tuple[str, ...] = ()
        for published in actions:
            if isinstance(published, r.Publish):  # workers get the mean before any other message
                members = published.workers
                if averaged.own and members != (action.contributions[0][0],):
                    averaged = self._exchange.for_all(averaged)
                samples = sum(part.stop - part.start for _, part in action.contributions)
                self._publish(published, epoch, averaged, samples)
        self._report_step(complete=True)
        self._step = StepInReport(
            step, epoch, view, action.contributions, step_time_s, averaged, batch, set(members), held
        )
        self._carry_out(actions)

    def _publish(self, published: r.Publish, epoch: int, averaged: StepMean, samples: int) -> None:
        rounds = self._rounds
        assert rounds is not None
        view, steps = self._steps_of_view
        self._steps_of_view = (rounds.view, steps + 1 if view == rounds.view else 1)
        compare = len(published.workers) > 1 and (published.over or self._steps_of_view[1] == COMPARED_AFTER)
        self._group = self._held.next_step(rounds.members)
        mean = lm.MeanMessage(
            published.step,
            epoch,
            published.over,
            published.view,
            published.members,
            averaged.headers,
            lr_scale=self._lr_scale,
            shared=averaged.shared,
            samples=samples,
            compare=compare,
            reduced=averaged.reduced,
            group=self._group,
        )
        place, kept = MEAN, averaged.frames
        if averaged.own and published.followers:  # its worker may write to it once it has been told
            place, kept = self._kept_means.keep(averaged, published.step, rounds.followed)
        for worker in published.workers:
            told = msgspec.structs.replace(mean, share=rounds.share(worker), own=averaged.own)
            self._workers.send(worker, told, () if averaged.own else averaged.frames)
        if not published.followers:
            self._kept_means.forget(published.step)
            return
        if not averaged.own:  # what is done for those that follow keeps no member waiting
            place, kept = self._kept_means.keep(averaged, published.step, rounds.followed)
        for worker in published.followers:
            told = msgspec.structs.replace(
                mean, share=rounds.share(worker), shared=place != MEAN, compare=False, place=place
            )
            self._workers.send(worker, told, kept)

    def _trains(self, worker: str) -> bool:
        """Whether a worker applies the steps."""
        return worker in self.members or (self._rounds is not None and worker in self._rounds.followers)

    @property
    def _lr_scale(self) -> float:
        in_effect = None if self._rounds is None else self._rounds.in_effect
        return 1.0 if in_effect is None else in_effect.lr_scale

    def _start(self, action: r.StartWorker, members: int) -> None:
        state: dict[str, lm.Array] = {}
        if action.load:
            held = self._checkpointer.held  # after a resume, no member can donate its state
            state = self._donation or (held.state if held is not None else {})
        place = self._place_of_state if action.load and state is self._donation else -1
        headers, frames = lm.pack(state) if place < 0 else (lm.headers_of(state), [])
        if place >= 0:
            self._loading[place][1].add(action.worker)
        assert self._rounds is not None
        if action.worker in self.members:  # the others wait for it
            self._watch.timer.restart(self._clock())
        start = lm.StartMessage(
            action.step,
            action.epoch,
            action.view,
            members,
            action.load,
            headers,
            self._rounds.share(action.worker),
            self._lr_scale,
            self._workers.place(action.worker),
            place,
            self._rounds.stride,
        )
        self._workers.send(action.worker, start, frames)

    # ---- losses --------------------------------------------------------------------------------------------

    def _ended(self, ended: Exit) -> None:
        name = ended.name
        if ended.status >= 0:
            self._workers.receive_last_messages(name, self._receive)
            if name in self.alive:
                raise TrainingCodeError(
                    f"the training code ended {name}, which {ended.cause} (log: {self.engine.log(name)})"
                )
            return
        cause = cause_of_death(None if ended.reason else ended.status)
        self._lose(name, ended.cause, cause, refused=ended.refused)

    def _lose(self, worker: str, reason: str, cause: Cause, *, refused: bool = False) -> None:
        """Count a worker as lost, or as one for which there was no host."""
        if worker not in self.alive:
            return
        ready = worker in self._workers.arrived
        self._workers.mark_lost(worker)
        self._ends.gone(worker)
        self._held.gone(worker)
        crashed = cause is Cause.CRASHED
        lost = Refused(worker, reason) if refused else Lost(worker, reason, crashed=crashed, ready=ready)
        self._events.append(lost)
        actions = [] if self._rounds is None else self._rounds.handle(r.WorkerGone(worker, cause))
        self._replace(worker, reason, actions, crashed=crashed)
        if self._rounds is not None:
            self._carry_out(actions)

    def _replace(self, worker: str, reason: str, actions: Sequence[r.Order], *, crashed: bool) -> None:
        """Start another worker for one that was lost, if nobody else does."""

    def _roll_back(self) -> None:
        """Roll back to the last checkpoint, or begin again, with workers that have not been members yet."""
        rounds = self._rounds
        assert rounds is not None
        held = self._checkpointer.held
        self._open(rounds.ledger.sizes)
        self._step = None
        cause = "every worker that held the weights was lost"
        self._events.append(recovery.RolledBack(0 if held is None else held.step, cause, 0.0))
        self._losses.undo_from(0 if held is None else held.ledger["epoch"])
        for name in self._workers.arrived:
            self._handle(r.WorkerArrived(name, self.engine.host(name)))
        if self._wanted is not None:
            self._handle(self._wanted)

    # ---- watching ------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Handle workers that are silent, over a time limit, or do not end; request the state for checkpoints."""
        if not self._watch.due():
            return
        self._workers.tidy_up()
        for overdue in self._watch.starting():
            self._late(overdue)
        rounds = self._rounds
        if rounds is None or self._paused:
            return
        for overdue in self._watch.training(rounds, self._held.holding):
            self._late(overdue)
        if rounds is self._rounds and not rounds.finishing and self._checkpointer.due(rounds.step):
            self._carry_out(rounds.want_state())

    def _late(self, overdue: Overdue) -> None:
        """End a worker that is over its time; if it hangs, and no other kept the limit, the code is the cause."""
        worker, reason = overdue.worker, overdue.reason
        if worker not in self.alive:
            return
        if overdue.silent:
            self._lose(worker, reason, Cause.SILENT)
            return
        self._workers.show_stack(worker)
        if not overdue.others:
            raise TrainingHungError(f"{worker} {reason}; its stack is in {self.engine.log(worker)}")
        self._lose(worker, reason, Cause.HUNG)
