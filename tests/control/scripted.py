"""A supervisor that plays what a test scripts, behind the interface that the trainer drives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from scavenger.control.training.cost_meter import WorkerCostMeter
from scavenger.control.training.goal import Goal
from scavenger.control.training.history import EarlierAttempts
from scavenger.control.training.journal import Journal
from scavenger.control.training.limits import Limits
from scavenger.control.training.trainer import Trainer
from scavenger.domain.configuration import Offer
from scavenger.domain.job import GoalSpec
from scavenger.domain.report import Event, Observer
from scavenger.elastic.membership import Membership, WorkerState, worker_name
from scavenger.elastic.migration import BucketMap
from scavenger.elastic.view import Position, View, split
from scavenger.models.noise import NoiseTracker
from scavenger.train.supervisor.events import Leaving, Lost, ProcessState, Started
from scavenger.train.supervisor.supervisor import Supervisor
from scavenger.train.transport import messages as m

STEP_S = 0.1
PRICE = 3.6  # dollars an hour: a tenth of a cent for each second of a worker


_WORDS = {
    WorkerState.STARTING: "starting",
    WorkerState.STANDBY: "ready",
    WorkerState.TRAINING: "training",
    WorkerState.GONE: "gone",
}


@dataclass
class ScriptedMigrations:
    """Three aggregators that hold the model as they are asked to, from the next poll on.

    Attributes:
        active: Whether that poll has yet to come.
        unmoved: Why the model stays where it is, if it does.
    """

    count: int = 3
    holding: tuple[int, ...] = (0, 1, 2)
    active: bool = False
    ended: m.Migrated | None = None
    unmoved: str = ""

    def use(self, aggregators: Collection[int]) -> None:
        self.active, self.holding = True, self.holding if self.unmoved else tuple(aggregators)

    def end(self, step: int) -> m.Migrated:
        self.active = False
        self.ended = m.Migrated(1, BucketMap(1, step, self.holding), self.unmoved)
        return self.ended


@dataclass
class Scripted:
    """Workers get ready at the poll after their launch; every poll is one step, and takes `STEP_S`.

    Attributes:
        now_s: The clock, which only this moves.
        doomed: Workers that die instead of getting ready.
        crashing: Of those, the ones that die by their own fault.
        dies_at: Workers that die at a poll, by its number.
        slow: By how much longer a worker computes.
        epoch_steps: Steps of an epoch.
        metrics: Of the epochs in turn; the last is repeated.
        worker_sqnorm: Mean squared norm of the gradient's parts; that of their mean is 1.
        coming: Events that the next poll hands out first.
        step, epoch: Where it begins.
        stall_s: How long each view but the first pauses training.
        too_many: Samples of a worker from which on its device's memory does not hold them.
        hosts: Those that workers can be put on; empty where a new one can be had for each.
        avoided: Hosts that the engine was asked to avoid, each time.
        vms_of: VMs of workers; all others are on one.
        migrations: Which aggregators hold the model.
    """

    now_s: float = 0.0
    doomed: set[str] = field(default_factory=set)
    crashing: set[str] = field(default_factory=set)
    dies_at: dict[int, str] = field(default_factory=dict)
    slow: dict[str, float] = field(default_factory=dict)
    epoch_steps: int = 10
    metrics: list[dict[str, float]] = field(default_factory=lambda: [{"val_loss": 1.0}])
    partial_at: int = 0
    worker_sqnorm: float = 2.0
    membership: Membership = field(default_factory=Membership)
    manifest: Any = None
    memory_bytes: dict[str, int] = field(default_factory=dict)
    verdicts: list[tuple[bool, bool]] = field(default_factory=list)
    launched: dict[str, float] = field(default_factory=dict)
    vms: dict[str, str] = field(default_factory=dict)
    leaving: set[str] = field(default_factory=set)
    gone: dict[str, float] = field(default_factory=dict)
    ending: bool = False
    late: list[m.StepReport] = field(default_factory=list)
    coming: list[Any] = field(default_factory=list)
    lr_scales: list[float] = field(default_factory=list)
    polls: int = 0
    step: int = 0
    epoch: int = 0
    consumed: int = 0
    stall_s: float = 0.0
    too_many: int | None = None
    hosts: tuple[str, ...] = ()
    avoided: list[frozenset[str]] = field(default_factory=list)
    vms_of: dict[str, str] = field(default_factory=dict)
    migrations: ScriptedMigrations | None = field(default_factory=ScriptedMigrations)

    def clock(self) -> float:
        return self.now_s

    @property
    def engine(self) -> Any:
        return SimpleNamespace(
            sharing=None,
            log=lambda name: Path(f"{name}.log"),
            host=lambda name: "here",
            node=lambda name: "here",
            place=lambda name: self.vms_of.get(name, "here"),
            hosts=self.hosts,
            avoid=self.avoided.append,
        )

    @property
    def alive(self) -> tuple[str, ...]:
        return tuple(name for name in self.membership.alive if name not in self.leaving)

    def workers(self, *states: str) -> tuple[str, ...]:
        return tuple(name for name in self.alive if _WORDS[self.membership.state(name)] in states)

    @property
    def starting(self) -> int:
        return self.membership.count(WorkerState.STARTING)

    @property
    def ready(self) -> int:
        return self.membership.count(WorkerState.STANDBY, WorkerState.TRAINING)

    @property
    def settled(self) -> bool:
        return self.membership.settled

    def start(self, workers: int, vm: str = "", *, threads: int | None = None) -> None:
        self.launch(workers, vm)

    def vm_of(self, worker: str) -> str:
        return self.vms[worker]

    def launch(self, workers: int, vm: str = "", *, threads: int | None = None) -> tuple[str, ...]:
        first = len(self.launched)
        names = tuple(worker_name(first + index) for index in range(workers))
        for name in names:
            self.membership.launch(name)
            self.launched[name], self.vms[name] = self.now_s, vm
        return names

    def resize(
        self,
        workers: int,
        global_batch_size: int,
        reason: str,
        *,
        without: Collection[str] = (),
        lr_scale: float = 1.0,
    ) -> None:
        self.lr_scales.append(lr_scale)
        self.leaving.update(without)
        self.membership.resize(workers, global_batch_size, reason, without=without, lr_scale=lr_scale)

    def release(self, keep: int) -> None:
        if not self.settled or (len(self.alive) <= keep and not self.leaving):
            return
        for worker in self.membership.spare(keep):
            self.membership.release(worker)
            self.leaving.discard(worker)
            self.gone[worker] = self.now_s
            self.coming.append(Leaving(worker))

    def verdict(
        self, epoch: int, *, stop: bool, keep_best: bool, rate_scale: float = 1.0, step: int | None = None
    ) -> None:
        self.verdicts.append((stop, keep_best))

    def run_callbacks(self, request: m.RunCallbacks) -> None:
        """They all stop training."""
        answer = m.CallbacksRun(1, request.epoch, request.step, "", 1.0, None, "EarlyStopping", None, ())
        self.coming.append(answer)

    @property
    def existing(self) -> dict[str, int]:
        return dict(Counter(self.vms[name] for name in self.launched.keys() - self.gone.keys()))

    def worker_seconds(self) -> dict[str, float]:
        seconds = dict.fromkeys(self.vms.values(), 0.0)
        for name, at in self.launched.items():
            seconds[self.vms[name]] += self.gone.get(name, self.now_s) - at
        return seconds

    def processes(self) -> tuple[ProcessState, ...]:
        view = self.membership.number
        leading = [("coordinator.1", "coordinator"), ("aggregator", "aggregator")]
        found = [ProcessState(name, role, 100, "here", "training", view, self.step) for name, role in leading]
        for index, name in enumerate(self.launched):
            state = _WORDS[self.membership.state(name)]
            found.append(ProcessState(name, "worker", 200 + index, "here", state, view, self.step))
        return tuple(found)

    def poll(self, timeout_s: float) -> list[Any]:
        if timeout_s == 0.0:
            late, self.late = self.late, []
            return list(late)
        self.polls += 1
        self.now_s += STEP_S
        events, self.coming = self.coming, []
        if self.migrations is not None and self.migrations.active:
            events.append(self.migrations.end(self.step + 1))
        for worker in self.membership.workers(WorkerState.STARTING):
            if worker in self.doomed:
                events += self._lose(worker)
            else:
                self.membership.ready(worker)
                events.append(Started(worker, self.now_s - self.launched[worker]))
        if self.polls in self.dies_at:
            events += self._lose(self.dies_at[self.polls])
        return events + self._train()

    def _lose(self, worker: str) -> list[Any]:
        ready = self.membership.state(worker) is not WorkerState.STARTING
        self.membership.lost(worker)
        self.gone[worker] = self.now_s
        crashed = worker in self.crashing
        cause = f"was killed by {'SIGSEGV' if crashed else 'SIGKILL'}"
        return [Lost(worker, cause, crashed=crashed, ready=ready)]

    def install(self, view: View) -> list[m.ViewInstalled]:
        """Install the view that was announced, with its event, unless it is installed already."""
        if self.settled:
            return []
        self.membership.installed(view.number, [member.worker for member in view.members])
        installed = View(
            number=view.number,
            first_step=self.step + 1,
            global_batch_size=view.global_batch_size,
            members=view.members,
            position=Position(self.epoch, self.consumed),
            lr_scale=view.lr_scale,
            reason=view.reason,
        )
        return [m.ViewInstalled(installed)]

    def _train(self) -> list[Any]:
        view = self.membership.announced
        if view is None:
            return []
        first_view = self.step == 0
        events: list[Any] = [*self.install(view)]
        self.step += 1
        stall_s = self.stall_s if events and not first_view else 0.0
        self.now_s += stall_s
        each = -(-view.global_batch_size // len(view.members))
        if self.too_many is not None and each >= self.too_many:
            events.append(m.MemoryExceeded(each))
        report = self.report()
        events.append(msgspec.structs.replace(report, step_time_s=report.step_time_s + stall_s))
        if self.step % self.epoch_steps == 0:
            metrics = self.metrics[min(self.epoch, len(self.metrics) - 1)]
            events.append(m.EpochReport(self.epoch, self.step, metrics, 0.5))
            self.epoch, self.consumed = self.epoch + 1, 0
        return events

    def report(self) -> m.StepReport:
        """The step under way, by the members of the newest view."""
        view = self.membership.announced
        assert view is not None
        names = [member.worker for member in view.members]
        batch = view.global_batch_size
        samples = batch - 1 if self.step == self.partial_at else batch
        shares = split(self.consumed, samples, len(names))
        self.consumed += samples
        computed = {name: STEP_S / 2 * self.slow.get(name, 1.0) for name in names}
        return m.StepReport(
            step=self.step,
            view=view.number,
            epoch=self.epoch,
            workers=len(names),
            global_batch_size=batch,
            samples=samples,
            step_time_s=STEP_S,
            compute_s=STEP_S / 2,
            update_s=0.0,
            data_wait_s=0.0,
            loss=1.0,
            mean_worker_sqnorm=self.worker_sqnorm,
            mean_sqnorm=1.0,
            noise_parts=2,
            worker_compute_s=computed,
            pieces=tuple((name, s.start, s.stop) for name, s in zip(names, shares, strict=True)),
        )


class Heard(Observer):
    """Keeps every event."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)


