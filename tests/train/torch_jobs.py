"""Jobs of PyTorch scripts that a test controls, and what the scripts do alone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from waiting import PATIENCE_S

from scavenger.train.custom_loop.job_supervisor import LoopJobSupervisor
from scavenger.train.job_source import JobSource, Timeouts
from scavenger.train.supervisor.events import Event, Told
from scavenger.train.transport.messages import EpochReport, StepReport

JOBS = Path(__file__).with_name("jobs")
SEED, EPOCHS, OWN = 7, 4, 24
"""Seed of the job, and what the scripts' defaults are."""


class Driven:
    """A job of a script, with a controller that does what a test says."""

    def __init__(self, folder: Path, train: str, **given: Any) -> None:
        exchange = given.pop("exchange", "auto")
        processes = given.pop("processes", 1)
        source = JobSource(train, JOBS, SEED, 1, schedule_batch=1, exchange=exchange, processes=processes)
        timeouts = Timeouts(start_s=PATIENCE_S, step_s=given.pop("step_s", PATIENCE_S))
        self.job = LoopJobSupervisor.open(source, work_dir=folder, timeouts=timeouts, **given)
        self.told: list[Told] = []
        self.by_group: list[int] = []
        """Steps whose mean a process group has formed."""
        self._average, self.job._exchange.average = self.job._exchange.average, self._seen  # type: ignore[method-assign]
        self.job.on_wait = lambda: self._take(0.0, 0)
        self.steps: list[StepReport] = []
        self.epochs: list[EpochReport] = []

    def _seen(self, step: int, *given: Any) -> Any:
        mean = self._average(step, *given)
        if mean.reduced:
            self.by_group.append(step)
        return mean

    @property
    def arrived(self) -> tuple[str, ...]:
        return self.job._workers.arrived

    def until(self, what: Callable[[], Any], *, epochs: int = EPOCHS) -> Any:
        """Let it train until there is something, and as long as epochs are left."""
        deadline = time.monotonic() + PATIENCE_S / 2
        while not (found := what()):
            assert time.monotonic() < deadline, "nothing came"
            self._take(0.05, epochs)
        return found

    def _take(self, within_s: float, epochs: int) -> None:
        for event in self.job.poll(within_s):
            self._handle(event, epochs)

    def _handle(self, event: Event, epochs: int) -> None:
        if isinstance(event, StepReport):
            self.steps.append(event)
        elif isinstance(event, Told):
            self.told.append(event)
        elif isinstance(event, EpochReport):
            self.epochs.append(event)
            stop = len(self.epochs) >= epochs or bool(event.stopped_by)
            self.job.verdict(event.epoch, stop=stop, keep_best=False)

    def trained(self, step: int) -> Callable[[], bool]:
        return lambda: bool(self.steps) and self.steps[-1].step >= step

    def on(self, workers: int) -> Callable[[], bool]:
        begun = len(self.steps)
        return lambda: sum(step.workers == workers for step in self.steps[begun:]) > 4

    def kill(self, worker: str) -> None:
        os.kill(self.job.engine.pid(worker), signal.SIGKILL)

    def to_the_end(self, epochs: int = EPOCHS) -> dict[str, Any]:
        self.until(lambda: len(self.epochs) >= epochs, epochs=epochs)
        return {
            name: np.array(array) for name, array in self.job._last_state(np.inf, checkpoint=False).items()
        }


@contextlib.contextmanager
def driven(folder: Path, train: str, workers: int, **given: Any) -> Iterator[Driven]:
    one = Driven(folder, train, **given)
    try:
        one.job.start(workers)
        one.until(lambda: len(one.arrived) == workers)
        yield one
    finally:
        one.job.close()


def plainly(
    arguments: list[str], folder: Path, *, processes: int = 0, script: str = "torch_script.py"
) -> dict[str, Any]:
    """The weights of `python SCRIPT`, or of torchrun with so many processes."""
    import torch

    file = folder / "plain.pt"
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [sys.executable, *(launch if processes else []), str(JOBS / script), *arguments]
    environ = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
    subprocess.run([*command, "--save", str(file)], check=True, timeout=PATIENCE_S, cwd=folder, env=environ)
    found: dict[str, Any] = torch.load(file)
    return found


def assert_equal(state: dict[str, Any], weights: dict[str, Any]) -> None:
    assert weights
    for name, tensor in weights.items():
        np.testing.assert_allclose(state[f"model/{name}"], tensor, rtol=0, atol=1e-12, err_msg=name)


def sampled_once(steps: list[StepReport], samples: int, epochs: int = EPOCHS) -> None:
    for epoch in range(epochs):
        read = [
            p for s in steps if s.epoch == epoch for _, start, stop in s.pieces for p in range(start, stop)
        ]
        assert sorted(read) == list(range(samples)), epoch
