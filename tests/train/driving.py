"""Driving real jobs, breaking their processes, and what plain Keras makes of the same batches."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import msgspec
import numpy as np
from warm_servers import WarmForkServer

from scavenger.elastic.order import Blocks, EpochOrder
from scavenger.elastic.view import View
from scavenger.train.engines.base import Engine, Exit
from scavenger.train.engines.process import ProcessEngine
from scavenger.train.failpoints import VARIABLE
from scavenger.train.job_source import JobSource, Timeouts
from scavenger.train.supervisor.events import Leaving, Lost, Recovered, RolledBack, Started
from scavenger.train.supervisor.supervisor import Supervisor
from scavenger.train.transport import messages as m
from scavenger.train.worker.loading import load_program
from scavenger.train.worker.program import Program

JOBS = Path(__file__).with_name("jobs")
SEED = 5


class FaultyEngine(ProcessEngine):
    """Arms failpoints in the first process of each name, and notes how processes came to their ends.

    Attributes:
        faults: What `SCAV_FAIL` is set to.
        remote: Names of processes that get no share of the job's block, as those of another host; then all use TCP.
        spared: Names that `kill` leaves alone, as if the order to end them did not arrive.
        exits: Every end that was seen.
        killed: First processes that were to be killed, by their names, and whether they were suspended then. One that
            follows is killed, too, where all aggregators begin again: the memory of one is lost, and its successor had
            begun without it.
    """

    _fork_server_type = WarmForkServer

    def __init__(
        self, log_dir: Path, memory_fd: int, *, faults: Sequence[str], remote: Sequence[str]
    ) -> None:
        super().__init__(log_dir, memory_fd)
        self.faults, self.remote = ",".join(faults), remote
        self.spared: set[str] = set()
        self.exits: list[Exit] = []
        self.killed: list[tuple[str, bool]] = []
        self._launched: set[str] = set()

    def launch(
        self,
        boot: m.ProcessConfiguration,
        *,
        env: dict[str, str] | None = None,
        host: str | None = None,
        vm: str = "",
    ) -> int:
        if boot.name in self.remote:
            boot = msgspec.structs.replace(boot, memory_fd=-1)
        faults = "" if boot.name in self._launched else self.faults
        self._launched.add(boot.name)
        return super().launch(boot, env={**(env or {}), VARIABLE: faults}, host=host)

    @property
    def socket_dir(self) -> Path | None:
        return None if self.remote else super().socket_dir

    def poll(self) -> list[Exit]:
        exits = super().poll()
        self.exits += exits
        return exits

    def kill(self, name: str) -> None:
        if all(ended.name != name for ended in self.exits):
            self.killed.append((name, self.suspended(name)))
        if name not in self.spared:
            super().kill(name)


class Run:
    """A job under way; use it with `with`, so that it ends with the test.

    Args:
        apart: One more aggregator only sequences.
        epochs: The verdict on the last of so many epochs is to stop; 0: train until told.
        best: Epochs of which the verdict says that their weights are the best so far.
        replace: Start a worker in place of each that is lost.
        faults: Failpoints, `NAME/process:kill@n`, each in the first process of that name.
        remote: Processes that do not share the job's memory.
        engine: Another engine than one that can be broken.
        schedule_batch: See `Manifest.schedule_batch`.
        gradients: See `JobSource`.
    """

    def __init__(
        self,
        train: str,
        work_dir: Path,
        *,
        aggregators: int = 1,
        apart: bool = False,
        epochs: int = 0,
        best: Sequence[int] = (),
        replace: bool = False,
        faults: Sequence[str] = (),
        remote: Sequence[str] = (),
        restore: Path | None = None,
        checkpoint: m.CheckpointPlan | None = None,
        start_s: float = 120.0,
        step_s: float = 60.0,
        evaluation_s: float | None = None,
        job_dir: Path = JOBS,
        engine: Callable[[Path, int], Engine] | None = None,
        schedule_batch: int = 0,
        gradients: str = "float32",
    ) -> None:
        self.work_dir, self.epochs_wanted, self.best, self.replace = work_dir, epochs, best, replace
        self.supervisor = Supervisor.open(
            JobSource(train, job_dir, SEED, threads=1, schedule_batch=schedule_batch, gradients=gradients),
            work_dir=work_dir,
            timeouts=Timeouts(start_s, step_s, evaluation_s),
            aggregators=aggregators,
            apart=apart,
            restore=None if restore is None else m.RestorePoint(str(restore)),
            checkpoint=checkpoint,
            engine=engine or (lambda log_dir, fd: FaultyEngine(log_dir, fd, faults=faults, remote=remote)),
        )
        self.steps: list[m.StepReport] = []
        self.epochs: list[m.EpochReport] = []
        self.views: list[View] = []
        self.started: list[str] = []
        self.left: list[str] = []
        self.lost: list[Lost] = []
        self.recovered: list[Recovered] = []
        self.rolled_back: list[RolledBack] = []
        self.checkpoints: list[m.CheckpointWritten] = []
        self.failures: list[m.CheckpointFailed] = []
        self.migrated: list[m.Migrated] = []

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.supervisor.close()

    @property
    def engine(self) -> FaultyEngine:
        assert isinstance(self.supervisor.engine, FaultyEngine)
        return self.supervisor.engine

    def poll(self, timeout_s: float = 0.05) -> None:
        for event in self.supervisor.poll(timeout_s):
            match event:
                case m.StepReport():
                    self._stepped(event)
                case m.EpochReport():
                    self._epoch_ended(event)
                case m.ViewInstalled():
                    if not self.views or event.view.number > self.views[-1].number:
                        self.views.append(event.view)
                case m.CheckpointWritten():
                    self.checkpoints.append(event)
                case m.CheckpointFailed():
                    self.failures.append(event)
                case m.Migrated():
                    self.migrated.append(event)
                case Started():
                    self.started.append(event.worker)
                case Leaving():
                    self.left.append(event.worker)
                case Lost():
                    self.lost.append(event)
                    if self.replace:
                        self.supervisor.launch(1)
                case Recovered():
                    self.recovered.append(event)
                case RolledBack():
                    self.rolled_back.append(event)
                    self.steps = [step for step in self.steps if step.step <= event.step]
                    # an epoch is evaluated after its last step, and again where the job goes on right there
                    last = self.steps[-1].epoch if self.steps else 0
                    self.epochs = [report for report in self.epochs if report.epoch < last]

    def _stepped(self, step: m.StepReport) -> None:
        told = [before for before in self.steps if before.step == step.step]
        # a report may be told twice, where its teller died between telling and noting; never two of one step
        assert told in ([], [step])
        if not told:
            self.steps.append(step)

    def _epoch_ended(self, report: m.EpochReport) -> None:
        told = [before for before in self.epochs if before.epoch == report.epoch]
        if told:  # told until it has its verdict
            assert told[0].metrics.keys() == report.metrics.keys()
            assert all(abs(told[0].metrics[k] - report.metrics[k]) < 1e-4 for k in report.metrics)
        else:
            self.epochs.append(report)
        stop = bool(self.epochs_wanted) and report.epoch + 1 >= self.epochs_wanted
        self.supervisor.verdict(report.epoch, stop=stop, keep_best=report.epoch in self.best)

    def until(self, condition: Callable[[], bool], within_s: float = 120.0) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, (
                f"{self.steps[-1:]}, {self.views[-1:]}, {self.lost}, {self.recovered}, {self.supervisor.processes()}"
            )
            self.poll()

    def begin(self, workers: int, global_batch_size: int, within_s: float = 120.0) -> Run:
        """Start workers, and training once all of them are ready."""
        self.supervisor.start(workers)
        self.until(lambda: self.supervisor.ready == workers, within_s)
        self.supervisor.resize(workers, global_batch_size, "start")
        return self

    def train(self, steps: int) -> None:
        goal = len(self.steps) + steps
        self.until(lambda: len(self.steps) >= goal)

    def to_the_end(self, within_s: float = 120.0) -> None:
        """Train until the last epoch that was wanted has been evaluated."""
        assert self.epochs_wanted
        self.until(lambda: bool(self.epochs) and self.epochs[-1].epoch + 1 >= self.epochs_wanted, within_s)

    def pid(self, process: str) -> int:
        """Wait until the process has an id: 0, which it has before, signals the caller's own group."""
        self.until(lambda: self.engine.pid(process) > 0)
        return self.engine.pid(process)

    def kill(self, process: str) -> None:
        os.kill(self.pid(process), signal.SIGKILL)

    def freeze(self, process: str) -> None:
        os.kill(self.pid(process), signal.SIGSTOP)

    def wake(self, process: str) -> None:
        os.kill(self.pid(process), signal.SIGCONT)

    def log(self, process: str) -> str:
        return self.engine.log(process).read_text(errors="replace")

    def leader(self) -> str:
        """The coordinator that leads."""
        return next(p.name for p in self.supervisor.processes() if p.role == "coordinator")

    def finish(self, *, best: bool = False) -> list[Any]:
        """End the job; the weights of the model that it saved."""
        path = self.work_dir / "model.keras"
        self.supervisor.finish(path, best=best)
        self.poll(0.0)
        return list(keras.models.load_model(path).get_weights())


