"""Step time by configuration."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import CORNERS, SHARED, step_parts

from scavenger.models.parallel import ParallelModel, fit_parallel, local_batch_sizes
from scavenger.models.step_laws import LinearLaw, OverlapLaw, StepTimes

GRID = tuple((k, b) for k in (1, 2, 4, 8) for b in (64, 128, 256, 512, 1024))


def times(points=CORNERS, parts=step_parts, contention=lambda k: 1.0, spread=0.02, **changes):  # type: ignore[no-untyped-def]
    rows = []
    for workers, batch in points:
        compute_s, sync_s = parts(workers, batch, contention(workers))
        values = {
            "workers": workers,
            "global_batch_size": batch,
            "local_batch_size": -(-batch // workers),
            "contention": contention(workers),
            "step_time_s": compute_s + sync_s,
            "compute_s": compute_s,
            "sync_s": sync_s,
            "spread_s": spread * (compute_s + sync_s),
            "steps": 20,
        }
        rows.append(StepTimes(**(values | changes)))
    return rows


def predict(model: ParallelModel, points=GRID, contention=lambda k: 1.0):  # type: ignore[no-untyped-def]
    workers, batch = np.array(points).T
    return model.predict(workers, batch, np.array([contention(int(k)) for k in workers]))


def test_four_corners_of_a_linear_job_predict_every_configuration() -> None:
    model = fit_parallel(times())
    step_time_s, _ = predict(model)

    assert isinstance(model.law, LinearLaw)
    assert step_time_s == pytest.approx([sum(step_parts(k, b)) for k, b in GRID], rel=1e-6)


def test_shared_processors_slow_computing_by_their_contention() -> None:
    points = ((1, 64), (1, 512), (2, 512), (2, 64), (4, 512), (4, 64))
    model = fit_parallel(times(points, contention=SHARED.contention))
    step_time_s, _ = predict(model, ((3, 256),), SHARED.contention)

    assert step_time_s[0] == pytest.approx(sum(step_parts(3, 256, 1.5)), rel=0.02)


def test_synchronisation_that_contends_is_told_by_three_cluster_sizes() -> None:
    def contended(workers: int, batch: int, contention: float) -> tuple[float, float]:
        return 0.02 + 0.001 * -(-batch // workers) * contention, 0.01 + 0.02 * workers * contention

    points = tuple((k, b) for k in (1, 2, 4) for b in (64, 512))
    model = fit_parallel(times(points, parts=contended, contention=SHARED.contention), law="linear")

    assert isinstance(model.law, LinearLaw)
    assert model.law.sync_contended
    assert model.law.sync_per_worker_s == pytest.approx(0.02, rel=1e-6)


def test_hidden_synchronisation_chooses_the_overlap_law() -> None:
    def hidden(workers: int, batch: int, contention: float) -> tuple[float, float]:
        compute_s, sync_s = 0.02 + 0.001 * -(-batch // workers), 0.05 + 0.02 * workers
        step_time_s = max(compute_s, sync_s if workers > 1 else 0.0)
        return compute_s, step_time_s - compute_s

    model = fit_parallel(times(GRID[::2], parts=hidden))
    step_time_s, _ = predict(model, GRID[1::2])
    truth = [sum(hidden(k, b, 1.0)) for k, b in GRID[1::2]]

    assert isinstance(model.law, OverlapLaw)
    assert float(np.median(np.abs(np.log(step_time_s / truth)))) < 0.1


def test_what_was_never_varied_is_frozen_and_said() -> None:
    model = fit_parallel(times(((2, 64), (2, 1024))))

    assert isinstance(model.law, LinearLaw)
    assert model.law.sync_per_worker_s == 0.0
    assert any("workers was never varied" in note for note in model.notes)


def test_one_point_makes_computing_proportional_to_the_local_batch() -> None:
    model = fit_parallel(times(((1, 100),)))

    assert isinstance(model.law, LinearLaw)
    assert model.law.compute_base_s == 0.0
    assert model.law.compute_per_sample_s == pytest.approx(0.12 / 100)
    assert any("local batch was never varied" in note for note in model.notes)


def test_a_measured_configuration_is_predicted_by_its_own_median() -> None:
    points = times(GRID)
    odd = StepTimes(2, 256, 128, 1.0, 1.0, 0.9, 0.1, 0.01, 20)
    model = fit_parallel(
        [*(p for p in points if (p.workers, p.global_batch_size) != (2, 256)), odd], law="linear"
    )
    step_time_s, deviation = predict(model, ((2, 256), (2, 257)))

    assert step_time_s[0] == pytest.approx(1.0, rel=0.05)
    assert step_time_s[1] < 0.5
    assert deviation[0] < deviation[1]


def test_a_noisy_measurement_is_drawn_towards_the_law() -> None:
    steady = predict(fit_parallel(times(spread=0.001)), CORNERS)[1]
    noisy = predict(fit_parallel(times(spread=2.0)), CORNERS)[1]

    assert np.all(steady < noisy)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0])
def test_bad_measurements_are_dropped_and_counted(bad: float) -> None:
    model = fit_parallel([*times(), *times(((4, 256),), step_time_s=bad)])

    assert model.notes[0] == "bad measurements dropped: 1"
    assert predict(model)[0] == pytest.approx(predict(fit_parallel(times()))[0])
    with pytest.raises(ValueError, match="no usable step time"):
        fit_parallel(times(((4, 256),), step_time_s=bad))


def test_the_fit_does_not_depend_on_the_order_of_the_measurements() -> None:
    points = times(GRID[::3])

    assert fit_parallel(points) == fit_parallel(points[::-1])


def test_doubt_grows_beyond_the_profiled_range() -> None:
    _, deviation = predict(fit_parallel(times()), ((8, 512), (16, 512), (64, 512), (256, 512)))

    assert np.all(np.diff(deviation) > 0.0)


def test_local_batches_are_rounded_up() -> None:
    assert local_batch_sizes(np.array([3, 4]), np.array([100, 100])).tolist() == [34, 25]


POSITIVE = st.floats(1e-6, 1e4)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 64), st.integers(1, 512), POSITIVE, st.floats(0, 1e4), st.floats(0, 1e3)),
        min_size=1,
        max_size=7,
    )
)
def test_step_times_are_positive_and_finite_for_any_sane_profile(rows) -> None:  # type: ignore[no-untyped-def]
    points = [
        StepTimes(k, k * b, b, 1.0, compute + sync, compute, sync, spread, 20)
        for k, b, compute, sync, spread in rows
    ]
    step_time_s, deviation = predict(fit_parallel(points), ((1, 1), (3, 100), (64, 4096), (1000, 10**6)))

    assert np.all(np.isfinite(step_time_s) & (step_time_s > 0.0))
    assert np.all(np.isfinite(deviation) & (deviation > 0.0))
