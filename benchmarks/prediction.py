"""Errors of predicted step times, over the whole grid of each example and of a regression."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Benchmark, Result, Spread, relative_error
from benchmarks.live import EXAMPLES, job_file, train, visit
from scavenger.control.job_file.load import load_job, override_job
from scavenger.control.jobs.job_run import JobRun
from scavenger.control.jobs.prepared import prepare_job
from scavenger.domain.configuration import Configuration
from scavenger.domain.curve import TradeoffCurve
from scavenger.domain.report import Observer
from scavenger.store import Store

_STEPS = 20
"""Undisturbed steps of one visit; every configuration is visited `repetitions` times."""
_VISITS_MIN = 2
"""One visit shows no noise, and an error without its noise shows nothing."""
_AIM = 0.10
_JOBS = (*EXAMPLES, "friedman")
"""Beside the examples a regression: its gradients are large for the time that they take."""


@dataclass(frozen=True, slots=True)
class _Point:
    """One configuration: predicted, and the medians of its visits; seconds."""

    configuration: Configuration
    profiled: bool
    predicted_s: float
    measured_s: Spread

    @property
    def error(self) -> float:
        return relative_error(self.predicted_s, self.measured_s.median)

    @property
    def noise(self) -> float:
        """Half the distance of the visits' medians, relative: an error below it says nothing."""
        return (self.measured_s.high - self.measured_s.low) / (2.0 * self.measured_s.median)

    def row(self, example: str) -> tuple[str, ...]:
        """The line of the table."""
        return (
            f"{example}, K = {self.configuration.workers}, B = {self.configuration.global_batch_size}",
            "yes" if self.profiled else "no",
            f"{self.predicted_s * 1e3:.1f}",
            self.measured_s.text(1e3),
            f"{self.error:.1%}",
            f"{self.noise:.1%}",
        )


def _predict(example: str, work_dir: Path) -> TradeoffCurve:
    """The curve from the partial search of a job of which nothing is known.

    Raises:
        RuntimeError: If the search fails.
    """
    job = override_job(load_job(job_file(example)), {"output": str(work_dir), "search.strategy": "partial"})
    with Store.open(f"sqlite:///{work_dir / 'store.db'}") as store:
        report = JobRun(
            prepare_job(job, job_file(example)), store=store, observer=Observer(), run=False, confirm=None
        ).run()
    if report.curve is None:
        raise RuntimeError(f"the search ended {report.job.state}: {report.error}")
    return report.curve


def _measure(
    example: str, work_dir: Path, grid: list[Configuration], visits: int
) -> dict[Configuration, list[float]]:
    """Median step time of every visit; there and back through the grid, so that drift shows as noise."""
    medians: dict[Configuration, list[float]] = {configuration: [] for configuration in grid}
    most = max(configuration.workers for configuration in grid)
    batch = min(c.global_batch_size for c in grid if c.workers == most)
    with train(example, work_dir, workers=most, global_batch_size=batch) as trainer:
        for index in range(visits):
            for configuration in grid if index % 2 else reversed(grid):
                window = visit(trainer, configuration.workers, configuration.global_batch_size, _STEPS)
                medians[configuration].append(statistics.median(record.step_time_s for record in window))
    return medians


def shape_error(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """The mean relative error that is left when one factor common to all predictions is taken out.

    The factor is the median of predicted over measured: what a machine of another speed would have changed.
    Only the rest can mislead a choice between configurations.

    Args:
        predicted, measured: Of the same configurations, each above 0.

    Raises:
        ValueError: If the lengths differ or something measured is not above 0.
    """
    factor = statistics.median(p / m for p, m in zip(predicted, measured, strict=True))
    return statistics.fmean(relative_error(p / factor, m) for p, m in zip(predicted, measured, strict=True))


def run(repetitions: int, work_dir: Path) -> Result:
    """Search, predict, then measure everything `repetitions` times, but at least twice."""
    visits = max(_VISITS_MIN, repetitions)
    rows: list[tuple[str, ...]] = []
    figures: dict[str, object] = {}
    verdicts = []
    for example in _JOBS:
        curve = _predict(example, work_dir / f"{example}-search")
        predicted = {point.configuration: point for point in curve}
        measured = _measure(example, work_dir / f"{example}-grid", list(predicted), visits)
        points = [
            _Point(c, point.measured, point.step_time_s, Spread.of(measured[c]))
            for c, point in predicted.items()
        ]
        rows += [point.row(example) for point in points]
        errors = Spread.of(point.error for point in points)
        mean = statistics.fmean(point.error for point in points)
        unseen = [point.error for point in points if not point.profiled]
        mean_unseen = statistics.fmean(unseen) if unseen else 0.0
        shape = shape_error([p.predicted_s for p in points], [p.measured_s.median for p in points])
        noise = statistics.fmean(point.noise for point in points)
        verdicts.append(
            f"{example}: mean {mean:.1%} (not profiled: {mean_unseen:.1%}), worst {errors.high:.1%}, "
            f"{shape:.1%} but for a common factor, noise {noise:.1%}"
        )
        figures[example] = {
            "mean_error": mean,
            "mean_error_not_profiled": mean_unseen,
            "worst_error": errors.high,
            "shape_error": shape,
            "mean_noise": noise,
            "points": [
                {
                    "workers": point.configuration.workers,
                    "global_batch_size": point.configuration.global_batch_size,
                    "profiled": point.profiled,
                    "predicted_step_time_s": point.predicted_s,
                    "measured_step_time_s": point.measured_s,
                    "error": point.error,
                    "noise": point.noise,
                }
                for point in points
            ],
        }
    return Result(
        headers=("configuration", "profiled", "predicted, ms", "measured, ms", "error", "noise"),
        rows=tuple(rows),
        verdict=f"aim: a mean error below {_AIM:.0%}; {'; '.join(verdicts)}",
        figures=figures,
        remarks=(
            f"measured: median of {visits} visits' medians over {_STEPS} undisturbed steps each, in "
            "processes other than the search's, and later",
            "noise: half the distance of the visits' medians",
            "but for a common factor: the mean error when all predictions are scaled by their median error, "
            "as a machine that was slower during the search than later would have it",
            "an error at profiled points, which the model has seen, is mostly the machine's change since",
        ),
    )


BENCHMARK = Benchmark("prediction", 2, run)
