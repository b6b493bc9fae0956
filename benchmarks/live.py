"""Elastic training of an example, at any configuration that a benchmark asks for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scavenger.cloud.local import LocalCloud
from scavenger.control.job_file.load import load_job
from scavenger.control.places.this_machine import search_space
from scavenger.control.training.cost_meter import WorkerCostMeter
from scavenger.control.training.goal import Goal
from scavenger.control.training.journal import Journal
from scavenger.control.training.limits import Limits
from scavenger.control.training.trainer import Trainer
from scavenger.domain.configuration import Configuration
from scavenger.domain.job import EPOCHS_MAX, GoalSpec
from scavenger.domain.measurement import StepRecord
from scavenger.domain.report import Event, Observer, WorkerChanged
from scavenger.train.job_source import JobSource, Timeouts
from scavenger.train.supervisor.supervisor import Supervisor

EXAMPLES = ("digits", "charlm")
_ROOT = Path(__file__).resolve().parent.parent


def job_file(example: str) -> Path:
    """Where the job file of an example, or of a job that is only measured, lies."""
    folder = example.partition(":")[0]
    file = _ROOT / "examples" / folder / "job.yaml"
    return file if file.exists() else _ROOT / "benchmarks" / "jobs" / folder / "job.yaml"


def job_code(example: str) -> str:
    """Which object of `train.py` is the job: what stands behind a colon in the example's name, else `job`."""
    return example.partition(":")[2] or "job"


class _NoLoss(Observer):
    """Ends the benchmark when a worker dies: the figures would be of something else."""

    def on_event(self, event: Event) -> None:
        if isinstance(event, WorkerChanged) and event.state == "lost":
            raise RuntimeError(f"{event.process} {event.detail} during the benchmark; measure again")


@contextmanager
def train(example: str, work_dir: Path, *, workers: int, global_batch_size: int) -> Iterator[Trainer]:
    """The example in training, at K workers and batch B, until the block is left.

    It has no goal, so it never ends by itself. Workers that a smaller K leaves out stay warm.

    Raises:
        RuntimeError: If a worker dies.
    """
    file = job_file(example)
    job = load_job(file)
    offer = search_space(job, LocalCloud()).offers[0]
    supervisor = Supervisor.open(
        JobSource(f"train:{job_code(example)}", file.parent, job.seed, offer.cpus),
        work_dir=work_dir,
        timeouts=Timeouts(job.limits.start, job.limits.step),
    )
    journal = Journal(work_dir / "measurements.jsonl", job_id="benchmark", job=job.name)
    try:
        trainer = Trainer(
            supervisor,
            goal=Goal(GoalSpec(max_epochs=EPOCHS_MAX)),
            offers=[offer],
            meter=WorkerCostMeter(supervisor, {offer.vm: offer}),
            limits=Limits(None, None),
            journal=journal,
            observer=_NoLoss(),
            started_at=time.monotonic(),
            on_tick=lambda: None,
        )
        trainer.start(workers)
        trainer.move(at(trainer, workers, global_batch_size), "benchmark")
        yield trainer
    finally:
        supervisor.close()
        journal.close()


def at(trainer: Trainer, workers: int, global_batch_size: int) -> Configuration:
    """K and B on the VM type that the job runs on."""
    return Configuration(trainer.offer.vm, workers, global_batch_size)


def visit(trainer: Trainer, workers: int, global_batch_size: int, steps: int) -> list[StepRecord]:
    """Switch to K and B with the workers that there are, and stay for so many undisturbed steps.

    Returns:
        Those steps.

    Raises:
        ValueError: If fewer than K workers are ready.
    """
    if trainer.supervisor.ready < workers:
        raise ValueError(f"{trainer.supervisor.ready} workers are ready, not {workers}")
    begin = trainer.step
    trainer.supervisor.resize(workers, global_batch_size, "benchmark")
    trainer.until(lambda: trainer.supervisor.settled)
    target = at(trainer, workers, global_batch_size)
    trainer.until(lambda: len(trainer.history.window(target, begin)) >= steps)
    return trainer.history.window(target, begin)
