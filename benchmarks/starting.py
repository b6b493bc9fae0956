"""Workers that are forked from a process that has imported TensorFlow, against workers that are started one by one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil

from benchmarks.figures import Benchmark, Result, Spread
from benchmarks.live import job_file
from scavenger.control.job_file.load import load_job
from scavenger.train.engines.base import Engine
from scavenger.train.engines.process import ProcessEngine
from scavenger.train.job_source import JobSource, Timeouts
from scavenger.train.supervisor.supervisor import Supervisor

_EXAMPLE = "digits"
_WORKERS = (1, 2, 4)
_WAYS: dict[str, Callable[[Path, int], Engine]] = {
    "started": partial(ProcessEngine, fork_targets={}),
    "forked": ProcessEngine,
}
_POLL_S = 0.02


def _descendants() -> list[psutil.Process]:
    children: list[psutil.Process] = psutil.Process().children(recursive=True)
    return children


def _one(way: str, workers: int, work_dir: Path) -> tuple[float, float, float, float]:
    """Start so many workers at once, and then another.

    Returns:
        Seconds until all are ready; processor seconds of all processes until then; their memory, bytes, each shared
        page counted once (PSS); seconds until the other one is ready.
    """
    file = job_file(_EXAMPLE)
    job = load_job(file)
    before = {process.pid for process in _descendants()}
    begin = time.perf_counter()
    supervisor = Supervisor.open(
        JobSource(str(job.train), file.parent, job.seed, 1),
        work_dir=work_dir,
        timeouts=Timeouts(job.limits.start, job.limits.step),
        engine=_WAYS[way],
    )
    try:
        supervisor.start(workers)
        _until_ready(supervisor, workers)
        ready_s = time.perf_counter() - begin
        processor_s = memory = 0.0
        for process in _descendants():
            with contextlib.suppress(psutil.Error):
                if process.pid not in before:
                    used = process.cpu_times()
                    processor_s += used.user + used.system
                    memory += process.memory_full_info().pss
        begin = time.perf_counter()
        supervisor.launch(1)
        _until_ready(supervisor, workers + 1)
        return ready_s, processor_s, memory, time.perf_counter() - begin
    finally:
        supervisor.close()


def _until_ready(supervisor: Supervisor, workers: int) -> None:
    while supervisor.ready < workers:
        supervisor.poll(_POLL_S)


def run(repetitions: int, work_dir: Path) -> Result:
    """Start the workers of the digits example in both ways in turn, so many times."""
    seen: dict[tuple[str, int], list[tuple[float, float, float, float]]] = {}
    for index in range(repetitions):
        for workers in _WORKERS:
            for way in _WAYS:
                folder = work_dir / f"{way}-{workers}-{index}"
                folder.mkdir()
                seen.setdefault((way, workers), []).append(_one(way, workers, folder))
    rows, figures, ratios = [], {}, {}
    for (way, workers), values in seen.items():
        ready, processor, memory, another = (Spread.of(column) for column in zip(*values, strict=True))
        rows.append(
            (
                f"{way}, K = {workers}",
                str(ready.count),
                ready.text(),
                processor.text(),
                memory.text(1e-6, 0),
                another.text(),
            )
        )
        figures[f"{way}_{workers}"] = {
            "ready_s": ready,
            "processor_s": processor,
            "memory_bytes": memory,
            "another_s": another,
        }
        ratios[way, workers] = (ready.median, processor.median, memory.median, another.median)
    most = _WORKERS[-1]
    quotients = [a / b for a, b in zip(ratios["forked", most], ratios["started", most], strict=True)]
    return Result(
        headers=("workers", "n", "until ready, s", "processor time, s", "memory, MB", "another worker, s"),
        rows=tuple(rows),
        verdict=f"forked against started, K = {most}: {quotients[0]:.2f} of the time, {quotients[1]:.2f} of the "
        f"processor time, {quotients[2]:.2f} of the memory; another worker in {quotients[3]:.2f} of the time",
        figures=figures,
        remarks=("memory of all processes of the job, a page that several share counted once (PSS)",),
    )


BENCHMARK = Benchmark("starting", 3, run)
