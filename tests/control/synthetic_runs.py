"""Runs of made-up jobs in virtual time, through the real workflow, store and models: predicted, and what came."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from scripted import Heard, Scripted, offer

from scavenger.control.jobs.workflow import JobWorkflow
from scavenger.control.search.outcome import actual_of
from scavenger.control.training.cost_meter import WorkerCostMeter
from scavenger.control.training.goal import Goal
from scavenger.control.training.journal import Journal
from scavenger.control.training.limits import Limits
from scavenger.control.training.trainer import Trainer
from scavenger.domain.configuration import Configuration, Offer, SearchSpace
from scavenger.domain.job import JobSpec
from scavenger.domain.report import Actual, Predicted
from scavenger.elastic.membership import WorkerState
from scavenger.elastic.view import split
from scavenger.models.run_ahead import RunAhead
from scavenger.store import Store
from scavenger.train.supervisor.events import Started
from scavenger.train.supervisor.supervisor import Supervisor
from scavenger.train.transport import messages as m

WORKERS = (1, 2)
BATCHES = (32, 64, 128)
END_S, END_LOG_SD = 0.8, 0.3
SLOWED = 1.3
"""Times as long as usual a step takes beside a worker that starts on the same processors."""
DESCRIBED = 0.7
"""Share of its start after which a worker has described the model."""


@dataclass(frozen=True)
class Truth:
    """A job on a machine, as nobody is told it.

    Attributes:
        epochs: At the smallest batch size until the mean of the metric is at the target.
        hint: What the user expects of them.
        power: Of the course of the metric.
        critical, kept: B*, samples, by noise, and by a learning rate that is the same at all batches.
        step_s, sample_s, sync_s, beside: A step takes `step_s + sample_s b`; with two workers `beside` times as long,
            and `sync_s` more.
        first_s, further_s: Usual starts of workers.
        run_log_sd: How far the epochs of a run lie from those of the mean run.
        machine_log_sd, drift_log_sd: How far the machine's speed in a run lies from its usual one, and in ten steps of
            the run's time from that.
        validation: Samples of an evaluation.
    """

    epochs: float
    hint: float
    power: float
    critical: float
    step_s: float
    sample_s: float
    sync_s: float
    beside: float
    first_s: float
    further_s: float
    target: float
    kept: float
    samples: int = 1024
    validation: int = 400
    run_log_sd: float = 0.1
    machine_log_sd: float = 0.1
    drift_log_sd: float = 0.05
    step_log_sd: float = 0.1
    start_log_sd: float = 0.25

    @classmethod
    def drawn(cls, random: np.random.Generator, *, long: bool) -> Truth:
        """A job of half a minute to four, or of half an hour to some."""
        slow = 60.0 if long else 1.0
        epochs = float(np.exp(random.uniform(math.log(6.0), math.log(30.0))))
        # Some users are as sure as they say, some are not (`learning_curve.MISLED`).
        off = 0.3 * (2.0 if random.uniform() < 0.3 else 1.0)
        return cls(
            epochs=epochs,
            hint=epochs * math.exp(off * random.normal()),
            power=random.uniform(0.4, 1.2),
            critical=float(np.exp(random.normal(math.log(150.0), 0.7))),
            step_s=slow * random.uniform(0.01, 0.04),
            sample_s=slow * random.uniform(1e-4, 6e-4),
            sync_s=slow * 0.006 * math.exp(random.normal()),
            beside=random.uniform(1.0, 1.5),
            first_s=random.uniform(2.0, 12.0),
            further_s=random.uniform(1.0, 5.0),
            target=random.uniform(0.85, 0.97),
            kept=BATCHES[0] * float(np.exp(random.spawn(1)[0].normal(math.log(1.3), 0.8))),
        )

    def epochs_at(self, global_batch_size: int) -> float:
        """Epochs of the mean run: the critical-batch law."""
        grown, least = (
            1.0 + batch / self.critical + batch / self.kept for batch in (global_batch_size, BATCHES[0])
        )
        return self.epochs * grown / least

    def step_time_s(self, workers: int, global_batch_size: int) -> float:
        alone_s = self.step_s + self.sample_s * -(-global_batch_size // workers)
        return alone_s if workers == 1 else self.beside * alone_s + self.sync_s

    def evaluation_s(self, workers: int) -> float:
        return 0.3 * self.sample_s * self.validation / workers

    def accuracy(self, progress: float) -> float:
        """The mean of the metric, which is at the target at 1."""
        lacking = (1.0 - self.target) * math.pow((1.0 + 0.15) / (progress + 0.15), self.power)
        return 1.0 - min(lacking, 0.6)


@dataclass
class Run(Scripted):
    """One run of a job: steps, starts and evaluations take as long as they are drawn to.

    Attributes:
        shared: Whether workers share processors, so that one which starts slows the others down.
        idle_s: Worker-seconds of steps in which a worker that was ready did not take part.
    """

    shared: bool = False
    truth: Truth = field(default_factory=lambda: Truth.drawn(np.random.default_rng(0), long=False))
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def __post_init__(self) -> None:
        self.pace = math.exp(self.truth.run_log_sd * self.random.normal())
        self.speed = math.exp(self.truth.machine_log_sd * self.random.normal())
        self.drift = 0.0
        self.progress = self.idle_s = 0.0
        self.ready_at: dict[str, float] = {}
        self.described, self.manifest = self.manifest, None

    @property
    def engine(self) -> Any:
        return SimpleNamespace(**vars(super().engine), stand_by=lambda workers: None)

    def launch(self, workers: int, vm: str = "", *, threads: int | None = None) -> tuple[str, ...]:
        usual_s = self.truth.further_s if self.launched else self.truth.first_s
        names = super().launch(workers, vm, threads=threads)
        for name in names:
            took_s = usual_s * math.exp(self.truth.start_log_sd * self.random.normal())
            self.ready_at[name] = self.now_s + took_s
        return names

    def poll(self, timeout_s: float) -> list[Any]:
        if timeout_s == 0.0:
            return []
        events, self.coming = self.coming, []
        if self.manifest is None:  # the first worker describes the model when it has loaded it
            self.now_s, self.manifest = DESCRIBED * min(self.ready_at.values()), self.described
        elif self.membership.announced is None:
            self.now_s = max(self.now_s, min(self.ready_at.values()))
        else:
            events += self._train()
        for name in self.membership.workers(WorkerState.STARTING):
            if self.ready_at[name] <= self.now_s:
                self.membership.ready(name)
                events.append(Started(name, self.ready_at[name] - self.launched[name]))
        return events

    def _train(self) -> list[Any]:
        view = self.membership.announced
        assert view is not None
        events: list[Any] = [*self.install(view)]
        self.step += 1
        report = self.report()
        self.now_s += report.step_time_s
        self.idle_s += report.step_time_s * (self.ready - len(view.members))
        self.progress += report.samples / (
            self.pace * self.truth.epochs_at(view.global_batch_size) * self.truth.samples
        )
        events.append(report)
        if self.consumed >= self.truth.samples:
            events.append(self._evaluated(len(view.members)))
        return events

    def _evaluated(self, workers: int) -> m.EpochReport:
        validation = self.truth.validation
        took_s = self.truth.evaluation_s(workers) * self.speed
        self.now_s += took_s
        right = int(self.random.binomial(validation, self.truth.accuracy(self.progress)))
        told = m.EpochReport(self.epoch, self.step, {"val_accuracy": right / validation}, took_s)
        self.epoch, self.consumed = self.epoch + 1, 0
        return told

    def report(self) -> m.StepReport:
        view, truth = self.membership.announced, self.truth
        assert view is not None
        names, batch = [member.worker for member in view.members], view.global_batch_size
        samples = min(batch, truth.samples - self.consumed)
        shares = split(self.consumed, samples, len(names))
        self.consumed += samples
        self.drift = 0.99 * self.drift + math.sqrt(1.0 - 0.99**2) * truth.drift_log_sd * self.random.normal()
        noise = math.exp(truth.step_log_sd * self.random.normal())
        took_s = truth.step_time_s(len(names), batch) * self.speed * math.exp(self.drift) * noise
        took_s *= SLOWED if self.shared and self.starting else 1.0
        signal, scatter = 1.0 / truth.critical, 1.0
        parts = max(2, len(names))
        return m.StepReport(
            step=self.step,
            view=view.number,
            epoch=self.epoch,
            workers=len(names),
            global_batch_size=batch,
            samples=samples,
            step_time_s=took_s,
            compute_s=took_s * (0.7 if len(names) > 1 else 0.98),
            update_s=0.0,
            data_wait_s=0.0,
            loss=1.0,
            mean_worker_sqnorm=(signal + scatter * parts / samples) * math.exp(0.1 * self.random.normal()),
            mean_sqnorm=(signal + scatter / samples) * math.exp(0.1 * self.random.normal()),
            noise_parts=parts,
            worker_compute_s=dict.fromkeys(names, took_s * 0.7),
            pieces=tuple((name, s.start, s.stop) for name, s in zip(names, shares, strict=True)),
        )


class _Recorder:
    """Writes at once, and keeps no events."""

    def __init__(self, store: Store, job_id: str) -> None:
        self._store, self.job_id, self.muted = store, job_id, False

    def ask(self, question: Callable[[], Any], meanwhile: Callable[[], None]) -> Any:
        return question()

    def keep(self, write: Callable[[], object]) -> None:
        write()

    def measured(self, measurement: Any) -> None:
        self._store.add_measurements(self.job_id, [measurement])

    def on_event(self, event: object) -> None:
        pass

    def update(self, **changes: Any) -> None:
        self._store.update_job(self.job_id, **changes)


class _NoOperations:
    """Nobody asks for anything."""

    refusing = ""
    cuts = False

    def heard(self) -> bool:
        return False

    def carry_out(self, trainer: Trainer) -> None:
        pass


@dataclass(frozen=True)
class Outcome:
    """One run: what was predicted at its choice, and what came.

    Attributes:
        predicted: None if it ended before a choice.
        ahead: What was uncertain then.
        idle_s: See `Run`.
        twice: Whether the first point was measured again.
    """

    predicted: Predicted | None
    actual: Actual
    forecasts: int
    warnings: tuple[str, ...]
    ahead: RunAhead | None = None
    chosen: Configuration | None = None
    idle_s: float = 0.0
    twice: bool = False


def run_job(
    truth: Truth,
    store: Store,
    folder: Path,
    random: np.random.Generator,
    *,
    at: Offer | None = None,
    **job: Any,
) -> Outcome:
    """Run a job to its target, from its search, or from what the store has of it."""
    manifest = SimpleNamespace(
        dataset_size=truth.samples,
        validation_size=truth.validation,
        tensors=(),
        notes=(),
        compared="",
        data="",
        schedule_batch=0,
        metric_names=("loss", "val_loss", "accuracy", "val_accuracy"),
        optimizer='{"class_name": "SGD", "config": {}}',
        architecture="a" * 64,
        parameters=1000,
        sample_bytes=64,
    )
    at = at or offer()
    run = Run(
        truth=truth, random=random, manifest=manifest, migrations=None, shared=at.shared_cpus is not None
    )
    spec = JobSpec.model_validate(
        {
            "version": 1,
            "name": "made-up",
            "train": "m:f",
            "objective": "time",
            "search": {"workers": list(WORKERS), "batch_size": list(BATCHES)},
            "goal": {
                "metric": "val_accuracy",
                "target": truth.target,
                "max_epochs": 200,
                "epochs_hint": truth.hint,
            },
            "elastic": {"policy": "fixed"},
            "profile": {"steps": 10, "points": 3},
            **job,
        }
    )
    offers = (at,)
    trainer = Trainer(
        cast(Supervisor, run),
        goal=Goal(spec.goal),
        offers=offers,
        meter=WorkerCostMeter(cast(Supervisor, run), {one.vm: one for one in offers}),
        limits=Limits(None, None),
        journal=Journal(folder / f"{store.create_job('j', spec={}, job_file='j').id}.jsonl", job_id="j"),
        observer=Heard(),
        started_at=0.0,
        on_tick=lambda: None,
        progress=lambda: workflow.progress(),
        clock=run.clock,
    )
    job_id = store.create_job("made-up", spec={}, job_file="job.yaml").id
    workflow = JobWorkflow(
        trainer,
        spec,
        SearchSpace(offers, WORKERS, BATCHES),
        store=store,
        recorder=cast(Any, _Recorder(store, job_id)),
        hardware="machine",
        folder=folder,
        run=True,
        confirm=None,
        at_end=lambda error: None,
        resumed=None,
    )
    trainer.start(1)
    workflow.run(cast(Any, _NoOperations()))
    state = workflow.state
    ended_s = END_S * math.exp(END_LOG_SD * random.normal())
    paid = random.random()
    run.now_s += paid * ended_s
    cost_usd = trainer.cost_usd  # workers end somewhere in the end of the job
    run.now_s += (1.0 - paid) * ended_s
    found = actual_of(trainer, truth.samples, state.chosen, end_s=ended_s)
    assert found is not None
    actual = replace(found, cost_usd=cost_usd)
    store.update_job(job_id, actual=actual)
    ahead = None if state.decision is None else state.decision.ahead
    return Outcome(
        state.predicted,
        actual,
        len(workflow.outlook.forecasts),
        tuple(trainer.warnings),
        ahead,
        state.chosen,
        run.idle_s,
        state.search is not None and bool(state.search.twice),
    )