def assert_fired(run: Run, fault: str) -> None:
    """A fault came about: its process told so in its log, and then killed itself or stood still until killed."""
    place, _, rest = fault.partition(":")
    name, _, process = place.partition("/")
    action = rest.partition("@")[0]
    assert f"failpoint {name}: {action}\n" in run.log(process)
    kills = [suspended for who, suspended in run.engine.killed if who == process]
    if action == "stop":
        assert True in kills
    else:
        assert [ended.status for ended in run.engine.exits if ended.name == process][:1] == [-signal.SIGKILL]
        assert not kills


def job(name: str) -> Program:
    """The program of `small:name`, built as a worker would."""
    path = list(sys.path)
    try:
        return load_program(f"small:{name}", str(JOBS), SEED)
    finally:
        sys.path[:] = path


def batches(steps: list[m.StepReport], dataset_size: int, blocks: Blocks | None = None) -> list[Any]:
    """Which samples each step took, once it is certain that they make up the epochs' orders.

    Steps follow each other, and so do their batches; the pieces of each step cover its batch without a gap and
    without an overlap. So every sample of every epoch was applied exactly once.
    """
    found, epoch, consumed = [], 0, 0
    for number, step in enumerate(steps, start=1):
        assert (step.step, step.epoch) == (number, epoch)
        assert step.samples == min(step.global_batch_size, dataset_size - consumed)
        at = consumed
        for _, start, stop in sorted(step.pieces, key=lambda piece: piece[1]):
            assert (start, start < stop) == (at, True)
            at = stop
        assert at == consumed + step.samples
        found.append(EpochOrder(SEED, epoch, dataset_size, blocks).indices(consumed, at))
        consumed = at
        if consumed == dataset_size:
            epoch, consumed = epoch + 1, 0
    return found


