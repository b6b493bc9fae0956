"""How long training stops when a process of the job is killed or stopped in the middle of a step."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random

from benchmarks.elastic_supervisor import Training, median_s
from benchmarks.figures import Benchmark, Result, Spread

_WORKERS, _BATCH = 2, 128
_STEPS = 10
_WATCH_S = 2.5
"""Longer than whatever is promised takes, so that no later standstill is missed."""
_WATCH_STEPS = 3
_AIM_S = 2.0
_SEED = 7


@dataclass(frozen=True, slots=True)
class _Fault:
    """A fault and its `victim`, the process it hits. `replaced`: the supervisor starts a new process by itself."""

    name: str
    signal: signal.Signals
    victim: Callable[[Training], str]
    replaced: bool


def _worker(training: Training) -> str:
    return training.supervisor.workers("training")[-1]


def _leader(training: Training) -> str:
    return next(state.name for state in training.supervisor.processes() if state.role == "coordinator")


_AIMED = "worker killed"
_FAULTS = (
    _Fault(_AIMED, signal.SIGKILL, _worker, replaced=False),
    _Fault("worker stopped (SIGSTOP)", signal.SIGSTOP, _worker, replaced=False),
    _Fault("aggregator killed", signal.SIGKILL, lambda _: "aggregator-0", replaced=True),
    _Fault("coordinator killed", signal.SIGKILL, _leader, replaced=True),
)


def _strike(training: Training, fault: _Fault, random: Random) -> tuple[float, float]:
    """Strike somewhere in a step.

    Returns:
        The longest time without an applied step from then on, and an ordinary step; seconds.
    """
    usual_s = median_s(training.go_on(_STEPS))
    strikes_at = time.monotonic() + random.random() * usual_s
    training.until(lambda: time.monotonic() >= strikes_at)
    recovered = len(training.recovered)
    before, struck_at = training.last, time.monotonic()
    os.kill(training.supervisor.engine.pid(fault.victim(training)), fault.signal)
    training.until(lambda: time.monotonic() - struck_at > _WATCH_S and training.last >= before + _WATCH_STEPS)
    heard = [struck_at, *(at for step, at in sorted(training.heard_at.items()) if step > before)]
    if fault.replaced:
        training.until(lambda: len(training.recovered) > recovered)
    return max(later - earlier for earlier, later in pairwise(heard)), usual_s


def _mend(training: Training) -> None:
    """Back to as many workers as before."""
    training.until(lambda: training.supervisor.settled)
    if missing := _WORKERS - len(training.supervisor.alive):
        training.supervisor.launch(missing)
        training.until(lambda: training.supervisor.ready == _WORKERS)
        training.resize(_WORKERS, _BATCH)
    training.go_on(_STEPS)


def run(repetitions: int, work_dir: Path) -> Result:
    """Every fault in turn, so many times, within one job."""
    random = Random(_SEED)
    seen: dict[str, list[tuple[float, float]]] = {fault.name: [] for fault in _FAULTS}
    with Training("benchmarks.peers.keras_jobs:cnn", work_dir) as training:
        training.begin(_WORKERS, _BATCH)
        for _ in range(repetitions):
            for fault in _FAULTS:
                seen[fault.name].append(_strike(training, fault, random))
                _mend(training)
    rows = []
    figures: dict[str, object] = {}
    for name, found in seen.items():
        still, usual = Spread.of(still for still, _ in found), Spread.of(usual for _, usual in found)
        rows.append((name, str(still.count), still.text(1e3, 0), usual.text(1e3, 0)))
        figures[name] = {"standstill_s": still, "step_s": usual}
    aimed = Spread.of(still for still, _ in seen[_AIMED])
    return Result(
        headers=("fault", "n", "until the next step is applied, ms", "ordinary step, ms"),
        rows=tuple(rows),
        verdict=f"aim: the next step applied within {_AIM_S:.0f} s of a worker's death: {aimed.median:.2f} s in the "
        f"median, {aimed.high:.2f} s at most",
        figures=figures,
        remarks=(
            f"a small convolutional network, K = {_WORKERS}, B = {_BATCH}; struck at a random moment of a step",
            f"the longest time without a step from the strike on, within {_WATCH_S} s and {_WATCH_STEPS} steps; the "
            "step that the others have to do again or for the lost one is in it",
        ),
    )


BENCHMARK = Benchmark("elastic_faults", 3, run)
