"""Drives a supervisor: records what it reports, answers epochs, replaces lost workers, holds the limits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

import msgspec

from scavenger.control.training.cost_meter import CostMeter
from scavenger.control.training.goal import Goal
from scavenger.control.training.history import EarlierAttempts, TrainingHistory
from scavenger.control.training.journal import Journal
from scavenger.control.training.limits import CLOSE_S, Limits, reserve_s
from scavenger.domain.configuration import Configuration, Offer
from scavenger.domain.cost import CostTerms
from scavenger.domain.measurement import EpochRecord
from scavenger.domain.report import EpochEnded, Event, Noted, Observer, StepDone, ViewChanged, WorkerChanged
from scavenger.domain.snapshot import Departure, WorkerSnapshot
from scavenger.errors import Interrupted, TrainingCodeError, WorkersLostError
from scavenger.models.noise import NoiseTracker
from scavenger.train.supervisor.events import (
    Leaving,
    Lost,
    PreemptionNotice,
    Recovered,
    Refused,
    RolledBack,
    Started,
    Warned,
)
from scavenger.train.supervisor.supervisor import Supervisor
from scavenger.train.transport import messages as m

__all__ = ["Trainer"]

VIEW_WARM_UP_STEPS = 3
"""The first steps of a view, whose times tell of caches and new shapes rather than of the configuration."""
RATE_STEPS = 50
"""Steps at one learning rate at least, where it follows the noise: each change is a change of view."""
RATE_CHANGE = 0.05
"""A change of the learning rate below this share is not worth one."""
GIVE_UP = 5
CRASHES_MAX = 30
"""Workers that may crash one after the other without a step between them: to find the sample that kills among
16,000 takes 20."""
HEALTHY_STEPS = 20
"""Steps after which a worker's death says nothing about the next one's."""
REFUSED_S = 600.0
"""Workers beyond those that there was room for are not asked for again so soon."""
_POLL_S = 0.05
_TICK_S = 1.0


class Trainer:
    """One job's training, at whatever configuration it is told.

    Args:
        supervisor: Not started yet; `start` does.
        offers: The types of VM that may be gone to; the first is begun on.
        meter: Tells what the job costs.
        started_at: Clock reading at the job's beginning.
        on_tick: Called about once a second, for whoever records that the job lives.
        before: What earlier attempts at the job have come to.
        audit: Where it is written which worker computed which samples of each step; None for nowhere.
        lr_scale: By what the learning rate is multiplied at a global batch size, given the noise.
        give_up: So many workers that die before they have done much, one after the other, are enough: the job goes
            on with what is left, or ends. A loop that creates workers which die must end.

    `pump` and everything that waits raises what `Supervisor.poll` raises, `LimitReachedError` before a limit
    would be crossed, and `Interrupted` after `stop`.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        *,
        goal: Goal,
        offers: Sequence[Offer],
        meter: CostMeter,
        limits: Limits,
        journal: Journal,
        observer: Observer,
        started_at: float,
        on_tick: Callable[[], None],
        before: EarlierAttempts | None = None,
        audit: Journal | None = None,
        lr_scale: Callable[[int, NoiseTracker], float] = lambda batch, noise: 1.0,
        give_up: int = GIVE_UP,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.supervisor, self.goal, self.limits = supervisor, goal, limits
        self._offers, self._meter = {offer.vm: offer for offer in offers}, meter
        self.offer = offers[0]
        self.journal, self._observer, self._on_tick, self._clock = journal, observer, on_tick, clock
        self._started_at = started_at
        self.course, self._audit = TrainingHistory(goal, before), audit
        self._lr_scale_of, self._give_up = lr_scale, give_up
        self._lr_scale = 1.0
        self._joined_at: dict[str, float] = {}
        self.warnings: list[str] = []
        self.setup_s: list[float] = []
        self.configuration: Configuration | None = None
        self.first_view_at_s: float | None = None
        self.finished = False
        self.reached = False
        self.progress: Callable[[], float | None] = lambda: None
        self.terms: Callable[[], CostTerms | None] = lambda: None
        self.wanted, self._keeping = 0, False
        self.checkpoint_step = 0
        self._checkpoint_failures: set[str] = set()
        self._died_early = self._crashed = 0
        self._owed: list[str] = []
        self._asked: tuple[int, int] | None = None
        self.at_risk: set[str] = set()
        self._evicted: set[str] = set()
        self._refusals: set[str] = set()
        self._refused_at = -math.inf
        self._view: m.ViewBody | None = None
        self._view_steps = 0
        self._stop_reason: str | None = None
        self._ticked_at = 0.0

    # ---- what is -------------------------------------------------------------------------------------------

    @property
    def elapsed_s(self) -> float:
        return self.course.before.elapsed_s + self._clock() - self._started_at

    @property
    def cost_usd(self) -> float:
        """What the job has cost so far."""
        return self.course.before.cost_usd + self._meter.spent_usd()

    @property
    def shared_usd_per_hour(self) -> float:
        """What the job pays whatever its number of workers."""
        return self._meter.shared_usd_per_hour()

    def price_usd_per_hour(self, vm: str) -> float:
        """Of a type of VM that may be gone to."""
        return self._offers[vm].price_usd_per_hour

    def ready_on(self, vm: str) -> int:
        """Workers on a type of VM that train or could."""
        return sum(self.supervisor.vm_of(name) == vm for name in self.supervisor.workers("ready", "training"))

    @property
    def workers_max(self) -> int | None:
        """The largest cluster that can be kept alive; None where nothing speaks against any."""
        refused = self._clock() - self._refused_at < REFUSED_S
        return self.wanted if refused or self._died_early >= self._give_up else None

    @property
    def drain_s(self) -> float:
        """Time to end in order: a worker writes the model after what it is at, and all are ended."""
        busy = [record.step_time_s for record in self.course.steps[-VIEW_WARM_UP_STEPS:]]
        busy += [epoch.evaluation_s for epoch in self.course.epochs[-1:]]
        return reserve_s(self.supervisor.manifest, busy)

    @property
    def left_s(self) -> float | None:
        """Time until a limit is crossed, less what the ending of the workers takes; None where there is none."""
        left = []
        if self.limits.deadline_s is not None:
            left.append(self.limits.deadline_s - self.elapsed_s)
        rate = self._meter.usd_per_hour() / 3600.0
        if self.limits.budget_usd is not None and rate > 0.0:
            left.append((self.limits.budget_usd - self.cost_usd) / rate)
        return max(0.0, min(left) - CLOSE_S) if left else None

    @property
    def step(self) -> int:
        return self.course.step

    @property
    def view(self) -> int:
        """Number of the view in effect; 0 before the first."""
        return 0 if self._view is None else self._view.number

    def stop(self, reason: str) -> None:
        """Have the next `pump` raise `Interrupted`; safe from signal handlers and other threads."""
        self._stop_reason = reason

    def heed_stop(self) -> None:
        """Raise `Interrupted` after `stop`."""
        if self._stop_reason is not None:
            raise Interrupted(self._stop_reason)

    def note(self, message: str) -> None:
        """Warn the user, now and in the report."""
        self.warnings.append(message)
        self._tell(Noted("warning", message))

    # ---- what is wanted ------------------------------------------------------------------------------------

    def until(self, condition: Callable[[], bool]) -> None:
        """Train until a condition holds or training is finished."""
        while not (self.finished or condition()):
            self.pump()

    def start(self, workers: int) -> None:
        """Start the job's processes, unless that alone would cross a limit."""
        self._hold_limits({self.offer.vm: workers})
        self.wanted = workers
        self.supervisor.start(workers, self.offer.vm, threads=self.offer.cpus)

    def move(
        self,
        target: Configuration,
        reason: str,
        *,
        meanwhile: int | None = None,
        give_up: Callable[[], bool] = lambda: False,
        keep: bool = False,
    ) -> bool:
        """Go over to a configuration: start what is missing while training goes on, switch, let the spare go.

        Args:
            reason: For the report.
            meanwhile: Batch size to train with while workers start; None to stay at the present one.
            give_up: Whether to wait no longer for workers to start.
            keep: Whether workers that are not needed here stay, since they will be soon.

        Returns:
            Whether it is there: not where training finished or it was given up before, nor where workers were
            lost that could not be replaced, so that there are fewer.
        """
        # those on another type of VM train on until all have come
        others = self._others(target.vm)
        goal = self.wanted = target.workers + len(others)
        self._keeping = keep
        missing = goal - len(self.supervisor.alive)
        if missing > 0:
            now = self.configuration
            workers = len(self.supervisor.alive) if now is None else now.workers
            if self.offer.shared_cpus is None:
                workers = max(
                    workers, self.supervisor.ready
                )  # those that stand by have VMs that are paid for
            if meanwhile is not None and (
                now is None or (now.workers, now.global_batch_size) != (workers, meanwhile)
            ):
                self._resize(min(workers, meanwhile), meanwhile, "while workers start")
            self._launch(missing, target.vm)
        self.until(lambda: self.supervisor.ready >= self.wanted or give_up())
        short = self.supervisor.ready < self.wanted or (others and self.wanted < goal)
        if self.finished or short:
            # those that still start are let go once they are ready, unless they are wanted by then
            self.wanted = max(1, len(self.supervisor.workers("training")))
            return False
        self.offer = self._offers[target.vm]
        self.wanted = workers = min(target.workers, self.wanted)
        self._resize(workers, max(workers, target.global_batch_size), reason, without=self._others(target.vm))
        self.until(lambda: self.supervisor.settled)
        self._release()
        self.until(lambda: not self.supervisor.ending)
        return not self.finished and self.wanted == target.workers

    def _others(self, vm: str) -> tuple[str, ...]:
        """Workers on other types of VM."""
        return tuple(name for name in self.supervisor.alive if self.supervisor.vm_of(name) != vm)

    def replace(self, workers: Collection[str], reason: str, *, kind: Literal["eviction", "failure"]) -> bool:
        """Put new workers in the place of these, in one change of view: nobody leaves before all have come.

        Returns:
            Whether that was done; not where training finished or a new worker could not be kept alive.
        """
        leaving = tuple(name for name in self.supervisor.alive if name in workers)
        if not leaving or self.configuration is None:
            return False
        size, batch = self.wanted, self.configuration.global_batch_size
        self.wanted = size + len(leaving)
        self._launch(self.wanted - len(self.supervisor.alive), self.offer.vm)
        self.until(lambda: self.supervisor.ready >= self.wanted or self.wanted < size + len(leaving))
        came = self.supervisor.ready >= size + len(leaving)
        if came and not self.finished:
            self._resize(size, batch, reason, without=leaving)
            self.until(lambda: self.supervisor.settled)
            for name in leaving:
                self._departed(name, "eviction" if kind == "eviction" else "failure")
        self.wanted = size
        self._release()
        self.until(lambda: not self.supervisor.ending)
        return came and not self.finished

    def remove(self, workers: Collection[str], reason: str, *, batch: int) -> bool:
        """Train on without these workers; the others stay. False where none of them is there, or all are.

        Args:
            batch: The global batch size to go on with, raised to one sample for each worker.
        """
        leaving = tuple(name for name in self.supervisor.alive if name in workers)
        size = self.wanted - len(leaving)
        if not leaving or size < 1 or self.configuration is None:
            return False
        self.wanted = size
        self._resize(size, max(size, batch), reason, without=leaving)
        self.until(lambda: self.supervisor.settled)
        self._release()
        self.until(lambda: not self.supervisor.ending)
        return not self.finished

    def follow_noise(self) -> None:
        """Where the learning rate follows the noise: go over to a new one once it has moved."""
        now = self.configuration
        if now is None or not self.supervisor.settled or self._view_steps < RATE_STEPS:
            return
        scale = self._lr_scale_of(now.global_batch_size, self.course.noise)
        if abs(scale / self._lr_scale - 1.0) > RATE_CHANGE:
            self._resize(now.workers, now.global_batch_size, f"learning rate x {scale:.3g}")

    def _resize(self, workers: int, batch: int, reason: str, *, without: Collection[str] = ()) -> None:
        self._asked = (workers, batch)
        self._lr_scale = self._lr_scale_of(batch, self.course.noise)
        self.supervisor.resize(workers, batch, reason, without=without, lr_scale=self._lr_scale)

    def _release(self) -> None:
        """Let workers go beyond those wanted, so that nobody pays for them."""
        self.supervisor.release(
            max(self.wanted, len(self.supervisor.alive)) if self._keeping else self.wanted
        )

    def _launch(self, workers: int, vm: str) -> None:
        for worker in self.supervisor.launch(workers, vm, threads=self._offers[vm].cpus):
            self._tell(WorkerChanged(worker, "starting"))

    # ---- the loop ------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Take in what has happened, at most a moment's worth."""
        for event in self.supervisor.poll(_POLL_S):
            match event:
                case m.StepReport():
                    self._stepped(event)
                case m.EpochReport():
                    self._epoch_ended(event)
                case m.ViewInstalled():
                    self._installed(event)
                case Started():
                    self.setup_s.append(event.setup_s)
                    self._tell(WorkerChanged(event.worker, "ready", f"after {event.setup_s:.1f} s"))
                case Warned():
                    self.note(event.message)
                case PreemptionNotice():
                    self._doomed(event)
                case Leaving():
                    self.course.left(event.worker)
                    self._tell(WorkerChanged(event.worker, "leaving"))
                case Lost():
                    self._lost(event)
                case Refused():
                    self._refused(event)
                case Recovered():
                    self._tell(
                        WorkerChanged(
                            event.process,
                            "recovered",
                            f"{event.cause}; another took over in {event.took_s:.1f} s",
                        )
                    )
                case RolledBack():
                    self._rolled_back(event)
                case m.Quarantined():
                    self._quarantined(event)
                case m.CheckpointWritten():
                    self._checkpointed(event)
                case m.CheckpointFailed():
                    self._checkpoint_failed(event)
        self._launch_owed()
        self._release()
        self.heed_stop()
        self._hold_limits()
        now = self._clock()
        if now - self._ticked_at >= _TICK_S:
            self._ticked_at = now
            self.journal.tick(self.elapsed_s)
            self._on_tick()

    def take_last_steps(self) -> None:
        """Record the steps that were applied while training was being stopped; no more follows from them."""
        for event in self.supervisor.poll(0.0):
            match event:
                case m.StepReport():
                    self._stepped(event)
                case m.ViewInstalled():
                    self._installed(event)
                case RolledBack():
                    self._rolled_back(event)
                case m.Quarantined():
                    self._quarantined(event)
                case m.CheckpointWritten():
                    self._checkpointed(event)
                case m.CheckpointFailed():
                    self._checkpoint_failed(event)

    def _installed(self, event: m.ViewInstalled) -> None:
        view = event.view
        if self._view is not None and view.number <= self._view.number:
            return  # said again
        self._view, self._view_steps = view, 0
        vm = self.supervisor.vm_of(view.members[0].worker)
        self.configuration = Configuration(vm, len(view.members), view.global_batch_size)
        for member in view.members:
            self._joined_at.setdefault(member.worker, self.elapsed_s)
        if self.first_view_at_s is None:
            self.first_view_at_s = self.elapsed_s

    def _stepped(self, report: m.StepReport) -> None:
        if report.step <= self.step:
            return  # said again after a recovery
        self._crashed = 0
        self._view_steps += 1
        record = self.course.stepped(
            report, self.configuration, disturbed=self._disturbed(report), at_s=self.elapsed_s
        )
        self.journal.add("step", record)
        if self._audit is not None:
            done = {"step": report.step, "view": report.view, "epoch": report.epoch}
            self._audit.add("step", {**done, "pieces": report.pieces})
        if self._view_steps == 1 and self._view is not None and self.configuration is not None:
            # in the first step of a view, all that was not computing was waiting for the change
            change = ViewChanged(
                self._view.number, self.configuration, self._view.first_step, record.sync_s, self._view.reason
            )
            self.journal.add("view", change)
            self._tell(change)
        self._tell(StepDone(record, self.progress(), self.cost_usd))

    def _disturbed(self, report: m.StepReport) -> bool:
        shared = self.offer.shared_cpus is not None
        return (
            self._view_steps <= VIEW_WARM_UP_STEPS
            or report.samples < report.global_batch_size
            or (shared and (self.supervisor.starting > 0 or self.supervisor.ending))
        )

    def _epoch_ended(self, report: m.EpochReport) -> None:
        epochs = self.course.epochs
        if epochs and report.epoch <= epochs[-1].epoch:
            # said again, since the answer was lost
            improved = self.course.best_epoch is epochs[-1]
            self.supervisor.verdict(report.epoch, stop=self.finished, keep_best=improved)
            return
        record = EpochRecord(
            epoch=report.epoch,
            step=report.step,
            metrics=report.metrics,
            evaluation_s=report.evaluation_s,
            at_s=self.elapsed_s,
        )
        improved = self.course.evaluated(record)
        self.journal.add("epoch", record)
        self.reached = self.goal.reached(self.goal.value(record))
        self.finished = self.reached or record.epoch + 1 >= self.goal.spec.max_epochs
        self.supervisor.verdict(report.epoch, stop=self.finished, keep_best=improved)
        self._tell(EpochEnded(record, self.goal.spec.metric, self.goal.spec.target))

    def _rolled_back(self, event: RolledBack) -> None:
        undone = self.course.roll_back(event.step)
        self.reached = self.finished = False
        self.journal.add("resumed", {"step": event.step})
        if self._audit is not None:
            self._audit.add("resumed", {"step": event.step})
        self.note(
            f"{event.cause}; after {event.took_s:.1f} s the job goes on from step {event.step}, and does "
            f"{undone} steps again"
        )

    def _lost(self, event: Lost) -> None:
        self._tell(WorkerChanged(event.worker, "lost", event.cause))
        if event.worker in self._evicted:
            # its VM ended before it had left; another was started at the notice, unless that one is gone too
            if (missing := self.wanted - len(self.supervisor.alive)) > 0:
                self._launch(missing, self.supervisor.vm_of(event.worker))
            return
        if self.course.steps_of(event.worker) >= HEALTHY_STEPS:
            self._died_early = 0  # it has done its part before: no loop of workers that die as they come
        self._departed(event.worker, "failure")
        alive = len(self.supervisor.alive)
        if alive >= self.wanted:
            return
        if event.crashed and event.ready and self._crashed < CRASHES_MAX:
            # the samples that it computed may have done it, which is being found out: that takes some more deaths
            self._crashed += 1
            self.note(f"{event.worker} {event.cause}; its samples are tried again apart, and it is replaced")
            self._launch(self.wanted - alive, self.supervisor.vm_of(event.worker))
            return
        self._died_early += 1
        when = "" if event.ready else " before it could train"
        if self._died_early < self._give_up:
            what = "its samples were computed by the others, and " if event.ready else ""
            self.note(f"{event.worker} {event.cause}{when}; {what}it is replaced")
            self._owed.append(self.supervisor.vm_of(event.worker))
        elif alive:
            self.wanted = alive
            self.note(
                f"{event.worker} {event.cause}{when}, the last of {self._give_up} workers that died soon after "
                f"their start, so the job goes on with {alive}"
            )
        else:
            others = self._give_up - 1
            as_did = f", as did {others} before it" if others else ""
            words = (
                f"{event.worker} {event.cause}{when}{as_did}; see {self.supervisor.engine.log(event.worker)}"
            )
            if event.crashed and not event.ready:
                raise TrainingCodeError(f"the training code failed: {words}")
            raise WorkersLostError(words)

    def _launch_owed(self) -> None:
        """Replace workers that died early, as long as no more start at once than may still die."""
        self._owed = self._owed[: max(0, self.wanted - len(self.supervisor.alive))]
        while self._owed and self._died_early + self.supervisor.starting < self._give_up:
            self._launch(1, self._owed.pop(0))

    def _refused(self, event: Refused) -> None:
        """There is no room for a worker that was asked for: the job goes on with those that there are."""
        self._tell(WorkerChanged(event.worker, "gone", event.reason))
        alive = len(self.supervisor.alive)
        if alive < self.wanted:
            self.wanted, self._refused_at = max(1, alive), self._clock()
            if event.reason not in self._refusals:
                self._refusals.add(event.reason)
                self.note(f"the job goes on with {alive} worker{'' if alive == 1 else 's'}: {event.reason}")

    def _doomed(self, event: PreemptionNotice) -> None:
        """A worker's host will end: it leaves at the next step boundary, and another is started meanwhile."""
        worker = event.name
        self._tell(WorkerChanged(worker, "doomed", event.reason))
        if event.in_s is None:
            self.at_risk.add(worker)
            return
        self.at_risk.discard(worker)
        if worker not in self.supervisor.alive:
            return
        self.note(f"{worker} leaves: {event.reason}; it is replaced")
        if self._asked is not None:
            # whoever is there goes on with the same batch, and the next one joins once it is ready
            self._resize(*self._asked, f"{worker} leaves: {event.reason}", without=(worker,))
        self._departed(worker, "eviction")
        self._evicted.add(worker)
        if (missing := self.wanted - len(self.supervisor.alive)) > 0:
            self._launch(missing, self.supervisor.vm_of(worker))

    def _quarantined(self, event: m.Quarantined) -> None:
        self.journal.add("quarantined", msgspec.structs.asdict(event))
        samples = ", ".join(map(str, event.samples))
        self.note(
            f"training is not whole: sample {samples} of the data is left out from now on. {event.reason}"
        )

    def _checkpointed(self, event: m.CheckpointWritten) -> None:
        self.checkpoint_step = event.step
        self._ticked_at = -math.inf  # whoever records the job is to know at once that it can be resumed
        self.journal.add("checkpoint", msgspec.structs.asdict(event))
        size = event.bytes / 1e6
        self._tell(
            Noted("info", f"checkpoint of step {event.step}: {size:.1f} MB in {event.written_s:.1f} s")
        )

    def _checkpoint_failed(self, event: m.CheckpointFailed) -> None:
        """A checkpoint that cannot be written costs safety, not training: told once for each reason."""
        if event.message not in self._checkpoint_failures:
            self._checkpoint_failures.add(event.message)
            self.note(f"the checkpoint of step {event.step} could not be written: {event.message}")

    def _hold_limits(self, joining: Mapping[str, int] | None = None) -> None:
        """Stop while there is still enough left for all workers, and those that join, to end in order."""
        drain_s = self.drain_s
        self.limits.hold(
            elapsed_s=self.elapsed_s,
            cost_usd=self.cost_usd,
            drain_s=drain_s,
            drain_usd=drain_s * self._meter.usd_per_hour(joining) / 3600.0,
        )
        committed_usd = self.cost_usd + self._meter.reserved_usd()
        for warning in self.limits.near(elapsed_s=self.elapsed_s, cost_usd=committed_usd):
            self.note(warning)

    def _departed(self, worker: str, kind: Literal["failure", "eviction"]) -> None:
        host = self.supervisor.engine.host(worker)
        steps = self.course.steps_of(worker)
        self.course.departures.append(Departure(worker, host, self.elapsed_s, kind, steps))
        self.course.left(worker)

    def worker_snapshots(self) -> tuple[WorkerSnapshot, ...]:
        """The living workers, as a policy sees them."""
        words: dict[str, Literal["starting", "standby", "training"]] = {
            "starting": "starting",
            "training": "training",
        }
        found = []
        states = {name: word for word in words for name in self.supervisor.workers(word)}
        for name in self.supervisor.alive:
            recent = self.course.recent(name)
            found.append(
                WorkerSnapshot(
                    name=name,
                    host=self.supervisor.engine.host(name),
                    state=words.get(states.get(name, ""), "standby"),
                    joined_at_s=self._joined_at.get(name),
                    compute_s=tuple(took for took, _ in recent),
                    samples=tuple(samples for _, samples in recent),
                )
            )
        return tuple(found)

    def _tell(self, event: Event) -> None:
        self._observer.on_event(event)

    def worker_memory_bytes(self) -> int:
        """Largest resident memory that a training worker has had."""
        training = self.supervisor.workers("training")
        sizes = self.supervisor.memory_bytes
        return max((sizes.get(worker, 0) for worker in training), default=0)
