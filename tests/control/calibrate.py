"""Coverage of 90 % intervals over many made-up runs: `python -m tests.control.calibrate [JOBS] [FIRST]`.

Each job is drawn by its seed and runs twice in virtual time, through the real search. Prints, for short and long jobs,
first and second runs, how many actual times and costs are inside, the median half-width, how many times are above the
interval, and the error. Beneath it stands where the width comes from: the standard deviation of ln of the whole time
(median of the jobs) if only the epochs, the steps, the starts or the end were uncertain; and how far actual epochs and
step times were from predicted ones: the root mean square of ln of their ratio, its mean, and the median and the mean of
the ratio. A prediction is a median: its ratios have the median 1, and a mean above it, as they are skewed.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from synthetic_runs import Outcome, Truth, run_job

from scavenger.models.parallel import INTERVAL_Z
from scavenger.models.run_ahead import RunAhead
from scavenger.models.starts import Lasting
from scavenger.store import Store

JOBS = 40


def runs_of(folder: Path, jobs: int, *, long: bool, seed: int = 0) -> tuple[list[Outcome], list[Outcome]]:
    """The first and the second run of each job; without those that ended before a choice."""
    pairs: list[tuple[Outcome, Outcome]] = []
    for number in range(seed, seed + jobs):
        random = np.random.default_rng((long, number))
        truth, at = Truth.drawn(random, long=long), folder / f"{long}-{number}"
        at.mkdir()
        with Store.open(f"sqlite:///{at / 's.db'}") as store:
            pairs.append((run_job(truth, store, at, random), run_job(truth, store, at, random)))
    return [one for one, _ in pairs if one.predicted], [two for _, two in pairs if two.predicted]


def shares_inside(outcomes: Sequence[Outcome]) -> tuple[float, float]:
    """The shares of actual times and costs in their intervals."""
    inside = [
        (
            one.predicted.time_interval_s[0] <= one.actual.time_s <= one.predicted.time_interval_s[1],
            one.predicted.cost_interval_usd[0] <= one.actual.cost_usd <= one.predicted.cost_interval_usd[1],
        )
        for one in outcomes
        if one.predicted is not None
    ]
    times, costs = np.mean(np.array(inside, dtype=np.float64), axis=0)
    return float(times), float(costs)


def error(outcomes: Sequence[Outcome]) -> float:
    """Root mean square of ln of predicted over actual time."""
    return math.sqrt(
        float(
            np.mean(
                [
                    math.log(one.predicted.time_s / one.actual.time_s) ** 2
                    for one in outcomes
                    if one.predicted is not None
                ]
            )
        )
    )


def half_width(outcomes: Sequence[Outcome]) -> float:
    """The median half-width of the interval of the time, as a share of the prediction."""
    predicted = [one.predicted for one in outcomes if one.predicted is not None]
    widths = [0.5 * (one.time_interval_s[1] - one.time_interval_s[0]) / one.time_s for one in predicted]
    return float(np.median(widths))


def above(outcomes: Sequence[Outcome]) -> float:
    """The share of actual times above their intervals: half of those outside, unless predictions are skewed."""
    return float(
        np.mean(
            [
                one.actual.time_s > one.predicted.time_interval_s[1]
                for one in outcomes
                if one.predicted is not None
            ]
        )
    )


def parts(outcomes: Sequence[Outcome]) -> str:
    """Where the width of the intervals comes from, and what came of it."""
    alone = np.median([log_sds(one.ahead, one.predicted.time_s) for one in outcomes if one.predicted], axis=0)
    texts = [f"{name} {sd:.2f}" for name, sd in zip(("epochs", "steps", "starts", "end"), alone, strict=True)]
    came = []
    for name in ("epochs", "step_time_s"):
        off = [
            math.log(getattr(one.actual, name) / getattr(one.predicted, name))
            for one in outcomes
            if one.predicted
        ]
        ratios = np.exp(off)
        came.append(
            f"{name} {np.sqrt(np.mean(np.square(off))):.2f} ({np.mean(off):+.2f}; "
            f"median {np.median(ratios):.2f}, mean {np.mean(ratios):.2f})"
        )
    return f"  alone: {', '.join(texts)}; came: {', '.join(came)}"


def log_sds(ahead: RunAhead | None, time_s: float) -> tuple[float, ...]:
    """Standard deviation of ln of the whole time by epochs, steps, starts and end alone."""
    assert ahead is not None
    sure = Lasting(ahead.end.median_s, 0.0)
    certain = replace(
        ahead,
        epochs_log_sd=0.0,
        whole=replace(ahead.whole, log_sd=0.0),
        first=None if ahead.first is None else (replace(ahead.first[0], log_sd=1e-9), ahead.first[1]),
        missing=_sure(ahead.missing),
        end=sure,
    )
    spent_s = time_s - ahead.predict().time_s
    each: tuple[dict[str, Any], ...] = (
        {"epochs_log_sd": ahead.epochs_log_sd},
        {"whole": ahead.whole},
        {"first": ahead.first, "missing": ahead.missing},
        {"end": ahead.end},
    )
    intervals = (replace(certain, **terms).predict().time_interval_s for terms in each)
    return tuple(math.log((spent_s + high) / (spent_s + low)) / (2.0 * INTERVAL_Z) for low, high in intervals)


def _sure(lasting: Lasting | None) -> Lasting | None:
    return None if lasting is None else replace(lasting, log_sd=1e-9)


def main(jobs: int = JOBS, first: int = 0) -> None:
    """Print the table."""
    print("jobs   run      n  time  cost  half-width  above  rms of ln")
    for long in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            runs = runs_of(Path(folder), jobs, long=long, seed=first)
        for which, outcomes in zip(("first", "second"), runs, strict=True):
            times, costs = shares_inside(outcomes)
            print(
                f"{'long' if long else 'short':<6} {which:<6} {len(outcomes):>3} {times:>5.0%} {costs:>5.0%} "
                f"{half_width(outcomes):>11.0%} {above(outcomes):>6.0%} {error(outcomes):>10.2f}\n{parts(outcomes)}",
                flush=True,
            )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
