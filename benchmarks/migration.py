"""How long a job is delayed as all of its tensors move from one aggregator to another, at 25 million parameters."""

from __future__ import annotations

import statistics
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from benchmarks.elastic_supervisor import Training
from benchmarks.figures import Benchmark, Result, Spread
from benchmarks.peers.shapes import parameters

_BATCH = 32
_STEPS = 15
_AIM_S = 0.010
_AIM_SHARE = 0.01
_HOSTS: dict[str, Collection[str]] = {"one host": (), "two hosts": ("aggregator-1",)}


@dataclass(frozen=True, slots=True)
class _Move:
    """One migration, all times in seconds.

    Attributes:
        delay_s: How much longer all steps took during it than as many ordinary ones.
        step_delay_s: That of each of these steps, in the mean.
        steps: How many there were.
        step_s: An ordinary step: median of those before and after.
        took_s: From the request until its end was reported.
    """

    delay_s: float
    step_delay_s: float
    steps: int
    step_s: float
    took_s: float


def delay_s(during: Collection[float], ordinary: Collection[float]) -> float:
    """How much longer steps took than as many ordinary ones, of which the median counts, seconds."""
    return sum(during) - len(during) * statistics.median(ordinary)


def _move(training: Training, target: int) -> _Move:
    before = [step.step_time_s for step in training.go_on(_STEPS)]
    begin, buckets = training.last, training.supervisor.migrations.map
    assert buckets is not None
    took_s = training.migrate(dict.fromkeys(range(len(buckets.holders)), target))
    # the first of these steps may have begun before the request, and the last may have ended after the report
    during = [training.steps[step].step_time_s for step in range(begin + 1, training.last + 1)]
    during += [step.step_time_s for step in training.go_on(1)]
    ordinary = before + [step.step_time_s for step in training.go_on(_STEPS)]
    late = delay_s(during, ordinary)
    return _Move(late, late / len(during), len(during), statistics.median(ordinary), took_s)


def run(repetitions: int, work_dir: Path) -> Result:
    """Move everything there and back so many times, on one host and between two."""
    rows, figures, parts = list[tuple[str, ...]](), dict[str, object](), list[str]()
    figures["parameters"] = parameters("mlp")
    for name, elsewhere in _HOSTS.items():
        folder = work_dir / name.replace(" ", "-")
        with Training(
            "benchmarks.peers.keras_jobs:mlp", folder, aggregators=2, elsewhere=elsewhere
        ) as training:
            training.begin(1, _BATCH)
            training.go_on(_STEPS)
            _move(training, 1)  # memory that is used for the first time
            _move(training, 0)
            moves = [_move(training, target) for _ in range(repetitions) for target in (1, 0)]
        delay = Spread.of(move.delay_s for move in moves)
        each = Spread.of(move.step_delay_s for move in moves)
        step = Spread.of(move.step_s for move in moves)
        took = Spread.of(move.took_s for move in moves)
        count = Spread.of(move.steps for move in moves)
        figures[name] = {
            "delay_s": delay,
            "delay_of_a_step_s": each,
            "step_s": step,
            "took_s": took,
            "steps": count,
        }
        rows.append(
            (
                name,
                str(delay.count),
                delay.text(1e3),
                each.text(1e3),
                step.text(1e3),
                count.text(digits=0),
                took.text(1e3),
            )
        )
        parts.append(f"{name}: {delay.median * 1e3:.1f} ms, {delay.median / step.median:.1%} of a step")
    return Result(
        headers=(
            "",
            "n",
            "delay of the job, ms",
            "delay of a step, ms",
            "ordinary step, ms",
            "steps until all was moved",
            "until all was moved, ms",
        ),
        rows=tuple(rows),
        verdict=f"aim: a delay below {_AIM_S * 1e3:.0f} ms or {_AIM_SHARE:.0%} of a step; "
        + "; ".join(parts),
        figures=figures,
        remarks=(
            f"a network of {parameters('mlp') / 1e6:.1f} million parameters with Adam, B = {_BATCH}, one worker, two "
            "aggregators of which one holds all; everything moves from one to the other, with the optimizer's state",
            "delay: what the steps from the request to its end took beyond as many ordinary ones, of which the median "
            f"counts: {_STEPS} before and {_STEPS} after",
            "two hosts: the second aggregator shares no memory with the other processes, and everything goes by TCP "
            "on this machine, sealed; a step is longer while its gradients and weights cross it",
            "published for AutoPS, on a network of 56 Gbit/s: 13.6 to 43.8 ms",
        ),
    )


BENCHMARK = Benchmark("migration", 5, run)
