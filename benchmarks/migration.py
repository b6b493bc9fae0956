"""How long a job is delayed as all of its tensors move from one aggregator to another, at 25 million parameters.

Beside that, what as many bytes cost it that go from one process to another and do nothing else.
"""

from __future__ import annotations

import contextlib
import itertools
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.elastic_supervisor import ROOT, Training
from benchmarks.figures import Benchmark, Result, Spread
from benchmarks.peers.shapes import parameters

_BATCH = 32
_STEPS = 15
_AIM_S = 0.010
_AIM_SHARE = 0.01
_HOSTS: dict[str, Collection[str]] = {"one host": (), "two hosts": ("aggregator-1",)}
_ARRAYS = 3
"""What moves of each parameter: its weight and Adam's two."""
_WAYS = {"sealed": "as many bytes alone, sealed", "plain": "as many bytes alone, by plain TCP"}


@dataclass(frozen=True, slots=True)
class _Move:
    """One migration, or one transfer, all times in seconds.

    Attributes:
        delay_s: How much longer all steps took during it than as many ordinary ones.
        step_delay_s: That of each of these steps, in the mean.
        steps: How many there were.
        step_s: An ordinary step: the mean of one before and one after, each the median of several.
        took_s: From the request until its end was reported.
    """

    delay_s: float
    step_delay_s: float
    steps: int
    step_s: float
    took_s: float


def delay_s(during: Sequence[float], moved: Sequence[float], ordinary_s: Sequence[float]) -> float:
    """How much longer steps took than as many ordinary ones, seconds.

    Args:
        during: The steps, seconds.
        moved: The share of the model that had moved in each.
        ordinary_s: Ordinary steps with nothing moved, with half of the model, and with all; with another share, a step
            takes as long as between two of them.
    """
    return sum(during) - float(np.interp(moved, (0.0, 0.5, 1.0), ordinary_s).sum())


class _Measured:
    """A job whose steps are compared with ordinary ones.

    At its beginning everything moves from aggregator 0 to 1, half of it first, and back, into memory that is new.
    """

    def __init__(self, training: Training) -> None:
        self._training = training
        before_s = self._ordinary()
        sizes = training.supervisor.migrations.sizes
        half = [n for n, end in enumerate(itertools.accumulate(sizes)) if 2 * end <= sum(sizes)]
        training.migrate(dict.fromkeys(half, 1))
        half_s = self._ordinary()
        training.migrate(dict.fromkeys(range(len(sizes)), 1))
        self._of_half = 2 * half_s / (before_s + self._ordinary())
        """A step with half of the model at each place, over the mean of those with all of it at one."""
        training.migrate(dict.fromkeys(range(len(sizes)), 0))
        self._ordinary_s = self._ordinary()

    def _ordinary(self) -> float:
        return statistics.median(step.step_time_s for step in self._training.go_on(_STEPS))

    def _during(self, begin: int) -> list[int]:
        """The steps from a last one on, with one more: the first may have begun before, the last end after."""
        training = self._training
        last = training.last
        training.go_on(1)
        return list(range(begin + 1, last + 2))

    def move(self, target: int) -> _Move:
        """Have an aggregator hold everything."""
        training = self._training
        begin, buckets = training.last, training.supervisor.migrations.map
        assert buckets is not None
        took_s = training.migrate(dict.fromkeys(range(len(buckets.holders)), target))
        steps = self._during(begin)
        maps = sorted(training.maps.values(), key=lambda one: one.number)
        sizes = training.supervisor.migrations.sizes

        def share(step: int) -> float:
            held = next(one for one in reversed(maps) if one.since <= step).holders
            return sum(size for size, holder in zip(sizes, held, strict=True) if holder == target) / sum(
                sizes
            )

        return self._moved(steps, [share(step) for step in steps], took_s)

    def transfer(self, other: subprocess.Popen[str], way: str) -> _Move:
        """Have as many bytes go from one process to another."""
        training = self._training
        assert other.stdin is not None
        assert other.stdout is not None
        begin, begin_s = training.last, time.monotonic()
        print(way, file=other.stdin, flush=True)
        training.until(lambda: _has_said(other))
        took_s = time.monotonic() - begin_s
        other.stdout.readline()
        steps = self._during(begin)
        return self._moved(steps, None, took_s)

    def _moved(self, steps: Sequence[int], shares: Sequence[float] | None, took_s: float) -> _Move:
        """Compare steps with ordinary ones; without shares, those before and after are of the same map."""
        before_s, during = self._ordinary_s, [self._training.steps[step].step_time_s for step in steps]
        after_s = self._ordinary_s = self._ordinary()
        mean_s = (before_s + after_s) / 2
        if shares is None:
            late = delay_s(during, [0.0] * len(steps), (mean_s,) * 3)
        else:
            late = delay_s(during, shares, (before_s, mean_s * self._of_half, after_s))
        return _Move(late, late / len(during), len(during), mean_s, took_s)


