"""The controller of a running job: maps each event about its workers and steps to actions.

The controller is a pure state machine: it reads no clock, does no I/O and returns actions. `Trainer` passes it the
events of the supervisor and the commands of the control plane, each with the state of the workers at that moment, and
carries out its actions in order. The table shows the modes (columns) and events (rows); an entry names the result, and
`-` means that the event is ignored::

    event             TRAIN                                   DONE              RECORD
    StepReport        new: written, reported; else -          as TRAIN          as TRAIN
    ViewInstalled     newer: in effect from now on; else -    as TRAIN          as TRAIN
    EpochReport       new: written, reported; callbacks run,  the verdict       -
                      or, if there are none, the verdict;     again
                      not new: as new, but neither written
                      nor reported
    BatchReport       callbacks run, or, if they have for     -                 -
                      this step, the verdict again
    CallbacksRun      new: written, the verdict               -                 -
    RolledBack        history undone, warned                  -> TRAIN          as TRAIN
    Quarantined       written, warned                         as TRAIN          as TRAIN
    MemoryExceeded    fewer than ever: kept, warned; else -   as TRAIN          -
    Checkpoint...     written, reported; failed: warned once  as TRAIN          as TRAIN
    Started, Leaving  reported                                as TRAIN          -
    Recovered         reported                                as TRAIN          -
    Migrated          reported                                as TRAIN          -
    Told, Warned      told, warned                            as TRAIN          -
    Lost              reported; replaced, or fewer wanted, or reported          -
                      given up, by the table of `Losses`
    Refused           reported; fewer wanted                  reported          -
    PreemptionNotice  reported; leaves and is replaced at     reported          -
                      once, or, if only at risk, noted
    Look              lost workers replaced when due; spare   spare released    -
                      workers released
    Gather, Switch,   launches and changes of view            -                 -
    GatherSpares,
    Swap, Remove,
    FollowNoise
    Begin, Abandon    sets the number of wanted workers       as TRAIN          -
    Departed          kept in the history                     as TRAIN          -
    Close             -> RECORD                               -> RECORD         -

A message may be repeated because its answer was lost. A step or view that is not newer than the newest one changes
nothing, and the report of an answered epoch gets the same answer again. A verdict that ends training leads to DONE.

**Workers are wanted, not counted.** `wanted` is how many workers the job should have. While fewer are alive, the
missing workers are launched or owed; while more are alive, `Release` removes the newest ones. Launching and releasing
therefore depend on `wanted` alone, regardless of what changed it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from typing import Literal

import msgspec

from scavenger.control.training import orders as o
from scavenger.control.training.goal import Goal
from scavenger.control.training.history import TrainingHistory
from scavenger.control.training.losses import GIVE_UP, Losses
from scavenger.control.training.verdicts import Verdicts
from scavenger.control.training.view_in_effect import ViewInEffect
from scavenger.domain.configuration import Configuration, Offer
from scavenger.domain.report import Noted, WorkerChanged
from scavenger.domain.snapshot import Departure
from scavenger.models.noise import NoiseTracker
from scavenger.presentation.formatting import plural
from scavenger.train.supervisor.events import (
    Leaving,
    Lost,
    PreemptionNotice,
    ProgramBegan,
    Recovered,
    Refused,
    RolledBack,
    Started,
    Told,
    Warned,
)
from scavenger.train.transport import messages as m
from scavenger.train.worker.noise_rhythm import NOISE_SHARE

RATE_STEPS = 50
"""Minimum number of steps at one learning rate when it follows the noise: each change needs a change of view."""
RATE_CHANGE = 0.05
"""Relative changes of the learning rate below this are not worth a change of view."""
REFUSED_S = 600.0
"""Time after a refused launch (no capacity) during which no larger cluster is planned, seconds."""

_RECORDED = (
    m.StepReport,
    m.ViewInstalled,
    RolledBack,
    m.SamplesQuarantined,
    m.CheckpointWritten,
    m.CheckpointFailed,
)
"""Events about the state of training; they are handled in every mode."""


class Mode(Enum):
    TRAIN = "train"
    DONE = "done"
    RECORD = "record only"


class Controller:
    """State machine of one job's training. Not thread-safe; pass it one event at a time.

    Args:
        goal: The training goal.
        history: Training history of this and earlier attempts; updated by the controller.
        offers: VM types that may be used; the job starts on the first.
        give_up: Maximum number of consecutive early failures, see `Losses`.
        lr_scale: Learning rate factor for a global batch size and the gradient noise.

    Attributes:
        wanted: Number of workers that the job should have.
        offer: The VM type on which the job runs.
        at_risk: Workers that the cloud may preempt at an unannounced time.
        checkpoint_step: Step of the newest checkpoint; 0 before the first.
        callbacks, last_for: The runs of the callbacks; see `Verdicts`.
    """

    def __init__(
        self,
        goal: Goal,
        history: TrainingHistory,
        *,
        offers: Mapping[str, Offer],
        give_up: int = GIVE_UP,
        lr_scale: Callable[[int, NoiseTracker], float] = lambda batch, noise: 1.0,
    ) -> None:
        self.goal, self.history = goal, history
        self._offers, self._lr_scale_of = offers, lr_scale
        self.offer = next(iter(offers.values()))
        self.wanted = 0
        self.at_risk: frozenset[str] = frozenset()
        self._noise_share, self._noise_told = 0.0, False
        self.checkpoint_step = 0
        self._losses = Losses(give_up)
        self._recording_only = self._keeping = False
        self._asked: o.Resize | None = None
        self._view = ViewInEffect()
        self._evicted: set[str] = set()
        self._warned_of: set[str] = set()
        self._verdicts = Verdicts(goal, history, warn_once=self._warn_once)
        self.callbacks, self.last_for = self._verdicts.callbacks, self._verdicts.last_for
        self._refused_at_s = -math.inf

    @property
    def mode(self) -> Mode:
        """The controller's mode, a column of the module's table."""
        if self._recording_only:
            return Mode.RECORD
        return Mode.DONE if self.finished else Mode.TRAIN

    @property
    def finished(self) -> bool:
        """Whether the goal is reached, no epoch is left, or a callback has stopped training."""
        return self._verdicts.finished

    @property
    def reached(self) -> bool:
        """Whether the goal is reached."""
        return self._verdicts.reached

    @property
    def stopped_by(self) -> str:
        """The callback that stopped training; empty if none did."""
        return self._verdicts.stopped_by

    @property
    def view(self) -> int:
        """Number of the view in effect; 0 before the first view."""
        return self._view.number

    @property
    def configuration(self) -> Configuration | None:
        """The configuration in effect; None before the first view."""
        return self._view.configuration

    def workers_max(self, at_s: float) -> int | None:
        """Largest cluster that can currently be kept alive; None if no limit is known."""
        refused = at_s - self._refused_at_s < REFUSED_S
        return self.wanted if refused or self._losses.too_many else None

    def handle(self, event: o.Event, now: o.Situation) -> list[o.Action]:
        """Handle one event; returns the resulting actions in order."""
        if self.mode is Mode.RECORD and not isinstance(event, _RECORDED):
            return []
        match event:
            case m.StepReport():
                return self._stepped(event, now)
            case m.ViewInstalled():
                return self._installed(event, now)
            case m.EpochReport():
                return self._verdicts.epoch_ended(event, now)
            case m.BatchReport():
                return self._verdicts.batch_ended(event)
            case m.CallbacksRun():
                return self._verdicts.called_back(event)
            case RolledBack():
                return self._rolled_back(event)
            case m.SamplesQuarantined():
                return self._quarantined(event)
            case m.CheckpointWritten():
                return self._checkpointed(event)
            case m.CheckpointFailed():
                return self._checkpoint_failed(event)
            case m.MemoryExceeded():
                return self._memory_exceeded(event)
            case Started():
                self.history.setup_s.append(event.setup_s)
                return [o.Notify(WorkerChanged(event.worker, "ready", f"after {event.setup_s:.1f} s"))]
            case ProgramBegan():
                self.history.program_starts_s.append(event.took_s)
                return []
            case Leaving():
                self.history.left(event.worker)
                return [o.Notify(WorkerChanged(event.worker, "leaving"))]
            case Recovered():
                words = f"{event.cause}; another took over in {event.took_s:.1f} s"
                return [o.Notify(WorkerChanged(event.process, "recovered", words))]
            case m.Migrated():
                holding = ", ".join(map(str, sorted({*event.map.holders})))
                return [
                    o.Notify(Noted("info", event.reason or f"the model is held by aggregators {holding}"))
                ]
            case Told():
                return [o.Notify(Noted("info", event.message))]
            case Warned():
                return [o.Warn(event.message)]
            case Lost():
                return self._lost(event, now)
            case Refused():
                return self._refused(event, now)
            case PreemptionNotice():
                return self._preempted(event, now)
            case _:
                return self._command(event, now)

    def _command(self, event: o.Event, now: o.Situation) -> list[o.Action]:
        match event:
            case o.Begin():
                self.wanted = event.workers
            case o.Abandon():
                self.wanted = max(1, now.training) if event.workers is None else event.workers
            case o.Close():
                self._recording_only = True
            case o.Departed():
                self._departed(event.worker, event.kind, now)
            case o.Look():
                return self._look(now)
            case o.Gather() if not self.finished:
                return self._gather(event, now)
            case o.Switch() if not self.finished:
                return self._switch(event, now)
            case o.GatherSpares() if not self.finished:
                return self._gather_spares(event, now)
            case o.Swap() if not self.finished:
                self.wanted -= len(event.workers)
                assert self.configuration is not None
                batch = self.configuration.global_batch_size
                return self._resize(self.wanted, batch, event.reason, without=event.workers)
            case o.Remove() if not self.finished:
                self.wanted -= len(event.workers)
                batch = max(self.wanted, event.global_batch_size)
                return self._resize(self.wanted, batch, event.reason, without=event.workers)
            case o.FollowNoise() if not self.finished:
                return self._follow_noise(now)
            case _:
                pass
        return []

    # ---- steps, views and epochs ---------------------------------------------------------------------------

    def _installed(self, event: m.ViewInstalled, now: o.Situation) -> list[o.Action]:
        view = event.view
        if not self._view.installed(view, now.vm):
            return []  # a repeated message
        self.history.viewed([member.worker for member in view.members], now.at_s)
        return []

    def _stepped(self, report: m.StepReport, now: o.Situation) -> list[o.Action]:
        if report.step <= self.history.step:
            return []  # repeated after a recovery
        self._losses.stepped()
        self._view.stepped()
        record = self.history.stepped(
            report, self.configuration, disturbed=self._disturbed(report, now), at_s=now.at_s
        )
        done = {"step": report.step, "view": report.view, "epoch": report.epoch, "pieces": report.pieces}
        actions: list[o.Action] = [o.Write("step", record), o.Write("step", done, audit=True)]
        if (change := self._view.change(record)) is not None:
            actions += [o.Write("view", change), o.Notify(change)]
            if self._view.count > 1 and self._asked is not None and change.reason == self._asked.reason:
                self.history.stalled(change.stall_s, same_workers=self._view.same_workers)
        return [*actions, *self._tell_noise(report), o.ReportStep(record)]

    def _tell_noise(self, report: m.StepReport) -> list[o.Action]:
        """Tell once that a worker alone measures the noise in few of its steps, and what that takes."""
        if report.noise_s > 0.0:
            self._noise_share = report.noise_s / max(report.compute_s, report.noise_s * 1e-3)
            return []
        if report.workers > 1 or not 0.0 < self._noise_share < math.inf or self._noise_told:
            return []
        self._noise_told = True
        share = self._noise_share
        return [
            o.Notify(
                Noted(
                    "info",
                    f"one worker measures the gradient noise in about one step of {math.ceil(share / NOISE_SHARE)} "
                    f"from now on, since that takes {share:.0%} of a step more",
                )
            )
        ]

    def _disturbed(self, report: m.StepReport, now: o.Situation) -> bool:
        shared = self.offer.shared_cpus is not None
        return (
            self._view.warming_up
            or report.samples < report.global_batch_size
            or (shared and (now.starting > 0 or now.ending))
        )

    def _rolled_back(self, event: RolledBack) -> list[o.Action]:
        undone = self.history.roll_back(event.step)
        self._verdicts.roll_back()
        resumed = {"step": event.step}
        return [
            o.Write("resumed", resumed),
            o.Write("resumed", resumed, audit=True),
            o.Warn(
                f"{event.cause}; after {event.took_s:.1f} s the job continues from step {event.step} and "
                f"repeats {plural(undone, 'step')}"
            ),
        ]

    def _quarantined(self, event: m.SamplesQuarantined) -> list[o.Action]:
        samples = ", ".join(map(str, event.samples))
        return [
            o.Write("quarantined", msgspec.structs.asdict(event)),
            o.Warn(
                f"training is incomplete: sample {samples} of the data is left out from now on. {event.reason}"
            ),
        ]

    def _checkpointed(self, event: m.CheckpointWritten) -> list[o.Action]:
        self.checkpoint_step = event.step
        self.callbacks.checkpointed(event.step)
        size = event.bytes / 1e6
        words = f"checkpoint of step {event.step}: {size:.1f} MB in {event.written_s:.1f} s"
        return [
            o.Write("checkpoint", msgspec.structs.asdict(event)),
            o.Notify(Noted("info", words)),
            o.RecordNow(),  # the job can be resumed from now on
        ]

    def _checkpoint_failed(self, event: m.CheckpointFailed) -> list[o.Action]:
        """Warn once per cause that a checkpoint could not be written; training continues."""
        return self._warn_once(
            event.message, f"the checkpoint of step {event.step} could not be written: {event.message}"
        )

    # ---- workers that leave --------------------------------------------------------------------------------

    def _lost(self, event: Lost, now: o.Situation) -> list[o.Action]:
        notice = o.Notify(WorkerChanged(event.worker, "lost", event.cause))
        missing = self.wanted - len(now.vms)
        if event.worker in self._evicted:
            # its VM ended before it had left; a replacement was started at the notice, unless that is gone too
            return [notice, *self._launch(missing, now.vm)]
        steps = self.history.steps_of(event.worker)
        self._departed(event.worker, "failure", now)
        if self.finished:
            return [notice]
        actions, wanted = self._losses.lost(event, now, missing=missing, steps=steps)
        self.wanted = self.wanted if wanted is None else wanted
        return [notice, *actions]

    def _refused(self, event: Refused, now: o.Situation) -> list[o.Action]:
        """Handle a refused launch (no capacity): the job continues with the workers it has."""
        notice = o.Notify(WorkerChanged(event.worker, "gone", event.reason))
        alive = len(now.vms)
        if alive >= self.wanted or self.finished:
            return [notice]
        self.wanted, self._refused_at_s = max(1, alive), now.at_s
        words = f"the job continues with {plural(alive, 'worker')}: {event.reason}"
        return [notice, *self._warn_once(event.reason, words)]

    def _preempted(self, event: PreemptionNotice, now: o.Situation) -> list[o.Action]:
        """Handle a preemption notice: the worker leaves at the next step boundary; a replacement is started."""
        worker = event.name
        notice = o.Notify(WorkerChanged(worker, "preempted", event.reason))
        if event.in_s is None:
            self.at_risk |= {worker}
            return [notice]
        self.at_risk -= {worker}
        if worker not in now.vms or self.finished:
            return [notice]
        actions: list[o.Action] = [notice, o.Warn(f"{worker} leaves: {event.reason}; it is replaced")]
        alive = len(now.vms)
        if self._asked is not None:
            # the others continue with the same batch, and the replacement joins once it is ready
            workers, batch = self._asked.workers, self._asked.global_batch_size
            actions += self._resize(workers, batch, f"{worker} leaves: {event.reason}", without=(worker,))
            alive -= 1
        self._departed(worker, "eviction", now)
        self._evicted.add(worker)
        return [*actions, *self._launch(self.wanted - alive, now.vm)]

    def _departed(self, worker: str, kind: Literal["failure", "eviction"], now: o.Situation) -> None:
        steps = self.history.steps_of(worker)
        self.history.departures.append(Departure(worker, now.host, now.at_s, kind, steps))
        self.history.left(worker)

    # ---- commands ------------------------------------------------------------------------------------------

    def _gather(self, event: o.Gather, now: o.Situation) -> list[o.Action]:
        # workers on another VM type keep training until all new workers are ready
        others = self._others(event.target.vm, now)
        self.wanted = event.target.workers + len(others)
        self._keeping = event.keep
        missing = self.wanted - len(now.vms)
        if missing <= 0:
            return []
        here, actions = self.configuration, list[o.Action]()
        workers = len(now.vms) if here is None else here.workers
        if self.offer.shared_cpus is None:
            workers = max(workers, now.ready)  # standby workers run on VMs that are paid for
        batch = event.meanwhile
        if batch is not None and (here is None or (here.workers, here.global_batch_size) != (workers, batch)):
            actions += self._resize(max(1, min(workers, batch)), batch, "while workers start")
        return [*actions, *self._launch(missing, event.target.vm)]

    def _switch(self, event: o.Switch, now: o.Situation) -> list[o.Action]:
        target = event.target
        self.offer = self._offers[target.vm]
        self.wanted = min(target.workers, self.wanted)
        return self._resize(
            self.wanted,
            max(self.wanted, target.global_batch_size),
            event.reason,
            without=self._others(target.vm, now),
        )

    def _gather_spares(self, event: o.GatherSpares, now: o.Situation) -> list[o.Action]:
        self.at_risk -= set(event.workers)
        self.wanted += len(event.workers)
        return self._launch(self.wanted - len(now.vms), self.offer.vm)

    def _follow_noise(self, now: o.Situation) -> list[o.Action]:
        here = self.configuration
        if here is None or not now.settled or self._view.steps < RATE_STEPS:
            return []
        scale = self._lr_scale_of(here.global_batch_size, self.history.noise)
        asked = 1.0 if self._asked is None else self._asked.lr_scale
        if abs(scale / asked - 1.0) <= RATE_CHANGE:
            return []
        return self._resize(here.workers, here.global_batch_size, f"learning rate x {scale:.3g}")

    def _look(self, now: o.Situation) -> list[o.Action]:
        launches: list[o.Action] = []
        alive = len(now.vms)
        if not self.finished:
            launches = [o.Launch(count, vm) for vm, count in self._losses.due(now, self.wanted).items()]
        # spare workers are released, to stop paying for them
        keep = max(self.wanted, alive) if self._keeping else self.wanted
        return [*launches, o.Release(keep)]

    def _memory_exceeded(self, event: m.MemoryExceeded) -> list[o.Action]:
        if not self.history.fits(event.samples):
            return []
        self.history.too_many = event.samples
        words = (
            f"{event.samples} samples at once do not fit into the memory of a worker's device: it computes them in "
            f"parts, and configurations with {event.samples} samples per worker or more are left out"
        )
        return [o.Warn(words)]

    # ---- helpers -------------------------------------------------------------------------------------------

    def _others(self, vm: str, now: o.Situation) -> tuple[str, ...]:
        """Workers on other VM types."""
        return tuple(name for name, vm_type in now.vms.items() if vm_type != vm)

    def _launch(self, missing: int, vm: str) -> list[o.Action]:
        if missing <= 0 or self.finished:
            return []
        self._losses.gathered()
        return [o.Launch(missing, vm)]

    def _resize(
        self, workers: int, batch: int, reason: str, *, without: Collection[str] = ()
    ) -> list[o.Action]:
        lr_scale = self._lr_scale_of(batch, self.history.noise)
        self._asked = o.Resize(workers, batch, reason, lr_scale, tuple(without))
        return [self._asked]

    def _warn_once(self, cause: str, words: str) -> list[o.Action]:
        if cause in self._warned_of:
            return []
        self._warned_of.add(cause)
        return [o.Warn(words)]
