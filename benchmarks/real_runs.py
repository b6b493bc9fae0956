"""Predictions of the total time and cost of ordinary small jobs, each run twice, against what came.

The first run of a job knows nothing but its hint of the epochs; the second one, by another seed, has the first one's
models and epochs. `python -m benchmarks real_runs:gru,tabular` runs some jobs, `real_runs:gru/2` one of them with up to
two workers.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.figures import Benchmark, Result, Spread
from benchmarks.live import job_file
from scavenger.control.job_file.load import load_job
from scavenger.control.jobs.job_run import JobRun
from scavenger.control.jobs.prepared import prepare_job
from scavenger.domain.job import JobSpec
from scavenger.domain.report import Actual, Observer, Predicted, RunReport
from scavenger.store import Store

_AIM, _WIDTH_AIM = (0.85, 0.95), 0.3
_WORKERS = (1, 2)
GOALS = {
    "tabular": ("val_accuracy", 0.89, 5),
    "regression": ("val_loss", 0.065, 9),
    "conv": ("val_accuracy", 0.87, 5),
    "depthwise": ("val_accuracy", 0.95, 5),
    "gru": ("val_accuracy", 0.95, 8),
    "lstm": ("val_accuracy", 0.95, 8),
    "embedding": ("val_accuracy", 0.89, 5),
    "denoising": ("val_loss", 0.043, 6),
}
"""Metric and target of each job, and its hint: the epochs of plain Keras at batch 32, to the nearest."""


@dataclass(frozen=True)
class _Run:
    """A run, with what was predicted at its choice; `load` is that of the machine when it had ended."""

    job: str
    workers: int
    number: int
    strategy: str
    predicted: Predicted
    actual: Actual
    load: float

    @property
    def inside(self) -> tuple[bool, bool]:
        """Whether time and cost are in their intervals."""
        (low_s, high_s), (low_usd, high_usd) = (
            self.predicted.time_interval_s,
            self.predicted.cost_interval_usd,
        )
        return low_s <= self.actual.time_s <= high_s, low_usd <= self.actual.cost_usd <= high_usd

    @property
    def ratio(self) -> float:
        """Actual over predicted time."""
        return self.actual.time_s / self.predicted.time_s

    @property
    def half_width(self) -> float:
        """Of the interval of the time, as a share of the prediction."""
        low_s, high_s = self.predicted.time_interval_s
        return 0.5 * (high_s - low_s) / self.predicted.time_s

    def row(self) -> tuple[str, ...]:
        low_s, high_s = self.predicted.time_interval_s
        return (
            f"{self.job}, {self.workers}",
            str(self.number),
            self.strategy,
            f"{self.predicted.time_s:.0f} ({low_s:.0f} – {high_s:.0f})",
            f"{self.actual.time_s:.0f}",
            f"{self.ratio:.2f}",
            " and ".join(name for name, inside in zip(("time", "cost"), self.inside, strict=True) if inside)
            or "-",
            f"{self.load:.1f}",
        )


_ReportOf = Callable[[Store, Path, str, int, int], RunReport]
"""Runs a job with a store, a folder, its name, its most workers and the number of the run."""


def _report(store: Store, folder: Path, name: str, workers: int, number: int) -> RunReport:
    file = job_file("ordinary")
    metric, target, hint = GOALS[name]
    written = load_job(file).written()
    written["goal"] |= {"metric": metric, "target": target, "epochs_hint": hint}
    written["search"]["workers"] = list(range(1, workers + 1))
    written |= {"name": name, "params": {"kind": name}, "seed": number, "output": str(folder / str(number))}
    return JobRun(
        prepare_job(JobSpec.model_validate(written), file),
        store=store,
        observer=Observer(),
        run=True,
        confirm=None,
    ).run()


def _runs(
    wanted: Sequence[tuple[str, int]], repetitions: int, work_dir: Path, report_of: _ReportOf
) -> list[_Run]:
    runs: list[_Run] = []
    for name, workers in wanted:
        folder = work_dir / f"{name}-{workers}"
        folder.mkdir()
        with Store.open(f"sqlite:///{folder / 'store.db'}") as store:
            for number in range(1, repetitions + 1):
                report = report_of(store, folder, name, workers, number)
                predicted, actual = report.predicted, report.result.actual
                if actual is None or predicted is None:
                    print(
                        f"{name}, {workers}, run {number} ended {report.job.state} before a choice",
                        flush=True,
                    )
                    continue
                load = os.getloadavg()[0]
                runs.append(_Run(name, workers, number, report.search.strategy, predicted, actual, load))
                print(" | ".join(runs[-1].row()), flush=True)
    return runs


def run(
    repetitions: int, work_dir: Path, *, wanted: Sequence[tuple[str, int]], report_of: _ReportOf = _report
) -> Result:
    """Each job so often, one after the other."""
    runs = _runs(wanted, repetitions, work_dir, report_of)
    times, costs = (statistics.fmean(one.inside[of] for one in runs) for of in (0, 1))
    width, ratios = statistics.median(one.half_width for one in runs), Spread.of(one.ratio for one in runs)
    low, high = _AIM
    return Result(
        headers=(
            "job, most workers",
            "run",
            "search",
            "predicted, s",
            "actual, s",
            "ratio",
            "inside",
            "load",
        ),
        rows=tuple(one.row() for one in runs),
        verdict=(
            f"aim: {low:.0%} to {high:.0%} inside, half-width below {_WIDTH_AIM:.0%}; of {len(runs)} runs {times:.0%} "
            f"of the times and {costs:.0%} of the costs are inside, with a median half-width of {width:.0%}; "
            f"actual over predicted time {ratios.text(digits=2)}"
        ),
        figures={
            "inside_time": times,
            "inside_cost": costs,
            "half_width": width,
            "ratio": ratios,
            "above": statistics.fmean(one.actual.time_s > one.predicted.time_interval_s[1] for one in runs),
            "runs": [
                {
                    "job": one.job,
                    "workers": one.workers,
                    "run": one.number,
                    "search": one.strategy,
                    "predicted": one.predicted,
                    "actual": one.actual,
                    "load": one.load,
                }
                for one in runs
            ],
        },
        remarks=(
            "load: processes that wanted a processor in the minute before the end of the run, its own workers included",
            "runs that ended before a choice are left out; runs of a job differ in their seed",
        ),
    )


def of_parts(parts: Sequence[str]) -> Benchmark:
    """The benchmark of some jobs: each a name, or a name and a number of workers as `gru/2`.

    Raises:
        ValueError: There is no such job.
    """
    wanted: list[tuple[str, int]] = []
    for part in parts:
        name, _, workers = part.partition("/")
        if name not in GOALS or workers not in ("", *map(str, _WORKERS)):
            raise ValueError(f"no job {part}; there are {', '.join(GOALS)}, each also with /1 or /2 workers")
        wanted += [(name, number) for number in _WORKERS if workers in ("", str(number))]
    return Benchmark("real_runs", 2, partial(run, wanted=wanted))


BENCHMARK = of_parts(tuple(GOALS))
