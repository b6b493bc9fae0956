"""One job with four workers that has one, two and four more for a while, and what it would lose by stopping for them.

The job is played (`played_job`), with the step times of a model on A100s; its processes, views and checkpoints are
real. `python -m benchmarks transient:240` gives each number of further slots for so many seconds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.figures import Benchmark, Result, Spread
from benchmarks.public_steps import DATA
from benchmarks.real_pool import RealPool, Steps, kinds, now_s, real_pool
from scavenger.api.calls import Local
from scavenger.api.submitting import resumed
from scavenger.control.training.operations import knock
from scavenger.domain.operation import Operation, ScaleTo, StopJob

KEPT, MORE = 4, (1, 2, 4)
GIVEN_S = 24.0
"""How long further slots are given for. What a change costs does not depend on it: a longer time loses less of it."""
_LONG_S = 240.0
_KIND = "deepspeech2 64"
_STILL_S, _LIMIT_S = 6.0, 600.0
_AIM = 0.97


def run(given_s: float, work_dir: Path) -> Result:
    """Give one job further workers for a time, and take them away; at last stop it and resume it."""
    if not (DATA / "elasticflow" / "throughputs_A100").is_dir():
        raise SystemExit(f"the public measurements are not at {DATA}: nothing to play")
    (kind,) = kinds([_KIND], KEPT + max(MORE))
    spec = kind.spec(epochs=10_000, epoch_s=5.0, workers=(KEPT,), elastic=(KEPT, KEPT + max(MORE)))
    with real_pool(work_dir / "pool", KEPT + max(MORE), "even") as pool:
        job = pool.submit("transient", {**spec, "infra": "local"})
        pool.wait(lambda: any(message.startswith("running") for _, message in pool.events(job)), _LIMIT_S)
        _still(pool, _STILL_S)
        given = []
        for more in MORE:
            begin_s = _ask(pool, job, ScaleTo(KEPT + more))
            _still(pool, max(0.0, begin_s + given_s - now_s()))
            given.append((begin_s, _ask(pool, job, ScaleTo(KEPT))))
            _still(pool, _STILL_S)
        stopped_s = _ask(pool, job, StopJob(), answered=False)
        pool.wait(lambda: not pool.submission(job).is_open, _LIMIT_S)
        resumed(Local(pool.store.url), pool.store.job(job))
        pool.wait(lambda: bool((pool.steps(job).end_s > stopped_s + 5.0).sum() > 8), _LIMIT_S)
        return _result(pool, job, given, stopped_s, given_s)


def _still(pool: RealPool, seconds: float) -> None:
    until = time.monotonic() + seconds
    pool.wait(lambda: time.monotonic() >= until, _LIMIT_S)


def _ask(pool: RealPool, job: str, operation: Operation, *, answered: bool = True) -> float:
    """Ask the job for something; returns when, unix time."""
    asked_s = now_s()
    one = pool.store.submit_operation(job, operation, "benchmark")
    knock(pool.folder_of(job))
    if answered:
        pool.wait(lambda: pool.store.operation(one.id).ended, _LIMIT_S)
    return asked_s


def _speed(steps: Steps, workers: int, begin_s: float, end_s: float) -> float:
    """Samples a second of undisturbed steps on so many workers: the median."""
    rows = (steps.end_s > begin_s) & (steps.end_s < end_s) & (steps.workers == workers)
    rows[np.flatnonzero(rows)[:3]] = False
    return float(np.median(steps.samples[rows] / steps.took_s[rows]))


def _done(steps: Steps, begin_s: float, end_s: float) -> float:
    """Samples between two moments; a step that is under way counts by its part."""
    first = steps.end_s - steps.took_s
    part = (np.minimum(steps.end_s, end_s) - np.maximum(first, begin_s)) / steps.took_s
    return float((np.clip(part, 0.0, 1.0) * steps.samples).sum())


def _result(
    pool: RealPool, job: str, given: Sequence[tuple[float, float]], stopped_s: float, given_s: float
) -> Result:
    steps = pool.steps(job)
    starts = Spread.of(pool.worker_starts_s())
    again = int(np.searchsorted(steps.end_s, stopped_s + 1.0))
    apart = np.diff(steps.end_s)
    last = again - 1 + int(np.argmax(apart[again - 1 : again + 40]))
    stop_s = float(apart[last])
    rows, figures, shares, evens = [], {}, [], []
    for more, (begin_s, end_s) in zip(MORE, given, strict=True):
        after_s = end_s + _STILL_S / 2.0
        few = _speed(steps, KEPT, begin_s - _STILL_S, begin_s)
        many = _speed(steps, KEPT + more, begin_s, end_s)
        ideal = many * (end_s - begin_s) + few * (after_s - end_s)
        lost = max(0.0, ideal - _done(steps, begin_s, after_s))
        lasted_s = end_s - begin_s
        share, long = 1.0 - lost / (many * lasted_s), 1.0 - lost / (many * _LONG_S)
        even_s, stop_even_s = lost / (many - few), stop_s * (many + few) / (many - few)
        shares.append(long)
        evens.append(even_s)
        rows.append(
            (
                f"{KEPT} + {more}",
                f"{many / few:.2f}",
                f"{share:.1%}",
                f"{long:.1%}",
                f"{even_s:.1f}",
                f"{stop_even_s:.0f}",
            )
        )
        figures[f"{more} more"] = {
            "samples_per_s": (few, many),
            "share": share,
            "share_of_four_minutes": long,
            "break_even_s": even_s,
            "stop_and_resume_break_even_s": stop_even_s,
        }
    met = min(shares) >= _AIM
    return Result(
        (
            "workers",
            "speed, of 4",
            f"of the ideal, {given_s:.0f} s",
            "of the ideal, 240 s",
            "break-even, s",
            "with stop and resume, s",
        ),
        tuple(rows),
        f"aim: at least {_AIM:.0%} of the ideal in four minutes: {min(shares):.1%}, {'met' if met else 'missed'}; "
        f"a worker starts in {starts.text()} s, and stop and resume takes {stop_s:.1f} s",
        {**figures, "worker_start_s": starts, "stop_and_resume_s": stop_s},
        (
            "the ideal: from a request on the speed with so many workers, and as before from the next one on; further "
            f"workers are there for {given_s:.0f} s, and of 240 s as much is lost: a change costs the same however "
            "long it lasts",
            "break-even: how long further slots must be there for the job to have gained by them; with stop and resume "
            "it stands still for what that takes, measured once, when they come and when they go",
            f"steps of {_KIND} on A100s, played: workers without TensorFlow sleep, all else is real",
        ),
    )


def of_parts(parts: Sequence[str]) -> Benchmark:
    """The benchmark, with another time for which slots are given; see the module."""
    given_s = float(parts[0]) if parts else GIVEN_S
    return Benchmark("transient", 1, lambda repetitions, work_dir: run(given_s, work_dir))


BENCHMARK = of_parts(())
