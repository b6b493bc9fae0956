"""Step times on another VM type."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from scavenger.models.overlap_law import OverlapLaw, overlap_prior
from scavenger.models.parallel import INTERVAL_Z, ParallelModel, StepLaw, StepTimes, fit_parallel
from scavenger.models.step_laws import LinearLaw
from scavenger.models.transfer import transfer

LAW = OverlapLaw.from_unknowns(overlap_prior(0.2, 64.0).mean)
SEEN = tuple((k, k * b) for k in (1, 2, 8) for b in (16, 256))
Law = OverlapLaw | LinearLaw
GRID = tuple((k, k * b) for k in (1, 2, 4, 8) for b in (16, 32, 64, 128, 256))


def measured(points, law: Law = LAW) -> list[StepTimes]:  # type: ignore[no-untyped-def]
    workers, batch = np.array(points, dtype=float).T
    step_time_s, features = law.evaluate(workers, batch / workers, np.ones(len(points)))
    sync_s = step_time_s * law.sync_elasticity(step_time_s, features)
    return [
        StepTimes(int(k), int(b), int(b / k), 1.0, float(t), float(t - s), float(s), 0.0, 20)
        for k, b, t, s in zip(workers, batch, step_time_s, sync_s, strict=True)
    ]


def predict(model: ParallelModel, points=GRID):  # type: ignore[no-untyped-def]
    workers, batch = np.array(points).T
    return model.predict(workers, batch, np.ones(len(points)))


def error(model: ParallelModel, law: Law) -> float:
    truth = [t.step_time_s for t in measured(GRID, law)]
    return float(np.mean(np.abs(np.log(predict(model)[0] / truth))))


def held(model: ParallelModel, law: OverlapLaw | LinearLaw) -> float:
    step_time_s, deviation = predict(model)
    off = np.abs(np.log(step_time_s / [t.step_time_s for t in measured(GRID, law)]))
    return float(np.mean(off < INTERVAL_Z * deviation))


def test_without_a_point_the_ratio_of_speeds_is_believed_and_widely_doubted() -> None:
    model = fit_parallel(measured(SEEN), law="overlap")
    there = transfer(model, [], speed_ratio=4.0)

    assert error(there, LAW.scaled(0.25, 1.0)) < 0.1
    assert np.all(predict(there)[1] > predict(model)[1] + 0.2)
    assert not there.measured


def test_without_anything_doubt_is_widest() -> None:
    model = fit_parallel(measured(SEEN), law="overlap")
    told, untold = transfer(model, [], speed_ratio=1.0), transfer(model, [])

    assert predict(told)[0] == pytest.approx(predict(untold)[0])
    assert np.all(predict(told)[1] < predict(untold)[1])


ADDING = LinearLaw(0.02, 0.001, 0.03, 0.01)


@pytest.mark.parametrize(("compute", "sync"), [(0.3, 1.0), (3.0, 1.0), (0.5, 0.3), (1.0, 3.0)])
@pytest.mark.parametrize("law", [LAW, ADDING])
def test_two_points_find_how_fast_it_computes_and_how_fast_it_synchronises(
    compute: float, sync: float, law: Law
) -> None:
    model = fit_parallel(measured(SEEN, law), law=law.kind)
    other = law.scaled(compute, sync)
    none, one, two = (
        transfer(model, measured(points, other) if points else [])
        for points in ((), ((1, 64),), ((1, 64), (8, 128)))
    )

    # Of a step that is mostly synchronisation a single point is believed less.
    assert error(two, other) < (0.1 if law is LAW else 0.2)
    assert error(two, other) < error(none, other)
    assert max(np.mean(predict(seen)[1]) for seen in (one, two)) < np.mean(predict(none)[1])
    assert held(two, other) > 0.85


def test_a_point_that_agrees_with_the_ratio_leaves_it() -> None:
    model = fit_parallel(measured(SEEN), law="overlap")
    there = transfer(model, measured(((1, 256),), LAW.scaled(0.5, 1.0)), speed_ratio=2.0)

    assert there.law.compute_per_sample_s == pytest.approx(0.5 * model.law.compute_per_sample_s, rel=0.05)


def test_bad_measurements_are_dropped_and_counted() -> None:
    model = fit_parallel(measured(SEEN))
    bad = StepTimes(1, 64, 64, 1.0, math.nan, 1.0, 0.0, 0.0, 20)
    there = transfer(model, [bad, *measured(((1, 64),))])

    assert "bad measurements dropped: 1" in there.notes
    assert predict(there)[0] == pytest.approx(predict(transfer(model, measured(((1, 64),))))[0])


@pytest.mark.parametrize("ratio", [0.0, -1.0, math.nan, math.inf])
def test_a_ratio_of_speeds_that_is_none_is_refused(ratio: float) -> None:
    with pytest.raises(ValueError, match="ratio of speeds"):
        transfer(fit_parallel(measured(SEEN)), [], speed_ratio=ratio)


@examples(12)
@given(
    st.lists(
        st.tuples(st.integers(1, 64), st.integers(1, 512), st.floats(1e-9, 1e9)), min_size=1, max_size=4
    ),
    st.sampled_from(["linear", "overlap"]),
)
def test_predictions_are_positive_and_finite_whatever_was_measured(rows, law: StepLaw) -> None:  # type: ignore[no-untyped-def]
    times = [StepTimes(k, k * b, b, 1.0, t, t, 0.0, 0.0, 20) for k, b, t in rows]
    step_time_s, deviation = predict(transfer(fit_parallel(measured(SEEN), law=law), times))

    assert np.all(np.isfinite(step_time_s) & (step_time_s > 0.0))
    assert np.all(np.isfinite(deviation) & (deviation > 0.0))
