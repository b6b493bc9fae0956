"""Gradient noise and its scale."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from synthetic import step_record

from scavenger.models.noise import Ewma, NoiseStability, NoiseTracker, gradient_noise, noise_scale_parts

GRADIENTS = hnp.arrays(np.float64, (4, 3), elements=st.floats(-100, 100).map(lambda x: round(x, 3)))


@given(GRADIENTS)
def test_gradient_noise_lies_between_one_and_the_number_of_parts(gradients: np.ndarray) -> None:
    worker, mean = float((gradients**2).sum(axis=1).mean()), float((gradients.mean(axis=0) ** 2).sum())

    assert 1.0 <= gradient_noise(worker, mean, 4) <= 4.0


def test_equal_gradients_carry_no_noise_and_opposite_ones_nothing_but_noise() -> None:
    assert gradient_noise(2.0, 2.0, 4) == 1.0
    assert gradient_noise(2.0, 0.0, 4) == 4.0
    assert gradient_noise(0.0, 0.0, 4) == 1.0


@pytest.mark.parametrize("sqnorm", [math.nan, math.inf, -1.0])
def test_a_squared_norm_that_cannot_be_is_refused(sqnorm: float) -> None:
    with pytest.raises(ValueError, match="squared norm"):
        gradient_noise(sqnorm, 1.0, 2)
    with pytest.raises(ValueError, match="squared norm"):
        noise_scale_parts(1.0, sqnorm, 1.0, 2.0)


@given(st.floats(0.001, 1e3), st.floats(0.001, 1e3), st.integers(2, 16), st.integers(16, 1000))
def test_noise_scale_parts_invert_the_expectations(trace: float, true: float, parts: int, batch: int) -> None:
    small = batch / parts

    found = noise_scale_parts(true + trace / small, true + trace / batch, small, batch)

    assert found == pytest.approx((trace, true), rel=1e-6, abs=1e-9)


def gradients_of_known_covariance(
    rng: np.random.Generator, workers: int, batch: int, trace: float, true: float
) -> tuple[float, float]:
    """Squared norms of one step whose per-sample gradients have mean (√G², 0, ...) and covariance S/d I."""
    dimensions = 50
    deviation = math.sqrt(trace / dimensions / (batch / workers))
    local = rng.normal(0.0, deviation, (workers, dimensions))
    local[:, 0] += math.sqrt(true)
    return float((local**2).sum(axis=1).mean()), float((local.mean(axis=0) ** 2).sum())


def test_the_noise_scale_of_a_known_covariance_is_recovered_across_configurations() -> None:
    rng = np.random.default_rng(7)
    tracker = NoiseTracker()
    for step in range(400):
        workers, batch = ((2, 64), (8, 512))[step // 20 % 2]
        norms = gradients_of_known_covariance(rng, workers, batch, trace=300.0, true=2.0)
        tracker = tracker.update(step_record(step, *norms, workers=workers, batch=batch))

    assert tracker.noise_scale == pytest.approx(150.0, rel=0.25)
    assert tracker.count == 400


def test_gradient_noise_starts_anew_with_a_configuration_and_the_noise_scale_does_not() -> None:
    tracker = NoiseTracker().update(step_record(1, 3.0, 1.5, workers=4))
    moved = tracker.update(step_record(2, 2.0, 1.6, workers=2))

    assert tracker.gradient_noise == pytest.approx(2.0)
    assert moved.gradient_noise == pytest.approx(1.25)
    assert moved.count == 2


def test_the_noise_scale_is_unknown_while_the_true_gradient_drowns() -> None:
    tracker = NoiseTracker().update(step_record(1, 5.0, 0.5, workers=4))

    assert tracker.noise_scale is None
    assert tracker.gradient_noise == 4.0


@pytest.mark.parametrize("record", [step_record(1, 1.0, 1.0, parts=0), step_record(1, math.nan, 1.0)])
def test_a_step_that_tells_nothing_changes_nothing(record) -> None:  # type: ignore[no-untyped-def]
    tracker = NoiseTracker().update(step_record(1, 3.0, 1.5))

    assert tracker.update(record) == tracker
    assert NoiseTracker().gradient_noise is None


@given(st.floats(-1e6, 1e6), st.integers(1, 200), st.floats(0.001, 1.0))
def test_the_average_of_a_constant_is_that_constant_from_the_first_value_on(
    value: float, count: int, alpha: float
) -> None:
    average = Ewma(alpha)
    assert average.value is None
    for _ in range(count):
        average = average.update(value)

    assert average.value == pytest.approx(value, rel=1e-9, abs=1e-9)


def steps_until_ended(log_noise: np.ndarray) -> int:
    test = NoiseStability()
    for step, value in enumerate(log_noise.tolist(), start=1):
        test = test.update(step_record(step, math.exp(value), 1.0))
        if test.ended:
            return step
    raise AssertionError("never ended")


def test_steady_noise_ends_the_cold_start_soon() -> None:
    rng = np.random.default_rng(3)
    ends = [steps_until_ended(rng.normal(0.5, 0.1, 200)) for _ in range(50)]

    assert min(ends) >= 20
    assert np.median(ends) <= 30


def test_drifting_noise_is_waited_for() -> None:
    rng = np.random.default_rng(4)
    rising = np.minimum(np.arange(200) / 60.0, 1.0)
    ends = [steps_until_ended(rising + rng.normal(0.0, 0.05, 200)) for _ in range(50)]

    assert np.median(ends) > 60
    assert steps_until_ended(np.arange(200) / 50.0) == 200


def test_steps_without_noise_end_the_cold_start_at_the_limit() -> None:
    test = NoiseStability(steps_min=2, steps_max=5)
    for step in range(4):
        test = test.update(step_record(step, 1.0, 1.0, parts=0))
        assert not test.ended
    test = test.update(step_record(5, 1.0, 1.0, parts=0))

    assert test.ended
    assert not test.settled
    assert "too few" in test.reason
