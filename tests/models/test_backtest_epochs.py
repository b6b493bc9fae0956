"""The back-test of epochs: its rules on made-up runs, and its figures on public ones."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from scavenger.models.backtest import GroupResult, RunRow, SkippedGroup, coverage90, median_ape
from scavenger.models.backtest_epochs import backtest_epochs

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "measured" / "convergence.csv"
SIZES = (32, 64, 128, 256, 512, 1024)


def rows_of(
    epochs: dict[int, float], *, source: str = "made up", workload: str = "w", seeds: int = 3
) -> list[RunRow]:
    """Runs that lie evenly around the given mean epochs."""
    around = 1.0 + 0.02 * (np.arange(seeds) - (seeds - 1) / 2)
    return [
        RunRow(source, workload, float(size), float(mean * factor))
        for size, mean in epochs.items()
        for factor in around
    ]


def critical(size: int) -> float:
    return 10.0 * (1.0 + size / 500.0)


def judged(rows: list[RunRow], points: int | str) -> list[GroupResult]:
    return [one for one in backtest_epochs(rows, points) if isinstance(one, GroupResult)]


CRITICAL = rows_of({size: critical(size) for size in SIZES})


def test_extremes_are_the_smallest_and_the_largest_and_all_others_are_predicted() -> None:
    (one,) = judged(CRITICAL, "extremes")

    assert one.profiled == ("batch 32", "batch 1024")
    assert [p.at for p in one.predictions] == ["batch 64", "batch 128", "batch 256", "batch 512"]
    assert [p.truth for p in one.predictions] == pytest.approx([critical(s) for s in SIZES[1:-1]])
    assert one.errors().max() < 10.0
    assert one.covered().all()
    assert all(0.0 < p.low < p.predicted < p.high for p in one.predictions)


def test_more_points_come_between_the_extremes_and_lower_the_error() -> None:
    errors = []
    for points in (2, 3, 4):
        (one,) = judged(CRITICAL, points)
        assert len(one.profiled) == points
        assert {"batch 32", "batch 1024"} < set(one.profiled) or points == 2
        errors.append(float(np.mean(one.errors())))

    assert errors[0] > errors[1] > 0.0
    assert errors[2] < errors[0]


def test_what_is_not_fitted_to_changes_neither_the_points_nor_the_predictions() -> None:
    (one,) = judged(CRITICAL, 3)
    fitted = {float(at.split()[1]) for at in one.profiled}
    spoiled = [
        row
        if row.global_batch_size in fitted
        else RunRow(row.source, row.workload, row.global_batch_size, 99.0)
        for row in CRITICAL
    ]
    (other,) = judged(spoiled, 3)

    assert other.profiled == one.profiled
    assert [p.predicted for p in other.predictions] == [p.predicted for p in one.predictions]
    assert [p.truth for p in other.predictions] == [99.0] * 3


def test_a_curve_that_rises_on_both_sides_is_told_from_three_points() -> None:
    epochs = {size: critical(size) * (1.0 + (60.0 / size) ** 2) for size in SIZES}
    (one,) = judged(rows_of(epochs), 3)

    assert one.law == "u-shaped"
    assert np.median(one.errors()) < 15.0


def test_groups_are_sources_and_workloads_and_their_order_is_theirs() -> None:
    rows = [*rows_of({8: 2.0, 16: 3.0, 32: 4.0}, source="b"), *CRITICAL]
    found = backtest_epochs(rows[::-1], 2)

    assert [(one.origin, one.workload, one.workers_per_node) for one in found] == [
        ("b", "w", None),
        ("made up", "w", None),
    ]


def test_too_few_batch_sizes_are_skipped_with_the_reason() -> None:
    (one,) = backtest_epochs(rows_of({8: 2.0, 16: 3.0, 32: 4.0}), 3)

    assert isinstance(one, SkippedGroup)
    assert one.reason == "3 batch sizes: 3 to fit to and one to predict are needed"


def test_rows_that_are_no_measurements_are_dropped_and_counted() -> None:
    bad = [
        RunRow("made up", "w", size, epochs)
        for size, epochs in [
            (64.0, math.nan),
            (64.0, 0.0),
            (64.0, -1.0),
            (64.0, math.inf),
            (math.nan, 5.0),
            (0.0, 5.0),
            (-8.0, 5.0),
            (2.5, 5.0),
            (math.inf, 5.0),
        ]
    ]
    (clean,), (dirty,) = judged(CRITICAL, 3), judged([*bad, *CRITICAL], 3)

    assert dirty.dropped == len(bad)
    assert dirty.predictions == clean.predictions
    (skipped,) = backtest_epochs(bad, 2)
    assert isinstance(skipped, SkippedGroup)
    assert skipped.dropped == len(bad)


@pytest.mark.parametrize("points", [1, 0, -3, "marked", "3"])
def test_points_that_fit_to_nothing_are_refused(points: int | str) -> None:
    with pytest.raises(ValueError, match="extremes"):
        backtest_epochs(CRITICAL, points)


@examples(8)
@given(
    st.dictionaries(st.integers(1, 2**40), st.floats(1e-6, 1e12), min_size=4, max_size=8),
    st.floats(1e-6, 1e6),
    st.randoms(use_true_random=False),
)
def test_unit_and_order_of_the_rows_do_not_matter(epochs, unit, random) -> None:  # type: ignore[no-untyped-def]
    rows = rows_of(epochs)
    scaled = [RunRow(r.source, r.workload, r.global_batch_size, unit * r.epochs) for r in rows]
    (one,), (other,) = judged(rows, 3), judged(random.sample(scaled, len(scaled)), 3)

    assert other.profiled == one.profiled
    for mine, theirs in zip(one.predictions, other.predictions, strict=True):
        assert (theirs.low, theirs.predicted, theirs.high) == pytest.approx(
            (unit * mine.low, unit * mine.predicted, unit * mine.high), rel=1e-5
        )


# --- public runs ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def public() -> dict[str | int, list[GroupResult]]:
    if not DATA.exists():
        pytest.skip(f"{DATA} is not here")
    table = pd.read_csv(DATA)
    rows = [
        RunRow(row.source, row.workload, float(row.global_batch_size), row.epochs)
        for row in table.itertuples()
    ]
    return {points: judged(rows, points) for points in ("extremes", 3)}


def of(results: list[GroupResult], source: str) -> list[GroupResult]:
    return [one for one in results if one.origin == source]


@pytest.mark.slow
def test_reference_runs_are_predicted_from_their_extremes_and_better_from_three_points(public) -> None:  # type: ignore[no-untyped-def]
    assert median_ape(of(public["extremes"], "mlperf-rcp")) < 4.0
    assert median_ape(of(public[3], "mlperf-rcp")) < 3.0


def test_runs_whose_learning_rate_was_not_tuned_again_are_predicted_from_three_points(public) -> None:  # type: ignore[no-untyped-def]
    zeus = of(public[3], "zeus")

    assert median_ape(zeus) < 6.0
    assert max(np.median(one.errors()) for one in zeus) < 15.0
    assert {one.workload for one in zeus if one.law == "u-shaped"} == {
        "ncf/movielens-1m",
        "resnet50/imagenet",
        "shufflenetv2/cifar100",
    }


def test_single_runs_to_a_threshold_are_predicted_from_three_points(public) -> None:  # type: ignore[no-untyped-def]
    assert max(np.median(one.errors()) for one in of(public[3], "pollux-threshold")) < 10.0


@pytest.mark.parametrize("points", ["extremes", 3])
def test_nine_in_ten_public_truths_lie_in_their_intervals(public, points) -> None:  # type: ignore[no-untyped-def]
    assert 0.85 < coverage90(public[points]) < 0.96


def test_intervals_are_narrow_enough_to_choose_by(public) -> None:  # type: ignore[no-untyped-def]
    margins = [math.log(p.high / p.low) / 2 for one in public[3] for p in one.predictions]

    assert np.median(margins) < 0.15


def test_runs_that_cannot_be_true_are_left_out() -> None:
    absurd = [RunRow("made up", "w", 1e300, 10.0), RunRow("made up", "w", 96.0, 1e300)]
    (one,) = judged([*CRITICAL, *absurd], 3)

    assert one.dropped == 2
    assert one.errors().max() < 10.0
