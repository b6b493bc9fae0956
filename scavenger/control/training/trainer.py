"""Trains a job: has events decided on by its controller, carries out the actions and enforces the limits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Literal

from scavenger.control.training import orders as o
from scavenger.control.training.controller import Controller
from scavenger.control.training.cost_meter import CostMeter
from scavenger.control.training.goal import Goal
from scavenger.control.training.history import EarlierAttempts, TrainingHistory
from scavenger.control.training.journal import Journal
from scavenger.control.training.limits import CLOSE_S, Limits, reserve_s
from scavenger.control.training.losses import GIVE_UP
from scavenger.control.training.view_in_effect import VIEW_WARM_UP_STEPS
from scavenger.domain import report
from scavenger.domain.configuration import Configuration, Offer
from scavenger.domain.cost import CostTerms
from scavenger.domain.report import Noted, Observer, StepDone, WorkerChanged
from scavenger.domain.snapshot import WorkerSnapshot
from scavenger.errors import (
    ConfigurationError,
    Interrupted,
    ScavengerError,
    TrainingCodeError,
    WorkersLostError,
)
from scavenger.masking import mask
from scavenger.models.aggregation import AggregatorVms
from scavenger.models.noise import NoiseTracker
from scavenger.models.starts import Lasting, Starts, first_start, further_start, stall
from scavenger.policy.provisioning.slots import on_further_hosts
from scavenger.train.crash import crash_error
from scavenger.train.supervisor.bucket_moves import Migrations
from scavenger.train.supervisor.events import Lost, PreemptionNotice, Refused
from scavenger.train.supervisor.face import JobSupervisor
from scavenger.train.transport import messages as m

STALL_MAX = 0.1
"""Share of the start of a worker that a change of the batch size may pause training for while workers start."""

_POLL_S = 0.05
_TICK_S = 1.0


class Trainer(Controller):
    """The training of one job, which can be moved between configurations.

    Its part that is `Controller` decides how to react to events, and knows neither process nor clock; this class reads
    the processes, the clock and the cost meter, and carries out the actions.

    Args:
        supervisor: Not started yet; `start` starts it.
        offers: VM types that may be used; the job starts on the first.
        meter: The job's cost meter.
        started_at: Clock reading when the attempt began.
        on_tick: Called about once a second, to record a heartbeat.
        before: Time, cost and progress of earlier attempts at the job.
        audit: Journal of which worker computed which samples of each step; None to keep none.
        progress: Returns the completed share of the way to the target; None if unknown.
        terms, aggregator_vms: See `terms` and `aggregator_vms`.
        lr_scale: Learning rate factor for a global batch size and the gradient noise.
        give_up: Maximum number of consecutive early failures, see `scavenger.control.training.controller.Losses`.

    Attributes:
        warnings: Warnings given to the user so far.
        earlier_starts: Starts of workers in earlier jobs on this machine.
        earlier_rests_s: What was left of the first start when the module was known, in earlier runs of the job.
        earlier_program_starts_s: The same as `program_start` in earlier runs of the job, seconds.

    `pump` and every method that waits raise the errors of `Supervisor.poll`, `LimitReachedError` before a limit would
    be crossed, and `Interrupted` after `stop`.
    """

    def __init__(
        self,
        supervisor: JobSupervisor,
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
        progress: Callable[[], float | None] = lambda: None,
        terms: Callable[[Trainer], CostTerms | None] = lambda trainer: None,
        aggregator_vms: Callable[[Trainer], AggregatorVms | None] = lambda trainer: None,
        lr_scale: Callable[[int, NoiseTracker], float] = lambda batch, noise: 1.0,
        give_up: int = GIVE_UP,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(
            goal,
            TrainingHistory(goal, before),
            offers={offer.vm: offer for offer in offers},
            give_up=give_up,
            lr_scale=lr_scale,
        )
        self.supervisor, self.limits, self.journal = supervisor, limits, journal
        self._meter, self._progress, self._terms, self._aggregator_vms = (
            meter,
            progress,
            terms,
            aggregator_vms,
        )
        self._observer, self._on_tick, self._clock = observer, on_tick, clock
        self._started_at, self._audit = started_at, audit
        self.warnings: list[str] = []
        self.earlier_starts = Starts()
        self.earlier_rests_s: tuple[float, ...] = ()
        self._known_at_s: float | None = None
        self._ready_at_s: float | None = None
        self.earlier_program_starts_s: tuple[float, ...] = ()
        self._first_workers = 0
        self._stop_reason: str | None = None
        self._ticked_at = 0.0

    # ---- state ---------------------------------------------------------------------------------------------

    @property
    def setup_s(self) -> float:
        """Median time from launch until ready of the workers that became ready, seconds; 0 before the first."""
        return median(self.history.setup_s) if self.history.setup_s else 0.0

    @property
    def starts(self) -> Starts:
        """The starts of this attempt's workers."""
        times_s = tuple(self.history.setup_s)
        return Starts(times_s[: self._first_workers], times_s[self._first_workers :])

    @property
    def first_start(self) -> tuple[Lasting, float] | None:
        """How long the first workers take to start, and for how long they have; None if one is ready."""
        if self.history.setup_s:
            return None
        rest = stall(self.earlier_rests_s)
        if self._known_at_s is not None and rest is not None:
            return rest, self.elapsed_s - self._known_at_s
        return first_start(self.earlier_starts), self.elapsed_s - self.history.before.elapsed_s

    @property
    def rest_of_start_s(self) -> float:
        """What was left of the first worker's start when the training module was known, seconds; 0 if unknown.

        No finer than events are looked at.
        """
        if self._known_at_s is None or self._ready_at_s is None:
            return 0.0
        return max(_POLL_S, self._ready_at_s - self._known_at_s)

    @property
    def further_start(self) -> Lasting:
        """How long another worker takes to start."""
        return further_start(self.starts, self.earlier_starts)

    def stall(self, there: Configuration, now: Configuration | None = None) -> Lasting | None:
        """How long a change of view to a configuration pauses training; None if nothing of this job tells.

        A change of the batch size alone is another one than a change of workers: each is known by those of its kind,
        before the first of them by the other kind. Before any change, that of a program that is started anew for each
        view is its start.

        Args:
            now: The configuration that it is a change of; by default the job's own.
        """
        now, history = now or self.configuration, self.history
        kinds = [history.stalls_s, history.program_starts_s, history.batch_stalls_s]
        if now is not None and (now.vm, now.workers) == (there.vm, there.workers):
            kinds = [history.batch_stalls_s, history.stalls_s, history.program_starts_s]
        return stall(next(filter(None, kinds), ()))

    @property
    def program_start(self) -> Lasting | None:
        """By what the start of the job's program delays training; None if nothing of this job tells.

        Of a program that is started anew for each view, the time until its first step; of others, what the first steps
        and the first evaluation take more than later ones, as functions are compiled there.
        """
        own = self.history.program_starts_s or [self.history.warm_up_s]
        return stall(own) or stall(self.earlier_program_starts_s)

    @property
    def step(self) -> int:
        """Number of the last applied step."""
        return self.history.step

    @property
    def elapsed_s(self) -> float:
        """Running time of the job, including earlier attempts."""
        return self.history.before.elapsed_s + self._clock() - self._started_at

    @property
    def cost_usd(self) -> float:
        """Cost of the job so far, including earlier attempts."""
        return self.history.before.cost_usd + self._meter.spent_usd()

    @property
    def shared_usd_per_hour(self) -> float:
        """Part of the job's rate that does not depend on the number of workers."""
        return self._meter.shared_usd_per_hour()

    def terms(self) -> CostTerms | None:
        """Costs besides the workers; None if the job rents nothing."""
        return self._terms(self)

    def aggregator_vms(self) -> AggregatorVms | None:
        """The rented aggregator VMs; None if there are none, or the model is not known yet."""
        return self._aggregator_vms(self)

    def workers_usd_per_hour(self, vm: str, workers: int) -> float:
        """What the VMs of this type that so many workers need are billed in an hour, with their extras."""
        offer, terms = self._offers[vm], self.terms()
        extras_usd = 0.0 if terms is None else terms.shared.extras(spot=offer.spot).usd_per_hour
        return -(-workers // offer.workers_per_vm) * (offer.price_usd_per_hour + extras_usd)

    def ready_on(self, vm: str) -> int:
        """Number of workers on a VM type that train or are ready to."""
        return sum(self.supervisor.vm_of(name) == vm for name in self.supervisor.workers("ready", "training"))

    @property
    def drain_s(self) -> float:
        """Time for an orderly end: a worker finishes its current task and writes the model, then all are ended."""
        busy = [record.step_time_s for record in self.history.steps[-VIEW_WARM_UP_STEPS:]]
        busy += [epoch.evaluation_s for epoch in self.history.epochs[-1:]]
        return reserve_s(self.supervisor.manifest, busy)

    @property
    def left_s(self) -> float | None:
        """Time until a limit is crossed, minus the time to end the workers; None without a limit."""
        left = []
        if self.limits.deadline_s is not None:
            left.append(self.limits.deadline_s - self.elapsed_s)
        rate = self._meter.usd_per_hour() / 3600.0
        if self.limits.budget_usd is not None and rate > 0.0:
            left.append((self.limits.budget_usd - self.cost_usd) / rate)
        return max(0.0, min(left) - CLOSE_S) if left else None

    def worker_snapshots(self) -> tuple[WorkerSnapshot, ...]:
        """Snapshots of the living workers, for policies."""
        words: dict[str, Literal["starting", "standby", "training"]] = {
            "starting": "starting",
            "training": "training",
        }
        found = []
        states = {name: word for word in words for name in self.supervisor.workers(word)}
        for name in self.supervisor.alive:
            recent = self.history.recent(name)
            found.append(
                WorkerSnapshot(
                    name=name,
                    host=self.supervisor.engine.node(name),
                    state=words.get(states.get(name, ""), "standby"),
                    joined_at_s=self.history.joined_at_s.get(name),
                    compute_s=tuple(took for took, _ in recent),
                    samples=tuple(samples for _, samples in recent),
                )
            )
        return tuple(found)

    def worker_memory_bytes(self) -> int:
        """Largest resident memory of any training worker so far."""
        training = self.supervisor.workers("training")
        sizes = self.supervisor.memory_bytes
        return max((sizes.get(worker, 0) for worker in training), default=0)

    # ---- commands ------------------------------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        """Make the next `pump` raise `Interrupted`; safe in signal handlers and other threads."""
        self._stop_reason = reason

    def check_stop(self) -> None:
        """Check for a requested stop.

        Raises:
            Interrupted: If `stop` was called.
        """
        if self._stop_reason is not None:
            raise Interrupted(self._stop_reason)

    def note(self, message: str) -> None:
        """Warn the user, now and in the report."""
        message = mask(message)
        self.warnings.append(message)
        self._notify(Noted("warning", message))

    def tell(self, event: report.Event) -> None:
        """Pass an event to the observer."""
        self._notify(event)

    def until(self, condition: Callable[[], bool]) -> None:
        """Train until a condition holds or training is finished."""
        while not (self.finished or condition()):
            self.pump()

    def start(self, workers: int) -> None:
        """Start the job's processes, unless that alone would cross a limit."""
        self._hold_limits({self.offer.vm: workers})
        self._first_workers = workers
        self._handle(o.Begin(workers))
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
        """Move to a configuration: start missing workers while training continues, switch, release spare workers.

        Args:
            reason: Reason for the change, shown in the report.
            meanwhile: Batch size to train with while workers start; None to stay at the present one.
            give_up: Whether to stop waiting for workers to start.
            keep: Whether to keep workers that this configuration does not need, since they will be needed soon.

        Returns:
            Whether the configuration was reached: False if training finished or the move was given up before, or if
            lost workers could not be replaced.
        """
        here = self.configuration
        apart = None if here is None or meanwhile is None else replace(here, global_batch_size=meanwhile)
        pause = None if apart is None else self.stall(apart)
        if pause is not None and pause.median_s > STALL_MAX * self.further_start.median_s:
            meanwhile = None  # training would be paused for what it gains until the workers are ready
        leaving = () if keep else self._on_further_vms(target)
        removed = bool(leaving) and self.remove(leaving, reason, batch=target.global_batch_size)
        if removed and self.configuration == target:
            return True
        self._handle(o.Gather(target, meanwhile, keep))
        gathered = self.wanted
        self.until(lambda: self.supervisor.ready >= self.wanted or give_up())
        # a job moves to another VM type with all its workers or not at all
        short = self.supervisor.ready < self.wanted or target.workers < gathered > self.wanted
        if self.finished or short:
            # workers that are still starting are released once they are ready, unless they are wanted by then
            self._handle(o.Abandon())
            return False
        self._handle(o.Switch(target, reason))
        self._settle()
        return not self.finished and self.wanted == target.workers

    def replace(self, workers: Collection[str], reason: str, *, kind: Literal["eviction", "failure"]) -> bool:
        """Replace workers in one change of view: none leaves before all replacements are ready.

        Returns:
            Whether they were replaced: False if training finished or a new worker could not be kept alive.
        """
        leaving = tuple(name for name in self.supervisor.alive if name in workers)
        if not leaving or self.configuration is None:
            return False
        size = self.wanted
        self._handle(o.GatherSpares(leaving))
        self.until(lambda: self.supervisor.ready >= self.wanted or self.wanted < size + len(leaving))
        came = self.supervisor.ready >= size + len(leaving)
        if came and not self.finished:
            self._handle(o.Swap(leaving, reason))
            self.until(lambda: self.supervisor.settled)
            for name in leaving:
                self._handle(o.Departed(name, kind))
        else:
            self._handle(o.Abandon(size))
        self._settle()
        return came and not self.finished

    def remove(self, workers: Collection[str], reason: str, *, batch: int) -> bool:
        """Continue training without these workers.

        Args:
            batch: New global batch size; raised to one sample per worker if smaller.

        Returns:
            Whether they were removed: False if training finished, none of them is alive, or none would be left.
        """
        leaving = tuple(name for name in self.supervisor.alive if name in workers)
        if not leaving or self.wanted <= len(leaving) or self.configuration is None:
            return False
        self._handle(o.Remove(leaving, batch, reason))
        self._settle()
        return not self.finished

    def _on_further_vms(self, target: Configuration) -> tuple[str, ...]:
        """Workers on more VMs than a smaller configuration needs, where a VM has several: it is paid for as a whole."""
        offer = self.offer
        if offer.workers_per_vm == 1 or target.vm != offer.vm or target.workers >= self.wanted:
            return ()
        engine = self.supervisor.engine
        hosts = {name: engine.place(name) for name in self.supervisor.alive}
        return on_further_hosts(hosts, -(-target.workers // offer.workers_per_vm))

    def use_aggregators(self, migrations: Migrations, aggregators: int) -> str:
        """Have the first so many aggregators hold the model, while training continues.

        Returns:
            Why they do not; empty if they do.
        """
        try:
            migrations.use(range(aggregators))
        except ScavengerError as error:
            return str(error)
        self.until(lambda: not migrations.active)
        if migrations.active or migrations.ended is None:
            return "training was finished before"
        return migrations.ended.reason

    def follow_noise(self) -> None:
        """Update the learning rate if it follows the gradient noise and the noise has changed enough."""
        self._handle(o.FollowNoise())

    def _settle(self) -> None:
        """Train until the change of view has taken effect and the released workers have ended."""
        self.until(lambda: self.supervisor.settled)
        self._handle(o.Look())
        self.until(lambda: not self.supervisor.ending)
        self._ticked_at = -math.inf  # what nothing runs on any more is given back at once

    # ---- the loop ------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Process the events of a short time slice, check for a stop and enforce the limits."""
        self._take(_POLL_S)
        if self._known_at_s is None and self.supervisor.manifest is not None:
            self._known_at_s = self.elapsed_s
        if self._ready_at_s is None and self.history.setup_s:
            self._ready_at_s = self.elapsed_s
        self._handle(o.Look())
        self.check_stop()
        self._hold_limits()
        now = self._clock()
        if now - self._ticked_at >= _TICK_S:
            self._ticked_at = now
            self.journal.tick(self.elapsed_s, self.cost_usd)
            self._on_tick()

    def take_last_steps(self) -> None:
        """Record steps that were applied while training was being stopped, without reacting to them."""
        self._handle(o.Close())
        self._take(0.0)

    def _take(self, within_s: float) -> None:
        events = self.supervisor.poll(within_s)
        now = self._situation() if events else None
        for event in events:
            # workers launched or released for one event must be visible to the next
            now = None if self._handle(event, now) else now

    def _handle(self, event: o.Event, now: o.Situation | None = None) -> bool:
        """Pass an event to the controller and carry out its actions; returns whether the workers changed."""
        now = replace(now or self._situation(), at_s=self.elapsed_s)
        if worker := _worker_of(event):
            now = replace(now, vm=self.supervisor.vm_of(worker), host=self.supervisor.engine.node(worker))
        actions = self.handle(event, now)
        for action in actions:
            self._carry_out(action)
        return any(isinstance(action, o.Launch | o.Resize | o.Release) for action in actions)

    def _situation(self) -> o.Situation:
        supervisor = self.supervisor
        return o.Situation(
            vms={name: supervisor.vm_of(name) for name in supervisor.alive},
            starting=supervisor.starting,
            ready=supervisor.ready,
            training=len(supervisor.workers("training")),
            settled=supervisor.settled,
            ending=supervisor.ending,
        )

    def _carry_out(self, action: o.Action) -> None:
        match action:
            case o.Launch(workers, vm):
                for worker in self.supervisor.launch(workers, vm, threads=self._offers[vm].cpus):
                    self._notify(WorkerChanged(worker, "starting"))
                self._ticked_at = -math.inf  # what they are to run on is rented at once
            case o.Resize(workers, batch, reason, lr_scale, without):
                self.supervisor.resize(workers, batch, reason, without=without, lr_scale=lr_scale)
            case o.Release(keep):
                self.supervisor.release(keep)
            case o.GiveVerdict(epoch, stop, keep_best, rate_scale, step):
                self.supervisor.verdict(
                    epoch, stop=stop, keep_best=keep_best, rate_scale=rate_scale, step=step
                )
            case o.RunCallbacks(request):
                self.supervisor.run_callbacks(request)
            case o.Write(kind, value, audit):
                journal = self._audit if audit else self.journal
                if journal is not None:
                    journal.add(kind, value)
            case o.Notify(event):
                self._notify(event)
            case o.ReportStep(record):
                self._notify(StepDone(record, self._progress(), self.cost_usd))
            case o.Warn(message):
                self.note(message)
            case o.RecordNow():
                self._ticked_at = -math.inf
            case o.GiveUp(worker, message, "crash"):
                raise crash_error(message, self.supervisor.engine.log(worker))
            case o.GiveUp(worker, message, cause):
                message = f"{message}; see {self.supervisor.engine.log(worker)}"
                if cause == "code":
                    raise TrainingCodeError(f"the training code failed: {message}")
                raise WorkersLostError(message)
            case o.AskGoal(message):
                raise ConfigurationError(message)

    def _hold_limits(self, joining: Mapping[str, int] | None = None) -> None:
        """Stop while enough time and budget is left for an orderly end of all workers, including joining ones."""
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

    def _notify(self, event: report.Event) -> None:
        self._observer.on_event(event)


def _worker_of(event: o.Event) -> str:
    """The worker whose VM and node the handling of an event needs; empty if none."""
    match event:
        case Lost() | Refused() | o.Departed():
            return event.worker
        case PreemptionNotice():
            return event.name
        case m.ViewInstalled():
            return event.view.members[0].worker
        case _:
            return ""