def offer(*, shared_cpus: int | None = None, price: float = PRICE) -> Offer:
    return Offer("local", "", "local-1", price, "test", cpus=1, memory_bytes=2**30, shared_cpus=shared_cpus)


def trainer_of(
    scripted: Scripted,
    folder: Path,
    *,
    deadline_s: float | None = None,
    budget_usd: float | None = None,
    goal: GoalSpec | None = None,
    shared_cpus: int | None = None,
    price: float = PRICE,
    workers_per_vm: int = 1,
    others: Sequence[Offer] = (),
    observer: Observer | None = None,
    on_tick: Callable[[], None] = lambda: None,
    progress: Callable[[], float | None] = lambda: None,
    before: EarlierAttempts | None = None,
    audit: Journal | None = None,
    resumed_step: int | None = None,
    lr_scale: Callable[[int, NoiseTracker], float] = lambda batch, noise: 1.0,
) -> Trainer:
    first = replace(offer(shared_cpus=shared_cpus, price=price), workers_per_vm=workers_per_vm)
    offers = (first, *others)
    return Trainer(
        cast(Supervisor, scripted),
        goal=Goal(goal or GoalSpec(max_epochs=1000)),
        offers=offers,
        meter=WorkerCostMeter(cast(Supervisor, scripted), {one.vm: one for one in offers}),
        limits=Limits(deadline_s, budget_usd),
        journal=Journal(folder / "measurements.jsonl", resumed_step=resumed_step, job_id="j"),
        observer=observer or Heard(),
        started_at=scripted.now_s,
        on_tick=on_tick,
        progress=progress,
        before=before,
        audit=audit,
        lr_scale=lr_scale,
        clock=scripted.clock,
    )
