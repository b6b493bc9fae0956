"""Epochs to the target with gradients rounded to bfloat16, over those with gradients as they are, on five jobs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.elastic_supervisor import ROOT, Training
from benchmarks.figures import Benchmark, Result

_WORKERS = 2
_EPOCHS_MAX = 60
_WITHIN_S = 900.0
_AIM = 0.03


@dataclass(frozen=True, slots=True)
class _Case:
    """A job, and the value of a metric to which it is trained."""

    folder: str
    batch: int
    metric: str
    target: float
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rises(self) -> bool:
        return "accuracy" in self.metric


_CASES = (
    _Case("examples/digits", 64, "val_accuracy", 0.97),
    _Case("examples/starter", 32, "val_accuracy", 0.95),
    _Case("examples/charlm", 64, "val_loss", 1.9),
    _Case("benchmarks/jobs/friedman", 64, "val_mae", 1.3),
    _Case("benchmarks/jobs/ordinary", 64, "val_accuracy", 0.9, {"kind": "tabular"}),
)


def _epochs(case: _Case, gradients: str, work_dir: Path) -> tuple[float, bool]:
    """Epochs until the metric meets the target, between two epochs by a straight line; and whether it does."""
    with Training(
        "train:job", work_dir, job_dir=ROOT / case.folder, gradients=gradients, params=case.params
    ) as training:
        training.begin(_WORKERS, case.batch)

        def met() -> bool:
            values = [report.metrics[case.metric] for report in training.epochs]
            return any((value >= case.target) == case.rises or value == case.target for value in values)

        training.until(lambda: met() or len(training.epochs) >= _EPOCHS_MAX, _WITHIN_S)
        values = [report.metrics[case.metric] for report in training.epochs]
    sign = 1.0 if case.rises else -1.0
    for number, value in enumerate(values):
        if sign * value >= sign * case.target:
            if not number:
                return 1.0, True
            return number + (case.target - values[number - 1]) / (value - values[number - 1]), True
    return float(len(values)), False


def run(repetitions: int, work_dir: Path) -> Result:
    """Each job once in each form, from the same seed."""
    del repetitions
    rows, figures, ratios = [], dict[str, object](), []
    for case in _CASES:
        name = case.folder.rpartition("/")[2]
        plain, met = _epochs(case, "float32", work_dir / f"{name}-plain")
        rounded, met_rounded = _epochs(case, "bfloat16", work_dir / f"{name}-rounded")
        ratio = rounded / plain
        ratios.append(ratio)
        said = "" if met and met_rounded else ", not met"
        rows.append(
            (name, f"{case.metric} {case.target:g}{said}", f"{plain:.2f}", f"{rounded:.2f}", f"{ratio:.3f}")
        )
        figures[name] = {"epochs": plain, "rounded": rounded, "ratio": ratio}
    worst = max(abs(ratio - 1.0) for ratio in ratios)
    return Result(
        headers=("job", "target", "epochs, float32", "epochs, bfloat16", "ratio"),
        rows=tuple(rows),
        verdict=f"epochs with bfloat16 over those with float32: {statistics.median(ratios):.3f} (median), at most "
        f"{worst:.1%} off (aim: {_AIM:.0%})",
        figures=figures,
        remarks=(
            f"{_WORKERS} workers of this machine, one seed; where the target is met between two epochs follows from a "
            "straight line between their values",
            "gradients of tensors with two dimensions and 4096 elements or more are rounded, with error feedback",
        ),
    )


BENCHMARK = Benchmark("rounding", 1, run)
