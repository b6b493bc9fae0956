"""How long the other workers stop when one joins or leaves, at 25 million parameters."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

from benchmarks.elastic_supervisor import Training
from benchmarks.figures import Benchmark, Result, Spread
from benchmarks.peers.shapes import parameters
from scavenger.train.transport.messages import StepReport

_BATCH = 32
_STEPS = 15
_AIM_JOIN_S = 0.1
_STAYS = "w0"


@dataclass(frozen=True, slots=True)
class _Change:
    """One change of the view, all in seconds.

    Attributes:
        excess_s: How much longer the staying worker stood still in the view's first step than in ordinary ones.
        ordinary_s: How long it stands still in an ordinary step of the new view: pushing aside, the update.
        step_s: An ordinary step.
    """

    excess_s: float
    ordinary_s: float
    step_s: float


def standstill_s(step: StepReport, worker: str) -> float:
    """How long a worker did not compute during a step."""
    return step.step_time_s - step.worker_compute_s[worker]


def _change(training: Training, workers: int) -> _Change:
    training.resize(workers, _BATCH)
    first = next(step for _, step in sorted(training.steps.items()) if step.view == training.view)
    window = training.go_on(_STEPS)
    ordinary = statistics.median(standstill_s(step, _STAYS) for step in window)
    step_s = statistics.median(step.step_time_s for step in window)
    return _Change(standstill_s(first, _STAYS) - ordinary, ordinary, step_s)


def run(repetitions: int, work_dir: Path) -> Result:
    """Have a new worker join, and leave again, so many times."""
    joins: list[_Change] = []
    leaves: list[_Change] = []
    with Training("benchmarks.peers.keras_jobs:mlp", work_dir) as training:
        training.begin(1, _BATCH)
        training.go_on(_STEPS)
        for _ in range(repetitions):
            training.supervisor.launch(1)
            training.until(lambda: training.supervisor.ready == 2)
            training.go_on(_STEPS)
            joins.append(_change(training, 2))
            leaves.append(_change(training, 1))
            training.supervisor.release(1)
            training.until(lambda: sum(training.supervisor.existing.values()) == 1)
    rows = []
    figures: dict[str, object] = {"parameters": parameters("mlp")}
    for name, changes in (("a worker joins, K 1 to 2", joins), ("a worker leaves, K 2 to 1", leaves)):
        excess = Spread.of(change.excess_s for change in changes)
        ordinary = Spread.of(change.ordinary_s for change in changes)
        step = Spread.of(change.step_s for change in changes)
        rows.append((name, str(excess.count), *(spread.text(1e3) for spread in (excess, ordinary, step))))
        figures[name] = {"excess_s": excess, "ordinary_standstill_s": ordinary, "step_s": step}
    join_s = Spread.of(change.excess_s for change in joins)
    leave = max(leaves, key=lambda change: change.excess_s / change.step_s)
    return Result(
        headers=("change", "n", "stands still longer by, ms", "ordinary standstill, ms", "ordinary step, ms"),
        rows=tuple(rows),
        verdict=f"aims: below {_AIM_JOIN_S * 1e3:.0f} ms when a worker joins: {join_s.median * 1e3:.1f} ms in the "
        f"median, {join_s.high * 1e3:.1f} ms at most; below a step when one leaves: at most "
        f"{leave.excess_s / leave.step_s:.2f} steps",
        figures=figures,
        remarks=(
            f"a network of {parameters('mlp') / 1e6:.1f} million parameters with Adam, B = {_BATCH}, one aggregator; "
            "every joiner is a new process",
            f"stands still: the step's time without the staying worker's own computing; ordinary: median of "
            f"{_STEPS} steps of the new view",
            "what stopping and resuming takes instead: see switch",
        ),
    )


BENCHMARK = Benchmark("elastic_joining", 5, run)