def _has_said(other: subprocess.Popen[str]) -> bool:
    assert other.stdout is not None
    return bool(select.select([other.stdout], [], [], 0.0)[0])


@contextlib.contextmanager
def _transfers(size: int) -> Iterator[subprocess.Popen[str]]:
    """Two processes, see `benchmarks.peers.transfer`; this is the one that receives."""
    command = [sys.executable, "-m", "benchmarks.peers.transfer", str(size)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdout.readline()
        yield other
        other.stdin.close()


def run(repetitions: int, work_dir: Path) -> Result:
    """Move everything there and back so many times, on one host and between two; there with transfers beside it."""
    found: dict[str, list[_Move]] = {}
    with _transfers(_ARRAYS * 4 * parameters("mlp")) as other:
        for name, elsewhere in _HOSTS.items():
            folder = work_dir / name.replace(" ", "-")
            with Training(
                "benchmarks.peers.keras_jobs:mlp", folder, aggregators=2, elsewhere=elsewhere
            ) as training:
                training.begin(1, _BATCH)
                training.go_on(_STEPS)
                job = _Measured(training)
                for _ in range(repetitions):
                    for target in (1, 0):
                        found.setdefault(name, []).append(job.move(target))
                        for way, text in _WAYS.items() if elsewhere else ():
                            found.setdefault(text, []).append(job.transfer(other, way))
    spreads = {name: _spreads(moves) for name, moves in found.items()}
    parts = [
        f"{name}: {one['delay_s'].median * 1e3:.1f} ms, {one['delay_s'].median / one['step_s'].median:.1%} of a step"
        for name, one in spreads.items()
    ]
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
        rows=tuple(
            (
                name,
                str(one["delay_s"].count),
                *(one[what].text(1e3) for what in ("delay_s", "delay_of_a_step_s", "step_s")),
                one["steps"].text(digits=0),
                one["took_s"].text(1e3),
            )
            for name, one in spreads.items()
        ),
        verdict=f"aim: a delay below {_AIM_S * 1e3:.0f} ms or {_AIM_SHARE:.0%} of a step; "
        + "; ".join(parts),
        figures={"parameters": parameters("mlp"), **spreads},
        remarks=(
            f"a network of {parameters('mlp') / 1e6:.1f} million parameters with Adam, B = {_BATCH}, one worker, two "
            "aggregators of which one holds all; everything moves from one to the other, with the optimizer's state",
            "delay: what the steps from the request to its end took beyond as many ordinary ones; with a share of the "
            "model moved, between the ordinary steps before, with half of it moved, and after by that share, medians "
            f"of {_STEPS} steps each",
            "two hosts: the second aggregator shares no memory with the other processes, and everything goes by TCP "
            "on this machine, sealed; a step is longer while its gradients and weights cross it",
            "as many bytes alone: from one process to another beside the steps of two hosts, as buckets travel or by a "
            "connection, and copied there once: what a transfer takes from steps on the same processors",
            "published for AutoPS, on a network of 56 Gbit/s: 13.6 to 43.8 ms",
        ),
    )


def _spreads(moves: Collection[_Move]) -> dict[str, Spread]:
    return {
        "delay_s": Spread.of(move.delay_s for move in moves),
        "delay_of_a_step_s": Spread.of(move.step_delay_s for move in moves),
        "step_s": Spread.of(move.step_s for move in moves),
        "took_s": Spread.of(move.took_s for move in moves),
        "steps": Spread.of(move.steps for move in moves),
    }


BENCHMARK = Benchmark("migration", 5, run)
