"""Many workers as processes of this machine: the time of a step, the processor time of its control, and memory."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.figures import Benchmark, Result, Spread
from benchmarks.keras_peer import run_peer
from benchmarks.live import job_file, train, visit
from scavenger.control.training.trainer import Trainer
from scavenger.train.supervisor.face import JobSupervisor

_EXAMPLE = "digits"
_WORKERS = (2, 8, 32)
_BATCH = 128
_STEPS = 40
_CONTROL = ("aggregator", "coordinator", "supervisor")


def _used_s(supervisor: JobSupervisor) -> dict[str, float]:
    """Processor seconds by role, of which the supervisor is this process."""
    used: dict[str, float] = defaultdict(float)
    for process in supervisor.processes():
        if process.name in supervisor.engine.running:
            times = psutil.Process(supervisor.engine.pid(process.name)).cpu_times()
            used[process.role] += times.user + times.system
    own = psutil.Process().cpu_times()
    used["supervisor"] = own.user + own.system
    return used


@dataclass(frozen=True, slots=True)
class _Window:
    """A window of steps: medians of a step's times, and processor seconds a step by role."""

    step_s: float
    sync_s: float
    used_s: dict[str, float]


def _window(trainer: Trainer, workers: int) -> _Window:
    visit(trainer, workers, _BATCH, 1)  # the change of the view is not part of it
    before, begin = _used_s(trainer.supervisor), trainer.step
    seen = visit(trainer, workers, _BATCH, _STEPS)
    after, steps = _used_s(trainer.supervisor), trainer.step - begin
    return _Window(
        statistics.median(record.step_time_s for record in seen),
        statistics.median(record.sync_s for record in seen),
        {role: (after[role] - before[role]) / steps for role in after},
    )


def _memory(supervisor: JobSupervisor) -> tuple[Spread, int]:
    """Private memory of the workers, bytes, and the aggregator's descriptors."""
    workers = [
        psutil.Process(supervisor.engine.pid(name)) for name in supervisor.workers("ready", "training")
    ]
    aggregator = psutil.Process(supervisor.engine.pid("aggregator-0"))
    return Spread.of(float(worker.memory_full_info().uss) for worker in workers), aggregator.num_fds()


def run(repetitions: int, work_dir: Path) -> Result:
    """Start all workers once, then so many windows at each K in turn; plain Keras before."""
    plain = Spread.of(
        run_peer(job_file(_EXAMPLE).parent, threads=1, batch=_BATCH, steps=_STEPS)["step_times_s"]
    )
    windows: dict[int, list[_Window]] = {workers: [] for workers in _WORKERS}
    begin = time.monotonic()
    with train(_EXAMPLE, work_dir, workers=_WORKERS[-1], global_batch_size=_BATCH) as trainer:
        started_s = time.monotonic() - begin
        for _ in range(repetitions):
            for workers, seen in windows.items():
                seen.append(_window(trainer, workers))
        memory, descriptors = _memory(trainer.supervisor)
    rows: list[tuple[str, ...]] = [("plain Keras, one process", plain.text(1e3), "-", "-", "-", "-")]
    figures: dict[str, object] = {"keras_step_s": plain, "started_s": started_s, "worker_bytes": memory}
    control: dict[int, float] = {}
    for workers, seen in windows.items():
        step, sync = Spread.of(one.step_s for one in seen), Spread.of(one.sync_s for one in seen)
        used = {role: Spread.of(one.used_s[role] for one in seen) for role in seen[0].used_s}
        whole = Spread.of(sum(one.used_s[role] for role in _CONTROL) for one in seen)
        control[workers] = used["aggregator"].median
        times = (step, used["worker"], used["aggregator"], whole)
        rows.append((f"K = {workers}", *(spread.text(1e3) for spread in times), sync.text(1e3)))
        figures[f"workers_{workers}"] = {"step_s": step, "sync_s": sync, "control_s": whole, "used_s": used}
    few, many = _WORKERS[0], _WORKERS[-1]
    growth = (control[many] - control[few]) / (many - few)
    return Result(
        headers=(
            "workers",
            "step, ms",
            "workers' processor time, ms",
            "aggregator's, ms",
            "with coordinator and supervisor, ms",
            "sync, ms",
        ),
        rows=tuple(rows),
        verdict=f"K = {many} trains; each worker more takes {growth * 1e3:.2f} ms of the aggregator a step, and "
        f"{memory.median / 1e6:.0f} MB",
        figures=figures,
        remarks=(
            f"{_EXAMPLE}, B = {_BATCH}, one thread per worker; all {many} workers were started at once, in "
            f"{started_s:.0f} s, and those that a smaller K leaves out wait, with their heartbeats",
            "processor time: of all threads, with evaluations at the ends of epochs, by steps; heartbeats and watching "
            "go by time, so longer steps have more of them",
            f"private memory of a worker from the fork server: {memory.text(1e-6, 0)} MB; the aggregator has "
            f"{descriptors} descriptors",
        ),
    )


BENCHMARK = Benchmark("many_workers", 3, run)
