"""Forecasts from learning curves against how real runs went on; the aims are those that were reached."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from scavenger.control.search.tables import read_curves
from scavenger.models.backtest import SkippedGroup
from scavenger.models.backtest_curves import OWN, CurveErrors, CurveResult, CurveRun, backtest_curves, pooled

pytestmark = pytest.mark.slow

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "curves" / "curves.csv"
STEPS = np.arange(1.0, 101.0)


def run_of(values: list[float] | None = None) -> CurveRun:
    curve = 1.0 + STEPS**-0.5 if values is None else np.array(values)
    return CurveRun("s", "w", "r", "min", STEPS[: len(curve)], curve)


def test_the_target_is_what_was_reached_at_nine_tenths() -> None:
    run = run_of([9.0, 5.0, 6.0, 7.0, 4.0, 4.5, 4.2, 4.1, 4.0, 1.0])

    assert run.target() == 4.0
    assert run.reached_at(run.target()) == 5.0
    assert run.best() == 1.0


def test_a_clean_curve_is_forecast_better_than_by_simple_methods() -> None:
    (result,) = backtest_curves([run_of()], [0.5])

    assert isinstance(result, CurveResult)
    errors = {one.method: float(one.total[0]) for one in result.methods}
    assert next(iter(errors)) == OWN
    assert errors[OWN] < 15.0 < errors["last value"]
    assert errors["wrong hint"] == pytest.approx(87.0)
    assert "schedule known" not in errors


def test_a_run_of_which_too_little_was_seen_is_skipped() -> None:
    (skipped,) = backtest_curves([run_of()], [0.02])

    assert isinstance(skipped, SkippedGroup)
    assert "no run has 2 evaluations" in skipped.reason


@pytest.fixture(scope="module")
def results() -> list[CurveResult]:
    if not DATA.exists():
        pytest.skip(f"{DATA} is not here")
    runs = read_curves(DATA)
    assert len(runs) == 161
    began = time.process_time()
    found = backtest_curves(runs, (0.25, 0.5, 0.75))
    # Each run is forecast six times or eight, and fitted by simple methods.
    assert (time.process_time() - began) / (3 * len(runs)) < 0.3
    return [one for one in found if isinstance(one, CurveResult)]


def at(results: list[CurveResult], seen: float, method: str = OWN) -> CurveErrors:
    found = pooled([one for one in results if one.seen == seen], method)
    assert found is not None
    return found


@pytest.mark.slow
def test_real_runs_are_forecast_better_than_by_simple_methods(results: list[CurveResult]) -> None:
    medians = [float(np.median(at(results, seen).total)) for seen in (0.25, 0.5, 0.75)]

    assert [median < most for median, most in zip(medians, (33.0, 20.0, 16.0), strict=True)] == [True] * 3
    for seen, median in zip((0.25, 0.5, 0.75), medians, strict=True):
        for simple in ("last value", "power law", "log-log line", "wrong hint"):
            assert median < float(np.median(at(results, seen, simple).total))
        hints = [
            float(np.median(at(results, seen, f"with {name} hint").total))
            for name in ("high", "right", "low")
        ]
        assert [error < most for error, most in zip(hints, (58.0, 15.0, 45.0), strict=True)] == [True] * 3


def test_nine_in_ten_truths_lie_in_their_intervals(results: list[CurveResult]) -> None:
    covered = np.concatenate([at(results, seen).covered for seen in (0.25, 0.5, 0.75)])

    assert 0.85 <= covered.mean() <= 0.97


def test_a_known_schedule_tells_when_a_language_model_reaches_its_target(results: list[CurveResult]) -> None:
    # The constants of the law were fitted to llm-25M.
    unseen = [one for one in results if one.workload == "llm-100M" and one.seen != 0.25]
    for one in unseen:
        errors = {method.method: float(np.median(method.total)) for method in one.methods}
        assert errors["schedule known"] < 15.0
        assert errors["schedule known"] < errors["last value"]
