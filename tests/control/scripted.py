"""A coordinator that plays what a test scripts, behind the interface that the trainer drives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from scavenger.control.goal import Goal
from scavenger.control.journal import Journal
from scavenger.control.trainer import Limits, Trainer
from scavenger.domain.configuration import Offer
from scavenger.domain.job import GoalSpec
from scavenger.domain.report import Event, Observer
from scavenger.elastic.membership import Membership, WorkerState
from scavenger.train import messages as m
from scavenger.train.coordinator import Coordinator, Lost, Started

STEP_S = 0.1
PRICE = 3.6  # dollars an hour: a tenth of a cent for each second of a worker


@dataclass
class Scripted:
    """Workers get ready at the poll after their launch; every poll is one step, and takes `STEP_S`.

    Attributes:
        now_s: The clock, which only this moves.
        doomed: Workers that die instead of getting ready.
        dies_at: Workers that die at a poll, by its number.
        epoch_steps: Steps of an epoch.
        metrics: Of the epochs in turn; the last is repeated.
    """

    now_s: float = 0.0
    doomed: set[str] = field(default_factory=set)
    dies_at: dict[int, str] = field(default_factory=dict)
    epoch_steps: int = 10
    metrics: list[dict[str, float]] = field(default_factory=lambda: [{"val_loss": 1.0}])
    partial_at: int = 0
    membership: Membership = field(default_factory=Membership)
    manifest: Any = None
    memory_bytes: dict[str, int] = field(default_factory=dict)
    verdicts: list[tuple[bool, bool]] = field(default_factory=list)
    launched: dict[str, float] = field(default_factory=dict)
    gone: dict[str, float] = field(default_factory=dict)
    ending: bool = False
    late: list[m.StepReport] = field(default_factory=list)
    polls: int = 0
    step: int = 0
    epoch: int = 0

    def clock(self) -> float:
        return self.now_s

    @property
    def engine(self) -> Any:
        return SimpleNamespace(log=lambda name: Path(f"{name}.log"))

    @property
    def starting(self) -> int:
        return self.membership.count(WorkerState.STARTING)

    @property
    def ready(self) -> int:
        return self.membership.count(WorkerState.STANDBY, WorkerState.TRAINING)

    def start(self, workers: int) -> None:
        self.launch(workers)

    def launch(self, workers: int) -> tuple[str, ...]:
        names = tuple(self.membership.launch().worker for _ in range(workers))
        self.launched |= dict.fromkeys(names, self.now_s)
        return names

    def resize(self, workers: int, global_batch_size: int, reason: str) -> None:
        self.membership.resize(workers, global_batch_size, reason)

    def release(self, keep: int) -> tuple[str, ...]:
        if not self.membership.settled:
            return ()
        standby = self.membership.workers(WorkerState.STANDBY)
        spare = max(0, len(self.membership.alive) - keep)
        leaving = standby[len(standby) - min(spare, len(standby)) :]
        for worker in leaving:
            self.membership.release(worker)
            self.gone[worker] = self.now_s
        return leaving

    def verdict(self, *, stop: bool, keep_best: bool) -> None:
        self.verdicts.append((stop, keep_best))

    @property
    def existing(self) -> int:
        return len(self.launched) - len(self.gone)

    def worker_seconds(self) -> float:
        return sum(self.gone.get(name, self.now_s) - at for name, at in self.launched.items())

    def poll(self, timeout_s: float) -> list[Any]:
        if timeout_s == 0.0:
            late, self.late = self.late, []
            return list(late)
        self.polls += 1
        self.now_s += STEP_S
        events: list[Any] = []
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
        self.membership.lost(worker)
        self.gone[worker] = self.now_s
        return [Lost(worker, "was killed by SIGKILL")]

    def _train(self) -> list[Any]:
        view = self.membership.announced
        if view is None:
            return []
        events: list[Any] = []
        if not self.membership.settled:
            self.membership.installed(view.number)
            events.append(
                m.ViewInstalled(
                    view.number, self.step + 1, len(view.members), view.global_batch_size, view.reason
                )
            )
        self.step += 1
        events.append(self.report(view.number, len(view.members), view.global_batch_size))
        if self.step % self.epoch_steps == 0:
            metrics = self.metrics[min(self.epoch, len(self.metrics) - 1)]
            events.append(m.EpochReport(self.epoch, self.step, metrics, 0.5))
            self.epoch += 1
        return events

    def report(self, view: int, workers: int, batch: int) -> m.StepReport:
        return m.StepReport(
            step=self.step,
            view=view,
            epoch=self.epoch,
            workers=workers,
            global_batch_size=batch,
            samples=batch - 1 if self.step == self.partial_at else batch,
            step_time_s=STEP_S,
            compute_s=STEP_S / 2,
            loss=1.0,
            mean_worker_sqnorm=2.0,
            mean_sqnorm=1.0,
            noise_parts=2,
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
    observer: Observer | None = None,
    on_tick: Callable[[], None] = lambda: None,
) -> Trainer:
    return Trainer(
        cast(Coordinator, scripted),
        goal=Goal(goal or GoalSpec(max_epochs=1000)),
        offer=offer(shared_cpus=shared_cpus, price=price),
        limits=Limits(deadline_s, budget_usd),
        journal=Journal(folder / "measurements.jsonl", job_id="j", job="tiny"),
        observer=observer or Heard(),
        started_at=scripted.now_s,
        on_tick=on_tick,
        clock=scripted.clock,
    )
