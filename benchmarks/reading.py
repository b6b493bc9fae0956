"""Waiting for data: a data set that takes 5 ms a sample, read ahead by several threads beside the steps."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import Benchmark, Result, Spread
from scavenger.elastic.view import Position, WorkerView, step_range
from scavenger.train.worker.data import open_source
from scavenger.train.worker.samples import Samples

_THREADS = (1, 2, 4, 8)
_SAMPLE_S, _STEP_S, _BATCH, _STEPS = 0.005, 0.1, 32, 25
_AIM = 0.02


class _Slow:
    """Each sample waits for a disk or a network for 5 ms."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def __len__(self) -> int:
        return _BATCH * _STEPS

    def __getitem__(self, index: int) -> Any:
        time.sleep(_SAMPLE_S)
        return np.full(16, index, dtype=np.float32), index


def _waiting(threads: int) -> float:
    """Share of the time of the steps, but for the first, in which a worker waits for data."""
    samples = Samples(open_source(_Slow(threads), "train"), seed=1)
    view = WorkerView(1, 1, _BATCH, Position(), 1, 0)
    began, waited_s = 0.0, 0.0
    for step in range(1, _STEPS + 1):
        if step == 2:
            began, waited_s = time.perf_counter(), samples.waited_s
        place = step_range(view, step, _BATCH * _STEPS)
        samples.read(place.epoch, place.samples)
        samples.read_ahead(view, step + 1)
        time.sleep(_STEP_S)  # as an accelerator computes, without a processor
    share = (samples.waited_s - waited_s) / (time.perf_counter() - began)
    samples.close()
    return share


def run(repetitions: int, work_dir: Path) -> Result:
    """Everything in this process, so many times; nothing is trained."""
    found = {threads: Spread.of(_waiting(threads) for _ in range(repetitions)) for threads in _THREADS}
    needed = _BATCH * _SAMPLE_S / _STEP_S
    enough = min(threads for threads in _THREADS if threads >= needed)
    met = "met" if found[enough].median <= _AIM else "missed"
    return Result(
        headers=("threads", "reading a batch, if alone", "waiting for data, % of the steps"),
        rows=tuple(
            (str(threads), f"{_BATCH * _SAMPLE_S / threads * 1e3:.0f} ms", spread.text(100.0))
            for threads, spread in found.items()
        ),
        verdict=f"with {enough} threads, {100 * found[enough].median:.1f} %: aim at most {100 * _AIM:.0f} %, {met}",
        figures={f"waiting_share_{threads}": spread for threads, spread in found.items()},
        remarks=(
            f"a step computes for {1e3 * _STEP_S:.0f} ms, as an accelerator does, and takes {_BATCH} samples of "
            f"{1e3 * _SAMPLE_S:.0f} ms: {needed:.1f} threads read as fast as it computes",
            "threads help samples that wait, or are decoded by libraries that release the interpreter's lock",
        ),
    )


BENCHMARK = Benchmark("reading", 3, run)