def plain_keras(
    name: str, steps: list[m.StepReport], at_epoch_end: Callable[[Any], None] | None = None
) -> list[Any]:
    """The weights after one plain Keras process has trained on the same batches."""
    return list(plain_program(name, steps, at_epoch_end).model.get_weights())


def plain_program(
    name: str, steps: list[m.StepReport], at_epoch_end: Callable[[Any], None] | None = None
) -> Program:
    """The program whose model one plain Keras process has trained on the same batches."""
    program = job(name)
    model, size = program.model, len(program.train)
    for step, indices in zip(steps, batches(steps, size, program.train.blocks), strict=True):
        model.train_on_batch(*program.train.batch(indices), return_dict=True)
        if step is steps[-1] or steps[step.step].epoch > step.epoch:
            model.reset_metrics()
            if at_epoch_end is not None:
                at_epoch_end(model)
    return program


def assert_goes_on(path: Path, name: str, steps: list[m.StepReport]) -> None:
    """A saved model has the optimizer of one plain process after the same steps, and trains on as its model does."""
    program = plain_program(name, steps)
    models = keras.models.load_model(path), program.model
    got, expected = ([v.numpy() for v in model.optimizer.variables] for model in models)
    assert int(got[0]) == len(steps)
    assert_same_weights(got, expected)
    x, y = program.train.batch(np.arange(len(program.train)))
    for model in models:
        model.run_eagerly = True  # to compile takes longer than these few steps
        model.fit(x, y, batch_size=40, epochs=2, shuffle=False, verbose=0)
    assert_same_weights(models[0].get_weights(), models[1].get_weights())


def replayed(name: str, steps: list[m.StepReport], rate: float) -> list[Any]:
    """The weights after plain SGD by the same pieces, states of the forward pass averaged by samples."""
    program = job(name)
    weights = program.initial_state()
    trainable = [tensor.role == "trainable" for tensor in program.manifest.tensors]
    for step, indices in zip(steps, batches(steps, len(program.train)), strict=True):
        first = min(start for _, start, _ in step.pieces)
        parts = [
            (
                stop - start,
                program.gradient(
                    weights,
                    program.train.batch(indices[start - first : stop - first]),
                    seed=SEED,
                    position=step.epoch * len(program.train) + start,
                ),
            )
            for _, start, stop in step.pieces
        ]
        mean = [
            sum(n / step.samples * np.asarray([*r.gradients, *r.states][index]) for n, r in parts)
            for index in range(len(weights))
        ]
        weights = [w - rate * g if moves else g for moves, w, g in zip(trainable, weights, mean, strict=True)]
    by_path = {
        tensor.path.split("/", 1)[1]: w for tensor, w in zip(program.manifest.tensors, weights, strict=True)
    }
    return [by_path[weight.path.split("/", 1)[1]] for weight in program.model.weights]


def assert_same_weights(got: list[Any], expected: list[Any], tolerance: float = 1e-4) -> None:
    for a, b in zip(got, expected, strict=True):
        assert np.abs(a - b).max() <= tolerance * np.abs(b).max()
