"""Driving real jobs, and what plain Keras makes of the same batches."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

from scavenger.elastic.order import epoch_order
from scavenger.train import messages as m
from scavenger.train.coordinator import Coordinator, JobSource, Lost, Started, Timeouts
from scavenger.train.worker import load_program

JOBS = Path(__file__).with_name("jobs")
SEED = 5


class Run:
    """A job under way; use it with `with`, so that it ends with the test."""

    def __init__(
        self, train: str, work_dir: Path, *, slots: int = 8, start_s: float = 120.0, step_s: float = 60.0
    ) -> None:
        self.work_dir = work_dir
        source = JobSource(train, JOBS, SEED, threads=1)
        self.coordinator = Coordinator(
            source, slots=slots, work_dir=work_dir, timeouts=Timeouts(start_s, step_s)
        )
        self.steps: list[m.StepReport] = []
        self.epochs: list[m.EpochReport] = []
        self.views: list[m.ViewInstalled] = []
        self.started: list[str] = []
        self.lost: list[Lost] = []
        self.stop = False

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.coordinator.close()

    def poll(self, timeout_s: float = 0.02) -> None:
        for event in self.coordinator.poll(timeout_s):
            match event:
                case m.StepReport():
                    self.steps.append(event)
                case m.EpochReport():
                    self.epochs.append(event)
                    self.coordinator.verdict(stop=self.stop, keep_best=False)
                case m.ViewInstalled():
                    self.views.append(event)
                case Started():
                    self.started.append(event.worker)
                case Lost():
                    self.lost.append(event)

    def until(self, condition: Callable[[], bool], within_s: float = 120.0) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, f"{self.steps[-1:]}, {self.views[-1:]}, {self.lost}"
            self.poll()

    def begin(self, workers: int, global_batch_size: int) -> Run:
        """Start workers, and training once all of them are ready."""
        self.coordinator.start(workers)
        self.until(lambda: self.coordinator.ready == workers)
        self.coordinator.resize(workers, global_batch_size, "start")
        return self

    def train(self, steps: int) -> None:
        goal = len(self.steps) + steps
        self.until(lambda: len(self.steps) >= goal)

    def pid(self, worker: str) -> int:
        return self.coordinator.engine.pid(worker)

    def finish(self) -> list[Any]:
        """End the job; the weights of the model that it saved."""
        path = self.work_dir / "model.keras"
        self.coordinator.finish(path, best=False)
        self.poll(0.0)
        return list(keras.models.load_model(path).get_weights())


def job(name: str) -> Any:
    """The program of `small:name`, built as a worker would."""
    path = list(sys.path)
    try:
        return load_program(f"small:{name}", str(JOBS), SEED)
    finally:
        sys.path[:] = path


def batches(steps: list[m.StepReport], dataset_size: int) -> list[Any]:
    """Which samples each step took; together they must be the epochs' orders without gaps."""
    found, epoch, consumed = [], 0, 0
    for number, step in enumerate(steps, start=1):
        assert (step.step, step.epoch) == (number, epoch)
        found.append(epoch_order(SEED, epoch, dataset_size)[consumed : consumed + step.samples])
        consumed += step.samples
        assert step.samples == min(step.global_batch_size, dataset_size - consumed + step.samples)
        if consumed == dataset_size:
            epoch, consumed = epoch + 1, 0
    return found


def plain_keras(
    name: str, steps: list[m.StepReport], at_epoch_end: Callable[[Any], None] | None = None
) -> list[Any]:
    """The weights after one plain Keras process has trained on the same batches."""
    program = job(name)
    model, size = program.model, len(program.train)
    for step, indices in zip(steps, batches(steps, size), strict=True):
        model.train_on_batch(*program.train.batch(indices), return_dict=True)
        if step is steps[-1] or steps[step.step].epoch > step.epoch:
            model.reset_metrics()
            if at_epoch_end is not None:
                at_epoch_end(model)
    return list(model.get_weights())


def assert_same_weights(got: list[Any], expected: list[Any], tolerance: float = 1e-4) -> None:
    for a, b in zip(got, expected, strict=True):
        assert np.abs(a - b).max() <= tolerance * np.abs(b).max()
